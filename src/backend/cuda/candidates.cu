/* The K best logits of each row, in one kernel.
 *
 * A key is a logit in the order of unsigned integers, followed by the bits of its id, inverted. So keys are
 * unique, and the larger key is the better candidate.
 *
 *  1. A thread reads a group of 32 logits and stores its largest key. A block has 512 groups.
 *  2. The last block of a row finds a bound that at least K groups reach: at least K keys reach it, too. Only
 *     these groups can have such keys, and of random logits few groups have more than one. The groups are
 *     read again, and the keys that reach the bound are collected.
 *  3. These keys, some 300 for K = 256, are sorted.
 *
 * If good logits lie together, more keys reach the bound than step 3 can sort. Then a bound for the keys
 * themselves is found, in the same way as for the groups. Nothing depends on the order in which threads
 * append to lists, because keys are sorted afterwards. */
#include "backend/cuda/candidates.h"

#include "backend/cuda/device.cuh"

#define THREADS     512
#define WARPS       (THREADS / FB_WARP)
#define GROUP       32   /* logits of a thread: 4096 groups of 128,256 */
#define SORTED      1024 /* keys that are sorted at most: two a thread */
#define DIGIT       11   /* bits of a key that a pass of a search looks at */
#define BINS        (1 << DIGIT)
#define BINS_THREAD (BINS / THREADS)
/* Groups above a bound, beyond K. A bound that need not be exact is mostly found in one pass for float16: 11
 * bits are the sign, the exponent and half of the mantissa. */
#define SLACK(k)   ((k) / 4 + 16)
#define MOST_VOCAB (1 << 30)

static_assert(BINS_THREAD == 4, "a thread reads its bins as a uint4");

typedef struct params {
    const void *logits;
    int64_t row_stride;
    int32_t vocab, count;
    int32_t id_bits; /* of a key */
    int32_t blocks;  /* of a row; one more has its ids */
    fb_candidate *best;
    unsigned *counters; /* [rows], blocks that are done */
    uint64_t *maxima;   /* [rows, blocks, THREADS], of the groups; 0: no logits */
    const int32_t *ids, *id_count;
    int64_t ids_stride;
    fb_candidate *gathered;
} params;

typedef struct bound_search {
    __align__(16) unsigned bins[BINS];
    unsigned warp_totals[WARPS];
    unsigned bin, above, inside; /* the bin with the bound, keys above it and in it */
} bound_search;

/* ---- keys ---- */

template <class T> struct format;
template <> struct format<float> {
    static constexpr uint32_t sign = 0x80000000u, infinity = 0x7f800000u, bits = 32;
};
template <> struct format<fb_half> { static constexpr uint32_t sign = 0x8000, infinity = 0x7c00, bits = 16; };
template <> struct format<fb_bfloat> {
    static constexpr uint32_t sign = 0x8000, infinity = 0x7f80, bits = 16;
};

/* A logit's bits in the order of its value, never 0. -0 equals 0; NaN and +inf are equal and above all. */
template <class T> FB_DEVICE uint32_t ordered(uint32_t bits) {
    constexpr uint32_t sign = format<T>::sign, infinity = format<T>::infinity;
    uint32_t magnitude = bits & (sign - 1);
    if (magnitude > infinity || bits == infinity) return sign | (sign - 1);
    return bits & sign ? sign - magnitude : sign + magnitude;
}

FB_DEVICE uint32_t bits_of(float x) { return __float_as_uint(x); }
FB_DEVICE uint32_t bits_of(fb_half x) { return x.bits; }
FB_DEVICE uint32_t bits_of(fb_bfloat x) { return x.bits; }

