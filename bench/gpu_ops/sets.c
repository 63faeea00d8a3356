/* A case's tensors on the device, and the calls that are launched with them. */
#include <math.h>

#include "gpu_ops.h"

static const fb_op_attr no_attr = {.segment = {{FB_OP_COUNT, FB_OP_COUNT, 0, FB_DOT_FLOAT},
                                               {FB_OP_COUNT, FB_OP_COUNT, 0, FB_DOT_FLOAT},
                                               {FB_OP_COUNT, FB_OP_COUNT, 0, FB_DOT_FLOAT}},
                                   .eps = 1e-5f};

static fb_view view_of(const tensor *t) { return (fb_view){t->at, t->dtype, 1, t->cols, t->cols, t->cols}; }

static fb_weight weight_of(const tensor *t) {
    return (fb_weight){.data = t->at,
                       .dtype = t->dtype,
                       .rows = t->rows,
                       .cols = t->cols,
                       .packed = t->dtype == FB_Q8_0 || t->dtype == FB_Q4_0};
}

static fb_call *add_step(set *s, const spec *c, fb_op_kind kind) {
    fb_call *call = &s->step[s->count].call;
    s->step[s->count++].kind = kind;
    *call = (fb_call){.attr = no_attr, .rows = c->m, .row = bench.row, .act = FB_F16};
    return call;
}

fb_op_kind norm_of(const spec *c) {
    return c->op == FB_OP_ADD_NORM                              ? c->norm
           : c->op == FB_OP_LAYERNORM || c->op == FB_OP_RMSNORM ? c->op
                                                                : FB_OP_COUNT;
}

static void make_map(const spec *c, set *s) {
    fb_call *call = add_step(s, c, c->op);
    bool sum = c->op == FB_OP_ADD_NORM;
    int outs = (sum ? 1 : 0) + (c->norms ? c->norms : 1);
    for (int i = 0; i < c->terms; i++) {
        s->x[i] = take_random(FB_F16, c->m, c->n[0]);
        call->in[i] = view_of(&s->x[i]);
    }
    for (int i = 0; i < outs; i++) {
        s->out[i] = take_tensor(FB_F16, c->m, c->n[0]);
        call->out[i] = view_of(&s->out[i]);
    }
    for (int i = 0; i < c->norms; i++) {
        s->norm_w[i] = take_random(FB_F16, 1, c->n[0]);
        call->weights[2 * i] = weight_of(&s->norm_w[i]);
        if (norm_of(c) != FB_OP_LAYERNORM) continue;
        s->norm_b[i] = take_random(FB_F16, 1, c->n[0]);
        call->weights[2 * i + 1] = weight_of(&s->norm_b[i]);
    }
    call->attr.terms = c->terms;
    call->attr.norms = c->norms;
    call->attr.norm = norm_of(c);
}

fb_dot dot_of(const spec *c) { return fb_dtype_is_float(c->weight) ? FB_DOT_FLOAT : FB_DOT_QUANTIZE; }

/* Segment `from` of the case as segment `to` of the call, into out[to]. */
static void put_segment(const spec *c, const set *s, int from, fb_call *call, int to, const tensor *x,
                        fb_dot dot) {
    call->in[to] = view_of(x);
    call->weights[4 * to] = weight_of(&s->w[from]);
    if (c->bias) call->weights[4 * to + 1] = weight_of(&s->bias[from]);
    call->attr.segment[to] = (fb_segment){c->norm, c->act[from], 1e-5f, dot};
    if (c->norm == FB_OP_COUNT) return;
    call->weights[4 * to + 2] = weight_of(&s->norm_w[from]);
    if (c->norm == FB_OP_LAYERNORM) call->weights[4 * to + 3] = weight_of(&s->norm_b[from]);
}

/* Segment `s` by itself, into `out`. */
static fb_call *put_alone(const spec *c, set *s, int from, fb_op_kind kind, const tensor *x, fb_dot dot,
                          const tensor *out) {
    fb_call *call = add_step(s, c, kind);
    put_segment(c, s, from, call, 0, x, dot);
    call->out[0] = view_of(out);
    if (kind == FB_OP_LINEAR_GROUP)
        call->attr.segments = 1;
    else
        call->attr.segment[0].act = FB_OP_COUNT;
    return call;
}

static void put_pair(const spec *c, set *s, fb_op_kind kind, const tensor *a, const tensor *b) {
    fb_call *call = add_step(s, c, kind);
    call->in[0] = view_of(a);
    call->in[1] = view_of(b);
    call->out[0] = view_of(&s->out[0]);
}

static void put_group(const spec *c, set *s) {
    fb_call *call = add_step(s, c, FB_OP_LINEAR_GROUP);
    bool combined = c->combine != FB_COMBINE_NONE;
    call->attr.segments = c->segments;
    call->attr.combine = c->combine;
    for (int i = 0; i < c->segments; i++) {
        put_segment(c, s, i, call, i, &s->x[i], dot_of(c));
        if (i == 0 || !combined) call->out[i] = view_of(&s->out[i]);
    }
    if (c->combine == FB_COMBINE_ADD) call->in[FB_RESIDUAL] = view_of(&s->x[FB_RESIDUAL]);
}

