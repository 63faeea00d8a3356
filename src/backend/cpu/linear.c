/* linear, linear_group and head_argmax: x [rows, K] times weight [N, K] transposed. Lanes share the outputs
 * N.
 *
 * Every output is one vector accumulator over K in steps of VW, then vf_sum: whatever the tile, the order is
 * the same, so that a token gives the same bits alone and in a batch, and a fused linear the same as a plain
 * one. What is fused in rounds to the activation dtype wherever the plain ops would have stored. */
#include "backend/cpu/norm.h"

/* Tiles of rows x outputs. One row: eight accumulators cover the latency of the multiply-add (4 cycles, 2 a
 * cycle). Many rows: as many accumulators as there are registers, less the weights' and one for x. */
#define ONE_N 8
#if defined FB_ISA_avx512
#define MANY_M 6
#define MANY_N 4
#else
#define MANY_M 4
#define MANY_N 3
#endif
#define GRAIN 16
/* Tiles that one row fetches ahead. Measured on storyteller (weights in the third-level cache): 0 as the
 * base, 1: 5% faster, 2: 8%, 4: 5%. */
#define AHEAD 2

/* Outputs that are computed before they are finished (bias, activation, …) and stored: few enough that their
 * sums stay in the first-level cache, a multiple of the tiles' widths and of a cache line. */
#define BLOCK_N 48
/* Rows of x that are kept in the second-level cache while the lane's weights go by. */
#define X_BLOCK_BYTES (256 << 10)
#define MAX_BLOCK_M   64

/* sum[m * BLOCK_N + n] of x rows m (float32, `ldx` apart) and weight rows n. */
FB_INLINE void tile(fb_dtype wt, const void *w, const float *x, int64_t ldx, int64_t k, int ms, int ns,
                    float *sum) {
    vf acc[MANY_M][ONE_N];
    for (int m = 0; m < ms; m++)
        for (int n = 0; n < ns; n++) acc[m][n] = vf_set1(0);
    int64_t i = 0;
    /* One row streams the weights once: the tile after next is fetched meanwhile, a line at a time in the
     * order of memory, which the eight interleaved rows hide from the hardware's prefetcher. */
    const uint8_t *ahead = vf_address(wt, w, AHEAD * ns * k);
    for (; i + VW <= k; i += VW) {
        if (ms == 1)
            for (int b = 0; b < ns * VW * (wt == FB_F32 ? 4 : 2); b += 64)
                __builtin_prefetch(ahead + b, 0, 2);
        ahead += ns * VW * (wt == FB_F32 ? 4 : 2);
        vf wv[ONE_N];
        for (int n = 0; n < ns; n++) wv[n] = vf_get(wt, w, n * k + i);
        for (int m = 0; m < ms; m++) {
            vf xv = vf_load_f32(x + m * ldx + i);
            for (int n = 0; n < ns; n++) acc[m][n] = vf_fma(wv[n], xv, acc[m][n]);
        }
    }
    if (i < k)
        for (int m = 0; m < ms; m++) {
            vf xv = vf_get_n(FB_F32, x + m * ldx, i, k, 0);
            for (int n = 0; n < ns; n++)
                acc[m][n] = vf_fma(vf_get_n(wt, vf_address(wt, w, n * k), i, k, 0), xv, acc[m][n]);
        }
    for (int m = 0; m < ms; m++)
        for (int n = 0; n < ns; n++) sum[m * BLOCK_N + n] = vf_sum(acc[m][n]);
}

/* sums[row * BLOCK_N + n] for `rows` rows of x and the `ns` <= BLOCK_N weight rows from w on. */
FB_INLINE void tiles(fb_dtype wt, const void *w, const float *x, int64_t ldx, int64_t k, int64_t rows,
                     int64_t ns, float *sums) {
    int64_t many = rows / MANY_M * MANY_M, n = 0;
    for (; many && n + MANY_N <= ns; n += MANY_N)
        for (int64_t m = 0; m < many; m += MANY_M)
            tile(wt, vf_address(wt, w, n * k), x + m * ldx, ldx, k, MANY_M, MANY_N, sums + m * BLOCK_N + n);
    for (; many && n < ns; n++)
        for (int64_t m = 0; m < many; m += MANY_M)
            tile(wt, vf_address(wt, w, n * k), x + m * ldx, ldx, k, MANY_M, 1, sums + m * BLOCK_N + n);
    for (int64_t m = many; m < rows; m++) {
        for (n = 0; n + ONE_N <= ns; n += ONE_N)
            tile(wt, vf_address(wt, w, n * k), x + m * ldx, ldx, k, 1, ONE_N, sums + m * BLOCK_N + n);
        for (; n < ns; n++)
            tile(wt, vf_address(wt, w, n * k), x + m * ldx, ldx, k, 1, 1, sums + m * BLOCK_N + n);
    }
}

/* ---- inputs
 * -----------------------------------------------------------------------------------------------------------
 */

/* A segment's input as float32 rows. */
typedef struct input {
    const float *x;
    int64_t ldx;
} input;

