/* What all backends need of a bound program: where values lie, and the arguments of each op in a step. */
#ifndef FB_BACKEND_FRAME_H
#define FB_BACKEND_FRAME_H

#include "backend/backend.h"
#include "backend/call.h"

typedef struct fb_frame {
    fb_bound bound; /* with the device's weights */
    fb_executor_options options;
    fb_layout layout;
    uint8_t *buffer[FB_MAX_VALUES];
    bool in_epilogue[FB_MAX_VALUES];        /* values that have only the epilogue's rows */
    fb_call calls[FB_SECTIONS][FB_MAX_OPS]; /* complete but for weights, cache and the step's rows */
    /* The cache, by kind of layer: slots (a multiple of FB_KV_GROUP), and which positions they keep. */
    struct {
        int64_t capacity;
        int64_t half; /* bytes of one layer's k in a block (v has as many) */
        fb_ring ring;
    } cache[FB_MAX_KINDS];
    /* Layers in groups: those of a group are of one kind and share blocks. All blocks have the same size. */
    int32_t groups;
    struct {
        int32_t kind;
        int64_t table_at; /* the group's first entry in a sequence's table */
        int64_t entries;
    } group[FB_MAX_LAYERS];
    int64_t entries;                 /* of a sequence's table */
    int16_t group_of[FB_MAX_LAYERS]; /* by layer */
    int64_t cache_at[FB_MAX_LAYERS]; /* bytes from the beginning of a block to the layer's k */
    int64_t block_bytes;
    int32_t shift; /* log2 of a block's slots; with one block: so large that every slot is in block 0 */
} fb_frame;

/* The common head of an executor; each backend's own struct begins with it. */
struct fb_executor {
    fb_device *device;
    fb_frame frame;
};

fb_status fb_frame_init(fb_frame *frame, const fb_bound *bound, const fb_executor_options *options,
                        fb_error *err);

/* The bytes that all values take; and a call that assigns their addresses in memory of the backend. */
int64_t fb_frame_bytes(const fb_frame *frame);
void fb_frame_place(fb_frame *frame, uint8_t *memory);

fb_view fb_frame_view(const fb_frame *frame, int32_t value);
/* The index of the first of a value's last `rows` rows in a step. */
int64_t fb_frame_first(const fb_frame *frame, int32_t value, const fb_batch *batch, int64_t rows);

/* One layer's part of the cache, without addresses: those of a backend's kernels. */
fb_kv fb_frame_cache(const fb_frame *frame, int64_t layer);
/* The entry of a sequence's table that has a position of the group's layers. */
int64_t fb_frame_entry(const fb_frame *frame, int32_t group, int64_t position);
/* Writes a name such as "KV cache of 512 tokens", for messages. */
void fb_frame_cache_name(const fb_frame *frame, char *name, size_t size);

/* Fills in the call of op `index` of a section, for this layer and step. The backend sets call->kv. `rows`
 * are the batch's rows in memory that kernels can read. */
void fb_frame_call(const fb_frame *frame, fb_section section, int32_t index, int64_t layer,
                   const fb_batch *batch, const fb_row *rows, fb_call *call);

/* What `rows` rows carry from one layer to the next: its bytes, and a copy of it to or from `state`. */
int64_t fb_frame_state_bytes(const fb_frame *frame, int64_t rows);
void fb_frame_state_save(const fb_frame *frame, int64_t rows, uint8_t *state);
void fb_frame_state_load(const fb_frame *frame, int64_t rows, const uint8_t *state);

/* Counts one call of the op in a trace. */
void fb_trace_count(fb_trace *trace, const fb_op *op, fb_section section, bool barrier);

#endif
