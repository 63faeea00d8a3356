/* The times of the last steps, by plan and number of rows: what a fuse saves as it runs. */
#ifndef FB_SERVE_STEPS_H
#define FB_SERVE_STEPS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define SERVE_STEP_KINDS  64 /* plans times numbers of rows that are kept */
#define SERVE_STEP_TIMES  64 /* of each */
#define SERVE_STEP_FUSES  32
#define SERVE_STEP_RECENT 256

/* Decode steps of one plan with one number of rows. */
typedef struct serve_step_kind {
    uint32_t plan; /* bits of the fuses that are on */
    int32_t rows;  /* 0: free */
    int64_t count; /* of all, of which the last are in `seconds` */
    uint64_t used;
    float seconds[SERVE_STEP_TIMES];
} serve_step_kind;

/* Begins as all zero, but for the lock. */
typedef struct serve_steps {
    pthread_mutex_t lock;
    uint64_t clock;
    serve_step_kind kinds[SERVE_STEP_KINDS];
    /* By fuse: the plans before and after its last switch; equal: there was none. */
    struct {
        uint32_t with, without;
    } switched[SERVE_STEP_FUSES];
    /* The last steps, for the tokens a second. */
    double ends[SERVE_STEP_RECENT];
    int32_t tokens[SERVE_STEP_RECENT];
    int64_t recent;
    int32_t last_rows;
} serve_steps;

typedef struct serve_saving {
    double seconds; /* what a step with the fuse takes less */
    int32_t rows;
    int64_t with, without; /* steps that this is the difference of; 0: not measured */
} serve_saving;

/* A step has ended, which gave so many tokens of answers. `decode`: all its rows were of answers. */
void serve_steps_add(serve_steps *steps, uint32_t plan, int32_t rows, bool decode, int32_t tokens,
                     double seconds);
/* A fuse was switched, from one plan to another. */
void serve_steps_switched(serve_steps *steps, int fuse, uint32_t with, uint32_t without);

serve_saving serve_steps_saving(serve_steps *steps, int fuse);
/* The median decode step of this plan with as many rows as the last step; 0: none. */
double serve_steps_median(serve_steps *steps, uint32_t plan);
double serve_steps_rate(serve_steps *steps); /* tokens a second, over the last second */

#endif
