#include <math.h>
#include <stdio.h>

#include "kernel_harness.h"

static float at(const fb_view *view, int64_t row, int64_t i) {
    return (float)fb_dtype_get(view->dtype, fb_view_at(view, row, 0), i);
}

static float weight_at(const fb_weight *w, int64_t i) { return (float)fb_dtype_get(w->dtype, w->data, i); }

static void naive_layernorm(const fb_call *c) {
    int64_t n = c->weights[0].cols;
    for (int64_t row = 0; row < c->rows; row++) {
        float mean = 0, variance = 0;
        for (int64_t i = 0; i < n; i++) mean += at(&c->in[0], row, i);
        mean /= (float)n;
        for (int64_t i = 0; i < n; i++)
            variance += (at(&c->in[0], row, i) - mean) * (at(&c->in[0], row, i) - mean);
        float scale = 1 / sqrtf(variance / (float)n + c->attr.eps);
        for (int64_t i = 0; i < n; i++)
            fb_dtype_set(FB_F32, fb_view_at(&c->out[0], row, 0), i,
                         (double)((at(&c->in[0], row, i) - mean) * scale * weight_at(&c->weights[0], i) +
                                  weight_at(&c->weights[1], i)));
    }
}

static void naive_rmsnorm(const fb_call *c) {
    int64_t n = c->weights[0].cols;
    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t head = 0; head < c->in[0].heads; head++) {
            const void *x = fb_view_at(&c->in[0], row, head);
            float square = 0;
            for (int64_t i = 0; i < n; i++)
                square += (float)(fb_dtype_get(c->in[0].dtype, x, i) * fb_dtype_get(c->in[0].dtype, x, i));
            float scale = 1 / sqrtf(square / (float)n + c->attr.eps);
            for (int64_t i = 0; i < n; i++)
                fb_dtype_set(FB_F32, fb_view_at(&c->out[0], row, head), i,
                             (double)((float)fb_dtype_get(c->in[0].dtype, x, i) * scale *
                                      weight_at(&c->weights[0], i)));
        }
}

typedef struct norm_case {
    fb_op_kind kind;
    fb_dtype act, weight, bias;
    int64_t width;
    double mean, deviation;
    float eps;
    int64_t heads; /* each is normalised by itself */
} norm_case;

static void check(fbt_random *random, const norm_case *c, size_t number) {
    rig r;
    rig_start(&r, c->kind, random, number % 2);
    snprintf(r.text, sizeof r.text, "act %s, weight %s, bias %s, width %lld, mean %g, deviation %g, eps %g",
             fb_dtype_name(c->act), fb_dtype_name(c->weight), fb_dtype_name(c->bias), (long long)c->width,
             c->mean, c->deviation, (double)c->eps);
    r.naive = c->kind == FB_OP_LAYERNORM ? naive_layernorm : naive_rmsnorm;
    r.call.attr.eps = c->eps;
    /* Heads lie without gaps: a GPU's kernel takes them for rows. */
    int64_t heads = c->heads, gap = heads == 1;
    r.call.in[0] = rig_input(&r, c->act, heads, c->width, (gaps){0, gap * (int64_t)number % 3}, 0);
    rig_fill(&r, &r.call.in[0], c->mean, c->deviation);
    r.call.weights[0] = rig_weight(&r, c->weight, 1, c->width, 1, 0.3);
    if (c->kind == FB_OP_LAYERNORM) r.call.weights[1] = rig_weight(&r, c->bias, 1, c->width, 0, 0.5);
    r.call.out[0] = rig_output(&r, c->act, heads, c->width, (gaps){0, gap * (int64_t)(number + 1) % 4}, 0);
    rig_check(&r);
}

static const int64_t widths[] = {1, 3, 7, 15, 16, 17, 31, 33, 64, 65, 100, 257};

/* Small and large rows, rows far from zero (as 16-bit values can be), an epsilon that counts and one that
 * hardly does. */
static const struct {
    double mean, deviation;
    float eps;
} data[] = {{0, 1, 1e-5f}, {60, 1, 1e-5f}, {-3, 1e-3, 1e-5f}, {0.5, 30, 1e-12f}};

