#include "base/pack.h"

#include "base/pack_blocks.h"

int64_t fb_pack_block(fb_dtype dtype) { return pack_block_bytes(&quant_types[dtype]); }

int64_t fb_pack_bytes(fb_dtype dtype, int64_t rows, int64_t cols) {
    return (rows + FB_PACK_ROWS - 1) / FB_PACK_ROWS * (cols / quant_types[dtype].columns) *
           fb_pack_block(dtype);
}

void fb_pack_row(fb_dtype dtype, const void *from, int64_t cols, int64_t row, void *packed) {
    const quant_type *t = &quant_types[dtype];
    int64_t blocks = cols / t->columns, bytes = fb_dtype_bytes(dtype, t->columns), size = pack_block_bytes(t);
    const uint8_t *block = from;
    uint8_t *to = (uint8_t *)packed + row / FB_PACK_ROWS * blocks * size;
    quant_parts parts;
    for (int64_t b = 0; b < blocks; b++, block += bytes, to += size) {
        t->split(block, &parts);
        pack_block(t, &parts, row % FB_PACK_ROWS, to);
    }
}

fb_weight fb_weight_expert(const fb_weight *w, int64_t expert) {
    fb_weight one = *w;
    if (!w->experts) return one;
    one.rows = w->rows / w->experts;
    int64_t bytes =
        w->packed ? fb_pack_bytes(w->dtype, one.rows, w->cols) : fb_dtype_bytes(w->dtype, one.rows * w->cols);
    one.data = w->parts ? w->parts[expert] : (const uint8_t *)w->data + expert * bytes;
    one.experts = 0;
    one.parts = NULL;
    return one;
}

static void pack_matrix(const fb_weight *w, void *packed) {
    int64_t row_bytes = fb_dtype_bytes(w->dtype, w->cols);
    int64_t group = fb_pack_bytes(w->dtype, FB_PACK_ROWS, w->cols);
    uint8_t *last = (uint8_t *)packed + w->rows / FB_PACK_ROWS * group;
    if (w->rows % FB_PACK_ROWS) memset(last, 0, (size_t)group);
    for (int64_t row = 0; row < w->rows; row++) {
        int64_t from = fb_order_row(w->order, w->rows, w->head_dim, row);
        fb_pack_row(w->dtype, (const uint8_t *)w->data + from * row_bytes, w->cols, row, packed);
    }
}

void fb_pack(const fb_weight *w, void *packed) {
    int64_t count = w->experts ? w->experts : 1, bytes = fb_pack_bytes(w->dtype, w->rows / count, w->cols);
    for (int64_t e = 0; e < count; e++) {
        fb_weight one = fb_weight_expert(w, e);
        pack_matrix(&one, (uint8_t *)packed + e * bytes);
    }
}

/* ---- a file's rows ---- */

/* A vector in another order is treated as rows of one element. */
static fb_weight as_rows(const fb_weight *w) {
    fb_weight rows = *w;
    if (w->rows == 1 && w->order != FB_ROWS_SAME) rows.rows = w->cols, rows.cols = 1;
    return rows;
}

/* Exchanges rows and columns, in squares of 32 so that both sides stay in cache. */
static void copy_transposed(const fb_weight *w, int64_t first, int64_t count, uint8_t *to) {
    int64_t size = fb_dtype_size(w->dtype);
    const uint8_t *from = w->data;
    for (int64_t r0 = 0; r0 < count; r0 += 32)
        for (int64_t c0 = 0; c0 < w->cols; c0 += 32)
            for (int64_t r = r0; r < count && r < r0 + 32; r++)
                for (int64_t c = c0; c < w->cols && c < c0 + 32; c++)
                    memcpy(to + (r * w->cols + c) * size, from + (c * w->rows + first + r) * size,
                           (size_t)size);
}

/* Rows of one matrix after the other. */
static void copy_parts(const fb_weight *w, int64_t first, int64_t count, uint8_t *to) {
    int64_t each = w->rows / w->experts, bytes = fb_dtype_bytes(w->dtype, w->cols);
    while (count > 0) {
        fb_weight one = fb_weight_expert(w, first / each);
        int64_t row = first % each, n = each - row < count ? each - row : count;
        fb_weight_copy(&one, row, n, to);
        first += n, count -= n, to += n * bytes;
    }
}

void fb_weight_copy(const fb_weight *weight, int64_t first, int64_t count, void *to) {
    if (weight->parts) {
        copy_parts(weight, first, count, to);
        return;
    }
    fb_weight w = as_rows(weight);
    if (w.rows != weight->rows) count = w.rows;
    int64_t bytes = fb_dtype_bytes(w.dtype, w.cols);
    const uint8_t *from = w.data;
    if (w.order == FB_ROWS_SAME)
        memcpy(to, from + first * bytes, (size_t)(count * bytes));
    else if (w.order == FB_ROWS_TRANSPOSED)
        copy_transposed(&w, first, count, to);
    else
        for (int64_t i = 0; i < count; i++)
            memcpy((uint8_t *)to + i * bytes,
                   from + fb_order_row(w.order, w.rows, w.head_dim, first + i) * bytes, (size_t)bytes);
}

/* The index of an element in the file's array. */
static int64_t element_at(const fb_weight *w, int64_t row, int64_t col) {
    if (w->order == FB_ROWS_SAME) return row * w->cols + col;
    if (w->order == FB_ROWS_TRANSPOSED) return col * w->rows + row;
    if (w->rows == 1) return fb_order_row(w->order, w->cols, w->head_dim, col);
    return fb_order_row(w->order, w->rows, w->head_dim, row) * w->cols + col;
}

/* ---- one row, one element ---- */

void fb_weight_row(const fb_weight *w, int64_t row, int64_t first, int64_t count, float *out) {
    if (w->experts) {
        fb_weight one = fb_weight_expert(w, row / (w->rows / w->experts));
        fb_weight_row(&one, row % one.rows, first, count, out);
        return;
    }
    if (w->order == FB_ROWS_TRANSPOSED || (w->rows == 1 && w->order != FB_ROWS_SAME)) {
        for (int64_t i = 0; i < count; i++) out[i] = (float)fb_weight_get(w, row, first + i);
        return;
    }
    if (!w->packed) {
        const uint8_t *data = w->data;
        fb_quant_decode(w->dtype, data + fb_dtype_bytes(w->dtype, element_at(w, row, first)), count, out);
        return;
    }
    unpack_columns(w, row, first, count, out);
}

double fb_weight_get(const fb_weight *w, int64_t row, int64_t col) {
    if (w->experts) {
        fb_weight one = fb_weight_expert(w, row / (w->rows / w->experts));
        return fb_weight_get(&one, row % one.rows, col);
    }
    if (!w->packed) return fb_dtype_get(w->dtype, w->data, element_at(w, row, col));
    float values[FB_MAX_BLOCK];
    int64_t columns = quant_types[w->dtype].columns;
    unpack_columns(w, row, col / columns * columns, columns, values);
    return values[col % columns];
}
