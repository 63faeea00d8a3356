/* A model in several GGUF files: whichever is named, all are read; and what may be wrong with them. */
#include "file/gguf_split.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/gguf_writer.h"

enum { PARTS = 3 };

/* What the files say, and what the test changes in it. */
typedef struct files {
    const char *name;
    struct {
        int no, count, tensors; /* -1: the key is missing */
        const char *tensor;     /* the name of its tensor */
    } parts[PARTS];
} files;

static const files good = {"model", {{0, 3, 3, "b"}, {1, 3, 3, "a"}, {2, 3, 3, "c"}}};
static char *dir;

static char *path_of(const char *name, int part) {
    return fbt_format("%s/%s-%05d-of-%05d.gguf", dir, name, part + 1, PARTS);
}

static void put_split(fbt_bytes *bytes, const char *key, int value) {
    fbt_gguf_key(bytes, key, FB_GGUF_U16);
    fbt_put(bytes, &(uint16_t){(uint16_t)value}, 2);
}

static void write_part(const files *f, int i) {
    const int no = f->parts[i].no, count = f->parts[i].count, tensors = f->parts[i].tensors;
    fbt_bytes bytes = {0};
    fbt_gguf_start(&bytes, 3, 1, (uint64_t)((no >= 0) + (count >= 0) + (tensors >= 0) + (i == 0)));
    if (i == 0) fbt_gguf_text(&bytes, "general.name", "split");
    if (no >= 0) put_split(&bytes, "split.no", no);
    if (count >= 0) put_split(&bytes, "split.count", count);
    if (tensors >= 0) {
        fbt_gguf_key(&bytes, "split.tensors.count", FB_GGUF_I32);
        fbt_put_u32(&bytes, (uint32_t)tensors);
    }
    fbt_gguf_tensor(&bytes, f->parts[i].tensor, 1, (uint64_t[]){4}, 0, 0);
    fbt_gguf_data(&bytes, 32, 16);
    bytes.data[bytes.size - 1] = (uint8_t)(100 + i); /* to tell the tensors apart */
    char *path = path_of(f->name, i);
    fbt_file_write(path, bytes.data, bytes.size);
    free(path);
    free(bytes.data);
}

static void write_all(const files *f) {
    for (int i = 0; i < PARTS; i++) write_part(f, i);
}

static void any_part_opens_all(void **state) {
    (void)state;
    write_all(&good);
    for (int i = 0; i < PARTS; i++) {
        static const char *const names[] = {"a", "b", "c"};
        static const uint8_t marks[] = {101, 100, 102};
        fb_gguf *gguf;
        fb_error err;
        char *path = path_of("model", i);
        assert_ok(fb_gguf_open(path, &gguf, &err), &err);
        assert_string_equal(fb_json_text_of(fb_json_get(gguf->values, "general.name")), "split");
        assert_int_equal(fb_tensors_count(gguf->tensors), PARTS);
        for (int t = 0; t < PARTS; t++) {
            const fb_tensor_entry *entry = fb_tensors_at(gguf->tensors, t);
            assert_string_equal(entry->name, names[t]);
            assert_int_equal(((const uint8_t *)entry->data)[15], marks[t]);
        }
        assert_ok(fb_tensors_check_files(gguf->tensors, &err), &err);
        fb_gguf_free(gguf);
        free(path);
    }
}

/* Each file is looked at before a step: one that became shorter is refused. */
static void a_part_that_was_cut_is_refused(void **state) {
    (void)state;
    write_all(&good);
    fb_gguf *gguf;
    fb_error err;
    char *path = path_of("model", 0), *last = path_of("model", 2);
    assert_ok(fb_gguf_open(path, &gguf, &err), &err);
    assert_int_equal(truncate(last, 10), 0);
    assert_refused(fb_tensors_check_files(gguf->tensors, &err), FB_ERROR_FILE, &err,
                   "model-00003-of-00003.gguf");
    fb_gguf_free(gguf);
    free(path);
    free(last);
}

