/* The order of a weight's rows in its file, where it differs from the order in which ops read them. */
#ifndef FB_BASE_ORDER_H
#define FB_BASE_ORDER_H

#include <stdint.h>

/* A bias counts as rows of one element each. */
typedef enum fb_row_order {
    FB_ROWS_SAME,
    FB_ROWS_ROPE_PAIRS, /* within a head, [2][dim / 2] is stored as [dim / 2][2]: the two elements that rotate
                           together are adjacent */
    FB_ROWS_QKV,        /* [heads][q k v][dim] is stored as [q k v][heads][dim] */
    FB_ROWS_TRANSPOSED, /* [rows, cols] is stored as [cols, rows] */
} fb_row_order;

/* The row of the file that holds row `row` of `rows`. Not for transposed weights. `rows` is a multiple of
 * head_dim (of 3 * head_dim for QKV). For ROPE_PAIRS, head_dim is even. */
static inline int64_t fb_order_row(fb_row_order order, int64_t rows, int64_t head_dim, int64_t row) {
    if (order == FB_ROWS_SAME || order == FB_ROWS_TRANSPOSED) return row;
    int64_t head = row / head_dim, i = row % head_dim, half = head_dim / 2;
    if (order == FB_ROWS_ROPE_PAIRS) return head * head_dim + i % half * 2 + i / half;
    return head % 3 * (rows / 3) + head / 3 * head_dim + i; /* here `head` counts [heads][q k v] */
}

#endif
