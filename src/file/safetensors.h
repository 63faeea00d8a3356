/* Safetensors: a checked table of named tensors over a mapped file, or over the shards that an index names.
 */
#ifndef FB_FILE_SAFETENSORS_H
#define FB_FILE_SAFETENSORS_H

#include "base/status.h"
#include "file/map.h"

#define FB_MAX_DIMS 4

/* What a file may store; fb_dtype is the subset that weights may have. */
typedef enum fb_stored_type {
    FB_STORED_F64,
    FB_STORED_F32,
    FB_STORED_F16,
    FB_STORED_BF16,
    FB_STORED_I64,
    FB_STORED_I32,
    FB_STORED_I16,
    FB_STORED_I8,
    FB_STORED_U8,
    FB_STORED_BOOL,
    FB_STORED_TYPE_COUNT
} fb_stored_type;

const char *fb_stored_name(fb_stored_type type); /* as in the file: "F16" */
int64_t fb_stored_size(fb_stored_type type);     /* bytes of one element */

typedef struct fb_tensor_entry {
    const char *name; /* belongs to the table */
    fb_stored_type type;
    int32_t dims;
    int64_t shape[FB_MAX_DIMS];
    int64_t count;       /* elements: the product of the shape, 1 for a scalar */
    const uint8_t *data; /* count elements, not necessarily aligned; NULL when count is 0 */
} fb_tensor_entry;

typedef struct fb_tensor_table fb_tensor_table;

/* Parses one file's bytes, which must outlive the table. `what` names them in errors. The fuzz entry. */
fb_status fb_tensors_parse(const char *what, const uint8_t *bytes, size_t size, fb_tensor_table **out,
                           fb_error *err);

/* Maps and parses one .safetensors file. */
fb_status fb_tensors_open(const char *path, fb_tensor_table **out, fb_error *err);

/* Maps and parses `directory`/model.safetensors or, without one, the shards of model.safetensors.index.json.
 */
fb_status fb_tensors_open_model(const char *directory, fb_tensor_table **out, fb_error *err);

void fb_tensors_free(fb_tensor_table *table);

int64_t fb_tensors_count(const fb_tensor_table *table);
const fb_tensor_entry *fb_tensors_at(const fb_tensor_table *table, int64_t index);      /* in order of name */
const fb_tensor_entry *fb_tensors_find(const fb_tensor_table *table, const char *name); /* or NULL */

/* A string of the file's __metadata__, or NULL. */
const char *fb_tensors_metadata(const fb_tensor_table *table, const char *key);

/* "[24, 64]" into `text`. */
const char *fb_tensor_shape_text(const fb_tensor_entry *entry, char *text, size_t size);

#endif
