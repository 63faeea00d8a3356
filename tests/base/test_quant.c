/* Quantised blocks, bit for bit as the `gguf` package has them (tests/data/quant/make_vectors.py), and what
 * no file should hold but one may. */
#include "base/quant_join.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "file/safetensors.h"
#include "support/support.h"

static const struct {
    fb_dtype dtype;
    const char *name; /* in the vector file */
    bool reference;   /* the package has plain rounding of it */
} types[] = {
    {FB_Q8_0, "Q8_0", true},   {FB_Q4_0, "Q4_0", true},      {FB_Q4_1, "Q4_1", true},
    {FB_Q5_0, "Q5_0", true},   {FB_Q5_1, "Q5_1", true},      {FB_Q4_K, "Q4_K", false},
    {FB_Q5_K, "Q5_K", false},  {FB_Q6_K, "Q6_K", false},     {FB_Q2_K, "Q2_K", false},
    {FB_Q3_K, "Q3_K", false},  {FB_IQ4_NL, "IQ4_NL", false}, {FB_IQ4_XS, "IQ4_XS", false},
    {FB_MXFP4, "MXFP4", true},
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
        if (!types[t].reference) continue;
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

/* ---- every type ---- */

static void search(fb_dtype dtype, const float *from, int64_t count, void *to) {
    fb_quant_search(dtype, from, count, NULL, to);
}

#define MAX_BYTES 210 /* of a block */

/* Any bytes come back from their split block. */
static void test_join(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(48);
    for (int t = 0; t < TYPES; t++)
        for (int round = 0; round < 300; round++) {
            uint8_t from[MAX_BYTES], to[MAX_BYTES];
            quant_parts parts;
            for (int i = 0; i < MAX_BYTES; i++)
                from[i] = (uint8_t)fbt_random_bits(&random), to[i] = (uint8_t)~from[i];
            if (types[t].dtype == FB_MXFP4) from[0] = (uint8_t)round;
            quant_types[types[t].dtype].split(from, &parts);
            quant_joiners[types[t].dtype](&parts, to);
            assert_memory_equal(to, from,
                                (size_t)fb_dtype_bytes(types[t].dtype, fb_dtype_block(types[t].dtype)));
        }
}

static double squared_error(fb_dtype dtype, const float *x, const float *weights, const uint8_t *bytes) {
    float y[FB_MAX_BLOCK];
    double sum = 0;
    fb_quant_decode(dtype, bytes, fb_dtype_block(dtype), y);
    for (int64_t i = 0; i < fb_dtype_block(dtype); i++)
        sum += (weights ? (double)weights[i] : 1) * pow((double)x[i] - (double)y[i], 2);
    return sum;
}

/* The error relative to the norm, of plain rounding and after a search, for normal values. A change that
 * makes a search worse by more than half a percent fails. */
static void test_errors(void **state) {
    (void)state;
    static const struct {
        fb_dtype dtype;
        double plain, searched;
    } want[] = {
        {FB_Q4_0, 0.08783, 0.08289},   {FB_Q4_1, 0.08075, 0.07100},   {FB_Q5_0, 0.04394, 0.04114},
        {FB_Q5_1, 0.03899, 0.03451},   {FB_Q4_K, 0.07901, 0.06967},   {FB_Q5_K, 0.03844, 0.03447},
        {FB_Q6_K, 0.01900, 0.01690},   {FB_Q2_K, 0.33058, 0.26003},   {FB_Q3_K, 0.15700, 0.14456},
        {FB_IQ4_NL, 0.08177, 0.07403}, {FB_IQ4_XS, 0.08052, 0.07390}, {FB_MXFP4, 0.11487, 0.11082},
    };
    for (size_t t = 0; t < sizeof want / sizeof *want; t++) {
        fbt_random random = {49};
        double norm = 0, plain = 0, searched = 0;
        for (int round = 0; round < 100; round++) {
            float x[FB_MAX_BLOCK];
            uint8_t bytes[MAX_BYTES];
            int64_t block = fb_dtype_block(want[t].dtype);
            for (int64_t i = 0; i < block; i++)
                norm += pow((double)(x[i] = (float)fbt_random_normal(&random)), 2);
            fb_quant_encode(want[t].dtype, x, block, bytes);
            plain += squared_error(want[t].dtype, x, NULL, bytes);
            fb_quant_search(want[t].dtype, x, block, NULL, bytes);
            searched += squared_error(want[t].dtype, x, NULL, bytes);
        }
        double wanted = want[t].searched, got = sqrt(searched / norm);
        if (!(got < wanted * 1.005 && fabs(sqrt(plain / norm) / want[t].plain - 1) < 0.005))
            fail_msg("%s: %.5f, searched %.5f", fb_dtype_name(want[t].dtype), sqrt(plain / norm), got);
    }
}

/* The bytes are the same on every machine. */
static void test_pinned(void **state) {
    (void)state;
    static const uint32_t want[][2] = {
        {0x8003ef4d, 0x8003ef4d}, /* Q8_0 */
        {0x1fc0ddcc, 0xbc3e8e40}, /* Q4_0 */
        {0xc75c381c, 0xbd41113e}, /* Q4_1 */
        {0x7069033d, 0x86a9c8aa}, /* Q5_0 */
        {0xdbf92f84, 0x265d6636}, /* Q5_1 */
        {0xe83129d6, 0x9b396879}, /* Q4_K */
        {0xaaf63a79, 0xead41106}, /* Q5_K */
        {0x83163209, 0x2313d3f1}, /* Q6_K */
        {0x0a2d7d6e, 0x3c02b011}, /* Q2_K */
        {0x78720922, 0x39a58c45}, /* Q3_K */
        {0xf001ea65, 0x9c096935}, /* IQ4_NL */
        {0x74e937e2, 0x75d4e11d}, /* IQ4_XS */
        {0x995ec4b9, 0xdf02ac87}, /* MXFP4 */
    };
    const fb_tensor_entry *input = vector("Q4_0", "input");
    float *x = malloc((size_t)input->count * sizeof *x);
    uint8_t *bytes = malloc((size_t)input->count * 2);
    assert_true(x && bytes);
    memcpy(x, input->data, (size_t)input->count * sizeof *x);
    int64_t count = input->count / FB_MAX_BLOCK * FB_MAX_BLOCK;
    for (int t = 0; t < TYPES; t++)
        for (int searched = 0; searched < 2; searched++) {
            uint32_t hash = 2166136261u;
            (searched ? search : fb_quant_encode)(types[t].dtype, x, count, bytes);
            for (int64_t i = 0; i < fb_dtype_bytes(types[t].dtype, count); i++)
                hash = (hash ^ bytes[i]) * 16777619u;
            if (hash != want[t][searched]) fail_msg("%s, searched %d: 0x%08x", types[t].name, searched, hash);
        }
    free(x);
    free(bytes);
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
        double encoded = q4_0_error(fb_quant_encode, x), searched = q4_0_error(search, x);
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
        double searched = q4_0_error(search, x);
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
    assert_true(q4_0_error(search, x) == 0);
    for (int round = 0; round < 600; round++) {
        int most = 6 + round % 3;
        float d = fb_f16_to_f32(fb_f32_to_f16((float)fbt_random_normal(&random))) * (round & 1 ? 0x1p-8f : 1);
        d = fb_f16_to_f32(fb_f32_to_f16(d));
        for (int i = 0; i < 32; i++) {
            int q = (int)(fbt_random_bits(&random) % (unsigned)(2 * most)) - most;
            x[i] = (float)q * d;
        }
        x[round % 32] = (float)-most * d;
        assert_true(q4_0_error(search, x) == 0);
    }
}

/* Squared error of a block. */
static double fit_error(fb_dtype dtype, void (*encode)(const float *from, int64_t count, void *to),
                        const float *x) {
    uint8_t bytes[20];
    float back[32];
    double error = 0;
    if (encode)
        encode(x, 32, bytes);
    else
        fb_quant_encode(dtype, x, 32, bytes);
    fb_quant_decode(dtype, bytes, 32, back);
    for (int i = 0; i < 32; i++) error += pow((double)x[i] - (double)back[i], 2);
    return error;
}

/* On average a twelfth less error than plain rounding; and what a file of that type said comes back. */
static void test_fit(void **state) {
    (void)state;
    static const struct {
        fb_dtype dtype;
        void (*encode)(const float *from, int64_t count, void *to);
    } fits[] = {{FB_Q4_0, fb_quant_fit_q4_0}, {FB_Q4_1, fb_quant_fit_q4_1}};
    for (size_t f = 0; f < sizeof fits / sizeof *fits; f++) {
        fbt_random random = fbt_random_start(47);
        double fitted = 0, plain = 0, offset = f ? 0.3 : 0;
        for (int round = 0; round < 300; round++) {
            float x[32];
            for (int i = 0; i < 32; i++) x[i] = (float)(0.02 * (fbt_random_normal(&random) + offset));
            fitted += fit_error(fits[f].dtype, fits[f].encode, x);
            plain += fit_error(fits[f].dtype, NULL, x);
        }
        assert_true(fitted < 0.92 * plain);
        float zeros[32] = {0}, again[32];
        assert_true(fit_error(fits[f].dtype, fits[f].encode, zeros) == 0);
        for (int i = 0; i < 32; i++) again[i] = 0.25f * (float)(i % 16 - 8);
        assert_true(fit_error(fits[f].dtype, fits[f].encode, again) < 1e-12);
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
        fb_quant_search(others[t], x, 64, NULL, searched);
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
        for (int k = 0; k < HOSTILE * HOSTILE; k++) {
            float x[FB_MAX_BLOCK], y[FB_MAX_BLOCK];
            int64_t block = fb_dtype_block(types[t].dtype);
            for (int i = 0; i < block; i++)
                x[i] = i % 3 == 0 ? hostile[k % HOSTILE] : i % 3 == 1 ? 1.0f : hostile[k / HOSTILE];
            uint8_t first[MAX_BYTES] = {0}, second[MAX_BYTES] = {0};
            fb_quant_encode(types[t].dtype, x, block, first);
            fb_quant_encode(types[t].dtype, x, block, second);
            assert_memory_equal(first, second, sizeof first);
            bool finite = true;
            fb_quant_decode(types[t].dtype, first, block, y);
            for (int i = 0; i < block; i++) finite = finite && isfinite(x[i]);
            fb_quant_search(types[t].dtype, x, block, NULL, second);
            if (!finite) assert_memory_equal(first, second, sizeof first);
        }
}

/* Weights that are zero, huge or unlike: the bytes decode, and the weighted error is not above that of plain
 * rounding. */
static void test_search_weights(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(47);
    for (int t = 0; t < TYPES; t++)
        for (int round = 0; round < 60; round++) {
            float x[FB_MAX_BLOCK], weights[FB_MAX_BLOCK];
            uint8_t bytes[MAX_BYTES];
            int64_t block = fb_dtype_block(types[t].dtype);
            for (int i = 0; i < block; i += 32) random_block(&random, 4 * (i / 32) + round, x + i);
            for (int i = 0; i < block; i++) {
                weights[i] = (float)pow(fbt_random_normal(&random), 2) * (round % 5 == 1 ? 0x1p60f : 1);
                if (round % 5 == 2 || (round % 5 == 3 && i % 7)) weights[i] = 0;
            }
            fb_quant_encode(types[t].dtype, x, block, bytes);
            double plain = squared_error(types[t].dtype, x, weights, bytes);
            fb_quant_search(types[t].dtype, x, block, weights, bytes);
            assert_true(squared_error(types[t].dtype, x, weights, bytes) <= plain * (1 + 1e-5));
        }
}

/* Every byte a file may hold decodes: -128, scales that are inf or NaN. */
static void test_decode_hostile(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(42);
    for (int t = 0; t < TYPES; t++) {
        int64_t block = fb_dtype_block(types[t].dtype), bytes = fb_dtype_bytes(types[t].dtype, block);
        for (int round = 0; round < 300; round++) {
            uint8_t from[MAX_BYTES];
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
        cmocka_unit_test(test_search_exact),   cmocka_unit_test(test_search_weights),
        cmocka_unit_test(test_join),           cmocka_unit_test(test_errors),
        cmocka_unit_test(test_pinned),         cmocka_unit_test(test_fit),
        cmocka_unit_test(test_search_others),
    };
    return cmocka_run_group_tests(tests, open_vectors, close_vectors);
}
