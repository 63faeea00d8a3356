/* Creating a scheduler, requests from any thread, and counters. */
#include "run/scheduler.h"

#include <stdlib.h>

#include "base/options.h"
#include "base/sized.h"

#define MAX_TOKENS    ((int64_t)1 << 32)
#define DEFAULT_CACHE 65536
#define MAX_PRIORITY  1000
/* A request of priority p starts as if it had come p times this many requests earlier. So it overtakes those
 * before it, and none waits for ever. */
#define PRIORITY_STEP 64

/* ---- options ---- */

FB_SIZED_ENDS_WITH(fb_scheduler_stats, kept);

static fb_status check_int(const char *what, int64_t value, int64_t min, int64_t max, fb_error *err) {
    if (value >= min && value <= max) return FB_OK;
    return fb_fail(err, FB_ERROR_USAGE, "%s: %lld (%lld to %lld)", what, (long long)value, (long long)min,
                   (long long)max);
}

static fb_status check_options(const fb_scheduler_options *o, fb_error *err) {
    FB_TRY(check_int("sequences", o->sequences, 1, FB_MAX_SEQUENCES, err));
    FB_TRY(check_int("cache_tokens", o->cache_tokens, 0, MAX_TOKENS, err));
    FB_TRY(check_int("rows", o->rows, 0, 65536, err));
    if (o->block != 16 && o->block != 32 && o->block != 64 && o->block != 128)
        return fb_fail(err, FB_ERROR_USAGE, "block: %lld tokens (16, 32, 64 or 128)", (long long)o->block);
    FB_TRY(check_int("prefix_cache", o->prefix_cache, 0, 1, err));
    if (!(o->stretch == 0 || (o->stretch >= 1 && o->stretch <= 1000)))
        return fb_fail(err, FB_ERROR_USAGE, "stretch: %g (0, or 1 to 1000)", (double)o->stretch);
    return FB_OK;
}

/* ---- creating ---- */

static fb_status copy_text(const char *text, const char **out, fb_error *err) {
    *out = text ? strdup(text) : NULL;
    return text && !*out ? fb_fail_memory(err, "options", (int64_t)strlen(text)) : FB_OK;
}

/* What later plans are made with, too. */
static fb_status keep_options(fb_scheduler *s, const fb_session_options *given, fb_error *err) {
    fb_session_options *o = &s->session;
    *o = *given;
    o->greedy = o->all_logits = false;
    o->on_hidden = NULL;
    o->on_progress = NULL;
    if (s->options.rows) o->chunk = s->options.rows;
    o->fuse = o->kv = o->isa = o->backend = o->machine = NULL;
    FB_TRY(copy_text(given->kv, &o->kv, err));
    FB_TRY(copy_text(given->isa, &o->isa, err));
    FB_TRY(copy_text(given->backend, &o->backend, err));
    return copy_text(given->machine, &o->machine, err);
}

static void free_options(fb_session_options *o) {
    free((void *)(uintptr_t)o->kv);
    free((void *)(uintptr_t)o->isa);
    free((void *)(uintptr_t)o->backend);
    free((void *)(uintptr_t)o->machine);
}

static fb_status take_execution(fb_scheduler *s, const fb_session_options *given, fb_error *err) {
    fb_session_options session;
    FB_TRY(fb_session_options_take(given, &session, err));
    FB_TRY(keep_options(s, &session, err));
    FB_TRY(fb_replan_take(s, session.fuse, session.profile, &s->execution, err));
    const fb_executor_options *e = &s->execution->request.executor;
    s->options.rows = e->chunk;
    if (s->options.rows < s->options.sequences)
        return fb_fail(err, FB_ERROR_USAGE, "rows: %lld (at least as many as sequences, %lld)",
                       (long long)s->options.rows, (long long)s->options.sequences);
    s->capacity = e->ring.window ? MAX_TOKENS : e->capacity;
    return FB_OK;
}

/* The part of the layout that other threads read, who do not know which plan runs. */
static fb_status keep_layout(fb_scheduler *s, fb_error *err) {
    const fb_frame *f = fb_schedule_frame(s);
    s->groups = f->groups;
    s->shift = f->shift;
    s->sinks = f->options.ring.sinks;
    s->group_entries = malloc((size_t)f->groups * sizeof *s->group_entries);
    if (!s->group_entries)
        return fb_fail_memory(err, "scheduler", f->groups * (int64_t)sizeof *s->group_entries);
    for (int32_t group = 0; group < f->groups; group++) s->group_entries[group] = f->group[group].entries;
    return FB_OK;
}

