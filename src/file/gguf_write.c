#include "file/gguf_write.h"

#include <errno.h>
#include <stdlib.h>

#include "base/whole_file.h"

#define VERSION   3
#define ALIGNMENT 32        /* of each tensor's data: the format's default, so that it need not be said */
#define BUFFER    (1 << 20) /* bytes */

/* Types of tensors, as the file numbers them. */
static const uint32_t tensor_types[FB_DTYPE_COUNT] = {
    [FB_F32] = 0,     [FB_F16] = 1,     [FB_Q4_0] = 2,   [FB_Q4_1] = 3,  [FB_Q5_0] = 6,  [FB_Q5_1] = 7,
    [FB_Q8_0] = 8,    [FB_Q4_K] = 12,   [FB_Q5_K] = 13,  [FB_Q6_K] = 14, [FB_Q2_K] = 10, [FB_Q3_K] = 11,
    [FB_IQ4_NL] = 20, [FB_IQ4_XS] = 23, [FB_MXFP4] = 39, [FB_F64] = 28,  [FB_BF16] = 30,
};

typedef struct section {
    uint8_t *data;
    size_t size, capacity;
    uint64_t count; /* of values or tensors */
} section;

struct fb_gguf_writer {
    char *path;
    fb_whole_file *file;
    FILE *stream; /* the file's */
    bool full;    /* memory ran out */
    section metadata, tensors;
    int64_t *sizes;        /* of each tensor's data */
    int64_t current, done; /* the tensor that is written, and its bytes so far */
    int64_t at;            /* where the next tensor of the list will lie */
};

static int64_t padding(int64_t size) { return (ALIGNMENT - size % ALIGNMENT) % ALIGNMENT; }

/* ---- bytes, little endian ------------------------------------------------------------------------------ */

static void put(fb_gguf_writer *w, section *s, const void *data, size_t size) {
    if (s->size + size > s->capacity) {
        size_t capacity = 2 * (s->size + size) + 256;
        uint8_t *grown = w->full ? NULL : realloc(s->data, capacity);
        w->full = !grown;
        if (!grown) return;
        s->data = grown;
        s->capacity = capacity;
    }
    if (size) memcpy(s->data + s->size, data, size);
    s->size += size;
}

static void put_int(fb_gguf_writer *w, section *s, uint64_t value, int bytes) {
    uint8_t text[8];
    for (int i = 0; i < bytes; i++) text[i] = (uint8_t)(value >> 8 * i);
    put(w, s, text, (size_t)bytes);
}

static void put_text(fb_gguf_writer *w, section *s, const char *text, size_t size) {
    put_int(w, s, size, 8);
    put(w, s, text, size);
}

/* ---- metadata ------------------------------------------------------------------------------------------ */

static void put_key(fb_gguf_writer *w, const char *key, uint32_t type) {
    w->metadata.count++;
    put_text(w, &w->metadata, key, strlen(key));
    put_int(w, &w->metadata, type, 4);
}

void fb_gguf_put_u32(fb_gguf_writer *w, const char *key, int64_t value) {
    put_key(w, key, FB_GGUF_U32);
    put_int(w, &w->metadata, (uint32_t)value, 4);
}

void fb_gguf_put_f32(fb_gguf_writer *w, const char *key, double value) {
    put_key(w, key, FB_GGUF_F32);
    put_int(w, &w->metadata, fb_f32_bits((float)value), 4);
}

void fb_gguf_put_bool(fb_gguf_writer *w, const char *key, bool value) {
    put_key(w, key, FB_GGUF_BOOL);
    put_int(w, &w->metadata, value, 1);
}

static void put_string(fb_gguf_writer *w, const char *key, const char *text, size_t size) {
    put_key(w, key, FB_GGUF_STRING);
    put_text(w, &w->metadata, text, size);
}

void fb_gguf_put_string(fb_gguf_writer *w, const char *key, const char *text) {
    put_string(w, key, text, strlen(text));
}

