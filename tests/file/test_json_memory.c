/* What JSON costs, and what happens when there is no memory. This program is linked so that the library's
 * allocations go through the functions here (mk/check.mk). */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/gguf.h"
#include "file/json.h"
#include "file/json_build.h"
#include "file/safetensors.h"
#include "support/gguf_writer.h"
#include "support/support.h"
#include "text/tokenizer.h"

/* ---- allocations --------------------------------------------------------------------------------------- */

static struct {
    int64_t held, peak; /* bytes */
    int64_t until;      /* so many allocations succeed; -1: all of them */
    int64_t failed;
} memory = {.until = -1};

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void __real_free(void *old);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void __wrap_free(void *old);

static bool fails(void) {
    if (memory.until < 0) return false;
    if (memory.until-- > 0) return false;
    memory.until = 0; /* and so do all that follow */
    memory.failed++;
    return true;
}

static void *taken(void *block) {
    memory.held += (int64_t)malloc_usable_size(block);
    if (memory.held > memory.peak) memory.peak = memory.held;
    return block;
}

void *__wrap_malloc(size_t size) { return fails() ? NULL : taken(__real_malloc(size)); }
void *__wrap_calloc(size_t count, size_t size) { return fails() ? NULL : taken(__real_calloc(count, size)); }

/* The old block is there until the new one is filled. */
void *__wrap_realloc(void *old, size_t size) {
    if (fails()) return NULL;
    void *block = taken(__real_malloc(size));
    size_t kept = malloc_usable_size(old);
    if (old) memcpy(block, old, kept < size ? kept : size);
    __wrap_free(old);
    return block;
}

void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    return fails() ? NULL : taken(__real_aligned_alloc(alignment, size));
}

void __wrap_free(void *old) {
    memory.held -= (int64_t)malloc_usable_size(old);
    __real_free(old);
}

/* ---- what a document costs ----------------------------------------------------------------------------- */

#define TIMES 8
#define SLACK 4096 /* a name in messages, and rounding */

static void check_peak(const char *name, const char *text, size_t size) {
    fb_json *value;
    int64_t before = memory.held;
    memory.peak = before;
    fb_json_parse("x.json", text, size, SIZE_MAX, &value, NULL);
    int64_t peak = memory.peak - before;
    fb_json_free(value);
    if (peak > TIMES * (int64_t)size + SLACK)
        fail_msg("%s: %lld bytes for %zu of text (at most %d times)", name, (long long)peak, size, TIMES);
    assert_true(memory.held == before);
}

/* The smallest texts of each kind, a million bytes of them in an array; and without its end, which is an
 * error behind them all. */
static void peak_of_any_text(void **state) {
    (void)state;
    static const char *const parts[] = {
        "[]",
        "0",
        "[0]",
        "{}",
        "\"\"",
        "{\"\":0}",
        "{\"\":[0]}",
        "{\"\":{\"\":{\"\":{}}}}",
        "[[[[[[[[]]]]]]]]",
        "[{},[]]",
        "1.5",
        "null",
        "\"\\n\\u00e9\"",
        "{\"a\":0,\"b\":0,\"c\":0,\"d\":0,\"e\":0,\"f\":0,\"g\":0,\"h\":0}",
        "{\"a\":0,\"b\":0,\"c\":0,\"d\":0,\"e\":0,\"f\":0,\"g\":0,\"h\":0,\"i\":0}",
        ":",
        "{",
        "[",
        "{\"\":",
        "[{\"\":",
        "}]",
        "\""};
    enum { SIZE = 1000000 };
    char *text = malloc(SIZE + 100), *at;
    assert_non_null(text);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (int comma = 0; comma < 2; comma++) {
            for (at = stpcpy(text, "["); at < text + SIZE;)
                at = stpcpy(stpcpy(at, parts[i]), comma ? "," : "");
            check_peak(parts[i], text, (size_t)(at - text));
            strcpy(at - comma, "]");
            check_peak(parts[i], text, strlen(text));
        }
    free(text);
}

static void peak_of_many_members(void **state) {
    (void)state;
    size_t size;
    char *text = NULL;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    for (int i = 0; i < 100000; i++) fprintf(out, "%s\"%x\":0", i ? "," : "{", i);
    fputs("}", out);
    assert_int_equal(fclose(out), 0);
    check_peak("members", text, size);
    text[0] = '[';
    check_peak("damaged members", text, size);
    free(text);
}

/* ---- no memory ----------------------------------------------------------------------------------------- */

/* Each reads one thing and gives it back. */
typedef fb_status (*reader)(const void *bytes, size_t size, fb_error *err);

