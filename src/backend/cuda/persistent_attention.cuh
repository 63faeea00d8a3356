/* One token's attention in the persistent kernel: rotation, append to the cache and attn_flash in one op. Its
 * bits are those of rope_kv followed by flash_decode.cu's WHOLE blocks of 256 threads. Here 256 threads have
 * the keys and 256 others the values.
 *
 * The keys and values of earlier tokens are loaded before the new token's q, k and v are waited for. They go
 * straight to registers, because a thread needs no others than its own. */
#ifndef FB_BACKEND_CUDA_PERSISTENT_ATTENTION_CUH
#define FB_BACKEND_CUDA_PERSISTENT_ATTENTION_CUH

#include "backend/cuda/persistent_tagged.cuh"

#define PK_ATTENTION_THREADS 256                        /* that have keys; as many others have values */
#define PK_TILE_KEYS         (PK_ATTENTION_THREADS / 2) /* a key has two threads */
#define PK_MAX_WIDTH         128                        /* columns of a head */
#define PK_LOOKUPS           4
#define PK_TILE_CHUNKS       8 /* 16-byte chunks of a tile that a thread has, at that width */

/* Shared memory of the op, where a matvec has its staged inputs. */
struct pk_attention_smem {
    float q[PK_MAX_WIDTH], scores[PK_TILE_KEYS];
    uint4 k[PK_MAX_WIDTH / 8], v[PK_MAX_WIDTH / 8]; /* of the new token */
    float max_score, total, factor;                 /* of the online softmax */
    int last;
    float sums[PK_ATTENTION_THREADS * 8]; /* of the values' threads; later for `combine` */
};

/* A thread's chunks of a tile: half of one key, or one chunk each of several values. */
struct pk_tile {
    uint4 x[PK_TILE_CHUNKS];
};
static_assert(MV_THREADS == 2 * PK_ATTENTION_THREADS, "half of the threads have keys");

/* One split of one query head's context: positions [begin, end). */
struct pk_split {
    int kv_head, item, index, begin, end;
};
FB_DEVICE pk_split pk_split_of(const pk_attention &op, int number, int past, int length) {
    int heads = op.a.kv_heads, items = op.a.group;
    pk_split split;
    split.kv_head = number % heads;
    split.item = number / heads % items;
    split.index = number / heads / items;
    split.begin = split.index * length;
    split.end = min(split.begin + length, past + 1);
    return split;
}

/* A block's attention work in this step. It is the same in all layers, so it is computed once and kept in
 * shared memory. */
struct pk_attention_work {
    uint8_t *whole; /* the sequence's cache, if it is one block, else NULL */
    int sequence, past_in_block;
    int past, length;   /* tokens before this one; positions of a split */
    int active, splits; /* splits of a head, and of all heads */
    pk_split split;     /* the block's first */
    int chunks, chains; /* chunks of a key or value; chains of sums of a value's chunk */
    int inverse;        /* thread / chunks == thread * inverse >> 16 */
};
/* Which slot of its block a slot is. */
FB_DEVICE int pk_slot_in_block(const fb_attention &a, int slot) { return slot & (int)((1u << a.shift) - 1); }
/* Thread `thread` of the values has chunk thread % chunks of values chain, chain + chains, … */
FB_DEVICE int pk_chain_of(const pk_attention_work &work, int thread) { return thread * work.inverse >> 16; }
FB_DEVICE pk_attention_work pk_attention_work_of(const pk_attention &op) {
    const fb_row *row = op.a.slots.rows;
    int past = (int)row->position, length = split_length(past + 1), active = past / length + 1;
    int chunks = op.a.width / 8;
    return {op.a.shift == WHOLE_SHIFT ? op.a.tables[row->sequence] : NULL,
            row->sequence,
            pk_slot_in_block(op.a, past),
            past,
            length,
            active,
            op.a.kv_heads * op.a.group * active,
            pk_split_of(op, (int)blockIdx.x, past, length),
            chunks,
            PK_ATTENTION_THREADS / chunks,
            65536 / chunks + 1};
}

