#include "model/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/sized.h"
#include "chat/jinja.h"
#include "file/map.h"
#include "model/model.h"

#define PATH_SIZE      4096
#define CONFIG_LIMIT   ((size_t)64 << 20) /* tokenizer_config.json lists added tokens: up to some megabytes */
#define MESSAGES_LIMIT ((size_t)64 << 20)
#define MAX_TEMPLATES  16
#define MAX_VARIABLES  64 /* those below, and the caller's */

static const char *const token_names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                          "pad_token", "cls_token", "mask_token"};
enum { TOKEN_NAMES = sizeof token_names / sizeof *token_names };

struct fb_model_chat {
    struct {
        char *name, *text;
        const char *source;     /* a constant */
    } templates[MAX_TEMPLATES]; /* "default" first, if it is there */
    int32_t count;
    char *tokens[TOKEN_NAMES]; /* the texts of the special tokens above; NULL: there is none */
    char why_not[512];         /* why there is no template although a file should have it */
};

/* ---- reading --------------------------------------------------------------------------------- */

static char *copy_text(const char *text, size_t size) {
    char *copy = malloc(size + 1);
    if (!copy) return NULL;
    memcpy(copy, text, size);
    copy[size] = '\0';
    return copy;
}

/* Adds a template, or replaces that of the same name. */
static fb_status add_template(fb_model_chat *chat, const char *source, const char *name, const char *text,
                              size_t size, fb_error *err) {
    int32_t at = 0;
    if (memchr(text, 0, size)) {
        snprintf(chat->why_not, sizeof chat->why_not, "chat template %.64s: a NUL inside", name);
        return FB_OK;
    }
    while (at < chat->count && strcmp(chat->templates[at].name, name) != 0) at++;
    if (at == MAX_TEMPLATES) return FB_OK;
    char *copy = copy_text(text, size), *key = copy_text(name, strlen(name));
    if (!copy || !key) {
        free(copy);
        free(key);
        return fb_fail_memory(err, "chat template", (int64_t)size);
    }
    free(chat->templates[at].name);
    free(chat->templates[at].text);
    chat->templates[at].name = key;
    chat->templates[at].text = copy;
    chat->templates[at].source = source;
    chat->count += at == chat->count;
    if (at == 0 || strcmp(name, "default") != 0) return FB_OK;
    for (; at > 0; at--) chat->templates[at] = chat->templates[at - 1];
    chat->templates[0].name = key;
    chat->templates[0].text = copy;
    chat->templates[0].source = source;
    return FB_OK;
}

/* chat_template: a text, or a list of {"name", "template"}. */
static fb_status read_templates(fb_model_chat *chat, const char *source, const fb_json *value,
                                fb_error *err) {
    if (fb_json_is(value, FB_JSON_STRING))
        return add_template(chat, source, "default", fb_json_text_of(value), fb_json_size(value), err);
    if (!fb_json_is(value, FB_JSON_ARRAY)) return FB_OK;
    for (const fb_json *row = fb_json_first(value); row; row = fb_json_next(row)) {
        if (!fb_json_is(row, FB_JSON_OBJECT)) continue;
        const fb_json *name = fb_json_member(row, "name"), *text = fb_json_member(row, "template");
        if (!fb_json_is(name, FB_JSON_STRING) || !fb_json_is(text, FB_JSON_STRING)) continue;
        FB_TRY(add_template(chat, source, fb_json_text_of(name), fb_json_text_of(text), fb_json_size(text),
                            err));
    }
    return FB_OK;
}

static fb_status keep_token(fb_model_chat *chat, int index, const char *text, size_t size, fb_error *err) {
    if (!text || memchr(text, 0, size)) return FB_OK;
    chat->tokens[index] = copy_text(text, size);
    return chat->tokens[index] ? FB_OK : fb_fail_memory(err, token_names[index], (int64_t)size);
}

/* A special token is its text, or an object with it. */
static fb_status read_tokens(fb_model_chat *chat, const fb_json *config, fb_error *err) {
    for (int i = 0; i < TOKEN_NAMES; i++) {
        const fb_json *token = fb_json_member(config, token_names[i]);
        if (fb_json_is(token, FB_JSON_OBJECT)) token = fb_json_member(token, "content");
        if (fb_json_is(token, FB_JSON_STRING))
            FB_TRY(keep_token(chat, i, fb_json_text_of(token), fb_json_size(token), err));
    }
    return FB_OK;
}

