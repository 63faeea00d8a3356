/* attn_scores, softmax, attn_values, and attn_rows, which does all three for one item at a time. Both have
 * the same sums:
 *  - a score is one chain of fmaf over the head's width, times the scale, rounded to the activations' type;
 *  - a softmax adds exponentials in THREADS chains (slot modulo THREADS), then over the block, and rounds;
 *  - a weighted sum of values adds in PARTS chains (slot modulo PARTS), then these in their order.
 * In a ring, slots are counted from the token's origin (attention.cuh), in scores and weights too. One that
 * the token does not see has the score -INFINITY, so the weight 0. Its key and value are not read: they may
 * be NaN. */
#include "backend/cuda/attention.cuh"

#define THREADS 256
#define PARTS   16
/* 16-byte chunks of a value that a block sums at a time. */
#define PASS_CHUNKS (THREADS / PARTS)

/* R items of a block may be of several sequences, each with keys and values of its own. */
template <int R> struct sequences { /* by item */
    int of[R];
    int64_t origin[R]; /* of the item alone */
    int position[R];   /* less its origin */
    int count[R];      /* slots up to the last that it sees; 0 where there is no item */
};
/* All threads call it. `s`: in shared memory. */
template <int R, bool RING>
FB_DEVICE void find_sequences(const fb_attention &a, int item, int live, sequences<R> *s) {
    int r = threadIdx.x;
    if (r < R) {
        int row = fb_item_row(a, item + min(r, live - 1));
        const int64_t origin = RING ? fb_row_origin(a.slots, row) : 0;
        const int position = fb_position(a.slots, origin, row);
        s->of[r] = a.slots.rows[row].sequence;
        if (RING) s->origin[r] = origin;
        s->position[r] = position;
        s->count[r] = r < live ? fb_count(a.slots, position) : 0;
    }
    __syncthreads();
}

/* Items of one sequence. Their slots are counted from the first one's origin here. */
template <int R> struct together {
    int begin, end;   /* items */
    int count;        /* slots up to the last that one of them sees */
    int before[R];    /* of a ring: the item's own origin is so many slots further … */
    int sinks, first; /* … they see nothing else than slots [0, sinks) and from `first` on … */
    int turn;         /* … and fb_turn of their origin */
};
/* The items from `begin` on that are of its sequence. */
template <int R, bool RING>
FB_DEVICE together<R> items_together(const fb_attention &a, const sequences<R> &s, int begin) {
    together<R> t = {begin, R, 0, {0}, 0, INT_MAX, 0};
#pragma unroll
    for (int r = R - 1; r >= 0; r--)
        if (r > begin && (s.of[r] != s.of[begin] || (RING && s.origin[r] < s.origin[begin]))) t.end = r;
#pragma unroll
    for (int r = 0; r < R; r++) {
        if (r < begin || r >= t.end) continue;
        if (RING) {
            t.before[r] = (int)(s.origin[r] - s.origin[begin]);
            t.sinks = max(t.sinks, fb_seen_sinks(a.slots, s.position[r]).end);
            t.first = min(t.first, fb_seen_in_ring(a.slots, s.position[r]).begin + t.before[r]);
        }
        t.count = max(t.count, s.count[r] + t.before[r]);
    }
    if (RING) t.turn = fb_turn(a.slots, s.origin[begin]);
    return t;
}
/* An item's slot, counted from its own origin. Before its first one of the ring: negative. */
template <int R> FB_DEVICE int own_slot(const fb_attention &a, const together<R> &t, int r, int slot) {
    if (slot < a.slots.begin) return slot;
    slot -= t.before[r];
    return slot < a.slots.begin ? -1 : slot;
}

/* ---- the three sums ---- */

