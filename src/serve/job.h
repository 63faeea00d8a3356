/* A request for text while it is computed: what the scheduler's callbacks brought, for a reply that is
 * written later, by another thread. */
#ifndef FB_SERVE_JOB_H
#define FB_SERVE_JOB_H

#include <pthread.h>
#include <stdatomic.h>

#include "serve/http.h"
#include "serve/pieces.h"

typedef struct serve_engine serve_engine;
typedef struct serve_job serve_job;
typedef struct serve_record serve_record;

/* One answer. Nothing of it changes once it has ended. */
typedef struct serve_choice {
    fb_finish finish; /* FB_FINISH_NONE: it goes on */
    int64_t count, cached;
    int64_t drafted, kept; /* guesses */
    double first, last;    /* when its tokens came; 0: none yet, or none since it was paused */
    char message[256];     /* of a failure */
    serve_pieces pieces;   /* all of them; of a stream none, they are in the queue */
    int64_t prompts;       /* the first pieces are the prompt's; only a part's first choice has some */
    serve_pieces trail;    /* its tokens again, for the record */
} serve_choice;

/* The answers to one prompt: the `user` of a scheduler's request. */
typedef struct serve_part {
    serve_job *job;
    uint64_t request; /* its number in the scheduler; 0: not submitted */
    uint64_t paused;  /* the same while it is paused; guarded by the job's lock */
    int32_t first;    /* its first choice */
    int32_t left;     /* choices that have not ended; of the engine's thread */
    int32_t *prompt;
    int64_t prompt_count;
    char *prompt_text; /* for `echo` */
    size_t prompt_bytes;
} serve_part;

struct serve_job {
    atomic_int users;
    serve_engine *engine;
    char id[40];
    int64_t created; /* seconds since 1970 */
    double began;
    int32_t samples, part_count, choice_count; /* a prompt's answers, prompts, and their product */
    int64_t tops;                              /* best tokens wanted with each; -1: no scores */
    bool streams;
    /* What is needed to run it again; the record writes it. */
    fb_sampler_options sampler;
    fb_logit_bias *biases;
    char **stops;
    int32_t stop_count;
    int64_t max_tokens;
    bool past_end;
    int32_t priority;
    char *schema;        /* JSON; empty: any object; NULL: the answer is any text */
    fb_schema *compiled; /* the same; NULL: none */
    pthread_mutex_t lock;
    /* Guarded by the lock, which nobody holds for long: the engine's thread needs it. */
    uint32_t plan;          /* once it has begun: bits of the fuses with which its first token was computed */
    serve_exchange *waiter; /* NULL: not yet, or the client has left */
    bool begun, cancelled;
    serve_part *parts;     /* [part_count] */
    serve_choice *choices; /* [choice_count] */
    int32_t ended;
    int32_t *order;     /* [ended]: choices as they ended */
    serve_pieces queue; /* of a stream: what the reply has not taken yet */
    int64_t unread;     /* bytes that the client has not been sent */
    int32_t paused;     /* parts */
};

/* NULL: no memory. */
serve_job *serve_job_create(serve_engine *engine, int32_t prompts, int32_t samples, int64_t tops);
void serve_job_share(serve_job *job);
void serve_job_give(serve_job *job);

/* Ends all its answers soon; any thread. */
void serve_job_cancel(serve_job *job);
/* From now on the exchange is woken when something has come; it looks first what is there already. */
void serve_job_attend(serve_job *job, serve_exchange *exchange);
/* The client's exchange is going away: nobody is woken any more. */
void serve_job_leave(serve_job *job);
bool serve_job_done(serve_job *job);

/* Of a stream: takes the pieces that have come, in exchange for `pieces`, which are forgotten. Returns the
 * choices that have ended: all pieces of theirs have been taken. *begun: whether there was anything yet. */
int32_t serve_job_take(serve_job *job, serve_pieces *pieces, bool *begun);
/* So many bytes of what was taken are on their way: the memory is free for others, and what was paused goes
 * on. */
void serve_job_seen(serve_job *job, int64_t bytes);

/* Bytes of all jobs that have not been sent: more are not taken on. */
bool serve_jobs_full(const serve_engine *engine);

/* fb_request_options.on_answer; `user` is a serve_part. */
bool serve_job_on_answer(void *user, const fb_answer *answer);

#endif
