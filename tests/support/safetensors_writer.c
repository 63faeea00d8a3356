#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"

uint8_t *fbt_safetensors_bytes(const char *header, const void *data, size_t size, size_t *total) {
    uint64_t length = strlen(header);
    *total = 8 + length + size;
    uint8_t *bytes = calloc(1, *total);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(length >> (8 * i));
    memcpy(bytes + 8, header, length);
    if (data && size) memcpy(bytes + 8 + length, data, size);
    return bytes;
}

static json_t *describe(const fbt_tensor *tensor, int64_t begin) {
    json_t *shape = json_array();
    for (int d = 0; d < tensor->dims; d++) json_array_append_new(shape, json_integer(tensor->shape[d]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", tensor->dtype, "shape", shape, "data_offsets",
                     (json_int_t)begin, (json_int_t)(begin + (int64_t)tensor->size));
}

void fbt_safetensors_write(const char *path, const fbt_tensor *tensors, size_t count, const char *metadata) {
    json_t *root = json_object();
    assert_non_null(root);
    if (metadata)
        assert_int_equal(json_object_set_new(root, "__metadata__", json_loads(metadata, 0, NULL)), 0);
    int64_t end = 0;
    for (size_t i = 0; i < count; end += (int64_t)tensors[i++].size)
        assert_int_equal(json_object_set_new(root, tensors[i].name, describe(&tensors[i], end)), 0);
    uint8_t *data = calloc(1, (size_t)end + 1);
    assert_non_null(data);
    size_t at = 0;
    for (size_t i = 0; i < count; at += tensors[i++].size)
        if (tensors[i].bytes && tensors[i].size) memcpy(data + at, tensors[i].bytes, tensors[i].size);
    char *header = json_dumps(root, JSON_COMPACT);
    assert_non_null(header);
    size_t total;
    uint8_t *bytes = fbt_safetensors_bytes(header, data, (size_t)end, &total);
    fbt_file_write(path, bytes, total);
    free(bytes);
    free(header);
    free(data);
    json_decref(root);
}
