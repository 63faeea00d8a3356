/* Prices: a machine's figures applied to the costs of a program's ops; and the choice of fuses by price. */
#ifndef FB_PLAN_PRICE_H
#define FB_PLAN_PRICE_H

#include "fuse/fuse.h"
#include "plan/machine.h"

typedef struct fb_price_op {
    fb_cost cost;  /* cost of one call */
    double kernel; /* seconds of one call: `compute` and `memory`, as far as they do not overlap, the
                    * first bytes of streams, and what is handed over */
    double compute, memory;
    bool barrier;   /* a barrier follows; on a GPU, set for every op: its launch */
    double seconds; /* kernel, dispatch and barrier; on a GPU, kernel, node and wait */
} fb_price_op;

typedef struct fb_price {
    fb_price_op op[FB_SECTIONS][FB_MAX_OPS];
    double between;   /* seconds of a step outside of ops */
    double wait;      /* seconds that a GPU waits for a launch, on average */
    double total;     /* seconds of a step, all layers */
    double footprint; /* bytes that a step reads, weights and cache */
    double held;      /* the same, with all experts: what a cache must hold to serve the next step, too */
    double bandwidth; /* of reads from memory that holds so much; on a GPU, the most there is */
    int64_t layer_bytes, layer_barriers;
    int64_t step_bytes, step_barriers;
} fb_price;

/* Prices a program's ops; on a GPU, launched one by one. */
void fb_price_program(const fb_bound *bound, const fb_machine *machine, const fb_shape *shape,
                      fb_price *price);

/* The same, but recorded as a graph if the plan has it: a GPU's step whose rows all have logits. */
void fb_price_plan(const fb_plan *plan, const fb_weight *weights, const fb_machine *machine,
                   const fb_shape *shape, fb_price *price);

/* Reduces `options->fuses` to those whose plan has the lowest predicted time. A fuse that makes no difference
 * is kept. Takes well under a millisecond. */
fb_status fb_plan_choose(const fb_program *plain, const fb_weight *weights, const fb_machine *machine,
                         const fb_shape *shape, fb_plan_options *options, fb_error *err);

#endif
