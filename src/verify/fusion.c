/* The proof of fusion. The same ids run through the plain program and through fuses, alone and together. It
 * compares every hidden state and logit in prefill and in decode, the greedy continuation, the perplexity,
 * and how often the fused ops ran. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/options.h"
#include "fuse/tolerance.h"
#include "run/session.h"
#include "verify/distance.h"
#include "verify/perplexity.h"
#include "verify/sensitivity.h"
#include "verify/tape.h"

/* A tol fuse must also be at most TRUTH_RATIO times as far from float64 as the plain ops. TRUTH_FLOOR covers
 * the rounding of logits to float32. If the sensitivity was measured, the largest distance of those runs
 * counts. */
#define TRUTH_RATIO 2.0
#define TRUTH_FLOOR 1e-6

/* Multiply-adds that the float64 run may use, at about five nanoseconds each. */
#define TRUTH_WORK 400e6

/* With a ring whose window is not given: a quarter of the tokens, which must be one. */
#define LEAST_STREAMED 4

typedef struct proof {
    const fb_model *model;
    const fb_session_options *options;
    fb_session_options settled; /* the options after defaults; `options` points to it */
    fb_dtype kv;
    fb_script script;
    fb_tape plain, truth;
    double vs_truth, perplexity; /* of plain */
    fb_sensitivity sensitivity;  /* measured when a fuse exceeds its tolerance; before that, NULL */
    fb_fusion_report *report;
} proof;

/* The perplexity: exp of the mean of -ln p(the next id). */
static double perplexity(const fb_tape *tape, const int32_t *ids) {
    double sum = 0;
    for (int64_t t = 0; t + 1 < tape->tokens; t++)
        sum += fb_nll(tape->logits + t * tape->vocab, tape->vocab, ids[t + 1]);
    return tape->tokens > 1 ? exp(sum / (double)(tape->tokens - 1)) : NAN;
}

/* ---- the verdict on one set of fuses ---- */

static bool same_greedy(const proof *p, const fb_tape *tape, double near) {
    for (int64_t i = 0; i < p->script.greedy; i++) {
        const float *logits = p->plain.greedy_logits + i * tape->vocab;
        int32_t best = p->plain.greedy[i], have = tape->greedy[i];
        if (have != best && !((double)logits[best] - (double)logits[have] <= near)) return false;
    }
    return true;
}

/* Whether a is closer to its bound than b, or further beyond it. NaN is the worst. */
static bool worse(const fb_verify_row *a, const fb_verify_row *b) {
    if (isnan(a->max_abs) || isnan(b->max_abs)) return !isnan(b->max_abs);
    if (a->limit > 0 && b->limit > 0) return a->max_abs / a->limit > b->max_abs / b->limit;
    return a->max_abs > b->max_abs;
}

static double tolerance(const proof *p, int64_t layer) {
    bool quantizes = fb_program_quantizes(&p->model->spec->program) && !p->options->float_dot;
    return fb_fuse_tolerance(p->options->act, p->kv, quantizes, layer);
}

static void compare_states(const proof *p, const fb_tape *tape, fb_fusion_row *row) {
    int64_t states = tape->states;
    fb_verify_row worst = {0};
    row->bit_identical = true;
    for (int64_t s = 0; s <= states; s++) {
        fb_verify_row *at = &row->layers[s];
        *at = (fb_verify_row){0};
        bool same = fb_compare_state(tape, &p->plain, s, row->bit ? 0 : tolerance(p, s), at);
        row->bit_identical = row->bit_identical && same;
        if (!row->bit && p->sensitivity.max_abs) fb_sensitivity_widen(&p->sensitivity, at);
        if (s == 0 || worse(at, &worst)) worst = *at;
    }
    row->max_abs = worst.max_abs;
    row->bound = worst.limit;
    int64_t alone = (p->script.tokens - p->script.prompt + 1) * tape->vocab;
    fb_verify_row unshown = {0};
    bool same = fb_compare(tape->alone, p->plain.alone, alone, 0, &unshown);
    row->bit_identical = row->bit_identical && same;
    row->unshown_ok = unshown.max_abs <= row->layers[states].limit;
}

