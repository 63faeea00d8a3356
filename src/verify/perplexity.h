/* The negative log-likelihood (nll) of a token. */
#ifndef FB_VERIFY_PERPLEXITY_H
#define FB_VERIFY_PERPLEXITY_H

#include "base/status.h"

/* -ln p(id) under logits [vocab], in double. NaN if a logit is NaN or +inf, or none is finite. */
double fb_nll(const float *logits, int64_t vocab, int32_t id);

#endif
