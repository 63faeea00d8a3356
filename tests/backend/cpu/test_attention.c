#include <math.h>
#include <stdio.h>

#include "kernel_harness.h"

/* Query heads on KV heads, one to one and in groups; contexts that start at 0 and later. */
static const struct shape {
    int64_t heads, kv_heads, width, position, spare; /* `spare`: slots of the cache beyond the context */
    gaps between;                                    /* of the queries, or of what is written */
} shapes[] = {
    {1, 1, 1, 0, 0, {0, 0}},   {2, 1, 3, 1, 1, {0, 1}},    {4, 2, 7, 0, 5, {14, 0}},
    {3, 3, 15, 9, 0, {30, 2}}, {4, 4, 16, 0, 8, {32, 0}},  {6, 2, 17, 37, 3, {1, 1}},
    {4, 1, 31, 8, 1, {0, 0}},  {2, 2, 33, 3, 7, {66, 0}},  {2, 1, 64, 41, 2, {0, 0}},
    {3, 1, 65, 15, 0, {5, 0}}, {2, 2, 100, 0, 1, {0, 3}},  {1, 1, 257, 5, 2, {0, 0}},
    {4, 1, 8, 116, 0, {0, 0}}, {3, 3, 64, 126, 1, {0, 0}}, {5, 1, 17, 244, 7, {3, 0}},
};

/* Activations and cache: every pair of dtypes. */
#define FOR_SHAPES(act, kv, i)                                                                               \
    for (int act = FB_F32; act <= FB_BF16; act++)                                                            \
        for (int kv = FB_F32; kv <= FB_BF16; kv++)                                                           \
            for (size_t i = 0; i < 2 * sizeof shapes / sizeof *shapes; i++)                                  \
                if (!fbt_emulated_passes_over(7))

static float at(const fb_view *view, int64_t row, int64_t head, int64_t i) {
    return (float)fb_dtype_get(view->dtype, fb_view_at(view, row, head), i);
}

static float cached_key(const fb_kv *kv, int64_t head, int64_t position, int64_t i) {
    return (float)fb_dtype_get(kv->dtype, fb_key_at(kv, head, position), i * FB_KV_GROUP);
}

static float cached_value(const fb_kv *kv, int64_t head, int64_t position, int64_t i) {
    return (float)fb_dtype_get(kv->dtype, fb_value_at(kv, head, position), i);
}

static void put(const fb_call *c, int64_t row, int64_t head, int64_t i, float value) {
    fb_dtype_set(FB_F32, fb_view_at(&c->out[0], row, head), i, (double)value);
}

static void naive_scores(const fb_call *c) {
    int64_t group = c->in[0].heads / c->kv.heads;
    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t head = 0; head < c->in[0].heads; head++)
            for (int64_t j = 0; j <= c->row[row].position; j++) {
                float sum = 0;
                for (int64_t i = 0; i < c->kv.width; i++)
                    sum += at(&c->in[0], row, head, i) * cached_key(&c->kv, head / group, j, i);
                sum *= c->attr.scale;
                put(c, row, head, j, c->attr.cap ? tanhf(sum / c->attr.cap) * c->attr.cap : sum);
            }
}

static void naive_softmax(const fb_call *c) {
    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t head = 0; head < c->in[0].heads; head++) {
            float most = -INFINITY, sum = 0;
            for (int64_t j = 0; j <= c->row[row].position; j++)
                most = fmaxf(most, at(&c->in[0], row, head, j));
            for (int64_t j = 0; j <= c->row[row].position; j++)
                sum += expf(at(&c->in[0], row, head, j) - most);
            for (int64_t j = 0; j <= c->row[row].position; j++)
                put(c, row, head, j, expf(at(&c->in[0], row, head, j) - most) / sum);
        }
}

static void naive_values(const fb_call *c) {
    int64_t group = c->out[0].heads / c->kv.heads;
    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t head = 0; head < c->out[0].heads; head++)
            for (int64_t i = 0; i < c->kv.width; i++) {
                float sum = 0;
                for (int64_t j = 0; j <= c->row[row].position; j++)
                    sum += at(&c->in[0], row, head, j) * cached_value(&c->kv, head / group, j, i);
                put(c, row, head, i, sum);
            }
}