static bool states_hold(const fb_fusion_row *row, int64_t states) {
    bool ok = row->unshown_ok;
    for (int64_t s = 0; s <= states; s++) ok = ok && row->layers[s].ok;
    return ok && (row->bit_identical || !row->bit);
}

static bool perplexity_holds(const proof *p, const fb_fusion_row *row, double logits_limit) {
    if (row->bit) return memcmp(&row->perplexity, &p->perplexity, sizeof p->perplexity) == 0;
    if (isnan(p->perplexity)) return isnan(row->perplexity); /* a single token has no perplexity */
    /* ln p changes by at most twice the largest change of a logit. */
    return fabs(log(row->perplexity) - log(p->perplexity)) <= 2 * logits_limit;
}

static const char *why_wrong(const proof *p, const fb_tape *tape, const fb_fusion_row *row) {
    if (row->calls == 0) return "switched on, never ran";
    if (tape->miscounted) return "calls are not what they must be";
    if (!states_hold(row, tape->states)) return row->bit ? "not bit-identical" : "out of bounds";
    if (!row->greedy_match) return "greedy continuation differs";
    if (!perplexity_holds(p, row, row->layers[tape->states].limit)) return "perplexity differs";
    double plain = row->bit ? p->vs_truth : fmax(p->vs_truth, p->sensitivity.vs_truth);
    if (!(row->vs_f64_fused <= TRUTH_RATIO * plain + TRUTH_FLOOR)) return "further from float64 than plain";
    return "";
}

static void judge(const proof *p, const fb_tape *tape, fb_fusion_row *row) {
    compare_states(p, tape, row);
    row->perplexity = perplexity(tape, p->script.ids);
    row->greedy_match = same_greedy(p, tape, 2 * row->layers[tape->states].limit);
    row->vs_f64_plain = p->vs_truth;
    row->vs_f64_fused = fb_tape_distance(tape, &p->truth);
    row->calls = row->calls_expected = 0;
    for (int f = 0; f < FB_FUSE_COUNT; f++) {
        row->calls += tape->calls[f];
        row->calls_expected += tape->expected[f];
    }
    snprintf(row->why, sizeof row->why, "%s", why_wrong(p, tape, row));
    row->ok = !*row->why;
}

/* A fuse that exceeds its tolerance is wrong, or the model amplifies roundings: that is measured, once. */
static fb_status judge_fairly(proof *p, const fb_tape *tape, fb_fusion_row *row, fb_error *err) {
    judge(p, tape, row);
    if (row->ok || row->bit || row->calls == 0 || tape->miscounted) return FB_OK;
    if (!p->sensitivity.max_abs) {
        /* Without memory for a second copy of the weights the verdict stays. */
        fb_status status = fb_sensitivity_measure(p->model, p->options, &p->script, &p->plain, &p->truth,
                                                  tolerance(p, 0) / 2, &p->sensitivity, err);
        if (status == FB_ERROR_MEMORY) return FB_OK;
        FB_TRY(status);
    }
    judge(p, tape, row);
    p->report->sensitive = true;
    return FB_OK;
}

/* ---- which sets ---- */

static fb_fusion_row *new_row(proof *p, const char *name, fb_error *err) {
    fb_fusion_report *r = p->report;
    fb_fusion_row *row = r->rows[r->count];
    snprintf(row->name, sizeof row->name, "%s", name);
    row->layers = calloc((size_t)p->plain.states + 1, sizeof *row->layers);
    if (!row->layers) {
        fb_fail_memory(err, "report", (p->plain.states + 1) * (int64_t)sizeof *row->layers);
        return NULL;
    }
    r->count++;
    return row;
}

/* Whether the fuses that ran promise the same bits. Reference kernels do not: a fused one rounds only its
 * result, plain ones also round what lies between. */
static bool promises_bits(const proof *p, const fb_tape *tape) {
    if (p->options->isa && strcmp(p->options->isa, "ref") == 0) return false;
    for (int f = 0; f < FB_FUSE_COUNT && !p->options->exact; f++)
        if (tape->expected[f] && fb_fuse_table[f].exactness == FB_EXACT_TOL) return false;
    return true;
}

