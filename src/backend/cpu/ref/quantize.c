#include "backend/cpu/ref/ref.h"

fb_q8 ref_quantized(const double *x) {
    fb_q8 block = {0};
    double most = 0, check = 0;
    REF_FOR(i, 32) most = fmax(most, fabs(x[i])), check += x[i] * 0;
    block.scale = check == 0 ? (float)(most / 127) : NAN;
    for (int i = 0; i < 32 && check == 0 && most >= (double)FB_Q8_LEAST; i++) {
        /* In float32, as in the fast kernels, so that a tie is rounded the same way. */
        block.q[i] = (int8_t)nearbyint((double)(float)(x[i] * (double)(float)(127 / most)));
        block.sum += block.q[i];
    }
    return block;
}

void fb_cpu_quantize_ref(const fb_call *call, const fb_worker *worker) {
    if (worker->index) return;
    const fb_view *in = &call->in[0];
    REF_FOR(row, call->rows)
    REF_FOR(b, in->heads * in->width / 32) {
        double x[32];
        REF_FOR(i, 32) x[i] = ref_get(in, row, 0, 32 * b + i);
        ((fb_q8 *)fb_view_at(&call->out[0], row, 0))[b] = ref_quantized(x);
    }
}
