#include "serve/params.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "cli/json_out.h"

#define SHOWN 96

bool serve_fault_set(serve_fault *f, int status, const char *param, const char *code, const char *format,
                     ...) {
    va_list arguments;
    f->status = status;
    snprintf(f->param, sizeof f->param, "%s", param ? param : "");
    snprintf(f->code, sizeof f->code, "%s", code ? code : "");
    va_start(arguments, format);
    vsnprintf(f->message, sizeof f->message, format, arguments);
    va_end(arguments);
    return false;
}

static bool wrong(serve_fault *f, const char *param, const fb_json *value, const char *wanted) {
    char shown[SHOWN];
    return serve_fault_set(f, 400, param, "invalid_value", "%s: %s (%s)", param,
                           fb_json_show(value, shown, sizeof shown), wanted);
}

/* ---- parameters that have a form of their own ---------------------------------------------------- */

static bool take_stop(serve_params *p, const char *name, const fb_json *value, serve_fault *f) {
    bool list = fb_json_is(value, FB_JSON_ARRAY);
    const fb_json *v = list ? fb_json_first(value) : value;
    for (; v; v = list ? fb_json_next(v) : NULL) {
        const char *text = fb_json_text_of(v);
        if (!text || !fb_json_size(v) || strlen(text) != fb_json_size(v) || p->stop_count == SERVE_MAX_STOPS)
            return wrong(f, name, value, "a text, or up to 64 of them, none of them empty");
        p->stops[p->stop_count++] = text;
    }
    return true;
}

/* Digits as a number is written: "5" and "05" would be the same token. */
static bool is_id(const char *text) {
    size_t size = strspn(text, "0123456789");
    return size > 0 && size <= 10 && !text[size] && (text[0] != '0' || size == 1);
}

static bool take_bias(serve_params *p, const char *name, const fb_json *value, serve_fault *f) {
    if (!fb_json_is(value, FB_JSON_OBJECT)) return wrong(f, name, value, "an object of token ids and biases");
    if (fb_json_size(value) > SERVE_MAX_BIAS)
        return serve_fault_set(f, 400, name, "invalid_value", "%s: %zu tokens (at most %d)", name,
                               fb_json_size(value), SERVE_MAX_BIAS);
    for (const fb_json *v = fb_json_first(value); v; v = fb_json_next(v)) {
        const char *key = fb_json_key(v);
        long long id = is_id(key) ? strtoll(key, NULL, 10) : -1;
        double bias = fb_json_real_of(v);
        if (id < 0 || id > INT32_MAX || !fb_json_is_number(v) || !(fabs(bias) <= 100))
            return wrong(f, name, value, "token ids with biases of -100 to 100");
        p->biases[p->bias_count++] = (fb_logit_bias){(int32_t)id, (float)bias};
    }
    return true;
}

static bool take_seed(serve_params *p, const char *name, const fb_json *value, serve_fault *f) {
    if (!fb_json_is(value, FB_JSON_INT)) return wrong(f, name, value, "an integer of 64 bits");
    p->seed = (uint64_t)fb_json_int_of(value);
    p->seed_given = true;
    return true;
}

static bool take_stream_options(serve_params *p, const char *name, const fb_json *value, serve_fault *f) {
    if (!fb_json_is(value, FB_JSON_OBJECT)) return wrong(f, name, value, "an object");
    for (const fb_json *v = fb_json_first(value); v; v = fb_json_next(v)) {
        bool usage = strcmp(fb_json_key(v), "include_usage") == 0;
        /* Random characters that hide how long a piece is: the answer is the same without. */
        bool known = usage || strcmp(fb_json_key(v), "include_obfuscation") == 0;
        if (!known || !fb_json_is(v, FB_JSON_BOOL))
            return wrong(f, name, value, "an object with include_usage, true or false");
        if (usage) p->include_usage = fb_json_bool_of(v);
    }
    return true;
}

