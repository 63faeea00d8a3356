#include "file/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/support.h"

/* ---- one file ------------------------------------------------------------------------------------------ */

static fb_status parse(const char *header, size_t data_size, fb_tensor_table **table, fb_error *err,
                       uint8_t **bytes) {
    size_t total;
    *bytes = fbt_safetensors_bytes(header, NULL, data_size, &total);
    return fb_tensors_parse("x.safetensors", *bytes, total, table, err);
}

static void reads_a_table(void **state) {
    (void)state;
    static const float numbers[] = {1, 2, 3, 4, 5, 6};
    static const int64_t scalar = -7;
    const fbt_tensor tensors[] = {
        {"m", "F32", 2, {2, 3}, numbers, sizeof numbers},
        {"empty", "F16", 2, {0, 5}, NULL, 0},
        {"scalar", "I64", 0, {0}, &scalar, sizeof scalar},
        {"a.b", "U8", 4, {1, 1, 1, 1}, "z", 1},
    };
    char *dir = fbt_dir_create(), *path = fbt_format("%s/t.safetensors", dir), text[64];
    fbt_safetensors_write(path, tensors, 4, "{\"nll\": \"6.05\"}");
    fb_tensor_table *table;
    fb_error err;
    assert_ok(fb_tensors_open(path, &table, &err), &err);
    assert_int_equal(fb_tensors_count(table), 4);
    static const char *const sorted[] = {"a.b", "empty", "m", "scalar"};
    for (int i = 0; i < 4; i++) assert_string_equal(fb_tensors_at(table, i)->name, sorted[i]);
    assert_null(fb_tensors_at(table, 4));
    assert_null(fb_tensors_at(table, -1));

    const fb_tensor_entry *m = fb_tensors_find(table, "m");
    assert_non_null(m);
    assert_int_equal(m->type, FB_STORED_F32);
    assert_int_equal(m->count, 6);
    assert_memory_equal(m->data, numbers, sizeof numbers);
    assert_string_equal(fb_tensor_shape_text(m, text, sizeof text), "[2, 3]");
    const fb_tensor_entry *s = fb_tensors_find(table, "scalar");
    assert_int_equal(s->dims, 0);
    assert_int_equal(s->count, 1);
    assert_memory_equal(s->data, &scalar, 8);
    assert_string_equal(fb_tensor_shape_text(s, text, sizeof text), "[]");
    assert_int_equal(fb_tensors_find(table, "empty")->count, 0);
    assert_null(fb_tensors_find(table, "empty")->data);
    assert_int_equal(fb_tensors_find(table, "a.b")->data[0], 'z');
    assert_null(fb_tensors_find(table, "a"));
    assert_null(fb_tensors_find(table, "__metadata__"));
    assert_string_equal(fb_tensors_metadata(table, "nll"), "6.05");
    assert_null(fb_tensors_metadata(table, "none"));
    fb_tensors_free(table);
    fb_tensors_free(NULL);
    free(path);
    fbt_dir_remove(dir);
}

static void types_have_their_size(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t size;
    } rows[FB_STORED_PLAIN_COUNT] = {{"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8},
                                     {"I32", 4}, {"I16", 2}, {"I8", 1},  {"U8", 1},   {"BOOL", 1}};
    for (int i = 0; i < FB_STORED_PLAIN_COUNT; i++) {
        assert_string_equal(fb_stored_name((fb_stored_type)i), rows[i].name);
        assert_int_equal(fb_stored_bytes((fb_stored_type)i, 1), rows[i].size);
        char *header = fbt_format("{\"t\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,%d]}}",
                                  rows[i].name, (int)rows[i].size * 3);
        uint8_t *bytes;
        fb_tensor_table *table;
        fb_error err;
        assert_ok(parse(header, (size_t)rows[i].size * 3, &table, &err, &bytes), &err);
        assert_int_equal(fb_tensors_find(table, "t")->type, i);
        fb_tensors_free(table);
        free(bytes);
        free(header);
    }
}

