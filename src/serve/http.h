/* HTTP by libmicrohttpd: routes, bodies, replies that wait or stream, clients that leave. Nothing here knows
 * a model.
 *
 * An exchange is one request and its reply. Its route's `handle` runs in a thread of libmicrohttpd and does
 * one of three things:
 *   - it replies (serve_reply, serve_reply_json, serve_refuse);
 *   - it sets `resume` and returns: the exchange waits, and `resume` is called after serve_wake. It has the
 *     same three choices;
 *   - it calls serve_stream: `more` is then called whenever the client can take more.
 * Work that takes long belongs to other threads, which call serve_wake when something has come. */
#ifndef FB_SERVE_HTTP_H
#define FB_SERVE_HTTP_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "serve/access.h"
#include "serve/body.h"

struct MHD_Connection;

typedef struct serve_http serve_http;
typedef struct serve_exchange serve_exchange;

enum {
    SERVE_OPEN = 1 /* no key is needed */
};

typedef struct serve_route {
    const char *method, *path; /* a path that ends in {…} takes any text there */
    int flags;
    void (*handle)(serve_exchange *exchange);
    const char *summary; /* for /openapi.json */
} serve_route;

typedef struct serve_http_options {
    const char *host;
    uint16_t port;             /* 0: any that is free */
    const serve_route *routes; /* up to one without a path */
    serve_access access;
    size_t max_body, max_bodies; /* bytes of one, and of all at the same time */
    int32_t timeout;             /* seconds without a byte after which a connection is closed */
    int32_t connections;
    void *user; /* of all exchanges */
} serve_http_options;

struct serve_exchange {
    void *user;
    const serve_route *route;
    const char *rest; /* of the path, where the route's has {…}; while `handle` runs */
    bool admin;       /* the client may change what runs */
    /* [body_size], and a NUL; until serve_body_done, or the end of the exchange. */
    const char *body;
    size_t body_size;
    void *state; /* the handler's */
    void (*resume)(serve_exchange *exchange);
    /* Writes what there is by now; false: that was all. */
    bool (*more)(serve_exchange *exchange, FILE *out);
    /* The client has left. Any thread, at most once, never after `release`. */
    void (*gone)(serve_exchange *exchange);
    void (*release)(serve_exchange *exchange); /* the last call */
    /* Of http.c: */
    serve_http *http;
    struct MHD_Connection *connection;
    uint64_t number;  /* of the exchange in the monitor; 0: it is not there */
    char allowed[40]; /* methods, of a request with another one */
    serve_body arriving;
    size_t length;  /* of the body, as the client announced it; 0: it did not */
    bool forwarded; /* by a proxy */
    bool closes;    /* the connection, with the reply */
    bool handled, replied;
    pthread_mutex_t lock;
    bool suspended, woken; /* guarded by the lock */
    char *pending;         /* [pending_size] of a stream, of which [0, pending_at) are sent */
    size_t pending_size, pending_at;
    bool ended;    /* `more` said so */
    bool idle;     /* there was nothing to send */
    double since;  /* when this count of bytes began … */
    int64_t taken; /* … that the client took */
};

/* Listens. *port is the port, also if it was chosen here. False: `why` says the reason. */
bool serve_http_open(const serve_http_options *options, serve_http **out, uint16_t *port, char *why,
                     size_t why_size);
/* No new connections. */
void serve_http_quiesce(serve_http *http);
/* Exchanges that have no complete reply yet. */
int64_t serve_http_busy(serve_http *http);
/* Of these, those that wait for serve_wake. */
int64_t serve_http_waiting(serve_http *http);
int64_t serve_http_connections(serve_http *http);
/* Bytes of the bodies of requests that arrive or are answered, without the first 16 KiB of each. */
int64_t serve_http_bodies(serve_http *http);
/* From now on no exchange begins to wait: its connection is closed instead. Those that wait are still to be
 * woken. */
void serve_http_end_waiting(serve_http *http);
/* After serve_http_end_waiting, and no exchange is waiting. */
void serve_http_close(serve_http *http);

/* `bytes` are copied. */
void serve_reply(serve_exchange *exchange, int status, const char *type, const char *bytes, size_t size);
/* The bytes come from malloc (or open_memstream) and are taken over; NULL: there was no memory. */
void serve_reply_json(serve_exchange *exchange, int status, char *bytes, size_t size);
/* The page: a static text, with the headers that keep it to itself. */
void serve_reply_page(serve_exchange *exchange, const char *bytes, size_t size);
/* The API's error object. `param` and `code` may be NULL. */
void serve_refuse(serve_exchange *exchange, int status, const char *param, const char *code,
                  const char *format, ...) __attribute__((format(printf, 5, 6)));
/* The object alone, as a member "error" of what `out` is writing. */
void serve_error_object(FILE *out, int status, const char *param, const char *code, const char *message);

/* Begins a reply of server-sent events that `more` writes. A client must take what there is for it at a least
 * rate, on average over the timeout; one that does not is dropped. */
void serve_stream(serve_exchange *exchange);
/* The same for a JSON value that is too large to be written at once. */
void serve_reply_parts(serve_exchange *exchange);
/* Any thread. */
void serve_wake(serve_exchange *exchange);
/* The body has been read: its memory goes. Whatever thread works on the exchange. */
void serve_body_done(serve_exchange *exchange);

/* A value of the query string; NULL: it is not there. */
const char *serve_query(serve_exchange *exchange, const char *name);

#endif
