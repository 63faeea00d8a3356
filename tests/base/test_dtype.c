#include "base/dtype.h"

#include <math.h>

#include "support/support.h"

/* ---- a slow and independent view of the 16-bit formats ---- */

typedef struct format {
    fb_dtype dtype;
    int mantissa, bias;
    uint16_t (*narrow)(float value);
    float (*widen)(uint16_t half);
} format;

static const format formats[] = {
    {FB_F16, 10, 15, fb_f32_to_f16, fb_f16_to_f32},
    {FB_BF16, 7, 127, fb_f32_to_bf16, fb_bf16_to_f32},
};

/* What the bits mean, from the definition of the format. */
static double meaning(const format *f, uint16_t bits) {
    int exponent = (bits & 0x7fff) >> f->mantissa, fields = (1 << (15 - f->mantissa)) - 1;
    double fraction = ldexp(bits & ((1 << f->mantissa) - 1), -f->mantissa), sign = bits & 0x8000 ? -1 : 1;
    if (exponent == fields) return fraction == 0 ? sign * INFINITY : NAN;
    return sign * (exponent ? ldexp(1 + fraction, exponent - f->bias) : ldexp(fraction, 1 - f->bias));
}

/* The nearest value of the format, ties to the even one; rint does that for multiples of the spacing. */
static double nearest(const format *f, double x) {
    if (isnan(x) || isinf(x) || x == 0) return x;
    int exponent = ilogb(x), least = 1 - f->bias;
    double spacing = ldexp(1, (exponent < least ? least : exponent) - f->mantissa);
    double rounded = rint(x / spacing) * spacing;
    return fabs(rounded) >= ldexp(1, f->bias + 1) ? copysign(INFINITY, x) : rounded;
}

static bool same(double a, double b) { return isnan(a) ? isnan(b) : a == b && signbit(a) == signbit(b); }

static void check_narrow(const format *f, float x) {
    double want = nearest(f, (double)x), have = meaning(f, f->narrow(x));
    if (!same(want, have))
        fail_msg("%s: %a becomes %a, should be %a", fb_dtype_name(f->dtype), (double)x, have, want);
}

/* ---- tests ---- */

static void every_half(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++)
        for (int bits = 0; bits < 65536; bits++) {
            const format *f = &formats[i];
            float wide = f->widen((uint16_t)bits);
            if (!same((double)wide, meaning(f, (uint16_t)bits))) fail_msg("%04x: %a", bits, (double)wide);
            uint16_t back = f->narrow(wide);
            if (isnan(wide))
                assert_true(isnan(meaning(f, back)) && (back & 0x8000) == (bits & 0x8000));
            else
                assert_int_equal(back, bits);
        }
}

/* Between each two neighbours: the tie, and a float32 step to either side of it. */
static void ties(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++)
        for (int bits = 0; bits < 65535; bits++) {
            const format *f = &formats[i];
            double low = meaning(f, (uint16_t)bits), high = meaning(f, (uint16_t)(bits + 1));
            if (isnan(low) || isnan(high) || isinf(low)) continue;
            if (isinf(high)) high = copysign(ldexp(1, f->bias + 1), high);
            float tie = (float)(low / 2 + high / 2);
            check_narrow(f, tie);
            check_narrow(f, nextafterf(tie, INFINITY));
            check_narrow(f, nextafterf(tie, -INFINITY));
        }
}

static void any_float(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(1);
    for (size_t i = 0; i < 2; i++) {
        static const float special[] = {0,     INFINITY,   NAN,   1e-45f, 1e-40f,
                                        65504, 65519.996f, 65520, 1e30f,  3.4028235e38f};
        for (size_t k = 0; k < sizeof special / sizeof *special; k++) {
            check_narrow(&formats[i], special[k]);
            check_narrow(&formats[i], -special[k]);
        }
        for (int k = 0; k < 300000; k++)
            check_narrow(&formats[i], fb_f32_from_bits((uint32_t)fbt_random_bits(&random)));
        /* A NaN whose payload lies in the bits that are cut off must not become infinite. */
        for (uint32_t payload = 1; payload; payload <<= 1)
            if (payload < 0x800000)
                assert_true(
                    isnan(meaning(&formats[i], formats[i].narrow(fb_f32_from_bits(0x7f800000 | payload)))));
    }
}