/* sum[r] = q[r] . key, with q[r] at q + r * stride in shared memory, padded with zeros to whole chunks. */
template <class K, int R>
FB_DEVICE void score_of(const K *key, const float *q, int stride, int width, bool wide, float *sum) {
    constexpr int E = 16 / sizeof(K);
#pragma unroll
    for (int r = 0; r < R; r++) sum[r] = 0;
#pragma unroll(R == 1 ? 4 : 2)
    for (int c = 0; c < stride / E; c++) {
        float x[E];
        fb_load_chunk(key, c, width, wide, x);
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int e = 0; e < E; e++) sum[r] = fmaf(q[r * stride + c * E + e], x[e], sum[r]);
    }
}

FB_DEVICE float block_max(float x, float *smem) {
    int warp = threadIdx.x / FB_WARP, lane = threadIdx.x % FB_WARP;
    x = fb_warp_max(x);
    if (lane == 0) smem[warp] = x;
    __syncthreads();
    x = smem[0];
    for (int w = 1; w < THREADS / FB_WARP; w++) x = fmaxf(x, smem[w]);
    __syncthreads();
    return x;
}

/* The softmax of one row by a block of THREADS; x and y may be the same. Each element is read and written by
 * one thread. */
template <class S> FB_DEVICE void softmax_of(const S *x, S *y, int count, fb_dtype act, float *smem) {
    float max_score = -INFINITY, sum = 0;
    for (int j = threadIdx.x; j < count; j += THREADS) max_score = fmaxf(max_score, fb_widen(x[j]));
    max_score = block_max(max_score, smem);
    for (int j = threadIdx.x; j < count; j += THREADS) sum += expf(fb_widen(x[j]) - max_score);
    float scale = 1.0f / fb_block_sum(sum, smem);
    for (int j = threadIdx.x; j < count; j += THREADS)
        y[j] = fb_narrow<S>(fb_round_as(act, expf(fb_widen(x[j]) - max_score) * scale));
}

/* The slots [begin, end) lie one behind another in the cache, `move` further. */
struct stretch {
    int begin, end, move;
};
/* Stretch k of what is seen of slots [from, to), in their order: that of the sinks, that up to the ring's end
 * in the cache, that from its beginning on. Each may be empty. `first`: the first slot of the ring that is
 * seen. A dense cache has one, the first. */
template <bool RING>
FB_DEVICE stretch stretch_of(const fb_slots &s, int turn, int sinks, int first, int k, int from, int to) {
    if (!RING) return {from, to, 0};
    if (k == 0) return {from, min(to, sinks), 0};
    const int wrap = s.begin + s.size - turn;
    from = max(from, first);
    return k == 1 ? stretch{from, min(to, wrap), turn} : stretch{max(from, wrap), to, turn - s.size};
}

/* acc[r] += p[r] * v, over this thread's part of a stretch's slots that are below count[r]. p[r] lies at p +
 * r * stride and begins with slot `from`. */
template <class K, int R, bool RING>
FB_DEVICE void values_of(const fb_attention &a, const fb_slot_rows<K> &v, const stretch &on, int chunk,
                         int part, const float *p, int stride, int from, const int *count,
                         float (*acc)[16 / sizeof(K)]) {
    constexpr int E = 16 / sizeof(K);
#pragma unroll 4
    for (int j = on.begin + (RING ? (part - on.begin) & (PARTS - 1) : part); j < on.end; j += PARTS) {
        float x[E];
        fb_load_chunk(fb_slot_row(a, v, RING ? j + on.move : j), chunk, a.width, a.wide, x);
#pragma unroll
        for (int r = 0; r < R; r++)
            if (R == 1 || j < count[r]) {
                float w = p[r * stride + j - from];
#pragma unroll
                for (int e = 0; e < E; e++) acc[r][e] = fmaf(w, x[e], acc[r][e]);
            }
    }
}

/* Adds the PARTS partial sums of R items in order and stores them: columns of `chunks` chunks from `first`
 * on. `sums`: [PARTS][R][chunks * E] in shared memory. */
