#include "cli/planner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/output.h"

#define MAX_TOKENS 1e9

void cli_planner_rows(cli_planner *planner, cli_option rows[CLI_PLANNER_ROWS]) {
    *planner = (cli_planner){0};
    fb_profile_options_default(&planner->options);
    rows[0] =
        (cli_option){CLI_ROW('p', "prompt", CLI_INT, &planner->options.prompt, "N", "tokens of the prompt"),
                     .range = {1, MAX_TOKENS}};
    rows[1] = (cli_option){CLI_ROW('n', "gen", CLI_INT, &planner->options.gen, "N", "decode steps after it"),
                           .range = {1, MAX_TOKENS}};
}

/* Models with a short context are asked for what fits, unless the numbers were given. */
static void fit_defaults(const fb_model *model, fb_profile_options *options) {
    fb_model_info info;
    fb_model_get_info(model, &info);
    if (options->prompt == 64 && options->gen == 64 && info.context < 128)
        options->prompt = options->gen = info.context < 2 ? 1 : info.context / 2;
}

static fb_status make_plan(const fb_model *model, const cli_model_options *how,
                           const fb_profile_options *like, fb_plan_report **report, fb_error *err) {
    fb_plan_report_options options;
    fb_plan_report_options_default(&options);
    CLI_MODEL_SET_FUSE(how, &options);
    options.prompt = like->prompt;
    options.gen = like->gen;
    options.calibrate = like->calibrate;
    return fb_plan_report_make(model, &options, report, err);
}

int cli_planner_make(const cli_args *args, const cli_model_options *how, cli_planner *planner, bool plan,
                     fb_plan_report **report) {
    char *path;
    fb_model *model;
    fb_error err;
    *report = NULL;
    int status = cli_model_open(args->positional_count ? args->positionals[0] : NULL, &path, &model);
    if (status != CLI_OK) return status;
    CLI_MODEL_SET_FUSE(how, &planner->options);
    fit_defaults(model, &planner->options);
    cli_busy_begin(&planner->busy);
    fb_status made = plan ? make_plan(model, how, &planner->options, report, &err)
                          : fb_profile_make(model, &planner->options, report, &err);
    cli_busy_end(&planner->busy);
    if (made == FB_OK)
        cli_faster_type(model, (*report)->machine->isa, planner->faster_type, sizeof planner->faster_type);
    else
        status = cli_fail_error(&err);
    fb_model_free(model);
    free(path);
    return status;
}

double cli_planner_percent(const fb_profile_op *op, const fb_machine_figures *machine) {
    double streamed = machine->gpu ? op->bytes : op->weight_bytes + op->kv_bytes;
    double most = machine->gpu ? op->bandwidth : machine->footprint_bandwidth;
    return op->seconds > 0 ? 100 * streamed / op->seconds / most : 0;
}

/* What a good step may seem to read beyond the maximum: the measuring loop does not fetch ahead as kernels
 * do. */
#define DOUBTFUL 1.5

void cli_planner_doubt(const fb_profile *p, const fb_machine_figures *m) {
    double bytes = 0, seconds = 0;
    for (int64_t i = 0; i < p->op_count; i++) {
        const fb_profile_op *op = p->ops[i];
        double streamed = op->weight_bytes + op->kv_bytes;
        if (m->gpu || streamed <= 0.5 * op->bytes) continue;
        bytes += streamed;
        seconds += op->seconds;
    }
    if (seconds > 0 && bytes / seconds > DOUBTFUL * m->footprint_bandwidth)
        printf(
            "\nnote: this step read at %.1f GB/s: the machine was measured while something else was using it "
            "(fusebox plan --calibrate measures it again)\n",
            1e-9 * bytes / seconds);
}

/* ---- JSON --------------------------------------------------------------------------------------------- */

void cli_planner_json_machine(cli_json *json, const fb_machine_figures *m) {
    cli_json_open(json, "machine", '{');
    cli_json_string(json, m->gpu ? "gpu" : "cpu", m->cpu);
    cli_json_string(json, "isa", m->isa);
    if (m->gpu) {
        cli_json_real(json, "launch_s", m->launch);
        cli_json_real(json, "node_s", m->node);
        cli_json_real(json, "small_s", m->small);
    } else {
        cli_json_int(json, "threads", m->threads);
        cli_json_real(json, "barrier_s", m->barrier);
        cli_json_real(json, "dispatch_s", m->dispatch);
    }
    cli_json_real(json, "flops_per_s", m->flops);
    cli_json_real(json, "footprint_bytes", m->footprint);
    cli_json_real(json, "footprint_bytes_per_s", m->footprint_bandwidth);
    cli_json_open(json, "bandwidth", '[');
    for (int i = 0; i < m->points; i++) {
        cli_json_open(json, NULL, '{');
        cli_json_real(json, "bytes", m->bytes[i]);
        cli_json_real(json, "bytes_per_s", m->bandwidth[i]);
        cli_json_close(json, '}');
    }
    cli_json_close(json, ']');
    cli_json_close(json, '}');
}

static void write_op(cli_json *json, const fb_profile_op *op, double wall,
                     const fb_machine_figures *machine) {
    static const char *const sections[] = {"prologue", "layer", "epilogue"};
    double share = wall > 0 ? op->seconds / wall : 0;
    cli_json_open(json, NULL, '{');
    cli_json_string(json, "op", op->name);
    cli_json_string(json, "section", sections[op->section]);
    cli_json_int(json, "calls", op->calls);
    cli_json_real(json, "seconds", op->seconds);
    cli_json_real(json, "predicted", op->predicted);
    cli_json_real(json, "share", share);
    cli_json_real(json, "bytes", op->bytes);
    cli_json_real(json, "flops", op->flops);
    cli_json_real(json, "bandwidth_percent", cli_planner_percent(op, machine));
    cli_json_real(json, "ceiling", 1 / (1 - share));
    cli_json_bool(json, "barrier", op->barrier);
    cli_json_close(json, '}');
}

void cli_planner_json_profile(cli_json *json, const char *key, const fb_profile *p,
                              const fb_machine_figures *machine) {
    cli_json_open(json, key, '{');
    cli_json_int(json, "layers", p->layers);
    cli_json_int(json, "steps", p->steps);
    cli_json_real(json, "wall", p->wall);
    cli_json_real(json, "between", p->between);
    if (p->tpot > 0) cli_json_real(json, "measured", p->tpot);
    cli_json_real(json, "predicted", p->predicted);
    cli_json_int(json, machine->gpu ? "launches_a_layer" : "barriers_a_layer", p->barriers);
    cli_json_real(json, "bytes_a_layer", p->layer_bytes);
    cli_json_open(json, "ops", '[');
    for (int64_t i = 0; i < p->op_count; i++) write_op(json, p->ops[i], p->wall, machine);
    cli_json_close(json, ']');
    cli_json_close(json, '}');
}
