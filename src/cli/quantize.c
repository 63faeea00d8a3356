/* fusebox quantize: a model as a GGUF file, its matrices in fewer bits, and what that costs in precision. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/hub.h"
#include "cli/json_out.h"
#include "cli/model.h"
#include "cli/output.h"
#include "cli/prompt.h"

typedef struct quantize_options {
    const char *model_name, *out, *type, *head, *text;
    bool force, json;
} quantize_options;

/* The perplexity of the text of --calibrate. */
typedef struct calibration {
    int64_t tokens; /* 0: there is no text */
    double before, after;
} calibration;

static const char notes[] = CLI_MODEL_NOTES
    "OUT.gguf gets the whole model: weights, hyperparameters and tokenizer. Matrices are of the type asked\n"
    "for, or of a similar one where their rows are no whole blocks of it; vectors are of f32. q2_k, iq4_xs\n"
    "and names that end in S, M or L are mixes: the head is of q6_k, and matrices whose errors cost most "
    "are\n"
    "of a better type. With q4_0 and types that have minimums, biases are corrected by what the rounding\n"
    "of their matrix adds on average, as far as the weights tell.\n"
    "With --calibrate the model reads a text first. The weights of a row then make up for each other's\n"
    "errors, as far as what they are multiplied with there goes together, and biases are corrected by what\n"
    "their inputs are on average. The head and the embedding are of q6_k, or of --keep-head. Some ten\n"
    "thousand tokens of the kind that the model is for are enough. Its perplexity is in the report.\n"
    "Each expert of a mixture goes by what was routed to it. The report says how many had nothing.\n";

#define MAX_NAMES 40

/* The head can have each type, but no mix. */
static void list_types(const char **types, const char **heads) {
    fb_dtype ignored;
    for (int i = 0; i < MAX_NAMES && fb_quantize_name(i); i++) {
        *types++ = fb_quantize_name(i);
        if (fb_dtype_parse(fb_quantize_name(i), &ignored, NULL) == FB_OK) *heads++ = fb_quantize_name(i);
    }
}

static bool parse(const cli_command *command, int argc, char **argv, quantize_options *o, int *status) {
    const char *types[MAX_NAMES + 1] = {NULL}, *heads[MAX_NAMES + 1] = {NULL};
    list_types(types, heads);
    *o = (quantize_options){.type = "q8_0"};
    const cli_option precision[] = {
        {CLI_ROW(0, "type", CLI_CHOICE, &o->type, "TYPE", "type or mix of the matrices"), .choices = types},
        {CLI_ROW(0, "keep-head", CLI_CHOICE, &o->head, "TYPE",
                 "type of the output head, which may be the embedding as well"),
         .choices = heads, .fallback = "that of the matrices; q6_k with a mix or a text"},
    };
    const cli_option calibrate[] = {
        {CLI_ROW(0, "calibrate", CLI_STRING, &o->text, "FILE", "a text that tells which weights matter")},
    };
    const cli_option output[] = {
        {CLI_ROW(0, "force", CLI_FLAG, &o->force, NULL, "replace OUT.gguf if it is there")},
        {CLI_ROW(0, "json", CLI_FLAG, &o->json, NULL, "one JSON object instead of the table")},
    };
    const cli_group groups[] = {
        {"precision", precision, 2}, {"calibration", calibrate, 1}, {"output", output, 2}};
    cli_args args = {.command = command,
                     .notes = notes,
                     .groups = groups,
                     .group_count = 3,
                     .max_positionals = 2,
                     .takes_model = true};
    if (!cli_args_parse(&args, argc, argv, status)) return false;
    if (args.positional_count == 0) {
        *status = cli_fail(CLI_USAGE, "OUT.gguf: none given (see fusebox quantize --help)");
        return false;
    }
    o->model_name = args.positional_count == 2 ? args.positionals[0] : NULL;
    o->out = args.positionals[args.positional_count - 1];
    struct stat st;
    if (!*o->out || (stat(o->out, &st) == 0 && S_ISDIR(st.st_mode))) {
        *status = cli_fail(CLI_USAGE, "OUT.gguf: %s (give the name of a file%s)", *o->out ? o->out : "\"\"",
                           o->model_name ? "" : "; MODEL comes before it");
        return false;
    }
    return true;
}

/* ---- the report ------------------------------------------------------------------------------ */

