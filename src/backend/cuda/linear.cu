/* linear, linear_group and head_argmax: x [rows, K] times weight [N, K] transposed. The rows of prompts and
 * of several generated tokens: gemm.h. One generated row, and those for which that has no kernel: matvec.cuh.
 *
 * A fused op rounds to the activation dtype wherever the plain ops would have stored, and quantises as the
 * plain quantize op does. */
#include "backend/cuda/gemm.h"
#include "backend/cuda/matvec.h"

#define INVALID 1 /* cudaErrorInvalidValue */

/* A linear alone, as a group of one. */
static fb_call as_group(const fb_call *call) {
    fb_call group = *call;
    group.attr.segments = 1;
    group.attr.combine = FB_COMBINE_NONE;
    group.attr.segment[0].norm = group.attr.segment[0].act = FB_OP_COUNT;
    return group;
}

/* ---- the shape of sums ---- */

static void shape_of(mv_segment *seg, const fb_weight *w, fb_dtype x, fb_dot dot) {
    fb_sums sums = fb_sums_of(w, x, dot);
    seg->chunks = sums.chunks;
    seg->lane_chunks = sums.lane_chunks;
    seg->pieces = sums.pieces;
    seg->piece_sums = sums.piece_sums;
    seg->sums = seg->pieces * seg->piece_sums;
    seg->sums_row = seg->sums == 1 ? 1 : seg->sums | 1; /* odd: partial sums of 32 outputs in 32 banks */
    seg->skip_units = MV_WARPS / seg->pieces;
    seg->skip_pieces = MV_WARPS % seg->pieces;
}

void mv_plan_blocks(mv_plan *plan, int at_once, int grid) {
    plan->sums_each = plan->partials = 0;
    for (int s = 0; s < plan->segments; s++) {
        mv_segment *seg = &plan->seg[s];
        int units = (seg->rows + at_once - 1) / at_once;
        seg->units = units / grid;
        seg->extra = units % grid;
        if (plan->combined)
            plan->sums_each += seg->sums;
        else
            plan->partials += (seg->units + (seg->extra > 0)) * at_once * seg->sums_row;
    }
    if (!plan->combined) return;
    if (plan->sums_each > 1) plan->sums_each |= 1; /* as sums_row */
    plan->partials = (plan->seg[0].units + (plan->seg[0].extra > 0)) * at_once * plan->sums_each;
}

void mv_plan_rows(mv_plan *plan, int row) {
    for (int s = 0; s < plan->segments; s++) {
        mv_segment *seg = &plan->seg[s];
        seg->x = fb_at(seg->x, plan->dot == FB_DOT_GIVEN ? FB_F32 : plan->x_type, row * seg->x_stride);
        seg->out = fb_at(seg->out, plan->results ? FB_F32 : plan->type, row * seg->out_stride);
    }
    plan->residual = fb_at(plan->residual, plan->type, row * plan->residual_stride);
    if (plan->sums) plan->sums += (int64_t)row * plan->seg[0].rows;
    if (plan->given) plan->given += (int64_t)row * plan->seg[0].rows;
}

/* ---- plans ---- */

/* The fields that finish a segment's outputs. A segment whose sums are given needs only these. */
static void plan_finish(mv_segment *seg, const fb_call *call, int s, bool with_bias) {
    const fb_weight *bias = &call->weights[4 * s + 1];
    seg->act = call->attr.segment[s].act;
    seg->bias = with_bias ? bias->data : NULL;
    seg->bias_type = bias->dtype;
}

/* Segment `s` of the call becomes segment `at` of the plan. */
static void plan_segment(mv_plan *plan, int at, const fb_call *call, int s, bool with_bias) {
    mv_segment *seg = &plan->seg[at];
    const fb_weight *w = &call->weights[4 * s];
    const fb_segment *how = &call->attr.segment[s];
    bool floats = fb_dtype_is_float(w->dtype);
    seg->rows = (int32_t)w->rows;
    seg->cols = (int32_t)w->cols;
    shape_of(seg, w, call->in[s].dtype, how->dot);
    seg->w = (const uint8_t *)w->data;
    if (floats) {
        seg->row_bytes = (int32_t)(w->cols * fb_dtype_size(w->dtype));
        if (seg->row_bytes % 16 || !fb_aligned(seg->w, 16)) plan->aligned = false;
    } else if (fb_weight_is_records(w)) {
        seg->row_bytes = (int32_t)fb_record_row_bytes(w->dtype, w->cols);
        seg->record_bytes = (int32_t)fb_record_bytes(w->dtype, FB_RECORD_COLUMNS);
        seg->w_type = w->dtype;
    } else {
        seg->row_bytes = (int32_t)(w->cols / 32 * (w->dtype == FB_Q4_0 ? 16 : 32));
        seg->scales = (const uint16_t *)(seg->w + w->rows * seg->row_bytes);
        if (w->cols % 256) plan->aligned = false; /* rows of scales do not begin at multiples of 16 bytes */
    }
    seg->x = call->in[s].data;
    seg->x_stride = call->in[s].row_stride;
    seg->norm = how->norm;
    seg->eps = how->eps;
    if (how->norm != FB_OP_COUNT) {
        const fb_weight *norm = &call->weights[4 * s + 2];
        seg->norm_w = norm[0].data;
        seg->norm_w_type = norm[0].dtype;
        if (how->norm == FB_OP_LAYERNORM) {
            seg->norm_b = norm[1].data;
            seg->norm_b_type = norm[1].dtype;
        }
    }
    plan_finish(seg, call, s, with_bias);
    seg->out = call->out[plan->combined ? 0 : s].data;
    seg->out_stride = call->out[plan->combined ? 0 : s].row_stride;
}

