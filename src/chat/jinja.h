/* An interpreter for the part of Jinja2 that chat templates use, with the settings of Hugging Face
 * transformers: trim_blocks, lstrip_blocks, loop controls, an immutable sandbox, the default Undefined.
 *
 * A template is untrusted, and so are its variables. Parsing and rendering are bounded in time (steps), depth
 * and memory. All memory of a template or a run is in one arena.
 *
 * Every byte of a text carries a mark: 0 if the template wrote it, 1 if it came from a variable that users
 * can fill. The marks follow the bytes through operators, filters and methods. The tokenizer reads them:
 * special tokens are only made of bytes without a mark. */
#ifndef FB_CHAT_JINJA_H
#define FB_CHAT_JINJA_H

#include "base/status.h"
#include "file/json.h"

#define FB_JINJA_TEMPLATE_LIMIT (1 << 20) /* bytes; the longest published ones have some 30,000 */

typedef struct fb_jinja_template fb_jinja_template;

/* Parses a template. `name` begins the messages of errors, here and in fb_jinja_render. */
fb_status fb_jinja_parse(const char *name, const char *source, size_t size, fb_jinja_template **out,
                         fb_error *err);
void fb_jinja_free(fb_jinja_template *parsed);

/* A variable of the template: one of JSON, a trusted text, or a truth value. */
typedef struct fb_jinja_variable {
    const char *name;
    const fb_json *json; /* its strings are marked; NULL: `text` */
    const char *text;    /* trusted, NUL-terminated; NULL: none, or a truth value if is_bool */
    bool is_bool, truth;
} fb_jinja_variable;

typedef struct fb_jinja_options {
    const fb_jinja_variable *variables; /* a later one hides an earlier one of the same name */
    int64_t count;
    int64_t now;    /* seconds since 1970, in the time zone of strftime_now */
    int64_t steps;  /* 0: the default limits */
    int64_t memory; /* bytes of values and output */
} fb_jinja_options;

typedef struct fb_jinja_output {
    char *text; /* [size + 1], NUL-terminated, valid UTF-8 */
    unsigned char *marks;
    size_t size;
} fb_jinja_output;

/* Renders. The output is released with fb_jinja_output_free. Several threads may render one template. */
fb_status fb_jinja_render(const fb_jinja_template *parsed, const fb_jinja_options *options,
                          fb_jinja_output *out, fb_error *err);
void fb_jinja_output_free(fb_jinja_output *output);

#endif
