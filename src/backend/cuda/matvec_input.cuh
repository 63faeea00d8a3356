/* The inputs of a matvec: copied to shared memory, normalised and quantised where the call says so, to the
 * bits that the plain ops would have given. Every block does it for itself. Nothing is multiplied meanwhile,
 * so instructions count here, those that all warps execute most. */
#ifndef FB_BACKEND_CUDA_MATVEC_INPUT_CUH
#define FB_BACKEND_CUDA_MATVEC_INPUT_CUH

#include "backend/cuda/matvec_pipeline.cuh"
#include "backend/cuda/norm.cuh"
#include "backend/cuda/quantize.cuh"

/* ---- from global memory ---- */

/* The first MV_COPY_THREADS threads copy the rows that are staged unchanged, and those that are read several
 * times. (Not with bulk copies: they would arrive after all the weights requested before.) */
FB_DEVICE void mv_copy_rows(const mv_plan &plan, uint8_t *shared) {
    int size = plan.x_type == FB_F32 ? 4 : 2;
#pragma unroll 1
    for (int s = 0; s < plan.segments; s++) {
        const mv_segment &seg = plan.seg[s];
        int bytes = seg.cols * size, rows = seg.copies ? plan.ms : seg.raw_at >= 0 && !seg.same_raw;
#pragma unroll 1
        for (int m = 0; m < rows; m++) {
            uint8_t *to = shared + (seg.copies ? seg.x_at + m * seg.x_bytes : seg.raw_at);
            const uint8_t *from = (const uint8_t *)seg.x + m * seg.x_stride * size;
            for (int at = (int)threadIdx.x * 16; at < bytes; at += MV_COPY_THREADS * 16)
                fb_copy_16(to + at, from + at);
        }
    }
    fb_copy_commit();
}
FB_DEVICE void mv_rows_copied() {
    fb_copy_wait<0>();
    mv_sync();
}

/* Eight elements of a norm's weight and bias, unconverted. For one row of x, a thread loads those of its
 * first chunk before it waits for the previous kernel. */
struct mv_norm_8 {
    uint4 w[2], b[2];
};
FB_DEVICE void mv_load_raw_8(const void *from, fb_dtype type, int i, uint4 *to) {
    const uint4 *at = (const uint4 *)((const uint8_t *)from + i * (type == FB_F32 ? 4 : 2));
    to[0] = __ldg(at);
    if (type == FB_F32) to[1] = __ldg(at + 1);
}
FB_DEVICE void mv_load_norm(const mv_segment &seg, int i, mv_norm_8 *to) {
    mv_load_raw_8(seg.norm_w, seg.norm_w_type, i, to->w);
    if (seg.norm_b) mv_load_raw_8(seg.norm_b, seg.norm_b_type, i, to->b);
}
FB_DEVICE void mv_widen_8(const uint4 *from, fb_dtype type, float *to) {
    if (type == FB_F32) {
#pragma unroll
        for (int k = 0; k < 8; k++) to[k] = __uint_as_float(mv_word(from[k / 4], k % 4));
    } else if (type == FB_F16) {
#pragma unroll
        for (int k = 0; k < 4; k++) mv_unpack(fb_half(), mv_word(from[0], k), to + 2 * k);
    } else {
#pragma unroll
        for (int k = 0; k < 4; k++) mv_unpack(fb_bfloat(), mv_word(from[0], k), to + 2 * k);
    }
}

/* ---- as floats ---- */

/* Elements i to i + 7 of the row x of a segment's input, as the linear multiplies them; zeros beyond the row.
 * WHOLE: all eight exist, at a multiple of 16 bytes, and `norm` has the norm's. Such a kernel has no code for
 * other cases, which matters: the more code lies in between, the longer it waits for instructions. */
template <bool WHOLE, class T>
FB_DEVICE void mv_input_8(const mv_segment &seg, const T *x, int i, fb_row_stats stats, const mv_norm_8 &norm,
                          float *to) {
    int count = FB_CHUNK;
    if (WHOLE)
        fb_load_8(x + i, to);
    else
        count = fb_norm_chunk(x, seg.cols, i / 8, fb_aligned(x, 16), to);
    if (seg.norm == FB_OP_COUNT) return;
    float w[8], b[8], none = seg.norm == FB_OP_LAYERNORM ? 0 : -0.0f;
#pragma unroll
    for (int k = 0; k < 8; k++) b[k] = none;
    if (WHOLE) {
        mv_widen_8(norm.w, seg.norm_w_type, w);
        if (seg.norm_b) mv_widen_8(norm.b, seg.norm_b_type, b);
    } else {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            w[k] = k < count ? fb_norm_weight(seg.norm_w, seg.norm_w_type, i + k) : 0;
            if (seg.norm_b) b[k] = k < count ? fb_norm_weight(seg.norm_b, seg.norm_b_type, i + k) : 0;
        }
    }
