/* A checked table of named tensors over mapped files, whatever their format. */
#ifndef FB_FILE_TENSORS_H
#define FB_FILE_TENSORS_H

#include "base/status.h"

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
    FB_STORED_PLAIN_COUNT,
    FB_STORED_Q8_0 = FB_STORED_PLAIN_COUNT, /* from here on blocks of several elements */
    FB_STORED_Q4_0,
    FB_STORED_Q4_1,
    FB_STORED_Q5_0,
    FB_STORED_Q5_1,
    FB_STORED_Q4_K,
    FB_STORED_Q5_K,
    FB_STORED_Q6_K,
    FB_STORED_Q2_K,
    FB_STORED_Q3_K,
    FB_STORED_IQ4_NL,
    FB_STORED_IQ4_XS,
    FB_STORED_MXFP4,
    FB_STORED_TYPE_COUNT
} fb_stored_type;

const char *fb_stored_name(fb_stored_type type); /* as files spell it: "F16" */
int64_t fb_stored_block(fb_stored_type type);    /* elements of a block: 1 for plain types */
/* Bytes of `count` elements, a multiple of the block; INT64_MAX if they are more than that. */
int64_t fb_stored_bytes(fb_stored_type type, int64_t count);

typedef struct fb_tensor_entry {
    const char *name; /* belongs to the table */
    fb_stored_type type;
    int32_t dims;
    int64_t shape[FB_MAX_DIMS]; /* the last dimension is the one whose elements are neighbours */
    int64_t count;              /* elements: the product of the shape, 1 for a scalar */
    const uint8_t *data;        /* count elements, not necessarily aligned; NULL when count is 0 */
} fb_tensor_entry;

typedef struct fb_tensor_table fb_tensor_table;

void fb_tensors_free(fb_tensor_table *table);

/* Refuses a table one of whose files has another size than when it was opened. */
fb_status fb_tensors_check_files(const fb_tensor_table *table, fb_error *err);

int64_t fb_tensors_count(const fb_tensor_table *table);
const fb_tensor_entry *fb_tensors_at(const fb_tensor_table *table, int64_t index);      /* in order of name */
const fb_tensor_entry *fb_tensors_find(const fb_tensor_table *table, const char *name); /* or NULL */

/* "[24, 64]" into `text`. */
const char *fb_tensor_shape_text(const fb_tensor_entry *entry, char *text, size_t size);

#endif