static fb_status prove(proof *p, const char *name, const char *spec, fb_error *err) {
    fb_session_options o = *p->options;
    o.fuse = spec;
    fb_tape tape;
    FB_TRY(fb_tape_record(p->model, &o, &p->script, p->plain.greedy, &tape, err));
    fb_fusion_row *row = new_row(p, name, err);
    fb_status status = row ? FB_OK : FB_ERROR_MEMORY;
    if (row) {
        row->bit = promises_bits(p, &tape);
        status = judge_fairly(p, &tape, row, err);
        /* `step` is proven together with all other fuses: count its own calls. */
        if (strcmp(name, fb_fuse_name(FB_FUSE_STEP)) == 0) {
            row->calls = tape.calls[FB_FUSE_STEP];
            row->calls_expected = tape.expected[FB_FUSE_STEP];
        }
        fb_fusion_report *r = p->report;
        r->ok = r->ok && row->ok;
        r->greedy_match = r->greedy_match && row->greedy_match;
        r->perplexity_fused = row->perplexity; /* the last row's stays: all fuses, or the planner's choice */
    }
    fb_tape_free(&tape);
    return status;
}

/* Reports a fuse that the user named and that does not apply. */
static fb_status refuse(proof *p, const char *name, const char *why_not, fb_error *err) {
    fb_fusion_row *row = new_row(p, name, err);
    if (!row) return FB_ERROR_MEMORY;
    row->bit = true;
    row->max_abs = row->vs_f64_fused = row->perplexity = NAN;
    row->vs_f64_plain = p->vs_truth;
    snprintf(row->why, sizeof row->why, "does not apply: %s", why_not);
    p->report->ok = false;
    return FB_OK;
}

/* Proves each fuse of `fuses` alone, or together with quant_gemm if that is among them and makes the fuse
 * applicable. `named`: the user listed them, so each must apply. */
static fb_status prove_of(proof *p, const fb_plan_options *alone, uint32_t fuses, bool named, fb_error *err) {
    const fb_program *plain = &p->model->spec->program;
    for (int f = 0; f < FB_FUSE_COUNT; f++) {
        if (!(fuses & FB_FUSE_BIT(f))) continue;
        const char *name = fb_fuse_table[f].name, *why_not = fb_fuse_why_not(plain, (fb_fuse_id)f, alone);
        char spec[64];
        bool after = why_not && (fuses & FB_FUSE_BIT(FB_FUSE_QUANT_GEMM)) &&
                     fb_fuse_after_quant_gemm(plain, (fb_fuse_id)f, alone);
        snprintf(spec, sizeof spec, "%s%s", after ? "quant_gemm," : "", f == FB_FUSE_STEP ? "all" : name);
        if (!why_not || after)
            FB_TRY(prove(p, name, spec, err));
        else if (named)
            FB_TRY(refuse(p, name, why_not, err));
    }
    return FB_OK;
}

/* Asks a session what the device can do. */
static fb_status prove_each(proof *p, uint32_t fuses, bool named, fb_error *err) {
    fb_session_options o = *p->options;
    fb_session *session;
    o.fuse = "all";
    o.greedy = true;
    o.chunk = p->script.chunk;
    if (o.cache == FB_CACHE_DENSE) o.capacity = p->script.tokens;
    FB_TRY(fb_session_create(p->model, &o, &session, err));
    const fb_plan_options *can = &fb_session_execution(session)->options;
    fb_status status = can->screen_failed
                           ? fb_fail(err, FB_ERROR_MEMORY, "head_screen: no memory for its copy")
                           : prove_of(p, can, fuses, named, err);
    fb_session_free(session);
    return status;
}

static fb_status prove_all(proof *p, fb_error *err) {
    const char *spec = p->options->fuse;
    uint32_t fuses = FB_FUSE_ALL;
    bool automatic = true;
    if (spec) FB_TRY(fb_fuse_parse(spec, &fuses, &automatic, err));
    if (automatic) {
        FB_TRY(prove_each(p, FB_FUSE_ALL, false, err));
        FB_TRY(prove(p, "all", "all", err));
        return prove(p, "auto", spec ? spec : "auto", err);
    }
    if (!fuses) return fb_fail(err, FB_ERROR_USAGE, "fuse: \"%.64s\" (at least one fuse to verify)", spec);
    FB_TRY(prove_each(p, fuses, strncmp(spec, "all", 3) != 0, err));
    return prove(p, spec, spec, err);
}

