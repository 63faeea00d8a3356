/* Where programs run. The state is divided by how long it lives and who shares it:
 *
 *     device     one for the CPU and one for each GPU that is used: threads or stream, workspace, weights
 *     executor   one for a program on a device: buffers, recorded graphs, the persistent kernel's work list
 *     sequence   one for a stream of tokens: its length and its cache; cheap, many
 *     batch      one for a step: rows and sequences; data only
 *
 * A backend is a table of functions that does this for the CPU or for CUDA. device.c has what is common to
 * both: who shares what, and who runs next.
 *
 * Threads: everything here may be called from several threads at once, except that a sequence is used by one
 * thread at a time. Steps on one device take turns, in the order in which they were asked for. */
#ifndef FB_BACKEND_BACKEND_H
#define FB_BACKEND_BACKEND_H

#include <stdatomic.h>

#include "backend/batch.h"
#include "base/tensor.h"
#include "base/turn.h"
#include "program/program.h"

typedef struct fb_backend fb_backend;
typedef struct fb_device fb_device;
typedef struct fb_loaded fb_loaded;
typedef struct fb_executor fb_executor;
typedef struct fb_sequence fb_sequence;

/* A program with weights: weights[slot * layers + layer]; a slot that is not per layer repeats its tensor. */
typedef struct fb_bound {
    const fb_program *program;
    const fb_weight *weights;
} fb_bound;

typedef struct fb_executor_options {
    int32_t threads;  /* of the CPU; 0: one for each core that this process may use */
    fb_dtype act, kv; /* of what ops store, and of the cache */
    const char *isa;  /* of the CPU; NULL: the best */
    bool profile;     /* take the times of fb_trace */
    bool graph;       /* a decode step is recorded once and launched as one (cuda) */
    bool step;        /* its layers are one kernel; with `graph`, and only if the device said that it can */
    int64_t capacity; /* slots of a sequence's cache */
    fb_ring ring;     /* which positions it keeps */
    int64_t chunk;    /* most rows in a step */
    int64_t epilogue_rows; /* most rows in a step whose logits are wanted */
} fb_executor_options;

/* One step: its rows go through the layers, those whose logits are wanted through the epilogue. */
typedef struct fb_batch {
    const fb_row *rows; /* [count] */
    int64_t count;
    int64_t wanted;                /* rows whose logits are wanted: the last ones */
    fb_sequence *const *sequences; /* that rows name */
    int32_t sequence_count;        /* one, for now */
    float *logits;                 /* [wanted, vocab], if the program computes them */
    int32_t *best; /* [wanted]: the highest score's token (-1: a score is NaN), if the program computes only
                      that */
    /* Called with the hidden state after each layer (0: the embedding; the last: after the final norm, and
     * only the wanted rows); false stops the step. May be NULL. */
    bool (*on_hidden)(void *user, int64_t layer, const float *hidden, int64_t rows, int64_t cols);
    void *user;
    const atomic_bool *cancel; /* once true, the step stops soon; may be NULL */
} fb_batch;

/* What ran, added up by whoever asks for steps. */
typedef struct fb_trace {
    int64_t ops[FB_OP_COUNT]; /* calls, by kind */
    int64_t fuses[32];        /* calls of ops that carry a fuse, by its bit in fb_op.fuses */
    int64_t barriers;         /* where all threads waited for each other; on a GPU, ops launched */
    int64_t graphs;           /* steps that were launched as one */
    int64_t listed;           /* steps whose layers were one kernel */
    int64_t steps;
    /* With fb_executor_options.profile: the time of each op of the program, all layers added up, from the end
     * of the op before it to the end of its barrier (so that the ops of a step add up to `walk`), and of
     * whole steps. */
    double seconds[FB_SECTIONS][FB_MAX_OPS];
    double walk; /* from the first op to the last */
} fb_trace;

/* The heads of what backends have; their own structs begin with these. */
struct fb_device {
    const fb_backend *backend;
    int32_t index;
    fb_turn turn;                /* whoever uses its threads or its stream has it */
    const atomic_bool *watching; /* who calls fb_turn_pass while the device is idle; NULL: nobody */
    int64_t users;               /* guarded by device.c's lock */
    fb_loaded *loaded;           /* guarded by the turn */
    fb_device *next;
};

struct fb_loaded {
    const fb_weight *file; /* what it was made of: the key */
    fb_weight *table;      /* as fb_bound.weights, in the layout of the device's kernels */
    int64_t users;
    fb_loaded *next;
};