FB_DEVICE uint32_t word_of(uint4 v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

/* Element `e` of 16 bytes. */
template <class T> FB_DEVICE uint32_t ordered_in(uint4 v, int e) {
    if constexpr (sizeof(T) == 4)
        return ordered<T>(word_of(v, e));
    else
        return ordered<T>(word_of(v, e / 2) >> 16 * (e % 2) & 0xffff);
}

FB_DEVICE uint64_t key_of(uint32_t value, int id, int id_bits) {
    return (uint64_t)value << id_bits | (((uint64_t)1 << id_bits) - 1 - (uint32_t)id);
}

FB_DEVICE int id_of(uint64_t key, int id_bits) {
    uint64_t mask = ((uint64_t)1 << id_bits) - 1;
    return (int)(mask - (key & mask));
}

/* ---- a row in chunks of 16 bytes, at multiples of 16 bytes ---- */

template <class T> struct row_view {
    static constexpr int E = 16 / sizeof(T), CHUNKS = GROUP / E; /* logits of a chunk, chunks of a group */
    const T *logits;
    int vocab, id_bits;
    int skew; /* logits that the first chunk would have before the row */

    /* The first id of a chunk of a group. Successive threads read successive chunks. */
    FB_DEVICE int first_of(int group, int chunk) const {
        return (group / THREADS * GROUP + chunk * E) * THREADS + group % THREADS * E - skew;
    }
    FB_DEVICE bool whole(int first) const { return first >= 0 && first + E <= vocab; }
    FB_DEVICE uint4 load(int first) const { return *(const uint4 *)(const void *)(logits + first); }
    /* 0: there is none. */
    FB_DEVICE uint32_t value_at(int id) const {
        return id < 0 || id >= vocab ? 0 : ordered<T>(bits_of(logits[id]));
    }
    FB_DEVICE uint64_t key_at(int id) const {
        uint32_t value = value_at(id);
        return value ? key_of(value, id, id_bits) : 0;
    }
};

template <class T> FB_DEVICE row_view<T> view_of(const params &p, int64_t row) {
    row_view<T> view;
    view.logits = (const T *)p.logits + row * p.row_stride;
    view.vocab = p.vocab;
    view.id_bits = p.id_bits;
    view.skew = (int)((uintptr_t)view.logits % 16 / sizeof(T));
    return view;
}

/* A chunk, if it is whole. */
template <class T> FB_DEVICE uint4 load_whole(const row_view<T> &row, int first) {
    return row.whole(first) ? row.load(first) : make_uint4(0, 0, 0, 0);
}

/* Calls take(value, id) for each logit of a chunk that load_whole has read. Others are read here: the first
 * and the last one of a row may be cut off. */
template <class T, class F> FB_DEVICE void for_each(const row_view<T> &row, int first, uint4 chunk, F take) {
    constexpr int E = row_view<T>::E;
    if (row.whole(first)) {
#pragma unroll
        for (int e = 0; e < E; e++) take(ordered_in<T>(chunk, e), first + e);
        return;
    }
    uint32_t values[E];
#pragma unroll
    for (int e = 0; e < E; e++) values[e] = row.value_at(first + e);
#pragma unroll
    for (int e = 0; e < E; e++)
        if (values[e]) take(values[e], first + e);
}

template <class T> FB_DEVICE uint64_t max_of_group(const row_view<T> &row, int group) {
    constexpr int CHUNKS = row_view<T>::CHUNKS;
    uint4 chunks[CHUNKS];
    uint32_t best = 0;
    int best_id = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) chunks[c] = load_whole(row, row.first_of(group, c));
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        for_each(row, row.first_of(group, c), chunks[c], [&](uint32_t value, int id) {
            if (value > best) { /* ids ascend: the lower one stays */
                best = value;
                best_id = id;
            }
        });
    return best ? key_of(best, best_id, row.id_bits) : 0;
}

/* ---- searching a bound ---- */

/* Calls take(key(i), i) for each i below `count`, divided among the threads. Several keys are loaded at once,
 * all of 4096 groups. */
template <class K, class F> FB_DEVICE void for_each_key(K key, int count, F take) {
    constexpr int BATCH = 8;
    for (int begin = threadIdx.x; begin < count; begin += BATCH * THREADS) {
        uint64_t keys[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) keys[i] = begin + i * THREADS < count ? key(begin + i * THREADS) : 0;
#pragma unroll
        for (int i = 0; i < BATCH; i++) take(keys[i], begin + i * THREADS);
    }
}

/* Keys of this thread's bins, and of all higher bins; thread 0 has the highest. */
FB_DEVICE unsigned count_higher(bound_search *s, uint4 bins) {
    const int warp = threadIdx.x / FB_WARP, lane = threadIdx.x % FB_WARP;
    unsigned sum = bins.x + bins.y + bins.z + bins.w;
    for (int by = 1; by < FB_WARP; by *= 2) {
        unsigned other = __shfl_up_sync(FB_ALL, sum, by);
        if (lane >= by) sum += other;
    }
    if (lane == FB_WARP - 1) s->warp_totals[warp] = sum;
    __syncthreads();
    unsigned lower_warps = lane < warp ? s->warp_totals[lane] : 0;
    for (int offset = 16; offset; offset /= 2) lower_warps += __shfl_xor_sync(FB_ALL, lower_warps, offset);
    return sum + lower_warps;
}

