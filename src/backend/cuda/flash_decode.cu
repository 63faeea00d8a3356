/* attn_flash for generated tokens. The context of each row is cut into splits. Their length depends only on
 * the row's position, sinks and window. A block has one split of one KV head and up to M items of one row,
 * which share its keys and values. An item's sums depend on neither M nor the other rows. The keys and values
 * of a tile are requested at once (40 KB for 128 positions of Pythia's 80 float16; several blocks fit on a
 * multiprocessor): that keeps the memory busy. The last block of its items to finish combines the splits, in
 * their order. Slots of a ring are counted from the row's origin (attention.cuh). Only those that the row
 * sees are read. */
#include "backend/cuda/flash_decode.cuh"
#include "backend/cuda/persistent_list.h"

/* Threads of a block, and keys of a tile. The width and the type decide, because an item's sums depend on
 * both. A generated token alone is limited by latency, not bandwidth: WHOLE blocks request a whole split at
 * once, which saved 2 us of 6 at Pythia's shape. In float32 tiles are half as long. Wide heads have no WHOLE
 * blocks, to stay within 99 KB of shared memory at a width of 256. Five WHOLE blocks of one item fit on a
 * multiprocessor by their registers, two of several items. */
#define MAX_WHOLE_WIDTH 128 /* columns */
#define WHOLE_BLOCKS    5
#define SHARING_BLOCKS  2
template <class K, bool WHOLE> struct tile {
    static const int threads = WHOLE ? 256 : 128, n = threads / 2 / (sizeof(K) == 4 ? 2 : 1);
};

/* Rows of one launch: as many as there are counters for, and as fit into SCRATCH_BYTES, but at least
 * FB_DECODE_ROWS. */
#define SCRATCH_BYTES (32ll << 20)
static int64_t row_bytes(int64_t heads, int64_t width, int64_t capacity) {
    return heads * most_splits(capacity) * (padded(width) + 2) * (int64_t)sizeof(float);
}
static int64_t rows_at_once(int64_t heads, int64_t width, int64_t rows, int64_t capacity) {
    int64_t counted = FB_CUDA_COUNTERS / (int64_t)sizeof(unsigned) / heads;
    int64_t most = SCRATCH_BYTES / row_bytes(heads, width, capacity);
    if (most < FB_DECODE_ROWS) most = FB_DECODE_ROWS;
    if (most > counted) most = counted;
    return rows < most ? rows : most;
}

int64_t fb_cuda_decode_scratch(int64_t kv_heads, int64_t group, int64_t width, int64_t rows,
                               int64_t capacity) {
    int64_t heads = kv_heads * group;
    return rows_at_once(heads, width, rows, capacity) * row_bytes(heads, width, capacity);
}

/* Copies rows [first, n) of a tile of keys or values to shared memory, `stride` bytes apart. slot: the
 * tile's first. */
#define LOOKUPS 4 /* blocks that a thread looks up before it copies from them */
template <int THREADS, class K>
FB_DEVICE void stage(uint8_t *to, const fb_attention &a, const fb_slot_rows<K> &from, int slot, int first,
                     int n, int chunks, int stride) {
    constexpr int E = 16 / sizeof(K);
    int row = first + threadIdx.x / chunks, c = threadIdx.x % chunks, rows = THREADS / chunks,
        more = THREADS % chunks;
    const K *whole = from.whole + (int64_t)slot * a.width;
    auto next = [&] {
        row += rows;
        c += more;
        if (c >= chunks) {
            c -= chunks;
            row++;
        }
    };
    auto copy = [&](const K *x) {
        K *at = (K *)(void *)(to + row * stride + c * 16);
        if (a.wide) {
            fb_copy_16(at, x + c * E);
        } else {
            for (int e = 0; e < E; e++) at[e] = c * E + e < a.width ? x[c * E + e] : fb_narrow<K>(0);
        }
    };
    if (from.whole) {
        for (; row < n; next()) copy(whole + (int64_t)row * a.width);
        return;
    }
    while (row < n) {
        const K *x[LOOKUPS];
        int row_before = row, c_before = c;
#pragma unroll
        for (int i = 0; i < LOOKUPS; i++, next())
            if (row < n) x[i] = fb_slot_in_block(a, from, slot + row);
        row = row_before;
        c = c_before;
#pragma unroll
        for (int i = 0; i < LOOKUPS; i++, next())
            if (row < n) copy(x[i]);
    }
}

/* Up to this slot a row's sequence holds what earlier steps have left. One row after another may be of the
 * same sequence. Of more than a warp's rows, it is not found out: 0. */
