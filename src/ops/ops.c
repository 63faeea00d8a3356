/* Contexts of single ops, and how kernels are run for them. */
#include "ops/ops.h"

#include <stdlib.h>

#include "base/memory.h"

/* A thread of the CPU gets at least so many bytes of work. Waking a sleeping thread takes about as long as
 * reading them from memory (10 us). */
#define THREAD_BYTES ((int64_t)128 << 10)
/* Each worker of a projection prepares all rows of the input in its own scratch. So many rows at a time keep
 * that small; the bits do not depend on it. */
#define LINEAR_ROWS 128

/* ---- contexts ---- */

static fb_status open_cpu(fb_ops *ops, int32_t threads, fb_error *err) {
    FB_TRY(fb_isa_find(NULL, &ops->isa, err));
    FB_TRY(fb_device_take(&fb_backend_cpu, 0, &ops->device, err));
    fb_turn_take(&ops->device->turn);
    fb_status status = fb_cpu_threads((fb_cpu_device *)ops->device, threads, &ops->threads, err);
    fb_turn_give(&ops->device->turn);
    return status;
}

static fb_status open_cuda(fb_ops *ops, int32_t index, fb_error *err) {
    const fb_cuda_plugin *plugin;
    FB_TRY(fb_cuda_find(index, &plugin, err));
    FB_TRY(fb_device_take(plugin->backend, index, &ops->device, err));
    FB_TRY(plugin->ops->open(ops->device, &ops->gpu, err));
    ops->cuda = plugin->ops;
    return FB_OK;
}

fb_status fb_ops_create(int32_t device, int32_t threads, fb_ops **out, fb_error *err) {
    *out = NULL;
    if (device < FB_OPS_CPU || device > 255)
        return fb_fail(err, FB_ERROR_USAGE, "ops: device %d (from %d to 255)", device, FB_OPS_CPU);
    if (threads < 0 || threads > FB_POOL_MAX_WORKERS)
        return fb_fail(err, FB_ERROR_USAGE, "ops: threads %d (from 0 to %d)", threads, FB_POOL_MAX_WORKERS);
    fb_ops *ops = calloc(1, sizeof *ops);
    if (!ops) return fb_fail_memory(err, "ops", sizeof *ops);
    pthread_mutex_init(&ops->lock, NULL);
    fb_status status = device == FB_OPS_CPU ? open_cpu(ops, threads, err) : open_cuda(ops, device, err);
    if (status != FB_OK) {
        fb_ops_free(ops);
        return status;
    }
    *out = ops;
    return FB_OK;
}

void fb_ops_free(fb_ops *ops) {
    if (!ops) return;
    if (ops->cuda) ops->cuda->close(ops->gpu);
    fb_device_give(ops->device);
    pthread_mutex_destroy(&ops->lock);
    free(ops->scratch);
    free(ops->temp);
    free(ops);
}

fb_status fb_ops_reserve(fb_ops *ops, void *stream, int64_t bytes, fb_error *err) {
    FB_TRY(fb_check_ops(&(fb_check){ops, "reserve", err}));
    if (bytes < 0 || bytes > (int64_t)1 << 40)
        return fb_fail(err, FB_ERROR_USAGE, "reserve: bytes: %lld (from 0 to %lld)", (long long)bytes,
                       1LL << 40);
    return ops->cuda ? ops->cuda->reserve(ops->gpu, stream, bytes, err) : FB_OK;
}

/* ---- jobs ---- */

static fb_status grow_temp(fb_ops *ops, int64_t bytes, fb_error *err) {
    if (bytes <= ops->temp_bytes) return FB_OK;
    void *memory;
    FB_TRY(fb_memory_take("workspace of an op", bytes, &memory, err));
    free(ops->temp);
    ops->temp = memory;
    ops->temp_bytes = bytes;
    return FB_OK;
}

fb_status fb_job_begin(fb_ops *ops, void *stream, int64_t temp_bytes, fb_job *job, fb_error *err) {
    *job = (fb_job){.ops = ops};
    if (ops->cuda) return ops->cuda->begin(ops->gpu, stream, temp_bytes, &job->temp, err);
    if (!temp_bytes) return FB_OK; /* the lock is taken when a kernel needs it */
    pthread_mutex_lock(&ops->lock);
    fb_status status = grow_temp(ops, temp_bytes, err);
    if (status != FB_OK) {
        pthread_mutex_unlock(&ops->lock);
        return status;
    }
    job->locked = true;
    job->temp = ops->temp;
    return FB_OK;
}

void fb_job_end(fb_job *job) {
    if (job->ops->cuda) job->ops->cuda->end(job->ops->gpu);
    if (job->locked) pthread_mutex_unlock(&job->ops->lock);
}

/* ---- kernels on the CPU ---- */

static int64_t scratch_floats(fb_op_kind kind, const fb_call *call) {
    int64_t floats = 0;
    switch (kind) {
    case FB_OP_LINEAR_GROUP:
        floats = FB_LINEAR_WORK;
        for (int s = 0; s < call->attr.segments; s++)
            floats += fb_linear_input(call->rows, call->weights[4 * s].cols);
        break;
    case FB_OP_LINEAR:
        floats = FB_LINEAR_WORK + fb_linear_input(call->rows, call->weights[0].cols);
        break;
    case FB_OP_QUANTIZE:
        floats = call->in[0].width;
        break;
    case FB_OP_ROPE_KV:
    case FB_OP_ATTN_SCORES:
    case FB_OP_SOFTMAX:
    case FB_OP_ATTN_VALUES:
    case FB_OP_ATTN_ROWS:
    case FB_OP_ATTN_FLASH:
        floats = fb_attention_scratch(call->kv.width, call->kv.capacity);
        break;
    default:
        return 0;
    }
    return (floats + 64 + 15) / 16 * 16; /* kernels write whole vectors; each worker's begins at 64 bytes */
}

