#include "serve/body.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of each body that are not counted: while a few clients fill the common memory with large ones, short
 * requests of others still come in. 64 MiB for 4,096 connections. */
#define FREE_BYTES 16384

static bool charge(serve_body *b, serve_body_limits *l, size_t size) {
    size_t wanted = size > FREE_BYTES ? size - FREE_BYTES : 0;
    if (wanted <= b->charged) return true;
    int64_t more = (int64_t)(wanted - b->charged);
    if (atomic_fetch_add(&l->used, more) + more > (int64_t)l->together) {
        atomic_fetch_sub(&l->used, more);
        return false;
    }
    b->charged = wanted;
    return true;
}

/* A length that was announced is had at once: pages that are not written take no memory. */
static bool reserve(serve_body *b, const serve_body_limits *l, size_t length, size_t size) {
    if (size < b->room) return true;
    size_t room = length >= size && length <= l->each ? length + 1 : 2 * size + 1;
    if (room > l->each + 1) room = l->each + 1;
    char *bytes = realloc(b->bytes, room);
    if (!bytes) return false;
    b->bytes = bytes;
    b->room = room;
    return true;
}

static void refuse(serve_body *b, serve_body_limits *l, serve_body_state state) {
    serve_body_free(b, l);
    b->state = state;
}

void serve_body_take(serve_body *b, serve_body_limits *l, size_t length, const char *bytes, size_t size) {
    if (b->state != SERVE_BODY_GOOD) return;
    if (size > l->each || b->size + size > l->each) {
        refuse(b, l, SERVE_BODY_TOO_LARGE);
        return;
    }
    if (!charge(b, l, b->size + size) || !reserve(b, l, length, b->size + size)) {
        refuse(b, l, SERVE_BODY_NO_ROOM);
        return;
    }
    memcpy(b->bytes + b->size, bytes, size);
    b->size += size;
    b->bytes[b->size] = '\0';
}

void serve_body_drop(serve_body *b) {
    free(b->bytes);
    b->bytes = NULL;
    b->size = b->room = 0;
}

void serve_body_free(serve_body *b, serve_body_limits *l) {
    serve_body_drop(b);
    atomic_fetch_sub(&l->used, (int64_t)b->charged);
    b->charged = 0;
}
