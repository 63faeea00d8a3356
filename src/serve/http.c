#include "serve/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/json_out.h"
#include "serve/head.h"
#include "serve/mhd.h"
#include "serve/monitor.h"

/* Threads that parse requests and write replies. Two, so that a long prompt being tokenized does not hold up
 * the texts of others. */
#define HTTP_THREADS 2
#define STREAM_BYTES 16384
/* Bytes a second that a client takes, at least, of what waits for it. */
#define LEAST_RATE 4096
/* Replies above this are sent as streams are: the least rate holds for them. */
#define LARGE_BYTES ((size_t)64 << 10)
/* What the system keeps for a client that does not read. By itself it would take some MB, and a client that
 * takes a few bytes now and then would have its whole answer there. */
#define UNSENT_BYTES (128 << 10)
#define UNREAD_BYTES ((size_t)32 << 20)

struct serve_http {
    serve_http_options options;
    struct MHD_Daemon *daemon;
    int socket; /* that listens; the daemon closes it */
    serve_monitor *monitor;
    serve_body_limits bodies;
    _Atomic int64_t busy, waiting;
    atomic_bool ending; /* nothing may begin to wait */
};

/* ---- replies ----------------------------------------------------------------------------------- */

static const char *header(const serve_exchange *x, const char *name) {
    return serve_mhd.lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

static serve_verdict judge(const serve_exchange *x) {
    const union MHD_ConnectionInfo *info =
        serve_mhd.get_connection_info(x->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *from = info ? info->client_addr : NULL;
    bool loopback = false;
    if (from && from->sa_family == AF_INET)
        loopback = (ntohl(((const struct sockaddr_in *)(const void *)from)->sin_addr.s_addr) >> 24) == 127;
    if (from && from->sa_family == AF_INET6)
        loopback = IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)from)->sin6_addr);
    serve_client client = {.authorization = header(x, "Authorization"),
                           .host = header(x, "Host"),
                           .origin = header(x, "Origin"),
                           .loopback = loopback,
                           .forwarded = x->forwarded};
    return serve_access_judge(&x->http->options.access, &client);
}

static void allow_origin(const serve_exchange *x, struct MHD_Response *r) {
    const char *origin = header(x, "Origin");
    if (!origin || !judge(x).shared) return;
    serve_mhd.add_response_header(r, "Access-Control-Allow-Origin", origin);
    /* The official client has headers of its own. None of them means anything here. */
    const char *asked = header(x, "Access-Control-Request-Headers");
    serve_mhd.add_response_header(r, "Access-Control-Allow-Headers",
                                  asked && serve_head_is_list(asked) ? asked : "Authorization, Content-Type");
    serve_mhd.add_response_header(r, "Access-Control-Allow-Methods", "GET, POST");
    serve_mhd.add_response_header(r, "Access-Control-Expose-Headers", "Retry-After");
    serve_mhd.add_response_header(r, "Vary", asked ? "Origin, Access-Control-Request-Headers" : "Origin");
}

static void send_response(serve_exchange *x, int status, const char *type, struct MHD_Response *r) {
    if (!r) return; /* no memory: the connection is closed */
    serve_mhd.add_response_header(r, "Content-Type", type);
    serve_mhd.add_response_header(r, "X-Content-Type-Options", "nosniff");
    serve_mhd.add_response_header(r, "Cache-Control", "no-store");
    if (x->allowed[0]) serve_mhd.add_response_header(r, "Allow", x->allowed);
    if (status == 401) serve_mhd.add_response_header(r, "WWW-Authenticate", "Bearer");
    if (x->closes) serve_mhd.add_response_header(r, "Connection", "close");
    if (status == 429 || status == 503) serve_mhd.add_response_header(r, "Retry-After", "1");
    allow_origin(x, r);
    x->replied = serve_mhd.queue_response(x->connection, (unsigned)status, r) == MHD_YES;
    serve_mhd.destroy_response(r);
}

void serve_reply(serve_exchange *x, int status, const char *type, const char *bytes, size_t size) {
    send_response(
        x, status, type,
        serve_mhd.create_response_from_buffer(size, (void *)(uintptr_t)bytes, MHD_RESPMEM_MUST_COPY));
}

static ssize_t read_stream(void *arg, uint64_t at, char *to, size_t room);

