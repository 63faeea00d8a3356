/* A JSON document made here, from what is not JSON: an object of which members are added one by one. */
#ifndef FB_FILE_JSON_BUILD_H
#define FB_FILE_JSON_BUILD_H

#include "file/json.h"

/* Begins as all zero. A member that has no memory is left out, and fb_json_finish says so. */
typedef struct fb_json_builder {
    fb_json *nodes; /* [count] of room; strings are offsets in `text` */
    char *text;     /* [used] of text_room */
    uint32_t count, room, open, done;
    int64_t used, text_room;
    bool full;
} fb_json_builder;

/* Keys and strings are UTF-8, keys without a NUL. */
void fb_json_put_null(fb_json_builder *b, const char *key);
void fb_json_put_bool(fb_json_builder *b, const char *key, bool value);
void fb_json_put_int(fb_json_builder *b, const char *key, int64_t value);
void fb_json_put_real(fb_json_builder *b, const char *key, double value);
void fb_json_put_text(fb_json_builder *b, const char *key, const char *text, size_t size);
void fb_json_put_copy(fb_json_builder *b, const char *key, const fb_json *value); /* no array or object */
/* An object or array as a member: what is put until it is closed is in it. In an array, keys are NULL. */
void fb_json_open_object(fb_json_builder *b, const char *key);
void fb_json_open_array(fb_json_builder *b, const char *key);
void fb_json_close(fb_json_builder *b);

/* Gives out the document and releases the builder, also on failure. Refuses a key that is there twice. `what`
 * names the document in errors. */
fb_status fb_json_finish(fb_json_builder *b, const char *what, fb_json **out, fb_error *err);
void fb_json_builder_free(fb_json_builder *b);

#endif