/* The block of a slot. Its table entry may be another in each layer. */
FB_DEVICE uint8_t *pk_block_of(const fb_attention &a, const pk_attention_work &work, int slot) {
    return work.whole ? work.whole : a.tables[(slot >> a.shift) * a.sequences + work.sequence];
}
FB_DEVICE const uint4 *pk_row_in_block(const fb_attention &a, const pk_attention_work &work, int64_t head,
                                       int slot) {
    return (const uint4 *)(const void *)(pk_block_of(a, work, slot) + head) +
           pk_slot_in_block(a, slot) * work.chunks;
}

/* As pk_load_tile, from a cache of several blocks. head: of the keys or values, in a block. at, by, most: the
 * thread has chunks at + i * by of the key in slot `slot`, or those values from slot `slot` on, as far as
 * they are less than `most`. */
FB_DEVICE void pk_load_blocks(const fb_attention &a, const pk_attention_work &work, int64_t head, int slot,
                              int at, int by, int most, pk_tile &tile) {
    const uint4 none = make_uint4(0, 0, 0, 0);
    int thread = (int)threadIdx.x - PK_ATTENTION_THREADS;
    if (thread < 0) {
        const uint4 *key = most ? pk_row_in_block(a, work, head, slot) : NULL;
#pragma unroll
        for (int i = 0; i < PK_TILE_CHUNKS; i++)
            tile.x[i] = at + i * by < most ? __ldcg(key + at + i * by) : none;
        return;
    }
    head += (thread - pk_chain_of(work, thread) * work.chunks) * (int)sizeof(uint4);
    /* Several blocks are looked up before the first value is loaded. */
#pragma unroll
    for (int first = 0; first < PK_TILE_CHUNKS; first += PK_LOOKUPS) {
        const uint4 *from[PK_LOOKUPS];
#pragma unroll
        for (int i = 0; i < PK_LOOKUPS; i++) {
            int value = at + (first + i) * by;
            from[i] = value < most ? pk_row_in_block(a, work, head, slot + value) : NULL;
        }
#pragma unroll
        for (int i = 0; i < PK_LOOKUPS; i++) tile.x[first + i] = from[i] ? __ldcg(from[i]) : none;
    }
}

/* Loads the thread's chunks of a head's keys or values [first, first + PK_TILE_KEYS); zeros from `end` on. */
FB_DEVICE void pk_load_tile(const fb_attention &a, const pk_attention_work &work, int kv_head, int first,
                            int end, pk_tile &tile) {
    int thread = (int)threadIdx.x % PK_ATTENTION_THREADS, chunks = work.chunks, n = end - first;
    int key = thread / 2, chains = work.chains, chain = pk_chain_of(work, thread);
    bool keys = threadIdx.x < PK_ATTENTION_THREADS;
    /* If the rest were not set, the compiler would keep the registers of the tile before alive for it. */
    const uint4 none = make_uint4(0, 0, 0, 0);
    /* Of the key: chunks thread % 2 + 2 i. Of values chain + i * chains: chunk thread % chunks. */
    int at = keys ? thread % 2 : chain, by = keys ? 2 : chains;
    int most = keys ? (key < n ? chunks : 0) : (chain < chains ? n : 0);
    int64_t head = (keys ? a.k_at : a.v_at) + kv_head * a.block * chunks * (int)sizeof(uint4);
    if (!work.whole) {
        pk_load_blocks(a, work, head, keys ? first + key : first, at, by, most, tile);
        return;
    }
    int stride = keys ? 2 : chains * chunks;
    const uint4 *from = (const uint4 *)(const void *)(work.whole + head) + first * chunks;
    from += keys ? key * chunks + thread % 2 : thread;
#pragma unroll
    for (int i = 0; i < PK_TILE_CHUNKS; i++)
        tile.x[i] = at + i * by < most ? __ldcg(from + i * stride) : none;
}