static int64_t start(rig *r, fb_op_kind kind, fbt_random *random, int act, int kv, size_t number,
                     naive_fn naive) {
    const struct shape *s = &shapes[number / 2];
    rig_start(r, kind, random, number % 2);
    snprintf(r->text, sizeof r->text, "%s, cache %s, %lld heads of %lld on %lld, position %lld",
             fb_dtype_name((fb_dtype)act), fb_dtype_name((fb_dtype)kv), (long long)s->heads,
             (long long)s->width, (long long)s->kv_heads, (long long)s->position);
    r->naive = naive;
    rig_rows(r, s->position, WITH_GAPS);
    int64_t capacity = end_of_rows(&r->call) + s->spare;
    r->scratch_floats = fb_attention_scratch(s->width, capacity);
    return capacity;
}

static void scores(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(23);
    FOR_SHAPES(act, kv, i) {
        const struct shape *s = &shapes[i / 2];
        rig r;
        int64_t capacity = start(&r, FB_OP_ATTN_SCORES, &random, act, kv, i, naive_scores);
        r.call.attr.scale = (float)(1 / sqrt((double)s->width));
        if (i % 4 == 3) r.call.attr.cap = 1.5f; /* of scores of about 1 */
        r.call.in[0] = rig_input(&r, (fb_dtype)act, s->heads, s->width, s->between, 0);
        rig_fill(&r, &r.call.in[0], 0, 1);
        r.call.kv = rig_cache(&r, (fb_dtype)kv, s->kv_heads, capacity, s->width, 1, false);
        r.call.out[0] = rig_output(&r, (fb_dtype)act, s->heads, 0, (gaps){0, 0}, capacity);
        rig_check(&r);
    }
}

static void values(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(24);
    FOR_SHAPES(act, kv, i) {
        const struct shape *s = &shapes[i / 2];
        rig r;
        int64_t capacity = start(&r, FB_OP_ATTN_VALUES, &random, act, kv, i, naive_values);
        r.call.in[0] = rig_input(&r, (fb_dtype)act, s->heads, 0, (gaps){0, 0}, capacity);
        for (int64_t row = 0; row < RIG_ROWS; row++)
            for (int64_t head = 0; head < s->heads; head++)
                for (int64_t j = 0; j <= r.call.row[row].position; j++)
                    fb_dtype_set(
                        (fb_dtype)act, fb_view_at(&r.call.in[0], row, head), j,
                        fbt_random_uniform(&random, 0, 2.0 / (double)(r.call.row[row].position + 1)));
        r.call.kv = rig_cache(&r, (fb_dtype)kv, s->kv_heads, capacity, s->width, 1, false);
        r.call.out[0] = rig_output(&r, (fb_dtype)act, s->heads, s->width, s->between, 0);
        rig_check(&r);
    }
}

/* Scores close together, far apart (all but one probability vanish), and far from zero on either side. */
static void softmax(void **state) {
    (void)state;
    static const struct { double mean, deviation; } data[] = {{0, 1}, {0, 40}, {-3000, 4}, {3000, 4}};
    fbt_random random = fbt_random_start(25);
    FOR_SHAPES(act, kv, i) {
        if (kv != act) continue; /* softmax does not read the cache */
        const struct shape *s = &shapes[i / 2];
        rig r;
        int64_t capacity = start(&r, FB_OP_SOFTMAX, &random, act, kv, i, naive_softmax);
        r.call.in[0] = rig_input(&r, (fb_dtype)act, s->heads, 0, (gaps){(int64_t)i % 3, 0}, capacity);
        rig_fill(&r, &r.call.in[0], data[i % 4].mean, data[i % 4].deviation);
        r.call.out[0] = rig_output(&r, (fb_dtype)act, s->heads, 0, (gaps){0, (int64_t)i % 2}, capacity);
        rig_check(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores),
        cmocka_unit_test(softmax),
        cmocka_unit_test(values),
    };
    return kernel_run_family("attention", tests, sizeof tests / sizeof *tests);
}