FB_DEVICE int slots_of_earlier_steps(const fb_attention &a, int sequence, int position) {
    if (a.step_rows == 1) return position;
    if (a.step_rows > FB_WARP) return 0;
    int lane = threadIdx.x % FB_WARP, first = position;
    if (lane < a.step_rows && a.step[lane].sequence == sequence) first = (int)a.step[lane].position;
#pragma unroll
    for (int offset = FB_WARP / 2; offset; offset >>= 1)
        first = min(first, __shfl_xor_sync(FB_ALL, first, offset));
    return first;
}

/* Loads queries [M][wp], times scale * log2(e); zeros for items and columns that do not exist. */
template <int THREADS, int M>
FB_DEVICE void load_queries(const fb_attention &a, int kv_head, int item, int live, bool sink, int wp,
                            float *q) {
    for (int i = threadIdx.x; i < M * wp; i += THREADS) {
        int m = i / wp, col = i % wp;
        q[i] = m < live && col < a.width
                   ? fb_load_as(a.q_type, fb_queries(a, sink), fb_item_q(a, kv_head, item + m, sink) + col) *
                         (a.scale * LOG2_E)
                   : 0;
    }
}

template <class K, int M, bool RING, bool WHOLE>
__global__ void __launch_bounds__((tile<K, WHOLE>::threads), !WHOLE   ? 0
                                                             : M == 1 ? WHOLE_BLOCKS
                                                                      : SHARING_BLOCKS)
    decode_kernel(fb_attention a, partials p) {
    constexpr int THREADS = tile<K, WHOLE>::threads, E = 16 / sizeof(K), N = tile<K, WHOLE>::n,
                  KEY_THREADS = THREADS / N;
    fb_let_next_start();
    if (RING) fb_wait_for_previous();
    int items = a.rows * a.group, split = blockIdx.y, kv_head = blockIdx.x;
    int row = p.tiles == 1 ? (int)blockIdx.z : (int)blockIdx.z / p.tiles;
    int head = ((int)blockIdx.z - row * p.tiles) * M; /* the first item's, of the KV head's */
    int item = row * a.group + head, live = min(M, a.group - head);
    int sequence = a.slots.rows[row].sequence;
    const int64_t origin = RING ? fb_row_origin(a.slots, row) : 0;
    int position = (int)(a.slots.rows[row].position - origin);
    int count = RING ? fb_count(a.slots, position) : position + 1, length = split_length(count);
    int begin = split * length, end = min(begin + length, count);
    if (begin >= count) {
        if (!RING) fb_wait_for_previous();
        return;
    }
    /* Of the ring, the row sees the slots from `oldest` on, which may be none of the split. */
    const int turn = RING ? fb_turn(a.slots, origin) : 0;
    const int oldest = RING ? fb_seen_in_ring(a.slots, position).begin : 0;
    if (RING && begin >= a.second) begin = max(begin, oldest);
    /* Tiles of a ring end at multiples of N: their slots lie one behind another. None has both sinks and
     * slots of the ring. */
    auto tile_size = [&](int first) {
        if (!RING) return min(N, end - first);
        return min((first & -N) + N, first < a.second ? min(a.second, end) : end) - first;
    };
    auto tile_after = [&](int first) {
        if (!RING) return first + N;
        int next = first + tile_size(first);
        return next >= a.second ? max(next, oldest) : next;
    };
    auto place = [&](int slot) { return RING ? fb_physical(a.slots, turn, slot) : slot; };

    FB_SHARED(uint8_t, smem);
    int chunks = (a.width + E - 1) / E, wp = chunks * E;
    int stride = (chunks | 1) * 16; /* odd in chunks: the same chunk of eight keys lies in different banks */
    uint8_t *keys = smem, *values = keys + N * stride;
    float *q = (float *)(void *)(smem + p.tile_bytes), *sink_q = q + (RING && a.second ? M * wp : 0);
    float *scores = sink_q + M * wp; /* q, sink_q: [M][wp]; scores: [M][N] */
    float *max_score = scores + M * N, *total = max_score + M, *factor = total + M; /* [M] each */
    fb_slot_rows<K> k = fb_slot_rows_of<K>(a, sequence, kv_head, a.k_at);
    fb_slot_rows<K> v = fb_slot_rows_of<K>(a, sequence, kv_head, a.v_at);

    int staged = tile_size(begin), old = 0;
    if (!RING) { /* what earlier steps left in the cache can be read before this step's kernels have ended */
        old = max(min(staged, slots_of_earlier_steps(a, sequence, position) - begin), 0);
        stage<THREADS>(keys, a, k, begin, 0, old, chunks, stride);
        stage<THREADS>(values, a, v, begin, 0, old, chunks, stride);
        fb_wait_for_previous();
    }
    stage<THREADS>(keys, a, k, place(begin), old, staged, chunks, stride);
    fb_copy_commit();
    stage<THREADS>(values, a, v, place(begin), old, staged, chunks, stride);
    fb_copy_commit();
    load_queries<THREADS, M>(a, kv_head, item, live, false, wp, q);
    if (RING && begin < a.second) load_queries<THREADS, M>(a, kv_head, item, live, true, wp, sink_q);
    if (threadIdx.x < M) {
        max_score[threadIdx.x] = -INFINITY;
        total[threadIdx.x] = 0;
    }

    int warp = threadIdx.x / FB_WARP, lane = threadIdx.x % FB_WARP;
    int key = threadIdx.x / KEY_THREADS, part = threadIdx.x % KEY_THREADS;
    int chunk = threadIdx.x % chunks, chain = threadIdx.x / chunks, chains = THREADS / chunks;
    float acc[M][E];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int e = 0; e < E; e++) acc[m][e] = 0;

    for (int first = begin, next; first < end; first = next) {
        const int n = tile_size(first);
        next = tile_after(first);
        fb_copy_wait<1>();
        __syncthreads();
        float sum[M];
#pragma unroll
        for (int m = 0; m < M; m++) sum[m] = 0;
        if (key < n) {
            const float *query = RING && first + key < a.second ? sink_q : q;
#pragma unroll 2
            for (int c = part; c < chunks; c += KEY_THREADS) {
                float x[E];
                fb_unpack((const K *)0, *(const uint4 *)(const void *)(keys + key * stride + c * 16), x);
#pragma unroll
                for (int m = 0; m < M; m++) {
                    const float4 *at = (const float4 *)(const void *)(query + m * wp + c * E);
#pragma unroll
                    for (int e = 0; e < E / 4; e++) {
                        float4 y = at[e];
                        sum[m] = fmaf(y.x, x[4 * e], sum[m]);
                        sum[m] = fmaf(y.y, x[4 * e + 1], sum[m]);
                        sum[m] = fmaf(y.z, x[4 * e + 2], sum[m]);
                        sum[m] = fmaf(y.w, x[4 * e + 3], sum[m]);
                    }
                }
            }
        }
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int offset = KEY_THREADS / 2; offset; offset >>= 1)
                sum[m] += __shfl_xor_sync(FB_ALL, sum[m], offset);
            if (part == 0) scores[m * N + key] = key < n ? sum[m] : -INFINITY;
        }
        __syncthreads();
        if (next < end) stage<THREADS>(keys, a, k, place(next), 0, tile_size(next), chunks, stride);
        fb_copy_commit();
        for (int m = warp; m < M; m += THREADS / FB_WARP) {
            float s[N / FB_WARP], here = -INFINITY, sums = 0;
#pragma unroll
            for (int i = 0; i < N / FB_WARP; i++) {
                s[i] = scores[m * N + lane + i * FB_WARP];
                here = fmaxf(here, s[i]);
            }
            float before = max_score[m], now = fmaxf(before, fb_warp_max(here));
            float base = now == -INFINITY ? 0 : now; /* no score is finite */
#pragma unroll
            for (int i = 0; i < N / FB_WARP; i++) {
                s[i] = fb_exp2(s[i] - base);
                sums += s[i];
                scores[m * N + lane + i * FB_WARP] = s[i];
            }
            sums = fb_warp_sum(sums);
            __syncwarp();
            if (lane == 0) {
                factor[m] = fb_exp2(before - base);
                total[m] = fmaf(total[m], factor[m], sums);
                max_score[m] = now;
            }
        }
        fb_copy_wait<1>();
        __syncthreads();
        if (chain < chains) {
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int e = 0; e < E; e++) acc[m][e] *= factor[m];
#pragma unroll 2
            for (int j = chain; j < n; j += chains) {
                float x[E];
                fb_unpack((const K *)0, *(const uint4 *)(const void *)(values + j * stride + chunk * 16), x);
#pragma unroll
                for (int m = 0; m < M; m++)
#pragma unroll
                    for (int e = 0; e < E; e++) acc[m][e] = fmaf(scores[m * N + j], x[e], acc[m][e]);
            }
        }
        __syncthreads();
        if (next < end) stage<THREADS>(values, a, v, place(next), 0, tile_size(next), chunks, stride);
        fb_copy_commit();
    }

    /* The keys and values have been read: the sums, [chains][M][wp], take their shared memory. */
    float *sums = (float *)(void *)smem;
    if (chain < chains)
        for (int m = 0; m < M; m++)
            for (int e = 0; e < E; e++) sums[(chain * M + m) * wp + chunk * E + e] = acc[m][e];
    __syncthreads();
    int active = (count - 1) / length + 1;
    int64_t base = (int64_t)(kv_head * items + item) * p.splits + split;
    for (int i = threadIdx.x; i < live * wp; i += THREADS) {
        int m = i / wp, col = i % wp;
        float sum = sums[m * wp + col];
#pragma unroll 4
        for (int n = 1; n < chains; n++) sum += sums[(n * M + m) * wp + col];
        if (active > 1)
            p.sums[(base + m * p.splits) * wp + col] = sum;
        else if (col < a.width)
            fb_store_as(a.out_type, a.out, fb_item_out(a, kv_head, item + m) + col, sum / total[m]);
    }
    if (active == 1) return;
    if ((int)threadIdx.x < live)
        p.totals[base + threadIdx.x * p.splits] = make_float2(max_score[threadIdx.x], total[threadIdx.x]);
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned *counter = p.counters + kv_head * gridDim.z + blockIdx.z;
        last = atomicAdd(counter, 1u) == (unsigned)active - 1;
        if (last) *counter = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    combine<THREADS, M, 0>(a, p, kv_head, item, live, active, wp, sums,
                           [&](int64_t i, float x) { fb_store_as(a.out_type, a.out, i, x); });
}

