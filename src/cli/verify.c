/* fusebox verify: every hidden state, the logits and the greedy continuation, against a golden or, without
 * one, of the fuses against the plain program. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/json_out.h"
#include "cli/memory.h"
#include "cli/model.h"
#include "cli/output.h"
#include "cli/verify.h"

/* fabs, because a NaN has a sign, too. */
static void print_row(const char *name, const fb_verify_row *row) {
    printf("%-8s  %12.3e  %9.1e  %12.3e  %9.1e  %s\n", name, fabs(row->max_abs), row->limit, fabs(row->rel),
           row->rel_limit, row->ok ? "ok" : "FAILED");
}

static void print_greedy(const fb_verify_report *report) {
    printf("%-8s  %" PRId64 " of %" PRId64 " tokens equal", "greedy", report->greedy_equal,
           report->greedy_tokens);
    if (report->greedy_near > 0) printf(", %" PRId64 " within the error bound", report->greedy_near);
    printf("  %s\n", report->greedy_match ? "ok" : "FAILED");
}

/* The last line: the whole in one. */
static void print_verdict(const fb_verify_report *report, const char *golden) {
    if (report->ok) {
        fputs("verified: ", stdout);
        cli_put(golden);
        printf(", %" PRId64 " tokens: %" PRId64 " hidden states, the logits and %" PRId64
               " greedy tokens hold\n",
               report->tokens, report->layers, report->greedy_tokens);
        return;
    }
    int64_t bad = 0;
    for (int64_t i = 0; i < report->layers; i++) bad += !report->rows[i].ok;
    fputs("FAILED: ", stdout);
    cli_put(golden);
    printf(": %" PRId64 " of %" PRId64 " hidden states out of bounds, logits %s, greedy %s\n", bad,
           report->layers, report->logits.ok ? "hold" : "out of bounds",
           report->greedy_match ? "holds" : "differs");
}

static void print_table(const fb_verify_report *report, const char *golden) {
    char name[24];
    printf("%-8s  %12s  %9s  %12s  %9s  %s\n", "layer", "max abs", "limit", "relative", "limit", "verdict");
    for (int64_t i = 0; i < report->layers; i++) {
        snprintf(name, sizeof name, "%" PRId64, report->rows[i].layer);
        print_row(name, &report->rows[i]);
    }
    print_row("logits", &report->logits);
    print_greedy(report);
    print_verdict(report, golden);
}

static void write_row(cli_json *json, const fb_verify_row *row) {
    cli_json_real(json, "max_abs", row->max_abs);
    cli_json_real(json, "rel", row->rel);
    cli_json_real(json, "limit", row->limit);
    cli_json_real(json, "rel_limit", row->rel_limit);
    cli_json_bool(json, "ok", row->ok);
    cli_json_close(json, '}');
}

static void print_json(const fb_verify_report *report, const char *golden) {
    cli_json json = {.out = stdout};
    cli_json_open(&json, NULL, '{');
    cli_json_bool(&json, "ok", report->ok);
    cli_json_string(&json, "golden", golden);
    cli_json_int(&json, "tokens", report->tokens);
    cli_json_open(&json, "layers", '[');
    for (int64_t i = 0; i < report->layers; i++) {
        cli_json_open(&json, NULL, '{');
        cli_json_int(&json, "layer", report->rows[i].layer);
        write_row(&json, &report->rows[i]);
    }
    cli_json_close(&json, ']');
    cli_json_open(&json, "logits", '{');
    write_row(&json, &report->logits);
    cli_json_real(&json, "logits_max_abs", report->logits.max_abs);
    cli_json_real(&json, "logits_f64_max_abs", report->logits_f64_max_abs);
    cli_json_int(&json, "greedy_tokens", report->greedy_tokens);
    cli_json_int(&json, "greedy_equal", report->greedy_equal);
    cli_json_int(&json, "greedy_near", report->greedy_near);
    cli_json_bool(&json, "greedy_match", report->greedy_match);
    cli_json_close(&json, '}');
    putchar('\n');
}

/* ---- a stream's golden -------------------------------------------------------------------------------- */

static void cache_text(const fb_stream_row *row, char *text, size_t size) {
    if (row->cache == FB_CACHE_DENSE)
        snprintf(text, size, "dense");
    else
        snprintf(text, size, "%" PRId64 " sinks, window %" PRId64, row->sinks, row->window);
}

