/* JSON from untrusted bytes, and typed access to it whose errors name the file, the key, the value and the
 * limit. Parsing refuses invalid UTF-8, duplicate keys, trailing bytes and deep nesting. */
#ifndef FB_FILE_JSON_H
#define FB_FILE_JSON_H

#include <jansson.h>

#include "base/status.h"

/* Parses `bytes`, which need no terminator. `what` names them in errors. The value is released with
 * json_decref. */
fb_status fb_json_parse(const char *what, const char *bytes, size_t size, json_t **out, fb_error *err);

/* Reads and parses a file of at most `limit` bytes whose top value is an object. */
fb_status fb_json_load(const char *path, size_t limit, json_t **out, fb_error *err);

/* Members of an object. `what` names the object in errors. A missing member or a null gives the fallback; the
 * `_need` forms refuse it. A member of another type, or a number outside [min, max], is refused. */
fb_status fb_json_int(const char *what, const json_t *object, const char *key, int64_t min, int64_t max,
                      int64_t fallback, int64_t *out, fb_error *err);
fb_status fb_json_need_int(const char *what, const json_t *object, const char *key, int64_t min, int64_t max,
                           int64_t *out, fb_error *err);
fb_status fb_json_real(const char *what, const json_t *object, const char *key, double min, double max,
                       double fallback, double *out, fb_error *err);
fb_status fb_json_bool(const char *what, const json_t *object, const char *key, bool fallback, bool *out,
                       fb_error *err);
/* The string belongs to the object. A string with a NUL inside is refused. */
fb_status fb_json_string(const char *what, const json_t *object, const char *key, const char *fallback,
                         const char **out, fb_error *err);
fb_status fb_json_need_string(const char *what, const json_t *object, const char *key, const char **out,
                              fb_error *err);

/* The member if it is there and not null, else NULL. */
const json_t *fb_json_member(const json_t *object, const char *key);

/* A short rendering of a value for an error message, into `text`. */
const char *fb_json_show(const json_t *value, char *text, size_t size);

#endif
