/* The metadata of a GGUF file as the config.json of the same model, so that there is one way to a spec. */
#ifndef FB_ARCH_GGUF_H
#define FB_ARCH_GGUF_H

#include "arch/arch.h"
#include "file/gguf.h"

/* What would change the maths and is not known is refused by its key. `what` names the file in errors. */
fb_status fb_gguf_describe(const char *what, const fb_gguf *gguf, fb_spec **out, fb_error *err);

#endif
