#include "text/bytes.h"

#include <stdlib.h>
#include <string.h>

void *fb_array_grow(void *data, int64_t size, int64_t *capacity, int64_t more, int64_t element) {
    if (data && more <= *capacity - size) return data;
    if (more > INT64_MAX / 2 / element - size) return NULL;
    int64_t wanted = size + more;
    if (wanted < 2 * *capacity) wanted = 2 * *capacity;
    if (wanted < 16) wanted = 16;
    void *grown = realloc(data, (size_t)(wanted * element));
    if (grown) *capacity = wanted;
    return grown;
}

fb_status fb_bytes_reserve(fb_bytes *bytes, int64_t more, fb_error *err) {
    if (more > FB_TEXT_LIMIT - bytes->size)
        return fb_fail(err, FB_ERROR_USAGE, "text: more than %lld bytes (at most %lld)",
                       (long long)bytes->size, (long long)FB_TEXT_LIMIT);
    char *data = fb_array_grow(bytes->data, bytes->size, &bytes->capacity, more, 1);
    if (!data) return fb_fail_memory(err, "text", bytes->size + more);
    bytes->data = data;
    return FB_OK;
}

fb_status fb_bytes_append(fb_bytes *bytes, const char *data, int64_t size, fb_error *err) {
    FB_TRY(fb_bytes_reserve(bytes, size, err));
    if (size > 0) memcpy(bytes->data + bytes->size, data, (size_t)size);
    bytes->size += size;
    return FB_OK;
}

fb_status fb_ids_append(fb_ids *ids, const int32_t *data, int64_t size, fb_error *err) {
    int32_t *grown = fb_array_grow(ids->data, ids->size, &ids->capacity, size, sizeof *ids->data);
    if (!grown) return fb_fail_memory(err, "token ids", (ids->size + size) * (int64_t)sizeof *ids->data);
    ids->data = grown;
    if (size > 0) memcpy(ids->data + ids->size, data, (size_t)size * sizeof *data);
    ids->size += size;
    return FB_OK;
}

fb_status fb_spans_add(fb_spans *spans, int64_t start, int64_t end, fb_error *err) {
    if (start >= end) return FB_OK;
    fb_span *grown = fb_array_grow(spans->data, spans->size, &spans->capacity, 1, sizeof *spans->data);
    if (!grown) return fb_fail_memory(err, "words", (spans->size + 1) * (int64_t)sizeof *spans->data);
    spans->data = grown;
    spans->data[spans->size++] = (fb_span){start, end};
    return FB_OK;
}

fb_status fb_growth_add(fb_growth *growth, int64_t bytes, fb_error *err) {
    if (bytes > growth->limit - growth->used)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: a text grows to %lld bytes (at most %lld)",
                       growth->what, (long long)(growth->used + bytes), (long long)growth->limit);
    growth->used += bytes;
    return FB_OK;
}

void fb_bytes_free(fb_bytes *bytes) {
    free(bytes->data);
    *bytes = (fb_bytes){0};
}

void fb_ids_free(fb_ids *ids) {
    free(ids->data);
    *ids = (fb_ids){0};
}

void fb_spans_free(fb_spans *spans) {
    free(spans->data);
    *spans = (fb_spans){0};
}
