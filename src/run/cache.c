#include "run/cache.h"

#include <stdio.h>

/* Below these limits no product of sizes overflows. */
#define MAX_CHUNK  65536
#define MAX_WINDOW (1 << 28)

/* Default of sinks and window together: the length that the model was trained on, but no more than this, to
 * limit memory. */
#define DEFAULT_REACH 4096

static const char *const names[] = {"dense", "window", "sinks"};

const char *fb_cache_name(fb_cache_kind kind) {
    return (unsigned)kind < sizeof names / sizeof *names ? names[kind] : "unknown";
}

fb_status fb_cache_parse(const char *name, fb_cache_kind *out, fb_error *err) {
    *out = FB_CACHE_DENSE;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (fb_cache_kind)i;
            return FB_OK;
        }
    return fb_fail(err, FB_ERROR_USAGE, "cache: \"%.64s\" (dense, window, sinks)", name);
}

static fb_status settle_dense(const fb_program *p, fb_session_options *o, fb_error *err) {
    /* Learned positions end with their table, even with beyond_context. */
    if (o->capacity < 0 || (o->capacity > p->context && !(o->beyond_context && p->frequencies)))
        return fb_fail(err, FB_ERROR_USAGE, "capacity: %lld tokens (the model's context is %lld)",
                       (long long)o->capacity, (long long)p->context);
    if (o->capacity > MAX_WINDOW)
        return fb_fail(err, FB_ERROR_USAGE, "capacity: %lld tokens (at most %d)", (long long)o->capacity,
                       MAX_WINDOW);
    if (!o->capacity) o->capacity = p->context;
    return FB_OK;
}

static fb_status settle_ring(const fb_program *p, fb_session_options *o, fb_ring *ring, fb_error *err) {
    if (o->cache == FB_CACHE_WINDOW) o->sinks = 0;
    if (!p->frequencies)
        return fb_fail(
            err, FB_ERROR_UNSUPPORTED,
            "cache: %s (this model has learned positions, %lld of them; only rotary positions can stream)",
            fb_cache_name(o->cache), (long long)p->context);
    if (o->capacity)
        return fb_fail(err, FB_ERROR_USAGE, "capacity: %lld (0 with cache %s: sinks and window decide it)",
                       (long long)o->capacity, fb_cache_name(o->cache));
    /* The last token's position in the cache is sinks + window. */
    if (o->sinks < 0 || o->sinks >= p->context)
        return fb_fail(err, FB_ERROR_USAGE,
                       "sinks: %lld (0 to %lld: with a window at most the model's context, %lld)",
                       (long long)o->sinks, (long long)p->context - 1, (long long)p->context);
    int64_t most = p->context - o->sinks, window = o->window;
    if (!window) {
        int64_t reach = p->context < DEFAULT_REACH ? p->context : DEFAULT_REACH;
        window = reach - 1 - o->sinks; /* the token itself is in the cache too */
        if (window < 1)
            return fb_fail(err, FB_ERROR_USAGE,
                           "window: none given, and %lld sinks leave no space in %lld tokens",
                           (long long)o->sinks, (long long)reach);
    }
    if (window < 1 || window > most || window > MAX_WINDOW)
        return fb_fail(err, FB_ERROR_USAGE,
                       "window: %lld (1 to %lld: with %lld sinks at most the model's context, %lld)",
                       (long long)window, (long long)(most < MAX_WINDOW ? most : MAX_WINDOW),
                       (long long)o->sinks, (long long)p->context);
    o->window = window;
    *ring = (fb_ring){.sinks = o->sinks, .window = o->window};
    ring->begin = (o->sinks + FB_RING_BLOCK - 1) / FB_RING_BLOCK * FB_RING_BLOCK;
    return FB_OK;
}

/* Layers that have a window of their own forget what lies before it, unless the cache never gets so long. A
 * window counts the token itself, a ring's does not. */
static fb_status settle_kinds(const fb_program *p, const fb_session_options *o, fb_executor_options *e,
                              fb_error *err) {
    for (int32_t k = 0; k < p->kind_count; k++) {
        int64_t window = p->kinds[k].window - 1;
        e->slots[k] = e->capacity;
        e->rings[k] = e->ring;
        if (window < 0 || (e->ring.window ? e->ring.window <= window : e->capacity <= window + 1)) continue;
        if (e->ring.sinks)
            return fb_fail(err, FB_ERROR_UNSUPPORTED,
                           "cache: sinks (layers of this model see %lld positions only; window can stream)",
                           (long long)window + 1);
        int64_t size = fb_ring_size(window, o->chunk > e->beyond ? o->chunk : e->beyond);
        e->rings[k] = (fb_ring){.window = window, .size = size};
        /* A window of 1 sees nothing but the token, and a ring's window of 0 would be a dense cache. */
        if (window == 0)
            return fb_fail(err, FB_ERROR_UNSUPPORTED, "sliding_window: 1 (a token must see another)");
        /* A dense cache of other layers ends before a longer ring would come round. */
        e->slots[k] = e->ring.window || size < e->capacity ? size : e->capacity;
        if (e->slots[k] > e->capacity) e->capacity = e->slots[k];
    }
    return FB_OK;
}

fb_status fb_cache_settle(const fb_program *p, fb_session_options *o, int64_t chunk, fb_executor_options *e,
                          fb_error *err) {
    e->ring = (fb_ring){0};
    if (o->chunk < 0 || o->chunk > MAX_CHUNK)
        return fb_fail(err, FB_ERROR_USAGE, "chunk: %lld (0 to %d)", (long long)o->chunk, MAX_CHUNK);
    if ((unsigned)o->cache > FB_CACHE_SINKS)
        return fb_fail(err, FB_ERROR_USAGE, "cache: %d (dense, window, sinks)", (int)o->cache);
    if (o->cache == FB_CACHE_DENSE) {
        FB_TRY(settle_dense(p, o, err));
        if (!o->chunk) o->chunk = chunk;
        if (o->chunk > o->capacity) o->chunk = o->capacity;
    } else {
        FB_TRY(settle_ring(p, o, &e->ring, err));
        /* The tokens of a step need slots in addition to the window. With a small window, the chunk is no
         * larger than the window. */
        if (!o->chunk) o->chunk = o->window < chunk ? o->window : chunk;
        e->ring.size = fb_ring_size(o->window, o->chunk);
        o->capacity = e->ring.begin + e->ring.size;
    }
    e->capacity = o->capacity;
    e->chunk = o->chunk;
    return settle_kinds(p, o, e, err);
}

static int64_t trimmable(const fb_ring *r, int64_t position) {
    if (!r->window || position - r->sinks <= r->size) return position;
    return r->size - r->window;
}

int64_t fb_cache_trimmable(const fb_program *p, const fb_executor_options *e, int64_t position) {
    int64_t least = position;
    for (int32_t k = 0; k < p->kind_count; k++) {
        int64_t most = trimmable(&e->rings[k], position);
        if (most < least) least = most;
    }
    return least;
}
