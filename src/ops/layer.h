/* A layer of a model on the caller's memory: its plan, and what one run of it needs. */
#ifndef FB_OPS_LAYER_H
#define FB_OPS_LAYER_H

#include "arch/arch.h"
#include "backend/frame.h"
#include "fuse/fuse.h"
#include "ops/rope.h"

struct fb_ops_layer {
    fb_ops *ops;
    fb_spec *spec; /* owns the plain program: one layer, no epilogue */
    fb_plan plan;
    fb_plan_options options;
    fb_weight weights[FB_MAX_SLOTS]; /* the caller's; those of other parts of the model are absent */
    fb_dtype act;
    int32_t angles;       /* value: the angles of rotary positions; FB_NONE: the model has none */
    int32_t rotary;       /* elements of a head that rotate */
    int32_t in, out;      /* values: the hidden state before and after */
    pthread_mutex_t lock; /* guards the rest */
    fb_frame frame;
    int64_t calls[FB_FUSE_COUNT];
};

#endif
