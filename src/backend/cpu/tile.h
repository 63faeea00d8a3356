/* Sums of products with float weights, and with quantised weights that are decoded to floats first. Every
 * output is one vector accumulator over K, VW elements at a time, then vf_sum. The order is the same for
 * every tile, so a token gives the same bits alone and in a batch. */
#ifndef FB_BACKEND_CPU_TILE_H
#define FB_BACKEND_CPU_TILE_H

#include "backend/cpu/packed.h"
#include "backend/cpu/vdot.h"
#include "base/quant_blocks.h"

/* Outputs in a block of several rows. A block is computed, then finished (bias, activation, …) and stored. It
 * is small enough that its sums stay in cache, and a multiple of the tiles' widths, of a packed group and of
 * a cache line. */
#define BLOCK_N 48
/* Rows of x that share a panel of decoded weights. At 128, decoding costs 2% of the multiply-adds. */
#define BLOCK_M 128
/* Columns of a panel. BLOCK_N rows of this many floats stay in the L2 cache, and a tile's rows of x in L1. A
 * multiple of every quantised type's block. */
#define PANEL_K 1024
/* Stride in floats of a panel with k columns. It is a little more than k, so that rows do not compete for the
 * same cache lines. */
#define PANEL_LD(k) (((k) + 31) / 16 * 16)

/* A worker's memory besides its inputs: a panel, and the accumulators of a block between two panels. */
typedef struct tile_work {
    float panel[BLOCK_N * PANEL_LD(PANEL_K)];
    float carry[BLOCK_M * BLOCK_N * VW];
} tile_work;

/* ---- one row ---- */

/* Outputs at a time. The loop reads one whole cache line of each output's row in turn: hardware prefetchers
 * follow few rows read by lines best. Measured with f16 weights in L3 on two cores: eight rows by vectors 38
 * GB/s, eight by lines 48, four or two by lines 50. */
#define ONE_N 4
/* What is prefetched: the next tile (or NEAR_BYTES, if tiles are small) into L1, and what lies FAR tiles
 * after it into L2.
 *
 * Intel: the near prefetch alone is best with weights in L3 (12% faster than the far one alone), the far one
 * alone from memory (8% faster than the near one). Both together equal the better one in each case. Zen 4:
 * each prefetch takes the slot of a load. Without the far one it reads 152 instead of 133 GB/s from L3 and 49
 * instead of 41 from memory, so it has none.
 *
 * Tiles above LARGE_BYTES evict each other from L1. Then each row is prefetched NEAR_BYTES / ONE_N ahead of
 * itself (rows of 8 KiB from L3: 57 GB/s instead of 42). */
#define NEAR_BYTES  4096
#define FAR         2
#define LARGE_BYTES 8192

/* The weights that a worker reads: up to `end`, then from `next` on (NULL: not known). */
typedef struct stream {
    const uint8_t *end, *next;
} stream;

/* Address `at` of the stream: past `end` it continues at `next`. If there is no `next`, returns `now`, the
 * address being read. */
FB_INLINE const uint8_t *stream_at(const stream *s, const uint8_t *at, const uint8_t *now) {
    return at < s->end ? at : s->next ? s->next + (at - s->end) : now;
}

