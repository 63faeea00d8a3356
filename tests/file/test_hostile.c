/* Files of 10 MB that are made to cost much: each is opened or refused in less than 5 s and 500 MB, by a
 * process of its own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "file/safetensors.h"
#include "support/gguf_writer.h"
#include "text/tokenizer.h"

#define FILE_BYTES  10000000
#define MAX_BYTES   500000000
#define MAX_SECONDS 5.0

typedef struct hostile {
    const char *name;
    void (*write)(fbt_bytes *file);
    const char *words; /* of the refusal; NULL: opened, or refused in other words */
    const char *file;  /* of a directory; NULL: a GGUF file */
} hostile;

/* Room for the whole file at once: fbt_put grows by what is put. */
static void reserve(fbt_bytes *file) {
    file->data = realloc(file->data, FILE_BYTES + 4096);
    assert_non_null(file->data);
}

static void append(fbt_bytes *file, const void *bytes, size_t size) {
    memcpy(file->data + file->size, bytes, size);
    file->size += size;
}

static bool has_room(const fbt_bytes *file) { return file->size < FILE_BYTES - 200; }

static void set_u64(fbt_bytes *file, size_t at, uint64_t value) {
    memcpy(file->data + at, &value, sizeof value);
}

/* ---- GGUF ---------------------------------------------------------------------------------------------- */

static void many_tensors(fbt_bytes *file) {
    fbt_gguf_start(file, 3, 0, 0);
    reserve(file);
    uint64_t count = 0;
    for (; has_room(file); count++) {
        uint64_t length = 7, offset = 0;
        char name[16];
        snprintf(name, sizeof name, "t%06llu", (unsigned long long)count % 1000000);
        append(file, &length, 8);
        append(file, name, 7);
        append(file, &(uint32_t[]){1, 0, 0}, 4); /* dims, and a size of 0 */
        append(file, &(uint64_t){0}, 8);
        append(file, &(uint32_t){0}, 4);
        append(file, &offset, 8);
    }
    set_u64(file, 8, count);
    while (file->size % 32) append(file, "", 1);
}

static void many_values(fbt_bytes *file) {
    fbt_gguf_start(file, 3, 0, 0);
    reserve(file);
    uint64_t count = 0;
    for (; has_room(file); count++) {
        uint64_t length = 7;
        char name[16];
        snprintf(name, sizeof name, "k%06llu", (unsigned long long)count % 1000000);
        append(file, &length, 8);
        append(file, name, 7);
        append(file, &(uint32_t){FB_GGUF_U8}, 4);
        append(file, "", 1);
    }
    set_u64(file, 16, count);
}

static void many_arrays(fbt_bytes *file) {
    fbt_gguf_start(file, 3, 0, 0);
    reserve(file);
    uint64_t count = 0;
    for (; has_room(file); count++) {
        uint64_t length = 7;
        char name[16];
        snprintf(name, sizeof name, "k%06llu", (unsigned long long)count % 1000000);
        append(file, &length, 8);
        append(file, name, 7);
        append(file, &(uint32_t[]){FB_GGUF_ARRAY, FB_GGUF_U8}, 8);
        append(file, &(uint64_t){0}, 8);
    }
    set_u64(file, 16, count);
}

static void put_empty_texts(fbt_bytes *file, const char *key) {
    uint64_t count = (FILE_BYTES - 1000) / 8;
    fbt_gguf_array(file, key, FB_GGUF_STRING, count);
    reserve(file);
    memset(file->data + file->size, 0, count * 8);
    file->size += count * 8;
}

static void empty_texts(fbt_bytes *file) {
    fbt_gguf_start(file, 3, 0, 1);
    put_empty_texts(file, "texts");
}

/* A vocabulary of as many tokens as fit. */
static void many_tokens(fbt_bytes *file) {
    fbt_gguf_start(file, 3, 0, 3);
    fbt_gguf_text(file, "tokenizer.ggml.model", "gpt2");
    fbt_gguf_text(file, "tokenizer.ggml.pre", "gpt-2");
    fbt_gguf_array(file, "tokenizer.ggml.tokens", FB_GGUF_STRING, 0);
    size_t at = file->size - 8;
    reserve(file);
    uint64_t count = 0;
    for (; has_room(file); count++) {
        uint64_t length = 6;
        char name[16];
        snprintf(name, sizeof name, "%06llx", (unsigned long long)count);
        append(file, &length, 8);
        append(file, name, 6);
    }
    set_u64(file, at, count);
}

