/* A token that may be chosen, as a device selects it and a sampler reads it. */
#ifndef FB_BASE_CANDIDATE_H
#define FB_BASE_CANDIDATE_H

#include <stdint.h>

/* The most of one choice. */
#define FB_CANDIDATES 256

typedef struct fb_candidate {
    float logit;
    int32_t id;
} fb_candidate;

#endif
