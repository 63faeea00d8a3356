/* quantize: converts rows to blocks of 8-bit integers. Workers share the blocks. */
#include "backend/cpu/kernel.h"
#include "backend/cpu/tile.h"

void FB_KERNEL(quantize)(const fb_call *call, const fb_worker *worker) {
    const fb_view *x = &call->in[0];
    int64_t k = x->heads * x->width, begin, end;
    fb_worker_share(worker, k / 32, 1, &begin, &end);
    for (int64_t row = 0; row < call->rows; row++) {
        const float *floats = worker->scratch;
        if (x->dtype == FB_F32)
            floats = (const float *)fb_view_at(x, row, 0) + 32 * begin;
        else
            FB_FOR_DTYPE(x->dtype, T,
                         decode_floats(T, vf_address(T, fb_view_at(x, row, 0), 32 * begin),
                                       32 * (end - begin), worker->scratch));
        quantize_row(floats, 32 * (end - begin), (fb_q8 *)fb_view_at(&call->out[0], row, 0) + begin);
    }
}
