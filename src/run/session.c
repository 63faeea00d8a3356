/* A session: a sequence of tokens, on an executor that it shares with sessions of equal options. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "backend/sequence.h"
#include "base/clock.h"
#include "base/options.h"
#include "base/sized.h"
#include "draft/draft.h"
#include "run/cache.h"
#include "run/session.h"
#include "text/sampler.h"

/* Angles are position * frequency in double. Up to this limit a position is exact. */
#define MAX_POSITION (1ll << 53)

struct fb_session {
    const fb_model *model;
    fb_session_options options; /* after defaults, without strings */
    fb_execution *execution;
    fb_sequence sequence;
    fb_trace trace;
    fb_row *rows; /* [chunk]: the rows of the current step */
    int64_t position;
    int64_t furthest; /* the largest position so far; what its tokens overwrote is lost */
    bool broken;      /* a step failed halfway: the cache does not match `position` */
    atomic_bool cancel;
    float *logits;
    int64_t logits_rows, logits_capacity;
    /* The best tokens of the last step's rows, if the plan computes only those; the last chosen one first. */
    int32_t best[FB_MAX_DRAFT + 1];
    int64_t step_position; /* position of the current step */
    fb_linear_fn on_linear;
    void *linear_user;
    /* With a draft: */
    fb_drafter *drafter;
    fb_draft_stream *stream;
    int32_t *tokens; /* [tokens_room]: all tokens so far */
    int64_t tokens_room;
    struct selection *selections; /* [FB_MAX_DRAFT + 1]; NULL: not needed yet */
};

static const fb_program *program_of(const fb_session *s) { return &s->execution->plan.program; }
static const fb_executor_options *executor_of(const fb_session *s) { return &s->execution->request.executor; }
static const fb_ring *ring_of(const fb_session *s) { return &executor_of(s)->ring; }

/* Allocates memory for the logits of `rows` tokens, if the plan computes logits. */
static fb_status reserve_logits(fb_session *s, int64_t rows, fb_error *err) {
    if (rows <= s->logits_capacity || program_of(s)->logits == FB_NONE) return FB_OK;
    int64_t vocab = s->model->spec->program.vocab, bytes = rows * vocab * (int64_t)sizeof *s->logits;
    float *logits = realloc(s->logits, (size_t)bytes);
    if (!logits) return fb_fail_memory(err, "logits", bytes);
    s->logits = logits;
    s->logits_capacity = rows;
    return FB_OK;
}

/* With a draft, which tokens there are from position `at` on. */
static fb_status keep_tokens(fb_session *s, int64_t at, const int32_t *ids, int64_t count, fb_error *err) {
    if (!s->drafter) return FB_OK;
    if (at + count > s->tokens_room) {
        int64_t room = 2 * (at + count) + 64;
        int32_t *tokens = realloc(s->tokens, (size_t)room * sizeof *tokens);
        if (!tokens) return fb_fail_memory(err, "tokens", room * (int64_t)sizeof *tokens);
        s->tokens = tokens;
        s->tokens_room = room;
    }
    memcpy(s->tokens + at, ids, (size_t)count * sizeof *ids);
    return FB_OK;
}

/* Allocates a session's memory, besides its sequence. */
static fb_status take_memory(fb_session *s, fb_error *err) {
    int64_t bytes = s->options.chunk * (int64_t)sizeof *s->rows;
    s->rows = malloc((size_t)bytes);
    if (!s->rows) return fb_fail_memory(err, "rows of a step", bytes);
    return reserve_logits(s, s->logits_rows > 1 ? s->logits_rows : 1, err);
}

static fb_status open_draft(fb_session *s, const fb_draft *draft, fb_error *err) {
    s->options.draft = draft;
    if (!draft) return FB_OK;
    if (draft->model != s->model)
        return fb_fail(err, FB_ERROR_USAGE, "draft: of another model (fb_draft_create with the session's)");
    FB_TRY(fb_drafter_open(draft, s->execution, 1, s->execution->request.greedy, &s->drafter, err));
    return fb_draft_stream_open(s->drafter, &s->stream, err);
}

