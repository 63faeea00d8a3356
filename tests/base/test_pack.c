/* Rows interleaved in groups of 16: the layout that pack.h describes, there and back. */
#include "base/pack_blocks.h"
#include "base/pack_gpu.h"

#include <stdlib.h>

#include "support/support.h"

static const int64_t row_counts[] = {1, 2, 15, 16, 17, 33};
static const int64_t block_counts[] = {1, 2, 5};

#define FOR_QUANTISED(dtype) for (fb_dtype dtype = FB_Q8_0; dtype < FB_DTYPE_COUNT; dtype++)

static void check(fbt_random *random, fb_dtype dtype, int64_t rows, int64_t cols) {
    int64_t row_bytes = fb_dtype_bytes(dtype, cols), block = fb_dtype_block(dtype);
    uint8_t *data = malloc((size_t)(rows * row_bytes));
    float *values = malloc((size_t)cols * sizeof *values);
    assert_true(data && values);
    fbt_random_blocks(random, dtype, rows * cols, 1, data);
    fbt_guard packed = fbt_guard_create((size_t)fb_pack_bytes(dtype, rows, cols), 0);
    /* In an order of no use, because rows are independent. */
    for (int64_t r = rows; r-- > 0;) fb_pack_row(dtype, data + r * row_bytes, cols, r, packed.data);
    fb_weight plain = {.data = data, .dtype = dtype, .rows = rows, .cols = cols}, interleaved = plain;
    interleaved.data = packed.data;
    interleaved.packed = true;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c += 1 + (c % 32 == 0))
            assert_true(fb_weight_get(&interleaved, r, c) == fb_weight_get(&plain, r, c));
        for (int64_t first = 0; first < cols; first += block)
            for (int packed_too = 0; packed_too < 2; packed_too++) { /* all columns from `first` on */
                const fb_weight *w = packed_too ? &interleaved : &plain;
                fb_weight_row(w, r, first, cols - first, values);
                for (int64_t c = first; c < cols; c += 3)
                    assert_true((double)values[c - first] == fb_weight_get(&plain, r, c));
            }
    }
    fbt_guard_free(&packed);
    free(values);
    free(data);
}

static void test_there_and_back(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(43);
    FOR_QUANTISED(dtype)
    for (size_t r = 0; r < sizeof row_counts / sizeof *row_counts; r++)
        for (size_t c = 0; c < sizeof block_counts / sizeof *block_counts; c++) {
            if (fbt_passes_over(5)) continue;
            check(&random, dtype, row_counts[r], block_counts[c] * fb_dtype_block(dtype));
        }
}

/* Bits [from, from + bits) of a byte. */
static int bits_of(uint8_t byte, int from, int bits) { return byte >> from & ((1 << bits) - 1); }

/* Reads a plane as pack.h describes it: the bits of column `col` of 32, of row `row`. */
static int plane_bits(const uint8_t *plane, int bits, int row, int col) {
    int quad = col / 4;
    const uint8_t *word = plane + (quad % bits * FB_PACK_ROWS + row) * 4;
    return bits_of(word[col % 4], quad / bits * bits, bits);
}

static void check_layout(const quant_type *t, const quant_parts *p, const uint8_t *group, int row) {
    assert_memory_equal(group + 2 * row, &p->scale, 2);
    group += 32;
    if (t->minimums) {
        assert_memory_equal(group + 2 * row, &p->minimum, 2);
        group += 32;
    }
    for (int first = 0; first < t->columns; first += 32) {
        int parts = t->scales ? 32 / t->part : 0;
        for (int h = 0; h < parts; h++) {
            int scale = p->scales[first / t->part + h], minimum = p->minimums[first / t->part + h];
            assert_int_equal(group[16 * h + row], (uint8_t)(t->joint ? scale | minimum << 4 : scale));
            if (t->minimums && !t->joint) assert_int_equal(group[16 * (parts + h) + row], minimum);
        }
        group += 16 * parts * (t->minimums && !t->joint ? 2 : 1);
        for (int c = 0; c < 32; c++) {
            int integer = plane_bits(group, t->low, row, c);
            if (t->high) integer |= plane_bits(group + 64 * t->low, t->high, row, c) << t->low;
            assert_int_equal(integer, p->q[first + c]);
        }
        group += 64 * (t->low + t->high);
    }
}

