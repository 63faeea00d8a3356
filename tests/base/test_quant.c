/* Quantised blocks, bit for bit as the `gguf` package has them (tests/data/quant/make_vectors.py), and what
 * no file should hold but one may. */
#include "base/quant.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "file/safetensors.h"
#include "support/support.h"

static const struct {
    fb_dtype dtype;
    const char *name; /* in the vector file */
    bool written;
} types[] = {
    {FB_Q8_0, "Q8_0", true},    {FB_Q4_0, "Q4_0", true},      {FB_Q4_1, "Q4_1", false},
    {FB_Q5_0, "Q5_0", false},   {FB_Q5_1, "Q5_1", false},     {FB_Q4_K, "Q4_K", false},
    {FB_Q5_K, "Q5_K", false},   {FB_Q6_K, "Q6_K", false},     {FB_Q2_K, "Q2_K", false},
    {FB_Q3_K, "Q3_K", false},   {FB_IQ4_NL, "IQ4_NL", false}, {FB_IQ4_XS, "IQ4_XS", false},
    {FB_MXFP4, "MXFP4", false},
};

enum { TYPES = sizeof types / sizeof *types };

static fb_tensor_table *vectors;

static int open_vectors(void **state) {
    (void)state;
    fb_error err;
    assert_ok(fb_tensors_open("tests/data/quant/vectors.safetensors", &vectors, &err), &err);
    return 0;
}

static int close_vectors(void **state) {
    (void)state;
    fb_tensors_free(vectors);
    return 0;
}

static const fb_tensor_entry *vector(const char *type, const char *part) {
    char name[32];
    snprintf(name, sizeof name, "%s.%s", type, part);
    const fb_tensor_entry *entry = fb_tensors_find(vectors, name);
    assert_non_null(entry);
    return entry;
}

static void test_decode(void **state) {
    (void)state;
    for (int t = 0; t < TYPES; t++) {
        const fb_tensor_entry *bytes = vector(types[t].name, "bytes"),
                              *values = vector(types[t].name, "values");
        assert_int_equal(fb_dtype_bytes(types[t].dtype, values->count), bytes->count);
        fbt_guard got = fbt_guard_create((size_t)values->count * sizeof(float), 4);
        fb_quant_decode(types[t].dtype, bytes->data, values->count, got.data);
        assert_memory_equal(got.data, values->data, (size_t)values->count * sizeof(float));
        fbt_guard_free(&got);
    }
}

/* One element at a time gives the same. */
static void test_decode_single(void **state) {
    (void)state;
    for (int t = 0; t < TYPES; t++) {
        const fb_tensor_entry *bytes = vector(types[t].name, "bytes"),
                              *values = vector(types[t].name, "values");
        for (int64_t i = 0; i < values->count; i += 7) {
            float want;
            memcpy(&want, values->data + i * (int64_t)sizeof want, sizeof want);
            assert_true(fb_dtype_get(types[t].dtype, bytes->data, i) == (double)want);
        }
    }
}

static void test_encode(void **state) {
    (void)state;
    for (int t = 0; t < TYPES; t++) {
        if (!types[t].written) continue;
        const fb_tensor_entry *input = vector(types[t].name, "input"),
                              *want = vector(types[t].name, "encoded");
        float *values = malloc((size_t)input->count * sizeof *values);
        assert_non_null(values);
        memcpy(values, input->data, (size_t)input->count * sizeof *values);
        assert_int_equal(fb_dtype_bytes(types[t].dtype, input->count), want->count);
        fbt_guard got = fbt_guard_create((size_t)want->count, 1);
        fb_quant_encode(types[t].dtype, values, input->count, got.data);
        assert_memory_equal(got.data, want->data, (size_t)want->count);
        fbt_guard_free(&got);
        free(values);
    }
}

/* An element's error is at most half a unit of the scale, and a little more because the scale is rounded to
 * float16. Q4_0 has no +8: an element whose sign is opposite to the largest one's may be off by a whole unit.
 */
static void test_encode_error(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(41);
    for (int round = 0; round < 200; round++) {
        float x[32], y[32], most = 0;
        uint8_t block[34];
        for (int i = 0; i < 32; i++) {
            x[i] = (float)fbt_random_normal(&random);
            most = fmaxf(most, fabsf(x[i]));
        }
        fb_quant_encode(FB_Q8_0, x, 32, block);
        fb_quant_decode(FB_Q8_0, block, 32, y);
        for (int i = 0; i < 32; i++) assert_true(fabsf(x[i] - y[i]) <= most / 127 * 0.5f + most * 0x1p-11f);
        fb_quant_encode(FB_Q4_0, x, 32, block);
        fb_quant_decode(FB_Q4_0, block, 32, y);
        for (int i = 0; i < 32; i++) assert_true(fabsf(x[i] - y[i]) <= most / 8 * 1.0f + most * 0x1p-11f);
    }
}