static void no_tensors_is_a_table(void **state) {
    (void)state;
    uint8_t *bytes;
    fb_tensor_table *table;
    fb_error err;
    assert_ok(parse("{}", 0, &table, &err, &bytes), &err);
    assert_int_equal(fb_tensors_count(table), 0);
    assert_null(fb_tensors_find(table, ""));
    fb_tensors_free(table);
    free(bytes);
}

#define T(type, shape, offsets) "{\"dtype\":" type ",\"shape\":" shape ",\"data_offsets\":" offsets "}"

/* A tensor without elements may lie where another one begins, whichever the header names first. */
static void empty_tensors_take_no_place(void **state) {
    (void)state;
    static const char *const headers[] = {
        "{\"a\":" T("\"U8\"", "[4]", "[0,4]") ",\"e\":" T("\"U8\"", "[0]", "[0,0]") "}",
        "{\"e\":" T("\"U8\"", "[0]", "[0,0]") ",\"a\":" T("\"U8\"", "[4]", "[0,4]") "}",
        "{\"e\":" T("\"U8\"", "[0]", "[4,4]") ",\"a\":" T("\"U8\"", "[4]", "[0,4]") "}",
    };
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        uint8_t *bytes;
        fb_tensor_table *table;
        fb_error err;
        assert_ok(parse(headers[i], 4, &table, &err, &bytes), &err);
        assert_int_equal(fb_tensors_count(table), 2);
        fb_tensors_free(table);
        free(bytes);
    }
}

typedef struct bad_header {
    const char *header;
    size_t data; /* bytes behind the header */
    fb_status status;
    const char *words; /* besides the file's name */
} bad_header;