FB_INLINE void widen(fb_dtype t, const fb_view *x, int64_t rows, int64_t k, float *out) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < k; i += VW)
            vf_put_n(FB_F32, out + row * k, i, k, vf_get_n(t, fb_view_at(x, row, 0), i, k, 0));
}

FB_INLINE void normalise_rows(fb_dtype t, const fb_call *call, int s, int64_t k, float *out) {
    const fb_weight *w = &call->weights[4 * s + 2], *b = &call->weights[4 * s + 3];
    fb_op_kind norm = call->attr.segment[s].norm;
    for (int64_t row = 0; row < call->rows; row++) {
        const void *x = fb_view_at(&call->in[s], row, 0);
        row_stats stats = stats_of(norm, t, x, k, call->attr.segment[s].eps);
        normalise(norm, t, FB_F32, x, stats, w, b, out + row * k);
    }
}

/* Each lane prepares the whole input for itself: K elements a row, against K times its share of N
 * multiply-adds, and no barrier. */
static input prepare(const fb_call *call, int s, const input *earlier, float **scratch) {
    const fb_view *x = &call->in[s];
    fb_op_kind norm = call->attr.segment[s].norm;
    int64_t k = call->weights[4 * s].cols;
    if (norm == FB_OP_COUNT && x->dtype == FB_F32) return (input){x->data, x->row_stride};
    for (int e = 0; e < s; e++)
        if (call->in[e].data == x->data && call->attr.segment[e].norm == norm &&
            call->attr.segment[e].eps == call->attr.segment[s].eps &&
            call->weights[4 * e + 2].data == call->weights[4 * s + 2].data &&
            call->weights[4 * e + 3].data == call->weights[4 * s + 3].data)
            return earlier[e];
    float *out = *scratch;
    *scratch += call->rows * k;
    if (norm == FB_OP_COUNT)
        FB_FOR_DTYPE(x->dtype, T, widen(T, x, call->rows, k, out));
    else
        FB_FOR_DTYPE(x->dtype, T, normalise_rows(T, call, s, k, out));
    return (input){out, k};
}

/* ---- outputs
 * ----------------------------------------------------------------------------------------------------------
 */

typedef struct block {
    int64_t row, rows; /* of the call */
    int64_t n, ns;     /* outputs of the segment */
} block;

FB_INLINE vf activate(fb_dtype t, fb_op_kind act, vf v) {
    switch (act) {
    case FB_OP_GELU:
        return vf_rounded(t, vf_gelu(v));
    case FB_OP_GELU_TANH:
        return vf_rounded(t, vf_gelu_tanh(v));
    case FB_OP_SILU:
        return vf_rounded(t, vf_silu(v));
    default:
        return v;
    }
}

/* What the plain linear and activation would have stored, from sums i … of a row. */
FB_INLINE vf finished(fb_dtype t, const fb_weight *bias, fb_op_kind act, const float *sums, int64_t n,
                      int64_t i, int64_t ns) {
    vf v = vf_get_n(FB_F32, sums, i, ns, 0);
    if (bias->data) v += vf_get_any(bias->dtype, fb_at(bias->data, bias->dtype, n), i, ns, 0);
    return activate(t, act, vf_rounded(t, v));
}

/* Finishes and stores a block; sums[s] are segment s's. */
FB_INLINE void store(fb_dtype t, fb_combine combine, const fb_call *call, int s, const block *b,
                     float *const *sums) {
    const fb_view *out = &call->out[s];
    const fb_op_attr *attr = &call->attr;
    for (int64_t m = 0; m < b->rows; m++) {
        void *y = fb_view_at(out, b->row + m, 0);
        for (int64_t i = 0; i < b->ns; i += VW) {
            vf v = finished(t, &call->weights[4 * s + 1], attr->segment[s].act, sums[s] + m * BLOCK_N, b->n,
                            i, b->ns);
            if (combine == FB_COMBINE_MUL)
                v *= finished(t, &call->weights[5], attr->segment[1].act, sums[1] + m * BLOCK_N, b->n, i,
                              b->ns);
            if (combine == FB_COMBINE_ADD) {
                if (attr->segments == 2)
                    v = vf_rounded(t, v + finished(t, &call->weights[5], attr->segment[1].act,
                                                   sums[1] + m * BLOCK_N, b->n, i, b->ns));
                const void *x = fb_view_at(&call->in[FB_RESIDUAL], b->row + m, 0);
                v += vf_get_n(t, vf_address(t, x, b->n), i, b->ns, 0);
            }
            vf_put_n(t, (void *)(uintptr_t)vf_address(t, y, b->n), i, b->ns, v);
        }
    }
}

static void store_block(const fb_call *call, int s, const block *b, float *const *sums) {
    switch (call->attr.combine) {
    case FB_COMBINE_NONE:
        FB_FOR_DTYPE(call->out[s].dtype, T, store(T, FB_COMBINE_NONE, call, s, b, sums));
        break;
    case FB_COMBINE_MUL:
        FB_FOR_DTYPE(call->out[s].dtype, T, store(T, FB_COMBINE_MUL, call, s, b, sums));
        break;
    case FB_COMBINE_ADD:
        FB_FOR_DTYPE(call->out[s].dtype, T, store(T, FB_COMBINE_ADD, call, s, b, sums));
        break;
    }
}

