/* Where programs run. State is divided by how long it lives and who shares it:
 *
 *     device     one for the CPU, one for each GPU in use: threads or stream, workspace, weights
 *     executor   one for a program on a device: buffers, recorded graphs, the persistent kernel's work list
 *     sequence   one for a stream of tokens: its cache; cheap, there may be many
 *     batch      one for a step: rows and sequences; data only
 *
 * A backend is a table of functions that implements this for the CPU or for CUDA. device.c has the part that
 * both share: who shares what, and who runs next.
 *
 * Threads: all functions here may be called from several threads at once, but a sequence is used by one
 * thread at a time. One step runs at a time on a device (base/turn.h). */
#ifndef FB_BACKEND_BACKEND_H
#define FB_BACKEND_BACKEND_H

#include <stdatomic.h>

#include "backend/batch.h"
#include "base/candidate.h"
#include "base/tensor.h"
#include "base/turn.h"
#include "program/program.h"

typedef struct fb_backend fb_backend;
typedef struct fb_device fb_device;
typedef struct fb_loaded fb_loaded;
typedef struct fb_executor fb_executor;
typedef struct fb_sequence fb_sequence; /* backend/sequence.h */

/* A program with its weights: weights[slot * layers + layer]. A slot that is not per layer repeats its
 * tensor. */
typedef struct fb_bound {
    const fb_program *program;
    const fb_weight *weights;
} fb_bound;

typedef struct fb_executor_options {
    int32_t threads;  /* of the CPU; 0: one for each core that this process may use */
    fb_dtype act, kv; /* dtypes of what ops store, and of the cache */
    const char *isa;  /* of the CPU; NULL: the best */
    bool profile;     /* fill in the times of fb_trace */
    bool invariant;   /* CUDA: a row's sums have one order, however many rows a step has */
    bool one_role;    /* CUDA: a prompt's rows are computed as generated ones, which takes longer */
    bool graph;       /* CUDA: record a decode step once and launch it as one graph */
    bool step; /* CUDA: run the layers as one kernel; needs `graph`, and step_why_not must return NULL */
    int64_t capacity; /* slots of a sequence's cache */
    int64_t block; /* slots of a block of the cache: a power of two, 16 to 128; 0: the cache is one block */
    fb_ring ring;  /* which positions the cache keeps */
    /* The same for layers of each kind, where a kind has a window of its own; slots 0: as above. No kind has
     * more slots than `capacity`. */
    int64_t slots[FB_MAX_KINDS];
    fb_ring rings[FB_MAX_KINDS];
    int64_t chunk;         /* the most rows in a step */
    int64_t sequences;     /* the most sequences in a step */
    int64_t beyond;        /* the least slots of such a kind's ring beyond its window */
    int64_t epilogue_rows; /* the most rows in a step whose logits are wanted */
} fb_executor_options;

/* What is needed to choose the token after a wanted row, where a backend selects candidates itself. */
typedef struct fb_choice {
    int64_t count;      /* the best logits; 0: all of the row's logits go to fb_batch.logits */
    fb_candidate *best; /* [FB_CANDIDATES], the first `count` of them the best first */
    int64_t id_count;   /* more tokens whose logits are needed, at most FB_CANDIDATES */
    const int32_t *ids;
    fb_candidate *gathered; /* [id_count] */
} fb_choice;

/* The input of one step: rows of any number of sequences. All rows go through the layers. The rows whose
 * logits are wanted also go through the epilogue. The rows of a sequence are in the order of their positions;
 * a row's bits do not depend on what else is in the batch. */
