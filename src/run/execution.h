/* A model, a plan for it, and an executor that runs the plan. Sessions with equal options share one.
 * Everything that needs a plan for a model gets it here: sessions, reports, proofs and benchmarks. */
#ifndef FB_RUN_EXECUTION_H
#define FB_RUN_EXECUTION_H

#include "backend/backend.h"
#include "fuse/fuse.h"
#include "model/model.h"
#include "plan/machine.h"

/* A session's options after all defaults are resolved. */
typedef struct fb_request {
    const fb_backend *backend;
    int32_t device;
    fb_session_options session; /* the request owns its strings fuse, machine and isa */
    fb_executor_options executor;
    bool greedy; /* session.greedy, unless logits or hidden states are wanted */
    bool
        float_dot; /* session.float_dot, or act is F64: the float64 reference must not quantise activations */
} fb_request;

typedef struct fb_execution {
    const fb_model *model;
    fb_request request;
    fb_device *device;
    fb_loaded *loaded;
    const fb_weight *weights; /* the device's weights: loaded->table */
    fb_plan_options options;  /* include the device's abilities and the chosen fuses */
    fb_plan plan;
    fb_executor *executor;
    /* Guarded by execution.c's lock: */
    enum { FB_EXECUTION_OPENING, FB_EXECUTION_READY, FB_EXECUTION_FAILED } state;
    bool alone; /* not shared: planned for a given machine or position, which the options do not name */
    int64_t users;
    struct fb_execution *next;
} fb_execution;

/* The machine model for fuse "auto", and the position of the decode step to optimise. */
typedef struct fb_planning {
    const fb_machine *machine;
    int64_t position;
} fb_planning;

/* What a session's options do not say. Zeros: as a session needs it. */
typedef struct fb_execution_options {
    const fb_planning *planning;     /* NULL: the options' folder of measurements, or assumptions */
    int64_t block;                   /* slots of a block; 0: fb_backend.session_block */
    int64_t wanted;                  /* the most rows of a step whose logits are wanted */
    int64_t drafted;                 /* more such rows, for guesses */
    const struct fb_execution *like; /* one whose sequences it will run, too; NULL: none */
} fb_execution_options;

/* The machine model of an execution's device, measured or assumed; and a decode step of one row, at the
 * planning's position or in the middle of the cache. */
void fb_execution_machine(const fb_execution *execution, fb_machine *machine);
fb_shape fb_execution_shape(const fb_execution *execution, const fb_machine *machine,
                            const fb_planning *planning);

/* `more` may be NULL. */
fb_status fb_execution_take(const fb_model *model, const fb_session_options *options,
                            const fb_execution_options *more, fb_execution **out, fb_error *err);
/* Adds a user to an execution that is in use. */
void fb_execution_share(fb_execution *execution);
void fb_execution_give(fb_execution *execution);

/* How often a fuse ran: the steps that were recorded, or one kernel, for `graph` and `step`. */
int64_t fb_trace_fuse_calls(const fb_trace *trace, int fuse);

#endif