static double bits_a_weight(const fb_quantize_report *r) {
    return 8 * (double)r->bytes_after / (double)r->weights;
}

static void print_kind(const fb_quantize_kind *k) {
    char bytes[CLI_NUMBER_BYTES];
    printf("%-20s  %6s  %7" PRId64 "  %9sB", k->name, fb_dtype_name(k->type), k->tensors,
           cli_format_scaled((double)k->bytes, bytes));
    if (k->rel > 0)
        printf("  %9.2e  %9.2e", k->rel, k->max_abs);
    else
        printf("  %9s  %9s", k->corrected ? "corrected" : "exact", "");
    if (k->no_blocks) printf("  rows are no whole blocks of %s", fb_dtype_name(k->asked));
    putchar('\n');
}

static void print_report(const quantize_options *o, const char *path, const fb_quantize_report *r,
                         const calibration *c) {
    char text[CLI_NUMBER_BYTES];
    printf("%-20s  %6s  %7s  %10s  %9s  %9s\n", "tensors", "type", "number", "bytes", "relative", "largest");
    for (int64_t i = 0; i < r->kind_count; i++) print_kind(r->kinds[i]);
    printf("\n%-20s  ", "model");
    cli_put(path);
    putchar('\n');
    printf("%-20s  %sB before", "weights", cli_format_scaled((double)r->bytes_before, text));
    printf(", %sB after", cli_format_scaled((double)r->bytes_after, text));
    printf(": %.2f bits a weight\n", bits_a_weight(r));
    printf("%-20s  %" PRId64 "\n", "biases corrected", r->corrected);
    if (r->experts_own + r->experts_shared + r->experts_plain)
        printf("%-20s  %" PRId64 " matrices by their own inputs, %" PRId64 " by their layer's, %" PRId64
               " by none\n",
               "experts", r->experts_own, r->experts_shared, r->experts_plain);
    if (c->tokens)
        printf("%-20s  %.4f before, %.4f after, of the text's %" PRId64 " tokens\n", "perplexity", c->before,
               c->after, c->tokens);
    printf("%-20s  ", "file");
    cli_put(o->out);
    printf(", %s bytes\n", cli_format_digits(r->file_bytes, text));
}

static void write_report(const quantize_options *o, const char *path, const fb_quantize_report *r,
                         const calibration *c, fb_dtype head) {
    cli_json json = {.out = stdout};
    cli_json_open(&json, NULL, '{');
    cli_json_string(&json, "model", path);
    cli_json_string(&json, "file", o->out);
    cli_json_string(&json, "type", o->type);
    cli_json_string(&json, "head", fb_dtype_name(head));
    cli_json_int(&json, "file_bytes", r->file_bytes);
    cli_json_int(&json, "weights", r->weights);
    cli_json_int(&json, "weight_bytes_before", r->bytes_before);
    cli_json_int(&json, "weight_bytes", r->bytes_after);
    cli_json_real(&json, "bits_per_weight", bits_a_weight(r));
    cli_json_int(&json, "biases_corrected", r->corrected);
    if (c->tokens) {
        cli_json_string(&json, "text", o->text);
        cli_json_int(&json, "text_tokens", c->tokens);
        cli_json_real(&json, "perplexity_before", c->before);
        cli_json_real(&json, "perplexity", c->after);
        cli_json_int(&json, "experts_own", r->experts_own);
        cli_json_int(&json, "experts_shared", r->experts_shared);
        cli_json_int(&json, "experts_plain", r->experts_plain);
    }
    cli_json_open(&json, "tensors", '[');
    for (int64_t i = 0; i < r->kind_count; i++) {
        const fb_quantize_kind *k = r->kinds[i];
        cli_json_open(&json, NULL, '{');
        cli_json_string(&json, "name", k->name);
        cli_json_string(&json, "type", fb_dtype_name(k->type));
        cli_json_bool(&json, "no_blocks", k->no_blocks);
        cli_json_string(&json, "asked", fb_dtype_name(k->asked));
        cli_json_int(&json, "number", k->tensors);
        cli_json_int(&json, "weights", k->weights);
        cli_json_int(&json, "bytes", k->bytes);
        cli_json_int(&json, "corrected", k->corrected);
        cli_json_real(&json, "rel", k->rel);
        cli_json_real(&json, "max_abs", k->max_abs);
        cli_json_close(&json, '}');
    }
    cli_json_close(&json, ']');
    cli_json_close(&json, '}');
    putchar('\n');
}

