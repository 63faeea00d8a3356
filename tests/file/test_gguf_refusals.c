/* GGUF files with one thing wrong, and the words that name it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file/gguf.h"
#include "support/gguf_writer.h"
#include "support/support.h"

typedef struct tensor_info {
    const char *name;
    uint32_t dims;
    uint64_t sizes[5];
    uint32_t type;
    uint64_t offset;
} tensor_info;

typedef struct refusal {
    const char *name;
    fb_status status;
    const char *words;
    const char *magic; /* NULL: the right one */
    uint32_t version;  /* 0: 3 */
    void (*values)(fbt_bytes *file);
    uint64_t value_count, more_tensors; /* than are there */
    tensor_info tensors[2];
} refusal;

static void nothing(fbt_bytes *file) { (void)file; }
static void same_key_twice(fbt_bytes *file) {
    fbt_gguf_u32(file, "a.key", 1);
    fbt_gguf_text(file, "a.key", "x");
}
static void unknown_type(fbt_bytes *file) { fbt_gguf_key(file, "a.key", (fb_gguf_type)13); }
static void nested_array(fbt_bytes *file) { fbt_gguf_array(file, "a.key", FB_GGUF_ARRAY, 1); }
static void array_of_unknown(fbt_bytes *file) { fbt_gguf_array(file, "a.key", (fb_gguf_type)77, 1); }
static void long_array(fbt_bytes *file) { fbt_gguf_array(file, "a.key", FB_GGUF_U64, UINT64_MAX / 4); }
static void array_beyond_the_end(fbt_bytes *file) {
    fbt_gguf_array(file, "a.key", FB_GGUF_U64, 9);
    fbt_put(file, "nine bytes and more", 19);
}
static void text_beyond_the_end(fbt_bytes *file) {
    fbt_gguf_array(file, "a.key", FB_GGUF_STRING, 1);
    fbt_put_u64(file, UINT64_MAX);
}
static void long_text(fbt_bytes *file) {
    fbt_gguf_key(file, "a.key", FB_GGUF_STRING);
    fbt_put_u64(file, (uint64_t)1 << 63);
}
static void gigabyte_of_text(fbt_bytes *file) {
    fbt_gguf_key(file, "a.key", FB_GGUF_STRING);
    fbt_put_u64(file, ((uint64_t)1 << 30) + 1);
}
static void bad_utf8(fbt_bytes *file) { fbt_gguf_text(file, "a.key", "\xff\xfe"); }
static void bad_bool(fbt_bytes *file) { fbt_gguf_bool(file, "a.key", 2); }
static void empty_key(fbt_bytes *file) { fbt_gguf_u32(file, "", 2); }
static void control_key(fbt_bytes *file) { fbt_gguf_u32(file, "a\033[1m", 2); }
static void nul_in_key(fbt_bytes *file) {
    fbt_put_u64(file, 3);
    fbt_put(file, "a\0b", 3);
    fbt_put_u32(file, FB_GGUF_U8);
    fbt_put(file, "", 1);
}
static void long_key(fbt_bytes *file) {
    char key[301];
    memset(key, 'k', 300);
    key[300] = 0;
    fbt_gguf_u32(file, key, 2);
}
static void odd_alignment(fbt_bytes *file) { fbt_gguf_u32(file, "general.alignment", 48); }
static void no_alignment(fbt_bytes *file) { fbt_gguf_u32(file, "general.alignment", 0); }
static void text_alignment(fbt_bytes *file) { fbt_gguf_text(file, "general.alignment", "32"); }
static void part_of_many(fbt_bytes *file) { fbt_gguf_u32(file, "split.count", 3); }

#define F FB_ERROR_FILE
#define U FB_ERROR_UNSUPPORTED

