/* The kernel tables, one for each instruction set, and the choice among them. */
#ifndef FB_BACKEND_CPU_HOST_ISA_H
#define FB_BACKEND_CPU_HOST_ISA_H

#include "backend/cpu/kernel.h"

extern const fb_cpu_kernel fb_cpu_kernels_avx512vnni[FB_OP_COUNT];
extern const fb_cpu_kernel fb_cpu_kernels_avx512[FB_OP_COUNT];
extern const fb_cpu_kernel fb_cpu_kernels_avx2[FB_OP_COUNT];
extern const fb_cpu_kernel fb_cpu_kernels_portable[FB_OP_COUNT];
extern const fb_cpu_kernel fb_cpu_kernels_ref[FB_OP_COUNT];

void fb_cpu_screen_avx512vnni(const fb_call *call, const fb_lane *lane);
void fb_cpu_screen_avx512(const fb_call *call, const fb_lane *lane);
void fb_cpu_screen_avx2(const fb_call *call, const fb_lane *lane);
void fb_cpu_screen_portable(const fb_call *call, const fb_lane *lane);

typedef struct fb_isa {
    const char *name;
    const fb_cpu_kernel *kernels; /* [FB_OP_COUNT] */
    fb_cpu_kernel screen;         /* fills the screen of weight 0 */
    bool (*available)(void);      /* on this machine */
} fb_isa;

/* From fastest to slowest, then "ref"; a row without a name ends it. */
extern const fb_isa fb_isa_table[];

/* By name, or the best one here for NULL. */
fb_status fb_isa_find(const char *name, const fb_isa **out, fb_error *err);

#endif
