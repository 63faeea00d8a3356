#include "serve/prompt.h"

#include <stdlib.h>
#include <string.h>

#include "cli/json_out.h"
#include "serve/engine.h"
#include "text/tokenizer.h"

const char serve_default_template[] =
    "{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}";

static bool library_fault(serve_fault *f, const char *param, const fb_error *err) {
    int status = err->status == FB_ERROR_MEMORY || err->status == FB_ERROR_SYSTEM ? 503 : 400;
    return serve_fault_set(f, status, param, "invalid_value", "%s: %s", param, err->message);
}

static bool no_memory(serve_fault *f) {
    return serve_fault_set(f, 503, NULL, "no_memory", "request: no memory");
}

/* ---- prompts of a completion ------------------------------------------------------------------- */

static const char *name_of(const serve_params *p) { return p->prompt_name ? p->prompt_name : "prompt"; }

/* One prompt may be a text or an array of ids; several are an array of these. */
static bool is_single(const fb_json *prompt) {
    return fb_json_is(prompt, FB_JSON_STRING) || fb_json_is(fb_json_first(prompt), FB_JSON_INT);
}

int32_t serve_prompt_count(const serve_params *p, serve_fault *f) {
    if (is_single(p->prompt)) return 1;
    size_t count = fb_json_size(p->prompt);
    if (count >= 1 && count <= SERVE_MAX_PROMPTS) return (int32_t)count;
    serve_fault_set(f, 400, name_of(p), "invalid_value", "%s: %zu texts (1 to %d)", name_of(p), count,
                    SERVE_MAX_PROMPTS);
    return 0;
}

bool serve_prompt_ids(const serve_engine *e, const char *param, const fb_json *array, int32_t **ids,
                      int64_t *count, serve_fault *f) {
    *count = 0;
    *ids = malloc(fb_json_size(array) * sizeof **ids + 1);
    if (!*ids) return no_memory(f);
    for (const fb_json *v = fb_json_first(array); v; v = fb_json_next(v)) {
        int64_t id = fb_json_int_of(v);
        char shown[64];
        if (!fb_json_is(v, FB_JSON_INT) || id < 0 || id >= e->vocab)
            return serve_fault_set(f, 400, param, "invalid_value", "%s: token %lld: %s (0 to %lld)", param,
                                   (long long)*count, fb_json_show(v, shown, sizeof shown),
                                   (long long)e->vocab - 1);
        (*ids)[(*count)++] = (int32_t)id;
    }
    return true;
}

/* The text of a prompt, for `echo`. */
static bool keep_text(const serve_engine *e, const fb_json *prompt, serve_part *part, serve_fault *f) {
    fb_error err;
    if (fb_json_is(prompt, FB_JSON_STRING)) {
        part->prompt_bytes = fb_json_size(prompt);
        part->prompt_text = malloc(part->prompt_bytes + 1);
        if (!part->prompt_text) return no_memory(f);
        memcpy(part->prompt_text, fb_json_text_of(prompt), part->prompt_bytes);
        return true;
    }
    if (!fb_model_tokenizer(e->model)) return true; /* ids are all that there is */
    if (fb_detokenize(e->model, part->prompt, part->prompt_count, true, &part->prompt_text,
                      &part->prompt_bytes, &err) == FB_OK)
        return true;
    return library_fault(f, "prompt", &err);
}

static bool take_prompt(const serve_engine *e, const serve_params *p, const fb_json *prompt, serve_part *part,
                        serve_fault *f) {
    fb_error err;
    if (fb_json_is(prompt, FB_JSON_ARRAY)) {
        if (!serve_prompt_ids(e, name_of(p), prompt, &part->prompt, &part->prompt_count, f)) return false;
    } else if (!fb_json_is(prompt, FB_JSON_STRING)) {
        return serve_fault_set(f, 400, name_of(p), "invalid_value",
                               "%s: neither a text nor an array of token ids", name_of(p));
    } else if (fb_tokenize(e->model, fb_json_text_of(prompt), fb_json_size(prompt), true, &part->prompt,
                           &part->prompt_count, &err) != FB_OK) {
        return library_fault(f, name_of(p), &err);
    }
    return !p->echo || keep_text(e, prompt, part, f);
}

/* ---- messages ---------------------------------------------------------------------------------- */

static void copy_json(cli_json *out, const char *key, const fb_json *value) {
    bool object = fb_json_is(value, FB_JSON_OBJECT);
    switch (fb_json_kind_of(value)) {
    case FB_JSON_BOOL:
        cli_json_bool(out, key, fb_json_bool_of(value));
        return;
    case FB_JSON_INT:
        cli_json_int(out, key, fb_json_int_of(value));
        return;
    case FB_JSON_REAL:
        cli_json_double(out, key, fb_json_real_of(value));
        return;
    case FB_JSON_STRING:
        cli_json_bytes(out, key, fb_json_text_of(value), fb_json_size(value));
        return;
    case FB_JSON_ARRAY:
    case FB_JSON_OBJECT:
        cli_json_open(out, key, object ? '{' : '[');
        for (const fb_json *v = fb_json_first(value); v; v = fb_json_next(v))
            copy_json(out, object ? fb_json_key(v) : NULL, v);
        cli_json_close(out, object ? '}' : ']');
        return;
    default:
        cli_json_string(out, key, NULL);
        return;
    }
}

