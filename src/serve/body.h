/* The body of a request while it arrives, and the memory of all of them together. */
#ifndef FB_SERVE_BODY_H
#define FB_SERVE_BODY_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* Shared by all bodies. */
typedef struct serve_body_limits {
    size_t each, together; /* bytes */
    _Atomic int64_t used;  /* of `together` */
} serve_body_limits;

typedef enum serve_body_state { SERVE_BODY_GOOD, SERVE_BODY_TOO_LARGE, SERVE_BODY_NO_ROOM } serve_body_state;

/* Begins as all zero. */
typedef struct serve_body {
    serve_body_state state;
    char *bytes; /* [size], and a NUL; NULL unless the state is good */
    size_t size, room;
    size_t charged; /* of serve_body_limits.together */
} serve_body;

/* `length`: what the client announced; 0: nothing. Once a body is not good, the rest of it is not kept. */
void serve_body_take(serve_body *body, serve_body_limits *limits, size_t length, const char *bytes,
                     size_t size);
/* The bytes go. Their place among all bodies stays taken: what was made of them stays, too. */
void serve_body_drop(serve_body *body);
/* All of it goes. */
void serve_body_free(serve_body *body, serve_body_limits *limits);

#endif
