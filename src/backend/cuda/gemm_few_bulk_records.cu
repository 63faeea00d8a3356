/* Products of up to 64 quantised rows (fb_q8) with weights in records (records.cuh), in integers on tensor
 * cores. All is as in gemm_few_bulk_quant.cu, but a row of weights is one copy, and a type is known at run
 * time: a warp looks at it once for a piece.
 *
 * The bits are those of fb_record_product. A part's scale times the block's is exact in float32, and so are
 * the integer sums of a chunk. So the order of these products makes no difference, only where they are
 * rounded. */
#include "backend/cuda/gemm_few_bulk.cuh"
#include "backend/cuda/records.cuh"

#define WIDTH      16 /* outputs of a tile */
#define OCTET      8  /* chunks */
#define LANES      (FB_RECORD_CHUNKS / FB_WARP)
#define MAGIC      12582912.0f
#define MAGIC_BITS 0x4b400000

/* What a lane has of a chunk of weights: quads t and t + 4 of output g, scales of outputs 2 t and 2 t + 1. */
struct record_weights {
    uint32_t b[2];
    float scale[2][2]; /* of an output's parts */
    float d[2];        /* of the block, where parts are of 16 columns */
    float least[2][2]; /* what a sum of x is multiplied with */
    float m[2];
};

/* Integers from 0 on, less the offset, a power of two, as signed bytes. */
static FB_DEVICE uint32_t less_offset(uint32_t quad, uint32_t offset) {
    if (!offset) return quad;
    quad ^= offset * 0x01010101u;
    return quad | (quad & offset * 0x01010101u) * (256 / offset - 2);
}

template <fb_dtype D>
static FB_DEVICE record_weights load_weights(const uint8_t *w, int pitch, int count, int chunk) {
    constexpr fb_record_type t = fb_record_type_of(D);
    const int g = threadIdx.x % FB_WARP / 4, q = threadIdx.x % 4;
    record_weights of = {};
    const fb_record_place at = fb_record_at(t, w + g * pitch, count, chunk);
    const uint32_t *low = (const uint32_t *)at.low, *high = (const uint32_t *)at.high;
    if (t.codes) {
        const uint2 both = fb_decode_nibbles(t.codes, low[q]);
        of.b[0] = both.x, of.b[1] = both.y;
    } else {
        of.b[0] = less_offset(fb_record_quad(t, low, high, q), t.offset);
        of.b[1] = less_offset(fb_record_quad(t, low, high, q + 4), t.offset);
    }
#pragma unroll
    for (int o = 0; o < 2; o++) {
        const fb_record_scales s =
            fb_record_scales_of(t, fb_record_at(t, w + (2 * q + o) * pitch, count, chunk));
        of.d[o] = s.d;
        of.m[o] = -s.m;
#pragma unroll
        for (int p = 0; p < 32 / t.part; p++) {
            of.scale[o][p] = (t.part == 32 ? s.d : 1) * (float)s.scale[p];
            of.least[o][p] = (float)s.least[p];
        }
        if (t.minimums == FB_MIN_BLOCK) of.least[o][0] = s.m;
        if (t.minimums == FB_MIN_PART) of.least[o][0] *= -s.m;
    }
    return of;
}

/* fb_record_product: `first` and `second` are integer sums plus MAGIC, as bits; of parts of 32 columns the
 * first has all. sums: of x. */
static FB_DEVICE float product_of(const fb_record_type t, const record_weights &w, int o, int first,
                                  int second, const float *sums) {
    float v;
    if (t.part == 32 && !t.power)
        v = fmaf(__int_as_float(first), w.scale[o][0], -MAGIC * w.scale[o][0]);
    else if (t.part == 32) /* MAGIC times the largest powers is infinite */
        v = (__int_as_float(first) - MAGIC) * w.scale[o][0];
    else
        v = fmaf(__int_as_float(second) - MAGIC, w.scale[o][1],
                 fmaf(__int_as_float(first), w.scale[o][0], -MAGIC * w.scale[o][0])) *
            w.d[o];
    if (t.minimums == FB_MIN_BLOCK || t.minimums == FB_MIN_PART) v = fmaf(sums[0], w.least[o][0], v);
    if (t.minimums == FB_MIN_NIBBLE)
        v = fmaf(fmaf(sums[1], w.least[o][1], sums[0] * w.least[o][0]), w.m[o], v);
    return v;
}

