#include "backend/cpu/ref/ref.h"

/* Columns 32 b … of row `row` of segment s's input, as its linear multiplies them. */
static void inputs(const fb_call *call, int s, int64_t row, ref_norm norm, int64_t first, int64_t count,
                   double *x) {
    const fb_segment *seg = &call->attr.segment[s];
    const fb_q8 *given = (const fb_q8 *)fb_view_at(&call->in[s], row, 0) + first / 32;
    REF_FOR(i, count) {
        if (seg->dot == FB_DOT_GIVEN) {
            x[i] = given->q[i] * (double)given->scale;
            continue;
        }
        x[i] = ref_get(&call->in[s], row, 0, first + i);
        if (seg->norm != FB_OP_COUNT)
            x[i] =
                ref_normalised(norm, x[i], &call->weights[4 * s + 2], &call->weights[4 * s + 3], first + i);
    }
    if (seg->dot != FB_DOT_QUANTIZE) return;
    fb_q8 block = ref_quantized(x);
    REF_FOR(i, 32) x[i] = block.q[i] * (double)block.scale;
}

/* Output (row, n) of segment s. */
static double segment(const fb_call *call, int s, int64_t row, int64_t n) {
    const fb_weight *w = &call->weights[4 * s], *bias = &call->weights[4 * s + 1];
    const fb_segment *seg = &call->attr.segment[s];
    ref_norm norm = {0, 1};
    if (seg->norm != FB_OP_COUNT) norm = ref_norm_of(seg->norm, &call->in[s], row, w->cols, (double)seg->eps);
    double sum = bias->data ? ref_weight(bias, 0, n) : 0, x[32];
    for (int64_t first = 0; first < w->cols; first += 32) {
        int64_t count = w->cols - first < 32 ? w->cols - first : 32;
        inputs(call, s, row, norm, first, count, x);
        REF_FOR(i, count) sum += x[i] * ref_weight(w, n, first + i);
    }
    return ref_activation(seg->act, sum);
}

void fb_cpu_linear_group_ref(const fb_call *call, const fb_lane *lane) {
    if (lane->index) return;
    const fb_op_attr *attr = &call->attr;
    REF_FOR(row, call->rows)
    for (int s = 0; s < (attr->combine == FB_COMBINE_NONE ? attr->segments : 1); s++)
        REF_FOR(n, call->weights[4 * s].rows) {
            double value = segment(call, s, row, n);
            if (attr->combine == FB_COMBINE_MUL) value *= segment(call, 1, row, n);
            if (attr->combine == FB_COMBINE_ADD) {
                if (attr->segments == 2) value += segment(call, 1, row, n);
                value += ref_get(&call->in[FB_RESIDUAL], row, 0, n);
            }
            ref_set(&call->out[s], row, 0, n, value);
        }
}

static fb_call as_group(const fb_call *call) {
    fb_call group = *call;
    group.attr.segments = 1;
    group.attr.combine = FB_COMBINE_NONE;
    group.attr.segment[0].norm = group.attr.segment[0].act = FB_OP_COUNT;
    return group;
}

void fb_cpu_linear_ref(const fb_call *call, const fb_lane *lane) {
    fb_call group = as_group(call);
    fb_cpu_linear_group_ref(&group, lane);
}

void fb_cpu_head_argmax_ref(const fb_call *call, const fb_lane *lane) {
    fb_call group = as_group(call);
    REF_FOR(row, call->rows) {
        /* Lanes without outputs of their own never win. */
        double best = -INFINITY, column = 0;
        for (int64_t n = 0; lane->index == 0 && n < call->weights[0].rows; n++) {
            double value = segment(&group, 0, row, n);
            if (value > best || (value != value && best == best)) best = value, column = (double)n;
        }
        ref_set(&call->out[0], row, 0, 2 * lane->index, best);
        ref_set(&call->out[0], row, 0, 2 * lane->index + 1, column);
    }
}