/* A tile: sum[n] of a row and `ns` rows of weights. `large`: the tile exceeds LARGE_BYTES. */
FB_VARIANTS void tile_one(fb_dtype wt, const bool zen, const void *w, const float *x, int64_t k, const int ns,
                          const bool large, const stream *s, float *sum) {
    const bool split = vdot_splits(wt, zen);
    const int size = wt == FB_F32 ? 4 : 2, line = 64 / size, lead = NEAR_BYTES / ns;
    int64_t tile = ns * k * size, ahead = tile > NEAR_BYTES ? tile : NEAR_BYTES, i = 0;
    const uint8_t *next = stream_at(s, (const uint8_t *)w + ahead, w), *near = next,
                  *far = stream_at(s, (const uint8_t *)w + ahead + FAR * tile, w);
    vdot dot[ONE_N];
    for (int n = 0; n < ns; n++) dot[n] = (vdot){0};
    for (; i + line <= k; i += line) {
        if (large)
            near = (i * size + lead < k * size ? (const uint8_t *)w : next - k * size) + i * size + lead;
        for (int n = 0; n < ns; n++, far += 64) {
            __builtin_prefetch(large ? near + n * k * size : near + n * 64, 0, 3);
            if (!zen) __builtin_prefetch(far, 0, 2);
        }
        near += ns * 64;
        for (int n = 0; n < ns; n++)
            for (int j = 0; j < line; j += VW)
                dot[n] = vdot_add(wt, split, dot[n], vf_address(wt, w, n * k + i + j), x + i + j);
    }
    for (; i < k; i += VW)
        for (int n = 0; n < ns; n++)
            dot[n] = vdot_add_n(wt, split, dot[n], vf_address(wt, w, n * k), x, i, k);
    if (ns == 4)
        vdot_sum_four(split, dot, sum);
    else
        for (int n = 0; n < ns; n++) sum[n] = vdot_sum(split, dot[n]);
}

FB_VARIANTS void tiles_how(fb_dtype wt, const bool zen, const void *w, const float *x, int64_t k, int64_t ns,
                           const uint8_t *next, float *sum) {
    const int size = wt == FB_F32 ? 4 : 2;
    stream s = {vf_address(wt, w, ns * k), next};
    int64_t n = 0;
    if (ONE_N * k * size > LARGE_BYTES)
        for (; n + ONE_N <= ns; n += ONE_N)
            tile_one(wt, zen, vf_address(wt, w, n * k), x, k, ONE_N, true, &s, sum + n);
    for (; n + ONE_N <= ns; n += ONE_N)
        tile_one(wt, zen, vf_address(wt, w, n * k), x, k, ONE_N, false, &s, sum + n);
    for (; n < ns; n++) tile_one(wt, zen, vf_address(wt, w, n * k), x, k, 1, false, &s, sum + n);
}

/* sum[n] of a row and `ns` rows of weights. The worker then reads the weights at `next`. */
FB_VARIANTS void tiles_one(fb_dtype wt, const void *w, const float *x, int64_t k, int64_t ns,
                           const uint8_t *next, float *sum) {
    if (on_zen())
        tiles_how(wt, true, w, x, k, ns, next, sum);
    else
        tiles_how(wt, false, w, x, k, ns, next, sum);
}

/* ---- many rows, through panels ---- */

/* Rows and outputs of a tile: as many accumulators as there are registers, less those for the weights and one
 * for x. */
#if defined FB_ISA_avx512 || defined FB_ISA_neon
#define MANY_M 6
#define MANY_N 4
#else
#define MANY_M 4
#define MANY_N 3
#endif

FB_VARIANTS void decode_floats(fb_dtype t, const void *w, int64_t count, float *out) {
    for (int64_t i = 0; i < count; i += VW) vf_put_n(FB_F32, out, i, count, vf_get_n(t, w, i, count, 0));
}

/* Columns [k0, k0 + count) of a row of weights as floats. */
static inline void decode_row(const fb_weight *w, int64_t row, int64_t k0, int64_t count, float *out) {
    const uint8_t *data = w->data;
    if (w->packed) {
        unpack_columns(w, row, k0, count, out);
    } else if (fb_dtype_is_float(w->dtype)) {
        FB_FOR_DTYPE(w->dtype, T, decode_floats(T, vf_address(T, data, row * w->cols + k0), count, out));
    } else {
        quant_decode_blocks(w->dtype, data + fb_dtype_bytes(w->dtype, row * w->cols + k0), count, out);
    }
}