static void put_array(fb_gguf_writer *w, const char *key, uint32_t type, int64_t count) {
    put_key(w, key, FB_GGUF_ARRAY);
    put_int(w, &w->metadata, type, 4);
    put_int(w, &w->metadata, (uint64_t)count, 8);
}

void fb_gguf_put_strings(fb_gguf_writer *w, const char *key, int64_t count) {
    put_array(w, key, FB_GGUF_STRING, count);
}

void fb_gguf_put_i32s(fb_gguf_writer *w, const char *key, int64_t count) {
    put_array(w, key, FB_GGUF_I32, count);
}

void fb_gguf_item_string(fb_gguf_writer *w, const char *text, int64_t size) {
    put_text(w, &w->metadata, text, (size_t)size);
}

void fb_gguf_item_i32(fb_gguf_writer *w, int32_t value) { put_int(w, &w->metadata, (uint32_t)value, 4); }

static void copy_array(fb_gguf_writer *w, const char *key, const fb_gguf_array *array) {
    const uint8_t *end = array->data;
    if (array->type == FB_GGUF_STRING)
        for (int64_t i = 0; i < array->count; i++) fb_gguf_next_text(&end);
    else
        end += array->count * fb_gguf_type_size(array->type);
    put_array(w, key, array->type, array->count);
    put(w, &w->metadata, array->data, (size_t)(end - array->data));
}

/* In the narrowest of the usual types that has it. */
static void copy_int(fb_gguf_writer *w, const char *key, int64_t value) {
    fb_gguf_type type = value >= 0 && value <= UINT32_MAX          ? FB_GGUF_U32
                        : value >= INT32_MIN && value <= INT32_MAX ? FB_GGUF_I32
                                                                   : FB_GGUF_I64;
    put_key(w, key, type);
    put_int(w, &w->metadata, (uint64_t)value, (int)fb_gguf_type_size(type));
}

static bool is_listed(const char *key, const char *const *keys) {
    for (; keys && *keys; keys++)
        if (strcmp(key, *keys) == 0) return true;
    return false;
}

void fb_gguf_copy(fb_gguf_writer *w, const fb_gguf *from, const char *prefix, const char *const *but) {
    for (const fb_json *value = fb_json_first(from->values); value; value = fb_json_next(value)) {
        const char *key = fb_json_key(value);
        if (strncmp(key, prefix, strlen(prefix)) != 0 || is_listed(key, but)) continue;
        if (fb_json_is(value, FB_JSON_NULL))
            copy_array(w, key, fb_gguf_find_array(from, key));
        else if (fb_json_is(value, FB_JSON_STRING))
            put_string(w, key, fb_json_text_of(value), fb_json_size(value));
        else if (fb_json_is(value, FB_JSON_BOOL))
            fb_gguf_put_bool(w, key, fb_json_bool_of(value));
        else if (fb_json_is(value, FB_JSON_INT))
            copy_int(w, key, fb_json_int_of(value));
        else
            fb_gguf_put_f32(w, key, fb_json_real_of(value));
    }
}

/* ---- tensors ------------------------------------------------------------------------------------------- */

void fb_gguf_put_tensor(fb_gguf_writer *w, const char *name, fb_dtype dtype, int64_t experts, int64_t rows,
                        int64_t cols) {
    int64_t index = (int64_t)w->tensors.count++;
    int64_t *sizes = realloc(w->sizes, (size_t)(index + 1) * sizeof *sizes);
    if (!sizes) {
        w->full = true;
        return;
    }
    w->sizes = sizes;
    w->sizes[index] = fb_dtype_bytes(dtype, (rows ? rows : 1) * cols);
    put_text(w, &w->tensors, name, strlen(name));
    put_int(w, &w->tensors, experts ? 3 : rows ? 2 : 1, 4);
    put_int(w, &w->tensors, (uint64_t)cols, 8); /* the fastest dimension comes first */
    if (rows) put_int(w, &w->tensors, (uint64_t)(experts ? rows / experts : rows), 8);
    if (experts) put_int(w, &w->tensors, (uint64_t)experts, 8);
    put_int(w, &w->tensors, tensor_types[dtype], 4);
    put_int(w, &w->tensors, (uint64_t)w->at, 8);
    w->at += w->sizes[index] + padding(w->sizes[index]);
}