/* Finds segments that read the same input or have the same statistics. */
static void plan_inputs(mv_plan *plan) {
    int staged = -1; /* the last one with a norm */
    for (int s = 0; s < plan->segments; s++) {
        mv_segment *seg = &plan->seg[s];
        seg->stages_x = true;
        seg->staged_by = s;
        for (int e = 0; e < s && seg->stages_x; e++) {
            const mv_segment *other = &plan->seg[e];
            if (other->stages_x && other->x == seg->x && other->x_stride == seg->x_stride &&
                other->cols == seg->cols && other->norm == seg->norm && other->eps == seg->eps &&
                other->norm_w == seg->norm_w && other->norm_b == seg->norm_b) {
                seg->stages_x = false;
                seg->staged_by = e;
            }
        }
        if (!seg->stages_x || seg->norm == FB_OP_COUNT) continue;
        const mv_segment *before = staged < 0 ? NULL : &plan->seg[staged];
        seg->same_stats = before && before->x == seg->x && before->x_stride == seg->x_stride &&
                          before->cols == seg->cols && before->norm == seg->norm && before->eps == seg->eps;
        staged = s;
    }
}

static mv_plan plan_of(const fb_call *call, fb_dtype type, const fb_dot dot) {
    mv_plan plan = {};
    plan.ms = (int32_t)call->rows;
    plan.combine = call->attr.combine;
    plan.combined = plan.combine != FB_COMBINE_NONE;
    plan.pair = call->attr.segments == 2;
    plan.dot = dot;
    plan.type = type;
    plan.aligned = true;
    if (plan.combine == FB_COMBINE_ADD) {
        plan.residual = call->in[FB_RESIDUAL].data;
        plan.residual_stride = call->in[FB_RESIDUAL].row_stride;
    }
    return plan;
}

static int launch(mv_plan *plan, fb_dtype x_type, const fb_weight *w, const fb_cuda_context *cx) {
    plan->x_type = x_type;
    plan_inputs(plan);
    if (fb_weight_is_records(w))
        return plan->dot == FB_DOT_FLOAT ? mv_launch_records_float(plan, cx) : mv_launch_records(plan, cx);
    switch (w->dtype) {
    case FB_F32:
        return mv_launch_float(plan, cx);
    case FB_F16:
        return mv_launch_half(plan, cx);
    case FB_BF16:
        return mv_launch_bfloat(plan, cx);
    case FB_Q8_0:
        return mv_launch_q8(plan, cx);
    case FB_Q4_0:
        return mv_launch_q4(plan, cx);
    default:
        return INVALID;
    }
}

/* ---- groups ---- */

/* Whether one launch can compute all segments. */
static bool alike(const fb_call *call) {
    const fb_weight *first = &call->weights[0];
    const bool records = fb_weight_is_records(first);
    for (int s = 1; s < call->attr.segments; s++) {
        const fb_weight *w = &call->weights[4 * s];
        if (fb_weight_is_records(w) != records || (!records && w->dtype != first->dtype) ||
            call->attr.segment[s].dot != call->attr.segment[0].dot)
            return false;
    }
    return true;
}

static int64_t mixed_bytes(const fb_call *call) {
    if (call->attr.combine == FB_COMBINE_NONE || alike(call)) return 0;
    return FB_CUDA_FEW_ROWS * call->weights[4].rows * (int64_t)sizeof(float);
}

/* Segment s alone, in a launch of its own. */
static int launch_one(const fb_call *call, int s, mv_plan *plan, const fb_cuda_context *cx) {
    plan->segments = 1;
    plan->dot = call->attr.segment[s].dot;
    plan_segment(plan, 0, call, s, true);
    return launch(plan, call->in[s].dtype, &call->weights[4 * s], cx);
}

/* Segments of several types: a launch for each. Combined ones take two launches, and the second one finishes
 * the outputs. */
