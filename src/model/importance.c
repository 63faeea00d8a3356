#include "model/importance.h"

#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "base/quant.h"

/* Products take at most so much memory, and a panel is at most so wide. The storyteller's matrices are whole
 * panels. A Llama of 1B has panels of 1024 columns (0.9 GB), one of 8B panels of 512 (1.7 GB), where whole
 * matrices would take 33 GB. Factoring a panel takes the cube of its width. */
#define MOST_BYTES ((int64_t)2 << 30)
#define WIDEST     1024

/* Of one matrix in one layer. */
typedef struct inputs {
    int64_t cols, rows;
    double *sums;    /* [cols] */
    float *products; /* [cols, width of a panel] */
} inputs;

struct fb_importance {
    int64_t slots, layers, width;
    int32_t owner[FB_MAX_SLOTS]; /* the slot that has the inputs of a slot; FB_NONE: it is not multiplied */
    inputs *of;                  /* [slots * layers], of owners */
};

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

void fb_importance_free(fb_importance *m) {
    if (!m) return;
    for (int64_t i = 0; m->of && i < m->slots * m->layers; i++) {
        free(m->of[i].sums);
        free(m->of[i].products);
    }
    free(m->of);
    free(m);
}

/* ---- whose inputs are kept ----------------------------------------------------------------------------- */

/* The first linear of the section that reads the same value, such as that of q for k and v. */
static int32_t first_reader(const fb_program *p, fb_section section, int32_t value) {
    int32_t i = 0;
    while (p->ops[section][i].kind != FB_OP_LINEAR || p->ops[section][i].in[0] != value) i++;
    return p->ops[section][i].weights[0];
}

/* A matrix that several linears multiply has the inputs of all of them, and shares none. */
static void find_owners(fb_importance *m, const fb_program *p) {
    int readers[FB_MAX_SLOTS] = {0};
    for (int32_t slot = 0; slot < FB_MAX_SLOTS; slot++) m->owner[slot] = FB_NONE;
    for (int pass = 0; pass < 2; pass++)
        for (int s = 0; s < FB_SECTIONS; s++)
            for (int32_t i = 0; i < p->op_count[s]; i++) {
                const fb_op *op = &p->ops[s][i];
                if (op->kind != FB_OP_LINEAR) continue;
                int32_t slot = op->weights[0], first = first_reader(p, (fb_section)s, op->in[0]);
                if (pass == 0)
                    readers[slot]++;
                else
                    m->owner[slot] = readers[slot] == 1 && readers[first] == 1 ? first : slot;
            }
}

static bool is_kept(const fb_importance *m, const fb_program *p, int64_t slot, int64_t layer) {
    return m->owner[slot] == slot && (p->slots[slot].per_layer || layer == 0);
}

static int64_t product_bytes(const fb_importance *m, const fb_program *p) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < m->slots * m->layers; i++) {
        int64_t cols = p->slots[i / m->layers].cols;
        if (is_kept(m, p, i / m->layers, i % m->layers))
            bytes += cols * smaller(cols, m->width) * (int64_t)sizeof(float);
    }
    return bytes;
}

static fb_status take_memory(fb_importance *m, const fb_program *p, fb_error *err) {
    size_t count = (size_t)m->slots * (size_t)m->layers;
    m->of = calloc(count, sizeof *m->of);
    if (!m->of) return fb_fail_memory(err, "importance", (int64_t)(count * sizeof *m->of));
    for (size_t i = 0; i < count; i++) {
        int64_t slot = (int64_t)i / m->layers, cols = p->slots[slot].cols, width = smaller(cols, m->width);
        if (!is_kept(m, p, slot, (int64_t)i % m->layers)) continue;
        m->of[i].cols = cols;
        m->of[i].sums = calloc((size_t)cols, sizeof *m->of[i].sums);
        m->of[i].products = calloc((size_t)(cols * width), sizeof *m->of[i].products);
        if (!m->of[i].sums || !m->of[i].products)
            return fb_fail_memory(err, "importance", cols * (8 + width * (int64_t)sizeof(float)));
    }
    return FB_OK;
}

fb_status fb_importance_create(const fb_model *model, fb_importance **out, fb_error *err) {
    const fb_program *p = &model->spec->program;
    fb_importance *m = *out = calloc(1, sizeof *m);
    if (!m) return fb_fail_memory(err, "importance", sizeof *m);
    m->slots = p->slot_count;
    m->layers = p->layers;
    m->width = WIDEST;
    find_owners(m, p);
    while (m->width > FB_MAX_BLOCK && product_bytes(m, p) > MOST_BYTES) m->width /= 2;
    fb_status status = take_memory(m, p, err);
    if (status == FB_OK) return FB_OK;
    fb_importance_free(m);
    *out = NULL;
    return status;
}

/* ---- adding rows --------------------------------------------------------------------------------------- */

enum { TILE = 64 }; /* columns and rows; a panel is a whole number of tiles, or all columns */

