/* The kernel tables, one for each instruction set, and the choice among them. */
#ifndef FB_BACKEND_CPU_HOST_ISA_H
#define FB_BACKEND_CPU_HOST_ISA_H

#include "backend/cpu/kernel.h"

extern const fb_cpu_kernel fb_cpu_kernels_amx[FB_OP_COUNT];
extern const fb_cpu_kernel fb_cpu_kernels_amx_emulated[FB_OP_COUNT]; /* for tests */
extern const fb_cpu_kernel fb_cpu_kernels_avx512bf16[FB_OP_COUNT];
extern const fb_cpu_kernel fb_cpu_kernels_avx512vnni[FB_OP_COUNT];
extern const fb_cpu_kernel fb_cpu_kernels_avx512[FB_OP_COUNT];
extern const fb_cpu_kernel fb_cpu_kernels_avxvnni[FB_OP_COUNT];
extern const fb_cpu_kernel fb_cpu_kernels_avx2[FB_OP_COUNT];
extern const fb_cpu_kernel fb_cpu_kernels_i8mm[FB_OP_COUNT];
extern const fb_cpu_kernel fb_cpu_kernels_dotprod[FB_OP_COUNT];
extern const fb_cpu_kernel fb_cpu_kernels_neon[FB_OP_COUNT];
extern const fb_cpu_kernel fb_cpu_kernels_portable[FB_OP_COUNT];
extern const fb_cpu_kernel fb_cpu_kernels_ref[FB_OP_COUNT];

void fb_cpu_screen_avx512vnni(const fb_call *call, const fb_worker *worker);
void fb_cpu_screen_avx512(const fb_call *call, const fb_worker *worker);
void fb_cpu_screen_avxvnni(const fb_call *call, const fb_worker *worker);
void fb_cpu_screen_avx2(const fb_call *call, const fb_worker *worker);
void fb_cpu_screen_neon(const fb_call *call, const fb_worker *worker);
void fb_cpu_screen_portable(const fb_call *call, const fb_worker *worker);

void fb_cpu_prepare_avx512vnni(const fb_call *call, const fb_worker *worker);
void fb_cpu_prepare_avx512(const fb_call *call, const fb_worker *worker);
void fb_cpu_prepare_avxvnni(const fb_call *call, const fb_worker *worker);
void fb_cpu_prepare_avx2(const fb_call *call, const fb_worker *worker);
void fb_cpu_prepare_neon(const fb_call *call, const fb_worker *worker);
void fb_cpu_prepare_portable(const fb_call *call, const fb_worker *worker);

typedef struct fb_isa {
    const char *name;
    const fb_cpu_kernel *kernels; /* [FB_OP_COUNT] */
    fb_cpu_kernel screen;         /* fills the screen of weight 0 */
    fb_cpu_kernel prepare;        /* inputs of a linear_group: see fb_prepares; or NULL */
    bool (*available)(void);      /* whether this machine can run it */
} fb_isa;

/* From fastest to slowest, then "ref". An entry without a name ends the table. */
extern const fb_isa fb_isa_table[];

/* Finds an instruction set by name; NULL: the best one on this machine. */
fb_status fb_isa_find(const char *name, const fb_isa **out, fb_error *err);

#endif