static void print_stream(const fb_stream_report *report, const char *golden) {
    char name[64], logits[32];
    printf("%-22s  %10s  %10s  %12s  %12s  %9s  %s\n", "cache", "perplexity", "golden", "logits", "nll",
           "limit", "verdict");
    for (int32_t i = 0; i < report->count; i++) {
        const fb_stream_row *row = report->rows[i];
        cache_text(row, name, sizeof name);
        snprintf(logits, sizeof logits, "%.3e", fabs(row->logits_max_abs));
        printf("%-22s  %10.4f  %10.4f  %12s  %12.3e  %9.1e  %s\n", name, row->perplexity,
               row->perplexity_wanted, isnan(row->logits_max_abs) && row->ok ? "-" : logits,
               fabs(row->nll_max_abs), row->nll_limit, row->ok ? "ok" : "FAILED");
    }
    fputs(report->ok ? "verified: " : "FAILED: ", stdout);
    cli_put(golden);
    printf(", %" PRId64 " tokens in chunks and one by one, %" PRId64 " cache%s\n", report->tokens,
           report->count, report->count == 1 ? "" : "s");
}

static void stream_json(const fb_stream_report *report, const char *golden) {
    cli_json json = {.out = stdout};
    cli_json_open(&json, NULL, '{');
    cli_json_bool(&json, "ok", report->ok);
    cli_json_string(&json, "golden", golden);
    cli_json_int(&json, "tokens", report->tokens);
    cli_json_open(&json, "caches", '[');
    for (int32_t i = 0; i < report->count; i++) {
        const fb_stream_row *row = report->rows[i];
        cli_json_open(&json, NULL, '{');
        cli_json_string(&json, "cache", fb_cache_name(row->cache));
        cli_json_int(&json, "sinks", row->sinks);
        cli_json_int(&json, "window", row->window);
        cli_json_real(&json, "nll_max_abs", row->nll_max_abs);
        cli_json_real(&json, "nll_limit", row->nll_limit);
        cli_json_real(&json, "logits_max_abs", row->logits_max_abs);
        cli_json_real(&json, "logits_limit", row->logits_limit);
        cli_json_real(&json, "perplexity", row->perplexity);
        cli_json_real(&json, "perplexity_golden", row->perplexity_wanted);
        cli_json_bool(&json, "ok", row->ok);
        cli_json_close(&json, '}');
    }
    cli_json_close(&json, ']');
    cli_json_close(&json, '}');
    putchar('\n');
}

static int compare_stream(const fb_model *model, const char *golden, const fb_verify_options *options,
                          bool as_json) {
    fb_error err;
    fb_stream_report *report;
    fb_model_info info;
    fb_model_get_info(model, &info);
    if (fb_verify_stream(model, golden, options, &report, &err) != FB_OK) return cli_fail_error(&err);
    bool dense = false;
    for (int32_t i = 0; i < report->count; i++) dense = dense || report->rows[i]->cache == FB_CACHE_DENSE;
    if (dense && report->tokens > info.context)
        cli_warn("dense: %" PRId64 " tokens (the model was trained on %" PRId64 ")", report->tokens,
                 info.context);
    (as_json ? stream_json : print_stream)(report, golden);
    int status = report->ok ? CLI_OK : CLI_FAILED;
    fb_stream_free(report);
    return status;
}

static int compare(const fb_model *model, const char *golden, const cli_model_options *how, bool as_json) {
    fb_error err;
    fb_verify_options options;
    fb_verify_report *report;
    bool streams;
    fb_verify_options_default(&options);
    CLI_MODEL_SET_FUSE(how, &options);
    if (fb_golden_streams(golden, &streams, &err) != FB_OK) return cli_fail_error(&err);
    if (streams) return compare_stream(model, golden, &options, as_json);
    if (fb_verify_golden(model, golden, &options, &report, &err) != FB_OK) return cli_fail_error(&err);
    (as_json ? print_json : print_table)(report, golden);
    int status = report->ok ? CLI_OK : CLI_FAILED;
    fb_verify_free(report);
    return status;
}

#define NOTES                                                                                                \
    "\nWith --golden, the model is compared with a reference answer, whose cache was not rounded: there,\n"  \
    "auto for --kv is act. A golden of a stream names its caches. Without, its fuses are compared with the " \
    "plain program: each that applies\n"                                                                     \
    "alone, all together and the planner's choice; or each of SPEC, then SPEC. With --batch, answers in\n"   \
    "random batches are compared with the same answers alone: they must have the same bits.\n"

