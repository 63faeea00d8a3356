/* Recorded answers, computed again one after the other: the same tokens, text and log-probabilities? */
#ifndef FB_SERVE_REPLAY_H
#define FB_SERVE_REPLAY_H

#include "fusebox_batch.h"

typedef struct serve_replay_options {
    const char *record; /* the file */
    const char *model;  /* path of a model that stands for all in the record; NULL: each one's own */
    int32_t threads;
    const char *backend; /* NULL: as in the record */
} serve_replay_options;

typedef struct serve_replay_report {
    int64_t requests, answers, tokens;
    int64_t cut;     /* answers that did not end by themselves: they are compared as far as they go */
    int64_t differ;  /* answers that differ */
    char first[400]; /* where the first one does */
    char note[400];  /* what is different here; empty: nothing */
} serve_replay_report;

/* Fails if the record cannot be read or a model cannot be run. Answers that differ are no failure. */
fb_status serve_replay(const serve_replay_options *options, serve_replay_report *report, fb_error *err);

#endif
