#include "backend/cpu/ref/ref.h"

/* Columns [first, first + count) of segment s's input, as the linear multiplies them. */
static void inputs(const fb_call *call, int s, int64_t row, int64_t first, int64_t count, double *x) {
    const fb_segment *seg = &call->attr.segment[s];
    const fb_weight *w = &call->weights[4 * s];
    const fb_q8 *given = (const fb_q8 *)fb_view_at(&call->in[s], row, 0) + first / 32;
    ref_norm norm = {0, 1};
    if (seg->norm != FB_OP_COUNT)
        norm = ref_norm_of(seg->norm, &call->in[s], row, 0, w->cols, (double)seg->eps);
    REF_FOR(i, count) {
        if (seg->dot == FB_DOT_GIVEN)
            x[i] = given[i / 32].q[i % 32] * (double)given[i / 32].scale;
        else if (seg->norm != FB_OP_COUNT)
            x[i] = ref_normalised(norm, ref_get(&call->in[s], row, 0, first + i), w + 2, w + 3, first + i);
        else
            x[i] = ref_get(&call->in[s], row, 0, first + i);
    }
    for (int64_t b = 0; seg->dot == FB_DOT_QUANTIZE && b < count; b += 32) {
        fb_q8 block = ref_quantized(x + b);
        REF_FOR(i, 32) x[b + i] = block.q[i] * (double)block.scale;
    }
}

/* Columns decoded at a time: whole blocks of every type. */
#define PIECE 256

/* Output n of segment s for every row. It is summed piece by piece, so that a quantised row of weights is
 * decoded once. */
static void segment(const fb_call *call, const fb_worker *worker, int s, int64_t n, double *sums) {
    const fb_weight *w = &call->weights[4 * s], *bias = &call->weights[4 * s + 1];
    const fb_segment *seg = &call->attr.segment[s];
    REF_FOR(row, call->rows) sums[row] = bias->data ? ref_weight(bias, 0, n) : 0;
    for (int64_t first = 0; first < w->cols; first += PIECE) {
        int64_t count = w->cols - first < PIECE ? w->cols - first : PIECE;
        float weights[PIECE];
        double x[PIECE];
        fb_weight_row(w, n, first, count, weights);
        REF_FOR(row, call->rows) {
            if (fb_worker_cancelled(worker)) return;
            inputs(call, s, row, first, count, x);
            REF_FOR(i, count) sums[row] += x[i] * (double)weights[i];
        }
    }
    REF_FOR(row, call->rows) sums[row] = ref_activation(seg->act, sums[row]);
}

/* Memory for the sums of a call's rows, in double, for two segments. */
static double *sums_of(const fb_worker *worker, const fb_call *call, int s) {
    return (double *)(void *)worker->scratch + s * call->rows;
}

static void store(const fb_call *call, const fb_worker *worker, int s, int64_t n) {
    const fb_op_attr *attr = &call->attr;
    const double *first = sums_of(worker, call, 0), *second = sums_of(worker, call, 1);
    REF_FOR(row, call->rows) {
        double value = first[row];
        if (attr->combine == FB_COMBINE_MUL) value *= second[row];
        if (attr->combine == FB_COMBINE_ADD) {
            if (attr->segments == 2) value += second[row];
            value += ref_get(&call->in[FB_RESIDUAL], row, 0, n);
        }
        ref_set(&call->out[s], row, 0, n, value);
    }
}

void fb_cpu_linear_group_ref(const fb_call *call, const fb_worker *worker) {
    if (worker->index) return;
    bool combined = call->attr.combine != FB_COMBINE_NONE;
    for (int s = 0; s < (combined ? 1 : call->attr.segments); s++) REF_FOR(n, call->weights[4 * s].rows) {
            if (fb_worker_cancelled(worker)) return;
            segment(call, worker, s, n, sums_of(worker, call, 0));
            if (combined && call->attr.segments == 2) segment(call, worker, 1, n, sums_of(worker, call, 1));
            store(call, worker, s, n);
        }
}

static fb_call as_group(const fb_call *call) {
    fb_call group = *call;
    group.attr.segments = 1;
    group.attr.combine = FB_COMBINE_NONE;
    group.attr.segment[0].norm = group.attr.segment[0].act = FB_OP_COUNT;
    return group;
}

void fb_cpu_linear_ref(const fb_call *call, const fb_worker *worker) {
    fb_call group = as_group(call);
    fb_cpu_linear_group_ref(&group, worker);
}

/* Worker 0 computes all outputs. The other workers write scores that never win. */
void fb_cpu_head_argmax_ref(const fb_call *call, const fb_worker *worker) {
    fb_call group = as_group(call);
    double *sums = sums_of(worker, call, 0), *best = sums_of(worker, call, 1),
           *column = sums_of(worker, call, 2);
    REF_FOR(row, call->rows) best[row] = -INFINITY, column[row] = 0;
    for (int64_t n = 0; worker->index == 0 && n < call->weights[0].rows; n++) {
        if (fb_worker_cancelled(worker)) return;
        segment(&group, worker, 0, n, sums);
        REF_FOR(row, call->rows)
        if (sums[row] > best[row] || (sums[row] != sums[row] && best[row] == best[row]))
            best[row] = sums[row], column[row] = (double)n;
    }
    REF_FOR(row, call->rows) {
        ref_set(&call->out[0], row, 0, 2 * worker->index, best[row]);
        ref_set(&call->out[0], row, 0, 2 * worker->index + 1, column[row]);
    }
}
