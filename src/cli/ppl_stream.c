#include "cli/ppl_stream.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "cli/json_out.h"
#include "cli/output.h"

/* ---- options --------------------------------------------------------------------------------- */

void cli_stream_rows(cli_stream_options *o, cli_option rows[CLI_STREAM_ROWS]) {
    fb_curve_options defaults;
    fb_curve_options_default(&defaults);
    *o = (cli_stream_options){.sinks = defaults.sinks, .every = defaults.every};
    rows[0] =
        (cli_option){CLI_ROW(0, "cache", CLI_STRING, &o->caches, "LIST",
                             "what is remembered of it: dense, window, sinks, or several: dense,sinks")};
    rows[1] = (cli_option){CLI_ROW(0, "sinks", CLI_INT, &o->sinks, "N", "first tokens that sinks keeps"),
                           .range = {0, 1e9}, .given = &o->sinks_given};
    rows[2] = (cli_option){CLI_ROW(0, "window", CLI_INT, &o->window, "N",
                                   "last tokens that are kept; beside sinks, window keeps both numbers"),
                           .range = {1, 1e9}, .fallback = "the context less sinks and 1, at most 4096 in all",
                           .given = &o->window_given};
    rows[3] = (cli_option){CLI_ROW(0, "every", CLI_INT, &o->every, "N", "tokens of a line"),
                           .range = {1, 1e9}, .given = &o->every_given};
    rows[4] = (cli_option){CLI_ROW(0, "svg", CLI_STRING, &o->svg, "FILE", "a picture of the curves"),
                           .given = &o->svg_given};
}

/* As many as there are caches: none may occur twice. */
#define MAX_KINDS 3

static int parse_kinds(const char *list, fb_cache_kind kinds[MAX_KINDS], int32_t *count) {
    char name[80];
    fb_error err;
    for (const char *at = list;; at++) {
        fb_cache_kind kind;
        size_t length = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)(length < 79 ? length : 79), at);
        if (fb_cache_parse(name, &kind, &err) != FB_OK) return cli_fail_error(&err);
        for (int32_t i = 0; i < *count; i++)
            if (kinds[i] == kind) return cli_fail(CLI_USAGE, "--cache: %s (twice)", name);
        if (*count == MAX_KINDS) return cli_fail(CLI_USAGE, "--cache: %s (%d at most)", name, MAX_KINDS);
        kinds[(*count)++] = kind;
        at += length;
        if (!*at) return CLI_OK;
    }
}

int cli_stream_check(const cli_stream_options *o) {
    const char *alone = o->sinks_given    ? "--sinks"
                        : o->window_given ? "--window"
                        : o->every_given  ? "--every"
                        : o->svg_given    ? "--svg"
                                          : NULL;
    if (!o->caches && alone) return cli_fail(CLI_USAGE, "%s: needs --cache", alone);
    if (!o->caches) return CLI_OK;
    fb_cache_kind kinds[MAX_KINDS];
    int32_t count = 0;
    int status = parse_kinds(o->caches, kinds, &count);
    bool sinks = false, forgets = false;
    for (int32_t i = 0; i < count; i++) {
        sinks = sinks || kinds[i] == FB_CACHE_SINKS;
        forgets = forgets || kinds[i] != FB_CACHE_DENSE;
    }
    if (status == CLI_OK && o->sinks_given && !sinks)
        return cli_fail(CLI_USAGE, "--sinks: %lld (only with sinks in --cache)", (long long)o->sinks);
    if (status == CLI_OK && o->window_given && !forgets)
        return cli_fail(CLI_USAGE, "--window: %lld (only with window or sinks in --cache)",
                        (long long)o->window);
    return status == CLI_OK && o->svg ? cli_check_svg(o->svg) : status;
}

/* ---- the table ------------------------------------------------------------------------------- */

typedef struct stream {
    bool json;
    bool begun;
    int write_errno; /* why stdout took no more */
} stream;

static double speed(const fb_curve_report *r, int32_t i) { return (double)r->tokens / r->curves[i]->seconds; }

static void print_head(const fb_curve_report *r) {
    char text[64];
    printf("%-10s", "position");
    for (int32_t i = 0; i < r->curve_count; i++) printf("  %12s", fb_cache_name(r->curves[i]->cache));
    printf("\n%-10s", "sees");
    for (int32_t i = 0; i < r->curve_count; i++) {
        const fb_curve *c = r->curves[i];
        if (c->cache == FB_CACHE_DENSE)
            snprintf(text, sizeof text, "all");
        else if (c->cache == FB_CACHE_WINDOW)
            snprintf(text, sizeof text, "%" PRId64, c->window);
        else
            snprintf(text, sizeof text, "%" PRId64 " + %" PRId64, c->sinks, c->window);
        printf("  %12s", text);
    }
    putchar('\n');
}

static void print_row(const fb_curve_report *r, const fb_curve_row *row) {
    printf("%-10" PRId64, row->position);
    for (int32_t i = 0; i < r->curve_count; i++) printf("  %12.4f", exp(row->nll[i]));
    putchar('\n');
}

