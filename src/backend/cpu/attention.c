/* attn_scores, softmax, attn_values: one query head of one token at a time, lanes share these. Query heads in
 * groups of heads / kv heads read the same cached head. */
#include "backend/cpu/kernel.h"
#include "backend/cpu/simd.h"

FB_INLINE void scores_of(fb_dtype t, const void *q, const void *keys, void *out, int64_t count, int64_t width,
                         float scale) {
    for (int64_t j = 0; j < count; j++) {
        const void *k = vf_address(t, keys, j * width);
        vf sum = vf_set1(0);
        for (int64_t i = 0; i < width; i += VW)
            sum = vf_fma(vf_get_n(t, q, i, width, 0), vf_get_n(t, k, i, width, 0), sum);
        fb_put(t, out, j, vf_sum(sum) * scale);
    }
}

void FB_KERNEL(attn_scores)(const fb_call *call, const fb_lane *lane) {
    const fb_view *q = &call->in[0], *out = &call->out[0];
    int64_t group = q->heads / call->kv.heads, begin, end;
    fb_lane_share(lane, call->rows * q->heads, 1, &begin, &end);
    for (int64_t item = begin; item < end; item++) {
        int64_t row = item / q->heads, head = item % q->heads;
        const void *keys = fb_kv_at(&call->kv, call->kv.k, head / group, 0);
        FB_FOR_DTYPE(q->dtype, T,
                     scores_of(T, fb_view_at(q, row, head), keys, fb_view_at(out, row, head),
                               call->position + row + 1, q->width, call->attr.scale));
    }
}

FB_INLINE void softmax_of(fb_dtype t, const void *x, void *y, int64_t n, float *e) {
    vf most = vf_set1(-INFINITY);
    for (int64_t i = 0; i < n; i += VW) most = vf_max(most, vf_get_n(t, x, i, n, -INFINITY));
    float max = vf_max_of(most);
    vf sum = vf_set1(0);
    for (int64_t i = 0; i < n; i += VW) {
        vf v = vf_exp(vf_get_n(t, x, i, n, -INFINITY) - max);
        sum += v;
        memcpy(e + i, &v, sizeof v);
    }
    float scale = 1.0f / vf_sum(sum);
    for (int64_t i = 0; i < n; i += VW) vf_put_n(t, y, i, n, vf_load_f32(e + i) * scale);
}

void FB_KERNEL(softmax)(const fb_call *call, const fb_lane *lane) {
    const fb_view *x = &call->in[0], *y = &call->out[0];
    int64_t begin, end;
    fb_lane_share(lane, call->rows * x->heads, 1, &begin, &end);
    for (int64_t item = begin; item < end; item++) {
        int64_t row = item / x->heads, head = item % x->heads;
        FB_FOR_DTYPE(x->dtype, T,
                     softmax_of(T, fb_view_at(x, row, head), fb_view_at(y, row, head),
                                call->position + row + 1, lane->scratch));
    }
}

/* Four vectors of the output at a time stay in registers while the positions go by. */
#define VALUES_STEP (4 * VW)

FB_INLINE void values_of(fb_dtype t, const void *p, const void *values, void *out, int64_t count,
                         int64_t width) {
    for (int64_t i = 0; i < width; i += VALUES_STEP) {
        vf sum[4] = {{0}};
        if (i + VALUES_STEP <= width) {
            for (int64_t j = 0; j < count; j++) {
                vf weight = vf_set1(fb_get(t, p, j));
                for (int k = 0; k < 4; k++)
                    sum[k] = vf_fma(weight, vf_get(t, values, j * width + i + k * VW), sum[k]);
            }
        } else {
            for (int64_t j = 0; j < count; j++) {
                vf weight = vf_set1(fb_get(t, p, j));
                const void *v = vf_address(t, values, j * width);
                for (int k = 0; i + k * VW < width; k++)
                    sum[k] = vf_fma(weight, vf_get_n(t, v, i + k * VW, width, 0), sum[k]);
            }
        }
        for (int k = 0; k < 4 && i + k * VW < width; k++) vf_put_n(t, out, i + k * VW, width, sum[k]);
    }
}

void FB_KERNEL(attn_values)(const fb_call *call, const fb_lane *lane) {
    const fb_view *p = &call->in[0], *out = &call->out[0];
    int64_t group = out->heads / call->kv.heads, begin, end;
    fb_lane_share(lane, call->rows * out->heads, 1, &begin, &end);
    for (int64_t item = begin; item < end; item++) {
        int64_t row = item / out->heads, head = item % out->heads;
        const void *values = fb_kv_at(&call->kv, call->kv.v, head / group, 0);
        FB_FOR_DTYPE(out->dtype, T,
                     values_of(T, fb_view_at(p, row, head), values, fb_view_at(out, row, head),
                               call->position + row + 1, out->width));
    }
}
