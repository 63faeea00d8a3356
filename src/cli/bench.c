/* fusebox bench: fuses against each other, or one stream as it goes on. */
#include "cli/bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/memory.h"
#include "cli/model.h"
#include "cli/output.h"
#include "cli/prompt.h"

#define MAX_VARIANTS 32

typedef struct bench_options {
    cli_model_options model;
    cli_memory_options stream; /* without --cache fuses are compared */
    const char *model_name, *compare;
    int64_t prompt, gen, reps;
    bool prompt_given, gen_given, reps_given, compare_given, fuse_given;
    bool ops, turns, json;
    const char *batch; /* numbers of sequences, with commas; NULL: fuses are compared */
    const char *draft; /* sources, with commas; NULL: none */
    const char *file;  /* with a draft: its prompt */
    double temperature;
    const char *svg;
    int64_t arrival;
    bool arrival_given;
} bench_options;

/* ---- the command line ------------------------------------------------------------------------ */

static const char notes[] = CLI_MODEL_NOTES
    "A SPEC of --compare is what --fuse takes, with + for its commas: none,all,all+-qkv_up.\n"
    "\nWith --cache no fuses are compared: one greedy stream is timed as it goes on, at growing distances\n"
    "up to --gen tokens: a token, the memory, a prompt of that length, and what it would cost to read all\n"
    "that a token sees anew at each step. --fuse says which fuses.\n"
    "\nWith --batch no fuses are compared either: greedy answers to as many prompts are computed together.\n";

static bool fails(int *status, const char *option, const char *why) {
    *status = cli_fail(CLI_USAGE, "%s (%s)", option, why);
    return false;
}

/* The two ways of this command have options that mean nothing to the other. */
static bool fits(const bench_options *o, int *status) {
    if (o->batch && (o->stream.cache_given || o->stream.sinks_given || o->stream.window_given))
        return fails(status, "--batch", "not with --cache, --sinks or --window: batches have dense caches");
    if (o->batch && (o->compare_given || o->ops || o->turns || o->reps_given))
        return fails(status, "--batch",
                     "not with --compare, --ops, --turns or --reps: steps of one set of fuses are timed");
    if (o->draft && (o->batch || o->stream.cache_given || o->compare_given || o->ops || o->turns))
        return fails(status, "--draft", "not with --batch, --cache, --compare, --ops or --turns");
    if (o->batch || o->draft) return true;
    if (o->file) return fails(status, "--file", "only with --draft");
    if (o->arrival_given) return fails(status, "--arrival", "only with --batch");
    if (o->svg) return fails(status, "--svg", "only with --batch or --draft");
    if (!o->stream.cache_given) {
        if (o->stream.sinks_given || o->stream.window_given)
            return fails(status, o->stream.sinks_given ? "--sinks" : "--window", "only with --cache");
        if (o->fuse_given)
            return fails(status, "--fuse", "only with --cache or --batch: --compare has the fuses");
        if (o->ops && o->compare_given)
            return fails(status, "--compare", "not with --ops: each fuse is timed against plain operators");
        return true;
    }
    if (o->compare_given)
        return fails(status, "--compare", "not with --cache: one stream is timed, with the fuses of --fuse");
    if (o->ops) return fails(status, "--ops", "not with --cache: whole steps of one stream are timed");
    if (o->turns) return fails(status, "--turns", "not with --cache: a stream has no repetitions");
    if (o->reps_given) return fails(status, "--reps", "not with --cache: a stream has no repetitions");
    if (o->prompt_given)
        return fails(status, "--prompt", "not with --cache: the stream begins when its cache is full");
    return true;
}

