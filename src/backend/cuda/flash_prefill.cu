/* attn_flash for many tokens. A block has ITEMS items of one KV head and goes through the tiles of keys and
 * values that they see. 16-bit types are multiplied on tensor cores, the others in float32.
 *
 * In a ring, slots are counted from the origin of the block's first item (attention.cuh). First come the
 * tiles of the sinks, which need the second query, then those of the ring from the first one on that an item
 * sees. An origin is a multiple of FB_RING_BLOCK, so tiles begin at the same positions for each step, block
 * and size of the ring. A tile that an item does not see changes nothing of it; hence a token's bits depend
 * on none of these. What no item of the block sees is not read: it may be NaN. */
#include "backend/cuda/attention.cuh"
#include "backend/cuda/mma.cuh"

#define LOG2_E 1.4426950408889634f

/* ---- tiles of a ring ---- */

/* What a block reads. All slots of a tile, of the sinks or of the ring, lie one behind another in the cache.
 */
struct tiles {
    int turn;   /* fb_turn of the origin */
    int oldest; /* slot of the ring: the first that some item of the block sees */
    int count;  /* slots up to the last that some item sees */
};
/* oldest: the position of the block's first item. newest: of its last one. */
FB_DEVICE tiles tiles_of(const fb_attention &a, int64_t origin, int oldest, int newest) {
    return {fb_turn(a.slots, origin), fb_seen_in_ring(a.slots, oldest).begin, fb_count(a.slots, newest)};
}
template <int N> FB_DEVICE int first_tile(const fb_attention &a, const tiles &t) {
    return a.second ? 0 : t.oldest & -N;
}
/* A result at or beyond t.count: there is none. */
template <int N> FB_DEVICE int next_tile(const fb_attention &a, const tiles &t, int at) {
    return at < a.second && at + N >= a.second ? t.oldest & -N : at + N;
}
/* A tile's slots that are read: `skip` unseen ones, then up to `n`. A tile never has both sinks and slots of
 * the ring. */
struct extent {
    int skip, n;
};
FB_DEVICE extent extent_of(const fb_attention &a, const tiles &t, int first, int most) {
    const bool sinks = first < a.second;
    return {sinks ? 0 : max(t.oldest - first, 0),
            min(most, (sinks ? min(a.second, t.count) : t.count) - first)};
}

/* ---- 16 bits ---- */

#define ITEMS   64
#define THREADS 128

FB_DEVICE void mma(const fb_half *, float *d, const uint32_t *a, const uint32_t *b) { fb_mma_f16(d, a, b); }
FB_DEVICE void mma(const fb_bfloat *, float *d, const uint32_t *a, const uint32_t *b) {
    fb_mma_bf16(d, a, b);
}

/* Two floats in one register, the first in its low half. */
FB_DEVICE uint32_t pack(const fb_half *, float low, float high) {
#ifdef FB_EMULATED
    return fb_f32_to_f16(low) | (uint32_t)fb_f32_to_f16(high) << 16;
#else
    uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#endif
}
FB_DEVICE uint32_t pack(const fb_bfloat *, float low, float high) {
#ifdef FB_EMULATED
    return fb_f32_to_bf16(low) | (uint32_t)fb_f32_to_bf16(high) << 16;
#else
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#endif
}

FB_DEVICE fb_dtype type_of(const fb_half *) { return FB_F16; }
FB_DEVICE fb_dtype type_of(const fb_bfloat *) { return FB_BF16; }

/* Copies rows [skip, n) of the tile [N, D] from slot `slot` on to shared memory; zeros in the rest. Rows are
 * skipped in a RING only. */
