/* The tables of kernels are complete, and so are the tests of them. */
#include <stdlib.h>
#include <unistd.h>

#include "kernel_harness.h"

static void every_op_has_kernels(void **state) {
    (void)state;
    for (const fb_isa *isa = fb_isa_table; isa->name; isa++)
        for (int kind = 0; kind < FB_OP_COUNT; kind++)
            if (!isa->kernels[kind]) fail_msg("%s has no kernel for %s", isa->name, fb_op_table[kind].name);
}

static void every_op_has_a_test(void **state) {
    (void)state;
    for (int kind = 0; kind < FB_OP_COUNT; kind++) {
        if (!kernel_family[kind])
            fail_msg("%s is in no family: give it a test, and a row in KERNEL_FAMILIES",
                     fb_op_table[kind].name);
        char *path = fbt_format("tests/backend/cpu/test_%s.c", kernel_family[kind]);
        if (access(path, R_OK)) fail_msg("%s: no %s", fb_op_table[kind].name, path);
        free(path);
    }
}

static void found_by_name(void **state) {
    (void)state;
    fb_error err;
    const fb_isa *found;
    for (const fb_isa *isa = fb_isa_table; isa->name; isa++) {
        if (!isa->available()) continue;
        assert_ok(fb_isa_find(isa->name, &found, &err), &err);
        assert_ptr_equal(found, isa);
    }
    assert_ok(fb_isa_find(NULL, &found, &err), &err);
    for (const fb_isa *isa = fb_isa_table; isa < found; isa++) assert_false(isa->available());
    assert_string_not_equal(found->name, "ref");
    assert_refused(fb_isa_find("sse", &found, &err), FB_ERROR_USAGE, &err, "isa|sse|portable|ref");
    assert_null(found);
    assert_refused(fb_isa_find("", &found, &err), FB_ERROR_USAGE, &err, "isa|portable");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_has_kernels),
        cmocka_unit_test(every_op_has_a_test),
        cmocka_unit_test(found_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