static const refusal refusals[] = {
    {"another magic number", F, "does not start with \"GGUF\"", .magic = "GGML"},
    {"version 1", U, "GGUF version 1 (2 and 3)", .version = 1},
    {"version 4", U, "GGUF version 4 (2 and 3)", .version = 4},
    {"big endian", U, "big-endian", .version = 0x03000000},
    {"more values than bytes", F, "1000000 metadata values", .values = nothing, .value_count = 1000000},
    {"values behind the end", F, "metadata value 1|left in the file", .values = odd_alignment,
     .value_count = 2},
    {"more tensors than bytes", F, "tensors (|left in the file", .more_tensors = UINT64_MAX / 2},
    {"duplicate key", F, "a.key: duplicate key", .values = same_key_twice, .value_count = 2},
    {"unknown value type", F, "a.key: value type 13 (0 to 12)", .values = unknown_type, .value_count = 1},
    {"nested array", U, "a.key: array of arrays", .values = nested_array, .value_count = 1},
    {"array of unknown", F, "a.key: value type 77", .values = array_of_unknown, .value_count = 1},
    {"array too long", F, "a.key: array of|left in the file", .values = long_array, .value_count = 1},
    {"array beyond the end", F, "a.key: 72 bytes|left", .values = array_beyond_the_end, .value_count = 1},
    {"string beyond the end", F, "a.key|left in the file", .values = text_beyond_the_end, .value_count = 1},
    {"string too long", F, "a.key: 9223372036854775808 bytes", .values = long_text, .value_count = 1},
    {"not UTF-8", F, "a.key: not UTF-8", .values = bad_utf8, .value_count = 1},
    {"bad bool", F, "a.key: 2 as a bool (0 or 1)", .values = bad_bool, .value_count = 1},
    {"empty key", F, "metadata value 0: name: empty", .values = empty_key, .value_count = 1},
    {"control character", F, "metadata value 0: name: control", .values = control_key, .value_count = 1},
    {"NUL in a key", F, "metadata value 0: name: control", .values = nul_in_key, .value_count = 1},
    {"long key", F, "name of 300 bytes (at most 255)", .values = long_key, .value_count = 1},
    {"odd alignment", F, "general.alignment: 48 (a power of two)", .values = odd_alignment, .value_count = 1},
    {"no alignment", F, "general.alignment|0", .values = no_alignment, .value_count = 1},
    {"alignment as text", F, "general.alignment|\"32\"", .values = text_alignment, .value_count = 1},
    {"split file", U, "split.count: one of 3 files", .values = part_of_many, .value_count = 1},
    {"empty name", F, "tensor 0: name: empty", .tensors = {{"", 1, {4}, 0, 0}}},
    {"same name", F, "duplicate tensor t", .tensors = {{"t", 1, {8}, 0, 0}, {"t", 1, {8}, 0, 32}}},
    {"five dimensions", U, "tensor t: 5 dimensions (at most 4)",
     .tensors = {{"t", 5, {1, 1, 1, 1, 1}, 0, 0}}},
    {"a huge dimension", F, "tensor t: dimension 18446744073709551615", .tensors = {{"t", 1, {-1}, 0, 0}}},
    {"a huge product", F, "tensor t: dimension|less than 2^63",
     .tensors = {{"t", 3, {1u << 31, 1u << 31, 1u << 31}, 0, 0}}},
    {"huge bytes", F, "tensor t: 9223372036854775807 bytes",
     .tensors = {{"t", 2, {1u << 31, 1u << 31}, 0, 0}}},
    {"a type by name", U, "tensor t: type 16, IQ2_XXS (known: F32", .tensors = {{"t", 1, {256}, 16, 0}}},
    {"a type long gone", U, "tensor t: type 4, Q4_2", .tensors = {{"t", 1, {256}, 4, 0}}},
    {"a type of the future", U, "tensor t: type 1000|no name", .tensors = {{"t", 1, {256}, 1000, 0}}},
    {"half a block", F, "tensor t: rows of 48 elements (whole blocks of 32 for Q8_0)",
     .tensors = {{"t", 2, {48, 2}, 8, 0}}},
    {"half a large block", F, "rows of 128 elements (whole blocks of 256 for Q6_K)",
     .tensors = {{"t", 2, {128, 2}, 14, 0}}},
    {"offset between", F, "tensor t: offset 16 (a multiple of 32)", .tensors = {{"t", 1, {4}, 0, 16}}},
    {"beyond the data", F, "tensor t: 4 bytes at offset 128 (the file has 128 of data)",
     .tensors = {{"t", 1, {1}, 0, 128}}},
    {"an offset that wraps", F, "tensor t|at offset 18446744073709551584",
     .tensors = {{"t", 1, {16}, 0, -32}}},
    {"overlap", F, "tensors a and b overlap", .tensors = {{"a", 1, {9}, 0, 0}, {"b", 1, {9}, 0, 32}}},
    {"hole", F, "hole in the data before tensor b: 16 to 64",
     .tensors = {{"a", 1, {4}, 0, 0}, {"b", 1, {9}, 0, 64}}},
    {"hole at the start", F, "hole in the data before tensor a: 0 to 32", .tensors = {{"a", 1, {4}, 0, 32}}},
};

static fbt_bytes write_refused(const refusal *r) {
    fbt_bytes file = {0};
    uint64_t count = r->more_tensors;
    for (int i = 0; i < 2; i++) count += r->tensors[i].name != NULL;
    fbt_gguf_start(&file, r->version ? r->version : 3, count, r->value_count);
    if (r->magic) memcpy(file.data, r->magic, 4);
    if (r->values) r->values(&file);
    for (int i = 0; i < 2; i++) {
        const tensor_info *t = &r->tensors[i];
        if (t->name) fbt_gguf_tensor(&file, t->name, t->dims, t->sizes, t->type, t->offset);
    }
    if (r->tensors[0].name) fbt_gguf_data(&file, 32, 128);
    return file;
}

static void refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const refusal *r = &refusals[i];
        fbt_bytes file = write_refused(r);
        fb_gguf *gguf = (fb_gguf *)(uintptr_t)1;
        fb_error err = {0};
        fb_status status = fb_gguf_parse("test", file.data, file.size, &gguf, &err);
        if (status == FB_OK) fail_msg("%s: parsed", r->name);
        assert_null(gguf);
        assert_refused(status, r->status, &err, r->words);
        assert_int_equal(fb_gguf_parse("test", file.data, file.size, &gguf, NULL), status);
        free(file.data);
    }
}

/* Limits that only large files meet: these have a hole where their contents would be. */
static void refused_by_size(void **state) {
    (void)state;
    static const struct {
        uint64_t values;
        void (*put)(fbt_bytes *file);
        off_t size;
        const char *words;
    } large[] = {
        {(1 << 24) + 1, nothing, 1 << 28, "16777217 metadata values (at most 16777216)"},
        {1, gigabyte_of_text, ((off_t)1 << 30) + 4096,
         "a.key: string of 1073741825 bytes (at most 1073741824)"},
    };
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        char *dir = fbt_dir_create(), *path = fbt_format("%s/large.gguf", dir);
        fbt_bytes file = {0};
        fb_gguf *gguf;
        fb_error err;
        fbt_gguf_start(&file, 3, 0, large[i].values);
        large[i].put(&file);
        fbt_file_write(path, file.data, file.size);
        assert_int_equal(truncate(path, large[i].size), 0);
        assert_refused(fb_gguf_open(path, &gguf, &err), FB_ERROR_FILE, &err, large[i].words);
        free(file.data);
        free(path);
        fbt_dir_remove(dir);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(refused), cmocka_unit_test(refused_by_size)};
    return cmocka_run_group_tests_name("gguf refusals", tests, NULL, NULL);
}
