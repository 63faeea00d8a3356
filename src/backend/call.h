/* One op of a step, as a backend passes it to a kernel. The backend decides which memory the pointers refer
 * to, and the layout of weights and cache. */
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
    const fb_row *row; /* [rows]: token and position of each row, in memory that the kernel can read */
    fb_dtype act;      /* dtype in which the step stores results; head_argmax rounds its scores to it */
} fb_call;

#endif
