/* fusebox plan: the layer before and after, a price and a verdict for every fuse, and the prediction against
 * the clock. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/output.h"
#include "cli/planner.h"

static void print_machine(const fb_machine_figures *m) {
    char bytes[CLI_NUMBER_BYTES];
    if (m->gpu)
        printf("%s, %s: %.1f TFLOP/s, a launch %.2f us, in a graph %.2f us, a small kernel %.2f us\n", m->cpu,
               m->isa, 1e-12 * m->flops, 1e6 * m->launch, 1e6 * m->node, 1e6 * m->small);
    else
        printf("%s, %d thread%s, %s: %.1f GFLOP/s, a barrier %.2f us, an op %.2f us\n", m->cpu, m->threads,
               m->threads == 1 ? "" : "s", m->isa, 1e-9 * m->flops, 1e6 * m->barrier, 1e6 * m->dispatch);
    printf("a step reads %sB of weights and cache, at %.1f GB/s at best\n",
           cli_format_scaled(m->footprint, bytes), 1e-9 * m->footprint_bandwidth);
}

/* One layer's ops with the time of one of them. */
static void print_layer(const char *title, const fb_profile *p, const fb_machine_figures *m) {
    char bytes[CLI_NUMBER_BYTES];
    printf("\n%s: %" PRId64 " %s and %sB a layer\n%s", title, p->barriers, m->gpu ? "launches" : "barriers",
           cli_format_scaled(p->layer_bytes, bytes), p->text);
}

static void print_times(const fb_plan_report *r) {
    const fb_profile *sides[] = {r->plain, r->fused};
    printf("\none layer, us a call     predicted   measured\n");
    if (r->machine->gpu) puts("(measured launch by launch with marks between, never in a graph)");
    for (int side = 0; side < 2; side++) {
        puts(side ? "after" : "before");
        for (int64_t i = 0; i < sides[side]->op_count; i++) {
            const fb_profile_op *op = sides[side]->ops[i];
            if (op->section != 1) continue;
            printf("  %-40s %6.2f %10.2f\n", op->name, 1e6 * op->predicted / (double)op->calls,
                   1e6 * op->seconds / (double)op->calls);
        }
    }
}

static void print_fuses(const fb_plan_report *r) {
    printf("\n%-12s  %-5s  %9s  %8s  %7s  %s\n", "fuse", "plan", "us saved", "of time", "ceiling", "why");
    for (int i = 0; i < r->fuse_count; i++) {
        const fb_plan_fuse *f = r->fuses[i];
        if (f->why_not)
            printf("%-12s  %-5s  %9s  %8s  %7s  does not apply: %s\n", f->name, "-", "", "", "", f->why_not);
        else
            printf("%-12s  %-5s  %9.1f  %7.1f%%  %6.3fx  %s\n", f->name, f->kept ? "keep" : "leave",
                   1e6 * f->saving, 100 * f->saving / r->plain->predicted, f->ceiling, f->reason);
    }
}

/* What a step of several tokens takes, and what guesses would save. */
static void print_drafts(const fb_plan_report *r) {
    printf("\n%-20s", "a step, us, of");
    for (int rows = 1; rows <= FB_MAX_DRAFT + 1; rows++) printf("  %7d", rows);
    printf(" tokens\n%-20s", "predicted");
    for (int i = 0; i <= FB_MAX_DRAFT; i++) printf("  %7.1f", 1e6 * r->rows_predicted[i]);
    printf("\n%-20s", "measured");
    for (int i = 0; i <= FB_MAX_DRAFT; i++)
        if (r->rows_measured[i] > 0)
            printf("  %7.1f", 1e6 * r->rows_measured[i]);
        else
            printf("  %7s", "-");
    printf("\n\n%30s  speed-up and the best number of guesses, if so many are right\n", "");
    printf("%-6s  %11s  %9s", "draft", "a guess, us", "pays from");
    for (int i = 0; i < FB_PLAN_CHANCES; i++) printf("  %8.0f%%", 100 * r->drafts[0]->chance[i]);
    putchar('\n');
    for (int64_t k = 0; k < r->draft_count; k++) {
        const fb_plan_draft *d = r->drafts[k];
        printf("%-6s  ", d->source);
        if (*d->why_not) {
            printf("none: %s\n", d->why_not);
            continue;
        }
        printf("%11.1f  ", 1e6 * d->guess);
        if (isnan(d->break_even))
            printf("%9s", "never");
        else
            printf("%8.0f%%", 100 * d->break_even);
        for (int i = 0; i < FB_PLAN_CHANCES; i++)
            if (d->guesses[i])
                printf("  %5.2fx, %" PRId64, d->speedup[i], d->guesses[i]);
            else
                printf("  %9s", "-");
        putchar('\n');
    }
}

static double error_percent(double predicted, double measured) { return 100 * (predicted / measured - 1); }

static void print_check(const fb_plan_report *r) {
    const fb_profile *sides[] = {r->plain, r->fused};
    printf("\n%-8s  %14s  %13s  %7s\n", "a token", "predicted, us", "measured, us", "error");
    for (int side = 0; side < 2; side++)
        printf("%-8s  %14.1f  %13.1f  %+6.1f%%\n", side ? "plan" : "none", 1e6 * sides[side]->predicted,
               1e6 * sides[side]->tpot, error_percent(sides[side]->predicted, sides[side]->tpot));
    printf("%-8s  %13.2fx  %12.2fx\n", "speed-up", r->plain->predicted / r->fused->predicted,
           r->plain->tpot / r->fused->tpot);
}