template <class K, int R>
FB_DEVICE void store_values(const fb_attention &a, int kv_head, int item, int live, int first, int chunks,
                            int chunk, int part, const float (*acc)[16 / sizeof(K)], float *sums) {
    constexpr int E = 16 / sizeof(K);
    int cols = chunks * E;
    if (part < PARTS)
        for (int r = 0; r < R; r++)
            for (int e = 0; e < E; e++) sums[(part * R + r) * cols + chunk * E + e] = acc[r][e];
    __syncthreads();
    for (int i = threadIdx.x; i < live * cols; i += blockDim.x) {
        int r = i / cols, col = i % cols;
        float sum = sums[r * cols + col];
        for (int n = 1; n < PARTS; n++) sum += sums[(n * R + r) * cols + col];
        if (first * E + col < a.width)
            fb_store_as(a.out_type, a.out, fb_item_out(a, kv_head, item + r) + first * E + col, sum);
    }
    __syncthreads();
}

template <class K>
FB_DEVICE void load_query(const fb_attention &a, int kv_head, int item, bool sink, int stride, float *q) {
    for (int i = threadIdx.x; i < stride; i += blockDim.x)
        q[i] = i < a.width ? fb_load_as(a.q_type, fb_queries(a, sink), fb_item_q(a, kv_head, item, sink) + i)
                           : 0;
}

/* ---- attn_scores ---- */

#define SCORE_THREADS 128

/* A thread has one key and R items. Each lane reads its own key, chunk by chunk. A warp touches 32 whole
 * keys, which stay in the L1 meanwhile. */
template <class K, int R, bool RING>
__global__ void __launch_bounds__(SCORE_THREADS) scores_kernel(fb_attention a) {
    fb_let_next_start();
    fb_wait_for_previous();
    constexpr int E = 16 / sizeof(K);
    FB_SHARED(float, q); /* [R][stride]; with sinks, as many again for them */
    int stride = (a.width + E - 1) / E * E, kv_head = blockIdx.y, item = blockIdx.z * R;
    int live = min(R, a.rows * a.group - item);
    int first = blockIdx.x * SCORE_THREADS, j = first + threadIdx.x;
    __shared__ sequences<R> items;
    find_sequences<R, RING>(a, item, live, &items);
    int most = 0;
#pragma unroll
    for (int r = 0; r < R; r++) most = max(most, items.count[r]);
    if (!RING && first >= most) return; /* in a ring, items have origins of their own */
    for (int sink = 0; sink <= (first < a.second); sink++)
        for (int r = 0; r < R; r++)
            load_query<K>(a, kv_head, item + (r < live ? r : 0), sink, stride, q + (sink * R + r) * stride);
    __syncthreads();
    for (int begin = 0; begin < live;) {
        const together<R> t = items_together<R, RING>(a, items, begin);
        begin = t.end;
        if (j >= t.count) continue;
        float sum[R];
        if (!RING || j < t.sinks || j >= t.first) {
            fb_slot_rows<K> keys = fb_slot_rows_of<K>(a, items.of[t.begin], kv_head, a.k_at);
            score_of<K, R>(fb_slot_row(a, keys, RING ? fb_physical(a.slots, t.turn, j) : j),
                           j < a.second ? q + R * stride : q, stride, a.width, a.wide, sum);
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            const int slot = RING ? own_slot(a, t, r, j) : j;
            if (r < t.begin || r >= t.end || slot < 0 || slot >= items.count[r]) continue;
            bool seen = !RING || fb_sees(a.slots, items.position[r], slot);
            fb_store_as(a.out_type, a.out, fb_item_out(a, kv_head, item + r) + slot,
                        seen ? fb_capped(sum[r] * a.scale, a.cap) : -INFINITY);
        }
    }
}

