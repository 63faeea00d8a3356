#include <stdio.h>

#include "fuse/match.h"

/* ---- parsing --fuse ---- */

static fb_status parse_word(const char *word, size_t length, bool first, uint32_t *fuses, bool *automatic,
                            fb_error *err) {
    bool off = length && *word == '-';
    const char *name = word + off;
    size_t size = length - off;
    if (first && !off) {
        *automatic = size == 4 && strncmp(name, "auto", 4) == 0;
        if (*automatic || (size == 3 && strncmp(name, "all", 3) == 0)) {
            *fuses = FB_FUSE_ALL;
            return FB_OK;
        }
        if (size == 4 && strncmp(name, "none", 4) == 0) return FB_OK;
    }
    char known[512] = "";
    for (int i = 0; i < FB_FUSE_COUNT; i++) {
        const char *fuse = fb_fuse_table[i].name;
        if (strlen(fuse) == size && strncmp(name, fuse, size) == 0) {
            if (first && off)
                return fb_fail(err, FB_ERROR_USAGE,
                               "fuse: \"-%s\" (nothing is on to take it from: \"all,-%s\")", fuse, fuse);
            *fuses = off ? *fuses & ~FB_FUSE_BIT(i) : *fuses | FB_FUSE_BIT(i);
            return FB_OK;
        }
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", fuse);
    }
    return fb_fail(err, FB_ERROR_USAGE, "fuse: \"%.*s\" (none, all, auto, or of %s)",
                   (int)(length > 64 ? 64 : length), word, known);
}

fb_status fb_fuse_parse(const char *spec, uint32_t *fuses, bool *automatic, fb_error *err) {
    *fuses = 0;
    *automatic = false;
    for (const char *word = spec;; word++) {
        size_t length = strcspn(word, ",");
        FB_TRY(parse_word(word, length, word == spec, fuses, automatic, err));
        word += length;
        if (!*word) return FB_OK;
    }
}

/* ---- applying ---- */

static void count_calls(fb_plan *plan) {
    const fb_program *p = &plan->program;
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++)
            for (int f = 0; f < FB_FUSE_COUNT; f++)
                if (p->ops[s][i].fuses & FB_FUSE_BIT(f)) {
                    plan->calls[f] += s == FB_BODY ? p->layers : 1;
                    plan->head_calls[f] += s == FB_EPILOGUE;
                }
    for (int f = 0; f < FB_FUSE_COUNT; f++)
        if (plan->calls[f]) plan->applied |= FB_FUSE_BIT(f);
}

static const char *step_why_not(const fb_plan_options *options, const fb_program *p) {
    return options->step_why_not ? options->step_why_not(options->step_arg, p) : "only on the cuda backend";
}

fb_status fb_plan_make(const fb_program *plain, const fb_plan_options *options, fb_plan *plan,
                       fb_error *err) {
    memset(plan, 0, sizeof *plan);
    plan->program = *plain;
    if (!options->float_dot) FB_TRY(fb_program_quantize(&plan->program, err));
    if (plain->long_context && options->context > plain->long_context) fb_program_use_long(&plan->program);
    if (options->sinks) FB_TRY(fb_program_add_sinks(&plan->program, options->sinks + options->window, err));
    for (int32_t i = 0; i < fb_pattern_count; i++) {
        const fb_pattern *pattern = &fb_pattern_table[i];
        if (!(options->fuses & FB_FUSE_BIT(pattern->fuse))) continue;
        while (fb_pattern_apply(pattern, &plan->program, options)) {
        }
    }
    count_calls(plan);
    /* graph is not a rewrite: the same ops are launched together. */
    if (options->graph && (options->fuses & FB_FUSE_BIT(FB_FUSE_GRAPH))) {
        plan->applied |= FB_FUSE_BIT(FB_FUSE_GRAPH);
        plan->calls[FB_FUSE_GRAPH] = 1;
        bool step = options->fuses & FB_FUSE_BIT(FB_FUSE_STEP);
        const char *why_not = step ? step_why_not(options, &plan->program) : NULL;
        if (why_not && strcmp(why_not, FB_NO_MEMORY) == 0)
            return fb_fail(err, FB_ERROR_MEMORY, "step: no memory for its work list");
        if (step && !why_not) {
            plan->applied |= FB_FUSE_BIT(FB_FUSE_STEP);
            plan->calls[FB_FUSE_STEP] = 1;
        }
    }
    fb_layout layout;
    return fb_layout_make(&plan->program, &layout, err);
}

static bool applies(const fb_program *plain, fb_fuse_id fuse, fb_plan_options options) {
    fb_plan plan;
    return fb_plan_make(plain, &options, &plan, NULL) == FB_OK && (plan.applied & FB_FUSE_BIT(fuse));
}

static fb_plan_options only(const fb_plan_options *options, uint32_t fuses) {
    fb_plan_options o = *options;
    o.fuses = fuses;
    return o;
}

bool fb_fuse_after_quant_gemm(const fb_program *plain, fb_fuse_id fuse, const fb_plan_options *options) {
    uint32_t alone = FB_FUSE_BIT(fuse), both = alone | FB_FUSE_BIT(FB_FUSE_QUANT_GEMM);
    return !applies(plain, fuse, only(options, alone)) && applies(plain, fuse, only(options, both));
}

/* Why `step`, which has no pattern, does not apply: the device's answer for the plan with all fuses. */
static const char *why_no_step(const fb_program *plain, const fb_plan_options *options) {
    if (!options->graph) return "only on the cuda backend";
    fb_plan plan;
    fb_plan_options o = only(options, FB_FUSE_ALL & ~FB_FUSE_BIT(FB_FUSE_STEP));
    return fb_plan_make(plain, &o, &plan, NULL) == FB_OK ? step_why_not(options, &plan.program)
                                                         : "no plan with all fuses";
}

const char *fb_fuse_why_not(const fb_program *plain, fb_fuse_id fuse, const fb_plan_options *options) {
    if (fuse == FB_FUSE_STEP) return why_no_step(plain, options);
    if (applies(plain, fuse, only(options, FB_FUSE_BIT(fuse)))) return NULL;
    if (fuse == FB_FUSE_HEAD_SCREEN && options->no_screen) return options->no_screen;
    if (fuse == FB_FUSE_GRAPH) return "only on the cuda backend";
    if (fb_fuse_after_quant_gemm(plain, fuse, options)) return "quantised in between: only with quant_gemm";
    for (int32_t i = 0; i < fb_pattern_count; i++)
        if (fb_pattern_table[i].fuse == fuse) return fb_pattern_table[i].needs;
    return "no pattern";
}
