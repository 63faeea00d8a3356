/* Attention of one token within a step that is one kernel: rotation, append and attn_flash at once, to the
 * bits of rope_kv and flash_decode.cu, whose WHOLE blocks of 256 threads these are.
 *
 * Keys and values that were there before are read before the blocks have met, straight into registers: a
 * thread needs no others than its own. What is left after the meeting is the latency of q, k and v. */
#ifndef FB_BACKEND_CUDA_STEP_ATTENTION_CUH
#define FB_BACKEND_CUDA_STEP_ATTENTION_CUH

#include "backend/cuda/step_list.h"

#define ST_ATTENDERS 256 /* threads, two for each key of a tile */
#define ST_KEYS      (ST_ATTENDERS / 2)
#define ST_WIDTH     128 /* columns of a head, at most; each thread then has */
#define ST_CHUNKS    8   /* chunks of its key, and chunks of values */

/* Shared memory, at the place of staged inputs. */
struct st_attention_room {
    float q[ST_WIDTH], scores[ST_KEYS];
    uint4 k[ST_WIDTH / 8], v[ST_WIDTH / 8]; /* of the new token */
    float most, total, factor;
    int last;
    float sums[ST_ATTENDERS * 8]; /* also what `combine` needs */
};

/* What a thread holds of a tile. */
struct st_tile {
    uint4 k[ST_CHUNKS], v[ST_CHUNKS];
};

/* A head's split: which one, and where it lies. */
struct st_part {
    int kv_head, item, split, begin, end;
};
FB_DEVICE st_part st_part_of(const st_attention &op, int number, int past) {
    int heads = op.a.kv_heads, items = op.a.group;
    st_part part;
    part.kv_head = number % heads;
    part.item = number / heads % items;
    part.split = number / heads / items;
    part.begin = part.split * op.p.length;
    part.end = min(part.begin + op.p.length, past + 1);
    return part;
}
FB_DEVICE int st_parts(const st_attention &op, int past) {
    return op.a.kv_heads * op.a.group * (past / op.p.length + 1);
}

/* Keys and values [first, first + ST_KEYS) of a head, as far as they are before `end`. */
FB_DEVICE void st_load_tile(const fb_attention &a, int kv_head, int first, int end, st_tile &tile) {
    int thread = (int)threadIdx.x, chunks = a.width / 8, n = end - first;
    int key = thread / 2, turns = ST_ATTENDERS / chunks, turn = thread / chunks;
    const uint4 *k = (const uint4 *)a.k + (kv_head * a.capacity + first) * chunks;
    const uint4 *v = (const uint4 *)a.v + (kv_head * a.capacity + first) * chunks;
    bool attends = thread < ST_ATTENDERS;
    /* Zeros elsewhere: to a compiler, what is not set may be what was there before, and keeps its registers.
     */
    const uint4 none = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < ST_CHUNKS; i++) {
        int c = thread % 2 + 2 * i, j = turn + i * turns;
        tile.k[i] = attends && key < n && c < chunks ? __ldcg(k + key * chunks + c) : none;
        tile.v[i] = attends && turn < turns && j < n ? __ldcg(v + j * chunks + thread % chunks) : none;
    }
}

/* Element i of a new token's head, rotated. */
template <class T> FB_DEVICE T st_rotated(const T *x, int i, const float *angles, int half) {
    if (i >= 2 * half) return x[i];
    int pair = i < half ? i : i - half;
    float a = fb_widen(x[pair]), b = fb_widen(x[half + pair]), c = angles[pair], s = angles[half + pair];
    return fb_narrow<T>(i < half ? a * c - b * s : b * c + a * s);
}

/* The new token's q, k and v; k and v also to the cache, by the one part that is to. */
template <class T>
FB_DEVICE void st_new_token(const st_attention &op, const st_part &part, int past, st_attention_room &room) {
    const fb_attention &a = op.a;
    int i = (int)threadIdx.x % ST_WIDTH, which = (int)threadIdx.x / ST_WIDTH;
    if (i >= a.width) return;
    bool newest = part.end == past + 1, keeps = newest && part.item == 0;
    int64_t at = (part.kv_head * a.capacity + past) * a.width + i;
    if (which == 0) {
        const T *q = (const T *)op.q + (part.kv_head * a.group + part.item) * op.q_head;
        room.q[i] = fb_widen(st_rotated(q, i, op.angles, op.half)) * (a.scale * LOG2_E);
    } else if (which == 1 && newest) {
        T x = st_rotated((const T *)op.k + part.kv_head * op.k_head, i, op.angles, op.half);
        ((T *)room.k)[i] = x;
        if (keeps) ((T *)(void *)a.k)[at] = x;
    } else if (which == 2 && newest) {
        T x = ((const T *)op.v + part.kv_head * op.v_head)[i];
        ((T *)room.v)[i] = x;
        if (keeps) ((T *)(void *)a.v)[at] = x;
    }
}

