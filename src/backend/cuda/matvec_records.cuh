/* Products of quantised weights in records (records.cuh) with staged rows of x, by one lane: integers, or
 * floats. The type is known at run time, because the layers of a model have several. A warp looks at it once
 * for a piece. */
#ifndef FB_BACKEND_CUDA_MATVEC_RECORDS_CUH
#define FB_BACKEND_CUDA_MATVEC_RECORDS_CUH

#include "backend/cuda/matvec_pipeline.cuh"
#include "backend/cuda/records.cuh"

/* A chunk of R rows of weights times M rows of x: mv_products for records. */
template <fb_dtype D, class X, int M, int R> struct mv_record_products {
    static FB_DEVICE void add(const fb_record_place *at, const uint8_t *x, int x_bytes, int chunks, int chunk,
                              float *acc) {
        constexpr fb_record_type t = fb_record_type_of(D);
        uint32_t quads[R][8];
        fb_record_scales scales[R];
        float pair[R * M]; /* the sums of two quads */
#pragma unroll
        for (int r = 0; r < R; r++) {
            fb_record_quads<false>(t, at[r], quads[r]);
            scales[r] = fb_record_scales_of(t, at[r]);
        }
#pragma unroll
        for (int q = 0; q < 8; q++) {
            float ws[R][4];
#pragma unroll
            for (int r = 0; r < R; r++) fb_record_values(t, scales[r], quads[r][q], q, ws[r]);
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
                    if (q % 2) acc[r * M + m] += pair[r * M + m];
                }
            }
        }
    }
};

/* Blocks are staged as for Q4_0, but with the sums of a block's two halves, of 16 bits each. A part's integer
 * sum times its scale is an integer, too, of less than 2^25, so that one conversion serves a chunk. */
template <fb_dtype D, int M, int R> struct mv_record_products<D, mv_blocks, M, R> {
    static FB_DEVICE void add(const fb_record_place *at, const uint8_t *x, int x_bytes, int chunks, int chunk,
                              float *acc) {
        constexpr fb_record_type t = fb_record_type_of(D);
        constexpr bool in_place = fb_record_nibbles(t);
        uint32_t quads[R][8];
        fb_record_scales scales[R];
#pragma unroll
        for (int r = 0; r < R; r++) {
            fb_record_quads<in_place>(t, at[r], quads[r]);
            scales[r] = fb_record_scales_of(t, at[r]);
        }
#pragma unroll
        for (int m = 0; m < M; m++) {
            const uint4 *whole = (const uint4 *)(x + m * x_bytes);
            const uint4 low = whole[chunk], high = whole[chunks + chunk];
            const int2 scale_sums = ((const int2 *)(whole + 2 * chunks))[chunk];
            const int sums[2] = {(int)(int16_t)scale_sums.y, scale_sums.y >> 16};
#pragma unroll
            for (int r = 0; r < R; r++) {
                int first = 0, second = 0;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    first = __dp4a((int)quads[r][i], (int)mv_word(low, i), first);
                    second = in_place ? fb_dot_unsigned(quads[r][i + 4], mv_word(high, i), second)
                                      : __dp4a((int)quads[r][i + 4], (int)mv_word(high, i), second);
                }
                const float v = fb_record_product(t, scales[r], first, in_place ? second >> 4 : second, sums);
                acc[r * M + m] = fmaf(v, __int_as_float(scale_sums.x), acc[r * M + m]);
            }
        }
    }
};

/* All chunks of a piece, whose rows of weights lie `row_bytes` apart. */
template <fb_dtype D, class X, int M, int R, class row_offset>
FB_DEVICE void mv_multiply_record(const uint8_t *record, row_offset row_bytes, int rows, const int4 what,
                                  int x_bytes, const uint8_t *shared, float *acc) {
    constexpr fb_record_type t = fb_record_type_of(D);
    const int chunks = what.y, first = what.z, lane = (int)threadIdx.x % FB_WARP;
    const uint8_t *x = shared + what.x;
    auto multiply = [&](int chunk, int count) {
        fb_record_place at[R];
#pragma unroll
        for (int r = 0; r < R; r++)
            at[r] = fb_record_at(t, record + (r < rows ? r : 0) * row_bytes, count, chunk);
        mv_record_products<D, X, M, R>::add(at, x, M == 1 ? 0 : x_bytes, chunks, first + chunk, acc);
    };
    /* For a whole record all offsets are constants. */
    if (M == 1 && mv_integers<X>::value && what.w == FB_RECORD_CHUNKS) {
#pragma unroll
        for (int i = 0; i < FB_RECORD_CHUNKS; i += FB_WARP) multiply(lane + i, FB_RECORD_CHUNKS);
        return;
    }
#pragma unroll 1
    for (int chunk = lane; chunk < what.w; chunk += FB_WARP) multiply(chunk, what.w);
}

/* Adds a piece of R rows of weights times M rows of x to acc. There are `rows` of them. what: of the piece's
 * header. */
template <class X, int M, int R, class row_offset>
FB_DEVICE void mv_multiply_records(fb_dtype type, const uint8_t *record, row_offset row_bytes, int rows,
                                   const int4 what, int x_bytes, const uint8_t *shared, float *acc) {
    switch (type) {
#define MULTIPLY(D)                                                                                          \
    case D:                                                                                                  \
        mv_multiply_record<D, X, M, R>(record, row_bytes, rows, what, x_bytes, shared, acc);                 \
        break;
        FB_EACH_RECORD_TYPE(MULTIPLY)
#undef MULTIPLY
    default:
        break;
    }
}

#endif
