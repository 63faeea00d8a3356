/* embed, embed_position: rows of a table. */
#include "backend/cpu/kernel.h"
#include "backend/cpu/tile.h"

FB_INLINE void copy_part(fb_dtype from, fb_dtype to, const void *x, void *y, int64_t count, float scale) {
    for (int64_t i = 0; i < count; i += VW) vf_put_n(to, y, i, count, vf_get_n(from, x, i, count, 0) * scale);
}

/* Copies columns [begin, end) of table row `index` to row `row` of the output. */
static void copy_row(const fb_call *call, int64_t row, int64_t index, int64_t begin, int64_t end,
                     float *scratch) {
    const fb_weight *table = &call->weights[0];
    const fb_view *out = &call->out[0];
    const void *x = scratch;
    void *y = fb_at(fb_view_at(out, row, 0), out->dtype, begin);
    bool floats = fb_dtype_is_float(table->dtype);
    float scale = call->attr.scale ? call->attr.scale : 1; /* a product with 1 is exact */
    if (floats)
        x = fb_at(table->data, table->dtype, index * table->cols + begin);
    else
        decode_row(table, index, begin, end - begin, scratch);
    FB_FOR_DTYPE(floats ? table->dtype : FB_F32, FROM,
                 FB_FOR_DTYPE(out->dtype, TO, copy_part(FROM, TO, x, y, end - begin, scale)));
}

/* Copies the table's row of each token, or of each position. Workers share the columns; of a quantised table,
 * in whole blocks. */
static void look_up(const fb_call *call, const fb_worker *worker, bool by_position) {
    const fb_weight *table = &call->weights[0];
    int64_t block = fb_dtype_block(table->dtype), begin, end;
    fb_worker_share(worker, table->cols, block < 16 ? 16 : block, &begin, &end);
    for (int64_t row = 0; row < call->rows && begin < end; row++)
        copy_row(call, row, by_position ? call->row[row].position : call->row[row].token, begin, end,
                 worker->scratch);
}

void FB_KERNEL(embed)(const fb_call *call, const fb_worker *worker) { look_up(call, worker, false); }
void FB_KERNEL(embed_position)(const fb_call *call, const fb_worker *worker) { look_up(call, worker, true); }