/* ---- the run --------------------------------------------------------------------------------- */

static bool on_progress(void *user, int64_t done, int64_t total) {
    (void)user;
    cli_progress("weights", done, total, "done");
    return true;
}

static bool on_score(void *user, const fb_score *so_far, int64_t total) {
    cli_progress("text", so_far->tokens, total, user);
    return true;
}

static fb_status calibrate(const fb_model *model, const cli_prompt *text, fb_importance **importance,
                           calibration *c, fb_error *err) {
    static char unit[] = "tokens";
    fb_perplexity_options options;
    fb_perplexity_report *report;
    fb_perplexity_options_default(&options);
    options.on_progress = on_score;
    options.user = unit;
    fb_status status =
        fb_importance_collect(model, &options, text->ids, text->count, importance, &report, err);
    cli_progress_clear();
    if (status != FB_OK) return status;
    c->tokens = report->all.tokens;
    c->before = report->all.perplexity;
    fb_perplexity_free(report);
    return FB_OK;
}

/* Of the file that was written, which takes the same ids. */
static fb_status score_file(const quantize_options *o, const cli_prompt *text, calibration *c,
                            fb_error *err) {
    static char unit[] = "tokens";
    fb_perplexity_options options;
    fb_perplexity_report *report;
    fb_model *model;
    fb_perplexity_options_default(&options);
    options.on_progress = on_score;
    options.user = unit;
    fb_status status = fb_model_open(o->out, &model, err);
    if (status != FB_OK) return status;
    status = fb_perplexity_run(model, &options, text->ids, text->count, &report, err);
    cli_progress_clear();
    if (status == FB_OK) c->after = report->all.perplexity;
    if (status == FB_OK) fb_perplexity_free(report);
    fb_model_free(model);
    return status;
}

static int quantize(const quantize_options *o, const fb_model *model, const char *path,
                    const cli_prompt *text) {
    fb_error err;
    calibration c = {0};
    fb_importance *importance = NULL;
    fb_quantize_options options;
    fb_quantize_report *report;
    char *name = cli_hub_title(path);
    if (!name) return cli_fail(CLI_FAILED, "%s: no memory for its name", path);
    fb_quantize_options_default(&options);
    options.name = name;
    options.replace = o->force;
    options.on_progress = on_progress;
    fb_status status = o->text ? calibrate(model, text, &importance, &c, &err) : FB_OK;
    options.importance = importance;
    if (status == FB_OK) status = fb_quantize_options_parse(o->type, &options, &err);
    if (status == FB_OK && o->head) status = fb_dtype_parse(o->head, &options.head, &err);
    if (status == FB_OK) status = fb_model_quantize(model, o->out, &options, &report, &err);
    fb_importance_free(importance);
    free(name);
    cli_progress_clear();
    if (status != FB_OK) return cli_fail_error(&err);
    if (o->text) status = score_file(o, text, &c, &err);
    if (status == FB_OK && o->json) write_report(o, path, report, &c, options.head);
    if (status == FB_OK && !o->json) print_report(o, path, report, &c);
    fb_quantize_free(report);
    return status == FB_OK ? CLI_OK : cli_fail_error(&err);
}

static int read_text(const quantize_options *o, const fb_model *model, cli_prompt *text) {
    int status = o->text ? cli_prompt_read(text, NULL, o->text) : CLI_OK;
    fb_error err;
    if (status != CLI_OK || !o->text) return status;
    if (fb_tokenize(model, text->text, text->bytes, false, &text->ids, &text->count, &err) == FB_OK)
        return CLI_OK;
    return cli_fail_error(&err);
}

int cli_quantize(const cli_command *command, int argc, char **argv) {
    quantize_options options;
    cli_prompt text = {0};
    fb_model *model = NULL;
    char *path = NULL;
    int status;
    if (!parse(command, argc, argv, &options, &status)) return status;
    status = cli_model_open(options.model_name, &path, &model);
    if (status == CLI_OK) status = read_text(&options, model, &text);
    if (status == CLI_OK) status = quantize(&options, model, path, &text);
    cli_prompt_free(&text);
    fb_model_free(model);
    free(path);
    return status;
}
