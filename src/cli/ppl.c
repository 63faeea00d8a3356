/* fusebox ppl: how well a model foresees a text. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/json_out.h"
#include "cli/model.h"
#include "cli/output.h"
#include "cli/ppl_stream.h"

typedef struct ppl_options {
    cli_model_options model;
    cli_stream_options stream;
    const char *model_name, *file;
    const char *compat; /* "fusebox" or "llama.cpp" */
    int64_t window, max_windows;
    bool windows, json, window_given;
} ppl_options;

static const char notes[] = CLI_MODEL_NOTES
    "The text is cut into windows that do not overlap; each is read from its own beginning, after the\n"
    "tokenizer's begin-of-text token if it has one. Every token that has a predecessor in its window is\n"
    "scored. Perplexity is exp of the mean of -ln p(token); ± is one standard error.\n"
    "With --compat llama.cpp only the second half of each whole window is scored, as llama-perplexity does:\n"
    "these tokens have more before them, so the value is lower. Compare only values of the same way.\n"
    "With --cache the text is one stream, read to its end whatever the model was trained on, by each cache\n"
    "of the list: dense keeps all of it, sinks the first tokens and the last ones, window only the last\n"
    "ones, as many as sinks has in all, so that both see equally much.\n";

/* Windows and a stream are two ways to read a text: an option of one says nothing about the other. */
static int check_ways(const ppl_options *o) {
    if (o->stream.caches && (o->max_windows || strcmp(o->compat, "fusebox") != 0))
        return cli_fail(CLI_USAGE, "%s: not with --cache (a stream is not cut into windows)",
                        o->max_windows ? "--chunks" : "--compat");
    if (o->stream.caches && o->window_given)
        return cli_fail(CLI_USAGE, "--ctx: %" PRId64 " (not with --cache: a stream is not cut into windows)",
                        o->window);
    if (o->stream.caches && o->windows)
        return cli_fail(CLI_USAGE, "--windows: not with --cache (a stream is not cut into windows)");
    return cli_stream_check(&o->stream);
}

static bool parse(const cli_command *command, int argc, char **argv, ppl_options *o, int *status) {
    static const char *const ways[] = {"fusebox", "llama.cpp", NULL};
    *o = (ppl_options){.compat = ways[0]};
    cli_option model_rows[CLI_MODEL_ROWS], stream_rows[CLI_STREAM_ROWS];
    cli_model_rows(&o->model, model_rows);
    cli_stream_rows(&o->stream, stream_rows);
    const cli_option text[] = {
        {CLI_ROW('f', "file", CLI_STRING, &o->file, "FILE", "the text; - is standard input")},
        {CLI_ROW('c', "ctx", CLI_INT, &o->window, "N", "tokens of a window"), .range = {2, 1e9},
         .fallback = "the model's context, at most 512", .given = &o->window_given},
        {CLI_ROW(0, "chunks", CLI_INT, &o->max_windows, "N", "windows at most; 0: all"), .range = {0, 1e9}},
        {CLI_ROW(0, "compat", CLI_CHOICE, &o->compat, "PROGRAM",
                 "which tokens are scored: as this program does"),
         .choices = ways},
    };
    const cli_option output[] = {
        {CLI_ROW(0, "windows", CLI_FLAG, &o->windows, NULL, "a line a window as well")},
        {CLI_ROW(0, "json", CLI_FLAG, &o->json, NULL, "one JSON object with all windows, or lines")},
    };
    const cli_group groups[] = {
        {"text", text, sizeof text / sizeof *text},
        {"text as one stream", stream_rows, CLI_STREAM_ROWS},
        {"execution", model_rows, CLI_MODEL_ROWS},
        {"output", output, sizeof output / sizeof *output},
    };
    cli_args args = {.command = command,
                     .notes = notes,
                     .groups = groups,
                     .group_count = sizeof groups / sizeof *groups,
                     .max_positionals = 1,
                     .takes_model = true};
    if (!cli_args_parse(&args, argc, argv, status)) return false;
    if (args.positional_count) o->model_name = args.positionals[0];
    *status = o->file ? check_ways(o)
                      : cli_fail(CLI_USAGE, "text: none (give -f FILE, or -f - for standard input)");
    return *status == CLI_OK;
}

/* ---- the report ------------------------------------------------------------------------------ */

static void print_windows(const fb_perplexity_report *r) {
    printf("%-8s  %8s  %12s\n", "window", "tokens", "perplexity");
    for (int64_t i = 0; i < r->window_count; i++)
        printf("%-8" PRId64 "  %8" PRId64 "  %12.4f\n", i + 1, r->windows[i].tokens,
               r->windows[i].perplexity);
    putchar('\n');
}

