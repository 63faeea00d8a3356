/* A machine in numbers, measured with the kernels that it prices. A CPU: the bandwidth for each size of
 * memory, the price of each term of fb_cost, of a barrier, of an op, and of a byte that another worker wrote.
 * A GPU: the bandwidth for each size of a launch, and the price of a launch. */
#ifndef FB_PLAN_MACHINE_H
#define FB_PLAN_MACHINE_H

#include "plan/cost.h"

#define FB_CURVE_POINTS 11 /* 512 KB to 512 MB; on a GPU 8 KB to 128 MB */

typedef struct fb_machine {
    bool gpu;
    char cpu[64]; /* its name, or the GPU's */
    char isa[16];
    int32_t workers; /* 1 on a GPU, where nothing is counted by workers */
    fb_dtype act;
    double bytes[FB_CURVE_POINTS];     /* bytes read by all workers together; on a GPU, by one launch */
    double bandwidth[FB_CURVE_POINTS]; /* bytes a second, all workers together */
    double flops; /* operations a second: linear with many tokens, all workers, weights in cache */
    double step;  /* seconds of a step outside its ops */
    /* GPU only, in seconds: */
    double graph;  /* of a recorded step outside its ops: launching it and reading the result back */
    double launch; /* for the host to launch an op; the device may still run earlier ones */
    double node;   /* for the device, between two ops */
    double small;  /* the least time that an op takes in addition */
    /* The extra time of a linear of one token with its input's norm or quantising folded in: every block
     * repeats that work. A call is an op, a unit is an output times an input. */
    fb_work norm, quantise;
    /* CPU only: */
    double barrier;              /* seconds of a barrier of all workers */
    double dispatch;             /* seconds of an op outside its kernel and barrier */
    double foreign;              /* seconds to read a byte that another worker wrote last */
    double latency;              /* seconds until the first byte of a stream */
    double overlap;              /* 0 to 1: the part of computing that is hidden behind reading */
    double clock;                /* seconds to read the clock */
    fb_work term[FB_TERM_COUNT]; /* seconds per call and per unit, on one worker */
} fb_machine;

/* Conservative figures for a machine that was not measured. */
void fb_machine_assume(fb_machine *machine, int32_t workers, fb_dtype act);

/* Measures this machine, in one or two seconds. `workers` 0: all cores; `isa` NULL: the best here. */
fb_status fb_machine_measure(int32_t workers, const char *isa, fb_dtype act, fb_machine *machine,
                             fb_error *err);

/* The measurement in `folder` for this CPU, number of workers, isa and dtype. If there is none, or with
 * `anew`, measures and saves it there if possible. Without a folder it always measures. */
fb_status fb_machine_get(const char *folder, bool anew, int32_t workers, const char *isa, fb_dtype act,
                         fb_machine *machine, fb_error *err);

/* Only reads the folder; false if it has no valid measurement. */
bool fb_machine_load(const char *folder, int32_t workers, const char *isa, fb_dtype act, fb_machine *machine);
fb_status fb_machine_save(const char *folder, const fb_machine *machine, fb_error *err);

/* The same for a GPU, which is identified by name, architecture and dtype. The assumed figures are like an
 * H100's. */
void fb_machine_assume_gpu(fb_machine *machine, int32_t device, fb_dtype act);
fb_status fb_machine_measure_gpu(const fb_backend *backend, int32_t device, fb_dtype act, fb_machine *machine,
                                 fb_error *err);
fb_status fb_machine_get_gpu(const char *folder, bool anew, const fb_backend *backend, int32_t device,
                             fb_dtype act, fb_machine *machine, fb_error *err);
bool fb_machine_load_gpu(const char *folder, int32_t device, fb_dtype act, fb_machine *machine);

/* Bytes a second when the same `bytes` are read repeatedly. */
double fb_machine_bandwidth(const fb_machine *machine, double bytes);

#endif