/* Whether the object has no members but these. A member that is passed over might have been a limit. */
static bool has_only(const char *name, const char *object, const fb_json *value, const char *const *known,
                     serve_fault *f) {
    for (const fb_json *v = fb_json_first(value); v; v = fb_json_next(v)) {
        int i = 0;
        while (known[i] && strcmp(known[i], fb_json_key(v)) != 0) i++;
        if (!known[i])
            return serve_fault_set(f, 400, name, "unknown_parameter", "%s: %s%.64s: unknown parameter", name,
                                   object, fb_json_key(v));
    }
    return true;
}

static bool take_schema(serve_params *p, const char *name, const fb_json *value, const fb_json *schema,
                        serve_fault *f) {
    p->schema = schema;
    return fb_json_is(schema, FB_JSON_OBJECT) || wrong(f, name, value, "schema: an object");
}

/* OpenAI's form: {"type": "json_schema", "json_schema": {"name": …, "schema": …}}. */
static bool take_named_schema(serve_params *p, const char *name, const fb_json *value, serve_fault *f) {
    static const char *const known[] = {"name", "description", "schema", "strict", NULL};
    const fb_json *named = fb_json_member(value, "json_schema");
    if (!fb_json_is(named, FB_JSON_OBJECT)) return wrong(f, name, value, "json_schema: an object");
    for (const fb_json *v = fb_json_first(named); v; v = fb_json_next(v)) {
        bool text = strcmp(fb_json_key(v), "name") == 0 || strcmp(fb_json_key(v), "description") == 0;
        bool flag = strcmp(fb_json_key(v), "strict") == 0;
        if ((text && !fb_json_is(v, FB_JSON_STRING) && !fb_json_is(v, FB_JSON_NULL)) ||
            (flag && !fb_json_is(v, FB_JSON_BOOL) && !fb_json_is(v, FB_JSON_NULL)))
            return wrong(f, name, named, "name and description: texts; strict: true or false");
    }
    return has_only(name, "json_schema: ", named, known, f) &&
           take_schema(p, name, value, fb_json_member(named, "schema"), f);
}

/* llama.cpp's form: {"type": "json_object", "schema": …}. */
static bool take_object(serve_params *p, const char *name, const fb_json *value, serve_fault *f) {
    const fb_json *schema = fb_json_member(value, "schema");
    return !schema || fb_json_is(schema, FB_JSON_NULL) || take_schema(p, name, value, schema, f);
}

static bool take_format(serve_params *p, const char *name, const fb_json *value, serve_fault *f) {
    static const struct {
        const char *type;
        bool json;
        const char *members[3];
        bool (*take)(serve_params *params, const char *name, const fb_json *value, serve_fault *fault);
    } formats[] = {
        {"text", false, {"type"}, NULL},
        {"json_object", true, {"type", "schema"}, take_object},
        {"json_schema", true, {"type", "json_schema"}, take_named_schema},
    };
    const char *type = fb_json_text_of(fb_json_member(value, "type"));
    for (size_t i = 0; type && i < sizeof formats / sizeof *formats; i++) {
        if (strcmp(formats[i].type, type) != 0) continue;
        p->json = formats[i].json;
        return has_only(name, "", value, formats[i].members, f) &&
               (!formats[i].take || formats[i].take(p, name, value, f));
    }
    return wrong(f, name, value, "an object whose type is text, json_object or json_schema");
}

static bool take_template_variables(serve_params *p, const char *name, const fb_json *value, serve_fault *f) {
    if (!fb_json_is(value, FB_JSON_OBJECT)) return wrong(f, name, value, "an object");
    p->template_variables = value;
    return true;
}

static bool take_messages(serve_params *p, const char *name, const fb_json *value, serve_fault *f) {
    if (!fb_json_is(value, FB_JSON_ARRAY) || !fb_json_size(value))
        return wrong(f, name, value, "an array of one message or more");
    p->messages = value;
    return true;
}

