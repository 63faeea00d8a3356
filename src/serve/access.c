#include "serve/access.h"

#include <string.h>
#include <strings.h>

/* ---- keys -------------------------------------------------------------------------------------- */

bool serve_key_equal(const char *key, const char *given, size_t size) {
    size_t length = strlen(key);
    volatile unsigned char differs = length != size;
    for (size_t i = 0; i < size; i++) {
        unsigned char k = (unsigned char)key[length ? i % length : 0];
        differs = (unsigned char)(differs | (k ^ (unsigned char)given[i]));
    }
    return !differs && size > 0;
}

/* All keys are compared, whichever is right. */
static bool has_key(const serve_names *keys, const char *given) {
    bool found = false;
    for (int i = 0; given && i < keys->count; i++)
        found |= serve_key_equal(keys->values[i], given, strlen(given));
    return found;
}

static const char *bearer(const char *authorization) {
    static const char scheme[] = "Bearer ";
    if (!authorization || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0) return NULL;
    const char *key = authorization + sizeof scheme - 1;
    return key + strspn(key, " ");
}

/* ---- hosts and origins ------------------------------------------------------------------------- */

/* The host is this name, alone or with a port. */
static bool named(const char *host, const char *name) {
    size_t size = strlen(name);
    if (strncasecmp(host, name, size) != 0) return false;
    const char *rest = host + size;
    return *rest == '\0' || (*rest == ':' && rest[1 + strspn(rest + 1, "0123456789")] == '\0');
}

static bool host_is_ours(const serve_access *a, const char *host) {
    static const char *const loopback[] = {"localhost", "127.0.0.1", "[::1]"};
    for (size_t i = 0; i < sizeof loopback / sizeof *loopback; i++)
        if (named(host, loopback[i])) return true;
    for (int i = 0; i < a->hosts.count; i++)
        if (named(host, a->hosts.values[i])) return true;
    return false;
}

static bool same_origin(const char *origin, const char *host) {
    const char *name = strstr(origin, "://");
    return name && host && strcasecmp(name + 3, host) == 0;
}

static bool origin_allowed(const serve_access *a, const char *origin) {
    for (int i = 0; i < a->origins.count; i++)
        if (strcmp(a->origins.values[i], "*") == 0 || strcasecmp(a->origins.values[i], origin) == 0)
            return true;
    return false;
}

/* A page from elsewhere can make its reader's browser ask a server on the reader's machine, also under a name
 * of its own that it lets point there. Without keys, only the Host and Origin headers tell. */
static bool is_own(const serve_access *a, const serve_client *c, bool *shared) {
    *shared = c->origin && !same_origin(c->origin, c->host) && origin_allowed(a, c->origin);
    if (c->origin && !*shared && !same_origin(c->origin, c->host)) return false;
    if (!a->loopback || a->keys.count || !c->host) return true;
    return host_is_ours(a, c->host);
}

/* Nobody but programs on this machine was meant to use the server. A proxy on this machine may not say that
 * it is one: nginx sends neither X-Forwarded-For nor the client's Host unless it is told to. So whatever lets
 * others in takes the right to switch from clients that only seem to be here. */
static bool is_private(const serve_access *a) {
    return a->loopback && !a->keys.count && !a->hosts.count && !a->origins.count;
}

serve_verdict serve_access_judge(const serve_access *a, const serve_client *c) {
    serve_verdict v = {0};
    const char *key = bearer(c->authorization);
    bool admin_key = has_key(&a->admin_keys, key);
    v.own = is_own(a, c, &v.shared);
    v.known = a->keys.count == 0 || has_key(&a->keys, key) || admin_key;
    v.admin = a->admin_keys.count ? admin_key : is_private(a) && c->loopback && !c->forwarded;
    return v;
}
