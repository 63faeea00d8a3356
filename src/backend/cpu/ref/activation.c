#include "backend/cpu/ref/ref.h"

/* (1 + tanh(y)) / 2 = 1 / (1 + exp(-2 y)), which keeps its digits where the tanh is close to -1. */

double ref_activation(fb_op_kind kind, double x) {
    switch (kind) {
    case FB_OP_GELU:
        return 0.5 * x * erfc(-x / M_SQRT2);
    case FB_OP_GELU_TANH:
        return x / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case FB_OP_SILU:
        return x / (1 + exp(-x));
    default:
        return x;
    }
}

static void map(const fb_call *call, const fb_worker *worker, fb_op_kind kind) {
    if (worker->index) return;
    REF_FOR(row, call->rows)
    REF_FOR(head, call->out[0].heads)
    REF_FOR(i, call->out[0].width)
    ref_set(&call->out[0], row, head, i, ref_activation(kind, ref_get(&call->in[0], row, head, i)));
}

void fb_cpu_gelu_ref(const fb_call *call, const fb_worker *worker) { map(call, worker, FB_OP_GELU); }
void fb_cpu_gelu_tanh_ref(const fb_call *call, const fb_worker *worker) {
    map(call, worker, FB_OP_GELU_TANH);
}
void fb_cpu_silu_ref(const fb_call *call, const fb_worker *worker) { map(call, worker, FB_OP_SILU); }

void fb_cpu_scale_ref(const fb_call *call, const fb_worker *worker) {
    if (worker->index) return;
    REF_FOR(row, call->rows)
    REF_FOR(head, call->out[0].heads)
    REF_FOR(i, call->out[0].width)
    ref_set(&call->out[0], row, head, i, ref_get(&call->in[0], row, head, i) * (double)call->attr.scale);
}

double ref_softcap(double x, double cap) { return cap * tanh(x / cap); }

void fb_cpu_softcap_ref(const fb_call *call, const fb_worker *worker) {
    if (worker->index) return;
    REF_FOR(row, call->rows)
    REF_FOR(head, call->out[0].heads)
    REF_FOR(i, call->out[0].width)
    ref_set(&call->out[0], row, head, i,
            ref_softcap(ref_get(&call->in[0], row, head, i), (double)call->attr.cap));
}
