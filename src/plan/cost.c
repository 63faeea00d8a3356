#include "plan/cost.h"

#include <math.h>

#include "base/pool.h"

/* State shared by the counting functions below. */
typedef struct counting {
    const fb_bound *bound;
    const fb_program *program;
    const fb_op *op; /* as the layer runs it */
    int64_t layer;
    fb_shape shape;   /* rows and position of this section */
    fb_weight screen; /* the head's screen, if the op reads one */
    fb_cost cost;
} counting;

/* Workers divide columns in multiples of this, as they do the outputs of projections. */
#define GRAIN FB_LINEAR_GRAIN

/* From this many queries per KV head on, attention widens keys and values once for all of them. */
#define MANY_QUERIES 9

/* ---- sizes ---- */

static int64_t busiest(int64_t count, int64_t grain, int32_t workers) {
    int64_t most = 0;
    for (int32_t worker = 0; worker < workers; worker++) {
        int64_t begin, end;
        fb_pool_share(count, grain, worker, workers, &begin, &end);
        if (end - begin > most) most = end - begin;
    }
    return most;
}

static const fb_weight *weight(const counting *c, int k) {
    int32_t slot = c->op->weights[k];
    return slot == FB_NONE ? NULL : &c->bound->weights[slot * c->program->layers + c->layer];
}

/* The weight that is read as weight k: for a head with a screen, the screen's copy. */
static const fb_weight *read_weight(const counting *c, int k) {
    return c->op->attr.screen && k == 0 ? &c->screen : weight(c, k);
}

static int64_t weight_bytes(const fb_weight *w) { return fb_dtype_bytes(w->dtype, w->rows * w->cols); }

static int64_t element_size(const counting *c, const fb_value *v) {
    const fb_value *storage = &c->program->values[v->storage];
    return fb_dtype_size(storage->always_f32 && c->shape.act != FB_F64 ? FB_F32 : c->shape.act);
}

/* Positions that all rows see, added up: row t sees 0 … position + t. */
static int64_t positions_seen(const counting *c) {
    return c->shape.rows * (c->shape.position + 1) + c->shape.rows * (c->shape.rows - 1) / 2;
}

static int64_t value_bytes(const counting *c, int32_t value) {
    const fb_value *v = &c->program->values[value];
    int64_t elements = v->width ? c->shape.rows * v->heads * v->width : v->heads * positions_seen(c);
    return elements * element_size(c, v);
}

static int64_t columns(const counting *c, int32_t value) {
    const fb_value *v = &c->program->values[value];
    return v->heads * v->width;
}

static void add_work(counting *c, fb_term term, double calls, double units) {
    c->cost.work[term].calls += calls;
    c->cost.work[term].units += units;
}

/* ---- bytes ---- */

static void count_values(counting *c) {
    const fb_op *op = c->op;
    for (int k = 0; k < FB_MAX_IN; k++) {
        bool again = op->in[k] == FB_NONE;
        for (int e = 0; e < k; e++) again = again || op->in[e] == op->in[k];
        if (!again) c->cost.act_read += value_bytes(c, op->in[k]);
    }
    for (int k = 0; k < FB_MAX_OUT; k++)
        if (op->out[k] != FB_NONE) c->cost.act_written += value_bytes(c, op->out[k]);
}

static void count_weights(counting *c) {
    for (int k = 0; k < FB_MAX_WEIGHTS; k++) {
        bool again = false; /* segments of a group may share a norm: count it once */
        for (int e = 0; e < k; e++) again = again || c->op->weights[e] == c->op->weights[k];
        if (!weight(c, k) || again) continue;
        c->cost.weight_bytes += weight_bytes(read_weight(c, k));
        c->cost.streams++;
    }
}

/* `halves`: 1 for k or v, 2 for both. */
static int64_t kv_bytes(const counting *c, int64_t positions, int halves) {
    const fb_program *p = c->program;
    return halves * positions * p->kv_heads * p->head_dim * fb_dtype_size(c->shape.kv);
}

/* ---- ops ---- */

/* Of `bytes` that all workers wrote and one worker reads: the part that others wrote. */
static double foreign(const counting *c, int64_t bytes) {
    return (double)bytes * (c->shape.workers - 1) / c->shape.workers;
}

static fb_term norm_term(fb_op_kind kind) {
    return kind == FB_OP_RMSNORM ? FB_TERM_RMSNORM : FB_TERM_LAYERNORM;
}