static const bad_header bad_headers[] = {
    {"", 0, FB_ERROR_FILE, "header|not JSON"},
    {"nonsense", 0, FB_ERROR_FILE, "header|not JSON"},
    {"[]", 0, FB_ERROR_FILE, "header|object"},
    {" {}", 0, FB_ERROR_FILE, "header|object"},
    {"{} {}", 0, FB_ERROR_FILE, "header|end of file"},
    {"{\"t\":3}", 0, FB_ERROR_FILE, "tensor t|3|dtype, shape and data_offsets"},
    {"{\"t\":{}}", 0, FB_ERROR_FILE, "tensor t|dtype, shape and data_offsets"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offset\":[0,1]}}", 1, FB_ERROR_FILE,
     "tensor t|data_offsets|two integers"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"scale\":2}}", 1, FB_ERROR_FILE,
     "tensor t|expected dtype"},
    {"{\"t\":" T("\"U8\"", "[1]", "[0,1]") ",\"t\":" T("\"U8\"", "[1]", "[1,2]") "}", 2, FB_ERROR_FILE,
     "duplicate"},
    {"{\"\":" T("\"U8\"", "[1]", "[0,1]") "}", 1, FB_ERROR_FILE, "name|empty"},
    {"{\"a\\u001bb\":" T("\"U8\"", "[1]", "[0,1]") "}", 1, FB_ERROR_FILE, "name|control"},
    {"{\"a\\u007f\":" T("\"U8\"", "[1]", "[0,1]") "}", 1, FB_ERROR_FILE, "name|control"},
    {"{\"a\\u0000b\":" T("\"U8\"", "[1]", "[0,1]") "}", 1, FB_ERROR_FILE, "NUL"},
    {"{\"t\":" T("7", "[1]", "[0,1]") "}", 1, FB_ERROR_FILE, "tensor t|dtype|7"},
    {"{\"t\":" T("\"F8_E4M3\"", "[1]", "[0,1]") "}", 1, FB_ERROR_UNSUPPORTED,
     "tensor t|unknown dtype|F8_E4M3|BF16"},
    {"{\"t\":" T("\"f32\"", "[1]", "[0,4]") "}", 4, FB_ERROR_UNSUPPORTED, "unknown dtype|f32"},
    {"{\"t\":" T("\"F32\\u0000\"", "[1]", "[0,4]") "}", 4, FB_ERROR_UNSUPPORTED, "unknown dtype|F32"},
    {"{\"t\":" T("\"U8\"", "1", "[0,1]") "}", 1, FB_ERROR_FILE, "shape|array"},
    {"{\"t\":" T("\"U8\"", "{}", "[0,1]") "}", 1, FB_ERROR_FILE, "shape|array"},
    {"{\"t\":" T("\"U8\"", "[-1]", "[0,1]") "}", 1, FB_ERROR_FILE, "shape|[-1]"},
    {"{\"t\":" T("\"U8\"", "[-1,-1]", "[0,1]") "}", 1, FB_ERROR_FILE, "shape|[-1,-1]"},
    {"{\"t\":" T("\"U8\"", "[1.0]", "[0,1]") "}", 1, FB_ERROR_FILE, "shape|1.0|integers"},
    {"{\"t\":" T("\"U8\"", "[\"1\"]", "[0,1]") "}", 1, FB_ERROR_FILE, "shape|integers"},
    {"{\"t\":" T("\"U8\"", "[1,1,1,1,1]", "[0,1]") "}", 1, FB_ERROR_UNSUPPORTED, "5 dimensions|at most 4"},
    {"{\"t\":" T("\"U8\"", "[4294967296,4294967296]", "[0,1]") "}", 1, FB_ERROR_FILE, "shape|2^63"},
    {"{\"t\":" T("\"F64\"", "[2305843009213693952]", "[0,0]") "}", 0, FB_ERROR_FILE,
     "0 bytes|[2305843009213693952]"},
    {"{\"t\":" T("\"U8\"", "[99999999999999999999]", "[0,1]") "}", 1, FB_ERROR_FILE, "too big integer"},
    {"{\"t\":" T("\"U8\"", "[1]", "[0]") "}", 1, FB_ERROR_FILE, "data_offsets|[0]|two integers"},
    {"{\"t\":" T("\"U8\"", "[1]", "[0,1,2]") "}", 1, FB_ERROR_FILE, "data_offsets|two integers"},
    {"{\"t\":" T("\"U8\"", "[1]", "[0,1.5]") "}", 1, FB_ERROR_FILE, "data_offsets|two integers"},
    {"{\"t\":" T("\"U8\"", "[1]", "null") "}", 1, FB_ERROR_FILE, "data_offsets|null"},
    {"{\"t\":" T("\"U8\"", "[1]", "[1,0]") "}", 1, FB_ERROR_FILE, "data_offsets|1 to 0"},
    {"{\"t\":" T("\"U8\"", "[1]", "[-1,0]") "}", 1, FB_ERROR_FILE, "data_offsets|-1 to 0"},
    {"{\"t\":" T("\"U8\"", "[2]", "[0,2]") "}", 1, FB_ERROR_FILE, "data_offsets|0 to 2|0 to 1"},
    {"{\"t\":" T("\"U8\"", "[1]", "[9223372036854775806,9223372036854775807]") "}", 1, FB_ERROR_FILE,
     "data_offsets|0 to 1"},
    {"{\"t\":" T("\"F32\"", "[2]", "[0,4]") "}", 4, FB_ERROR_FILE, "4 bytes|F32 [2]"},
    {"{\"t\":" T("\"F32\"", "[0]", "[0,4]") "}", 4, FB_ERROR_FILE, "4 bytes|F32 [0]"},
    {"{\"a\":" T("\"U8\"", "[2]", "[0,2]") ",\"b\":" T("\"U8\"", "[2]", "[1,3]") "}", 3, FB_ERROR_FILE,
     "a and b overlap"},
    {"{\"a\":" T("\"U8\"", "[2]", "[0,2]") ",\"b\":" T("\"U8\"", "[2]", "[0,2]") "}", 2, FB_ERROR_FILE,
     "overlap"},
    {"{\"a\":" T("\"U8\"", "[4]", "[0,4]") ",\"b\":" T("\"U8\"", "[0]", "[2,2]") "}", 4, FB_ERROR_FILE,
     "overlap"},
    {"{\"a\":" T("\"U8\"", "[1]", "[0,1]") ",\"b\":" T("\"U8\"", "[1]", "[2,3]") "}", 3, FB_ERROR_FILE,
     "hole|b|1 to 2"},
    {"{\"a\":" T("\"U8\"", "[1]", "[1,2]") "}", 2, FB_ERROR_FILE, "hole|0 to 1"},
    {"{\"a\":" T("\"U8\"", "[1]", "[0,1]") "}", 3, FB_ERROR_FILE, "behind the last tensor|2"},
    {"{}", 1, FB_ERROR_FILE, "behind the last tensor|1"},
    {"{\"__metadata__\":[]}", 0, FB_ERROR_FILE, "__metadata__|object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, FB_ERROR_FILE, "__metadata__|a|1|string"},
    {"{\"t\":\"\xff\"}", 0, FB_ERROR_FILE, "unable to decode byte"},
};

static void refuses_bad_headers(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad_headers / sizeof *bad_headers; i++) {
        const bad_header *row = &bad_headers[i];
        uint8_t *bytes;
        fb_tensor_table *table = (fb_tensor_table *)1;
        fb_error err;
        print_message("# %s\n", row->header);
        fb_status status = parse(row->header, row->data, &table, &err, &bytes);
        free(bytes);
        assert_refused(status, row->status, &err, row->words);
        assert_refused(status, row->status, &err, "x.safetensors");
        assert_null(table);
    }
}

