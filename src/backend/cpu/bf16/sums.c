/* The kernels of AVX-512 VNNI, whose workers multiply bfloat16 weights with bfloat16 activations by the
 * instruction that multiplies 32 of them (VDPBF16PS). Both are read as they lie in memory: nothing is
 * widened.
 *
 * An output has one accumulator of 16 lanes. Columns 2 p and 2 p + 1 are added to lane p modulo 16, the odd
 * one first; vf_sum adds the lanes. This order is the same for every tile, so a token gives the same bits
 * alone and in a batch. The instruction takes numbers below 2^-126 as 0, and rounds sums below that to 0.
 *
 * Measured on Zen 5: 248 G multiply-adds/s of a core, 136 with float32. */
#include "backend/cpu/tile.h"

/* Elements of a vector and of a cache line. */
#define LINE 32
/* Rows and outputs of a tile: 24 accumulators, four vectors of weights and one of x. */
#define TILE_M 6
#define TILE_N 4
/* Up to this many rows, each tile of weights meets all rows while it is in L1. */
#define FEW_ROWS (2 * TILE_M)

FB_INLINE __m512i line_at(const uint8_t *p, int64_t i) { return _mm512_loadu_si512(p + 2 * i); }

/* Keeps a vector in its register: gcc loads it again where it is used, which takes longer than a product. */
FB_INLINE __m512i kept(__m512i v) {
    __asm__("" : "+v"(v));
    return v;
}

/* Elements i … of an array that ends at n; 0 beyond it. */
FB_INLINE __m512i line_at_n(const uint8_t *p, int64_t i, int64_t n) {
    if (i + LINE <= n) return line_at(p, i);
    return _mm512_maskz_loadu_epi16((__mmask32)((1u << (n - i)) - 1), p + 2 * i);
}

FB_INLINE vf dot(vf sum, __m512i w, __m512i x) {
    return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)w, (__m512bh)x);
}

/* ---- one row ---- */

/* Outputs at a time, and how far ahead their weights are prefetched, into L1 and into L2. Without the work of
 * widening a core asks for its lines sooner than in tile_one. Decode steps of 212 MB on two cores of Zen
 * 5: 3.00 ms (tile_one and float32: 3.12); with four rows and tile_one's distances 3.17. */
#define ROW_N    2
#define ROW_NEAR 8192
#define ROW_FAR  12288

/* Rows of weights that begin within a cache line. A load across two lines takes twice the time, so aligned
 * lines are read and the parts of two neighbours put together: 3.20 ms instead of 3.27. */
typedef struct shifted {
    __m512i line[ROW_N], index; /* of each row the line before; which elements of two lines are a vector */
    int before;                 /* elements of a row's first line that lie before the row */
} shifted;

FB_INLINE shifted shifted_start(const uint8_t *w, int64_t row, const int ns) {
    shifted s = {.before = (int)((uintptr_t)w % 64 / 2)};
    int16_t index[LINE];
    for (int i = 0; i < LINE; i++) index[i] = (int16_t)(i + s.before);
    memcpy(&s.index, index, sizeof s.index);
    for (int n = 0; n < ns; n++)
        s.line[n] = _mm512_maskz_loadu_epi16(~(__mmask32)0 << s.before, w + n * row - 2 * s.before);
    return s;
}

/* Elements i … of row n, which is at w. */
FB_INLINE __m512i shifted_next(shifted *s, const int n, const uint8_t *w, int64_t i) {
    __m512i line = s->line[n];
    s->line[n] = line_at(w, i + LINE - s->before);
    return _mm512_permutex2var_epi16(line, s->index, s->line[n]);
}

