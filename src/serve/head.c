#include "serve/head.h"

#include <string.h>
#include <strings.h>

#include "serve/mhd.h"

/* Of SERVE_HEAD_BYTES, for the head of the reply. */
#define REPLY_BYTES 4096
/* What libmicrohttpd keeps of each header, beside its text. */
#define ENTRY_BYTES 64
#define MAX_LIST    1024

#define NAME "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

static bool is_name(const char *name) { return *name && name[strspn(name, NAME)] == '\0'; }

static bool is_value(const char *value) {
    for (; *value; value++)
        if (((unsigned char)*value < 0x20 && *value != '\t') || *value == 0x7f) return false;
    return true;
}

/* Headers that proxies add. X-Forwarded- begins many. */
static bool is_forwarded(const char *name) {
    static const char *const names[] = {
        "Forwarded", "Via", "X-Real-IP", "X-Client-IP", "True-Client-IP", "CF-Connecting-IP"};
    static const char prefix[] = "X-Forwarded";
    if (strncasecmp(name, prefix, sizeof prefix - 1) == 0) return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcasecmp(name, names[i]) == 0) return true;
    return false;
}

static enum MHD_Result on_header(void *arg, enum MHD_ValueKind kind, const char *name, const char *value) {
    serve_head *h = arg;
    (void)kind;
    if (!value) value = "";
    h->size += strlen(name) + strlen(value) + 4 + ENTRY_BYTES;
    h->malformed |= !is_name(name) || !is_value(value);
    h->hosts += strcasecmp(name, "Host") == 0;
    h->lengths += strcasecmp(name, "Content-Length") == 0;
    h->forwarded |= is_forwarded(name);
    if (strcasecmp(name, "Transfer-Encoding") == 0) {
        h->encodings++;
        h->chunked = strcasecmp(value, "chunked") == 0;
    }
    return MHD_YES;
}

static enum MHD_Result on_argument(void *arg, enum MHD_ValueKind kind, const char *name, const char *value) {
    serve_head *h = arg;
    (void)kind;
    h->size += strlen(name) + (value ? strlen(value) : 0) + ENTRY_BYTES;
    return MHD_YES;
}

void serve_head_read(struct MHD_Connection *connection, const char *path, serve_head *h) {
    *h = (serve_head){.size = strlen(path)};
    serve_mhd.get_connection_values(connection, MHD_HEADER_KIND, on_header, h);
    serve_mhd.get_connection_values(connection, MHD_GET_ARGUMENT_KIND, on_argument, h);
}

serve_head_fault serve_head_check(const serve_head *h, const char *version) {
    bool old = strcmp(version, "HTTP/1.0") == 0;
    const struct {
        bool wrong;
        serve_head_fault fault;
    } rules[] = {
        {h->malformed, {400, "a name that is none, or a control character"}},
        {h->hosts != 1 && !(old && h->hosts == 0), {400, "Host: not there once"}},
        {h->lengths > 1, {400, "Content-Length: more than once"}},
        {h->encodings > 1, {400, "Transfer-Encoding: more than once"}},
        {h->encodings && h->lengths, {400, "Content-Length and Transfer-Encoding together"}},
        {h->encodings && old, {400, "Transfer-Encoding: not in HTTP/1.0"}},
        {h->encodings && !h->chunked, {501, "Transfer-Encoding: only chunked"}},
        {h->size > SERVE_HEAD_BYTES - REPLY_BYTES, {431, "too large (less than 28 KiB together)"}},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].wrong) return rules[i].fault;
    return (serve_head_fault){0, NULL};
}

bool serve_head_is_list(const char *names) {
    size_t size = strlen(names);
    return size > 0 && size <= MAX_LIST && strspn(names, NAME ", ") == size;
}
