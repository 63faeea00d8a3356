/* The proof of fusion: the same ids through the plain program and through fuses, alone and together; every
 * hidden state and logit compared in prefill and in decode, the greedy continuation, the perplexity, and the
 * number of times that the fused ops ran. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/options.h"
#include "fuse/tolerance.h"
#include "run/session.h"
#include "verify/perplexity.h"
#include "verify/tape.h"

/* Besides its tolerance, a fuse that is not bit-identical may be no worse an answer: at most twice as far
 * from float64 as the plain ops, where float32 logits, as they are compared, have an error of their own. */
#define TRUTH_RATIO 2.0
#define TRUTH_FLOOR 1e-6

/* Multiply-adds that the float64 run may take, about five nanoseconds each. */
#define TRUTH_WORK 400e6

typedef struct proof {
    const fb_model *model;
    const fb_session_options *options;
    fb_session_options settled; /* what the options point to */
    fb_dtype kv;
    fb_script script;
    fb_tape plain, truth;
    double vs_truth, perplexity; /* of plain */
    fb_fusion_report *report;
} proof;

/* ---- distances ---- */

/* Compares `count` floats. Bits decide: -0 is not 0, and NaN is never identical. */
static bool compare(const float *have, const float *want, int64_t count, double limit, fb_verify_row *row) {
    double error2 = 0, norm2 = 0, largest = 0;
    bool same = true;
    for (int64_t i = 0; i < count; i++) {
        double error = fabs((double)have[i] - (double)want[i]);
        same = same && memcmp(&have[i], &want[i], sizeof *have) == 0 && have[i] == have[i];
        if (!(error <= row->max_abs)) row->max_abs = isnan(row->max_abs) ? row->max_abs : error;
        largest = fmax(largest, fabs((double)want[i]));
        error2 += error * error;
        norm2 += (double)want[i] * (double)want[i];
    }
    row->limit = limit * largest;
    row->rel = norm2 > 0 ? sqrt(error2 / norm2) : sqrt(error2);
    row->rel_limit = limit;
    row->ok = row->max_abs <= row->limit && row->rel <= row->rel_limit;
    return same;
}

static double distance(const fb_tape *tape, const fb_tape *truth) {
    fb_verify_row row = {0};
    compare(tape->logits, truth->logits, truth->tokens * truth->vocab, 0, &row);
    return row.rel;
}

/* exp of the mean of -ln p(the next id). */
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

/* Nearer to its bound or further beyond it; NaN is the worst. */
static bool worse(const fb_verify_row *a, const fb_verify_row *b) {
    if (isnan(a->max_abs) || isnan(b->max_abs)) return !isnan(b->max_abs);
    if (a->limit > 0 && b->limit > 0) return a->max_abs / a->limit > b->max_abs / b->limit;
    return a->max_abs > b->max_abs;
}

static void compare_states(const proof *p, const fb_tape *tape, fb_fusion_row *row) {
    int64_t states = tape->states, each = tape->tokens * tape->width;
    fb_verify_row worst = {0};
    row->bit_identical = true;
    for (int64_t s = 0; s <= states; s++) {
        bool logits = s == states;
        const float *have = logits ? tape->logits : tape->hidden + s * each;
        const float *want = logits ? p->plain.logits : p->plain.hidden + s * each;
        bool quantizes = fb_program_quantizes(&p->model->spec->program) && !p->options->float_dot;
        double limit = row->bit ? 0 : fb_fuse_tolerance(p->options->act, p->kv, quantizes, s);
        fb_verify_row *at = &row->layers[s];
        at->layer = s;
        bool same = compare(have, want, logits ? tape->tokens * tape->vocab : each, limit, at);
        row->bit_identical = row->bit_identical && same;
        if (s == 0 || worse(at, &worst)) worst = *at;
    }
    row->max_abs = worst.max_abs;
    row->bound = worst.limit;
    int64_t alone = (p->script.tokens - p->script.prompt + 1) * tape->vocab;
    fb_verify_row unshown = {0};
    bool same = compare(tape->alone, p->plain.alone, alone, row->layers[states].rel_limit, &unshown);
    row->bit_identical = row->bit_identical && same;
    row->unshown_ok = unshown.ok;
}

static bool states_hold(const fb_fusion_row *row, int64_t states) {
    bool ok = row->unshown_ok;
    for (int64_t s = 0; s <= states; s++) ok = ok && row->layers[s].ok;
    return ok && (row->bit_identical || !row->bit);
}

