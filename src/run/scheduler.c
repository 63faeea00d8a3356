/* Which rows a step has, and who gets memory. */
#include "fusebox_batch.h"

#include <pthread.h>
#include <stdlib.h>

#include "backend/frame.h"
#include "base/clock.h"
#include "base/options.h"
#include "base/sized.h"
#include "run/answer.h"
#include "run/execution.h"
#include "run/pace.h"

#define MAX_SEQUENCES 1024
#define MAX_TOKENS    ((int64_t)1 << 32)
#define DEFAULT_CACHE 65536
#define MAX_PRIORITY  1000
/* A request of priority p starts as if it had come p times this many requests earlier. So it overtakes those
 * before it, and none waits for ever. */
#define PRIORITY_STEP 64

/* An answer's part of a step. */
typedef struct part {
    fb_answer_state *answer; /* NULL: it was put back */
    int64_t rows;            /* from answer->computed on */
    int64_t blocks;          /* that it needs */
} part;

struct fb_scheduler {
    const fb_model *model;
    fb_scheduler_options options;
    fb_execution *execution;
    fb_blocks *pool;
    fb_prefix *prefix; /* NULL: none */
    int64_t vocab, capacity;
    /* Used by fb_scheduler_step only: */
    fb_answer_state *waiting, *running; /* in their order */
    part *parts;                        /* [sequences] */
    int64_t part_count, part_blocks;    /* blocks that the parts need, together */
    fb_row *rows;                       /* [options.rows] */
    fb_sequence **sequences;            /* [sequences] */
    float *logits;                      /* [sequences, vocab] */
    fb_choice *choices;                 /* [sequences]; NULL: the backend has none */
    fb_pace pace;                       /* how fast prompts are read while answers are written */
    fb_trace trace;
    /* Guarded by the lock: */
    pthread_mutex_t lock;
    fb_submitted *requests;  /* all that have not ended */
    fb_submitted **incoming; /* the first of them that the step has not seen */
    uint64_t last_id;
    fb_scheduler_stats stats;
};

/* ---- options ---- */

FB_SIZED_ENDS_WITH(fb_scheduler_stats, step_seconds);

static fb_status check_int(const char *what, int64_t value, int64_t min, int64_t max, fb_error *err) {
    if (value >= min && value <= max) return FB_OK;
    return fb_fail(err, FB_ERROR_USAGE, "%s: %lld (%lld to %lld)", what, (long long)value, (long long)min,
                   (long long)max);
}

