/* attn_scores, softmax, attn_values, and all three fused: one query head of one token at a time, lanes share
 * these. Query heads in groups of heads / kv heads read the same cached head. */
#include "backend/cpu/kernel.h"
#include "backend/cpu/simd.h"

/* Scores of q against `count` keys. Four keys at a time, so that their sums do not wait for each other. */
FB_INLINE void scores_of_f32(fb_dtype t, const void *q, const void *keys, float *out, int64_t count,
                             int64_t width, float scale) {
    for (int64_t j = 0; j < count; j += 4) {
        int ns = count - j < 4 ? (int)(count - j) : 4;
        vf sum[4] = {{0}};
        int64_t i = 0;
        if (ns == 4)
            for (; i + VW <= width; i += VW) {
                vf x = vf_get(t, q, i);
                for (int k = 0; k < 4; k++) sum[k] = vf_fma(x, vf_get(t, keys, (j + k) * width + i), sum[k]);
            }
        for (; i < width; i += VW) {
            vf x = vf_get_n(t, q, i, width, 0);
            for (int k = 0; k < ns; k++)
                sum[k] = vf_fma(x, vf_get_n(t, vf_address(t, keys, (j + k) * width), i, width, 0), sum[k]);
        }
        for (int k = 0; k < ns; k++) out[j + k] = vf_sum(sum[k]) * scale;
    }
}

