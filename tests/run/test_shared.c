/* What sessions share: threads, weights, executors; and that they take turns. */
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "run/session.h"
#include "support/support.h"

enum { SESSIONS = 8, PROMPT = 7, STEPS = 24 };

static fb_session *create(const fb_model *model, int32_t threads, const char *fuse) {
    fb_session_options o;
    fb_session *session;
    fb_error err;
    fb_session_options_default(&o);
    o.backend = "cpu";
    o.threads = threads;
    o.fuse = fuse;
    o.capacity = PROMPT + STEPS;
    assert_ok(fb_session_create(model, &o, &session, &err), &err);
    return session;
}

static int threads_of_process(void) {
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;
    assert_non_null(tasks);
    for (struct dirent *entry; (entry = readdir(tasks));) count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

static int32_t id_at(int64_t position) { return (int32_t)((position * 37 + 11) % 300); }

static void write_some(fb_session *session, float *logits, int64_t vocab) {
    int32_t ids[PROMPT];
    fb_error err;
    for (int i = 0; i < PROMPT; i++) ids[i] = id_at(i);
    assert_ok(fb_session_prefill(session, ids, PROMPT, &err), &err);
    for (int i = 0; i < STEPS; i++) {
        const float *row;
        assert_ok(fb_session_decode(session, id_at(PROMPT + i), &err), &err);
        assert_ok(fb_session_logits(session, &row, NULL, NULL, &err), &err);
        memcpy(logits + i * vocab, row, (size_t)vocab * sizeof *row);
    }
}

static void *do_nothing(void *arg) { return arg; }

/* However many sessions there are, the process has as many threads as the largest number asked for. */
static void one_pool(void **state) {
    (void)state;
    fb_model *a = fbt_golden_open("neox-parallel"), *b = fbt_golden_open("llama-gqa-tied");
    pthread_t thread; /* a sanitizer starts one of its own with the first */
    assert_int_equal(pthread_create(&thread, NULL, do_nothing, NULL), 0);
    pthread_join(thread, NULL);
    int before = threads_of_process();
    fb_session *sessions[SESSIONS];
    for (int i = 0; i < SESSIONS; i++) sessions[i] = create(i % 2 ? a : b, 1 + i % 3, i % 4 ? "all" : "none");
    assert_int_equal(threads_of_process() - before, 2); /* three, one of them the caller's */
    fb_session *fork;
    fb_error err;
    assert_ok(fb_session_fork(sessions[2], &fork, &err), &err);
    assert_int_equal(threads_of_process() - before, 2);
    fb_session_free(fork);
    for (int i = 0; i < SESSIONS; i++) fb_session_free(sessions[i]);
    fb_model_free(a);
    fb_model_free(b);
    assert_int_equal(threads_of_process(), before);
}

/* Equal options share an executor, others do not; a free one is closed. */
static void executors(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("neox-parallel");
    fb_session *first = create(model, 2, "all"), *same = create(model, 2, "all"),
               *other = create(model, 2, "none"), *fork;
    fb_error err;
    assert_ok(fb_session_fork(first, &fork, &err), &err);
    assert_ptr_equal(fb_session_execution(first), fb_session_execution(same));
    assert_ptr_equal(fb_session_execution(first), fb_session_execution(fork));
    assert_ptr_not_equal(fb_session_execution(first), fb_session_execution(other));
    assert_ptr_equal(fb_session_execution(first)->weights, fb_session_execution(other)->weights);
    fb_session_free(first); /* the others go on */
    float logits[2][STEPS * 512];
    fb_model_info info;
    fb_model_get_info(model, &info);
    assert_true(info.vocab <= 512);
    write_some(same, logits[0], info.vocab);
    write_some(fork, logits[1], info.vocab);
    assert_memory_equal(logits[0], logits[1], sizeof(float) * (size_t)(STEPS * info.vocab));
    fb_session_free(same);
    fb_session_free(fork);
    fb_session_free(other);
    fb_model_free(model);
}

/* A session counts its own steps, whatever else runs on its executor. */
static void counters(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("neox-parallel");
    fb_session *a = create(model, 2, "all"), *b = create(model, 2, "all");
    float logits[STEPS * 512];
    fb_model_info info;
    fb_model_get_info(model, &info);
    write_some(a, logits, info.vocab);
    assert_int_equal(fb_session_trace(a)->steps, 1 + STEPS);
    assert_int_equal(fb_session_trace(b)->steps, 0);
    assert_int_equal(fb_session_barriers(b), 0);
    fb_session_free(a);
    fb_session_free(b);
    fb_model_free(model);
}

/* ---- many threads ---- */

typedef struct stream {
    fb_session *session;
    float *logits;
    int64_t vocab;
    atomic_int *finished;
    int others_done; /* streams that had finished when this one did */
} stream;

static void *run_stream(void *arg) {
    stream *s = arg;
    for (int round = 0; round < 20; round++) {
        fb_session_reset(s->session);
        write_some(s->session, s->logits, s->vocab);
    }
    s->others_done = atomic_fetch_add(s->finished, 1);
    return NULL;
}

static void many_at_once(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("llama-gqa-tied");
    fb_model_info info;
    fb_model_get_info(model, &info);
    size_t bytes = (size_t)(STEPS * info.vocab) * sizeof(float);
    fb_session *alone = create(model, 2, "all");
    float *want = malloc(bytes);
    write_some(alone, want, info.vocab);
    stream streams[SESSIONS];
    pthread_t threads[SESSIONS];
    atomic_int finished = 0;
    for (int i = 0; i < SESSIONS; i++) {
        streams[i] = (stream){create(model, 1 + i % 3, "all"), malloc(bytes), info.vocab, &finished, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, run_stream, &streams[i]), 0);
    }
    for (int i = 0; i < SESSIONS; i++) {
        pthread_join(threads[i], NULL);
        assert_memory_equal(streams[i].logits, want, bytes);
        fb_session_free(streams[i].session);
        free(streams[i].logits);
    }
    assert_int_equal(finished, SESSIONS);
    fb_session_free(alone);
    free(want);
    fb_model_free(model);
}