void serve_reply_json(serve_exchange *x, int status, char *bytes, size_t size) {
    struct MHD_Response *r = NULL;
    if (bytes && size > LARGE_BYTES) {
        x->pending = bytes;
        x->pending_size = size;
        x->ended = true;
        r = serve_mhd.create_response_from_callback(size, STREAM_BYTES, read_stream, x, NULL);
    } else if (bytes) {
        r = serve_mhd.create_response_from_buffer(size, bytes, MHD_RESPMEM_MUST_FREE);
        if (!r) free(bytes);
    }
    send_response(x, status, "application/json", r);
}

/* Nothing but this text and this server: no page can frame it, no answer can load or run anything. */
void serve_reply_page(serve_exchange *x, const char *bytes, size_t size) {
    struct MHD_Response *r =
        serve_mhd.create_response_from_buffer(size, (void *)(uintptr_t)bytes, MHD_RESPMEM_PERSISTENT);
    if (!r) return;
    serve_mhd.add_response_header(
        r, "Content-Security-Policy",
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'");
    serve_mhd.add_response_header(r, "Referrer-Policy", "no-referrer");
    send_response(x, 200, "text/html; charset=utf-8", r);
}

static const char *error_type(int status) {
    static const struct {
        int status;
        const char *type;
    } types[] = {{401, "authentication_error"}, {403, "permission_error"}, {404, "not_found_error"},
                 {429, "rate_limit_error"},     {500, "server_error"},     {503, "unavailable_error"}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].status == status) return types[i].type;
    return "invalid_request_error";
}

void serve_error_object(FILE *out, int status, const char *param, const char *code, const char *message) {
    cli_json json = {.out = out};
    cli_json_open(&json, NULL, '{');
    cli_json_open(&json, "error", '{');
    cli_json_string(&json, "message", message);
    cli_json_string(&json, "type", error_type(status));
    cli_json_string(&json, "param", param);
    cli_json_string(&json, "code", code);
    cli_json_close(&json, '}');
    cli_json_close(&json, '}');
}

void serve_refuse(serve_exchange *x, int status, const char *param, const char *code, const char *format,
                  ...) {
    char message[1024], *bytes = NULL;
    size_t size = 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    FILE *out = open_memstream(&bytes, &size);
    if (out) {
        serve_error_object(out, status, param, code, message);
        putc('\n', out);
        fclose(out);
    }
    serve_reply_json(x, status, bytes, size);
}

const char *serve_query(serve_exchange *x, const char *name) {
    return serve_mhd.lookup_connection_value(x->connection, MHD_GET_ARGUMENT_KIND, name);
}

/* ---- waiting ----------------------------------------------------------------------------------- */

typedef enum outcome { WAITS, WOKEN, ENDS } outcome;

/* Suspends the connection, unless something has come meanwhile, or the server ends. It is counted first: who
 * has set `ending` and then reads no `waiting` can rely on it. */
static outcome suspend(serve_exchange *x) {
    outcome found = WOKEN;
    pthread_mutex_lock(&x->lock);
    if (!x->woken) {
        atomic_fetch_add(&x->http->waiting, 1);
        found = atomic_load(&x->http->ending) ? ENDS : WAITS;
        if (found == ENDS) atomic_fetch_sub(&x->http->waiting, 1);
    }
    x->woken = false;
    if (found == WAITS) {
        x->suspended = true;
        serve_mhd.suspend_connection(x->connection);
    }
    pthread_mutex_unlock(&x->lock);
    return found;
}

void serve_wake(serve_exchange *x) {
    pthread_mutex_lock(&x->lock);
    x->woken = !x->suspended;
    if (x->suspended) {
        x->suspended = false;
        atomic_fetch_sub(&x->http->waiting, 1);
        serve_mhd.resume_connection(x->connection);
    }
    pthread_mutex_unlock(&x->lock);
}

/* ---- streams ----------------------------------------------------------------------------------- */

static bool fill(serve_exchange *x) {
    free(x->pending);
    x->pending = NULL;
    x->pending_size = x->pending_at = 0;
    FILE *out = open_memstream(&x->pending, &x->pending_size);
    if (!out) return false;
    x->ended = !x->more(x, out);
    return fclose(out) == 0 && x->pending;
}