/* Element i of a head of the new token, rotated. x: the head's tagged words. */
template <class T> FB_DEVICE T pk_rotated(const pk_attention &op, const uint32_t *x, int i, uint32_t tag) {
    const bool rotates = i < 2 * op.half;
    int pair = i < op.half ? i : i - op.half, first = rotates ? pair : i, second = first + op.half;
    float c = rotates ? op.angles[pair] : 0, s = rotates ? op.angles[op.half + pair] : 0;
    uint32_t one = pk_tagged_load(x + first), other = rotates ? pk_tagged_load(x + second) : 0;
    one = pk_tagged_wait(x + first, one, tag);
    if (!rotates) return pk_value<T>(one);
    other = pk_tagged_wait(x + second, other, tag);
    float a = fb_widen(pk_value<T>(one)), b = fb_widen(pk_value<T>(other));
    return fb_narrow<T>(i < op.half ? a * c - b * s : b * c + a * s);
}

/* Waits for the new token's q, k and v and puts them into shared memory. One split of each KV head also
 * appends k and v to the cache. */
template <class T>
FB_DEVICE void pk_load_new_token(const pk_attention &op, const pk_tagged_io &io,
                                 const pk_tagged_words &tagged, const pk_attention_work &work,
                                 const pk_split &split, pk_attention_smem &smem) {
    const fb_attention &a = op.a;
    const int past = work.past;
    int i = (int)threadIdx.x % PK_MAX_WIDTH, which = (int)threadIdx.x / PK_MAX_WIDTH;
    if (i >= a.width) return;
    bool newest = split.end == past + 1, appends = newest && split.item == 0;
    int64_t at = (split.kv_head * a.block + work.past_in_block) * a.width + i;
    if (which == 0) {
        const uint32_t *q = tagged.words + io.in[0] + (split.kv_head * a.group + split.item) * op.q_head;
        smem.q[i] = fb_widen(pk_rotated<T>(op, q, i, tagged.tag)) * (a.scale * LOG2_E);
    } else if (which == 1 && newest) {
        T x = pk_rotated<T>(op, tagged.words + io.in[1] + split.kv_head * op.k_head, i, tagged.tag);
        ((T *)smem.k)[i] = x;
        if (appends) ((T *)(void *)(pk_block_of(a, work, past) + a.k_at))[at] = x;
    } else if (which == 2 && newest) {
        const uint32_t *v = tagged.words + io.in[2] + split.kv_head * op.v_head + i;
        T x = pk_value<T>(pk_tagged_wait(v, pk_tagged_load(v), tagged.tag));
        ((T *)smem.v)[i] = x;
        if (appends) ((T *)(void *)(pk_block_of(a, work, past) + a.v_at))[at] = x;
    }
}

/* Attention of one split, by all MV_THREADS threads. `tile`: its first keys and values, without the new
 * token's. */