static bool halves(const ppl_options *o) { return strcmp(o->compat, "llama.cpp") == 0; }

static void print_report(const ppl_options *o, const fb_perplexity_report *r) {
    if (o->windows) print_windows(r);
    printf("perplexity       %.4f ± %.4f\n", r->all.perplexity, r->all.perplexity_error);
    printf("tokens           %" PRId64 " scored, %" PRId64 " window%s of %" PRId64 "\n", r->all.tokens,
           r->window_count, r->window_count == 1 ? "" : "s", r->window);
    printf("scored           %s\n", halves(o) ? "the second half of each window, as llama-perplexity does"
                                              : "every token that has a predecessor in its window");
    printf("speed            %.1f tokens/s\n", (double)r->all.tokens / r->all.seconds);
}

static void write_report(const ppl_options *o, const char *path, const fb_perplexity_report *r) {
    cli_json json = {.out = stdout};
    cli_json_open(&json, NULL, '{');
    cli_json_string(&json, "model", path);
    cli_json_string(&json, "file", o->file);
    cli_json_int(&json, "threads", r->threads);
    cli_json_string(&json, "isa", r->isa);
    cli_json_string(&json, "act", fb_dtype_name(o->model.act));
    cli_json_string(&json, "fuse", o->model.fuse);
    cli_json_bool(&json, "exact", o->model.exact);
    cli_json_int(&json, "tokens", r->all.tokens);
    cli_json_real(&json, "perplexity", r->all.perplexity);
    cli_json_real(&json, "perplexity_error", r->all.perplexity_error);
    cli_json_real(&json, "nll", r->all.nll);
    cli_json_real(&json, "nll_error", r->all.nll_error);
    cli_json_real(&json, "seconds", r->all.seconds);
    cli_json_real(&json, "tokens_per_s", (double)r->all.tokens / r->all.seconds);
    cli_json_string(&json, "scoring", halves(o) ? "second_half" : "all");
    cli_json_int(&json, "window", r->window);
    cli_json_open(&json, "windows", '[');
    for (int64_t i = 0; i < r->window_count; i++) {
        cli_json_open(&json, NULL, '{');
        cli_json_int(&json, "tokens", r->windows[i].tokens);
        cli_json_real(&json, "nll", r->windows[i].nll);
        cli_json_real(&json, "perplexity", r->windows[i].perplexity);
        cli_json_close(&json, '}');
    }
    cli_json_close(&json, ']');
    cli_json_close(&json, '}');
    putchar('\n');
}

/* ---- the run --------------------------------------------------------------------------------- */

static bool on_progress(void *user, const fb_score *so_far, int64_t total) {
    (void)user;
    char unit[64];
    snprintf(unit, sizeof unit, "tokens, perplexity %.2f", so_far->perplexity);
    cli_progress("text", so_far->tokens, total, unit);
    return true;
}

static int measure(const ppl_options *o, const fb_model *model, const char *path, const cli_prompt *text) {
    fb_error err;
    fb_perplexity_options options;
    fb_perplexity_report *report;
    fb_perplexity_options_default(&options);
    CLI_MODEL_SET_FUSE(&o->model, &options);
    options.window = o->window;
    options.max_windows = o->max_windows;
    options.scoring = halves(o) ? FB_SCORE_SECOND_HALF : FB_SCORE_ALL;
    options.on_progress = on_progress;
    fb_status status = fb_perplexity_run(model, &options, text->ids, text->count, &report, &err);
    cli_progress_clear();
    if (status != FB_OK) return cli_fail_error(&err);
    if (o->json)
        write_report(o, path, report);
    else
        print_report(o, report);
    fb_perplexity_free(report);
    return CLI_OK;
}

static int read_text(const ppl_options *o, const fb_model *model, cli_prompt *text) {
    fb_error err;
    int status = cli_prompt_read(text, NULL, o->file);
    if (status != CLI_OK) return status;
    if (fb_tokenize(model, text->text, text->bytes, false, &text->ids, &text->count, &err) != FB_OK)
        return cli_fail_error(&err);
    return CLI_OK;
}

int cli_ppl(const cli_command *command, int argc, char **argv) {
    ppl_options options;
    cli_prompt text = {0};
    fb_model *model = NULL;
    char *path = NULL;
    int status;
    if (!parse(command, argc, argv, &options, &status)) return status;
    status = cli_model_open(options.model_name, &path, &model);
    if (status == CLI_OK) status = read_text(&options, model, &text);
    if (status == CLI_OK)
        status = options.stream.caches ? cli_stream_measure(&options.stream, &options.model, options.json,
                                                            model, path, options.file, &text)
                                       : measure(&options, model, path, &text);
    cli_prompt_free(&text);
    fb_model_free(model);
    free(path);
    return status;
}
