/* Packed weights: a quantised matrix whose rows are interleaved in groups of 16. One stream of memory then
 * serves 16 outputs, and no sum has to be added up across a vector. Group g holds rows 16 g … 16 g + 15; rows
 * beyond the last one are zeros.
 *
 * For each block of columns a group holds, as the type's row in quant_types (quant_blocks.h) says:
 *     16 scales of 16 bits, then as many minimums
 *     for every 32 columns of the block:
 *         for each part of 16 or 32 columns 16 bytes of scales; then the same of minimums, unless they are in
 *         the high nibbles of the scales
 *         the low bits, then the high bits, of all integers: words of four bytes, 16 rows in turn
 * A quad is four neighbouring columns of a row, whose integers are the four bytes of a word. Planes of fewer
 * than 8 bits have several quads in a word: with 4 bits quads j and j + 4 are in word j of 4, with 2 bits
 * quads j, j + 2, j + 4, j + 6 in word j of 2, with 1 bit all eight quads in one word; the first of them in
 * the lowest bits. */
#ifndef FB_BASE_PACK_H
#define FB_BASE_PACK_H

#include "base/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FB_PACK_ROWS 16

/* Types that can be packed: all quantised ones. */
static inline bool fb_pack_has(fb_dtype dtype) { return !fb_dtype_is_float(dtype); }

/* The types that a GPU keeps in their bits, in layouts of its own (pack_gpu.h): all quantised ones. */
static inline bool fb_pack_gpu_has(fb_dtype dtype) { return !fb_dtype_is_float(dtype); }

/* Bytes of one block of a group. */
int64_t fb_pack_block(fb_dtype dtype);
int64_t fb_pack_bytes(fb_dtype dtype, int64_t rows, int64_t cols);

/* Writes row `row` of a matrix into `packed`. `from` is the row in file layout. */
void fb_pack_row(fb_dtype dtype, const void *from, int64_t cols, int64_t row, void *packed);

/* Packs a whole weight of a file. */
void fb_pack(const fb_weight *from, void *packed);

/* Copies rows [first, first + count) of a file's weight, in the order in which ops read them and in the
 * weight's dtype. */
void fb_weight_copy(const fb_weight *weight, int64_t first, int64_t count, void *to);

/* Columns [first, first + count) of a row as floats. The weight is a file's or the CPU device's. The columns
 * are whole blocks, or reach to the end of the row. */
void fb_weight_row(const fb_weight *weight, int64_t row, int64_t first, int64_t count, float *out);

/* Matrix `expert` of a file's or the CPU device's weight. Packed matrices begin at a group of rows each. */
fb_weight fb_weight_expert(const fb_weight *weight, int64_t expert);

/* One element. */
double fb_weight_get(const fb_weight *weight, int64_t row, int64_t col);

#ifdef __cplusplus
}
#endif
#endif
