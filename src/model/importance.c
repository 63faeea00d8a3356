#include "model/importance.h"

#include <stdlib.h>
#include <string.h>

#include "base/pool.h"

/* An expert with fewer inputs has those of its layer, if it shares them. The storyteller's mlp.dense_h_to_4h
 * of layer 3, in Q4_K, with inputs that went to two of 16 experts by random directions: 256 inputs of an
 * expert's own are as good as the 20,000 of all, 1000 are 11% better. */
#define LEAST_INPUTS 256

/* Of one matrix in one layer, or of one of its experts. */
typedef struct inputs {
    int64_t cols, width, rows;
    double *sums;    /* [cols]; NULL for experts */
    float *products; /* [cols, width] */
} inputs;

struct fb_importance {
    fb_importance_plan plan;
    int64_t slots, layers;
    int64_t first[FB_MAX_SLOTS];   /* where a slot's inputs begin in `of` */
    int64_t experts[FB_MAX_SLOTS]; /* how many a layer has; 1 for a single matrix */
    int64_t count;
    inputs *of; /* [count], of owners: by slot, layer and expert */
};

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

void fb_importance_free(fb_importance *m) {
    if (!m) return;
    for (int64_t i = 0; m->of && i < m->count; i++) {
        free(m->of[i].sums);
        free(m->of[i].products);
    }
    free(m->of);
    free(m);
}

/* ---- creating ------------------------------------------------------------------------------------------ */

static inputs *inputs_at(const fb_importance *m, int64_t slot, int64_t layer, int64_t expert) {
    return &m->of[m->first[slot] + layer * m->experts[slot] + expert];
}

/* Memory that no expert's inputs are added to stays untouched, so that it takes none. */
static fb_status take_inputs(inputs *of, const fb_slot *slot, int64_t width, fb_error *err) {
    of->cols = slot->cols;
    of->width = width;
    of->products = calloc((size_t)(of->cols * width), sizeof *of->products);
    if (!slot->experts) of->sums = calloc((size_t)of->cols, sizeof *of->sums);
    if (of->products && (of->sums || slot->experts)) return FB_OK;
    return fb_fail_memory(err, "importance", of->cols * (8 + width * (int64_t)sizeof(float)));
}

static fb_status take_memory(fb_importance *m, const fb_program *p, fb_error *err) {
    for (int32_t s = 0; s < p->slot_count; s++) {
        m->first[s] = m->count;
        m->experts[s] = p->slots[s].experts ? p->slots[s].experts : 1;
        m->count += m->layers * m->experts[s];
    }
    m->of = calloc((size_t)m->count, sizeof *m->of);
    if (!m->of) return fb_fail_memory(err, "importance", m->count * (int64_t)sizeof *m->of);
    for (int32_t s = 0; s < p->slot_count; s++) {
        int64_t matrices = (p->slots[s].per_layer ? m->layers : 1) * m->experts[s];
        for (int64_t i = 0; m->plan.owner[s] == s && i < matrices; i++)
            FB_TRY(take_inputs(&m->of[m->first[s] + i], &p->slots[s], m->plan.width[s], err));
    }
    return FB_OK;
}

fb_status fb_importance_create(const fb_model *model, fb_importance **out, fb_error *err) {
    const fb_program *p = &model->spec->program;
    fb_importance *m = *out = calloc(1, sizeof *m);
    if (!m) return fb_fail_memory(err, "importance", sizeof *m);
    m->slots = p->slot_count;
    m->layers = p->layers;
    fb_importance_plan_make(p, &m->plan);
    fb_status status = take_memory(m, p, err);
    if (status == FB_OK) return FB_OK;
    fb_importance_free(m);
    *out = NULL;
    return status;
}

/* ---- adding rows --------------------------------------------------------------------------------------- */

enum { TILE = 64 }; /* columns and rows; a panel is a whole number of tiles, or all columns */

/* Up to TILE rows, each with its place in a view. */
typedef struct some_rows {
    const fb_view *x;
    int count;
    int64_t row[TILE];
    int32_t head[TILE]; /* of the row's first column */
} some_rows;

/* Columns [first, first + TILE). Zeros stand for those beyond the last. */
static void gather(const some_rows *rows, int64_t cols, int64_t first, float out[TILE][TILE]) {
    const fb_view *x = rows->x;
    memset(out, 0, sizeof(float[TILE][TILE]));
    for (int r = 0; r < rows->count; r++)
        for (int64_t c = first, count; c < cols && c < first + TILE; c += count) {
            int64_t in_head = c % x->width;
            const float *from = fb_view_at(x, rows->row[r], rows->head[r] + c / x->width);
            count = smaller(smaller(x->width - in_head, first + TILE - c), cols - c);
            memcpy(&out[r][c - first], from + in_head, (size_t)count * sizeof(float));
        }
}

/* products [rows, cols] += the sum over the first r `count` of a[r, i] * b[r, j]. */
static void add_products(float a[TILE][TILE], float b[TILE][TILE], int count, float *products, int64_t stride,
                         int64_t rows, int64_t cols) {
    enum { HIGH = 4, WIDE = 8 };
    for (int64_t i = 0; i < rows; i += HIGH)
        for (int64_t j = 0; j < cols; j += WIDE) {
            float sums[HIGH][WIDE] = {0};
            for (int r = 0; r < count; r++)
                for (int m = 0; m < HIGH; m++)
                    for (int n = 0; n < WIDE; n++) sums[m][n] += a[r][i + m] * b[r][j + n];
            for (int64_t m = 0; m < HIGH && i + m < rows; m++)
                for (int64_t n = 0; n < WIDE && j + n < cols; n++)
                    products[(i + m) * stride + j + n] += sums[m][n];
        }
}

