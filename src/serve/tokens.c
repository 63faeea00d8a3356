/* /tokenize, /detokenize and /apply-template: text and tokens without a step. */
#include <stdlib.h>
#include <string.h>

#include "cli/json_out.h"
#include "serve/prompt.h"
#include "serve/server.h"

static bool library_fault(serve_fault *f, const char *param, const fb_error *err) {
    return serve_fault_set(f, err->status == FB_ERROR_MEMORY ? 503 : 400, param, "invalid_value", "%s: %s",
                           param, err->message);
}

static bool wrong(serve_fault *f, const char *param, const char *what) {
    return serve_fault_set(f, 400, param, "invalid_value", "%s: %s", param, what);
}

/* The model that a body names, which has only known members; NULL: `fault` says why. */
static serve_engine *take_engine(const serve_server *server, const fb_json *body, const char *const *known,
                                 serve_fault *f) {
    const fb_json *model = fb_json_member(body, "model");
    if (model && !fb_json_is(model, FB_JSON_STRING)) {
        wrong(f, "model", "not a text");
        return NULL;
    }
    for (const fb_json *v = fb_json_first(body); v; v = fb_json_next(v)) {
        int i = 0;
        while (known[i] && strcmp(known[i], fb_json_key(v)) != 0) i++;
        if (known[i]) continue;
        serve_fault_set(f, 400, fb_json_key(v), "unknown_parameter", "%.64s: unknown parameter",
                        fb_json_key(v));
        return NULL;
    }
    return serve_find_engine(server, fb_json_text_of(model), f);
}

static void write_ids(FILE *out, const int32_t *ids, int64_t count) {
    cli_json json = {.out = out};
    cli_json_open(&json, NULL, '{');
    cli_json_open(&json, "tokens", '[');
    for (int64_t i = 0; i < count; i++) cli_json_int(&json, NULL, ids[i]);
    cli_json_close(&json, ']');
    cli_json_int(&json, "count", count);
    cli_json_close(&json, '}');
}

static void write_text(FILE *out, const char *key, const char *text, size_t bytes) {
    cli_json json = {.out = out};
    cli_json_open(&json, NULL, '{');
    cli_json_bytes(&json, key, text, bytes);
    cli_json_close(&json, '}');
}

/* ---- /tokenize ---------------------------------------------------------------------------------- */

static bool tokenize(const serve_server *server, const fb_json *body, FILE *out, serve_fault *f) {
    static const char *const known[] = {"model", "content", "prompt", "add_special", NULL};
    fb_error err;
    int32_t *ids;
    int64_t count;
    serve_engine *e = take_engine(server, body, known, f);
    const fb_json *text = fb_json_member(body, "content"), *special = fb_json_member(body, "add_special");
    const fb_json *prompt = fb_json_member(body, "prompt");
    if (!e) return false;
    if (text && prompt) return wrong(f, "prompt", "another name of content, which is there");
    if (!text) text = prompt;
    if (!fb_json_is(text, FB_JSON_STRING)) return wrong(f, "content", "not a text");
    if (special && !fb_json_is(special, FB_JSON_BOOL)) return wrong(f, "add_special", "not true or false");
    if (fb_tokenize(e->model, fb_json_text_of(text), fb_json_size(text), fb_json_bool_of(special), &ids,
                    &count, &err) != FB_OK)
        return library_fault(f, "content", &err);
    write_ids(out, ids, count);
    fb_free(ids);
    return true;
}

static bool make_tokens(const serve_server *server, const char *bytes, size_t size, FILE *out,
                        serve_fault *f) {
    fb_json *body;
    bool good = serve_body_parse(bytes, size, &body, f) && tokenize(server, body, out, f);
    fb_json_free(body);
    return good;
}

void serve_tokenize(serve_exchange *x) { serve_reply_made(x, make_tokens); }

/* ---- /detokenize -------------------------------------------------------------------------------- */

static bool detokenize(const serve_server *server, const fb_json *body, FILE *out, serve_fault *f) {
    static const char *const known[] = {"model", "tokens", NULL};
    fb_error err;
    int32_t *ids = NULL;
    int64_t count;
    char *text;
    size_t bytes;
    serve_engine *e = take_engine(server, body, known, f);
    const fb_json *tokens = fb_json_member(body, "tokens");
    if (!e) return false;
    if (!fb_json_is(tokens, FB_JSON_ARRAY)) return wrong(f, "tokens", "not an array of ids");
    bool good = serve_prompt_ids(e, "tokens", tokens, &ids, &count, f);
    if (good && fb_detokenize(e->model, ids, count, true, &text, &bytes, &err) != FB_OK)
        good = library_fault(f, "tokens", &err);
    free(ids);
    if (!good) return false;
    write_text(out, "content", text, bytes);
    fb_free(text);
    return true;
}

static bool make_text(const serve_server *server, const char *bytes, size_t size, FILE *out, serve_fault *f) {
    fb_json *body;
    bool good = serve_body_parse(bytes, size, &body, f) && detokenize(server, body, out, f);
    fb_json_free(body);
    return good;
}

void serve_detokenize(serve_exchange *x) { serve_reply_made(x, make_text); }

/* ---- /apply-template ---------------------------------------------------------------------------- */

static bool make_prompt(const serve_server *server, const char *bytes, size_t size, FILE *out,
                        serve_fault *f) {
    serve_params p;
    char *text;
    size_t length;
    if (!serve_params_parse(SERVE_CHAT, bytes, size, &server->sampling, &p, f)) return false;
    serve_engine *e = serve_find_engine(server, p.model, f);
    bool good = e && serve_prompt_messages(e, &p, &text, &length, NULL, NULL, f);
    if (good) {
        write_text(out, "prompt", text, length);
        fb_free(text);
    }
    serve_params_free(&p);
    return good;
}

void serve_apply_template(serve_exchange *x) { serve_reply_made(x, make_prompt); }