static void print_all(const fb_plan_report *r, const cli_busy *busy) {
    print_machine(r->machine);
    print_layer("before", r->plain, r->machine);
    print_layer("after", r->fused, r->machine);
    print_times(r);
    print_fuses(r);
    print_drafts(r);
    print_check(r);
    cli_planner_doubt(r->fused, r->machine);
    cli_busy_print(busy, stdout);
}

static void write_drafts(const fb_plan_report *r, cli_json *json) {
    cli_json_open(json, "step_rows", '[');
    for (int i = 0; i <= FB_MAX_DRAFT; i++) {
        cli_json_open(json, NULL, '{');
        cli_json_int(json, "rows", i + 1);
        cli_json_real(json, "predicted", r->rows_predicted[i]);
        cli_json_real(json, "measured", r->rows_measured[i]);
        cli_json_close(json, '}');
    }
    cli_json_close(json, ']');
    cli_json_open(json, "drafts", '[');
    for (int64_t k = 0; k < r->draft_count; k++) {
        const fb_plan_draft *d = r->drafts[k];
        cli_json_open(json, NULL, '{');
        cli_json_string(json, "source", d->source);
        cli_json_string(json, "why_not", *d->why_not ? d->why_not : NULL);
        cli_json_real(json, "guess", d->guess);
        cli_json_real(json, "break_even", d->break_even);
        cli_json_open(json, "points", '[');
        for (int i = 0; i < FB_PLAN_CHANCES && !*d->why_not; i++) {
            cli_json_open(json, NULL, '{');
            cli_json_real(json, "chance", d->chance[i]);
            cli_json_int(json, "guesses", d->guesses[i]);
            cli_json_real(json, "speedup", d->speedup[i]);
            cli_json_close(json, '}');
        }
        cli_json_close(json, ']');
        cli_json_close(json, '}');
    }
    cli_json_close(json, ']');
}

static void print_json(const fb_plan_report *r, const cli_busy *busy) {
    cli_json json = {.out = stdout};
    cli_json_open(&json, NULL, '{');
    cli_json_int(&json, "prompt", r->prompt);
    cli_json_int(&json, "gen", r->gen);
    cli_planner_json_profile(&json, "none", r->plain, r->machine);
    cli_planner_json_profile(&json, "plan", r->fused, r->machine);
    cli_json_open(&json, "fuses", '[');
    for (int i = 0; i < r->fuse_count; i++) {
        const fb_plan_fuse *f = r->fuses[i];
        cli_json_open(&json, NULL, '{');
        cli_json_string(&json, "name", f->name);
        cli_json_bool(&json, "applies", !f->why_not);
        cli_json_bool(&json, "kept", f->kept);
        cli_json_real(&json, "bytes_saved", f->bytes_saved);
        cli_json_int(&json, r->machine->gpu ? "launches_saved" : "barriers_saved", f->barriers_saved);
        cli_json_real(&json, "saving", f->saving);
        cli_json_real(&json, "ceiling", f->ceiling);
        cli_json_string(&json, "reason", f->why_not ? f->why_not : f->reason);
        cli_json_close(&json, '}');
    }
    cli_json_close(&json, ']');
    write_drafts(r, &json);
    cli_json_real(&json, "error_none", error_percent(r->plain->predicted, r->plain->tpot));
    cli_json_real(&json, "error_plan", error_percent(r->fused->predicted, r->fused->tpot));
    cli_planner_json_machine(&json, r->machine);
    cli_busy_json(busy, &json);
    cli_json_close(&json, '}');
    putchar('\n');
}

static int show(const fb_plan_report *report, const char *svg, const cli_planner *planner) {
    fb_error err;
    if (svg && fb_plan_report_svg(report, svg, &err) != FB_OK) return cli_fail_error(&err);
    (planner->json ? print_json : print_all)(report, &planner->busy);
    return CLI_OK;
}

int cli_plan(const cli_command *command, int argc, char **argv) {
    cli_model_options model_options;
    cli_option model_rows[CLI_MODEL_ROWS], shape_rows[CLI_PLANNER_ROWS + 1];
    cli_planner planner;
    const char *svg = NULL;
    cli_model_rows(&model_options, model_rows);
    cli_planner_rows(&planner, shape_rows);
    shape_rows[CLI_PLANNER_ROWS] = (cli_option){
        CLI_ROW(0, "calibrate", CLI_FLAG, &planner.options.calibrate, NULL, "measure this machine again")};
    const cli_option output[] = {
        {CLI_ROW(0, "svg", CLI_STRING, &svg, "FILE", "also draw the roofline and the timelines")},
        {CLI_ROW(0, "json", CLI_FLAG, &planner.json, NULL, "one JSON object instead of the text")}};
    const cli_group groups[] = {{"what to run", shape_rows, CLI_PLANNER_ROWS + 1},
                                {"execution", model_rows, CLI_MODEL_ROWS},
                                {"output", output, 2}};
    cli_args args = {.command = command,
                     .notes = CLI_MODEL_NOTES,
                     .groups = groups,
                     .group_count = 3,
                     .max_positionals = 1,
                     .takes_model = true};
    int status;
    if (!cli_args_parse(&args, argc, argv, &status)) return status;
    if (svg && (status = cli_check_svg(svg)) != CLI_OK) return status;
    fb_plan_report *report;
    status = cli_planner_make(&args, &model_options, &planner, true, &report);
    if (status == CLI_OK) status = show(report, svg, &planner);
    fb_plan_report_free(report);
    return status;
}
