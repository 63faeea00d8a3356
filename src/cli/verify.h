/* Parts of `fusebox verify`. */
#ifndef FB_CLI_VERIFY_H
#define FB_CLI_VERIFY_H

#include "cli/model.h"

/* The two outputs of a proof of fusion: without a golden. */
void cli_fusion_table(const fb_fusion_report *report);
void cli_fusion_json(const fb_fusion_report *report);

/* With --draft; `how` completes the options. */
int cli_verify_draft(const fb_model *model, const cli_model_options *how, fb_draft_verify_options *options,
                     bool as_json);

/* With --batch. */
int cli_verify_batch(const fb_model *model, const cli_model_options *how, int64_t rounds, uint64_t seed,
                     bool as_json);

#endif
