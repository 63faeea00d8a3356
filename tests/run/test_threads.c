/* Models are shared by threads, and sessions are not. Whatever other threads do meanwhile, each gets the bits
 * that it gets alone. ThreadSanitizer runs this program, too (make test-tsan). */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/script.h"
#include "support/support.h"

enum { THREADS = 8, STEPS = 3 };

/* NULL, the best instruction set, where this machine does not have the one that is asked for. */
static const char *isa_here(const fb_model *model, const char *isa) {
    fb_session_options o;
    fb_session *s;
    fb_session_options_default(&o);
    o.backend = "cpu";
    o.threads = 1;
    o.isa = isa;
    if (fb_session_create(model, &o, &s, NULL) != FB_OK) return NULL;
    fb_session_free(s);
    return isa;
}

typedef struct way {
    int32_t threads;
    fb_dtype act;
    const char *fuse, *isa;
    bool greedy;
    fb_cache_kind cache;
} way;

static const way ways[THREADS] = {
    {1, FB_F32, "none", NULL, false, FB_CACHE_DENSE},
    {2, FB_F16, "all", NULL, true, FB_CACHE_DENSE},
    {3, FB_BF16, "auto", NULL, false, FB_CACHE_SINKS},
    {2, FB_F32, "all", "portable", false, FB_CACHE_SINKS},
    {1, FB_F16, "auto", "avx2", true, FB_CACHE_SINKS},
    {3, FB_F32, "all", "avx2", false, FB_CACHE_DENSE},
    {2, FB_BF16, "none", "portable", true, FB_CACHE_DENSE},
    {1, FB_F32, "all", NULL, true, FB_CACHE_WINDOW},
};

/* Job number i is the way of the same number, on models[i % count]. */
static void make_jobs(fb_model *const *models, int count, fbt_job *jobs) {
    for (int i = 0; i < THREADS; i++) {
        const way *w = &ways[i];
        jobs[i] = (fbt_job){.run = fbt_job_script, .model = models[i % count], .steps = STEPS};
        fb_session_options *o = &jobs[i].options;
        fb_session_options_default(o);
        o->backend = "cpu";
        o->threads = w->threads;
        o->act = w->act;
        o->fuse = w->fuse;
        o->isa = isa_here(models[0], w->isa);
        o->greedy = w->greedy;
        o->cache = w->cache;
        o->chunk = 4;
        if (w->cache != FB_CACHE_DENSE) o->window = 8;
    }
}

/* Each thread's script alone, then all of them at once, `rounds` times. */
static void compare(fb_model *const *models, int count, int rounds) {
    fbt_job alone[THREADS], together[THREADS];
    make_jobs(models, count, alone);
    make_jobs(models, count, together);
    fbt_jobs_in_turn(alone, THREADS);
    for (int round = 0; round < rounds; round++) {
        fbt_jobs_at_once(together, THREADS);
        for (int i = 0; i < THREADS; i++) {
            char *what = fbt_format("round %d, thread %d", round, i);
            fbt_jobs_same(&together[i], &alone[i], what);
            free(what);
        }
    }
    fbt_jobs_free(alone, THREADS);
    fbt_jobs_free(together, THREADS);
}

static void one_model(void **state) {
    (void)state;
    static const char *const names[] = {"neox-parallel", "llama-gqa-tied"};
    for (int i = 0; i < 2; i++) {
        fb_model *model = fbt_golden_open(names[i]);
        compare(&model, 1, 30);
        fb_model_free(model);
    }
}

/* One of them quantised: sessions of both read their own weights. */
static void two_models(void **state) {
    (void)state;
    fb_model *models[2] = {fbt_golden_open("llama-mha"),
                           fbt_model_open("tests/data/gguf/neox-parallel-q8_0.gguf")};
    compare(models, 2, 30);
    for (int i = 0; i < 2; i++) fb_model_free(models[i]);
}

/* ---- the head's screen is filled by the first greedy session ---- */

static bool has_screen(const fb_session *s) {
    const char *name;
    int64_t calls, a_step, a_head;
    for (int i = 0; fb_session_fuse_calls(s, i, &name, &calls, &a_step, &a_head); i++)
        if (strcmp(name, "head_screen") == 0) return a_step > 0;
    return false;
}

