/* Split patterns: written for Oniguruma, run by PCRE2. */
#ifndef FB_TEXT_PATTERN_H
#define FB_TEXT_PATTERN_H

#include "text/bytes.h"

typedef struct fb_pattern fb_pattern;

/* Compiles a regular expression, or with `literal` a plain text, NUL-terminated. What the two engines
 * understand differently is refused by name. Immutable afterwards. */
fb_status fb_pattern_compile(const char *what, const char *source, int64_t size, bool literal,
                             fb_pattern **out, fb_error *err);
void fb_pattern_free(fb_pattern *pattern);

/* What it was compiled from; "" for a plain text. */
const char *fb_pattern_source(const fb_pattern *pattern);

/* The memory of matching, for one thread. Starts as zeroes. */
typedef struct fb_pattern_work {
    struct pcre2_real_match_data_8 *match;
    struct pcre2_real_match_context_8 *context;
    struct pcre2_real_jit_stack_8 *stack;
} fb_pattern_work;

void fb_pattern_work_free(fb_pattern_work *work);

/* Appends the matches in `text`, valid UTF-8, and what is between them, as spans that start at `base`. */
fb_status fb_pattern_split(const fb_pattern *pattern, fb_pattern_work *work, const char *text, int64_t size,
                           int64_t base, fb_spans *spans, fb_error *err);

#endif
