/* Packed weights times many rows on AMX, with the bits of packed_tile.h.
 *
 * A tile of weights is a part of 32 columns of a group: eight quads of 16 outputs are eight rows of 64 bytes.
 * A part of 16 columns is such a tile whose other half is 0. A tile of x is 32 columns of 16 rows. Both are
 * written to small buffers once, weights for all rows and x for GROUPS groups. Offsets are subtracted there:
 * integers are exact either way.
 *
 * Each product of tiles is stored, and the vector units add it to the sums, with a multiplication and one or
 * two fused multiply-adds for 16 outputs. A product takes 52 cycles, and can be read only when its store has
 * left the core. So four products are started before the four earlier ones are added.
 *
 * Counted for Q8_0, a part of one row and 16 outputs: with AVX-512 VNNI 8 products and 5 other instructions
 * at two a cycle, 6.5 cycles; with AMX one cycle of the matrix unit, beside 3 instructions at two a cycle. */
#include "backend/cpu/amx/tiles.h"
#include "backend/cpu/packed_tile.h"

#define GROUPS  3   /* a block of outputs: BLOCK_N of tile.h */
#define COLUMNS 256 /* in the buffers: a block of any type, or several */
#define BLOCKS  (COLUMNS / 32)
#define PARTS16 (COLUMNS / 16)
#define BATCH   4 /* products in flight: tiles 0 to 3; x is in 4 and 5, weights in 6 and 7 */

/* Weights of a group. */
typedef struct panel {
    int8_t w[PARTS16][8][4 * FB_PACK_ROWS];
    float scale[PARTS16][FB_PACK_ROWS], least[PARTS16][FB_PACK_ROWS];
} panel;

/* Rows of x. sum: of a part's integers, times the scale. */
typedef struct rows_of_x {
    int8_t q[BLOCKS][AMX_ROWS][32];
    float scale[BLOCKS][AMX_ROWS], sum[PARTS16][AMX_ROWS];
} rows_of_x;

/* A worker's: up to 29 KB in use, or 44 with parts of 16 columns. The L1 caches of processors with AMX
 * have 48. */
typedef struct buffers {
    panel w[GROUPS];
    rows_of_x x;
    int32_t product[2][BATCH][AMX_ROWS][FB_PACK_ROWS];
} buffers;

static const amx_shape shape = {
    .palette = 1, .bytes = {64, 64, 64, 64, 32, 32, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 8, 8}};

/* ---- buffers ---- */

/* Quad q of 32 columns as signed bytes without offset. */
FB_INLINE vi signed_quad(const quant_type *t, const uint8_t *low, const int q) {
    vi w = weight_quad(t, low, q);
    if (!t->offset) return w;
    return (vi)_mm512_sub_epi8((__m512i)w, _mm512_set1_epi8((char)t->offset));
}

/* `columns` of a group, whole blocks; `ahead`: how far behind are the weights that are read next. */
FB_INLINE void fill_panel(const quant_type *t, const uint8_t *w, int64_t columns, int64_t ahead, panel *to) {
    const int parts = 32 / t->part;
    int part = 0;
    for (int64_t k = 0; k < columns; k += t->columns) {
        vf d = block_scale(t, w), least = t->minimums ? vf_load_f16(w + 2 * FB_PACK_ROWS) : d;
        w += pack_head_bytes(t);
        for (int c = 0; c < t->columns / 32; c++, w += pack_columns_bytes(t)) {
            for (int i = 0; i < pack_columns_bytes(t); i += 64) __builtin_prefetch(w + ahead + i, 0, 2);
            part_scales s = scales_of(t, d, least, w);
            const uint8_t *low = w + pack_scale_bytes(t) + pack_minimum_bytes(t);
            for (int h = 0; h < parts; h++, part++) {
                vf_put(FB_F32, to->scale[part], 0, s.scale[h]);
                if (t->minimums) vf_put(FB_F32, to->least[part], 0, t->scales ? -s.minimum[h] : s.minimum[h]);
                for (int q = 0; q < 8; q++) {
                    vi quad = q / (8 / parts) == h ? signed_quad(t, low, q) : vi_set1(0);
                    memcpy(to->w[part][q], &quad, sizeof quad);
                }
            }
        }
    }
}

