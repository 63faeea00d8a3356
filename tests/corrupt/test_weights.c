/* model.safetensors and its index: cut, malformed, or not the tensors that the config asks for. What the
 * header alone can have wrong is in tests/file/test_safetensors.c; here it passes through fb_model_open. */
#include <stdio.h>

#include "corrupt/corrupt.h"
#include "file/safetensors.h"

#define WEIGHTS "model.safetensors"
#define INDEX   "model.safetensors.index.json"

/* ---- the list of tensors, changed and written back ----------------------------------------------------- */

typedef struct edit {
    const char *name;
    const char *tensor; /* which one */
    enum { DROP, RENAME, RETYPE, RESHAPE, DOUBLE } kind;
    const char *text; /* the new name or type */
    int dims;         /* and the new shape */
    int64_t shape[2];
    const char *words;
} edit;

#define QKV  "gpt_neox.layers.1.attention.query_key_value.weight"
#define NORM "gpt_neox.final_layer_norm.weight"

static const edit edits[] = {
    {"missing matrix", QKV, DROP, NULL, 0, {0}, QKV "|missing"},
    {"missing vector", NORM, DROP, NULL, 0, {0}, NORM "|missing"},
    {"missing embedding", "gpt_neox.embed_in.weight", DROP, NULL, 0, {0}, "gpt_neox.embed_in.weight|missing"},
    {"renamed", NORM, RENAME, "gpt_neox.final_norm.weight", 0, {0}, "gpt_neox.final_"},
    {"extra", NORM, DOUBLE, "gpt_neox.layers.0.adapter.weight", 0, {0}, "gpt_neox.layers.0.adapter.weight"},
    {"extra layer", NORM, DOUBLE, "gpt_neox.layers.3.input_layernorm.weight", 0, {0}, "gpt_neox.layers.3."},
    {"integers", QKV, RETYPE, "I16", 0, {0}, QKV "|I16|F32, F16"},
    {"booleans and bytes", NORM, RETYPE, "U8", 1, {128}, NORM "|U8"},
    {"transposed", QKV, RESHAPE, NULL, 2, {64, 192}, QKV "|[64, 192]|[192, 64]"},
    {"flat", QKV, RESHAPE, NULL, 1, {64 * 192}, QKV "|[12288]|[192, 64]"},
    {"a vector as a matrix", NORM, RESHAPE, NULL, 2, {1, 64}, NORM "|[1, 64]|[64]"},
    {"a matrix with another split", QKV, RESHAPE, NULL, 2, {96, 128}, QKV "|[96, 128]|[192, 64]"},
};

static fbt_tensor as_written(const fb_tensor_entry *entry) {
    fbt_tensor tensor = {entry->name, fb_stored_name(entry->type),
                         entry->dims, {0},
                         entry->data, (size_t)fb_stored_bytes(entry->type, entry->count)};
    for (int d = 0; d < entry->dims; d++) tensor.shape[d] = entry->shape[d];
    return tensor;
}

/* Appends the tensor as the edit wants it. */
static void apply_edit(const edit *e, const fb_tensor_entry *entry, fbt_tensor *list, size_t *count) {
    fbt_tensor tensor = as_written(entry);
    if (e && e->kind == DROP) return;
    if (e && e->kind == DOUBLE) list[(*count)++] = tensor;
    if (e && (e->kind == RENAME || e->kind == DOUBLE)) tensor.name = e->text;
    if (e && e->kind == RETYPE) tensor.dtype = e->text;
    if (e && e->dims) {
        tensor.dims = e->dims;
        memcpy(tensor.shape, e->shape, sizeof e->shape);
    }
    list[(*count)++] = tensor;
}

static void write_edited(const char *dir, const edit *e) {
    char *path = fbt_format("%s/" WEIGHTS, dir);
    fb_tensor_table *table;
    fb_error err;
    assert_ok(fb_tensors_open(FBT_GOLDENS "/neox-parallel/" WEIGHTS, &table, &err), &err);
    int64_t total = fb_tensors_count(table);
    fbt_tensor *list = calloc((size_t)total + 1, sizeof *list);
    assert_non_null(list);
    if (e) assert_non_null(fb_tensors_find(table, e->tensor));
    size_t count = 0;
    for (int64_t i = 0; i < total; i++) {
        const fb_tensor_entry *entry = fb_tensors_at(table, i);
        apply_edit(e && !strcmp(entry->name, e->tensor) ? e : NULL, entry, list, &count);
    }
    fbt_safetensors_write(path, list, count, NULL);
    fb_tensors_free(table);
    free(list);
    free(path);
}

