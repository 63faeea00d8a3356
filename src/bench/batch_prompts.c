/* What a prompt costs: its first token if its beginning is cached, and an answer that is written while it is
 * read. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/stats.h"
#include "bench/bench.h"
#include "fusebox_batch.h"
#include "model/model.h"

/* ---- the first token of a prompt ---- */

#define LEAST_BLOCKS 10 /* fewer cannot be cached to 90% */
#define MOST_REPS    9
#define LEAST_REPS   3
#define ENOUGH       2.0 /* seconds, for more repetitions than the least */

typedef struct first {
    double at;     /* when it came */
    float *logits; /* [vocab] */
    int64_t vocab, cached;
} first;

static bool on_first(void *user, const fb_answer *answer) {
    first *f = user;
    if (!answer->logits) return true;
    f->at = fb_now();
    f->cached = answer->cached;
    memcpy(f->logits, answer->logits, (size_t)f->vocab * sizeof *f->logits);
    return true;
}

static fb_status time_first(fb_scheduler *s, const int32_t *ids, int64_t count, first *out, double *seconds,
                            fb_error *err) {
    fb_request_options o;
    bool busy = true;
    fb_request_options_default(&o);
    o.prompt = ids;
    o.prompt_count = count;
    o.max_tokens = 1;
    o.past_end = true;
    o.wants_logits = 1;
    o.on_answer = on_first;
    o.user = out;
    double began = fb_now();
    FB_TRY(fb_scheduler_submit(s, &o, NULL, err));
    while (busy) FB_TRY(fb_scheduler_step(s, &busy, err));
    *seconds = out->at - began;
    return FB_OK;
}

/* A scheduler of one request, without and with a prefix cache. */
typedef struct side {
    fb_scheduler *scheduler;
    first answer;
    double seconds[MOST_REPS];
} side;

static fb_status open_side(const fb_model *model, const fb_session_options *session, int32_t prefix_cache,
                           side *out, fb_error *err) {
    fb_scheduler_options o;
    fb_scheduler_options_default(&o);
    o.sequences = 1;
    o.prefix_cache = prefix_cache;
    o.cache_tokens = 2 * (session->capacity + o.block);
    out->answer.vocab = model->spec->program.vocab;
    out->answer.logits = malloc((size_t)out->answer.vocab * sizeof(float));
    if (!out->answer.logits) return fb_fail_memory(err, "logits", out->answer.vocab * (int64_t)sizeof(float));
    return fb_scheduler_create(model, session, &o, &out->scheduler, err);
}

/* The first prompt warms both up, and fills the cache. Each one after it has another end. */
static fb_status time_sides(side *sides, int32_t *ids, int64_t shared, fb_bench_batch_report *r,
                            fb_error *err) {
    int64_t reps = 0, vocab = sides[0].answer.vocab;
    double began = fb_now(), ignored;
    r->cached_same = 1;
    for (int i = 0; i < 2; i++)
        FB_TRY(time_first(sides[i].scheduler, ids, r->prompt, &sides[i].answer, &ignored, err));
    for (; reps < MOST_REPS && (reps < LEAST_REPS || fb_now() - began < ENOUGH); reps++) {
        for (int64_t i = shared; i < r->prompt; i++) ids[i] = (int32_t)((ids[i] + 1) % vocab);
        for (int i = 0; i < 2; i++)
            FB_TRY(time_first(sides[i].scheduler, ids, r->prompt, &sides[i].answer, &sides[i].seconds[reps],
                              err));
        if (memcmp(sides[0].answer.logits, sides[1].answer.logits, (size_t)vocab * sizeof(float)) != 0)
            r->cached_same = 0;
    }
    r->cached_tokens = sides[1].answer.cached; /* 0: nothing of it was there */
    r->first = fb_stats_median(sides[0].seconds, reps);
    r->first_cached = fb_stats_median(sides[1].seconds, reps);
    return FB_OK;
}

