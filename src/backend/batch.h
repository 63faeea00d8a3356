/* What one step computes, as data that kernels read: its rows, and where each row's sequence keeps its keys
 * and values. A kernel takes a row's place from here; it never counts positions itself. */
#ifndef FB_BACKEND_BATCH_H
#define FB_BACKEND_BATCH_H

#include <stdint.h>

/* One token of a step. */
typedef struct fb_row {
    int64_t position; /* in its sequence */
    int32_t token;
    int32_t sequence; /* which of the step's sequences: an index into its caches */
    int32_t wanted;   /* 1: its logits are wanted; such rows are the last ones */
    int32_t unused;
} fb_row;

#endif