static void dtypes_and_sizes(void **state) {
    fb_op_kind kind = *(const fb_op_kind *)*state;
    fbt_random random = fbt_random_start(14);
    size_t number = 0;
    for (int act = FB_F32; act <= FB_BF16; act++)
        for (int weight = FB_F32; weight <= FB_BF16; weight++)
            for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
                for (size_t j = 0; j < sizeof data / sizeof *data; j++) {
                    if (fbt_passes_over(5) || fbt_emulated_passes_over(3)) continue;
                    check(&random,
                          &(norm_case){kind, (fb_dtype)act, (fb_dtype)weight, (fb_dtype)weight, widths[i],
                                       data[j].mean, data[j].deviation, data[j].eps, 1},
                          number++ + i);
                }
}

/* In float32 a mean of a thousand times the deviation leaves a third of the digits. The kernel may lose no
 * more. */
static void far_from_zero(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(15);
    for (size_t i = 2; i < sizeof widths / sizeof *widths; i++)
        check(&random, &(norm_case){FB_OP_LAYERNORM, FB_F32, FB_F32, FB_F32, widths[i], 3000, 1, 1e-5f, 1},
              i);
}

static void each_head(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(17);
    for (int act = FB_F32; act <= FB_BF16; act++)
        for (size_t i = 1; i < sizeof widths / sizeof *widths; i++)
            check(&random,
                  &(norm_case){FB_OP_RMSNORM, (fb_dtype)act, (fb_dtype)(i % 3), FB_F32, widths[i], 0.5, 3,
                               1e-5f, 2 + (int64_t)i % 4},
                  i);
}

/* A file may store the weight and the bias of one norm in different dtypes. */
static void mixed_weights(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(16);
    for (int weight = FB_F32; weight <= FB_BF16; weight++)
        for (int bias = FB_F32; bias <= FB_BF16; bias++)
            for (int act = FB_F32; act <= FB_BF16; act++)
                check(&random,
                      &(norm_case){FB_OP_LAYERNORM, (fb_dtype)act, (fb_dtype)weight, (fb_dtype)bias, 70, 0, 1,
                                   1e-5f, 1},
                      (size_t)(weight + bias));
}

/* A NaN whose mantissa would overflow into the sign when rounded to 16 bits, and become a number. */
static void nan_of_any_bits(void **state) {
    (void)state;
    const uint32_t bits = 0x7fffffff;
    float weight[20], bias[20];
    for (int i = 0; i < 20; i++) {
        weight[i] = 1;
        memcpy(&bias[i], &bits, sizeof bits);
    }
    for (const fb_isa *isa = fb_isa_table; isa->name; isa++)
        for (int act = FB_F16; act <= FB_BF16 && isa->available(); act++) {
            uint16_t x[20], y[20] = {0};
            _Alignas(64) float scratch[64];
            for (int i = 0; i < 20; i++) fb_dtype_set((fb_dtype)act, x, i, i);
            fb_call call = {.rows = 1, .attr = {.eps = 1e-5f}};
            call.in[0] = call.out[0] = (fb_view){x, (fb_dtype)act, 1, 20, 20, 20};
            call.out[0].data = y;
            call.weights[0] = (fb_weight){.data = weight, .dtype = FB_F32, .rows = 1, .cols = 20};
            call.weights[1] = (fb_weight){.data = bias, .dtype = FB_F32, .rows = 1, .cols = 20};
            isa->kernels[FB_OP_LAYERNORM](&call, &(fb_worker){.count = 1, .scratch = scratch});
            for (int i = 0; i < 20; i++)
                if (!isnan(fb_dtype_get((fb_dtype)act, y, i)))
                    fail_msg("%s, %s: element %d is %04x", isa->name, fb_dtype_name((fb_dtype)act), i, y[i]);
        }
}

int main(void) {
    static fb_op_kind layernorm = FB_OP_LAYERNORM, rmsnorm = FB_OP_RMSNORM;
    const struct CMUnitTest tests[] = {
        {"layernorm", dtypes_and_sizes, NULL, NULL, &layernorm},
        {"rmsnorm", dtypes_and_sizes, NULL, NULL, &rmsnorm},
        cmocka_unit_test(far_from_zero),
        cmocka_unit_test(each_head),
        cmocka_unit_test(mixed_weights),
        cmocka_unit_test(nan_of_any_bits),
    };
    return kernel_run_family("norm", tests, sizeof tests / sizeof *tests);
}