template <class K, int R, bool RING>
static int launch_scores(const fb_attention *a, const fb_cuda_context *cx) {
    constexpr int E = 16 / sizeof(K);
    dim3 grid((unsigned)fb_ceil(fb_attention_reach(a, cx), SCORE_THREADS), (unsigned)a->kv_heads,
              (unsigned)fb_ceil(a->rows * a->group, R));
    int queries = a->second ? 2 * R : R;
    return FB_LAUNCH(cx, grid, SCORE_THREADS, (size_t)(queries * fb_ceil(a->width, E) * E) * sizeof(float),
                     (scores_kernel<K, R, RING>), *a);
}

int fb_cuda_attn_scores(const fb_call *call, const fb_cuda_context *cx) {
    fb_attention a = fb_attention_of(call, cx);
    bool one = a.rows * a.group == 1;
    int result = 1;
    FB_FOR_TYPE(a.kv_type, K,
                result = a.ring ? one ? launch_scores<K, 1, true>(&a, cx) : launch_scores<K, 8, true>(&a, cx)
                         : one ? launch_scores<K, 1, false>(&a, cx)
                                : launch_scores<K, 8, false>(&a, cx));
    return result;
}

/* ---- softmax ---- */

struct softmax_views {
    const void *x;
    void *y;
    int64_t x_row, x_head, y_row, y_head;
    fb_slots slots;
    int heads;
    fb_dtype act;
};

/* A block computes one row of one head. */
template <class T> __global__ void __launch_bounds__(THREADS) softmax_kernel(softmax_views s) {
    fb_let_next_start();
    fb_wait_for_previous();
    __shared__ float smem[33];
    int64_t head = blockIdx.x % s.heads, row = blockIdx.x / s.heads;
    softmax_of((const T *)s.x + row * s.x_row + head * s.x_head, (T *)s.y + row * s.y_row + head * s.y_head,
               fb_count(s.slots, fb_position(s.slots, fb_row_origin(s.slots, (int)row), (int)row)), s.act,
               smem);
}

int fb_cuda_softmax(const fb_call *call, const fb_cuda_context *cx) {
    const fb_view *x = &call->in[0], *y = &call->out[0];
    softmax_views s;
    s.x = x->data;
    s.y = y->data;
    s.x_row = x->row_stride;
    s.x_head = x->head_stride;
    s.y_row = y->row_stride;
    s.y_head = y->head_stride;
    s.slots = fb_slots_of(call);
    s.heads = (int)x->heads;
    s.act = x->dtype;
    int result = 1;
    FB_FOR_TYPE(x->dtype, T,
                result = FB_LAUNCH(cx, (unsigned)(x->heads * call->rows), THREADS, 0, softmax_kernel<T>, s));
    return result;
}

/* ---- attn_values ---- */

/* Slots whose probabilities are in shared memory at a time. */
#define SPAN 256

/* A block computes R items; a thread is one (part, chunk). */
template <class K, int R, bool RING>
__global__ void __launch_bounds__(THREADS) values_kernel(fb_attention a) {
    fb_let_next_start();
    fb_wait_for_previous();
    constexpr int E = 16 / sizeof(K);
    FB_SHARED(float, p);
    float *sums = p + R * SPAN;
    int kv_head = blockIdx.y, item = blockIdx.x * R, live = min(R, a.rows * a.group - item);
    int chunks = (a.width + E - 1) / E, most = min(chunks, PASS_CHUNKS);
    int chunk = threadIdx.x % most, part = threadIdx.x / most;
    __shared__ sequences<R> items;
    find_sequences<R, RING>(a, item, live, &items);
    for (int first = 0; first < chunks; first += most) {
        int now = min(most, chunks - first);
        float acc[R][E];
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int e = 0; e < E; e++) acc[r][e] = 0;
        for (int begin = 0; begin < live;) {
            const together<R> t = items_together<R, RING>(a, items, begin);
            begin = t.end;
            fb_slot_rows<K> v = fb_slot_rows_of<K>(a, items.of[t.begin], kv_head, a.v_at);
            int count[R];
#pragma unroll
            for (int r = 0; r < R; r++)
                count[r] = r >= t.begin && r < t.end ? items.count[r] + t.before[r] : 0;
            for (int from = 0; from < t.count; from += SPAN) {
                int to = min(from + SPAN, t.count);
#pragma unroll
                for (int r = 0; r < R; r++)
                    for (int j = from + threadIdx.x; j < min(to, count[r]); j += blockDim.x) {
                        const int slot = RING ? own_slot(a, t, r, j) : j;
                        p[r * SPAN + j - from] =
                            slot < 0 ? 0 : fb_load_as(a.q_type, a.q, fb_item_q(a, kv_head, item + r) + slot);
                    }
                __syncthreads();
                for (int k = 0; chunk < now && k < (RING ? 3 : 1); k++)
                    values_of<K, R, RING>(a, v,
                                          stretch_of<RING>(a.slots, t.turn, t.sinks, t.first, k, from, to),
                                          first + chunk, part, p, SPAN, from, count, acc);
                __syncthreads();
            }
        }
        store_values<K, R>(a, kv_head, item, live, first, now, chunk, chunk < now ? part : PARTS, acc, sums);
    }
}

