/* Fused kernels around the cache: rope_kv, attn_rows, and attn_flash, which promises no bits and is compared
 * with the reference. */
#include "fused_harness.h"

static const struct shape {
    int64_t heads, kv_heads, width;
    int32_t rotary;
    int64_t position;
} shapes[] = {{1, 1, 2, 2, 0},     {4, 2, 7, 4, 3},      {6, 6, 16, 16, 0},   {6, 3, 33, 32, 9},
              {5, 5, 64, 16, 40},  {2, 1, 16, 8, 121},   {4, 4, 64, 32, 126}, {10, 2, 24, 8, 127},
              {3, 1, 64, 64, 250}, {12, 1, 20, 20, 254}, {1, 1, 80, 8, 380}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* What a cache may be under activations of `t`. */
static const fb_dtype *caches(fb_dtype t) {
    static const fb_dtype vector[] = {FB_F32, FB_F16, FB_BF16, FB_DTYPE_COUNT};
    static const fb_dtype reference[] = {FB_F64, FB_F16, FB_DTYPE_COUNT};
    return t == FB_F64 ? reference : vector;
}
#define FOR_CACHES(t, c) for (const fb_dtype *c = caches(t); *c != FB_DTYPE_COUNT; c++)

static int64_t cache_bytes(const fb_kv *kv) {
    return kv->heads * kv->capacity * kv->width * fb_dtype_size(kv->dtype);
}

/* Whether one of the step's tokens sees the slot. */
static bool slot_is_seen(const fb_ring *ring, const fb_row *row, int64_t slot) {
    for (int64_t r = 0; r < ROWS; r++)
        if (fb_ring_sees(ring, row[r].position, slot)) return true;
    return false;
}

/* A filled cache has numbers in every slot that a token of the step sees, and NaN elsewhere. */
static fb_kv ring_cache(fb_dtype t, const struct shape *s, const fb_ring *ring, const fb_row *row,
                        bool fill) {
    int64_t last = row[ROWS - 1].position, slots = ring->window ? ring->begin + ring->size : last + 2;
    int64_t capacity = (slots + FB_KV_GROUP - 1) / FB_KV_GROUP * FB_KV_GROUP;
    fb_kv kv = {.dtype = t, .heads = s->kv_heads, .capacity = capacity, .width = s->width, .ring = *ring};
    kv.k = take(cache_bytes(&kv));
    kv.v = take(cache_bytes(&kv));
    for (int64_t h = 0; fill && h < s->kv_heads; h++)
        for (int64_t slot = 0; slot < fb_ring_count(ring, last); slot++) {
            double size = slot_is_seen(ring, row, slot) ? 1 : (double)NAN;
            for (int64_t i = 0; i < s->width; i++) {
                fb_dtype_set(t, fb_key_at(&kv, h, slot), i * FB_KV_GROUP,
                             size * fbt_random_normal(&random_numbers));
                fb_dtype_set(t, fb_value_at(&kv, h, slot), i, size * fbt_random_normal(&random_numbers));
            }
        }
    return kv;
}

static const fb_ring dense;

/* Rings small and large, that wrap once and often, with sinks in one block and in two. Steps at the
 * beginning, while the ring fills, after it has wrapped often, and at positions beyond 32 bits. The shape
 * gives heads and widths. */
static const struct ring_case {
    fb_ring ring;
    int64_t position;
    int shape;
    spacing spacing;
} ring_cases[] = {
    {{0, 1, 0, 8}, 0, 0, IN_ORDER},
    {{0, 5, 0, 12}, 100, 1, IN_ORDER},
    {{1, 9, 16, 16}, 3, 2, IN_ORDER},
    {{2, 10, 16, 17}, 11, 3, IN_ORDER},
    {{2, 10, 16, 17}, 5000, 4, IN_ORDER},
    {{4, 120, 16, 128}, 119, 5, IN_ORDER},
    {{4, 120, 16, 140}, 401, 6, IN_ORDER},
    {{4, 252, 16, 300}, 900, 7, IN_ORDER},
    {{20, 40, 32, 50}, 15, 8, IN_ORDER},
    {{20, 40, 32, 50}, 19, 0, IN_ORDER},
    {{130, 100, 144, 110}, 126, 1, IN_ORDER},
    {{130, 100, 144, 110}, 70000, 2, IN_ORDER},
    {{3, 300, 16, 310}, (1ll << 24) + 13, 3, IN_ORDER},
    {{16, 33, 16, 47}, (1ll << 33) + 7, 4, IN_ORDER},
    /* Rows that see nothing of the first block, beside rows that do. */
    {{0, 3, 0, 260}, 124, 5, IN_ORDER},
    {{0, 3, 0, 260}, 260 * 5 + 125, 8, IN_ORDER},
    /* Rows with gaps between their positions; the last ones are after the next wrap. */
    {{2, 10, 16, 20}, 2 + 20 * 9 + 13, 3, WITH_GAPS},
    {{4, 120, 16, 140}, 4 + 140 * 3 + 135, 6, WITH_GAPS},
};
enum { RINGS = sizeof ring_cases / sizeof *ring_cases };

static void same_bytes(const fb_isa *isa, const char *what, const void *have, const void *want,
                       int64_t bytes) {
    if (memcmp(have, want, (size_t)bytes) != 0) fail_msg("%s: %s: the caches differ", isa->name, what);
}

static void rope_kv_into(const fb_isa *isa, fb_dtype t, fb_dtype c, const struct shape *s,
                         const fb_ring *ring, const fb_row *row) {
    fb_view q = filled(t, s->heads, s->width, 5), k = filled(t, s->kv_heads, s->width, 0);
    fb_view v = filled(t, s->kv_heads, s->width, 1);
    fb_dtype a = t == FB_F64 ? FB_F64 : FB_F32;
    fb_view angles[2] = {filled(a, 1, s->rotary, 2), filled(a, 1, s->rotary, 0)};
    fb_view want[2] = {view(t, s->heads, s->width, 0), view(t, s->heads, s->width, 0)};
    fb_view turned = view(t, s->kv_heads, s->width, 0);
    fb_call rope = {.attr.rotary = s->rotary, .row = row};
    int queries = ring->sinks ? 2 : 1;
    for (int n = 0; n < queries; n++) {
        rope.in[0] = q;
        rope.in[1] = angles[n];
        rope.out[0] = want[n];
        run(isa, FB_OP_ROPE, rope, 1);
    }
    rope.in[0] = k;
    rope.in[1] = angles[0];
    rope.out[0] = turned;
    run(isa, FB_OP_ROPE, rope, 1);
    fb_call append = {.in = {turned, v}, .kv = ring_cache(c, s, ring, row, false), .row = row};
    run(isa, FB_OP_KV_APPEND, append, 1);
    FOR_WORKERS(workers) {
        fb_call call = {.in = {q, k, v, angles[0]},
                        .kv = ring_cache(c, s, ring, row, false),
                        .attr.rotary = s->rotary,
                        .row = row};
        sharing.by_head = true;
        for (int n = 0; n < queries; n++) {
            call.in[3 + n] = angles[n];
            call.out[n] = view(t, s->heads, s->width, 3);
        }
        run(isa, FB_OP_ROPE_KV, call, workers);
        for (int n = 0; n < queries; n++) same(isa, "rope_kv", &call.out[n], &want[n]);
        same_bytes(isa, "rope_kv: k", call.kv.k, append.kv.k, cache_bytes(&call.kv));
        same_bytes(isa, "rope_kv: v", call.kv.v, append.kv.v, cache_bytes(&call.kv));
    }
}

static void rope_kv(void **state) {
    (void)state;
    for (int i = 0; i < SHAPES; i++) FOR_FLOAT_KERNELS(isa, t) FOR_CACHES(t, c) {
            if (fbt_passes_over(2) || fbt_emulated_passes_over(5)) continue;
            for (int spaced = IN_ORDER; spaced <= WITH_GAPS; spaced++) {
                rope_kv_into(isa, t, *c, &shapes[i], &dense, rows_at(shapes[i].position, (spacing)spaced));
                give_back();
            }
        }
}

static void rope_kv_ring(void **state) {
    (void)state;
    for (int i = 0; i < RINGS; i++) FOR_FLOAT_KERNELS(isa, t) FOR_CACHES(t, c) {
            if (fbt_passes_over(2) || fbt_emulated_passes_over(5)) continue;
            const struct ring_case *r = &ring_cases[i];
            rope_kv_into(isa, t, *c, &shapes[r->shape % SHAPES], &r->ring, rows_at(r->position, r->spacing));
            give_back();
        }
}

/* The allowed error of attn_flash. A score is a sum whose rounding error is u times the size of its terms,
 * and its exponential changes by as much. A probability has two of these, and values go up to 4. Then the
 * result is rounded once to the activation dtype. */
static void near(const fb_isa *isa, const char *what, const fb_view *have, const fb_view *truth,
                 double terms) {
    double limit = 2 * terms * 0x1p-24 * 4;
    double unit = have->dtype == FB_F16 ? 0x1p-11 : have->dtype == FB_BF16 ? 0x1p-8 : 0x1p-24;
    for (int64_t row = 0; row < ROWS; row++)
        for (int64_t i = 0; i < have->heads * have->width; i++) {
            double a = fb_dtype_get(have->dtype, fb_view_at(have, row, 0), i);
            double b = fb_dtype_get(FB_F64, fb_view_at(truth, row, 0), i);
            if (!(fabs(a - b) <= limit + unit * fabs(b)))
                fail_msg("%s, %s: %s: row %lld, column %lld: %.9g, should be %.9g", isa->name,
                         fb_dtype_name(have->dtype), what, (long long)row, (long long)i, a, b);
        }
}

/* The result of the plain kernels. */
static fb_view plain_attention(const fb_isa *isa, const fb_call *call) {
    const fb_view *q = &call->in[0];
    fb_view scores = view(q->dtype, q->heads, call->kv.capacity, 0);
    fb_view probs = view(q->dtype, q->heads, call->kv.capacity, 0);
    fb_view out = view(q->dtype, q->heads, q->width, 0);
    scores.width = probs.width = 0;
    fb_call step = *call;
    step.out[0] = scores;
    run(isa, FB_OP_ATTN_SCORES, step, 1);
    step.in[0] = scores;
    step.out[0] = probs;
    run(isa, FB_OP_SOFTMAX, step, 1);
    step.in[0] = probs;
    step.out[0] = out;
    run(isa, FB_OP_ATTN_VALUES, step, 1);
    return out;
}

/* The op on all rows, on any number of workers, and on each row alone. */
static void check_attention(const fb_isa *isa, fb_op_kind kind, fb_call call, const fb_view *want) {
    call.out[0] = view(want->dtype, want->heads, want->width, 1);
    FOR_WORKERS(workers) for (int by_head = 0; by_head < 2; by_head++) {
        sharing.by_head = by_head;
        poison(&call.out[0]);
        run(isa, kind, call, workers);
        same(isa, fb_op_table[kind].name, &call.out[0], want);
    }
    poison(&call.out[0]);
    for (int64_t row = 0; row < ROWS; row++) {
        fb_call one = call;
        one.rows = 1;
        one.row += row;
        one.in[0].data = fb_view_at(&call.in[0], row, 0);
        if (call.in[1].data) one.in[1].data = fb_view_at(&call.in[1], row, 0);
        one.out[0].data = fb_view_at(&call.out[0], row, 0);
        run(isa, kind, one, 2);
    }
    same(isa, fb_op_table[kind].name, &call.out[0], want);
}

/* The largest sum of |q k| of a score, whose rounding errors are of that size times u. */
static double largest_terms(const fb_call *call) {
    const fb_kv *kv = &call->kv;
    double most = 0;
    for (int64_t row = 0; row < ROWS; row++)
        for (int64_t head = 0; head < call->in[0].heads; head++)
            for (int64_t slot = 0; slot < fb_ring_count(&kv->ring, call->row[row].position); slot++) {
                const fb_view *q = &call->in[slot < kv->ring.sinks];
                double sum = 0;
                if (!fb_ring_sees(&kv->ring, call->row[row].position, slot)) continue;
                for (int64_t i = 0; i < q->width; i++)
                    sum += fabs(fb_dtype_get(q->dtype, fb_view_at(q, row, head), i) *
                                fb_dtype_get(kv->dtype, fb_key_at(kv, head / (q->heads / kv->heads), slot),
                                             i * FB_KV_GROUP));
                most = fmax(most, sum * (double)call->attr.scale);
            }
    return most;
}

static void attention_over(const fb_isa *isa, fb_dtype t, fb_dtype c, const struct shape *s,
                           const fb_ring *ring, const fb_row *row, float scale, float cap) {
    const fb_isa *ref;
    assert_int_equal(fb_isa_find("ref", &ref, NULL), FB_OK);
    fb_call call = {.in = {filled(t, s->heads, s->width, 2)},
                    .kv = ring_cache(c, s, ring, row, true),
                    .attr = {.scale = scale, .cap = cap},
                    .row = row};
    if (ring->sinks) call.in[1] = filled(t, s->heads, s->width, 1);
    fb_view want = plain_attention(isa, &call);
    check_attention(isa, FB_OP_ATTN_ROWS, call, &want);
    fb_view truth = view(FB_F64, s->heads, s->width, 0), flash = view(t, s->heads, s->width, 0);
    call.out[0] = truth;
    run(ref, FB_OP_ATTN_FLASH, call, 1);
    if (t == FB_F32) near(isa, "plain", &want, &truth, largest_terms(&call));
    call.out[0] = flash;
    run(isa, FB_OP_ATTN_FLASH, call, 1);
    near(isa, "attn_flash", &flash, &truth, largest_terms(&call));
    check_attention(isa, FB_OP_ATTN_FLASH, call, &flash);
}

static void attention_ring(void **state) {
    (void)state;
    for (int i = 0; i < RINGS; i++) FOR_FLOAT_KERNELS(isa, t) FOR_CACHES(t, c) {
            if (fbt_passes_over(5) || fbt_emulated_passes_over(3)) continue;
            const struct ring_case *r = &ring_cases[i];
            attention_over(isa, t, *c, &shapes[r->shape % SHAPES], &r->ring, rows_at(r->position, r->spacing),
                           0.2f, i % 3 == 1 ? 2.5f : 0);
            give_back();
        }
}

static void attention(void **state) {
    (void)state;
    for (int i = 0; i < 2 * SHAPES; i++) FOR_FLOAT_KERNELS(isa, t) FOR_CACHES(t, c) {
            if (fbt_passes_over(5) || fbt_emulated_passes_over(3)) continue;
            const fb_row *row = rows_at(shapes[i / 2].position, i % 2 ? IN_ORDER : WITH_GAPS);
            attention_over(isa, t, *c, &shapes[i / 2], &dense, row, i % 2 ? 1 : 0.2f, i % 3 == 2 ? 2.5f : 0);
            give_back();
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope_kv),
        cmocka_unit_test(rope_kv_ring),
        cmocka_unit_test(attention_ring),
        cmocka_unit_test(attention),
    };
    return cmocka_run_group_tests(tests, start, NULL);
}