static bool parse(const cli_command *command, int argc, char **argv, bench_options *o, int *status) {
    fb_bench_options defaults;
    fb_bench_options_default(&defaults);
    *o = (bench_options){.compare = "none,auto", .reps = defaults.reps};
    o->prompt = defaults.prompt;
    o->gen = defaults.gen;
    cli_option execution[CLI_MODEL_ROWS + 1], stream[CLI_MEMORY_ROWS];
    cli_model_rows(&o->model, execution);
    execution[CLI_MODEL_ROWS] = cli_model_invariant_row(&o->model);
    cli_memory_rows(&o->stream, stream);
    stream[0].fallback = "none: fuses are compared";
    for (int i = 0; i < CLI_MODEL_ROWS; i++)
        if (strcmp(execution[i].name, "fuse") == 0) execution[i].given = &o->fuse_given;
    const cli_option what[] = {
        {CLI_ROW(0, "compare", CLI_STRING, &o->compare, "SPEC,SPEC…",
                 "the variants; the first is the measure"),
         .given = &o->compare_given},
        {CLI_ROW('p', "prompt", CLI_INT, &o->prompt, "N", "tokens of the prompt"), .range = {1, 1e9},
         .given = &o->prompt_given},
        {CLI_ROW('n', "gen", CLI_INT, &o->gen, "N", "tokens to decode"), .range = {1, 1e9},
         .fallback = "64; with --cache 16 times what it holds", .given = &o->gen_given},
        {CLI_ROW('r', "reps", CLI_INT, &o->reps, "R", "repetitions, the variants in turns"),
         .range = {1, 1e5}, .given = &o->reps_given},
        {CLI_ROW(0, "batch", CLI_STRING, &o->batch, "N,N…", "sequences that decode at once, as 1,2,4,8")},
        {CLI_ROW(0, "draft", CLI_STRING, &o->draft, "SOURCE,…",
                 "guess tokens, by ngram, q4, MODEL, or scripted:0.8, beside decoding one by one")},
        {CLI_ROW('f', "file", CLI_STRING, &o->file, "FILE", "with --draft: the prompt is this text"),
         .fallback = "random tokens"},
        {CLI_ROW(0, "temp", CLI_REAL, &o->temperature, "T", "with --draft: sample at this temperature"),
         .range = {0, 100}, .fallback = "the best tokens"},
        {CLI_ROW(0, "arrival", CLI_INT, &o->arrival, "N",
                 "with --batch: a prompt of N tokens comes while an answer is written"),
         .range = {1, 1e9}, .fallback = "none comes", .given = &o->arrival_given},
        {CLI_ROW(0, "ops", CLI_FLAG, &o->ops, NULL,
                 "each fuse alone against the operators that it replaces")},
        {CLI_ROW(0, "turns", CLI_FLAG, &o->turns, NULL,
                 "after each repetition say so, and wait for a line on standard input")},
    };
    const cli_option output[] = {
        {CLI_ROW(0, "json", CLI_FLAG, &o->json, NULL,
                 "one JSON object instead of the table, with all samples; of a stream, their percentiles")},
        {CLI_ROW(0, "svg", CLI_STRING, &o->svg, "FILE", "a picture, with --batch or --draft")},
    };
    const cli_group groups[] = {{"what", what, sizeof what / sizeof *what},
                                {"a stream", stream, CLI_MEMORY_ROWS},
                                {"execution", execution, CLI_MODEL_ROWS + 1},
                                {"output", output, 2}};
    cli_args args = {.command = command,
                     .notes = notes,
                     .groups = groups,
                     .group_count = 4,
                     .max_positionals = 1,
                     .takes_model = true};
    if (!cli_args_parse(&args, argc, argv, status)) return false;
    if (args.positional_count) o->model_name = args.positionals[0];
    return fits(o, status);
}

/* "none,all+-qkv_up" as names "none", "all+-qkv_up" and specs "none", "all,-qkv_up". */
typedef struct variants {
    char *name_text, *spec_text;
    const char *names[MAX_VARIANTS], *specs[MAX_VARIANTS];
    int count;
} variants;

static int split(const char *list, variants *v) {
    v->name_text = strdup(list);
    v->spec_text = strdup(list);
    if (!v->name_text || !v->spec_text) return cli_fail(CLI_FAILED, "--compare: no memory");
    for (size_t at = 0;; at++) {
        if (v->count == MAX_VARIANTS)
            return cli_fail(CLI_USAGE, "--compare: more than %d variants (at most %d)", MAX_VARIANTS,
                            MAX_VARIANTS);
        v->names[v->count] = v->name_text + at;
        v->specs[v->count++] = v->spec_text + at;
        for (; list[at] && list[at] != ','; at++)
            if (list[at] == '+') v->spec_text[at] = ',';
        v->name_text[at] = v->spec_text[at] = '\0';
        if (!list[at]) return CLI_OK;
    }
}