/* sum[m * BLOCK_N + n] of `ms` rows of x and `ns` rows of a panel, over k columns. Between parts of the
 * columns the accumulators are kept in `carry`. */
FB_INLINE void tile_many(const float *w, int64_t ldw, const float *x, int64_t ldx, int64_t k, int ms, int ns,
                         bool first, bool last, float *carry, float *sum) {
    vf acc[MANY_M][MANY_N];
    for (int m = 0; m < ms; m++)
        for (int n = 0; n < ns; n++)
            acc[m][n] = first ? vf_set1(0) : vf_load_f32(carry + (m * BLOCK_N + n) * VW);
    int64_t i = 0;
    for (; i + VW <= k; i += VW) {
        vf wv[MANY_N];
        for (int n = 0; n < ns; n++) wv[n] = vf_load_f32(w + n * ldw + i);
        for (int m = 0; m < ms; m++) {
            vf xv = vf_load_f32(x + m * ldx + i);
            for (int n = 0; n < ns; n++) acc[m][n] = vf_fma(wv[n], xv, acc[m][n]);
        }
    }
    if (i < k)
        for (int m = 0; m < ms; m++) {
            vf xv = vf_get_n(FB_F32, x + m * ldx, i, k, 0);
            for (int n = 0; n < ns; n++)
                acc[m][n] = vf_fma(vf_get_n(FB_F32, w + n * ldw, i, k, 0), xv, acc[m][n]);
        }
    for (int m = 0; m < ms; m++)
        for (int n = 0; n < ns; n++)
            if (last)
                sum[m * BLOCK_N + n] = vf_sum(acc[m][n]);
            else
                vf_put(FB_F32, carry, (m * BLOCK_N + n) * VW, acc[m][n]);
}

