/* What the library says of itself, and which file it takes the CUDA backend from. */
#include <stdio.h>
#include <string.h>

#include "support/support.h"

static void versions_agree(void **state) {
    (void)state;
    int major, minor, patch;
    char end;
    assert_string_equal(fb_version(), FB_VERSION);
    assert_int_equal(fb_version_number(), FB_VERSION_NUMBER);
    assert_int_equal(sscanf(fb_version(), "%d.%d.%d%c", &major, &minor, &patch, &end), 3);
    assert_int_equal(fb_version_number(), 10000 * major + 100 * minor + patch);
}

/* Until the backend is looked for, the last word counts; after that, only the same word. */
static void cuda_library(void **state) {
    (void)state;
    bool found;
    fb_device_info info;
    fb_error err;
    char path[5000];
    memset(path, 'x', sizeof path);
    path[sizeof path - 1] = 0;
    assert_refused(fb_cuda_library(path, &err), FB_ERROR_USAGE, &err, "cuda: library|4999 bytes|4095");
    assert_ok(fb_cuda_library(NULL, &err), &err);
    assert_ok(fb_cuda_library("/none/x.so", &err), &err);
    assert_ok(fb_cuda_library("none", &err), &err);
    assert_refused(fb_device_get(0, &found, &info, &err), FB_ERROR_SYSTEM, &err, "cuda: switched off");
    assert_ok(fb_cuda_library("none", &err), &err);
    assert_refused(fb_cuda_library("/none/x.so", &err), FB_ERROR_USAGE, &err,
                   "cuda: library: /none/x.so|before");
    assert_refused(fb_cuda_library(NULL, &err), FB_ERROR_USAGE, &err, "cuda: library|before");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(versions_agree), cmocka_unit_test(cuda_library)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