static bool is_tool(const fb_json *tool) {
    const char *type = fb_json_text_of(fb_json_member(tool, "type"));
    const fb_json *name = fb_json_member(fb_json_member(tool, "function"), "name");
    return type && strcmp(type, "function") == 0 && fb_json_is(name, FB_JSON_STRING) && fb_json_size(name);
}

static bool take_tools(serve_params *p, const char *name, const fb_json *value, serve_fault *f) {
    bool good = fb_json_is(value, FB_JSON_ARRAY);
    for (const fb_json *v = fb_json_first(value); good && v; v = fb_json_next(v)) good = is_tool(v);
    if (!good)
        return wrong(f, name, value, "an array of {\"type\": \"function\", \"function\": {\"name\": …}}");
    if (fb_json_size(value)) p->tools = value;
    return true;
}

static bool take_tool_choice(serve_params *p, const char *name, const fb_json *value, serve_fault *f) {
    const char *text = fb_json_text_of(value);
    if (!text || (strcmp(text, "auto") != 0 && strcmp(text, "none") != 0))
        return wrong(f, name, value, "auto or none: the model alone decides");
    p->tool_choice = value;
    return true;
}

static bool take_prompt(serve_params *p, const char *name, const fb_json *value, serve_fault *f) {
    if (!fb_json_is(value, FB_JSON_STRING) && !fb_json_is(value, FB_JSON_ARRAY))
        return wrong(f, name, value, "a text, token ids, or an array of one of these");
    p->prompt = value;
    return true;
}

static bool take_draft(serve_params *p, const char *name, const fb_json *value, serve_fault *f) {
    if (!fb_json_is(value, FB_JSON_BOOL) && !fb_json_is(value, FB_JSON_STRING))
        return wrong(f, name, value, "true, false, or the name of the server's draft");
    p->draft = value;
    return true;
}

static bool take_modalities(serve_params *p, const char *name, const fb_json *value, serve_fault *f) {
    const char *text = fb_json_text_of(fb_json_at(value, 0));
    (void)p;
    if (fb_json_is(value, FB_JSON_ARRAY) && fb_json_size(value) == 1 && text && strcmp(text, "text") == 0)
        return true;
    return wrong(f, name, value, "[\"text\"]");
}

/* ---- the table --------------------------------------------------------------------------------- */

typedef enum kind {
    TEXT,
    BOOL,
    INT,
    REAL,
    OWN,     /* `take` */
    IGNORED, /* the answer does not depend on it; `at` is its fb_json_kind */
    REFUSED  /* it would change the answer: `help` says why it cannot be had */
} kind;

typedef struct row {
    const char *name;
    int endpoints;
    kind kind;
    size_t at; /* in serve_params */
    double min, max;
    const char *help;
    const char *schema; /* OWN and IGNORED: members of a JSON schema */
    bool (*take)(serve_params *params, const char *name, const fb_json *value, serve_fault *fault);
} row;

#define AT(member)  offsetof(serve_params, member)
#define ANY_STRING  "\"type\":[\"string\",\"null\"]"
#define ANY_OBJECT  "\"type\":[\"object\",\"null\"]"
#define OBJECT      "{\"type\":\"object\",\"additionalProperties\":false,\"required\":["
#define FORMAT_TEXT OBJECT "\"type\"],\"properties\":{\"type\":{\"const\":\"text\"}}}"
#define FORMAT_OBJECT                                                                                        \
    OBJECT "\"type\"],\"properties\":{\"type\":{\"const\":\"json_object\"},\"schema\":{" ANY_OBJECT "}}}"
#define NAMED_SCHEMA                                                                                         \
    OBJECT "\"schema\"],\"properties\":{\"name\":{" ANY_STRING "},\"description\":{" ANY_STRING              \
           "},\"strict\":{\"type\":[\"boolean\",\"null\"]},\"schema\":{\"type\":\"object\"}}}"
#define FORMAT_SCHEMA                                                                                        \
    OBJECT "\"type\",\"json_schema\"],\"properties\":{\"type\":{\"const\":\"json_schema\"},\"json_"          \
           "schema\":" NAMED_SCHEMA "}}"
