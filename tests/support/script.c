#include "support/script.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"

enum { PROMPT = 11, MOST_JOBS = 16 };

static const int32_t prompt[PROMPT] = {5, 250, 17, 9, 111, 42, 300, 7, 7, 88, 201};

fb_status fbt_seen_keep(fbt_seen *seen, const void *bytes, size_t size, fb_error *err) {
    if (seen->size + size > seen->room) {
        size_t room = 2 * (seen->size + size);
        uint8_t *more = realloc(seen->bytes, room);
        if (!more) return fb_fail_memory(err, "what a script saw", (int64_t)room);
        seen->bytes = more;
        seen->room = room;
    }
    memcpy(seen->bytes + seen->size, bytes, size);
    seen->size += size;
    return FB_OK;
}

/* What the last token gave: the best one and, unless the session is greedy, all logits. */
static fb_status look(fb_session *s, bool greedy, fbt_seen *seen, int32_t *best, fb_error *err) {
    const float *logits;
    int64_t rows, vocab;
    FB_TRY(fb_session_best(s, best, err));
    FB_TRY(fbt_seen_keep(seen, best, sizeof *best, err));
    if (greedy) return FB_OK;
    FB_TRY(fb_session_logits(s, &logits, &rows, &vocab, err));
    return fbt_seen_keep(seen, logits, (size_t)(rows * vocab) * sizeof *logits, err);
}

fb_status fbt_script_decode(fb_session *s, int32_t id, bool greedy, int steps, fbt_seen *seen,
                            fb_error *err) {
    for (int i = 0; i < steps; i++) {
        FB_TRY(fb_session_decode(s, id, err));
        FB_TRY(look(s, greedy, seen, &id, err));
    }
    return FB_OK;
}

static fb_status prefill(fb_session *s, int64_t count, bool greedy, fbt_seen *seen, int32_t *best,
                         fb_error *err) {
    FB_TRY(fb_session_prefill(s, prompt, count, err));
    return look(s, greedy, seen, best, err);
}

/* The original goes on after its fork, and ends before it. */
static fb_status act_with_fork(fb_session **s, fb_session **fork, bool greedy, int steps, fbt_seen *seen,
                               fb_error *err) {
    int32_t best;
    FB_TRY(prefill(*s, PROMPT, greedy, seen, &best, err));
    FB_TRY(fbt_script_decode(*s, best, greedy, steps, seen, err));
    FB_TRY(fb_session_fork(*s, fork, err));
    FB_TRY(fbt_script_decode(*fork, 3, greedy, steps, seen, err));
    FB_TRY(fbt_script_decode(*s, 4, greedy, steps, seen, err));
    FB_TRY(fb_session_trim(*s, fb_session_position(*s) - 1, err));
    FB_TRY(fbt_script_decode(*s, 6, greedy, 1, seen, err));
    fb_session_free(*s);
    *s = NULL;
    FB_TRY(fb_session_trim(*fork, fb_session_position(*fork) - 1, err));
    FB_TRY(fbt_script_decode(*fork, 8, greedy, steps, seen, err));
    fb_session_reset(*fork);
    FB_TRY(prefill(*fork, PROMPT - 4, greedy, seen, &best, err));
    return fbt_script_decode(*fork, best, greedy, steps, seen, err);
}

fb_status fbt_script_run(const fb_model *model, const fb_session_options *options, int steps, fbt_seen *seen,
                         fb_error *err) {
    fb_session *s, *fork = NULL;
    FB_TRY(fb_session_create(model, options, &s, err));
    fb_status status = act_with_fork(&s, &fork, options->greedy, steps, seen, err);
    fb_session_free(fork);
    fb_session_free(s);
    return status;
}

fb_status fbt_job_script(fbt_job *job) {
    return fbt_script_run(job->model, &job->options, job->steps, &job->seen, &job->err);
}

/* ---- threads ---- */

typedef struct runner {
    fbt_job *job;
    pthread_barrier_t *start;
} runner;

static void *run_job(void *arg) {
    runner *r = arg;
    pthread_barrier_wait(r->start);
    r->job->status = r->job->run(r->job);
    return NULL;
}

void fbt_jobs_at_once(fbt_job *jobs, int count) {
    assert_in_range(count, 1, MOST_JOBS);
    pthread_t threads[MOST_JOBS];
    runner runners[MOST_JOBS];
    pthread_barrier_t start;
    assert_int_equal(pthread_barrier_init(&start, NULL, (unsigned)count), 0);
    for (int i = 0; i < count; i++) {
        jobs[i].seen.size = 0;
        runners[i] = (runner){&jobs[i], &start};
        assert_int_equal(pthread_create(&threads[i], NULL, run_job, &runners[i]), 0);
    }
    for (int i = 0; i < count; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    pthread_barrier_destroy(&start);
    for (int i = 0; i < count; i++) assert_ok(jobs[i].status, &jobs[i].err);
}

void fbt_jobs_in_turn(fbt_job *jobs, int count) {
    for (int i = 0; i < count; i++) {
        jobs[i].seen.size = 0;
        assert_ok(jobs[i].run(&jobs[i]), &jobs[i].err);
    }
}

void fbt_jobs_free(fbt_job *jobs, int count) {
    for (int i = 0; i < count; i++) free(jobs[i].seen.bytes);
}

void fbt_jobs_same(const fbt_job *have, const fbt_job *want, const char *what) {
    if (want->seen.size == 0 || have->seen.size != want->seen.size)
        fail_msg("%s: saw %zu bytes, alone %zu", what, have->seen.size, want->seen.size);
    if (memcmp(have->seen.bytes, want->seen.bytes, want->seen.size) == 0) return;
    size_t at = 0;
    while (have->seen.bytes[at] == want->seen.bytes[at]) at++;
    fail_msg("%s: byte %zu of %zu is not what it is alone", what, at, want->seen.size);
}