static fb_status start(fb_session *s, const fb_session_options *options, const fb_planning *planning,
                       fb_error *err) {
    fb_execution_options more = {.planning = planning,
                                 .drafted = options->draft ? options->draft->options.most : 0};
    FB_TRY(fb_execution_take(s->model, options, &more, &s->execution, err));
    s->options = s->execution->request
                     .session; /* options of the first session that shares this execution; its own are: */
    s->options.cache = options->cache;
    s->options.on_hidden = options->on_hidden;
    s->options.on_progress = options->on_progress;
    s->options.user = options->user;
    s->options.all_logits = options->all_logits;
    s->options.isa = s->options.fuse = s->options.machine = NULL;
    FB_TRY(take_memory(s, err));
    FB_TRY(fb_sequence_open(s->execution->executor, NULL, &s->sequence, err));
    return open_draft(s, options->draft, err);
}

fb_status fb_session_create_planned(const fb_model *model, const fb_session_options *options,
                                    const fb_planning *planning, fb_session **out, fb_error *err) {
    *out = NULL;
    fb_session *s = calloc(1, sizeof *s);
    if (!s) return fb_fail_memory(err, "session", sizeof *s);
    s->model = model;
    fb_session_options taken;
    fb_status status = fb_session_options_take(options, &taken, err);
    if (status == FB_OK) status = fb_tensors_check_files(model->tensors, err);
    if (status == FB_OK) status = start(s, &taken, planning, err);
    if (status != FB_OK) {
        fb_session_free(s);
        return status;
    }
    *out = s;
    return FB_OK;
}

fb_status fb_session_create(const fb_model *model, const fb_session_options *options, fb_session **out,
                            fb_error *err) {
    return fb_session_create_planned(model, options, NULL, out, err);
}

fb_status fb_session_fork(const fb_session *from, fb_session **out, fb_error *err) {
    *out = NULL;
    if (from->broken)
        return fb_fail(err, FB_ERROR_USAGE, "session: a step was stopped (reset the session first)");
    fb_session *s = malloc(sizeof *s);
    if (!s) return fb_fail_memory(err, "session", sizeof *s);
    *s = (fb_session){.model = from->model,
                      .options = from->options,
                      .execution = from->execution,
                      .position = from->position,
                      .furthest = from->furthest,
                      .logits_rows = from->logits_rows};
    memcpy(s->best, from->best, sizeof s->best);
    s->options.draft = NULL;
    fb_execution_share(s->execution);
    fb_status status = fb_sequence_fork(&from->sequence, &s->sequence, err);
    if (status == FB_OK) status = take_memory(s, err);
    if (status == FB_OK) status = open_draft(s, from->options.draft, err);
    if (status == FB_OK && s->drafter) status = keep_tokens(s, 0, from->tokens, from->position, err);
    if (status != FB_OK) {
        fb_session_free(s);
        return status;
    }
    if (from->logits_rows && from->logits)
        memcpy(s->logits, from->logits,
               (size_t)(from->logits_rows * s->model->spec->program.vocab) * sizeof *s->logits);
    *out = s;
    return FB_OK;
}

void fb_session_free(fb_session *s) {
    if (!s) return;
    fb_draft_stream_close(s->stream);
    fb_drafter_close(s->drafter);
    fb_sequence_close(&s->sequence);
    fb_execution_give(s->execution);
    free(s->rows);
    free(s->logits);
    free(s->tokens);
    free(s->selections);
    free(s);
}

void fb_session_cancel(fb_session *s) { atomic_store(&s->cancel, true); }

static fb_status check_tokens(const fb_session *s, const int32_t *ids, int64_t count, fb_error *err) {
    int64_t vocab = s->model->spec->program.vocab,
            most = ring_of(s)->window ? MAX_POSITION : s->options.capacity;
    int64_t free_slots = most - s->position;
    if (s->broken)
        return fb_fail(err, FB_ERROR_USAGE, "session: a step was stopped (reset the session first)");
    if (count < 1) return fb_fail(err, FB_ERROR_USAGE, "tokens: %lld (at least 1)", (long long)count);
    if (count > free_slots)
        return fb_fail(err, FB_ERROR_USAGE, "tokens: %lld (the session has room for %lld more of %lld)",
                       (long long)count, (long long)free_slots, (long long)most);
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return fb_fail(err, FB_ERROR_USAGE, "token %lld: id %d (0 to %lld)", (long long)i, ids[i],
                           (long long)vocab - 1);
    return FB_OK;
}

static bool forward_hidden(void *user, int64_t layer, const float *hidden, int64_t rows, int64_t cols) {
    fb_session *s = user;
    return s->options.on_hidden(s->options.user, layer, s->step_position, hidden, rows, cols);
}

