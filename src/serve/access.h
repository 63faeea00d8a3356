/* Who may ask: keys, names of this host, origins of pages. */
#ifndef FB_SERVE_ACCESS_H
#define FB_SERVE_ACCESS_H

#include <stdbool.h>
#include <stddef.h>

#define SERVE_MAX_KEYS 1024

typedef struct serve_names {
    const char *const *values; /* [count] */
    int count;
} serve_names;

typedef struct serve_access {
    serve_names keys;       /* none: no key is needed */
    serve_names admin_keys; /* none: see serve_verdict.admin */
    serve_names hosts;      /* names, besides those of the loopback device, that a request may ask for */
    serve_names origins;    /* pages from elsewhere that may use the server; "*": all */
    bool loopback;          /* the server listens on the loopback device only */
} serve_access;

/* What a request says about its client. Any header may be NULL. */
typedef struct serve_client {
    const char *authorization, *host, *origin;
    bool loopback;  /* the connection comes from this machine */
    bool forwarded; /* by a proxy, which says so */
} serve_client;

typedef struct serve_verdict {
    bool known; /* the key is right, or none is needed */
    /* It may change what runs: it has an admin's key. If there are none: it comes from this machine, and the
     * server is private: it listens on the loopback device, without keys, other hosts and other origins. */
    bool admin;
    bool own;    /* the request is for this host, and not from a page of another one */
    bool shared; /* it is from a page of another origin that is allowed */
} serve_verdict;

serve_verdict serve_access_judge(const serve_access *access, const serve_client *client);

/* Compares in a time that depends on `given` alone. */
bool serve_key_equal(const char *key, const char *given, size_t size);

#endif
