/* Single ops on a caller's memory and stream (backend/cuda/ops.h): workspaces, launches, packed weights.
 *
 * Each stream has a workspace of its own. Graphs that a caller captured hold its addresses, so memory that a
 * larger one replaces is kept until the context is closed. Sizes are powers of two: all that is kept together
 * is less than the largest. */
#include <stdlib.h>

#include "backend/cuda/host/host.h"
#include "backend/cuda/load.h"
#include "backend/cuda/ops.h"

#define LEAST_BYTES ((int64_t)1 << 20)

typedef struct region {
    uint8_t *memory;
    int64_t bytes;
} region;

typedef struct workspace {
    void *stream;
    region scratch; /* fb_cuda_context.scratch */
    region temp;    /* what launches of one op hand to each other; the first TEMP_AT bytes are zeros */
} workspace;

/* An address of zero for fb_cuda_context.tables: kv.k_at is then itself an address. */
#define TEMP_AT 256

struct fb_cuda_ops {
    fb_gpu *gpu; /* the device's */
    pthread_mutex_t lock;
    workspace *spaces;
    int64_t space_count, space_room;
    void **kept; /* memory that was replaced */
    int64_t kept_count, kept_room;
    /* Of the op that is running. */
    fb_cuda_context cx;
    int64_t current; /* its workspace */
    bool launched;   /* a kernel of it */
    int32_t before;  /* the caller's current device */
};

/* ---- workspaces ---- */

/* An array with room for one more element of `size` bytes. NULL: no memory; the old one stays. */
static void *one_more(void *array, int64_t count, int64_t *room, size_t size, fb_error *err) {
    if (count < *room) return array;
    int64_t wanted = *room ? 2 * *room : 8;
    void *more = realloc(array, (size_t)wanted * size);
    if (more)
        *room = wanted;
    else
        fb_fail_memory(err, "workspaces", wanted * (int64_t)size);
    return more;
}

/* A new workspace at the end of the list. */
static fb_status add_space(fb_cuda_ops *ops, workspace added, int64_t *index, fb_error *err) {
    workspace *more = one_more(ops->spaces, ops->space_count, &ops->space_room, sizeof *more, err);
    if (!more) return FB_ERROR_MEMORY;
    ops->spaces = more;
    *index = ops->space_count++;
    ops->spaces[*index] = added;
    return FB_OK;
}

static fb_status grow(fb_cuda_ops *ops, region *r, int64_t bytes, int64_t zeros, fb_error *err) {
    if (bytes <= r->bytes) return FB_OK;
    int64_t size = LEAST_BYTES;
    while (size < bytes) size *= 2;
    void *memory, **kept = one_more(ops->kept, ops->kept_count, &ops->kept_room, sizeof *kept, err);
    if (!kept) return FB_ERROR_MEMORY;
    ops->kept = kept;
    FB_TRY(fb_gpu_take(ops->gpu, "workspace of an op", size, &memory, err));
    fb_status status = fb_gpu_clear(ops->gpu, memory, zeros, err);
    if (status != FB_OK) {
        fb_gpu_give(ops->gpu, memory);
        return status;
    }
    if (r->memory) ops->kept[ops->kept_count++] = r->memory;
    *r = (region){memory, size};
    return FB_OK;
}

/* The workspace of a stream: a new one, without memory, if it has none. */
static fb_status find(fb_cuda_ops *ops, void *stream, int64_t *out, fb_error *err) {
    for (int64_t i = 0; i < ops->space_count; i++)
        if (ops->spaces[i].stream == stream) {
            *out = i;
            return FB_OK;
        }
    return add_space(ops, (workspace){.stream = stream}, out, err);
}

static fb_status reserve_space(fb_cuda_ops *ops, void *stream, int64_t bytes, fb_error *err) {
    int64_t index;
    FB_TRY(find(ops, stream, &index, err));
    workspace *w = &ops->spaces[index];
    FB_TRY(grow(ops, &w->scratch, bytes, FB_CUDA_COUNTERS, err));
    return grow(ops, &w->temp, bytes + TEMP_AT, TEMP_AT, err);
}

