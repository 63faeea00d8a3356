#include "backend/cpu/ref/ref.h"

void fb_cpu_embed_ref(const fb_call *call, const fb_worker *worker) {
    if (worker->index) return;
    REF_FOR(row, call->rows)
    REF_FOR(i, call->weights[0].cols)
    ref_set(&call->out[0], row, 0, i,
            ref_weight(&call->weights[0], call->row[row].token, i) *
                (call->attr.scale ? (double)call->attr.scale : 1));
}

void fb_cpu_embed_position_ref(const fb_call *call, const fb_worker *worker) {
    if (worker->index) return;
    REF_FOR(row, call->rows)
    REF_FOR(i, call->weights[0].cols)
    ref_set(&call->out[0], row, 0, i, ref_weight(&call->weights[0], call->row[row].position, i));
}
