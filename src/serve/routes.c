/* Which path leads where. */
#include <string.h>

#include "serve/server.h"

const serve_route serve_routes[] = {
    {"GET", "/", SERVE_OPEN, serve_page, "The page"},
    {"GET", "/health", SERVE_OPEN, serve_health, "Whether the server takes requests"},
    {"GET", "/openapi.json", SERVE_OPEN, serve_openapi, "This document"},
    {"GET", "/metrics", 0, serve_metrics_text, "Counters and histograms for Prometheus"},
    {"GET", "/props", 0, serve_props, "What a model is and how it runs"},
    {"GET", "/v1/models", 0, serve_models, "The models"},
    {"GET", "/v1/models/{model}", 0, serve_one_model, "One of them"},
    {"POST", "/v1/completions", 0, serve_completions, "Continue a text"},
    {"POST", "/v1/chat/completions", 0, serve_chat, "Answer a conversation"},
    {"POST", "/v1/embeddings", 0, serve_embeddings, "The mean of a text's last hidden states"},
    {"POST", "/tokenize", 0, serve_tokenize, "Turn a text into token ids"},
    {"POST", "/detokenize", 0, serve_detokenize, "Turn token ids into a text"},
    {"POST", "/apply-template", 0, serve_apply_template, "What the model sees of a conversation"},
    {"GET", "/fuses", 0, serve_fuses, "Every fuse: what it saves, and whether it runs"},
    {"POST", "/fuses", 0, serve_fuses_switch, "Switch fuses"},
    {NULL, NULL, 0, NULL, NULL},
};

serve_engine *serve_find_engine(const serve_server *server, const char *name, serve_fault *fault) {
    char names[256] = "";
    if (!name) return server->engines[0];
    for (int i = 0; i < server->count; i++)
        if (strcmp(server->engines[i]->name, name) == 0) return server->engines[i];
    for (int i = 0; i < server->count; i++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", server->engines[i]->name);
    }
    serve_fault_set(fault, 404, "model", "model_not_found", "model: %.64s: no such model (here: %s)", name,
                    names);
    return NULL;
}

serve_engine *serve_query_engine(serve_exchange *x) {
    serve_fault fault = {0};
    serve_engine *e = serve_find_engine(x->user, serve_query(x, "model"), &fault);
    if (!e) serve_refuse_fault(x, &fault);
    return e;
}

void serve_refuse_fault(serve_exchange *x, const serve_fault *f) {
    serve_refuse(x, f->status, f->param[0] ? f->param : NULL, f->code[0] ? f->code : NULL, "%s", f->message);
}

bool serve_writer_open(serve_exchange *x, serve_writer *w) {
    *w = (serve_writer){0};
    w->out = open_memstream(&w->bytes, &w->size);
    if (!w->out) serve_refuse(x, 503, NULL, "no_memory", "reply: no memory");
    return w->out != NULL;
}

void serve_writer_send(serve_exchange *x, serve_writer *w) {
    putc('\n', w->out);
    if (fclose(w->out) == 0)
        serve_reply_json(x, 200, w->bytes, w->size);
    else
        serve_refuse(x, 503, NULL, "no_memory", "reply: no memory");
}
