#include <inttypes.h>
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

static void describe(FILE *out, const fbt_tensor *tensor, int64_t begin) {
    fprintf(out, "\"%s\":{\"dtype\":\"%s\",\"shape\":[", tensor->name, tensor->dtype);
    for (int d = 0; d < tensor->dims; d++) fprintf(out, "%s%" PRId64, d ? "," : "", tensor->shape[d]);
    fprintf(out, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", begin, begin + (int64_t)tensor->size);
}

void fbt_safetensors_write(const char *path, const fbt_tensor *tensors, size_t count, const char *metadata) {
    char *header = NULL;
    size_t length, total;
    FILE *out = open_memstream(&header, &length);
    assert_non_null(out);
    fputs("{", out);
    if (metadata) fprintf(out, "\"__metadata__\":%s%s", metadata, count ? "," : "");
    int64_t end = 0;
    for (size_t i = 0; i < count; end += (int64_t)tensors[i++].size) {
        describe(out, &tensors[i], end);
        if (i + 1 < count) fputs(",", out);
    }
    fputs("}", out);
    assert_int_equal(fclose(out), 0);
    uint8_t *data = calloc(1, (size_t)end + 1);
    assert_non_null(data);
    size_t at = 0;
    for (size_t i = 0; i < count; at += tensors[i++].size)
        if (tensors[i].bytes && tensors[i].size) memcpy(data + at, tensors[i].bytes, tensors[i].size);
    uint8_t *bytes = fbt_safetensors_bytes(header, data, (size_t)end, &total);
    fbt_file_write(path, bytes, total);
    free(bytes);
    free(header);
    free(data);
}
