/* A second opinion on streaming: StreamingLLM as it was published, one token at a time, in double. It shares
 * nothing with the kernels or the cache: keys are kept as they were before their rotation, and all of them
 * are rotated anew for every token. Slow, and asserts like the rest of support. */
#ifndef FB_TESTS_SLOW_STREAM_H
#define FB_TESTS_SLOW_STREAM_H

#include <stdint.h>

typedef struct slow_model slow_model;

/* A Hugging Face folder of float16 weights: GPT-NeoX (both residuals, biases, gelu) or Llama (no biases,
 * silu), with plain rotary positions. */
slow_model *slow_open(const char *folder);
void slow_free(slow_model *model);

int64_t slow_vocab(const slow_model *model);

/* The logits [count, vocab] of the ids of a stream from its beginning. After each token the cache keeps the
 * first `sinks` tokens and the last `window` ones; with a window of 0 it keeps all. */
void slow_stream(const slow_model *model, const int32_t *ids, int64_t count, int64_t sinks, int64_t window,
                 double *logits);

#endif
