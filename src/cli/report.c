#include "cli/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "cli/draft.h"
#include "cli/json_out.h"
#include "cli/output.h"

static const char *const stop_names[] = {
    [CLI_STOP_NONE] = "none",           [CLI_STOP_END] = "end",
    [CLI_STOP_LENGTH] = "length",       [CLI_STOP_CONTEXT] = "context",
    [CLI_STOP_INTERRUPT] = "interrupt", [CLI_STOP_TEXT] = "text",
};

/* Rates and times; NaN where nothing was measured. */
typedef struct figures {
    double prefill_rate;       /* tokens/s */
    double first;              /* seconds from the start of the prefill to the first token */
    double median, mean, rate; /* of the tokens after the first: seconds, seconds, tokens/s */
    int64_t memory;            /* bytes, the peak */
} figures;

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the values: nobody asks for their order, and there may be no memory for a copy. */
static double median_of(double *values, int64_t count) {
    qsort(values, (size_t)count, sizeof *values, compare);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

static figures measure(const cli_generation *g) {
    figures f = {NAN, NAN, NAN, NAN, NAN, 0};
    if (g->prefill_seconds > 0) f.prefill_rate = (double)g->prompt_count / g->prefill_seconds;
    if (g->count > 0) f.first = g->first_seconds;
    /* The first token's time is another thing, and is at the beginning unless it has been written over. */
    int64_t begin = g->count == g->kept;
    if (g->kept > begin) {
        double sum = 0;
        for (int64_t i = begin; i < g->kept; i++) sum += g->seconds[i];
        f.mean = sum / (double)(g->kept - begin);
        f.median = median_of(g->seconds + begin, g->kept - begin);
        f.rate = 1 / f.mean;
    }
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) == 0) f.memory = (int64_t)usage.ru_maxrss * 1024;
    return f;
}

/* What the session remembers, if not everything. */
static void print_cache(const fb_session *session, FILE *out) {
    fb_cache_info info;
    char bytes[CLI_NUMBER_BYTES];
    fb_session_get_cache(session, &info);
    if (info.kind == FB_CACHE_DENSE) return;
    fprintf(out, "cache            %s: %" PRId64 " first and %" PRId64 " last tokens, %sB\n",
            fb_cache_name(info.kind), info.sinks, info.window, cli_format_scaled((double)info.bytes, bytes));
}

/* The fuses that ran, with their calls. */
static void print_fuses(const fb_session *session, FILE *out) {
    const char *name, *separator = "";
    int64_t calls, a_step, a_head;
    fputs("fuses            ", out);
    for (int i = 0; fb_session_fuse_calls(session, i, &name, &calls, &a_step, &a_head); i++) {
        if (calls == 0) continue;
        fprintf(out, "%s%s %" PRId64, separator, name, calls);
        separator = ", ";
    }
    fputs(*separator ? "\n" : "none\n", out);
}

static void write_fuses(const fb_session *session, cli_json *json) {
    const char *name;
    int64_t calls, a_step, a_head;
    cli_json_open(json, "fuses", '{');
    for (int i = 0; fb_session_fuse_calls(session, i, &name, &calls, &a_step, &a_head); i++)
        if (calls > 0) cli_json_int(json, name, calls);
    cli_json_close(json, '}');
}

/* One object a token: its id and log-probability, and the best tokens. */
static void write_logprobs(const cli_generation *g, cli_json *json) {
    int64_t width = 1 + g->top_count;
    cli_json_open(json, "logprobs", '[');
    for (int64_t i = 0; i < g->kept; i++) {
        const fb_logprob *row = g->logprobs + i * width;
        cli_json_open(json, NULL, '{');
        cli_json_int(json, "id", row->id);
        cli_json_real(json, "logprob", row->logprob);
        cli_json_open(json, "top", '[');
        for (int64_t k = 1; k < width; k++) {
            cli_json_open(json, NULL, '{');
            cli_json_int(json, "id", row[k].id);
            cli_json_real(json, "logprob", row[k].logprob);
            cli_json_close(json, '}');
        }
        cli_json_close(json, ']');
        cli_json_close(json, '}');
    }
    cli_json_close(json, ']');
}

/* A banned token's bias is null: JSON has no infinity. */
static void write_sampling(const fb_sampler_options *o, cli_json *json) {
    cli_json_uint(json, "seed", o->seed);
    cli_json_float(json, "presence_penalty", o->presence_penalty);
    cli_json_float(json, "frequency_penalty", o->frequency_penalty);
    cli_json_open(json, "logit_bias", '[');
    for (int64_t i = 0; i < o->logit_bias_count; i++) {
        cli_json_open(json, NULL, '{');
        cli_json_int(json, "id", o->logit_bias[i].id);
        cli_json_float(json, "bias", o->logit_bias[i].bias);
        cli_json_close(json, '}');
    }
    cli_json_close(json, ']');
}

