/* JSON from untrusted bytes, and typed access to it whose errors name the file, the key, the value and the
 * limit. Parsing refuses invalid UTF-8, duplicate keys, trailing bytes and deep nesting. It takes at most
 * twelve times the size of the bytes in memory, whatever they are, all of it in one allocation. */
#ifndef FB_FILE_JSON_H
#define FB_FILE_JSON_H

#include <string.h>

#include "base/status.h"
#include "file/map.h"

/* A value of a document, which does not change. Every function takes NULL for "no value". */
typedef struct fb_json fb_json;

typedef enum fb_json_kind {
    FB_JSON_NONE, /* no value */
    FB_JSON_NULL,
    FB_JSON_BOOL,
    FB_JSON_INT,
    FB_JSON_REAL, /* a number with a '.' or an exponent, whatever its value */
    FB_JSON_STRING,
    FB_JSON_ARRAY,
    FB_JSON_OBJECT
} fb_json_kind;

/* ---- documents ----------------------------------------------------------------------------------------- */

/* Parses `bytes`, which need no terminator and may go away afterwards. `what` names them in errors. More than
 * `limit` bytes are refused, and more than 1 GiB in any case. The top value is an array or an object; it is
 * released with fb_json_free, and all values in it with it. */
fb_status fb_json_parse(const char *what, const char *bytes, size_t size, size_t limit, fb_json **out,
                        fb_error *err);

/* The same with `size` bytes from `at` on of a mapped file. They are copied first: parsing reads them twice,
 * and another process may change the file in between. */
fb_status fb_json_parse_map(const char *what, const fb_map *map, size_t at, size_t size, size_t limit,
                            fb_json **out, fb_error *err);

/* Reads and parses a file of at most `limit` bytes whose top value is an object. */
fb_status fb_json_load(const char *path, size_t limit, fb_json **out, fb_error *err);

void fb_json_free(fb_json *document);

/* ---- values -------------------------------------------------------------------------------------------- */

fb_json_kind fb_json_kind_of(const fb_json *value);
bool fb_json_is(const fb_json *value, fb_json_kind kind);
bool fb_json_is_number(const fb_json *value); /* an integer or a real */

/* 0 for a value of another kind. An integer is a real as well. */
bool fb_json_bool_of(const fb_json *value);
int64_t fb_json_int_of(const fb_json *value);
double fb_json_real_of(const fb_json *value);
/* Valid UTF-8 and a NUL behind it; it may have a NUL inside. NULL for a value of another kind. */
const char *fb_json_text_of(const fb_json *value);

/* Bytes of a string, elements of an array, members of an object; 0 for the rest. */
size_t fb_json_size(const fb_json *value);

/* The values of an array or object in the order of the file: for (v = fb_json_first(c); v; v =
 * fb_json_next(v))
 */
const fb_json *fb_json_first(const fb_json *container);
const fb_json *fb_json_next(const fb_json *value);
/* The key of a value in an object, which has no NUL inside; else NULL. */
const char *fb_json_key(const fb_json *value);

const fb_json *fb_json_at(const fb_json *array, size_t index); /* walks there: for the first few */
const fb_json *fb_json_get(const fb_json *object, const char *key);
/* The member if it is there and not null, else NULL. */
const fb_json *fb_json_member(const fb_json *object, const char *key);

/* The same members in any order, the same elements, the same number of the same kind. Values that are nested
 * more than 16 deep count as different. */
bool fb_json_equal(const fb_json *left, const fb_json *right);

/* ---- members with a type ------------------------------------------------------------------------------- */

/* Members of an object. `what` names the object in errors. A missing member or a null gives the fallback; the
 * `_need` forms refuse it. A member of another type, or a number outside [min, max], is refused. */
fb_status fb_json_int(const char *what, const fb_json *object, const char *key, int64_t min, int64_t max,
                      int64_t fallback, int64_t *out, fb_error *err);
fb_status fb_json_need_int(const char *what, const fb_json *object, const char *key, int64_t min, int64_t max,
                           int64_t *out, fb_error *err);
fb_status fb_json_real(const char *what, const fb_json *object, const char *key, double min, double max,
                       double fallback, double *out, fb_error *err);
fb_status fb_json_bool(const char *what, const fb_json *object, const char *key, bool fallback, bool *out,
                       fb_error *err);
/* The string belongs to the object. A string with a NUL inside is refused. */
fb_status fb_json_string(const char *what, const fb_json *object, const char *key, const char *fallback,
                         const char **out, fb_error *err);
fb_status fb_json_need_string(const char *what, const fb_json *object, const char *key, const char **out,
                              fb_error *err);

/* ---- text ---------------------------------------------------------------------------------------------- */

/* A value as JSON for an error message, into `text`; "..." stands for what has no room. */
const char *fb_json_show(const fb_json *value, char *text, size_t size);
/* The same for a string of `bytes`, which are UTF-8. */
const char *fb_json_quote(const char *bytes, size_t count, char *text, size_t size);

/* Bytes of the well-formed UTF-8 character at `text`, of which there is at least one byte; 0 if it is none.
 */
size_t fb_json_character(const char *text, size_t size);
bool fb_json_is_utf8(const char *text, size_t size);

#endif
