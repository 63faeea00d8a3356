#include "backend/cpu/ref/ref.h"

/* ---- choosing ---- */

/* The pairs of a row: the `used` largest of `count` scores, in the order of experts. */
static void choose(const fb_call *call, const double *scores, int64_t count, const fb_view *out,
                   int64_t row) {
    int32_t used = call->attr.used, filled = 0;
    double most = -INFINITY, sum = 0, shares = 0;
    bool nan = false;
    REF_FOR(i, count) {
        most = fmax(most, scores[i]);
        nan = nan || scores[i] != scores[i];
    }
    REF_FOR(i, count) sum += exp(scores[i] - most);
    double pairs[2 * FB_LIMIT_EXPERTS];
    REF_FOR(i, count) {
        int64_t before = 0; /* that are larger, or as large and come first */
        REF_FOR(k, count) {
            bool larger = scores[k] != scores[k] ? scores[i] == scores[i] : scores[k] > scores[i];
            bool same = scores[k] == scores[i] || (scores[k] != scores[k] && scores[i] != scores[i]);
            before += larger || (same && k < i);
        }
        if (before >= used) continue;
        pairs[2 * filled] = (double)i;
        pairs[2 * filled + 1] = nan ? NAN : exp(scores[i] - most) / sum;
        shares += pairs[2 * filled++ + 1];
    }
    REF_FOR(k, used) {
        ref_set(out, row, 0, 2 * k, pairs[2 * k]);
        ref_set(out, row, 0, 2 * k + 1, pairs[2 * k + 1] / (call->attr.shares_sum_to_one ? shares : 1));
    }
}

void fb_cpu_top_k_ref(const fb_call *call, const fb_worker *worker) {
    const fb_view *x = &call->in[0];
    int64_t count = x->heads * x->width;
    double scores[FB_LIMIT_EXPERTS];
    if (worker->index) return;
    REF_FOR(row, call->rows) {
        REF_FOR(i, count) scores[i] = ref_get(x, row, 0, i);
        choose(call, scores, count, &call->out[0], row);
    }
}

void fb_cpu_router_ref(const fb_call *call, const fb_worker *worker) {
    const fb_weight *w = &call->weights[0];
    const fb_segment *seg = &call->attr.segment[0];
    double scores[FB_LIMIT_EXPERTS];
    if (worker->index) return;
    REF_FOR(row, call->rows) {
        ref_norm norm = ref_norm_of(seg->norm, &call->in[0], row, 0, w->cols, (double)seg->eps);
        REF_FOR(i, w->cols)
        ref_set(&call->out[0], row, 0, i,
                ref_normalised(norm, ref_get(&call->in[0], row, 0, i), w + 2, w + 3, i));
        REF_FOR(n, w->rows) {
            scores[n] = 0;
            REF_FOR(i, w->cols) scores[n] += ref_get(&call->out[0], row, 0, i) * ref_weight(w, n, i);
        }
        choose(call, scores, w->rows, &call->out[1], row);
    }
}

/* ---- experts ---- */

/* Element i of the input that expert k of a row multiplies. */
static double input_at(const fb_call *call, fb_dot dot, int64_t row, int64_t k, int64_t i) {
    const fb_view *x = &call->in[0];
    int64_t cols = call->weights[0].cols, head = call->attr.each ? k : 0;
    if (dot == FB_DOT_GIVEN) {
        const fb_q8 *q = (const fb_q8 *)fb_view_at(x, row, 0) + head * (cols / 32) + i / 32;
        return q->q[i % 32] * (double)q->scale;
    }
    if (dot == FB_DOT_FLOAT) return ref_get(x, row, head, i);
    double block[32];
    REF_FOR(b, 32) block[b] = ref_get(x, row, head, i / 32 * 32 + b);
    fb_q8 q = ref_quantized(block);
    return q.q[i % 32] * (double)q.scale;
}

static double product(const fb_call *call, int s, int64_t row, int64_t k, int64_t n) {
    const fb_weight *w = &call->weights[4 * s];
    int64_t expert = (int64_t)ref_get(&call->in[1], row, 0, 2 * k);
    double sum = 0;
    REF_FOR(i, w->cols)
    sum += input_at(call, call->attr.segment[s].dot, row, k, i) *
           ref_weight(w, expert * (w->rows / w->experts) + n, i);
    return sum;
}

static void run(const fb_call *call, const fb_worker *worker, fb_combine combine) {
    const fb_op_attr *attr = &call->attr;
    if (worker->index) return;
    REF_FOR(row, call->rows)
    REF_FOR(n, call->weights[0].rows / call->weights[0].experts) {
        double sum = 0;
        if (fb_worker_cancelled(worker)) return;
        REF_FOR(k, attr->used) {
            double value = product(call, 0, row, k, n);
            if (combine == FB_COMBINE_MUL)
                value = ref_activation(attr->segment[0].act, value) *
                        ref_activation(attr->segment[1].act, product(call, 1, row, k, n));
            if (combine != FB_COMBINE_SUM) ref_set(&call->out[0], row, k, n, value);
            sum += value * ref_get(&call->in[1], row, 0, 2 * k + 1);
        }
        if (combine != FB_COMBINE_SUM) continue;
        if (call->in[FB_RESIDUAL].data) sum += ref_get(&call->in[FB_RESIDUAL], row, 0, n);
        ref_set(&call->out[0], row, 0, n, sum);
    }
}

void fb_cpu_expert_linear_ref(const fb_call *call, const fb_worker *worker) {
    run(call, worker, FB_COMBINE_NONE);
}
void fb_cpu_expert_group_ref(const fb_call *call, const fb_worker *worker) {
    run(call, worker, call->attr.combine);
}

void fb_cpu_expert_sum_ref(const fb_call *call, const fb_worker *worker) {
    if (worker->index) return;
    REF_FOR(row, call->rows)
    REF_FOR(i, call->out[0].width) {
        double sum = 0;
        REF_FOR(k, call->attr.used)
        sum += ref_get(&call->in[0], row, k, i) * ref_get(&call->in[1], row, 0, 2 * k + 1);
        ref_set(&call->out[0], row, 0, i, sum);
    }
}
