#include "backend/cpu/ref/ref.h"

/* Output (row, n) of segment s. */
static double segment(const fb_call *call, int s, int64_t row, int64_t n) {
    const fb_weight *w = &call->weights[4 * s], *bias = &call->weights[4 * s + 1];
    const fb_segment *seg = &call->attr.segment[s];
    ref_norm norm = {0, 1};
    if (seg->norm != FB_OP_COUNT) norm = ref_norm_of(seg->norm, &call->in[s], row, w->cols, (double)seg->eps);
    double sum = bias->data ? ref_weight(bias, 0, n) : 0;
    REF_FOR(k, w->cols) {
        double x = ref_get(&call->in[s], row, 0, k);
        if (seg->norm != FB_OP_COUNT)
            x = ref_normalised(norm, x, &call->weights[4 * s + 2], &call->weights[4 * s + 3], k);
        sum += x * ref_weight(w, n, k);
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
    group.attr.segment[0] = (fb_segment){FB_OP_COUNT, FB_OP_COUNT, 0};
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