static void run_edit(void **state) {
    const edit *e = *state;
    char *dir = fbt_dir_from_golden("neox-parallel");
    write_edited(dir, e);
    require_model_refused(dir, e->words);
    fbt_dir_remove(dir);
}

/* The writer is not what is refused above. */
static void unedited_opens(void **state) {
    (void)state;
    char *dir = fbt_dir_from_golden("neox-parallel");
    write_edited(dir, NULL);
    fb_model *model;
    fb_error err;
    assert_ok(fb_model_open(dir, &model, &err), &err);
    fb_model_free(model);
    fbt_dir_remove(dir);
}

/* ---- bytes --------------------------------------------------------------------------------------------- */

/* The first bytes only: through the length, through the header, at its end, through the data, one byte short.
 */
static void cut_anywhere(void **state) {
    (void)state;
    char *dir = fbt_dir_from_golden("neox-parallel"), *path = fbt_format("%s/" WEIGHTS, dir);
    size_t size;
    uint8_t *bytes = fbt_file_read(path, &size);
    size_t header = 8 + (size_t)bytes[0] + ((size_t)bytes[1] << 8);
    const size_t cuts[] = {0,          1,      7,          8,        9,           header / 2,
                           header - 1, header, header + 1, size / 2, size - 4096, size - 1};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        fbt_file_write(path, bytes, cuts[i]);
        require_model_refused(dir, WEIGHTS);
    }
    fbt_file_write(path, bytes, size);
    bytes = realloc(bytes, size + 1);
    assert_non_null(bytes);
    bytes[size] = 0;
    fbt_file_write(path, bytes, size + 1);
    require_model_refused(dir, WEIGHTS "|behind the last tensor");
    free(bytes);
    free(path);
    fbt_dir_remove(dir);
}

static void set_header_length(const char *dir, const damage *row) {
    char *path = damaged_path(dir, row);
    size_t size;
    uint8_t *bytes = fbt_file_read(path, &size);
    uint64_t length = strtoull(row->value, NULL, 0);
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(length >> (8 * i));
    fbt_file_write(path, bytes, size);
    free(bytes);
    free(path);
}

/* Replaces `key` in the header by `value` of the same length. */
static void patch_header(const char *dir, const damage *row) {
    char *path = damaged_path(dir, row);
    size_t size;
    char *bytes = fbt_file_read(path, &size);
    char *at = memmem(bytes, size, row->key, strlen(row->key));
    assert_non_null(at);
    assert_int_equal(strlen(row->key), strlen(row->value));
    memcpy(at, row->value, strlen(row->value));
    fbt_file_write(path, bytes, size);
    free(bytes);
    free(path);
}

#define PATCH(name, from, to, words)                                                                         \
    { name, "neox-parallel", patch_header, WEIGHTS, from, to, WEIGHTS "|" words }
#define LENGTH(name, value, words)                                                                           \
    { name, "neox-parallel", set_header_length, WEIGHTS, NULL, value, WEIGHTS "|" words }

/* embed_out.weight is the first tensor, at [0,40960]; gpt_neox.embed_in.weight is next, at [40960,81920]. */
static const damage byte_damages[] = {
    {"missing", "neox-parallel", remove_file, WEIGHTS, NULL, NULL, WEIGHTS "|No such file"},
    {"text", "neox-parallel", write_file, WEIGHTS, NULL, "version https://git-lfs.github.com/spec/v1\n",
     WEIGHTS "|header length"},
    LENGTH("header length 0", "0", "header|not JSON"),
    LENGTH("header length beyond the file", "1000000", "header length: 1000000"),
    LENGTH("header length above the limit", "100000001", "header length: 100000001|at most 100000000"),
    LENGTH("header length 2^64 - 1", "0xffffffffffffffff", "header length: 18446744073709551615"),
    LENGTH("header length short", "100", "not JSON"),
    PATCH("overlap", "[40960,81920]", "[40958,81918]", "overlap"),
    PATCH("hole", "[0,40960]", "[2,40962]", "hole"),
    PATCH("offsets turned around", "[40960,81920]", "[81920,40960]", "81920 to 40960"),
    PATCH("offset beyond the file", "[40960,81920]", "[40960,99999]", "59039 bytes|has 40960"),
    PATCH("offsets beyond the file", "[40960,81920]", "[940960,1e19]", "two integers"),
    PATCH("offset negative", "[40960,81920]", "[-4096,36864]", "-4096"),
    PATCH("unknown dtype", "\"F16\",\"shape\":[320,64]", "\"F17\",\"shape\":[320,64]",
          "unknown dtype|\"F17\""),
    PATCH("wider dtype", "\"F16\",\"shape\":[320,64]", "\"F64\",\"shape\":[320,64]",
          "40960 bytes|has 163840"),
    PATCH("shape negative", "[320,64]", "[-20,64]", "[-20,64]"),
    PATCH("shape of another size", "[320,64]", "[999,64]", "40960 bytes|has 127872"),
    PATCH("shape beyond 2^63", "\"shape\":[320,64]", "\"shape\":[9e18,9]", "integers"),
    PATCH("duplicate", "gpt_neox.final_layer_norm.bias\"", "gpt_neox.embed_in.weight\"      ", "duplicate"),
    PATCH("name not UTF-8", "embed_out", "embed_\xff\xfe\xfd", "0xff"),
    PATCH("name with a control character", "embed_out.w", "embed\\u001b", "control"),
    PATCH("not an object", "{\"__metadata__\"", "[\"__metadata__\"", "not JSON"),
};