static bool perplexity_holds(const proof *p, const fb_fusion_row *row, double logits_limit) {
    if (row->bit) return memcmp(&row->perplexity, &p->perplexity, sizeof p->perplexity) == 0;
    if (isnan(p->perplexity)) return isnan(row->perplexity); /* one token has none */
    /* ln p changes by at most twice the largest change of a logit. */
    return fabs(log(row->perplexity) - log(p->perplexity)) <= 2 * logits_limit;
}

static void judge(const proof *p, const fb_tape *tape, fb_fusion_row *row) {
    compare_states(p, tape, row);
    double logits_limit = row->layers[tape->states].limit;
    row->perplexity = perplexity(tape, p->script.ids);
    row->greedy_match = same_greedy(p, tape, 2 * logits_limit);
    row->vs_f64_plain = p->vs_truth;
    row->vs_f64_fused = distance(tape, &p->truth);
    for (int f = 0; f < FB_FUSE_COUNT; f++) {
        row->calls += tape->calls[f];
        row->calls_expected += tape->expected[f];
    }
    const char *why = "";
    if (!(row->vs_f64_fused <= TRUTH_RATIO * row->vs_f64_plain + TRUTH_FLOOR))
        why = "further from float64 than plain";
    if (!perplexity_holds(p, row, logits_limit)) why = "perplexity differs";
    if (!row->greedy_match) why = "greedy continuation differs";
    if (!states_hold(row, tape->states)) why = row->bit ? "not bit-identical" : "out of bounds";
    if (tape->miscounted) why = "calls are not what they must be";
    if (row->calls == 0) why = "switched on, never ran";
    snprintf(row->why, sizeof row->why, "%s", why);
    row->ok = !*why;
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

/* Whether what ran promises the same bits. The reference kernels round results only, wherever fused. */
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
    if (row) {
        row->bit = promises_bits(p, &tape);
        judge(p, &tape, row);
        if (strcmp(name, fb_fuse_name(FB_FUSE_STEP)) == 0) { /* of all, which are proven with it */
            row->calls = tape.calls[FB_FUSE_STEP];
            row->calls_expected = tape.expected[FB_FUSE_STEP];
        }
        fb_fusion_report *r = p->report;
        r->ok = r->ok && row->ok;
        r->greedy_match = r->greedy_match && row->greedy_match;
        r->perplexity_fused = row->perplexity; /* the last one's: all together, or the planner's choice */
    }
    fb_tape_free(&tape);
    return row ? FB_OK : FB_ERROR_MEMORY;
}

/* A fuse that was asked for by name and has nothing to do here. */
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

/* Each fuse of `fuses` alone, or with quant_gemm if that is among them and opens the way. `named`: the user
 * listed them, so that each must apply. */
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

/* The session says what the device can do with its fuses. */
static fb_status prove_each(proof *p, uint32_t fuses, bool named, fb_error *err) {
    fb_session_options o = *p->options;
    fb_session *session;
    o.fuse = "all";
    o.greedy = true;
    o.chunk = p->script.chunk;
    if (o.cache == FB_CACHE_DENSE) o.capacity = p->script.tokens;
    FB_TRY(fb_session_create(p->model, &o, &session, err));
    fb_status status = prove_of(p, &fb_session_execution(session)->options, fuses, named, err);
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

static fb_status run_plain(proof *p, fb_error *err) {
    fb_model_info info;
    fb_model_get_info(p->model, &info);
    FB_TRY(fb_dtype_parse_kv(p->options->kv, p->options->act, &p->kv, err));
    FB_TRY(fb_script_make(p->model, p->options->chunk, &p->script, err));
    /* So that the ring turns, in the prefill and in the decode steps. */
    if (p->options->cache == FB_CACHE_WINDOW) p->settled.sinks = 0;
    if (p->options->cache != FB_CACHE_DENSE && !p->options->window) {
        p->settled.window = (p->script.tokens - p->options->sinks) / 4;
        if (p->settled.window < 1)
            return fb_fail(
                err, FB_ERROR_USAGE, "sinks: %lld (at most %lld of the %lld tokens that are compared)",
                (long long)p->options->sinks, (long long)p->script.tokens - 4, (long long)p->script.tokens);
    }
    fb_session_options o = *p->options;
    o.fuse = "none";
    FB_TRY(fb_tape_record(p->model, &o, &p->script, NULL, &p->plain, err));
    int64_t tokens = (int64_t)(TRUTH_WORK / (double)(info.parameters + 1));
    tokens = tokens < 1 ? 1 : tokens > p->script.tokens ? p->script.tokens : tokens;
    FB_TRY(fb_tape_record_truth(p->model, p->options, &p->script, tokens, &p->truth, err));
    p->vs_truth = distance(&p->plain, &p->truth);
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
