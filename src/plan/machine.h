/* This machine in numbers, measured with the kernels that it prices: how fast it reads memory, by how much of
 * it there is; what each term of fb_cost takes; what a barrier, an op and a handed-over byte take. */
#ifndef FB_PLAN_MACHINE_H
#define FB_PLAN_MACHINE_H

#include "plan/cost.h"

#define FB_CURVE_POINTS 11 /* 512 KB to 512 MB */

typedef struct fb_machine {
    char cpu[64];
    char isa[16];
    int32_t lanes;
    fb_dtype act;
    double bytes[FB_CURVE_POINTS];     /* footprints of all lanes together */
    double bandwidth[FB_CURVE_POINTS]; /* bytes a second, all lanes together */
    double barrier;                    /* seconds, all lanes */
    double dispatch;                   /* seconds of an op besides its kernel and barrier */
    double foreign;                    /* seconds for a byte that another lane wrote last */
    double latency;                    /* seconds until the first byte of a stream */
    double overlap;                    /* 0 to 1: how much of computing hides behind reading */
    double step;                       /* seconds of a step besides its ops */
    double clock;                      /* seconds to read the clock */
    double flops;                      /* a second, all lanes: linear with many tokens, weights in cache */
    fb_work term[FB_TERM_COUNT];       /* seconds a call and a unit, on one lane */
} fb_machine;

/* Conservative figures for a machine that nobody measured. */
void fb_machine_assume(fb_machine *machine, int32_t lanes, fb_dtype act);

/* Takes one or two seconds. `lanes` 0: all cores; `isa` NULL: the best here. */
fb_status fb_machine_measure(int32_t lanes, const char *isa, fb_dtype act, fb_machine *machine,
                             fb_error *err);

/* The measurement of this CPU, lanes, isa and dtype that lies in `folder`, or else, and with `anew`, a new
 * one, which is put there if that is possible. Without a folder it is always a new one. */
fb_status fb_machine_get(const char *folder, bool anew, int32_t lanes, const char *isa, fb_dtype act,
                         fb_machine *machine, fb_error *err);

/* From the folder alone; false if it has none that holds. */
bool fb_machine_load(const char *folder, int32_t lanes, const char *isa, fb_dtype act, fb_machine *machine);
fb_status fb_machine_save(const char *folder, const fb_machine *machine, fb_error *err);

/* Bytes a second when `bytes` are read over and over. */
double fb_machine_bandwidth(const fb_machine *machine, double bytes);

#endif