/* A client that takes nothing at all is not asked: libmicrohttpd closes its connection. */
static bool is_too_slow(serve_exchange *x) {
    double now = fb_now(), seconds = now - x->since;
    if (x->since > 0 && !x->idle && seconds < x->http->options.timeout) return false;
    bool slow = x->since > 0 && !x->idle && (double)x->taken < LEAST_RATE * seconds;
    x->since = now;
    x->taken = 0;
    x->idle = false;
    return slow;
}

static ssize_t read_stream(void *arg, uint64_t at, char *to, size_t room) {
    serve_exchange *x = arg;
    (void)at;
    if (is_too_slow(x)) return MHD_CONTENT_READER_END_WITH_ERROR;
    while (x->pending_at == x->pending_size) {
        if (x->ended) return MHD_CONTENT_READER_END_OF_STREAM;
        if (!fill(x)) return MHD_CONTENT_READER_END_WITH_ERROR;
        if (x->pending_size > 0 || x->ended) continue;
        x->idle = true;
        outcome found = suspend(x);
        if (found == WAITS) return 0;
        if (found == ENDS) return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    size_t left = x->pending_size - x->pending_at, size = left < room ? left : room;
    memcpy(to, x->pending + x->pending_at, size);
    x->pending_at += size;
    x->taken += (int64_t)size;
    return (ssize_t)size;
}

void serve_stream(serve_exchange *x) {
    struct MHD_Response *r =
        serve_mhd.create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BYTES, read_stream, x, NULL);
    if (r) serve_mhd.add_response_header(r, "X-Accel-Buffering", "no"); /* for a proxy before this server */
    send_response(x, 200, "text/event-stream", r);
}

void serve_reply_parts(serve_exchange *x) {
    send_response(
        x, 200, "application/json",
        serve_mhd.create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BYTES, read_stream, x, NULL));
}

/* ---- one exchange ------------------------------------------------------------------------------ */

static int socket_of(struct MHD_Connection *connection) {
    const union MHD_ConnectionInfo *info =
        serve_mhd.get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info ? info->connect_fd : -1;
}

static serve_exchange *create_exchange(serve_http *http, struct MHD_Connection *connection) {
    serve_exchange *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    x->http = http;
    x->user = http->options.user;
    x->connection = connection;
    pthread_mutex_init(&x->lock, NULL);
    atomic_fetch_add(&http->busy, 1);
    return x;
}

static void free_exchange(serve_exchange *x) {
    serve_monitor_forget(x->http->monitor, x->number);
    if (x->release) x->release(x);
    atomic_fetch_sub(&x->http->busy, 1);
    pthread_mutex_lock(&x->lock); /* a serve_wake may not have returned yet */
    pthread_mutex_unlock(&x->lock);
    pthread_mutex_destroy(&x->lock);
    free(x->pending);
    serve_body_free(&x->arriving, &x->http->bodies);
    free(x);
}

/* For the header Allow: the methods of a path. */
static void allow_method(serve_exchange *x, const char *method) {
    size_t used = strlen(x->allowed);
    snprintf(x->allowed + used, sizeof x->allowed - used, "%s%s", used ? ", " : "",
             strcmp(method, "GET") == 0 ? "GET, HEAD" : method);
}

/* What stands in the place of {…}, or the empty end of the path; NULL: another path. */
static const char *match(const char *route, const char *path) {
    size_t size = strcspn(route, "{");
    if (strncmp(route, path, size) != 0) return NULL;
    return (route[size] != '\0') == (path[size] != '\0') ? path + size : NULL;
}

static void find_route(serve_exchange *x, const char *method, const char *path) {
    if (strcmp(method, "HEAD") == 0) method = "GET"; /* libmicrohttpd leaves out the body */
    for (const serve_route *r = x->http->options.routes; r->path; r++) {
        if (!match(r->path, path)) continue;
        allow_method(x, r->method);
        if (strcmp(r->method, method) == 0) x->route = r;
    }
    bool known = x->allowed[0] != '\0';
    if (x->route) x->allowed[0] = '\0';
    if (x->route) return;
    if (known) allow_method(x, "OPTIONS");
    if (strcmp(method, "OPTIONS") == 0 && known)
        serve_reply(x, 204, "text/plain", "", 0);
    else if (known)
        serve_refuse(x, 405, NULL, "method_not_allowed", "%.256s: not by %.16s (%s)", path, method,
                     x->allowed);
    else
        serve_refuse(x, 404, NULL, "not_found",
                     "%.256s: there is nothing here (/openapi.json lists what there is)", path);
}