/* What was written comes back, and writing it again changes nothing. */
static void test_encode_again(void **state) {
    (void)state;
    const fb_tensor_entry *bytes = vector("Q8_0", "encoded");
    int64_t count = bytes->count / 34 * 32;
    float *values = malloc((size_t)count * sizeof *values), *again = malloc((size_t)count * sizeof *again);
    uint8_t *blocks = malloc((size_t)bytes->count);
    assert_true(values && again && blocks);
    fb_quant_decode(FB_Q8_0, bytes->data, count, values);
    fb_quant_encode(FB_Q8_0, values, count, blocks);
    fb_quant_decode(FB_Q8_0, blocks, count, again);
    for (int64_t i = 0; i < count; i++) assert_true(values[i] == again[i]); /* zeros may change their sign */
    free(values);
    free(again);
    free(blocks);
}

/* ---- searching ---- */

typedef void (*quant_fn)(fb_dtype dtype, const float *from, int64_t count, void *to);

/* The sum of squared errors of 32 values as Q4_0, in double. */
static double q4_0_error(quant_fn quantise, const float *x) {
    uint8_t block[18];
    float y[32];
    double sum = 0;
    quantise(FB_Q4_0, x, 32, block);
    fb_quant_decode(FB_Q4_0, block, 32, y);
    for (int i = 0; i < 32; i++) sum += pow((double)x[i] - (double)y[i], 2);
    return sum;
}

/* Blocks of many shapes and sizes: a normal one, one with a far outlier, one of a single sign, one of small
 * integers. */
static void random_block(fbt_random *random, int round, float *x) {
    float size = ldexpf(1, round % 23 - 12);
    for (int i = 0; i < 32; i++) {
        x[i] = (float)fbt_random_normal(random) * size;
        if (round % 4 == 2) x[i] = fabsf(x[i]);
        if (round % 4 == 3) x[i] = roundf(x[i] / size * 3) * size;
    }
    if (round % 4 == 1) x[round % 32] *= 20;
}

static void test_search_error(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(43);
    double ratios = 0;
    enum { ROUNDS = 4000 };
    for (int round = 0; round < ROUNDS; round++) {
        float x[32];
        random_block(&random, round, x);
        double encoded = q4_0_error(fb_quant_encode, x), searched = q4_0_error(fb_quant_search, x);
        assert_true(searched <= encoded * (1 + 1e-6));
        ratios += encoded > 0 ? searched / encoded : 1;
    }
    assert_true(ratios / ROUNDS < 0.85);
}

/* The error is near to the least that any float16 scale gives: all 63,488 finite ones are tried. */
static void test_search_best(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(44);
    double sum = 0, least_sum = 0;
    for (int round = 0; round < 12; round++) {
        float x[32];
        double least = INFINITY;
        for (int i = 0; i < 32; i++) x[i] = (float)fbt_random_normal(&random);
        for (int half = 1; half < 0x10000; half++) {
            double d = (double)fb_f16_to_f32((uint16_t)half), error = 0;
            if (!isfinite(d) || d == 0) continue;
            for (int i = 0; i < 32 && error < least; i++)
                error += pow((double)x[i] - d * fmin(fmax(floor((double)x[i] / d + 0.5), -8), 7), 2);
            least = fmin(least, error);
        }
        double searched = q4_0_error(fb_quant_search, x);
        assert_true(searched >= least * (1 - 1e-5) && searched < least * 1.1);
        sum += searched;
        least_sum += least;
    }
    assert_true(sum < least_sum * 1.01);
}

/* A block of integers times a float16 scale, the largest being 6 to 8, comes back as it is. */
static void test_search_exact(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(45);
    float x[32] = {0};
    assert_true(q4_0_error(fb_quant_search, x) == 0);
    for (int round = 0; round < 600; round++) {
        int most = 6 + round % 3;
        float d = fb_f16_to_f32(fb_f32_to_f16((float)fbt_random_normal(&random))) * (round & 1 ? 0x1p-8f : 1);
        d = fb_f16_to_f32(fb_f32_to_f16(d));
        for (int i = 0; i < 32; i++) {
            int q = (int)(fbt_random_bits(&random) % (unsigned)(2 * most)) - most;
            x[i] = (float)q * d;
        }
        x[round % 32] = (float)-most * d;
        assert_true(q4_0_error(fb_quant_search, x) == 0);
    }
}