/* ---- the file ------------------------------------------------------------------------------------------ */

fb_status fb_gguf_writer_create(const char *path, bool replace, fb_gguf_writer **out, fb_error *err) {
    *out = NULL;
    fb_gguf_writer *w = calloc(1, sizeof *w);
    if (!w) return fb_fail_memory(err, path, sizeof *w);
    w->path = strdup(path);
    fb_status status =
        w->path ? fb_whole_file_open(path, replace ? FB_WHOLE_REPLACE : FB_WHOLE_NEW, &w->file, err)
                : fb_fail_memory(err, path, (int64_t)strlen(path));
    if (status != FB_OK) {
        fb_gguf_writer_free(w);
        return status;
    }
    w->stream = fb_whole_file_stream(w->file);
    setvbuf(w->stream, NULL, _IOFBF, BUFFER);
    *out = w;
    return FB_OK;
}

void fb_gguf_writer_free(fb_gguf_writer *w) {
    if (!w) return;
    fb_whole_file_free(w->file);
    free(w->path);
    free(w->metadata.data);
    free(w->tensors.data);
    free(w->sizes);
    free(w);
}

static fb_status write_bytes(fb_gguf_writer *w, const void *data, size_t size, fb_error *err) {
    return !size || fwrite(data, 1, size, w->stream) == size ? FB_OK
                                                             : fb_whole_file_fail(w->path, errno, err);
}

static fb_status write_padding(fb_gguf_writer *w, int64_t after, fb_error *err) {
    static const uint8_t zeros[ALIGNMENT];
    return write_bytes(w, zeros, (size_t)padding(after), err);
}

fb_status fb_gguf_writer_begin(fb_gguf_writer *w, fb_error *err) {
    section head = {0};
    put(w, &head, "GGUF", 4);
    put_int(w, &head, VERSION, 4);
    put_int(w, &head, w->tensors.count, 8);
    put_int(w, &head, w->metadata.count, 8);
    fb_status status = w->full ? fb_fail_memory(err, w->path, (int64_t)(w->metadata.size + w->tensors.size))
                               : write_bytes(w, head.data, head.size, err);
    int64_t size = (int64_t)(head.size + w->metadata.size + w->tensors.size);
    free(head.data);
    FB_TRY(status);
    FB_TRY(write_bytes(w, w->metadata.data, w->metadata.size, err));
    FB_TRY(write_bytes(w, w->tensors.data, w->tensors.size, err));
    return write_padding(w, size, err);
}

fb_status fb_gguf_writer_data(fb_gguf_writer *w, const void *data, int64_t size, fb_error *err) {
    if (w->current == (int64_t)w->tensors.count || size > w->sizes[w->current] - w->done)
        return fb_fail(err, FB_ERROR_USAGE, "%s: more data than tensors", w->path);
    FB_TRY(write_bytes(w, data, (size_t)size, err));
    w->done += size;
    if (w->done < w->sizes[w->current]) return FB_OK;
    w->done = 0;
    return write_padding(w, w->sizes[w->current++], err);
}

fb_status fb_gguf_writer_finish(fb_gguf_writer *w, int64_t *size, fb_error *err) {
    *size = 0;
    if (w->current != (int64_t)w->tensors.count)
        return fb_fail(err, FB_ERROR_USAGE, "%s: data of %lld of %lld tensors", w->path,
                       (long long)w->current, (long long)w->tensors.count);
    off_t end = ftello(w->stream);
    if (end < 0) return fb_whole_file_fail(w->path, errno, err);
    FB_TRY(fb_whole_file_finish(w->file, err));
    *size = end;
    return FB_OK;
}
