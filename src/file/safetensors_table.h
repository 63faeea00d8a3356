/* Inside of a tensor table: shared by the reader of one file and the reader of an index. */
#ifndef FB_FILE_SAFETENSORS_TABLE_H
#define FB_FILE_SAFETENSORS_TABLE_H

#include <jansson.h>

#include "file/safetensors.h"

struct fb_tensor_table {
    fb_tensor_entry *entries; /* [count], in order of name */
    int64_t count;
    json_t *header;           /* the entries' names and the metadata live here; NULL for an index */
    fb_map map;               /* empty if the bytes are the caller's, or the shards' */
    fb_tensor_table **shards; /* [shard_count], of an index: the entries' names and data live there */
    int64_t shard_count;
};

void fb_tensors_sort(fb_tensor_table *table);

#endif
