#include "base/pack.h"

#include "base/quant.h"

int64_t fb_pack_bytes(fb_dtype dtype, int64_t rows, int64_t cols) {
    return (rows + FB_PACK_ROWS - 1) / FB_PACK_ROWS * (cols / 32) * fb_pack_block(dtype);
}

/* Calls `move` for every piece of a row: its place in the row and in the packed matrix, and its size. */
typedef void (*move_fn)(uint8_t *row, uint8_t *packed, size_t size);

static void walk(fb_dtype dtype, uint8_t *row, uint8_t *packed, int64_t cols, int64_t index, move_fn move) {
    int64_t bytes = fb_dtype_bytes(dtype, 32), block = fb_pack_block(dtype), lane = index % FB_PACK_ROWS;
    packed += index / FB_PACK_ROWS * (cols / 32) * block;
    for (int64_t b = 0; b < cols / 32; b++, row += bytes, packed += block) {
        move(row, packed + 2 * lane, 2);
        for (int64_t j = 0; 4 * j + 2 < bytes; j++)
            move(row + 2 + 4 * j, packed + FB_PACK_ROWS * (2 + 4 * j) + 4 * lane, 4);
    }
}

static void into(uint8_t *row, uint8_t *packed, size_t size) { memcpy(packed, row, size); }
static void out_of(uint8_t *row, uint8_t *packed, size_t size) { memcpy(row, packed, size); }

void fb_pack_row(fb_dtype dtype, const void *from, int64_t cols, int64_t row, void *packed) {
    walk(dtype, (uint8_t *)(uintptr_t)from, packed, cols, row, into);
}

void fb_unpack_row(fb_dtype dtype, const void *packed, int64_t cols, int64_t row, void *to) {
    walk(dtype, to, (uint8_t *)(uintptr_t)packed, cols, row, out_of);
}

void fb_weight_row(const fb_weight *w, int64_t row, int64_t first, int64_t count, float *out) {
    if (!w->packed) {
        const uint8_t *data = w->data;
        fb_quant_decode(w->dtype, data + fb_dtype_bytes(w->dtype, row * w->cols + first), count, out);
        return;
    }
    uint8_t block[64];
    const uint8_t *group = (const uint8_t *)w->data +
                           (row / FB_PACK_ROWS * (w->cols / 32) + first / 32) * fb_pack_block(w->dtype);
    for (int64_t k = 0; k < count; k += 32, group += fb_pack_block(w->dtype)) {
        fb_unpack_row(w->dtype, group, 32, row % FB_PACK_ROWS, block);
        fb_quant_decode(w->dtype, block, 32, out + k);
    }
}

double fb_weight_get(const fb_weight *w, int64_t row, int64_t col) {
    if (!w->packed) return fb_dtype_get(w->dtype, w->data, row * w->cols + col);
    uint8_t block[64];
    const uint8_t *group =
        (const uint8_t *)w->data + row / FB_PACK_ROWS * (w->cols / 32) * fb_pack_block(w->dtype);
    fb_unpack_row(w->dtype, group + col / 32 * fb_pack_block(w->dtype), 32, row % FB_PACK_ROWS, block);
    return fb_dtype_get(w->dtype, block, col % 32);
}