static void print_totals(const fb_curve_report *r) {
    printf("%-10s", "all");
    for (int32_t i = 0; i < r->curve_count; i++) printf("  %12.4f", exp(r->curves[i]->nll));
    printf("\n%-10s", "tokens/s");
    for (int32_t i = 0; i < r->curve_count; i++) printf("  %12.1f", speed(r, i));
    putchar('\n');
}

static void write_cache(cli_json *json, const fb_curve_report *r, int32_t i) {
    const fb_curve *c = r->curves[i];
    cli_json_open(json, NULL, '{');
    cli_json_string(json, "cache", fb_cache_name(c->cache));
    cli_json_int(json, "sinks", c->sinks);
    cli_json_int(json, "window", c->window);
    cli_json_int(json, "bytes", c->bytes);
    cli_json_real(json, "nll", c->nll);
    cli_json_real(json, "perplexity", exp(c->nll));
    cli_json_real(json, "seconds", c->seconds);
    cli_json_real(json, "tokens_per_s", speed(r, i));
    cli_json_close(json, '}');
}

static void write_report(const cli_model_options *how, const char *path, const char *file,
                         const fb_curve_report *r) {
    cli_json json = {.out = stdout};
    cli_json_open(&json, NULL, '{');
    cli_json_string(&json, "model", path);
    cli_json_string(&json, "file", file);
    cli_json_string(&json, "backend", r->backend);
    cli_json_int(&json, "threads", r->threads);
    cli_json_string(&json, "isa", r->isa);
    cli_json_string(&json, "act", fb_dtype_name(how->act));
    cli_json_string(&json, "kv", fb_dtype_name(cli_model_kv(how)));
    cli_json_string(&json, "fuse", how->fuse);
    cli_json_bool(&json, "exact", how->exact);
    cli_json_int(&json, "context", r->context);
    cli_json_int(&json, "tokens", r->tokens);
    cli_json_int(&json, "every", r->every);
    cli_json_open(&json, "caches", '[');
    for (int32_t i = 0; i < r->curve_count; i++) write_cache(&json, r, i);
    cli_json_close(&json, ']');
    cli_json_open(&json, "chunks", '[');
    for (int64_t i = 0; i < r->row_count; i++) {
        cli_json_open(&json, NULL, '{');
        cli_json_int(&json, "position", r->rows[i].position);
        cli_json_int(&json, "tokens", r->rows[i].tokens);
        cli_json_open(&json, "nll", '{');
        for (int32_t c = 0; c < r->curve_count; c++)
            cli_json_real(&json, fb_cache_name(r->curves[c]->cache), r->rows[i].nll[c]);
        cli_json_close(&json, '}');
        cli_json_close(&json, '}');
    }
    cli_json_close(&json, ']');
    cli_json_close(&json, '}');
    putchar('\n');
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Before anything is read: by now the library has refused what it refuses. */
static void begin(stream *s, const fb_curve_report *r) {
    s->begun = true;
    for (int32_t i = 0; i < r->curve_count; i++)
        if (r->curves[i]->cache == FB_CACHE_DENSE && r->total > r->context)
            cli_warn("dense: %lld tokens (the model was trained on %lld)", (long long)r->total,
                     (long long)r->context);
    if (!s->json) print_head(r);
}

static bool on_progress(void *user, const fb_curve_report *r, int64_t part) {
    stream *s = user;
    if (!s->begun) begin(s, r);
    cli_progress("text", r->tokens + part / r->curve_count, r->total, "tokens");
    return true;
}

/* A line goes out as soon as it is known. */
static bool on_chunk(void *user, const fb_curve_report *r, int64_t part) {
    (void)part;
    stream *s = user;
    if (s->json) return true;
    cli_progress_clear();
    print_row(r, &r->rows[r->row_count - 1]);
    errno = 0;
    if (fflush(stdout) == 0) return true;
    s->write_errno = errno ? errno : EIO;
    return false;
}

int cli_stream_measure(const cli_stream_options *o, const cli_model_options *how, bool json,
                       const fb_model *model, const char *path, const char *file, const cli_prompt *text) {
    fb_error err;
    fb_curve_options options;
    fb_curve_report *report;
    fb_cache_kind kinds[MAX_KINDS];
    stream s = {.json = json};
    fb_curve_options_default(&options);
    CLI_MODEL_SET_FUSE(how, &options);
    parse_kinds(o->caches, kinds, &options.kind_count);
    options.kinds = kinds;
    options.sinks = o->sinks;
    options.window = o->window;
    options.every = o->every;
    options.on_chunk = on_chunk;
    options.on_progress = on_progress;
    options.user = &s;
    fb_status status = fb_curve_run(model, &options, text->ids, text->count, &report, &err);
    cli_progress_clear();
    if (s.write_errno) return cli_fail_output(s.write_errno);
    if (status != FB_OK) return cli_fail_error(&err);
    if (!json) print_totals(report);
    if (o->svg) status = fb_curve_svg(report, o->svg, &err);
    if (status == FB_OK && json) write_report(how, path, file, report);
    fb_curve_free(report);
    return status == FB_OK ? CLI_OK : cli_fail_error(&err);
}
