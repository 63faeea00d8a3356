/* A session is cancelled: what was running stops, what is done stays, and it goes on from there. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "support/support.h"

enum { PROMPT = 40, CHUNK = 8 };

typedef struct fixture {
    fb_model *model;
    fb_session *session;
    int32_t ids[PROMPT];
    int64_t cancel_after; /* tokens of a prefill, in its callback */
} fixture;

static bool on_progress(void *user, int64_t done, int64_t total) {
    fixture *f = user;
    (void)total;
    if (done == f->cancel_after) fb_session_cancel(f->session);
    return true;
}

static void begin(fixture *f) {
    fb_session_options options;
    fb_error err;
    *f = (fixture){0};
    assert_ok(fb_model_open(FBT_GOLDENS "/neox-parallel", &f->model, &err), &err);
    fb_session_options_default(&options);
    options.threads = 2;
    options.chunk = CHUNK;
    options.on_progress = on_progress;
    options.user = f;
    assert_ok(fb_session_create(f->model, &options, &f->session, &err), &err);
    for (int i = 0; i < PROMPT; i++) f->ids[i] = i * 7 % 300;
}

static void end(fixture *f) {
    fb_session_free(f->session);
    fb_model_free(f->model);
}

static int32_t best_of(fb_session *session) {
    fb_error err;
    int32_t id;
    assert_ok(fb_session_best(session, &id, &err), &err);
    return id;
}

static void prefill_keeps_its_chunks(void **state) {
    (void)state;
    fixture f;
    fb_error err;
    begin(&f);
    assert_ok(fb_session_prefill(f.session, f.ids, PROMPT, &err), &err);
    int32_t best = best_of(f.session);
    fb_session_reset(f.session);
    f.cancel_after = 2 * CHUNK;
    assert_refused(fb_session_prefill(f.session, f.ids, PROMPT, &err), FB_ERROR_STOPPED, &err,
                   "cancelled|16");
    assert_int_equal(fb_session_position(f.session), 2 * CHUNK);
    int32_t id;
    assert_int_equal(fb_session_best(f.session, &id, NULL), FB_ERROR_USAGE);
    f.cancel_after = 0;
    assert_ok(fb_session_prefill(f.session, f.ids + 2 * CHUNK, PROMPT - 2 * CHUNK, &err), &err);
    assert_int_equal(best_of(f.session), best);
    end(&f);
}

static void next_call_is_stopped_once(void **state) {
    (void)state;
    fixture f;
    fb_error err;
    begin(&f);
    assert_ok(fb_session_prefill(f.session, f.ids, CHUNK, &err), &err);
    fb_session_cancel(f.session);
    fb_session_cancel(f.session);
    assert_refused(fb_session_decode(f.session, 1, &err), FB_ERROR_STOPPED, &err, "cancelled|8");
    assert_int_equal(fb_session_position(f.session), CHUNK);
    assert_ok(fb_session_decode(f.session, 1, &err), &err);
    fb_session_cancel(f.session); /* taken back by a reset, and not inherited */
    fb_session *fork;
    assert_ok(fb_session_fork(f.session, &fork, &err), &err);
    assert_ok(fb_session_decode(fork, 1, &err), &err);
    fb_session_free(fork);
    fb_session_reset(f.session);
    assert_ok(fb_session_decode(f.session, 1, &err), &err);
    end(&f);
}

static void *cancel(void *session) {
    fb_session_cancel(session);
    return NULL;
}

static void another_thread_may_cancel(void **state) {
    (void)state;
    fixture f;
    fb_error err;
    pthread_t thread;
    fb_status status = FB_OK;
    begin(&f);
    assert_int_equal(pthread_create(&thread, NULL, cancel, f.session), 0);
    while (status == FB_OK) {
        if (fb_session_position(f.session) == 128) fb_session_trim(f.session, 0, NULL);
        status = fb_session_decode(f.session, 1, &err);
    }
    pthread_join(thread, NULL);
    assert_refused(status, FB_ERROR_STOPPED, &err, "cancelled");
    end(&f);
}

/* ---- inside an op: with the slow kernels one takes seconds ---- */

typedef struct late {
    fb_session *session;
    double at;     /* when it was cancelled */
    int64_t shown; /* hidden states */
    bool numbers;  /* all of them */
} late;

static void *cancel_late(void *arg) {
    late *l = arg;
    usleep(100000);
    l->at = fb_now();
    fb_session_cancel(l->session);
    return NULL;
}

static bool on_hidden(void *user, int64_t layer, int64_t position, const float *hidden, int64_t rows,
                      int64_t cols) {
    late *l = user;
    (void)layer;
    (void)position;
    l->shown++;
    for (int64_t i = 0; i < rows * cols; i++) l->numbers = l->numbers && isfinite(hidden[i]);
    return true;
}

