/* /v1/embeddings: the mean of the last hidden states of a text's tokens, of length 1. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/json_out.h"
#include "serve/prompt.h"
#include "serve/server.h"

#define MAX_INPUTS 256
/* Tokens of one input. A session of its own computes them. */
#define MAX_TOKENS 8192

typedef struct embedding {
    serve_work work; /* first: the worker gives it back; of one and then another */
    serve_engine *engine;
    serve_exchange *exchange;
    serve_params params; /* only the prompts are used */
    serve_job *texts;    /* the inputs as parts; never submitted */
    bool base64;
    int64_t width;
    float *vectors; /* [inputs, width] */
    double *sum;    /* [width] of the input that is computed */
    int64_t layers;
    serve_fault fault; /* status 0: none */
    atomic_bool gone;
    atomic_bool done;
} embedding;

/* ---- computing, on the worker ------------------------------------------------------------------- */

static bool goes_on(const embedding *e) {
    const serve_server *server = e->exchange->user;
    return !atomic_load(&e->gone) && !atomic_load(&server->cut);
}

static bool on_hidden(void *user, int64_t layer, int64_t position, const float *hidden, int64_t rows,
                      int64_t cols) {
    embedding *e = user;
    (void)position;
    for (int64_t i = 0; layer == e->layers && i < rows * cols; i++) e->sum[i % cols] += (double)hidden[i];
    return goes_on(e);
}

static void normalise(const double *sum, int64_t width, float *out) {
    double squares = 0;
    for (int64_t i = 0; i < width; i++) squares += sum[i] * sum[i];
    double scale = squares > 0 ? 1 / sqrt(squares) : 0;
    for (int64_t i = 0; i < width; i++) out[i] = (float)(sum[i] * scale);
}

static void compute(embedding *e) {
    fb_error err = {.status = FB_OK};
    fb_session *session;
    fb_session_options o = e->engine->session;
    o.draft = NULL;
    o.capacity = e->engine->capacity < MAX_TOKENS ? e->engine->capacity : MAX_TOKENS;
    o.on_hidden = on_hidden;
    o.user = e;
    fb_status status = fb_session_create(e->engine->model, &o, &session, &err);
    for (int32_t i = 0; status == FB_OK && i < e->texts->part_count && goes_on(e); i++) {
        const serve_part *part = &e->texts->parts[i];
        memset(e->sum, 0, (size_t)e->width * sizeof *e->sum);
        fb_session_reset(session);
        status = fb_session_prefill(session, part->prompt, part->prompt_count, &err);
        normalise(e->sum, e->width, e->vectors + i * e->width);
    }
    fb_session_free(session);
    if (!goes_on(e))
        serve_fault_set(&e->fault, 503, NULL, "stopping", "server: it is stopping");
    else if (status != FB_OK)
        serve_fault_set(&e->fault, 500, "input", "failed", "%s", err.message);
}

static void count(const embedding *e) {
    serve_metrics *m = &e->engine->metrics;
    int64_t tokens = 0;
    for (int32_t i = 0; i < e->texts->part_count; i++) tokens += e->texts->parts[i].prompt_count;
    atomic_fetch_add(&m->embeddings, e->texts->part_count);
    atomic_fetch_add(&m->embedding_tokens, tokens);
}

static void run(serve_work *work) {
    embedding *e = (embedding *)(void *)work;
    compute(e);
    if (!e->fault.status) count(e);
    atomic_store(&e->done, true);
    serve_wake(e->exchange); /* which may free the embedding at once */
}

/* ---- the reply --------------------------------------------------------------------------------- */

static void write_base64(FILE *out, const float *values, int64_t count) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *bytes = (const unsigned char *)values;
    size_t size = (size_t)count * sizeof *values;
    for (size_t i = 0; i < size; i += 3) {
        uint32_t group = (uint32_t)bytes[i] << 16;
        if (i + 1 < size) group |= (uint32_t)bytes[i + 1] << 8;
        if (i + 2 < size) group |= bytes[i + 2];
        char text[4] = {digits[group >> 18], digits[group >> 12 & 63], digits[group >> 6 & 63],
                        digits[group & 63]};
        if (i + 1 >= size) text[2] = '=';
        if (i + 2 >= size) text[3] = '=';
        fwrite(text, 1, sizeof text, out);
    }
}

static void write_vector(const embedding *e, cli_json *json, int32_t index) {
    const float *vector = e->vectors + index * e->width;
    cli_json_open(json, NULL, '{');
    cli_json_string(json, "object", "embedding");
    cli_json_int(json, "index", index);
    if (e->base64) {
        fputs(",\"embedding\":\"", json->out);
        write_base64(json->out, vector, e->width);
        putc('"', json->out);
    } else {
        cli_json_open(json, "embedding", '[');
        for (int64_t i = 0; i < e->width; i++) cli_json_real(json, NULL, (double)vector[i]);
        cli_json_close(json, ']');
    }
    cli_json_close(json, '}');
}

static void on_resume(serve_exchange *x) {
    const embedding *e = x->state;
    serve_writer w;
    int64_t tokens = 0;
    if (!atomic_load(&e->done)) return;
    if (e->fault.status) {
        serve_refuse_fault(x, &e->fault);
        return;
    }
    if (!serve_writer_open(x, &w)) return;
    for (int32_t i = 0; i < e->texts->part_count; i++) tokens += e->texts->parts[i].prompt_count;
    cli_json json = {.out = w.out};
    cli_json_open(&json, NULL, '{');
    cli_json_string(&json, "object", "list");
    cli_json_string(&json, "model", e->engine->name);
    cli_json_open(&json, "data", '[');
    for (int32_t i = 0; i < e->texts->part_count; i++) write_vector(e, &json, i);
    cli_json_close(&json, ']');
    cli_json_open(&json, "usage", '{');
    cli_json_int(&json, "prompt_tokens", tokens);
    cli_json_int(&json, "total_tokens", tokens);
    cli_json_close(&json, '}');
    cli_json_close(&json, '}');
    serve_writer_send(x, &w);
}