static void refuses_bad_lengths(void **state) {
    (void)state;
    static const struct {
        uint64_t length;
        const char *words;
    } rows[] = {{3, "3|2 bytes follow"},
                {100000000, "100000000|2 bytes follow"},
                {100000001, "100000001|at most 100000000"},
                {UINT64_MAX, "18446744073709551615|at most"},
                {UINT64_MAX - 7, "at most"},
                {0, "not JSON"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t total;
        uint8_t *bytes = fbt_safetensors_bytes("{}", NULL, 0, &total);
        for (int b = 0; b < 8; b++) bytes[b] = (uint8_t)(rows[i].length >> (8 * b));
        fb_tensor_table *table;
        fb_error err;
        fb_status status = fb_tensors_parse("x", bytes, total, &table, &err);
        free(bytes);
        assert_refused(status, FB_ERROR_FILE, &err, rows[i].words);
        assert_null(table);
    }
}

/* Every prefix of a good file is a bad file. Each is a fresh block, so that the sanitizer sees a read beyond
 * it. */
static void refuses_every_cut(void **state) {
    (void)state;
    size_t total;
    uint8_t *whole = fbt_safetensors_bytes(
        "{\"a\":" T("\"U8\"", "[9]", "[0,9]") ",\"b\":" T("\"F32\"", "[2]", "[9,17]") "}", NULL, 17, &total);
    fb_tensor_table *table;
    fb_error err;
    for (size_t size = 0; size < total; size++) {
        uint8_t *cut = malloc(size + 1);
        assert_non_null(cut);
        memcpy(cut + 1, whole, size);
        assert_refused(fb_tensors_parse("x", cut + 1, size, &table, &err), FB_ERROR_FILE, &err, "x: ");
        free(cut);
    }
    assert_ok(fb_tensors_parse("x", whole, total, &table, &err), &err);
    fb_tensors_free(table);
    free(whole);
}

static bool is_mapped(const char *path) {
    char line[4096];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps)) found = found || strstr(line, path);
    fclose(maps);
    return found;
}