template <class K, int D, int N, bool RING>
FB_DEVICE void stage(K *to, const fb_attention &a, const fb_slot_rows<K> &from, int slot, int skip, int n) {
    constexpr int CHUNKS = N * (D / 8), EACH = (CHUNKS + THREADS - 1) / THREADS;
    const int width = a.width;
    auto is_read = [&](int row) { return row < n && (!RING || row >= skip); };
    if (!a.wide) {
#pragma unroll 1
        for (int i = threadIdx.x; i < N * D; i += THREADS) {
            int row = i / D, col = i % D;
            to[row * (D + 8) + col] =
                is_read(row) && col < width ? fb_slot_row(a, from, slot + row)[col] : K{0};
        }
        return;
    }
    auto copy = [&](int i, auto row_of) {
        int row = i / (D / 8), col = i % (D / 8) * 8;
        if (CHUNKS % THREADS && i >= CHUNKS) return;
        K *at = to + row * (D + 8) + col;
        if (is_read(row) && col < width)
            fb_copy_16(at, row_of(row) + col);
        else
            *(uint4 *)(void *)at = make_uint4(0, 0, 0, 0);
    };
    if (from.whole) {
        const K *whole = from.whole + (int64_t)slot * width;
#pragma unroll
        for (int n = 0; n < EACH; n++)
            copy(n * THREADS + (int)threadIdx.x, [&](int row) { return whole + row * width; });
        return;
    }
    /* All blocks are looked up before the first copy. */
    const K *rows[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int row = (i * THREADS + (int)threadIdx.x) / (D / 8);
        rows[i] = is_read(row) ? fb_slot_in_block(a, from, slot + row) : NULL;
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) copy(i * THREADS + (int)threadIdx.x, [&](int) { return rows[i]; });
}

/* Loads the items' queries; zeros where there are none. */
template <class K, int D>
FB_DEVICE void load_queries(K *to, const fb_attention &a, int kv_head, int item, bool sink) {
#pragma unroll 4
    for (int i = threadIdx.x; i < ITEMS * (D / 8); i += THREADS) {
        int n = i / (D / 8), col = i % (D / 8) * 8;
        K *at = to + n * (D + 8) + col;
        int64_t from = 0;
        bool any = item + n < a.rows * a.group;
        if (any) from = fb_item_q(a, kv_head, item + n, sink) + col;
        const K *x = (const K *)fb_queries(a, sink) + from;
        if (any && col + 8 <= a.width && a.q_type == type_of(x) && fb_aligned(x, 16)) {
            *(uint4 *)(void *)at = *(const uint4 *)(const void *)x;
        } else {
#pragma unroll 1
            for (int e = 0; e < 8; e++)
                at[e] = fb_narrow<K>(
                    any && col + e < a.width ? fb_load_as(a.q_type, fb_queries(a, sink), from + e) : 0);
        }
    }
}

/* The position of an item, kept in the padding of its query's row. Registers are scarce, and at a width of
 * 256 no other shared memory is left on devices that have 99 KB. */
template <class K, int D> FB_DEVICE int &position_of(K *queries, int n) {
    return *(int *)(void *)(queries + n * (D + 8) + D);
}

template <class K, int D> struct shape {
    static const int n = D > 128 ? 32 : 64; /* keys of a tile */
    static const int stride = D + 8;        /* odd in 16-byte chunks: eight rows lie in different banks */
    static const int bytes = (ITEMS + 4 * n) * stride * 2;
};

/* Four warps have 16 items each. Scores are scaled by log2(e), so that exp2 gives their exponentials. The
 * probabilities are rounded to 16 bits for the product with the values; the division by their sum is last. */