/* Types without a search are encoded. */
static void test_search_others(void **state) {
    (void)state;
    static const fb_dtype others[] = {FB_F32, FB_F16, FB_BF16, FB_Q8_0};
    fbt_random random = fbt_random_start(46);
    float x[64];
    for (int i = 0; i < 64; i++) x[i] = (float)fbt_random_normal(&random);
    for (size_t t = 0; t < sizeof others / sizeof *others; t++) {
        uint8_t encoded[256], searched[256];
        fb_quant_encode(others[t], x, 64, encoded);
        fb_quant_search(others[t], x, 64, searched);
        assert_memory_equal(encoded, searched, (size_t)fb_dtype_bytes(others[t], 64));
    }
}

/* NaN and infinite values: the result is the same each time, and nothing on the way is undefined (the
 * sanitizers check). A search keeps it. */
static void test_encode_hostile(void **state) {
    (void)state;
    static const float hostile[] = {NAN,      -NAN,    INFINITY,     -INFINITY,     FLT_MAX,
                                    -FLT_MAX, FLT_MIN, FLT_TRUE_MIN, -FLT_TRUE_MIN, -0.0f};
    enum { HOSTILE = sizeof hostile / sizeof *hostile };
    for (int t = 0; t < TYPES; t++)
        for (int k = 0; types[t].written && k < HOSTILE * HOSTILE; k++) {
            float x[32];
            for (int i = 0; i < 32; i++)
                x[i] = i % 3 == 0 ? hostile[k % HOSTILE] : i % 3 == 1 ? 1.0f : hostile[k / HOSTILE];
            uint8_t first[34] = {0}, second[34] = {0};
            fb_quant_encode(types[t].dtype, x, 32, first);
            fb_quant_encode(types[t].dtype, x, 32, second);
            assert_memory_equal(first, second, sizeof first);
            float y[32];
            bool finite = true;
            fb_quant_decode(types[t].dtype, first, 32, y);
            for (int i = 0; i < 32; i++) finite = finite && isfinite(x[i]) && fabsf(x[i]) < 1e6f;
            fb_quant_search(types[t].dtype, x, 32, second);
            if (!finite) assert_memory_equal(first, second, sizeof first);
        }
}

/* Every byte a file may hold decodes: -128, scales that are inf or NaN. */
static void test_decode_hostile(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(42);
    for (int t = 0; t < TYPES; t++) {
        int64_t block = fb_dtype_block(types[t].dtype), bytes = fb_dtype_bytes(types[t].dtype, block);
        for (int round = 0; round < 300; round++) {
            uint8_t from[210];
            float to[FB_MAX_BLOCK];
            for (int64_t i = 0; i < bytes; i++)
                from[i] = round ? (uint8_t)fbt_random_bits(&random) : 0xff; /* first: scales are NaN */
            fb_quant_decode(types[t].dtype, from, block, to);
        }
    }
    uint8_t least[34] = {0x00, 0x3c}; /* a scale of 1 */
    float values[32];
    memset(least + 2, 0x80, 32);
    fb_quant_decode(FB_Q8_0, least, 32, values);
    for (int i = 0; i < 32; i++) assert_true(values[i] == -128);
}

/* Floats of every kind through the same two functions, as the scalar conversions have them. */
static void test_floats(void **state) {
    (void)state;
    static const fb_dtype floats[] = {FB_F32, FB_F16, FB_BF16, FB_F64};
    const float values[] = {0,     -0.0f, 1,        -1.5f,      1e-7f,      6e-8f,     65504,     65519,
                            65520, 1e30f, INFINITY, 0x1.002p0f, 0x1.003p0f, 0x1.01p0f, 0x1.018p0f};
    enum { COUNT = sizeof values / sizeof *values };
    for (int f = 0; f < 4; f++) {
        uint8_t got[8 * COUNT + 1], want[8 * COUNT + 1];
        float back[COUNT];
        fb_quant_encode(floats[f], values, COUNT, got + 1);
        fb_quant_decode(floats[f], got + 1, COUNT, back);
        for (int i = 0; i < COUNT; i++) {
            fb_dtype_set(floats[f], want + 1, i, (double)values[i]);
            assert_true((double)back[i] == fb_dtype_get(floats[f], want + 1, i));
        }
        assert_memory_equal(got + 1, want + 1, (size_t)fb_dtype_bytes(floats[f], COUNT));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode),         cmocka_unit_test(test_decode_single),
        cmocka_unit_test(test_encode),         cmocka_unit_test(test_encode_error),
        cmocka_unit_test(test_encode_again),   cmocka_unit_test(test_encode_hostile),
        cmocka_unit_test(test_decode_hostile), cmocka_unit_test(test_floats),
        cmocka_unit_test(test_search_error),   cmocka_unit_test(test_search_best),
        cmocka_unit_test(test_search_exact),   cmocka_unit_test(test_search_others),
    };
    return cmocka_run_group_tests(tests, open_vectors, close_vectors);
}
