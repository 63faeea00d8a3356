/* What a request asks about, as tokens. */
#ifndef FB_SERVE_PROMPT_H
#define FB_SERVE_PROMPT_H

#include "serve/job.h"
#include "serve/params.h"

#define SERVE_MAX_PROMPTS 256

/* Messages go through this template if a model has none. */
extern const char serve_default_template[];

/* The number of prompts of a completion; 0: `fault` says what is wrong. */
int32_t serve_prompt_count(const serve_params *params, serve_fault *fault);
/* Fills in the prompts of all parts. */
bool serve_prompt_take(const serve_engine *engine, const serve_params *params, serve_job *job,
                       serve_fault *fault);
/* The messages as the model sees them: as text if `text` is not NULL, else as ids. */
bool serve_prompt_messages(const serve_engine *engine, const serve_params *params, char **text, size_t *bytes,
                           int32_t **ids, int64_t *count, serve_fault *fault);

/* Token ids of an array of integers; released with fb_free. */
bool serve_prompt_ids(const serve_engine *engine, const char *param, const fb_json *array, int32_t **ids,
                      int64_t *count, serve_fault *fault);

/* A value as JSON, released with free; *text is NULL for no value. */
bool serve_prompt_json_text(const fb_json *value, char **text, serve_fault *fault);

#endif
