/* What is read of good GGUF files; what is wrong with others is in test_gguf_refusals.c. */
#include "file/gguf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "file/json.h"
#include "support/gguf_writer.h"
#include "support/support.h"

static fb_gguf *parse(const fbt_bytes *file) {
    fb_gguf *gguf;
    fb_error err;
    assert_ok(fb_gguf_parse("test", file->data, file->size, &gguf, &err), &err);
    return gguf;
}

/* ---- values -------------------------------------------------------------------------------------------- */

static void put_scalar(fbt_bytes *file, const char *key, fb_gguf_type type, const void *value, size_t size) {
    fbt_gguf_key(file, key, type);
    fbt_put(file, value, size);
}

static void scalars_of_every_type(void **state) {
    (void)state;
    fbt_bytes file = {0};
    fbt_gguf_start(&file, 3, 0, 14);
    put_scalar(&file, "u8", FB_GGUF_U8, &(uint8_t){200}, 1);
    put_scalar(&file, "i8", FB_GGUF_I8, &(int8_t){-100}, 1);
    put_scalar(&file, "u16", FB_GGUF_U16, &(uint16_t){60000}, 2);
    put_scalar(&file, "i16", FB_GGUF_I16, &(int16_t){-30000}, 2);
    put_scalar(&file, "u32", FB_GGUF_U32, &(uint32_t){4000000000u}, 4);
    put_scalar(&file, "i32", FB_GGUF_I32, &(int32_t){-2000000000}, 4);
    put_scalar(&file, "i64", FB_GGUF_I64, &(int64_t){INT64_MIN}, 8);
    put_scalar(&file, "u64", FB_GGUF_U64, &(uint64_t){INT64_MAX}, 8);
    put_scalar(&file, "big", FB_GGUF_U64, &(uint64_t){UINT64_MAX}, 8);
    put_scalar(&file, "f64", FB_GGUF_F64, &(double){0.1}, 8);
    fbt_gguf_f32(&file, "f32", 1e-5f);
    fbt_gguf_f32(&file, "nan", NAN);
    fbt_gguf_bool(&file, "bool", 1);
    fbt_gguf_text(&file, "text", "gr\u00fcn");
    fb_gguf *gguf = parse(&file);
    static const struct {
        const char *key;
        int64_t value;
    } integers[] = {{"u8", 200},          {"i8", -100},         {"u16", 60000},     {"i16", -30000},
                    {"u32", 4000000000u}, {"i32", -2000000000}, {"i64", INT64_MIN}, {"u64", INT64_MAX}};
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        const fb_json *value = fb_json_get(gguf->values, integers[i].key);
        assert_true(fb_json_is(value, FB_JSON_INT));
        assert_int_equal(fb_json_int_of(value), integers[i].value);
    }
    assert_true(fb_json_real_of(fb_json_get(gguf->values, "big")) == 0x1p64);
    assert_true(fb_json_real_of(fb_json_get(gguf->values, "f64")) == 0.1);
    assert_true(fb_json_real_of(fb_json_get(gguf->values, "f32")) == 1e-5); /* not 9.99999974737875e-06 */
    assert_string_equal(fb_json_text_of(fb_json_get(gguf->values, "nan")), "nan");
    assert_true(fb_json_bool_of(fb_json_get(gguf->values, "bool")));
    assert_string_equal(fb_json_text_of(fb_json_get(gguf->values, "text")), "gr\u00fcn");
    assert_int_equal(fb_json_size(gguf->values), 14);
    fb_gguf_free(gguf);
    free(file.data);
}

