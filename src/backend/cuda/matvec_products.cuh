/* Products of a 16-byte chunk of weights with the staged chunk of x, by one lane: floats, or blocks of
 * integers.
 *
 * A lane adds its chunks one after the other. Eight elements are summed as two chains of 4 first, so that
 * only one addition waits for those before. */
#ifndef FB_BACKEND_CUDA_MATVEC_PRODUCTS_CUH
#define FB_BACKEND_CUDA_MATVEC_PRODUCTS_CUH

#include "backend/cuda/mma.cuh"

/* Weight types that are not element types, and how x is staged for integer products. */
struct mv_q8 {};
struct mv_q4 {};
struct mv_record {}; /* all others (records.cuh) */
struct mv_blocks {};

template <class W> struct mv_elements { static const int value = 16 / sizeof(W); };
template <> struct mv_elements<mv_q8> { static const int value = 16; };
template <> struct mv_elements<mv_q4> { static const int value = 32; };
template <> struct mv_elements<mv_record> { static const int value = 32; };
template <class W> struct mv_dtype { static const fb_dtype value = FB_F32; };
template <> struct mv_dtype<fb_half> { static const fb_dtype value = FB_F16; };
template <> struct mv_dtype<fb_bfloat> { static const fb_dtype value = FB_BF16; };
template <> struct mv_dtype<mv_q8> { static const fb_dtype value = FB_Q8_0; };
template <> struct mv_dtype<mv_q4> { static const fb_dtype value = FB_Q4_0; };
template <> struct mv_dtype<mv_record> { static const fb_dtype value = FB_Q4_K; }; /* stands for all */
template <class W> struct mv_records { static const bool value = false; };
template <> struct mv_records<mv_record> { static const bool value = true; };
template <class W> struct mv_quantised { static const bool value = false; };
template <> struct mv_quantised<mv_q8> { static const bool value = true; };
template <> struct mv_quantised<mv_q4> { static const bool value = true; };
template <class X> struct mv_tensor { static const bool value = sizeof(X) == 2; }; /* by tensor cores */
template <> struct mv_tensor<mv_blocks> { static const bool value = false; };
template <class X> struct mv_integers { static const bool value = false; };
template <> struct mv_integers<mv_blocks> { static const bool value = true; };

/* ---- weights ---- */

/* A chunk of a row that does not begin at a multiple of 16 bytes; zeros beyond the row. */
FB_DEVICE uint4 mv_gather(const float *row, int cols, int chunk) {
    uint32_t word[4];
    for (int i = 0; i < 4; i++) word[i] = 4 * chunk + i < cols ? __float_as_uint(row[4 * chunk + i]) : 0;
    return make_uint4(word[0], word[1], word[2], word[3]);
}
template <class W> FB_DEVICE uint4 mv_gather(const W *row, int cols, int chunk) {
    uint32_t word[4] = {0, 0, 0, 0};
    for (int i = 0; i < 8; i++)
        if (8 * chunk + i < cols) word[i / 2] |= (uint32_t)row[8 * chunk + i].bits << (16 * (i % 2));
    return make_uint4(word[0], word[1], word[2], word[3]);
}
FB_DEVICE uint4 mv_gather(const mv_q8 *row, int, int chunk) { return ((const uint4 *)row)[chunk]; }
FB_DEVICE uint4 mv_gather(const mv_q4 *row, int, int chunk) { return ((const uint4 *)row)[chunk]; }

