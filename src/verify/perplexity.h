/* The negative log-likelihood (nll) of a token. */
#ifndef FB_VERIFY_PERPLEXITY_H
#define FB_VERIFY_PERPLEXITY_H

#include "fusebox_tools.h"
#include "run/session.h"

/* -ln p(id) under logits [vocab], in double. NaN if a logit is NaN or +inf, or none is finite. */
double fb_nll(const float *logits, int64_t vocab, int32_t id);

/* fb_perplexity_run that shows the inputs of linears (fb_session_watch). `on_linear` may be NULL. */
fb_status fb_perplexity_watch(const fb_model *model, const fb_perplexity_options *options, const int32_t *ids,
                              int64_t count, fb_linear_fn on_linear, void *user,
                              fb_perplexity_report **report, fb_error *err);

#endif