/* Columns [first, first + TILE) of rows [row, row + TILE). Zeros stand for those beyond the last. */
static void gather(const fb_view *x, int64_t cols, int64_t first, int64_t row, int64_t rows,
                   float out[TILE][TILE]) {
    memset(out, 0, sizeof(float[TILE][TILE]));
    for (int64_t r = row; r < rows && r < row + TILE; r++)
        for (int64_t c = first, count; c < cols && c < first + TILE; c += count) {
            int64_t in_head = c % x->width;
            count = smaller(smaller(x->width - in_head, first + TILE - c), cols - c);
            memcpy(&out[r - row][c - first], (const float *)fb_view_at(x, r, c / x->width) + in_head,
                   (size_t)count * sizeof(float));
        }
}

/* products [rows, cols] += the sum over r of a[r, i] * b[r, j]. */
static void add_products(float a[TILE][TILE], float b[TILE][TILE], float *products, int64_t stride,
                         int64_t rows, int64_t cols) {
    enum { HIGH = 4, WIDE = 8 };
    for (int64_t i = 0; i < rows; i += HIGH)
        for (int64_t j = 0; j < cols; j += WIDE) {
            float sums[HIGH][WIDE] = {0};
            for (int r = 0; r < TILE; r++)
                for (int m = 0; m < HIGH; m++)
                    for (int n = 0; n < WIDE; n++) sums[m][n] += a[r][i + m] * b[r][j + n];
            for (int64_t m = 0; m < HIGH && i + m < rows; m++)
                for (int64_t n = 0; n < WIDE && j + n < cols; n++)
                    products[(i + m) * stride + j + n] += sums[m][n];
        }
}

/* Columns `first` and on with columns `with` and on. */
static void add_tile(const fb_importance *m, const inputs *of, const fb_view *x, int64_t rows, int64_t first,
                     int64_t with) {
    float a[TILE][TILE], b[TILE][TILE];
    int64_t stride = smaller(m->width, of->cols), panel = first / m->width * m->width;
    for (int64_t row = 0; row < rows; row += TILE) {
        gather(x, of->cols, first, row, rows, a);
        gather(x, of->cols, with, row, rows, b);
        add_products(a, b, of->products + first * stride + with - panel, stride,
                     smaller(TILE, of->cols - first), smaller(TILE, of->cols - with));
    }
}

static void add_sums(const inputs *of, const fb_view *x, int64_t rows, int64_t begin, int64_t end) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t c = begin; c < end; c++)
            of->sums[c] += (double)((const float *)fb_view_at(x, row, c / x->width))[c % x->width];
}

void fb_importance_add(fb_importance *m, int32_t slot, int64_t layer, const fb_view *x, int64_t rows,
                       int32_t worker, int32_t workers) {
    inputs *of = &m->of[slot * m->layers + layer];
    if (!of->sums || x->dtype != FB_F32 || x->heads * x->width != of->cols) return;
    int64_t begin, end, tile = 0;
    fb_pool_share(of->cols, TILE, worker, workers, &begin, &end);
    add_sums(of, x, rows, begin, end);
    if (worker == 0) of->rows += rows;
    for (int64_t first = 0; first < of->cols; first += TILE)
        for (int64_t with = first / m->width * m->width; with <= first; with += TILE)
            if (tile++ % workers == worker) add_tile(m, of, x, rows, first, with);
}

/* ---- asking -------------------------------------------------------------------------------------------- */

static const inputs *inputs_of(const fb_importance *m, int32_t slot, int64_t layer) {
    static const inputs none = {0};
    return m->owner[slot] == FB_NONE ? &none : &m->of[m->owner[slot] * m->layers + layer];
}

const float *fb_importance_products(const fb_importance *m, int32_t slot, int64_t layer, int64_t *cols,
                                    int64_t *width) {
    const inputs *of = inputs_of(m, slot, layer);
    *cols = of->cols;
    *width = smaller(of->cols, m->width);
    return of->rows ? of->products : NULL;
}

fb_status fb_importance_mean(const fb_importance *m, int32_t slot, int64_t layer, double **out,
                             fb_error *err) {
    const inputs *of = inputs_of(m, slot, layer);
    *out = NULL;
    if (!of->rows) return FB_OK;
    *out = malloc((size_t)of->cols * sizeof **out);
    if (!*out) return fb_fail_memory(err, "means of inputs", of->cols * (int64_t)sizeof **out);
    for (int64_t i = 0; i < of->cols; i++) (*out)[i] = of->sums[i] / (double)of->rows;
    return FB_OK;
}

bool fb_importance_fits(const fb_importance *m, const fb_model *model) {
    const fb_program *p = &model->spec->program;
    bool fits = m->slots == p->slot_count && m->layers == p->layers;
    for (int64_t i = 0; fits && i < m->slots * m->layers; i++)
        fits = !m->of[i].cols || m->of[i].cols == p->slots[i / m->layers].cols;
    return fits;
}