/* A bound that `need` to `need + slack` of the keys reach: key(0) to key(count - 1), without zeros. The bound
 * is 1 if there are fewer. All threads of the block call this, and no other shared memory is touched. */
template <class K>
FB_DEVICE uint64_t find_bound(K key, int count, unsigned need, unsigned slack, int bits, bound_search *s) {
    uint64_t prefix = 0;
    unsigned above = 0, inside = 0;
    int shift = bits;
    if (threadIdx.x == 0) s->inside = 0;
    do {
        const int known = shift;
        shift = max(shift - DIGIT, 0);
        uint4 *bins = (uint4 *)(void *)s->bins + (THREADS - 1 - threadIdx.x);
        *bins = make_uint4(0, 0, 0, 0);
        __syncthreads();
        for_each_key(key, count, [&](uint64_t k, int) {
            if (k && k >> known == prefix) atomicAdd(&s->bins[(unsigned)(k >> shift) & (BINS - 1)], 1u);
        });
        __syncthreads();
        const uint4 mine = *bins;
        unsigned reach = above + count_higher(s, mine);
        unsigned higher = reach - (mine.x + mine.y + mine.z + mine.w);
        if (higher < need && reach >= need) {
            int b = BINS_THREAD - 1; /* from the highest */
            for (; higher + word_of(mine, b) < need; b--) higher += word_of(mine, b);
            s->bin = (THREADS - 1 - threadIdx.x) * BINS_THREAD + b;
            s->above = higher;
            s->inside = word_of(mine, b);
        }
        __syncthreads();
        inside = s->inside;
        if (inside == 0) return 1; /* fewer than `need` keys: known after the first pass */
        above = s->above;
        prefix = prefix << (known - shift) | s->bin;
    } while (above + inside > need + slack);
    return prefix << shift ? prefix << shift : 1;
}

/* ---- the kernel ---- */

/* The largest first. `size` is a power of two. Bitonic; with strides up to 32, a warp sorts 64 keys of its
 * own. */
FB_DEVICE void sort_keys(uint64_t *keys, int size) {
    int before = THREADS; /* the last stride: others may have written here */
    for (int span = 2; span <= size; span *= 2)
        for (int stride = span / 2; stride > 0; stride /= 2) {
            if (stride > FB_WARP || before > FB_WARP)
                __syncthreads();
            else
                __syncwarp();
            before = stride;
            if ((int)threadIdx.x >= size / 2) continue;
            int i = 2 * threadIdx.x - (threadIdx.x & (stride - 1));
            uint64_t a = keys[i], b = keys[i + stride];
            if ((a < b) == ((i & span) == 0)) {
                keys[i] = b;
                keys[i + stride] = a;
            }
        }
    __syncthreads();
}