/* A client that is refused while it writes sees a broken connection and no reply. So what is a little too
 * large is read first, unless the client asked. */
static bool is_refused_at_once(const serve_exchange *x) {
    size_t limit = x->http->options.max_body;
    return x->length > limit && (x->length > limit + UNREAD_BYTES || header(x, "Expect"));
}

/* What the head of a request says is enough to refuse it; its body is not read then. */
static void check_head(serve_exchange *x, const char *method, const char *path, const char *version) {
    serve_head head;
    serve_head_read(x->connection, path, &head);
    serve_head_fault fault = serve_head_check(&head, version);
    if (fault.status) {
        x->closes = true;
        serve_refuse(x, fault.status, NULL, "bad_request", "headers: %s", fault.message);
        return;
    }
    const char *length = header(x, "Content-Length");
    x->length = length ? strtoull(length, NULL, 10) : 0;
    x->forwarded = head.forwarded;
    serve_verdict v = judge(x);
    x->admin = v.admin;
    if (!v.own) {
        serve_refuse(x, 403, NULL, "foreign_origin",
                     "Host or Origin: not of this server (serve --allow-host or --allow-origin)");
        return;
    }
    find_route(x, method, path);
    if (x->replied) return;
    if (!v.known && !(x->route->flags & SERVE_OPEN))
        serve_refuse(x, 401, NULL, "invalid_api_key", "Authorization: a key of this server is needed");
    else if (is_refused_at_once(x))
        serve_refuse(x, 413, NULL, "body_too_large", "body: %zu bytes (at most %zu)", x->length,
                     x->http->options.max_body);
}

static void tell_gone(void *user) {
    serve_exchange *x = user;
    if (x->gone) x->gone(x);
}

void serve_body_done(serve_exchange *x) {
    x->body = NULL;
    serve_body_drop(&x->arriving);
}

static void handle(serve_exchange *x, const char *path) {
    const serve_http_options *o = &x->http->options;
    x->handled = true;
    if (x->arriving.state == SERVE_BODY_TOO_LARGE) {
        serve_refuse(x, 413, NULL, "body_too_large", "body: more than %zu bytes", o->max_body);
        return;
    }
    if (x->arriving.state == SERVE_BODY_NO_ROOM) {
        serve_refuse(x, 503, NULL, "busy",
                     "body: all requests together have more than %zu bytes (--max-bodies)", o->max_bodies);
        return;
    }
    x->rest = match(x->route->path, path);
    x->body = x->arriving.bytes;
    x->body_size = x->arriving.size;
    x->route->handle(x);
    x->rest = NULL;
    if (x->gone) x->number = serve_monitor_watch(x->http->monitor, socket_of(x->connection), tell_gone, x);
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *bytes, size_t *size,
                                  void **state) {
    serve_http *http = arg;
    serve_exchange *x = *state;
    if (!x) {
        *state = x = create_exchange(http, connection);
        if (!x) return MHD_NO;
        check_head(x, method, path, version);
        if (x->replied) serve_monitor_arrived(http->monitor, socket_of(connection));
        return MHD_YES;
    }
    if (*size) {
        if (!x->replied) serve_body_take(&x->arriving, &http->bodies, x->length, bytes, *size);
        *size = 0;
        return MHD_YES;
    }
    if (x->replied) return MHD_YES;
    if (!x->handled) {
        serve_monitor_arrived(http->monitor, socket_of(connection));
        handle(x, path);
    } else if (x->resume) {
        x->resume(x);
    }
    while (!x->replied && x->resume) {
        outcome found = suspend(x);
        if (found == WAITS) return MHD_YES;
        if (found == ENDS) return MHD_NO;
        x->resume(x);
    }
    return x->replied ? MHD_YES : MHD_NO;
}

static void on_completed(void *arg, struct MHD_Connection *connection, void **state,
                         enum MHD_RequestTerminationCode code) {
    serve_http *http = arg;
    (void)code;
    serve_exchange *x = *state;
    *state = NULL;
    if (x) free_exchange(x);
    serve_monitor_await(http->monitor, socket_of(connection));
}

static void on_connection(void *arg, struct MHD_Connection *connection, void **state,
                          enum MHD_ConnectionNotificationCode code) {
    serve_http *http = arg;
    (void)state;
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        serve_monitor_await(http->monitor, socket_of(connection));
    else
        serve_monitor_closed(http->monitor, socket_of(connection));
}

