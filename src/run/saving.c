/* What each fuse of a plan saves, by the machine model. */
#include <stdlib.h>

#include "plan/price.h"
#include "run/scheduler.h"

/* The predicted time of a decode step in the middle of the cache with these fuses; and which apply. */
static fb_status price(const fb_execution *x, const fb_machine *machine, uint32_t fuses, fb_plan *plan,
                       double *seconds) {
    fb_plan_options options = x->options;
    fb_shape shape = fb_execution_shape(x, machine, NULL);
    fb_price *price = malloc(sizeof *price);
    if (!price) return FB_ERROR_MEMORY;
    options.fuses = fuses;
    fb_status status = fb_plan_make(&x->model->spec->program, &options, plan, NULL);
    if (status == FB_OK) fb_price_plan(plan, x->weights, machine, &shape, price);
    *seconds = price->total;
    free(price);
    return status;
}

void fb_savings_find(const fb_execution *x, double seconds[FB_FUSE_COUNT]) {
    fb_machine machine;
    fb_execution_machine(x, &machine);
    fb_plan *plan = malloc(sizeof *plan);
    for (int i = 0; i < FB_FUSE_COUNT; i++) {
        uint32_t bit = FB_FUSE_BIT(i), fuses = x->options.fuses;
        double with, without;
        seconds[i] = 0;
        if (!plan || price(x, &machine, fuses | bit, plan, &with) != FB_OK || !(plan->applied & bit))
            continue;
        if (price(x, &machine, fuses & ~bit, plan, &without) == FB_OK) seconds[i] = without - with;
    }
    free(plan);
}
