/* attn_flash: scores, softmax and values in one pass over the cache. The scores are never stored. */
#include "backend/cuda/attention.cuh"

int fb_cuda_attn_flash(const fb_call *call, const fb_cuda_context *cx) {
    fb_attention a = fb_attention_of(call, cx);
    /* Scores with a soft cap have no kernel of their own: a tanh in the others would cost them registers. */
    if (a.width > FB_FLASH_WIDTH || a.cap) return cx->list ? FB_CUDA_NOT_LISTED : fb_cuda_attn_rows(call, cx);
    if (cx->list) return fb_cuda_flash_decode(&a, cx);
    if (!cx->runs)
        return a.rows <= FB_DECODE_ROWS ? fb_cuda_flash_decode(&a, cx) : fb_cuda_flash_prefill(&a, cx);
    for (int i = 0; i < cx->run_count; i++) {
        const fb_cuda_rows *run = &cx->runs[i];
        fb_attention part = fb_attention_part(&a, run->first, run->rows);
        int result = run->prompt ? fb_cuda_flash_prefill(&part, cx) : fb_cuda_flash_decode(&part, cx);
        if (result) return result;
    }
    return 0;
}
