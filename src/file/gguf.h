/* GGUF, versions 2 and 3: one file of metadata (typed values by key) and tensors. */
#ifndef FB_FILE_GGUF_H
#define FB_FILE_GGUF_H

#include "file/json.h"
#include "file/tensors.h"

/* Types of metadata, numbered as in the file. */
typedef enum fb_gguf_type {
    FB_GGUF_U8,
    FB_GGUF_I8,
    FB_GGUF_U16,
    FB_GGUF_I16,
    FB_GGUF_U32,
    FB_GGUF_I32,
    FB_GGUF_F32,
    FB_GGUF_BOOL,
    FB_GGUF_STRING,
    FB_GGUF_ARRAY,
    FB_GGUF_U64,
    FB_GGUF_I64,
    FB_GGUF_F64,
    FB_GGUF_TYPE_COUNT
} fb_gguf_type;

const char *fb_gguf_type_name(fb_gguf_type type); /* "u32" */
int64_t fb_gguf_type_size(fb_gguf_type type);     /* bytes; 0 for strings and arrays */

typedef struct fb_gguf_array {
    const char *key;   /* belongs to the file's `values` */
    fb_gguf_type type; /* of the elements: anything but ARRAY */
    int64_t count;
    size_t at;           /* where they begin in the file */
    const uint8_t *data; /* the elements as they lie in the file, one after the other; checked */
} fb_gguf_array;

typedef struct fb_gguf {
    /* Every value by its key, for the typed access of file/json.h; an array is null here. A float32 is the
     * shortest decimal number that rounds to it: 1e-05 is that again, not 9.99999974737875e-06. */
    fb_json *values;
    fb_gguf_array *arrays; /* [array_count], in order of key */
    int64_t array_count;
    uint8_t *metadata; /* the file up to its tensors' data: the arrays' data lies here */
    size_t metadata_size;
    fb_tensor_table *tensors; /* shapes as [rows, cols]: the file has them the other way round */
} fb_gguf;

/* Parses a file's bytes, of which the tensors' data must outlive the result. `what` names them in errors. The
 * fuzz entry. */
fb_status fb_gguf_parse(const char *what, const uint8_t *bytes, size_t size, fb_gguf **out, fb_error *err);

/* Maps and parses a file; of a model in several files (NAME-00001-of-00003.gguf), all of them, whichever is
 * named. */
fb_status fb_gguf_open(const char *path, fb_gguf **out, fb_error *err);
void fb_gguf_free(fb_gguf *gguf);

const fb_gguf_array *fb_gguf_find_array(const fb_gguf *gguf, const char *key); /* or NULL */

/* An element of an array of integers or booleans, and of one of floats. */
int64_t fb_gguf_int_at(const fb_gguf_array *array, int64_t index);
double fb_gguf_real_at(const fb_gguf_array *array, int64_t index);
bool fb_gguf_is_int(fb_gguf_type type);
bool fb_gguf_is_real(fb_gguf_type type);

/* The string at `*at`, which moves behind it: for walking through an array of strings from its data. */
typedef struct fb_gguf_text {
    const char *data; /* not terminated */
    int64_t size;
} fb_gguf_text;

fb_gguf_text fb_gguf_next_text(const uint8_t **at);

#endif