template <class K, int R, bool RING>
static int launch_values(const fb_attention *a, const fb_cuda_context *cx) {
    constexpr int E = 16 / sizeof(K);
    int chunks = fb_ceil(a->width, E), most = chunks < PASS_CHUNKS ? chunks : PASS_CHUNKS;
    dim3 grid((unsigned)fb_ceil(a->rows * a->group, R), (unsigned)a->kv_heads);
    return FB_LAUNCH(cx, grid, (unsigned)(PARTS * most),
                     (size_t)(R * (SPAN + PARTS * most * E)) * sizeof(float), (values_kernel<K, R, RING>),
                     *a);
}

int fb_cuda_attn_values(const fb_call *call, const fb_cuda_context *cx) {
    fb_attention a = fb_attention_of(call, cx);
    a.group = (int)(call->out[0].heads / call->kv.heads);
    bool one = a.rows * a.group == 1;
    int result = 1;
    FB_FOR_TYPE(a.kv_type, K,
                result = a.ring ? one ? launch_values<K, 1, true>(&a, cx) : launch_values<K, 4, true>(&a, cx)
                         : one ? launch_values<K, 1, false>(&a, cx)
                                : launch_values<K, 4, false>(&a, cx));
    return result;
}

/* ---- attn_rows ---- */

/* Scores of up to SHARED_SCORES slots are kept in shared memory (40 KB: five blocks on a multiprocessor).
 * Longer ones are kept in scratch, by SCRATCH_BLOCKS blocks at most. */
#define SHARED_SCORES  10240
#define SCRATCH_BLOCKS 264