static fb_status check_options(const fb_scheduler_options *o, fb_error *err) {
    FB_TRY(check_int("sequences", o->sequences, 1, MAX_SEQUENCES, err));
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

static const fb_frame *frame_of(const fb_scheduler *s) { return &s->execution->executor->frame; }

static fb_status take_execution(fb_scheduler *s, const fb_session_options *given, fb_error *err) {
    fb_session_options session;
    FB_TRY(fb_session_options_take(given, &session, err));
    session.greedy = session.all_logits = false;
    session.on_hidden = NULL;
    session.on_progress = NULL;
    if (s->options.rows) session.chunk = s->options.rows;
    fb_execution_options more = {.block = s->options.block, .wanted = s->options.sequences};
    FB_TRY(fb_execution_take(s->model, &session, &more, &s->execution, err));
    const fb_executor_options *e = &s->execution->request.executor;
    s->options.rows = e->chunk;
    if (s->options.rows < s->options.sequences)
        return fb_fail(err, FB_ERROR_USAGE, "rows: %lld (at least as many as sequences, %lld)",
                       (long long)s->options.rows, (long long)s->options.sequences);
    s->capacity = e->ring.window ? MAX_TOKENS : e->capacity;
    return FB_OK;
}

/* The blocks of a sequence of so many tokens. */
static int64_t blocks_of(const fb_scheduler *s, int64_t tokens) {
    const fb_frame *f = frame_of(s);
    int64_t count = 0, size = f->shift < 62 ? (int64_t)1 << f->shift : INT64_MAX;
    for (int32_t group = 0; group < f->groups; group++) {
        int64_t blocks = size == INT64_MAX ? 1 : (tokens + size - 1) / size;
        count += blocks < f->group[group].entries ? blocks : f->group[group].entries;
    }
    return count;
}

static fb_status open_pool(fb_scheduler *s, fb_error *err) {
    const fb_frame *f = frame_of(s);
    int64_t tokens = s->options.cache_tokens, sequences = s->options.sequences, limit;
    if (!tokens) {
        /* Answers that fork need one block more each, for a moment. */
        tokens = sequences * (f->options.capacity + s->options.block);
        if (tokens > DEFAULT_CACHE) tokens = DEFAULT_CACHE;
    }
    limit = tokens / f->options.capacity * f->entries;
    limit += blocks_of(s, tokens % f->options.capacity);
    if (limit < 1) limit = 1;
    FB_TRY(fb_blocks_open(s->execution->executor, limit, 0, &s->pool, err));
    if (!s->options.prefix_cache || fb_frame_forgets(f)) return FB_OK;
    return fb_prefix_open(s->options.block, f->groups, limit, &s->prefix, err);
}

static fb_status take_memory(fb_scheduler *s, fb_error *err) {
    size_t n = (size_t)s->options.sequences;
    s->parts = malloc(n * sizeof *s->parts);
    s->sequences = malloc(n * sizeof *s->sequences);
    s->rows = malloc((size_t)s->options.rows * sizeof *s->rows);
    FB_TRY(fb_pace_open(s->options.sequences, s->options.rows, (double)s->options.stretch, &s->pace, err));
    s->logits = malloc(n * (size_t)s->vocab * sizeof *s->logits);
    if (s->execution->request.backend->chooses) {
        s->choices = calloc(n, sizeof *s->choices);
        if (!s->choices) return fb_fail_memory(err, "scheduler", (int64_t)(n * sizeof *s->choices));
    }
    if (s->parts && s->sequences && s->rows && s->logits) return FB_OK;
    return fb_fail_memory(err, "scheduler", (int64_t)(n * (size_t)s->vocab * sizeof *s->logits));
}

static fb_status start(fb_scheduler *s, const fb_session_options *session, fb_error *err) {
    FB_TRY(check_options(&s->options, err));
    FB_TRY(fb_tensors_check_files(s->model->tensors, err));
    FB_TRY(take_execution(s, session, err));
    FB_TRY(open_pool(s, err));
    return take_memory(s, err);
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

/* ---- an answer's cache ---- */

/* Leaves the cache. What the prefix cache has of it stays there. */
static void leave_cache(fb_scheduler *s, fb_answer_state *a) {
    if (s->prefix) fb_prefix_release(s->prefix, a->entry);
    a->entry = NULL;
    a->entries = 0;
    a->computed = 0;
    fb_sequence_close(&a->sequence);
}

/* The tokens whose blocks may be shared. Where a prompt's tokens have other bits than generated ones, only
 * those of the prompt: another request may have the same tokens in another role. */
static int64_t shareable(const fb_scheduler *s, const fb_answer_state *a) {
    return s->execution->request.backend->roles ? a->request->prompt_count : a->count;
}

/* Opens the sequence, with what the prefix cache has of its tokens. The last token is always computed: its
 * logits are needed. */
static fb_status enter_cache(fb_scheduler *s, fb_answer_state *a, fb_error *err) {
    FB_TRY(fb_sequence_open(s->execution->executor, s->pool, &a->sequence, err));
    const fb_frame *f = frame_of(s);
    int64_t block = s->options.block;
    while (s->prefix && (a->entries + 1) * block < a->count && (a->entries + 1) * block <= shareable(s, a)) {
        fb_prefix_entry *e = fb_prefix_find(s->prefix, a->entry, a->tokens + a->entries * block);
        if (!e) break;
        for (int32_t group = 0; group < f->groups; group++)
            fb_sequence_put(&a->sequence, f->group[group].table_at + a->entries, fb_prefix_block(e, group));
        a->entry = e;
        a->entries++;
    }
    a->computed = a->entries * block;
    if (a->count == a->request->prompt_count && a->sample == 0) a->request->cached = a->computed;
    return FB_OK;
}

/* Puts the blocks that are full by now into the prefix cache. A text that is there already is shared: the
 * blocks have the same bits. */
static void remember(fb_scheduler *s, fb_answer_state *a) {
    const fb_frame *f = frame_of(s);
    int64_t block = s->options.block;
    fb_block *blocks[FB_MAX_LAYERS];
    while (s->prefix && (a->entries + 1) * block <= a->computed &&
           (a->entries + 1) * block <= shareable(s, a)) {
        for (int32_t group = 0; group < f->groups; group++)
            blocks[group] = a->sequence.blocks[f->group[group].table_at + a->entries];
        fb_prefix_entry *e = fb_prefix_add(s->prefix, a->entry, a->tokens + a->entries * block, blocks);
        if (!e) return;
        for (int32_t group = 0; group < f->groups; group++)
            if (fb_prefix_block(e, group) != blocks[group]) {
                fb_sequence_put(&a->sequence, f->group[group].table_at + a->entries,
                                fb_prefix_block(e, group));
                fb_block_give(blocks[group]);
            }
        a->entry = e;
        a->entries++;
    }
}

/* ---- lists ---- */

static void insert(fb_answer_state **list, fb_answer_state *a) {
    while (*list && (*list)->order <= a->order) list = &(*list)->next;
    a->next = *list;
    *list = a;
}

static void take_out(fb_answer_state **list, fb_answer_state *a) {
    while (*list && *list != a) list = &(*list)->next;
    if (*list) *list = a->next;
}

/* An answer that has ended leaves its list, its place and its cache. */
static void retire(fb_scheduler *s, fb_answer_state *a) {
    take_out(&s->running, a);
    take_out(&s->waiting, a);
    leave_cache(s, a);
}

void fb_scheduler_free(fb_scheduler *s) {
    if (!s) return;
    while (s->requests) {
        fb_submitted *r = s->requests;
        s->requests = r->next;
        for (int32_t i = 0; i < r->options.samples; i++) leave_cache(s, &r->answers[i]);
        fb_submitted_free(r);
    }
    fb_prefix_close(s->prefix);
    fb_blocks_close(s->pool);
    fb_execution_give(s->execution);
    pthread_mutex_destroy(&s->lock);
    free(s->parts);
    free(s->sequences);
    free(s->rows);
    fb_pace_close(&s->pace);
    free(s->logits);
    free(s->choices);
    free(s);
}

/* ---- requests, from any thread ---- */

static fb_status check_request(const fb_scheduler *s, fb_request_options *o, fb_error *err) {
    if (!o->prompt || o->prompt_count < 1)
        return fb_fail(err, FB_ERROR_USAGE, "prompt: %lld tokens (at least 1)", (long long)o->prompt_count);
    if (o->prompt_count >= s->capacity)
        return fb_fail(err, FB_ERROR_USAGE, "prompt: %lld tokens (at most %lld: the capacity is %lld)",
                       (long long)o->prompt_count, (long long)s->capacity - 1, (long long)s->capacity);
    int64_t most = s->capacity - o->prompt_count;
    if (o->max_tokens < 0 || o->max_tokens > most)
        return fb_fail(err, FB_ERROR_USAGE,
                       "max_tokens: %lld (0 to %lld: a prompt of %lld tokens, and a capacity of %lld)",
                       (long long)o->max_tokens, (long long)most, (long long)o->prompt_count,
                       (long long)s->capacity);
    if (!o->max_tokens) o->max_tokens = most;
    FB_TRY(check_int("samples", o->samples, 1, s->options.sequences, err));
    FB_TRY(check_int("priority", o->priority, -MAX_PRIORITY, MAX_PRIORITY, err));
    FB_TRY(check_int("stop texts", o->stop_count, 0, 64, err));
    for (int64_t i = 0; i < o->prompt_count; i++)
        if (o->prompt[i] < 0 || o->prompt[i] >= s->vocab)
            return fb_fail(err, FB_ERROR_USAGE, "token %lld: id %d (0 to %lld)", (long long)i, o->prompt[i],
                           (long long)s->vocab - 1);
    /* Alone, every request must fit. The last token of an answer is never computed. */
    int64_t tokens = o->prompt_count + o->max_tokens - 1, blocks = fb_blocks_count(s->pool);
    if (blocks_of(s, tokens) > blocks)
        return fb_fail(
            err, FB_ERROR_USAGE,
            "request: %lld tokens of prompt and answer need %lld blocks of the cache (it has %lld; "
            "a smaller max_tokens, or more cache_tokens)",
            (long long)tokens, (long long)blocks_of(s, tokens), (long long)blocks);
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
            ((int64_t)r->id - (int64_t)options.priority * PRIORITY_STEP) * MAX_SEQUENCES + i;
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
        if (r->id == id) atomic_store(&r->cancelled, true);
    pthread_mutex_unlock(&s->lock);
}

void fb_scheduler_fill_stats(fb_scheduler *s, fb_scheduler_stats *out) {
    fb_scheduler_stats stats;
    memset(&stats, 0, sizeof stats);
    pthread_mutex_lock(&s->lock);
    stats = s->stats;
    pthread_mutex_unlock(&s->lock);
    fb_sized_give(&stats, sizeof stats, out);
}

/* ---- beginning and end of a step ---- */

/* Takes what was submitted since the last step. */
static void take_incoming(fb_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    for (; *s->incoming; s->incoming = &(*s->incoming)->next)
        insert(&s->waiting, &(*s->incoming)->answers[0]);
    pthread_mutex_unlock(&s->lock);
}

/* A callback may have submitted, also one of a request that ended without a step. */
static bool has_incoming(fb_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    bool has = *s->incoming != NULL;
    pthread_mutex_unlock(&s->lock);
    return has;
}

static void end_request(fb_scheduler *s, fb_submitted *r, fb_finish finish, const char *message) {
    for (int32_t i = 0; i < r->options.samples; i++) {
        if (r->answers[i].ended) continue;
        retire(s, &r->answers[i]);
        fb_answer_end(&r->answers[i], finish, message);
    }
}

/* A request that was cancelled or has ended; NULL: there is none. One that has ended leaves the list. */
static fb_submitted *find_done(fb_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    fb_submitted **at = &s->requests;
    while (at != s->incoming && (*at)->left && !atomic_load(&(*at)->cancelled)) at = &(*at)->next;
    fb_submitted *r = at == s->incoming ? NULL : *at;
    if (r && !r->left) {
        if (s->incoming == &r->next) s->incoming = at;
        *at = r->next;
    }
    pthread_mutex_unlock(&s->lock);
    return r;
}

/* Callbacks run without the lock: they may submit and cancel. */
static void sweep(fb_scheduler *s) {
    for (fb_submitted *r; (r = find_done(s));)
        if (r->left)
            end_request(s, r, FB_FINISH_CANCELLED, NULL);
        else
            fb_submitted_free(r);
}

/* Places that running answers take, with those that wait for answer 0 of their request. */
static int64_t places(const fb_scheduler *s) {
    int64_t count = 0;
    for (const fb_answer_state *a = s->running; a; a = a->next) {
        count++;
        for (int32_t i = 1; a->sample == 0 && i < a->request->options.samples; i++)
            count += !a->request->answers[i].forked;
    }
    return count;
}

static void count_stats(fb_scheduler *s, int64_t rows, int64_t tokens, double seconds) {
    const fb_frame *f = frame_of(s);
    int64_t running = places(s), left = 0;
    int64_t idle = s->prefix ? fb_prefix_idle(s->prefix) * f->groups : 0;
    pthread_mutex_lock(&s->lock);
    for (const fb_submitted *r = s->requests; r; r = r->next) left += r->left;
    fb_scheduler_stats *t = &s->stats;
    t->running = running;
    t->waiting = left - running;
    t->blocks = fb_blocks_count(s->pool);
    t->blocks_free = fb_blocks_free(s->pool) + idle;
    t->block_tokens = f->shift < 62 ? s->options.block : f->options.capacity;
    t->block_bytes = f->block_bytes;
    t->steps += rows > 0;
    t->rows += rows;
    t->tokens += tokens;
    t->step_seconds += seconds;
    pthread_mutex_unlock(&s->lock);
}

static void add_stat(fb_scheduler *s, int64_t *stat, int64_t count) {
    pthread_mutex_lock(&s->lock);
    *stat += count;
    pthread_mutex_unlock(&s->lock);
}

/* ---- which rows ---- */

static int64_t pending(const fb_answer_state *a) { return a->count - a->computed; }

/* Puts a running answer back. It will be computed again, to the same bits. */
static void put_back(fb_scheduler *s, fb_answer_state *a) {
    for (int64_t i = 0; i < s->part_count; i++)
        if (s->parts[i].answer == a) {
            s->parts[i].answer = NULL;
            s->part_blocks -= s->parts[i].blocks;
        }
    take_out(&s->running, a);
    leave_cache(s, a);
    insert(&s->waiting, a);
    add_stat(s, &s->stats.preempted, 1);
}

/* Whether `blocks` are there besides those of the step's other parts. Evicts what only the prefix cache
 * holds. */
static bool evict_for(fb_scheduler *s, int64_t blocks) {
    while (fb_blocks_free(s->pool) - s->part_blocks < blocks)
        if (!s->prefix || !fb_prefix_evict(s->prefix)) return false;
    return true;
}

/* Adds rows of a running answer to the step. For its blocks, the answers that came last are put back; if it
 * is the last one, it is put back itself. */
static void add_part(fb_scheduler *s, fb_answer_state *a, int64_t rows) {
    int64_t blocks = fb_sequence_needs(&a->sequence, a->computed, a->computed + rows);
    while (!evict_for(s, blocks)) {
        fb_answer_state *last = s->running;
        while (last->next) last = last->next;
        put_back(s, last);
        if (last == a) return;
    }
    s->parts[s->part_count++] = (part){a, rows, blocks};
    s->part_blocks += blocks;
}

/* Whether the memory for all that an answer has to compute is there. Its sequence is open. */
static bool has_blocks(const fb_scheduler *s, const fb_answer_state *a) {
    int64_t free_blocks = fb_blocks_free(s->pool) - s->part_blocks;
    if (s->prefix) free_blocks += fb_prefix_idle(s->prefix) * frame_of(s)->groups;
    return fb_sequence_needs(&a->sequence, a->computed, a->count) <= free_blocks;
}

/* Starts the first waiting answer if there are a place and memory for it. Requests that cannot even get a
 * table of blocks end: nothing says that they could later. */
static fb_answer_state *admit(fb_scheduler *s) {
    fb_error err;
    fb_answer_state *a;
    for (;; end_request(s, a->request, FB_FINISH_FAILED, err.message)) {
        a = s->waiting;
        if (!a) return NULL;
        bool first = a->sample == 0 && a->count == a->request->prompt_count;
        if (places(s) + (first ? a->request->options.samples : 1) > s->options.sequences) return NULL;
        if (enter_cache(s, a, &err) == FB_OK) break;
    }
    if (!has_blocks(s, a)) {
        leave_cache(s, a);
        return NULL;
    }
    take_out(&s->waiting, a);
    insert(&s->running, a);
    add_stat(s, &s->stats.prompt_tokens, a->count);
    add_stat(s, &s->stats.cached_tokens, a->computed);
    return a;
}

/* The running answer after one that may have been put back meanwhile. */
static fb_answer_state *next_running(const fb_scheduler *s, int64_t order) {
    fb_answer_state *a = s->running;
    while (a && a->order <= order) a = a->next;
    return a;
}

/* Answers that decode, then prompts: those begun, then waiting ones. In each group in their order. Returns
 * the number of the former. */
static int64_t choose_parts(fb_scheduler *s) {
    s->part_count = s->part_blocks = 0;
    for (fb_answer_state *a = s->running; a; a = next_running(s, a->order))
        if (pending(a) == 1) add_part(s, a, 1);
    int64_t decodes = 0;
    for (int64_t i = 0; i < s->part_count; i++) decodes += s->parts[i].answer != NULL;
    int64_t left = fb_pace_rows(&s->pace, decodes);
    for (fb_answer_state *a = s->running; a && left > 0; a = next_running(s, a->order)) {
        if (pending(a) <= 1) continue;
        int64_t rows = pending(a) < left ? pending(a) : left;
        add_part(s, a, rows);
        left -= rows;
    }
    fb_answer_state *a;
    while (left > 0 && (a = admit(s))) {
        int64_t rows = pending(a) < left ? pending(a) : left;
        add_part(s, a, rows);
        left -= rows;
    }
    return decodes;
}

/* ---- the step ---- */

static void add_row(fb_scheduler *s, fb_batch *batch, const fb_answer_state *a, int64_t at, int32_t sequence,
                    bool wanted) {
    s->rows[batch->count++] = (fb_row){.position = at,
                                       .token = a->tokens[at],
                                       .sequence = sequence,
                                       .wanted = wanted,
                                       .prompt = at < a->request->prompt_count};
}

/* Rows of parts that are not wanted come first, then the wanted ones: the last row of each part that reaches
 * the end of its tokens. These are in the opposite order of parts: the last prompt's rows then lie together,
 * so that attention computes them at once. `wanted`: their parts. */
static fb_batch make_batch(fb_scheduler *s, part **wanted) {
    fb_batch batch = {.rows = s->rows, .sequences = s->sequences, .logits = s->logits, .choices = s->choices};
    for (int64_t i = 0; i < s->part_count; i++) {
        fb_answer_state *a = s->parts[i].answer;
        if (!a) continue;
        int64_t end = a->computed + s->parts[i].rows;
        s->sequences[batch.sequence_count] = &a->sequence;
        for (int64_t at = a->computed; at < end - (end == a->count); at++)
            add_row(s, &batch, a, at, batch.sequence_count, false);
        batch.sequence_count++;
    }
    for (int64_t i = s->part_count, sequence = batch.sequence_count; i-- > 0;) {
        fb_answer_state *a = s->parts[i].answer;
        if (!a) continue;
        sequence--;
        if (a->computed + s->parts[i].rows != a->count) continue;
        add_row(s, &batch, a, a->count - 1, (int32_t)sequence, true);
        if (s->choices) s->choices[batch.wanted] = fb_answer_choice(a);
        wanted[batch.wanted++] = &s->parts[i];
    }
    return batch;
}

/* The other answers of a request start from the prompt that answer 0 has read, and share its cache. */
static void fork_answers(fb_scheduler *s, fb_answer_state *first) {
    fb_submitted *r = first->request;
    for (int32_t i = 1; first->sample == 0 && i < r->options.samples; i++) {
        fb_answer_state *a = &r->answers[i];
        if (a->forked || a->ended) continue;
        fb_error err;
        a->forked = true;
        if (fb_sequence_fork(&first->sequence, &a->sequence, &err) != FB_OK) {
            fb_answer_end(a, FB_FINISH_FAILED, err.message);
            continue;
        }
        a->computed = first->computed;
        a->entry = first->entry;
        a->entries = first->entries;
        if (s->prefix) fb_prefix_hold(s->prefix, a->entry);
        insert(&s->running, a);
    }
}

/* The next token of the part's answer, and the first ones of those that waited for it. */
static int64_t answer_part(fb_scheduler *s, fb_answer_state *a, const float *logits,
                           const fb_choice *choice) {
    fb_submitted *r = a->request;
    bool prompt = a->sample == 0 && a->count == r->prompt_count;
    int64_t tokens = 0;
    if (prompt) fork_answers(s, a);
    for (int32_t i = a->sample; i < (prompt ? r->options.samples : a->sample + 1); i++) {
        fb_answer_state *b = &r->answers[i];
        int64_t before = b->count;
        if (b->ended) continue;
        fb_answer_next(s->model, b, logits, choice);
        tokens += b->count - before;
        if (b->ended) retire(s, b);
    }
    return tokens;
}

static fb_status run(fb_scheduler *s, int64_t decodes, fb_error *err) {
    part *wanted[MAX_SEQUENCES];
    fb_batch batch = make_batch(s, wanted);
    int64_t tokens = 0;
    double began = fb_now();
    fb_status status = fb_executor_run(s->execution->executor, &batch, &s->trace, err);
    double seconds = fb_now() - began;
    if (status != FB_OK) {
        for (int64_t i = 0; i < s->part_count; i++)
            if (s->parts[i].answer)
                end_request(s, s->parts[i].answer->request, FB_FINISH_FAILED,
                            err ? err->message : "a step failed");
        return status;
    }
    fb_pace_learn(&s->pace, decodes, batch.count - decodes, seconds);
    for (int64_t i = 0; i < s->part_count; i++) {
        if (!s->parts[i].answer) continue;
        s->parts[i].answer->computed += s->parts[i].rows;
        remember(s, s->parts[i].answer);
    }
    for (int64_t i = batch.wanted; i-- > 0;) /* in the order of the requests */
        tokens +=
            answer_part(s, wanted[i]->answer, s->logits + i * s->vocab, s->choices ? &s->choices[i] : NULL);
    count_stats(s, batch.count, tokens, seconds);
    return FB_OK;
}

fb_status fb_scheduler_step(fb_scheduler *s, bool *busy, fb_error *err) {
    take_incoming(s);
    sweep(s);
    int64_t decodes = choose_parts(s);
    int64_t parts = 0;
    for (int64_t i = 0; i < s->part_count; i++) parts += s->parts[i].answer != NULL;
    fb_status status = parts ? run(s, decodes, err) : FB_OK;
    sweep(s);
    count_stats(s, 0, 0, 0);
    *busy = parts > 0 || has_incoming(s);
    return status;
}