static void sums_of(const fb_call *call, int s, const input *in, const block *b, float *sums) {
    const fb_weight *w = &call->weights[4 * s];
    const float *x = in[s].x + b->row * in[s].ldx;
    FB_FOR_DTYPE(
        w->dtype, WT,
        tiles(WT, vf_address(WT, w->data, b->n * w->cols), x, in[s].ldx, w->cols, b->rows, b->ns, sums));
}

/* Outputs [begin, end) of segment s; with a combination, of all segments at once. */
static void run_outputs(const fb_call *call, int s, const input *in, int64_t begin, int64_t end) {
    float sums[2][MAX_BLOCK_M * BLOCK_N];
    float *const at[FB_MAX_SEGMENTS] = {sums[0], s == 1 ? sums[0] : sums[1], sums[0]};
    bool both = call->attr.combine != FB_COMBINE_NONE && call->attr.segments == 2;
    int64_t rows = X_BLOCK_BYTES / (call->weights[4 * s].cols * 4) / MANY_M * MANY_M;
    rows = rows < MANY_M                          ? MANY_M
           : rows > MAX_BLOCK_M / MANY_M * MANY_M ? MAX_BLOCK_M / MANY_M * MANY_M
                                                  : rows;
    for (int64_t row = 0; row < call->rows; row += rows)
        for (int64_t n = begin; n < end; n += BLOCK_N) {
            block b = {row, call->rows - row < rows ? call->rows - row : rows, n,
                       end - n < BLOCK_N ? end - n : BLOCK_N};
            sums_of(call, s, in, &b, at[s]);
            if (both) sums_of(call, 1, in, &b, at[1]);
            store_block(call, s, &b, at);
        }
}

static void run_group(const fb_call *call, const fb_lane *lane) {
    input in[FB_MAX_SEGMENTS] = {{0}};
    float *scratch = lane->scratch;
    int32_t segments = call->attr.segments;
    int64_t total = 0, begin, end;
    bool combined = call->attr.combine != FB_COMBINE_NONE;
    for (int s = 0; s < segments; s++)
        if (s == 0 || !combined) total += call->weights[4 * s].rows;
    fb_lane_share(lane, total, GRAIN, &begin, &end);
    if (begin == end) return;
    for (int s = 0; s < segments; s++) in[s] = prepare(call, s, in, &scratch);
    /* The outputs of all segments are one range that the lanes share. */
    for (int s = 0; s < (combined ? 1 : segments); s++) {
        int64_t rows = call->weights[4 * s].rows;
        run_outputs(call, s, in, begin < 0 ? 0 : begin, end < rows ? end : rows);
        begin -= rows;
        end -= rows;
    }
}

void FB_KERNEL(linear_group)(const fb_call *call, const fb_lane *lane) { run_group(call, lane); }

void FB_KERNEL(linear)(const fb_call *call, const fb_lane *lane) {
    fb_call group = *call;
    group.attr.segments = 1;
    group.attr.segment[0] = (fb_segment){FB_OP_COUNT, FB_OP_COUNT, 0};
    run_group(&group, lane);
}

/* Each lane's best output (a NaN, if there is one), as [2] floats (value, column) at lane's place of the
 * output row; the reader takes the best of them, the first among equals. A column is exact in float32 up to
 * 2^24, which the vocabulary may not exceed. */
void FB_KERNEL(head_argmax)(const fb_call *call, const fb_lane *lane) {
    const fb_weight *w = &call->weights[0];
    fb_call plain = *call;
    plain.attr.segments = 1;
    plain.attr.segment[0] = (fb_segment){FB_OP_COUNT, FB_OP_COUNT, 0};
    int64_t begin, end;
    fb_lane_share(lane, w->rows, GRAIN, &begin, &end);
    float *scratch = lane->scratch, sums[BLOCK_N];
    input in = prepare(&plain, 0, NULL, &scratch);
    for (int64_t row = 0; row < call->rows; row++) {
        float *best = (float *)fb_view_at(&call->out[0], row, 0) + 2 * lane->index;
        best[0] = -INFINITY;
        best[1] = (float)begin;
        for (int64_t n = begin; n < end; n += BLOCK_N) {
            block b = {row, 1, n, end - n < BLOCK_N ? end - n : BLOCK_N};
            sums_of(&plain, 0, &in, &b, sums);
            for (int64_t i = 0; i < b.ns; i++) {
                float value = sums[i];
                FB_FOR_DTYPE(call->in[0].dtype, T, fb_put(T, &value, 0, sums[i]);
                             value = fb_get(T, &value, 0));
                if (value > best[0] || (value != value && best[0] == best[0])) {
                    best[0] = value;
                    best[1] = (float)(n + i);
                }
            }
        }
    }
}
