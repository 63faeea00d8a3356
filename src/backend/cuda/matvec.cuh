/* linear, linear_group and head_argmax of up to 8 rows: weights are read once, at the memory's speed.
 *
 * Decoding is nothing but reading weights, so all that counts is that reads are always on their way: each
 * warp has a ring in shared memory that cp.async fills, MV_AHEAD chunks of 16 bytes a lane ahead (64 KiB a
 * multiprocessor: at 4.5 TB/s and 0.8 us a multiprocessor of 132 needs 27 KiB), with no barrier and no
 * register in between. The ring is full before the kernel waits for the one before it, which hides the
 * launch, the norm and the quantisation of x. One block a multiprocessor, with at most half of its registers
 * and shared memory, so that the next kernel can fill its ring beside it.
 *
 * The order of a dot product's sum depends on the number of columns, the weight's dtype and the way of
 * multiplying alone (shape_of in linear.cu): a row is cut into chunks of 16 bytes; `lanes` threads take
 * chunks l, l + lanes, … of a piece, each adds them one after the other (of 8 elements: two chains of 4, so
 * that chunks do not wait for each other), the lanes are added as a tree and the pieces in their order. Which
 * warp takes which piece of which row has no influence, nor have the number of rows, other segments, or what
 * is done with the result. */
#ifndef FB_BACKEND_CUDA_MATVEC_CUH
#define FB_BACKEND_CUDA_MATVEC_CUH

#include "backend/cuda/activation.cuh"
#include "backend/cuda/matvec.h"
#include "backend/cuda/norm.cuh"
#include "backend/cuda/quantize.cuh"

#ifdef FB_EMULATED
#define __grid_constant__
#endif

/* Weight types that are not element types, and how x is staged for integer products. */
struct mv_q8 {};
struct mv_q4 {};
struct mv_blocks {};

template <class W> struct mv_elements { static const int value = 16 / sizeof(W); };
template <> struct mv_elements<mv_q8> { static const int value = 16; };
template <> struct mv_elements<mv_q4> { static const int value = 32; };
template <class W> struct mv_quantised { static const bool value = false; };
template <> struct mv_quantised<mv_q8> { static const bool value = true; };
template <> struct mv_quantised<mv_q4> { static const bool value = true; };
template <class X> struct mv_integers { static const bool value = false; };
template <> struct mv_integers<mv_blocks> { static const bool value = true; };

/* ---- copies ---------------------------------------------------------------------------------------------
 */

FB_DEVICE void mv_copy_16(void *shared, const void *global) {
#ifdef FB_EMULATED
    if (((uintptr_t)shared | (uintptr_t)global) & 15) __builtin_trap(); /* as the device would */
    memcpy(shared, global, 16);
#else
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(global)
                 : "memory");
#endif
}
FB_DEVICE void mv_copy_4(void *shared, const void *global) {
#ifdef FB_EMULATED
    if (((uintptr_t)shared | (uintptr_t)global) & 3) __builtin_trap();
    memcpy(shared, global, 4);
#else
    asm volatile(
        "cp.async.ca.shared.global.L2::128B [%0], [%1], 4;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
        "l"(global)
        : "memory");
#endif
}

/* Bytes that all blocks will read, on their way into the second-level cache: a line to a thread of the grid.
 */
FB_DEVICE void mv_warm(const void *p, int64_t bytes) {
#ifdef FB_EMULATED
    (void)p, (void)bytes;
#else
    int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 128;
    if (p && at < bytes) asm volatile("prefetch.global.L2 [%0];" ::"l"((const uint8_t *)p + at));
#endif
}

/* ---- where a warp's work lies ---------------------------------------------------------------------------
 */

/* A piece of rows row, row + step, … (R of them, for the thread's part of the warp) of a segment. */
struct mv_item {
    int s, row, step;
    int chunk; /* the thread's first one */
    int steps; /* 0: nothing to do */
    int place; /* of row's partial sum within the group: [unit rows, slots] */
};

template <int R> FB_DEVICE mv_item mv_locate(const mv_plan &plan, int group, int q) {
    mv_item item;
    int lane = (int)threadIdx.x % FB_WARP, slot = 0;
    item.s = 0;
    if (plan.combined) {
        if (plan.segments == 2 && q >= plan.seg[0].items) {
            q -= plan.seg[0].items;
            slot = plan.seg[0].pieces;
            item.s = 1;
        }
    } else {
        while (item.s + 1 < plan.segments && group >= plan.seg[item.s + 1].group) item.s++;
        group -= plan.seg[item.s].group;
    }
    const mv_segment &seg = plan.seg[item.s];
    int lanes = seg.lanes, piece = q / seg.passes, pass = q - piece * seg.passes;
    item.step = FB_WARP >> seg.shift;
    int within = pass * item.step * R + (lane >> seg.shift);
    item.row = group * plan.unit + within;
    int first = piece * seg.steps * lanes, left = seg.chunks - first;
    item.chunk = first + (lane & (lanes - 1));
    item.steps = piece >= seg.pieces ? 0 : min((left + lanes - 1) >> seg.shift, seg.steps);
    item.place = within * plan.slots + slot + piece;
    return item;
}

