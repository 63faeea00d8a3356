/* A thread that watches connections: it says when a client has left, and closes connections whose request
 * does not become complete. libmicrohttpd does not look at a connection that waits for its reply. */
#ifndef FB_SERVE_MONITOR_H
#define FB_SERVE_MONITOR_H

#include <stdbool.h>
#include <stdint.h>

typedef struct serve_monitor serve_monitor;

/* `limit`: seconds that a request may take to arrive. NULL: no memory, or no thread. */
serve_monitor *serve_monitor_open(double limit);
void serve_monitor_close(serve_monitor *monitor);

/* A connection waits for a request, from now on; it has one; it is closed. */
void serve_monitor_await(serve_monitor *monitor, int socket);
void serve_monitor_arrived(serve_monitor *monitor, int socket);
void serve_monitor_closed(serve_monitor *monitor, int socket);
int64_t serve_monitor_connections(serve_monitor *monitor);

/* Calls gone(user) once if the client leaves. 0: there is no room to watch it. After serve_monitor_forget
 * returns, gone is not called any more. */
uint64_t serve_monitor_watch(serve_monitor *monitor, int socket, void (*gone)(void *user), void *user);
void serve_monitor_forget(serve_monitor *monitor, uint64_t number);

#endif