static int64_t norm_flops(fb_op_kind kind) { return kind == FB_OP_RMSNORM ? 4 : 8; }

static void count_table(counting *c) {
    const fb_weight *table = weight(c, 0);
    c->cost.weight_bytes = c->shape.rows * fb_dtype_bytes(table->dtype, table->cols);
    int64_t part = busiest(table->cols, GRAIN, c->shape.workers);
    add_work(c, FB_TERM_ADD, (double)c->shape.rows, (double)(c->shape.rows * part));
}

static void count_angles(counting *c) {
    int64_t rows = busiest(c->shape.rows, 1, c->shape.workers), half = c->op->attr.rotary / 2;
    c->cost.flops = c->shape.rows * half * 2 * FB_FLOPS_FUNCTION;
    add_work(c, FB_TERM_ANGLES, (double)rows, (double)(rows * half));
}

/* One worker computes a whole row. With one token all other workers wait. */
static void count_norms(counting *c, fb_op_kind kind) {
    const fb_value *x = &c->program->values[c->op->in[0]];
    int64_t n = weight(c, 0)->cols, all = c->shape.rows * (x->width == n ? x->heads : 1);
    int64_t rows = busiest(all, 1, c->shape.workers);
    c->cost.workers = (int32_t)(all < c->shape.workers ? all : c->shape.workers);
    c->cost.flops = all * n * norm_flops(kind);
    c->cost.foreign = foreign(c, c->cost.act_read / c->cost.workers);
    add_work(c, norm_term(kind), (double)rows, (double)(rows * n));
}

static void count_norm(counting *c) { count_norms(c, c->op->kind); }

static void count_norm_add(counting *c) {
    int64_t rows = busiest(c->shape.rows, 1, c->shape.workers), n = weight(c, 0)->cols;
    count_norms(c, c->op->attr.norm);
    add_work(c, FB_TERM_ADD, 0, (double)(rows * n));
    c->cost.flops += c->shape.rows * n;
}

static void count_add_norm(counting *c) {
    const fb_op_attr *attr = &c->op->attr;
    count_norm(c);
    int64_t rows = busiest(c->shape.rows, 1, c->shape.workers), n = weight(c, 0)->cols;
    fb_work *norm = &c->cost.work[norm_term(attr->norm)];
    *norm = (fb_work){(double)rows, (double)(rows * n)};
    if (attr->norm == FB_OP_RMSNORM) c->cost.work[FB_TERM_LAYERNORM] = (fb_work){0};
    add_work(c, FB_TERM_ADD, (double)(rows * attr->norms),
             (double)(rows * n * (attr->terms - 2 + attr->norms)));
    c->cost.flops = c->shape.rows * n * (attr->terms - 1 + norm_flops(attr->norm) + 4 * (attr->norms - 1));
}

static fb_term function_term(fb_op_kind kind) {
    return kind == FB_OP_GELU ? FB_TERM_GELU : kind == FB_OP_GELU_TANH ? FB_TERM_GELU_TANH : FB_TERM_SILU;
}

static void count_elementwise(counting *c) {
    int64_t cols = columns(c, c->op->out[0]), part = busiest(cols, GRAIN, c->shape.workers);
    double rows = (double)c->shape.rows, elements = rows * (double)part;
    bool function = c->op->kind == FB_OP_GELU || c->op->kind == FB_OP_GELU_TANH ||
                    c->op->kind == FB_OP_SILU || c->op->kind == FB_OP_SWIGLU || c->op->kind == FB_OP_SOFTCAP;
    int64_t sums = c->op->kind == FB_OP_ADD3 ? 2 : c->op->in[1] != FB_NONE || c->op->kind == FB_OP_SCALE;
    fb_op_kind kind = c->op->kind == FB_OP_SWIGLU ? c->op->attr.act : c->op->kind;
    if (function) add_work(c, function_term(kind), rows, elements);
    if (sums) add_work(c, FB_TERM_ADD, function ? 0 : rows, elements * (double)sums);
    c->cost.flops = c->shape.rows * cols * (sums + (function ? FB_FLOPS_FUNCTION : 0));
}

