/* A session: the tokens so far, and an engine that runs steps. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/options.h"
#include "base/pool.h"
#include "base/screen.h"
#include "base/sized.h"
#include "fuse/fuse.h"
#include "model/model.h"
#include "plan/price.h"
#include "run/cache.h"

/* Rows of a prefill step: enough that each weight that is read is used many times, few enough that the
 * activations of a model of this size stay in the second-level cache. Not tuned. */
#define DEFAULT_CHUNK 128
/* On a GPU: enough rows to fill it with tiles of the smaller matrices. */
#define DEFAULT_CHUNK_GPU 512
/* Angles are products of a position and a frequency, in double: up to here a position is exact. */
#define MAX_POSITION (1ll << 53)

struct fb_session {
    const fb_model *model;
    fb_session_options options;
    fb_dtype kv; /* what options.kv means */
    fb_ring ring;
    const fb_backend *backend;
    int32_t device;
    fb_plan plan;
    fb_engine *engine;
    int64_t position;
    int64_t
        furthest; /* the largest position since the session was new: what that wrote over is gone for good */
    atomic_bool cancelled; /* the next step is not to begin */
    bool broken;           /* a step was stopped half way: the cache is not what `position` says */
    float *logits;
    int64_t logits_rows, logits_capacity;
    int32_t best;          /* the last step's best token, where the plan computes only that */
    int64_t step_position; /* of the step that runs */
};

static fb_status check_options(const fb_session_options *o, fb_error *err) {
    if (o->threads < 0 || o->threads > FB_POOL_MAX_LANES)
        return fb_fail(err, FB_ERROR_USAGE, "threads: %d (0 to %d)", o->threads, FB_POOL_MAX_LANES);
    if ((unsigned)o->act >= FB_FLOAT_COUNT)
        return fb_fail(err, FB_ERROR_USAGE, "act: %d (f32, f16, bf16, f64)", (int)o->act);
    return FB_OK;
}

/* The logits of `rows` tokens more. */
static fb_status reserve_logits(fb_session *s, int64_t rows, fb_error *err) {
    if (rows <= s->logits_capacity) return FB_OK;
    int64_t vocab = s->model->spec->program.vocab, bytes = rows * vocab * (int64_t)sizeof *s->logits;
    float *logits = realloc(s->logits, (size_t)bytes);
    if (!logits) return fb_fail_memory(err, "logits", bytes);
    s->logits = logits;
    s->logits_capacity = rows;
    return FB_OK;
}

/* The machine that runs the session, measured or assumed. */
static void find_machine(const fb_session *s, fb_machine *machine) {
    const fb_session_options *o = &s->options;
    int32_t lanes = o->threads ? o->threads : fb_pool_cores();
    if (s->backend == &fb_backend_cpu) {
        if (!o->machine || !fb_machine_load(o->machine, lanes, o->isa, o->act, machine))
            fb_machine_assume(machine, lanes, o->act);
    } else if (!o->machine || !fb_machine_load_gpu(o->machine, s->device, o->act, machine)) {
        fb_machine_assume_gpu(machine, s->device, o->act);
    }
}

/* The planner's choice, for decoding in the middle of the cache; of a ring, when it is full. */
static fb_status choose(const fb_session *s, fb_plan_options *options, fb_error *err) {
    const fb_session_options *o = &s->options;
    fb_machine machine;
    find_machine(s, &machine);
    fb_shape shape = {.rows = 1,
                      .position = s->ring.window ? s->ring.sinks + s->ring.window : o->capacity / 2,
                      .epilogue_rows = 1,
                      .lanes = machine.lanes,
                      .act = o->act,
                      .kv = s->kv};
    return fb_plan_choose(&s->model->spec->program, s->model->weights, &machine, &shape, options, err);
}

static fb_status make_plan(fb_session *s, fb_error *err) {
    const fb_session_options *o = &s->options;
    fb_plan_options options = {.exact = o->exact,
                               .greedy = o->greedy && !o->all_logits && !o->on_hidden,
                               .float_dot = fb_float_dot(o),
                               .screen = s->backend->screens,
                               .graph = s->backend->graphs,
                               .step = s->backend->graphs && fb_step_types(o->act, s->kv),
                               .sinks = s->ring.sinks,
                               .window = s->ring.window};
    bool automatic;
    FB_TRY(fb_fuse_parse(o->fuse ? o->fuse : "auto", &options.fuses, &automatic, err));
    if (automatic) FB_TRY(choose(s, &options, err));
    return fb_plan_make(&s->model->spec->program, &options, &s->plan, err);
}

