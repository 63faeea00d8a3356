/* What every fuzz target requires of a loader that refuses its input. */
#ifndef FB_TESTS_FUZZ_H
#define FB_TESTS_FUZZ_H

#include <string.h>

#include "base/status.h"

/* libFuzzer calls this. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#define REQUIRE(condition)                                                                                   \
    do {                                                                                                     \
        if (!(condition)) __builtin_trap();                                                                  \
    } while (0)

/* One line that says why, and nothing handed out. */
static inline void require_refusal(fb_status status, const fb_error *err, const void *out) {
    REQUIRE(!out);
    REQUIRE(err->status == status);
    REQUIRE(err->message[0] && memchr(err->message, 0, sizeof err->message));
    for (const char *c = err->message; *c; c++) REQUIRE((unsigned char)*c >= 0x20 && *c != 0x7f);
}

#endif
