/* Instructions of tensor cores. A lane brings the addresses of its fragments; the warp's first lane, which
 * goes on before the others, computes for all. So the operands are unpacked once, not 32 times. */
#include "support/emulate/emulate.h"

#define LANES 32

namespace {

typedef double row8 __attribute__((vector_size(64)));

struct fragments {
    void *d;
    const uint32_t *a, *b;
    int c, c8;
};

/* The fragments of all lanes, for the first one; NULL for the others. */
const fragments *const *gather(const fragments *mine) {
    const uint64_t *words = fb_emulated_warp_meet(0xffffffffu, (uint64_t)(uintptr_t)mine);
    return fb_emulated_lane() ? NULL : (const fragments *const *)(const void *)words;
}

float value(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Exponents of float16 are 112 less; a product makes subnormal numbers right. */
inline double widen_half(uint32_t bits) {
    const uint32_t rest = (bits & 0x7fff) << 13, sign = (bits & 0x8000) << 16;
    const float scaled = value(rest) * 0x1p112f;
    uint32_t word;
    memcpy(&word, &scaled, sizeof word);
    return (double)value((rest >= 0x0f800000 ? rest | 0x7f800000 : word) | sign);
}
inline double widen_bfloat(uint32_t bits) { return (double)value(bits << 16); }

/* d += a b: 16 x 16 times 16 x 8, summed in double from column 0 on (mma.cuh has the fragments). */
__attribute__((target_clones("avx512f", "avx2", "default"))) void multiply(bool bfloat,
                                                                           const fragments *const *of) {
    uint32_t bits_a[16][16], bits_b[16][8];
    double a[16][16];
    row8 b[16];
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < 8; i++) {
            const int g = l / 4, k = l % 4 * 2 + i % 2 + i / 4 * 8;
            bits_a[g + i / 2 % 2 * 8][k] = of[l]->a[i / 2] >> i % 2 * 16 & 0xffff;
            if (i / 2 % 2 == 0) bits_b[k][g] = of[l]->b[i / 4] >> i % 2 * 16 & 0xffff;
        }
    for (int i = 0; i < 256; i++)
        a[i / 16][i % 16] =
            bfloat ? widen_bfloat(bits_a[i / 16][i % 16]) : widen_half(bits_a[i / 16][i % 16]);
    for (int i = 0; i < 128; i++)
        b[i / 8][i % 8] = bfloat ? widen_bfloat(bits_b[i / 8][i % 8]) : widen_half(bits_b[i / 8][i % 8]);
    for (int r = 0; r < 16; r++) {
        /* Rows 8 to 15 of a kernel that needs only eight are zeros, and change nothing. */
        uint32_t any = r < 8;
        for (int k = 0; k < 16; k++) any |= bits_a[r][k];
        if (!any) continue;
        row8 sum;
        for (int n = 0; n < 8; n++) sum[n] = ((float *)of[r % 8 * 4 + n / 2]->d)[r / 8 * 2 + n % 2];
        for (int k = 0; k < 16; k++) sum += a[r][k] * b[k];
        for (int n = 0; n < 8; n++) ((float *)of[r % 8 * 4 + n / 2]->d)[r / 8 * 2 + n % 2] = (float)sum[n];
    }
}

/* d = a b + c: 16 x (16 halves) times (16 halves) x 8, of signed bytes (gemm.cuh has the fragments). */
__attribute__((target_clones("avx512f", "avx2", "default"))) void multiply_bytes(int halves,
                                                                                 const fragments *const *of) {
    int8_t a[16][32], b[8][32];
    for (int l = 0; l < LANES; l++)
        for (int half = 0; half < halves; half++) {
            const int g = l / 4, k = l % 4 * 4 + half * 16;
            memcpy(&a[g][k], &of[l]->a[2 * half], 4);
            memcpy(&a[g + 8][k], &of[l]->a[2 * half + 1], 4);
            memcpy(&b[g][k], &of[l]->b[half], 4);
        }
    for (int r = 0; r < 16; r++)
        for (int n = 0; n < 8; n++) {
            const fragments *to = of[r % 8 * 4 + n / 2];
            int sum = r < 8 ? to->c : to->c8;
            for (int k = 0; k < 16 * halves; k++) sum += a[r][k] * b[n][k];
            ((int *)to->d)[r / 8 * 2 + n % 2] = sum;
        }
}

struct matrices {
    uint32_t *r;
    const void *row;
};

} // namespace

void fb_emulated_mma(bool bfloat, float *d, const uint32_t *a, const uint32_t *b) {
    const fragments mine = {d, a, b, 0, 0}, *const *all = gather(&mine);
    if (all) multiply(bfloat, all);
}

void fb_emulated_mma_bytes(int halves, int *d, const uint32_t *a, const uint32_t *b, int c, int c8) {
    const fragments mine = {d, a, b, c, c8}, *const *all = gather(&mine);
    if (all) multiply_bytes(halves, all);
}

void fb_emulated_ldmatrix(uint32_t *r, const void *row, bool trans) {
    const matrices mine = {r, row};
    const uint64_t *words = fb_emulated_warp_meet(0xffffffffu, (uint64_t)(uintptr_t)&mine);
    if (fb_emulated_lane()) return;
    const matrices *const *all = (const matrices *const *)(const void *)words;
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < 4; i++) {
            const int g = l / 4, t = l % 4 * 2;
            const uint16_t *low = (const uint16_t *)all[i * 8 + (trans ? t : g)]->row;
            const uint16_t *high = (const uint16_t *)all[i * 8 + (trans ? t + 1 : g)]->row;
            all[l]->r[i] = low[trans ? g : t] | (uint32_t)high[trans ? g : t + 1] << 16;
        }
}
