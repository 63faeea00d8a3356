#include "backend/cpu/ref/ref.h"

void fb_cpu_attn_scores_ref(const fb_call *call, const fb_lane *lane) {
    if (lane->index) return;
    const fb_view *q = &call->in[0];
    int64_t group = q->heads / call->kv.heads;
    REF_FOR(row, call->rows)
    REF_FOR(head, q->heads)
    REF_FOR(j, call->position + row + 1) {
        double sum = 0;
        REF_FOR(i, q->width)
        sum += ref_get(q, row, head, i) * ref_key(&call->kv, head / group, j, i);
        ref_set(&call->out[0], row, head, j, sum * (double)call->attr.scale);
    }
}

void fb_cpu_softmax_ref(const fb_call *call, const fb_lane *lane) {
    if (lane->index) return;
    const fb_view *x = &call->in[0];
    REF_FOR(row, call->rows)
    REF_FOR(head, x->heads) {
        int64_t count = call->position + row + 1;
        double most = -INFINITY, sum = 0;
        REF_FOR(j, count) most = fmax(most, ref_get(x, row, head, j));
        REF_FOR(j, count) sum += exp(ref_get(x, row, head, j) - most);
        REF_FOR(j, count) ref_set(&call->out[0], row, head, j, exp(ref_get(x, row, head, j) - most) / sum);
    }
}

void fb_cpu_attn_values_ref(const fb_call *call, const fb_lane *lane) {
    if (lane->index) return;
    const fb_view *out = &call->out[0];
    int64_t group = out->heads / call->kv.heads;
    REF_FOR(row, call->rows)
    REF_FOR(head, out->heads)
    REF_FOR(i, out->width) {
        double sum = 0;
        REF_FOR(j, call->position + row + 1)
        sum += ref_get(&call->in[0], row, head, j) * ref_value(&call->kv, head / group, j, i);
        ref_set(out, row, head, i, sum);
    }
}

/* Both fused forms compute the same thing. */
static void attend(const fb_call *call, const fb_lane *lane) {
    if (lane->index) return;
    const fb_view *q = &call->in[0];
    const fb_kv *kv = &call->kv;
    int64_t group = q->heads / kv->heads;
    REF_FOR(row, call->rows)
    REF_FOR(head, q->heads) {
        int64_t count = call->position + row + 1;
        double *score = (double *)(void *)lane->scratch, most = -INFINITY, total = 0;
        REF_FOR(j, count) {
            score[j] = 0;
            REF_FOR(i, q->width) score[j] += ref_get(q, row, head, i) * ref_key(kv, head / group, j, i);
            score[j] *= (double)call->attr.scale;
            most = fmax(most, score[j]);
        }
        REF_FOR(j, count) total += exp(score[j] - most);
        REF_FOR(i, q->width) {
            double sum = 0;
            REF_FOR(j, count) sum += exp(score[j] - most) / total * ref_value(kv, head / group, j, i);
            ref_set(&call->out[0], row, head, i, sum);
        }
    }
}

void fb_cpu_attn_rows_ref(const fb_call *call, const fb_lane *lane) { attend(call, lane); }
void fb_cpu_attn_flash_ref(const fb_call *call, const fb_lane *lane) { attend(call, lane); }
