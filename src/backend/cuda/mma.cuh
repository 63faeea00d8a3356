/* Tensor-core instructions on a warp's fragments, and the loads that fill them from shared memory. Lane l of
 * a warp is (g, t) = (l / 4, l % 4). A register holds two neighbouring elements, the first in its low half:
 *  - A [16, 16]: a[0] has (g, 2t), a[1] (g + 8, 2t), a[2] (g, 2t + 8), a[3] (g + 8, 2t + 8);
 *  - B [16, 8]: b[0] has (2t, g) and (2t + 1, g), b[1] has (2t + 8, g) and (2t + 9, g);
 *  - D [16, 8]: d[0] has (g, 2t), d[1] (g, 2t + 1), d[2] and d[3] the same of row g + 8. */
#ifndef FB_BACKEND_CUDA_MMA_CUH
#define FB_BACKEND_CUDA_MMA_CUH

#include "backend/cuda/device.cuh"

#ifdef FB_EMULATED
/* All float16 values as floats: a product converts 384 elements. */
struct fb_emulated_halves {
    float value[1 << 16];
    fb_emulated_halves() {
        for (uint32_t i = 0; i < 1 << 16; i++) value[i] = fb_widen(fb_half{(uint16_t)i});
    }
};
static inline float fb_emulated_widen(fb_half x) {
    static const fb_emulated_halves all;
    return all.value[x.bits];
}
static inline float fb_emulated_widen(fb_bfloat x) { return fb_widen(x); }

template <class T> static inline void fb_emulated_mma(float *d, const uint32_t *a, const uint32_t *b) {
    uint32_t A[32][4], B[32][2];
    for (int half = 0; half < 2; half++) {
        const uint64_t *w = fb_emulated_warp_meet(FB_ALL, a[2 * half] | (uint64_t)a[2 * half + 1] << 32);
        for (int l = 0; l < 32; l++) {
            A[l][2 * half] = (uint32_t)w[l];
            A[l][2 * half + 1] = (uint32_t)(w[l] >> 32);
        }
    }
    const uint64_t *w = fb_emulated_warp_meet(FB_ALL, b[0] | (uint64_t)b[1] << 32);
    for (int l = 0; l < 32; l++) {
        B[l][0] = (uint32_t)w[l];
        B[l][1] = (uint32_t)(w[l] >> 32);
    }
    int lane = fb_emulated_lane(), g = lane / 4;
    for (int half = 0; half < 2; half++) {
        double row[16];
        bool any =
            half == 0; /* rows 8 to 15 of a kernel that needs only eight are zeros, and change nothing */
        for (int k = 0; k < 16; k++) {
            uint32_t x = A[g * 4 + k % 8 / 2][half + k / 8 * 2] >> k % 2 * 16 & 0xffff;
            any = any || x;
            row[k] = (double)fb_emulated_widen(T{(uint16_t)x});
        }
        for (int i = 2 * half; any && i < 2 * half + 2; i++) {
            int n = lane % 4 * 2 + i % 2;
            double sum = d[i];
            for (int k = 0; k < 16; k++) {
                uint32_t y = B[n * 4 + k % 8 / 2][k / 8] >> k % 2 * 16;
                sum += row[k] * (double)fb_emulated_widen(T{(uint16_t)y});
            }
            d[i] = (float)sum;
        }
    }
}
static inline void fb_emulated_ldmatrix(uint32_t *r, const void *row, bool trans) {
    const uint64_t *w = fb_emulated_warp_meet(FB_ALL, (uint64_t)(uintptr_t)row);
    int g = fb_emulated_lane() / 4, t = fb_emulated_lane() % 4 * 2;
    for (int i = 0; i < 4; i++) {
        const uint16_t *low = (const uint16_t *)(uintptr_t)w[i * 8 + (trans ? t : g)];
        const uint16_t *high = (const uint16_t *)(uintptr_t)w[i * 8 + (trans ? t + 1 : g)];
        r[i] = low[trans ? g : t] | (uint32_t)high[trans ? g : t + 1] << 16;
    }
    fb_emulated_warp_meet(FB_ALL, 0); /* no lane goes on before all have read */
}
#endif

/* d += a * b, in float32. */
FB_DEVICE void fb_mma_f16(float *d, const uint32_t *a, const uint32_t *b) {
#ifdef FB_EMULATED
    fb_emulated_mma<fb_half>(d, a, b);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}
FB_DEVICE void fb_mma_bf16(float *d, const uint32_t *a, const uint32_t *b) {
#ifdef FB_EMULATED
    fb_emulated_mma<fb_bfloat>(d, a, b);
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