static int64_t blocks_in(const fb_scheduler *s, int64_t tokens) {
    int64_t whole = tokens >> s->shift;
    return whole + (tokens > whole << s->shift);
}

/* The tokens after the sinks begin a block. */
int64_t fb_schedule_blocks(const fb_scheduler *s, int64_t tokens) {
    int64_t count = 0, sinks = tokens < s->sinks ? tokens : s->sinks;
    int64_t blocks = blocks_in(s, sinks) + blocks_in(s, tokens - sinks);
    for (int32_t group = 0; group < s->groups; group++)
        count += blocks < s->group_entries[group] ? blocks : s->group_entries[group];
    return count;
}

static fb_status open_pool(fb_scheduler *s, fb_error *err) {
    const fb_frame *f = fb_schedule_frame(s);
    int64_t tokens = s->options.cache_tokens, sequences = s->options.sequences, limit;
    if (!tokens) {
        /* Answers that fork need one block more each, for a moment. */
        tokens = sequences * (f->options.capacity + s->options.block);
        if (tokens > DEFAULT_CACHE) tokens = DEFAULT_CACHE;
    }
    limit = tokens / f->options.capacity * f->entries;
    limit += fb_schedule_blocks(s, tokens % f->options.capacity);
    if (limit < 1) limit = 1;
    FB_TRY(fb_blocks_open(s->execution->executor, limit, 0, &s->pool, err));
    return s->options.prefix_cache ? fb_prefix_open(f, limit, &s->prefix, err) : FB_OK;
}

static fb_status take_memory(fb_scheduler *s, fb_error *err) {
    size_t n = (size_t)s->options.sequences;
    s->parts = malloc(n * sizeof *s->parts);
    s->sequences = malloc(n * sizeof *s->sequences);
    s->rows = malloc((size_t)s->options.rows * sizeof *s->rows);
    int64_t wanted = s->options.sequences + fb_schedule_guesses(s);
    FB_TRY(fb_held_open(s, err));
    FB_TRY(
        fb_pace_open(wanted, s->options.rows, (double)s->options.stretch, fb_held_layers(s), &s->pace, err));
    s->logits = malloc((size_t)(wanted * s->vocab) * sizeof *s->logits);
    if (s->execution->request.backend->chooses) {
        s->choices = calloc((size_t)wanted, sizeof *s->choices);
        if (!s->choices) return fb_fail_memory(err, "scheduler", wanted * (int64_t)sizeof *s->choices);
    }
    if (s->parts && s->sequences && s->rows && s->logits) return FB_OK;
    return fb_fail_memory(err, "scheduler", wanted * s->vocab * (int64_t)sizeof *s->logits);
}

static fb_status start(fb_scheduler *s, const fb_session_options *session, fb_error *err) {
    FB_TRY(check_options(&s->options, err));
    FB_TRY(fb_tensors_check_files(s->model->tensors, err));
    FB_TRY(take_execution(s, session, err));
    FB_TRY(keep_layout(s, err));
    FB_TRY(open_pool(s, err));
    FB_TRY(take_memory(s, err));
    return fb_schedule_drafts_open(s, err);
}