FB_DEVICE uint32_t mv_word(uint4 v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

FB_DEVICE void mv_unpack(float, uint32_t word, float *to) { to[0] = __uint_as_float(word); }
template <class T> FB_DEVICE void mv_unpack(T, uint32_t word, float *to) {
    to[0] = fb_widen(T{(uint16_t)word});
    to[1] = fb_widen(T{(uint16_t)(word >> 16)});
}

/* Elements 4 q to 4 q + 3 of a chunk of weights, as floats. */
FB_DEVICE void mv_decode(float, uint4 v, float, int, float *to) {
    for (int i = 0; i < 4; i++) to[i] = __uint_as_float(mv_word(v, i));
}
template <class T> FB_DEVICE void mv_decode(T, uint4 v, float, int q, float *to) {
    mv_unpack(T(), mv_word(v, 2 * q), to);
    mv_unpack(T(), mv_word(v, 2 * q + 1), to + 2);
}
FB_DEVICE void mv_decode(mv_q8, uint4 v, float scale, int q, float *to) {
    uint32_t word = mv_word(v, q);
    for (int i = 0; i < 4; i++) to[i] = scale * (float)(int8_t)(word >> (8 * i));
}
FB_DEVICE void mv_decode(mv_q4, uint4 v, float scale, int q, float *to) {
    uint32_t word = mv_word(v, q & 3) >> (q & 4);
    /* The float 2^23 + n has n in its low bits: cheaper than a conversion. */
    for (int i = 0; i < 4; i++)
        to[i] = scale * (__uint_as_float(0x4b000000u | (word >> (8 * i) & 15)) - 8388616.0f);
}

/* Rows of floats are staged as [quads of a chunk][chunks], so that neighbouring lanes read neighbouring
 * addresses. */
FB_DEVICE void mv_x_quad(const float *x, int chunks, int chunk, int q, float *to) {
    float4 v = ((const float4 *)x)[q * chunks + chunk];
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

/* acc[r * M + m] += one chunk of row r of R rows of weights times row m of M rows of x. */
template <class W, class X, int M, int R> struct mv_products {
    static FB_DEVICE void add(const uint4 *w, const float *scale, const uint8_t *x, int x_bytes, int chunks,
                              int chunk, float *acc) {
        float pair[R * M]; /* the sums of two quads */
#pragma unroll
        for (int q = 0; q < mv_elements<W>::value / 4; q++) {
            float ws[R][4];
#pragma unroll
            for (int r = 0; r < R; r++) mv_decode(W(), w[r], scale[r], q, ws[r]);
#pragma unroll
            for (int m = 0; m < M; m++) {
                float xs[4];
                mv_x_quad((const float *)(x + m * x_bytes), chunks, chunk, q, xs);
#pragma unroll
                for (int r = 0; r < R; r++) {
                    float quad = xs[0] * ws[r][0];
#pragma unroll
                    for (int i = 1; i < 4; i++) quad = fmaf(xs[i], ws[r][i], quad);
                    pair[r * M + m] = q % 2 ? pair[r * M + m] + quad : quad;
                    if (q % 2 || mv_elements<W>::value == 4) acc[r * M + m] += pair[r * M + m];
                }
            }
        }
    }
};

/* Blocks are staged as 16 bytes a chunk (for Q4_0 two arrays: elements 0 to 15 of all blocks, then 16 to 31),
 * then each block's scale and sum. */
template <class W, int M, int R> struct mv_products<W, mv_blocks, M, R> {
    static FB_DEVICE void add(const uint4 *w, const float *scale, const uint8_t *x, int x_bytes, int chunks,
                              int chunk, float *acc) {
        const bool nibbles = mv_elements<W>::value == 32;
#pragma unroll
        for (int m = 0; m < M; m++) {
            const uint4 *whole = (const uint4 *)(x + m * x_bytes);
            uint4 low = whole[chunk], high = nibbles ? whole[chunks + chunk] : low;
            int2 scale_sum =
                ((const int2 *)(whole + (nibbles ? 2 * chunks : chunks)))[nibbles ? chunk : chunk / 2];
#pragma unroll
            for (int r = 0; r < R; r++) {
                int sum = 0, upper = nibbles ? -8 * scale_sum.y : 0;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    uint32_t word = mv_word(w[r], i);
                    if (nibbles) {
                        sum = __dp4a((int)(word & 0x0f0f0f0fu), (int)mv_word(low, i), sum);
                        upper = __dp4a((int)(word >> 4 & 0x0f0f0f0fu), (int)mv_word(high, i), upper);
                    } else {
                        sum = __dp4a((int)word, (int)mv_word(low, i), sum);
                    }
                }
                /* Rounded as gemm_quant.cu does. */
                acc[r * M + m] =
                    fmaf((float)(sum + upper) * scale[r], __int_as_float(scale_sum.x), acc[r * M + m]);
            }
        }
    }
};

#endif