/* The same, stored as `t`. */
FB_INLINE void scores_of(fb_dtype t, const void *q, const void *keys, void *out, int64_t count, int64_t width,
                         float scale) {
    for (int64_t first = 0; first < count; first += 64) {
        int64_t ns = count - first < 64 ? count - first : 64;
        float s[64];
        scores_of_f32(t, q, vf_address(t, keys, first * width), s, ns, width, scale);
        void *at = (void *)(uintptr_t)vf_address(t, out, first);
        for (int64_t j = 0; j < ns; j += VW) vf_put_n(t, at, j, ns, vf_get_n(FB_F32, s, j, ns, 0));
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

/* `vectors` vectors of the output, from element i on, stay in registers while the positions go by. */
FB_INLINE void values_part(fb_dtype t, const void *p, const void *values, void *out, int64_t count,
                           int64_t width, int64_t i, int vectors) {
    vf sum[4] = {{0}};
    for (int64_t j = 0; j < count; j++) {
        vf weight = vf_set1(fb_get(t, p, j));
        for (int k = 0; k < vectors; k++)
            sum[k] = vf_fma(weight, vf_get(t, values, j * width + i + k * VW), sum[k]);
    }
    for (int k = 0; k < vectors; k++) vf_put(t, out, i + k * VW, sum[k]);
}

FB_INLINE void values_of(fb_dtype t, const void *p, const void *values, void *out, int64_t count,
                         int64_t width) {
    int64_t i = 0;
    for (; i + 4 * VW <= width; i += 4 * VW) values_part(t, p, values, out, count, width, i, 4);
    for (; i + 2 * VW <= width; i += 2 * VW) values_part(t, p, values, out, count, width, i, 2);
    for (; i + VW <= width; i += VW) values_part(t, p, values, out, count, width, i, 1);
    if (i == width) return;
    vf sum = vf_set1(0);
    for (int64_t j = 0; j < count; j++)
        sum =
            vf_fma(vf_set1(fb_get(t, p, j)), vf_get_n(t, vf_address(t, values, j * width), i, width, 0), sum);
    vf_put_n(t, out, i, width, sum);
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

/* ---- fused
 * ------------------------------------------------------------------------------------------------------------
 */

typedef void (*attend_fn)(const fb_call *call, const fb_lane *lane, int64_t row, int64_t head);

/* Lanes share the KV heads where there are enough of them (and rope_kv before needs no barrier then), else
 * the items. */
static void attend(const fb_call *call, const fb_lane *lane, attend_fn one) {
    const fb_view *q = &call->in[0];
    int64_t group = q->heads / call->kv.heads, begin, end;
    if (call->by_head) {
        fb_lane_share(lane, call->kv.heads, 1, &begin, &end);
        for (int64_t head = begin * group; head < end * group; head++)
            for (int64_t row = 0; row < call->rows; row++) one(call, lane, row, head);
    } else {
        fb_lane_share(lane, call->rows * q->heads, 1, &begin, &end);
        for (int64_t item = begin; item < end; item++) one(call, lane, item / q->heads, item % q->heads);
    }
}

/* The three plain kernels on one row, with the scores in the lane's scratch instead of a buffer of all rows
 * and heads. */
static void attend_row(const fb_call *call, const fb_lane *lane, int64_t row, int64_t head) {
    const fb_view *q = &call->in[0], *out = &call->out[0];
    const fb_kv *kv = &call->kv;
    int64_t group = q->heads / kv->heads, count = call->position + row + 1;
    const void *keys = fb_kv_at(kv, kv->k, head / group, 0), *values = fb_kv_at(kv, kv->v, head / group, 0);
    float *exps = lane->scratch;
    void *probs = lane->scratch + (count + VW + 15) / 16 * 16;
    FB_FOR_DTYPE(q->dtype, T,
                 scores_of(T, fb_view_at(q, row, head), keys, probs, count, q->width, call->attr.scale);
                 softmax_of(T, probs, probs, count, exps);
                 values_of(T, probs, values, fb_view_at(out, row, head), count, out->width));
}

void FB_KERNEL(attn_rows)(const fb_call *call, const fb_lane *lane) { attend(call, lane, attend_row); }

/* Keys that are scored before their values are added: a block costs a maximum, a sum and two exponentials
 * that wait for each other, so not too few; their scores stay in the first-level cache. 32 made it slower
 * than the plain ops at 100 positions. */
#define FLASH_BLOCK 128

/* sum[i …] = sum * shrink + the block's values, weighted; `vectors` of them at a time, even and odd keys
 * apart, so that the sums do not wait for each other. */
FB_INLINE void flash_values(fb_dtype t, const float *weights, const void *values, int64_t count,
                            int64_t width, int64_t i, int vectors, float shrink, float *sum) {
    vf even[4], odd[4];
    for (int k = 0; k < vectors; k++) {
        even[k] = vf_load_f32(sum + i + k * VW) * shrink;
        odd[k] = vf_set1(0);
    }
    int64_t j = 0;
    for (; j + 2 <= count; j += 2)
        for (int k = 0; k < vectors; k++) {
            even[k] = vf_fma(vf_set1(weights[j]), vf_get(t, values, j * width + i + k * VW), even[k]);
            odd[k] = vf_fma(vf_set1(weights[j + 1]), vf_get(t, values, (j + 1) * width + i + k * VW), odd[k]);
        }
    for (; j < count; j++)
        for (int k = 0; k < vectors; k++)
            even[k] = vf_fma(vf_set1(weights[j]), vf_get(t, values, j * width + i + k * VW), even[k]);
    for (int k = 0; k < vectors; k++) vf_put(FB_F32, sum, i + k * VW, even[k] + odd[k]);
}

/* One pass: blocks of scores, each block's values added with weights relative to the largest score so far;
 * when a larger one comes, what was summed is scaled down. Nothing is rounded to the activation dtype but the
 * result. */
FB_INLINE void flash_of(fb_dtype t, const void *q, const void *keys, const void *values, void *out,
                        int64_t count, int64_t width, float scale, float *sum) {
    float most = -INFINITY, total = 0;
    for (int64_t i = 0; i < width; i += VW) vf_put(FB_F32, sum, i, vf_set1(0));
    for (int64_t first = 0; first < count; first += FLASH_BLOCK) {
        int64_t ns = count - first < FLASH_BLOCK ? count - first : FLASH_BLOCK;
        float s[FLASH_BLOCK];
        scores_of_f32(t, q, vf_address(t, keys, first * width), s, ns, width, scale);
        vf best = vf_set1(most);
        for (int64_t j = 0; j < ns; j += VW) best = vf_max(best, vf_get_n(FB_F32, s, j, ns, -INFINITY));
        float now = vf_max_of(best);
        float shrink = most == now ? 1 : vf_exp(vf_set1(most - now))[0];
        vf added = vf_set1(0);
        for (int64_t j = 0; j < ns; j += VW) {
            vf e = vf_exp(vf_get_n(FB_F32, s, j, ns, -INFINITY) - now);
            added += e;
            vf_put_n(FB_F32, s, j, ns, e);
        }
        total = total * shrink + vf_sum(added);
        most = now;
        const void *v = vf_address(t, values, first * width);
        int64_t i = 0;
        for (; i + 4 * VW <= width; i += 4 * VW) flash_values(t, s, v, ns, width, i, 4, shrink, sum);
        for (; i + 2 * VW <= width; i += 2 * VW) flash_values(t, s, v, ns, width, i, 2, shrink, sum);
        for (; i + VW <= width; i += VW) flash_values(t, s, v, ns, width, i, 1, shrink, sum);
        if (i == width) continue;
        vf rest = vf_load_f32(sum + i) * shrink;
        for (int64_t j = 0; j < ns; j++)
            rest = vf_fma(vf_set1(s[j]), vf_get_n(t, vf_address(t, v, j * width), i, width, 0), rest);
        vf_put(FB_F32, sum, i, rest);
    }
    float norm = 1.0f / total;
    for (int64_t i = 0; i < width; i += VW) vf_put_n(t, out, i, width, vf_load_f32(sum + i) * norm);
}

static void attend_flash(const fb_call *call, const fb_lane *lane, int64_t row, int64_t head) {
    const fb_view *q = &call->in[0], *out = &call->out[0];
    const fb_kv *kv = &call->kv;
    int64_t group = q->heads / kv->heads;
    const void *keys = fb_kv_at(kv, kv->k, head / group, 0), *values = fb_kv_at(kv, kv->v, head / group, 0);
    FB_FOR_DTYPE(q->dtype, T,
                 flash_of(T, fb_view_at(q, row, head), keys, values, fb_view_at(out, row, head),
                          call->position + row + 1, q->width, call->attr.scale, lane->scratch));
}

void FB_KERNEL(attn_flash)(const fb_call *call, const fb_lane *lane) { attend(call, lane, attend_flash); }