/* A tile of `ns` outputs. `large`: each row is prefetched ahead of itself (tile.h). `across`: see shifted. */
FB_VARIANTS void row_tile(const bool zen, const bool across, const uint8_t *w, const uint8_t *x, int64_t k,
                          const int ns, const bool large, const stream *s, float *sum) {
    const int64_t row = 2 * k, tile = ns * row, ahead = tile > ROW_NEAR ? tile : ROW_NEAR;
    const int lead = ROW_NEAR / ns;
    const uint8_t *next = stream_at(s, w + ahead, w), *near = next,
                  *far = stream_at(s, w + ahead + ROW_FAR, w);
    shifted from = {.before = LINE};
    vf acc[ROW_N];
    int64_t i = 0;
    if (across) from = shifted_start(w, row, ns);
    for (int n = 0; n < ns; n++) acc[n] = vf_set1(0);
    for (; i + LINE + (LINE - from.before) <= k; i += LINE) {
        if (large) near = (2 * i + lead < row ? w : next - row) + 2 * i + lead;
        for (int n = 0; n < ns; n++, far += 64) {
            __builtin_prefetch(large ? near + n * row : near + n * 64, 0, 3);
            if (!zen) __builtin_prefetch(far, 0, 2);
        }
        near += ns * 64;
        __m512i xv = line_at(x, i);
        for (int n = 0; n < ns; n++)
            acc[n] =
                dot(acc[n], across ? shifted_next(&from, n, w + n * row, i) : line_at(w + n * row, i), xv);
    }
    for (; i < k; i += LINE) {
        __m512i xv = line_at_n(x, i, k);
        for (int n = 0; n < ns; n++) acc[n] = dot(acc[n], line_at_n(w + n * row, i, k), xv);
    }
    for (int n = 0; n < ns; n++) sum[n] = vf_sum(acc[n]);
}

FB_VARIANTS void row_tiles(const bool zen, const bool across, const uint8_t *w, const uint8_t *x, int64_t k,
                           int64_t ns, const uint8_t *next, float *sum) {
    const stream s = {w + 2 * ns * k, next};
    int64_t n = 0;
    if (ROW_N * 2 * k > LARGE_BYTES)
        for (; n + ROW_N <= ns; n += ROW_N)
            row_tile(zen, across, w + 2 * n * k, x, k, ROW_N, true, &s, sum + n);
    for (; n + ROW_N <= ns; n += ROW_N) row_tile(zen, across, w + 2 * n * k, x, k, ROW_N, false, &s, sum + n);
    for (; n < ns; n++) row_tile(zen, across, w + 2 * n * k, x, k, 1, false, &s, sum + n);
}

static void one_row(const uint8_t *w, const uint8_t *x, int64_t k, int64_t ns, const uint8_t *next,
                    float *sum) {
    const bool across = (uintptr_t)w % 64 && (uintptr_t)w % 2 == 0 && k % LINE == 0;
    if (on_zen())
        row_tiles(true, false, w, x, k, ns, next, sum);
    else if (across)
        row_tiles(false, true, w, x, k, ns, next, sum);
    else
        row_tiles(false, false, w, x, k, ns, next, sum);
}

/* ---- several rows ---- */

/* The columns [k0, k1) of a tile's rows, which have `cols`. Between parts of the columns the accumulators are
 * kept in `carry`. */
typedef struct part {
    int64_t k0, k1, cols;
    float *carry, *sum; /* [m * BLOCK_N + n], of vectors and of floats */
} part;

/* A tile of `ms` rows of x, `ldx` apart, and `ns` outputs. The first tile of some weights prefetches those
 * that follow them. */
FB_VARIANTS void tile(const int ms, const int ns, const bool first, const uint8_t *w, const uint8_t *x,
                      int64_t ldx, const part *p, const stream *s) {
    const int64_t row = 2 * p->cols, k1 = p->k1;
    const bool whole = k1 - p->k0 == p->cols; /* the rows that follow are then prefetched in one piece */
    const int64_t near_row = whole ? 64 : row, near_column = whole ? 2 * ns : 2;
    const uint8_t *near = stream_at(s, w + ns * row, w);
    vf acc[TILE_M][TILE_N];
    int64_t i = p->k0;
    for (int m = 0; m < ms; m++)
        for (int n = 0; n < ns; n++)
            acc[m][n] = i == 0 ? vf_set1(0) : vf_load_f32(p->carry + (m * BLOCK_N + n) * VW);
    for (; i + LINE <= k1; i += LINE) {
        __m512i wv[TILE_N];
        if (first)
            for (int n = 0; n < ns; n++) __builtin_prefetch(near + n * near_row + i * near_column, 0, 3);
        for (int n = 0; n < ns; n++) wv[n] = kept(line_at(w + n * row, i));
        for (int m = 0; m < ms; m++) {
            __m512i xv = line_at(x + 2 * m * ldx, i);
            for (int n = 0; n < ns; n++) acc[m][n] = dot(acc[m][n], wv[n], xv);
        }
    }
    if (i < k1) {
        __m512i wv[TILE_N];
        for (int n = 0; n < ns; n++) wv[n] = line_at_n(w + n * row, i, k1);
        for (int m = 0; m < ms; m++) {
            __m512i xv = line_at_n(x + 2 * m * ldx, i, k1);
            for (int n = 0; n < ns; n++) acc[m][n] = dot(acc[m][n], wv[n], xv);
        }
    }
    for (int m = 0; m < ms; m++)
        for (int n = 0; n < ns; n++)
            if (k1 == p->cols)
                p->sum[m * BLOCK_N + n] = vf_sum(acc[m][n]);
            else
                vf_put(FB_F32, p->carry, (m * BLOCK_N + n) * VW, acc[m][n]);
}

