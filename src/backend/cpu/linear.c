/* linear: x [rows, K] times weight [N, K] transposed, plus bias. Lanes share the outputs N.
 *
 * Every output is one vector accumulator over K in steps of VW, then vf_sum: whatever the tile, the order is
 * the same, so that a token gives the same bits alone and in a batch. */
#include "backend/cpu/kernel.h"
#include "backend/cpu/simd.h"

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

/* Rows of x that are kept in the second-level cache while the lane's weights go by. */
#define X_BLOCK_BYTES (256 << 10)

/* sum[m][n] of x rows m (float32, `ldx` apart) and weight rows n. */
FB_INLINE void tile(fb_dtype wt, const void *w, const float *x, int64_t ldx, int64_t k, int ms, int ns,
                    float sum[MANY_M][ONE_N]) {
    vf acc[MANY_M][ONE_N];
    for (int m = 0; m < ms; m++)
        for (int n = 0; n < ns; n++) acc[m][n] = vf_set1(0);
    int64_t i = 0;
    for (; i + VW <= k; i += VW) {
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
        for (int n = 0; n < ns; n++) sum[m][n] = vf_sum(acc[m][n]);
}

typedef struct job {
    const float *x; /* [rows, k], float32 */
    int64_t ldx, k;
    const uint8_t *w;
    const fb_weight *bias;
    const fb_view *out;
} job;

FB_INLINE void tile_out(fb_dtype wt, const job *j, int64_t row, int64_t n0, int ms, int ns) {
    float sum[MANY_M][ONE_N];
    tile(wt, vf_address(wt, j->w, n0 * j->k), j->x + row * j->ldx, j->ldx, j->k, ms, ns, sum);
    for (int m = 0; m < ms; m++) {
        void *y = fb_view_at(j->out, row + m, 0);
        for (int n = 0; n < ns; n++) {
            float value = sum[m][n];
            if (j->bias->data) value += fb_get(j->bias->dtype, j->bias->data, n0 + n);
            fb_put(j->out->dtype, y, n0 + n, value);
        }
    }
}

FB_INLINE void linear_part(fb_dtype wt, const job *j, int64_t rows, int64_t begin, int64_t end) {
    int64_t block = X_BLOCK_BYTES / (j->k * 4) / MANY_M * MANY_M;
    if (block < MANY_M) block = MANY_M;
    for (int64_t first = 0; first < rows; first += block) {
        int64_t last = first + block < rows ? first + block : rows,
                many = first + (last - first) / MANY_M * MANY_M;
        int64_t n = begin;
        for (; many > first && n + MANY_N <= end; n += MANY_N) {
            for (int64_t row = first; row < many; row += MANY_M) tile_out(wt, j, row, n, MANY_M, MANY_N);
        }
        for (; many > first && n < end; n++)
            for (int64_t row = first; row < many; row += MANY_M) tile_out(wt, j, row, n, MANY_M, 1);
        for (int64_t row = many; row < last; row++) {
            for (n = begin; n + ONE_N <= end; n += ONE_N) tile_out(wt, j, row, n, 1, ONE_N);
            for (; n < end; n++) tile_out(wt, j, row, n, 1, 1);
        }
    }
}

FB_INLINE void widen(fb_dtype t, const fb_view *x, int64_t rows, int64_t k, float *out) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < k; i += VW)
            vf_put_n(FB_F32, out + row * k, i, k, vf_get_n(t, fb_view_at(x, row, 0), i, k, 0));
}

void FB_KERNEL(linear)(const fb_call *call, const fb_lane *lane) {
    const fb_weight *w = &call->weights[0];
    const fb_view *x = &call->in[0];
    int64_t begin, end;
    fb_lane_share(lane, w->rows, GRAIN, &begin, &end);
    if (begin == end) return;
    job j = {.x = x->data,
             .ldx = x->row_stride,
             .k = w->cols,
             .w = w->data,
             .bias = &call->weights[1],
             .out = &call->out[0]};
    if (x->dtype != FB_F32) {
        FB_FOR_DTYPE(x->dtype, T, widen(T, x, call->rows, w->cols, lane->scratch));
        j.x = lane->scratch;
        j.ldx = w->cols;
    }
    FB_FOR_DTYPE(w->dtype, WT, linear_part(WT, &j, call->rows, begin, end));
}
