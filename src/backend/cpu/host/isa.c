#include "backend/cpu/host/isa.h"
#include "backend/cpu/host/amx.h"

#include <stdio.h>

static bool always(void) { return true; }

#ifdef __x86_64__
#include <cpuid.h>

/* These read CPUID directly: clang 14's __builtin_cpu_supports has no names for them. F16C and AVX-VNNI use
 * the registers of AVX; the check for avx2 covers the system's support for them. So does that for avx512f for
 * AVX512-BF16. */
static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}
/* Bit `bit` of EAX of leaf 7, subleaf 1. */
static bool has_leaf7_1(int bit) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << bit);
}
#ifndef FB_WITHOUT_AVXVNNI
static bool has_avxvnni(void) { return has_avx2() && has_leaf7_1(4); }
#endif
static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
static bool has_avx512vnni(void) { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
static bool has_avx512bf16(void) { return has_avx512vnni() && has_leaf7_1(5); }
static bool has_amx(void) { return has_avx512bf16() && fb_amx_usable(); }
#elif defined __aarch64__
#ifdef __linux__
#include <sys/auxv.h>
#define HAS_DOTPROD (1ul << 20) /* HWCAP_ASIMDDP */
#define HAS_I8MM    (1ul << 13) /* HWCAP2_I8MM */
static bool has_dotprod(void) { return getauxval(AT_HWCAP) & HAS_DOTPROD; }
static bool has_i8mm(void) { return has_dotprod() && (getauxval(AT_HWCAP2) & HAS_I8MM); }
#else
static bool has_dotprod(void) { return false; }
static bool has_i8mm(void) { return false; }
#endif
#endif

const fb_isa fb_isa_table[] = {
#ifdef __x86_64__
    {"amx", fb_cpu_kernels_amx, fb_cpu_screen_avx512vnni, fb_cpu_prepare_avx512vnni, has_amx},
    {"avx512bf16", fb_cpu_kernels_avx512bf16, fb_cpu_screen_avx512vnni, fb_cpu_prepare_avx512vnni,
     has_avx512bf16},
    {"avx512vnni", fb_cpu_kernels_avx512vnni, fb_cpu_screen_avx512vnni, fb_cpu_prepare_avx512vnni,
     has_avx512vnni},
#ifdef FB_AMX_EMULATED
    {"amx_emulated", fb_cpu_kernels_amx_emulated, fb_cpu_screen_avx512vnni, fb_cpu_prepare_avx512vnni,
     has_avx512vnni},
#endif
#ifndef FB_WITHOUT_AVX512
    {"avx512", fb_cpu_kernels_avx512, fb_cpu_screen_avx512, fb_cpu_prepare_avx512, has_avx512},
#endif
#ifndef FB_WITHOUT_AVXVNNI
    {"avxvnni", fb_cpu_kernels_avxvnni, fb_cpu_screen_avxvnni, fb_cpu_prepare_avxvnni, has_avxvnni},
#endif
    {"avx2", fb_cpu_kernels_avx2, fb_cpu_screen_avx2, fb_cpu_prepare_avx2, has_avx2},
#elif defined __aarch64__
    {"i8mm", fb_cpu_kernels_i8mm, fb_cpu_screen_neon, fb_cpu_prepare_neon, has_i8mm},
    {"dotprod", fb_cpu_kernels_dotprod, fb_cpu_screen_neon, fb_cpu_prepare_neon, has_dotprod},
    {"neon", fb_cpu_kernels_neon, fb_cpu_screen_neon, fb_cpu_prepare_neon, always},
#endif
    {"portable", fb_cpu_kernels_portable, fb_cpu_screen_portable, fb_cpu_prepare_portable, always},
    {"ref", fb_cpu_kernels_ref, fb_cpu_screen_portable, NULL, always},
    {NULL, NULL, NULL, NULL, NULL},
};

/* Asks only about those that may be meant: whether AMX is there changes what the system does for a process.
 */
fb_status fb_isa_find(const char *name, const fb_isa **out, fb_error *err) {
    char known[96] = "";
    for (const fb_isa *isa = fb_isa_table; isa->name; isa++) {
        *out = isa;
        if ((!name || strcmp(name, isa->name) == 0) && isa->available()) return FB_OK;
    }
    *out = NULL;
    for (const fb_isa *isa = fb_isa_table; isa->name; isa++)
        if (isa->available())
            snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", *known ? ", " : "",
                     isa->name);
    return fb_fail(err, FB_ERROR_USAGE, "isa: %s (this machine has %s)", name, known);
}