static void nothing_stays_mapped(void **state) {
    (void)state;
    char *dir = fbt_dir_create(), *path = fbt_format("%s/t.safetensors", dir);
    fb_tensor_table *table;
    fb_error err;
    fbt_text_write(path, "no safetensors");
    assert_refused(fb_tensors_open(path, &table, &err), FB_ERROR_FILE, &err, "t.safetensors");
    assert_false(is_mapped(path));
    fbt_safetensors_write(path, &(fbt_tensor){"t", "U8", 1, {1}, "x", 1}, 1, NULL);
    assert_ok(fb_tensors_open(path, &table, &err), &err);
    assert_true(is_mapped(path));
    fb_tensors_free(table);
    assert_false(is_mapped(path));
    free(path);
    fbt_dir_remove(dir);
}

/* ---- storyteller --------------------------------------------------------------------------------------- */

static double milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void storyteller_opens_fast(void **state) {
    (void)state;
    double best = 1e9;
    for (int i = 0; i < 10; i++) {
        fb_tensor_table *table;
        fb_error err;
        double start = milliseconds();
        assert_ok(fb_tensors_open_model(FBT_STORYTELLER, &table, &err), &err);
        double taken = milliseconds() - start;
        if (taken < best) best = taken;
        assert_true(fb_tensors_count(table) > 50);
        assert_int_equal(fb_tensors_find(table, "gpt_neox.embed_in.weight")->shape[0], 4096);
        fb_tensors_free(table);
    }
    print_message("# storyteller's table: %.3f ms\n", best);
    assert_true(best < 20); /* 0.2 here; the rest is for sanitizers and busy machines */
}

/* ---- shards -------------------------------------------------------------------------------------------- */

/* a.safetensors holds x (1 2) and y (3), b.safetensors holds z (4). */
static char *make_shards(const char *index) {
    char *dir = fbt_dir_create();
    char *a = fbt_format("%s/a.safetensors", dir), *b = fbt_format("%s/b.safetensors", dir);
    char *json = fbt_format("%s/model.safetensors.index.json", dir);
    const fbt_tensor first[] = {{"y", "U8", 1, {1}, "\3", 1}, {"x", "U8", 1, {2}, "\1\2", 2}};
    const fbt_tensor second[] = {{"z", "U8", 1, {1}, "\4", 1}};
    fbt_safetensors_write(a, first, 2, NULL);
    fbt_safetensors_write(b, second, 1, "{\"format\": \"pt\"}");
    fbt_text_write(json, index);
    free(a);
    free(b);
    free(json);
    return dir;
}

static void reads_shards(void **state) {
    (void)state;
    char *dir = make_shards("{\"metadata\": {\"total_size\": 4}, \"weight_map\": {\"z\": \"b.safetensors\", "
                            "\"x\": \"a.safetensors\", \"y\": \"a.safetensors\"}}");
    fb_tensor_table *table;
    fb_error err;
    assert_ok(fb_tensors_open_model(dir, &table, &err), &err);
    assert_int_equal(fb_tensors_count(table), 3);
    for (int i = 0; i < 3; i++) assert_int_equal(fb_tensors_at(table, i)->name[0], 'x' + i);
    assert_int_equal(fb_tensors_find(table, "x")->data[1], 2);
    assert_int_equal(fb_tensors_find(table, "y")->data[0], 3);
    assert_int_equal(fb_tensors_find(table, "z")->data[0], 4);
    assert_string_equal(fb_tensors_metadata(table, "format"), "pt");
    fb_tensors_free(table);
    fbt_dir_remove(dir);
}

#define A "\"a.safetensors\""
#define B "\"b.safetensors\""

