/* The server: models behind HTTP, until it is told to stop. */
#ifndef FB_SERVE_SERVE_H
#define FB_SERVE_SERVE_H

#include "fusebox_batch.h"
#include "serve/access.h"

typedef struct serve_model {
    char *name, *path; /* both are the server's from now on, and so are model and draft */
    fb_model *model;
    fb_draft *draft;    /* NULL: no guesses */
    const char *source; /* of the draft, as it was given */
} serve_model;

typedef struct serve_options {
    serve_model *models; /* [model_count] */
    int model_count;
    const char *host;
    uint16_t port;
    serve_access access;
    size_t max_body, max_bodies; /* bytes of one, and of all at the same time */
    int32_t timeout, connections;
    int64_t max_requests;
    double grace;
    int64_t draft_tokens;        /* that are always guessed; 0: as many as are worth it */
    int64_t context;             /* tokens of one request; 0: a good value */
    fb_sampler_options sampling; /* what a request does not say */
    const char *record;          /* a file for every answer; NULL: none */
    fb_session_options session;
    fb_scheduler_options scheduler;
    /* Called once it listens. */
    void (*on_ready)(const char *url, int model_count, const char *const *names);
} serve_options;

/* Runs until *stop is not 0. FB_OK: it stopped as it was asked to. */
fb_status serve_run(const serve_options *options, const volatile int *stop, fb_error *err);

#endif
