/* Inside of a tensor table, for the readers that fill one. */
#ifndef FB_FILE_TENSORS_TABLE_H
#define FB_FILE_TENSORS_TABLE_H

#include "file/json.h"
#include "file/map.h"
#include "file/tensors.h"

struct fb_tensor_table {
    fb_tensor_entry *entries; /* [count], in order of name */
    int64_t count;
    fb_json *header;          /* safetensors: the entries' names and the metadata live here, else NULL */
    char *names;              /* GGUF: the entries' names live here, else NULL */
    fb_map map;               /* empty if the bytes are the caller's, or the shards' */
    fb_tensor_table **shards; /* [shard_count], of an index: the entries' names and data live there */
    int64_t shard_count;
};

void fb_tensors_sort(fb_tensor_table *table);

/* A name that can be shown: not empty, without control characters. */
bool fb_tensors_good_name(const char *name);

/* Where a tensor's bytes lie in the data, for the checks that all of them lie there side by side. */
typedef struct fb_tensor_range {
    int64_t begin, end;
    const char *name;
} fb_tensor_range;

/* Sorts the ranges and refuses two that overlap and holes of more than `slack` bytes between two. `end`:
 * where the last one ends. */
fb_status fb_tensors_check_ranges(const char *what, fb_tensor_range *ranges, int64_t count, int64_t slack,
                                  int64_t *end, fb_error *err);

#endif
