/* Fills a screen. Workers share the rows of the weight. */
#include "backend/cpu/screen.h"
#include "backend/cpu/kernel.h"

/* Converts 32 elements to a Q8_0 block with a float16 scale. Adds the squares of the elements and of the
 * differences. */
FB_INLINE void screen_block(fb_dtype t, const void *from, int8_t *q, uint16_t *scale, vf *squares,
                            vf *differences) {
    vf most = vf_set1(0);
    for (int i = 0; i < 32; i += VW) {
        vf v = vf_get(t, from, i);
        most = vf_max(vf_max(v, -v), most); /* ignores a NaN, which shows in the differences */
    }
    *scale = fb_f32_to_f16(vf_max_of(most) / 127);
    float step = fb_f16_to_f32(*scale), inverse = step > 0 ? 1 / step : 0;
    for (int i = 0; i < 32; i += VW) {
        vf v = vf_get(t, from, i);
        vf n = vf_max(vf_set1(-127), vf_min(vf_set1(127), vf_round(v * inverse))), copy = n * step;
        vi_store_bytes(q + i, vf_to_int(n));
        *squares += copy * copy;
        *differences += (v - copy) * (v - copy);
    }
}

FB_INLINE void screen_row(fb_dtype t, const fb_weight *w, int64_t row) {
    fb_screen *s = w->screen;
    int64_t in_group = row % FB_PACK_ROWS, blocks = w->cols / 32, bytes = fb_pack_block(FB_Q8_0);
    uint8_t *to = (uint8_t *)(uintptr_t)s->copy.data + row / FB_PACK_ROWS * blocks * bytes;
    const uint8_t *from = vf_address(t, w->data, row * w->cols);
    vf squares = vf_set1(0), differences = vf_set1(0);
    for (int64_t b = 0; b < blocks; b++, to += bytes) {
        int8_t q[32];
        uint16_t scale;
        screen_block(t, vf_address(t, from, 32 * b), q, &scale, &squares, &differences);
        memcpy(to + 2 * in_group, &scale, 2);
        for (int j = 0; j < 8; j++) memcpy(to + 32 + 64 * j + 4 * in_group, q + 4 * j, 4);
    }
    s->norm[row] = sqrtf(vf_sum(squares));
    s->difference[row] = sqrtf(vf_sum(differences));
}

void FB_KERNEL(screen)(const fb_call *call, const fb_worker *worker) {
    const fb_weight *w = &call->weights[0];
    int64_t begin, end, blocks = w->cols / 32;
    fb_worker_share(worker, w->rows, FB_PACK_ROWS, &begin, &end);
    if (end == w->rows && end % FB_PACK_ROWS) { /* the last group is not full */
        int64_t bytes = blocks * fb_pack_block(FB_Q8_0);
        memset((uint8_t *)(uintptr_t)w->screen->copy.data + end / FB_PACK_ROWS * bytes, 0, (size_t)bytes);
    }
    for (int64_t row = begin; row < end; row++) FB_FOR_DTYPE(w->dtype, T, screen_row(T, w, row));
}
