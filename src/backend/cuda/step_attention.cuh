/* Attention of one token within a step that is one kernel: rotation, append and attn_flash at once, to the
 * bits of rope_kv and flash_decode.cu's WHOLE blocks of 256 threads: as many have keys here, and as many
 * others the values.
 *
 * Keys and values that were there before are read before q, k and v of the new token are waited for, straight
 * into registers: a thread needs no others than its own. */
#ifndef FB_BACKEND_CUDA_STEP_ATTENTION_CUH
#define FB_BACKEND_CUDA_STEP_ATTENTION_CUH

#include "backend/cuda/step_mail.cuh"

#define ST_ATTENDERS 256 /* threads for keys, two for each of a tile; the others have the values */
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

/* What a thread holds of a tile: of a key, or of values. */
struct st_tile {
    uint4 x[ST_CHUNKS];
};
static_assert(MV_THREADS == 2 * ST_ATTENDERS, "half of the threads have keys");

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

/* What is the same in all layers, in shared memory: the sequence's cache, the tokens before this one, the
 * parts, and the block's first one. */
struct st_course {
    uint8_t *cache;
    int past, parts;
    st_part part;
    int chunks, turns; /* of a key or value; threads that have a chunk of values */
    int inverse;       /* of chunks: x / chunks = x * inverse >> 16, of numbers of threads */
};
FB_DEVICE int st_turn_number(const st_course &course, int thread) { return thread * course.inverse >> 16; }
FB_DEVICE st_course st_course_of(const st_attention &op) {
    int past = (int)op.a.slots.rows->position;
    int chunks = op.a.width / 8;
    return {fb_cache_of(op.a),
            past,
            st_parts(op, past),
            st_part_of(op, (int)blockIdx.x, past),
            chunks,
            ST_ATTENDERS / chunks,
            65536 / chunks + 1};
}

/* Keys and values [first, first + ST_KEYS) of a head, as far as they are before `end`. */
FB_DEVICE void st_load_tile(const fb_attention &a, const st_course &course, int kv_head, int first, int end,
                            st_tile &tile) {
    int thread = (int)threadIdx.x % ST_ATTENDERS, chunks = course.chunks, n = end - first;
    int key = thread / 2, turns = course.turns, turn = st_turn_number(course, thread);
    bool keys = threadIdx.x < ST_ATTENDERS;
    const uint4 *from = (const uint4 *)(const void *)(course.cache + (keys ? a.k_at : a.v_at)) +
                        (kv_head * a.capacity + first) * chunks;
    /* Zeros elsewhere: to a compiler, what is not set may be what was there before, and keeps its registers.
     */
    const uint4 none = make_uint4(0, 0, 0, 0);
    /* Chunk thread % 2 + 2 i of the key; chunk thread % chunks of values turn + i turns. */
    int step = keys ? 2 : turns * chunks;
    from += keys ? key * chunks + thread % 2 : thread;
    int at = keys ? thread % 2 : turn, by = keys ? 2 : turns;
    int most = keys ? (key < n ? chunks : 0) : (turn < turns ? n : 0);
#pragma unroll
    for (int i = 0; i < ST_CHUNKS; i++) tile.x[i] = at + i * by < most ? __ldcg(from + i * step) : none;
}

/* Element i of a new token's head, rotated. */
template <class T> FB_DEVICE T st_rotated(const st_attention &op, const uint32_t *x, int i, uint32_t tag) {
    const bool rotates = i < 2 * op.half;
    int pair = i < op.half ? i : i - op.half, first = rotates ? pair : i, second = first + op.half;
    float c = rotates ? op.angles[pair] : 0, s = rotates ? op.angles[op.half + pair] : 0;
    uint32_t one = st_look(x + first), other = rotates ? st_look(x + second) : 0;
    one = st_await(x + first, one, tag);
    if (!rotates) return st_value<T>(one);
    other = st_await(x + second, other, tag);
    float a = fb_widen(st_value<T>(one)), b = fb_widen(st_value<T>(other));
    return fb_narrow<T>(i < op.half ? a * c - b * s : b * c + a * s);
}

/* The new token's q, k and v; k and v also to the cache, by the one part that is to. */
template <class T>
FB_DEVICE void st_new_token(const st_attention &op, const st_mail &mail, const st_post_box &box,
                            const st_course &course, const st_part &part, st_attention_room &room) {
    const fb_attention &a = op.a;
    const int past = course.past;
    int i = (int)threadIdx.x % ST_WIDTH, which = (int)threadIdx.x / ST_WIDTH;
    if (i >= a.width) return;
    bool newest = part.end == past + 1, keeps = newest && part.item == 0;
    int64_t at = (part.kv_head * a.capacity + past) * a.width + i;
    if (which == 0) {
        const uint32_t *q = box.mails + mail.in[0] + (part.kv_head * a.group + part.item) * op.q_head;
        room.q[i] = fb_widen(st_rotated<T>(op, q, i, box.tag)) * (a.scale * LOG2_E);
    } else if (which == 1 && newest) {
        T x = st_rotated<T>(op, box.mails + mail.in[1] + part.kv_head * op.k_head, i, box.tag);
        ((T *)room.k)[i] = x;
        if (keeps) ((T *)(void *)(course.cache + a.k_at))[at] = x;
    } else if (which == 2 && newest) {
        const uint32_t *v = box.mails + mail.in[2] + part.kv_head * op.v_head + i;
        T x = st_value<T>(st_await(v, st_look(v), box.tag));
        ((T *)room.v)[i] = x;
        if (keeps) ((T *)(void *)(course.cache + a.v_at))[at] = x;
    }
}