/* One part. `tile`: its first keys and values, but for the new token's. All threads of the block come here.
 */
template <class T>
FB_DEVICE void st_attend(const st_attention &op, const st_part &part, int past, st_tile &tile,
                         st_attention_room &room) {
    const fb_attention &a = op.a;
    int thread = (int)threadIdx.x, lane = thread % FB_WARP, chunks = a.width / 8;
    int key = thread / 2, chunk = thread % chunks, turn = thread / chunks, turns = ST_ATTENDERS / chunks;
    bool attends = thread < ST_ATTENDERS;
    float acc[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    st_new_token<T>(op, part, past, room);
    if (thread == 0) {
        room.most = -INFINITY;
        room.total = 0;
    }
    __syncthreads();
#pragma unroll 1
    for (int first = part.begin; first < part.end; first += ST_KEYS) {
        int n = min(ST_KEYS, part.end - first);
        if (first > part.begin) st_load_tile(a, part.kv_head, first, min(part.end, past), tile);
        float sum = 0;
        if (attends && key < n) {
            bool fresh = first + key == past;
#pragma unroll
            for (int i = 0; i < ST_CHUNKS; i++) {
                int c = thread % 2 + 2 * i;
                if (c >= chunks) continue;
                float x[8];
                fb_unpack((const T *)0, fresh ? room.k[c] : tile.k[i], x);
                const float4 *q = (const float4 *)(room.q + c * 8);
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
        if (attends && thread % 2 == 0) room.scores[key] = key < n ? sum : -INFINITY;
        __syncthreads();
        if (thread < FB_WARP) {
            float s[ST_KEYS / FB_WARP], here = -INFINITY, sums = 0;
#pragma unroll
            for (int i = 0; i < ST_KEYS / FB_WARP; i++) {
                s[i] = room.scores[lane + i * FB_WARP];
                here = fmaxf(here, s[i]);
            }
            float before = room.most, now = fmaxf(before, fb_warp_max(here));
            float base = now == -INFINITY ? 0 : now;
#pragma unroll
            for (int i = 0; i < ST_KEYS / FB_WARP; i++) {
                s[i] = fb_exp2(s[i] - base);
                sums += s[i];
                room.scores[lane + i * FB_WARP] = s[i];
            }
            sums = fb_warp_sum(sums);
            __syncwarp();
            if (lane == 0) {
                room.factor = fb_exp2(before - base);
                room.total = fmaf(room.total, room.factor, sums);
                room.most = now;
            }
        }
        __syncthreads();
        if (attends && turn < turns) {
            float factor = room.factor;
#pragma unroll
            for (int e = 0; e < 8; e++) acc[e] *= factor;
#pragma unroll
            for (int i = 0; i < ST_CHUNKS; i++) {
                int j = turn + i * turns;
                if (j >= n) continue;
                float x[8], weight = room.scores[j];
                fb_unpack((const T *)0, first + j == past ? room.v[chunk] : tile.v[i], x);
#pragma unroll
                for (int e = 0; e < 8; e++) acc[e] = fmaf(weight, x[e], acc[e]);
            }
        }
        __syncthreads();
    }
    if (attends && turn < turns) {
        float4 *to = (float4 *)(room.sums + turn * a.width + chunk * 8);
        to[0] = make_float4(acc[0], acc[1], acc[2], acc[3]);
        to[1] = make_float4(acc[4], acc[5], acc[6], acc[7]);
    }
    __syncthreads();
    int active = past / op.p.length + 1;
    int64_t base = (int64_t)(part.kv_head * a.group + part.item) * op.p.splits + part.split;
    if (thread < a.width) {
        float sum = room.sums[thread];
#pragma unroll 4
        for (int n = 1; n < turns; n++) sum += room.sums[n * a.width + thread];
        if (active > 1)
            op.p.sums[base * a.width + thread] = sum;
        else
            fb_store_as(a.out_type, a.out, fb_item_out(a, part.kv_head, part.item) + thread,
                        sum / room.total);
    }
    if (active == 1) return;
    if (thread == 0) op.p.totals[base] = make_float2(room.most, room.total);
    __threadfence();
    __syncthreads();
    if (thread == 0) {
        unsigned *counter = op.p.counters + part.kv_head * a.group + part.item;
        room.last = atomicAdd(counter, 1u) == (unsigned)active - 1;
        if (room.last) *counter = 0;
    }
    __syncthreads();
    if (!room.last) return;
    __threadfence();
    combine<ST_ATTENDERS, 1>(a, op.p, part.kv_head, part.item, 1, active, a.width, room.sums);
}

#endif