static void count_quantize(counting *c) {
    int64_t cols = columns(c, c->op->in[0]), part = busiest(cols / 32, 1, c->shape.workers) * 32;
    add_work(c, FB_TERM_QUANTIZE, (double)c->shape.rows, (double)(c->shape.rows * part));
    c->cost.flops = c->shape.rows * cols * 4;
    c->cost.foreign = foreign(c, c->cost.act_read / c->shape.workers);
}

/* Counts the norm, widening or quantising that a worker does itself before segment s, unless an earlier
 * segment has done it. */
static void count_prepare(counting *c, int s, const fb_segment *segment, int64_t k) {
    for (int e = 0; e < s; e++)
        if (c->op->in[e] == c->op->in[s] && c->op->weights[4 * e + 2] == c->op->weights[4 * s + 2] &&
            c->op->attr.segment[e].dot == segment->dot)
            return;
    double rows = (double)c->shape.rows, elements = rows * (double)k;
    c->cost.foreign += foreign(c, value_bytes(c, c->op->in[s]));
    if (segment->norm != FB_OP_COUNT) {
        add_work(c, norm_term(segment->norm), rows, elements);
        c->cost.flops += c->shape.rows * k * norm_flops(segment->norm);
    } else if (c->shape.act != FB_F32 && segment->dot != FB_DOT_GIVEN) {
        add_work(c, FB_TERM_ADD, rows, elements);
    }
    if (segment->dot != FB_DOT_QUANTIZE) return;
    add_work(c, FB_TERM_QUANTIZE, rows, elements);
    c->cost.flops += c->shape.rows * k * 4;
}

/* Counts the products of all rows with `outs` outputs of a weight. One token and many tokens have separate
 * terms. Types that are decoded first cost the decoding in addition to the float products. */
static void count_products(counting *c, const fb_weight *m, double outs, fb_dot dot) {
    static const struct {
        fb_term one, many;
    } terms[FB_DTYPE_COUNT] = {
        [FB_F32] = {FB_TERM_ONE_F32, FB_TERM_MANY_F32},
        [FB_F16] = {FB_TERM_ONE_F16, FB_TERM_MANY_F16},
        [FB_BF16] = {FB_TERM_ONE_BF16, FB_TERM_MANY_BF16},
        [FB_Q8_0] = {FB_TERM_ONE_Q8_0, FB_TERM_MANY_Q8_0},
        [FB_Q4_0] = {FB_TERM_ONE_Q4_0, FB_TERM_MANY_Q4_0},
        [FB_Q4_1] = {FB_TERM_ONE_Q4_K, FB_TERM_MANY_Q4_K},
        [FB_Q5_0] = {FB_TERM_ONE_Q4_K, FB_TERM_MANY_Q4_K},
        [FB_Q5_1] = {FB_TERM_ONE_Q4_K, FB_TERM_MANY_Q4_K},
        [FB_Q4_K] = {FB_TERM_ONE_Q4_K, FB_TERM_MANY_Q4_K},
        [FB_Q5_K] = {FB_TERM_ONE_Q4_K, FB_TERM_MANY_Q4_K},
        [FB_Q6_K] = {FB_TERM_ONE_Q6_K, FB_TERM_MANY_Q6_K},
        [FB_Q2_K] = {FB_TERM_ONE_Q6_K, FB_TERM_MANY_Q6_K},
        [FB_Q3_K] = {FB_TERM_ONE_Q6_K, FB_TERM_MANY_Q6_K},
        [FB_IQ4_NL] = {FB_TERM_ONE_Q4_K, FB_TERM_MANY_Q4_K},
        [FB_IQ4_XS] = {FB_TERM_ONE_Q4_K, FB_TERM_MANY_Q4_K},
        [FB_MXFP4] = {FB_TERM_ONE_Q4_K, FB_TERM_MANY_Q4_K},
    };
    bool decoded = !fb_dtype_is_float(m->dtype) && dot == FB_DOT_FLOAT, one = c->shape.rows == 1;
    fb_dtype type = decoded ? FB_F32 : m->dtype;
    double products = outs * (double)c->shape.rows;
    add_work(c, one ? terms[type].one : terms[type].many, products, products * (double)m->cols);
    if (decoded) add_work(c, FB_TERM_DECODED, outs, outs * (double)m->cols);
}