/* Columns `first` and on with columns `with` and on. */
static void add_tile(const inputs *of, const some_rows *rows, int64_t first, int64_t with) {
    float a[TILE][TILE], b[TILE][TILE];
    int64_t panel = first / of->width * of->width;
    gather(rows, of->cols, first, a);
    gather(rows, of->cols, with, b);
    add_products(a, b, rows->count, of->products + first * of->width + with - panel, of->width,
                 smaller(TILE, of->cols - first), smaller(TILE, of->cols - with));
}

/* Workers take tiles in turn, of one expert's matrix beginning with another worker than of the next. */
static void add_rows(const inputs *of, const some_rows *rows, int64_t expert, int32_t worker,
                     int32_t workers) {
    int64_t tile = expert;
    for (int64_t first = 0; first < of->cols; first += TILE)
        for (int64_t with = first / of->width * of->width; with <= first; with += TILE)
            if (tile++ % workers == worker) add_tile(of, rows, first, with);
}

static void add_sums(const inputs *of, const fb_view *x, int64_t rows, int64_t begin, int64_t end) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t c = begin; c < end; c++)
            of->sums[c] += (double)((const float *)fb_view_at(x, row, c / x->width))[c % x->width];
}

/* One matrix, which all rows are multiplied with. */
static void add_linear(inputs *of, const fb_linear_rows *in, int32_t worker, int32_t workers) {
    int64_t begin, end;
    some_rows rows = {.x = in->x};
    fb_pool_share(of->cols, TILE, worker, workers, &begin, &end);
    add_sums(of, in->x, in->rows, begin, end);
    if (worker == 0) of->rows += in->rows;
    for (int64_t row = 0; row < in->rows; row += rows.count) {
        rows.count = (int)smaller(TILE, in->rows - row);
        for (int i = 0; i < rows.count; i++) rows.row[i] = row + i;
        add_rows(of, &rows, 0, worker, workers);
    }
}

static int64_t expert_of(const fb_linear_rows *in, int64_t row, int32_t j) {
    return (int64_t)((const float *)fb_view_at(in->routes, row, 0))[2 * j];
}

/* One expert's matrix, with the rows that were routed to it. */
static void add_expert(inputs *of, const fb_linear_rows *in, int64_t expert, int32_t worker,
                       int32_t workers) {
    some_rows rows = {.x = in->x};
    for (int64_t row = 0; row < in->rows; row++)
        for (int32_t j = 0; j < in->used; j++) {
            if (expert_of(in, row, j) != expert) continue;
            rows.row[rows.count] = row;
            rows.head[rows.count++] = in->each ? j : 0;
            if (worker == 0) of->rows++;
            if (rows.count < TILE) continue;
            add_rows(of, &rows, expert, worker, workers);
            rows.count = 0;
        }
    if (rows.count) add_rows(of, &rows, expert, worker, workers);
}

void fb_importance_add(fb_importance *m, int32_t slot, int64_t layer, const fb_linear_rows *in,
                       int32_t worker, int32_t workers) {
    inputs *of = inputs_at(m, slot, layer, 0);
    int64_t cols = in->each ? in->x->width : in->x->heads * in->x->width;
    if (!of->products || in->x->dtype != FB_F32 || cols != of->cols) return;
    if (!in->routes)
        add_linear(of, in, worker, workers);
    else
        for (int64_t e = 0; e < m->experts[slot]; e++) add_expert(&of[e], in, e, worker, workers);
}

/* ---- asking -------------------------------------------------------------------------------------------- */

static const inputs *inputs_of(const fb_importance *m, int32_t owner, int64_t layer, int64_t expert) {
    static const inputs none = {0};
    return owner == FB_NONE ? &none : inputs_at(m, owner, layer, expert);
}

fb_products fb_importance_products(const fb_importance *m, int32_t slot, int64_t layer, int64_t expert,
                                   bool *layers) {
    const inputs *own = inputs_of(m, m->plan.owner[slot], layer, expert);
    const inputs *all = inputs_of(m, m->plan.shared[slot], layer, 0);
    *layers = own->rows < LEAST_INPUTS && all->rows;
    const inputs *of = *layers ? all : own;
    return (fb_products){.sums = of->rows ? of->products : NULL,
                         .cols = of->cols,
                         .width = of->width,
                         .few = of->sums ? 0 : of->rows};
}

fb_status fb_importance_mean(const fb_importance *m, int32_t slot, int64_t layer, double **out,
                             fb_error *err) {
    const inputs *of = inputs_of(m, m->plan.owner[slot], layer, 0);
    *out = NULL;
    if (!of->rows || !of->sums) return FB_OK;
    *out = malloc((size_t)of->cols * sizeof **out);
    if (!*out) return fb_fail_memory(err, "means of inputs", of->cols * (int64_t)sizeof **out);
    for (int64_t i = 0; i < of->cols; i++) (*out)[i] = of->sums[i] / (double)of->rows;
    return FB_OK;
}

bool fb_importance_fits(const fb_importance *m, const fb_model *model) {
    const fb_program *p = &model->spec->program;
    bool fits = m->slots == p->slot_count && m->layers == p->layers;
    for (int32_t s = 0; fits && s < m->slots; s++) {
        const inputs *of = inputs_at(m, s, 0, 0);
        fits = (!of->cols || of->cols == p->slots[s].cols) &&
               m->experts[s] == (p->slots[s].experts ? p->slots[s].experts : 1);
    }
    return fits;
}