typedef void (*fill_fn)(const uint8_t *w, int64_t columns, int64_t ahead, panel *to);

/* `blocks` of `rows` rows of x. halves: of the first row's block, `ldh` apart, if parts have 16 columns. */
static void fill_rows(const quant_type *t, const fb_q8 *x, int64_t ldx, const int32_t *halves, int64_t ldh,
                      int64_t rows, int64_t blocks, rows_of_x *to) {
    if (rows < AMX_ROWS) memset(to, 0, sizeof *to);
    for (int64_t m = 0; m < rows; m++)
        for (int64_t b = 0; b < blocks; b++) {
            const fb_q8 *from = &x[m * ldx + b];
            memcpy(to->q[b][m], from->q, sizeof from->q);
            to->scale[b][m] = from->scale;
            if (!t->minimums) continue;
            int32_t first = t->part == 16 ? halves[m * ldh + b] : from->sum;
            to->sum[32 / t->part * b][m] = (float)first * from->scale;
            if (t->part == 16) to->sum[2 * b + 1][m] = (float)(from->sum - first) * from->scale;
        }
}

/* ---- products ---- */

/* The products of parts [from, from + count), at most BATCH. halves: two parts have the same columns of x. */
FB_INLINE void start_products(const bool halves, const panel *w, const rows_of_x *x, int64_t from,
                              int64_t count, int32_t product[BATCH][AMX_ROWS][FB_PACK_ROWS]) {
    const int64_t block = halves ? from / 2 : from;
    amx_ordered();
#define START(i, tile, a, a_of_halves, b)                                                                    \
    if (count > i) {                                                                                         \
        amx_zero(tile);                                                                                      \
        amx_load(b, w->w[from + i], 64);                                                                     \
        if (!halves) {                                                                                       \
            amx_load(a, x->q[block + i], 32);                                                                \
            amx_dot(tile, a, b);                                                                             \
        } else {                                                                                             \
            if (i % 2 == 0) amx_load(a_of_halves, x->q[block + i / 2], 32);                                  \
            amx_dot(tile, a_of_halves, b);                                                                   \
        }                                                                                                    \
    }
    START(0, 0, 4, 4, 6)
    START(1, 1, 5, 4, 7)
    START(2, 2, 4, 5, 6)
    START(3, 3, 5, 5, 7)
#undef START
    if (count > 0) amx_store(0, product[0], 64);
    if (count > 1) amx_store(1, product[1], 64);
    if (count > 2) amx_store(2, product[2], 64);
    if (count > 3) amx_store(3, product[3], 64);
}

/* Adds the product of a part to the sums of `height` rows. */
FB_INLINE void add_product(const int height, const bool minimums, const float *scale, const float *least,
                           const float *x_scale, const float *x_sum, int32_t product[AMX_ROWS][FB_PACK_ROWS],
                           vf *acc) {
    vf of_w = vf_load_f32(scale), minimum = minimums ? vf_load_f32(least) : of_w;
    for (int m = 0; m < height; m++) {
        acc[m] = vf_fma(__builtin_convertvector(vi_load(product[m]), vf), of_w * x_scale[m], acc[m]);
        if (minimums) acc[m] = vf_fma(minimum, vf_set1(x_sum[m]), acc[m]);
    }
}

/* Adds `parts` parts to sum[m * ldsum + n] of `rows` rows, at most `height`. `first`: the sums begin here. */
FB_INLINE void add_parts(const int height, const bool halves, const bool minimums, buffers *work, int g,
                         int64_t parts, int64_t rows, bool first, float *sum, int64_t ldsum) {
    const panel *w = &work->w[g];
    const rows_of_x *x = &work->x;
    const int64_t begun = first ? 0 : rows;
    vf acc[AMX_ROWS];
#pragma GCC unroll 16
    for (int m = 0; m < height; m++) acc[m] = m < begun ? vf_load_f32(sum + m * ldsum) : vf_set1(0);
    start_products(halves, w, x, 0, parts, work->product[0]);
    for (int64_t at = 0, turn = 0; at < parts; at += BATCH, turn ^= 1) {
        start_products(halves, w, x, at + BATCH, parts - at - BATCH, work->product[turn ^ 1]);
        for (int64_t p = at; p < parts && p < at + BATCH; p++)
            add_product(height, minimums, w->scale[p], w->least[p], x->scale[halves ? p / 2 : p], x->sum[p],
                        work->product[turn][p - at], acc);
    }
#pragma GCC unroll 16
    for (int m = 0; m < height; m++)
        if (m < rows) vf_put(FB_F32, sum + m * ldsum, 0, acc[m]);
}