#define FORMAT "\"anyOf\":[{\"type\":\"null\"}," FORMAT_TEXT "," FORMAT_OBJECT "," FORMAT_SCHEMA "]"
#define TOOL                                                                                                 \
    "{\"type\":\"object\",\"required\":[\"type\",\"function\"],\"properties\":{\"type\":{\"const\":"         \
    "\"function\"},\"function\":{\"type\":\"object\",\"required\":[\"name\"],\"properties\":{\"name\":{"     \
    "\"type\":\"string\",\"minLength\":1}}}}}"

static const row rows[] = {
    {"model", SERVE_BOTH, TEXT, AT(model), 0, 0, "a name from /v1/models; without it the first one", NULL,
     NULL},
    {"prompt", SERVE_COMPLETION, OWN, 0, 0, 0, "a text, token ids, or an array of one of these",
     SERVE_SCHEMA_PROMPT, take_prompt},
    {"messages", SERVE_CHAT, OWN, 0, 0, 0, "the conversation; it goes through the model's own template",
     "\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"object\",\"required\":[\"role\"],"
     "\"properties\":{\"role\":{\"type\":\"string\"}}}",
     take_messages},
    {"tools", SERVE_CHAT, OWN, 0, 0, 0, "functions, for the template, which must use them",
     "\"type\":[\"array\",\"null\"],\"items\":" TOOL, take_tools},
    {"tool_choice", SERVE_CHAT, OWN, 0, 0, 0, "auto, or none: the tools are not shown",
     "\"enum\":[\"auto\",\"none\",null]", take_tool_choice},
    {"chat_template_kwargs", SERVE_CHAT, OWN, 0, 0, 0, "more variables for the template", ANY_OBJECT,
     take_template_variables},
    {"max_tokens", SERVE_BOTH, INT, AT(max_tokens), 0, 1e9,
     "of the answer, at most; what the context has left is a limit, too", NULL, NULL},
    {"max_completion_tokens", SERVE_CHAT, INT, AT(max_tokens), 0, 1e9, "the same", NULL, NULL},
    {"temperature", SERVE_BOTH, REAL, AT(temperature), 0, 100, "0 takes the best token", NULL, NULL},
    {"top_p", SERVE_BOTH, REAL, AT(top_p), 0, 1, "draw from the best with this probability together", NULL,
     NULL},
    {"top_k", SERVE_BOTH, INT, AT(top_k), 0, 1e9, "draw from the k best; 0 is off", NULL, NULL},
    {"min_p", SERVE_BOTH, REAL, AT(min_p), 0, 1, "drop what is below this part of the best", NULL, NULL},
    {"seed", SERVE_BOTH, OWN, 0, 0, 0, "the same seed gives the same answer; without one it is random",
     "\"type\":[\"integer\",\"null\"]", take_seed},
    {"n", SERVE_BOTH, INT, AT(n), 1, 1024, "answers to each prompt", NULL, NULL},
    {"stop", SERVE_BOTH, OWN, 0, 0, 0, "texts before which an answer ends",
     "\"anyOf\":[{\"type\":\"string\",\"minLength\":1},{\"type\":\"array\",\"maxItems\":64,\"items\":{"
     "\"type\":\"string\",\"minLength\":1}},{\"type\":\"null\"}]",
     take_stop},
    {"logit_bias", SERVE_BOTH, OWN, 0, 0, 0, "added to the scores of tokens, by id",
     "\"type\":[\"object\",\"null\"],\"additionalProperties\":{\"type\":\"number\",\"minimum\":-100,"
     "\"maximum\":100},\"propertyNames\":{\"pattern\":\"^(0|[1-9][0-9]{0,5})$\"}",
     take_bias},
    {"presence_penalty", SERVE_BOTH, REAL, AT(presence_penalty), -2, 2,
     "subtracted from the scores of the last 64 tokens", NULL, NULL},
    {"frequency_penalty", SERVE_BOTH, REAL, AT(frequency_penalty), -2, 2,
     "the same, once for each time that a token is there", NULL, NULL},
    {"repeat_penalty", SERVE_BOTH, REAL, AT(repeat_penalty), 0.01, 100,
     "the scores of the last 64 tokens are divided by it; 1 is off", NULL, NULL},
    {"repetition_penalty", SERVE_BOTH, REAL, AT(repeat_penalty), 0.01, 100, "the same", NULL, NULL},
    {"logprobs", SERVE_COMPLETION, INT, AT(logprobs), 0, FB_MAX_LOGPROBS,
     "log-probabilities of each token and of so many best ones", NULL, NULL},
    {"logprobs", SERVE_CHAT, BOOL, AT(want_logprobs), 0, 0, "log-probabilities of each token", NULL, NULL},
    {"top_logprobs", SERVE_CHAT, INT, AT(top_logprobs), 0, FB_MAX_LOGPROBS, "and of so many best ones", NULL,
     NULL},
    {"echo", SERVE_COMPLETION, BOOL, AT(echo), 0, 0, "begin with the prompt", NULL, NULL},
    {"stream", SERVE_BOTH, BOOL, AT(stream), 0, 0, "server-sent events, as the text comes", NULL, NULL},
    {"stream_options", SERVE_BOTH, OWN, 0, 0, 0, "include_usage: an event with the counts at the end",
     "\"type\":[\"object\",\"null\"],\"properties\":{\"include_usage\":{\"type\":\"boolean\"},"
     "\"include_obfuscation\":{\"type\":\"boolean\",\"description\":\"not used\"}},"
     "\"additionalProperties\":false",
     take_stream_options},
    {"response_format", SERVE_BOTH, OWN, 0, 0, 0,
     "text, json_object, with a schema or without, or json_schema", FORMAT, take_format},
    {"ignore_eos", SERVE_BOTH, BOOL, AT(ignore_eos), 0, 0, "go on when the model ends the text", NULL, NULL},
    {"draft", SERVE_BOTH, OWN, 0, 0, 0,
     "false: no tokens are guessed; true, or its name in /props: by the server's draft. The answer is the "
     "same",
     "\"type\":[\"boolean\",\"string\",\"null\"]", take_draft},
    {"priority", SERVE_BOTH, INT, AT(priority), -1000, 1000, "a higher one starts earlier", NULL, NULL},
    {"best_of", SERVE_COMPLETION, REFUSED, 0, 0, 0, "answers are not ranked; n gives several", NULL, NULL},
    {"suffix", SERVE_COMPLETION, REFUSED, 0, 0, 0, "text can be continued, not filled in", NULL, NULL},
    {"functions", SERVE_CHAT, REFUSED, 0, 0, 0, "the old form of tools", NULL, NULL},
    {"function_call", SERVE_CHAT, REFUSED, 0, 0, 0, "the old form of tool_choice", NULL, NULL},
    {"modalities", SERVE_CHAT, OWN, 0, 0, 0, "text only", "\"enum\":[[\"text\"],null]", take_modalities},
    {"user", SERVE_BOTH, IGNORED, FB_JSON_STRING, 0, 0, "not used", ANY_STRING, NULL},
    {"safety_identifier", SERVE_BOTH, IGNORED, FB_JSON_STRING, 0, 0, "not used", ANY_STRING, NULL},
    {"prompt_cache_key", SERVE_BOTH, IGNORED, FB_JSON_STRING, 0, 0, "not needed: equal beginnings are found",
     ANY_STRING, NULL},
    {"metadata", SERVE_CHAT, IGNORED, FB_JSON_OBJECT, 0, 0, "not used", ANY_OBJECT, NULL},
    {"store", SERVE_CHAT, IGNORED, FB_JSON_BOOL, 0, 0, "nothing is stored", "\"type\":[\"boolean\",\"null\"]",
     NULL},
    {"service_tier", SERVE_CHAT, IGNORED, FB_JSON_STRING, 0, 0, "not used", ANY_STRING, NULL},
    {"parallel_tool_calls", SERVE_CHAT, IGNORED, FB_JSON_BOOL, 0, 0, "not used: the model alone decides",
     "\"type\":[\"boolean\",\"null\"]", NULL},
};
enum { ROWS = sizeof rows / sizeof *rows };

