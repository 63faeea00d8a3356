/* Single ops on the caller's memory (include/fusebox_ops.h). A function of a family checks its arguments,
 * fills an fb_call, and runs the engine's kernels between fb_job_begin and fb_job_end. */
#ifndef FB_OPS_OPS_H
#define FB_OPS_OPS_H

#include <pthread.h>

#include "backend/cpu/host/host.h"
#include "backend/cuda/plugin.h"
#include "fusebox_ops.h"

struct fb_ops {
    fb_device *device;
    /* A GPU; else NULL. */
    const fb_cuda_ops_table *cuda;
    fb_cuda_ops *gpu;
    /* The CPU. */
    const fb_isa *isa;
    int32_t threads;
    pthread_mutex_t lock; /* guards the rest */
    float *scratch;       /* [scratch_threads][scratch_floats] */
    int32_t scratch_threads;
    int64_t scratch_floats;
    uint8_t *temp;
    int64_t temp_bytes;
};

/* One call of a public function. */
typedef struct fb_job {
    fb_ops *ops;
    uint8_t *temp; /* what its kernels hand to each other, in memory of the device */
    bool locked;
} fb_job;

/* If it succeeds, fb_job_end must follow. */
fb_status fb_job_begin(fb_ops *ops, void *stream, int64_t temp_bytes, fb_job *job, fb_error *err);
void fb_job_end(fb_job *job);

/* Runs one kernel. `bytes`: what it reads and writes, which decides how many threads are worth waking. */
fb_status fb_job_run(fb_job *job, fb_op_kind kind, const fb_call *call, int64_t bytes, fb_error *err);
/* The same for attention, which sees slots below `context`. */
fb_status fb_job_attend(fb_job *job, fb_op_kind kind, const fb_call *call, int64_t context, int64_t bytes,
                        fb_error *err);
/* begin, one kernel, end. Nothing at all if the call has no rows. */
fb_status fb_ops_run_one(fb_ops *ops, void *stream, fb_op_kind kind, const fb_call *call, int64_t bytes,
                         fb_error *err);

/* ---- checks ----
 * A message names the op, the argument, its value and the limit. */

typedef struct fb_check {
    const fb_ops *ops;
    const char *op; /* "layer_norm" */
    fb_error *err;
} fb_check;

/* Values that rows and columns may have; -1: any. */
typedef struct fb_expect {
    fb_dtype act; /* dtype that the tensor must have; FB_OPS_ANY_DTYPE: any float */
    int64_t rows, cols;
    bool output;
} fb_expect;
#define FB_OPS_ANY_DTYPE ((fb_dtype)-1)

/* Limits that keep products of sizes within 64 bits, and what kernels count within 32. */
#define FB_OPS_MAX_ROWS   ((int64_t)1 << 31)
#define FB_OPS_MAX_COLS   ((int64_t)1 << 24)
#define FB_OPS_MAX_STRIDE ((int64_t)1 << 31)
/* Of projections and attention. */
#define FB_OPS_MAX_LINEAR_ROWS ((int64_t)1 << 24)

fb_status fb_check_ops(const fb_check *c);
fb_status fb_check_tensor(const fb_check *c, const char *name, const fb_ops_tensor *t,
                          const fb_expect *expect);
/* A vector of `cols` elements and any float dtype, as a weight. Absent if NULL or without data, where
 * `optional`. */
fb_status fb_check_vector(const fb_check *c, const char *name, const fb_ops_tensor *t, int64_t cols,
                          bool optional, fb_weight *out);
/* A matrix [any, cols] without gaps, as a weight. */
fb_status fb_check_matrix(const fb_check *c, const char *name, const fb_ops_tensor *t, int64_t cols,
                          fb_weight *out);
fb_status fb_check_heads(const fb_check *c, const char *name, const fb_ops_heads *t, const fb_expect *expect,
                         int64_t heads);
fb_status fb_check_positions(const fb_check *c, const fb_ops_positions *p, bool required);
fb_status fb_check_eps(const fb_check *c, float eps);
fb_status fb_check_norm(const fb_check *c, fb_ops_norm norm, fb_op_kind *out);
/* value is in 0 … count - 1. */
fb_status fb_check_choice(const fb_check *c, const char *name, int64_t value, int64_t count);

fb_view fb_tensor_view(const fb_ops_tensor *t);
fb_view fb_heads_view(const fb_ops_heads *t);

static inline int64_t fb_tensor_bytes(const fb_ops_tensor *t) {
    return t->rows * t->cols * fb_dtype_size(t->dtype);
}

#endif
