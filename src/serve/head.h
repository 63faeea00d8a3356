/* What the head of a request says beside its path: whether it is HTTP/1.1 as written, how the body comes, and
 * whether a proxy sent it. libmicrohttpd lets pass much that another program reads in another way. */
#ifndef FB_SERVE_HEAD_H
#define FB_SERVE_HEAD_H

#include <stdbool.h>
#include <stddef.h>

struct MHD_Connection;

/* Memory of a connection for the head of a request and that of its reply. */
#define SERVE_HEAD_BYTES 32768

typedef struct serve_head {
    size_t size; /* what it takes of SERVE_HEAD_BYTES, about */
    int hosts, lengths, encodings;
    bool chunked;   /* the last Transfer-Encoding is that alone */
    bool forwarded; /* by a proxy, which says so */
    bool malformed; /* a name that is none, or a control character in a value */
} serve_head;

typedef struct serve_head_fault {
    int status; /* 0: none */
    const char *message;
} serve_head_fault;

void serve_head_read(struct MHD_Connection *connection, const char *path, serve_head *head);

/* Why the request is refused, and its connection closed: where its body ends is not certain. */
serve_head_fault serve_head_check(const serve_head *head, const char *version);

/* Names of headers, as they may stand in Access-Control-Allow-Headers. */
bool serve_head_is_list(const char *names);

#endif
