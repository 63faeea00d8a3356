#include "backend/cpu/ref/ref.h"

/* The number of slots that a row reads; and the score of one slot, -INFINITY where the row does not see it.
 */
static int64_t count_of(const fb_call *call, int64_t row) {
    return fb_ring_count(&call->kv.ring, call->row[row].position);
}

static bool sees(const fb_call *call, int64_t row, int64_t slot) {
    return fb_ring_sees(&call->kv.ring, call->row[row].position, slot);
}

static double score_of(const fb_call *call, int64_t row, int64_t head, int64_t slot) {
    const fb_kv *kv = &call->kv;
    const fb_view *q = &call->in[slot < kv->ring.sinks];
    int64_t group = q->heads / kv->heads;
    double sum = 0;
    if (!sees(call, row, slot)) return -INFINITY;
    REF_FOR(i, q->width) sum += ref_get(q, row, head, i) * ref_key(call, row, head / group, slot, i);
    sum *= (double)call->attr.scale;
    return call->attr.cap ? ref_softcap(sum, (double)call->attr.cap) : sum;
}

void fb_cpu_attn_scores_ref(const fb_call *call, const fb_worker *worker) {
    if (worker->index) return;
    REF_FOR(row, call->rows)
    REF_FOR(head, fb_worker_cancelled(worker) ? 0 : call->in[0].heads)
    REF_FOR(j, count_of(call, row)) ref_set(&call->out[0], row, head, j, score_of(call, row, head, j));
}

void fb_cpu_softmax_ref(const fb_call *call, const fb_worker *worker) {
    if (worker->index) return;
    const fb_view *x = &call->in[0];
    REF_FOR(row, call->rows)
    REF_FOR(head, fb_worker_cancelled(worker) ? 0 : x->heads) {
        int64_t count = count_of(call, row);
        double most = -INFINITY, sum = 0;
        REF_FOR(j, count) most = fmax(most, ref_get(x, row, head, j));
        REF_FOR(j, count) sum += exp(ref_get(x, row, head, j) - most);
        REF_FOR(j, count) ref_set(&call->out[0], row, head, j, exp(ref_get(x, row, head, j) - most) / sum);
    }
}

void fb_cpu_attn_values_ref(const fb_call *call, const fb_worker *worker) {
    if (worker->index) return;
    const fb_view *out = &call->out[0];
    int64_t group = out->heads / call->kv.heads;
    REF_FOR(row, call->rows)
    REF_FOR(head, out->heads)
    REF_FOR(i, fb_worker_cancelled(worker) ? 0 : out->width) {
        double sum = 0;
        REF_FOR(j, count_of(call, row))
        if (sees(call, row, j))
            sum += ref_get(&call->in[0], row, head, j) * ref_value(call, row, head / group, j, i);
        ref_set(out, row, head, i, sum);
    }
}

/* attn_rows and attn_flash compute the same result. */
static void attend(const fb_call *call, const fb_worker *worker) {
    if (worker->index) return;
    const fb_view *q = &call->in[0];
    const fb_kv *kv = &call->kv;
    int64_t group = q->heads / kv->heads;
    REF_FOR(row, call->rows)
    REF_FOR(head, fb_worker_cancelled(worker) ? 0 : q->heads) {
        int64_t count = count_of(call, row);
        double *score = (double *)(void *)worker->scratch, most = -INFINITY, total = 0;
        REF_FOR(j, count) {
            score[j] = score_of(call, row, head, j);
            most = fmax(most, score[j]);
        }
        REF_FOR(j, count) total += exp(score[j] - most);
        REF_FOR(i, fb_worker_cancelled(worker) ? 0 : q->width) {
            double sum = 0;
            REF_FOR(j, count)
            if (sees(call, row, j))
                sum += exp(score[j] - most) / total * ref_value(call, row, head / group, j, i);
            ref_set(&call->out[0], row, head, i, sum);
        }
    }
}

void fb_cpu_attn_rows_ref(const fb_call *call, const fb_worker *worker) { attend(call, worker); }
void fb_cpu_attn_flash_ref(const fb_call *call, const fb_worker *worker) { attend(call, worker); }
