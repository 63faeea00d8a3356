/* One op of a step, as a backend hands it to a kernel. Which memory the pointers name, and how weights and
 * cache lie in it, is the backend's own affair. */
#ifndef FB_BACKEND_CALL_H
#define FB_BACKEND_CALL_H

#include "backend/batch.h"
#include "base/tensor.h"
#include "program/ops.h"

typedef struct fb_call {
    fb_view in[FB_MAX_IN], out[FB_MAX_OUT];
    fb_weight weights[FB_MAX_WEIGHTS];
    fb_op_attr attr;
    fb_kv kv;
    int64_t rows;      /* tokens of the step */
    const fb_row *row; /* [rows]: token and position of each, in memory that the kernel can read */
    fb_dtype act;      /* in which the step stores results: what head_argmax would have stored */
} fb_call;

#endif