/* The first sessions of a model, created at once: the weights are loaded and the executor opened once. */
static void *create_one(void *arg) {
    stream *s = arg;
    s->session = create((const fb_model *)(void *)s->logits, 2, "all");
    return NULL;
}

static void first_at_once(void **state) {
    (void)state;
    for (int round = 0; round < 5; round++) {
        fb_model *model = fbt_golden_open("neox-parallel");
        stream streams[SESSIONS];
        pthread_t threads[SESSIONS];
        for (int i = 0; i < SESSIONS; i++) {
            streams[i] = (stream){.logits = (float *)(void *)model};
            assert_int_equal(pthread_create(&threads[i], NULL, create_one, &streams[i]), 0);
        }
        for (int i = 0; i < SESSIONS; i++) pthread_join(threads[i], NULL);
        for (int i = 1; i < SESSIONS; i++)
            assert_ptr_equal(fb_session_execution(streams[i].session),
                             fb_session_execution(streams[0].session));
        for (int i = 0; i < SESSIONS; i++) fb_session_free(streams[i].session);
        fb_model_free(model);
    }
}

/* Another session is created in much less than a step: 20 us where nothing else runs. */
static void second_session(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("neox-parallel");
    fb_session *first = create(model, 2, "auto");
    double best = 1;
    for (int i = 0; i < 20; i++) {
        double began = fb_now();
        fb_session *second = create(model, 2, "auto");
        double took = fb_now() - began;
        if (took < best) best = took;
        fb_session_free(second);
    }
    print_message("# a second session: %.1f us\n", 1e6 * best);
    assert_true(best < 2e-3);
    fb_session_free(first);
    fb_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_pool),     cmocka_unit_test(executors),     cmocka_unit_test(counters),
        cmocka_unit_test(many_at_once), cmocka_unit_test(first_at_once), cmocka_unit_test(second_session),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