template <class K, int D, bool RING>
__global__ void __launch_bounds__(THREADS, D <= 80 ? 3 : 2) prefill_mma(fb_attention a) {
    constexpr int N = shape<K, D>::n, S = shape<K, D>::stride;
    constexpr bool HOLD = D <= 128; /* queries stay in registers */
    fb_let_next_start();
    fb_wait_for_previous();
    FB_SHARED(K, smem);
    K *queries = smem, *keys = smem + ITEMS * S,
      *values = keys + 2 * N * S; /* keys and values: two tiles of each */
    /* The items that see most start first. */
    int item = (int)(gridDim.y - 1 - blockIdx.y) * ITEMS, kv_head = blockIdx.x;
    int items = a.rows * a.group;
    const int64_t origin = RING ? fb_item_origin(a, item) : 0;
    int newest = fb_item_position(a, origin, item + ITEMS - 1);
    tiles tile = {0, 0, newest + 1};
    if (RING) tile = tiles_of(a, origin, fb_item_position(a, origin, item), newest);
    int first = RING ? first_tile<N>(a, tile) : 0;
    bool sink = RING && first < a.second; /* the second queries are loaded */
    const fb_slot_rows<K> keys_of = fb_slot_rows_of<K>(a, a.slots.rows->sequence, kv_head, a.k_at);
    const fb_slot_rows<K> values_of = fb_slot_rows_of<K>(a, a.slots.rows->sequence, kv_head, a.v_at);
    auto stage_both = [&](int at, int half) {
        extent e = {0, min(N, tile.count - at)};
        if (RING) e = extent_of(a, tile, at, N);
        const int slot = RING ? fb_physical(a.slots, tile.turn, at) : at;
        stage<K, D, N, RING>(keys + half * N * S, a, keys_of, slot, e.skip, e.n);
        stage<K, D, N, RING>(values + half * N * S, a, values_of, slot, e.skip, e.n);
    };
    stage_both(first, 0);
    fb_copy_commit();
    for (int i = threadIdx.x; i < ITEMS; i += THREADS)
        position_of<K, D>(queries, i) = fb_item_position(a, origin, item + i);
    load_queries<K, D>(queries, a, kv_head, item, sink);
    __syncthreads();

    int warp = threadIdx.x / FB_WARP, lane = threadIdx.x % FB_WARP, g = lane / 4, t = lane % 4;
    const K *mine = queries + (warp * 16 + lane % 16) * S + lane / 16 * 8;
    uint32_t q[HOLD ? D / 16 : 1][4];
    if (HOLD)
#pragma unroll
        for (int d = 0; d < D / 16; d++) fb_ldmatrix(q[HOLD ? d : 0], mine + d * 16);
    K *own = queries + warp * 16 * S;
    /* How many positions the warp's first and last item see. */
    int least = position_of<K, D>(own, 0) + 1, furthest = position_of<K, D>(own, 15) + 1;
    float out[D / 8][4], max_score[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0}, scale = a.scale * LOG2_E;
#pragma unroll
    for (int d = 0; d < D / 8; d++)
#pragma unroll
        for (int i = 0; i < 4; i++) out[d][i] = 0;

    for (int next, now = 0; first < tile.count; first = next, now ^= 1) {
        next = RING ? next_tile<N>(a, tile, first) : first + N;
        if (next < tile.count) stage_both(next, now ^ 1);
        fb_copy_commit();
        const bool change = RING && sink && first >= a.slots.begin; /* from the sinks to the ring */
        if (change) load_queries<K, D>(queries, a, kv_head, item, sink = false);
        fb_copy_wait<1>();
        __syncthreads();
        if (HOLD && change)
#pragma unroll
            for (int d = 0; d < D / 16; d++) fb_ldmatrix(q[HOLD ? d : 0], mine + d * 16);
        if (RING || first < furthest) {
            const K *kt = keys + now * N * S + (lane / 16 * 8 + lane % 8) * S + lane / 8 % 2 * 8;
            const K *vt = values + now * N * S + lane % 16 * S + lane / 16 * 8;
            float s[N / 8][4];
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) s[n][i] = 0;
#pragma unroll
            for (int d = 0; d < D / 16; d++) {
                uint32_t again[4], *x = q[HOLD ? d : 0];
                if (!HOLD) {
                    fb_ldmatrix(again, mine + d * 16);
                    x = again;
                }
#pragma unroll
                for (int n = 0; n < N / 16; n++) {
                    uint32_t b[4];
                    fb_ldmatrix(b, kt + n * 16 * S + d * 16);
                    mma(keys, s[2 * n], x, b);
                    mma(keys, s[2 * n + 1], x, b + 2);
                }
            }
            float here[2] = {-INFINITY, -INFINITY}, base[2];
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) s[n][i] *= scale;
            /* What the warp's items see of the tile, if it is not all. */
            if (RING ? fb_seen_around(a.slots, furthest - 1, first).begin > first ||
                           fb_seen_around(a.slots, least - 1, first).end < first + N
                     : first + N > least) {
                int at[2] = {position_of<K, D>(own, g), position_of<K, D>(own, g + 8)};
                fb_range seen[2];
                if (RING)
                    for (int h = 0; h < 2; h++) seen[h] = fb_seen_around(a.slots, at[h], first);
#pragma unroll
                for (int n = 0; n < N / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        int slot = first + n * 8 + t * 2 + i % 2;
                        if (RING ? slot < seen[i / 2].begin || slot >= seen[i / 2].end : slot > at[i / 2])
                            s[n][i] = -INFINITY;
                    }
            }
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) here[i / 2] = fmaxf(here[i / 2], s[n][i]);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                here[h] = fmaxf(here[h], __shfl_xor_sync(FB_ALL, here[h], 1));
                here[h] = fmaxf(here[h], __shfl_xor_sync(FB_ALL, here[h], 2));
                here[h] = fmaxf(here[h], max_score[h]);
                /* Finite for a dense cache: all items see position 0, which is in the first tile. */
                base[h] = RING && here[h] == -INFINITY ? 0 : here[h];
                float factor = fb_exp2(max_score[h] - base[h]);
                max_score[h] = here[h];
                total[h] *= factor;