/* Collects the keys of the groups that reach the bound. Their number, which may be more than SORTED. */
template <class T>
FB_DEVICE int collect_keys(const row_view<T> &row, const int *groups, int count, uint64_t bound,
                           uint64_t *keys, int *found) {
    constexpr int CHUNKS = row_view<T>::CHUNKS, BATCH = 4;
    if (threadIdx.x == 0) *found = 0;
    __syncthreads();
    for (int begin = threadIdx.x; begin < count * CHUNKS; begin += BATCH * THREADS) {
        int firsts[BATCH];
        uint4 chunks[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            int i = begin + b * THREADS;
            firsts[b] = i < count * CHUNKS ? row.first_of(groups[i / CHUNKS], i % CHUNKS) : row.vocab;
            chunks[b] = load_whole(row, firsts[b]);
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            for_each(row, firsts[b], chunks[b], [&](uint32_t value, int id) {
                uint64_t key = key_of(value, id, row.id_bits);
                if (key < bound) return;
                int at = atomicAdd(found, 1);
                if (at < SORTED) keys[at] = key;
            });
    }
    __syncthreads();
    return *found;
}

/* Steps 2 and 3, by one block. */
template <class T>
FB_DEVICE void finish_row(const params &p, const row_view<T> &row, const uint64_t *maxima,
                          fb_candidate *best) {
    constexpr int E = row_view<T>::E;
    __shared__ bound_search search;
    __shared__ uint64_t keys[SORTED];
    __shared__ int groups[FB_CUDA_CANDIDATES + SLACK(FB_CUDA_CANDIDATES)];
    __shared__ int group_count, found;
    const int bits = (int)format<T>::bits + p.id_bits, all = p.blocks * THREADS;
    const unsigned need = (unsigned)p.count;

    if (threadIdx.x == 0) group_count = 0;
    auto max_of = [&](int i) { return __ldcg(&maxima[i]); };
    uint64_t bound = find_bound(max_of, all, need, SLACK(need), bits, &search);
    for_each_key(max_of, all, [&](uint64_t k, int group) {
        if (k >= bound) groups[atomicAdd(&group_count, 1)] = group;
    });
    __syncthreads();

    const int chosen = group_count;
    int count = collect_keys(row, groups, chosen, bound, keys, &found);
    if (count > SORTED) {
        auto key = [&](int i) { return row.key_at(row.first_of(groups[i / GROUP], i % GROUP / E) + i % E); };
        bound = find_bound(key, chosen * GROUP, need, SORTED - need, bits, &search);
        count = collect_keys(row, groups, chosen, bound, keys, &found);
    }
    int size = 2;
    while (size < count) size *= 2;
    for (int i = count + threadIdx.x; i < size; i += THREADS) keys[i] = 0;
    sort_keys(keys, size);
    if ((int)threadIdx.x >= p.count) return;
    fb_candidate mine = {-INFINITY, -1};
    if ((int)threadIdx.x < count) {
        mine.id = id_of(keys[threadIdx.x], p.id_bits);
        mine.logit = fb_widen(row.logits[mine.id]);
    }
    best[threadIdx.x] = mine;
}

template <class T> FB_DEVICE void gather(const params &p, const row_view<T> &row) {
    const int64_t first = blockIdx.y * p.ids_stride;
    for (int i = threadIdx.x; i < p.id_count[blockIdx.y]; i += THREADS) {
        int id = p.ids[first + i];
        p.gathered[first + i] = {fb_widen(row.logits[id]), id};
    }
}

/* Grid: the blocks of a row, and one for its ids; rows. */
template <class T> __global__ void __launch_bounds__(THREADS) candidates_kernel(params p) {
    fb_let_next_start();
    fb_wait_for_previous();
    const row_view<T> row = view_of<T>(p, blockIdx.y);
    if ((int)blockIdx.x == p.blocks) {
        gather(p, row);
        return;
    }
    uint64_t *maxima = p.maxima + (int64_t)blockIdx.y * p.blocks * THREADS;
    const int group = blockIdx.x * THREADS + threadIdx.x;
    maxima[group] = max_of_group(row, group);

    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned *counter = p.counters + blockIdx.y;
        last = atomicAdd(counter, 1u) == (unsigned)p.blocks - 1;
        if (last) *counter = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    finish_row(p, row, maxima, p.best + (int64_t)blockIdx.y * p.count);
}

/* ---- launch ---- */

/* A row may begin anywhere in a chunk. */
static int64_t blocks_of(int64_t vocab) {
    const int64_t each = GROUP * THREADS, most_skew = 16 / (int64_t)sizeof(fb_half) - 1;
    return (vocab + most_skew + each - 1) / each;
}

int64_t fb_cuda_candidates_scratch(int64_t rows, int64_t vocab) {
    return FB_CUDA_COUNTERS + rows * blocks_of(vocab) * THREADS * (int64_t)sizeof(uint64_t);
}

int fb_cuda_candidates(const fb_cuda_selection *s, const fb_cuda_context *cx) {
    int result = 1; /* cudaErrorInvalidValue */
    if (s->rows < 1 || s->rows > FB_CUDA_COUNTERS / (int64_t)sizeof(unsigned) || s->vocab < 1 ||
        s->vocab > MOST_VOCAB || s->count < 1 || s->count > FB_CUDA_CANDIDATES)
        return result;
    params p;
    p.logits = s->logits;
    p.row_stride = s->row_stride;
    p.vocab = (int32_t)s->vocab;
    p.count = (int32_t)s->count;
    for (p.id_bits = 1; (int64_t)1 << p.id_bits < s->vocab;) p.id_bits++;
    p.blocks = (int32_t)blocks_of(s->vocab);
    p.best = s->best;
    p.counters = (unsigned *)(void *)cx->scratch;
    p.maxima = (uint64_t *)(void *)(cx->scratch + FB_CUDA_COUNTERS);
    p.ids = s->ids;
    p.id_count = s->id_count;
    p.ids_stride = s->ids_stride;
    p.gathered = s->gathered;
    dim3 grid((unsigned)(p.blocks + (s->ids ? 1 : 0)), (unsigned)s->rows);
    FB_FOR_TYPE(s->dtype, T, result = FB_LAUNCH(cx, grid, THREADS, 0, candidates_kernel<T>, p));
    return result;
}
