#include "plan/machine.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"

/* The only file of the folder; fails if there are others, temporary ones too. */
static char *only_file(const char *folder) {
    char *path = NULL;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (const struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        assert_null(path);
        path = fbt_format("%s/%s", folder, entry->d_name);
    }
    closedir(dir);
    assert_non_null(path);
    return path;
}

static fb_machine assumed(void) {
    fb_machine m;
    fb_machine_assume(&m, 2, FB_F32);
    strcpy(m.isa, "portable");
    m.barrier = 1.25e-6;
    m.term[FB_TERM_GELU].units = 3e-9;
    m.bandwidth[3] = 12345e6;
    return m;
}

static void measures_what_is_possible(void **state) {
    (void)state;
    fb_machine m;
    fb_error err;
    assert_ok(fb_machine_measure(1, "portable", FB_F32, &m, &err), &err);
    assert_string_equal(m.isa, "portable");
    assert_true(m.barrier == 0);
    assert_true(m.dispatch > 1e-9 && m.dispatch < 1e-4);
    assert_true(m.latency > 1e-9 && m.latency < 1e-4);
    assert_true(m.overlap >= 0 && m.overlap <= 1);
    assert_true(m.flops > 1e8 && m.flops < 1e14);
    for (int i = 0; i < FB_CURVE_POINTS; i++) assert_true(m.bandwidth[i] > 1e8 && m.bandwidth[i] < 1e13);
    for (int t = 0; t < FB_TERM_COUNT; t++)
        if (t != FB_TERM_BEST) assert_true(m.term[t].calls + m.term[t].units > 0);
}

static void keeps_and_finds(void **state) {
    (void)state;
    char *folder = fbt_dir_create();
    fb_machine saved = assumed(), found;
    fb_error err;
    assert_ok(fb_machine_save(folder, &saved, &err), &err);
    assert_true(fb_machine_load(folder, 2, "portable", FB_F32, &found));
    assert_true(fabs(found.barrier - saved.barrier) < 1e-12);
    assert_true(fabs(found.term[FB_TERM_GELU].units - 3e-9) < 1e-15);
    assert_true(fabs(found.bandwidth[3] - 12345e6) < 1);
    /* There is none for other numbers of workers, kernels or dtypes. */
    assert_false(fb_machine_load(folder, 1, "portable", FB_F32, &found));
    assert_false(fb_machine_load(folder, 2, "ref", FB_F32, &found));
    assert_false(fb_machine_load(folder, 2, "portable", FB_F16, &found));
    free(only_file(folder));
    fbt_dir_remove(folder);
}

static void damaged_files_are_none(void **state) {
    (void)state;
    static const struct {
        const char *key, *json;
    } damage[] = {{"version", "1"},       {"cpu", "\"another\""},   {"barrier_s", "-1"},
                  {"barrier_s", "\"x\""}, {"bandwidth", "[]"},      {"terms", "[[1, 2]]"},
                  {"terms", "null"},      {"flops_per_s", "0"},     {"overlap", "2"},
                  {"latency_s", NULL},    {"bandwidth", "[[1, 0]]"}};
    char *folder = fbt_dir_create();
    fb_machine saved = assumed(), found;
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        assert_int_equal(fb_machine_save(folder, &saved, NULL), FB_OK);
        char *path = only_file(folder);
        assert_true(fb_machine_load(folder, 2, "portable", FB_F32, &found));
        fbt_json_set(path, damage[i].key, damage[i].json);
        assert_false(fb_machine_load(folder, 2, "portable", FB_F32, &found));
        free(path);
    }
    char *path = only_file(folder);
    static const char *const texts[] = {"", "{", "[]", "\xff\xfe", "{\"version\": 2}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        fbt_text_write(path, texts[i]);
        assert_false(fb_machine_load(folder, 2, "portable", FB_F32, &found));
    }
    free(path);
    fbt_dir_remove(folder);
}

static void unwritable_folder_is_an_error_of_save_only(void **state) {
    (void)state;
    fb_machine m = assumed();
    fb_error err;
    assert_refused(fb_machine_save("/proc/none", &m, &err), FB_ERROR_FILE, &err, "/proc/none");
}

static void bandwidth_lies_between_points(void **state) {
    (void)state;
    fb_machine m = assumed();
    for (int i = 0; i < FB_CURVE_POINTS; i++) m.bandwidth[i] = 100e9 - 5e9 * i;
    assert_true(fb_machine_bandwidth(&m, 1) == m.bandwidth[0]);
    assert_true(fb_machine_bandwidth(&m, 1e12) == m.bandwidth[FB_CURVE_POINTS - 1]);
    assert_true(fabs(fb_machine_bandwidth(&m, m.bytes[4] * sqrt(2)) - (m.bandwidth[4] + m.bandwidth[5]) / 2) <
                1e3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measures_what_is_possible),
        cmocka_unit_test(keeps_and_finds),
        cmocka_unit_test(damaged_files_are_none),
        cmocka_unit_test(unwritable_folder_is_an_error_of_save_only),
        cmocka_unit_test(bandwidth_lies_between_points),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
