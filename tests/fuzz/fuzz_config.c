#include <stdlib.h>

#include "arch/arch.h"
#include "fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    fb_spec *spec;
    fb_error err;
    fb_status status = fb_arch_describe("fuzz", (const char *)bytes, size, &spec, &err);
    if (status != FB_OK) {
        require_refusal(status, &err, spec);
        return 0;
    }
    /* A config that is accepted must describe a program that can be laid out and printed. */
    fb_layout layout;
    REQUIRE(fb_layout_make(&spec->program, &layout, &err) == FB_OK);
    char *text;
    REQUIRE(fb_program_print(&spec->program, NULL, &text, &err) == FB_OK);
    free(text);
    fb_spec_free(spec);
    return 0;
}