static fb_dtype cache_dtype(const cli_generation *g) {
    fb_dtype kv;
    const fb_session_options *o = &g->session_options;
    return fb_dtype_parse_kv(o->kv, o->act, &kv, NULL) == FB_OK ? kv : o->act;
}

void cli_report_stats(const cli_report *report, FILE *out) {
    const cli_generation *g = report->generation;
    figures f = measure(g);
    char memory[CLI_NUMBER_BYTES];
    fprintf(out, "load             %.1f ms\n", report->load_seconds * 1e3);
    fprintf(out, "prompt           %" PRId64 " tokens in %.1f ms", g->prompt_count, g->prefill_seconds * 1e3);
    fprintf(out, ", %.1f tokens/s\n", f.prefill_rate);
    fprintf(out, "generated        %" PRId64 " tokens, stopped by %s\n", g->count, stop_names[g->stop]);
    if (g->count > 0) fprintf(out, "first token      %.2f ms\n", f.first * 1e3);
    if (g->count > 1) {
        fprintf(out, "per token        %.3f ms (median), %.3f ms (mean)\n", f.median * 1e3, f.mean * 1e3);
        fprintf(out, "speed            %.1f tokens/s\n", f.rate);
    }
    fprintf(out, "peak memory      %sB\n", cli_format_scaled((double)f.memory, memory));
    fprintf(out, "backend          %s\n", fb_session_backend(g->session));
    if (g->threads) fprintf(out, "threads          %d\n", g->threads);
    fprintf(out, "isa              %s\n", g->isa);
    fprintf(out, "act              %s\n", fb_dtype_name(g->session_options.act));
    fprintf(out, "kv               %s\n", fb_dtype_name(cache_dtype(g)));
    print_cache(g->session, out);
    print_fuses(g->session, out);
    if (g->step_barriers > 0) fprintf(out, "barriers         %" PRId64 " a step\n", g->step_barriers);
    fprintf(out, "seed             %" PRIu64 "\n", g->sampler_options.seed);
}

void cli_report_json(const cli_report *report, FILE *out) {
    const cli_generation *g = report->generation;
    figures f = measure(g);
    cli_json json = {.out = out};
    cli_json_open(&json, NULL, '{');
    cli_json_bytes(&json, "prompt", report->prompt, report->prompt_bytes);
    cli_json_bytes(&json, "text", report->text, report->text_bytes);
    cli_json_int(&json, "prompt_tokens", g->prompt_count);
    cli_json_open(&json, "tokens", '[');
    for (int64_t i = 0; i < g->kept; i++) cli_json_int(&json, NULL, g->tokens[i]);
    cli_json_close(&json, ']');
    if (g->with_logprobs) write_logprobs(g, &json);
    cli_json_string(&json, "stop", stop_names[g->stop]);
    write_sampling(&g->sampler_options, &json);
    cli_json_open(&json, "stats", '{');
    cli_json_real(&json, "load_ms", report->load_seconds * 1e3);
    cli_json_real(&json, "prefill_ms", g->prefill_seconds * 1e3);
    cli_json_real(&json, "prefill_tokens_per_s", f.prefill_rate);
    cli_json_real(&json, "ttft_ms", f.first * 1e3);
    cli_json_real(&json, "tpot_ms", f.median * 1e3);
    cli_json_real(&json, "tpot_mean_ms", f.mean * 1e3);
    cli_json_real(&json, "tokens_per_s", f.rate);
    cli_json_int(&json, "peak_memory_bytes", f.memory);
    cli_json_string(&json, "backend", fb_session_backend(g->session));
    cli_json_int(&json, "threads", g->threads);
    cli_json_string(&json, "isa", g->isa);
    cli_json_string(&json, "act", fb_dtype_name(g->session_options.act));
    cli_json_string(&json, "kv", fb_dtype_name(cache_dtype(g)));
    write_fuses(g->session, &json);
    if (g->session_options.draft) {
        fb_draft_stats guesses;
        fb_session_get_draft(g->session, &guesses);
        cli_draft_json(&guesses, &json);
    }
    cli_json_real(&json, "barriers_per_step", g->step_barriers > 0 ? (double)g->step_barriers : NAN);
    cli_json_close(&json, '}');
    cli_json_close(&json, '}');
    putc('\n', out);
}