/* Content as parts becomes one text: templates expect one. */
static bool copy_content(cli_json *out, const fb_json *content, serve_fault *f) {
    if (fb_json_is(content, FB_JSON_STRING) || fb_json_is(content, FB_JSON_NULL)) {
        copy_json(out, "content", content);
        return true;
    }
    if (!fb_json_is(content, FB_JSON_ARRAY)) {
        char shown[96];
        return serve_fault_set(f, 400, "messages", "invalid_value",
                               "messages: content: %s (a text, or an array of parts)",
                               fb_json_show(content, shown, sizeof shown));
    }
    char *text = NULL;
    size_t bytes = 0;
    FILE *joined = open_memstream(&text, &bytes);
    if (!joined) return no_memory(f);
    bool good = true;
    for (const fb_json *v = fb_json_first(content); good && v; v = fb_json_next(v)) {
        const char *type = fb_json_text_of(fb_json_member(v, "type"));
        const fb_json *part = fb_json_member(v, "text");
        good = type && strcmp(type, "text") == 0 && fb_json_is(part, FB_JSON_STRING);
        if (good) fwrite(fb_json_text_of(part), 1, fb_json_size(part), joined);
        if (!good)
            serve_fault_set(f, 400, "messages", "invalid_value",
                            "messages: content: a part of type %.32s (only text)", type ? type : "none");
    }
    fclose(joined);
    if (good) cli_json_bytes(out, "content", text ? text : "", bytes);
    free(text);
    return good;
}

/* The API writes a call's arguments as a text of JSON; templates expect the object. */
static void copy_function(cli_json *out, const fb_json *function) {
    cli_json_open(out, "function", '{');
    for (const fb_json *v = fb_json_first(function); v; v = fb_json_next(v)) {
        fb_json *parsed = NULL;
        if (strcmp(fb_json_key(v), "arguments") == 0 && fb_json_is(v, FB_JSON_STRING) && fb_json_size(v) &&
            fb_json_parse("arguments", fb_json_text_of(v), fb_json_size(v), fb_json_size(v), &parsed, NULL) ==
                FB_OK)
            copy_json(out, "arguments", parsed);
        else
            copy_json(out, fb_json_key(v), v);
        fb_json_free(parsed);
    }
    cli_json_close(out, '}');
}

static void copy_calls(cli_json *out, const fb_json *calls) {
    cli_json_open(out, "tool_calls", '[');
    for (const fb_json *call = fb_json_first(calls); call; call = fb_json_next(call)) {
        cli_json_open(out, NULL, '{');
        for (const fb_json *v = fb_json_first(call); v; v = fb_json_next(v))
            if (strcmp(fb_json_key(v), "function") == 0 && fb_json_is(v, FB_JSON_OBJECT))
                copy_function(out, v);
            else
                copy_json(out, fb_json_key(v), v);
        cli_json_close(out, '}');
    }
    cli_json_close(out, ']');
}

static bool copy_message(cli_json *out, const fb_json *message, serve_fault *f) {
    if (!fb_json_is(fb_json_member(message, "role"), FB_JSON_STRING))
        return serve_fault_set(f, 400, "messages", "invalid_value", "messages: a message without a role");
    cli_json_open(out, NULL, '{');
    for (const fb_json *v = fb_json_first(message); v; v = fb_json_next(v)) {
        const char *key = fb_json_key(v);
        if (strcmp(key, "content") == 0) {
            if (!copy_content(out, v, f)) return false;
        } else if (strcmp(key, "tool_calls") == 0 && fb_json_is(v, FB_JSON_ARRAY)) {
            copy_calls(out, v);
        } else {
            copy_json(out, key, v);
        }
    }
    cli_json_close(out, '}');
    return true;
}

/* NULL: `fault` says why. */
static char *messages_text(const fb_json *messages, serve_fault *f) {
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    cli_json json = {.out = out};
    bool good = true;
    if (out) {
        cli_json_open(&json, NULL, '[');
        for (const fb_json *m = fb_json_first(messages); good && m; m = fb_json_next(m))
            good = copy_message(&json, m, f);
        cli_json_close(&json, ']');
        if (fclose(out) != 0) good = no_memory(f);
    } else {
        good = no_memory(f);
    }
    if (good) return text;
    free(text);
    return NULL;
}