fb_status fb_bench_batch_cached(const fb_model *model, const fb_session_options *session, int32_t *ids,
                                fb_bench_batch_report *r, fb_error *err) {
    fb_scheduler_options defaults;
    fb_scheduler_options_default(&defaults);
    int64_t blocks = r->prompt / defaults.block, shared = (blocks * 9 + 9) / 10 * defaults.block;
    if (blocks < LEAST_BLOCKS) return FB_OK;
    side sides[2] = {{.scheduler = NULL}};
    fb_status status = FB_OK;
    for (int i = 0; i < 2 && status == FB_OK; i++) status = open_side(model, session, i, &sides[i], err);
    if (status == FB_OK) status = time_sides(sides, ids, shared, r, err);
    for (int i = 0; i < 2; i++) {
        fb_scheduler_free(sides[i].scheduler);
        free(sides[i].answer.logits);
    }
    return status;
}

/* ---- an answer while a prompt is read ---- */

typedef struct stream {
    double last;  /* when its last token came */
    double *gaps; /* [room] */
    int64_t count, room;
    bool ended;
} stream;

static bool on_token(void *user, const fb_answer *answer) {
    stream *s = user;
    double now = fb_now();
    if (answer->finish != FB_FINISH_NONE) s->ended = true;
    if (answer->finish != FB_FINISH_NONE || answer->token < 0) return true;
    if (s->last > 0 && s->count < s->room) s->gaps[s->count++] = now - s->last;
    s->last = now;
    return true;
}

static bool on_arrival(void *user, const fb_answer *answer) {
    bool *ended = user;
    if (answer->finish != FB_FINISH_NONE) *ended = true;
    return true;
}

static fb_bench_gaps gaps_of(double *gaps, int64_t count) {
    fb_bench_gaps g = {.count = count};
    if (!count) return g;
    g.median = fb_stats_median(gaps, count);
    g.p99 = fb_stats_quantile(gaps, count, 0.99);
    g.most = gaps[count - 1]; /* they are sorted now */
    return g;
}

static fb_status submit(fb_scheduler *s, const int32_t *ids, int64_t count, int64_t tokens,
                        bool (*on_answer)(void *user, const fb_answer *answer), void *user, fb_error *err) {
    fb_request_options o;
    fb_request_options_default(&o);
    o.prompt = ids;
    o.prompt_count = count;
    o.max_tokens = tokens;
    o.past_end = true;
    o.on_answer = on_answer;
    o.user = user;
    return fb_scheduler_submit(s, &o, NULL, err);
}

/* The answer's first `gen` tokens, then those until the other prompt has its first token. */
static fb_status time_stream(fb_scheduler *s, const int32_t *ids, const int32_t *arriving, stream *answer,
                             fb_bench_batch_report *r, fb_error *err) {
    bool busy = true, arrived = false;
    FB_TRY(submit(s, ids, r->prompt, r->gen + r->arrival, on_token, answer, err));
    while (busy && answer->count < r->gen) FB_TRY(fb_scheduler_step(s, &busy, err));
    r->before = gaps_of(answer->gaps, answer->count);
    answer->count = 0;
    FB_TRY(submit(s, arriving, r->arrival, 1, on_arrival, &arrived, err));
    while (busy && !arrived && !answer->ended) FB_TRY(fb_scheduler_step(s, &busy, err));
    r->during = gaps_of(answer->gaps, answer->count);
    return FB_OK;
}

fb_status fb_bench_batch_arrival(const fb_model *model, const fb_session_options *given, const int32_t *ids,
                                 int64_t arrival, fb_bench_batch_report *r, fb_error *err) {
    fb_session_options session = *given;
    fb_scheduler_options o;
    fb_scheduler *s = NULL;
    stream answer = {.room = r->gen + arrival};
    int32_t *arriving = malloc((size_t)arrival * sizeof *arriving);
    answer.gaps = malloc((size_t)answer.room * sizeof *answer.gaps);
    fb_status status = arriving && answer.gaps
                           ? FB_OK
                           : fb_fail_memory(err, "arrival", answer.room * (int64_t)sizeof *answer.gaps);
    r->arrival = arrival;
    session.capacity = r->prompt + r->gen + arrival;
    fb_scheduler_options_default(&o);
    o.sequences = 2;
    o.prefix_cache = 0;
    o.cache_tokens = session.capacity + arrival + 2 * o.block;
    if (status == FB_OK) {
        fb_bench_ids(model, arriving, arrival);
        status = fb_scheduler_create(model, &session, &o, &s, err);
    }
    if (status == FB_OK) status = time_stream(s, ids, arriving, &answer, r, err);
    fb_scheduler_free(s);
    free(arriving);
    free(answer.gaps);
    return status;
}
