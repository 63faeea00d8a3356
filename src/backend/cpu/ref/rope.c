#include "backend/cpu/ref/ref.h"

void fb_cpu_rope_angles_ref(const fb_call *call, const fb_lane *lane) {
    if (lane->index) return;
    int64_t half = call->attr.rotary / 2;
    REF_FOR(row, call->rows)
    REF_FOR(i, half) {
        double angle = (double)(call->position + row) * call->attr.frequencies[i];
        ref_set(&call->out[0], row, 0, i, cos(angle));
        ref_set(&call->out[0], row, 0, half + i, sin(angle));
    }
}

void fb_cpu_rope_ref(const fb_call *call, const fb_lane *lane) {
    if (lane->index) return;
    const fb_view *x = &call->in[0], *y = &call->out[0];
    int64_t half = call->attr.rotary / 2;
    REF_FOR(row, call->rows)
    REF_FOR(head, x->heads) {
        REF_FOR(i, half) {
            double a = ref_get(x, row, head, i), b = ref_get(x, row, head, half + i);
            double c = ref_get(&call->in[1], row, 0, i), s = ref_get(&call->in[1], row, 0, half + i);
            ref_set(y, row, head, i, a * c - b * s);
            ref_set(y, row, head, half + i, b * c + a * s);
        }
        for (int64_t i = 2 * half; i < x->width; i++) ref_set(y, row, head, i, ref_get(x, row, head, i));
    }
}

void fb_cpu_kv_append_ref(const fb_call *call, const fb_lane *lane) {
    if (lane->index) return;
    const fb_kv *kv = &call->kv;
    REF_FOR(row, call->rows)
    REF_FOR(head, kv->heads)
    REF_FOR(i, kv->width) {
        int64_t at = (head * kv->capacity + call->position + row) * kv->width + i;
        fb_dtype_set(kv->dtype, kv->k, at, ref_get(&call->in[0], row, head, i));
        fb_dtype_set(kv->dtype, kv->v, at, ref_get(&call->in[1], row, head, i));
    }
}

void fb_cpu_rope_kv_ref(const fb_call *call, const fb_lane *lane) {
    if (lane->index) return;
    fb_call q = *call, k = *call, append = *call;
    q.in[1] = k.in[1] = call->in[3];
    fb_cpu_rope_ref(&q, lane);
    /* Rotate k straight into the cache, seen as rows of tokens. */
    const fb_kv *kv = &call->kv;
    k.in[0] = call->in[1];
    k.out[0] = (fb_view){fb_kv_at(kv, kv->k, 0, call->position),
                         kv->dtype,
                         kv->heads,
                         kv->width,
                         kv->width,
                         kv->capacity * kv->width};
    fb_cpu_rope_ref(&k, lane);
    append.in[0] = k.out[0];
    append.in[1] = call->in[2];
    fb_cpu_kv_append_ref(&append, lane);
}
