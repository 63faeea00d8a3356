/* Writing GGUF: the bytes themselves, and that there is the whole file or none. */
#include "file/gguf_write.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/gguf_writer.h"
#include "support/support.h"

static char *dir, *path;

static int make_dir(void **state) {
    (void)state;
    dir = fbt_dir_create();
    path = fbt_format("%s/out.gguf", dir);
    return 0;
}

static int remove_dir(void **state) {
    (void)state;
    free(path);
    fbt_dir_remove(dir);
    return 0;
}

/* Files in the directory: a temporary one would count. */
static int files(void) {
    DIR *open = opendir(dir);
    assert_non_null(open);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(open));) count += entry->d_name[0] != '.';
    closedir(open);
    return count;
}

static fb_gguf_writer *start(bool replace) {
    fb_gguf_writer *w;
    fb_error err;
    assert_ok(fb_gguf_writer_create(path, replace, &w, &err), &err);
    return w;
}

/* One of everything. */
static void put_all(fb_gguf_writer *w) {
    fb_gguf_put_string(w, "text", "GG");
    fb_gguf_put_u32(w, "number", 0x01020304);
    fb_gguf_put_f32(w, "real", 0.1);
    fb_gguf_put_bool(w, "flag", true);
    fb_gguf_put_strings(w, "texts", 2);
    fb_gguf_item_string(w, "ab", 2);
    fb_gguf_item_string(w, "", 0);
    fb_gguf_put_i32s(w, "numbers", 2);
    fb_gguf_item_i32(w, -1);
    fb_gguf_item_i32(w, 7);
    fb_gguf_put_tensor(w, "vector", FB_F32, 0, 0, 3);
    fb_gguf_put_tensor(w, "whole", FB_F16, 0, 0, 16); /* its end needs no padding */
    fb_gguf_put_tensor(w, "matrix", FB_Q8_0, 0, 2, 32);
}

