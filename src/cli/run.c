/* fusebox run: a prompt becomes text. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/conversation.h"
#include "cli/draft.h"
#include "cli/generate.h"
#include "cli/memory.h"
#include "cli/model.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/report.h"
#include "cli/run_batch.h"
#include "cli/sampling.h"

typedef struct run_options {
    cli_model_options model;
    cli_memory_options stream;
    const char *model_name, *text, *file;
    cli_sampling_options sampling;
    cli_draft draft;
    cli_list stop;
    const char *system, *template_file;
    char *template_text; /* of template_file; NULL: the model's */
    int64_t batch;       /* answers; 0: one, written as it comes */
    int64_t tokens, context, logprobs;
    bool tokens_given, logprobs_given, stats, json, endless, chat;
} run_options;

/* ---- the command line ------------------------------------------------------------------------ */

/* --stream is cache sinks, unless another that forgets was asked for, and no end. */
static int settle_stream(run_options *o) {
    if (o->tokens < 0) o->tokens = CLI_ENDLESS;
    if (!o->endless) return CLI_OK;
    if (!o->stream.cache_given) o->stream.cache = "sinks";
    if (strcmp(o->stream.cache, "dense") == 0)
        return cli_fail(CLI_USAGE,
                        "--stream: with --cache dense (window or sinks: a dense cache is full some day)");
    if (o->json && (!o->tokens_given || o->tokens == CLI_ENDLESS))
        return cli_fail(CLI_USAGE,
                        "--json: with --stream (give -n N: the object is written when the text ends)");
    if (!o->tokens_given) o->tokens = CLI_ENDLESS;
    return CLI_OK;
}

static bool parse(const cli_command *command, int argc, char **argv, run_options *o, int *status) {
    *o = (run_options){.tokens = 256};
    cli_option model_rows[CLI_MODEL_ROWS], stream_rows[CLI_MEMORY_ROWS], sampling[CLI_SAMPLING_ROWS];
    cli_sampling_rows(&o->sampling, sampling);
    cli_model_rows(&o->model, model_rows);
    cli_memory_rows(&o->stream, stream_rows);
    const cli_option stream[] = {
        {CLI_ROW(0, "stream", CLI_FLAG, &o->endless, NULL,
                 "on and on, beyond the model's context and its end tokens, until Ctrl-C or -n")},
        {CLI_ROW('c', "ctx", CLI_INT, &o->context, "N", "tokens of prompt and text together; 0: the context"),
         .range = {0, 1e9}, .fallback = "the model's context"},
        stream_rows[0],
        stream_rows[1],
        stream_rows[2],
    };
    const cli_option prompt[] = {
        {CLI_ROW('p', "prompt", CLI_STRING, &o->text, "TEXT", "the text to continue")},
        {CLI_ROW('f', "file", CLI_STRING, &o->file, "FILE", "read it from a file; - is standard input")},
        {CLI_ROW('n', "tokens", CLI_INT, &o->tokens, "N", "tokens at most; -1: until the text ends"),
         .range = {-1, 1e9}, .fallback = "256, or what the context has left; with --stream no limit",
         .given = &o->tokens_given},
        {CLI_ROW(0, "batch", CLI_INT, &o->batch, "N", "N answers at once, written when all are done"),
         .range = {1, CLI_MAX_BATCH}, .fallback = "one answer, written as it comes"},
        {CLI_ROW(0, "stop", CLI_LIST, &o->stop, "TEXT", "end before this text")},
        {CLI_ROW(0, "chat", CLI_FLAG, &o->chat, NULL,
                 "put the text into the model's chat template, as a user's message")},
        {CLI_ROW(0, "system", CLI_STRING, &o->system, "TEXT", "with --chat: the system's message before it")},
        {CLI_ROW(0, "template", CLI_STRING, &o->template_file, "FILE",
                 "with --chat: a chat template instead of the model's")},
    };
    cli_option execution[CLI_MODEL_ROWS + 1 + CLI_DRAFT_ROWS];
    memcpy(execution, model_rows, sizeof model_rows);
    execution[CLI_MODEL_ROWS] = cli_model_invariant_row(&o->model);
    cli_draft_rows(&o->draft, execution + CLI_MODEL_ROWS + 1);
    const cli_option output[] = {
        {CLI_ROW(0, "stats", CLI_FLAG, &o->stats, NULL, "times, speed and memory to standard error")},
        {CLI_ROW(0, "json", CLI_FLAG, &o->json, NULL, "one JSON object instead of the text")},
        {CLI_ROW(0, "logprobs", CLI_INT, &o->logprobs, "N",
                 "with --json: log-probabilities of each token and of the N best"),
         .range = {0, FB_MAX_LOGPROBS}, .fallback = "none", .given = &o->logprobs_given},
    };
    const cli_group groups[] = {
        {"prompt", prompt, sizeof prompt / sizeof *prompt},
        {"sampling", sampling, CLI_SAMPLING_ROWS},
        {"memory", stream, sizeof stream / sizeof *stream},
        {"execution", execution, CLI_MODEL_ROWS + 1 + CLI_DRAFT_ROWS},
        {"output", output, sizeof output / sizeof *output},
    };
    cli_args args = {.command = command,
                     .notes = CLI_MODEL_NOTES CLI_PROMPT_NOTES,
                     .groups = groups,
                     .group_count = sizeof groups / sizeof *groups,
                     .max_positionals = 2,
                     .takes_model = true};
    if (!cli_args_parse(&args, argc, argv, status)) return false;
    *status = cli_prompt_take(&args, &o->model_name, &o->text, &o->file);
    if (*status == CLI_OK) *status = settle_stream(o);
    if (*status == CLI_OK && o->system && !o->chat)
        *status = cli_fail(CLI_USAGE, "--system: %s (only with --chat)", o->system);
    if (*status == CLI_OK && o->template_file && !o->chat)
        *status = cli_fail(CLI_USAGE, "--template: %s (only with --chat)", o->template_file);
    if (*status == CLI_OK) *status = cli_sampling_parse(&o->sampling);
    if (*status == CLI_OK && o->batch && (o->endless || o->logprobs_given || o->stream.cache_given))
        *status = cli_fail(CLI_USAGE, "--batch: with %s (answers in a batch have an end, and a dense cache)",
                           o->endless          ? "--stream"
                           : o->logprobs_given ? "--logprobs"
                                               : "--cache");
    if (*status == CLI_OK && o->logprobs_given && !o->json)
        *status = cli_fail(CLI_USAGE, "--logprobs: %lld (only with --json, which prints them)",
                           (long long)o->logprobs);
    return *status == CLI_OK;
}

