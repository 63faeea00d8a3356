/* attention. */
#include "ops/ops_harness.h"

#define MAX_ROWS    40
#define MAX_CONTEXT 300

/* k or v as the op may get it: positions first, or heads first as a Hugging Face cache has it, with room for
 * more positions. NaN in between, which nobody may read. */
static fb_ops_heads cache_of(fb_dtype dtype, int64_t context, int64_t heads, int64_t width, bool heads_first,
                             int64_t room) {
    if (!heads_first) return heads_of(dtype, context, heads, width, true);
    int64_t size = fb_dtype_size(dtype), head = (context + room) * width;
    fb_ops_heads t = {
        take(((heads - 1) * head + context * width) * size, 0), dtype, context, heads, width, width, head};
    for (int64_t h = 0; h < heads; h++) fill(dtype, fb_at(t.data, dtype, h * head), context * width, 0.1, 1);
    return t;
}

/* The reference, on a cache in float64. */
static fb_view truth_of(fb_ops_heads q, fb_ops_heads k, fb_ops_heads v, const fb_row *rows, float scale) {
    fb_row all[MAX_CONTEXT] = {{0}};
    int64_t capacity = (k.rows + 15) / 16 * 16, bytes = k.heads * capacity * k.width * 8;
    for (int64_t r = 0; r < k.rows; r++) all[r].position = r;
    fb_kv kv = {.k = take(bytes, 0),
                .v = take(bytes, 0),
                .dtype = FB_F64,
                .heads = k.heads,
                .capacity = capacity,
                .width = k.width};
    fb_call append = {.in = {heads_view(k), heads_view(v)}, .kv = kv, .rows = k.rows, .row = all};
    run_truth(FB_OP_KV_APPEND, &append);
    fb_call call = {.in = {heads_view(q)}, .kv = kv, .rows = q.rows, .row = rows, .attr.scale = scale};
    fb_view truth = call.out[0] = truth_view(q.rows, q.heads, q.width);
    run_truth(FB_OP_ATTN_FLASH, &call);
    return truth;
}

typedef struct shape {
    int64_t rows, heads, kv_heads, width, context;
} shape;

static const shape shapes[] = {{0, 2, 2, 8, 5},    {1, 4, 4, 64, 1},   {1, 4, 2, 64, 130}, {1, 2, 1, 80, 300},
                               {3, 4, 1, 16, 20},  {9, 4, 2, 64, 9},   {12, 2, 2, 32, 70}, {20, 2, 2, 7, 33},
                               {40, 2, 1, 64, 40}, {1, 2, 2, 128, 17}, {10, 1, 1, 256, 12}};

static void heads(void **state) {
    (void)state;
    NEEDS_DEVICE();
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int way = 0; way < 4; way++) FOR_ACTS(t) {
                const shape *p = &shapes[s];
                fb_row rows[MAX_ROWS] = {{0}};
                int64_t at[MAX_ROWS];
                bool given = way & 1, heads_first = way & 2, exact = below(2);
                /* Positions with gaps, where there is room; otherwise the last ones. */
                int64_t step = given && p->rows && p->context / p->rows > 1 ? 2 : 1;
                for (int64_t r = 0; r < p->rows; r++)
                    rows[r].position = at[r] =
                        given ? (p->context / p->rows > 1 ? r * step : r) : p->context - p->rows + r;
                fb_ops_heads q = heads_of((fb_dtype)t, p->rows, p->heads, p->width, true),
                             out = heads_of((fb_dtype)t, p->rows, p->heads, p->width, false);
                int64_t room = below(4);
                fb_ops_heads k = cache_of((fb_dtype)t, p->context, p->kv_heads, p->width, heads_first, room),
                             v = cache_of((fb_dtype)t, p->context, p->kv_heads, p->width, heads_first, room);
                float scale = 1 / sqrtf((float)p->width);
                fb_view truth = truth_of(q, k, v, rows, scale);
                fb_ops_positions positions = {NULL, 64};
                if (given && p->rows) {
                    void *data = take(p->rows * 8, 0);
                    memcpy(data, at, (size_t)p->rows * 8);
                    positions.data = there(data);
                }
                RUN(fb_ops_attention(dev.ops, dev.stream, DEVH(q), DEVH(k), DEVH(v), positions, scale, exact,
                                     DEVH(out), &run_err));
                check_view(exact ? "attention, exact" : "attention", heads_view(out), &truth, p->rows, 2, 40);
                give_back();
            }
}

static void refusals(void **state) {
    (void)state;
    fb_error err;
    fb_ops_positions last = {NULL, 0};
    random_numbers = fbt_random_start(22);
    open_cpu(1);
    fb_ops_heads q = heads_of(FB_F32, 3, 4, 8, true), out = heads_of(FB_F32, 3, 4, 8, false),
                 k = heads_of(FB_F32, 6, 2, 8, true), v = heads_of(FB_F32, 6, 2, 8, true), wrong;
#define REFUSED(q, k, v, p, out, words)                                                                      \
    assert_refused(fb_ops_attention(dev.ops, NULL, &q, &k, &v, p, 1, false, &out, &err), FB_ERROR_USAGE,     \
                   &err, words)
    wrong = k, wrong.heads = 3;
    REFUSED(q, wrong, v, last, out, "attention|k|heads 3|divide|4");
    wrong = v, wrong.rows = 5;
    REFUSED(q, k, wrong, last, out, "attention|v|rows 5|6");
    wrong = v, wrong.dtype = FB_F16;
    REFUSED(q, k, wrong, last, out, "attention|v|f16|f32");
    wrong = k, wrong.rows = 2;
    REFUSED(q, wrong, wrong, last, out, "attention|q|rows|3|2");
    wrong = out, wrong.width = 7;
    REFUSED(q, k, v, last, wrong, "attention|out|width 7|8");
    int32_t beyond[] = {4, 5, 6}, back[] = {4, 3, 5};
    fb_ops_positions p = {beyond, 32};
    REFUSED(q, k, v, p, out, "attention|positions[2]|6|5");
    p.data = back;
    REFUSED(q, k, v, p, out, "attention|positions[1]|3|4");
    q.width = out.width = k.width = v.width = 257;
    q.head_stride = out.head_stride = k.head_stride = v.head_stride = 257;
    REFUSED(q, k, v, last, out, "attention|q|width 257|256");
    give_back();
    close_device();
}

int main(void) {
    const struct CMUnitTest tests[] = {EVERYWHERE(heads), cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
