#include "serve/monitor.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

#define TICK_MS 250
/* Seconds after which half a request whose client has left is closed. libmicrohttpd does so at once, unless
 * the end arrived together with the last bytes: its epoll is edge-triggered, and there is no second edge. */
#define LEFT_SECONDS 2.0

/* By socket: numbers of sockets are small and are used again. */
typedef struct connection {
    bool open, arriving;
    double since;
} connection;

typedef struct watched {
    uint64_t number; /* 0: free */
    int socket;
    void (*gone)(void *user);
    void *user;
} watched;

struct serve_monitor {
    pthread_t thread;
    int epoll;
    double limit;
    atomic_bool stop;
    pthread_mutex_t lock; /* of all below, and held while `gone` runs */
    connection *connections;
    int connection_room;
    int64_t open;
    watched *watched;
    int watched_room;
    uint64_t last;
};

/* ---- connections ------------------------------------------------------------------------------- */

static connection *connection_of(serve_monitor *m, int socket) {
    if (socket < 0) return NULL;
    if (socket >= m->connection_room) {
        int room = 2 * socket + 64;
        connection *grown = realloc(m->connections, (size_t)room * sizeof *grown);
        if (!grown) return NULL;
        for (int i = m->connection_room; i < room; i++) grown[i] = (connection){0};
        m->connections = grown;
        m->connection_room = room;
    }
    return &m->connections[socket];
}

static void set_connection(serve_monitor *m, int socket, bool open, bool arriving) {
    pthread_mutex_lock(&m->lock);
    connection *c = connection_of(m, socket);
    if (c) {
        m->open += open - c->open;
        *c = (connection){.open = open, .arriving = arriving, .since = fb_now()};
    }
    pthread_mutex_unlock(&m->lock);
}

void serve_monitor_await(serve_monitor *m, int socket) { set_connection(m, socket, true, true); }
void serve_monitor_arrived(serve_monitor *m, int socket) { set_connection(m, socket, true, false); }
void serve_monitor_closed(serve_monitor *m, int socket) { set_connection(m, socket, false, false); }

int64_t serve_monitor_connections(serve_monitor *m) {
    pthread_mutex_lock(&m->lock);
    int64_t open = m->open;
    pthread_mutex_unlock(&m->lock);
    return open;
}

static bool has_left(int socket) {
    struct pollfd p = {.fd = socket, .events = POLLRDHUP};
    return poll(&p, 1, 0) == 1;
}

static void close_slow(serve_monitor *m) {
    double now = fb_now();
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < m->connection_room; i++) {
        connection *c = &m->connections[i];
        if (!c->open || !c->arriving || now - c->since < LEFT_SECONDS) continue;
        if (now - c->since < m->limit && !has_left(i)) continue;
        shutdown(i, SHUT_RDWR);
        c->arriving = false;
    }
    pthread_mutex_unlock(&m->lock);
}

/* ---- clients that leave ------------------------------------------------------------------------ */

static watched *find(serve_monitor *m, uint64_t number) {
    for (int i = 0; i < m->watched_room; i++)
        if (m->watched[i].number == number) return &m->watched[i];
    return NULL;
}

static watched *find_free(serve_monitor *m) {
    watched *w = find(m, 0);
    if (w) return w;
    int room = 2 * m->watched_room + 16;
    watched *grown = realloc(m->watched, (size_t)room * sizeof *grown);
    if (!grown) return NULL;
    for (int i = m->watched_room; i < room; i++) grown[i] = (watched){0};
    m->watched = grown;
    m->watched_room = room;
    return find(m, 0);
}

uint64_t serve_monitor_watch(serve_monitor *m, int socket, void (*gone)(void *user), void *user) {
    uint64_t number = 0;
    pthread_mutex_lock(&m->lock);
    watched *w = find_free(m);
    if (w) {
        struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = m->last + 1};
        if (epoll_ctl(m->epoll, EPOLL_CTL_ADD, socket, &event) == 0) {
            number = ++m->last;
            *w = (watched){number, socket, gone, user};
        }
    }
    pthread_mutex_unlock(&m->lock);
    return number;
}

void serve_monitor_forget(serve_monitor *m, uint64_t number) {
    if (!number) return;
    pthread_mutex_lock(&m->lock);
    watched *w = find(m, number);
    if (w) {
        epoll_ctl(m->epoll, EPOLL_CTL_DEL, w->socket, NULL);
        *w = (watched){0};
    }
    pthread_mutex_unlock(&m->lock);
}

static void tell_gone(serve_monitor *m, uint64_t number) {
    pthread_mutex_lock(&m->lock);
    watched *w = find(m, number);
    if (w) w->gone(w->user);
    pthread_mutex_unlock(&m->lock);
}

/* ---- the thread -------------------------------------------------------------------------------- */

static void *watch(void *arg) {
    serve_monitor *m = arg;
    struct epoll_event events[64];
    double last = fb_now();
    while (!atomic_load(&m->stop)) {
        int count = epoll_wait(m->epoll, events, sizeof events / sizeof *events, TICK_MS);
        for (int i = 0; i < count; i++) tell_gone(m, events[i].data.u64);
        if (fb_now() - last < TICK_MS * 1e-3) continue;
        last = fb_now();
        close_slow(m);
    }
    return NULL;
}

serve_monitor *serve_monitor_open(double limit) {
    serve_monitor *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->limit = limit;
    pthread_mutex_init(&m->lock, NULL);
    m->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (m->epoll >= 0 && pthread_create(&m->thread, NULL, watch, m) == 0) return m;
    if (m->epoll >= 0) close(m->epoll);
    pthread_mutex_destroy(&m->lock);
    free(m);
    return NULL;
}

void serve_monitor_close(serve_monitor *m) {
    if (!m) return;
    atomic_store(&m->stop, true);
    pthread_join(m->thread, NULL);
    close(m->epoll);
    pthread_mutex_destroy(&m->lock);
    free(m->connections);
    free(m->watched);
    free(m);
}
