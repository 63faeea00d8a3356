/* What a backend is: it takes a bound program and executes steps of it. */
#ifndef FB_BACKEND_BACKEND_H
#define FB_BACKEND_BACKEND_H

#include "base/tensor.h"
#include "program/program.h"

/* A program with its weights: what a model hands to a backend. weights[slot * layers + layer]; a slot that is
 * not per layer repeats its tensor. */
typedef struct fb_bound {
    const fb_program *program;
    const fb_weight *weights;
} fb_bound;

typedef struct fb_engine fb_engine; /* a backend's state for one session */

typedef struct fb_backend_options {
    int32_t threads;
    fb_dtype act, kv; /* of what ops store, and of the cache */
    const char *isa;
    int32_t device;     /* of several GPUs */
    bool profile;       /* take the times of fb_trace */
    bool graph;         /* a decode step is recorded once and launched as one (cuda) */
    bool step;          /* its layers are one kernel, where there is one that can do it; with `graph` */
    int64_t capacity;   /* slots of the KV cache */
    fb_ring ring;       /* which positions it keeps */
    fb_engine *fork_of; /* an engine of the same options, whose cache is shared until one of the two writes */
    int64_t chunk;      /* most tokens in a step */
    int64_t epilogue_rows; /* most tokens in a step whose logits are wanted */
} fb_backend_options;

/* Tokens at positions `position` …, all rows through the layers, the last `epilogue_rows` through the
 * epilogue. */
typedef struct fb_step {
    const int32_t *ids; /* [rows] */
    int64_t rows, position, epilogue_rows;
    float *logits; /* [epilogue_rows, vocab], if the program computes them */
    int32_t *best; /* [epilogue_rows]: the highest score's token (-1: a score is NaN), if the program computes
                      only that */
    /* Called with the hidden state after each layer (0: the embedding; the last: after the final norm, and
     * only the epilogue's rows); false stops the step. May be NULL. */
    bool (*on_hidden)(void *user, int64_t layer, const float *hidden, int64_t rows, int64_t cols);
    void *user;
} fb_step;

/* What ran since the engine was opened. */
typedef struct fb_trace {
    int64_t ops[FB_OP_COUNT]; /* calls, by kind */
    int64_t fuses[32];        /* calls of ops that carry a fuse, by its bit in fb_op.fuses */
    int64_t barriers;         /* where all threads waited for each other; on a GPU, ops launched */
    int64_t graphs;           /* steps that were launched as one */
    int64_t listed;           /* steps whose layers were one kernel */
    int64_t steps;
    /* With fb_backend_options.profile: the time of each op of the program, all layers added up, from the end
     * of the op before it to the end of its barrier (so that the ops of a step add up to `walk`), and of
     * whole steps. */
    double seconds[FB_SECTIONS][FB_MAX_OPS];
    double walk; /* from the first op to the last */
} fb_trace;

typedef struct fb_backend {
    const char *name;
    fb_status (*open)(const fb_bound *bound, const fb_backend_options *options, fb_engine **out,
                      fb_error *err);
    fb_status (*run)(fb_engine *engine, const fb_step *step, fb_error *err);
    void (*close)(fb_engine *engine);
    const char *(*variant)(const fb_engine *engine); /* which kernels: the instruction set */
    int32_t (*threads)(const fb_engine *engine);
    const fb_trace *(*trace)(const fb_engine *engine);
    bool (*lists)(
        const fb_engine *engine); /* whether the layers of decode steps are one kernel; may be NULL */
    bool graphs;                  /* it can record a step and launch it as one */
    bool screens;                 /* its head_argmax reads screens (base/screen.h) */
} fb_backend;

extern const fb_backend fb_backend_cpu;

/* What options->backend names: "cpu", "cuda", "cuda:1", or "auto" (NULL): cuda if there is a device that
 * serves and nothing asks for the CPU. The CUDA backend is a library of its own, opened here when it is first
 * wanted. */
fb_status fb_backend_find(const fb_session_options *options, const fb_backend **backend, int32_t *device,
                          fb_error *err);

/* What sessions of these options run on; NULL: nothing. */
const fb_backend *fb_backend_of(const fb_session_options *options);

#endif
