#include <stdio.h>
#include <stdlib.h>

#include "fuse/match.h"

/* ---- the user's words
 * --------------------------------------------------------------------------------------------------- */

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
    char known[256] = "";
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

/* ---- applying
 * -----------------------------------------------------------------------------------------------------------
 */

/* Linears read what would have been quantised for them. */
static void take_floats(fb_program *p) {
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = p->op_count[s]; i-- > 0;) {
            fb_op *op = &p->ops[s][i];
            if (op->kind == FB_OP_LINEAR) op->attr.segment[0].dot = FB_DOT_FLOAT;
            if (op->kind != FB_OP_QUANTIZE) continue;
            fb_value_replace(p, op->out[0], op->in[0]);
            fb_op_remove(p, (fb_section)s, i);
        }
}

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

/* Whether the kernel of a whole step has all that the layers are made of (src/backend/cuda/step_list.h). */
static bool has_step_kernel(const fb_program *p, const fb_plan_options *options) {
    const uint64_t kinds =
        FB_KIND(LINEAR) | FB_KIND(LINEAR_GROUP) | FB_KIND(ROPE_KV) | FB_KIND(KV_APPEND) | FB_KIND(ATTN_FLASH);
    for (int32_t i = 0; i < p->op_count[FB_BODY]; i++)
        if (!(kinds >> p->ops[FB_BODY][i].kind & 1)) return false;
    return options->step && !options->window && p->head_dim <= 128 && p->head_dim % 8 == 0;
}

fb_status fb_plan_make(const fb_program *plain, const fb_plan_options *options, fb_plan *plan,
                       fb_error *err) {
    memset(plan, 0, sizeof *plan);
    plan->program = *plain;
    if (options->float_dot) take_floats(&plan->program);
    if (options->sinks) FB_TRY(fb_program_add_sinks(&plan->program, options->sinks + options->window, err));
    for (int32_t i = 0; i < fb_pattern_count; i++) {
        const fb_pattern *pattern = &fb_pattern_table[i];
        if (!(options->fuses & FB_FUSE_BIT(pattern->fuse))) continue;
        while (fb_pattern_apply(pattern, &plan->program, options)) {
        }
    }
    count_calls(plan);
    /* Not a rewrite: the same ops, launched together. */
    if (options->graph && (options->fuses & FB_FUSE_BIT(FB_FUSE_GRAPH))) {
        plan->applied |= FB_FUSE_BIT(FB_FUSE_GRAPH);
        plan->calls[FB_FUSE_GRAPH] = 1;
        if ((options->fuses & FB_FUSE_BIT(FB_FUSE_STEP)) && has_step_kernel(&plan->program, options)) {
            plan->applied |= FB_FUSE_BIT(FB_FUSE_STEP);
            plan->calls[FB_FUSE_STEP] = 1;
        }
    }
    fb_layout layout;
    return fb_layout_make(&plan->program, &layout, err);
}

void fb_plan_unscreen(fb_plan *plan) {
    fb_program *p = &plan->program;
    for (int32_t i = 0; i < p->op_count[FB_EPILOGUE]; i++) {
        fb_op *op = &p->ops[FB_EPILOGUE][i];
        if (!op->attr.screen) continue;
        op->attr.screen = false;
        op->fuses = (op->fuses & ~FB_FUSE_BIT(FB_FUSE_HEAD_SCREEN)) | FB_FUSE_BIT(FB_FUSE_HEAD_ARGMAX);
    }
    memset(plan->calls, 0, sizeof plan->calls);
    memset(plan->head_calls, 0, sizeof plan->head_calls);
    plan->applied = 0;
    count_calls(plan);
}

static bool applies(const fb_program *plain, fb_fuse_id fuse, fb_plan_options options) {
    fb_plan *plan = malloc(sizeof *plan);
    bool yes =
        plan && fb_plan_make(plain, &options, plan, NULL) == FB_OK && (plan->applied & FB_FUSE_BIT(fuse));
    free(plan);
    return yes;
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

const char *fb_fuse_why_not(const fb_program *plain, fb_fuse_id fuse, const fb_plan_options *options) {
    if (applies(plain, fuse, only(options, fb_fuse_company(fuse)))) return NULL;
    if (fuse == FB_FUSE_HEAD_SCREEN && !options->screen) return "only on the cpu backend";
    if (fuse == FB_FUSE_GRAPH || (fuse == FB_FUSE_STEP && !options->graph)) return "only on the cuda backend";
    if (fuse == FB_FUSE_STEP)
        return options->step ? "its kernel has not all of a layer's ops" : "only of 16 bits, the cache too";
    if (fb_fuse_after_quant_gemm(plain, fuse, options)) return "quantised in between: only with quant_gemm";
    for (int32_t i = 0; i < fb_pattern_count; i++)
        if (fb_pattern_table[i].fuse == fuse) return fb_pattern_table[i].needs;
    return "no pattern";
}
