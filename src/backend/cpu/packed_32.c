/* Packed weights in blocks of 32 columns. */
#include "backend/cpu/packed_tile.h"

PACKED_SUMS(FB_Q8_0, q8_0)
PACKED_SUMS(FB_Q4_0, q4_0)
PACKED_SUMS(FB_Q4_1, q4_1)
PACKED_SUMS(FB_Q5_0, q5_0)
PACKED_SUMS(FB_Q5_1, q5_1)
PACKED_SUMS(FB_IQ4_NL, iq4_nl)
PACKED_SUMS(FB_MXFP4, mxfp4)
