/* The CUDA kernels around a cache that forgets: fused against plain to the bit, attn_flash against the
 * reference, a token alone against the same token in a step of several, and rings of several sizes against
 * each other. Slots that no token sees are NaN, and so is what lies beyond the cache. */
#include <math.h>
#include <string.h>

#include "backend/cuda/cuda_harness.h"

enum { POOL = 64 };

static fbt_guard pool[POOL];
static int pooled;
static fbt_random random_numbers;

/* Windows smaller and larger than a tile, a block and a split; with more slots than attn_flash reads for each
 * item alone, and with splits that have sinks and slots of the ring. Steps at the beginning, where the ring
 * fills, where it has wrapped, and at positions beyond 32 bits. Rings are as small as a session's may be for
 * the step. */
static const struct ring_case {
    int64_t sinks, window;
    int64_t position, rows;
    int64_t heads, kv_heads, width;
    int32_t rotary;
    spacing spacing;
} cases[] = {
    {0, 1, 0, 8, 1, 1, 2, 2, IN_ORDER},
    {0, 5, 100, 25, 4, 2, 7, 4, IN_ORDER},
    {0, 40, 39, 100, 2, 2, 16, 16, IN_ORDER},
    {1, 9, 3, 7, 6, 3, 33, 32, IN_ORDER},
    {2, 10, 11, 1, 5, 5, 64, 16, IN_ORDER},
    {2, 10, 5000, 29, 4, 2, 16, 8, IN_ORDER},
    {4, 120, 119, 8, 2, 1, 24, 8, IN_ORDER},
    {4, 120, 401, 18, 4, 4, 20, 20, IN_ORDER},
    {4, 60, 250, 130, 2, 2, 80, 20, IN_ORDER},
    {4, 252, 900, 5, 3, 1, 128, 128, IN_ORDER},
    {20, 40, 15, 30, 4, 1, 64, 64, IN_ORDER},
    {20, 40, 19, 2, 12, 1, 20, 20, IN_ORDER},
    {130, 100, 126, 70, 2, 1, 32, 32, IN_ORDER},
    {130, 100, 70000, 18, 1, 1, 80, 20, IN_ORDER},
    {3, 300, (1ll << 24) + 13, 40, 2, 2, 256, 64, IN_ORDER},
    {16, 33, (1ll << 33) + 7, 14, 2, 1, 16, 8, IN_ORDER},
    {4, 4150, (1ll << 31) + 4000, 5, 4, 1, 8, 8, IN_ORDER},
    {0, 4150, 2 * 4352 - 3, 8, 2, 2, 16, 8, IN_ORDER},
    {100, 8300, 20000, 2, 2, 1, 8, 8, IN_ORDER},
    /* Rows with gaps between their positions, the last ones after the next wrap. */
    {2, 10, 2 + 256 * 9 + 250, 7, 4, 2, 16, 8, WITH_GAPS},
    {4, 120, 4 + 384 * 3 + 377, 8, 4, 4, 32, 16, WITH_GAPS},
    {4, 60, 4 + 384 * 5 + 320, 80, 2, 1, 64, 16, WITH_GAPS},
    {0, 4150, 3 * 4352 - 5, 6, 4, 2, 16, 8, WITH_GAPS},
};
enum { CASES = sizeof cases / sizeof *cases };

/* Every pair of dtypes; an emulated device takes some of them, others for each case. */
#define FOR_CASES(s, t, c)                                                                                   \
    for (const struct ring_case *s = cases; s < cases + CASES; s++)                                          \
        for (int pair_ = 0; pair_ < 9; pair_++, give_back())                                                 \
            for (fb_dtype t = (fb_dtype)(FB_F32 + pair_ / 3), c = (fb_dtype)(FB_F32 + pair_ % 3),            \
                          *once_ = (pair_ + (s - cases) * 4) % cuda_every(3) ? NULL : &t;                    \
                 once_; once_ = NULL)

