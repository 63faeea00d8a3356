/* What a request for text may say: one table for /v1/completions, /v1/chat/completions and /openapi.json. */
#ifndef FB_SERVE_PARAMS_H
#define FB_SERVE_PARAMS_H

#include <stdio.h>

#include "file/json.h"
#include "fusebox.h"

#define SERVE_MAX_STOPS 64
#define SERVE_MAX_BIAS  1024

/* JSON schemas of token ids, and of what may be a prompt: a text, token ids, or an array of these. */
#define SERVE_SCHEMA_IDS "{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"integer\",\"minimum\":0}}"
#define SERVE_SCHEMA_PROMPT                                                                                  \
    "\"anyOf\":[{\"type\":\"string\"}," SERVE_SCHEMA_IDS ",{\"type\":\"array\",\"minItems\":1,"              \
    "\"items\":{\"anyOf\":[{\"type\":\"string\"}," SERVE_SCHEMA_IDS "]}}]"

enum { SERVE_COMPLETION = 1, SERVE_CHAT = 2, SERVE_BOTH = 3 };

/* Begins as all zero; strings belong to the document. */
typedef struct serve_params {
    const fb_json *document; /* the body; owned */
    const char *model;       /* NULL: the first one */
    const fb_json *prompt, *messages, *tools, *template_variables, *stop, *bias, *format, *tool_choice;
    const fb_json *draft; /* false, true, or the name of one; NULL: not said */
    int64_t max_tokens;   /* -1: not said */
    int64_t n, best_of, top_k, top_logprobs, priority;
    int64_t logprobs; /* the best tokens that are wanted with each; -1: none, not even of the token */
    double temperature, top_p, min_p, presence_penalty, frequency_penalty, repeat_penalty;
    uint64_t seed;
    bool seed_given, echo, stream, include_usage, ignore_eos, want_logprobs;
    const char *stops[SERVE_MAX_STOPS];
    int32_t stop_count;
    fb_logit_bias biases[SERVE_MAX_BIAS];
    int64_t bias_count;
    bool json;               /* the answer is to be JSON … */
    const fb_json *schema;   /* … that fits this; NULL: any object */
    const char *prompt_name; /* of the parameter, in messages; NULL: prompt */
    bool wants_no_answer;    /* the prompts are all that is computed */
} serve_params;

/* Why a request is refused. */
typedef struct serve_fault {
    int status;
    char param[64]; /* empty: none */
    char code[48];
    char message[512];
} serve_fault;

/* Sets *fault and returns false. */
bool serve_fault_set(serve_fault *fault, int status, const char *param, const char *code, const char *format,
                     ...) __attribute__((format(printf, 5, 6)));

/* Takes the body apart. `endpoint`: SERVE_COMPLETION or SERVE_CHAT. What the request does not say of sampling
 * is as in `defaults`. False: `fault` says why. */
bool serve_params_parse(int endpoint, const char *body, size_t size, const fb_sampler_options *defaults,
                        serve_params *out, serve_fault *fault);
void serve_params_free(serve_params *params);

/* Any other endpoint's body: an object. */
bool serve_body_parse(const char *body, size_t size, fb_json **out, serve_fault *fault);

/* The parameters of an endpoint as members of a JSON schema's "properties". */
void serve_params_describe(int endpoint, FILE *out);

#endif
