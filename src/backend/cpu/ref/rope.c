#include "backend/cpu/ref/ref.h"

void fb_cpu_rope_angles_ref(const fb_call *call, const fb_worker *worker) {
    if (worker->index) return;
    int64_t half = call->attr.rotary / 2;
    double scale = call->attr.scale ? (double)call->attr.scale : 1;
    REF_FOR(row, call->rows)
    REF_FOR(i, half) {
        int64_t position = call->row[row].position, limit = call->attr.limit;
        double angle = (double)(limit && position > limit ? limit : position) * call->attr.frequencies[i];
        ref_set(&call->out[0], row, 0, i, cos(angle) * scale);
        ref_set(&call->out[0], row, 0, half + i, sin(angle) * scale);
    }
}

void fb_cpu_rope_ref(const fb_call *call, const fb_worker *worker) {
    if (worker->index) return;
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

static void append(const fb_kv *kv, int64_t head, const fb_row *row, int64_t i, double k, double v) {
    int64_t slot = fb_ring_slot(&kv->ring, row->position);
    fb_dtype_set(kv->dtype, fb_key_of(kv, row->sequence, head, slot), i * FB_KV_GROUP, k);
    fb_dtype_set(kv->dtype, fb_value_of(kv, row->sequence, head, slot), i, v);
}

void fb_cpu_kv_append_ref(const fb_call *call, const fb_worker *worker) {
    if (worker->index) return;
    REF_FOR(row, call->rows)
    REF_FOR(head, call->kv.heads)
    REF_FOR(i, call->kv.width)
    append(&call->kv, head, &call->row[row], i, ref_get(&call->in[0], row, head, i),
           ref_get(&call->in[1], row, head, i));
}

/* in: q, k, v, angles, and with sinks the angles of the second query. */
void fb_cpu_rope_kv_ref(const fb_call *call, const fb_worker *worker) {
    if (worker->index) return;
    const fb_kv *kv = &call->kv;
    double *rotated = (double *)(void *)worker->scratch; /* one key */
    fb_call q = *call, k = *call;
    for (int n = 0; n < (call->out[1].data ? 2 : 1); n++) {
        q.in[1] = call->in[3 + n];
        q.out[0] = call->out[n];
        fb_cpu_rope_ref(&q, worker);
    }
    k.rows = 1;
    k.in[1] = call->in[3];
    REF_FOR(row, call->rows)
    REF_FOR(head, kv->heads) {
        k.in[0] = call->in[1];
        k.in[0].data = fb_view_at(&call->in[1], row, head);
        k.in[0].heads = 1;
        k.in[1].data = fb_view_at(&call->in[3], row, 0);
        k.out[0] = (fb_view){rotated, FB_F64, 1, kv->width, 0, 0};
        fb_cpu_rope_ref(&k, worker);
        REF_FOR(i, kv->width)
        append(kv, head, &call->row[row], i, rotated[i], ref_get(&call->in[2], row, head, i));
    }
}