/* Where a launch stores the splits' results in scratch. wp: the padded width. */
static partials partials_of(const fb_attention *a, int wp, const fb_cuda_context *cx) {
    partials p;
    p.counters = (unsigned *)(void *)cx->scratch;
    p.splits = most_splits(a->capacity);
    /* Sums first, aligned: they are read 16 bytes at a time. */
    p.sums = (float *)(void *)(cx->scratch + FB_CUDA_COUNTERS);
    p.totals = (float2 *)(void *)(p.sums + (int64_t)a->kv_heads * a->rows * a->group * p.splits * wp);
    p.tiles = a->group;
    p.tile_bytes = 0;
    return p;
}

template <class K, int M, bool RING, bool WHOLE>
static int launch_as(const fb_attention *a, const fb_cuda_context *cx) {
    constexpr int THREADS = tile<K, WHOLE>::threads, E = 16 / sizeof(K), N = tile<K, WHOLE>::n;
    int chunks = fb_ceil(a->width, E), wp = chunks * E;
    partials p = partials_of(a, wp, cx);
    int sums = THREADS / chunks * M * wp * 4, combine_bytes = M * (MAX_SPLITS + THREADS * 4) * 4;
    p.tiles = fb_ceil(a->group, M);
    p.tile_bytes = N * (chunks | 1) * 16 * 2;
    if (p.tile_bytes < sums) p.tile_bytes = sums;
    if (p.tile_bytes < combine_bytes) p.tile_bytes = combine_bytes;
    int queries = a->second ? 2 : 1, shared = p.tile_bytes + (M * (queries * wp + N) + 3 * M) * 4;
    /* Heads vary fastest: splits beyond the position, which a recorded graph has, then start last. */
    dim3 grid((unsigned)a->kv_heads, (unsigned)most_splits(fb_attention_reach(a, cx)),
              (unsigned)(a->rows * p.tiles));
    return FB_LAUNCH(cx, grid, THREADS, (size_t)shared, (decode_kernel<K, M, RING, WHOLE>), *a, p);
}