fb_status fb_scheduler_create(const fb_model *model, const fb_session_options *session,
                              const fb_scheduler_options *options, fb_scheduler **out, fb_error *err) {
    *out = NULL;
    fb_scheduler *s = calloc(1, sizeof *s);
    if (!s) return fb_fail_memory(err, "scheduler", sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    s->model = model;
    s->vocab = model->spec->program.vocab;
    s->incoming = &s->requests;
    fb_status status = fb_scheduler_options_take(options, &s->options, err);
    if (status == FB_OK) status = start(s, session, err);
    if (status != FB_OK) {
        fb_scheduler_free(s);
        return status;
    }
    *out = s;
    return FB_OK;
}

void fb_scheduler_free(fb_scheduler *s) {
    if (!s) return;
    while (s->requests) {
        fb_submitted *r = s->requests;
        s->requests = r->next;
        for (int32_t i = 0; i < r->options.samples; i++) fb_schedule_leave(s, &r->answers[i]);
        fb_submitted_free(r);
    }
    fb_schedule_drafts_close(s);
    fb_prefix_close(s->prefix);
    fb_blocks_close(s->pool);
    fb_execution_give(fb_timing_drop(s));
    fb_execution_give(s->next);
    fb_execution_give(s->execution);
    free_options(&s->session);
    pthread_mutex_destroy(&s->lock);
    free(s->group_entries);
    free(s->parts);
    free(s->sequences);
    free(s->rows);
    fb_pace_close(&s->pace);
    fb_held_close(s);
    free(s->logits);
    free(s->choices);
    free(s);
}

/* ---- requests, from any thread ---- */

static fb_status check_request(const fb_scheduler *s, fb_request_options *o, fb_error *err) {
    if (!o->prompt || o->prompt_count < 1)
        return fb_fail(err, FB_ERROR_USAGE, "prompt: %lld tokens (at least 1)", (long long)o->prompt_count);
    int64_t longest = o->max_tokens == FB_NO_ANSWER ? s->capacity : s->capacity - 1;
    if (o->prompt_count > longest)
        return fb_fail(err, FB_ERROR_USAGE, "prompt: %lld tokens (at most %lld: the capacity is %lld)",
                       (long long)o->prompt_count, (long long)longest, (long long)s->capacity);
    int64_t most = s->capacity - o->prompt_count;
    if (o->max_tokens < FB_NO_ANSWER || o->max_tokens > most)
        return fb_fail(err, FB_ERROR_USAGE,
                       "max_tokens: %lld (-1 to %lld: a prompt of %lld tokens, and a capacity of %lld)",
                       (long long)o->max_tokens, (long long)most, (long long)o->prompt_count,
                       (long long)s->capacity);
    if (!o->max_tokens) o->max_tokens = most;
    FB_TRY(check_int("samples", o->samples, 1, s->options.sequences, err));
    FB_TRY(check_int("priority", o->priority, -MAX_PRIORITY, MAX_PRIORITY, err));
    FB_TRY(check_int("stop texts", o->stop_count, 0, 64, err));
    FB_TRY(check_int("prompt_logits", o->prompt_logits, 0, 1, err));
    FB_TRY(check_int("draft", o->draft, 0, 1, err));
    for (int64_t i = 0; i < o->prompt_count; i++)
        if (o->prompt[i] < 0 || o->prompt[i] >= s->vocab)
            return fb_fail(err, FB_ERROR_USAGE, "token %lld: id %d (0 to %lld)", (long long)i, o->prompt[i],
                           (long long)s->vocab - 1);
    /* Alone, every request must fit. The last token of an answer is never computed. */
    int64_t answer = o->max_tokens > 0 ? o->max_tokens - 1 : 0;
    int64_t tokens = o->prompt_count + answer, blocks = fb_blocks_count(s->pool);
    if (fb_schedule_blocks(s, tokens) > blocks)
        return fb_fail(
            err, FB_ERROR_USAGE,
            "request: %lld tokens of prompt and answer need %lld blocks of the cache (it has %lld; "
            "a smaller max_tokens, or more cache_tokens)",
            (long long)tokens, (long long)fb_schedule_blocks(s, tokens), (long long)blocks);
    return FB_OK;
}

fb_status fb_scheduler_submit(fb_scheduler *s, const fb_request_options *given, uint64_t *id, fb_error *err) {
    if (id) *id = 0;
    fb_request_options options;
    fb_submitted *r;
    FB_TRY(fb_request_options_take(given, &options, err));
    FB_TRY(check_request(s, &options, err));
    FB_TRY(fb_submitted_create(s->model, &options, &r, err));
    pthread_mutex_lock(&s->lock);
    r->id = ++s->last_id;
    for (int32_t i = 0; i < options.samples; i++)
        r->answers[i].order =
            ((int64_t)r->id - (int64_t)options.priority * PRIORITY_STEP) * FB_MAX_SEQUENCES + i;
    fb_submitted **at = s->incoming;
    while (*at) at = &(*at)->next;
    *at = r;
    s->stats.waiting += options.samples;
    if (id) *id = r->id;
    pthread_mutex_unlock(&s->lock);
    return FB_OK;
}

void fb_scheduler_cancel(fb_scheduler *s, uint64_t id) {
    pthread_mutex_lock(&s->lock);
    for (fb_submitted *r = s->requests; r; r = r->next)
        if (r->id == id || id == 0) atomic_store(&r->cancelled, true);
    pthread_mutex_unlock(&s->lock);
}

void fb_scheduler_pause(fb_scheduler *s, uint64_t id, bool paused) {
    pthread_mutex_lock(&s->lock);
    for (fb_submitted *r = s->requests; r; r = r->next)
        if (r->id == id) atomic_store(&r->paused, paused);
    pthread_mutex_unlock(&s->lock);
}

void fb_scheduler_fill_stats(fb_scheduler *s, fb_scheduler_stats *out) {
    fb_scheduler_stats stats;
    memset(&stats, 0, sizeof stats);
    pthread_mutex_lock(&s->lock);
    stats = s->stats;
    stats.plan_pending = fb_replan_pending(s);
    pthread_mutex_unlock(&s->lock);
    fb_sized_give(&stats, sizeof stats, out);
}