/* A file of the directory, or false: it is not there, or cannot be read, which is noted. */
static bool find_file(fb_model_chat *chat, const char *directory, const char *name, char path[PATH_SIZE]) {
    if (snprintf(path, PATH_SIZE, "%s/%s", directory, name) < PATH_SIZE) return !fb_map_missing(path);
    snprintf(chat->why_not, sizeof chat->why_not, "%s: its path is too long", name);
    return false;
}

/* `name` is a constant. */
static fb_status read_config(fb_model_chat *chat, const char *directory, const char *name, fb_error *err) {
    char path[PATH_SIZE];
    fb_json *config;
    fb_error reason;
    if (!find_file(chat, directory, name, path)) return FB_OK;
    fb_status status = fb_json_load(path, CONFIG_LIMIT, &config, &reason);
    if (status == FB_ERROR_MEMORY) return fb_fail(err, status, "%s", reason.message);
    if (status != FB_OK) {
        memcpy(chat->why_not, reason.message, sizeof chat->why_not);
        return FB_OK;
    }
    status = read_templates(chat, name, fb_json_member(config, "chat_template"), err);
    if (status == FB_OK && strcmp(name, "tokenizer_config.json") == 0)
        status = read_tokens(chat, config, err);
    fb_json_free(config);
    return status;
}

static fb_status read_jinja(fb_model_chat *chat, const char *directory, fb_error *err) {
    char path[PATH_SIZE];
    fb_map map;
    fb_error reason;
    if (!find_file(chat, directory, "chat_template.jinja", path)) return FB_OK;
    fb_status status = fb_map_open(path, &map, &reason);
    if (status == FB_ERROR_MEMORY) return fb_fail(err, status, "%s", reason.message);
    if (status != FB_OK) {
        memcpy(chat->why_not, reason.message, sizeof chat->why_not);
        return FB_OK;
    }
    char *text = NULL;
    if (map.size > FB_JINJA_TEMPLATE_LIMIT)
        snprintf(chat->why_not, sizeof chat->why_not, "chat_template.jinja: %zu bytes (at most %d)", map.size,
                 FB_JINJA_TEMPLATE_LIMIT);
    else if (!(text = malloc(map.size + 1)))
        status = fb_fail_memory(err, "chat_template.jinja", (int64_t)map.size);
    else
        status = fb_map_copy(&map, path, 0, map.size, (uint8_t *)text, err);
    if (status == FB_OK && text)
        status = add_template(chat, "chat_template.jinja", "default", text, map.size, err);
    free(text);
    fb_map_close(&map);
    return status;
}

static fb_status finish(fb_status status, fb_model_chat *chat, fb_model_chat **out) {
    *out = chat;
    if (status == FB_OK) return FB_OK;
    fb_model_chat_free(chat);
    *out = NULL;
    return status;
}

fb_status fb_model_chat_open(const char *directory, fb_model_chat **out, fb_error *err) {
    fb_model_chat *chat = calloc(1, sizeof *chat);
    *out = NULL;
    if (!chat) return fb_fail_memory(err, "chat template", sizeof *chat);
    fb_status status = read_config(chat, directory, "tokenizer_config.json", err);
    if (status == FB_OK) status = read_config(chat, directory, "chat_template.json", err);
    if (status == FB_OK) status = read_jinja(chat, directory, err);
    return finish(status, chat, out);
}

