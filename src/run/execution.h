/* A model, a plan for it, and an executor that runs the plan. Sessions of the same options share one. Whoever
 * needs a plan for a model and options gets it here: sessions, reports, proofs and benchmarks. */
#ifndef FB_RUN_EXECUTION_H
#define FB_RUN_EXECUTION_H

#include "backend/backend.h"
#include "fuse/fuse.h"
#include "model/model.h"
#include "plan/machine.h"

/* What a session's options mean, when all that they leave open is decided. */
typedef struct fb_request {
    const fb_backend *backend;
    int32_t device;
    fb_session_options session; /* strings: fuse and machine, which belong to the request, and isa */
    fb_executor_options executor;
    bool greedy;    /* the plan may compute the best token only */
    bool float_dot; /* floats only: a float64 run is the truth, from which quantised activations are an error
                     */
} fb_request;

typedef struct fb_execution {
    const fb_model *model;
    fb_request request;
    fb_device *device;
    fb_loaded *loaded;
    const fb_weight *weights; /* the device's: loaded->table */
    fb_plan_options options;  /* with what the device can do, and the fuses that were chosen */
    fb_plan plan;
    fb_executor *executor;
    /* Guarded by execution.c's lock: */
    enum { FB_EXECUTION_OPENING, FB_EXECUTION_READY, FB_EXECUTION_FAILED } state;
    bool alone; /* nobody else may share it */
    int64_t users;
    struct fb_execution *next;
} fb_execution;

/* By which machine "auto" chooses, and for which position of a decode step. */
typedef struct fb_planning {
    const fb_machine *machine;
    int64_t position;
} fb_planning;

/* `planning` NULL: by the options' folder of measurements, or by assumptions. */
fb_status fb_execution_take(const fb_model *model, const fb_session_options *options,
                            const fb_planning *planning, fb_execution **out, fb_error *err);
/* One user more of one that is in use. */
void fb_execution_share(fb_execution *execution);
void fb_execution_give(fb_execution *execution);

#endif