/* One rounding from double: values so close to a tie that float32 cannot see on which side they are. */
static void from_double(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(2);
    for (size_t i = 0; i < 2; i++)
        for (int k = 0; k < 100000; k++) {
            const format *f = &formats[i];
            uint16_t bits = (uint16_t)fbt_random_bits(&random), have;
            double low = meaning(f, bits), high = meaning(f, (uint16_t)(bits + 1));
            if (!isfinite(low) || !isfinite(high) || low * high <= 0) continue;
            double x = (low + high) / 2 * (1 + (double)(fbt_random_below(&random, 3) - 1) * 0x1p-45);
            fb_dtype_set(f->dtype, &have, 0, x);
            if (!same(meaning(f, have), nearest(f, x)))
                fail_msg("%s: %a becomes %a", fb_dtype_name(f->dtype), x, meaning(f, have));
            assert_true(fb_dtype_get(f->dtype, &have, 0) == meaning(f, have));
        }
}

/* Elements at any byte address, and nothing beside them. */
static void elements(void **state) {
    (void)state;
    for (int dtype = FB_F32; dtype < FB_FLOAT_COUNT; dtype++)
        for (size_t offset = 0; offset < 9; offset++) {
            size_t size = (size_t)fb_dtype_size((fb_dtype)dtype);
            fbt_guard guard = fbt_guard_create(3 * size, offset);
            for (int64_t i = 0; i < 3; i++) fb_dtype_set((fb_dtype)dtype, guard.data, i, 1.5 - (double)i);
            for (int64_t i = 0; i < 3; i++)
                assert_true(fb_dtype_get((fb_dtype)dtype, guard.data, i) == 1.5 - (double)i);
            fbt_guard_free(&guard);
        }
    double third = 1.0 / 3;
    float rounded;
    fb_dtype_set(FB_F32, &rounded, 0, third);
    assert_true(rounded == (float)third);
}

static void names(void **state) {
    (void)state;
    static const struct {
        fb_dtype dtype;
        const char *name;
        int64_t block, bytes;
    } rows[] = {{FB_F32, "f32", 1, 4},           {FB_F16, "f16", 1, 2},       {FB_BF16, "bf16", 1, 2},
                {FB_F64, "f64", 1, 8},           {FB_Q8_0, "q8_0", 32, 34},   {FB_Q4_0, "q4_0", 32, 18},
                {FB_Q4_1, "q4_1", 32, 20},       {FB_Q5_0, "q5_0", 32, 22},   {FB_Q5_1, "q5_1", 32, 24},
                {FB_Q4_K, "q4_k", 256, 144},     {FB_Q5_K, "q5_k", 256, 176}, {FB_Q6_K, "q6_k", 256, 210},
                {FB_Q2_K, "q2_k", 256, 84},      {FB_Q3_K, "q3_k", 256, 110}, {FB_IQ4_NL, "iq4_nl", 32, 18},
                {FB_IQ4_XS, "iq4_xs", 256, 136}, {FB_MXFP4, "mxfp4", 32, 17}};
    assert_int_equal(sizeof rows / sizeof *rows, FB_DTYPE_COUNT);
    fb_error err;
    fb_dtype parsed;
    for (size_t i = 0; i < FB_DTYPE_COUNT; i++) {
        assert_string_equal(fb_dtype_name(rows[i].dtype), rows[i].name);
        assert_int_equal(fb_dtype_block(rows[i].dtype), rows[i].block);
        assert_int_equal(fb_dtype_bytes(rows[i].dtype, 512), 512 / rows[i].block * rows[i].bytes);
        assert_int_equal(fb_dtype_is_float(rows[i].dtype), rows[i].block == 1);
        if (rows[i].block == 1) assert_int_equal(fb_dtype_size(rows[i].dtype), rows[i].bytes);
        assert_ok(fb_dtype_parse(rows[i].name, &parsed, &err), &err);
        assert_int_equal(parsed, rows[i].dtype);
    }
    static const char *const bad[] = {"", "F32", "f3", "f322", " f16", "q4"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_refused(fb_dtype_parse(bad[i], &parsed, &err), FB_ERROR_USAGE, &err, "dtype|bf16");
    assert_string_equal(fb_dtype_name(FB_DTYPE_COUNT), "unknown");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half),  cmocka_unit_test(ties),     cmocka_unit_test(any_float),
        cmocka_unit_test(from_double), cmocka_unit_test(elements), cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