static fb_status read_gguf(fb_model_chat *chat, const fb_gguf *gguf, const fb_tokenizer *tokenizer,
                           fb_error *err) {
    static const char prefix[] = "tokenizer.chat_template";
    static const char *const ids[TOKEN_NAMES] = {"bos",     "eos", "unknown", "seperator",
                                                 "padding", "cls", "mask"};
    for (const fb_json *v = fb_json_first(gguf->values); v; v = fb_json_next(v)) {
        const char *key = fb_json_key(v);
        if (!fb_json_is(v, FB_JSON_STRING) || strncmp(key, prefix, sizeof prefix - 1) != 0) continue;
        const char *name = key + sizeof prefix - 1;
        if (*name && *name != '.') continue;
        FB_TRY(add_template(chat, prefix, *name ? name + 1 : "default", fb_json_text_of(v), fb_json_size(v),
                            err));
    }
    for (int i = 0; i < TOKEN_NAMES; i++) {
        char key[64];
        int64_t size;
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", ids[i]);
        const fb_json *id = fb_json_member(gguf->values, key);
        if (!fb_json_is(id, FB_JSON_INT)) continue;
        const char *text = fb_tokenizer_token_text(tokenizer, fb_json_int_of(id), &size);
        FB_TRY(keep_token(chat, i, text, (size_t)size, err));
    }
    return FB_OK;
}

fb_status fb_model_chat_from_gguf(const fb_gguf *gguf, const fb_tokenizer *tokenizer, fb_model_chat **out,
                                  fb_error *err) {
    fb_model_chat *chat = calloc(1, sizeof *chat);
    *out = NULL;
    if (!chat) return fb_fail_memory(err, "chat template", sizeof *chat);
    return finish(read_gguf(chat, gguf, tokenizer, err), chat, out);
}

void fb_model_chat_free(fb_model_chat *chat) {
    if (!chat) return;
    for (int32_t i = 0; i < chat->count; i++) {
        free(chat->templates[i].name);
        free(chat->templates[i].text);
    }
    for (int i = 0; i < TOKEN_NAMES; i++) free(chat->tokens[i]);
    free(chat);
}

bool fb_model_chat_template(const fb_model *m, int index, const char **name, const char **text) {
    if (!m->chat || index < 0 || index >= m->chat->count) return false;
    *name = m->chat->templates[index].name;
    *text = m->chat->templates[index].text;
    return true;
}

const char *fb_model_chat_source(const fb_model *m, int index) {
    return m->chat && index >= 0 && index < m->chat->count ? m->chat->templates[index].source : NULL;
}

/* ---- rendering ------------------------------------------------------------------------------- */

static const fb_chat_options defaults = {.size = sizeof defaults, .add_generation_prompt = true};
static const fb_sized options_type = FB_SIZED(fb_chat_options, add_generation_prompt, &defaults);
FB_SIZED_ENDS_WITH(fb_chat_options, now);

void fb_chat_options_init(fb_chat_options *options, size_t size) {
    fb_sized_init(&options_type, options, size);
}

static const char *find_template(const fb_model *m, const char *wanted) {
    const char *name, *text;
    for (int i = 0; fb_model_chat_template(m, i, &name, &text); i++)
        if (strcmp(name, wanted) == 0) return text;
    return NULL;
}

static fb_status choose_template(const fb_model *m, const fb_chat_options *o, bool has_tools,
                                 const char **out, fb_error *err) {
    *out = o->template_text;
    if (*out) return FB_OK;
    if (o->template_name) {
        *out = find_template(m, o->template_name);
        return *out ? FB_OK
                    : fb_fail(err, FB_ERROR_USAGE,
                              "chat template: \"%.64s\" (the model has no such template)", o->template_name);
    }
    if (has_tools) *out = find_template(m, "tool_use");
    if (!*out) *out = find_template(m, "default");
    if (*out) return FB_OK;
    if (m->chat && m->chat->why_not[0])
        return fb_fail(err, FB_ERROR_FILE, "model: no chat template: %s", m->chat->why_not);
    return fb_fail(err, FB_ERROR_UNSUPPORTED, "model: no chat template (it was not made for chats)");
}

/* One rendering: the parsed JSON, and the variables that point into it. */
typedef struct rendering {
    fb_json *document, *own_tools, *extra;
    const fb_json *messages, *tools; /* in these; tools may be NULL */
    fb_jinja_variable variables[MAX_VARIABLES];
    int64_t count;
} rendering;

static fb_status parse_json(const char *what, const char *text, fb_json_kind kind, fb_json **out,
                            fb_error *err) {
    if (!text) return FB_OK;
    FB_TRY(fb_json_parse(what, text, strlen(text), MESSAGES_LIMIT, out, err));
    if (fb_json_is(*out, kind)) return FB_OK;
    return fb_fail(err, FB_ERROR_USAGE, "%s: not %s", what,
                   kind == FB_JSON_ARRAY ? "a JSON array" : "a JSON object");
}