static fb_status reserve(fb_cuda_ops *ops, void *stream, int64_t bytes, fb_error *err) {
    int32_t before;
    pthread_mutex_lock(&ops->lock);
    fb_status status = fb_gpu_enter(ops->gpu, &before, err);
    if (status == FB_OK) {
        status = reserve_space(ops, stream, bytes, err);
        fb_gpu_leave(before);
    }
    pthread_mutex_unlock(&ops->lock);
    return status;
}

/* ---- contexts ---- */

static fb_status open_ops(fb_device *device, fb_cuda_ops **out, fb_error *err) {
    fb_cuda_ops *ops = calloc(1, sizeof *ops);
    *out = NULL;
    if (!ops) return fb_fail_memory(err, "ops", sizeof *ops);
    ops->gpu = ((fb_cuda_device *)device)->gpu;
    pthread_mutex_init(&ops->lock, NULL);
    fb_gpu_context(ops->gpu, &ops->cx);
    *out = ops;
    return FB_OK;
}

static void close_ops(fb_cuda_ops *ops) {
    int32_t before = 0;
    bool entered = fb_gpu_enter(ops->gpu, &before, NULL) == FB_OK;
    for (int64_t i = 0; i < ops->space_count; i++) {
        fb_gpu_give(ops->gpu, ops->spaces[i].scratch.memory);
        fb_gpu_give(ops->gpu, ops->spaces[i].temp.memory);
    }
    for (int64_t i = 0; i < ops->kept_count; i++) fb_gpu_give(ops->gpu, ops->kept[i]);
    if (entered) fb_gpu_leave(before);
    pthread_mutex_destroy(&ops->lock);
    free(ops->spaces);
    free(ops->kept);
    free(ops);
}

/* ---- launches ---- */

static fb_status begin_space(fb_cuda_ops *ops, void *stream, int64_t temp_bytes, uint8_t **temp,
                             fb_error *err) {
    FB_TRY(find(ops, stream, &ops->current, err));
    workspace *w = &ops->spaces[ops->current];
    if (temp_bytes) FB_TRY(grow(ops, &w->temp, temp_bytes + TEMP_AT, TEMP_AT, err));
    *temp = temp_bytes ? w->temp.memory + TEMP_AT : NULL;
    ops->cx.stream = stream;
    ops->launched = false;
    return FB_OK;
}

static fb_status begin(fb_cuda_ops *ops, void *stream, int64_t temp_bytes, uint8_t **temp, fb_error *err) {
    pthread_mutex_lock(&ops->lock);
    fb_status status = fb_gpu_enter(ops->gpu, &ops->before, err);
    if (status == FB_OK) {
        status = begin_space(ops, stream, temp_bytes, temp, err);
        if (status != FB_OK) fb_gpu_leave(ops->before);
    }
    if (status != FB_OK) pthread_mutex_unlock(&ops->lock);
    return status;
}

static void end(fb_cuda_ops *ops) {
    fb_gpu_leave(ops->before);
    pthread_mutex_unlock(&ops->lock);
}

static int64_t scratch_bytes(fb_op_kind kind, const fb_call *call) {
    switch (kind) {
    case FB_OP_LINEAR:
    case FB_OP_LINEAR_GROUP:
        return fb_cuda_linear_scratch(call, call->rows);
    case FB_OP_ATTN_SCORES:
    case FB_OP_ATTN_VALUES:
    case FB_OP_ATTN_ROWS:
    case FB_OP_ATTN_FLASH:
        return fb_cuda_attention_scratch(call, call->rows, call->kv.capacity);
    default:
        return 0;
    }
}

/* The context of the op's next kernel. A kernel that starts early reads weights before the kernel before it
 * has ended. A caller's weights may be what that one writes, so the first kernel of an op reads nothing
 * before. The op's other kernels may start early: what comes before them is the op's own. */
static fb_cuda_context next_launch(fb_cuda_ops *ops) {
    fb_cuda_context cx = ops->cx;
    bool can = fb_gpu_limits(ops->gpu)->major >= 9;
    cx.overlap = can && ops->launched;
    cx.late = can && !ops->launched;
    ops->launched = true;
    return cx;
}

