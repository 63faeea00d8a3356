/* The two outputs of a proof of fusion, of `fusebox verify` without a golden. */
#ifndef FB_CLI_VERIFY_H
#define FB_CLI_VERIFY_H

#include "cli/cli.h"

void cli_fusion_table(const fb_fusion_report *report);
void cli_fusion_json(const fb_fusion_report *report);

#endif