#pragma unroll
                for (int d = 0; d < D / 8; d++) {
                    out[d][2 * h] *= factor;
                    out[d][2 * h + 1] *= factor;
                }
            }
#pragma unroll
            for (int n = 0; n < N / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    s[n][i] = fb_exp2(s[n][i] - base[i / 2]);
                    total[i / 2] += s[n][i];
                }
#pragma unroll
            for (int n = 0; n < N / 16; n++) {
                uint32_t p[4] = {pack(keys, s[2 * n][0], s[2 * n][1]), pack(keys, s[2 * n][2], s[2 * n][3]),
                                 pack(keys, s[2 * n + 1][0], s[2 * n + 1][1]),
                                 pack(keys, s[2 * n + 1][2], s[2 * n + 1][3])};
#pragma unroll
                for (int d = 0; d < D / 16; d++) {
                    uint32_t b[4];
                    fb_ldmatrix_trans(b, vt + n * 16 * S + d * 16);
                    mma(keys, out[2 * d], p, b);
                    mma(keys, out[2 * d + 1], p, b + 2);
                }
            }
        }
        __syncthreads();
    }

#pragma unroll
    for (int h = 0; h < 2; h++) {
        total[h] += __shfl_xor_sync(FB_ALL, total[h], 1);
        total[h] += __shfl_xor_sync(FB_ALL, total[h], 2);
        int n = item + warp * 16 + g + 8 * h;
        if (n >= items) continue;
        float inverse = 1.0f / total[h];
        int64_t at = fb_item_out(a, kv_head, n);
        bool pairs = a.out_type != FB_F32 && a.width % 2 == 0 && fb_aligned((const uint16_t *)a.out + at, 4);
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            int col = d * 8 + t * 2;
            float x = out[d][2 * h] * inverse, y = out[d][2 * h + 1] * inverse;
            if (pairs && col < a.width) {
                *(uint32_t *)(void *)((uint16_t *)a.out + at + col) =
                    a.out_type == FB_F16 ? pack((const fb_half *)0, x, y) : pack((const fb_bfloat *)0, x, y);
            } else {
                if (col < a.width) fb_store_as(a.out_type, a.out, at + col, x);
                if (col + 1 < a.width) fb_store_as(a.out_type, a.out, at + col + 1, y);
            }
        }
    }
}

template <class K, int D> static int launch_mma(const fb_attention *a, const fb_cuda_context *cx) {
    dim3 grid((unsigned)a->kv_heads, (unsigned)fb_ceil(a->rows * a->group, ITEMS));
    size_t bytes = shape<K, D>::bytes;
    return a->ring ? FB_LAUNCH(cx, grid, THREADS, bytes, (prefill_mma<K, D, true>), *a)
                   : FB_LAUNCH(cx, grid, THREADS, bytes, (prefill_mma<K, D, false>), *a);
}

template <class K> static int launch_mma(const fb_attention *a, const fb_cuda_context *cx) {
    if (a->width <= 32) return launch_mma<K, 32>(a, cx);
    if (a->width <= 64) return launch_mma<K, 64>(a, cx);
    if (a->width <= 80) return launch_mma<K, 80>(a, cx);
    if (a->width <= 128) return launch_mma<K, 128>(a, cx);
    return launch_mma<K, 256>(a, cx);
}

/* ---- float32 ---- */

#define SIDE 16 /* threads are [SIDE, SIDE]: items, then keys or columns */
#define KEYS 32

/* Converts rows [skip, n) of the tile [KEYS, D] from slot `slot` on to float32 in shared memory; zeros in the
 * rest. Rows are skipped in a RING only. sequence: its first entry in the table. at: a.k_at or a.v_at. Tiles
 * and blocks begin at multiples of FB_KV_GROUP, so that so many slots are in one block. */
template <int D, bool RING>
FB_DEVICE void widen(float *to, const fb_attention &a, uint8_t *const *sequence, int64_t at, int kv_head,
                     int slot, int skip, int n) {
    const int mask = (int)((1u << a.shift) - 1);
#pragma unroll 1
    for (int first = 0; first < KEYS; first += FB_KV_GROUP) {
        int from = slot + min(first, n - 1) / FB_KV_GROUP * FB_KV_GROUP; /* or there may be no block */
        const uint8_t *block = sequence[(from >> a.shift) * a.sequences] + at;
        int64_t in_block = (kv_head * a.block + (from & mask)) * a.width;
#pragma unroll 4
        for (int i = threadIdx.x; i < FB_KV_GROUP * D; i += SIDE * SIDE) {
            int row = i / D, col = i % D;
            to[(first + row) * (D + 4) + col] =
                first + row < n && (!RING || first + row >= skip) && col < a.width
                    ? fb_load_as(a.kv_type, block, in_block + (int64_t)row * a.width + col)
                    : 0;
        }
    }
}

