#include <math.h>
#include <stdio.h>
#include <string.h>

#include "emulated.h"
#include "kernel_harness.h"

enum { TABLE_ROWS = 41 };

static void rows_of_a_table(void **state) {
    (void)state;
    static const int64_t widths[] = {1, 3, 7, 15, 16, 17, 31, 33, 64, 65, 100, 257};
    fbt_random random = fbt_random_start(11);
    for (int kind = FB_OP_EMBED; kind <= FB_OP_EMBED_POSITION; kind++)
        for (int act = FB_F32; act <= FB_BF16; act++)
            for (int weight = FB_F32; weight <= FB_BF16; weight++)
                for (size_t i = 0; i < 2 * sizeof widths / sizeof *widths; i++) {
                    int64_t width = widths[i / 2];
                    rig r;
                    rig_start(&r, (fb_op_kind)kind, &random, i % 2);
                    snprintf(r.text, sizeof r.text, "act %s, weight %s, width %lld",
                             fb_dtype_name((fb_dtype)act), fb_dtype_name((fb_dtype)weight), (long long)width);
                    r.exact = true;
                    if (kind == FB_OP_EMBED && i % 3 == 2) r.call.attr.scale = 8; /* its product is exact */
                    /* The last row of the positions' table is read, too. */
                    int64_t span = place_of_row(0, WITH_GAPS, RIG_ROWS - 1) + 1;
                    fb_row *row = rig_rows(&r, kind == FB_OP_EMBED ? 1000000 : TABLE_ROWS - span, WITH_GAPS);
                    for (int n = 0; n < RIG_ROWS; n++)
                        row[n].token =
                            kind == FB_OP_EMBED ? (int32_t)fbt_random_below(&random, TABLE_ROWS) : 1000000;
                    if (kind == FB_OP_EMBED) row[3].token = 0, row[11].token = TABLE_ROWS - 1;
                    r.call.weights[0] = rig_weight(&r, (fb_dtype)weight, TABLE_ROWS, width, 0, 1);
                    r.call.out[0] = rig_output(&r, (fb_dtype)act, 1, width, (gaps){0, (int64_t)i % 3}, 0);
                    rig_check(&r);
                }
}

/* Quantised tables, as they lie in a file and packed. */
static void quantised_tables(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(15);
    for (int act = FB_F32; act <= FB_BF16; act++)
        for (int weight = FB_Q8_0; weight < FB_DTYPE_COUNT; weight++)
            for (int packed = 0; packed <= fb_pack_has((fb_dtype)weight); packed++)
                for (int64_t blocks = 1; blocks <= 5; blocks += 2) {
                    int64_t width = blocks * fb_dtype_block((fb_dtype)weight);
                    rig r;
                    rig_start(&r, FB_OP_EMBED, &random, blocks == 3);
                    snprintf(r.text, sizeof r.text, "act %s, weight %s%s, width %lld",
                             fb_dtype_name((fb_dtype)act), fb_dtype_name((fb_dtype)weight),
                             packed ? ", packed" : "", (long long)width);
                    r.exact = true;
                    r.scratch_floats = width;
                    fb_row *row = rig_rows(&r, 1000000, WITH_GAPS);
                    for (int n = 0; n < RIG_ROWS; n++)
                        row[n].token = (int32_t)fbt_random_below(&random, TABLE_ROWS);
                    fb_weight w = rig_weight(&r, (fb_dtype)weight, TABLE_ROWS, width, 0, 1);
                    r.call.weights[0] = packed ? rig_packed(&r, w) : w;
                    r.call.out[0] = rig_output(&r, (fb_dtype)act, 1, width, (gaps){0, blocks}, 0);
                    rig_check(&r);
                }
}

/* ---- conversions: a table of one row is converted from its dtype to the output's ---- */

enum { ALL = 65536 };

static void convert(const fb_isa *isa, fb_dtype from, const void *table, fb_dtype to, void *out) {
    static const fb_row row;
    fb_call call = {.rows = 1, .row = &row};
    call.weights[0] = (fb_weight){.data = table, .dtype = from, .rows = 1, .cols = ALL};
    call.out[0] = (fb_view){out, to, 1, ALL, ALL, ALL};
    isa->kernels[FB_OP_EMBED](&call, &(fb_worker){.count = 1});
}

static bool same_number(fb_dtype dtype, const void *a, const void *b, int64_t i) {
    double x = fb_dtype_get(dtype, a, i), y = fb_dtype_get(dtype, b, i);
    return isnan(x) ? isnan(y) : memcmp(&x, &y, sizeof x) == 0;
}

static void check_conversion(fb_dtype from, const void *table, fb_dtype to) {
    static double have[ALL], want[ALL];
    for (int64_t i = 0; i < ALL; i++) {
        float value = (float)fb_dtype_get(from, table, i);
        uint16_t half = to == FB_F16 ? fb_f32_to_f16(value) : fb_f32_to_bf16(value);
        if (to == FB_F32) memcpy((uint8_t *)want + 4 * i, &value, 4);
        if (to != FB_F32) memcpy((uint8_t *)want + 2 * i, &half, 2);
    }
    static int64_t turns;
    for (const fb_isa *isa = fb_isa_table; isa->name; isa++) {
        if (!isa->available() || emulated_again(isa, &turns)) continue;
        memset(have, 0x5a, sizeof have);
        convert(isa, from, table, to, have);
        for (int64_t i = 0; i < ALL; i++)
            if (!same_number(to, have, want, i))
                fail_msg("%s: %s to %s: %.9g becomes %.9g, should be %.9g", isa->name, fb_dtype_name(from),
                         fb_dtype_name(to), fb_dtype_get(from, table, i), fb_dtype_get(to, have, i),
                         fb_dtype_get(to, want, i));
    }
}

/* Vectors convert as scalars do: every 16-bit value, and float32 values on and around the ties between them.
 */
static void conversions_agree(void **state) {
    (void)state;
    static uint16_t halves[ALL];
    static float singles[ALL];
    for (int i = 0; i < ALL; i++) halves[i] = (uint16_t)i;
    for (int from = FB_F16; from <= FB_BF16; from++)
        for (int to = FB_F32; to <= FB_BF16; to++) check_conversion((fb_dtype)from, halves, (fb_dtype)to);
    for (int to = FB_F16; to <= FB_BF16; to++)
        for (int off = -1; off <= 1; off++) {
            for (int i = 0; i < ALL; i++) {
                double low = fb_dtype_get((fb_dtype)to, halves, i),
                       high = fb_dtype_get((fb_dtype)to, halves, (i + 1) % ALL);
                float tie = (float)((low + high) / 2);
                singles[i] = off ? nextafterf(tie, off < 0 ? -INFINITY : INFINITY) : tie;
            }
            check_conversion(FB_F32, singles, (fb_dtype)to);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_of_a_table), cmocka_unit_test(quantised_tables),
                                       cmocka_unit_test(conversions_agree)};
    return kernel_run_family("embed", tests, sizeof tests / sizeof *tests);
}