template <class K, bool RING>
__global__ void __launch_bounds__(THREADS) rows_kernel(fb_attention a, float *scratch) {
    fb_let_next_start();
    fb_wait_for_previous();
    constexpr int E = 16 / sizeof(K);
    FB_SHARED(float, smem);
    int chunks = (a.width + E - 1) / E, stride = chunks * E, most = min(chunks, PASS_CHUNKS);
    float *q = smem + 36, *sink_q = q + (a.second ? stride : 0); /* [stride] each */
    float *sums = sink_q + stride, *scores = sums + PARTS * most * E;
    if (scratch) scores = scratch + blockIdx.x * a.capacity;
    int items = a.rows * a.group, chunk = threadIdx.x % most, part = threadIdx.x / most;
    for (int n = blockIdx.x; n < items * a.kv_heads; n += gridDim.x) {
        int kv_head = n / items, item = n % items, row = fb_item_row(a, item);
        const int64_t origin = RING ? fb_row_origin(a.slots, row) : 0;
        int sequence = a.slots.rows[row].sequence, position = fb_position(a.slots, origin, row);
        int count = fb_count(a.slots, position), turn = RING ? fb_turn(a.slots, origin) : 0;
        fb_slot_rows<K> k = fb_slot_rows_of<K>(a, sequence, kv_head, a.k_at);
        fb_slot_rows<K> v = fb_slot_rows_of<K>(a, sequence, kv_head, a.v_at);
        load_query<K>(a, kv_head, item, false, stride, q);
        if (a.second) load_query<K>(a, kv_head, item, true, stride, sink_q);
        __syncthreads();
        for (int j = threadIdx.x; j < count; j += THREADS) {
            float sum = -INFINITY;
            if (!RING || fb_sees(a.slots, position, j)) {
                score_of<K, 1>(fb_slot_row(a, k, RING ? fb_physical(a.slots, turn, j) : j),
                               j < a.second ? sink_q : q, stride, a.width, a.wide, &sum);
                sum = fb_capped(sum * a.scale, a.cap);
            }
            scores[j] = fb_round_as(a.q_type, sum);
        }
        softmax_of(scores, scores, count, a.q_type, smem);
        __syncthreads();
        for (int first = 0; first < chunks; first += most) {
            int now = min(most, chunks - first), mine = chunk < now ? part : PARTS;
            float acc[1][E];
#pragma unroll
            for (int e = 0; e < E; e++) acc[0][e] = 0;
            for (int i = 0; mine < PARTS && i < (RING ? 3 : 1); i++)
                values_of<K, 1, RING>(a, v,
                                      stretch_of<RING>(a.slots, turn, fb_seen_sinks(a.slots, position).end,
                                                       fb_seen_in_ring(a.slots, position).begin, i, 0, count),
                                      first + chunk, mine, scores, 0, 0, &count, acc);
            store_values<K, 1>(a, kv_head, item, 1, first, now, chunk, mine, acc, sums);
        }
    }
}

template <class K> static int launch_rows(const fb_attention *a, const fb_cuda_context *cx) {
    constexpr int E = 16 / sizeof(K);
    int chunks = fb_ceil(a->width, E), most = chunks < PASS_CHUNKS ? chunks : PASS_CHUNKS;
    int64_t reach = fb_attention_reach(a, cx), blocks = (int64_t)a->rows * a->group * a->kv_heads;
    int64_t floats = 36 + (a->second ? 2 : 1) * chunks * E + PARTS * most * E;
    float *scratch = NULL;
    if (reach > SHARED_SCORES) {
        scratch = (float *)(void *)(cx->scratch + FB_CUDA_COUNTERS);
        blocks = blocks < SCRATCH_BLOCKS ? blocks : SCRATCH_BLOCKS;
    } else {
        floats += reach;
    }
    return a->ring ? FB_LAUNCH(cx, (unsigned)blocks, THREADS, (size_t)floats * sizeof(float),
                               (rows_kernel<K, true>), *a, scratch)
                   : FB_LAUNCH(cx, (unsigned)blocks, THREADS, (size_t)floats * sizeof(float),
                               (rows_kernel<K, false>), *a, scratch);
}

int fb_cuda_attn_rows(const fb_call *call, const fb_cuda_context *cx) {
    fb_attention a = fb_attention_of(call, cx);
    int result = 1;
    FB_FOR_TYPE(a.kv_type, K, result = launch_rows<K>(&a, cx));
    return result;
}

/* What attn_rows or attn_flash needs, whichever is more. */
int64_t fb_cuda_attention_scratch(const fb_call *call, int64_t rows, int64_t capacity) {
    const fb_kv *kv = &call->kv;
    int64_t group = call->in[0].heads / kv->heads;
    int64_t exact = capacity > SHARED_SCORES ? SCRATCH_BLOCKS * capacity * (int64_t)sizeof(float) : 0;
    int64_t flash = fb_cuda_decode_scratch(kv->heads, group, kv->width, rows, capacity);
    return FB_CUDA_COUNTERS + (exact > flash ? exact : flash);
}
