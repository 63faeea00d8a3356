/* Damaged checkpoints: each row of a table copies a good one into a temporary directory, damages it, and
 * requires that opening it is refused in words that name the damage. Each row is one cmocka test. */
#ifndef FB_TESTS_CORRUPT_H
#define FB_TESTS_CORRUPT_H

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/support.h"

typedef struct damage damage;
struct damage {
    const char *name;
    const char *base; /* one of fbt_cases */
    void (*apply)(const char *dir, const damage *row);
    const char *file, *key, *value; /* what `apply` needs of them */
    const char *words;              /* of the message, separated by '|' */
};

/* ---- damages ------------------------------------------------------------------------------------------- */

static inline char *damaged_path(const char *dir, const damage *row) {
    return fbt_format("%s/%s", dir, row->file);
}

/* Sets `key` of a JSON file to `value`, or removes it. */
static inline void set_member(const char *dir, const damage *row) {
    char *path = damaged_path(dir, row);
    fbt_json_set(path, row->key, row->value);
    free(path);
}

static inline void write_file(const char *dir, const damage *row) {
    char *path = damaged_path(dir, row);
    fbt_text_write(path, row->value);
    free(path);
}

static inline void remove_file(const char *dir, const damage *row) {
    char *path = damaged_path(dir, row);
    assert_int_equal(unlink(path), 0);
    free(path);
}

/* A million opening brackets. */
static inline void nest_deeply(const char *dir, const damage *row) {
    enum { DEEP = 1000000 };
    char *path = damaged_path(dir, row), *text = malloc(DEEP);
    assert_non_null(text);
    memset(text, '[', DEEP);
    memcpy(text, "{\"a\":", 5);
    fbt_file_write(path, text, DEEP);
    free(text);
    free(path);
}

/* ---- the requirement ----------------------------------------------------------------------------------- */

static inline void require_model_refused(const char *dir, const char *words) {
    fb_model *model = (fb_model *)(uintptr_t)1;
    fb_error err = {0};
    fb_status status = fb_model_open(dir, &model, &err);
    if (status == FB_OK) {
        fb_model_free(model);
        fail_msg("opened");
    }
    assert_null(model);
    assert_true(status == FB_ERROR_FILE || status == FB_ERROR_UNSUPPORTED);
    assert_refused(status, status, &err, words);
    print_message("# %s\n", err.message);
    assert_int_equal(fb_model_open(dir, &model, NULL), status); /* who wants no message need not take it */
}

static inline void run_damage(void **state) {
    const damage *row = *state;
    char *dir = fbt_dir_from_golden(row->base);
    row->apply(dir, row);
    require_model_refused(dir, row->words);
    fbt_dir_remove(dir);
}

/* One cmocka test for each row, with the row's name. */
static inline int run_rows(const char *group, void (*test)(void **state), const void *rows, size_t size,
                           size_t count) {
    struct CMUnitTest *tests = calloc(count, sizeof *tests);
    if (!tests) return 1;
    for (size_t i = 0; i < count; i++) {
        const char *row = (const char *)rows + i * size;
        /* Every row starts with its name. */
        tests[i] = (struct CMUnitTest){.name = *(const char *const *)(const void *)row,
                                       .test_func = test,
                                       .initial_state = (void *)(uintptr_t)row};
    }
    int failed = _cmocka_run_group_tests(group, tests, count, NULL, NULL);
    free(tests);
    return failed;
}

#define RUN_ROWS(group, test, rows) run_rows(group, test, rows, sizeof *(rows), sizeof(rows) / sizeof *(rows))

#endif
