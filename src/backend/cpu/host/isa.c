#include "backend/cpu/host/isa.h"

#include <stdio.h>

static bool always(void) { return true; }

#ifdef __x86_64__
#include <cpuid.h>

/* These read CPUID directly: clang 14's __builtin_cpu_supports has no names for them. F16C and AVX-VNNI use
 * the registers of AVX; the check for avx2 covers the system's support for them. */
static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}
#ifndef FB_WITHOUT_AVXVNNI
static bool has_avxvnni(void) {
    unsigned a, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}
#endif
static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
static bool has_avx512vnni(void) { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
#elif defined __aarch64__
#ifdef __linux__
#include <sys/auxv.h>
#define HAS_DOTPROD (1ul << 20) /* HWCAP_ASIMDDP */
static bool has_dotprod(void) { return getauxval(AT_HWCAP) & HAS_DOTPROD; }
#else
static bool has_dotprod(void) { return false; }
#endif
#endif

const fb_isa fb_isa_table[] = {
#ifdef __x86_64__
    {"avx512vnni", fb_cpu_kernels_avx512vnni, fb_cpu_screen_avx512vnni, has_avx512vnni},
    {"avx512", fb_cpu_kernels_avx512, fb_cpu_screen_avx512, has_avx512},
#ifndef FB_WITHOUT_AVXVNNI
    {"avxvnni", fb_cpu_kernels_avxvnni, fb_cpu_screen_avxvnni, has_avxvnni},
#endif
    {"avx2", fb_cpu_kernels_avx2, fb_cpu_screen_avx2, has_avx2},
#elif defined __aarch64__
    {"dotprod", fb_cpu_kernels_dotprod, fb_cpu_screen_dotprod, has_dotprod},
    {"neon", fb_cpu_kernels_neon, fb_cpu_screen_neon, always},
#endif
    {"portable", fb_cpu_kernels_portable, fb_cpu_screen_portable, always},
    {"ref", fb_cpu_kernels_ref, fb_cpu_screen_portable, always},
    {NULL, NULL, NULL, NULL},
};

fb_status fb_isa_find(const char *name, const fb_isa **out, fb_error *err) {
    char known[64] = "";
    for (const fb_isa *isa = fb_isa_table; isa->name; isa++) {
        if (!isa->available()) continue;
        *out = isa;
        if (!name || strcmp(name, isa->name) == 0) return FB_OK;
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", *known ? ", " : "", isa->name);
    }
    *out = NULL;
    return fb_fail(err, FB_ERROR_USAGE, "isa: %s (this machine has %s)", name, known);
}
