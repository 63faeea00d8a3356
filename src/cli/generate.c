#include "cli/generate.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/interrupt.h"
#include "cli/output.h"

/* A shorter prefill is over before a bar could be read. */
#define PROGRESS_MIN_TOKENS 64
/* Tokens whose times are kept where not all are wanted. */
#define LAST_KEPT 65536

double cli_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- prefill --------------------------------------------------------------------------------- */

bool cli_generation_progress(void *user, int64_t done, int64_t total) {
    (void)user;
    if (total > PROGRESS_MIN_TOKENS) cli_progress("prompt", done, total, "tokens");
    return !cli_interrupted();
}

static fb_status prefill(cli_generation *g, fb_error *err) {
    double start = g->last = cli_clock();
    int64_t count = g->prompt_count - g->held;
    cli_generation_progress(NULL, 0, count);
    fb_status status = fb_session_prefill(g->session, g->prompt + g->held, count, err);
    if (count > PROGRESS_MIN_TOKENS) cli_progress_clear();
    g->prefill_seconds = cli_clock() - start;
    return status;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* Whether a draft guesses tokens, which are then chosen in runs. */
static bool drafts(const cli_generation *g) { return g->session_options.draft && !g->with_logprobs; }

/* Whether a device may choose the token: no logits are needed for anything else. */
static bool chooses(const cli_generation *g) {
    return drafts(g) || (!g->session_options.greedy && !g->with_logprobs);
}

/* The next token of a run, or the first one of another run. */
static fb_status next_of_run(cli_generation *g, int32_t *next, fb_error *err) {
    fb_status status = FB_OK;
    if (g->queued_at == g->queued_count) {
        g->queued_at = 0;
        status = fb_session_speculate(g->session, g->last_id, g->session_options.greedy ? NULL : g->sampler,
                                      g->limit - g->count, g->queue, &g->queued_count, err);
        g->queued_seconds = cli_clock() - g->last;
    }
    if (status == FB_OK) *next = g->queue[g->queued_at++];
    return status;
}

/* A text may end within a run: the session then gives back what nobody will read. */
static fb_status end_run(cli_generation *g, fb_error *err) {
    int64_t left = g->queued_count - g->queued_at;
    g->queued_count = g->queued_at = 0;
    return left ? fb_session_trim(g->session, fb_session_position(g->session) - left, err) : FB_OK;
}

/* Decodes the last token; `next` gets the one after it if `chooses`. */
static fb_status decode(cli_generation *g, int32_t *next, fb_error *err) {
    int64_t before = fb_session_barriers(g->session);
    fb_status status = drafts(g)    ? next_of_run(g, next, err)
                       : chooses(g) ? fb_session_next(g->session, g->last_id, g->sampler, next, err)
                                    : fb_session_decode(g->session, g->last_id, err);
    g->step_barriers = fb_session_barriers(g->session) - before;
    return status;
}

/* Of the token that may become the next one. */
static fb_status take_logprobs(cli_generation *g, const float *logits, int32_t id, fb_error *err) {
    size_t width = 1 + (size_t)g->top_count;
    if (g->count == g->room) {
        int64_t room = g->room ? 2 * g->room : 64;
        fb_logprob *logprobs = realloc(g->logprobs, (size_t)room * width * sizeof *logprobs);
        if (!logprobs) {
            snprintf(err->message, sizeof err->message, "logprobs: no memory for %" PRId64 " tokens", room);
            return err->status = FB_ERROR_MEMORY;
        }
        g->logprobs = logprobs;
        g->room = room;
    }
    fb_logprob *row = g->logprobs + (size_t)g->count * width;
    row->id = id;
    return fb_sampler_logprobs(g->sampler, logits, id, &row->logprob, row + 1, g->top_count, err);
}

static fb_status sample(cli_generation *g, int32_t *id, fb_error *err) {
    if (g->session_options.greedy) return fb_session_best(g->session, id, err);
    const float *logits;
    int64_t rows, vocab;
    fb_status status = fb_session_logits(g->session, &logits, &rows, &vocab, err);
    if (status != FB_OK) return status;
    logits += (rows - 1) * vocab;
    status = fb_sampler_next(g->sampler, logits, id, err);
    return status == FB_OK && g->with_logprobs ? take_logprobs(g, logits, *id, err) : status;
}

static void keep_token(cli_generation *g, int32_t id) {
    double now = cli_clock();
    int64_t at = g->keep_all ? g->count : g->count % LAST_KEPT;
    if (g->count == 0) g->first_seconds = now - g->last;
    g->tokens[at] = g->last_id = id;
    g->seconds[at] = g->queued_count ? g->queued_seconds / (double)g->queued_count : now - g->last;
    g->count++;
    if (g->kept < at + 1) g->kept = at + 1;
    g->last = now;
}

static bool write_text(cli_generation *g, const char *text, size_t bytes) {
    if (bytes == 0) return true;
    errno = 0;
    if (g->terminal)
        cli_put_lines(g->sink, text, bytes);
    else
        fwrite(text, 1, bytes, g->sink);
    if (g->sink == stdout) cli_answer_wrote(text, bytes);
    if (fflush(g->sink) == 0 && !ferror(g->sink)) return true;
    g->write_errno = errno;
    return false;
}

/* The prompt in front of its continuation, dim where there are colours. */
static bool write_shown(cli_generation *g) {
    if (!g->shown) return true;
    if (g->screen) fputs("\033[2m", g->sink);
    bool written = write_text(g, g->shown, g->shown_bytes);
    if (g->screen) fputs("\033[0m", g->sink);
    return written;
}

/* Writes the text up to the first stop text. */
static fb_status write_until_stop(cli_generation *g, const char *text, size_t bytes, bool *written,
                                  fb_error *err) {
    bool stopped = false;
    fb_status status = FB_OK;
    if (g->stops) status = fb_stop_push(g->stops, text, bytes, &text, &bytes, &stopped, err);
    if (status == FB_OK) *written = write_text(g, text, bytes);
    if (stopped) g->stop = CLI_STOP_TEXT;
    return status;
}

/* What was held back when the text ended in another way. */
static fb_status write_rest(cli_generation *g, bool *written, fb_error *err) {
    const char *text;
    size_t bytes;
    if (g->stop == CLI_STOP_TEXT) return FB_OK;
    fb_status status = fb_text_flush(g->stream, &text, &bytes, err);
    if (status == FB_OK) status = write_until_stop(g, text, bytes, written, err);
    if (status != FB_OK || !*written || !g->stops) return status;
    fb_stop_flush(g->stops, &text, &bytes);
    *written = write_text(g, text, bytes);
    return FB_OK;
}

/* The sampler is at the end of the run. */
static bool document_ended(const cli_generation *g) {
    return fb_sampler_ended(g->sampler) && g->queued_at == g->queued_count;
}

/* Samples, writes and decodes until g->stop is set or something fails. *written is false if the sink failed.
 */
static fb_status write_tokens(cli_generation *g, bool *written, fb_error *err) {
    fb_status status = FB_OK;
    const char *text;
    size_t bytes;
    while (status == FB_OK && *written) {
        if (g->stop == CLI_STOP_NONE && g->count == g->limit)
            g->stop = g->context_is_limit ? CLI_STOP_CONTEXT : CLI_STOP_LENGTH;
        else if (g->stop == CLI_STOP_NONE && cli_interrupted())
            g->stop = CLI_STOP_INTERRUPT;
        if (g->stop != CLI_STOP_NONE) break;
        /* The last token is written but never decoded: its successor is not asked for. */
        int32_t id;
        if (g->count > 0 && (status = decode(g, &id, err)) != FB_OK) {
            if (status != FB_ERROR_STOPPED || !cli_interrupted()) break;
            status = FB_OK;
            g->stop = CLI_STOP_INTERRUPT;
            break;
        }
        if ((g->count == 0 || !chooses(g)) && (status = sample(g, &id, err)) != FB_OK) break;
        bool end = fb_model_is_end(g->model, id);
        if (end && !g->past_end) {
            g->stop = CLI_STOP_END;
            break;
        }
        keep_token(g, id);
        status = fb_text_push(g->stream, id, &text, &bytes, err);
        if (status != FB_OK) break;
        status = end ? write_until_stop(g, "\n\n", 2, written, err)
                     : write_until_stop(g, text, bytes, written, err);
        if (g->stop == CLI_STOP_NONE && document_ended(g)) g->stop = CLI_STOP_END;
    }
    if (status == FB_OK) status = end_run(g, err);
    return status == FB_OK && *written ? write_rest(g, written, err) : status;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static fb_status prepare(cli_generation *g, fb_error *err) {
    fb_model_info info;
    fb_model_get_info(g->model, &info);
    if (g->session_options.cache == FB_CACHE_DENSE) g->session_options.capacity = g->prompt_count + g->limit;
    g->session_options.on_progress = cli_generation_progress;
    double start = cli_clock();
    g->session = g->kept_session;
    fb_status status = FB_OK;
    if (!g->session) status = fb_session_create(g->model, &g->session_options, &g->session, err);
    if (status != FB_OK) return status;
    g->create_seconds = cli_clock() - start;
    if (g->stop_count > 0) status = fb_stop_create(g->stop_texts, g->stop_count, &g->stops, err);
    if (status != FB_OK) return status;
    g->threads = fb_session_threads(g->session);
    g->isa = fb_session_isa(g->session);
    if ((status = fb_sampler_create(&g->sampler_options, info.vocab, &g->sampler, err)) != FB_OK)
        return status;
    for (int64_t i = 0; i < g->prompt_count; i++) fb_sampler_accept(g->sampler, g->prompt[i]);
    return fb_text_create(g->model, &g->stream, err);
}

int cli_generate(cli_generation *g) {
    fb_error err;
    if (prepare(g, &err) != FB_OK) return cli_fail_error(&err);
    int64_t most = g->keep_all || g->limit < LAST_KEPT ? g->limit : LAST_KEPT;
    size_t room = most > 0 ? (size_t)most : 1;
    g->tokens = malloc(room * sizeof *g->tokens);
    g->seconds = malloc(room * sizeof *g->seconds);
    if (!g->tokens || !g->seconds) return cli_fail(CLI_FAILED, "tokens: no memory for %zu", room);

    cli_interrupt_catch(g->session);
    bool written = true;
    fb_status status = prefill(g, &err);
    if (status == FB_ERROR_STOPPED && cli_interrupted()) {
        g->stop = CLI_STOP_INTERRUPT;
    } else {
        /* Not before here: the progress bar needs the line, and a prefill that fails must leave the output
         * empty. */
        if (status == FB_OK) written = write_shown(g);
        if (status == FB_OK) status = write_tokens(g, &written, &err);
        if (status != FB_OK) return cli_fail(CLI_FAILED, "%s", err.message);
    }
    if (!written && g->sink != stdout)
        return cli_fail(CLI_FAILED, "text: no memory for %" PRId64 " tokens", g->count);
    if (!written) return cli_fail_output(g->write_errno);
    return g->stop == CLI_STOP_INTERRUPT ? CLI_INTERRUPTED : CLI_OK;
}

void cli_generation_free(cli_generation *g) {
    cli_interrupt_release();
    fb_text_free(g->stream);
    fb_stop_free(g->stops);
    fb_sampler_free(g->sampler);
    if (!g->kept_session) fb_session_free(g->session);
    free(g->tokens);
    free(g->seconds);
    free(g->logprobs);
}
