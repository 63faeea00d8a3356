#include "plan/price.h"

#include <math.h>
#include <stdlib.h>

/* ---- one program ---- */

static double compute_seconds(const fb_machine *m, const fb_cost *cost) {
    double seconds = 0;
    for (int t = 0; t < FB_TERM_COUNT; t++)
        seconds += cost->work[t].calls * m->term[t].calls + cost->work[t].units * m->term[t].units;
    return seconds;
}

/* Weights and cached keys are read from the level of memory that holds the whole step's footprint. A single
 * worker gets its share of the bandwidth. Activations were just written and are in a core's cache, possibly
 * another core's. */
static void price_op(const fb_machine *m, double bandwidth, int32_t workers, fb_price_op *op) {
    const fb_cost *c = &op->cost;
    double bytes = (double)(c->weight_bytes + c->kv_bytes);
    op->compute = compute_seconds(m, c);
    op->memory = bytes / (bandwidth * c->workers / workers);
    op->kernel = fmax(op->compute, op->memory) + (1 - m->overlap) * fmin(op->compute, op->memory) +
                 c->streams * m->latency + c->foreign * m->foreign;
    op->seconds = op->kernel + m->dispatch + (op->barrier ? m->barrier : 0);
}

static void count_all(const fb_bound *bound, const fb_shape *shape, bool gpu, fb_price *price) {
    const fb_program *p = bound->program;
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++) {
            fb_price_op *op = &price->op[s][i];
            if (s == FB_EPILOGUE && shape->epilogue_rows == 0)
                continue; /* a chunk of a prefill that is not the last */
            int64_t times = s == FB_BODY ? p->layers : 1;
            op->cost = fb_cost_of(bound, (fb_section)s, i, shape);
            op->barrier = gpu || fb_program_barrier(p, (fb_section)s, i, shape->workers);
            price->footprint += (double)(times * (op->cost.weight_bytes + op->cost.kv_bytes));
            /* Other tokens use other experts: a cache would have to hold all of them. */
            price->held += (double)times * ((double)op->cost.weight_bytes /
                                                fb_cost_chosen_of(bound, &p->ops[s][i], shape->rows) +
                                            (double)op->cost.kv_bytes);
            price->step_bytes += times * fb_cost_bytes(&op->cost);
            price->step_barriers += times * op->barrier;
            if (s != FB_BODY) continue;
            price->layer_bytes += fb_cost_bytes(&op->cost);
            price->layer_barriers += op->barrier;
        }
}

/* The time to copy out and compare the logits; 0 if only the best token is computed. */
static double logits_seconds(const fb_program *p, const fb_machine *m, const fb_shape *shape) {
    if (p->logits == FB_NONE) return 0;
    return m->term[FB_TERM_LOGITS].units * (double)(p->vocab * shape->epilogue_rows);
}

/* The time of what is folded into a linear of one token. Next to the products of many tokens it is small and
 * not counted. */
static double folded_seconds(const fb_bound *bound, const fb_op *op, int64_t layer, const fb_machine *m,
                             const fb_shape *shape) {
    bool group = op->kind == FB_OP_LINEAR_GROUP;
    double products[2] = {0}, seconds = 0;
    if (shape->rows > 1 || (!group && op->kind != FB_OP_LINEAR && op->kind != FB_OP_HEAD_ARGMAX)) return 0;
    for (int s = 0; s < (group ? op->attr.segments : 1); s++) {
        const fb_weight *w = &bound->weights[op->weights[4 * s] * bound->program->layers + layer];
        if (group && op->attr.segment[s].norm != FB_OP_COUNT) products[0] += (double)(w->rows * w->cols);
        if (fb_dot_in(op->attr.segment[s].dot, w->dtype) == FB_DOT_QUANTIZE)
            products[1] += (double)(w->rows * w->cols);
    }
    if (products[0] > 0) seconds += m->norm.calls + m->norm.units * products[0];
    if (products[1] > 0) seconds += m->quantise.calls + m->quantise.units * products[1];
    return seconds;
}

/* On a GPU the bytes are those of the launch, activations included: all pass through the same memory. */
static void price_kernel(const fb_machine *m, double folded, fb_price_op *op) {
    double bytes = (double)fb_cost_bytes(&op->cost);
    op->compute = (double)op->cost.flops / m->flops;
    op->memory = bytes / fb_machine_bandwidth(m, bytes);
    op->kernel = fmax(m->small, fmax(op->compute, op->memory)) + folded;
}

/* One call, in the mean of all layers. */
static void price_layers(const fb_bound *bound, fb_section section, int32_t index, const fb_machine *m,
                         const fb_shape *shape, fb_price *price) {
    const fb_op *op = &bound->program->ops[section][index];
    const int64_t layers = section == FB_BODY ? bound->program->layers : 1;
    fb_price_op *mean = &price->op[section][index];
    for (int64_t layer = -1, count; fb_cost_layers(bound, section, op, &layer, &count);) {
        double part = (double)count / (double)layers;
        fb_price_op in = {.cost = mean->cost, .barrier = mean->barrier};
        if (count < layers) in.cost = fb_cost_in(bound, section, index, layer, shape);
        if (m->gpu)
            price_kernel(m, folded_seconds(bound, op, layer, m, shape), &in);
        else
            price_op(m, price->bandwidth, shape->workers, &in);
        mean->compute += part * in.compute;
        mean->memory += part * in.memory;
        mean->kernel += part * in.kernel;
        mean->seconds += part * in.seconds;
    }
}

