/* Tensor-core instructions on a warp's fragments, and the loads that fill them from shared memory. Lane l of
 * a warp is (g, t) = (l / 4, l % 4). A register holds two neighbouring elements, the first in its low half:
 *  - A [16, 16]: a[0] has (g, 2t), a[1] (g + 8, 2t), a[2] (g, 2t + 8), a[3] (g + 8, 2t + 8);
 *  - B [16, 8]: b[0] has (2t, g) and (2t + 1, g), b[1] has (2t + 8, g) and (2t + 9, g);
 *  - D [16, 8]: d[0] has (g, 2t), d[1] (g, 2t + 1), d[2] and d[3] the same of row g + 8. */
#ifndef FB_BACKEND_CUDA_MMA_CUH
#define FB_BACKEND_CUDA_MMA_CUH

#include "backend/cuda/device.cuh"

/* d += a * b, in float32. */
FB_DEVICE void fb_mma_f16(float *d, const uint32_t *a, const uint32_t *b) {
#ifdef FB_EMULATED
    fb_emulated_mma(false, d, a, b);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}
FB_DEVICE void fb_mma_bf16(float *d, const uint32_t *a, const uint32_t *b) {
#ifdef FB_EMULATED
    fb_emulated_mma(true, d, a, b);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

FB_DEVICE void fb_mma(const fb_half *, float *d, const uint32_t *a, const uint32_t *b) {
    fb_mma_f16(d, a, b);
}
FB_DEVICE void fb_mma(const fb_bfloat *, float *d, const uint32_t *a, const uint32_t *b) {
    fb_mma_bf16(d, a, b);
}

/* Loads four matrices [8, 8] of 16 bits from shared memory. Lane l gives the address of row l % 8 of matrix
 * l / 8 (16 bytes, aligned). r[i] gets elements (g, 2t) and (g, 2t + 1) of matrix i or its transpose. */
FB_DEVICE void fb_ldmatrix(uint32_t *r, const void *row) {
#ifdef FB_EMULATED
    fb_emulated_ldmatrix(r, row, false);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row)));
#endif
}
FB_DEVICE void fb_ldmatrix_trans(uint32_t *r, const void *row) {
#ifdef FB_EMULATED
    fb_emulated_ldmatrix(r, row, true);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row)));
#endif
}

#endif