static int launch_mixed(const fb_call *call, const fb_cuda_context *cx) {
    fb_dtype type = call->out[0].dtype;
    if (call->attr.combine == FB_COMBINE_NONE) {
        for (int s = 0; s < call->attr.segments; s++) {
            mv_plan plan = plan_of(call, type, call->attr.segment[s].dot);
            int code = launch_one(call, s, &plan, cx);
            if (code) return code;
        }
        return 0;
    }
    float *sums = (float *)(void *)(cx->scratch + FB_CUDA_COUNTERS);
    mv_plan first = plan_of(call, type, FB_DOT_FLOAT), second = first;
    first.sums = sums;
    int code = launch_one(call, 1, &first, cx);
    if (code) return code;
    second.given = sums;
    plan_finish(&second.seg[1], call, 1, true);
    return launch_one(call, 0, &second, cx);
}

/* Up to FB_CUDA_FEW_ROWS rows. */
static int run_matvec(const fb_call *call, const fb_cuda_context *cx) {
    if (!alike(call)) return launch_mixed(call, cx);
    mv_plan plan = plan_of(call, call->out[0].dtype, call->attr.segment[0].dot);
    plan.segments = call->attr.segments;
    for (int s = 0; s < plan.segments; s++) plan_segment(&plan, s, call, s, true);
    return launch(&plan, call->in[0].dtype, &call->weights[0], cx);
}

static fb_call slice_of(const fb_call *call, int64_t first, int64_t rows) {
    fb_call slice = *call;
    slice.rows = rows;
    for (int i = 0; i < FB_MAX_IN; i++)
        if (slice.in[i].data) slice.in[i].data = fb_view_at(&call->in[i], first, 0);
    for (int i = 0; i < FB_MAX_OUT; i++)
        if (slice.out[i].data) slice.out[i].data = fb_view_at(&call->out[i], first, 0);
    return slice;
}

/* From so many rows on, quantised weights are multiplied by gemm_few_quant.cu: with 4 rows of Llama-3.2-1B in
 * Q4_0 matvec.cuh takes 0.99 ms a step, with 8 rows 1.38 ms; the other takes 1.39 ms for 16. */
#define FEW_QUANT_ROWS 5

/* Generated rows, in the order of sums.h. */
static int run_generated(const fb_call *call, const fb_cuda_context *cx) {
    int64_t most = call->rows > 1 && !cx->list ? fb_cuda_gemm_few_rows(call, cx) : 0;
    bool quantised = call->attr.segment[0].dot != FB_DOT_FLOAT;
    if (quantised && call->rows < FEW_QUANT_ROWS) most = 0;
    const int64_t each = most ? most : FB_CUDA_FEW_ROWS;
    for (int64_t row = 0; row < call->rows; row += each) {
        fb_call slice = slice_of(call, row, call->rows - row < each ? call->rows - row : each);
        int code = most ? fb_cuda_gemm_few(&slice, cx) : run_matvec(&slice, cx);
        if (code) return code;
    }
    return 0;
}

static int run_group(const fb_call *call, const fb_cuda_context *cx) {
    if (!cx->runs || cx->list)
        return call->rows <= FB_CUDA_FEW_ROWS ? run_generated(call, cx) : fb_cuda_gemm_group(call, cx);
    for (int i = 0, next; i < cx->run_count; i = next) {
        const fb_cuda_rows *run = &cx->runs[i];
        int64_t rows = 0;
        for (next = i; next < cx->run_count && cx->runs[next].prompt == run->prompt; next++)
            rows += cx->runs[next].rows;
        fb_call slice = slice_of(call, run->first, rows);
        int code = run->prompt ? fb_cuda_gemm_group(&slice, cx) : run_generated(&slice, cx);
        if (code) return code;
    }
    return 0;
}

int fb_cuda_linear_group(const fb_call *call, const fb_cuda_context *cx) { return run_group(call, cx); }

int fb_cuda_linear(const fb_call *call, const fb_cuda_context *cx) {
    fb_call group = as_group(call);
    return run_group(&group, cx);
}

/* Score and column of each row's best output; column -1 if a score is NaN. A column is exact in float32 up to
 * 2^24, which the vocabulary may not exceed. More than 8 rows are computed 8 at a time. */
int fb_cuda_head_argmax(const fb_call *call, const fb_cuda_context *cx) {
    fb_call group = as_group(call);
    mv_plan plan = plan_of(&group, call->act, group.attr.segment[0].dot);
    plan.segments = 1;
    plan.results = (float2 *)(void *)(cx->scratch + FB_CUDA_COUNTERS);
    plan.counter = (unsigned *)(void *)cx->scratch;
    plan_segment(&plan, 0, &group, 0, false);
    return launch(&plan, call->in[0].dtype, &call->weights[0], cx);
}

int64_t fb_cuda_linear_scratch(const fb_call *call, int64_t rows) {
    fb_call group = call->attr.segments ? *call : as_group(call);
    int64_t own = (int64_t)MV_MAX_BLOCKS * MV_MAX_ROWS * (int64_t)sizeof(float2), sums = mixed_bytes(&group);
    own = FB_CUDA_COUNTERS + (sums > own ? sums : own);
    int64_t gemm = fb_cuda_gemm_scratch(&group, rows);
    return gemm > own ? gemm : own;
}
