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

/* Steps that all patterns together may take for a text of n bytes: 5e7 + 192 n. A byte of the text that an
 * item of the pattern goes over is one step, an item two, a match ten. A step takes up to 7 ns, so that a
 * megabyte takes at most two seconds. On English text GPT-2's pattern takes 10 n steps, Llama 3's 7 n. */
#define FB_PATTERN_STEPS          50000000
#define FB_PATTERN_STEPS_PER_BYTE 192

/* The memory of matching, for one thread, and the steps that were taken. Starts as zeroes. */
typedef struct fb_pattern_work {
    struct pcre2_real_match_data_8 *match;
    struct pcre2_real_match_context_8 *context;
    struct pcre2_real_jit_stack_8 *stack;
    int64_t steps, limit; /* limit 0: of each split by itself */
    int64_t weight;       /* of the pattern that is being matched */
    size_t at;            /* where it was last seen */
} fb_pattern_work;

/* Starts to count for a text of `bytes`, which many splits may belong to. */
void fb_pattern_work_start(fb_pattern_work *work, int64_t bytes);
void fb_pattern_work_free(fb_pattern_work *work);

/* Appends the matches in `text`, valid UTF-8, and what is between them, as spans that start at `base`. A
 * pattern that takes too many steps is an error. */
fb_status fb_pattern_split(const fb_pattern *pattern, fb_pattern_work *work, const char *text, int64_t size,
                           int64_t base, fb_spans *spans, fb_error *err);
/* The same without what is between the matches. */
fb_status fb_pattern_find(const fb_pattern *pattern, fb_pattern_work *work, const char *text, int64_t size,
                          int64_t base, fb_spans *matches, fb_error *err);

#endif