static fb_status open_engine(fb_session *s, fb_engine *fork_of, fb_error *err) {
    FB_TRY(reserve_logits(s, 1, err));
    const fb_session_options *o = &s->options;
    fb_backend_options options = {.threads = o->threads,
                                  .act = o->act,
                                  .kv = s->kv,
                                  .isa = o->isa,
                                  .device = s->device,
                                  .graph = s->plan.applied & FB_FUSE_BIT(FB_FUSE_GRAPH),
                                  .step = s->plan.applied & FB_FUSE_BIT(FB_FUSE_STEP),
                                  .profile = o->profile,
                                  .capacity = o->capacity,
                                  .ring = s->ring,
                                  .fork_of = fork_of,
                                  .chunk = o->chunk,
                                  .epilogue_rows = o->all_logits || o->on_hidden ? o->chunk : 1};
    fb_bound bound = {&s->plan.program, s->model->weights};
    FB_TRY(s->backend->open(&bound, &options, &s->engine, err));
    if ((s->plan.applied & FB_FUSE_BIT(FB_FUSE_HEAD_SCREEN)) && !s->model->screen->ready)
        fb_plan_unscreen(&s->plan);
    /* Types, widths and the device decide, too. */
    if (options.step && !s->backend->lists(s->engine)) {
        s->plan.applied &= ~FB_FUSE_BIT(FB_FUSE_STEP);
        s->plan.calls[FB_FUSE_STEP] = 0;
    }
    return FB_OK;
}

static fb_status start(fb_session *s, fb_error *err) {
    FB_TRY(fb_backend_find(&s->options, &s->backend, &s->device, err));
    FB_TRY(check_options(&s->options, err));
    int64_t chunk = s->backend == &fb_backend_cpu ? DEFAULT_CHUNK : DEFAULT_CHUNK_GPU;
    FB_TRY(fb_cache_settle(&s->model->spec->program, &s->options, chunk, &s->ring, err));
    FB_TRY(fb_dtype_parse_kv(s->options.kv, s->options.act, &s->kv, err));
    FB_TRY(make_plan(s, err));
    FB_TRY(open_engine(s, NULL, err));
    /* The caller's words have been understood, and may go. */
    s->options.isa = s->options.isa ? fb_session_isa(s) : NULL;
    s->options.fuse = s->options.kv = s->options.machine = s->options.backend = NULL;
    return FB_OK;
}

fb_status fb_session_create(const fb_model *model, const fb_session_options *options, fb_session **out,
                            fb_error *err) {
    *out = NULL;
    fb_session *s = calloc(1, sizeof *s);
    if (!s) return fb_fail_memory(err, "session", sizeof *s);
    s->model = model;
    fb_status status = fb_session_options_take(options, &s->options, err);
    if (status == FB_OK) status = start(s, err);
    if (status != FB_OK) {
        fb_session_free(s);
        return status;
    }
    *out = s;
    return FB_OK;
}

fb_status fb_session_fork(const fb_session *from, fb_session **out, fb_error *err) {
    *out = NULL;
    if (from->broken)
        return fb_fail(err, FB_ERROR_USAGE, "session: a step was stopped (reset the session first)");
    fb_session *s = malloc(sizeof *s);
    if (!s) return fb_fail_memory(err, "session", sizeof *s);
    *s = *from;
    atomic_init(&s->cancelled, false);
    s->engine = NULL;
    s->logits = NULL;
    s->logits_capacity = 0;
    fb_status status = reserve_logits(s, from->logits_rows, err);
    if (status == FB_OK) status = open_engine(s, from->engine, err);
    if (status != FB_OK) {
        fb_session_free(s);
        return status;
    }
    if (from->logits_rows)
        memcpy(s->logits, from->logits,
               (size_t)(from->logits_rows * s->model->spec->program.vocab) * sizeof *s->logits);
    *out = s;
    return FB_OK;
}

void fb_session_free(fb_session *s) {
    if (!s) return;
    if (s->engine) s->backend->close(s->engine);
    free(s->logits);
    free(s);
}