static void forward_linear(void *user, int32_t slot, int64_t layer, const fb_linear_rows *in, int32_t worker,
                           int32_t workers) {
    fb_session *s = user;
    s->on_linear(s->linear_user, slot, layer, in, worker, workers);
}

/* Runs one step of `count` tokens, of a prompt or generated. The last `wanted` of them write logits to
 * `logits`, or candidates to `choices`. */
static fb_status run_step(fb_session *s, const int32_t *ids, int64_t count, bool prompt, int64_t wanted,
                          float *logits, fb_choice *choices, fb_error *err) {
    FB_TRY(keep_tokens(s, s->position, ids, count, err));
    for (int64_t i = 0; i < count; i++)
        s->rows[i] = (fb_row){
            .position = s->position + i, .token = ids[i], .wanted = i >= count - wanted, .prompt = prompt};
    fb_sequence *sequence = &s->sequence;
    fb_batch batch = {.rows = s->rows,
                      .count = count,
                      .wanted = wanted,
                      .sequences = &sequence,
                      .sequence_count = 1,
                      .logits = logits,
                      .choices = choices,
                      .best = s->best,
                      .on_hidden = s->options.on_hidden ? forward_hidden : NULL,
                      .on_linear = s->on_linear ? forward_linear : NULL,
                      .user = s,
                      .cancel = &s->cancel};
    s->step_position = s->position;
    if (s->position + count > s->furthest) s->furthest = s->position + count;
    fb_status status = fb_executor_run(s->execution->executor, &batch, &s->trace, err);
    if (status == FB_OK) {
        s->position += count;
        return FB_OK;
    }
    /* A step that was cancelled or found no memory can be repeated: what came before it is untouched. */
    bool cancelled = status == FB_ERROR_STOPPED && atomic_exchange(&s->cancel, false);
    s->broken = status != FB_ERROR_MEMORY && !cancelled;
    if (cancelled)
        return fb_fail(err, FB_ERROR_STOPPED, "session: cancelled after %lld tokens", (long long)s->position);
    return status;
}

fb_status fb_session_prefill(fb_session *s, const int32_t *ids, int64_t count, fb_error *err) {
    FB_TRY(check_tokens(s, ids, count, err));
    bool all = s->options.all_logits, every = all || s->options.on_hidden;
    FB_TRY(reserve_logits(s, every ? (all ? count : s->options.chunk) : 1, err));
    int64_t vocab = s->model->spec->program.vocab;
    s->logits_rows = 0;
    for (int64_t done = 0; done < count;) {
        int64_t rows = count - done < s->options.chunk ? count - done : s->options.chunk;
        bool last = done + rows == count;
        int64_t wanted = every ? rows : last;
        FB_TRY(run_step(s, ids + done, rows, true, wanted, all ? s->logits + done * vocab : s->logits, NULL,
                        err));
        if (last && every && !all)
            memmove(s->logits, s->logits + (rows - 1) * vocab, (size_t)vocab * sizeof *s->logits);
        done += rows;
        if (s->options.on_progress && !s->options.on_progress(s->options.user, done, count)) {
            s->broken = true;
            return fb_fail(err, FB_ERROR_STOPPED, "prefill: stopped after %lld of %lld tokens",
                           (long long)done, (long long)count);
        }
    }
    s->logits_rows = all ? count : 1;
    return FB_OK;
}

fb_status fb_session_decode(fb_session *s, int32_t id, fb_error *err) {
    FB_TRY(check_tokens(s, &id, 1, err));
    s->logits_rows = 0;
    FB_TRY(run_step(s, &id, 1, false, 1, s->logits, NULL, err));
    s->logits_rows = 1;
    return FB_OK;
}

/* The candidates of one choice. */
typedef struct selection {
    int32_t ids[FB_CANDIDATES];
    fb_candidate best[FB_CANDIDATES], gathered[FB_CANDIDATES];
} selection;

/* What the next choice needs of a row's logits, if the device selects candidates; zeros: all. */
static fb_choice choice_of(const fb_session *s, const fb_sampler *sampler, selection *all) {
    bool chooses = sampler && s->execution->request.backend->chooses && program_of(s)->logits != FB_NONE &&
                   !s->options.on_hidden;
    int64_t wants = chooses ? fb_sampler_wants(sampler) : 0;
    if (!wants) return (fb_choice){0};
    return (fb_choice){.count = wants,
                       .best = all->best,
                       .id_count = fb_sampler_changed(sampler, all->ids, FB_CANDIDATES),
                       .ids = all->ids,
                       .gathered = all->gathered};
}