static void empty_tokens(fbt_bytes *file) {
    fbt_gguf_start(file, 3, 0, 3);
    fbt_gguf_text(file, "tokenizer.ggml.model", "gpt2");
    fbt_gguf_text(file, "tokenizer.ggml.pre", "gpt-2");
    put_empty_texts(file, "tokenizer.ggml.tokens");
}

static void fill(fbt_bytes *file) {
    reserve(file);
    memset(file->data + file->size, 0, FILE_BYTES - file->size);
    file->size = FILE_BYTES;
}

static void values_beyond(fbt_bytes *file) {
    fbt_gguf_start(file, 3, 0, 1ull << 63);
    fill(file);
}
static void tensors_beyond(fbt_bytes *file) {
    fbt_gguf_start(file, 3, 1ull << 63, 0);
    fill(file);
}
static void elements_beyond(fbt_bytes *file) {
    fbt_gguf_start(file, 3, 0, 1);
    fbt_gguf_array(file, "a", FB_GGUF_U64, 1ull << 63);
    fill(file);
}
static void text_beyond(fbt_bytes *file) {
    fbt_gguf_start(file, 3, 0, 1);
    fbt_gguf_key(file, "a", FB_GGUF_STRING);
    fbt_put_u64(file, UINT64_MAX);
    fill(file);
}
static void arrays_of_arrays(fbt_bytes *file) {
    fbt_gguf_start(file, 3, 0, 1);
    fbt_gguf_array(file, "a", FB_GGUF_ARRAY, 1);
    reserve(file);
    while (has_room(file)) {
        append(file, &(uint32_t){FB_GGUF_ARRAY}, 4);
        append(file, &(uint64_t){1}, 8);
    }
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

/* `front`, as many of `item` (whose %06llu is a number) as fit, with commas between them, `back`. */
static void repeat(fbt_bytes *file, const char *front, const char *item, const char *back) {
    reserve(file);
    append(file, front, strlen(front));
    for (unsigned long long i = 0; has_room(file); i++) {
        char text[128];
        if (i) append(file, ",", 1);
        append(file, text, (size_t)snprintf(text, sizeof text, item, i));
    }
    append(file, back, strlen(back));
}

/* Puts the header's length before what is there. */
static void as_header(fbt_bytes *file) {
    while (file->size % 8) append(file, " ", 1);
    memmove(file->data + 8, file->data, file->size);
    set_u64(file, 0, file->size);
    file->size += 8;
}

static void many_entries(fbt_bytes *file) {
    repeat(file, "{", "\"%06llu\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[0,0]}", "}");
    as_header(file);
}
static void many_dimensions(fbt_bytes *file) {
    repeat(file, "{\"a\":{\"dtype\":\"I8\",\"data_offsets\":[0,0],\"shape\":[", "%llu", "]}}");
    as_header(file);
}
static void many_ones(fbt_bytes *file) {
    repeat(file, "{\"a\":{\"dtype\":\"I8\",\"data_offsets\":[0,0],\"shape\":[", "1", "]}}");
    as_header(file);
}
static void much_metadata(fbt_bytes *file) {
    repeat(file, "{\"__metadata__\":{", "\"%06llu\":\"\"", "}}");
    as_header(file);
}
static void nested(fbt_bytes *file) {
    reserve(file);
    append(file, "{\"a\":", 5);
    memset(file->data + file->size, '[', FILE_BYTES - 100);
    file->size += FILE_BYTES - 100;
}
static void nested_header(fbt_bytes *file) {
    nested(file);
    as_header(file);
}
static void header_beyond(fbt_bytes *file) {
    fbt_put_u64(file, UINT64_MAX);
    fill(file);
}
static void many_members(fbt_bytes *file) { repeat(file, "{", "\"%06llu\":1", "}"); }
static void many_weights(fbt_bytes *file) {
    repeat(file, "{\"weight_map\":{", "\"%06llu\":\"x.safetensors\"", "}}");
}
static void many_words(fbt_bytes *file) {
    repeat(file, "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{", "\"%06llu\":1", "}}}");
}

/* ---- opening in a child -----------------------------------------------------------------------------------
 */

#define INDEX "model.safetensors.index.json"

static const hostile rows[] = {
    {"tensors of nothing", many_tensors, NULL, NULL},
    {"values", many_values, NULL, NULL},
    {"arrays of nothing", many_arrays, NULL, NULL},
    {"an array of empty strings", empty_texts, NULL, NULL},
    {"tokens", many_tokens, NULL, NULL},
    {"empty tokens", empty_tokens, NULL, NULL},
    {"2^63 values", values_beyond, "9223372036854775808 metadata values", NULL},
    {"2^63 tensors", tensors_beyond, "9223372036854775808 tensors", NULL},
    {"2^63 elements", elements_beyond, "9223372036854775808 elements", NULL},
    {"a string of 2^64 - 1 bytes", text_beyond, "18446744073709551615 bytes", NULL},
    {"arrays of arrays", arrays_of_arrays, "array of arrays", NULL},
    {"safetensors: entries", many_entries, NULL, "model.safetensors"},
    {"safetensors: dimensions", many_dimensions, "dimensions", "model.safetensors"},
    {"safetensors: short dimensions", many_ones, "dimensions", "model.safetensors"},
    {"safetensors: metadata", much_metadata, NULL, "model.safetensors"},
    {"safetensors: nesting", nested_header, "model.safetensors", "model.safetensors"},
    {"safetensors: a header of 2^64 - 1 bytes", header_beyond, "18446744073709551615", "model.safetensors"},
    {"an index of tensors", many_weights, NULL, INDEX},
    {"a config of members", many_members, "config.json", "config.json"},
    {"a config of brackets", nested, "config.json", "config.json"},
    {"a tokenizer of tokens", many_words, "tokenizer.json", "tokenizer.json"},
    {"a tokenizer of brackets", nested, "tokenizer.json", "tokenizer.json"},
};

/* As far as a file can be read: the table, the tokenizer, the model. */
static bool open_all(const hostile *row, const char *path, fb_error *err) {
    fb_model *model = NULL;
    bool refused = fb_model_open(path, &model, err) != FB_OK;
    fb_model_free(model);
    fb_gguf *gguf = NULL;
    fb_tokenizer *tokenizer = NULL;
    fb_error other;
    if (!row->file && fb_gguf_open(path, &gguf, &other) == FB_OK) {
        fb_status status = fb_tokenizer_from_gguf(path, gguf, &tokenizer, &other);
        (void)status;
    }
    fb_tokenizer_free(tokenizer);
    fb_gguf_free(gguf);
    return refused;
}

static void is_cheap(void **state) {
    const hostile *row = *state;
    char *dir = row->file ? fbt_dir_from_golden("neox-parallel") : fbt_dir_create();
    char *path = fbt_format("%s/%s", dir, row->file ? row->file : "x.gguf");
    if (row->file && strcmp(row->file, INDEX) == 0) {
        char *whole = fbt_format("%s/model.safetensors", dir);
        unlink(whole);
        free(whole);
    }
    fbt_bytes file = {0};
    row->write(&file);
    assert_in_range(file.size, 0, FILE_BYTES);
    fbt_file_write(path, file.data, file.size);
    free(file.data);
    double start = fb_now();
    pid_t pid = fork();
    if (pid == 0) {
        fb_error err = {0};
        bool right = open_all(row, row->file ? dir : path, &err);
        right = right && (!row->words || strstr(err.message, row->words));
        if (!right) fprintf(stderr, "# %s\n", err.message);
        _exit(!right);
    }
    int status;
    struct rusage usage;
    assert_int_equal(wait4(pid, &status, 0, &usage), pid);
    double seconds = fb_now() - start, bytes = (double)usage.ru_maxrss * 1024;
    double user = (double)usage.ru_utime.tv_sec + 1e-6 * (double)usage.ru_utime.tv_usec;
    print_message("# %s: %.2f s, %.0f MB\n", row->name, seconds, bytes / 1e6);
    assert_int_equal(status, 0);
    if (!FBT_SANITIZED) assert_true(bytes < MAX_BYTES && user < MAX_SECONDS);
    free(path);
    fbt_dir_remove(dir);
}

int main(void) {
    enum { COUNT = sizeof rows / sizeof *rows };
    struct CMUnitTest tests[COUNT];
    for (int i = 0; i < COUNT; i++)
        tests[i] = (struct CMUnitTest){
            .name = rows[i].name, .test_func = is_cheap, .initial_state = (void *)(uintptr_t)&rows[i]};
    return _cmocka_run_group_tests("hostile", tests, COUNT, NULL, NULL);
}
