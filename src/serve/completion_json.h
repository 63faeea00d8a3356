/* Answers as the API writes them: a whole reply, or the events of a stream. Either is written in parts of a
 * bounded size, so that a reply does not hold up others in the same thread.
 *
 *     completion.c        from a request to a job
 *     completion_json.c   what replies and events share; whole replies
 *     events.c            streams
 *     scores.c            log-probabilities */
#ifndef FB_SERVE_COMPLETION_JSON_H
#define FB_SERVE_COMPLETION_JSON_H

#include "cli/json_out.h"
#include "serve/job.h"
#include "serve/params.h"
#include "serve/worker.h"

typedef struct serve_reply_state {
    serve_work work; /* first: the worker gives it back */
    serve_exchange *exchange;
    int endpoint;
    bool parsed;
    double began;
    serve_fault fault; /* status 0: none */
    /* The job was submitted, or there is a fault: the worker is done with it. */
    atomic_bool prepared;
    atomic_bool gone; /* the client */
    serve_params params;
    serve_job *job;
    int64_t *offsets; /* [choices] characters of the text so far, for text_offset */
    /* Of a stream: */
    serve_pieces pieces; /* what was taken of the job, */
    int64_t at;          /* the next piece of it, */
    int32_t sample;      /* and for which of the choices that it is for */
    bool begun, done;
    int32_t introduced;  /* choices whose beginning was written */
    int32_t ended, told; /* choices, in the job's order */
    /* Of a whole reply: where it goes on. */
    cli_json json;
    int stage, list;
    int32_t choice;
    int64_t piece;
} serve_reply_state;

/* Writes the next part of all answers, of a job that has ended; false: that was all. */
bool serve_completion_write(serve_reply_state *reply, FILE *out);
/* Writes events of what has come; false: that was the last one. */
bool serve_completion_stream(serve_reply_state *reply, FILE *out);

/* ---- within these files ---- */

/* Bytes after which a part ends. */
#define SERVE_PART_BYTES 16384

static inline bool serve_is_chat(const serve_reply_state *r) { return r->params.messages != NULL; }
/* What every object begins with; it stays open. */
void serve_write_head(const serve_reply_state *reply, cli_json *json, const char *kind);
void serve_write_usage(const serve_reply_state *reply, cli_json *json);
const char *serve_finish_reason(fb_finish finish); /* NULL: it goes on */

/* A token as one of a choice's. */
typedef struct serve_scored {
    const serve_piece *piece;
    const fb_logprob *scores; /* the token, then the best */
    const char *text;         /* of the piece, of an answer */
    int32_t choice;
} serve_scored;

/* Log-probabilities are lists, each with an entry for a token: list 0, 1, … until NULL. */
const char *serve_scores_name(const serve_reply_state *reply, int list);
void serve_scores_write(serve_reply_state *reply, int list, cli_json *json, const serve_scored *token);

#endif