static void arrays(void **state) {
    (void)state;
    static const char *const texts[] = {"b", "", "long one"};
    fbt_bytes file = {0};
    fbt_gguf_start(&file, 2, 0, 4);
    fbt_gguf_texts(&file, "z.texts", texts, 3);
    fbt_gguf_array(&file, "a.numbers", FB_GGUF_I16, 3);
    fbt_put(&file, (int16_t[]){1, -2, 300}, 6);
    fbt_gguf_array(&file, "m.none", FB_GGUF_F64, 0);
    fbt_gguf_array(&file, "b.reals", FB_GGUF_F32, 2);
    fbt_put(&file, (float[]){0.5f, -2}, 8);
    fb_gguf *gguf = parse(&file);
    assert_int_equal(gguf->array_count, 4);
    assert_null(fb_gguf_find_array(gguf, "other"));
    const fb_gguf_array *numbers = fb_gguf_find_array(gguf, "a.numbers");
    assert_int_equal(numbers->count, 3);
    assert_int_equal(fb_gguf_int_at(numbers, 1), -2);
    assert_int_equal(fb_gguf_int_at(numbers, 2), 300);
    assert_int_equal(fb_gguf_find_array(gguf, "m.none")->count, 0);
    assert_true(fb_gguf_real_at(fb_gguf_find_array(gguf, "b.reals"), 1) == -2);
    const fb_gguf_array *strings = fb_gguf_find_array(gguf, "z.texts");
    const uint8_t *at = strings->data;
    for (int i = 0; i < 3; i++) {
        fb_gguf_text text = fb_gguf_next_text(&at);
        assert_int_equal(text.size, strlen(texts[i]));
        assert_memory_equal(text.data, texts[i], strlen(texts[i]));
    }
    assert_null(fb_json_member(gguf->values, "z.texts")); /* arrays are no values for typed access */
    fb_gguf_free(gguf);
    free(file.data);
}

/* ---- tensors ------------------------------------------------------------------------------------------- */

static void tensors(void **state) {
    (void)state;
    fbt_bytes file = {0};
    fbt_gguf_start(&file, 3, 4, 1);
    fbt_gguf_u32(&file, "general.alignment", 64);
    fbt_gguf_tensor(&file, "matrix", 2, (uint64_t[]){3, 5}, 1, 64);   /* F16: 5 rows of 3 */
    fbt_gguf_tensor(&file, "blocks", 2, (uint64_t[]){64, 2}, 8, 128); /* Q8_0: 136 bytes */
    fbt_gguf_tensor(&file, "scalar", 0, NULL, 0, 0);
    fbt_gguf_tensor(&file, "empty", 1, (uint64_t[]){0}, 0, 320);
    fbt_gguf_data(&file, 64, 320);
    fb_gguf *gguf = parse(&file);
    const uint8_t *data = file.data + file.size - 320;
    assert_int_equal(fb_tensors_count(gguf->tensors), 4);
    const fb_tensor_entry *matrix = fb_tensors_find(gguf->tensors, "matrix");
    assert_int_equal(matrix->type, FB_STORED_F16);
    assert_int_equal(matrix->dims, 2);
    assert_int_equal(matrix->shape[0], 5);
    assert_int_equal(matrix->shape[1], 3);
    assert_int_equal(matrix->count, 15);
    assert_ptr_equal(matrix->data, data + 64);
    const fb_tensor_entry *blocks = fb_tensors_find(gguf->tensors, "blocks");
    assert_int_equal(blocks->type, FB_STORED_Q8_0);
    assert_ptr_equal(blocks->data, data + 128);
    assert_int_equal(fb_tensors_find(gguf->tensors, "scalar")->count, 1);
    assert_null(fb_tensors_find(gguf->tensors, "empty")->data);
    fb_gguf_free(gguf);
    free(file.data);
}