fb_status fb_session_next(fb_session *s, int32_t id, fb_sampler *sampler, int32_t *next, fb_error *err) {
    *next = 0;
    selection all;
    fb_choice choice = choice_of(s, sampler, &all);
    if (!choice.count) {
        const float *logits;
        FB_TRY(fb_session_decode(s, id, err));
        FB_TRY(fb_session_logits(s, &logits, NULL, NULL, err));
        return fb_sampler_next(sampler, logits, next, err);
    }
    FB_TRY(check_tokens(s, &id, 1, err));
    s->logits_rows = 0;
    FB_TRY(run_step(s, &id, 1, false, 1, s->logits, &choice, err));
    return fb_sampler_next_among(sampler, all.best, choice.count, all.gathered, choice.id_count, next, err);
}

fb_status fb_session_logits(fb_session *s, const float **logits, int64_t *rows, int64_t *vocab,
                            fb_error *err) {
    *logits = NULL;
    if (rows) *rows = 0;
    if (vocab) *vocab = 0;
    if (!s->logits_rows)
        return fb_fail(err, FB_ERROR_USAGE,
                       "logits: no token since the session began or was trimmed (prefill first)");
    if (program_of(s)->logits == FB_NONE)
        return fb_fail(err, FB_ERROR_USAGE,
                       "logits: not computed (the session is greedy and head_argmax is on)");
    *logits = s->logits;
    if (rows) *rows = s->logits_rows;
    if (vocab) *vocab = s->model->spec->program.vocab;
    return FB_OK;
}

static int32_t best_of(const float *logits, int64_t vocab) {
    int32_t best = 0;
    for (int64_t i = 0; i < vocab && best >= 0; i++)
        best = isnan(logits[i]) ? -1 : logits[i] > logits[best] ? (int32_t)i : best;
    return best;
}

static fb_status fail_nan(int64_t position, fb_error *err) {
    return fb_fail(err, FB_ERROR_SYSTEM, "logits: NaN at position %lld", (long long)position);
}

fb_status fb_session_best(fb_session *s, int32_t *id, fb_error *err) {
    *id = 0;
    if (!s->logits_rows)
        return fb_fail(err, FB_ERROR_USAGE,
                       "best token: no token since the session began or was trimmed (prefill first)");
    if (program_of(s)->logits == FB_NONE) {
        *id = s->best[0];
    } else {
        int64_t vocab = s->model->spec->program.vocab;
        *id = best_of(s->logits + (s->logits_rows - 1) * vocab, vocab);
    }
    if (*id >= 0) return FB_OK;
    *id = 0;
    return fail_nan(s->position - 1, err);
}

/* ---- guesses ---- */

/* How many guesses a step can check: what is wanted, what the cache has room for, and what it can forget
 * again. */
static int64_t most_guesses(const fb_session *s, int64_t wanted) {
    int64_t most = wanted < s->options.chunk - 1 ? wanted : s->options.chunk - 1;
    int64_t room = (ring_of(s)->window ? MAX_POSITION : s->options.capacity) - s->position - 1;
    if (!s->drafter || s->options.on_hidden) return 0;
    if (most > room) most = room;
    if (most > FB_MAX_DRAFT) most = FB_MAX_DRAFT;
    for (; most > 0; most--) {
        int64_t end = s->position + 1 + most, furthest = end > s->furthest ? end : s->furthest;
        if (s->position + 1 >= furthest - fb_cache_trimmable(program_of(s), executor_of(s), furthest)) break;
    }
    return most;
}

static fb_status ask_draft(fb_session *s, int32_t id, fb_sampler *sampler, int64_t wanted, fb_draft_ask *ask,
                           fb_error *err) {
    *ask = (fb_draft_ask){.most = most_guesses(s, wanted)};
    if (!s->drafter) return FB_OK;
    FB_TRY(keep_tokens(s, s->position, &id, 1, err));
    ask->stream = s->stream;
    ask->tokens = s->tokens;
    ask->count = s->position + 1;
    ask->sequence = &s->sequence;
    ask->sampler = sampler;
    /* A draft may write where the step will. */
    if (ask->count + ask->most > s->furthest) s->furthest = ask->count + ask->most;
    return fb_drafter_ask(s->drafter, ask, 1, ask->most, err);
}

/* Each row's choice depends on the tokens before it, the guesses among them. `choices` stays NULL if some row
 * needs all logits. */
