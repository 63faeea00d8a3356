#include "base/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/support.h"

enum { MOST = 9, PHASES = 20 };

typedef struct job {
    fb_pool *pool;
    int32_t workers;
    int64_t runs[MOST];  /* by worker: how often it was called */
    int64_t phase[MOST]; /* by worker: the phase that it is in */
    int64_t behind;      /* workers seen in another phase than the barrier promises */
} job;

/* Between two barriers every worker is in the same phase: it sees what the others wrote before the last
 * barrier. */
static void work(void *arg, int32_t worker) {
    job *j = arg;
    j->runs[worker]++;
    for (int64_t phase = 0; phase < PHASES; phase++) {
        j->phase[worker]++;
        fb_pool_barrier(j->pool);
        int64_t behind = 0;
        for (int32_t other = 0; other < j->workers; other++) behind += j->phase[other] != j->phase[worker];
        if (behind) __atomic_fetch_add(&j->behind, behind, __ATOMIC_RELAXED);
        fb_pool_barrier(j->pool);
    }
}

/* As many workers as cores and more. Runs follow each other directly, and after a pause in which the workers
 * fall asleep. */
static void workers_work_together(void **state) {
    (void)state;
    for (int32_t workers = 1; workers <= MOST; workers += workers < 4 ? 1 : 5) {
        job j = {.workers = workers};
        fb_error err;
        assert_ok(fb_pool_create(workers, &j.pool, &err), &err);
        assert_int_equal(fb_pool_workers(j.pool), workers);
        for (int64_t run = 1; run <= 40; run++) {
            if (run % 16 == 0) usleep(3000);
            fb_pool_run(j.pool, workers, work, &j);
            for (int32_t worker = 0; worker < MOST; worker++) {
                assert_int_equal(j.runs[worker], worker < workers ? run : 0);
                assert_int_equal(j.phase[worker], worker < workers ? run * PHASES : 0);
            }
        }
        assert_int_equal(j.behind, 0);
        fb_pool_free(j.pool);
    }
}

/* One pool, runs of different sizes; it grows in between. */
static void runs_of_fewer_workers(void **state) {
    (void)state;
    static const int32_t sizes[] = {1, 3, 2, 3, 1, 5, 2, 4, 5, 1};
    job j = {.workers = 1};
    fb_error err;
    int64_t runs[MOST] = {0};
    assert_ok(fb_pool_create(1, &j.pool, &err), &err);
    for (int round = 0; round < 60; round++) {
        int32_t workers = sizes[round % 10];
        assert_ok(fb_pool_grow(j.pool, workers, &err), &err);
        j.workers = workers;
        memset(j.phase, 0, sizeof j.phase);
        if (round % 16 == 15) usleep(3000);
        fb_pool_run(j.pool, workers, work, &j);
        for (int32_t worker = 0; worker < MOST; worker++)
            assert_int_equal(j.runs[worker], runs[worker] += worker < workers);
    }
    assert_int_equal(fb_pool_workers(j.pool), 5);
    assert_int_equal(j.behind, 0);
    fb_pool_free(j.pool);
}

/* A child has none of its parent's threads, and starts its own. */
static void after_a_fork(void **state) {
    (void)state;
    job j = {.workers = 3};
    fb_error err;
    assert_ok(fb_pool_create(3, &j.pool, &err), &err);
    fb_pool_run(j.pool, 3, work, &j);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(20);
        bool ok = fb_pool_grow(j.pool, 3, &err) == FB_OK;
        for (int i = 0; ok && i < 5; i++) fb_pool_run(j.pool, 3, work, &j);
        fb_pool_free(j.pool);
        _exit(ok && j.runs[2] == 6 && !j.behind ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    fb_pool_run(j.pool, 3, work, &j);
    assert_int_equal(j.runs[2], 2);
    fb_pool_free(j.pool);
}

static void unused_pools(void **state) {
    (void)state;
    fb_error err;
    for (int i = 0; i < 20; i++) {
        fb_pool *pool;
        assert_ok(fb_pool_create(1 + i % 4, &pool, &err), &err);
        fb_pool_free(pool);
    }
    fb_pool_free(NULL);
}

static void refusals(void **state) {
    (void)state;
    static const int32_t bad[] = {0, -1, INT32_MIN, FB_POOL_MAX_WORKERS + 1};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fb_pool *pool = (fb_pool *)(uintptr_t)1;
        fb_error err;
        char *words = fbt_format("threads|%d|%d", bad[i], FB_POOL_MAX_WORKERS);
        assert_refused(fb_pool_create(bad[i], &pool, &err), FB_ERROR_USAGE, &err, words);
        assert_null(pool);
        free(words);
    }
    assert_true(fb_pool_cores() >= 1 && fb_pool_cores() <= FB_POOL_MAX_WORKERS);
}

/* The shares are in order, cover everything, begin at multiples of the grain, and differ by at most one
 * grain. */
static void shares(void **state) {
    (void)state;
    static const int64_t counts[] = {0, 1, 2, 15, 16, 17, 100, 1000003, 1LL << 40};
    static const int64_t grains[] = {1, 3, 16};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t g = 0; g < sizeof grains / sizeof *grains; g++)
            for (int32_t workers = 1; workers <= FB_POOL_MAX_WORKERS; workers = workers * 2 + 1) {
                int64_t at = 0, least = INT64_MAX, most = 0;
                for (int32_t worker = 0; worker < workers; worker++) {
                    int64_t begin, end;
                    fb_pool_share(counts[c], grains[g], worker, workers, &begin, &end);
                    assert_int_equal(begin, at);
                    assert_true(end >= begin);
                    if (begin < end) assert_int_equal(begin % grains[g], 0);
                    int64_t parts = (end - begin + grains[g] - 1) / grains[g];
                    least = parts < least ? parts : least;
                    most = parts > most ? parts : most;
                    at = end;
                }
                assert_int_equal(at, counts[c]);
                assert_true(most - least <= 1);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_work_together),
        cmocka_unit_test(runs_of_fewer_workers),
        cmocka_unit_test(after_a_fork),
        cmocka_unit_test(unused_pools),
        cmocka_unit_test(refusals),
        cmocka_unit_test(shares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
