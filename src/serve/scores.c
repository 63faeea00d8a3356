/* Log-probabilities: in a chat a list of objects, in a completion four lists side by side. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "serve/completion_json.h"
#include "serve/engine.h"
#include "text/tokenizer.h"

/* A token's bytes. What is no character becomes U+FFFD in JSON; `bytes` of a chat has it as it is. NULL: the
 * model has no tokenizer. */
static char *token_text(const serve_job *j, int32_t token, size_t *bytes) {
    const fb_tokenizer *tokenizer = fb_model_tokenizer(j->engine->model);
    char *text = NULL;
    *bytes = 0;
    if (!tokenizer || fb_tokenizer_token_bytes(tokenizer, token, false, true, &text, bytes, NULL) != FB_OK)
        return NULL;
    return text;
}

static void write_text(const serve_job *j, cli_json *json, const char *key, int32_t token) {
    size_t bytes;
    char *text = token_text(j, token, &bytes);
    cli_json_bytes(json, key, text ? text : "", bytes);
    fb_free(text);
}

/* One token of a chat, as an open object. */
static void write_chat_score(const serve_job *j, cli_json *json, const fb_logprob *score) {
    size_t bytes;
    char *text = token_text(j, score->id, &bytes);
    cli_json_bytes(json, "token", text ? text : "", bytes);
    cli_json_double(json, "logprob", score->logprob);
    cli_json_open(json, "bytes", '[');
    for (size_t i = 0; i < bytes; i++) cli_json_int(json, NULL, (unsigned char)text[i]);
    cli_json_close(json, ']');
    fb_free(text);
}

static void write_chat_token(serve_reply_state *r, cli_json *json, const serve_scored *t) {
    const serve_job *j = r->job;
    cli_json_open(json, NULL, '{');
    write_chat_score(j, json, t->scores);
    cli_json_open(json, "top_logprobs", '[');
    for (int64_t k = 1; k <= r->params.logprobs; k++) {
        cli_json_open(json, NULL, '{');
        write_chat_score(j, json, &t->scores[k]);
        cli_json_close(json, '}');
    }
    cli_json_close(json, ']');
    cli_json_close(json, '}');
}

static void write_token(serve_reply_state *r, cli_json *json, const serve_scored *t) {
    write_text(r->job, json, NULL, t->piece->token);
}

static void write_score(serve_reply_state *r, cli_json *json, const serve_scored *t) {
    (void)r;
    cli_json_double(json, NULL, t->scores->logprob);
}

static int64_t characters(const char *text, size_t bytes) {
    int64_t count = 0;
    for (size_t i = 0; i < bytes; i++) count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

/* In JSON, where all that is no character looks alike. */
static bool shows_as(const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
    if (a_bytes == b_bytes && memcmp(a, b, a_bytes) == 0) return true;
    return !fb_json_is_utf8(a, a_bytes) && !fb_json_is_utf8(b, b_bytes);
}

/* The best tokens as an object, by their texts; of two with the same text the better one. */
static void write_best(serve_reply_state *r, cli_json *json, const serve_scored *t) {
    if (isnan(t->scores->logprob)) {
        cli_json_string(json, NULL, NULL);
        return;
    }
    struct {
        char *text;
        size_t bytes;
    } best[FB_MAX_LOGPROBS];
    int64_t count = r->params.logprobs;
    cli_json_open(json, NULL, '{');
    for (int64_t k = 0; k < count; k++) {
        char *text = best[k].text = token_text(r->job, t->scores[1 + k].id, &best[k].bytes);
        bool first = text != NULL;
        for (int64_t l = 0; first && l < k; l++)
            first = !best[l].text || !shows_as(best[l].text, best[l].bytes, text, best[k].bytes);
        /* A key ends at a NUL, which such a token has instead of a text. */
        if (first && strlen(text) == best[k].bytes) cli_json_double(json, text, t->scores[1 + k].logprob);
    }
    for (int64_t k = 0; k < count; k++) fb_free(best[k].text);
    cli_json_close(json, '}');
}

/* Characters of a prompt's token in the echoed text. What the tokenizer put in front has none. */
static int64_t prompt_characters(const serve_job *j, const serve_part *part, int32_t token, bool first) {
    const fb_tokenizer *tokenizer = fb_model_tokenizer(j->engine->model);
    size_t bytes, plain;
    char *text, *without;
    if (!tokenizer || !part->prompt_text) return 0;
    if (fb_tokenizer_token_bytes(tokenizer, token, first, true, &text, &bytes, NULL) != FB_OK) return 0;
    int64_t count = characters(text, bytes);
    if (first && fb_tokenizer_token_bytes(tokenizer, token, true, false, &without, &plain, NULL) == FB_OK) {
        bool echoed = bytes <= part->prompt_bytes && memcmp(part->prompt_text, text, bytes) == 0;
        if (!plain && !echoed) count = 0;
        fb_free(without);
    }
    fb_free(text);
    return count;
}

/* Where a token's text begins. A prompt's tokens have no text of their own: it was echoed as a whole. */
static void write_offset(serve_reply_state *r, cli_json *json, const serve_scored *t) {
    const serve_job *j = r->job;
    int64_t *at = &r->offsets[t->choice];
    if (t->piece->token >= 0) cli_json_int(json, NULL, *at);
    if (t->piece->prompt)
        *at += prompt_characters(j, &j->parts[t->choice / j->samples], t->piece->token, *at == 0);
    else
        *at += characters(t->text, t->piece->text_bytes);
}

/* ---- lists ------------------------------------------------------------------------------------- */

typedef struct list {
    const char *name;
    void (*write)(serve_reply_state *reply, cli_json *json, const serve_scored *token);
    bool texts; /* also of text without a token */
} list;

static const list *lists_of(const serve_reply_state *r) {
    static const list chat[] = {{"content", write_chat_token, false}, {NULL, NULL, false}};
    static const list completion[] = {{"tokens", write_token, false},
                                      {"token_logprobs", write_score, false},
                                      {"top_logprobs", write_best, false},
                                      {"text_offset", write_offset, true},
                                      {NULL, NULL, false}};
    return serve_is_chat(r) ? chat : completion;
}

const char *serve_scores_name(const serve_reply_state *r, int index) { return lists_of(r)[index].name; }

void serve_scores_write(serve_reply_state *r, int index, cli_json *json, const serve_scored *token) {
    const list *l = &lists_of(r)[index];
    if (token->piece->token >= 0 || l->texts) l->write(r, json, token);
}
