/* Tiles of attention: a few queries against a block of keys or values, sums in registers. */
#include "backend/cpu/attention.h"

/* Queries that are computed together, and how many vectors of sums stay in registers for them. */
#define TILE 4
#define SUMS (VW == 16 ? 16 : 8)

/* Asks for the part of `next` that corresponds to `at` in the block, into the second-level cache. Keys and
 * values take turns, and after each turn the hardware would have to find out anew what is being read. */
FB_INLINE void fetch(const uint8_t *next, const block *b, const uint8_t *at) {
    if (next) __builtin_prefetch(next + (at - (const uint8_t *)b->data), 0, 2);
}

/* out[n][j] = scale * q[n] . key[j], for `vectors` vectors of keys from column j on. */
FB_INLINE void score_part(fb_dtype t, const int nq, const int vectors, const float *q, int64_t q_stride,
                          const block *b, const uint8_t *next, int64_t j, float scale, float *out) {
    const int apart = t == FB_F32 ? 1 : 2; /* elements of FB_KV_LANES keys in a cache line */
    const uint8_t *key[8];
    vf sum[4][8];
    for (int k = 0; k < vectors; k++) {
        int64_t at = j + k * VW, lane = at % FB_KV_LANES;
        key[k] = vf_address(t, b->data, (at - lane) * b->width + lane);
        for (int n = 0; n < nq; n++) sum[n][k] = vf_set1(0);
    }
    for (int64_t i = 0; i < b->width; i++) {
        vf x[8];
        for (int k = 0; k < vectors; k++) {
            x[k] = vf_get(t, key[k], i * FB_KV_LANES);
            if (k * VW % FB_KV_LANES == 0 && i % apart == 0)
                fetch(next, b, vf_address(t, key[k], i * FB_KV_LANES));
        }
        for (int n = 0; n < nq; n++) {
            vf y = vf_set1(q[n * q_stride + i]);
            for (int k = 0; k < vectors; k++) sum[n][k] = vf_fma(y, x[k], sum[n][k]);
        }
    }
    for (int n = 0; n < nq; n++)
        for (int k = 0; k < vectors; k++)
            vf_put(FB_F32, out, n * FB_ATTN_BLOCK + j + k * VW, sum[n][k] * scale);
}

/* All columns from `begin` to `count`, in whole vectors: as many at a time as the registers hold, and then
 * what is left. Each number of them is a constant. */
FB_INLINE void score_tile(fb_dtype t, const int nq, const float *q, int64_t q_stride, const block *b,
                          const uint8_t *next, int64_t begin, int64_t count, float scale, float *out) {
    const int most = SUMS / nq >= 8 ? 8 : SUMS / nq >= 4 ? 4 : 2;
#define VECTORS(n)                                                                                           \
    case n:                                                                                                  \
        score_part(t, nq, n <= most ? n : 1, q, q_stride, b, next, j, scale, out);                           \
        break;
    for (int64_t j = begin / VW * VW; j < count; j += most * VW) {
        int64_t left = (count - j + VW - 1) / VW;
        switch (left < most ? left : most) {
            VECTORS(1)
            VECTORS(2)
            VECTORS(3)
            VECTORS(4)
            VECTORS(5)
            VECTORS(6)
            VECTORS(7)
            VECTORS(8)
        }
    }
#undef VECTORS
}

/* `vectors` vectors of each of nq sums, from element i on, stay in registers while positions go by. */
FB_INLINE void weigh_part(fb_dtype t, const int nq, const int vectors, const float *weights, const block *b,
                          const uint8_t *next, int64_t begin, int64_t end, int64_t i, float *sum,
                          int64_t stride) {
    const int line = t == FB_F32 ? 16 : 32; /* elements in a cache line */
    vf s[4][4];
    for (int n = 0; n < nq; n++)
        for (int k = 0; k < vectors; k++) s[n][k] = vf_load_f32(sum + n * stride + i + k * VW);
    for (int64_t j = begin; j < end; j++) {
        const uint8_t *row = vf_address(t, b->data, j * b->stride);
        for (int64_t at = 0; next && at < b->stride; at += line) fetch(next, b, vf_address(t, row, at));
        vf x[4];
        for (int k = 0; k < vectors; k++)
            x[k] = vectors == 1 ? vf_get_n(t, row, i, b->width, 0) : vf_get(t, row, i + k * VW);
        for (int n = 0; n < nq; n++) {
            vf weight = vf_set1(weights[n * FB_ATTN_BLOCK + j]);
            for (int k = 0; k < vectors; k++) s[n][k] = vf_fma(weight, x[k], s[n][k]);
        }
    }
    for (int n = 0; n < nq; n++)
        for (int k = 0; k < vectors; k++) vf_put(FB_F32, sum, n * stride + i + k * VW, s[n][k]);
}

/* sum[n] += weights[n][j] * value[j], for j from `begin` to `end`. */
FB_INLINE void weigh_tile(fb_dtype t, const int nq, const float *weights, const block *b, const uint8_t *next,
                          int64_t begin, int64_t end, float *sum, int64_t stride) {
    int64_t i = 0;
    if (begin >= end) return;
    /* Several vectors at a time: each is one chain of sums, and waits for itself. */
    if (SUMS / nq >= 4)
        for (; i + 4 * VW <= b->width; i += 4 * VW)
            weigh_part(t, nq, 4, weights, b, i ? NULL : next, begin, end, i, sum, stride);
    for (; i + 2 * VW <= b->width; i += 2 * VW)
        weigh_part(t, nq, 2, weights, b, i ? NULL : next, begin, end, i, sum, stride);
    for (; i < b->width; i += VW)
        weigh_part(t, nq, 1, weights, b, i ? NULL : next, begin, end, i, sum, stride);
}

