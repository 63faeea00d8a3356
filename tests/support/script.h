/* A script that does with a session all that one can do, and threads that run such scripts at once. What a
 * script saw (logits, best tokens) is kept as bytes, so that two runs can be compared bit for bit.
 *
 * Scripts run in threads of their own, where cmocka cannot fail a test: errors are kept, and asserted by the
 * thread that waits. */
#ifndef FB_TESTS_SCRIPT_H
#define FB_TESTS_SCRIPT_H

#include "fusebox.h"

typedef struct fbt_seen {
    uint8_t *bytes;
    size_t size, room;
} fbt_seen;

/* Appends to what was seen. */
fb_status fbt_seen_keep(fbt_seen *seen, const void *bytes, size_t size, fb_error *err);

/* Creates a session, prefills and decodes, forks, decodes in both, trims, resets and frees; `steps` tokens
 * are decoded between two of these. It appends to `seen`. */
fb_status fbt_script_run(const fb_model *model, const fb_session_options *options, int steps, fbt_seen *seen,
                         fb_error *err);

/* Decodes `steps` tokens, the first one `id`, then always the best one. */
fb_status fbt_script_decode(fb_session *session, int32_t id, bool greedy, int steps, fbt_seen *seen,
                            fb_error *err);

typedef struct fbt_job {
    fb_status (*run)(struct fbt_job *job);
    const fb_model *model;
    fb_session_options options;
    fb_session *session;
    int steps;
    int32_t id;
    fbt_seen seen; /* freed by fbt_jobs_free */
    fb_error err;
    fb_status status; /* what `run` returned */
} fbt_job;

/* fbt_script_run as a job: of `model`, `options` and `steps`. */
fb_status fbt_job_script(fbt_job *job);

/* Each job in a thread of its own, all of which start together; or one after the other in this thread.
 * Asserts that they succeed. What they saw before is forgotten. */
void fbt_jobs_at_once(fbt_job *jobs, int count);
void fbt_jobs_in_turn(fbt_job *jobs, int count);
void fbt_jobs_free(fbt_job *jobs, int count);

/* Asserts that both saw the same bytes, and any. */
void fbt_jobs_same(const fbt_job *have, const fbt_job *want, const char *what);

#endif
