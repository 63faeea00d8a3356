/* The server as its endpoints see it: the models, and how a request names one. */
#ifndef FB_SERVE_SERVER_H
#define FB_SERVE_SERVER_H

#include "serve/engine.h"
#include "serve/http.h"
#include "serve/worker.h"

#define SERVE_MAX_MODELS 16

typedef struct serve_server {
    serve_engine *engines[SERVE_MAX_MODELS];
    int count;
    serve_http *http;
    serve_worker *embedder;      /* of one thread: it computes */
    serve_worker *preparers;     /* what is long of a request, before its first step */
    atomic_llong unread;         /* bytes of answers that were not sent */
    serve_record *record;        /* NULL: none */
    fb_sampler_options sampling; /* what a request does not say */
    int64_t started;             /* seconds since 1970 */
    atomic_bool draining, cut;   /* no new requests; and what runs ends */
} serve_server;

extern const serve_route serve_routes[];

/* The model of this name, or the first one if it is NULL. NULL: `fault` says which there are. */
serve_engine *serve_find_engine(const serve_server *server, const char *name, serve_fault *fault);
/* The same for a GET request, by its query; NULL: it is refused already. */
serve_engine *serve_query_engine(serve_exchange *exchange);

void serve_refuse_fault(serve_exchange *exchange, const serve_fault *fault);

/* A reply that is written to *out, and then sent; NULL: no memory, which is replied. */
typedef struct serve_writer {
    char *bytes;
    size_t size;
    FILE *out;
} serve_writer;
bool serve_writer_open(serve_exchange *exchange, serve_writer *writer);
void serve_writer_send(serve_exchange *exchange, serve_writer *writer);

/* Bodies above this are taken apart on a worker. Up to it, that takes some milliseconds at most. */
#define SERVE_SMALL_BODY 16384

/* Replies with the JSON that `make` writes for the exchange's body, or with the fault that it sets and
 * returns false for. It runs on a worker if the body is large. */
typedef bool serve_make(const serve_server *server, const char *body, size_t size, FILE *out,
                        serve_fault *fault);
void serve_reply_made(serve_exchange *exchange, serve_make *make);
/* False: too many wait already, which is `fault`. */
bool serve_prepare_later(serve_server *server, serve_work *work, serve_fault *fault);

/* The handlers of the routes. */
void serve_completions(serve_exchange *exchange);
void serve_chat(serve_exchange *exchange);
void serve_embeddings(serve_exchange *exchange);
void serve_tokenize(serve_exchange *exchange);
void serve_detokenize(serve_exchange *exchange);
void serve_apply_template(serve_exchange *exchange);
void serve_models(serve_exchange *exchange);
void serve_one_model(serve_exchange *exchange);
void serve_health(serve_exchange *exchange);
void serve_metrics_text(serve_exchange *exchange);
void serve_props(serve_exchange *exchange);
void serve_openapi(serve_exchange *exchange);
void serve_page(serve_exchange *exchange);
void serve_fuses(serve_exchange *exchange);
void serve_fuses_switch(serve_exchange *exchange);

#endif