/* ---- the whole ---- */

/* A quarter of the tokens that the sinks leave is not one token. */
static fb_status fail_window(const proof *p, fb_error *err) {
    int64_t tokens = p->script.tokens, sinks = p->settled.sinks;
    if (tokens < LEAST_STREAMED)
        return fb_fail(
            err, FB_ERROR_USAGE,
            "cache: %s (compares at least %d tokens, so that some are forgotten; of this model, %lld)",
            fb_cache_name(p->options->cache), LEAST_STREAMED, (long long)tokens);
    return fb_fail(err, FB_ERROR_USAGE, "sinks: %lld (at most %lld of the %lld tokens that are compared)",
                   (long long)sinks, (long long)tokens - LEAST_STREAMED, (long long)tokens);
}

static fb_status run_plain(proof *p, fb_error *err) {
    fb_model_info info;
    fb_model_get_info(p->model, &info);
    FB_TRY(fb_dtype_parse_kv(p->options->kv, p->options->act, &p->kv, err));
    FB_TRY(fb_script_make(p->model, p->options->chunk, &p->script, err));
    /* A small window, so that the ring wraps around in the prefill and in the decode steps. */
    if (p->options->cache == FB_CACHE_WINDOW) p->settled.sinks = 0;
    if (p->options->cache != FB_CACHE_DENSE && !p->options->window) {
        p->settled.window = (p->script.tokens - p->options->sinks) / 4;
        if (p->settled.window < 1) return fail_window(p, err);
    }
    fb_session_options o = *p->options;
    o.fuse = "none";
    FB_TRY(fb_tape_record(p->model, &o, &p->script, NULL, &p->plain, err));
    int64_t tokens = (int64_t)(TRUTH_WORK / (double)(info.parameters + 1));
    tokens = tokens < 1 ? 1 : tokens > p->script.tokens ? p->script.tokens : tokens;
    FB_TRY(fb_tape_record_truth(p->model, p->options, &p->script, tokens, &p->truth, err));
    p->vs_truth = fb_tape_distance(&p->plain, &p->truth);
    p->perplexity = perplexity(&p->plain, p->script.ids);
    fb_fusion_report *r = p->report;
    r->prompt = p->script.prompt;
    r->decoded = p->script.tokens - p->script.prompt;
    r->greedy_tokens = p->script.greedy;
    r->truth_tokens = tokens;
    r->states = p->plain.states;
    r->perplexity_plain = p->perplexity;
    r->ok = r->greedy_match = true;
    return FB_OK;
}

fb_status fb_verify_fusion(const fb_model *model, const fb_fusion_options *given, fb_fusion_report **out,
                           fb_error *err) {
    *out = NULL;
    fb_fusion_options options;
    FB_TRY(fb_fusion_options_take(given, &options, err));
    proof p = {.model = model, .settled = fb_fusion_session(&options)};
    p.options = &p.settled;
    p.report = calloc(1, sizeof *p.report);
    if (!p.report) return fb_fail_memory(err, "report", sizeof *p.report);
    p.report->rows = fb_memory_structs(FB_FUSE_COUNT + 2, sizeof **p.report->rows);
    fb_status status =
        p.report->rows ? run_plain(&p, err) : fb_fail_memory(err, "report", (int64_t)sizeof(fb_fusion_row));
    if (status == FB_OK) status = prove_all(&p, err);
    fb_tape_free(&p.plain);
    fb_tape_free(&p.truth);
    fb_sensitivity_free(&p.sensitivity);
    fb_script_free(&p.script);
    if (status != FB_OK) {
        fb_fusion_free(p.report);
        return status;
    }
    *out = p.report;
    return FB_OK;
}

void fb_fusion_free(fb_fusion_report *report) {
    if (!report) return;
    for (int64_t i = 0; report->rows && i < report->count; i++) free(report->rows[i]->layers);
    free(report->rows);
    free(report);
}
