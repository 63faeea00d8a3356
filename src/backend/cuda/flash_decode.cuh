/* What the kernels that cut the context into splits share: flash_decode.cu, and the attention of a step that
 * is one kernel (step_attention.cuh). Both add in the same order. */
#ifndef FB_BACKEND_CUDA_FLASH_DECODE_CUH
#define FB_BACKEND_CUDA_FLASH_DECODE_CUH

#include "backend/cuda/attention.cuh"

#define SPLIT                                                                                                \
    128 /* a split is a multiple of this: the first one needs no putting together, which takes 3 us */
#define MOST_SPLITS 64
#define SHORT       4096 /* positions of a cache */

#define LOG2_E 1.4426950408889634f

static inline int split_length(int64_t capacity) { return fb_ceil(capacity, SPLIT * MOST_SPLITS) * SPLIT; }
static inline int split_count(int64_t capacity) { return fb_ceil(capacity, split_length(capacity)); }

/* A row of a width, in whole chunks. */
static inline int64_t padded(int64_t width) { return (width + 7) / 8 * 8; }

struct partials {
    unsigned *counters; /* [kv_heads, tiles of items] */
    float2 *totals;     /* [kv_heads, items, splits]: the largest score, and the sum of exponentials */
    float *sums;        /* [kv_heads, items, splits, padded width] */
    int length, splits;
    int tiles; /* bytes of shared memory that keys and values get, and sums after them */
};

FB_DEVICE void add(float4 *sum, float w, float4 x) {
    sum->x = fmaf(w, x.x, sum->x);
    sum->y = fmaf(w, x.y, sum->y);
    sum->z = fmaf(w, x.z, sum->z);
    sum->w = fmaf(w, x.w, sum->w);
}

#define EARLY 4

/* All splits of the items, of which each has `active`. `room`: shared memory. SYNC: as for fb_sync.
 * put(i, x): x is element i of the output. */
template <int THREADS, int M, int SYNC, class PUT>
FB_DEVICE void combine(const fb_attention &a, const partials &p, int kv_head, int item, int live, int active,
                       int wp, float *room, PUT put) {
    int warp = threadIdx.x / FB_WARP, lane = threadIdx.x % FB_WARP, items = a.rows * a.group;
    int64_t base = (int64_t)(kv_head * items + item) * p.splits;
    float *weight = room, *sums = room + M * MOST_SPLITS; /* [M][MOST_SPLITS], [turns][live * wp] */
    int quads = wp / 4, all = live * quads;
    int turns = THREADS / all; /* threads that share the splits of four columns */
    if (turns < 1) turns = 1;
    /* The first sums are asked for together with the totals. */
    float4 early[EARLY];
    const float4 *mine =
        (const float4 *)(p.sums + (base + threadIdx.x % all / quads * p.splits) * wp) + threadIdx.x % quads;
#pragma unroll
    for (int n = 0; n < EARLY; n++) {
        int s = threadIdx.x / all + n * turns;
        early[n] =
            (int)threadIdx.x < all * turns && s < active ? __ldcg(mine + s * quads) : make_float4(0, 0, 0, 0);
    }
    for (int m = warp; m < live; m += THREADS / FB_WARP) {
        float most[2], total[2];
        for (int i = 0; i < 2; i++) {
            int s = lane + i * FB_WARP;
            float2 t = s < active ? __ldcg(p.totals + base + m * p.splits + s) : make_float2(-INFINITY, 0);
            most[i] = t.x;
            total[i] = t.y;
        }
        float all = fb_warp_max(fmaxf(most[0], most[1]));
        most[0] = fb_exp2(most[0] - all);
        most[1] = fb_exp2(most[1] - all);
        float sum = 1.0f / fb_warp_sum(most[0] * total[0] + most[1] * total[1]);
        weight[m * MOST_SPLITS + lane] = most[0] * sum;
        weight[m * MOST_SPLITS + lane + FB_WARP] = most[1] * sum;
    }
    fb_sync<SYNC>();
    for (int i = threadIdx.x; i < all * turns; i += THREADS) {
        int turn = i / all, m = i % all / quads, quad = i % quads;
        const float4 *from = (const float4 *)(p.sums + (base + m * p.splits) * wp) + quad;
        float4 sum = make_float4(0, 0, 0, 0);
        int s = turn;
        if (i == (int)threadIdx.x)
#pragma unroll
            for (int n = 0; n < EARLY; n++, s += turns)
                if (s < active) add(&sum, weight[m * MOST_SPLITS + s], early[n]);
#pragma unroll 4
        for (; s < active; s += turns) add(&sum, weight[m * MOST_SPLITS + s], __ldcg(from + s * quads));
        ((float4 *)sums)[turn * all + i % all] = sum;
    }
    fb_sync<SYNC>();
    for (int i = threadIdx.x; i < live * wp; i += THREADS) {
        float sum = sums[i];
        for (int turn = 1; turn < turns; turn++) sum += sums[turn * live * wp + i];
        if (i % wp < a.width) put(fb_item_out(a, kv_head, item + i / wp) + i % wp, sum);
    }
}

#endif