/* Counts `part` of the outputs of weight w, and what is done to each before it is stored. */
static void count_outputs(counting *c, int w, double part, const fb_segment *segment, int64_t extra) {
    const fb_weight *m = read_weight(c, w);
    double outs = (double)m->rows * part;
    count_products(c, m, outs, segment->dot);
    bool biased = c->op->kind != FB_OP_HEAD_ARGMAX && weight(c, w + 1);
    double finished = outs * (double)c->shape.rows;
    c->cost.flops += c->shape.rows * m->rows * (2 * m->cols + biased + extra);
    if (extra) add_work(c, FB_TERM_ADD, 0, finished * (double)extra);
    if (segment->act == FB_OP_COUNT) return;
    add_work(c, function_term(segment->act), 0, finished);
    c->cost.flops += c->shape.rows * m->rows * FB_FLOPS_FUNCTION;
}

static void count_linear(counting *c) {
    const fb_op_attr *attr = &c->op->attr;
    const fb_segment bare = {FB_OP_COUNT, FB_OP_COUNT, 0,
                             attr->screen ? FB_DOT_QUANTIZE : attr->segment[0].dot};
    bool group = c->op->kind == FB_OP_LINEAR_GROUP, combined = group && attr->combine != FB_COMBINE_NONE;
    int segments = group ? attr->segments : 1;
    int64_t total = 0;
    for (int s = 0; s < segments; s++)
        if (s == 0 || !combined) total += weight(c, 4 * s)->rows;
    double part = (double)busiest(total, GRAIN, c->shape.workers) / (double)total;
    int64_t grains = (total + GRAIN - 1) / GRAIN;
    c->cost.workers = (int32_t)(grains < c->shape.workers ? grains : c->shape.workers);
    for (int s = 0; s < segments; s++) {
        const fb_segment *segment = group ? &attr->segment[s] : &bare;
        count_prepare(c, s, segment, weight(c, 4 * s)->cols);
        count_outputs(c, 4 * s, part, segment, combined && (s || attr->combine == FB_COMBINE_ADD));
    }
    if (c->op->kind == FB_OP_HEAD_ARGMAX) {
        add_work(c, FB_TERM_BEST, (double)total * part * (double)c->shape.rows, 0);
        c->cost.act_written = c->shape.rows * c->shape.workers * 8;
    }
}

/* The busiest worker's share of the work on all heads. */
static double head_part(const counting *c, int64_t heads, bool by_kv_head) {
    int64_t items = by_kv_head ? c->program->kv_heads : c->shape.rows * heads;
    return (double)busiest(items, 1, c->shape.workers) / (double)items;
}

static void count_heads(counting *c) {
    const fb_op *op = c->op;
    const fb_program *p = c->program;
    bool append = op->kind == FB_OP_KV_APPEND, both = op->kind == FB_OP_ROPE_KV;
    const fb_value *x = &p->values[op->in[0]];
    double part = head_part(c, append ? p->kv_heads : x->heads, both);
    double rows = (double)c->shape.rows, width = (double)x->width, heads = (double)x->heads;
    c->cost.foreign = foreign(c, (int64_t)((double)c->cost.act_read * part));
    if (append || both) {
        c->cost.kv_bytes = kv_bytes(c, c->shape.rows, 2);
        add_work(c, FB_TERM_APPEND, rows * (double)p->kv_heads * part * (both ? 0.5 : 1),
                 rows * (double)(p->kv_heads * p->head_dim) * part * (both ? 0.5 : 1));
    }
    if (append) return;
    if (both) heads += (double)p->kv_heads;
    /* 16 floats are the widest vector */
    if (op->attr.rotary / 2 % 16)
        add_work(c, FB_TERM_ROPE_RAGGED, rows * heads * part, 0);
    else
        add_work(c, FB_TERM_ROPE, rows * heads * part, rows * heads * width * part);
    c->cost.flops = c->shape.rows * (int64_t)heads * op->attr.rotary * 3;
}