/* Fails with "messages[2]: content: 1 (expected a text)". */
static fb_status fail_message(size_t index, const char *key, const fb_json *value, const char *expected,
                              fb_error *err) {
    char text[64];
    return fb_fail(err, FB_ERROR_USAGE, "messages[%zu]: %s: %s (expected %s)", index, key,
                   value ? fb_json_show(value, text, sizeof text) : "missing", expected);
}

static bool is_any(const char *text, const char *const *words, int count) {
    for (int i = 0; i < count; i++)
        if (strcmp(text, words[i]) == 0) return true;
    return false;
}

/* An assistant may call a tool instead of saying something, and roles that only a template knows may have
 * keys of their own. */
static fb_status check_content(const fb_json *message, size_t index, fb_error *err) {
    static const char *const speakers[] = {"user", "system", "developer"};
    const fb_json *content = fb_json_get(message, "content");
    const char *role = fb_json_text_of(fb_json_get(message, "role"));
    if (!content || fb_json_is(content, FB_JSON_NULL))
        return is_any(role, speakers, sizeof speakers / sizeof *speakers)
                   ? fail_message(index, "content", content, "a text", err)
                   : FB_OK;
    if (fb_json_is_number(content) || fb_json_is(content, FB_JSON_BOOL))
        return fail_message(index, "content", content, "a text, or a list of parts", err);
    if (!fb_json_is(content, FB_JSON_ARRAY)) return FB_OK;
    size_t at = 0;
    for (const fb_json *part = fb_json_first(content); part; part = fb_json_next(part), at++) {
        char key[48];
        if (fb_json_is(part, FB_JSON_OBJECT) || fb_json_is(part, FB_JSON_STRING)) continue;
        snprintf(key, sizeof key, "content[%zu]", at);
        return fail_message(index, key, part, "{\"type\": \"text\", \"text\": ...} or a text", err);
    }
    return FB_OK;
}

/* What a template would trip over, far from the cause. */
static fb_status check_messages(const fb_json *messages, fb_error *err) {
    size_t i = 0;
    for (const fb_json *m = fb_json_first(messages); m; m = fb_json_next(m), i++) {
        char text[64];
        if (!fb_json_is(m, FB_JSON_OBJECT))
            return fb_fail(err, FB_ERROR_USAGE, "messages[%zu]: %s (expected an object)", i,
                           fb_json_show(m, text, sizeof text));
        const fb_json *role = fb_json_get(m, "role"), *calls = fb_json_member(m, "tool_calls");
        if (!fb_json_is(role, FB_JSON_STRING)) return fail_message(i, "role", role, "a text", err);
        if (calls && !fb_json_is(calls, FB_JSON_ARRAY))
            return fail_message(i, "tool_calls", calls, "a list", err);
        FB_TRY(check_content(m, i, err));
    }
    return FB_OK;
}

/* The messages alone, or {"messages": [...], "tools": [...]}, as a request to a server has them. */
static fb_status read_messages(const char *text, rendering *r, fb_error *err) {
    char shown[64];
    if (!text) return fb_fail(err, FB_ERROR_USAGE, "messages: none given");
    FB_TRY(fb_json_parse("messages", text, strlen(text), MESSAGES_LIMIT, &r->document, err));
    r->messages = r->document;
    if (fb_json_is(r->document, FB_JSON_OBJECT)) {
        r->messages = fb_json_get(r->document, "messages");
        r->tools = fb_json_member(r->document, "tools");
        if (!r->messages)
            return fb_fail(err, FB_ERROR_USAGE,
                           "messages: not a JSON array (nor an object with the key \"messages\")");
    }
    if (!fb_json_is(r->messages, FB_JSON_ARRAY))
        return fb_fail(err, FB_ERROR_USAGE, "messages: %s (expected a JSON array)",
                       fb_json_show(r->messages, shown, sizeof shown));
    if (r->tools && !fb_json_is(r->tools, FB_JSON_ARRAY))
        return fb_fail(err, FB_ERROR_USAGE, "messages: tools: %s (expected a JSON array)",
                       fb_json_show(r->tools, shown, sizeof shown));
    return check_messages(r->messages, err);
}

