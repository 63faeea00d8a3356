/* rope_angles, rope, kv_append, and rope_kv, which is rope and kv_append in one: all work on q, k and v
 * between their projection and attention. */
#include "backend/cpu/kernel.h"
#include "backend/cpu/simd.h"

/* Angles are computed in double: a position may be large, and its product with a frequency must keep the
 * fraction of a turn. */
void FB_KERNEL(rope_angles)(const fb_call *call, const fb_worker *worker) {
    int64_t half = call->attr.rotary / 2, begin, end;
    double scale = call->attr.scale ? (double)call->attr.scale : 1;
    fb_worker_share(worker, call->rows, 1, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        float *out = fb_view_at(&call->out[0], row, 0);
        int64_t position = call->row[row].position, limit = call->attr.limit;
        if (limit && position > limit) position = limit;
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)position * call->attr.frequencies[i];
            out[i] = (float)(cos(angle) * scale);
            out[half + i] = (float)(sin(angle) * scale);
        }
    }
}

/* Rotates the pairs in a head's first 2 * half elements and copies the others. */
FB_INLINE void rotate(fb_dtype t, const void *x, void *y, const float *angles, int64_t half, int64_t width) {
    const void *x2 = vf_address(t, x, half);
    void *y2 = (void *)(uintptr_t)vf_address(t, y, half);
    for (int64_t i = 0; i < half; i += VW) {
        vf a = vf_get_n(t, x, i, half, 0), b = vf_get_n(t, x2, i, half, 0);
        vf c = vf_get_n(FB_F32, angles, i, half, 0), s = vf_get_n(FB_F32, angles + half, i, half, 0);
        vf_put_n(t, y, i, half, a * c - b * s);
        vf_put_n(t, y2, i, half, b * c + a * s);
    }
    for (int64_t i = 2 * half; i < width; i += VW) vf_put_n(t, y, i, width, vf_get_n(t, x, i, width, 0));
}

void FB_KERNEL(rope)(const fb_call *call, const fb_worker *worker) {
    const fb_view *in = &call->in[0], *out = &call->out[0];
    int64_t begin, end;
    fb_worker_share(worker, call->rows * in->heads, 1, &begin, &end);
    for (int64_t item = begin; item < end; item++) {
        int64_t row = item / in->heads, head = item % in->heads;
        const float *angles = fb_view_at(&call->in[1], row, 0);
        const void *x = fb_view_at(in, row, head);
        void *y = fb_view_at(out, row, head);
        FB_FOR_DTYPE(in->dtype, T, rotate(T, x, y, angles, call->attr.rotary / 2, in->width));
    }
}

/* Writes k and v of one head and row to the cache, rounded to the cache's dtype. */
FB_INLINE void append(const fb_kv *kv, int64_t head, const fb_row *row, fb_dtype t, const void *k,
                      const void *v) {
    int64_t slot = fb_ring_slot(&kv->ring, row->position);
    uint8_t *key = fb_key_of(kv, row->sequence, head, slot);
    uint8_t *value = fb_value_of(kv, row->sequence, head, slot);
    int64_t width = kv->width;
    FB_FOR_DTYPE(
        kv->dtype, T, const size_t size = T == FB_F32 ? 4 : 2; for (int64_t i = 0; i < width; i += VW) {
            uint8_t x[VW * 4];
            vf_put(T, x, 0, vf_get_any(t, k, i, width, 0));
            for (int n = 0; n < VW && i + n < width; n++, key += FB_KV_GROUP * size)
                memcpy(key, x + (size_t)n * size, size);
            vf_put_n(T, value, i, width, vf_get_any(t, v, i, width, 0));
        });
}

void FB_KERNEL(kv_append)(const fb_call *call, const fb_worker *worker) {
    const fb_view *k = &call->in[0], *v = &call->in[1];
    const fb_kv *kv = &call->kv;
    int64_t begin, end;
    fb_worker_share(worker, call->rows * kv->heads, 1, &begin, &end);
    for (int64_t item = begin; item < end; item++) {
        /* Head by head: FB_KV_GROUP rows of a head write the same cache lines. */
        int64_t head = item / call->rows, row = item % call->rows;
        append(kv, head, &call->row[row], k->dtype, fb_view_at(k, row, head), fb_view_at(v, row, head));
    }
}

/* in: q, k, v, angles, and with sinks the angles of the second query. out: the rotated q, and with sinks the
 * second one. A worker takes whole KV heads with the query heads that read them. So no barrier is needed
 * before an attention kernel that divides the work in the same way. The rotated k is first rounded to the
 * activation dtype, as rope would have stored it. */
void FB_KERNEL(rope_kv)(const fb_call *call, const fb_worker *worker) {
    const fb_view *q = &call->in[0], *k = &call->in[1], *v = &call->in[2];
    const fb_kv *kv = &call->kv;
    int queries = call->out[1].data ? 2 : 1;
    int64_t group = q->heads / kv->heads, half = call->attr.rotary / 2, begin, end;
    fb_worker_share(worker, kv->heads, 1, &begin, &end);
    for (int64_t head = begin; head < end; head++)
        for (int64_t row = 0; row < call->rows; row++) {
            const float *angles = fb_view_at(&call->in[3], row, 0);
            void *key = worker->scratch;
            for (int n = 0; n < queries; n++) {
                const float *turn = fb_view_at(&call->in[3 + n], row, 0);
                for (int64_t g = head * group; g < (head + 1) * group; g++)
                    FB_FOR_DTYPE(q->dtype, T,
                                 rotate(T, fb_view_at(q, row, g), fb_view_at(&call->out[n], row, g), turn,
                                        half, q->width));
            }
            FB_FOR_DTYPE(k->dtype, T, rotate(T, fb_view_at(k, row, head), key, angles, half, k->width));
            append(kv, head, &call->row[row], k->dtype, key, fb_view_at(v, row, head));
        }
}
