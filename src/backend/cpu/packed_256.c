/* Packed weights in blocks of 256 columns. */
#include "backend/cpu/packed_tile.h"

PACKED_SUMS(FB_Q2_K, q2_k)
PACKED_SUMS(FB_Q3_K, q3_k)
PACKED_SUMS(FB_Q4_K, q4_k)
PACKED_SUMS(FB_Q5_K, q5_k)
PACKED_SUMS(FB_Q6_K, q6_k)
PACKED_SUMS(FB_IQ4_XS, iq4_xs)
