#include "backend/cpu/ref/ref.h"

void fb_cpu_layernorm_ref(const fb_call *call, const fb_lane *lane) {
    if (lane->index) return;
    int64_t n = call->weights[0].cols;
    REF_FOR(row, call->rows) {
        double mean = 0, variance = 0;
        REF_FOR(i, n) mean += ref_get(&call->in[0], row, 0, i) / (double)n;
        REF_FOR(i, n) variance += pow(ref_get(&call->in[0], row, 0, i) - mean, 2) / (double)n;
        REF_FOR(i, n)
        ref_set(&call->out[0], row, 0, i,
                (ref_get(&call->in[0], row, 0, i) - mean) / sqrt(variance + (double)call->attr.eps) *
                        ref_weight(&call->weights[0], 0, i) +
                    ref_weight(&call->weights[1], 0, i));
    }
}

void fb_cpu_rmsnorm_ref(const fb_call *call, const fb_lane *lane) {
    if (lane->index) return;
    int64_t n = call->weights[0].cols;
    REF_FOR(row, call->rows) {
        double square = 0;
        REF_FOR(i, n) square += pow(ref_get(&call->in[0], row, 0, i), 2) / (double)n;
        REF_FOR(i, n)
        ref_set(&call->out[0], row, 0, i,
                ref_get(&call->in[0], row, 0, i) / sqrt(square + (double)call->attr.eps) *
                    ref_weight(&call->weights[0], 0, i));
    }
}