typedef struct fb_batch {
    const fb_row *rows; /* [count] */
    int64_t count;
    int64_t wanted;                /* number of rows whose logits are wanted; they are the last rows */
    fb_sequence *const *sequences; /* indexed by fb_row.sequence */
    int32_t sequence_count;
    float *logits;      /* [wanted, vocab], if the program computes logits */
    fb_choice *choices; /* [wanted]; NULL: all logits of all wanted rows. Only if fb_backend.chooses */
    int32_t *best; /* [wanted]: the token with the highest score (-1: a score is NaN), if the program computes
                      only the best token */
    /* Called with the hidden state after each layer. Layer 0 is the embedding. The last call comes after the
     * final norm and has only the wanted rows. Returning false stops the step. May be NULL. */
    bool (*on_hidden)(void *user, int64_t layer, const float *hidden, int64_t rows, int64_t cols);
    /* The CPU only: called by all workers, before a linear or an expert_linear (not one of a fuse) multiplies
     * the matrix of `slot` with these rows. May be NULL. */
    void (*on_linear)(void *user, int32_t slot, int64_t layer, const fb_linear_rows *in, int32_t worker,
                      int32_t workers);
    void *user;
    const atomic_bool *cancel; /* once true, the step stops soon; may be NULL */
    /* Only if fb_backend.holds: the first `held` rows run through the layers from `held_from` up to `held_to`
     * only, so that a prompt's rows can be computed in several steps. What a row carries from layer to layer
     * lies in `held_state` (fb_frame_state_bytes) between the steps. Until held_to is the number of layers,
     * none of these rows is wanted. No bit depends on how the layers are divided. */
    int64_t held, held_from, held_to;
    uint8_t *held_state;
} fb_batch;

/* What ran. The caller of fb_executor_run adds up its steps in one of these. */
typedef struct fb_trace {
    int64_t ops[FB_OP_COUNT]; /* calls, by kind */
    int64_t fuses[32];        /* calls of ops that a fuse made, by the fuse's bit in fb_op.fuses */
    int64_t barriers;         /* barriers of all workers; on a GPU, ops launched */
    int64_t layer_barriers;   /* those of them in layers */
    int64_t graphs;           /* steps launched as one graph */
    int64_t listed;           /* steps whose layers were one kernel */
    int64_t steps;
    /* With fb_executor_options.profile: the time of each op, all layers added up. An op's time runs from the
     * end of the op before it to the end of its barrier, so that the ops of a step add up to `op_seconds`. */
    double seconds[FB_SECTIONS][FB_MAX_OPS];
    double op_seconds; /* from the first op to the last */
} fb_trace;

/* The common heads: each backend's own struct begins with one of these. */
struct fb_device {
    const fb_backend *backend;
    int32_t index;
    fb_turn turn; /* held while its threads or its stream are used */
    /* True while somebody calls fb_turn_pass on the idle device; NULL: nobody does. */
    const atomic_bool *watching;
    int64_t users;     /* guarded by device.c's lock */
    fb_loaded *loaded; /* guarded by the turn */
    fb_device *next;
};

struct fb_loaded {
    const fb_weight *file; /* the file's weights; also the key of this entry */
    fb_weight *table;      /* indexed as fb_bound.weights, in the layout of the device's kernels */
    int64_t users;
    fb_loaded *next;
};