typedef void (*add_fn)(buffers *work, int g, int64_t parts, int64_t rows, bool first, float *sum,
                       int64_t ldsum);

#define ADD_PARTS(name, halves, minimums)                                                                    \
    static void name(buffers *work, int g, int64_t parts, int64_t rows, bool first, float *sum,              \
                     int64_t ldsum) {                                                                        \
        if (rows > AMX_ROWS / 2)                                                                             \
            add_parts(AMX_ROWS, halves, minimums, work, g, parts, rows, first, sum, ldsum);                  \
        else                                                                                                 \
            add_parts(AMX_ROWS / 2, halves, minimums, work, g, parts, rows, first, sum, ldsum);              \
    }
ADD_PARTS(add_plain, false, false)
ADD_PARTS(add_minimums, false, true)
ADD_PARTS(add_halves_plain, true, false)
ADD_PARTS(add_halves_minimums, true, true)

static const add_fn adders[2][2] = {{add_plain, add_minimums}, {add_halves_plain, add_halves_minimums}};

/* ---- the kernels ---- */

static void packed_many(const quant_type *t, fill_fn fill, const uint8_t *w, const fb_q8 *x,
                        const int32_t *halves, int64_t ldx, int64_t cols, int64_t rows, int64_t groups,
                        float *sum, int64_t ldsum) {
    const int64_t group = cols / t->columns * pack_block_bytes(t);
    const int64_t step = COLUMNS / t->columns * pack_block_bytes(t);
    const add_fn add = adders[t->part == 16][t->minimums];
    _Alignas(64) buffers work; /* no row of a tile lies in two cache lines */
    amx_configure(&shape);
    for (int64_t at = 0; at < groups; at += GROUPS, w += GROUPS * group, sum += GROUPS * FB_PACK_ROWS) {
        const int64_t count = groups - at < GROUPS ? groups - at : GROUPS;
        for (int64_t k = 0; k < cols; k += COLUMNS) {
            const int64_t columns = cols - k < COLUMNS ? cols - k : COLUMNS;
            for (int g = 0; g < count; g++)
                fill(w + g * group + k / COLUMNS * step, columns, count * group, &work.w[g]);
            for (int64_t m = 0; m < rows; m += AMX_ROWS) {
                const int64_t ms = rows - m < AMX_ROWS ? rows - m : AMX_ROWS;
                const int32_t *half = t->part == 16 ? halves + m * (cols / 32) + k / 32 : NULL;
                fill_rows(t, x + m * ldx + k / 32, ldx, half, cols / 32, ms, columns / 32, &work.x);
                for (int g = 0; g < count; g++)
                    add(&work, g, columns / t->part, ms, k == 0, sum + m * ldsum + g * FB_PACK_ROWS, ldsum);
            }
        }
    }
    amx_release();
}

#define X(TYPE, name)                                                                                        \
    static void fill_##name(const uint8_t *w, int64_t columns, int64_t ahead, panel *to) {                   \
        fill_panel(&quant_types[TYPE], w, columns, ahead, to);                                               \
    }                                                                                                        \
    void FB_KERNEL(packed_##name)(const uint8_t *w, const fb_q8 *x, const int32_t *halves, int64_t ldx,      \
                                  int64_t cols, int64_t rows, int64_t groups, float *sum, int64_t ldsum) {   \
        packed_many(&quant_types[TYPE], fill_##name, w, x, halves, ldx, cols, rows, groups, sum, ldsum);     \
    }
PACKED_TYPES(X)
#undef X
