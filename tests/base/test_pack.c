/* Rows interleaved in groups of 16: the layout that pack.h describes, there and back. */
#include "base/pack.h"

#include <stdlib.h>

#include "support/support.h"

static const fb_dtype types[] = {FB_Q8_0, FB_Q4_0};
static const int64_t row_counts[] = {1, 2, 15, 16, 17, 33};
static const int64_t col_counts[] = {32, 64, 160};

/* A matrix of random bytes, whose scales are not NaN, so that values can be compared. */
static uint8_t *random_rows(fbt_random *random, fb_dtype dtype, int64_t rows, int64_t cols) {
    int64_t bytes = rows * fb_dtype_bytes(dtype, cols), block = fb_dtype_bytes(dtype, 32);
    uint8_t *data = malloc((size_t)bytes);
    assert_non_null(data);
    for (int64_t i = 0; i < bytes; i++)
        data[i] = i % block == 1 ? 0x3c : (uint8_t)fbt_random_bits(random); /* a scale of 1 to 2 */
    return data;
}

static void check(fbt_random *random, fb_dtype dtype, int64_t rows, int64_t cols) {
    int64_t row_bytes = fb_dtype_bytes(dtype, cols);
    uint8_t *data = random_rows(random, dtype, rows, cols), *back = malloc((size_t)row_bytes);
    assert_non_null(back);
    fbt_guard packed = fbt_guard_create((size_t)fb_pack_bytes(dtype, rows, cols), 0);
    /* In an order of no use, because rows are independent. */
    for (int64_t r = rows; r-- > 0;) fb_pack_row(dtype, data + r * row_bytes, cols, r, packed.data);
    for (int64_t r = 0; r < rows; r++) {
        fb_unpack_row(dtype, packed.data, cols, r, back);
        assert_memory_equal(back, data + r * row_bytes, (size_t)row_bytes);
    }
    fb_weight plain = {.data = data, .dtype = dtype, .rows = rows, .cols = cols}, interleaved = plain;
    interleaved.data = packed.data;
    interleaved.packed = true;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++)
            assert_true(fb_weight_get(&interleaved, r, c) == fb_weight_get(&plain, r, c));
        for (int64_t first = 0; first < cols; first += 32)
            for (int packed_too = 0; packed_too < 2; packed_too++) { /* all columns from `first` on */
                const fb_weight *w = packed_too ? &interleaved : &plain;
                float values[160];
                fb_weight_row(w, r, first, cols - first, values);
                for (int64_t c = first; c < cols; c++)
                    assert_true((double)values[c - first] == fb_weight_get(&plain, r, c));
            }
    }
    fbt_guard_free(&packed);
    free(back);
    free(data);
}

static void test_there_and_back(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(43);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t r = 0; r < sizeof row_counts / sizeof *row_counts; r++)
            for (size_t c = 0; c < sizeof col_counts / sizeof *col_counts; c++)
                check(&random, types[t], row_counts[r], col_counts[c]);
}

/* The layout itself, which kernels read: byte by byte for one row of a group. */
static void test_layout(void **state) {
    (void)state;
    enum { ROW = 18, IN_GROUP = ROW % FB_PACK_ROWS, COLS = 64, ROWS = 32 };
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        int64_t block = fb_dtype_bytes(types[t], 32), row_bytes = fb_dtype_bytes(types[t], COLS);
        int64_t size = fb_pack_bytes(types[t], ROWS, COLS);
        assert_int_equal(size, ROWS * row_bytes);
        uint8_t row[2 * 34], *packed = calloc((size_t)size, 1);
        assert_non_null(packed);
        for (int64_t i = 0; i < row_bytes; i++) row[i] = (uint8_t)(i + 1);
        fb_pack_row(types[t], row, COLS, ROW, packed);
        const uint8_t *group = packed + size / 2; /* the second group */
        for (int64_t b = 0; b < COLS / 32; b++, group += FB_PACK_ROWS * block) {
            assert_memory_equal(group + 2 * IN_GROUP, row + b * block, 2);
            for (int64_t i = 0; i < block - 2; i++)
                assert_int_equal(group[2 * FB_PACK_ROWS + i / 4 * 4 * FB_PACK_ROWS + 4 * IN_GROUP + i % 4],
                                 row[b * block + 2 + i]);
        }
        /* Nothing else was written. */
        int64_t written = 0;
        for (int64_t i = 0; i < size; i++) written += packed[i] != 0;
        assert_int_equal(written, row_bytes);
        free(packed);
    }
}

