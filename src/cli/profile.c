/* fusebox profile: where the time of a step goes. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/output.h"
#include "cli/planner.h"

static int name_width(const fb_profile *p) {
    size_t width = strlen("between ops");
    for (int64_t i = 0; i < p->op_count; i++)
        if (strlen(p->ops[i]->name) > width) width = strlen(p->ops[i]->name);
    return (int)width;
}

static void print_op(const fb_profile_op *op, const fb_profile *p, const fb_machine_figures *m, int width) {
    char bytes[CLI_NUMBER_BYTES];
    double share = op->seconds / p->wall;
    printf("%-*s  %6" PRId64 "  %9.1f  %5.1f%%  %7sB  %7.2f", width, op->name, op->calls, 1e6 * op->seconds,
           100 * share, cli_format_scaled(op->bytes, bytes), 1e-9 * op->bytes / op->seconds);
    if (m->gpu || op->weight_bytes + op->kv_bytes > 0.5 * op->bytes)
        printf("  %5.0f%%", cli_planner_percent(op, m));
    else
        printf("  %6s", "-"); /* activations: they are in a core's cache */
    printf("  %6.3fx\n", 1 / (1 - share));
}

static void print_table(const fb_plan_report *report, const cli_planner *planner) {
    const fb_profile_options *q = &planner->options;
    static const char *const sections[] = {"before the layers", "layer", "after the layers"};
    const fb_profile *p = report->fused;
    const fb_machine_figures *m = report->machine;
    char bytes[CLI_NUMBER_BYTES];
    int width = name_width(p);
    if (q->prefill)
        printf("prefill of %" PRId64 " tokens", q->prompt);
    else
        printf("decode steps at positions %" PRId64 " to %" PRId64, q->prompt, q->prompt + q->gen - 1);
    if (m->gpu)
        printf(", %s, %s", m->cpu, m->isa);
    else
        printf(", %d threads, %s", m->threads, m->isa);
    printf(", mean of the faster %" PRId64 "\n", p->steps);
    if (m->gpu)
        printf(
            "launch by launch with marks between, never in a graph; of max: of a launch of so many bytes\n");
    printf("a step reads %sB of weights and cache; this machine reads that much at %.1f GB/s\n\n",
           cli_format_scaled(m->footprint, bytes), 1e-9 * m->footprint_bandwidth);
    printf("%-*s  %6s  %9s  %6s  %8s  %7s  %6s  %7s\n", width, "op", "calls", "us a step", "share", "bytes",
           "GB/s", "of max", "if free");
    for (int64_t i = 0; i < p->op_count; i++) {
        if (i == 0 || p->ops[i]->section != p->ops[i - 1]->section)
            printf("%s%s\n", sections[p->ops[i]->section],
                   p->ops[i]->section == 1 ? ", all of them added up" : "");
        print_op(p->ops[i], p, m, width);
    }
    printf("%-*s  %6s  %9.1f  %5.1f%%\n", width, "between ops", "", 1e6 * p->between,
           100 * p->between / p->wall);
    printf("%-*s  %6s  %9.1f  100.0%%\n", width, "wall", "", 1e6 * p->wall);
    cli_planner_doubt(p, m);
    if (*planner->faster_type) puts(planner->faster_type);
    cli_busy_print(&planner->busy, stdout);
}

static void print_json(const fb_plan_report *report, const cli_planner *planner) {
    const fb_profile_options *q = &planner->options;
    cli_json json = {.out = stdout};
    cli_json_open(&json, NULL, '{');
    cli_json_string(&json, "phase", q->prefill ? "prefill" : "decode");
    cli_json_int(&json, "prompt", q->prompt);
    cli_json_int(&json, "gen", report->gen);
    cli_planner_json_profile(&json, "profile", report->fused, report->machine);
    cli_planner_json_machine(&json, report->machine);
    cli_busy_json(&planner->busy, &json);
    cli_json_close(&json, '}');
    putchar('\n');
}

int cli_profile(const cli_command *command, int argc, char **argv) {
    cli_model_options model_options;
    cli_option model_rows[CLI_MODEL_ROWS], shape_rows[CLI_PLANNER_ROWS + 1];
    cli_planner planner;
    cli_model_rows(&model_options, model_rows);
    cli_planner_rows(&planner, shape_rows);
    shape_rows[CLI_PLANNER_ROWS] = (cli_option){
        CLI_ROW(0, "prefill", CLI_FLAG, &planner.options.prefill, NULL, "the prefill, not the decode steps")};
    const cli_option output[] = {
        {CLI_ROW(0, "json", CLI_FLAG, &planner.json, NULL, "one JSON object instead of the table")}};
    const cli_group groups[] = {{"what to run", shape_rows, CLI_PLANNER_ROWS + 1},
                                {"execution", model_rows, CLI_MODEL_ROWS},
                                {"output", output, 1}};
    cli_args args = {.command = command,
                     .notes = CLI_MODEL_NOTES,
                     .groups = groups,
                     .group_count = 3,
                     .max_positionals = 1,
                     .takes_model = true};
    int status;
    if (!cli_args_parse(&args, argc, argv, &status)) return status;
    fb_plan_report *report;
    status = cli_planner_make(&args, &model_options, &planner, false, &report);
    if (status == CLI_OK) (planner.json ? print_json : print_table)(report, &planner);
    fb_plan_report_free(report);
    return status;
}