/* The same for 1 to MANY_M rows, and for MANY_N outputs or one. Each count is a compile-time constant. */
static inline void tile_rows(const float *w, int64_t ldw, const float *x, int64_t ldx, int64_t k, int ms,
                             bool wide, bool first, bool last, float *carry, float *sum) {
#define ROWS(count)                                                                                          \
    case count:                                                                                              \
        if (wide)                                                                                            \
            tile_many(w, ldw, x, ldx, k, count <= MANY_M ? count : 1, MANY_N, first, last, carry, sum);      \
        else                                                                                                 \
            tile_many(w, ldw, x, ldx, k, count <= MANY_M ? count : 1, 1, first, last, carry, sum);           \
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

/* ---- a few rows: weights are widened in registers ---- */

/* Up to this many rows, a panel costs more than it saves: every tile of MANY_M rows widens the weights, which
 * its first one has brought into L1, again. */
#define FEW_M (4 * MANY_M)

/* A tile: sum[m * BLOCK_N + n] of `ms` rows of x and `ns` rows of weights. The first tile of some weights
 * prefetches those that follow them. */
FB_VARIANTS void tile_few(fb_dtype wt, const void *w, const float *x, int64_t ldx, int64_t k, const int ms,
                          const int ns, const bool first, const stream *s, float *sum) {
    const int size = wt == FB_F32 ? 4 : 2, line = 64 / size;
    const uint8_t *near = stream_at(s, vf_address(wt, w, ns * k), w);
    vf acc[MANY_M][MANY_N];
    for (int m = 0; m < ms; m++)
        for (int n = 0; n < ns; n++) acc[m][n] = vf_set1(0);
    int64_t i = 0;
    for (; i + line <= k; i += line) {
        if (first)
            for (int n = 0; n < ns; n++, near += 64) __builtin_prefetch(near, 0, 3);
        for (int j = 0; j < line; j += VW) {
            vf wv[MANY_N];
            for (int n = 0; n < ns; n++) wv[n] = vf_get(wt, w, n * k + i + j);
            for (int m = 0; m < ms; m++) {
                vf xv = vf_load_f32(x + m * ldx + i + j);
                for (int n = 0; n < ns; n++) acc[m][n] = vf_fma(wv[n], xv, acc[m][n]);
            }
        }
    }
    for (; i < k; i += VW)
        for (int n = 0; n < ns; n++) {
            vf wv = vf_get_n(wt, vf_address(wt, w, n * k), i, k, 0);
            for (int m = 0; m < ms; m++)
                acc[m][n] = vf_fma(wv, vf_get_n(FB_F32, x + m * ldx, i, k, 0), acc[m][n]);
        }
    for (int m = 0; m < ms; m++)
        for (int n = 0; n < ns; n++) sum[m * BLOCK_N + n] = vf_sum(acc[m][n]);
}

FB_VARIANTS void tile_few_rows(fb_dtype wt, const void *w, const float *x, int64_t ldx, int64_t k, int ms,
                               const int ns, bool first, const stream *s, float *sum) {
#define ROWS(count)                                                                                          \
    case count:                                                                                              \
        if (first)                                                                                           \
            tile_few(wt, w, x, ldx, k, count <= MANY_M ? count : 1, ns, true, s, sum);                       \
        else                                                                                                 \
            tile_few(wt, w, x, ldx, k, count <= MANY_M ? count : 1, ns, false, s, sum);                      \
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

/* sum[m * BLOCK_N + n] of `rows` <= FEW_M rows of x and `ns` rows of weights. The worker then reads the
 * weights at `next`. */
FB_VARIANTS void tiles_few(fb_dtype wt, const void *w, const float *x, int64_t ldx, int64_t rows, int64_t k,
                           int64_t ns, const uint8_t *next, float *sum) {
    stream s = {vf_address(wt, w, ns * k), next};
    /* Tiles of nearly the same number of rows: each reads all weights, so a small one costs as much. */
    int64_t tiles = (rows + MANY_M - 1) / MANY_M, most = (rows + tiles - 1) / tiles;
    for (int64_t n = 0; n < ns;) {
        bool wide = n + MANY_N <= ns;
        const void *at = vf_address(wt, w, n * k);
        for (int64_t m = 0; m < rows; m += most) {
            int ms = (int)(rows - m < most ? rows - m : most);
            if (wide)
                tile_few_rows(wt, at, x + m * ldx, ldx, k, ms, MANY_N, m == 0, &s, sum + m * BLOCK_N + n);
            else
                tile_few_rows(wt, at, x + m * ldx, ldx, k, ms, 1, m == 0, &s, sum + m * BLOCK_N + n);
        }
        n += wide ? MANY_N : 1;
    }
}

/* ---- many rows ---- */

/* sum[m * BLOCK_N + n] for `rows` <= BLOCK_M rows of x and rows [n0, n0 + ns) of any weight, ns <= BLOCK_N.
 */
static inline void tiles_many(const fb_weight *w, int64_t n0, int64_t ns, const float *x, int64_t ldx,
                              int64_t rows, tile_work *work, float *sum) {
    for (int64_t k0 = 0; k0 < w->cols; k0 += PANEL_K) {
        int64_t k = w->cols - k0 < PANEL_K ? w->cols - k0 : PANEL_K, ld = PANEL_LD(k);
        bool first = k0 == 0, last = k0 + k == w->cols;
        for (int64_t n = 0; n < ns; n++) decode_row(w, n0 + n, k0, k, work->panel + n * ld);
        for (int64_t m = 0; m < rows; m += MANY_M) {
            int ms = (int)(rows - m < MANY_M ? rows - m : MANY_M);
            for (int64_t n = 0; n < ns;) {
                bool wide = n + MANY_N <= ns;
                tile_rows(work->panel + n * ld, ld, x + m * ldx + k0, ldx, k, ms, wide, first, last,
                          work->carry + (m * BLOCK_N + n) * VW, sum + m * BLOCK_N + n);
                n += wide ? MANY_N : 1;
            }
        }
    }
}

#endif