/* ---- the daemon -------------------------------------------------------------------------------- */

static int listen_on(const struct addrinfo *a, char *why, size_t why_size) {
    int one = 1, unsent = UNSENT_BYTES,
        s = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (s >= 0) setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (s >= 0) setsockopt(s, SOL_SOCKET, SO_SNDBUF, &unsent, sizeof unsent); /* of what it accepts, too */
    if (s >= 0 && bind(s, a->ai_addr, a->ai_addrlen) == 0 && listen(s, 1024) == 0) return s;
    snprintf(why, why_size, "%s", strerror(errno));
    if (s >= 0) close(s);
    return -1;
}

/* A socket that listens on the first address of the host that can be had. */
static int open_socket(const serve_http_options *o, char *why, size_t why_size) {
    char service[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
    snprintf(service, sizeof service, "%u", o->port);
    int failed = getaddrinfo(o->host, service, &hints, &found);
    if (failed) {
        snprintf(why, why_size, "%s", gai_strerror(failed));
        return -1;
    }
    int s = -1;
    for (const struct addrinfo *a = found; a && s < 0; a = a->ai_next) s = listen_on(a, why, why_size);
    freeaddrinfo(found);
    return s;
}

static uint16_t port_of(int s) {
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    if (getsockname(s, (struct sockaddr *)&address, &size) != 0) return 0;
    return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                               : ((struct sockaddr_in *)&address)->sin_port);
}

/* What libmicrohttpd has to say about clients' mistakes is not for the user. */
static void ignore_log(void *arg, const char *format, va_list arguments) {
    (void)arg;
    (void)format;
    (void)arguments;
}

static struct MHD_Daemon *start(serve_http *h, int s) {
    return serve_mhd.start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL,
        on_request, h, MHD_OPTION_EXTERNAL_LOGGER, ignore_log, NULL, MHD_OPTION_LISTEN_SOCKET, s,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)h->options.timeout, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)h->options.connections, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)SERVE_HEAD_BYTES,
        MHD_OPTION_THREAD_POOL_SIZE, (unsigned)HTTP_THREADS, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_END);
}

bool serve_http_open(const serve_http_options *options, serve_http **out, uint16_t *port, char *why,
                     size_t why_size) {
    *out = NULL;
    if (!serve_mhd_open(why, why_size)) return false;
    int s = open_socket(options, why, why_size);
    if (s < 0) {
        char reason[128];
        snprintf(reason, sizeof reason, "%.127s", why);
        snprintf(why, why_size, "%.200s:%u: %s", options->host, options->port, reason);
        return false;
    }
    *port = port_of(s);
    serve_http *h = calloc(1, sizeof *h);
    if (h) {
        h->options = *options;
        h->bodies.each = options->max_body;
        h->bodies.together = options->max_bodies;
        h->socket = s;
        h->monitor = serve_monitor_open(2.0 * options->timeout);
    }
    *out = h; /* the first request may come before `start` returns */
    if (h && h->monitor) h->daemon = start(h, s);
    if (h && h->daemon) return true;
    *out = NULL;
    snprintf(why, why_size, "no memory or no thread for the server");
    if (h) serve_monitor_close(h->monitor);
    free(h);
    close(s);
    return false;
}

/* What listened becomes a file on which nothing ever happens. MHD_quiesce_daemon aborts the program if one of
 * its threads is quicker than itself: both take the socket out of the thread's epoll, and the second one does
 * not find it. */
void serve_http_quiesce(serve_http *h) {
    int silent = eventfd(0, EFD_CLOEXEC);
    if (silent < 0) return;
    dup3(silent, h->socket, O_CLOEXEC);
    close(silent);
}

int64_t serve_http_busy(serve_http *h) { return atomic_load(&h->busy); }
int64_t serve_http_waiting(serve_http *h) { return atomic_load(&h->waiting); }
int64_t serve_http_bodies(serve_http *h) { return atomic_load(&h->bodies.used); }
void serve_http_end_waiting(serve_http *h) { atomic_store(&h->ending, true); }
int64_t serve_http_connections(serve_http *h) { return serve_monitor_connections(h->monitor); }

void serve_http_close(serve_http *h) {
    if (!h) return;
    serve_mhd.stop_daemon(h->daemon);
    serve_monitor_close(h->monitor);
    free(h);
}