struct fb_backend {
    const char *name;
    bool graphs;  /* it can record a step and launch it as one graph */
    bool chooses; /* it selects candidates (fb_batch.choices) */
    bool roles;   /* a prompt's tokens are added in another order than generated ones (fb_row.prompt), unless
                     fb_executor_options.one_role */
    bool holds;   /* it computes some layers only (fb_batch.held) */
    int64_t session_block; /* slots of a block of a session's cache; 0: the cache is one block */
    /* device_open sets the backend's own fields and the turn; device_close ends both. */
    fb_status (*device_open)(int32_t index, fb_device **out, fb_error *err);
    void (*device_close)(fb_device *device);
    /* The caller of these holds the device's turn, except for cache_take and cache_give. */
    fb_status (*load)(fb_device *device, const fb_bound *file, int32_t threads, fb_loaded **out,
                      fb_error *err);
    void (*unload)(fb_device *device, fb_loaded *loaded);
    /* Fills the screen (base/screen.h) of the program's head. `ready` is false if the head has no screen.
     * Fails if there is no memory for it, or no thread. May be NULL. */
    fb_status (*screen)(fb_device *device, const fb_bound *bound, int32_t threads, const char *isa,
                        bool *ready);
    /* Why the layers cannot run as one kernel, in a few words; NULL: they can; FB_NO_MEMORY: there was none
     * to find out. The function itself may be NULL: then no program's layers can. */
    const char *(*step_why_not)(fb_device *device, const fb_bound *bound, const fb_executor_options *options);
    fb_status (*open)(fb_device *device, const fb_bound *bound, const fb_executor_options *options,
                      fb_executor **out, fb_error *err);
    void (*close)(fb_executor *executor);
    fb_status (*run)(fb_executor *executor, const fb_batch *batch, fb_trace *trace, fb_error *err);
    const char *(*variant)(const fb_executor *executor); /* name of the kernels: the instruction set */
    int32_t (*threads)(const fb_executor *executor);
    /* Memory for `count` blocks of caches; and a copy of one block, with what the tokens before `position`
     * left in it. The memory is given back to the device, because it may outlive the executor. */
    fb_status (*cache_take)(fb_executor *executor, int64_t count, uint8_t **out, fb_error *err);
    void (*cache_give)(fb_device *device, uint8_t *memory);
    fb_status (*cache_copy)(fb_executor *executor, uint8_t *to, const uint8_t *from, int64_t position,
                            fb_error *err);
};

extern const fb_backend fb_backend_cpu;

/* The backend and device that options->backend names: "cpu", "cuda", "cuda:1", or "auto" (NULL). "auto" is
 * cuda if a usable device exists and no option needs the CPU. The CUDA backend is a separate library, which
 * is opened here on first use. */
fb_status fb_backend_find(const fb_session_options *options, const fb_backend **backend, int32_t *index,
                          fb_error *err);

/* ---- devices ---- */

/* A process opens each device once: for its first user. It closes the device after the last user. */
fb_status fb_device_take(const fb_backend *backend, int32_t index, fb_device **out, fb_error *err);
void fb_device_give(fb_device *device);

/* The file's weights in the layout of the device's kernels. They are loaded for their first user and kept
 * until the last one leaves. The file's weights must stay valid meanwhile. On the CPU, `threads` threads load
 * them. `*first`: this call loaded them. */
fb_status fb_device_load(fb_device *device, const fb_bound *file, int32_t threads, fb_loaded **out,
                         bool *first, fb_error *err);
void fb_device_unload(fb_device *device, fb_loaded *loaded);

/* Whether the device has, or can make, a screen for the program's head; and why a program's layers cannot be
 * one kernel there. The bound's weights are fb_loaded.table. */
fb_status fb_device_screen(fb_device *device, const fb_bound *bound, int32_t threads, const char *isa,
                           bool *ready);
const char *fb_device_step_why_not(fb_device *device, const fb_bound *bound,
                                   const fb_executor_options *options);

/* ---- executors ---- */

/* The program must outlive the executor. */
fb_status fb_executor_open(fb_device *device, const fb_bound *bound, const fb_executor_options *options,
                           fb_executor **out, fb_error *err);
void fb_executor_close(fb_executor *executor);
const char *fb_executor_variant(const fb_executor *executor);
int32_t fb_executor_threads(const fb_executor *executor);

/* Runs one step and adds to `trace`. A sequence first gets the blocks that its rows write: new ones, and
 * copies of those that it shares. On FB_ERROR_STOPPED (from on_hidden or cancel) and FB_ERROR_MEMORY, what
 * the sequences held before this step is unchanged. */
fb_status fb_executor_run(fb_executor *executor, const fb_batch *batch, fb_trace *trace, fb_error *err);

#endif