static void count_attention(counting *c) {
    const fb_op *op = c->op;
    const fb_program *p = c->program;
    fb_op_kind kind = op->kind;
    bool fused = kind == FB_OP_ATTN_ROWS || kind == FB_OP_ATTN_FLASH;
    int64_t heads = p->values[kind == FB_OP_ATTN_VALUES ? op->out[0] : op->in[0]].heads;
    double part = head_part(c, heads, fused && fb_program_by_head(p, c->shape.workers));
    int64_t seen = heads * positions_seen(c);
    double positions = (double)seen * part, macs = positions * (double)p->head_dim;
    c->cost.foreign =
        fused || kind == FB_OP_ATTN_SCORES ? foreign(c, (int64_t)((double)c->cost.act_read * part)) : 0;
    if (kind != FB_OP_SOFTMAX) {
        c->cost.kv_bytes = kv_bytes(c, c->shape.position + c->shape.rows, fused ? 2 : 1);
        c->cost.flops = seen * p->head_dim * 2 * (fused ? 2 : 1);
        c->cost.streams = ceil((double)p->kv_heads * part) * (fused ? 2 : 1);
    }
    if (kind == FB_OP_SOFTMAX || fused) c->cost.flops += seen * (3 + FB_FLOPS_FUNCTION);
    /* The term for many queries follows the term for one. attn_rows always takes a few at a time. */
    int many = kind != FB_OP_ATTN_ROWS && c->shape.rows * heads / p->kv_heads >= MANY_QUERIES;
    if (kind == FB_OP_ATTN_FLASH) add_work(c, FB_TERM_FLASH + many, positions, macs);
    if (kind == FB_OP_ATTN_SCORES || kind == FB_OP_ATTN_ROWS)
        add_work(c, FB_TERM_SCORES + many, positions, macs);
    if (kind == FB_OP_SOFTMAX || kind == FB_OP_ATTN_ROWS)
        add_work(c, FB_TERM_SOFTMAX, (double)(heads * c->shape.rows) * part, positions);
    if (kind == FB_OP_ATTN_VALUES || kind == FB_OP_ATTN_ROWS)
        add_work(c, FB_TERM_VALUES + many, positions, macs);
}

/* ---- experts ---- */

double fb_cost_chosen(const fb_op *op, const fb_weight *w, int64_t rows) {
    if (!w->experts) return 1;
    return 1 - pow(1 - (double)op->attr.used / (double)w->experts, (double)(rows ? rows : 1));
}

double fb_cost_chosen_of(const fb_bound *bound, const fb_op *op, int64_t rows) {
    if (op->weights[0] == FB_NONE) return 1;
    return fb_cost_chosen(op, &bound->weights[op->weights[0] * bound->program->layers], rows);
}

static void count_choice(counting *c, int64_t experts) {
    int64_t rows = busiest(c->shape.rows, 1, c->shape.workers);
    add_work(c, FB_TERM_SILU, (double)rows, (double)(rows * experts));
    c->cost.flops += c->shape.rows * experts * (FB_FLOPS_FUNCTION + c->op->attr.used);
}

static void count_top_k(counting *c) { count_choice(c, columns(c, c->op->in[0])); }

/* One worker does all of a row. */
static void count_router(counting *c) {
    const fb_weight *m = weight(c, 0);
    int64_t rows = busiest(c->shape.rows, 1, c->shape.workers);
    c->cost.workers = (int32_t)(c->shape.rows < c->shape.workers ? c->shape.rows : c->shape.workers);
    add_work(c, norm_term(c->op->attr.segment[0].norm), (double)rows, (double)(rows * m->cols));
    count_products(c, m, (double)(m->rows * rows) / (double)c->shape.rows, FB_DOT_FLOAT);
    c->cost.flops += c->shape.rows * m->rows * 2 * m->cols;
    c->cost.foreign = foreign(c, c->cost.act_read / c->cost.workers);
    count_choice(c, m->rows);
}

static void count_experts(counting *c) {
    const fb_op_attr *attr = &c->op->attr;
    bool group = c->op->kind == FB_OP_EXPERT_GROUP;
    int segments = group ? attr->segments : 1;
    double all = (double)c->cost.weight_bytes;
    c->cost.weight_bytes = 0;
    for (int s = 0; s < segments; s++) {
        const fb_weight *m = weight(c, 4 * s);
        int64_t outs = m->rows / m->experts;
        double part = (double)busiest(outs, GRAIN, c->shape.workers), pairs = attr->used;
        fb_segment segment = attr->segment[s];
        if (!group) segment.norm = segment.act = FB_OP_COUNT;
        if (s == 0) count_prepare(c, 0, &segment, m->cols * attr->used);
        count_products(c, m, part * pairs, segment.dot);
        /* Many rows: each expert that is used is decoded once. */
        double once = part * (double)m->experts * fb_cost_chosen(c->op, m, c->shape.rows);
        fb_work *decoded = &c->cost.work[FB_TERM_DECODED];
        if (c->shape.rows > 1 && decoded->calls > 0 && s == 0)
            *decoded = (fb_work){once * segments, once * segments * (double)m->cols};
        c->cost.flops += c->shape.rows * attr->used * outs * 2 * m->cols;
        if (group) add_work(c, FB_TERM_ADD, 0, part * pairs * (double)c->shape.rows);
        if (segment.act != FB_OP_COUNT)
            add_work(c, function_term(segment.act), 0, part * pairs * (double)c->shape.rows);
    }
    int64_t grains = (weight(c, 0)->rows / weight(c, 0)->experts + GRAIN - 1) / GRAIN;
    c->cost.workers = (int32_t)(grains < c->shape.workers ? grains : c->shape.workers);
    c->cost.weight_bytes = (int64_t)(all * fb_cost_chosen(c->op, weight(c, 0), c->shape.rows));
}