template <class W> FB_DEVICE int64_t mv_scale_at(const mv_segment &seg, int row, int chunk) {
    int per = 32 / mv_elements<W>::value; /* chunks of a block */
    return (int64_t)row * (seg.chunks / per) + chunk / per;
}

/* The reader that runs ahead; all that a step needs is in registers. */
struct mv_ahead {
    int index;        /* of the warp's next item in the block */
    int left, lanes;  /* steps of this one; chunks between two */
    int chunk, limit; /* the thread's next one; where they end */
    int rows;         /* of the R that there are */
    const uint8_t *p;
    const uint16_t *scale;
    int p_far, scale_far; /* from one of the R rows to the next */
};

template <class W, int R> FB_DEVICE void mv_ask_next(const mv_plan &plan, mv_ahead &ahead, int first) {
    int group = ahead.index / plan.items;
    mv_item item = mv_locate<R>(plan, first + group, ahead.index - group * plan.items);
    const mv_segment &seg = plan.seg[item.s];
    ahead.index += (int)blockDim.x / FB_WARP;
    ahead.left = item.steps;
    ahead.lanes = seg.lanes;
    ahead.chunk = item.chunk;
    ahead.limit = item.row < seg.rows ? seg.chunks : 0;
    ahead.rows = (seg.rows - item.row + item.step - 1) / item.step;
    ahead.p = seg.w + item.row * seg.row_bytes + (int64_t)item.chunk * 16;
    ahead.p_far = (int)(item.step * seg.row_bytes);
    if (mv_quantised<W>::value) {
        ahead.scale = seg.scales + mv_scale_at<W>(seg, item.row, item.chunk);
        ahead.scale_far = (int)mv_scale_at<W>(seg, item.step, 0);
    }
}

/* Asks for the next step's chunks, into a slot of the ring. Scales come two at a time, since cp.async copies
 * no less than four bytes: by the first of the lanes that need them. */
template <class W, int R>
FB_DEVICE void mv_ask(const mv_plan &plan, mv_ahead &ahead, int first, int items, uint4 *ring,
                      uint16_t *scales) {
    const int share =
        mv_quantised<W>::value ? 64 / mv_elements<W>::value : 2; /* lanes that two scales serve */
    while (ahead.left == 0 && ahead.index < items) mv_ask_next<W, R>(plan, ahead, first);
    if (ahead.left > 0) {
        int lane = (int)threadIdx.x % FB_WARP;
        if (ahead.chunk < ahead.limit) {
#pragma unroll
            for (int r = 0; r < R; r++) {
                if (r > 0 && r >= ahead.rows) break;
                mv_copy_16(ring + r * FB_WARP + lane, ahead.p + r * ahead.p_far);
                if (mv_quantised<W>::value && lane % share == 0)
                    mv_copy_4(scales + r * FB_WARP + lane / (share / 2), ahead.scale + r * ahead.scale_far);
            }
        }
        ahead.p += ahead.lanes * 16;
        if (mv_quantised<W>::value) ahead.scale += ahead.lanes / (share / 2);
        ahead.chunk += ahead.lanes;
        ahead.left--;
    }
    fb_copy_commit();
}

/* ---- products -------------------------------------------------------------------------------------------
 */

/* A chunk of a row of weights where rows do not begin at multiples of 16 bytes; beyond the row are zeros. */
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
    /* 2^23 + n has n in its low bits: cheaper than a conversion. */
    for (int i = 0; i < 4; i++)
        to[i] = scale * (__uint_as_float(0x4b000000u | (word >> (8 * i) & 15)) - 8388616.0f);
}

/* Staged rows of floats: quads (octets, of 16-bit floats) number q of all chunks, then number q + 1:
 * neighbours read neighbours. */