/* ---- the run --------------------------------------------------------------------------------- */

typedef struct bench_progress {
    const char *unit;
    int write_errno; /* why a turn could not be said; 0: it could */
} bench_progress;

static bool show_progress(void *user, int64_t done, int64_t total) {
    const bench_progress *p = user;
    if (done < total)
        cli_progress("bench", done, total, p->unit);
    else
        cli_progress_clear();
    return true;
}

/* Between repetitions the machine belongs to whoever reads this, until a line comes: so two programs can be
 * timed in turns, both with everything loaded. */
static bool give_turn(void *user, int64_t done, int64_t total) {
    bench_progress *p = user;
    printf("turn %lld of %lld\n", (long long)done, (long long)total);
    if (fflush(stdout) != 0) {
        p->write_errno = errno;
        return false;
    }
    int c = done < total ? getchar() : '\n';
    while (c != '\n' && c != EOF) c = getchar();
    return c == '\n';
}

/* A turn that could not be said is a failure of the output. */
static int fail_bench(const bench_progress *p, const fb_error *err) {
    return p->write_errno ? cli_fail_output(p->write_errno) : cli_fail_error(err);
}

/* What both kinds of options of the library have. The defaults give way to a small context; what was asked
 * for must fit. */
#define SET_LENGTHS(o, context, to)                                                                          \
    do {                                                                                                     \
        (to)->prompt = (o)->prompt;                                                                          \
        (to)->gen = (o)->gen;                                                                                \
        (to)->reps = (o)->reps;                                                                              \
        if (!(o)->prompt_given && !(o)->gen_given && (o)->prompt + (o)->gen > (context))                     \
            (to)->prompt = (to)->gen = (context) < 2 ? 1 : (context) / 2;                                    \
        (to)->on_progress = (o)->turns ? give_turn : show_progress;                                          \
    } while (0)

static int run_ops(const bench_options *o, const fb_model *model, int64_t context,
                   const cli_bench_setting *setting) {
    bench_progress progress = {.unit = "fuses"};
    fb_error err;
    fb_bench_ops_options options;
    fb_bench_ops_report *report;
    fb_bench_ops_options_default(&options);
    CLI_MODEL_SET(&o->model, &options);
    SET_LENGTHS(o, context, &options);
    options.user = &progress;
    if (setting->busy) cli_busy_begin(setting->busy);
    if (fb_bench_ops(model, &options, &report, &err) != FB_OK) return fail_bench(&progress, &err);
    if (setting->busy) cli_busy_end(setting->busy);
    (o->json ? cli_bench_ops_json : cli_bench_ops_print)(setting, report);
    int status = report->agree ? CLI_OK : CLI_FAILED;
    fb_bench_ops_free(report);
    return status;
}

static int run_variants(const bench_options *o, const fb_model *model, int64_t context, const variants *v,
                        const cli_bench_setting *setting) {
    bench_progress progress = {.unit = "repetitions"};
    fb_error err;
    fb_bench_options options;
    fb_bench_report *report;
    fb_bench_options_default(&options);
    CLI_MODEL_SET(&o->model, &options);
    SET_LENGTHS(o, context, &options);
    options.machine = cli_cache_folder();
    options.specs = v->specs;
    options.spec_count = v->count;
    options.any_order = cli_model_any_order(&o->model);
    options.user = &progress;
    if (setting->busy) cli_busy_begin(setting->busy);
    if (fb_bench_run(model, &options, &report, &err) != FB_OK) return fail_bench(&progress, &err);
    if (setting->busy) cli_busy_end(setting->busy);
    (o->json ? cli_bench_json : cli_bench_print)(setting, report);
    int status = report->agree ? CLI_OK : CLI_FAILED;
    fb_bench_free(report);
    return status;
}