static fb_status run_screened(fbt_job *job) {
    fb_session *s;
    FB_TRY(fb_session_create(job->model, &job->options, &s, &job->err));
    fb_status status = has_screen(s)
                           ? fbt_script_decode(s, job->id, true, 2 * STEPS, &job->seen, &job->err)
                           : fb_fail(&job->err, FB_ERROR_SYSTEM, "a greedy session without a screen");
    fb_session_free(s);
    return status;
}

static void first_greedy_sessions(void **state) {
    (void)state;
    fbt_job alone[THREADS], together[THREADS];
    for (int round = 0; round < 100; round++) {
        fb_model *model = fbt_golden_open("neox-parallel");
        for (int i = 0; i < THREADS; i++) {
            fbt_job job = {.run = run_screened, .model = model, .id = 10 + i};
            fb_session_options_default(&job.options);
            job.options.backend = "cpu";
            job.options.threads = 1 + i % 3;
            job.options.fuse = "all";
            job.options.greedy = true;
            if (round) job.seen = together[i].seen;
            together[i] = job;
        }
        fbt_jobs_at_once(together, THREADS);
        if (round == 0) {
            memcpy(alone, together, sizeof alone);
            for (int i = 0; i < THREADS; i++) alone[i].seen = (fbt_seen){0};
            fbt_jobs_in_turn(alone, THREADS);
        }
        for (int i = 0; i < THREADS; i++) fbt_jobs_same(&together[i], &alone[i], "greedy");
        fb_model_free(model);
    }
    fbt_jobs_free(alone, THREADS);
    fbt_jobs_free(together, THREADS);
}

/* ---- forks share a cache until one of them writes ---- */

static fb_status run_fork(fbt_job *job) {
    fb_status status =
        fbt_script_decode(job->session, job->id, job->options.greedy, STEPS, &job->seen, &job->err);
    fb_session_free(job->session);
    return status;
}

/* A session and its forks, which see the same tokens. */
static void make_forks(const fb_model *model, int32_t threads, fbt_job *jobs) {
    static const int32_t ids[] = {9, 8, 7, 6, 5, 4, 3};
    fb_error err;
    for (int i = 0; i < THREADS; i++) {
        fbt_seen seen = jobs[i].seen;
        jobs[i] = (fbt_job){.run = run_fork, .model = model, .id = 20 + i, .seen = seen};
        if (i) {
            assert_ok(fb_session_fork(jobs[i / 2].session, &jobs[i].session, &err), &err);
            continue;
        }
        fb_session_options o;
        fb_session_options_default(&o);
        o.backend = "cpu";
        o.threads = threads;
        assert_ok(fb_session_create(model, &o, &jobs[0].session, &err), &err);
        assert_ok(fb_session_prefill(jobs[0].session, ids, 7, &err), &err);
    }
}

static void forks_in_other_threads(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("llama-gqa-tied");
    for (int32_t threads = 1; threads <= 2; threads++) {
        fbt_job alone[THREADS] = {0}, together[THREADS] = {0};
        make_forks(model, threads, alone);
        fbt_jobs_in_turn(alone, THREADS);
        for (int round = 0; round < 100; round++) {
            make_forks(model, threads, together);
            fbt_jobs_at_once(together, THREADS);
            for (int i = 0; i < THREADS; i++) fbt_jobs_same(&together[i], &alone[i], "a fork");
        }
        fbt_jobs_free(alone, THREADS);
        fbt_jobs_free(together, THREADS);
    }
    fb_model_free(model);
}

/* ---- text: one tokenizer for all ---- */