static void refuses_bad_indexes(void **state) {
    (void)state;
    static const struct {
        const char *map, *words;
    } rows[] = {
        {"{\"x\":" A ",\"y\":" A "}", NULL}, /* a good one: b.safetensors is not part of it */
        {"3", "weight_map|3|object"},
        {"null", "weight_map|null|object"},
        {"{}", "weight_map|no tensors"},
        {"{\"x\": 1}", "weight_map|x|1|file in this directory"},
        {"{\"x\": \"\"}", "weight_map|x|file in this directory"},
        {"{\"x\": \"../a.safetensors\"}", "weight_map|x|../a.safetensors"},
        {"{\"x\": \"/etc/passwd\"}", "weight_map|x|/etc/passwd"},
        {"{\"x\": \"sub/a.safetensors\"}", "weight_map|x|sub/a"},
        {"{\"x\": \".hidden\"}", "weight_map|x|.hidden"},
        {"{\"x\": \"a\\u0000\"}", "weight_map|x|file in this directory"},
        {"{\"x\": \"a\\u001b\"}", "weight_map|x|file in this directory"},
        {"{\"x\": \"none.safetensors\"}", "none.safetensors|No such file"},
        {"{\"x\":" A ",\"y\":" A ",\"w\":" A "}", "tensor w|not in a.safetensors"},
        {"{\"x\":" A ",\"y\":" A ",\"z\":" A "}", "tensor z|not in a.safetensors"},
        {"{\"x\":" A "}", "tensor y of a.safetensors|not in weight_map"},
        {"{\"y\":" A ",\"z\":" B "}", "tensor x of a.safetensors|not in weight_map"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *index = fbt_format("{\"weight_map\": %s}", rows[i].map);
        char *dir = make_shards(index);
        fb_tensor_table *table = (fb_tensor_table *)1;
        fb_error err;
        fb_status status = fb_tensors_open_model(dir, &table, &err);
        if (rows[i].words) {
            assert_refused(status, FB_ERROR_FILE, &err, rows[i].words);
            assert_null(table);
        } else {
            assert_ok(status, &err);
            fb_tensors_free(table);
        }
        fbt_dir_remove(dir);
        free(index);
    }
}

static void refuses_a_tensor_in_two_shards(void **state) {
    (void)state;
    char *dir = make_shards("{\"weight_map\": {\"x\":" A ",\"y\":" A ",\"z\":" B "}}");
    char *b = fbt_format("%s/b.safetensors", dir);
    const fbt_tensor second[] = {{"z", "U8", 1, {1}, "\4", 1}, {"x", "U8", 1, {2}, "\1\2", 2}};
    fbt_safetensors_write(b, second, 2, NULL);
    fb_tensor_table *table;
    fb_error err;
    assert_refused(fb_tensors_open_model(dir, &table, &err), FB_ERROR_FILE, &err,
                   "duplicate tensor x|a.safetensors|b.safetensors");
    assert_null(table);
    free(b);
    fbt_dir_remove(dir);
}

static void one_file_comes_before_an_index(void **state) {
    (void)state;
    char *dir = make_shards("not JSON");
    char *a = fbt_format("%s/a.safetensors", dir), *whole = fbt_format("%s/model.safetensors", dir);
    fb_tensor_table *table;
    fb_error err;
    assert_refused(fb_tensors_open_model(dir, &table, &err), FB_ERROR_FILE, &err, "index.json|not JSON");
    fbt_file_copy(a, whole);
    assert_ok(fb_tensors_open_model(dir, &table, &err), &err);
    assert_int_equal(fb_tensors_count(table), 2);
    fb_tensors_free(table);
    assert_refused(fb_tensors_open_model("/nowhere", &table, &err), FB_ERROR_FILE, &err,
                   "/nowhere/model.safetensors");
    free(a);
    free(whole);
    fbt_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_table),
        cmocka_unit_test(types_have_their_size),
        cmocka_unit_test(no_tensors_is_a_table),
        cmocka_unit_test(empty_tensors_take_no_place),
        cmocka_unit_test(nothing_stays_mapped),
        cmocka_unit_test(refuses_bad_headers),
        cmocka_unit_test(refuses_bad_lengths),
        cmocka_unit_test(refuses_every_cut),
        cmocka_unit_test(storyteller_opens_fast),
        cmocka_unit_test(reads_shards),
        cmocka_unit_test(refuses_bad_indexes),
        cmocka_unit_test(refuses_a_tensor_in_two_shards),
        cmocka_unit_test(one_file_comes_before_an_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