template <int I> struct bulk_records {
    static const int rows = 16 * I, width = WIDTH, partial = FB_SUMS_OCTETS;
    static const int adders = 4, groups = I == 1 ? 2 : 1, slots = 2, group = I == 1 ? 8 : 4;
    /* Bytes of a row of a piece of x, and 16 more: the same word of eight rows lies in different banks. */
    static const int x_pitch = FB_RECORD_CHUNKS * (int)sizeof(fb_q8) + 16;
    using producer = bulk_producer<bulk_records>;
    using memory = bulk_shared<bulk_records>;

    static FB_DEVICE bulk_source source_of(const gemm_segment &s) {
        const fb_sums sums = fb_sums_of_records(s.k);
        bulk_source source = {};
        source.x = s.x;
        source.x_row = s.x_row;
        source.w = s.w;
        source.w_row = s.w_row;
        source.n = s.n;
        source.chunks = sums.chunks;
        source.piece = FB_RECORD_CHUNKS;
        source.pieces = sums.pieces;
        source.type = s.w_dtype;
        return source;
    }
    static FB_DEVICE const uint8_t *x_at(const bulk_source &s, int chunk) {
        return s.x + chunk * (int)sizeof(fb_q8);
    }

    /* A lane copies a row. */
    static FB_DEVICE void put_x(producer &p, const bulk_source &s, const bulk_item &item, int chunk) {
        const int buffer = p.x % p.shares.inputs, turn = p.x / p.shares.inputs;
        const int bytes = item.chunks * (int)sizeof(fb_q8);
        uint64_t *full = p.shared->x_full + buffer;
        if (turn) mv_barrier_wait(p.shared->x_empty + buffer, (turn - 1) & 1);
        if (p.lane == 0) mv_barrier_expect(full, p.rows * bytes);
        __syncwarp();
        if (p.lane < p.rows)
            mv_bulk_copy(p.inputs + buffer * p.shares.input + p.lane * x_pitch,
                         x_at(s, chunk) + (p.first + p.lane) * s.x_row, bytes, full);
    }
    static FB_DEVICE void change_x(producer &p, const bulk_source &s, const bulk_item &item, int chunk) {
        p.bring_late();
        p.x = p.filled ? p.x + 1 : 0;
        p.late = true, p.announced = false, p.late_source = s, p.late_item = item, p.late_chunk = chunk;
    }

    /* Lanes 0 to 15 copy a row each. */
    static FB_DEVICE void put_weights(producer &p, int stage, const bulk_source &s, const bulk_item &item,
                                      int chunk) {
        const fb_record_type t = fb_record_type_of((fb_dtype)s.type);
        const int count = (int)min((int64_t)WIDTH, s.n - item.n), bytes = fb_record_size(t, item.chunks);
        const int begin = chunk / FB_RECORD_CHUNKS * fb_record_size(t, FB_RECORD_CHUNKS);
        uint64_t *full = p.shared->full + stage;
        if (p.lane == 0) {
            p.shared->item[stage] = item;
            mv_barrier_expect(full, count * bytes);
        }
        __syncwarp();
        if (p.lane >= count) return;
        uint8_t *to = p.stages + stage * p.shares.stage + p.lane * (p.shares.stage / WIDTH);
        const uint8_t *from = s.w + (item.n + p.lane) * s.w_row + begin;
        if (p.shares.across > 1) /* others read it, too */
            mv_bulk_copy(to, from, bytes, full);
        else
            mv_bulk_copy_evict_first(to, from, bytes, full);
    }

    /* Chunk `chunk` of the piece times the rows, scaled and added to acc. x: the lane's row of x; w: of the
     * warp's first output. */
    template <fb_dtype D>
    static FB_DEVICE void add_chunk(const uint8_t *x, const uint8_t *w, int pitch, int count, int chunk,
                                    float (*acc)[4]) {
        constexpr fb_record_type t = fb_record_type_of(D);
        const record_weights weights = load_weights<D>(w, pitch, count, chunk);
#pragma unroll
        for (int i = 0; i < I; i++) {
            uint32_t a[4];
            float x_scale[2], sums[2][2], *sum = acc[i];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint8_t *block = x + (16 * i + 8 * half) * x_pitch + chunk * (int)sizeof(fb_q8);
                const uint2 head = *(const uint2 *)(const void *)block; /* scale and sum */
                const uint8_t *at = block + 8 + 4 * (threadIdx.x % 4);
                x_scale[half] = __uint_as_float(head.x);
                a[half] = *(const uint32_t *)(const void *)at;
                a[half + 2] = *(const uint32_t *)(const void *)(at + 16);
                sums[half][0] = t.minimums == FB_MIN_NONE ? 0 : (float)(int)head.y;
                sums[half][1] = 0;
                if (t.minimums == FB_MIN_NIBBLE) {
                    int first = __dp4a((int)a[half], 0x01010101, 0);
                    first += __shfl_xor_sync(FB_ALL, first, 1);
                    first += __shfl_xor_sync(FB_ALL, first, 2);
                    sums[half][0] = (float)first;
                    sums[half][1] = (float)((int)head.y - first);
                }
            }
            int d[4], e[4] = {0, 0, 0, 0};
            if (t.part == 32) {
                gemm_mma_bytes(d, a, weights.b, MAGIC_BITS, MAGIC_BITS);
            } else {
                gemm_mma_bytes_16(d, a, weights.b[0], MAGIC_BITS, MAGIC_BITS);
                gemm_mma_bytes_16(e, a + 2, weights.b[1], MAGIC_BITS, MAGIC_BITS);
            }
#pragma unroll
            for (int j = 0; j < 4; j++)
                sum[j] = fmaf(product_of(t, weights, j % 2, d[j], e[j], sums[j / 2]), x_scale[j / 2], sum[j]);
        }
    }

    static FB_DEVICE void add(float (*to)[4], const float (*from)[4]) {
#pragma unroll
        for (int i = 0; i < I * 4; i++) to[i / 4][i % 4] += from[i / 4][i % 4];
    }
    static FB_DEVICE void copy(float (*to)[4], const float (*from)[4]) {
#pragma unroll
        for (int i = 0; i < I * 4; i++) to[i / 4][i % 4] = from[i / 4][i % 4];
    }

    /* The warp's octet of the piece: eight lanes, added as a tree. Lane l has chunks l, l + 32, … */
    template <fb_dtype D>
    static FB_DEVICE void multiply(const uint8_t *x, const uint8_t *w, int pitch, int octet, int count,
                                   float (*sums)[4]) {
        float one[I][4], two[I][4], four[I][4]; /* sums of lanes that wait for their neighbours */
#pragma unroll 1
        for (int c = 0; c < OCTET; c++) {
#pragma unroll
            for (int i = 0; i < I * 4; i++) sums[i / 4][i % 4] = 0;
#pragma unroll 1
            for (int chunk = octet * OCTET + c; chunk < count; chunk += FB_WARP)
                add_chunk<D>(x, w, pitch, count, chunk, sums);
            if (c % 2 == 0) copy(one, sums);
            if (c % 2) add(sums, one);
            if (c % 4 == 1) copy(two, sums);
            if (c % 4 == 3) add(sums, two);
            if (c == 3) copy(four, sums);
            if (c == 7) add(sums, four);
        }
    }
    static FB_DEVICE void multiply_type(fb_dtype type, const uint8_t *x, const uint8_t *w, int pitch,
                                        int octet, int count, float (*sums)[4]) {
        switch (type) {
#define MULTIPLY(D)                                                                                          \
    case D:                                                                                                  \
        multiply<D>(x, w, pitch, octet, count, sums);                                                        \
        break;
            FB_EACH_RECORD_TYPE(MULTIPLY)
#undef MULTIPLY
        default:
            break;
        }
    }

    static FB_DEVICE void consume(memory *shared, const uint8_t *stages, const uint8_t *inputs,
                                  const bulk_shares &shares) {
        const int warp = (int)threadIdx.x / FB_WARP, lane = (int)threadIdx.x % FB_WARP;
        const int octet = warp % FB_SUMS_OCTETS, output = warp / FB_SUMS_OCTETS * 8;
        const int pitch = shares.stage / WIDTH;
        int mine = -1; /* the number of the piece of x */
        const uint8_t *x = inputs;
        bulk_place place = {0, 0};
        bulk_slots<bulk_records> slots = {};
        for (;;) {
            mv_barrier_wait(shared->full + place.at, place.phase);
            const bulk_item item = shared->item[place.at];
            if (item.what == BULK_END) return slots.end(shared);
            if (item.x != mine) {
                if (mine >= 0 && lane == 0) mv_barrier_arrive(shared->x_empty + mine % shares.inputs);
                mine = item.x;
                mv_barrier_wait(shared->x_full + mine % shares.inputs, mine / shares.inputs & 1);
                x = inputs + mine % shares.inputs * shares.input + lane / 4 * x_pitch;
            }
            float sums[I][4];
            multiply_type((fb_dtype)item.type, x, stages + place.at * shares.stage + output * pitch, pitch,
                          octet, item.chunks, sums);
            __syncwarp();
            if (lane == 0) mv_barrier_arrive(shared->empty + place.at);
            place.next(shares.stages);
            const int slot = slots.wait(shared, item);
            float *to = &shared->sums[slot][octet][lane / 4][output + lane % 4 * 2];
#pragma unroll
            for (int i = 0; i < I; i++) {
                *(float2 *)(to + 16 * i * WIDTH) = make_float2(sums[i][0], sums[i][1]);
                *(float2 *)(to + (16 * i + 8) * WIDTH) = make_float2(sums[i][2], sums[i][3]);
            }
            slots.summed(shared, slot, item);
        }
    }
};

