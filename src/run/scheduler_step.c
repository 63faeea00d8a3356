/* A step: its batch, and what answers get of it. */
#include "base/clock.h"
#include "run/scheduler.h"
#include "text/sampler.h"

/* ---- beginning and end of a step ---- */

/* Takes what was submitted since the last step. */
static void take_incoming(fb_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    for (; *s->incoming; s->incoming = &(*s->incoming)->next)
        fb_schedule_insert(&s->waiting, &(*s->incoming)->answers[0]);
    pthread_mutex_unlock(&s->lock);
}

/* A callback may have submitted, also one of a request that ended without a step. */
static bool has_incoming(fb_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    bool has = *s->incoming != NULL;
    pthread_mutex_unlock(&s->lock);
    return has;
}

void fb_scheduler_end(fb_scheduler *s, fb_submitted *r, fb_finish finish, const char *message) {
    for (int32_t i = 0; i < r->options.samples; i++) {
        if (r->answers[i].ended) continue;
        fb_schedule_retire(s, &r->answers[i]);
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
            fb_scheduler_end(s, r, FB_FINISH_CANCELLED, NULL);
        else
            fb_submitted_free(r);
}

/* What a step did. */
typedef struct done {
    int64_t rows, held; /* held: of the rows, those that need further steps */
    int64_t tokens, layer_barriers;
    bool decode, timed, by_layer;
    double seconds;
} done;

static void count_last(fb_scheduler_stats *t, const done *step) {
    t->steps++;
    t->rows += step->rows - step->held;
    t->held_steps += step->by_layer;
    t->tokens += step->tokens;
    t->step_seconds += step->seconds;
    t->last_rows = step->rows;
    t->last_seconds = step->seconds;
    t->last_decode = step->decode;
    t->last_timed = step->timed;
    if (step->decode && !step->timed) t->layer_barriers = step->layer_barriers;
}

/* `step` NULL: only how it stands. */
static void count_stats(fb_scheduler *s, const done *step) {
    const fb_frame *f = fb_schedule_frame(s);
    int64_t running = fb_schedule_places(s), left = 0;
    int64_t idle = s->prefix ? fb_prefix_idle(s->prefix) : 0;
    pthread_mutex_lock(&s->lock);
    for (const fb_submitted *r = s->requests; r; r = r->next) left += r->left;
    fb_scheduler_stats *t = &s->stats;
    t->running = running;
    t->waiting = left - running;
    t->blocks = fb_blocks_count(s->pool);
    t->blocks_free = fb_blocks_free(s->pool) + idle;
    t->block_tokens = f->shift < 62 ? s->options.block : f->options.capacity;
    t->block_bytes = f->block_bytes;
    t->barriers = s->trace.barriers;
    for (int i = 0; i < FB_FUSE_COUNT; i++) s->fuse_calls[i] = fb_trace_fuse_calls(&s->trace, i);
    if (step) count_last(t, step);
    pthread_mutex_unlock(&s->lock);
}

void fb_scheduler_count(fb_scheduler *s, int64_t *stat, int64_t count) {
    pthread_mutex_lock(&s->lock);
    *stat += count;
    pthread_mutex_unlock(&s->lock);
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

/* The logits of a row in the middle of a prompt are told, so all of them are needed. */
static fb_choice choice_of(fb_answer_state *a, int64_t at) {
    fb_choice whole = {0};
    return at + 1 < a->count ? whole : fb_answer_choice(a, at + 1 - a->count);
}

/* A choice after guesses depends on them: the sampler gets to know them, and takes them back at the end. */
static void choose_rows(fb_scheduler *s, const fb_part *part) {
    fb_answer_state *a = part->answer;
    int64_t first = a->computed + part->rows - part->scored;
    if (!s->choices) return;
    for (int64_t i = 0; i < part->scored; i++) {
        int64_t at = first + i;
        if (at >= a->count) fb_sampler_accept(a->sampler, a->tokens[at]);
        s->choices[part->wanted_at + i] = choice_of(a, at);
    }
    fb_sampler_retract(a->sampler, part->drafted);
}

/* Rows of parts that are not wanted come first, then the wanted ones. These are in the opposite order of
 * parts: the last prompt's rows then lie together, so that attention computes them at once. */
static fb_batch make_batch(fb_scheduler *s) {
    fb_batch batch = {.rows = s->rows, .sequences = s->sequences, .logits = s->logits, .choices = s->choices};
    for (int64_t i = 0; i < s->part_count; i++) {
        const fb_part *part = &s->parts[i];
        fb_answer_state *a = part->answer;
        if (!a) continue;
        s->sequences[batch.sequence_count] = &a->sequence;
        for (int64_t row = 0; row < part->rows - part->scored; row++)
            add_row(s, &batch, a, a->computed + row, batch.sequence_count, false);
        batch.sequence_count++;
    }
    for (int64_t i = s->part_count, sequence = batch.sequence_count; i-- > 0;) {
        fb_part *part = &s->parts[i];
        fb_answer_state *a = part->answer;
        if (!a) continue;
        sequence--;
        part->wanted_at = batch.wanted;
        for (int64_t row = part->rows - part->scored; row < part->rows; row++) {
            int64_t at = a->computed + row;
            add_row(s, &batch, a, at, (int32_t)sequence, true);
            batch.wanted++;
        }
        choose_rows(s, part);
    }
    fb_held_put(s, &batch);
    return batch;
}

/* The other answers of a request start from the prompt that answer 0 has read, and share its cache. */
static void fork_answers(fb_scheduler *s, fb_answer_state *first) {
    fb_submitted *r = first->request;
    for (int32_t i = 1; first->sample == 0 && i < r->options.samples; i++) {
        fb_answer_state *a = &r->answers[i];
        if (a->forked || a->ended) continue;
        fb_error err;
        a->forked = a->begun = true;
        if (fb_sequence_fork(&first->sequence, &a->sequence, &err) != FB_OK) {
            fb_answer_end(a, FB_FINISH_FAILED, err.message);
            continue;
        }
        a->computed = first->computed;
        a->kept = first->kept;
        a->entry = first->entry;
        if (s->prefix) fb_prefix_hold(s->prefix, a->entry, a->kept);
        fb_schedule_insert(&s->running, a);
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
        if (b->ended || atomic_load(&r->cancelled)) continue;
        fb_answer_next(s->model, b, logits, choice);
        tokens += b->count - before;
        if (b->ended) fb_schedule_retire(s, b);
    }
    return tokens;
}

/* Gives the answer of a part what its wanted rows say. */
static int64_t answer_rows(fb_scheduler *s, const fb_part *part) {
    fb_answer_state *a = part->answer;
    int64_t tokens = 0, count = a->count, first = a->computed + part->drafted - part->scored;
    a->all_drafted += part->drafted;
    for (int64_t i = 0; i < part->scored; i++) {
        int64_t wanted = part->wanted_at + i, at = first + i, guess = at + 1 - count;
        const float *logits = s->logits + wanted * s->vocab;
        fb_answer_prompt(a, at, logits);
        if (guess < 0 || atomic_load(&a->request->cancelled)) continue;
        tokens += answer_part(s, a, logits, s->choices ? &s->choices[wanted] : NULL);
        if (a->ended || guess == part->drafted || !fb_schedule_judge(s, a, guess, a->tokens[count + guess]))
            break;
        a->all_kept++;
        a->computed++; /* the guess was right, and its keys and values are there */
        fb_schedule_remember(s, a);
    }
    return tokens;
}

static void end_parts(fb_scheduler *s, const char *message) {
    for (int64_t i = 0; i < s->part_count; i++)
        if (s->parts[i].answer) fb_scheduler_end(s, s->parts[i].answer->request, FB_FINISH_FAILED, message);
}

static bool is_decode(const fb_batch *batch) {
    for (int64_t i = 0; i < batch->count; i++)
        if (batch->rows[i].prompt) return false;
    return !batch->held;
}

/* Runs the batch, with clocks if that was asked for. */
static fb_status run_batch(fb_scheduler *s, const fb_batch *batch, done *out, fb_error *err) {
    *out = (done){.rows = batch->count, .decode = is_decode(batch), .by_layer = batch->held > 0};
    fb_executor *executor = fb_timing_executor(s, out->decode);
    out->timed = executor != s->execution->executor;
    fb_trace before = s->trace;
    double began = fb_now();
    FB_TRY(fb_executor_run(executor, batch, &s->trace, err));
    out->seconds = fb_now() - began;
    out->layer_barriers = s->trace.layer_barriers - before.layer_barriers;
    if (out->timed) fb_timing_add(s, &before, batch->count, out->seconds);
    return FB_OK;
}

static fb_status run(fb_scheduler *s, int64_t decodes, fb_error *err) {
    fb_batch batch = make_batch(s);
    done step;
    fb_status status = run_batch(s, &batch, &step, err);
    if (status != FB_OK) {
        end_parts(s, err ? err->message : "a step failed");
        return status;
    }
    for (int64_t i = 0; i < s->part_count; i++) {
        fb_answer_state *a = s->parts[i].answer;
        if (!a) continue;
        if (!fb_held_ends(s, a)) {
            step.held = s->parts[i].rows;
            continue;
        }
        a->computed += s->parts[i].rows - s->parts[i].drafted;
        fb_schedule_remember(s, a);
    }
    double prompts = fb_held_step(s, batch.count - decodes);
    if (!step.timed) fb_pace_learn(&s->pace, decodes, prompts, step.seconds);
    for (int64_t i = 0; i < s->part_count; i++)
        if (s->parts[i].answer) step.tokens += answer_rows(s, &s->parts[i]);
    fb_schedule_learn(s, batch.count, step.timed ? 0 : step.seconds);
    count_stats(s, &step);
    return FB_OK;
}

fb_status fb_scheduler_step(fb_scheduler *s, bool *busy, fb_error *err) {
    take_incoming(s);
    sweep(s);
    fb_replan_begin(s);
    fb_schedule_pause(s);
    fb_schedule_ask(s);
    int64_t decodes = fb_schedule_parts(s);
    int64_t parts = 0;
    for (int64_t i = 0; i < s->part_count; i++) parts += s->parts[i].answer != NULL;
    fb_status status = parts ? run(s, decodes, err) : FB_OK;
    sweep(s);
    count_stats(s, NULL);
    *busy = parts > 0 || has_incoming(s) || fb_replan_waits(s);
    return status;
}