static fb_status prepare_choices(fb_session *s, fb_sampler *sampler, const fb_draft_ask *ask,
                                 fb_choice room[FB_MAX_DRAFT + 1], fb_choice **choices, fb_error *err) {
    selection few;
    *choices = NULL;
    if (!choice_of(s, sampler, &few).count) return FB_OK;
    int64_t bytes = (FB_MAX_DRAFT + 1) * (int64_t)sizeof *s->selections, row = 0;
    if (!s->selections) s->selections = malloc((size_t)bytes);
    if (!s->selections) return fb_fail_memory(err, "candidates", bytes);
    for (;; row++) {
        room[row] = choice_of(s, sampler, &s->selections[row]);
        if (!room[row].count || row == ask->made) break;
        fb_sampler_accept(sampler, ask->ids[row]);
    }
    if (room[row].count) *choices = room;
    fb_sampler_retract(sampler, row);
    return FB_OK;
}

/* The token after a row, as decoding one by one would have chosen it. */
static fb_status choose_at(const fb_session *s, fb_sampler *sampler, const fb_choice *choices, int64_t row,
                           int64_t position, int32_t *id, fb_error *err) {
    const fb_choice *c = choices ? &choices[row] : NULL;
    const int64_t vocab = s->model->spec->program.vocab;
    if (c) return fb_sampler_next_among(sampler, c->best, c->count, c->gathered, c->id_count, id, err);
    if (sampler) return fb_sampler_next(sampler, s->logits + row * vocab, id, err);
    *id = program_of(s)->logits == FB_NONE ? s->best[row] : best_of(s->logits + row * vocab, vocab);
    return *id >= 0 ? FB_OK : fail_nan(position, err);
}

/* Chooses row by row, up to the first token that is not the guess. A row that fails after others is left to
 * the next step, where it fails again. */
static fb_status choose_rows(const fb_session *s, fb_sampler *sampler, const fb_choice *choices, int64_t most,
                             fb_draft_ask *ask, int32_t *ids, int64_t *count, fb_error *err) {
    int64_t position = s->position - ask->made - 1;
    for (*count = 0; *count <= ask->made && *count < most;) {
        int64_t row = *count;
        fb_status status = choose_at(s, sampler, choices, row, position + row, &ids[row], err);
        if (status != FB_OK) return row ? FB_OK : status;
        ++*count;
        if (row == ask->made || row + 1 == most || fb_model_is_end(s->model, ids[row]) ||
            (sampler && fb_sampler_ended(sampler)))
            break;
        ask->checked++;
        if (ids[row] != ask->ids[row]) break;
        ask->right++;
    }
    return FB_OK;
}

fb_status fb_session_speculate(fb_session *s, int32_t id, fb_sampler *sampler, int64_t most, int32_t *ids,
                               int64_t *count, fb_error *err) {
    fb_draft_ask ask;
    fb_choice room[FB_MAX_DRAFT + 1], *choices;
    int32_t rows[FB_MAX_DRAFT + 1];
    *count = 0;
    if (most < 1) return fb_fail(err, FB_ERROR_USAGE, "tokens: %lld (at least 1)", (long long)most);
    if (sampler && program_of(s)->logits == FB_NONE)
        return fb_fail(err, FB_ERROR_USAGE, "sampler: in a greedy session, which computes no logits (NULL)");
    FB_TRY(check_tokens(s, &id, 1, err));
    FB_TRY(ask_draft(s, id, sampler, most - 1, &ask, err));
    rows[0] = id;
    memcpy(rows + 1, ask.ids, (size_t)ask.made * sizeof *rows);
    FB_TRY(reserve_logits(s, 1 + ask.made, err));
    FB_TRY(prepare_choices(s, sampler, &ask, room, &choices, err));
    s->logits_rows = 0;
    double began = fb_now();
    FB_TRY(run_step(s, rows, 1 + ask.made, false, 1 + ask.made, s->logits, choices, err));
    double seconds = fb_now() - began;
    fb_status status = choose_rows(s, sampler, choices, most, &ask, ids, count, err);
    s->position += (*count ? *count : 1) - ask.made - 1;
    s->logits_rows = choices ? 0 : *count ? *count : 1;
    s->best[0] = *count ? ids[*count - 1] : s->best[0];
    if (s->drafter) fb_drafter_learn(s->drafter, &ask, 1, seconds);
    return status;
}

