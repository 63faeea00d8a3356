/* Lines of a limited width. */
#ifndef FB_CHAT_WRAP_H
#define FB_CHAT_WRAP_H

#include "chat/value.h"

typedef struct fb_jinja_wrap {
    int64_t width;         /* characters of a line at most, unless a long word is kept whole */
    bool long_words;       /* break words that are longer than a line */
    bool on_hyphens;       /* break words behind hyphens */
    fb_jinja_text between; /* put between lines */
} fb_jinja_wrap;

/* Each line of the text is a paragraph of its own. */
fb_status fb_jinja_wrap_text(fb_jinja_run *run, fb_jinja_text text, const fb_jinja_wrap *wrap,
                             fb_jinja_value *out);

#endif
