/* embed, embed_position: rows of a table. */
#include "backend/cpu/kernel.h"
#include "backend/cpu/simd.h"

FB_INLINE void copy_part(fb_dtype from, fb_dtype to, const void *x, void *y, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += VW) vf_put_n(to, y, i, end, vf_get_n(from, x, i, end, 0));
}

/* Columns [begin, end) of table row `index` to row `row` of the output. */
static void copy_row(const fb_call *call, int64_t row, int64_t index, int64_t begin, int64_t end) {
    const fb_weight *table = &call->weights[0];
    const void *x = fb_at(table->data, table->dtype, index * table->cols);
    void *y = fb_view_at(&call->out[0], row, 0);
    FB_FOR_DTYPE(table->dtype, FROM,
                 FB_FOR_DTYPE(call->out[0].dtype, TO, copy_part(FROM, TO, x, y, begin, end)));
}

void FB_KERNEL(embed)(const fb_call *call, const fb_lane *lane) {
    int64_t begin, end;
    fb_lane_share(lane, call->weights[0].cols, 16, &begin, &end);
    for (int64_t row = 0; row < call->rows; row++) copy_row(call, row, call->ids[row], begin, end);
}

void FB_KERNEL(embed_position)(const fb_call *call, const fb_lane *lane) {
    int64_t begin, end;
    fb_lane_share(lane, call->weights[0].cols, 16, &begin, &end);
    for (int64_t row = 0; row < call->rows; row++) copy_row(call, row, call->position + row, begin, end);
}
