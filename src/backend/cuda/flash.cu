/* attn_flash: scores, softmax and values in one pass over the cache. The scores are never stored. */
#include "backend/cuda/attention.cuh"

int fb_cuda_attn_flash(const fb_call *call, const fb_cuda_context *cx) {
    fb_attention a = fb_attention_of(call, cx);
    /* Scores with a soft cap have no kernel of their own: a tanh in the others would cost them registers. */
    if (a.width > FB_FLASH_WIDTH || a.cap) return cx->list ? FB_CUDA_NOT_LISTED : fb_cuda_attn_rows(call, cx);
    return a.rows <= FB_DECODE_ROWS ? fb_cuda_flash_decode(&a, cx) : fb_cuda_flash_prefill(&a, cx);
}
