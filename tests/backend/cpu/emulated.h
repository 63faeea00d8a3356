/* What an emulator leaves out of the kernels' tests. */
#ifndef FB_TESTS_EMULATED_H
#define FB_TESTS_EMULATED_H

#include "backend/cpu/host/isa.h"
#include "support/support.h"

/* On ARM, `dotprod` and `i8mm` are the kernels of `neon` but for integer products (cpu/arm): floats are the
 * same code three times. An emulator takes them in one of seven cases, which shows that the tables have the
 * right kernels. A prime number meets both sets and all types. `turns` counts cases. */
static inline bool emulated_again(const fb_isa *isa, int64_t *turns) {
    bool again = isa->prepare && isa->prepare == isa[1].prepare;
    return FBT_EMULATED && again && (*turns)++ % 7 != 0;
}

#endif
