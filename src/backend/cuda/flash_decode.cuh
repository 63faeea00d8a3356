/* What the kernels that cut the context into splits share: flash_decode.cu and persistent_attention.cuh. Both
 * add in the same order. */
#ifndef FB_BACKEND_CUDA_FLASH_DECODE_CUH
#define FB_BACKEND_CUDA_FLASH_DECODE_CUH

#include "backend/cuda/attention.cuh"

/* A split's length is a multiple of this. A context of one split needs no combining, which takes 3 us. */
#define SPLIT      128
#define MAX_SPLITS 64
#define SHORT_CACHE                                                                                          \
    4096 /* positions of a cache that decode reads once for each item, if a step has one row */

#define LOG2_E 1.4426950408889634f

/* The length of the splits of a row that looks into `count` slots. It depends on nothing else, so that a row
 * has the same sums in every step and every cache. */
FB_DEVICE int split_length(int count) {
    return (count + SPLIT * MAX_SPLITS - 1) / (SPLIT * MAX_SPLITS) * SPLIT;
}
/* No row that looks into up to `slots` slots has more splits. */
static inline int most_splits(int64_t slots) {
    return slots < SPLIT * MAX_SPLITS ? fb_ceil(slots, SPLIT) : MAX_SPLITS;
}

/* The width rounded up to whole chunks. */
static inline int64_t padded(int64_t width) { return (width + 7) / 8 * 8; }

struct partials {
    unsigned *counters; /* [kv_heads, rows, tiles] */
    float2 *totals;     /* [kv_heads, items, splits]: largest score, sum of exponentials */
    float *sums;        /* [kv_heads, items, splits, padded width] */
    int splits;         /* of an item, at most */
    int tiles;          /* of the items of a row and KV head: each is a block's */
    int tile_bytes;     /* shared memory for keys and values; the sums use the same memory afterwards */
};

FB_DEVICE void add(float4 *sum, float w, float4 x) {
    sum->x = fmaf(w, x.x, sum->x);
    sum->y = fmaf(w, x.y, sum->y);
    sum->z = fmaf(w, x.z, sum->z);
    sum->w = fmaf(w, x.w, sum->w);
}

#define EARLY 4 /* sums that a thread loads before the totals have arrived */

/* Combines the `active` splits of each of the items [item, item + live). `smem`: shared memory. SYNC: as for
 * fb_sync. put(i, x) stores x as element i of the output. An item's sums do not depend on the others. */
template <int THREADS, int M, int SYNC, class PUT>
FB_DEVICE void combine(const fb_attention &a, const partials &p, int kv_head, int item, int live, int active,
                       int wp, float *smem, PUT put) {
    int warp = threadIdx.x / FB_WARP, lane = threadIdx.x % FB_WARP, items = a.rows * a.group;
    int64_t base = (int64_t)(kv_head * items + item) * p.splits;
    float *weight = smem, *sums = smem + M * MAX_SPLITS; /* [M][MAX_SPLITS], [live][chains][wp] */
    int quads = wp / 4;
    int chains =
        THREADS / quads; /* threads that share the splits of four columns; each is one chain of sums */
    int each = quads * chains, all = live * each;
    /* The first sums are loaded at the same time as the totals. */
    float4 early[EARLY];
    int mine = M == 1 ? 0 : (int)threadIdx.x / each, place = (int)threadIdx.x - mine * each;
    const float4 *at = (const float4 *)(p.sums + (base + mine * p.splits) * wp) + place % quads;
#pragma unroll
    for (int n = 0; n < EARLY; n++) {
        int s = place / quads + n * chains;
        early[n] = (int)threadIdx.x < all && s < active ? __ldcg(at + s * quads) : make_float4(0, 0, 0, 0);
    }
    for (int m = warp; m < live; m += THREADS / FB_WARP) {
        float max_score[2], total[2];
        for (int i = 0; i < 2; i++) {
            int s = lane + i * FB_WARP;
            float2 t = s < active ? __ldcg(p.totals + base + m * p.splits + s) : make_float2(-INFINITY, 0);
            max_score[i] = t.x;
            total[i] = t.y;
        }
        float all = fb_warp_max(fmaxf(max_score[0], max_score[1]));
        max_score[0] = fb_exp2(max_score[0] - all);
        max_score[1] = fb_exp2(max_score[1] - all);
        float sum = 1.0f / fb_warp_sum(max_score[0] * total[0] + max_score[1] * total[1]);
        weight[m * MAX_SPLITS + lane] = max_score[0] * sum;
        weight[m * MAX_SPLITS + lane + FB_WARP] = max_score[1] * sum;
    }
    fb_sync<SYNC>();
    for (int i = threadIdx.x; i < all; i += THREADS) {
        int m = M == 1 ? 0 : i / each, quad = (i - m * each) % quads, s = (i - m * each) / quads;
        const float4 *from = (const float4 *)(p.sums + (base + m * p.splits) * wp) + quad;
        float4 sum = make_float4(0, 0, 0, 0);
        if (i == (int)threadIdx.x)
#pragma unroll
            for (int n = 0; n < EARLY; n++, s += chains)
                if (s < active) add(&sum, weight[m * MAX_SPLITS + s], early[n]);
#pragma unroll 4
        for (; s < active; s += chains) add(&sum, weight[m * MAX_SPLITS + s], __ldcg(from + s * quads));
        ((float4 *)sums)[i] = sum;
    }
    fb_sync<SYNC>();
    for (int i = threadIdx.x; i < live * wp; i += THREADS) {
        int m = M == 1 ? 0 : i / wp, col = i - m * wp;
        const float *of = sums + m * chains * wp + col;
        float sum = of[0];
        for (int chain = 1; chain < chains; chain++) sum += of[chain * wp];
        if (col < a.width) put(fb_item_out(a, kv_head, item + m) + col, sum);
    }
}

#endif