/* *out is NULL for no value. */
bool serve_prompt_json_text(const fb_json *value, char **out, serve_fault *f) {
    size_t bytes;
    *out = NULL;
    if (!value) return true;
    FILE *stream = open_memstream(out, &bytes);
    if (!stream) return no_memory(f);
    cli_json json = {.out = stream};
    copy_json(&json, NULL, value);
    return fclose(stream) == 0 || no_memory(f);
}

/* A model's own template has what stands in front of a text; the default one leaves it to the tokenizer. */
static bool put_prefix(const serve_engine *e, int32_t **ids, int64_t *count, serve_fault *f) {
    int64_t size;
    const int32_t *prefix = fb_tokenizer_prefix(fb_model_tokenizer(e->model), &size);
    if (!size) return true;
    int32_t *grown = realloc(*ids, (size_t)(*count + size) * sizeof *grown);
    if (!grown) return no_memory(f);
    memmove(grown + size, grown, (size_t)*count * sizeof *grown);
    memcpy(grown, prefix, (size_t)size * sizeof *grown);
    *ids = grown;
    *count += size;
    return true;
}

/* The text that the template makes of the messages with these tools; NULL: `fault` says why. */
static char *render(const serve_engine *e, const char *messages, fb_chat_options *o, const char *tools,
                    size_t *bytes, serve_fault *f) {
    char *text;
    fb_error err;
    o->tools = tools;
    if (fb_chat_render(e->model, messages, o, &text, bytes, &err) == FB_OK) return text;
    library_fault(f, "messages", &err);
    return NULL;
}

/* A template that does not look at the tools makes the same text without them. The model would not know of
 * them, and nobody would notice. */
static bool shows_tools(const serve_engine *e, const char *messages, const fb_chat_options *options,
                        serve_fault *f) {
    if (!options->tools) return true;
    size_t bytes[2];
    fb_chat_options o = *options;
    char *with = render(e, messages, &o, options->tools, &bytes[0], f);
    char *without = with ? render(e, messages, &o, NULL, &bytes[1], f) : NULL;
    bool good = with && without;
    if (good && bytes[0] == bytes[1] && memcmp(with, without, bytes[0]) == 0)
        good = serve_fault_set(
            f, 400, "tools", "unsupported_parameter",
            "tools: the chat template of %.64s does not show them to the model (leave them out, "
            "or say tool_choice: none)",
            e->name);
    fb_free(with);
    fb_free(without);
    return good;
}

bool serve_prompt_messages(const serve_engine *e, const serve_params *p, char **text, size_t *bytes,
                           int32_t **ids, int64_t *count, serve_fault *f) {
    char *messages = messages_text(p->messages, f), *tools = NULL, *variables = NULL;
    bool good = messages && serve_prompt_json_text(p->tools, &tools, f) &&
                serve_prompt_json_text(p->template_variables, &variables, f);
    fb_chat_options o;
    fb_chat_options_default(&o);
    o.template_text = e->chat ? NULL : serve_default_template;
    o.tools = tools;
    o.variables = variables;
    if (good && shows_tools(e, messages, &o, f)) {
        fb_error err;
        fb_status status = text ? fb_chat_render(e->model, messages, &o, text, bytes, &err)
                                : fb_chat_tokenize(e->model, messages, &o, ids, count, &err);
        good = status == FB_OK || library_fault(f, "messages", &err);
        if (good && !text && !e->chat) good = put_prefix(e, ids, count, f);
    } else {
        good = false;
    }
    free(messages);
    free(tools);
    free(variables);
    return good;
}

/* ---- all --------------------------------------------------------------------------------------- */

/* An answer needs a place for one token at least. No answer needs none. */
static bool check_size(const serve_engine *e, const serve_params *p, const serve_part *part,
                       const char *param, serve_fault *f) {
    int64_t answer = p->wants_no_answer || p->max_tokens == 0 ? 0 : 1;
    if (part->prompt_count == 0)
        return serve_fault_set(f, 400, param, "invalid_value", "%s: no tokens (at least one)", param);
    if (part->prompt_count + answer <= e->capacity) return true;
    return serve_fault_set(f, 400, param, "context_length_exceeded",
                           "%s: %lld tokens (the context is %lld%s)", param, (long long)part->prompt_count,
                           (long long)e->capacity, answer ? ", and the answer needs at least one" : "");
}

bool serve_prompt_take(const serve_engine *e, const serve_params *p, serve_job *j, serve_fault *f) {
    if (p->messages) {
        serve_part *part = &j->parts[0];
        return serve_prompt_messages(e, p, NULL, NULL, &part->prompt, &part->prompt_count, f) &&
               check_size(e, p, part, "messages", f);
    }
    const fb_json *prompt = is_single(p->prompt) ? p->prompt : fb_json_first(p->prompt);
    for (int32_t i = 0; i < j->part_count; i++, prompt = fb_json_next(prompt))
        if (!take_prompt(e, p, prompt, &j->parts[i], f) || !check_size(e, p, &j->parts[i], name_of(p), f))
            return false;
    return true;
}