static void add_variable(rendering *r, fb_jinja_variable variable) { r->variables[r->count++] = variable; }

/* The special tokens, then what transformers passes, then the caller's own. */
static fb_status set_variables(const fb_model *m, const fb_chat_options *o, rendering *r, fb_error *err) {
    for (int i = 0; m->chat && i < TOKEN_NAMES; i++)
        if (m->chat->tokens[i])
            add_variable(r, (fb_jinja_variable){.name = token_names[i], .text = m->chat->tokens[i]});
    add_variable(r, (fb_jinja_variable){.name = "messages", .json = r->messages});
    add_variable(r, (fb_jinja_variable){.name = "tools", .json = r->tools});
    add_variable(r, (fb_jinja_variable){.name = "documents"});
    add_variable(r, (fb_jinja_variable){
                        .name = "add_generation_prompt", .is_bool = true, .truth = o->add_generation_prompt});
    int64_t room = MAX_VARIABLES - r->count;
    if ((int64_t)fb_json_size(r->extra) > room)
        return fb_fail(err, FB_ERROR_USAGE, "variables: %zu (at most %lld)", fb_json_size(r->extra),
                       (long long)room);
    for (const fb_json *v = fb_json_first(r->extra); v; v = fb_json_next(v))
        add_variable(r, (fb_jinja_variable){.name = fb_json_key(v), .json = v});
    return FB_OK;
}

static fb_status read_inputs(const fb_model *m, const char *messages, const fb_chat_options *o, rendering *r,
                             fb_error *err) {
    FB_TRY(read_messages(messages, r, err));
    FB_TRY(parse_json("tools", o->tools, FB_JSON_ARRAY, &r->own_tools, err));
    if (r->own_tools) r->tools = r->own_tools;
    FB_TRY(parse_json("variables", o->variables, FB_JSON_OBJECT, &r->extra, err));
    return set_variables(m, o, r, err);
}

/* *source: the template that was chosen. */
static fb_status render(const fb_model *m, const char *messages, const fb_chat_options *o,
                        const char **source, fb_jinja_output *out, fb_error *err) {
    rendering r = {0};
    fb_jinja_template *parsed = NULL;
    fb_status status = read_inputs(m, messages, o, &r, err);
    if (status == FB_OK) status = choose_template(m, o, r.tools != NULL, source, err);
    if (status == FB_OK) status = fb_jinja_parse("chat template", *source, strlen(*source), &parsed, err);
    fb_jinja_options options = {
        .variables = r.variables, .count = r.count, .now = o->now ? o->now : (int64_t)time(NULL)};
    if (status == FB_OK) status = fb_jinja_render(parsed, &options, out, err);
    fb_jinja_free(parsed);
    fb_json_free(r.document);
    fb_json_free(r.own_tools);
    fb_json_free(r.extra);
    return status;
}

fb_status fb_chat_render(const fb_model *m, const char *messages, const fb_chat_options *options, char **text,
                         size_t *bytes, fb_error *err) {
    fb_chat_options o;
    const char *source;
    fb_jinja_output out = {0};
    *text = NULL;
    *bytes = 0;
    FB_TRY(fb_sized_take(&options_type, options, &o, err));
    FB_TRY(render(m, messages, &o, &source, &out, err));
    *text = out.text;
    *bytes = out.size;
    out.text = NULL;
    fb_jinja_output_free(&out);
    return FB_OK;
}

fb_status fb_chat_tokenize(const fb_model *m, const char *messages, const fb_chat_options *options,
                           int32_t **ids, int64_t *count, fb_error *err) {
    fb_chat_options o;
    const char *source;
    fb_jinja_output out = {0};
    *ids = NULL;
    *count = 0;
    if (!m->tokenizer) return fb_fail(err, FB_ERROR_FILE, "model: no tokenizer: text needs one");
    FB_TRY(fb_sized_take(&options_type, options, &o, err));
    FB_TRY(render(m, messages, &o, &source, &out, err));
    fb_status status =
        fb_tokenizer_encode_marked(m->tokenizer, out.text, out.marks, out.size, source, ids, count, err);
    fb_jinja_output_free(&out);
    return status;
}
