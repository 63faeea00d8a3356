/* Turns a session's cache options into slots of the cache. */
#ifndef FB_RUN_CACHE_H
#define FB_RUN_CACHE_H

#include "backend/backend.h"

#define FB_CACHE_KINDS (FB_CACHE_SINKS + 1)

/* Sets the options that are open (window, capacity, chunk; `chunk` is the backend's default) and checks the
 * others. Sets the executor's capacity, chunk and rings. With a dense cache the ring's window is 0; layers
 * with a window of their own have a ring all the same. */
fb_status fb_cache_settle(const fb_program *program, fb_session_options *options, int64_t chunk,
                          fb_executor_options *executor, fb_error *err);

/* The most tokens that can be dropped from the end of `position` tokens, such that the cache still holds all
 * that the next token sees, in layers of every kind. */
int64_t fb_cache_trimmable(const fb_program *program, const fb_executor_options *executor, int64_t position);

#endif