static void count_expert_sum(counting *c) {
    int64_t part = busiest(columns(c, c->op->out[0]), GRAIN, c->shape.workers);
    double units = (double)(c->shape.rows * part * c->op->attr.used);
    add_work(c, FB_TERM_ADD, (double)c->shape.rows, units);
    c->cost.flops = c->shape.rows * columns(c, c->op->in[0]) * 2;
}

/* ---- the table ---- */

static void (*const counters[FB_OP_COUNT])(counting *) = {
    [FB_OP_EMBED] = count_table,          [FB_OP_EMBED_POSITION] = count_table,
    [FB_OP_ROPE_ANGLES] = count_angles,   [FB_OP_LAYERNORM] = count_norm,
    [FB_OP_RMSNORM] = count_norm,         [FB_OP_ADD_NORM] = count_add_norm,
    [FB_OP_QUANTIZE] = count_quantize,    [FB_OP_LINEAR] = count_linear,
    [FB_OP_LINEAR_GROUP] = count_linear,  [FB_OP_HEAD_ARGMAX] = count_linear,
    [FB_OP_ROPE] = count_heads,           [FB_OP_KV_APPEND] = count_heads,
    [FB_OP_ROPE_KV] = count_heads,        [FB_OP_ATTN_SCORES] = count_attention,
    [FB_OP_SOFTMAX] = count_attention,    [FB_OP_ATTN_VALUES] = count_attention,
    [FB_OP_ATTN_ROWS] = count_attention,  [FB_OP_ATTN_FLASH] = count_attention,
    [FB_OP_NORM_ADD] = count_norm_add,    [FB_OP_TOP_K] = count_top_k,
    [FB_OP_ROUTER] = count_router,        [FB_OP_EXPERT_LINEAR] = count_experts,
    [FB_OP_EXPERT_GROUP] = count_experts, [FB_OP_EXPERT_SUM] = count_expert_sum,
};

/* ---- layers ---- */

/* Whether layers differ in the types of the op's weights. */
static bool types_differ(const fb_program *p, const fb_op *op) {
    uint32_t several = 0;
    for (int k = 0; k < FB_MAX_WEIGHTS; k++) {
        uint32_t dtypes = op->weights[k] == FB_NONE ? 0 : p->slots[op->weights[k]].dtypes;
        several |= dtypes & (dtypes - 1);
    }
    return several;
}

static bool same_types(const fb_bound *bound, const fb_op *op, int64_t a, int64_t b) {
    const int64_t layers = bound->program->layers;
    for (int k = 0; k < FB_MAX_WEIGHTS; k++) {
        const fb_weight *w = op->weights[k] == FB_NONE ? NULL : &bound->weights[op->weights[k] * layers];
        if (w && w[a].dtype != w[b].dtype) return false;
    }
    return true;
}

bool fb_cost_layers(const fb_bound *bound, fb_section section, const fb_op *op, int64_t *layer,
                    int64_t *count) {
    const int64_t layers = section == FB_BODY ? bound->program->layers : 1;
    const bool one = layers == 1 || !types_differ(bound->program, op);
    while (++*layer < (one ? 1 : layers)) {
        bool first = true;
        for (int64_t e = 0; e < *layer && first; e++) first = !same_types(bound, op, e, *layer);
        if (!first) continue;
        *count = one ? layers : 1;
        for (int64_t l = *layer + 1; l < (one ? 1 : layers); l++) *count += same_types(bound, op, *layer, l);
        return true;
    }
    return false;
}

