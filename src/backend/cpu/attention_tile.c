/* Tiles of attention: a few queries against a block of keys or values. The sums stay in registers. */
#include "backend/cpu/attention.h"
#include "backend/cpu/vdot.h"

/* Queries in a tile, and vectors of sums that stay in registers for them. */
#define TILE 4
#define SUMS (VW == 16 ? 16 : 8)

/* Adds one element of nq queries times `vectors` vectors of keys. The keys' elements lie `at` bytes after
 * key[k]. */
FB_INLINE void score_element(fb_dtype t, const bool split, const int nq, const int vectors, const float *q,
                             int64_t q_stride, const uint8_t *const *key, int64_t at, vdot (*sum)[8]) {
    vf x[8];
    if (nq == 1) {
        for (int k = 0; k < vectors; k++) sum[0][k] = vdot_add_scaled(t, split, sum[0][k], key[k] + at, *q);
        return;
    }
    for (int k = 0; k < vectors; k++) x[k] = vf_get(t, key[k] + at, 0);
    for (int n = 0; n < nq; n++) {
        vf y = vf_set1(q[n * q_stride]);
        for (int k = 0; k < vectors; k++) sum[n][k].whole = vf_fma(y, x[k], sum[n][k].whole);
    }
}

/* out[n][j] = scale * q[n] . key[j], for `vectors` vectors of keys from column j on. `split` (one query
 * only): sums are kept in halves. Prefetches the same part of `next`. Keys and values alternate, and after
 * each change the hardware prefetcher would have to detect the stream again. */
FB_VARIANTS void score_part(fb_dtype t, const bool split, const int nq, const int vectors, const float *q,
                            int64_t q_stride, const block *b, const uint8_t *next, int64_t j, float scale,
                            float *out) {
    const int size = t == FB_F32 ? 4 : 2, element = FB_KV_GROUP * size, apart = 64 / element;
    uintptr_t ahead = next ? (uintptr_t)next - (uintptr_t)b->data : 0;
    int64_t i = 0;
    const uint8_t *key[8];
    vdot sum[4][8];
    for (int k = 0; k < vectors; k++) {
        int64_t at = j + k * VW - b->column, in_group = at % FB_KV_GROUP;
        key[k] = vf_address(t, b->data, (at - in_group) * b->width + in_group);
        for (int n = 0; n < nq; n++) sum[n][k] = vdot_of(split, vf_set1(0));
    }
    for (; i + apart <= b->width; i += apart) { /* one cache line of each key vector */
        for (int k = 0; k < vectors; k++)
            if (next && k * VW % FB_KV_GROUP == 0)
                __builtin_prefetch((const void *)((uintptr_t)(key[k] + i * element) + ahead), 0, 3);
        for (int e = 0; e < apart; e++)
            score_element(t, split, nq, vectors, q + i + e, q_stride, key, (i + e) * element, sum);
    }
    for (; i < b->width; i++) score_element(t, split, nq, vectors, q + i, q_stride, key, i * element, sum);
    for (int n = 0; n < nq; n++)
        for (int k = 0; k < vectors; k++)
            vf_put(FB_F32, out, n * FB_ATTN_BLOCK + j + k * VW, vdot_whole(split, sum[n][k]) * scale);
}

/* Scores columns `begin` to `count` in whole vectors: as many at a time as the registers hold, then the rest.
 * Each count is a compile-time constant. */
