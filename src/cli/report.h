/* What a generation took, for people (--stats) and for programs (--json). */
#ifndef FB_CLI_REPORT_H
#define FB_CLI_REPORT_H

#include "cli/generate.h"

typedef struct cli_report {
    const cli_generation *generation;
    double load_seconds;
    const char *prompt, *text;
    size_t prompt_bytes, text_bytes;
} cli_report;

void cli_report_stats(const cli_report *report, FILE *out);
void cli_report_json(const cli_report *report, FILE *out);

#endif