static int prove(const fb_model *model, const cli_model_options *how, const cli_memory_options *stream,
                 bool as_json) {
    fb_error err;
    fb_fusion_options options;
    fb_fusion_report *report;
    fb_fusion_options_default(&options);
    CLI_MODEL_SET_FUSE(how, &options);
    int status = cli_memory_take(stream, &options.cache, &options.sinks, &options.window);
    if (status != CLI_OK) return status;
    if (fb_verify_fusion(model, &options, &report, &err) != FB_OK) return cli_fail_error(&err);
    (as_json ? cli_fusion_json : cli_fusion_table)(report);
    status = report->ok ? CLI_OK : CLI_FAILED;
    fb_fusion_free(report);
    return status;
}

int cli_verify(const cli_command *command, int argc, char **argv) {
    const char *golden = NULL;
    bool as_json = false, batch = false, rounds_given = false;
    int64_t rounds = 20;
    uint64_t seed = 0;
    fb_draft_verify_options drafts;
    cli_model_options model_options;
    cli_memory_options stream;
    cli_option model_rows[CLI_MODEL_ROWS], stream_rows[CLI_MEMORY_ROWS];
    fb_draft_verify_options_default(&drafts);
    cli_model_rows(&model_options, model_rows);
    cli_memory_rows(&stream, stream_rows);
    stream_rows[2].fallback = "a quarter of the tokens that are compared";
    const cli_option reference[] = {
        {CLI_ROW(0, "golden", CLI_STRING, &golden, "FILE", "the reference answer, a .safetensors file")},
    };
    const cli_option output[] = {
        {CLI_ROW(0, "json", CLI_FLAG, &as_json, NULL, "one JSON object instead of the table")},
    };
    const cli_option guesses[] = {
        {CLI_ROW(0, "draft", CLI_STRING, &drafts.source, "SOURCE",
                 "compare texts with guesses (ngram, q4, MODEL, scripted) with the same one by one")},
        {CLI_ROW('n', "gen", CLI_INT, &drafts.gen, "N", "with --draft: tokens of a text"),
         .range = {2, 4096}},
        {CLI_ROW('p', "prompt", CLI_INT, &drafts.prompt, "N", "with --draft: tokens of its prompt, at most"),
         .range = {1, 4096}},
    };
    const cli_option batches[] = {
        {CLI_ROW(0, "batch", CLI_FLAG, &batch, NULL,
                 "compare answers in random batches with the same alone")},
        {CLI_ROW(0, "rounds", CLI_INT, &rounds, "N", "batches to try; with --draft, 0 for none"),
         .given = &rounds_given, .range = {0, 100000}, .fallback = "20, with --draft 3"},
        {CLI_ROW(0, "seed", CLI_SEED, &seed, "N", "of the random choices")},
    };
    const cli_group groups[] = {{"reference", reference, 1},
                                {"batches", batches, 3},
                                {"guesses", guesses, 3},
                                {"execution", model_rows, CLI_MODEL_ROWS},
                                {"memory, without --golden", stream_rows, CLI_MEMORY_ROWS},
                                {"output", output, 1}};
    cli_args args = {.command = command,
                     .notes = CLI_MODEL_NOTES NOTES,
                     .groups = groups,
                     .group_count = sizeof groups / sizeof *groups,
                     .max_positionals = 1,
                     .takes_model = true};
    int status;
    if (!cli_args_parse(&args, argc, argv, &status)) return status;
    if (golden && (stream.cache_given || stream.sinks_given || stream.window_given))
        return cli_fail(CLI_USAGE,
                        "--cache, --sinks, --window: with --golden (a golden says which cache it is for)");
    if (drafts.source && (batch || stream.cache_given || stream.sinks_given || stream.window_given))
        return cli_fail(CLI_USAGE, "--draft: with %s (it tries all caches, and batches)",
                        batch ? "--batch" : "--cache, --sinks or --window");
    if (batch && (golden || stream.cache_given || stream.sinks_given || stream.window_given))
        return cli_fail(CLI_USAGE, "--batch: with %s (batches have dense caches, and no golden)",
                        golden ? "--golden" : "--cache, --sinks or --window");
    if (rounds_given && !rounds && !drafts.source)
        return cli_fail(CLI_USAGE, "--rounds: 0 (at least 1; 0 only with --draft)");
    if (rounds_given) drafts.rounds = rounds;
    drafts.golden = golden;
    drafts.seed = seed;
    char *path;
    fb_model *model;
    status = cli_model_open(args.positional_count ? args.positionals[0] : NULL, &path, &model);
    if (status == CLI_OK)
        status = drafts.source ? cli_verify_draft(model, &model_options, &drafts, as_json)
                 : batch       ? cli_verify_batch(model, &model_options, rounds, seed, as_json)
                 : golden      ? compare(model, golden, &model_options, as_json)
                               : prove(model, &model_options, &stream, as_json);
    fb_model_free(model);
    free(path);
    return status;
}
