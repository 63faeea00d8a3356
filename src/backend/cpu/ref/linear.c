#include "backend/cpu/ref/ref.h"

void fb_cpu_linear_ref(const fb_call *call, const fb_lane *lane) {
    if (lane->index) return;
    const fb_weight *w = &call->weights[0], *bias = &call->weights[1];
    REF_FOR(row, call->rows)
    REF_FOR(n, w->rows) {
        double sum = bias->data ? ref_weight(bias, 0, n) : 0;
        REF_FOR(k, w->cols) sum += ref_get(&call->in[0], row, 0, k) * ref_weight(w, n, k);
        ref_set(&call->out[0], row, 0, n, sum);
    }
}