/* Runs `statement` with N a constant, the number of queries in a tile. */
#define FOR_TILE(n, N, statement)                                                                            \
    do {                                                                                                     \
        if ((n) == 1) {                                                                                      \
            const int N = 1;                                                                                 \
            statement;                                                                                       \
        } else if ((n) == 2) {                                                                               \
            const int N = 2;                                                                                 \
            statement;                                                                                       \
        } else if ((n) == 3) {                                                                               \
            const int N = 3;                                                                                 \
            statement;                                                                                       \
        } else {                                                                                             \
            const int N = 4;                                                                                 \
            statement;                                                                                       \
        }                                                                                                    \
    } while (0)

/* The queries at `q` against columns `begin` to `end`, or to what a tile's last item looks into. */
static void score_columns(const unit *u, const block *b, int64_t first, range columns, float scale,
                          const float *q, const desk *d) {
    for (int64_t n = 0; n < u->n; n += TILE) {
        int nq = u->n - n < TILE ? (int)(u->n - n) : TILE;
        int64_t count = unit_count_in(u, n + nq - 1, first);
        if (count > columns.end) count = columns.end;
        if (count <= columns.begin) continue;
        FB_FOR_DTYPE(b->dtype, T,
                     FOR_TILE(nq, N,
                              score_tile(T, N, q + n * d->stride, d->stride, b, n ? NULL : b->next,
                                         columns.begin, count, scale, d->scores + n * FB_ATTN_BLOCK)));
    }
}

/* Columns of the block that item n does not see lose their scores. */
static void hide(const unit *u, int64_t n, int64_t first, int64_t end, float *scores) {
    range run[RUNS];
    int64_t at = 0;
    unit_runs(u, n, first, run);
    for (int i = 0; i < RUNS; i++) {
        if (run[i].end <= run[i].begin) continue;
        while (at < run[i].begin) scores[at++] = -INFINITY;
        at = run[i].end;
    }
    while (at < end) scores[at++] = -INFINITY;
}

void FB_KERNEL(unit_scores)(const unit *u, const block *b, int64_t first, range span, float scale,
                            const desk *d) {
    /* The sinks first: a tile writes whole vectors, also beyond its last column. */
    int64_t ring = u->ring->begin - first;
    if (ring > 0) score_columns(u, b, first, (range){0, ring}, scale, d->sink_q, d);
    if (span.begin < ring) span.begin = ring;
    score_columns(u, b, first, span, scale, d->q, d);
    if (u->ring->window)
        for (int64_t n = 0; n < u->n; n++)
            hide(u, n, first, unit_count_in(u, u->n - 1, first), d->scores + n * FB_ATTN_BLOCK);
}

static void weigh(const block *b, const uint8_t *next, int nq, range columns, const float *weights,
                  float *sum, int64_t stride) {
    FB_FOR_DTYPE(
        b->dtype, T,
        FOR_TILE(nq, N, weigh_tile(T, N, weights, b, next, columns.begin, columns.end, sum, stride)));
}

/* One run of columns of nq items: what all of them see at once, and before and after it for each what it sees
 * besides. What an item does not see is never multiplied, not even by zero: it may be NaN. */
static void weigh_run(const block *b, const uint8_t *next, int nq, const range *seen, const float *weights,
                      float *sum, int64_t stride) {
    range all = seen[0];
    for (int k = 1; k < nq; k++) {
        if (seen[k].begin > all.begin) all.begin = seen[k].begin;
        if (seen[k].end < all.end) all.end = seen[k].end;
    }
    bool none = all.end <= all.begin;
    for (int k = 0; k < nq; k++) {
        range before = {seen[k].begin, none ? seen[k].end : all.begin};
        weigh(b, NULL, 1, before, weights + k * FB_ATTN_BLOCK, sum + k * stride, stride);
    }
    if (none) return;
    weigh(b, next, nq, all, weights, sum, stride);
    for (int k = 0; k < nq; k++) {
        range after = {all.end, seen[k].end};
        weigh(b, NULL, 1, after, weights + k * FB_ATTN_BLOCK, sum + k * stride, stride);
    }
}

void FB_KERNEL(unit_values)(const unit *u, const block *b, int64_t first, const desk *d) {
    for (int64_t n = 0; n < u->n; n += TILE) {
        int nq = u->n - n < TILE ? (int)(u->n - n) : TILE, runs = 1;
        range seen[RUNS][TILE];
        for (int k = 0; k < nq; k++) {
            range run[RUNS];
            runs = unit_runs(u, n + k, first, run);
            for (int i = 0; i < runs; i++) seen[i][k] = run[i];
        }
        for (int i = 0; i < runs; i++)
            weigh_run(b, n ? NULL : b->next, nq, seen[i], d->scores + n * FB_ATTN_BLOCK,
                      d->sum + n * d->stride, d->stride);
    }
}