/* ---- the run --------------------------------------------------------------------------------- */

/* How many tokens to generate: of a dense cache, not more than the context has left. */
static int set_limit(const run_options *o, const cli_prompt *prompt, cli_generation *g) {
    fb_model_info info;
    g->limit = o->tokens;
    g->past_end = o->endless;
    g->keep_all = o->json;
    if (g->session_options.cache != FB_CACHE_DENSE && o->context)
        return cli_fail(CLI_USAGE, "--ctx: %lld (not with --cache %s: --window says how much is kept)",
                        (long long)o->context, o->stream.cache);
    if (g->session_options.cache != FB_CACHE_DENSE) return CLI_OK;
    fb_model_get_info(g->model, &info);
    int64_t context = o->context && o->context < info.context ? o->context : info.context;
    const char *whose = context < info.context ? "--ctx" : "the model's context";
    int64_t left = context - prompt->count;
    if (left < 0)
        return cli_fail(CLI_USAGE, "prompt: %lld tokens (%s is %lld; with --cache sinks it may be longer)",
                        (long long)prompt->count, whose, (long long)context);
    if (o->context > context)
        cli_note("--ctx: %lld, cut to %lld (the model's context)", (long long)o->context, (long long)context);
    if (o->tokens_given && o->tokens != CLI_ENDLESS && o->tokens > left)
        cli_note("-n: %lld, cut to %lld (%s is %lld, the prompt has %lld)", (long long)o->tokens,
                 (long long)left, whose, (long long)context, (long long)prompt->count);
    g->context_is_limit = o->tokens > left;
    g->limit = g->context_is_limit ? left : o->tokens;
    return CLI_OK;
}

static int set_options(const run_options *o, const cli_prompt *prompt, cli_generation *g) {
    g->prompt = prompt->ids;
    g->prompt_count = prompt->count;
    fb_session_options *session = &g->session_options;
    fb_session_options_default(session);
    CLI_MODEL_SET_FUSE(&o->model, session);
    session->any_order = cli_model_any_order(&o->model);
    int status = cli_memory_take(&o->stream, &session->cache, &session->sinks, &session->window);
    if (status != CLI_OK) return status;
    session->greedy = cli_sampling_takes_best(&o->sampling) && !o->logprobs_given;
    g->with_logprobs = o->logprobs_given;
    g->top_count = o->logprobs;
    cli_sampling_take(&o->sampling, &g->sampler_options);
    g->stop_texts = o->stop.values;
    g->stop_count = o->stop.count;
    return set_limit(o, prompt, g);
}

/* On a terminal the story reads whole: the prompt, dim, and its continuation. Anywhere else only the
 * continuation. */
