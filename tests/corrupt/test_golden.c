/* A golden that is no golden, or not this model's. What one alone can have wrong is in
 * tests/verify/test_golden.c; here it passes through fb_verify_golden. */
#include "corrupt/corrupt.h"
#include "file/safetensors.h"

typedef struct golden_damage {
    const char *name;
    const char *tensor;
    size_t size;   /* bytes of `patch`, … */
    size_t offset; /* … which go to this byte of the tensor's data */
    uint8_t patch[8];
    const char *words;
} golden_damage;

static const golden_damage rows[] = {
    {"id of the size of the vocabulary", "input_ids", 4, 0, {64, 1, 0, 0}, "input_ids|320 (0 to 319)"},
    {"id negative", "input_ids", 4, 4, {255, 255, 255, 255}, "input_ids|-1 (0 to 319)"},
    {"greedy id huge", "greedy", 4, 8, {255, 255, 255, 127}, "greedy|2147483647"},
    {"NaN in a hidden state", "hidden.2", 4, 40, {0, 0, 192, 127}, "hidden.2: element 10|nan"},
    {"infinite logit", "logits", 4, 0, {0, 0, 128, 127}, "logits: element 0|inf"},
    {"NaN in float64", "logits_f64", 8, 8, {0, 0, 0, 0, 0, 0, 248, 127}, "logits_f64: element 1|nan"},
};

static void require_golden_refused(const char *name, const char *path, const char *words) {
    fb_model *model = fbt_golden_open(name);
    fb_verify_options options;
    fb_verify_options_default(&options);
    fb_verify_report *report = (fb_verify_report *)(uintptr_t)1;
    fb_error err = {0};
    fb_status status = fb_verify_golden(model, path, &options, &report, &err);
    if (status == FB_OK) fb_verify_free(report);
    fb_model_free(model);
    assert_refused(status, FB_ERROR_FILE, &err, words);
    assert_null(report);
    print_message("# %s\n", err.message);
}

static void run_patch(void **state) {
    const golden_damage *row = *state;
    char *dir = fbt_dir_from_golden("neox-parallel"), *path = fbt_format("%s/golden.safetensors", dir);
    size_t size;
    uint8_t *bytes = fbt_file_read(path, &size);
    fb_tensor_table *table;
    fb_error err;
    assert_ok(fb_tensors_parse(path, bytes, size, &table, &err), &err);
    const fb_tensor_entry *entry = fb_tensors_find(table, row->tensor);
    assert_non_null(entry);
    memcpy(bytes + (entry->data - bytes) + row->offset, row->patch, row->size);
    fb_tensors_free(table);
    fbt_file_write(path, bytes, size);
    require_golden_refused("neox-parallel", path, row->words);
    free(bytes);
    free(path);
    fbt_dir_remove(dir);
}

static void missing(void **state) {
    (void)state;
    require_golden_refused("gpt2", FBT_GOLDENS "/none.safetensors", "none.safetensors|No such file");
    require_golden_refused("gpt2", FBT_GOLDENS, "not a regular file");
}

static void not_a_golden(void **state) {
    (void)state;
    require_golden_refused("gpt2", FBT_GOLDENS "/gpt2/model.safetensors", "input_ids|missing");
    require_golden_refused("gpt2", FBT_GOLDENS "/gpt2/config.json", "config.json|header length");
    require_golden_refused("neox-parallel", FBT_GOLDENS "/streaming/neox-parallel.safetensors",
                           "hidden.0|missing");
}

static void of_another_model(void **state) {
    (void)state;
    require_golden_refused("gpt2", FBT_GOLDENS "/storyteller/golden.safetensors", "golden.safetensors");
}

/* 24 ids, in a model whose context has room for 16. */
static void longer_than_the_context(void **state) {
    (void)state;
    char *dir = fbt_dir_from_golden("neox-parallel"), *config = fbt_format("%s/config.json", dir);
    char *path = fbt_format("%s/golden.safetensors", dir);
    fbt_json_set(config, "max_position_embeddings", "16");
    fb_model *model;
    fb_error err;
    assert_ok(fb_model_open(dir, &model, &err), &err);
    fb_verify_options options;
    fb_verify_options_default(&options);
    fb_verify_report *report;
    fb_status status = fb_verify_golden(model, path, &options, &report, &err);
    assert_int_not_equal(status, FB_OK);
    assert_refused(status, status, &err, "16");
    assert_null(report);
    fb_model_free(model);
    free(path);
    free(config);
    fbt_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing),
        cmocka_unit_test(not_a_golden),
        cmocka_unit_test(of_another_model),
        cmocka_unit_test(longer_than_the_context),
    };
    int failed = cmocka_run_group_tests_name("golden", tests, NULL, NULL);
    return failed + RUN_ROWS("patched golden", run_patch, rows);
}
