/* The rows of a step, as data that kernels read. A kernel takes a row's position and sequence from here. It
 * never counts positions itself. */
#ifndef FB_BACKEND_BATCH_H
#define FB_BACKEND_BATCH_H

#include <stdint.h>

/* One token of a step. */
typedef struct fb_row {
    int64_t position; /* in its sequence */
    int32_t token;
    int32_t sequence; /* index of its sequence in the batch */
    int32_t wanted;   /* 1: its logits are wanted; such rows come last */
    int32_t prompt;   /* 1: it is a token of a prompt; 0: it was generated */
} fb_row;

#endif
