/* What the library itself needs of samplers, besides fusebox.h. */
#ifndef FB_TEXT_SAMPLER_H
#define FB_TEXT_SAMPLER_H

#include "base/status.h"
#include "fusebox.h"

/* The caller's options (NULL: the defaults) as a complete struct. */
fb_status fb_sampler_options_take(const fb_sampler_options *given, fb_sampler_options *out, fb_error *err);

#endif