/* ---- shards -------------------------------------------------------------------------------------------- */

/* The weights as part.safetensors under an index that lists every tensor there, and is then damaged by the
 * row. */
static void damage_index(const char *dir, const damage *row) {
    char *whole = fbt_format("%s/" WEIGHTS, dir), *part = fbt_format("%s/part.safetensors", dir);
    char *index = fbt_format("%s/" INDEX, dir), *text = fbt_format("{\"weight_map\": {");
    assert_int_equal(rename(whole, part), 0);
    fb_tensor_table *table;
    fb_error err;
    assert_ok(fb_tensors_open(part, &table, &err), &err);
    for (int64_t i = 0; i < fb_tensors_count(table); i++) {
        const char *name = fb_tensors_at(table, i)->name;
        const char *file = row->key && !strcmp(row->key, name) ? row->value : "part.safetensors";
        char *longer = file ? fbt_format("%s%s\"%s\": \"%s\"", text, i ? "," : "", name, file) : NULL;
        if (!longer) continue; /* not listed */
        free(text);
        text = longer;
    }
    fb_tensors_free(table);
    char *json = fbt_format("%s%s}}", text, row->file ? row->file : "");
    fbt_text_write(index, json);
    free(json);
    free(text);
    free(index);
    free(part);
    free(whole);
}

static void write_index(const char *dir, const damage *row) {
    char *whole = fbt_format("%s/" WEIGHTS, dir);
    assert_int_equal(unlink(whole), 0);
    free(whole);
    write_file(dir, row);
}

#define SHARD(name, tensor, file, more, words)                                                               \
    { name, "neox-parallel", damage_index, more, tensor, file, words }
#define TEXT(name, text, words)                                                                              \
    { name, "neox-parallel", write_index, INDEX, NULL, text, INDEX "|" words }

static const damage index_damages[] = {
    TEXT("empty", "", "empty"),
    TEXT("not JSON", "{", "not JSON"),
    TEXT("not an object", "[]", "object"),
    TEXT("no weight_map", "{}", "weight_map"),
    TEXT("weight_map a list", "{\"weight_map\": []}", "weight_map|object"),
    TEXT("weight_map empty", "{\"weight_map\": {}}", "no tensors"),
    TEXT("file a number", "{\"weight_map\": {\"a\": 1}}", "weight_map|a|1"),
    SHARD("outside", NORM, "../part.safetensors", NULL, "weight_map|" NORM "|../part.safetensors"),
    SHARD("absolute", NORM, "/etc/passwd", NULL, "weight_map|" NORM "|/etc/passwd"),
    SHARD("hidden", NORM, ".part.safetensors", NULL, "weight_map|" NORM "|.part.safetensors"),
    SHARD("shard missing", NORM, "other.safetensors", NULL, "other.safetensors|No such file"),
    SHARD("shard no safetensors", NORM, "config.json", NULL, "config.json|header length"),
    SHARD("tensor not listed", NORM, NULL, NULL, NORM "|not in weight_map"),
    SHARD("tensor not there", NULL, NULL, ", \"other.weight\": \"part.safetensors\"",
          "other.weight|not in part.safetensors"),
};

static void index_opens(void **state) {
    (void)state;
    char *dir = fbt_dir_from_golden("neox-parallel");
    damage_index(dir, &(damage){0});
    fb_model *model;
    fb_error err;
    assert_ok(fb_model_open(dir, &model, &err), &err);
    fb_model_free(model);
    fbt_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unedited_opens),
        cmocka_unit_test(index_opens),
        cmocka_unit_test(cut_anywhere),
    };
    int failed = cmocka_run_group_tests_name("weights", tests, NULL, NULL);
    failed += RUN_ROWS("tensors", run_edit, edits);
    failed += RUN_ROWS("bytes", run_damage, byte_damages);
    failed += RUN_ROWS("index", run_damage, index_damages);
    return failed;
}