static int bench_stream(const bench_options *o, const fb_model *model, const char *path) {
    fb_bench_stream_options options;
    fb_bench_stream_options_default(&options);
    CLI_MODEL_SET_FUSE(&o->model, &options);
    int status = cli_memory_take(&o->stream, &options.cache, &options.sinks, &options.window);
    if (status != CLI_OK) return status;
    options.gen = o->gen_given ? o->gen : 0;
    cli_busy busy = {0};
    cli_bench_setting setting = {.path = path,
                                 .model = model,
                                 .act = o->model.act,
                                 .kv = cli_model_kv(&o->model),
                                 .exact = o->model.exact,
                                 .busy = &busy};
    return cli_bench_stream(model, &options, &setting, o->json);
}

static int bench_batch(const bench_options *o, const fb_model *model, const char *path) {
    cli_busy busy = {0};
    fb_bench_batch_options options;
    fb_bench_batch_options_default(&options);
    CLI_MODEL_SET_FUSE(&o->model, &options);
    options.prompt = o->prompt;
    options.gen = o->gen;
    options.any_order = cli_model_any_order(&o->model);
    options.arrival = o->arrival;
    cli_bench_setting setting = {.path = path,
                                 .model = model,
                                 .act = o->model.act,
                                 .kv = cli_model_kv(&o->model),
                                 .exact = o->model.exact,
                                 .busy = &busy};
    return cli_bench_batch(model, &options, o->batch, &setting, o->svg, o->json);
}

static int bench_draft(const bench_options *o, const fb_model *model, const char *path) {
    cli_busy busy = {0};
    cli_prompt prompt = {0};
    fb_bench_draft_options options;
    fb_bench_draft_options_default(&options);
    CLI_MODEL_SET_FUSE(&o->model, &options);
    if (o->prompt_given) options.prompt = o->prompt;
    if (o->gen_given) options.gen = o->gen;
    if (o->reps_given) options.reps = o->reps;
    options.temperature = (float)o->temperature;
    int status = o->file ? cli_prompt_read(&prompt, NULL, o->file) : CLI_OK;
    if (status == CLI_OK && o->file) status = cli_prompt_tokenize(&prompt, model);
    if (o->file) {
        options.ids = prompt.ids;
        options.prompt = prompt.count;
    }
    cli_bench_setting setting = {.path = path,
                                 .model = model,
                                 .act = o->model.act,
                                 .kv = cli_model_kv(&o->model),
                                 .exact = o->model.exact,
                                 .busy = &busy};
    if (status == CLI_OK) status = cli_bench_draft(model, &options, o->draft, &setting, o->svg, o->json);
    cli_prompt_free(&prompt);
    return status;
}

static int bench(const bench_options *o, const fb_model *model, const char *path) {
    variants v = {0};
    int status = split(o->compare, &v);
    if (status == CLI_OK) {
        cli_busy busy = {0};
        fb_model_info info;
        fb_model_get_info(model, &info);
        cli_bench_setting setting = {.path = path,
                                     .model = model,
                                     .names = v.names,
                                     .act = o->model.act,
                                     .kv = cli_model_kv(&o->model),
                                     .exact = o->model.exact,
                                     .busy = o->turns ? NULL : &busy};
        status = o->ops ? run_ops(o, model, info.context, &setting)
                        : run_variants(o, model, info.context, &v, &setting);
    }
    free(v.name_text);
    free(v.spec_text);
    return status;
}

int cli_bench(const cli_command *command, int argc, char **argv) {
    bench_options options;
    fb_model *model;
    char *path;
    int status;
    if (!parse(command, argc, argv, &options, &status)) return status;
    if (options.svg && (status = cli_check_svg(options.svg)) != CLI_OK) return status;
    status = cli_model_open(options.model_name, &path, &model);
    if (status == CLI_OK)
        status = (options.batch                ? bench_batch
                  : options.draft              ? bench_draft
                  : options.stream.cache_given ? bench_stream
                                               : bench)(&options, model, path);
    fb_model_free(model);
    free(path);
    return status;
}
