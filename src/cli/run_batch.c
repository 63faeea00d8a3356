#include "cli/run_batch.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/interrupt.h"
#include "cli/json_out.h"
#include "cli/output.h"
#include "fusebox_batch.h"

typedef struct answer {
    char *text;
    size_t bytes;
    int32_t *tokens;
    int64_t count;
    fb_finish finish;
    char message[256];
} answer;

typedef struct batch {
    answer *answers; /* [count] */
    int64_t count;
    bool json;
    bool failed; /* there was no memory for a text */
    double first_seconds, began;
} batch;

static const char *finish_name(fb_finish finish) {
    switch (finish) {
    case FB_FINISH_END:
        return "end";
    case FB_FINISH_STOP:
        return "text";
    case FB_FINISH_LENGTH:
        return "length";
    case FB_FINISH_FAILED:
        return "failure";
    default:
        return "interrupt";
    }
}

static bool keep(answer *to, const fb_answer *a) {
    if (a->finish != FB_FINISH_NONE) to->finish = a->finish;
    if (a->message) snprintf(to->message, sizeof to->message, "%s", a->message);
    if (a->bytes) {
        char *text = realloc(to->text, to->bytes + a->bytes);
        if (!text) return false;
        memcpy(text + to->bytes, a->text, a->bytes);
        to->text = text;
        to->bytes += a->bytes;
    }
    if (a->token < 0) return true;
    int32_t *tokens = realloc(to->tokens, (size_t)(to->count + 1) * sizeof *tokens);
    if (!tokens) return false;
    tokens[to->count++] = a->token;
    to->tokens = tokens;
    return true;
}

static bool on_answer(void *user, const fb_answer *a) {
    batch *b = user;
    if (b->first_seconds == 0) b->first_seconds = cli_clock() - b->began;
    if (!keep(&b->answers[a->sample], a)) b->failed = true;
    return !b->failed;
}

/* ---- output ---------------------------------------------------------------------------------- */

static void print_answers(const batch *b) {
    bool terminal = isatty(STDOUT_FILENO);
    for (int64_t i = 0; i < b->count; i++) {
        const answer *a = &b->answers[i];
        printf("%s[%" PRId64 "] ", i ? "\n" : "", i + 1);
        if (terminal)
            cli_put_lines(stdout, a->text ? a->text : "", a->bytes);
        else
            fwrite(a->text ? a->text : "", 1, a->bytes, stdout);
        if (!a->bytes || a->text[a->bytes - 1] != '\n') putchar('\n');
    }
}

static fb_draft_stats guesses_of(const fb_scheduler_stats *s) {
    return (fb_draft_stats){.steps = s->steps, .tokens = s->tokens, .drafted = s->drafted, .kept = s->kept};
}

static void print_json(const batch *b, const cli_generation *g, const fb_scheduler_stats *stats,
                       double seconds) {
    cli_json json = {.out = stdout};
    cli_json_open(&json, NULL, '{');
    cli_json_int(&json, "prompt_tokens", g->prompt_count);
    cli_json_uint(&json, "seed", g->sampler_options.seed);
    cli_json_open(&json, "answers", '[');
    for (int64_t i = 0; i < b->count; i++) {
        const answer *a = &b->answers[i];
        cli_json_open(&json, NULL, '{');
        cli_json_bytes(&json, "text", a->text ? a->text : "", a->bytes);
        cli_json_string(&json, "stop", finish_name(a->finish));
        cli_json_open(&json, "tokens", '[');
        for (int64_t t = 0; t < a->count; t++) cli_json_int(&json, NULL, a->tokens[t]);
        cli_json_close(&json, ']');
        cli_json_close(&json, '}');
    }
    cli_json_close(&json, ']');
    cli_json_int(&json, "generated", stats->tokens);
    cli_json_int(&json, "steps", stats->steps);
    if (g->session_options.draft) {
        fb_draft_stats guesses = guesses_of(stats);
        cli_draft_json(&guesses, &json);
    }
    cli_json_real(&json, "first_ms", b->first_seconds * 1e3);
    cli_json_real(&json, "seconds", seconds);
    cli_json_close(&json, '}');
    putchar('\n');
}

