/* How a GPU keeps quantised weights in their bits: records. Q8_0 and Q4_0 have them only in a model whose
 * layers mix them with other types; otherwise they have a layout of their own (backend/cuda/kernel.h).
 *
 * A row is cut into records of 2048 columns; the last one may have fewer. One copy brings a whole record to
 * shared memory. A chunk is 32 columns. For each type a record has, as its row in quant_types says:
 *     the low bits of all chunks, then the high bits of all: words of four bytes as in pack.h, a chunk's next
 * to each other of all blocks: the scale and the minimum of 16 bits each; MXFP4 has the file's byte of all
 * chunks: two parts' scales, or a part's scale and minimum, in bytes; with four bits each a part's are in one
 * byte; nothing if parts have no scales and zeros up to a multiple of 16 bytes. So a row takes up to 4% more
 * than in the file. */
#ifndef FB_BASE_PACK_GPU_H
#define FB_BASE_PACK_GPU_H

#include "base/pack.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FB_RECORD_COLUMNS 2048

/* Whether matrices of this type always are records. */
FB_EVERYWHERE static inline bool fb_record_has(fb_dtype dtype) {
    return (unsigned)dtype >= FB_FLOAT_COUNT && dtype != FB_Q8_0 && dtype != FB_Q4_0;
}
/* Whether this one is, on a GPU. */
static inline bool fb_weight_is_records(const fb_weight *w) {
    return !fb_dtype_is_float(w->dtype) && !w->packed;
}

/* Bytes of a record of so many columns, up to FB_RECORD_COLUMNS, and of a row. */
int64_t fb_record_bytes(fb_dtype dtype, int64_t cols);
int64_t fb_record_row_bytes(fb_dtype dtype, int64_t cols);

/* Writes a row. `from` is the row in file layout. */
void fb_record_pack(fb_dtype dtype, const void *from, int64_t cols, void *to);

#ifdef __cplusplus
}
#endif
#endif