/* One part. `tile`: its first keys and values, but for the new token's. All threads of the block come here.
 */
template <class T>
FB_DEVICE void st_attend(const st_attention &op, const st_mail &mail, const st_post_box &box,
                         const st_course &course, const st_part &part, st_tile &tile,
                         st_attention_room &room) {
    const fb_attention &a = op.a;
    const int past = course.past;
    int thread = (int)threadIdx.x, lane = thread % FB_WARP, chunks = course.chunks, key = thread / 2;
    int other = thread - ST_ATTENDERS; /* of those with values */
    int turn = st_turn_number(course, other), chunk = other - turn * chunks, turns = course.turns;
    bool keys = other < 0, values = other >= 0 && turn < turns;
    float acc[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    auto put = [&](int64_t i, float value) {
        T x = fb_narrow<T>(value);
        st_post(box.mails + mail.out[0] + i, box.tag | st_bits(x));
        if (mail.plain[0]) ((T *)a.out)[i] = x;
    };
    st_new_token<T>(op, mail, box, course, part, room);
    if (thread == 0) {
        room.most = -INFINITY;
        room.total = 0;
    }
    mv_sync();
#pragma unroll 1
    for (int first = part.begin; first < part.end; first += ST_KEYS) {
        int n = min(ST_KEYS, part.end - first);
        if (first > part.begin) st_load_tile(a, course, part.kv_head, first, min(part.end, past), tile);
        float sum = 0;
        if (keys && key < n) {
            bool fresh = first + key == past;
#pragma unroll
            for (int i = 0; i < ST_CHUNKS; i++) {
                int c = thread % 2 + 2 * i;
                if (c >= chunks) continue;
                float x[8];
                fb_unpack((const T *)0, fresh ? room.k[c] : tile.x[i], x);
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
        if (keys && thread % 2 == 0) room.scores[key] = key < n ? sum : -INFINITY;
        mv_sync();
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
        mv_sync();
        if (values) {
            float factor = room.factor;
#pragma unroll
            for (int e = 0; e < 8; e++) acc[e] *= factor;
#pragma unroll
            for (int i = 0; i < ST_CHUNKS; i++) {
                int j = turn + i * turns;
                if (j >= n) continue;
                float x[8], weight = room.scores[j];
                fb_unpack((const T *)0, first + j == past ? room.v[chunk] : tile.x[i], x);
#pragma unroll
                for (int e = 0; e < 8; e++) acc[e] = fmaf(weight, x[e], acc[e]);
            }
        }
        mv_sync();
    }
    if (values) {
        float4 *to = (float4 *)(room.sums + turn * a.width + chunk * 8);
        to[0] = make_float4(acc[0], acc[1], acc[2], acc[3]);
        to[1] = make_float4(acc[4], acc[5], acc[6], acc[7]);
    }
    mv_sync();
    int active = past / op.p.length + 1;
    int64_t base = (int64_t)(part.kv_head * a.group + part.item) * op.p.splits + part.split;
    if (thread < a.width) {
        float sum = room.sums[thread];
#pragma unroll 8
        for (int n = 1; n < turns; n++) sum += room.sums[n * a.width + thread];
        if (active > 1)
            op.p.sums[base * a.width + thread] = sum;
        else
            put(fb_item_out(a, part.kv_head, part.item) + thread, sum / room.total);
    }
    if (active == 1) return;
    if (thread == 0) op.p.totals[base] = make_float2(room.most, room.total);
    __threadfence();
    mv_sync();
    if (thread == 0) {
        unsigned *counter = op.p.counters + part.kv_head * a.group + part.item;
        room.last = atomicAdd(counter, 1u) == (unsigned)active - 1;
        if (room.last) *counter = 0;
    }
    mv_sync();
    if (!room.last) return;
    /* Also so that the counter is zero before anybody sees this layer's outputs: the next layer's attention
     * counts there, and nothing but these tells it to begin. */
    __threadfence();
    combine<ST_ATTENDERS, 1, MV_THREADS>(a, op.p, part.kv_head, part.item, 1, active, a.width, room.sums,
                                         put);
}

#endif
