/* fusebox run --batch: several answers to one prompt, computed together. */
#ifndef FB_CLI_RUN_BATCH_H
#define FB_CLI_RUN_BATCH_H

#include "cli/draft.h"
#include "cli/generate.h"

#define CLI_MAX_BATCH 256

/* Of the generation: the model, options, prompt, limit and stop texts. Writes the answers to standard output,
 * or one JSON object; with `stats`, times and speed to standard error. Returns an exit status. */
int cli_run_batch(const cli_generation *generation, int64_t answers, const cli_draft *draft, bool json,
                  bool stats);

#endif