static void test_which(void **state) {
    (void)state;
    for (int i = 0; i < FB_DTYPE_COUNT; i++)
        assert_int_equal(fb_pack_has((fb_dtype)i), i == FB_Q8_0 || i == FB_Q4_0);
    /* A last group that is not full takes the room of a whole one. */
    assert_int_equal(fb_pack_bytes(FB_Q8_0, 17, 64), 32 * 2 * 34);
    assert_int_equal(fb_pack_bytes(FB_Q4_0, 16, 32), 16 * 18);
}

/* Rows in every order that a file may have them in, whole and in parts. */
static void file_orders(void **state) {
    (void)state;
    static const struct {
        fb_row_order order;
        fb_dtype dtype;
        int64_t rows, cols, head_dim;
    } cases[] = {
        {FB_ROWS_SAME, FB_F16, 9, 7, 0},          {FB_ROWS_ROPE_PAIRS, FB_F32, 24, 5, 6},
        {FB_ROWS_ROPE_PAIRS, FB_Q4_0, 32, 64, 8}, {FB_ROWS_QKV, FB_F16, 36, 11, 4},
        {FB_ROWS_QKV, FB_Q8_0, 48, 32, 8},        {FB_ROWS_TRANSPOSED, FB_F32, 70, 45, 0},
        {FB_ROWS_TRANSPOSED, FB_F16, 33, 100, 0}, {FB_ROWS_QKV, FB_F32, 1, 48, 8},
        {FB_ROWS_ROPE_PAIRS, FB_F16, 1, 24, 6},
    };
    fbt_random random = {99};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int64_t rows = cases[c].rows, cols = cases[c].cols, count = rows * cols;
        size_t bytes = (size_t)fb_dtype_bytes(cases[c].dtype, count);
        uint8_t *data = malloc(bytes), *copy = malloc(bytes), *part = malloc(bytes);
        float *row = malloc((size_t)cols * sizeof *row);
        assert_true(data && copy && part && row);
        if (fb_dtype_is_float(cases[c].dtype))
            for (int64_t i = 0; i < count; i++)
                fb_dtype_set(cases[c].dtype, data, i, fbt_random_normal(&random));
        else
            fbt_random_blocks(&random, cases[c].dtype, count, 0.1, data);
        fb_weight file = {.data = data,
                          .dtype = cases[c].dtype,
                          .rows = rows,
                          .cols = cols,
                          .order = cases[c].order,
                          .head_dim = cases[c].head_dim},
                  same = {.data = copy, .dtype = cases[c].dtype, .rows = rows, .cols = cols};
        fb_weight_copy(&file, 0, rows, copy);
        int64_t row_bytes = fb_dtype_bytes(cases[c].dtype, cols), begin = rows / 3, end = rows - rows / 4;
        if (rows > 1) {
            fb_weight_copy(&file, begin, end - begin, part);
            assert_memory_equal(part, copy + begin * row_bytes, (size_t)((end - begin) * row_bytes));
        }
        for (int64_t r = 0; r < rows; r++) {
            fb_weight_row(&file, r, 0, cols, row);
            for (int64_t k = 0; k < cols; k++) {
                assert_true(fb_weight_get(&file, r, k) == fb_weight_get(&same, r, k));
                assert_true((double)row[k] == fb_weight_get(&same, r, k));
            }
        }
        /* Against the definition: where the file has element (r, k). */
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < cols; k++) {
                int64_t at = cases[c].order == FB_ROWS_TRANSPOSED ? k * rows + r
                             : rows == 1
                                 ? fb_order_row(cases[c].order, cols, cases[c].head_dim, k)
                                 : fb_order_row(cases[c].order, rows, cases[c].head_dim, r) * cols + k;
                assert_true(fb_dtype_get(cases[c].dtype, data, at) == fb_weight_get(&same, r, k));
            }
        free(data), free(copy), free(part), free(row);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(file_orders),
        cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_which),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
