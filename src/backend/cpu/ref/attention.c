#include "backend/cpu/ref/ref.h"

/* The number of slots that a row reads; and the score of one slot, -INFINITY where the row does not see it.
 */
static int64_t count_of(const fb_call *call, int64_t row) {
    return fb_ring_count(&call->kv.ring, call->row[row].position);
}

/* How many positions a row sees; and the slot of one, the oldest first. Sums are in this order, so that they
 * do not depend on the size of a ring. */
static int64_t seen_count(const fb_call *call, int64_t row) {
    const fb_ring *r = &call->kv.ring;
    int64_t position = call->row[row].position, after = position - r->sinks;
    if (!r->window || after < 0) return position + 1;
    return r->sinks + (after < r->window ? after : r->window) + 1;
}

static int64_t seen_slot(const fb_call *call, int64_t row, int64_t i) {
    const fb_ring *r = &call->kv.ring;
    int64_t left = call->row[row].position - r->sinks - r->window;
    return fb_ring_slot(r, r->window && i >= r->sinks && left > 0 ? i + left : i);
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
        REF_FOR(i, seen_count(call, row))
        sum += exp(ref_get(x, row, head, seen_slot(call, row, i)) - most);
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
        REF_FOR(k, seen_count(call, row)) {
            int64_t j = seen_slot(call, row, k);
            sum += ref_get(&call->in[0], row, head, j) * ref_value(call, row, head / group, j, i);
        }
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
        int64_t count = seen_count(call, row);
        double *score = (double *)(void *)worker->scratch, most = -INFINITY, total = 0;
        REF_FOR(k, count) {
            score[k] = score_of(call, row, head, seen_slot(call, row, k));
            most = fmax(most, score[k]);
        }
        REF_FOR(k, count) total += exp(score[k] - most);
        REF_FOR(i, fb_worker_cancelled(worker) ? 0 : q->width) {
            double sum = 0;
            REF_FOR(k, count)
            sum +=
                exp(score[k] - most) / total * ref_value(call, row, head / group, seen_slot(call, row, k), i);
            ref_set(&call->out[0], row, head, i, sum);
        }
    }
}

void fb_cpu_attn_rows_ref(const fb_call *call, const fb_worker *worker) { attend(call, worker); }
void fb_cpu_attn_flash_ref(const fb_call *call, const fb_worker *worker) { attend(call, worker); }