static void *take(int64_t bytes) {
    assert_true(pooled < POOL);
    pool[pooled] = fbt_guard_create((size_t)bytes, 0);
    return pool[pooled++].data;
}

static void give_back(void) {
    while (pooled) fbt_guard_free(&pool[--pooled]);
}

static fb_view view(fb_dtype t, int64_t rows, int64_t heads, int64_t width, int64_t gap) {
    int64_t stride = heads * width + gap;
    return (fb_view){take(rows * stride * fb_dtype_size(t)), t, heads, width, stride, width};
}

static fb_view filled(fb_dtype t, int64_t rows, int64_t heads, int64_t width, int64_t gap) {
    fb_view v = view(t, rows, heads, width, gap);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < heads * width; i++)
            fb_dtype_set(t, fb_view_at(&v, row, 0), i, fbt_random_normal(&random_numbers));
    return v;
}

static int64_t cache_bytes(const fb_kv *kv) {
    return kv->heads * kv->capacity * kv->width * fb_dtype_size(kv->dtype);
}

static const fb_row *rows_of(const struct ring_case *s) {
    fb_row *row = take(s->rows * (int64_t)sizeof *row);
    place_rows(row, s->rows, s->position, s->spacing);
    return row;
}

static int64_t position_of(const struct ring_case *s, int64_t row) {
    return place_of_row(s->position, s->spacing, row);
}

/* A number that depends on nothing else than its place in the text. */
static double number(int what, int64_t position, int64_t head, int64_t i) {
    uint64_t x = (uint64_t)what;
    const uint64_t parts[] = {(uint64_t)position, (uint64_t)head, (uint64_t)i};
    for (int n = 0; n < 3; n++) {
        x = (x + parts[n] + 1) * 0x9e3779b97f4a7c15u;
        x ^= x >> 31;
    }
    x *= 0xbf58476d1ce4e5b9u;
    return (double)(x >> 11) * 0x1p-51 - 2; /* [-2, 2) */
}

static void remember(const fb_kv *kv, int64_t from, int64_t to) {
    for (int64_t p = from; p < to; p++)
        for (int64_t n = 0, slot = fb_ring_slot(&kv->ring, p); n < kv->heads * kv->width; n++) {
            int64_t h = n / kv->width, i = n % kv->width;
            fb_dtype_set(kv->dtype, fb_key_at(kv, h, slot), i * FB_KV_GROUP, number(0, p, h, i));
            fb_dtype_set(kv->dtype, fb_value_at(kv, h, slot), i, number(1, p, h, i));
        }
}

/* A cache for the step, with what its tokens see; the rest is NaN. Its ring has `more` blocks more than it
 * needs. It has no slots that are not used before the ring turns. */
static fb_kv cache(fb_dtype t, const struct ring_case *s, int64_t more, bool fill) {
    int64_t first = s->position, last = position_of(s, s->rows - 1);
    fb_kv kv = {.dtype = t, .heads = s->kv_heads, .width = s->width};
    kv.ring = (fb_ring){.sinks = s->sinks, .window = s->window};
    kv.ring.begin = (s->sinks + FB_RING_BLOCK - 1) / FB_RING_BLOCK * FB_RING_BLOCK;
    kv.ring.size = fb_ring_size(s->window, last - first + 1) + more * FB_RING_BLOCK;
    kv.capacity = (fb_ring_count(&kv.ring, last) + FB_KV_GROUP - 1) / FB_KV_GROUP * FB_KV_GROUP;
    kv.k = take(cache_bytes(&kv));
    kv.v = take(cache_bytes(&kv));
    memset(kv.k, 0xff, (size_t)cache_bytes(&kv));
    memset(kv.v, 0xff, (size_t)cache_bytes(&kv));
    if (!fill) return kv;
    remember(&kv, 0, last < s->sinks ? last + 1 : s->sinks);
    remember(&kv, first - s->window > s->sinks ? first - s->window : s->sinks, last + 1);
    return kv;
}