static void on_gone(serve_exchange *x) { atomic_store(&((embedding *)x->state)->gone, true); }

static void on_release(serve_exchange *x) {
    embedding *e = x->state;
    if (!e) return;
    serve_job_give(e->texts);
    fb_json_free((fb_json *)(uintptr_t)e->params.document);
    free(e->vectors);
    free(e->sum);
    free(e);
}

/* ---- the request ------------------------------------------------------------------------------- */

static bool take_format(embedding *e, const fb_json *format, serve_fault *f) {
    const char *name = fb_json_text_of(format);
    if (!format || (name && strcmp(name, "float") == 0)) return true;
    e->base64 = name && strcmp(name, "base64") == 0;
    return e->base64 || serve_fault_set(f, 400, "encoding_format", "invalid_value",
                                        "encoding_format: neither float nor base64");
}

static bool take_body(embedding *e, const serve_server *server, const fb_json *body, serve_fault *f) {
    static const char *const known[] = {"model", "input", "encoding_format", "user", NULL};
    for (const fb_json *v = fb_json_first(body); v; v = fb_json_next(v)) {
        int i = 0;
        while (known[i] && strcmp(known[i], fb_json_key(v)) != 0) i++;
        if (!known[i] && !fb_json_is(v, FB_JSON_NULL))
            return serve_fault_set(f, 400, fb_json_key(v), "unknown_parameter", "%.64s: unknown parameter",
                                   fb_json_key(v));
    }
    const fb_json *model = fb_json_member(body, "model"), *user = fb_json_member(body, "user");
    if (model && !fb_json_is(model, FB_JSON_STRING))
        return serve_fault_set(f, 400, "model", "invalid_value", "model: not a text");
    if (user && !fb_json_is(user, FB_JSON_STRING))
        return serve_fault_set(f, 400, "user", "invalid_value", "user: not a text");
    e->engine = serve_find_engine(server, fb_json_text_of(model), f);
    e->params.prompt = fb_json_member(body, "input");
    e->params.prompt_name = "input";
    e->params.wants_no_answer = true;
    if (!e->engine || !take_format(e, fb_json_member(body, "encoding_format"), f)) return false;
    if (!fb_json_is(e->params.prompt, FB_JSON_STRING) && !fb_json_is(e->params.prompt, FB_JSON_ARRAY))
        return serve_fault_set(f, 400, "input", "invalid_value",
                               "input: not a text, token ids, or an array of one of these");
    return true;
}

static bool take_texts(embedding *e, serve_fault *f) {
    fb_model_info info;
    int32_t count = serve_prompt_count(&e->params, f);
    if (!count) return false;
    fb_model_get_info(e->engine->model, &info);
    e->width = info.hidden;
    e->layers = info.layers;
    e->texts = serve_job_create(e->engine, count, 1, -1);
    e->vectors = malloc((size_t)(count * e->width) * sizeof *e->vectors);
    e->sum = malloc((size_t)e->width * sizeof *e->sum);
    if (!e->texts || !e->vectors || !e->sum)
        return serve_fault_set(f, 503, NULL, "no_memory", "request: no memory");
    if (!serve_prompt_take(e->engine, &e->params, e->texts, f)) return false;
    for (int32_t i = 0; i < count; i++)
        if (e->texts->parts[i].prompt_count > MAX_TOKENS)
            return serve_fault_set(f, 400, "input", "context_length_exceeded",
                                   "input: %lld tokens (at most %d)",
                                   (long long)e->texts->parts[i].prompt_count, MAX_TOKENS);
    return true;
}

/* Takes the body apart and has it computed. False: there is a fault. */
static bool prepare(embedding *e) {
    serve_server *server = e->exchange->user;
    serve_fault *f = &e->fault;
    fb_json *body = NULL;
    bool good = !atomic_load(&server->draining) ||
                serve_fault_set(f, 503, NULL, "stopping", "server: it is stopping");
    good = good && serve_body_parse(e->exchange->body, e->exchange->body_size, &body, f);
    serve_body_done(e->exchange);
    e->params.document = body;
    if (!good || !take_body(e, server, body, f) || !take_texts(e, f)) return false;
    e->work.run = run;
    return serve_worker_add(server->embedder, &e->work) ||
           serve_fault_set(f, 429, NULL, "busy", "server: too many embeddings are waiting");
}

static void prepare_later(serve_work *work) {
    embedding *e = (embedding *)(void *)work;
    if (prepare(e)) return; /* the embedder has it */
    atomic_store(&e->done, true);
    serve_wake(e->exchange);
}

void serve_embeddings(serve_exchange *x) {
    embedding *e = calloc(1, sizeof *e);
    if (!e) {
        serve_refuse(x, 503, NULL, "no_memory", "request: no memory");
        return;
    }
    x->state = e;
    x->release = on_release;
    e->exchange = x;
    e->work.run = prepare_later;
    bool good =
        x->body_size > SERVE_SMALL_BODY ? serve_prepare_later(x->user, &e->work, &e->fault) : prepare(e);
    if (good) {
        x->gone = on_gone;
        x->resume = on_resume;
    } else {
        serve_refuse_fault(x, &e->fault);
    }
}
