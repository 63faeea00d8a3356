#include <math.h>
#include <stdio.h>

#include "kernel_harness.h"

static float gelu(float x) { return 0.5f * x * (1 + erff(x * (float)M_SQRT1_2)); }
static float gelu_tanh(float x) { return 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x))); }
static float silu(float x) { return x / (1 + expf(-x)); }

static void map(const fb_call *c, float (*function)(float)) {
    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t i = 0; i < c->out[0].width; i++)
            fb_dtype_set(
                FB_F32, fb_view_at(&c->out[0], row, 0), i,
                (double)function((float)fb_dtype_get(c->in[0].dtype, fb_view_at(&c->in[0], row, 0), i)));
}

static void naive_gelu(const fb_call *c) { map(c, gelu); }
static void naive_gelu_tanh(const fb_call *c) { map(c, gelu_tanh); }
static void naive_silu(const fb_call *c) { map(c, silu); }

#define SCALE 0.37f
#define CAP   7.5f
static float scaled(float x) { return x * SCALE; }
static float capped(float x) { return tanhf(x / CAP) * CAP; }
static void naive_scale(const fb_call *c) { map(c, scaled); }
static void naive_softcap(const fb_call *c) { map(c, capped); }

static const struct {
    fb_op_kind kind;
    naive_fn naive;
} functions[] = {{FB_OP_GELU, naive_gelu},
                 {FB_OP_GELU_TANH, naive_gelu_tanh},
                 {FB_OP_SILU, naive_silu},
                 {FB_OP_SCALE, naive_scale},
                 {FB_OP_SOFTCAP, naive_softcap}};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

static void start(rig *r, fbt_random *random, int f, int act, int64_t width, size_t number) {
    rig_start(r, functions[f].kind, random, number % 2);
    snprintf(r->text, sizeof r->text, "%s, width %lld, number %zu", fb_dtype_name((fb_dtype)act),
             (long long)width, number);
    r->naive = functions[f].naive;
    r->call.attr = (fb_op_attr){.scale = SCALE, .cap = CAP};
    r->call.in[0] = rig_input(r, (fb_dtype)act, 1, width, (gaps){0, (int64_t)number % 3}, 0);
    r->call.out[0] = rig_output(r, (fb_dtype)act, 1, width, (gaps){0, (int64_t)number % 4}, 0);
}

static void sizes(void **state) {
    (void)state;
    static const int64_t widths[] = {1, 3, 7, 15, 16, 17, 31, 33, 64, 65, 100, 257};
    fbt_random random = fbt_random_start(18);
    for (int f = 0; f < FUNCTIONS; f++)
        for (int act = FB_F32; act <= FB_BF16; act++)
            for (size_t i = 0; i < 2 * sizeof widths / sizeof *widths; i++) {
                if (fbt_emulated_passes_over(5)) continue;
                rig r;
                start(&r, &random, f, act, widths[i / 2], i);
                rig_fill(&r, &r.call.in[0], 0, 2);
                rig_check(&r);
            }
}

/* Each row covers one interval, and is held to what a naive float32 loop can do there. */
static void whole_range(void **state) {
    (void)state;
    static const double edges[RIG_ROWS + 1] = {-3e4, -1000, -104, -88, -50, -20,  -14.5, -10,  -7,
                                               -5,   -4,    -3,   -2,  -1,  -0.1, -1e-3, 1e-3, 0.1,
                                               1,    2,     4,    8,   20,  90,   3e4};
    fbt_random random = fbt_random_start(19);
    for (int f = 0; f < FUNCTIONS; f++)
        for (int act = FB_F32; act <= FB_BF16; act++) {
            rig r;
            start(&r, &random, f, act, 500, (size_t)act);
            r.row_by_row = true;
            for (int64_t row = 0; row < RIG_ROWS; row++)
                for (int64_t i = 0; i < 500; i++)
                    fb_dtype_set((fb_dtype)act, fb_view_at(&r.call.in[0], row, 0), i,
                                 i ? fbt_random_uniform(&random, edges[row], edges[row + 1]) : edges[row]);
            rig_check(&r);
        }
}

/* Inputs without a finite or positive answer: infinities, zeros and NaN. */
static void special_values(void **state) {
    (void)state;
    for (int f = 0; f < FUNCTIONS; f++)
        for (const fb_isa *isa = fb_isa_table; isa->name; isa++) {
            if (!isa->available()) continue;
            float x[5] = {INFINITY, NAN, 3e38f, -3e38f, -0.0f}, y[5];
            fb_call call = {.rows = 1, .attr = {.scale = 1, .cap = CAP}};
            call.in[0] = (fb_view){x, FB_F32, 1, 5, 5, 5};
            call.out[0] = (fb_view){y, FB_F32, 1, 5, 5, 5};
            isa->kernels[functions[f].kind](&call, &(fb_worker){.count = 1});
            bool cap = functions[f].kind == FB_OP_SOFTCAP, scale = functions[f].kind == FB_OP_SCALE;
            if (y[0] != (cap ? CAP : INFINITY) || !isnan(y[1]) || y[2] != (cap ? CAP : 3e38f) ||
                y[3] != (cap     ? -CAP
                         : scale ? -3e38f
                                 : 0) ||
                y[4] != 0)
                fail_msg("%s, %s: inf, NaN, 3e38, -3e38, -0 become %g, %g, %g, %g, %g", isa->name,
                         fb_op_table[functions[f].kind].name, (double)y[0], (double)y[1], (double)y[2],
                         (double)y[3], (double)y[4]);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),
        cmocka_unit_test(whole_range),
        cmocka_unit_test(special_values),
    };
    return kernel_run_family("activation", tests, sizeof tests / sizeof *tests);
}