static void print_stats(const batch *b, const cli_generation *g, const cli_draft *draft,
                        const fb_scheduler_stats *stats, double seconds) {
    char bytes[CLI_NUMBER_BYTES];
    fb_draft_stats guesses = guesses_of(stats);
    fprintf(stderr, "prompt           %" PRId64 " tokens, once for all answers\n", g->prompt_count);
    fprintf(stderr, "generated        %" PRId64 " tokens of %" PRId64 " answers in %" PRId64 " steps\n",
            stats->tokens, b->count, stats->steps);
    fprintf(stderr, "first token      %.2f ms\n", b->first_seconds * 1e3);
    fprintf(stderr, "speed            %.1f tokens/s, all answers together\n",
            (double)stats->tokens / seconds);
    cli_draft_print(draft, &guesses, stderr);
    fprintf(stderr, "cache            %" PRId64 " blocks of %" PRId64 " tokens, %sB each\n", stats->blocks,
            stats->block_tokens, cli_format_scaled((double)stats->block_bytes, bytes));
    fprintf(stderr, "seed             %" PRIu64 ", answer i is sequence i - 1\n", g->sampler_options.seed);
}

/* ---- the run --------------------------------------------------------------------------------- */

static int run_steps(fb_scheduler *s, uint64_t id, fb_error *err) {
    bool busy = true;
    while (busy) {
        if (cli_interrupted()) fb_scheduler_cancel(s, id);
        if (fb_scheduler_step(s, &busy, err) != FB_OK) return cli_fail_error(err);
    }
    return CLI_OK;
}

static int generate(const cli_generation *g, batch *b, fb_scheduler_stats *stats, double *seconds) {
    fb_scheduler_options o;
    fb_request_options r;
    fb_session_options session = g->session_options;
    fb_scheduler *s;
    fb_error err;
    uint64_t id;
    fb_scheduler_options_default(&o);
    session.capacity = g->prompt_count + g->limit;
    o.sequences = b->count;
    o.rows = b->count > 128 ? b->count : 128;
    o.cache_tokens = b->count * (session.capacity + o.block);
    if (fb_scheduler_create(g->model, &session, &o, &s, &err) != FB_OK) return cli_fail_error(&err);
    fb_request_options_default(&r);
    r.prompt = g->prompt;
    r.prompt_count = g->prompt_count;
    r.max_tokens = g->limit;
    r.samples = (int32_t)b->count;
    r.sampler = &g->sampler_options;
    r.stops = g->stop_texts;
    r.stop_count = g->stop_count;
    r.past_end = g->past_end;
    r.on_answer = on_answer;
    r.user = b;
    b->began = cli_clock();
    int status = fb_scheduler_submit(s, &r, &id, &err) == FB_OK ? CLI_OK : cli_fail_error(&err);
    if (status == CLI_OK) {
        cli_interrupt_catch(NULL);
        status = run_steps(s, id, &err);
        cli_interrupt_release();
    }
    *seconds = cli_clock() - b->began;
    fb_scheduler_get_stats(s, stats);
    fb_scheduler_free(s);
    return status;
}

int cli_run_batch(const cli_generation *g, int64_t answers, const cli_draft *draft, bool json, bool stats) {
    batch b = {.count = answers, .json = json};
    fb_scheduler_stats counted = {.size = sizeof counted};
    double seconds = 0;
    b.answers = calloc((size_t)answers, sizeof *b.answers);
    if (!b.answers) return cli_fail(CLI_FAILED, "answers: no memory for %" PRId64, answers);
    int status = generate(g, &b, &counted, &seconds);
    for (int64_t i = 0; status == CLI_OK && i < answers; i++)
        if (b.answers[i].finish == FB_FINISH_FAILED)
            status = cli_fail(CLI_FAILED, "answer %" PRId64 ": %s", i + 1, b.answers[i].message);
    if (status == CLI_OK && b.failed) status = cli_fail(CLI_FAILED, "text: no memory");
    if (status == CLI_OK) {
        if (json)
            print_json(&b, g, &counted, seconds);
        else
            print_answers(&b);
        status = cli_finish_output(cli_interrupted() ? CLI_INTERRUPTED : CLI_OK);
        if (stats) print_stats(&b, g, draft, &counted, seconds);
    }
    for (int64_t i = 0; i < answers; i++) {
        free(b.answers[i].text);
        free(b.answers[i].tokens);
    }
    free(b.answers);
    return status;
}
