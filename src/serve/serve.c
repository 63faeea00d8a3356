#include "serve/serve.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "serve/record.h"
#include "serve/server.h"

#define DEFAULT_CONTEXT 32768
#define LARGE_MEMORY    (256 << 10)
#define TICK_US         50000
/* Threads for long bodies and schemas: a second one, so that one of them does not hold up the others. */
#define PREPARERS 2
#define NICENESS  10 /* what runs already does not wait for what is new */
/* Seconds for clients to take what they were sent, after everything has ended. */
#define LAST_SECONDS 2.0

static fb_status fail(fb_error *err, fb_status status, const char *what, const char *why) {
    err->status = status;
    snprintf(err->message, sizeof err->message, "%s: %s", what, why);
    return status;
}

/* A connection is an open file. The system's default of 1024 is for programs that use select. */
static void allow_connections(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* Large bodies and replies go back to the system when they are freed. Otherwise glibc learns from the first
 * ones to keep those that come later, in each thread. */
static void give_memory_back(void) {
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, LARGE_MEMORY);
#endif
}

/* ---- models ------------------------------------------------------------------------------------ */

/* One request alone must fit into the pool. */
static void set_capacity(const serve_options *o, serve_engine *e) {
    fb_model_info info;
    fb_model_get_info(e->model, &info);
    int64_t context = o->context                       ? o->context
                      : info.context < DEFAULT_CONTEXT ? info.context
                                                       : DEFAULT_CONTEXT;
    if (context > info.context) context = info.context;
    if (o->scheduler.cache_tokens && context > o->scheduler.cache_tokens) context = o->scheduler.cache_tokens;
    e->session.capacity = context;
}

static fb_status start_engine(const serve_options *o, const serve_model *model, serve_server *server,
                              fb_error *err) {
    serve_engine *e = calloc(1, sizeof *e);
    if (!e) return fail(err, FB_ERROR_MEMORY, "server", "no memory");
    e->name = model->name;
    e->path = model->path;
    e->model = model->model;
    e->draft = model->draft;
    e->draft_source = model->source;
    e->draft_tokens = o->draft_tokens;
    e->session = o->session;
    e->session.draft = model->draft;
    e->options = o->scheduler;
    e->max_jobs = o->max_requests;
    e->record = server->record;
    e->unread = &server->unread;
    set_capacity(o, e);
    server->engines[server->count++] = e;
    fb_status status = serve_engine_open(e, err);
    if (status == FB_OK) status = serve_engine_start(e, err);
    if (status == FB_OK && e->record) serve_record_engine(e->record, e);
    return status;
}

static void stop_engines(const serve_options *o, serve_server *server) {
    for (int i = 0; i < server->count; i++) {
        serve_engine_close(server->engines[i]);
        free(server->engines[i]);
    }
    for (int i = server->count; i < o->model_count; i++) {
        fb_draft_free(o->models[i].draft);
        fb_model_free(o->models[i].model);
        free(o->models[i].path);
        free(o->models[i].name);
    }
}

/* ---- running ----------------------------------------------------------------------------------- */

static void announce(const serve_options *o, uint16_t port) {
    char url[300];
    const char *names[SERVE_MAX_MODELS];
    bool v6 = strchr(o->host, ':') != NULL;
    snprintf(url, sizeof url, "http://%s%.200s%s:%u/", v6 ? "[" : "", o->host, v6 ? "]" : "", port);
    for (int i = 0; i < o->model_count; i++) names[i] = o->models[i].name;
    if (o->on_ready) o->on_ready(url, o->model_count, names);
}

static void wait_idle(serve_server *server, double seconds) {
    for (double began = fb_now(); serve_http_busy(server->http) > 0 && fb_now() - began < seconds;)
        usleep(TICK_US);
}

static void cut_off(serve_engine *e) {
    fb_scheduler_cancel(e->scheduler, 0);
    serve_engine_wake(e);
}

static void cut_all_off(serve_server *server) {
    for (int i = 0; i < server->count; i++) cut_off(server->engines[i]);
    usleep(TICK_US);
}

/* No new requests; those that run end, or are cut off after the grace. Clients that do not take their answers
 * are not waited for. What waits for a long step ends with it. libmicrohttpd aborts the program if it is
 * stopped while a connection waits, so none may begin to: between two waits for pieces none seems to. */
static void drain(const serve_options *o, serve_server *server) {
    atomic_store(&server->draining, true);
    serve_http_quiesce(server->http);
    wait_idle(server, o->grace);
    atomic_store(&server->cut, true);
    for (double began = fb_now(); serve_http_busy(server->http) > 0 && fb_now() - began < LAST_SECONDS;)
        cut_all_off(server);
    serve_http_end_waiting(server->http);
    while (serve_http_waiting(server->http) > 0) cut_all_off(server);
}

/* What is prepared may be embedded next. */
static void close_workers(serve_server *server) {
    serve_worker_close(server->preparers);
    serve_worker_close(server->embedder);
}

static fb_status listen_and_wait(const serve_options *o, serve_server *server, const volatile int *stop,
                                 fb_error *err) {
    char why[400];
    uint16_t port;
    serve_http_options http = {.host = o->host,
                               .port = o->port,
                               .routes = serve_routes,
                               .access = o->access,
                               .max_body = o->max_body,
                               .max_bodies = o->max_bodies,
                               .timeout = o->timeout,
                               .connections = o->connections,
                               .user = server};
    server->embedder = serve_worker_open(1, 0);
    server->preparers = serve_worker_open(PREPARERS, NICENESS);
    if (!server->embedder || !server->preparers) {
        close_workers(server);
        return fail(err, FB_ERROR_SYSTEM, "server", "no thread");
    }
    if (!serve_http_open(&http, &server->http, &port, why, sizeof why)) {
        close_workers(server);
        return fail(err, FB_ERROR_SYSTEM, "server", why);
    }
    announce(o, port);
    while (!*stop) usleep(TICK_US);
    drain(o, server);
    close_workers(server);
    serve_http_close(server->http);
    return FB_OK;
}

fb_status serve_run(const serve_options *o, const volatile int *stop, fb_error *err) {
    serve_server *server = calloc(1, sizeof *server);
    if (!server) return fail(err, FB_ERROR_MEMORY, "server", "no memory");
    fb_status status = FB_OK;
    server->started = (int64_t)time(NULL);
    server->sampling = o->sampling;
    allow_connections();
    give_memory_back();
    if (o->record) status = serve_record_open(o->record, &server->record, err);
    for (int i = 0; status == FB_OK && i < o->model_count; i++)
        status = start_engine(o, &o->models[i], server, err);
    if (status == FB_OK) status = listen_and_wait(o, server, stop, err);
    stop_engines(o, server);
    if (server->record && !serve_record_close(server->record) && status == FB_OK)
        status = fail(err, FB_ERROR_SYSTEM, o->record, "lines were lost");
    free(server);
    return status;
}
