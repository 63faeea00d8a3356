/* What takes long before a reply: on a worker, while HTTP goes on. */
#include <stdlib.h>

#include "serve/server.h"

typedef struct made {
    serve_work work; /* first: the worker gives it back */
    serve_exchange *exchange;
    serve_make *make;
    char *bytes;
    size_t size;
    serve_fault fault; /* status 0: none */
    atomic_bool done;
} made;

bool serve_prepare_later(serve_server *server, serve_work *work, serve_fault *f) {
    return serve_worker_add(server->preparers, work) ||
           serve_fault_set(f, 429, NULL, "busy", "server: too many long requests are waiting");
}

static void make(made *m) {
    serve_exchange *x = m->exchange;
    FILE *out = open_memstream(&m->bytes, &m->size);
    bool good = out && m->make(x->user, x->body, x->body_size, out, &m->fault);
    serve_body_done(x);
    if (good) putc('\n', out);
    if (out && fclose(out) == 0) return;
    if (!m->fault.status) serve_fault_set(&m->fault, 503, NULL, "no_memory", "reply: no memory");
}

static void run(serve_work *work) {
    made *m = (made *)(void *)work;
    make(m);
    atomic_store(&m->done, true);
    serve_wake(m->exchange); /* which may free it at once */
}

static void reply(serve_exchange *x) {
    made *m = x->state;
    if (!atomic_load(&m->done)) return;
    if (m->fault.status) {
        serve_refuse_fault(x, &m->fault);
        return;
    }
    serve_reply_json(x, 200, m->bytes, m->size);
    m->bytes = NULL;
}

static void release(serve_exchange *x) {
    made *m = x->state;
    if (m) free(m->bytes);
    free(m);
}

void serve_reply_made(serve_exchange *x, serve_make *function) {
    made *m = calloc(1, sizeof *m);
    if (!m) {
        serve_refuse(x, 503, NULL, "no_memory", "request: no memory");
        return;
    }
    x->state = m;
    x->release = release;
    m->work.run = run;
    m->exchange = x;
    m->make = function;
    if (x->body_size > SERVE_SMALL_BODY) {
        if (serve_prepare_later(x->user, &m->work, &m->fault))
            x->resume = reply;
        else
            serve_refuse_fault(x, &m->fault);
        return;
    }
    make(m);
    atomic_store(&m->done, true);
    reply(x);
}