static fb_status launch(fb_cuda_ops *ops, fb_op_kind kind, const fb_call *call, int64_t context,
                        fb_error *err) {
    workspace *w = &ops->spaces[ops->current];
    fb_cuda_context cx = next_launch(ops);
    FB_TRY(grow(ops, &w->scratch, scratch_bytes(kind, call), FB_CUDA_COUNTERS, err));
    cx.scratch = w->scratch.memory;
    cx.scratch_bytes = w->scratch.bytes;
    cx.frequencies = call->attr.frequencies;
    cx.tables = (uint8_t *const *)(const void *)w->temp.memory;
    cx.sequences = 1;
    cx.context = context;
    return fb_gpu_check(fb_cuda_launches[kind](call, &cx), fb_op_table[kind].name, err);
}

static fb_status rows(fb_cuda_ops *ops, const void *positions, bool wide, int64_t first, int64_t last,
                      int64_t count, fb_row *to, fb_error *err) {
    fb_cuda_context cx = next_launch(ops);
    return fb_gpu_check(fb_cuda_positions(positions, wide, first, last, count, to, &cx), "positions", err);
}

static fb_status numbers(fb_cuda_ops *ops, const double *from, int64_t count, double *to, fb_error *err) {
    fb_cuda_context cx = next_launch(ops);
    return fb_gpu_check(fb_cuda_numbers(from, count, to, &cx), "frequencies", err);
}

/* ---- packed weights ---- */

/* On the device's own stream, which the holder of the device's turn may use. */
static fb_status split(fb_gpu *gpu, const fb_weight *from, uint8_t *blocks, uint8_t *data, fb_error *err) {
    int64_t count = from->rows * (from->cols / 32), quants = fb_dtype_bytes(from->dtype, 32) - 2;
    fb_cuda_context cx;
    fb_gpu_context(gpu, &cx);
    FB_TRY(fb_gpu_upload(gpu, blocks, from->data, fb_dtype_bytes(from->dtype, from->rows * from->cols), err));
    fb_status status = fb_gpu_check(
        fb_cuda_split_blocks(blocks, count, (int)quants, data, data + count * quants, &cx), "packing", err);
    fb_status waited = fb_gpu_wait(gpu, status == FB_OK ? err : NULL);
    return status == FB_OK ? waited : status;
}

static fb_status pack_weight(fb_gpu *gpu, const fb_weight *from, fb_weight *to, fb_error *err) {
    int64_t bytes = fb_dtype_bytes(from->dtype, from->rows * from->cols);
    void *blocks = NULL, *data = NULL;
    fb_status status = fb_gpu_take(gpu, "packed weight", bytes, &data, err);
    if (status == FB_OK) status = fb_gpu_take(gpu, "weight to be packed", bytes, &blocks, err);
    if (status == FB_OK) status = split(gpu, from, blocks, data, err);
    fb_gpu_give(gpu, blocks);
    if (status != FB_OK) {
        fb_gpu_give(gpu, data);
        return status;
    }
    *to = *from;
    to->data = data;
    to->packed = true;
    return FB_OK;
}

static fb_status pack(fb_cuda_ops *ops, const fb_weight *from, fb_weight *to, fb_error *err) {
    int32_t before;
    FB_TRY(fb_gpu_enter(ops->gpu, &before, err));
    fb_status status = pack_weight(ops->gpu, from, to, err);
    fb_gpu_leave(before);
    return status;
}

static void unpack(fb_cuda_ops *ops, const fb_weight *weight) {
    int32_t before;
    bool entered = fb_gpu_enter(ops->gpu, &before, NULL) == FB_OK;
    fb_gpu_give(ops->gpu, (void *)(uintptr_t)weight->data);
    if (entered) fb_gpu_leave(before);
}

const fb_cuda_ops_table fb_cuda_ops_functions = {
    .open = open_ops,
    .close = close_ops,
    .reserve = reserve,
    .begin = begin,
    .end = end,
    .launch = launch,
    .rows = rows,
    .numbers = numbers,
    .pack = pack,
    .unpack = unpack,
};