FB_DEVICE void mv_x_quad(const float *x, int chunks, int chunk, int q, float *to) {
    float4 v = ((const float4 *)x)[q * chunks + chunk];
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

/* acc[r * M + m] with one more chunk of R rows of weights and M rows of x. */
template <class W, class X, int M, int R> struct mv_products {
    static FB_DEVICE void add(const uint4 *w, const float *scale, const uint8_t *x, int x_bytes, int chunks,
                              int chunk, float *acc) {
        if constexpr (sizeof(X) == 2) { /* then W is X */
            float all[R][8];
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int q = 0; q < 2; q++) mv_decode(W(), w[r], scale[r], q, all[r] + 4 * q);
#pragma unroll
            for (int m = 0; m < M; m++) {
                uint4 v = ((const uint4 *)(x + m * x_bytes))[chunk];
                float xs[8];
#pragma unroll
                for (int i = 0; i < 4; i++) mv_unpack(X(), mv_word(v, i), xs + 2 * i);
#pragma unroll
                for (int r = 0; r < R; r++) {
                    float low = xs[0] * all[r][0], high = xs[4] * all[r][4];
#pragma unroll
                    for (int i = 1; i < 4; i++) {
                        low = fmaf(xs[i], all[r][i], low);
                        high = fmaf(xs[4 + i], all[r][4 + i], high);
                    }
                    acc[r * M + m] += low + high;
                }
            }
        } else {
            float pair[R * M]; /* of quads: as above for chunks of 8 */
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
    }
};

/* Staged blocks: 16 bytes a chunk, for Q4_0 twice (elements 0 to 15 of all blocks, then 16 to 31), then each
 * block's scale and sum. */
template <class W, int M, int R> struct mv_products<W, mv_blocks, M, R> {
    static FB_DEVICE void add(const uint4 *w, const float *scale, const uint8_t *x, int x_bytes, int chunks,
                              int chunk, float *acc) {
        const bool nibbles = mv_elements<W>::value == 32;
#pragma unroll
        for (int m = 0; m < M; m++) {
            const uint4 *whole = (const uint4 *)(x + m * x_bytes);
            uint4 low = whole[chunk], high = nibbles ? whole[chunks + chunk] : low;
            int2 rest =
                ((const int2 *)(whole + (nibbles ? 2 * chunks : chunks)))[nibbles ? chunk : chunk / 2];
#pragma unroll
            for (int r = 0; r < R; r++) {
                int sum = 0, upper = nibbles ? -8 * rest.y : 0;
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
                acc[r * M + m] =
                    fmaf((float)(sum + upper), scale[r] * __int_as_float(rest.x), acc[r * M + m]);
            }
        }
    }
};

/* ---- inputs ---------------------------------------------------------------------------------------------
 */

/* Where a segment's input and its norm's weights are: in global memory, or in shared memory already. */
struct mv_source {
    const void *x, *norm_w, *norm_b;
};
FB_DEVICE mv_source mv_source_of(const mv_segment &seg, const uint8_t *shared) {
    if (seg.raw_at < 0) return {seg.x, seg.norm_w, seg.norm_b};
    int norm_at = seg.norm_at, bytes = seg.cols * (seg.norm_w_type == FB_F32 ? 4 : 2);
    if (norm_at < 0) return {shared + seg.raw_at, seg.norm_w, seg.norm_b};
    return {shared + seg.raw_at, shared + norm_at, seg.norm_b ? shared + norm_at + bytes : NULL};
}

/* Elements i to i + 7 of row m of a segment's input, as the linear multiplies them; zeros beyond the row. */
template <class T>
FB_DEVICE void mv_input_8(const mv_segment &seg, const mv_source &from, int m, int i, fb_row_stats stats,
                          float *to) {
    const T *x = (const T *)from.x + m * seg.x_stride;
    int count = fb_norm_chunk(x, seg.cols, i / 8, fb_aligned(x, 16), to);
    if (seg.norm == FB_OP_COUNT) return;
    float w[8], b[8];
    if (count == 8) {
        fb_norm_weight_8(from.norm_w, seg.norm_w_type, i, w);
        fb_norm_weight_8(from.norm_b, seg.norm_b_type, i, b);
    } else {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            w[k] = k < count ? fb_norm_weight(from.norm_w, seg.norm_w_type, i + k) : 0;
            b[k] = k < count ? fb_norm_weight(from.norm_b, seg.norm_b_type, i + k) : 0;
        }
    }
#pragma unroll
    for (int k = 0; k < 8; k++)
        to[k] = k < count ? fb_rounded<T>(fb_norm_apply(seg.norm, to[k], stats, w[k], b[k])) : 0;
}

FB_DEVICE void mv_stage_8(float *row, int chunks, int quads, int i, const float *v) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int quad = i / 4 + h, chunk = quad / quads;
        if (chunk < chunks)
            ((float4 *)row)[(quad - chunk * quads) * chunks + chunk] =
                make_float4(v[4 * h], v[4 * h + 1], v[4 * h + 2], v[4 * h + 3]);
    }
}
template <class X> FB_DEVICE void mv_stage_8(X *row, int, int, int i, const float *v) {
    fb_store_8(row + i, v);
}

/* A segment's rows of T into shared memory as X. */
template <class T, class W, class X> struct mv_stage {
    static FB_DEVICE void rows(const mv_segment &seg, const mv_source &from, int ms, uint8_t *to,
                               const fb_row_stats *stats) {
        int eights = (seg.chunks * mv_elements<W>::value + 7) / 8;
        for (int m = 0; m < ms; m++)
            for (int e = (int)threadIdx.x; e < eights; e += (int)blockDim.x) {
                float v[8];
                mv_input_8<T>(seg, from, m, 8 * e, stats[m], v);
                mv_stage_8((X *)(to + m * seg.x_bytes), seg.chunks, mv_elements<W>::value / 4, 8 * e, v);
            }
    }
};

