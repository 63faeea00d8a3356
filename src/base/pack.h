/* Packed weights: a quantised matrix whose rows are interleaved in groups of 16. One stream of memory then
 * serves 16 outputs, and no sum has to be added up across a vector. Group g holds rows 16 g … 16 g + 15; rows
 * beyond the last one are zeros. For each block of 32 columns a group holds 16 scales (float16), then the
 * bytes of the 16 blocks, four bytes of each row in turn. That repeats eight times for Q8_0 and four times
 * for Q4_0. In round j of Q4_0 the low nibbles are columns 4 j … and the high nibbles columns 16 + 4 j … */
#ifndef FB_BASE_PACK_H
#define FB_BASE_PACK_H

#include "base/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FB_PACK_ROWS 16

/* Types that can be packed: Q8_0, Q4_0. */
static inline bool fb_pack_has(fb_dtype dtype) { return dtype == FB_Q8_0 || dtype == FB_Q4_0; }

/* Bytes of one block of 32 columns of a group. */
static inline int64_t fb_pack_block(fb_dtype dtype) { return FB_PACK_ROWS * fb_dtype_bytes(dtype, 32); }

int64_t fb_pack_bytes(fb_dtype dtype, int64_t rows, int64_t cols);

/* Writes row `row` of a matrix into `packed`. `from` is the row in file layout. */
void fb_pack_row(fb_dtype dtype, const void *from, int64_t cols, int64_t row, void *packed);
/* Reads a row back. */
void fb_unpack_row(fb_dtype dtype, const void *packed, int64_t cols, int64_t row, void *to);

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