static fb_status check_tokens(const fb_session *s, const int32_t *ids, int64_t count, fb_error *err) {
    int64_t vocab = s->model->spec->program.vocab, most = s->ring.window ? MAX_POSITION : s->options.capacity;
    int64_t room = most - s->position;
    if (s->broken)
        return fb_fail(err, FB_ERROR_USAGE, "session: a step was stopped (reset the session first)");
    if (count < 1) return fb_fail(err, FB_ERROR_USAGE, "tokens: %lld (at least 1)", (long long)count);
    if (count > room)
        return fb_fail(err, FB_ERROR_USAGE, "tokens: %lld (the session has room for %lld more of %lld)",
                       (long long)count, (long long)room, (long long)most);
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

/* One step of `rows` tokens, whose last `wanted` give logits at `logits`. */
static fb_status run_step(fb_session *s, const int32_t *ids, int64_t rows, int64_t wanted, float *logits,
                          fb_error *err) {
    if (atomic_exchange(&s->cancelled, false))
        return fb_fail(err, FB_ERROR_STOPPED, "session: cancelled after %lld tokens", (long long)s->position);
    fb_step step = {.ids = ids,
                    .rows = rows,
                    .position = s->position,
                    .epilogue_rows = wanted,
                    .logits = logits,
                    .best = &s->best,
                    .on_hidden = s->options.on_hidden ? forward_hidden : NULL,
                    .user = s};
    s->step_position = s->position;
    if (s->position + rows > s->furthest) s->furthest = s->position + rows;
    fb_status status = s->backend->run(s->engine, &step, err);
    /* Without memory nothing has begun, or what has will be written again. */
    s->broken = status != FB_OK && status != FB_ERROR_MEMORY;
    if (status == FB_OK) s->position += rows;
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
        FB_TRY(run_step(s, ids + done, rows, wanted, s->logits + (all ? done * vocab : 0), err));
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
    FB_TRY(run_step(s, &id, 1, 1, s->logits, err));
    s->logits_rows = 1;
    return FB_OK;
}

fb_status fb_session_logits(fb_session *s, const float **logits, int64_t *rows, int64_t *vocab,
                            fb_error *err) {
    *logits = NULL;
    if (rows) *rows = 0;
    if (vocab) *vocab = 0;
    if (!s->logits_rows)
        return fb_fail(err, FB_ERROR_USAGE,
                       "logits: no token since the session began or was trimmed (prefill first)");
    if (s->plan.program.logits == FB_NONE)
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
    if (s->plan.program.logits == FB_NONE) {
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
const char *fb_session_backend(const fb_session *s) { return s->backend->name; }
int32_t fb_session_threads(const fb_session *s) { return s->backend->threads(s->engine); }
const char *fb_session_isa(const fb_session *s) { return s->backend->variant(s->engine); }

void fb_session_cancel(fb_session *s) { atomic_store(&s->cancelled, true); }

void fb_session_reset(fb_session *s) {
    atomic_store(&s->cancelled, false);
    s->position = 0;
    s->furthest = 0;
    s->logits_rows = 0;
    s->broken = false;
}

FB_SIZED_ENDS_WITH(fb_cache_info, trimmable);

/* However often it went back before. */
static int64_t trimmable(const fb_session *s) {
    return s->broken ? 0 : s->position - (s->furthest - fb_cache_trimmable(&s->ring, s->furthest));
}

fb_status fb_session_trim(fb_session *s, int64_t count, fb_error *err) {
    int64_t back = trimmable(s);
    if (s->broken)
        return fb_fail(err, FB_ERROR_USAGE, "session: a step was stopped (reset the session first)");
    if (count < 0 || count > s->position)
        return fb_fail(err, FB_ERROR_USAGE, "trim: to %lld tokens (0 to %lld, which there are)",
                       (long long)count, (long long)s->position);
    if (count < s->position - back)
        return fb_fail(err, FB_ERROR_USAGE,
                       "trim: to %lld tokens (%lld to %lld: what the next one would see is forgotten)",
                       (long long)count, (long long)(s->position - back), (long long)s->position);
    s->position = count;
    s->logits_rows = 0;
    return FB_OK;
}

void fb_session_fill_cache(const fb_session *s, fb_cache_info *out) {
    const fb_program *p = &s->plan.program;
    int64_t slots = (s->options.capacity + FB_KV_LANES - 1) / FB_KV_LANES * FB_KV_LANES;
    int64_t reach = s->ring.sinks + s->ring.window;
    fb_cache_info info;
    memset(&info, 0, sizeof info); /* padding, too: it goes to the caller */
    info.kind = s->options.cache;
    info.sinks = s->ring.sinks;
    info.window = s->ring.window;
    info.slots = slots;
    info.bytes = 2 * p->layers * p->kv_heads * slots * p->head_dim * fb_dtype_size(s->kv);
    info.held = s->ring.window && s->position > reach ? reach : s->position;
    info.trimmable = trimmable(s);
    fb_sized_give(&info, sizeof info, out);
}

bool fb_session_op_calls(const fb_session *s, int index, const char **name, int64_t *calls) {
    if (index < 0 || index >= FB_OP_COUNT) return false;
    *name = fb_op_table[index].name;
    *calls = s->backend->trace(s->engine)->ops[index];
    return true;
}

bool fb_session_fuse_calls(const fb_session *s, int index, const char **name, int64_t *calls, int64_t *a_step,
                           int64_t *a_head) {
    if (index < 0 || index >= FB_FUSE_COUNT) return false;
    *name = fb_fuse_table[index].name;
    const fb_trace *trace = s->backend->trace(s->engine);
    *calls = index == FB_FUSE_GRAPH  ? trace->graphs
             : index == FB_FUSE_STEP ? trace->listed
                                     : trace->fuses[index];
    *a_step = s->plan.calls[index];
    *a_head = s->plan.head_calls[index];
    return true;
}

int64_t fb_session_barriers(const fb_session *s) { return s->backend->trace(s->engine)->barriers; }

fb_status fb_session_plan_text(const fb_session *s, char **text, fb_error *err) {
    return fb_program_print(&s->plan.program, fb_fuse_name, text, err);
}
