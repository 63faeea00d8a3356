/* Mixtures of requests with a draft: for verify/draft.c. */
#ifndef FB_VERIFY_BATCH_H
#define FB_VERIFY_BATCH_H

#include "fusebox_tools.h"
#include "verify/script.h"

/* As fb_verify_batch; the scheduler, not the session that it is compared with, has this draft (or NULL). The
 * script gets to know the answers. */
fb_status fb_verify_batch_with(const fb_model *model, const fb_batch_verify_options *options,
                               const fb_draft *draft, fb_script *script, fb_batch_report *report,
                               int64_t *drafted, int64_t *kept, fb_error *err);

#endif