FB_VARIANTS void score_how(fb_dtype t, const bool split, const int nq, const float *q, int64_t q_stride,
                           const block *b, const uint8_t *next, int64_t begin, int64_t count, float scale,
                           float *out) {
    const int most = SUMS / nq >= 8 ? 8 : SUMS / nq >= 4 ? 4 : 2;
#define VECTORS(n)                                                                                           \
    case n:                                                                                                  \
        score_part(t, split, nq, n <= most ? n : 1, q, q_stride, b, next, j, scale, out);                    \
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

FB_VARIANTS void score_tile(fb_dtype t, const int nq, const float *q, int64_t q_stride, const block *b,
                            const uint8_t *next, int64_t begin, int64_t count, float scale, float *out) {
    if (nq == 1 && vdot_splits(t, on_zen()))
        score_how(t, true, nq, q, q_stride, b, next, begin, count, scale, out);
    else
        score_how(t, false, nq, q, q_stride, b, next, begin, count, scale, out);
}

/* A weighted sum: sum[n] += weights[n] * values, for positions `begin` to `end`. The sums are `stride` floats
 * apart. With two blocks, each belongs to one of two sums. next[] is the address read after each block; NULL:
 * none. */
typedef struct weighing {
    const block *b;
    const float *weights;
    float *sum;
    int64_t stride, begin, end;
    const uint8_t *next[2];
} weighing;

/* Keeps `vectors` vectors of each of nq sums, from element i on, in registers and runs through the positions.
 * Prefetches the same part of what comes next. `own`: each sum has a block of its own. */
FB_VARIANTS void weigh_part(fb_dtype t, const bool split, const int nq, const bool own, const int vectors,
                            const weighing *w, int64_t i) {
    const int size = t == FB_F32 ? 4 : 2, blocks = own ? nq : 1;
    const int64_t step = w->b->stride * size;
    const float *weights = w->weights;
    const uint8_t *row[2], *next[2];
    vdot s[4][4];
    for (int n = 0; n < blocks; n++) {
        int64_t at = (w->begin - w->b->column) * step + i * size;
        row[n] = (const uint8_t *)w->b[n].data + at;
        next[n] = w->next[n] ? w->next[n] + at : NULL;
    }
    for (int n = 0; n < nq; n++)
        for (int k = 0; k < vectors; k++)
            s[n][k] = vdot_of(split, vf_load_f32(w->sum + n * w->stride + i + k * VW));
    for (int64_t j = w->begin; j < w->end; j++) {
        vf x[4];
        for (int n = 0; n < blocks && next[n]; n++, next[n - 1] += step)
            for (int at = 0; at < vectors * VW * size; at += 64) __builtin_prefetch(next[n] + at, 0, 3);
        for (int k = 0; !own && k < vectors; k++)
            x[k] = vectors == 1 ? vf_get_n(t, row[0], 0, w->b->width - i, 0) : vf_get(t, row[0], k * VW);
        for (int n = 0; n < nq; n++) {
            float weight = weights[n * FB_ATTN_BLOCK + j];
            for (int k = 0; k < vectors; k++)
                if (own)
                    s[n][k] = vdot_add_scaled(t, split, s[n][k], vf_address(t, row[n], k * VW), weight);
                else
                    s[n][k].whole = vf_fma(vf_set1(weight), x[k], s[n][k].whole);
        }
        for (int n = 0; n < blocks; n++) row[n] += step;
    }
    for (int n = 0; n < nq; n++)
        for (int k = 0; k < vectors; k++)
            vf_put(FB_F32, w->sum, n * w->stride + i + k * VW, vdot_whole(split, s[n][k]));
}

/* sum[n] += weights[n][j] * value[j], for j from `begin` to `end`. */
FB_VARIANTS void weigh_tile(fb_dtype t, const int nq, const weighing *w) {
    int64_t i = 0;
    /* Several vectors at a time: each vector is a chain of dependent additions. */
    if (SUMS / nq >= 4)
        for (; i + 4 * VW <= w->b->width; i += 4 * VW) weigh_part(t, false, nq, false, 4, w, i);
    for (; i + 2 * VW <= w->b->width; i += 2 * VW) weigh_part(t, false, nq, false, 2, w, i);
    for (; i < w->b->width; i += VW) weigh_part(t, false, nq, false, 1, w, i);
}

/* Runs `statement` with N, the number of queries in a tile, as a compile-time constant. */
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

/* Scores the queries at `q` against columns `begin` to `end`, but no further than the tile's last item reads.
 */
static void score_columns(const unit *u, const block *b, int64_t first, range columns, float scale,
                          const float *q, const workspace *ws) {
    for (int64_t n = 0; n < u->n; n += TILE) {
        int nq = u->n - n < TILE ? (int)(u->n - n) : TILE;
        int64_t count = unit_count_in(u, n + nq - 1, first);
        if (count > columns.end) count = columns.end;
        if (count <= columns.begin) continue;
        FB_FOR_DTYPE(b->dtype, T,
                     FOR_TILE(nq, N,
                              score_tile(T, N, q + n * ws->stride, ws->stride, b, n ? NULL : b->next,
                                         columns.begin, count, scale, ws->scores + n * FB_ATTN_BLOCK)));
    }
}

/* Sets the scores of columns that item n does not see to -INFINITY. */
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

/* Soft caps of all scores in the first `count` columns. */
static void cap_scores(const unit *u, int64_t count, float cap, const workspace *ws) {
    for (int64_t n = 0; n < u->n; n++)
        for (int64_t j = 0; j < count; j += VW) {
            float *at = ws->scores + n * FB_ATTN_BLOCK + j;
            vf_put(FB_F32, at, 0, vf_softcap(vf_load_f32(at), cap));
        }
}

/* The sinks' columns and the others, with the queries of each. The sinks come first, because a tile writes
 * whole vectors, beyond its last column. */
static void score_piece(const unit *u, const block *b, int64_t first, range columns, float scale,
                        const workspace *ws) {
    int64_t ring = u->ring->begin - first;
    range sinks = {columns.begin, columns.end < ring ? columns.end : ring};
    if (sinks.begin < sinks.end) score_columns(u, b, first, sinks, scale, ws->sink_q, ws);
    if (columns.begin < ring) columns.begin = ring;
    if (columns.begin < columns.end) score_columns(u, b, first, columns, scale, ws->q, ws);
}

void FB_KERNEL(unit_scores)(const fb_call *call, const unit *u, int64_t first, range span, bool flash,
                            const workspace *ws) {
    const fb_kv *kv = &call->kv;
    float scale = call->attr.scale;
    if (u->n > WIDEN_FROM) {
        block b = widen_keys(kv, u, first, span, ws);
        score_piece(u, &b, first, span, scale, ws);
    } else {
        int64_t columns = piece_columns(kv);
        for (int64_t column = 0; column < span.end; column += columns) {
            range in = piece_of(span, column, columns);
            if (in.end <= in.begin) continue;
            block b = keys_at(kv, u, first, column);
            b.next = flash ? fb_value_of(kv, u->sequence, u->kv_head, first + column)
                           : next_block(kv, u, first + column, false);
            score_piece(u, &b, first, in, scale, ws);
        }
    }
    if (call->attr.cap) cap_scores(u, unit_count_in(u, u->n - 1, first), call->attr.cap, ws);
    if (u->ring->window)
        for (int64_t n = 0; n < u->n; n++)
            hide(u, n, first, unit_count_in(u, u->n - 1, first), ws->scores + n * FB_ATTN_BLOCK);
}

static void weigh(const block *b, const uint8_t *next, int nq, range columns, const float *weights,
                  float *sum, int64_t stride) {
    weighing w = {b, weights, sum, stride, columns.begin, columns.end, {next, NULL}};
    if (columns.begin < columns.end) FB_FOR_DTYPE(b->dtype, T, FOR_TILE(nq, N, weigh_tile(T, N, &w)));
}

/* One run of columns for nq items. The columns that all items see are computed together; columns before and
 * after them are computed for each item alone. A value that an item does not see is never multiplied, not
 * even by zero: it may be NaN. */
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

/* The columns of one piece, for all items. */
static void weigh_piece(const unit *u, const block *b, int64_t first, range columns, const workspace *ws) {
    for (int64_t n = 0; n < u->n; n += TILE) {
        int nq = u->n - n < TILE ? (int)(u->n - n) : TILE, runs = 1;
        range seen[RUNS][TILE];
        for (int k = 0; k < nq; k++) {
            range run[RUNS];
            runs = unit_runs(u, n + k, first, run);
            for (int i = 0; i < runs; i++)
                seen[i][k] = piece_of(run[i], columns.begin, columns.end - columns.begin);
        }
        for (int i = 0; i < runs; i++)
            weigh_run(b, n ? NULL : b->next, nq, seen[i], ws->scores + n * FB_ATTN_BLOCK,
                      ws->sum + n * ws->stride, ws->stride);
    }
}

void FB_KERNEL(unit_values)(const fb_call *call, const unit *u, int64_t first, range span, bool flash,
                            const workspace *ws) {
    const fb_kv *kv = &call->kv;
    if (u->n > WIDEN_FROM) {
        block b = widen_values(kv, u, first, span, ws);
        weigh_piece(u, &b, first, span, ws);
        return;
    }
    int64_t columns = piece_columns(kv);
    for (int64_t column = 0; column < span.end; column += columns) {
        range in = piece_of(span, column, columns);
        if (in.end <= in.begin) continue;
        block b = values_at(kv, u, first, column);
        b.next = next_block(kv, u, first + column, !flash);
        weigh_piece(u, &b, first, in, ws);
    }
}

/* Two blocks at once: twice as many independent chains of additions. */
FB_VARIANTS void weigh_pair(fb_dtype t, const bool split, const weighing *w) {
    int64_t i = 0;
    for (; i + 4 * VW <= w->b->width; i += 4 * VW) weigh_part(t, split, 2, true, 4, w, i);
    for (; i + 2 * VW <= w->b->width; i += 2 * VW) weigh_part(t, split, 2, true, 2, w, i);
    for (; i < w->b->width; i += VW) weigh_part(t, split, 2, true, 1, w, i);
}

void FB_KERNEL(pair_values)(const fb_call *call, const unit *u, int64_t first, int64_t count,
                            const workspace *ws) {
    const fb_kv *kv = &call->kv;
    int64_t columns = piece_columns(kv);
    for (int64_t column = 0; column < count; column += columns) {
        range in = piece_of((range){0, count}, column, columns);
        block b[2];
        weighing w = {b, ws->scores, ws->sum, ws->stride, in.begin, in.end, {NULL, NULL}};
        for (int n = 0; n < 2; n++) {
            b[n] = values_at(kv, &u[n], first, column);
            w.next[n] = next_block(kv, &u[n], first + column, false);
        }
        FB_FOR_DTYPE(b->dtype, T, if (vdot_splits(T, on_zen())) weigh_pair(T, true, &w);
                     else weigh_pair(T, false, &w));
    }
}
