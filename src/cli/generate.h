/* One generation: prefill the prompt, then sample, write and decode token by token, keeping the times. */
#ifndef FB_CLI_GENERATE_H
#define FB_CLI_GENERATE_H

#include <stdio.h>

#include "cli/cli.h"

#define CLI_ENDLESS INT64_MAX

typedef enum cli_stop {
    CLI_STOP_NONE,
    CLI_STOP_END,       /* an end token */
    CLI_STOP_LENGTH,    /* as many tokens as asked for */
    CLI_STOP_CONTEXT,   /* the model's context is full */
    CLI_STOP_INTERRUPT, /* Ctrl-C */
    CLI_STOP_TEXT       /* one of the stop texts */
} cli_stop;

typedef struct cli_generation {
    /* What to do. */
    const fb_model *model;
    fb_session_options session_options; /* callbacks are set here */
    fb_sampler_options sampler_options;
    const int32_t *prompt; /* ids, at least one */
    int64_t prompt_count;
    int64_t limit;         /* tokens to generate at most; CLI_ENDLESS: no limit */
    bool keep_all;         /* all tokens are wanted afterwards */
    bool with_logprobs;    /* and their log-probabilities (needs keep_all); not of a greedy session */
    int64_t top_count;     /* and those of so many best tokens */
    bool past_end;         /* an end token is a token like others: a new paragraph */
    bool context_is_limit; /* the limit is what the context has left */
    FILE *sink;            /* gets the text, flushed at each token */
    const char *shown;     /* text to write in front of the first token; NULL: none */
    size_t shown_bytes;
    /* A session that the caller keeps, which holds the first `held` ids of the prompt; NULL: a new one. */
    fb_session *kept_session;
    int64_t held;
    const char *const *stop_texts; /* [stop_count] */
    int32_t stop_count;
    bool terminal; /* the sink is one: what would steer it is escaped */
    bool screen;   /* and it knows colours */

    /* What happened; released by cli_generation_free. */
    /* Unless keep_all, those of the last tokens only, in no order: memory does not grow. */
    int32_t *tokens;      /* [kept], without the end token that ended it */
    double *seconds;      /* [kept]: of a token since the one before; the first token's is first_seconds.
                           * Tokens that a step with guesses chose together share its time */
    fb_logprob *logprobs; /* [kept][1 + top_count]: of the token, and of the best ones; or NULL */
    double first_seconds; /* since the start of the prefill */
    int64_t count, kept;
    int32_t last_id;
    cli_stop stop;
    double create_seconds, prefill_seconds;
    int32_t threads;
    const char *isa;
    int64_t step_barriers; /* of the last decode; 0 without one */

    /* While it runs. */
    fb_session *session;
    fb_sampler *sampler;
    fb_text_stream *stream;
    fb_stop *stops;  /* or NULL */
    double last;     /* when the last token came */
    int64_t room;    /* tokens that `logprobs` has room for */
    int write_errno; /* why the sink failed */
    /* Tokens that a draft's step has chosen and that are not written yet: [queued_at, queued_count). */
    int32_t queue[FB_MAX_DRAFT + 1];
    int64_t queued_at, queued_count;
    double queued_seconds; /* since the token before them */
} cli_generation;

/* Returns CLI_OK, CLI_INTERRUPTED after Ctrl-C (the text so far is written), or CLI_USAGE or CLI_FAILED after
 * printing why. */
int cli_generate(cli_generation *generation);
void cli_generation_free(cli_generation *generation);

/* The bar of a long prefill, and its end by Ctrl-C: on_progress of a session that the caller keeps. */
bool cli_generation_progress(void *user, int64_t done, int64_t total);

double cli_clock(void); /* seconds, monotonic */

#endif