static void put_linears(const spec *c, set *s) {
    bool combined = c->combine != FB_COMBINE_NONE;
    fb_dot dot = dot_of(c);
    tensor blocks, parts[FB_MAX_SEGMENTS];
    if (c->way == QUANTIZED) {
        blocks = take_tensor(FB_F32, c->m, fb_q8_floats(c->k[0]));
        fb_call *call = add_step(s, c, FB_OP_QUANTIZE);
        call->in[0] = view_of(&s->x[0]);
        call->out[0] = view_of(&blocks);
        dot = FB_DOT_GIVEN;
    }
    for (int i = 0; i < c->segments; i++) {
        parts[i] = combined ? take_tensor(FB_F16, c->m, c->n[i]) : s->out[i];
        put_alone(c, s, i, c->way == PRODUCT && i == 0 ? FB_OP_LINEAR_GROUP : FB_OP_LINEAR,
                  c->way == QUANTIZED ? &blocks : &s->x[i], dot, &parts[i]);
    }
    if (combined) put_pair(c, s, c->way == PRODUCT ? FB_OP_MUL : FB_OP_SWIGLU, &parts[0], &parts[1]);
}

static void make_linears(const spec *c, set *s) {
    bool combined = c->combine != FB_COMBINE_NONE;
    for (int i = 0; i < c->segments; i++) {
        s->x[i] = c->same_x && i ? s->x[0] : take_random(FB_F16, c->m, c->k[i]);
        s->w[i] = take_random(c->weight, c->n[i], c->k[i]);
        if (c->bias) s->bias[i] = take_random(FB_F16, 1, c->n[i]);
        if (c->norm != FB_OP_COUNT) s->norm_w[i] = take_random(FB_F16, 1, c->k[i]);
        if (c->norm == FB_OP_LAYERNORM) s->norm_b[i] = take_random(FB_F16, 1, c->k[i]);
        if (c->way == HEAD)
            s->out[i] = take_tensor(FB_F32, c->m, 512);
        else if (i == 0 || !combined)
            s->out[i] = take_tensor(FB_F16, c->m, c->n[i]);
    }
    if (c->combine == FB_COMBINE_ADD) s->x[FB_RESIDUAL] = take_random(FB_F16, c->m, c->n[0]);
    if (c->way == HEAD)
        put_alone(c, s, 0, FB_OP_HEAD_ARGMAX, &s->x[0], dot_of(c), &s->out[0]);
    else if (c->way == GROUP)
        put_group(c, s);
    else
        put_linears(c, s);
}

/* Sharper than 1 / sqrt(width), which gives random keys nearly equal weights. */
double scale_of(const spec *c) { return (double)(float)(4 / sqrt((double)c->width)); }

static void make_attention(const spec *c, set *s) {
    fb_call *call = add_step(s, c, FB_OP_ATTN_FLASH);
    s->x[0] = take_random(FB_F16, c->m, c->heads * c->width);
    s->out[0] = take_tensor(FB_F16, c->m, c->heads * c->width);
    s->keys = take_random(FB_F16, c->kv_heads * c->capacity, c->width);
    s->values = take_random(FB_F16, c->kv_heads * c->capacity, c->width);
    call->in[0] = view_of(&s->x[0]);
    call->out[0] = view_of(&s->out[0]);
    call->in[0].heads = call->out[0].heads = c->heads;
    call->in[0].width = call->out[0].width = c->width;
    call->in[0].head_stride = call->out[0].head_stride = c->width;
    call->kv = (fb_kv){.k_at = s->keys.at - bench.arena,
                       .v_at = s->values.at - bench.arena,
                       .dtype = FB_F16,
                       .heads = c->kv_heads,
                       .capacity = c->capacity,
                       .width = c->width,
                       .block = c->capacity,
                       .shift = FB_KV_WHOLE};
    call->attr.scale = (float)scale_of(c);
}

void make_set(const spec *c, set *s) {
    *s = (set){0};
    if (c->family == MAPS)
        make_map(c, s);
    else if (c->family == LINEARS)
        make_linears(c, s);
    else
        make_attention(c, s);
    for (int i = 0; i < FB_MAX_IN; i++)
        if (!(c->same_x && i && i < c->segments)) s->bytes += tensor_bytes(&s->x[i]);
    for (int i = 0; i < FB_MAX_SEGMENTS; i++)
        s->bytes += tensor_bytes(&s->w[i]) + tensor_bytes(&s->bias[i]) + tensor_bytes(&s->norm_w[i]) +
                    tensor_bytes(&s->norm_b[i]);
    for (int i = 0; i < FB_MAX_OUT; i++) s->bytes += c->way == HEAD ? 0 : tensor_bytes(&s->out[i]);
    if (c->family == ATTENTION) s->bytes += 2 * c->kv_heads * (c->position + c->m) * c->width * 2;
}

double flops_of(const spec *c) {
    double flops = 0;
    if (c->family == LINEARS)
        for (int i = 0; i < c->segments; i++) flops += 2.0 * (double)c->m * (double)c->n[i] * (double)c->k[i];
    if (c->family == ATTENTION)
        for (int64_t t = 0; t < c->m; t++)
            flops += 4.0 * (double)c->heads * (double)c->width * (double)(c->position + t + 1);
    return flops;
}