static void run(fb_op_kind kind, fb_call call) {
    cuda_isas[0].kernels[kind](&call, &(fb_worker){.count = 1});
}

/* The rows of `have` equal those of `want` from `first` on, to the bit. */
static void same(const char *what, const struct ring_case *s, const fb_view *have, int64_t rows,
                 const fb_view *want, int64_t first) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < want->heads * want->width; i++) {
            const void *h = fb_at(fb_view_at(have, row, 0), have->dtype, i);
            const void *w = fb_at(fb_view_at(want, first + row, 0), want->dtype, i);
            double a = fb_dtype_get(have->dtype, h, 0), b = fb_dtype_get(want->dtype, w, 0);
            if (a != a || memcmp(h, w, (size_t)fb_dtype_size(want->dtype)) != 0)
                fail_msg("case %d, %s: %s: row %lld of %lld, column %lld: %.9g, should be %.9g",
                         (int)(s - cases), fb_dtype_name(want->dtype), what, (long long)(first + row),
                         (long long)s->rows, (long long)i, a, b);
        }
}

/* ---- into the cache ---- */

static void rope_kv(void **state) {
    (void)state;
    FOR_CASES(s, t, c) {
        int queries = s->sinks ? 2 : 1;
        fb_view q = filled(t, s->rows, s->heads, s->width, 5),
                k = filled(t, s->rows, s->kv_heads, s->width, 0);
        fb_view v = filled(t, s->rows, s->kv_heads, s->width, 1),
                turned = view(t, s->rows, s->kv_heads, s->width, 0);
        fb_view angles[2] = {filled(FB_F32, s->rows, 1, s->rotary, 2),
                             filled(FB_F32, s->rows, 1, s->rotary, 0)};
        fb_view want[2];
        fb_call rope = {.attr.rotary = s->rotary, .row = rows_of(s), .rows = s->rows};
        fb_call append = rope, call = rope;
        for (int n = 0; n < queries; n++) {
            rope.in[0] = q;
            rope.in[1] = call.in[3 + n] = angles[n];
            rope.out[0] = want[n] = view(t, s->rows, s->heads, s->width, 0);
            call.out[n] = view(t, s->rows, s->heads, s->width, n ? 0 : 3);
            run(FB_OP_ROPE, rope);
        }
        rope.in[0] = k;
        rope.in[1] = angles[0];
        rope.out[0] = turned;
        run(FB_OP_ROPE, rope);
        append.in[0] = turned;
        append.in[1] = v;
        append.kv = cache(c, s, 0, false);
        run(FB_OP_KV_APPEND, append);
        call.in[0] = q, call.in[1] = k, call.in[2] = v;
        call.kv = cache(c, s, 0, false);
        run(FB_OP_ROPE_KV, call);
        for (int n = 0; n < queries; n++) same("rope_kv", s, &call.out[n], s->rows, &want[n], 0);
        assert_memory_equal(call.kv.k, append.kv.k, (size_t)cache_bytes(&call.kv));
        assert_memory_equal(call.kv.v, append.kv.v, (size_t)cache_bytes(&call.kv));
    }
}

/* ---- out of it ---- */

static fb_call attention_call(const struct ring_case *s, fb_dtype t, fb_dtype c) {
    fb_call call = {.in = {filled(t, s->rows, s->heads, s->width, 2)},
                    .out = {view(t, s->rows, s->heads, s->width, 1)},
                    .kv = cache(c, s, 0, true),
                    .attr.scale = (s - cases) % 2 ? 1 : 0.2f,
                    .row = rows_of(s),
                    .rows = s->rows};
    if (s->sinks) call.in[1] = filled(t, s->rows, s->heads, s->width, 0);
    return call;
}

/* The same call on a ring of more blocks. */
static fb_call with_more(const struct ring_case *s, const fb_call *call, int64_t more) {
    fb_call other = *call;
    other.kv = cache(call->kv.dtype, s, more, true);
    other.out[0] = view(call->out[0].dtype, s->rows, s->heads, s->width, 1);
    return other;
}