static bool take_number(serve_params *p, const row *r, const fb_json *value, serve_fault *f) {
    char wanted[96];
    void *to = (char *)p + r->at;
    double number = fb_json_real_of(value);
    bool fits = r->kind == INT ? fb_json_is(value, FB_JSON_INT) : fb_json_is_number(value);
    snprintf(wanted, sizeof wanted, "%s of %g to %g", r->kind == INT ? "an integer" : "a number", r->min,
             r->max);
    if (!fits || !(number >= r->min && number <= r->max)) return wrong(f, r->name, value, wanted);
    if (r->kind == INT)
        *(int64_t *)to = fb_json_int_of(value);
    else
        *(double *)to = number;
    return true;
}

static bool take_ignored(const row *r, const fb_json *value, serve_fault *f) {
    const char *wanted = r->at == FB_JSON_STRING ? "a text"
                         : r->at == FB_JSON_BOOL ? "true or false"
                                                 : "an object";
    return fb_json_is(value, (fb_json_kind)r->at) || wrong(f, r->name, value, wanted);
}

static bool take_row(serve_params *p, const row *r, const fb_json *value, serve_fault *f) {
    void *to = (char *)p + r->at;
    switch (r->kind) {
    case TEXT:
        if (!fb_json_is(value, FB_JSON_STRING)) return wrong(f, r->name, value, "a text");
        *(const char **)to = fb_json_text_of(value);
        return true;
    case BOOL:
        if (!fb_json_is(value, FB_JSON_BOOL)) return wrong(f, r->name, value, "true or false");
        *(bool *)to = fb_json_bool_of(value);
        return true;
    case INT:
    case REAL:
        return take_number(p, r, value, f);
    case OWN:
        return r->take(p, r->name, value, f);
    case IGNORED:
        return take_ignored(r, value, f);
    case REFUSED:
        break;
    }
    return serve_fault_set(f, 400, r->name, "unsupported_parameter", "%s: not supported (%s)", r->name,
                           r->help);
}