static void stops_soon(const fb_model *model, const char *isa, const char *fuse) {
    enum { TOKENS = 480, AFTER = 3 };
    static int32_t ids[TOKENS];
    fb_session_options options;
    fb_error err;
    pthread_t thread;
    late l = {.numbers = true};
    for (int i = 0; i < TOKENS; i++) ids[i] = i * 7 % 300;
    fb_session_options_default(&options);
    options.backend = "cpu";
    options.isa = isa;
    options.fuse = fuse;
    options.threads = 1;
    options.on_hidden = on_hidden;
    options.user = &l;
    assert_ok(fb_session_create(model, &options, &l.session, &err), &err);
    assert_int_equal(pthread_create(&thread, NULL, cancel_late, &l), 0);
    fb_status status = FB_OK;
    while (status == FB_OK) { /* fast kernels may be through with the first */
        fb_session_trim(l.session, 0, NULL);
        status = fb_session_prefill(l.session, ids, TOKENS, &err);
    }
    double took = fb_now();
    pthread_join(thread, NULL);
    assert_refused(status, FB_ERROR_STOPPED, &err, "cancelled");
    double limit = FBT_SANITIZED ? 5 : 0.5;
    if (took - l.at > limit)
        fail_msg("%s, %s: stopped after %.2f s (at most %.1f)", isa, fuse, took - l.at, limit);
    assert_true(l.numbers);
    /* And then it gives what a new one gives. */
    fb_session *other;
    const float *have, *want;
    int64_t rows, vocab;
    assert_ok(fb_session_create(model, &options, &other, &err), &err);
    fb_session_trim(l.session, 0, NULL);
    assert_ok(fb_session_prefill(l.session, ids, AFTER, &err), &err);
    assert_ok(fb_session_prefill(other, ids, AFTER, &err), &err);
    assert_ok(fb_session_logits(l.session, &have, &rows, &vocab, &err), &err);
    assert_ok(fb_session_logits(other, &want, &rows, &vocab, &err), &err);
    assert_memory_equal(have, want, (size_t)(rows * vocab) * sizeof *have);
    fb_session_free(other);
    fb_session_free(l.session);
}

static void every_isa_stops_soon(void **state) {
    (void)state;
    fb_model *model;
    fb_error err;
    assert_ok(fb_model_open(FBT_STORYTELLER, &model, &err), &err);
    stops_soon(model, "ref", "none");
    stops_soon(model, "ref", "all");
    stops_soon(model, "portable", "none");
    stops_soon(model, NULL, "all");
    fb_model_free(model);
}

/* ---- before a barrier inside an op: workers prepare quantised inputs together ---- */

static void *cancel_at(void *arg) {
    late *l = arg;
    while (fb_now() < l->at) continue;
    fb_session_cancel(l->session);
    return NULL;
}

static void none_waits_for_a_cancelled_worker(void **state) {
    (void)state;
    enum { TOKENS = 64, ROUNDS = 60 };
    fb_model *model = fbt_model_open("tests/data/gguf/neox-parallel-q8_0.gguf");
    fb_session_options options;
    fb_error err;
    late l = {0};
    int32_t ids[TOKENS], stopped = 0;
    for (int i = 0; i < TOKENS; i++) ids[i] = i * 7 % 300;
    fb_session_options_default(&options);
    options.backend = "cpu";
    options.fuse = "all";
    options.threads = 3;
    assert_ok(fb_session_create(model, &options, &l.session, &err), &err);
    double took = fb_now();
    assert_ok(fb_session_prefill(l.session, ids, TOKENS, &err), &err);
    took = fb_now() - took;
    int32_t best = best_of(l.session);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t thread;
        fb_session_reset(l.session);
        l.at = fb_now() + took * round / ROUNDS;
        assert_int_equal(pthread_create(&thread, NULL, cancel_at, &l), 0);
        fb_status status = fb_session_prefill(l.session, ids, TOKENS, &err);
        pthread_join(thread, NULL);
        if (status != FB_OK) assert_refused(status, FB_ERROR_STOPPED, &err, "cancelled");
        stopped += status != FB_OK;
    }
    assert_true(stopped > 0);
    fb_session_reset(l.session);
    assert_ok(fb_session_prefill(l.session, ids, TOKENS, &err), &err);
    assert_int_equal(best_of(l.session), best);
    fb_session_free(l.session);
    fb_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefill_keeps_its_chunks), cmocka_unit_test(next_call_is_stopped_once),
        cmocka_unit_test(another_thread_may_cancel), cmocka_unit_test(none_waits_for_a_cancelled_worker),
        cmocka_unit_test(every_isa_stops_soon)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