/* The position whose score or weight a token has in `slot`; -1: of none. The slots after those of the sinks
 * are counted from the oldest block of positions that the token sees. */
static int64_t position_in(const fb_ring *r, int64_t position, int64_t slot) {
    int64_t unseen = position - r->sinks - r->window;
    int64_t origin = unseen > 0 ? unseen / FB_RING_BLOCK * FB_RING_BLOCK : 0;
    if (slot < r->begin) return slot < r->sinks ? slot : -1;
    return r->sinks + origin + slot - r->begin;
}

static bool sees(const fb_ring *r, int64_t position, int64_t other) {
    return other >= 0 && other <= position && (other < r->sinks || other >= position - r->window);
}

/* Runs the plain kernels on the call. */
static fb_view plain_attention(const fb_call *call) {
    const fb_view *q = &call->in[0];
    fb_view scores = view(q->dtype, call->rows, q->heads, call->kv.capacity, 0);
    fb_view probs = view(q->dtype, call->rows, q->heads, call->kv.capacity, 0);
    fb_view out = view(q->dtype, call->rows, q->heads, q->width, 0);
    scores.width = probs.width = 0;
    fb_call step = *call;
    step.out[0] = scores;
    run(FB_OP_ATTN_SCORES, step);
    for (int64_t n = 0; n < call->rows * q->heads; n++) {
        int64_t at = call->row[n / q->heads].position, other;
        for (int64_t slot = 0; (other = position_in(&call->kv.ring, at, slot)) <= at; slot++) {
            if (at < call->kv.ring.sinks && slot > at) break;
            double score = fb_dtype_get(q->dtype, fb_view_at(&scores, n / q->heads, n % q->heads), slot);
            bool seen = sees(&call->kv.ring, at, other);
            assert_true(seen ? isfinite(score) : isinf(score) && score < 0);
        }
    }
    step.in[0] = scores;
    step.in[1] = (fb_view){0};
    step.out[0] = probs;
    run(FB_OP_SOFTMAX, step);
    step.in[0] = probs;
    step.out[0] = out;
    run(FB_OP_ATTN_VALUES, step);
    return out;
}

/* Runs rows `first` to `end` of the call as a step of their own. */
static fb_call part_of(const fb_call *call, int64_t first, int64_t end) {
    fb_call part = *call;
    for (int k = 0; k < 2; k++)
        if (part.in[k].data) part.in[k].data = fb_view_at(&call->in[k], first, 0);
    part.out[0] = view(call->out[0].dtype, end - first, call->out[0].heads, call->out[0].width, 0);
    part.rows = end - first;
    part.row = call->row + first;
    return part;
}

static void attn_rows(void **state) {
    (void)state;
    FOR_CASES(s, t, c) {
        fb_call call = attention_call(s, t, c);
        fb_view want = plain_attention(&call);
        run(FB_OP_ATTN_ROWS, call);
        same("attn_rows", s, &call.out[0], s->rows, &want, 0);
        fb_call other = with_more(s, &call, 1);
        run(FB_OP_ATTN_ROWS, other);
        same("a longer ring, attn_rows", s, &other.out[0], s->rows, &want, 0);
        other = with_more(s, &call, 3);
        fb_view plain = plain_attention(&other);
        same("a longer ring, plain attention", s, &plain, s->rows, &want, 0);
        int64_t stride = 1 + s->rows / 4;
        for (int64_t row = 0; row < s->rows; row += stride) {
            fb_call alone = part_of(&call, row, row + 1);
            run(FB_OP_ATTN_ROWS, alone);
            same("a token alone, attn_rows", s, &alone.out[0], 1, &want, row);
        }
    }
}