/* The op as a layer runs it: how its segments multiply there, and what they read. */
static fb_op op_in(const fb_bound *bound, const fb_op *from, int64_t layer) {
    fb_op op = *from;
    for (int s = 0; s < FB_MAX_SEGMENTS; s++) {
        fb_segment *segment = &op.attr.segment[s];
        int32_t slot = op.weights[4 * s], floats = op.in[FB_UNQUANTIZED + s];
        op.in[FB_UNQUANTIZED + s] = FB_NONE;
        if (segment->dot == FB_DOT_FLOAT || slot == FB_NONE) continue;
        segment->dot = fb_dot_in(segment->dot, bound->weights[slot * bound->program->layers + layer].dtype);
        if (segment->dot == FB_DOT_FLOAT && floats != FB_NONE) op.in[s] = floats;
    }
    return op;
}

/* The position at which a layer without windows sees as many tokens as the mean layer sees at `position`. */
static int64_t mean_position(const fb_program *p, int64_t position) {
    int64_t sum = 0;
    for (int64_t layer = 0; layer < p->layers; layer++) {
        int64_t window = p->kinds[p->kind_of[layer]].window;
        sum += window && window <= position ? window - 1 : position;
    }
    return sum / p->layers;
}

fb_cost fb_cost_in(const fb_bound *bound, fb_section section, int32_t index, int64_t layer,
                   const fb_shape *shape) {
    const fb_program *p = bound->program;
    const fb_op op = op_in(bound, &p->ops[section][index], layer);
    counting c = {.bound = bound, .program = p, .op = &op, .layer = layer, .shape = *shape};
    c.cost.workers = shape->workers;
    if (c.op->attr.screen) {
        const fb_weight *head = weight(&c, 0);
        c.screen = (fb_weight){.dtype = FB_Q8_0, .rows = head->rows, .cols = head->cols, .packed = true};
    }
    if (section == FB_BODY) c.shape.position = mean_position(p, c.shape.position);
    if (section == FB_EPILOGUE) {
        c.shape.position += shape->rows - shape->epilogue_rows;
        c.shape.rows = shape->epilogue_rows;
    }
    if (c.shape.rows == 0) return c.cost;
    count_values(&c);
    count_weights(&c);
    (counters[c.op->kind] ? counters[c.op->kind] : count_elementwise)(&c);
    /* With no barrier before it, a worker reads only what it wrote itself. */
    if (index > 0 && !fb_program_barrier(p, section, index - 1, shape->workers)) c.cost.foreign = 0;
    return c.cost;
}

static void add_layers(fb_cost *sum, const fb_cost *c, int64_t count) {
    sum->weight_bytes += count * c->weight_bytes;
    sum->act_read += count * c->act_read;
    sum->act_written += count * c->act_written;
    sum->kv_bytes += count * c->kv_bytes;
    sum->flops += count * c->flops;
    sum->workers = c->workers;
    sum->streams += (double)count * c->streams;
    sum->foreign += (double)count * c->foreign;
    for (int t = 0; t < FB_TERM_COUNT; t++) {
        sum->work[t].calls += (double)count * c->work[t].calls;
        sum->work[t].units += (double)count * c->work[t].units;
    }
}

static void divide_by(fb_cost *c, int64_t layers) {
    int64_t *sums[] = {&c->weight_bytes, &c->act_read, &c->act_written, &c->kv_bytes, &c->flops};
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) *sums[i] = (*sums[i] + layers / 2) / layers;
    c->streams /= (double)layers;
    c->foreign /= (double)layers;
    for (int t = 0; t < FB_TERM_COUNT; t++) {
        c->work[t].calls /= (double)layers;
        c->work[t].units /= (double)layers;
    }
}

fb_cost fb_cost_of(const fb_bound *bound, fb_section section, int32_t index, const fb_shape *shape) {
    const int64_t layers = section == FB_BODY ? bound->program->layers : 1;
    fb_cost sum = {0};
    for (int64_t layer = -1, count;
         fb_cost_layers(bound, section, &bound->program->ops[section][index], &layer, &count);) {
        fb_cost c = fb_cost_in(bound, section, index, layer, shape);
        if (count == layers) return c;
        add_layers(&sum, &c, count);
    }
    divide_by(&sum, layers);
    return sum;
}
