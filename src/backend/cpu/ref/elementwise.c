#include "backend/cpu/ref/ref.h"

static void map(const fb_call *call, const fb_worker *worker, double (*function)(double, double)) {
    if (worker->index) return;
    REF_FOR(row, call->rows)
    REF_FOR(head, call->out[0].heads)
    REF_FOR(i, call->out[0].width)
    ref_set(&call->out[0], row, head, i,
            function(ref_get(&call->in[0], row, head, i), ref_get(&call->in[1], row, head, i)));
}

static double add(double a, double b) { return a + b; }
static double mul(double a, double b) { return a * b; }

void fb_cpu_add_ref(const fb_call *call, const fb_worker *worker) { map(call, worker, add); }
void fb_cpu_mul_ref(const fb_call *call, const fb_worker *worker) { map(call, worker, mul); }

void fb_cpu_add3_ref(const fb_call *call, const fb_worker *worker) {
    if (worker->index) return;
    REF_FOR(row, call->rows)
    REF_FOR(head, call->out[0].heads)
    REF_FOR(i, call->out[0].width)
    ref_set(&call->out[0], row, head, i,
            ref_get(&call->in[0], row, head, i) + ref_get(&call->in[1], row, head, i) +
                ref_get(&call->in[2], row, head, i));
}

void fb_cpu_swiglu_ref(const fb_call *call, const fb_worker *worker) {
    bool gelu = call->attr.act == FB_OP_GELU || call->attr.act == FB_OP_GELU_TANH;
    fb_op_kind act = gelu ? call->attr.act : FB_OP_SILU;
    if (worker->index) return;
    REF_FOR(row, call->rows)
    REF_FOR(head, call->out[0].heads)
    REF_FOR(i, call->out[0].width)
    ref_set(&call->out[0], row, head, i,
            ref_activation(act, ref_get(&call->in[0], row, head, i)) * ref_get(&call->in[1], row, head, i));
}