static const row *find_row(int endpoint, const char *name) {
    for (int i = 0; i < ROWS; i++)
        if ((rows[i].endpoints & endpoint) && strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

/* ---- a body ------------------------------------------------------------------------------------ */

bool serve_body_parse(const char *body, size_t size, fb_json **out, serve_fault *f) {
    fb_error err;
    *out = NULL;
    if (!size) return serve_fault_set(f, 400, NULL, "invalid_json", "body: empty (a JSON object)");
    if (fb_json_parse("body", body, size, size, out, &err) != FB_OK)
        return serve_fault_set(f, err.status == FB_ERROR_MEMORY ? 503 : 400, NULL, "invalid_json", "%s",
                               err.message);
    if (fb_json_is(*out, FB_JSON_OBJECT)) return true;
    fb_json_free(*out);
    *out = NULL;
    return serve_fault_set(f, 400, NULL, "invalid_json", "body: not a JSON object");
}

static bool take_all(int endpoint, serve_params *p, serve_fault *f) {
    for (const fb_json *v = fb_json_first(p->document); v; v = fb_json_next(v)) {
        const row *r = find_row(endpoint, fb_json_key(v));
        if (!r)
            return serve_fault_set(f, 400, fb_json_key(v), "unknown_parameter",
                                   "%.64s: unknown parameter (it might change the answer)", fb_json_key(v));
        if (!fb_json_is(v, FB_JSON_NULL) && !take_row(p, r, v, f)) return false;
    }
    return true;
}

/* Two names of one thing say the same. */
static bool agree(int endpoint, const serve_params *p, serve_fault *f) {
    for (int i = 0; i < ROWS; i++) {
        const row *r = &rows[i];
        const fb_json *value = fb_json_member(p->document, r->name);
        if ((r->kind != INT && r->kind != REAL) || !(r->endpoints & endpoint) || !fb_json_is_number(value))
            continue;
        for (int k = 0; k < i; k++) {
            const fb_json *other = fb_json_member(p->document, rows[k].name);
            bool both = rows[k].kind == r->kind && rows[k].at == r->at && (rows[k].endpoints & endpoint) &&
                        fb_json_is_number(other);
            if (both && fb_json_real_of(other) != fb_json_real_of(value))
                return serve_fault_set(f, 400, r->name, "invalid_value", "%s: %g (%s, its other name, is %g)",
                                       r->name, fb_json_real_of(value), rows[k].name, fb_json_real_of(other));
        }
    }
    return true;
}

static bool settle(int endpoint, serve_params *p, serve_fault *f) {
    uint32_t random;
    if (endpoint == SERVE_CHAT) {
        if (!p->messages)
            return serve_fault_set(f, 400, "messages", "missing_parameter", "messages: missing");
        if (p->top_logprobs && !p->want_logprobs)
            return serve_fault_set(f, 400, "top_logprobs", "invalid_value",
                                   "top_logprobs: %lld (only with logprobs: true)",
                                   (long long)p->top_logprobs);
        if (p->want_logprobs) p->logprobs = p->top_logprobs;
        if (p->tool_choice && strcmp(fb_json_text_of(p->tool_choice), "none") == 0) p->tools = NULL;
    } else if (!p->prompt) {
        return serve_fault_set(f, 400, "prompt", "missing_parameter", "prompt: missing");
    }
    if (p->seed_given) return true;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return serve_fault_set(f, 503, NULL, NULL, "seed: no random number from the system");
    p->seed = random;
    return true;
}

bool serve_params_parse(int endpoint, const char *body, size_t size, const fb_sampler_options *defaults,
                        serve_params *out, serve_fault *fault) {
    fb_json *document;
    *out = (serve_params){.max_tokens = -1,
                          .n = 1,
                          .logprobs = -1,
                          .temperature = (double)defaults->temperature,
                          .top_p = (double)defaults->top_p,
                          .min_p = (double)defaults->min_p,
                          .top_k = defaults->top_k,
                          .repeat_penalty = (double)defaults->repeat_penalty,
                          .presence_penalty = (double)defaults->presence_penalty,
                          .frequency_penalty = (double)defaults->frequency_penalty};
    if (!serve_body_parse(body, size, &document, fault)) return false;
    out->document = document;
    if (take_all(endpoint, out, fault) && agree(endpoint, out, fault) && settle(endpoint, out, fault))
        return true;
    serve_params_free(out);
    return false;
}

void serve_params_free(serve_params *p) {
    fb_json_free((fb_json *)(uintptr_t)p->document);
    p->document = NULL;
}

/* ---- the description --------------------------------------------------------------------------- */

static const char *type_of(const row *r) {
    static const char *const types[] = {
        [TEXT] = "string", [BOOL] = "boolean", [INT] = "integer", [REAL] = "number"};
    return types[r->kind];
}

void serve_params_describe(int endpoint, FILE *out) {
    bool comma = false;
    for (int i = 0; i < ROWS; i++) {
        const row *r = &rows[i];
        if (!(r->endpoints & endpoint) || r->kind == REFUSED) continue;
        fprintf(out, "%s\"%s\":{", comma ? "," : "", r->name);
        if (r->schema)
            fputs(r->schema, out);
        else
            fprintf(out, "\"type\":[\"%s\",\"null\"]", type_of(r));
        if (r->kind == INT || r->kind == REAL)
            fprintf(out, ",\"minimum\":%.10g,\"maximum\":%.10g", r->min, r->max);
        cli_json json = {.out = out, .comma = true};
        cli_json_string(&json, "description", r->help);
        putc('}', out);
        comma = true;
    }
}
