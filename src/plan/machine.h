/* This machine in numbers, measured with the kernels that it prices: how fast it reads memory, by how much of
 * it there is; what each term of fb_cost takes; what a barrier, an op and a handed-over byte take. Or a GPU:
 * how fast a launch reads, by how many bytes it has, and what a launch takes. */
#ifndef FB_PLAN_MACHINE_H
#define FB_PLAN_MACHINE_H

#include "plan/cost.h"

#define FB_CURVE_POINTS 11 /* 512 KB to 512 MB; on a GPU 8 KB to 128 MB */

typedef struct fb_machine {
    bool gpu;
    char cpu[64]; /* its name; the GPU's, if it is one */
    char isa[16];
    int32_t lanes; /* 1 on a GPU: nothing is counted by lanes there */
    fb_dtype act;
    double bytes[FB_CURVE_POINTS];     /* footprints of all lanes together; on a GPU, of one launch */
    double bandwidth[FB_CURVE_POINTS]; /* bytes a second, all lanes together */
    double flops;                      /* a second: linear with many tokens, all lanes, weights in cache */
    double step;                       /* seconds of a step besides its ops */
    /* A GPU's, in seconds: */
    double graph;  /* of a recorded step besides its ops: launching it and reading the result back */
    double launch; /* of the host, to launch an op; the device may still be busy with earlier ones */
    double node;   /* of the device, between an op and the next */
    double small;  /* the least an op takes there besides */
    /* What a linear of one token takes longer with a norm or the quantising of its input folded into it:
     * every block does it again. A call is an op, a unit an output times an input. */
    fb_work norm, quantise;
    /* A CPU's: */
    double barrier;              /* seconds, all lanes */
    double dispatch;             /* seconds of an op besides its kernel and barrier */
    double foreign;              /* seconds for a byte that another lane wrote last */
    double latency;              /* seconds until the first byte of a stream */
    double overlap;              /* 0 to 1: how much of computing hides behind reading */
    double clock;                /* seconds to read the clock */
    fb_work term[FB_TERM_COUNT]; /* seconds a call and a unit, on one lane */
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

/* The same for a GPU, which is known by its name, architecture and dtype. An assumed one is of the H100's
 * kind. */
void fb_machine_assume_gpu(fb_machine *machine, int32_t device, fb_dtype act);
fb_status fb_machine_measure_gpu(const fb_backend *backend, int32_t device, fb_dtype act, fb_machine *machine,
                                 fb_error *err);
fb_status fb_machine_get_gpu(const char *folder, bool anew, const fb_backend *backend, int32_t device,
                             fb_dtype act, fb_machine *machine, fb_error *err);
bool fb_machine_load_gpu(const char *folder, int32_t device, fb_dtype act, fb_machine *machine);

/* Bytes a second when `bytes` are read over and over. */
double fb_machine_bandwidth(const fb_machine *machine, double bytes);

#endif