/* Memory of a sequence's cache, shared by forks until one of them writes. */
typedef struct fb_cache {
    atomic_int users;
    uint8_t *memory;
} fb_cache;

struct fb_sequence {
    fb_executor *executor;
    fb_cache *cache;
};

struct fb_backend {
    const char *name;
    bool graphs; /* it can record a step and launch it as one */
    /* Sets what is the backend's own, and the turn; and ends both. */
    fb_status (*device_open)(int32_t index, fb_device **out, fb_error *err);
    void (*device_close)(fb_device *device);
    /* All below are called by whoever has the device's turn, but for cache_take and cache_give. */
    fb_status (*load)(fb_device *device, const fb_bound *file, int32_t threads, fb_loaded **out,
                      fb_error *err);
    void (*unload)(fb_device *device, fb_loaded *loaded);
    /* Gives the head of the program a screen (base/screen.h); false: it has none. May be NULL. */
    bool (*screen)(fb_device *device, const fb_bound *bound, int32_t threads, const char *isa);
    /* Why the layers cannot be one kernel, in a few words; NULL: they can. May be NULL: no program's can. */
    const char *(*step_why_not)(fb_device *device, const fb_bound *bound, const fb_executor_options *options);
    fb_status (*open)(fb_device *device, const fb_bound *bound, const fb_executor_options *options,
                      fb_executor **out, fb_error *err);
    void (*close)(fb_executor *executor);
    fb_status (*run)(fb_executor *executor, const fb_batch *batch, fb_trace *trace, fb_error *err);
    const char *(*variant)(const fb_executor *executor); /* which kernels: the instruction set */
    int32_t (*threads)(const fb_executor *executor);
    /* Memory of one sequence's cache; and a copy of what tokens before `position` left in one. */
    fb_status (*cache_take)(fb_executor *executor, uint8_t **out, fb_error *err);
    void (*cache_give)(fb_executor *executor, uint8_t *memory);
    fb_status (*cache_copy)(fb_executor *executor, uint8_t *to, const uint8_t *from, int64_t position,
                            fb_error *err);
};

extern const fb_backend fb_backend_cpu;

/* What options->backend names: "cpu", "cuda", "cuda:1", or "auto" (NULL): cuda if there is a device that
 * serves and nothing asks for the CPU. The CUDA backend is a library of its own, opened here when it is first
 * wanted. */
fb_status fb_backend_find(const fb_session_options *options, const fb_backend **backend, int32_t *index,
                          fb_error *err);

/* ---- devices --------------------------------------------------------------------------------------------
 */

/* The process has each device once: it is opened for its first user and closed after its last. */
fb_status fb_device_take(const fb_backend *backend, int32_t index, fb_device **out, fb_error *err);
void fb_device_give(fb_device *device);

/* A file's weights on the device, in its kernels' layout: loaded for their first user, kept until their last.
 * The file's must stay meanwhile. On the CPU, so many threads load. `first`: this call loaded them. */
fb_status fb_device_load(fb_device *device, const fb_bound *file, int32_t threads, fb_loaded **out,
                         bool *first, fb_error *err);
void fb_device_unload(fb_device *device, fb_loaded *loaded);

/* Whether the device has, or can make, a screen for the program's head; why a program's layers cannot be one
 * kernel there. The bound's weights are fb_loaded.table. */
bool fb_device_screen(fb_device *device, const fb_bound *bound, int32_t threads, const char *isa);
const char *fb_device_step_why_not(fb_device *device, const fb_bound *bound,
                                   const fb_executor_options *options);

/* ---- executors and sequences ----------------------------------------------------------------------------
 */

/* The program must outlive it. */
fb_status fb_executor_open(fb_device *device, const fb_bound *bound, const fb_executor_options *options,
                           fb_executor **out, fb_error *err);
void fb_executor_close(fb_executor *executor);
const char *fb_executor_variant(const fb_executor *executor);
int32_t fb_executor_threads(const fb_executor *executor);

/* One step. A sequence whose cache is shared gets one of its own first. Adds to `trace`. FB_ERROR_STOPPED
 * (on_hidden or cancel): what sequences hold before the step's rows is untouched. */
fb_status fb_executor_run(fb_executor *executor, const fb_batch *batch, fb_trace *trace, fb_error *err);

/* An empty sequence; and one that shares another's cache until one of them writes to it. */
fb_status fb_sequence_open(fb_executor *executor, fb_sequence *out, fb_error *err);
void fb_sequence_fork(const fb_sequence *from, fb_sequence *out);
void fb_sequence_close(fb_sequence *sequence);

#endif
