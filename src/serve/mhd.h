/* libmicrohttpd, opened when the server starts: it brings ten more libraries, which no other command needs,
 * and which would add their start to that of every command. */
#ifndef FB_SERVE_MHD_H
#define FB_SERVE_MHD_H

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>

#define SERVE_MHD_FUNCTIONS(X)                                                                               \
    X(add_response_header)                                                                                   \
    X(create_response_from_buffer)                                                                           \
    X(create_response_from_callback)                                                                         \
    X(destroy_response)                                                                                      \
    X(get_connection_info)                                                                                   \
    X(get_connection_values)                                                                                 \
    X(lookup_connection_value)                                                                               \
    X(queue_response)                                                                                        \
    X(resume_connection)                                                                                     \
    X(start_daemon)                                                                                          \
    X(stop_daemon)                                                                                           \
    X(suspend_connection)

typedef struct serve_mhd_functions {
#define SERVE_MHD_MEMBER(name) __typeof__(MHD_##name) *name;
    SERVE_MHD_FUNCTIONS(SERVE_MHD_MEMBER)
#undef SERVE_MHD_MEMBER
} serve_mhd_functions;

/* Complete once serve_mhd_open has succeeded; it does not change then. */
extern serve_mhd_functions serve_mhd;

/* False: `why` says what to install. */
bool serve_mhd_open(char *why, size_t why_size);

#endif