template <class K, int M, bool RING>
static int launch_ring(const fb_attention *a, const fb_cuda_context *cx) {
    return a->width <= MAX_WHOLE_WIDTH ? launch_as<K, M, RING, true>(a, cx)
                                       : launch_as<K, M, RING, false>(a, cx);
}

template <class K, int M> static int launch_decode(const fb_attention *a, const fb_cuda_context *cx) {
    return a->ring ? launch_ring<K, M, true>(a, cx) : launch_ring<K, M, false>(a, cx);
}

int fb_cuda_flash_decode(const fb_attention *a, const fb_cuda_context *cx) {
    int sharing = a->group, result = 0;
    /* Short caches stay in the L2, where reading them again costs less than sharing them. */
    if (a->rows == 1 && a->capacity <= SHORT_CACHE) sharing = 1;
    if (cx->list) { /* the persistent kernel computes one item at a time */
        partials p = partials_of(a, a->width, cx);
        return sharing == 1 ? pk_add_attention(a, &p, cx->list) : FB_CUDA_NOT_LISTED;
    }
    int64_t heads = (int64_t)a->kv_heads * a->group;
    int64_t rows = rows_at_once(heads, a->width, a->rows, a->capacity);
    for (int64_t first = 0; first < a->rows && !result; first += rows) {
        fb_attention part = fb_attention_part(a, first, a->rows - first < rows ? a->rows - first : rows);
        FB_FOR_TYPE(a->kv_type, K,
                    result = sharing == 1   ? launch_decode<K, 1>(&part, cx)
                             : sharing == 2 ? launch_decode<K, 2>(&part, cx)
                             : sharing <= 4 ? launch_decode<K, 4>(&part, cx)
                                            : launch_decode<K, 8>(&part, cx));
    }
    return result;
}
