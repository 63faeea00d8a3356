/* How many rows of prompts a step may have while answers are being written. The scheduler reports how long
 * steps took. Nothing here knows a clock, a model or a backend. */
#ifndef FB_RUN_PACE_H
#define FB_RUN_PACE_H

#include "base/status.h"

/* What is known about steps that decode so many answers and read no prompt. */
typedef struct fb_pace_alone {
    double seconds;           /* 0: not known */
    int64_t untimed, refresh; /* steps with prompts since then, and after how many it is timed again */
} fb_pace_alone;

/* Rows of a prompt that are computed together where a step need not take them through all layers. Fewer take
 * as long where they read a long cache: GPT-NeoX 160M at position 6000, Zen 5, two threads: a step of 1, 2,
 * 4, 8, 16 rows takes 4.4, 4.4, 6.3, 9.7, 22 ms longer than without. */
#define FB_PACE_HELD 8

typedef struct fb_pace {
    double stretch;       /* a step with prompts may take this many times as long as without; 0: any time */
    int64_t rows;         /* that a step can have */
    fb_pace_alone *alone; /* [sequences + 1], by answers that decode */
    double row_seconds;   /* that a row of a prompt adds; 0: not known */
    double next;          /* rows of prompts that the next step has at most, unless `least` is more */
    bool careful;         /* it grows slowly */
    int64_t layers; /* a step may take rows through some of so many layers; 1: always through all of them */
    /* With `layers` 1: fewer rows than `least` take about as long; least_seconds: what so many add. */
    int64_t least;
    double least_seconds;
    /* Now and then a step has twice or half as many rows, to see whether that still holds. */
    int64_t wait, waited; /* steps with `least` rows until then */
    bool half;            /* which of the two is next */
} fb_pace;

fb_status fb_pace_open(int64_t sequences, int64_t rows, double stretch, int64_t layers, fb_pace *out,
                       fb_error *err);
void fb_pace_close(fb_pace *pace);

/* Rows of prompts that the next step may have besides `decodes` answers; 0: it is timed without. */
int64_t fb_pace_rows(const fb_pace *pace, int64_t decodes);

/* Through how many of fb_pace.layers the next step may take so many rows; at least one. */
int64_t fb_pace_layers(const fb_pace *pace, int64_t decodes, int64_t rows);

/* A step of `decodes` answers and `prompts` rows of prompts took so long. Rows that went through some layers
 * count in proportion. */
void fb_pace_learn(fb_pace *pace, int64_t decodes, double prompts, double seconds);

#endif