static fb_status read_json(const void *bytes, size_t size, fb_error *err) {
    fb_json *value;
    fb_status status = fb_json_parse("a file", bytes, size, SIZE_MAX, &value, err);
    fb_json_free(value);
    return status;
}

static fb_status read_config(const void *bytes, size_t size, fb_error *err) {
    fb_spec *spec;
    fb_status status = fb_arch_describe("a file", bytes, size, &spec, err);
    fb_spec_free(spec);
    return status;
}

static fb_status read_tensors(const void *bytes, size_t size, fb_error *err) {
    fb_tensor_table *table;
    fb_status status = fb_tensors_parse("a file", bytes, size, &table, err);
    fb_tensors_free(table);
    return status;
}

static fb_status read_gguf(const void *bytes, size_t size, fb_error *err) {
    fb_gguf *gguf;
    FB_TRY(fb_gguf_parse("a file", bytes, size, &gguf, err));
    fb_spec *spec;
    fb_status status = fb_gguf_describe("a file", gguf, &spec, err);
    fb_spec_free(spec);
    fb_gguf_free(gguf);
    return status;
}

static fb_status build(const void *bytes, size_t size, fb_error *err) {
    fb_json_builder b = {0};
    for (int i = 0; i < 100; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        if (i % 10 == 0) fb_json_open_object(&b, key);
        fb_json_put_text(&b, "text", bytes, size);
        if (i % 10 == 0) fb_json_close(&b);
        if (i < 99) fb_json_open_object(&b, "inner");
    }
    for (int i = 0; i < 99; i++) fb_json_close(&b);
    fb_json *value;
    fb_status status = fb_json_finish(&b, "a file", &value, err);
    fb_json_free(value);
    return status;
}

/* With memory for one allocation more each time, until it is enough. */
static void check_each(reader read, const void *bytes, size_t size, int least) {
    fb_error err;
    int64_t before = memory.held, count = 0;
    for (fb_status status = FB_ERROR_MEMORY; status != FB_OK; count++) {
        memory.until = count;
        memory.failed = 0;
        status = read(bytes, size, &err);
        memory.until = -1;
        if (memory.held != before) fail_msg("%lld bytes are left", (long long)(memory.held - before));
        if (memory.failed)
            assert_refused(status, FB_ERROR_MEMORY, &err, "memory");
        else
            assert_ok(status, &err);
    }
    assert_true(count > least);
}

static void each_allocation_may_fail(void **state) {
    (void)state;
    static const char json[] = "{\"a\": [1, 2.5, \"x\", {}], \"b\": {\"c\": null}}";
    size_t size;
    char *text;
    check_each(read_json, json, sizeof json - 1, 1);
    check_each(build, json, sizeof json - 1, 4);
    text = fbt_file_read(FBT_GOLDENS "/llama-mha/config.json", &size);
    check_each(read_config, text, size, 2);
    free(text);
    text = fbt_file_read(FBT_GOLDENS "/llama-mha/model.safetensors", &size);
    check_each(read_tensors, text, size, 4);
    free(text);
    text = fbt_file_read("tests/data/gguf/llama-gqa-tied.gguf", &size);
    check_each(read_gguf, text, size, 8);
    free(text);
}

/* Whoever reads a file says that it was memory: its first allocation is the document's. */
static void readers_of_files_say_so(void **state) {
    (void)state;
    fb_error err;
    fb_json *value;
    fb_tokenizer *tokenizer;
    char *dir = fbt_dir_create(), *path = fbt_format("%s/x.json", dir);
    fbt_text_write(path, "{\"version\": \"1.0\"}");
    memory.until = 0;
    fb_status loaded = fb_json_load(path, 1000, &value, &err);
    memory.until = -1;
    assert_refused(loaded, FB_ERROR_MEMORY, &err, "x.json|memory");
    memory.until = 0;
    fb_status opened = fb_tokenizer_open(path, &tokenizer, &err);
    memory.until = -1;
    assert_refused(opened, FB_ERROR_MEMORY, &err, "x.json|memory");
    free(path);
    fbt_dir_remove(dir);
}

/* Not even if the file would be refused. */
static void no_memory_is_not_bad_json(void **state) {
    (void)state;
    fb_error err;
    memory.until = 0;
    fb_status status = read_json("[1, 2", 5, &err);
    memory.until = -1;
    assert_refused(status, FB_ERROR_MEMORY, &err, "a file|memory");
    assert_refused(read_json("[1, 2", 5, &err), FB_ERROR_FILE, &err, "a file|not JSON");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peak_of_any_text),          cmocka_unit_test(peak_of_many_members),
        cmocka_unit_test(each_allocation_may_fail),  cmocka_unit_test(readers_of_files_say_so),
        cmocka_unit_test(no_memory_is_not_bad_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