void fb_session_fill_draft(const fb_session *s, fb_draft_stats *out) {
    fb_draft_stats stats;
    memset(&stats, 0, sizeof stats);
    if (s->drafter) fb_drafter_stats(s->drafter, &stats);
    fb_sized_give(&stats, sizeof stats, out);
}

int64_t fb_session_position(const fb_session *s) { return s->position; }
const char *fb_session_backend(const fb_session *s) { return s->execution->request.backend->name; }
int32_t fb_session_threads(const fb_session *s) { return fb_executor_threads(s->execution->executor); }
const char *fb_session_isa(const fb_session *s) { return fb_executor_variant(s->execution->executor); }
const fb_execution *fb_session_execution(const fb_session *s) { return s->execution; }
void fb_session_watch(fb_session *s, fb_linear_fn fn, void *user) {
    s->on_linear = fn;
    s->linear_user = user;
}
const fb_trace *fb_session_trace(const fb_session *s) { return &s->trace; }

void fb_session_reset(fb_session *s) {
    fb_draft_stream_cut(s->stream, 0);
    s->position = 0;
    s->furthest = 0;
    s->logits_rows = 0;
    s->broken = false;
    atomic_store(&s->cancel, false);
}

FB_SIZED_ENDS_WITH(fb_cache_info, trimmable);

/* The limit counts from the furthest position: earlier trims do not extend it. */
static int64_t trimmable(const fb_session *s) {
    return s->broken
               ? 0
               : s->position - (s->furthest - fb_cache_trimmable(program_of(s), executor_of(s), s->furthest));
}

fb_status fb_session_trim(fb_session *s, int64_t count, fb_error *err) {
    int64_t back = trimmable(s);
    if (s->broken)
        return fb_fail(err, FB_ERROR_USAGE, "session: a step was stopped (reset the session first)");
    if (count < 0 || count > s->position)
        return fb_fail(err, FB_ERROR_USAGE, "trim: to %lld tokens (0 to %lld, the tokens so far)",
                       (long long)count, (long long)s->position);
    if (count < s->position - back)
        return fb_fail(err, FB_ERROR_USAGE,
                       "trim: to %lld tokens (%lld to %lld: what the next one would see is forgotten)",
                       (long long)count, (long long)(s->position - back), (long long)s->position);
    s->position = count;
    s->logits_rows = 0;
    fb_draft_stream_cut(s->stream, count);
    return FB_OK;
}

/* Slots are a multiple of FB_KV_GROUP. */
static int64_t rounded(int64_t slots) { return (slots + FB_KV_GROUP - 1) / FB_KV_GROUP * FB_KV_GROUP; }

void fb_session_fill_cache(const fb_session *s, fb_cache_info *out) {
    const fb_program *p = program_of(s);
    const fb_executor_options *o = &s->execution->request.executor;
    int64_t slots = rounded(s->options.capacity), all = 0; /* all: of all layers */
    for (int64_t layer = 0; layer < p->layers; layer++) all += rounded(o->slots[p->kind_of[layer]]);
    int64_t reach = o->ring.sinks + o->ring.window;
    fb_cache_info info;
    memset(&info, 0, sizeof info); /* clears padding too, because the struct is copied to the caller */
    info.kind = s->options.cache;
    info.sinks = o->ring.sinks;
    info.window = o->ring.window;
    info.slots = slots;
    info.bytes = 2 * all * p->kv_heads * p->head_dim * fb_dtype_size(o->kv);
    info.held = o->ring.window && s->position > reach ? reach : s->position;
    info.trimmable = trimmable(s);
    fb_sized_give(&info, sizeof info, out);
}

bool fb_session_op_calls(const fb_session *s, int index, const char **name, int64_t *calls) {
    if (index < 0 || index >= FB_OP_COUNT) return false;
    *name = fb_op_table[index].name;
    *calls = s->trace.ops[index];
    return true;
}

bool fb_session_fuse_calls(const fb_session *s, int index, const char **name, int64_t *calls, int64_t *a_step,
                           int64_t *a_head) {
    if (index < 0 || index >= FB_FUSE_COUNT) return false;
    *name = fb_fuse_table[index].name;
    *calls = fb_trace_fuse_calls(&s->trace, index);
    *a_step = s->execution->plan.calls[index];
    *a_head = s->execution->plan.head_calls[index];
    return true;
}

int64_t fb_session_barriers(const fb_session *s) { return s->trace.barriers; }

fb_status fb_session_plan_text(const fb_session *s, char **text, fb_error *err) {
    return fb_program_print(program_of(s), fb_fuse_name, text, err);
}