static void set_terminal(const cli_prompt *prompt, cli_generation *g) {
    g->terminal = isatty(STDOUT_FILENO);
    g->screen = cli_has_screen(STDOUT_FILENO);
    if (!g->terminal || prompt->bytes == 0) return;
    g->shown = prompt->text;
    g->shown_bytes = prompt->bytes;
}

static int finish(const run_options *o, const cli_report *report, int status) {
    if (o->json)
        cli_report_json(report, stdout);
    else
        cli_answer_end_line();
    status = cli_finish_output(status);
    if (o->stats) {
        fb_draft_stats stats;
        cli_report_stats(report, stderr);
        fb_session_get_draft(report->generation->session, &stats);
        cli_draft_print(&o->draft, &stats, stderr);
    }
    return status;
}

static int generate(const run_options *o, const cli_prompt *prompt, cli_generation *g, double load_seconds) {
    char *text = NULL;
    size_t bytes = 0;
    g->sink = o->json ? open_memstream(&text, &bytes) : stdout;
    if (!g->sink) return cli_fail(CLI_FAILED, "text: no memory");
    if (!o->json) set_terminal(prompt, g);
    if (o->chat) g->shown = NULL; /* an answer stands alone */
    int status = cli_generate(g);
    /* Closing gives the text its final size, for which there may be no memory. */
    if (o->json && (fclose(g->sink) != 0 || !text) && (status == CLI_OK || status == CLI_INTERRUPTED))
        status = cli_fail(CLI_FAILED, "text: no memory for %zu bytes", bytes);
    if (status == CLI_OK || status == CLI_INTERRUPTED) {
        cli_report report = {.generation = g,
                             .load_seconds = load_seconds + g->create_seconds,
                             .prompt = prompt->text,
                             .prompt_bytes = prompt->bytes,
                             .text = text,
                             .text_bytes = bytes};
        status = finish(o, &report, status);
    }
    free(text);
    return status;
}

/* With --chat the prompt is a user's message in the model's template. */
static int tokenize(const run_options *o, cli_prompt *prompt, const fb_model *model) {
    if (!o->chat) return cli_prompt_tokenize(prompt, model);
    cli_conversation conversation = {0};
    int status = CLI_OK;
    if (o->system) status = cli_conversation_add(&conversation, "system", o->system, strlen(o->system));
    if (status == CLI_OK) status = cli_conversation_add(&conversation, "user", prompt->text, prompt->bytes);
    if (status == CLI_OK)
        status =
            cli_conversation_tokenize(&conversation, model, o->template_text, &prompt->ids, &prompt->count);
    cli_conversation_free(&conversation);
    return status;
}

/* A newcomer's first hour: an instruct model takes a bare question for a finished text. */
static void hint_chat(const run_options *o, const cli_generation *g) {
    const char *name, *text;
    if (o->chat || g->stop != CLI_STOP_END || g->count > 0) return;
    if (fb_model_chat_template(g->model, 0, &name, &text))
        fprintf(stderr, "fusebox: the text ended at once: this model has a chat template (try --chat, or "
                        "fusebox chat)\n");
}

static int run_model(const run_options *o, cli_prompt *prompt, fb_model *model, double load_seconds) {
    cli_generation generation = {.model = model};
    fb_draft *draft = NULL;
    int status = tokenize(o, prompt, model);
    if (status == CLI_OK) status = set_options(o, prompt, &generation);
    if (status == CLI_OK) status = cli_draft_open(&o->draft, model, &draft);
    generation.session_options.draft = draft;
    if (status == CLI_OK)
        status = o->batch ? cli_run_batch(&generation, o->batch, &o->draft, o->json, o->stats)
                          : generate(o, prompt, &generation, load_seconds);
    if (status == CLI_OK && !o->batch) hint_chat(o, &generation);
    cli_generation_free(&generation);
    fb_draft_free(draft);
    return status;
}

int cli_run(const cli_command *command, int argc, char **argv) {
    run_options options;
    cli_prompt prompt = {0};
    fb_model *model = NULL;
    char *path = NULL;
    int status;
    if (!parse(command, argc, argv, &options, &status)) return status;
    double start = cli_clock();
    status = cli_chat_read_template(options.template_file, &options.template_text);
    if (status == CLI_OK) status = cli_model_open(options.model_name, &path, &model);
    double load_seconds = cli_clock() - start;
    if (status == CLI_OK) status = cli_sampling_settle(&options.sampling, model);
    if (status == CLI_OK) status = cli_prompt_read(&prompt, options.text, options.file);
    if (status == CLI_OK) status = run_model(&options, &prompt, model, load_seconds);
    cli_sampling_free(&options.sampling);
    fb_model_free(model);
    cli_prompt_free(&prompt);
    free(options.template_text);
    free(path);
    return status;
}
