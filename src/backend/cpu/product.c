/* Sums of products with any weight. The tiles of all dtypes and shapes are most of what is compiled of
 * projections and experts; here they are once for both. */
#include "backend/cpu/product.h"

void products(const fb_worker *worker, const fb_weight *w, const input *in, int64_t row, int64_t rows,
              int64_t n, int64_t ns, const uint8_t *next, tile_work *work, float *sums) {
    if (in->q) {
        int64_t groups = (ns + FB_PACK_ROWS - 1) / FB_PACK_ROWS;
        const int32_t *halves = in->halves ? in->halves + row * (w->cols / 32) : NULL;
        packed_sums(worker, w->dtype, rows)(weight_row(w, n), in->q + row * in->ld, halves, in->ld, w->cols,
                                            rows, groups, sums, BLOCK_N);
        return;
    }
    if (in->bf16) {
        worker->bf16(weight_row(w, n), vf_address(FB_BF16, in->bf16, row * in->ld), in->ld, w->cols, rows, ns,
                     next, work, sums);
        return;
    }
    const float *x = in->x + row * in->ld;
    if (rows == 1 && fb_dtype_is_float(w->dtype))
        FB_FOR_DTYPE(w->dtype, WT,
                     tiles_one(WT, vf_address(WT, w->data, n * w->cols), x, w->cols, ns, next, sums));
    else if (rows <= FEW_M && fb_dtype_is_float(w->dtype))
        FB_FOR_DTYPE(
            w->dtype, WT,
            tiles_few(WT, vf_address(WT, w->data, n * w->cols), x, in->ld, rows, w->cols, ns, next, sums));
    else
        tiles_many(w, n, ns, x, in->ld, rows, work, sums);
}