/* ---- launching ---- */

#define LEAST_STAGES 2

/* A row of a stage: an odd multiple of 16 bytes, so that a word of eight rows lies in different banks. */
static int64_t pitch_of(int64_t bytes) { return (bytes / 16 | 1) * 16; }

/* Room for two pieces of x if there is enough for three stages besides, else for one. No stages: too little
 * memory. */
template <class P> static bulk_shares shares_of(const fb_cuda_limits *limits, int64_t bytes) {
    bulk_shares shares = {};
    shares.lanes = LANES;
    shares.stage = (int32_t)(WIDTH * pitch_of(bytes));
    shares.input = P::rows * P::x_pitch;
    shares.inputs = bulk_stages<P>(limits, shares.stage, 2 * (int64_t)shares.input, 3) ? 2 : 1;
    shares.stages = bulk_stages<P>(limits, shares.stage, (int64_t)shares.inputs * shares.input, LEAST_STAGES);
    return shares;
}

/* Bulk copies need multiples of 16 bytes. */
bool gemm_few_records_fits(const fb_weight *w, const fb_view *x, const fb_cuda_limits *limits) {
    return limits->major >= 9 && w->cols % 64 == 0 && fb_aligned(w->data, 16) &&
           (!x || (fb_aligned(x->data, 16) && x->row_stride % 4 == 0)) &&
           shares_of<bulk_records<2>>(limits, fb_record_bytes(w->dtype, FB_RECORD_COLUMNS)).stages > 0;
}

int gemm_few_bulk_records(const gemm_job *job, const fb_cuda_context *cx) {
    int64_t most = 0;
    for (int u = 0; u < job->units; u++)
        for (int p = job->first; p < job->first + job->count; p++) {
            const gemm_segment &s = job->segment[job->unit[u].segment + p];
            int64_t cols = s.k < FB_RECORD_COLUMNS ? s.k : FB_RECORD_COLUMNS;
            int64_t bytes = fb_record_bytes(s.w_dtype, cols);
            if (bytes > most) most = bytes;
        }
    return job->rows <= 16
               ? bulk_launch<bulk_records<1>>(job, cx, shares_of<bulk_records<1>>(cx->limits, most))
               : bulk_launch<bulk_records<2>>(job, cx, shares_of<bulk_records<2>>(cx->limits, most));
}