/* The same for 1 to TILE_M rows and for TILE_N outputs or one. Each count is a compile-time constant. */
static void any_tile(int ms, bool wide, bool first, const uint8_t *w, const uint8_t *x, int64_t ldx,
                     const part *p, const stream *s) {
#define ROWS(count)                                                                                          \
    case count:                                                                                              \
        if (wide && first)                                                                                   \
            tile(count, TILE_N, true, w, x, ldx, p, s);                                                      \
        else if (wide)                                                                                       \
            tile(count, TILE_N, false, w, x, ldx, p, s);                                                     \
        else                                                                                                 \
            tile(count, 1, true, w, x, ldx, p, s);                                                           \
        break;
    switch (ms) {
        ROWS(1)
        ROWS(2)
        ROWS(3)
        ROWS(4)
        ROWS(5)
        ROWS(6)
    }
#undef ROWS
}

/* Tile after tile of weights, each with all rows. */
static void few_rows(const uint8_t *w, const uint8_t *x, int64_t ldx, int64_t rows, int64_t cols, int64_t ns,
                     const uint8_t *next, float *sum) {
    const stream s = {w + 2 * ns * cols, next};
    /* Tiles of nearly the same number of rows: each reads all weights, so a small one costs as much. */
    const int64_t tiles = (rows + TILE_M - 1) / TILE_M, most = (rows + tiles - 1) / tiles;
    for (int64_t n = 0; n < ns;) {
        bool wide = n + TILE_N <= ns;
        for (int64_t m = 0; m < rows; m += most) {
            part p = {0, cols, cols, NULL, sum + m * BLOCK_N + n};
            any_tile((int)(rows - m < most ? rows - m : most), wide, m == 0, w + 2 * n * cols,
                     x + 2 * m * ldx, ldx, &p, &s);
        }
        n += wide ? TILE_N : 1;
    }
}

/* Part after part of the columns, so that a tile's rows of x stay in L1 and the weights in L2. */
static void many_rows(const uint8_t *w, const uint8_t *x, int64_t ldx, int64_t rows, int64_t cols, int64_t ns,
                      const uint8_t *next, tile_work *work, float *sum) {
    const stream s = {w + 2 * ns * cols, next};
    for (int64_t k0 = 0; k0 < cols; k0 += PANEL_K)
        for (int64_t m = 0; m < rows; m += TILE_M)
            for (int64_t n = 0; n < ns;) {
                bool wide = n + TILE_N <= ns;
                part p = {k0, cols - k0 < PANEL_K ? cols : k0 + PANEL_K, cols,
                          work->carry + (m * BLOCK_N + n) * VW, sum + m * BLOCK_N + n};
                any_tile((int)(rows - m < TILE_M ? rows - m : TILE_M), wide, m == 0, w + 2 * n * cols,
                         x + 2 * m * ldx, ldx, &p, &s);
                n += wide ? TILE_N : 1;
            }
}

static void sums(const uint8_t *w, const uint8_t *x, int64_t ldx, int64_t cols, int64_t rows, int64_t ns,
                 const uint8_t *next, tile_work *work, float *sum) {
    if (rows > FEW_ROWS)
        many_rows(w, x, ldx, rows, cols, ns, next, work, sum);
    else if (rows > 1)
        few_rows(w, x, ldx, rows, cols, ns, next, sum);
    else
        one_row(w, x, cols, ns, next, sum);
}

/* ---- the kernels ---- */

#define X(KIND, name, in, out, w, parts, text)                                                               \
    void fb_cpu_##name##_avx512vnni(const fb_call *call, const fb_worker *worker);                           \
    void FB_KERNEL(name)(const fb_call *call, const fb_worker *worker) {                                     \
        fb_worker with_pairs = *worker;                                                                      \
        with_pairs.bf16 = sums;                                                                              \
        fb_cpu_##name##_avx512vnni(call, &with_pairs);                                                       \
    }
FB_OPS(X)
#undef X

const fb_cpu_kernel FB_KERNEL(kernels)[FB_OP_COUNT] = {
#define X(KIND, name, in, out, w, parts, text) [FB_OP_##KIND] = FB_KERNEL(name),
    FB_OPS(X)
#undef X
};