static fb_status grow_scratch(fb_ops *ops, int32_t threads, int64_t floats, fb_error *err) {
    if (threads <= ops->scratch_threads && floats <= ops->scratch_floats) return FB_OK;
    if (threads < ops->scratch_threads) threads = ops->scratch_threads;
    if (floats < ops->scratch_floats) floats = ops->scratch_floats;
    void *memory;
    FB_TRY(fb_memory_take("workspace of an op", threads * floats * (int64_t)sizeof(float), &memory, err));
    free(ops->scratch);
    ops->scratch = memory;
    ops->scratch_threads = threads;
    ops->scratch_floats = floats;
    return FB_OK;
}

typedef struct cpu_run {
    const fb_ops *ops;
    fb_cpu_kernel kernel;
    const fb_call *call;
    int32_t threads;
} cpu_run;

static void run_worker(void *arg, int32_t index) {
    const cpu_run *run = arg;
    const fb_ops *ops = run->ops;
    run->kernel(run->call,
                &(fb_worker){.index = index,
                             .count = run->threads,
                             .scratch = ops->scratch ? ops->scratch + index * ops->scratch_floats : NULL});
}

/* The caller holds the context's lock. */
static fb_status run_locked(fb_ops *ops, fb_op_kind kind, const fb_call *call, int32_t threads,
                            fb_error *err) {
    cpu_run run = {ops, ops->isa->kernels[kind], call, threads};
    FB_TRY(grow_scratch(ops, threads, scratch_floats(kind, call), err));
    if (threads == 1) {
        run_worker(&run, 0);
        return FB_OK;
    }
    fb_pool *pool = ((fb_cpu_device *)ops->device)->pool;
    fb_turn_take(&ops->device->turn);
    fb_status status = fb_pool_grow(pool, threads, err); /* this may be a fork of who created the context */
    if (status == FB_OK) fb_pool_run(pool, threads, run_worker, &run);
    fb_turn_give(&ops->device->turn);
    return status;
}

/* The call for rows [first, first + rows). */
static fb_call slice(const fb_call *whole, int64_t first, int64_t rows) {
    fb_call call = *whole;
    call.rows = rows;
    for (int k = 0; k < FB_MAX_IN; k++)
        if (call.in[k].data) call.in[k].data = fb_view_at(&call.in[k], first, 0);
    for (int k = 0; k < FB_MAX_OUT; k++)
        if (call.out[k].data) call.out[k].data = fb_view_at(&call.out[k], first, 0);
    return call;
}

static fb_status run_parts(fb_ops *ops, fb_op_kind kind, const fb_call *call, int32_t threads,
                           fb_error *err) {
    if ((kind != FB_OP_LINEAR_GROUP && kind != FB_OP_LINEAR) || call->rows <= LINEAR_ROWS)
        return run_locked(ops, kind, call, threads, err);
    for (int64_t first = 0; first < call->rows; first += LINEAR_ROWS) {
        int64_t left = call->rows - first;
        fb_call part = slice(call, first, left < LINEAR_ROWS ? left : LINEAR_ROWS);
        FB_TRY(run_locked(ops, kind, &part, threads, err));
    }
    return FB_OK;
}

static fb_status run_cpu(fb_job *job, fb_op_kind kind, const fb_call *call, int64_t bytes, fb_error *err) {
    fb_ops *ops = job->ops;
    int64_t worth = 1 + bytes / THREAD_BYTES;
    int32_t threads = worth < ops->threads ? (int32_t)worth : ops->threads;
    if (threads == 1 && !scratch_floats(kind, call)) {
        ops->isa->kernels[kind](call, &(fb_worker){.count = 1});
        return FB_OK;
    }
    if (job->locked) return run_parts(ops, kind, call, threads, err);
    pthread_mutex_lock(&ops->lock);
    fb_status status = run_parts(ops, kind, call, threads, err);
    pthread_mutex_unlock(&ops->lock);
    return status;
}

/* ---- both ---- */

fb_status fb_job_attend(fb_job *job, fb_op_kind kind, const fb_call *call, int64_t context, int64_t bytes,
                        fb_error *err) {
    fb_ops *ops = job->ops;
    return ops->cuda ? ops->cuda->launch(ops->gpu, kind, call, context, err)
                     : run_cpu(job, kind, call, bytes, err);
}

fb_status fb_job_run(fb_job *job, fb_op_kind kind, const fb_call *call, int64_t bytes, fb_error *err) {
    return fb_job_attend(job, kind, call, 0, bytes, err);
}

fb_status fb_ops_run_one(fb_ops *ops, void *stream, fb_op_kind kind, const fb_call *call, int64_t bytes,
                         fb_error *err) {
    fb_job job;
    if (call->rows == 0) return FB_OK;
    FB_TRY(fb_job_begin(ops, stream, 0, &job, err));
    fb_status status = fb_job_run(&job, kind, call, bytes, err);
    fb_job_end(&job);
    return status;
}