/* Word `part` (0 to 7) of block b, and what belongs to the whole block. */
template <class W> FB_DEVICE void mv_stage_quad(uint8_t *row, int blocks, int b, int part, uint32_t word) {
    int at = mv_elements<W>::value == 32 ? part / 4 * blocks + b : 2 * b + part / 4; /* in 16 bytes */
    ((uint32_t *)row)[4 * at + part % 4] = word;
}
FB_DEVICE void mv_stage_rest(uint8_t *row, int blocks, int b, uint32_t scale, uint32_t sum) {
    ((uint2 *)(row + (int64_t)blocks * 32))[b] = make_uint2(scale, sum);
}

/* Four elements, p being at any address. */
FB_DEVICE void mv_load_4(const float *p, float *to) {
    if (fb_aligned(p, 16)) {
        float4 v = *(const float4 *)p;
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else {
        for (int k = 0; k < 4; k++) to[k] = p[k];
    }
}
template <class T> FB_DEVICE void mv_load_4(const T *p, float *to) {
    if (fb_aligned(p, 8)) {
        uint2 v = *(const uint2 *)p;
        mv_unpack(T(), v.x, to);
        mv_unpack(T(), v.y, to + 2);
    } else {
        for (int k = 0; k < 4; k++) to[k] = fb_widen(p[k]);
    }
}
FB_DEVICE void mv_load_4(fb_dtype type, const void *p, int i, float *to) {
    if (type == FB_F32)
        mv_load_4((const float *)p + i, to);
    else if (type == FB_F16)
        mv_load_4((const fb_half *)p + i, to);
    else
        mv_load_4((const fb_bfloat *)p + i, to);
}

/* Elements i to i + 3, all of which there are. */
template <class T>
FB_DEVICE void mv_input_4(const mv_segment &seg, const mv_source &from, int m, int i, fb_row_stats stats,
                          float *to) {
    mv_load_4((const T *)from.x + m * seg.x_stride + i, to);
    if (seg.norm == FB_OP_COUNT) return;
    float w[4], b[4] = {0, 0, 0, 0};
    mv_load_4(seg.norm_w_type, from.norm_w, i, w);
    if (from.norm_b) mv_load_4(seg.norm_b_type, from.norm_b, i, b);
#pragma unroll
    for (int k = 0; k < 4; k++) to[k] = fb_rounded<T>(fb_norm_apply(seg.norm, to[k], stats, w[k], b[k]));
}

template <class T, class W> struct mv_stage<T, W, mv_blocks> {
    static FB_DEVICE void rows(const mv_segment &seg, const mv_source &from, int ms, uint8_t *to,
                               const fb_row_stats *stats) {
        int blocks = seg.cols / 32, part = (int)threadIdx.x % FB_Q8_THREADS;
        for (int m = 0; m < ms; m++)
            for (int b0 = 0; b0 < blocks; b0 += (int)blockDim.x / FB_Q8_THREADS) {
                int b = b0 + (int)threadIdx.x / FB_Q8_THREADS;
                bool there = b < blocks;
                float v[4];
                mv_input_4<T>(seg, from, m, (there ? b : 0) * 32 + part * 4, stats[m], v);
                fb_quad quad = fb_quantize_quad(v);
                if (!there) continue;
                uint8_t *row = to + m * seg.x_bytes;
                mv_stage_quad<W>(row, blocks, b, part, quad.word);
                if (part == 0) mv_stage_rest(row, blocks, b, __float_as_uint(quad.scale), (uint32_t)quad.sum);
            }
    }
};

/* Blocks that are quantised already. */
template <class W> FB_DEVICE void mv_stage_given(const mv_segment &seg, int ms, uint8_t *to) {
    int blocks = seg.cols / 32;
    for (int m = 0; m < ms; m++)
        for (int i = (int)threadIdx.x; i < blocks * 9; i += (int)blockDim.x) {
            int b = i / 9, part = i - 9 * b;
            const uint32_t *x = (const uint32_t *)((const float *)seg.x + m * seg.x_stride) + 10 * b;
            uint8_t *row = to + m * seg.x_bytes;
            if (part < 8)
                mv_stage_quad<W>(row, blocks, b, part, x[2 + part]);
            else
                mv_stage_rest(row, blocks, b, x[0], x[1]);
        }
}

template <class T, int M>
FB_DEVICE void mv_statistics(const mv_plan &plan, const mv_segment &seg, const mv_source &from, float *room,
                             fb_row_stats *stats) {
    int warp = (int)threadIdx.x / FB_WARP, warps = (int)blockDim.x / FB_WARP;
    if (M == 1) {
        fb_row_stats of = fb_norm_stats(seg.norm, (const T *)from.x, seg.cols, seg.eps, room);
        if (threadIdx.x == 0) stats[0] = of;
    } else {
        for (int m = warp; m < plan.ms; m += warps) {
            fb_row_stats of =
                fb_norm_stats_warp(seg.norm, (const T *)seg.x + m * seg.x_stride, seg.cols, seg.eps);
            if (threadIdx.x % FB_WARP == 0) stats[m] = of;
        }
    }
    __syncthreads();
}

/* All inputs; segments that read the same have the same place. */
template <class T, class W, class X, int M>
FB_DEVICE void mv_stage_inputs(const mv_plan &plan, uint8_t *shared, float *room, fb_row_stats *stats) {
    for (int s = 0; s < plan.segments; s++) {
        const mv_segment &seg = plan.seg[s];
        if (!seg.stages) continue;
        mv_source from = mv_source_of(seg, shared);
        if (seg.norm != FB_OP_COUNT && !seg.same_stats) mv_statistics<T, M>(plan, seg, from, room, stats);
        mv_stage<T, W, X>::rows(seg, from, plan.ms, shared + seg.x_at, stats);
        __syncthreads(); /* stats may change now */
    }
}

/* The same from whatever the call's inputs are. */
template <class W, class X, int M>
FB_DEVICE void mv_stage_all(const mv_plan &plan, uint8_t *shared, float *room, fb_row_stats *stats) {
    if constexpr (mv_integers<X>::value) {
        if (plan.dot == FB_DOT_GIVEN) {
            for (int s = 0; s < plan.segments; s++)
                if (plan.seg[s].stages) mv_stage_given<W>(plan.seg[s], plan.ms, shared + plan.seg[s].x_at);
        } else {
            FB_FOR_TYPE(plan.x_type, T, (mv_stage_inputs<T, W, X, M>(plan, shared, room, stats)));
        }
    } else {
        if constexpr (sizeof(X) == 2)
            mv_stage_inputs<X, W, X, M>(plan, shared, room, stats);
        else
            FB_FOR_TYPE(plan.x_type, T, (mv_stage_inputs<T, W, X, M>(plan, shared, room, stats)));
    }
}

/* ---- outputs --------------------------------------------------------------------------------------------
 */

FB_DEVICE float mv_rounded(fb_dtype type, float x) {
    return type == FB_F32 ? x : type == FB_F16 ? fb_rounded<fb_half>(x) : fb_rounded<fb_bfloat>(x);
}
FB_DEVICE float mv_get(fb_dtype type, const void *p, int64_t i) {
    return type == FB_F32   ? ((const float *)p)[i]
           : type == FB_F16 ? fb_widen(((const fb_half *)p)[i])
                            : fb_widen(((const fb_bfloat *)p)[i]);
}
FB_DEVICE void mv_put(fb_dtype type, void *p, int64_t i, float x) {
    if (type == FB_F32)
        ((float *)p)[i] = x;
    else if (type == FB_F16)
        ((fb_half *)p)[i] = fb_narrow<fb_half>(x);
    else
        ((fb_bfloat *)p)[i] = fb_narrow<fb_bfloat>(x);
}

FB_DEVICE float mv_total(const float *partial, int pieces) {
    float sum = partial[0];
    for (int p = 1; p < pieces; p++) sum += partial[p];
    return sum;
}

/* What an output needs besides its sums; asked for before they are there. */
struct mv_rest {
    float bias[2], residual;
};
FB_DEVICE mv_rest mv_rest_of(const mv_plan &plan, int s, int row, int m) {
    mv_rest rest = {{0, 0}, 0};
    const mv_segment &seg = plan.seg[s];
    if (seg.bias) rest.bias[0] = mv_get(seg.bias_type, seg.bias, row);
    if (plan.combined && plan.seg[1].bias)
        rest.bias[1] = mv_get(plan.seg[1].bias_type, plan.seg[1].bias, row);
    if (plan.combine == FB_COMBINE_ADD)
        rest.residual = mv_get(plan.type, plan.residual, m * plan.residual_stride + row);
    return rest;
}

/* What the plain linear and activation would have stored. */
FB_DEVICE float mv_finished(const mv_plan &plan, const mv_segment &seg, float bias, float sum) {
    if (seg.bias) sum += bias;
    sum = mv_rounded(plan.type, sum);
    return seg.act == FB_OP_COUNT ? sum : mv_rounded(plan.type, fb_activate(seg.act, sum));
}

/* Output `row` of segment s for row m of x. */
FB_DEVICE void mv_store(const mv_plan &plan, int s, int row, int m, const float *partial,
                        const mv_rest &rest) {
    const mv_segment &seg = plan.seg[s];
    float v = mv_total(partial, seg.pieces);
    if (plan.sums) { /* for a second launch to finish */
        plan.sums[(int64_t)m * seg.rows + row] = v;
        return;
    }
    v = mv_finished(plan, seg, rest.bias[0], v);
    if (plan.combined) {
        if (plan.combine == FB_COMBINE_MUL || plan.pair) {
            float other = plan.given ? plan.given[(int64_t)m * seg.rows + row]
                                     : mv_total(partial + seg.pieces, plan.seg[1].pieces);
            other = mv_finished(plan, plan.seg[1], rest.bias[1], other);
            v = plan.combine == FB_COMBINE_MUL ? v * other : mv_rounded(plan.type, v + other);
        }
        if (plan.combine == FB_COMBINE_ADD) v += rest.residual;
    }
    mv_put(plan.type, seg.out, m * seg.out_stride + row, v);
}

/* Groups [begin, begin + count) are done: `partial` [group, unit row, M, slots]. */
template <int M> FB_DEVICE void mv_finish(const mv_plan &plan, int begin, int count, const float *partial) {
    int outputs = count * plan.unit;
    for (int o = (int)threadIdx.x; o < outputs * plan.ms; o += (int)blockDim.x) {
        int m = o / outputs, r = o - m * outputs, group = begin + r / plan.unit, s = 0;
        if (!plan.combined)
            while (s + 1 < plan.segments && group >= plan.seg[s + 1].group) s++;
        int row = (group - (plan.combined ? 0 : plan.seg[s].group)) * plan.unit + r % plan.unit;
        if (row < plan.seg[s].rows)
            mv_store(plan, s, row, m, partial + ((int64_t)m * outputs + r) * plan.slots,
                     mv_rest_of(plan, s, row, m));
    }
}

/* ---- the best output ------------------------------------------------------------------------------------
 */

struct mv_best {
    float value;
    int column;
};

/* The larger, the first among equals; a NaN above all. */
FB_DEVICE mv_best mv_better(mv_best a, mv_best b) {
    bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    bool second = a_nan != b_nan                ? b_nan
                  : a_nan || a.value == b.value ? b.column < a.column
                                                : b.value > a.value;
    return second ? b : a;
}
FB_DEVICE mv_best mv_best_of_warp(mv_best best) {
    for (int step = 16; step; step >>= 1) {
        mv_best other = {__shfl_xor_sync(FB_ALL, best.value, step),
                         __shfl_xor_sync(FB_ALL, best.column, step)};
        best = mv_better(best, other);
    }
    return best;
}

/* Warp m looks at row m, over all batches. */
FB_DEVICE void mv_look(const mv_plan &plan, int begin, int count, const float *partial, mv_best *best) {
    int m = (int)threadIdx.x / FB_WARP, outputs = count * plan.unit;
    if (m >= plan.ms) return;
    for (int r = (int)threadIdx.x % FB_WARP; r < outputs; r += FB_WARP) {
        int row = begin * plan.unit + r;
        if (row >= plan.seg[0].rows) break;
        float sum = mv_total(partial + ((int64_t)m * outputs + r) * plan.slots, plan.seg[0].pieces);
        *best = mv_better(*best, {mv_rounded(plan.type, sum), row});
    }
}

/* Each block leaves its best, and the last one to do so takes the best of them. */
FB_DEVICE void mv_best_of_all(const mv_plan &plan, mv_best best, int *shared) {
    int m = (int)threadIdx.x / FB_WARP, lane = (int)threadIdx.x % FB_WARP;
    if (m < plan.ms) {
        best = mv_best_of_warp(best);
        if (lane == 0) {
            plan.results[blockIdx.x * MV_MOST_ROWS + m] =
                make_float2(best.value, __int_as_float(best.column));
            __threadfence();
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        *shared = atomicAdd(plan.counter, 1u) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (!*shared) return;
    if (m < plan.ms) {
        best = {-INFINITY, 0x7fffffff};
        for (int b = lane; b < (int)gridDim.x; b += FB_WARP) {
            float2 of = __ldcg(plan.results + b * MV_MOST_ROWS + m);
            best = mv_better(best, {of.x, __float_as_int(of.y)});
        }
        best = mv_best_of_warp(best);
        float *out = (float *)plan.seg[0].out + m * plan.seg[0].out_stride;
        if (lane == 0) {
            out[0] = best.value;
            out[1] = best.value != best.value ? -1.0f : (float)best.column;
        }
    }
    if (threadIdx.x == 0) *plan.counter = 0;
}

/* ---- the kernel -----------------------------------------------------------------------------------------
 */

/* Rows that share the reads of x, of which each needs M. Decoding blocks to floats takes the registers. */
template <class W, class X, int M> struct mv_rows {
    static const bool decodes = mv_quantised<W>::value && !mv_integers<X>::value;
    static const int value = M == 1 ? 1 : M == 4 || decodes ? 2 : 4;
};
template <int R> struct mv_slots { static const int value = MV_AHEAD / R + 1; };

/* One item: R rows' piece times M rows of x. */
template <class W, class X, int M, int R>
FB_DEVICE void mv_run_item(const mv_plan &plan, const mv_item &item, mv_ahead &ahead, int first, int items,
                           int &slot, uint8_t *shared, uint4 *ring, uint16_t *scales, float *partial,
                           int outputs) {
    const mv_segment &seg = plan.seg[item.s];
    const int slots = mv_slots<R>::value;
    int lane = (int)threadIdx.x % FB_WARP, lanes = seg.lanes, chunk = item.chunk;
    const uint8_t *x = shared + seg.x_at;
    const int steps = item.steps, chunks = seg.chunks;
    const int x_bytes = seg.x_bytes;
    const bool aligned = plan.aligned;
    float acc[R * M];
#pragma unroll
    for (int i = 0; i < R * M; i++) acc[i] = 0;
    for (int j = 0; j < steps; j++, chunk += lanes) {
        uint4 w[R];
        float scale[R];
        if (aligned) {
            /* Into the slot of the step before, which all lanes have read. */
            int free = slot == 0 ? slots - 1 : slot - 1;
            if (mv_quantised<W>::value) __syncwarp();
            mv_ask<W, R>(plan, ahead, first, items, ring + free * R * FB_WARP, scales + free * R * FB_WARP);
            fb_copy_wait<slots - 1>();
            if (mv_quantised<W>::value) __syncwarp(); /* scales were copied by other lanes */
#pragma unroll
            for (int r = 0; r < R; r++) {
                int at = (slot * R + r) * FB_WARP;
                w[r] = ring[at + lane];
                scale[r] = 1;
                if (mv_quantised<W>::value)
                    scale[r] = fb_widen(fb_half{scales[at + lane / (32 / mv_elements<W>::value)]});
            }
            slot = slot + 1 == slots ? 0 : slot + 1;
        } else {
#pragma unroll
            for (int r = 0; r < R; r++) {
                int row = min(item.row + r * item.step, seg.rows - 1), c = min(chunk, seg.chunks - 1);
                w[r] = mv_gather((const W *)(seg.w + row * seg.row_bytes), seg.cols, c);
                scale[r] = 1;
                if (mv_quantised<W>::value)
                    scale[r] = fb_widen(fb_half{seg.scales[mv_scale_at<W>(seg, row, c)]});
            }
        }
        if (chunk < chunks) mv_products<W, X, M, R>::add(w, scale, x, x_bytes, chunks, chunk, acc);
    }
#pragma unroll
    for (int i = 0; i < R * M; i++)
        for (int step = lanes >> 1; step; step >>= 1) acc[i] += __shfl_xor_sync(FB_ALL, acc[i], step);
    if ((lane & (lanes - 1)) == 0)
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int m = 0; m < M; m++) partial[(m * outputs + r * item.step) * plan.slots] = acc[r * M + m];
}

template <class W, class X, int M>
__global__ void __launch_bounds__(MV_THREADS, M == 1 ? 2 : 1)
    mv_kernel(const __grid_constant__ mv_plan plan) {
    const int R = mv_rows<W, X, M>::value, slots = mv_slots<R>::value;
    FB_SHARED(uint8_t, shared);
    __shared__ fb_row_stats stats[MV_MOST_ROWS];
    __shared__ int last;
    fb_let_next_start();
    int warp = (int)threadIdx.x / FB_WARP, warps = (int)blockDim.x / FB_WARP;
    int first = (int)((int64_t)blockIdx.x * plan.groups / gridDim.x);
    int end = (int)((int64_t)(blockIdx.x + 1) * plan.groups / gridDim.x);
    int items = (end - first) * plan.items;
    uint4 *ring = (uint4 *)(shared + plan.ring_at) + warp * slots * R * FB_WARP;
    uint16_t *scales = (uint16_t *)(shared + plan.scales_at) + warp * slots * R * FB_WARP;
    mv_ahead ahead = {};
    ahead.index = warp;
    if (plan.aligned)
#pragma unroll 1
        for (int i = 0; i < slots - 1; i++)
            mv_ask<W, R>(plan, ahead, first, items, ring + i * R * FB_WARP, scales + i * R * FB_WARP);

    for (int s = 0; s < plan.segments; s++) {
        const mv_segment &seg = plan.seg[s];
        mv_warm(seg.norm_w, seg.cols * (seg.norm_w_type == FB_F32 ? 4 : 2));
        mv_warm(seg.norm_b, seg.cols * (seg.norm_b_type == FB_F32 ? 4 : 2));
        mv_warm(seg.bias, seg.rows * (seg.bias_type == FB_F32 ? 4 : 2));
    }

    fb_wait_for_previous();
    float *room = (float *)(shared + plan.partial_at);
    mv_stage_all<W, X, M>(plan, shared, room, stats);
    __syncthreads();

    mv_best best = {-INFINITY, 0x7fffffff};
    int slot = 0, index = warp;
    for (int begin = first, batch = 0; begin < end; begin += plan.batch, batch++) {
        int count = min(plan.batch, end - begin), outputs = count * plan.unit;
        float *partial = (float *)(shared + plan.partial_at) + (batch & 1) * plan.partials;
        for (; index < (begin - first + count) * plan.items; index += warps) {
            int group = index / plan.items;
            mv_item item = mv_locate<R>(plan, first + group, index - group * plan.items);
            if (item.steps <= 0) continue;
            mv_run_item<W, X, M, R>(plan, item, ahead, first, items, slot, shared, ring, scales,
                                    partial + (first + group - begin) * plan.unit * plan.slots + item.place,
                                    outputs);
        }
        __syncthreads();
        if (plan.results)
            mv_look(plan, begin, count, partial, &best);
        else
            mv_finish<M>(plan, begin, count, partial);
    }
    if (plan.results) mv_best_of_all(plan, best, &last);
}

/* ---- launching ------------------------------------------------------------------------------------------
 */

/* Where the inputs lie in shared memory, and their bytes, after which partial sums follow. */
template <class W, class X> static int64_t mv_place_inputs(mv_plan *plan, int ms) {
    int64_t staged = 0;
    for (int s = 0; s < plan->segments; s++) {
        mv_segment *seg = &plan->seg[s];
        seg->x_bytes = mv_integers<X>::value ? seg->cols / 32 * 40
                                             : seg->chunks * mv_elements<W>::value * (int)sizeof(X);
        seg->x_bytes = (seg->x_bytes + 15) / 16 * 16;
        if (!seg->stages) {
            seg->x_at = plan->seg[seg->same].x_at;
            continue;
        }
        seg->x_at = (int)staged;
        staged += (int64_t)seg->x_bytes * ms;
    }
    plan->partial_at = (int)staged;
    return staged;
}

template <class W, class X, int M> static int mv_launch_rows(mv_plan *plan, const fb_cuda_context *cx) {
    const int R = mv_rows<W, X, M>::value;
    mv_plan_units(plan, R, M);
    int64_t staged = mv_place_inputs<W, X>(plan, M), bytes = 0;
    int64_t partial = ((int64_t)plan->partials * 8 + 15) / 16 * 16; /* two of them */
    if (partial < (int64_t)(FB_NORM_ROOM * sizeof(float))) partial = FB_NORM_ROOM * sizeof(float);
    int64_t fixed = staged + partial, room = cx->limits->shared_limit - 256;
    /* A warp's ring with its scales. Where x leaves no room for all warps' rings, fewer warps; for none, no
     * rings. */
    int64_t ring = (int64_t)mv_slots<R>::value * R * FB_WARP * (16 + (mv_quantised<W>::value ? 2 : 0));
    int warps = MV_THREADS / FB_WARP;
    while (plan->aligned && warps > (M == 1 ? 4 : 8) && fixed + warps * ring > room) warps /= 2;
    if (fixed > room || (plan->aligned && M > 1 && fixed + warps * ring > room)) return MV_TOO_LARGE;
    if (fixed + warps * ring > room) plan->aligned = false;
    if (!plan->aligned) ring = 0, warps = MV_THREADS / FB_WARP;
    plan->ring_at = (int)fixed;
    plan->scales_at = (int)(fixed + warps * (int64_t)mv_slots<R>::value * R * FB_WARP * 16);
    bytes = fixed + warps * ring;
    int grid = plan->groups < cx->limits->sms ? plan->groups : cx->limits->sms;
    if (plan->results && grid > MV_MOST_BLOCKS) grid = MV_MOST_BLOCKS;
    return FB_LAUNCH(cx, dim3((unsigned)grid), dim3((unsigned)(warps * FB_WARP)), (size_t)bytes,
                     (mv_kernel<W, X, M>), *plan);
}

#include "backend/cuda/matvec_one.cuh"

/* Rows first to first + M - 1 (or as many as there are) of a plan. Where x does not fit, fewer rows at a
 * time: the weights are then read more than once. */
template <class W, class X> static int mv_launch(const mv_plan *plan, const fb_cuda_context *cx) {
    int most = MV_MOST_ROWS;
    for (int row = 0; row < plan->ms;) {
        mv_plan part = *plan;
        int left = plan->ms - row;
        part.ms = left < most ? left : most;
        mv_plan_rows(&part, row);
        int code = part.ms > 4                    ? mv_launch_rows<W, X, 8>(&part, cx)
                   : part.ms > 1 || !part.aligned ? mv_launch_rows<W, X, 4>(&part, cx)
                                                  : mv1_launch<W, X>(&part, cx);
        if (code == MV_TOO_LARGE && part.ms > 1) {
            most = part.ms > 4 ? 4 : 1;
            continue;
        }
        if (code) return code == MV_TOO_LARGE ? 1 /* cudaErrorInvalidValue */ : code;
        row += part.ms;
    }
    return 0;
}

#endif
