/* A session: a sequence of tokens, on an executor that it shares with sessions of equal options. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "backend/sequence.h"
#include "base/options.h"
#include "base/sized.h"
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
    int32_t best;          /* the best token of the last step, if the plan computes only that */
    int64_t step_position; /* position of the current step */
    fb_linear_fn on_linear;
    void *linear_user;
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

/* Allocates a session's memory, besides its sequence. */
static fb_status take_memory(fb_session *s, fb_error *err) {
    int64_t bytes = s->options.chunk * (int64_t)sizeof *s->rows;
    s->rows = malloc((size_t)bytes);
    if (!s->rows) return fb_fail_memory(err, "rows of a step", bytes);
    return reserve_logits(s, s->logits_rows > 1 ? s->logits_rows : 1, err);
}

static fb_status start(fb_session *s, const fb_session_options *options, const fb_planning *planning,
                       fb_error *err) {
    fb_execution_options more = {.planning = planning};
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
    return fb_sequence_open(s->execution->executor, NULL, &s->sequence, err);
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
                      .logits_rows = from->logits_rows,
                      .best = from->best};
    fb_execution_share(s->execution);
    fb_status status = fb_sequence_fork(&from->sequence, &s->sequence, err);
    if (status == FB_OK) status = take_memory(s, err);
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
    fb_sequence_close(&s->sequence);
    fb_execution_give(s->execution);
    free(s->rows);
    free(s->logits);
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

static void forward_linear(void *user, int32_t slot, int64_t layer, const fb_view *x, int64_t rows) {
    fb_session *s = user;
    s->on_linear(s->linear_user, slot, layer, x, rows);
}

/* Runs one step of `count` tokens, of a prompt or generated. The last `wanted` of them write logits to
 * `logits`, or candidates to `choice`. */
static fb_status run_step(fb_session *s, const int32_t *ids, int64_t count, bool prompt, int64_t wanted,
                          float *logits, fb_choice *choice, fb_error *err) {
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
                      .choices = choice,
                      .best = &s->best,
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
    fb_choice choice;
    int32_t ids[FB_CANDIDATES];
    fb_candidate best[FB_CANDIDATES], gathered[FB_CANDIDATES];
} selection;

fb_status fb_session_next(fb_session *s, int32_t id, fb_sampler *sampler, int32_t *next, fb_error *err) {
    *next = 0;
    int64_t wants =
        s->execution->request.backend->chooses && program_of(s)->logits != FB_NONE && !s->options.on_hidden
            ? fb_sampler_wants(sampler)
            : 0;
    if (!wants) {
        const float *logits;
        FB_TRY(fb_session_decode(s, id, err));
        FB_TRY(fb_session_logits(s, &logits, NULL, NULL, err));
        return fb_sampler_next(sampler, logits, next, err);
    }
    FB_TRY(check_tokens(s, &id, 1, err));
    selection all;
    all.choice = (fb_choice){.count = wants,
                             .best = all.best,
                             .id_count = fb_sampler_changed(sampler, all.ids, FB_CANDIDATES),
                             .ids = all.ids,
                             .gathered = all.gathered};
    s->logits_rows = 0;
    FB_TRY(run_step(s, &id, 1, false, 1, s->logits, &all.choice, err));
    return fb_sampler_next_among(sampler, all.best, wants, all.gathered, all.choice.id_count, next, err);
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

fb_status fb_session_best(fb_session *s, int32_t *id, fb_error *err) {
    *id = 0;
    if (!s->logits_rows)
        return fb_fail(err, FB_ERROR_USAGE,
                       "best token: no token since the session began or was trimmed (prefill first)");
    if (program_of(s)->logits == FB_NONE) {
        *id = s->best;
    } else {
        int64_t vocab = s->model->spec->program.vocab;
        const float *logits = s->logits + (s->logits_rows - 1) * vocab;
        for (int64_t i = 0; i < vocab && *id >= 0; i++)
            *id = isnan(logits[i]) ? -1 : logits[i] > logits[*id] ? (int32_t)i : *id;
    }
    if (*id < 0) {
        *id = 0;
        return fb_fail(err, FB_ERROR_SYSTEM, "logits: NaN at position %lld", (long long)s->position - 1);
    }
    return FB_OK;
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
    const fb_trace *trace = &s->trace;
    *calls = index == FB_FUSE_GRAPH  ? trace->graphs
             : index == FB_FUSE_STEP ? trace->listed
                                     : trace->fuses[index];
    *a_step = s->execution->plan.calls[index];
    *a_head = s->execution->plan.head_calls[index];
    return true;
}

int64_t fb_session_barriers(const fb_session *s) { return s->trace.barriers; }

fb_status fb_session_plan_text(const fb_session *s, char **text, fb_error *err) {
    return fb_program_print(program_of(s), fb_fuse_name, text, err);
}
