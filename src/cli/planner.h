/* What profile and plan share. */
#ifndef FB_CLI_PLANNER_H
#define FB_CLI_PLANNER_H

#include "cli/busy.h"
#include "cli/model.h"

typedef struct cli_planner {
    fb_profile_options options; /* of which a plan has all but `prefill` */
    bool json;
    cli_busy busy;         /* the machine while the report was made */
    char faster_type[160]; /* cli_faster_type */
} cli_planner;

enum { CLI_PLANNER_ROWS = 2 };
void cli_planner_rows(cli_planner *planner, cli_option rows[CLI_PLANNER_ROWS]);

/* Opens the model that `args` names and makes a report of it: a profile, or a plan. Sets planner->busy. */
int cli_planner_make(const cli_args *args, const cli_model_options *how, cli_planner *planner, bool plan,
                     fb_plan_report **report);

void cli_planner_json_machine(cli_json *json, const fb_machine_figures *machine);
void cli_planner_json_profile(cli_json *json, const char *key, const fb_profile *profile,
                              const fb_machine_figures *machine);
/* Percent of the measured bandwidth at the step's footprint that an op reached; on a GPU, of that at the
 * bytes of one call. */
double cli_planner_percent(const fb_profile_op *op, const fb_machine_figures *machine);

/* A note where the step read more than the machine is said to be able to: it was measured while something
 * else ran, and percentages and predictions stand by a ceiling that is none. */
void cli_planner_doubt(const fb_profile *profile, const fb_machine_figures *machine);

#endif