/* The layout itself, which kernels read: one row of the second group. */
static void test_layout(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(44);
    enum { ROW = 18, ROWS = 32 };
    FOR_QUANTISED(dtype) {
        const quant_type *t = &quant_types[dtype];
        int64_t cols = 2 * t->columns, size = fb_pack_bytes(dtype, ROWS, cols);
        uint8_t *row = malloc((size_t)fb_dtype_bytes(dtype, cols)), *packed = malloc((size_t)size);
        assert_true(row && packed);
        for (int fill = 0; fill < 256; fill += 255) { /* nothing else is written */
            fbt_random_blocks(&random, dtype, cols, 1, row);
            memset(packed, fill, (size_t)size);
            fb_pack_row(dtype, row, cols, ROW, packed);
            for (int64_t i = 0; i < size / 2; i++) assert_int_equal(packed[i], fill);
            for (int b = 0; b < 2; b++) {
                quant_parts parts;
                t->split(row + b * fb_dtype_bytes(dtype, t->columns), &parts);
                check_layout(t, &parts, packed + size / 2 + b * fb_pack_block(dtype), ROW % FB_PACK_ROWS);
            }
            memset(packed + size / 2, 0, (size_t)size / 2);
            fb_pack_row(dtype, row, cols, ROW, packed);
            for (int64_t i = size / 2; i < size; i++) packed[i] = (uint8_t)(packed[i] != 0);
            int64_t written = 0;
            for (int64_t i = size / 2; i < size; i++) written += packed[i];
            assert_true(written <= size / 2 / FB_PACK_ROWS);
        }
        free(row);
        free(packed);
    }
}

static void test_which(void **state) {
    (void)state;
    for (int i = 0; i < FB_DTYPE_COUNT; i++) {
        assert_int_equal(fb_pack_has((fb_dtype)i), i >= FB_FLOAT_COUNT);
        assert_int_equal(fb_pack_gpu_has((fb_dtype)i), i >= FB_FLOAT_COUNT);
    }
    /* A last group that is not full takes the room of a whole one. */
    assert_int_equal(fb_pack_bytes(FB_Q8_0, 17, 64), 32 * 2 * 34);
    assert_int_equal(fb_pack_bytes(FB_Q4_0, 16, 32), 16 * 18);
    /* Scales and minimums of six bits take eight. */
    assert_int_equal(fb_pack_bytes(FB_Q4_K, 16, 256), 16 * (144 + 4));
    assert_int_equal(fb_pack_bytes(FB_Q6_K, 16, 256), 16 * 210);
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

/* Rows on a GPU: hardly larger than in the file, written whole, and nothing beyond. */
static void test_records(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(33);
    for (int i = FB_FLOAT_COUNT; i < FB_DTYPE_COUNT; i++) {
        const fb_dtype dtype = (fb_dtype)i;
        for (int64_t cols = 2048; cols <= 14336; cols += 2048)
            assert_true((double)fb_record_row_bytes(dtype, cols) <=
                        1.05 * (double)fb_dtype_bytes(dtype, cols));
        const int64_t cols = FB_RECORD_COLUMNS + 512, bytes = fb_record_row_bytes(dtype, cols);
        uint8_t *row = malloc((size_t)fb_dtype_bytes(dtype, cols)), *a = malloc((size_t)bytes + 16);
        uint8_t *b = malloc((size_t)bytes + 16);
        assert_true(row && a && b);
        fbt_random_blocks(&random, dtype, cols, 1, row);
        memset(a, 0xa5, (size_t)bytes + 16);
        memset(b, 0x5a, (size_t)bytes + 16);
        fb_record_pack(dtype, row, cols, a);
        fb_record_pack(dtype, row, cols, b);
        assert_memory_equal(a, b, bytes); /* all is written */
        for (int64_t k = 0; k < 16; k++) assert_true(a[bytes + k] == 0xa5 && b[bytes + k] == 0x5a);
        /* A record does not depend on those before it. */
        fb_record_pack(dtype, row + fb_dtype_bytes(dtype, FB_RECORD_COLUMNS), 512, b);
        assert_memory_equal(a + fb_record_bytes(dtype, FB_RECORD_COLUMNS), b, fb_record_bytes(dtype, 512));
        free(row);
        free(a);
        free(b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(file_orders), cmocka_unit_test(test_there_and_back), cmocka_unit_test(test_layout),
        cmocka_unit_test(test_which),  cmocka_unit_test(test_records),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
