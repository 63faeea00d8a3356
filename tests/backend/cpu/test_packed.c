/* Packed weights give the same bits on every instruction set and with any number of rows, where a matrix unit
 * takes over from vectors too. */
#define FUSED_ROWS 132
#include "fused_harness.h"

/* Up to eight rows, one tile of rows and two, with and without a rest; more than a block of them. */
static const int64_t some_rows[] = {1, 2, 3, 7, 8, 9, 16, 17, 24, 31, 33, 48, ROWS};
/* Blocks that fill the buffers of 256 columns, and that do not; outputs for one group, three, and more. */
static const int64_t some_columns[] = {32, 96, 160, 256, 288, 512, 768, 800};
static const int64_t some_outputs[] = {5, 16, 48, 70};

#define COUNT(array) (sizeof(array) / sizeof *(array))
enum { NOT_FINITE = 5 }; /* a row */

/* Rows of quantised blocks. NOT_FINITE has a block with NaN, which must stay there. */
static fb_view inputs(int64_t k) {
    fb_view x = view(FB_F32, 1, fb_q8_floats(k), 0);
    for (int64_t row = 0; row < ROWS; row++)
        for (int64_t b = 0; b < k / 32; b++) {
            fb_q8 *block = (fb_q8 *)fb_view_at(&x, row, 0) + b;
            *block = (fb_q8){.scale = (float)fabs(0.01 * fbt_random_normal(&random_numbers))};
            if (row == NOT_FINITE && b == k / 64) block->scale = NAN;
            for (int i = 0; i < 32 && row != 6; i++) {
                block->q[i] = (int8_t)(row == 4 ? -127 : fbt_random_below(&random_numbers, 255) - 127);
                block->sum += block->q[i];
            }
        }
    return x;
}

static void same_bits(const fb_isa *isa, const fb_call *call, const fb_view *want, int64_t rows) {
    const fb_weight *w = &call->weights[0];
    for (int64_t row = 0; row < ROWS; row++)
        for (int64_t n = 0; n < w->rows; n++) {
            float a = ((const float *)fb_view_at(&call->out[0], row, 0))[n];
            float b = ((const float *)fb_view_at(want, row, 0))[n];
            bool nan = row >= rows || row == NOT_FINITE;
            if (nan ? a == a : memcmp(&a, &b, sizeof a) != 0)
                fail_msg("%s, %s, %lld rows, %lld to %lld: row %lld, output %lld: %.9g, should be %.9g",
                         isa->name, fb_dtype_name(w->dtype), (long long)rows, (long long)w->cols,
                         (long long)w->rows, (long long)row, (long long)n, (double)a, (double)b);
        }
}

static bool counts(const fb_isa *isa) { return isa->available() && strcmp(isa->name, "ref") != 0; }

/* A linear on every instruction set against the slowest with all rows. The portable kernels are compared with
 * themselves: they have no fused multiply-add. */
static void one_linear(fb_dtype type, int64_t k, int64_t n) {
    const fb_isa *first = fb_isa_table, *end = first;
    while (strcmp(end->name, "ref") != 0) end++;
    fb_view want = view(FB_F32, 1, n, 0), out = view(FB_F32, 1, n, 0);
    fb_call call = {.in = {inputs(k)}};
    call.attr.segment[0].dot = FB_DOT_GIVEN;
    call.weights[0] = packed(weight(type, n, k, 0));
    int others = 0;
    for (const fb_isa *isa = end; isa-- > first;) {
        if (!counts(isa)) continue;
        if (others++ < 2) {
            call.out[0] = want;
            call.rows = ROWS;
            run(isa, FB_OP_LINEAR, call, 1);
        }
        call.out[0] = out;
        for (size_t r = 0; r < COUNT(some_rows); r++) {
            call.rows = some_rows[r];
            poison(&out);
            run(isa, FB_OP_LINEAR, call, 1 + (int32_t)(r % 2));
            same_bits(isa, &call, &want, call.rows);
        }
    }
    give_back();
}

static void one_result(void **state) {
    (void)state;
    random_numbers = fbt_random_start(31);
    for (int type = FB_Q8_0; type < FB_DTYPE_COUNT; type++)
        for (size_t i = 0; i < COUNT(some_columns); i++)
            for (size_t j = 0; j < COUNT(some_outputs); j++)
                if (some_columns[i] % fb_dtype_block((fb_dtype)type) == 0 && !fbt_passes_over(7))
                    one_linear((fb_dtype)type, some_columns[i], some_outputs[j]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_result)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
