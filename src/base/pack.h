/* Packed weights: a quantised matrix with its rows interleaved in groups of 16, so that one stream of memory
 * serves sixteen outputs and no sum has to be added up across a vector.
 *
 * Group g has rows 16 g … 16 g + 15 (those beyond the last row are zeros). For each block of 32 columns it
 * has the 16 scales (float16), then the blocks' bytes, four bytes of each row in turn: Q8_0 eight times, Q4_0
 * four times, whose low nibbles are columns 4 j … and whose high ones columns 16 + 4 j … */
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

/* Puts row `row`, `from` in file order, into its place in `packed`. */
void fb_pack_row(fb_dtype dtype, const void *from, int64_t cols, int64_t row, void *packed);
/* And back. */
void fb_unpack_row(fb_dtype dtype, const void *packed, int64_t cols, int64_t row, void *to);

/* Packs a whole weight of a file. */
void fb_pack(const fb_weight *from, void *packed);

/* Rows [first, first + count) of a file's weight as ops read them, in its dtype. */
void fb_weight_copy(const fb_weight *weight, int64_t first, int64_t count, void *to);

/* Columns [first, first + count) of a row, of a file or of the CPU, as floats: whole blocks, or up to the
 * row's end. */
void fb_weight_row(const fb_weight *weight, int64_t row, int64_t first, int64_t count, float *out);

/* One element. */
double fb_weight_get(const fb_weight *weight, int64_t row, int64_t col);

#ifdef __cplusplus
}
#endif
#endif