#pragma unroll
    for (int k = 0; k < 8; k++) {
        float y = fmaf((to[k] - stats.mean) * stats.scale, w[k], b[k]); /* fb_norm_apply */
        to[k] = k < count ? fb_rounded<T>(y) : 0;
    }
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

/* Stages a segment's row of T in shared memory as X. `norm`: weights for the thread's first chunk. */
template <bool WHOLE, class T, class W, class X> struct mv_staging {
    static FB_DEVICE void row(const mv_segment &seg, const T *x, uint8_t *to, fb_row_stats stats,
                              mv_norm_8 norm) {
        int eights = (seg.chunks * mv_elements<W>::value + 7) / 8;
#pragma unroll 1
        for (int e = (int)threadIdx.x; e < eights; e += MV_THREADS) {
            float v[8];
            if (WHOLE && seg.norm != FB_OP_COUNT && e >= MV_THREADS) mv_load_norm(seg, 8 * e, &norm);
            mv_input_8<WHOLE>(seg, x, 8 * e, stats, norm, v);
            mv_stage_8((X *)to, seg.chunks, mv_elements<W>::value / 4, 8 * e, v);
        }
    }
};

/* ---- as blocks of integers ---- */

/* The sum of a block as it is staged. Records have parts of 16 columns, too: half of the sum in 16 bits each.
 */
template <class W> FB_DEVICE uint32_t mv_staged_sum(int sum, int first_half) {
    return mv_records<W>::value ? (uint32_t)(first_half & 0xffff) | (uint32_t)(sum - first_half) << 16
                                : (uint32_t)sum;
}

/* Stores words 2 part and 2 part + 1 of the 8 of block b; and the block's scale and sum. */
template <class W> FB_DEVICE void mv_stage_words(uint8_t *row, int blocks, int b, int part, uint2 words) {
    int at = mv_elements<W>::value == 32 ? part / 2 * blocks + b : 2 * b + part / 2; /* in 16 bytes */
    ((uint2 *)row)[2 * at + part % 2] = words;
}
FB_DEVICE void mv_stage_scale_sum(uint8_t *row, int blocks, int b, uint32_t scale, uint32_t sum) {
    ((uint2 *)(row + (int64_t)blocks * 32))[b] = make_uint2(scale, sum);
}

template <bool WHOLE, class T, class W> struct mv_staging<WHOLE, T, W, mv_blocks> {
    static FB_DEVICE void row(const mv_segment &seg, const T *x, uint8_t *to, fb_row_stats stats,
                              mv_norm_8 norm) {
        int blocks = seg.cols / 32, lane = (int)threadIdx.x % FB_WARP;
#pragma unroll 1
        for (int e = (int)threadIdx.x; e - lane < seg.cols / 8; e += MV_THREADS) { /* whole warps */
            int part = e % FB_Q8_THREADS, b = e / FB_Q8_THREADS;
            bool real = b < blocks;
            float v[8];
            if (WHOLE && real && seg.norm != FB_OP_COUNT && e >= MV_THREADS) mv_load_norm(seg, 8 * e, &norm);
            mv_input_8<WHOLE>(seg, x, real ? 8 * e : 0, stats, norm, v);
            fb_eight eight = fb_quantize_eight(v);
            if (!real) continue;
            mv_stage_words<W>(to, blocks, b, part, eight.words);
            if (part == 0)
                mv_stage_scale_sum(to, blocks, b, __float_as_uint(eight.scale),
                                   mv_staged_sum<W>(eight.sum, eight.half_sum));
        }
    }
};

/* Stages blocks that are quantised already: scale, sum, and eight words. */
template <class W> FB_DEVICE void mv_stage_given(const mv_segment &seg, int ms, uint8_t *to) {
    int blocks = seg.cols / 32;
    for (int m = 0; m < ms; m++)
        for (int i = (int)threadIdx.x; i < blocks * 5; i += MV_THREADS) {
            int b = i / 5, part = i - 5 * b;
            const uint32_t *from = (const uint32_t *)seg.x + m * seg.x_stride + 2 * i; /* 4-byte aligned */
            uint2 x = make_uint2(from[0], from[1]);
            uint8_t *row = to + m * seg.x_bytes;
            int half = 0;
            for (int word = 2; mv_records<W>::value && part == 0 && word < 6; word++)
                half = __dp4a((int)from[word], 0x01010101, half);
            if (part)
                mv_stage_words<W>(row, blocks, b, part - 1, x);
            else
                mv_stage_scale_sum(row, blocks, b, x.x, mv_staged_sum<W>((int)x.y, half));
        }
}