template <class T>
FB_DEVICE void pk_attend_split(const pk_attention &op, const pk_tagged_io &io, const pk_tagged_words &tagged,
                               const pk_attention_work &work, const pk_split &split, pk_tile &tile,
                               pk_attention_smem &smem) {
    const fb_attention &a = op.a;
    const int past = work.past;
    int thread = (int)threadIdx.x, lane = thread % FB_WARP, chunks = work.chunks, key = thread / 2;
    int other = thread - PK_ATTENTION_THREADS; /* the thread's number among those that have values */
    int chain = pk_chain_of(work, other), chunk = other - chain * chunks, chains = work.chains;
    bool keys = other < 0, values = other >= 0 && chain < chains;
    float acc[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    auto put = [&](int64_t i, float value) {
        T x = fb_narrow<T>(value);
        pk_tagged_store(tagged.words + io.out[0] + i, tagged.tag | pk_bits(x));
        if (io.stored[0]) ((T *)a.out)[i] = x;
    };
    pk_load_new_token<T>(op, io, tagged, work, split, smem);
    if (thread == 0) {
        smem.max_score = -INFINITY;
        smem.total = 0;
    }
    mv_sync();
#pragma unroll 1
    for (int first = split.begin; first < split.end; first += PK_TILE_KEYS) {
        int n = min(PK_TILE_KEYS, split.end - first);
        if (first > split.begin) pk_load_tile(a, work, split.kv_head, first, min(split.end, past), tile);
        float sum = 0;
        if (keys && key < n) {
            bool fresh = first + key == past;
#pragma unroll
            for (int i = 0; i < PK_TILE_CHUNKS; i++) {
                int c = thread % 2 + 2 * i;
                if (c >= chunks) continue;
                float x[8];
                fb_unpack((const T *)0, fresh ? smem.k[c] : tile.x[i], x);
                const float4 *q = (const float4 *)(smem.q + c * 8);
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float4 y = q[e];
                    sum = fmaf(y.x, x[4 * e], sum);
                    sum = fmaf(y.y, x[4 * e + 1], sum);
                    sum = fmaf(y.z, x[4 * e + 2], sum);
                    sum = fmaf(y.w, x[4 * e + 3], sum);
                }
            }
        }
        sum += __shfl_xor_sync(FB_ALL, sum, 1);
        if (keys && thread % 2 == 0) smem.scores[key] = key < n ? sum : -INFINITY;
        mv_sync();
        if (thread < FB_WARP) {
            float s[PK_TILE_KEYS / FB_WARP], here = -INFINITY, sums = 0;
#pragma unroll
            for (int i = 0; i < PK_TILE_KEYS / FB_WARP; i++) {
                s[i] = smem.scores[lane + i * FB_WARP];
                here = fmaxf(here, s[i]);
            }
            float before = smem.max_score, now = fmaxf(before, fb_warp_max(here));
            float base = now == -INFINITY ? 0 : now;
#pragma unroll
            for (int i = 0; i < PK_TILE_KEYS / FB_WARP; i++) {
                s[i] = fb_exp2(s[i] - base);
                sums += s[i];
                smem.scores[lane + i * FB_WARP] = s[i];
            }
            sums = fb_warp_sum(sums);
            __syncwarp();
            if (lane == 0) {
                smem.factor = fb_exp2(before - base);
                smem.total = fmaf(smem.total, smem.factor, sums);
                smem.max_score = now;
            }
        }
        mv_sync();
        if (values) {
            float factor = smem.factor;
#pragma unroll
            for (int e = 0; e < 8; e++) acc[e] *= factor;
#pragma unroll
            for (int i = 0; i < PK_TILE_CHUNKS; i++) {
                int j = chain + i * chains;
                if (j >= n) continue;
                float x[8], weight = smem.scores[j];
                fb_unpack((const T *)0, first + j == past ? smem.v[chunk] : tile.x[i], x);
#pragma unroll
                for (int e = 0; e < 8; e++) acc[e] = fmaf(weight, x[e], acc[e]);
            }
        }
        mv_sync();
    }
    if (values) {
        float4 *to = (float4 *)(smem.sums + chain * a.width + chunk * 8);
        to[0] = make_float4(acc[0], acc[1], acc[2], acc[3]);
        to[1] = make_float4(acc[4], acc[5], acc[6], acc[7]);
    }
    mv_sync();
    int active = work.active;
    int64_t base = (int64_t)(split.kv_head * a.group + split.item) * op.p.splits + split.index;
    if (thread < a.width) {
        float sum = smem.sums[thread];
#pragma unroll 8
        for (int n = 1; n < chains; n++) sum += smem.sums[n * a.width + thread];
        if (active > 1)
            op.p.sums[base * a.width + thread] = sum;
        else
            put(fb_item_out(a, split.kv_head, split.item) + thread, sum / smem.total);
    }
    if (active == 1) return;
    if (thread == 0) op.p.totals[base] = make_float2(smem.max_score, smem.total);
    __threadfence();
    mv_sync();
    if (thread == 0) {
        unsigned *counter = op.p.counters + split.kv_head * a.group + split.item;
        smem.last = atomicAdd(counter, 1u) == (unsigned)active - 1;
        if (smem.last) *counter = 0;
    }
    mv_sync();
    if (!smem.last) return;
    /* Also orders the counter's reset before this layer's outputs. The next layer's attention uses the same
     * counter, and only these outputs tell it to begin. */
    __threadfence();
    combine<PK_ATTENTION_THREADS, 1, MV_THREADS>(a, op.p, split.kv_head, split.item, 1, active, a.width,
                                                 smem.sums, put);
}

#endif