/* A row of 256 elements of each type has the bytes that the format gives it. */
static void types_have_their_size(void **state) {
    (void)state;
    static const struct {
        uint32_t number;
        const char *name;
        int64_t bytes;
    } rows[] = {{0, "F32", 1024},  {1, "F16", 512},   {30, "BF16", 512},   {28, "F64", 2048},
                {24, "I8", 256},   {25, "I16", 512},  {26, "I32", 1024},   {27, "I64", 2048},
                {2, "Q4_0", 144},  {3, "Q4_1", 160},  {6, "Q5_0", 176},    {7, "Q5_1", 192},
                {8, "Q8_0", 272},  {12, "Q4_K", 144}, {13, "Q5_K", 176},   {14, "Q6_K", 210},
                {10, "Q2_K", 84},  {11, "Q3_K", 110}, {20, "IQ4_NL", 144}, {23, "IQ4_XS", 136},
                {39, "MXFP4", 136}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int missing = 0; missing < 2; missing++) {
            fbt_bytes file = {0};
            fb_gguf *gguf;
            fb_error err;
            fbt_gguf_start(&file, 3, 1, 0);
            fbt_gguf_tensor(&file, "t", 1, (uint64_t[]){256}, rows[i].number, 0);
            fbt_gguf_data(&file, 32, (size_t)(rows[i].bytes - missing));
            fb_status status = fb_gguf_parse("test", file.data, file.size, &gguf, &err);
            if (missing) {
                assert_refused(status, FB_ERROR_FILE, &err, "tensor t|bytes at offset 0");
            } else {
                assert_ok(status, &err);
                assert_string_equal(fb_stored_name(fb_tensors_at(gguf->tensors, 0)->type), rows[i].name);
            }
            fb_gguf_free(gguf);
            free(file.data);
        }
    }
}

/* Every prefix of a file ends somewhere in the middle of something. */
static void check_prefixes(const fbt_bytes *file) {
    for (size_t size = 0; size <= file->size; size++) {
        uint8_t *copy = malloc(size ? size : 1); /* of its own, so that a sanitizer sees its end */
        fb_gguf *gguf;
        assert_non_null(copy);
        memcpy(copy, file->data, size);
        fb_status status = fb_gguf_parse("test", copy, size, &gguf, NULL);
        assert_int_equal(status, size < file->size ? FB_ERROR_FILE : FB_OK);
        fb_gguf_free(gguf);
        free(copy);
    }
}

static void cut_anywhere(void **state) {
    (void)state;
    static const char *const texts[] = {"one", "two"};
    for (uint64_t tensors_too = 0; tensors_too < 2; tensors_too++) {
        fbt_bytes file = {0};
        fbt_gguf_start(&file, 3, 2 * tensors_too, 3);
        fbt_gguf_texts(&file, "texts", texts, 2);
        fbt_gguf_text(&file, "text", "three");
        fbt_gguf_f32(&file, "real", 2);
        if (tensors_too) {
            fbt_gguf_tensor(&file, "a", 2, (uint64_t[]){8, 4}, 0, 0);
            fbt_gguf_tensor(&file, "b", 1, (uint64_t[]){32}, 2, 128);
            fbt_gguf_data(&file, 32, 128 + 18);
        }
        check_prefixes(&file);
        free(file.data);
    }
}

static void opens_files(void **state) {
    (void)state;
    fb_gguf *gguf;
    fb_error err;
    assert_ok(fb_gguf_open("tests/data/gguf/gpt2.gguf", &gguf, &err), &err);
    assert_non_null(fb_tensors_find(gguf->tensors, "position_embd.weight"));
    fb_gguf_free(gguf);
    assert_refused(fb_gguf_open("tests/data/gguf/none.gguf", &gguf, &err), FB_ERROR_FILE, &err, "none.gguf");
    assert_refused(fb_gguf_open("tests/data", &gguf, &err), FB_ERROR_FILE, &err, "not a regular file");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalars_of_every_type),
        cmocka_unit_test(arrays),
        cmocka_unit_test(tensors),
        cmocka_unit_test(types_have_their_size),
        cmocka_unit_test(cut_anywhere),
        cmocka_unit_test(opens_files),
    };
    return cmocka_run_group_tests_name("gguf", tests, NULL, NULL);
}