static void open_refused(const char *path, const char *words) {
    fb_gguf *gguf = NULL;
    fb_error err;
    assert_refused(fb_gguf_open(path, &gguf, &err), FB_ERROR_FILE, &err, words);
    assert_null(gguf);
}

/* Refused whichever part is named: `first` by the first, `second` by the second; NULL: the same words. */
static void refused(const files *f, const char *first, const char *second) {
    write_all(f);
    for (int i = 0; i < 2; i++) {
        char *path = path_of(f->name, i);
        open_refused(path, i && second ? second : first);
        free(path);
    }
}

static void parts_that_do_not_fit(void **state) {
    (void)state;
    files f = good;
    f.parts[1].no = 2;
    refused(&f, "00002-of-00003.gguf: split.no: 2|1: the name says part 2",
            "must end in -00003-of-00003.gguf");
    f = good;
    f.parts[1].no = -1;
    refused(&f, "00002-of-00003.gguf: split.no", NULL);
    f = good;
    f.parts[1].no = 60000;
    refused(&f, "split.no: 60000", "part 60001 of 3");
    f = good;
    f.parts[2].count = 4;
    refused(&f, "00003-of-00003.gguf: split.count: 4|3 in the other parts", NULL);
    f = good;
    f.parts[2].count = -1;
    refused(&f, "00003-of-00003.gguf: split.count: 1|3 in the other parts", NULL);
    f = good;
    f.parts[2].tensors = 5;
    refused(&f, "00003-of-00003.gguf: split.tensors.count: 5|3 in the other parts", NULL);
    f = good;
    for (int i = 0; i < PARTS; i++) f.parts[i].tensors = 4;
    refused(&f, "split.tensors.count: 4|the 3 parts have 3", NULL);
    f = good;
    f.parts[2].tensor = "a";
    refused(&f, "duplicate tensor a", NULL);
    f = good;
    for (int i = 0; i < PARTS; i++) f.parts[i].count = 65535;
    refused(&f, "part 1 of 65535|must end in -00001-of-65535.gguf", "part 2 of 65535");
}

static void files_that_are_not_there(void **state) {
    (void)state;
    write_all(&good);
    char *first = path_of("model", 0), *second = path_of("model", 1), *other = fbt_format("%s/x.gguf", dir);
    unlink(second);
    open_refused(first, "model-00002-of-00003.gguf: No such file or directory|part 2 of the model's 3");
    write_part(&good, 1);
    unlink(first);
    open_refused(second, "model-00001-of-00003.gguf: No such file or directory|part 1 of the model's 3");
    write_part(&good, 0);
    fbt_file_copy(first, other);
    open_refused(other, "x.gguf: part 1 of 3|must end in -00001-of-00003.gguf");
    fbt_text_write(second, "GGUF?");
    open_refused(first, "00002-of-00003.gguf: ");
    free(first);
    free(second);
    free(other);
}

static void names(void **state) {
    (void)state;
    char *path = fb_gguf_split_path("d/x-00001-of-00012.gguf", 11, 12);
    assert_string_equal(path, "d/x-00012-of-00012.gguf");
    free(path);
    static const char *const bad[] = {"x.gguf",
                                      "-00001-of-00012.gguf",
                                      "x-0001-of-00012.gguf",
                                      "x-00001-of-00013.gguf",
                                      "x-0000a-of-00012.gguf",
                                      ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_null(fb_gguf_split_path(bad[i], 0, 12));
}

static int make_dir(void **state) {
    (void)state;
    dir = fbt_dir_create();
    return 0;
}

static int remove_dir(void **state) {
    (void)state;
    fbt_dir_remove(dir);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_part_opens_all),
        cmocka_unit_test(a_part_that_was_cut_is_refused),
        cmocka_unit_test(parts_that_do_not_fit),
        cmocka_unit_test(files_that_are_not_there),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