static fb_status run_text(fbt_job *job) {
    static const char text[] = "Once upon a time, there was a little girl named Lily. “Naïve” café №42!\n\n";
    int32_t *ids;
    int64_t count;
    char *back;
    size_t bytes;
    for (int i = 0; i < 20; i++) {
        size_t from = (size_t)((job->id + 7 * i) % 24);
        FB_TRY(fb_tokenize(job->model, text + from, sizeof text - 1 - from, false, &ids, &count, &job->err));
        fb_status status = fb_detokenize(job->model, ids, count, true, &back, &bytes, &job->err);
        if (status == FB_OK) {
            if (bytes != sizeof text - 1 - from || memcmp(back, text + from, bytes) != 0)
                status = fb_fail(&job->err, FB_ERROR_SYSTEM, "text: not what it was: %.100s", back);
            fb_free(back);
        }
        fb_free(ids);
        FB_TRY(status);
    }
    return FB_OK;
}

static void one_tokenizer(void **state) {
    (void)state;
    fb_model *model = fbt_model_open(FBT_STORYTELLER);
    for (int round = 0; round < 20; round++) {
        fbt_job jobs[THREADS];
        for (int i = 0; i < THREADS; i++) jobs[i] = (fbt_job){.run = run_text, .model = model, .id = i};
        fbt_jobs_at_once(jobs, THREADS);
    }
    fb_model_free(model);
}

/* ---- sessions that other threads cancel, again and again ---- */

enum { LONG = 60 };

typedef struct cancelling {
    fb_session *session;
    atomic_bool done;
} cancelling;

static void *cancel_often(void *arg) {
    cancelling *c = arg;
    for (int i = 0; i < 25 && !atomic_load(&c->done); i++) {
        fb_session_cancel(c->session);
        usleep(300);
    }
    return NULL;
}

/* Goes on from wherever it was stopped: the last logits are those of a session that nobody stopped. */
static fb_status run_cancelled(fbt_job *job) {
    int32_t ids[LONG];
    for (int i = 0; i < LONG; i++) ids[i] = (i * 31 + job->id) % 300;
    cancelling c = {.done = false};
    FB_TRY(fb_session_create(job->model, &job->options, &c.session, &job->err));
    pthread_t thread;
    bool started = job->steps && pthread_create(&thread, NULL, cancel_often, &c) == 0;
    fb_status status = FB_ERROR_STOPPED;
    while (status == FB_ERROR_STOPPED) {
        int64_t at = fb_session_position(c.session);
        status = at < LONG - 5 ? fb_session_prefill(c.session, ids + at, LONG - 5 - at, &job->err)
                               : fb_session_decode(c.session, ids[at], &job->err);
        if (status == FB_OK && fb_session_position(c.session) < LONG) status = FB_ERROR_STOPPED; /* more */
    }
    atomic_store(&c.done, true);
    if (started) pthread_join(thread, NULL);
    const float *logits;
    int64_t vocab;
    if (status == FB_OK) status = fb_session_logits(c.session, &logits, NULL, &vocab, &job->err);
    if (status == FB_OK)
        status = fbt_seen_keep(&job->seen, logits, (size_t)vocab * sizeof *logits, &job->err);
    fb_session_free(c.session);
    return status;
}

static void cancelled_sessions(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("llama-gqa-tied");
    fbt_job alone[THREADS] = {0}, together[THREADS] = {0};
    for (int often = 0; often < 2; often++)
        for (int i = 0; i < THREADS; i++) {
            fbt_job *job = often ? &together[i] : &alone[i];
            *job = (fbt_job){.run = run_cancelled, .model = model, .id = i, .steps = often};
            fb_session_options_default(&job->options);
            job->options.backend = "cpu";
            job->options.threads = 1 + i % 3;
            job->options.chunk = 5 + i;
            if (i % 2) {
                job->options.cache = FB_CACHE_SINKS;
                job->options.window = 16;
            }
        }
    fbt_jobs_in_turn(alone, THREADS);
    fbt_jobs_at_once(together, THREADS);
    for (int i = 0; i < THREADS; i++) fbt_jobs_same(&together[i], &alone[i], "cancelled");
    fbt_jobs_free(alone, THREADS);
    fbt_jobs_free(together, THREADS);
    fb_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_model),
        cmocka_unit_test(two_models),
        cmocka_unit_test(first_greedy_sessions),
        cmocka_unit_test(forks_in_other_threads),
        cmocka_unit_test(one_tokenizer),
        cmocka_unit_test(cancelled_sessions),
    };
    return cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}