/* ---- all inputs ---- */

/* Loads the norm's weights for the thread's first chunk of a segment. */
FB_DEVICE void mv_load_first_norm(const mv_segment &seg, mv_norm_8 *norm) {
    if (seg.stages_x && seg.norm != FB_OP_COUNT && (int)threadIdx.x * 8 < seg.cols)
        mv_load_norm(seg, (int)threadIdx.x * 8, norm);
}
FB_DEVICE void mv_load_first_norms(const mv_plan &plan, mv_norm_8 *norms) {
#pragma unroll
    for (int s = 0; s < 2; s++)
        if (s < plan.segments) mv_load_first_norm(plan.seg[s], norms + s);
}

template <bool WHOLE, class T, class W, class X, int M>
FB_DEVICE void mv_stage_segment(const mv_plan &plan, const mv_segment &seg, bool first, uint8_t *shared,
                                float *smem, fb_row_stats *stats, const mv_norm_8 &norm) {
    if (!seg.stages_x || seg.copies) return;
    const T *x = seg.raw_at >= 0 ? (const T *)(shared + seg.raw_at) : (const T *)seg.x;
    bool has_stats = seg.norm != FB_OP_COUNT && !seg.same_stats;
    if (has_stats && !first) mv_sync(); /* all threads have used the stats of the segment before */
    if (M == 1) {
        if (has_stats) *stats = fb_norm_stats<WHOLE, MV_THREADS>(seg.norm, x, seg.cols, seg.eps, smem);
        mv_staging<WHOLE, T, W, X>::row(seg, x, shared + seg.x_at, *stats, norm);
        return;
    }
    if (has_stats) {
        for (int m = (int)threadIdx.x / FB_WARP; m < plan.ms; m += MV_WARPS) {
            fb_row_stats of = fb_norm_stats_warp<WHOLE>(seg.norm, x + m * seg.x_stride, seg.cols, seg.eps);
            if (threadIdx.x % FB_WARP == 0) stats[m] = of;
        }
        mv_sync();
    }
#pragma unroll 1
    for (int m = 0; m < plan.ms; m++)
        mv_staging<WHOLE, T, W, X>::row(seg, x + m * seg.x_stride, shared + seg.x_at + m * seg.x_bytes,
                                        stats[m], norm);
}

/* Stages the inputs of all segments; those that read the same share one copy. `smem`: FB_NORM_SMEM floats;
 * `stats`: of MV_MAX_ROWS rows, also in shared memory; `norms`: of the first two segments. An mv_sync must
 * follow. For one row the loop over segments is unrolled: to read a field of segment s, with s in a register,
 * takes a hundred cycles. */
template <bool WHOLE, class T, class W, class X, int M>
FB_DEVICE void mv_stage_inputs(const mv_plan &plan, uint8_t *shared, float *smem, fb_row_stats *stats,
                               mv_norm_8 *norms) {
    fb_row_stats of = {0, 0};
    if (M == 1) {
#pragma unroll
        for (int s = 0; s < FB_MAX_SEGMENTS; s++) {
            if (s >= plan.segments) break;
            if (WHOLE && s >= 2) mv_load_first_norm(plan.seg[s], norms + 1);
            mv_stage_segment<WHOLE, T, W, X, M>(plan, plan.seg[s], s == 0, shared, smem, &of,
                                                norms[s < 2 ? s : 1]);
        }
    } else {
#pragma unroll 1
        for (int s = 0; s < plan.segments; s++) {
            if (WHOLE) mv_load_first_norm(plan.seg[s], norms);
            mv_stage_segment<WHOLE, T, W, X, M>(plan, plan.seg[s], s == 0, shared, smem, stats, *norms);
        }
    }
}

template <bool WHOLE, class W, class X, int M>
FB_DEVICE void mv_stage_all(const mv_plan &plan, uint8_t *shared, float *smem, fb_row_stats *stats,
                            mv_norm_8 *norms) {
    if constexpr (mv_integers<X>::value) {
        if (plan.dot == FB_DOT_GIVEN) {
            for (int s = 0; s < plan.segments; s++)
                if (plan.seg[s].stages_x) mv_stage_given<W>(plan.seg[s], plan.ms, shared + plan.seg[s].x_at);
            return;
        }
    }
    if constexpr (sizeof(X) == 2)
        mv_stage_inputs<WHOLE, X, W, X, M>(plan, shared, smem, stats, norms);
    else
        FB_FOR_TYPE(plan.x_type, T, (mv_stage_inputs<WHOLE, T, W, X, M>(plan, shared, smem, stats, norms)));
}

#endif