static const uint8_t vector[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
static uint8_t whole[32], matrix[68];

static void test_bytes(void **state) {
    (void)state;
    fbt_bytes want = {0};
    fbt_gguf_start(&want, 3, 3, 6);
    fbt_gguf_text(&want, "text", "GG");
    fbt_gguf_u32(&want, "number", 0x01020304);
    fbt_gguf_f32(&want, "real", 0.1f);
    fbt_gguf_bool(&want, "flag", 1);
    fbt_gguf_texts(&want, "texts", (const char *const[]){"ab", ""}, 2);
    fbt_gguf_array(&want, "numbers", FB_GGUF_I32, 2);
    fbt_put_u32(&want, UINT32_MAX);
    fbt_put_u32(&want, 7);
    fbt_gguf_tensor(&want, "vector", 1, (const uint64_t[]){3}, 0, 0);
    fbt_gguf_tensor(&want, "whole", 1, (const uint64_t[]){16}, 1, 32);
    fbt_gguf_tensor(&want, "matrix", 2, (const uint64_t[]){32, 2}, 8, 64);
    static const uint8_t zeros[32];
    fbt_put(&want, zeros, (32 - want.size % 32) % 32);
    fbt_put(&want, vector, sizeof vector);
    fbt_put(&want, zeros, 20);
    fbt_put(&want, whole, sizeof whole);
    fbt_put(&want, matrix, sizeof matrix);
    fbt_put(&want, zeros, 28);

    fb_error err;
    fb_gguf_writer *w = start(false);
    put_all(w);
    assert_ok(fb_gguf_writer_begin(w, &err), &err);
    /* In parts of any size. */
    assert_ok(fb_gguf_writer_data(w, vector, 5, &err), &err);
    assert_ok(fb_gguf_writer_data(w, vector + 5, 7, &err), &err);
    assert_ok(fb_gguf_writer_data(w, whole, sizeof whole, &err), &err);
    assert_ok(fb_gguf_writer_data(w, matrix, sizeof matrix, &err), &err);
    int64_t size;
    assert_in_range(files(), 0, 1); /* 1: the file system has no files without a name */
    assert_ok(fb_gguf_writer_finish(w, &size, &err), &err);
    fb_gguf_writer_free(w);
    size_t have;
    uint8_t *bytes = fbt_file_read(path, &have);
    assert_int_equal(have, want.size);
    assert_int_equal(size, want.size);
    assert_memory_equal(bytes, want.data, want.size);
    assert_int_equal(files(), 1);
    free(bytes);
    free(want.data);
}

/* Nothing is under the name before the end, and nothing at all after one that never came. */
static void test_unfinished(void **state) {
    (void)state;
    fb_error err;
    int64_t size;
    for (int stage = 0; stage < 4; stage++) {
        fb_gguf_writer *w = start(false);
        put_all(w);
        if (stage > 0) assert_ok(fb_gguf_writer_begin(w, &err), &err);
        if (stage > 1) assert_ok(fb_gguf_writer_data(w, vector, sizeof vector, &err), &err);
        if (stage > 2)
            assert_refused(fb_gguf_writer_finish(w, &size, &err), FB_ERROR_USAGE, &err, "1 of 3 tensors");
        assert_int_not_equal(access(path, F_OK), 0);
        assert_in_range(files(), 0, 1);
        fb_gguf_writer_free(w);
        assert_int_equal(files(), 0);
    }
}

static void test_too_much_data(void **state) {
    (void)state;
    fb_error err;
    fb_gguf_writer *w = start(false);
    put_all(w);
    assert_ok(fb_gguf_writer_begin(w, &err), &err);
    assert_refused(fb_gguf_writer_data(w, matrix, 13, &err), FB_ERROR_USAGE, &err, "more data");
    assert_ok(fb_gguf_writer_data(w, vector, sizeof vector, &err), &err);
    assert_ok(fb_gguf_writer_data(w, whole, sizeof whole, &err), &err);
    assert_ok(fb_gguf_writer_data(w, matrix, sizeof matrix, &err), &err);
    assert_refused(fb_gguf_writer_data(w, matrix, 1, &err), FB_ERROR_USAGE, &err, "more data");
    fb_gguf_writer_free(w);
    assert_int_equal(files(), 0);
}

static fb_status finish(fb_gguf_writer *w, fb_error *err) {
    int64_t size;
    put_all(w);
    FB_TRY(fb_gguf_writer_begin(w, err));
    FB_TRY(fb_gguf_writer_data(w, vector, sizeof vector, err));
    FB_TRY(fb_gguf_writer_data(w, whole, sizeof whole, err));
    FB_TRY(fb_gguf_writer_data(w, matrix, sizeof matrix, err));
    return fb_gguf_writer_finish(w, &size, err);
}

static void test_existing(void **state) {
    (void)state;
    fb_error err;
    fb_gguf_writer *w;
    fbt_text_write(path, "precious");
    assert_refused(fb_gguf_writer_create(path, false, &w, &err), FB_ERROR_USAGE, &err, "out.gguf|exists");
    assert_null(w);
    w = start(true);
    char *before = fbt_file_read(path, NULL); /* still there while the other is written */
    assert_string_equal(before, "precious");
    free(before);
    assert_ok(finish(w, &err), &err);
    fb_gguf_writer_free(w);
    char *after = fbt_file_read(path, NULL);
    assert_memory_equal(after, "GGUF", 4);
    free(after);
    assert_int_equal(files(), 1);
    unlink(path);

    /* One that took the name meanwhile stays as well. */
    w = start(false);
    fbt_text_write(path, "precious");
    assert_refused(finish(w, &err), FB_ERROR_FILE, &err, "out.gguf|exists");
    fb_gguf_writer_free(w);
    before = fbt_file_read(path, NULL);
    assert_string_equal(before, "precious");
    free(before);
    assert_int_equal(files(), 1);
    unlink(path);
}

/* What is no regular file is never replaced. */
static void test_targets(void **state) {
    (void)state;
    fb_error err;
    fb_gguf_writer *w;
    char *inside = fbt_format("%s/none/out.gguf", dir), *link = fbt_format("%s/link", dir);
    assert_refused(fb_gguf_writer_create(dir, true, &w, &err), FB_ERROR_USAGE, &err, "not a regular file");
    assert_refused(fb_gguf_writer_create("/dev/null", true, &w, &err), FB_ERROR_USAGE, &err,
                   "/dev/null|not a regular file");
    assert_int_equal(symlink("/dev/null", link), 0);
    assert_refused(fb_gguf_writer_create(link, true, &w, &err), FB_ERROR_USAGE, &err, "not a regular file");
    unlink(link);
    assert_refused(fb_gguf_writer_create(inside, false, &w, &err), FB_ERROR_FILE, &err,
                   "none/out.gguf|No such file");
    assert_int_equal(files(), 0);
    free(inside);
    free(link);
}

/* A disk that is full, played by a limit on the size of files. */
static void test_full_disk(void **state) {
    (void)state;
    fb_error err;
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    small = (struct rlimit){64, before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    fb_gguf_writer *w = start(false);
    fb_status status = finish(w, &err);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_DFL);
    assert_refused(status, FB_ERROR_SYSTEM, &err, "out.gguf|File too large");
    fb_gguf_writer_free(w);
    assert_int_equal(files(), 0);
}

/* What another file says under some keys, type by type. */
static void test_copy(void **state) {
    (void)state;
    fb_error err;
    fb_gguf_writer *w = start(false);
    assert_ok(finish(w, &err), &err);
    fb_gguf_writer_free(w);
    fb_gguf *first, *second;
    assert_ok(fb_gguf_open(path, &first, &err), &err);
    char *copy = fbt_format("%s/copy.gguf", dir);
    assert_ok(fb_gguf_writer_create(copy, false, &w, &err), &err);
    fb_gguf_copy(w, first, "text", NULL);
    fb_gguf_copy(w, first, "number", NULL);
    fb_gguf_copy(w, first, "flag", NULL);
    fb_gguf_copy(w, first, "real", NULL);
    int64_t size;
    assert_ok(fb_gguf_writer_begin(w, &err), &err);
    assert_ok(fb_gguf_writer_finish(w, &size, &err), &err);
    fb_gguf_writer_free(w);
    assert_ok(fb_gguf_open(copy, &second, &err), &err);
    assert_int_equal(fb_json_size(second->values), 6);
    assert_true(fb_json_equal(first->values, second->values));
    const fb_gguf_array *texts = fb_gguf_find_array(second, "texts"),
                        *numbers = fb_gguf_find_array(second, "numbers");
    assert_int_equal(texts->count, 2);
    const uint8_t *at = texts->data;
    assert_int_equal(fb_gguf_next_text(&at).size, 2);
    assert_int_equal(fb_gguf_next_text(&at).size, 0);
    assert_int_equal(numbers->type, FB_GGUF_I32);
    assert_int_equal(fb_gguf_int_at(numbers, 0), -1);
    assert_int_equal(fb_gguf_int_at(numbers, 1), 7);
    fb_gguf_free(first);
    fb_gguf_free(second);
    unlink(copy);
    unlink(path);
    free(copy);
}

int main(void) {
    for (size_t i = 0; i < sizeof matrix; i++) matrix[i] = (uint8_t)(100 + i);
    memset(whole, 0xab, sizeof whole);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_bytes, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_unfinished, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_too_much_data, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_existing, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_targets, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_full_disk, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_copy, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