/* Loads the items' queries [SIDE * R, D], times scale * log2(e); zeros where there are none. */
template <int D, int R>
FB_DEVICE void widen_queries(float *to, const fb_attention &a, int kv_head, int item, bool sink) {
    for (int i = threadIdx.x; i < SIDE * R * D; i += SIDE * SIDE) {
        int n = i / D, col = i % D;
        to[n * (D + 4) + col] =
            item + n < a.rows * a.group && col < a.width
                ? fb_load_as(a.q_type, fb_queries(a, sink), fb_item_q(a, kv_head, item + n, sink) + col) *
                      (a.scale * LOG2_E)
                : 0;
    }
}

/* A thread has R items and D / SIDE columns. Keys and values use the same tile one after the other: some
 * devices have no more than 99 KB. */
template <int D, int R, bool RING> __global__ void __launch_bounds__(SIDE *SIDE) prefill_f32(fb_attention a) {
    constexpr int S = D + 4, Q = D / (4 * SIDE);
    fb_let_next_start();
    fb_wait_for_previous();
    FB_SHARED(float, q);
    float *x = q + SIDE * R * S, *p = x + KEYS * S; /* [items][S], [KEYS][S], [items][KEYS] */
    int item = (int)(gridDim.y - 1 - blockIdx.y) * SIDE * R, kv_head = blockIdx.x;
    int items = a.rows * a.group;
    const int64_t origin = RING ? fb_item_origin(a, item) : 0;
    int newest = fb_item_position(a, origin, item + SIDE * R - 1);
    tiles tile = {0, 0, newest + 1};
    if (RING) tile = tiles_of(a, origin, fb_item_position(a, origin, item), newest);
    int first = RING ? first_tile<KEYS>(a, tile) : 0;
    bool sink = RING && first < a.second; /* the second queries are loaded */
    /* In shared memory, because registers are scarce: one more could cost a block on every multiprocessor. */
    __shared__ int position[SIDE * R]; /* of the items */
    __shared__ uint8_t *const *sequence;
    if (threadIdx.x == 0) sequence = a.tables + a.slots.rows->sequence;
    if (threadIdx.x < SIDE * R) position[threadIdx.x] = fb_item_position(a, origin, item + (int)threadIdx.x);
    widen_queries<D, R>(q, a, kv_head, item, sink);
    int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
    float max_score[R], total[R];
    float4 out[R][Q];
#pragma unroll
    for (int r = 0; r < R; r++) {
        max_score[r] = -INFINITY;
        total[r] = 0;
#pragma unroll
        for (int c = 0; c < Q; c++) out[r][c] = make_float4(0, 0, 0, 0);
    }
    for (; first < tile.count; first = RING ? next_tile<KEYS>(a, tile, first) : first + KEYS) {
        extent e = {0, min(KEYS, tile.count - first)};
        if (RING) e = extent_of(a, tile, first, KEYS);
        const int slot = RING ? fb_physical(a.slots, tile.turn, first) : first;
        __syncthreads();
        if (RING && sink && first >= a.slots.begin) /* from the sinks to the ring */
            widen_queries<D, R>(q, a, kv_head, item, sink = false);
        widen<D, RING>(x, a, sequence, a.k_at, kv_head, slot, e.skip, e.n);
        __syncthreads();
        float s[R][2];
#pragma unroll
        for (int r = 0; r < R; r++) s[r][0] = s[r][1] = 0;
#pragma unroll 4
        for (int i = 0; i < D; i += 4) {
            float4 k0 = *(const float4 *)(const void *)(x + tx * S + i);
            float4 k1 = *(const float4 *)(const void *)(x + (tx + SIDE) * S + i);
#pragma unroll
            for (int r = 0; r < R; r++) {
                float4 y = *(const float4 *)(const void *)(q + (ty * R + r) * S + i);
                s[r][0] = fmaf(y.w, k0.w, fmaf(y.z, k0.z, fmaf(y.y, k0.y, fmaf(y.x, k0.x, s[r][0]))));
                s[r][1] = fmaf(y.w, k1.w, fmaf(y.z, k1.z, fmaf(y.y, k1.y, fmaf(y.x, k1.x, s[r][1]))));
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            const int at = position[ty * R + r];
            if (RING) {
                if (!fb_sees(a.slots, at, first + tx)) s[r][0] = -INFINITY;
                if (!fb_sees(a.slots, at, first + tx + SIDE)) s[r][1] = -INFINITY;
            } else {
                if (first + tx > at) s[r][0] = -INFINITY;
                if (first + tx + SIDE > at) s[r][1] = -INFINITY;
            }
            float now = fmaxf(max_score[r], fmaxf(s[r][0], s[r][1]));
#pragma unroll
            for (int offset = SIDE / 2; offset; offset >>= 1)
                now = fmaxf(now, __shfl_xor_sync(FB_ALL, now, offset));
            const float base = RING && now == -INFINITY ? 0 : now; /* the item has seen nothing yet */
            float factor = fb_exp2(max_score[r] - base);
            max_score[r] = now;
            s[r][0] = fb_exp2(s[r][0] - base);
            s[r][1] = fb_exp2(s[r][1] - base);
            total[r] = fmaf(total[r], factor, s[r][0] + s[r][1]);
            p[(ty * R + r) * KEYS + tx] = s[r][0];
            p[(ty * R + r) * KEYS + tx + SIDE] = s[r][1];
#pragma unroll
            for (int c = 0; c < Q; c++) {
                out[r][c].x *= factor;
                out[r][c].y *= factor;
                out[r][c].z *= factor;
                out[r][c].w *= factor;
            }
        }
        __syncthreads();
        widen<D, RING>(x, a, sequence, a.v_at, kv_head, slot, e.skip, e.n);
        __syncthreads();
#pragma unroll 4
        for (int j = 0; j < KEYS; j++) {
            float w[R];
#pragma unroll
            for (int r = 0; r < R; r++) w[r] = p[(ty * R + r) * KEYS + j];
#pragma unroll
            for (int c = 0; c < Q; c++) {
                float4 y = *(const float4 *)(const void *)(x + j * S + (tx + c * SIDE) * 4);
#pragma unroll
                for (int r = 0; r < R; r++) {
                    out[r][c].x = fmaf(w[r], y.x, out[r][c].x);
                    out[r][c].y = fmaf(w[r], y.y, out[r][c].y);
                    out[r][c].z = fmaf(w[r], y.z, out[r][c].z);
                    out[r][c].w = fmaf(w[r], y.w, out[r][c].w);
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int offset = SIDE / 2; offset; offset >>= 1)
            total[r] += __shfl_xor_sync(FB_ALL, total[r], offset);
        int n = item + ty * R + r;
        if (n >= items) continue;
        int64_t at = fb_item_out(a, kv_head, n);
        float inverse = 1.0f / total[r];
#pragma unroll
        for (int c = 0; c < Q; c++) {
            const float y[4] = {out[r][c].x, out[r][c].y, out[r][c].z, out[r][c].w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int col = (tx + c * SIDE) * 4 + e;
                if (col < a.width) fb_store_as(a.out_type, a.out, at + col, y[e] * inverse);
            }
        }
    }
}

template <int D, int R> static int launch_f32(const fb_attention *a, const fb_cuda_context *cx) {
    dim3 grid((unsigned)a->kv_heads, (unsigned)fb_ceil(a->rows * a->group, SIDE * R));
    size_t floats = (SIDE * R + KEYS) * (D + 4) + SIDE * R * KEYS;
    return a->ring ? FB_LAUNCH(cx, grid, SIDE * SIDE, floats * sizeof(float), (prefill_f32<D, R, true>), *a)
                   : FB_LAUNCH(cx, grid, SIDE * SIDE, floats * sizeof(float), (prefill_f32<D, R, false>), *a);
}

int fb_cuda_flash_prefill(const fb_attention *a, const fb_cuda_context *cx) {
    /* bfloat16 queries are exact in float16, unless they are far too large for attention to make sense.
     * float16 queries are not exact in bfloat16. */
    if (a->kv_type == FB_F16 && a->q_type != FB_F32) return launch_mma<fb_half>(a, cx);
    if (a->kv_type == FB_BF16 && a->q_type == FB_BF16) return launch_mma<fb_bfloat>(a, cx);
    if (a->width <= 64) return launch_f32<64, 4>(a, cx);
    if (a->width <= 128) return launch_f32<128, 4>(a, cx);
    return launch_f32<256, 2>(a, cx);
}