/* The largest sum of |q k| of a score that is seen. Its rounding error is about that times u. */
static double largest_terms(const fb_call *call) {
    const fb_kv *kv = &call->kv;
    int64_t heads = call->in[0].heads, group = heads / kv->heads;
    double most = 0;
    for (int64_t row = 0; row < call->rows; row++)
        for (int64_t slot = 0; slot < fb_ring_count(&kv->ring, call->row[row].position); slot++) {
            if (!fb_ring_sees(&kv->ring, call->row[row].position, slot)) continue;
            const fb_view *q = &call->in[slot < kv->ring.sinks];
            for (int64_t head = 0; head < heads; head++) {
                double sum = 0;
                for (int64_t i = 0; i < q->width; i++)
                    sum += fabs(fb_dtype_get(q->dtype, fb_view_at(q, row, head), i) *
                                fb_dtype_get(kv->dtype, fb_key_at(kv, head / group, slot), i * FB_KV_GROUP));
                most = fmax(most, sum * (double)call->attr.scale);
            }
        }
    return most;
}

/* As tests/backend/cpu/test_fused_cache.c says. */
static void near(const struct ring_case *s, const fb_call *call, const fb_view *truth) {
    const fb_view *have = &call->out[0];
    double unit = have->dtype == FB_F16 ? 0x1p-11 : have->dtype == FB_BF16 ? 0x1p-8 : 0x1p-24;
    double limit = 2 * largest_terms(call) * 0x1p-24 * 4;
    if (have->dtype != FB_F32) limit += 4 * unit;
    for (int64_t row = 0; row < s->rows; row++)
        for (int64_t i = 0; i < have->heads * have->width; i++) {
            double a = fb_dtype_get(have->dtype, fb_view_at(have, row, 0), i);
            double b = fb_dtype_get(FB_F64, fb_view_at(truth, row, 0), i);
            if (!(fabs(a - b) <= limit + unit * fabs(b)))
                fail_msg("case %d, %s, cache %s: attn_flash: row %lld of %lld, column %lld: %.9g, should be "
                         "%.9g (limit %.3g)",
                         (int)(s - cases), fb_dtype_name(have->dtype), fb_dtype_name(call->kv.dtype),
                         (long long)row, (long long)s->rows, (long long)i, a, b, limit + unit * fabs(b));
        }
}

/* Up to so many rows, a step uses the decode kernel. Part of a step gives the same bits if it uses the same
 * kernel. */
enum { DECODE_ROWS = 8 };

static void attn_flash(void **state) {
    (void)state;
    FOR_CASES(s, t, c) {
        fb_call call = attention_call(s, t, c), reference = call;
        reference.out[0] = view(FB_F64, s->rows, s->heads, s->width, 0);
        float *scratch = take(4 * fb_attention_scratch(s->width, call.kv.capacity));
        fb_cpu_kernels_ref[FB_OP_ATTN_FLASH](&reference, &(fb_worker){.count = 1, .scratch = scratch});
        run(FB_OP_ATTN_FLASH, call);
        near(s, &call, &reference.out[0]);
        for (int64_t more = 1; more < 4; more += 2) {
            fb_call other = with_more(s, &call, more);
            run(FB_OP_ATTN_FLASH, other);
            same("a longer ring, attn_flash", s, &other.out[0], s->rows, &call.out[0], 0);
        }
        int64_t first = s->rows > 2 * DECODE_ROWS + 1 ? DECODE_ROWS + 1 : s->rows - 1;
        if (s->rows > DECODE_ROWS && s->rows - first <= DECODE_ROWS) continue;
        fb_call part = part_of(&call, first, s->rows);
        run(FB_OP_ATTN_FLASH, part);
        same("a part of the step, attn_flash", s, &part.out[0], part.rows, &call.out[0], first);
    }
}

static int start(void **state) {
    (void)state;
    random_numbers = fbt_random_start(43);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope_kv),
        cmocka_unit_test(attn_rows),
        cmocka_unit_test(attn_flash),
    };
    return cuda_run_group("ring", tests, sizeof tests / sizeof *tests, start);
}
