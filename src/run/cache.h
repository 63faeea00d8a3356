/* What a session remembers: the user's words about its cache, made into slots. */
#ifndef FB_RUN_CACHE_H
#define FB_RUN_CACHE_H

#include "base/tensor.h"
#include "program/program.h"

#define FB_CACHE_KINDS (FB_CACHE_SINKS + 1)

/* Fills in what the options leave open (window, capacity, chunk; `chunk` is the backend's choice) and checks
 * the rest. Of a dense cache the ring's window is 0. */
fb_status fb_cache_settle(const fb_program *program, fb_session_options *options, int64_t chunk,
                          fb_ring *ring, fb_error *err);

/* The most tokens that may be dropped from the end of `position` tokens, so that what the next one sees is
 * still there. */
int64_t fb_cache_trimmable(const fb_ring *ring, int64_t position);

#endif
