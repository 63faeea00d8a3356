/* A model that is served: its scheduler, and the thread that steps it. */
#ifndef FB_SERVE_ENGINE_H
#define FB_SERVE_ENGINE_H

#include <pthread.h>

#include "serve/job.h"
#include "serve/metrics.h"
#include "serve/params.h"
#include "serve/steps.h"

struct serve_engine {
    char *name; /* as clients call it */
    char *path;
    fb_model *model;
    fb_draft *draft; /* NULL: no guesses */
    const char *draft_source;
    int64_t draft_tokens; /* that are always guessed; 0: as many as are worth it */
    fb_session_options session;
    fb_scheduler_options options;
    fb_scheduler *scheduler;
    fb_sampler *scorer; /* for log-probabilities only */
    int64_t capacity;   /* tokens of one request, prompt and answer */
    int64_t vocab;
    bool chat; /* the model has a template of its own */
    char backend[16], isa[32];
    int32_t threads;
    char fingerprint[24]; /* of the plan that it started with */
    uint32_t bounded;     /* bits of the fuses that change bits, as they were on then */
    serve_metrics metrics;
    serve_steps steps;
    int64_t tokens;            /* of answers, as of the last step; of the thread */
    int64_t plan_changes;      /* as of the last step; of the thread */
    uint32_t plan;             /* bits of the fuses that are on; of the thread */
    pthread_mutex_t switching; /* of fuses; guards `wanted` */
    uint32_t wanted;           /* bits of the fuses that were asked for; not all of them apply together */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t thread;
    bool started, stop, awake; /* guarded by the lock; `started` by nobody */
    int64_t jobs;              /* that have not ended; guarded by the lock */
    int64_t max_jobs;
    serve_record *record; /* of every answer; NULL: none */
    atomic_llong *unread; /* bytes of answers that were not sent, of all models; NULL: they are not counted */
};

/* Opens a scheduler for the model and finds the fingerprint. The engine owns name, path, model and draft
 * from here on, also on failure. Close it in any case. */
fb_status serve_engine_open(serve_engine *engine, fb_error *err);
/* Starts the thread that steps it. */
fb_status serve_engine_start(serve_engine *engine, fb_error *err);
/* If it was started: all jobs must have ended or been cancelled; it steps until they have. */
void serve_engine_close(serve_engine *engine);

void serve_engine_wake(serve_engine *engine);

/* Submits all parts of a job. False: `fault` says why, and nothing goes on. */
bool serve_engine_submit(serve_engine *engine, serve_job *job, const fb_request_options *options,
                         serve_fault *fault);

/* Bits of the fuses that are on, by index; of the fuses that change the bits of answers; and a list, such as
 * fb_scheduler_fuse takes. */
uint32_t serve_fuses_on(serve_engine *engine);
uint32_t serve_fuses_bounded(serve_engine *engine);
void serve_fuses_list(serve_engine *engine, uint32_t on, char *list, size_t size);

/* What stands for all that decides the bits of an answer that was computed with this plan. */
#define SERVE_FINGERPRINT_BYTES 40
void serve_engine_fingerprint(serve_engine *engine, uint32_t plan, char text[SERVE_FINGERPRINT_BYTES]);

/* An answer has ended. */
void serve_engine_count(serve_engine *engine, fb_finish finish);

#endif