/* The host launches ahead of the device. The device waits only if all launches together take longer than all
 * ops; the wait is spread over the ops. A recorded step is one launch. */
static void price_launches(const fb_bound *bound, const fb_machine *m, const fb_shape *shape, bool graph,
                           fb_price *price) {
    const fb_program *p = bound->program;
    for (int i = 0; i < FB_CURVE_POINTS; i++) price->bandwidth = fmax(price->bandwidth, m->bandwidth[i]);
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++) {
            if (s == FB_EPILOGUE && shape->epilogue_rows == 0) continue;
            price_layers(bound, (fb_section)s, i, m, shape, price);
            price->total += (price->op[s][i].kernel + m->node) * (double)(s == FB_BODY ? p->layers : 1);
        }
    double launches = (double)price->step_barriers;
    if (!graph) price->wait = fmax(0, m->launch - price->total / launches);
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++)
            price->op[s][i].seconds = price->op[s][i].kernel + m->node + price->wait;
    price->total += price->wait * launches;
    price->between = (graph ? m->graph : m->step) + logits_seconds(p, m, shape);
    price->total += price->between;
}

static void price_on_cpu(const fb_bound *bound, const fb_machine *m, const fb_shape *shape, fb_price *price) {
    const fb_program *p = bound->program;
    price->bandwidth = fb_machine_bandwidth(m, price->held);
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++) {
            if (s == FB_EPILOGUE && shape->epilogue_rows == 0) continue;
            price_layers(bound, (fb_section)s, i, m, shape, price);
            price->total += price->op[s][i].seconds * (double)(s == FB_BODY ? p->layers : 1);
        }
    price->between = m->step + logits_seconds(p, m, shape);
    price->total += price->between;
}

static void price_all(const fb_bound *bound, const fb_machine *m, const fb_shape *shape, bool graph,
                      fb_price *price) {
    memset(price, 0, sizeof *price);
    count_all(bound, shape, m->gpu, price);
    if (m->gpu)
        price_launches(bound, m, shape, graph, price);
    else
        price_on_cpu(bound, m, shape, price);
}

void fb_price_program(const fb_bound *bound, const fb_machine *m, const fb_shape *shape, fb_price *price) {
    price_all(bound, m, shape, false, price);
}

void fb_price_plan(const fb_plan *plan, const fb_weight *weights, const fb_machine *m, const fb_shape *shape,
                   fb_price *price) {
    bool graph = (plan->applied & FB_FUSE_BIT(FB_FUSE_GRAPH)) && shape->rows == shape->epilogue_rows;
    price_all(&(fb_bound){&plan->program, weights}, m, shape, graph, price);
}

/* ---- the choice ---- */

/* Fuses that may have to be dropped together so that another one can apply. An add is free for add_norm only
 * if neither the projection before it nor the projection after its norm has taken it. */
static const uint32_t groups[] = {
    FB_FUSE_BIT(FB_FUSE_DOWN_ADD) | FB_FUSE_BIT(FB_FUSE_NORM_LINEAR),
    FB_FUSE_BIT(FB_FUSE_SWIGLU_DUAL) | FB_FUSE_BIT(FB_FUSE_SWIGLU_GEMM),
};
enum { GROUPS = sizeof groups / sizeof *groups };

/* A fuse is dropped only if the prediction improves by at least this fraction. */
#define MARGIN 0.01

typedef struct choosing {
    const fb_program *plain;
    const fb_weight *weights;
    const fb_machine *machine;
    const fb_shape *shape;
    fb_plan plan;
    fb_price price;
} choosing;

static fb_status predict(choosing *c, const fb_plan_options *options, double *seconds, fb_error *err) {
    FB_TRY(fb_plan_make(c->plain, options, &c->plan, err));
    fb_price_plan(&c->plan, c->weights, c->machine, c->shape, &c->price);
    *seconds = c->price.total;
    return FB_OK;
}

static fb_status choose(choosing *c, fb_plan_options *options, fb_error *err) {
    double best;
    FB_TRY(predict(c, options, &best, err));
    uint32_t applied = c->plan.applied;
    for (int i = 0; i < FB_FUSE_COUNT + GROUPS; i++) {
        fb_plan_options less = *options;
        uint32_t off = i < FB_FUSE_COUNT ? FB_FUSE_BIT(i) : groups[i - FB_FUSE_COUNT];
        if ((applied & off) == 0) continue;
        /* Bits must not depend on measurements. */
        if (i < FB_FUSE_COUNT && fb_fuse_table[i].exactness != FB_EXACT_BIT) continue;
        less.fuses &= ~off;
        double seconds;
        FB_TRY(predict(c, &less, &seconds, err));
        if (applied & ~c->plan.applied & FB_FUSE_BIT(FB_FUSE_STEP))
            continue; /* the gain of `step` is not priced */
        if (!(seconds < best * (1 - MARGIN))) continue;
        best = seconds;
        applied = c->plan.applied;
        *options = less;
    }
    return FB_OK;
}

fb_status fb_plan_choose(const fb_program *plain, const fb_weight *weights, const fb_machine *machine,
                         const fb_shape *shape, fb_plan_options *options, fb_error *err) {
    choosing *c = malloc(sizeof *c);
    if (!c) return fb_fail_memory(err, "planner", sizeof *c);
    c->plain = plain;
    c->weights = weights;
    c->machine = machine;
    c->shape = shape;
    fb_status status = choose(c, options, err);
    free(c);
    return status;
}
