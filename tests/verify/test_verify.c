/* The engine against the goldens, and goldens that are wrong in one number against the verification. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/host/isa.h"
#include "file/json.h"
#include "support/support.h"

static fb_verify_report *verify(const fb_model *model, const char *golden, const char *isa, fb_dtype act) {
    fb_verify_options options;
    fb_verify_options_default(&options);
    options.isa = isa;
    options.act = act;
    options.threads = 2;
    fb_verify_report *report;
    fb_error err;
    assert_ok(fb_verify_golden(model, golden, &options, &report, &err), &err);
    return report;
}

/* ---- right goldens ---- */

/* The limits that the engine promises, whatever the report's own are. */
static void check_f32(const fb_verify_report *r, const char *isa) {
    double worst = 0;
    for (int64_t i = 0; i < r->layers; i++) {
        assert_int_equal(r->rows[i].layer, i);
        assert_true(r->rows[i].max_abs <= 5e-5 && r->rows[i].rel <= 1e-5 && r->rows[i].ok);
        worst = fmax(worst, r->rows[i].max_abs);
    }
    assert_true(r->logits.max_abs <= 1e-4 && r->logits.rel <= 1e-5 && r->logits.ok);
    assert_true(isnan(r->logits_f64_max_abs) || r->logits_f64_max_abs <= 1e-4); /* NaN: the golden has none */
    assert_int_equal(r->greedy_equal, r->greedy_tokens);
    assert_true(r->greedy_near == 0 && r->greedy_match && r->ok);
    print_message("# %s: hidden %.1e, logits %.1e\n", isa, worst, r->logits.max_abs);
}

static void check_model(const char *model_path, const char *golden, int64_t layers, int64_t greedy,
                        bool slow) {
    fb_model *model = fbt_model_open(model_path);
    for (const fb_isa *isa = fb_isa_table; isa->name; isa++) {
        bool ref = strcmp(isa->name, "ref") == 0;
        if (!isa->available() || (ref && slow)) continue;
        fb_verify_report *r = verify(model, golden, isa->name, FB_F32);
        assert_int_equal(r->layers, layers + 1);
        assert_int_equal(r->greedy_tokens, greedy);
        check_f32(r, isa->name);
        fb_verify_free(r);
        for (int act = FB_F16; act <= FB_BF16 && !ref; act++) {
            r = verify(model, golden, isa->name, (fb_dtype)act);
            print_message("# %s, %s: logits %.1e, greedy %lld of %lld\n", isa->name,
                          fb_dtype_name((fb_dtype)act), r->logits.max_abs, (long long)r->greedy_equal,
                          (long long)r->greedy_tokens);
            assert_true(r->ok);
            assert_true(r->logits.max_abs > 1e-5); /* it was rounded */
            fb_verify_free(r);
        }
    }
    if (!slow) {
        fb_verify_report *r = verify(model, golden, "ref", FB_F64);
        assert_true(r->ok && r->logits_f64_max_abs <= 1e-5);
        print_message("# ref, f64: %.1e from the float64 logits\n", r->logits_f64_max_abs);
        fb_verify_free(r);
    }
    fb_model_free(model);
}

static void tiny(void **state) {
    char *dir = fbt_format(FBT_GOLDENS "/%s", (const char *)*state),
         *golden = fbt_format("%s/golden.safetensors", dir);
    check_model(dir, golden, 3, 32, false);
    free(golden);
    free(dir);
}

static void storyteller(void **state) {
    (void)state;
    check_model(FBT_STORYTELLER, FBT_GOLDENS "/storyteller/golden.safetensors", 8, 64, true);
}

/* ---- wrong goldens ---- */

/* A golden as bytes, and where its tensors are in them. */
typedef struct copy {
    char *dir, *path;
    uint8_t *bytes;
    size_t size;
    fb_json *header;
} copy;

static copy copy_golden(const char *name) {
    copy c = {.dir = fbt_dir_from_golden(name)};
    c.path = fbt_format("%s/golden.safetensors", c.dir);
    c.bytes = fbt_file_read(c.path, &c.size);
    uint64_t length;
    memcpy(&length, c.bytes, sizeof length);
    fb_error err;
    assert_ok(fb_json_parse(c.path, (const char *)c.bytes + 8, (size_t)length, length, &c.header, &err),
              &err);
    return c;
}

static void copy_free(copy *c) {
    fb_json_free(c->header);
    free(c->bytes);
    free(c->path);
    fbt_dir_remove(c->dir);
}

static uint8_t *tensor_bytes(const copy *c, const char *name, int64_t *size) {
    uint64_t length;
    memcpy(&length, c->bytes, sizeof length);
    const fb_json *offsets = fb_json_get(fb_json_get(c->header, name), "data_offsets");
    assert_int_equal(fb_json_size(offsets), 2);
    int64_t begin = fb_json_int_of(fb_json_at(offsets, 0));
    *size = fb_json_int_of(fb_json_at(offsets, 1)) - begin;
    return c->bytes + 8 + length + begin;
}

static fb_verify_report *verify_copy(const copy *c, fb_dtype act) {
    fbt_file_write(c->path, c->bytes, c->size);
    fb_model *model = fbt_model_open(c->dir);
    fb_verify_report *r = verify(model, c->path, NULL, act);
    fb_model_free(model);
    return r;
}

/* Moves one float32 of a tensor by `offset`: the first, one in the middle or the last. */
static copy move_number(const char *tensor, int place, float offset) {
    copy c = copy_golden("neox-parallel");
    int64_t size;
    uint8_t *at = tensor_bytes(&c, tensor, &size);
    at += place == 0 ? 0 : place == 1 ? size / 8 * 4 : size - 4;
    float value;
    memcpy(&value, at, sizeof value);
    value += offset;
    memcpy(at, &value, sizeof value);
    return c;
}

static void check_wrong_number(const char *tensor, int64_t layer, float offset, fb_dtype act) {
    for (int place = 0; place < 3; place++) {
        copy c = move_number(tensor, place, offset);
        fb_verify_report *r = verify_copy(&c, act);
        const fb_verify_row *row = layer < 0 ? &r->logits : &r->rows[layer];
        if (r->ok || row->ok)
            fail_msg("%s off by %g at place %d, act %s: verified", tensor, (double)offset, place,
                     fb_dtype_name(act));
        for (int64_t i = 0; i < r->layers; i++)
            if (i != layer) assert_true(r->rows[i].ok);
        fb_verify_free(r);
        copy_free(&c);
    }
}

static void wrong_numbers(void **state) {
    (void)state;
    static const char *const tensors[] = {"hidden.0", "hidden.1", "hidden.2", "hidden.3"};
    for (int64_t layer = 0; layer < 4; layer++) {
        check_wrong_number(tensors[layer], layer, 1e-4f, FB_F32);
        check_wrong_number(tensors[layer], layer, -1e-4f, FB_F32);
    }
    check_wrong_number("logits", -1, 2e-4f, FB_F32);
    check_wrong_number("logits", -1, -2e-4f, FB_F32);
}

/* With 16-bit activations the limits are wide, but not endless. */
static void wrong_numbers_in_16_bits(void **state) {
    (void)state;
    for (int act = FB_F16; act <= FB_BF16; act++)
        for (int sign = -1; sign <= 1; sign += 2) {
            check_wrong_number("hidden.2", 2, (float)sign * 3, (fb_dtype)act);
            check_wrong_number("logits", -1, (float)sign * 3, (fb_dtype)act);
        }
}

/* NaN and the infinities are no reference: whatever the dtype, a golden that holds one does not verify. */
static void not_numbers(void **state) {
    (void)state;
    static const char *const tensors[] = {"hidden.0", "hidden.3", "logits"};
    static const float offsets[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 27; i++) {
        copy c = move_number(tensors[i / 9], (int)(i % 3), offsets[i / 3 % 3]);
        fbt_file_write(c.path, c.bytes, c.size);
        fb_model *model = fbt_model_open(c.dir);
        fb_verify_report *report = (fb_verify_report *)(uintptr_t)1;
        fb_error err;
        assert_refused(fb_verify_golden(model, c.path, NULL, &report, &err), FB_ERROR_FILE, &err,
                       tensors[i / 9]);
        assert_null(report);
        fb_model_free(model);
        copy_free(&c);
    }
}

static void wrong_tokens(void **state) {
    (void)state;
    for (int64_t place = 0; place < 32; place += 31) {
        copy c = copy_golden("llama-gqa-tied");
        int64_t size;
        uint8_t *greedy = tensor_bytes(&c, "greedy", &size);
        greedy[size / 32 * place] ^= 1; /* little-endian: another id of the vocabulary */
        fb_verify_report *r = verify_copy(&c, FB_F32);
        assert_false(r->ok || r->greedy_match);
        assert_true(r->greedy_equal < 32 && r->greedy_near == 0);
        assert_true(r->logits.ok);
        fb_verify_free(r);
        copy_free(&c);
    }
    copy c = copy_golden("llama-gqa-tied");
    int64_t size;
    uint8_t *ids = tensor_bytes(&c, "input_ids", &size);
    ids[size / 24 * 23] ^= 1;
    fb_verify_report *r = verify_copy(&c, FB_F32);
    assert_false(r->ok || r->rows[0].ok || r->logits.ok);
    fb_verify_free(r);
    copy_free(&c);
}

/* A golden of another model, and options that no session takes. */
static void refusals(void **state) {
    (void)state;
    fb_model *model = fbt_model_open(FBT_GOLDENS "/gpt2");
    fb_verify_report *report = (fb_verify_report *)(uintptr_t)1;
    fb_error err;
    assert_refused(
        fb_verify_golden(model, FBT_GOLDENS "/storyteller/golden.safetensors", NULL, &report, &err),
        FB_ERROR_FILE, &err, "golden.safetensors");
    assert_null(report);
    assert_refused(fb_verify_golden(model, FBT_GOLDENS "/none", NULL, &report, &err), FB_ERROR_FILE, &err,
                   "none");
    fb_verify_options options;
    fb_verify_options_default(&options);
    options.isa = "mmx";
    report = (fb_verify_report *)(uintptr_t)1;
    assert_refused(fb_verify_golden(model, FBT_GOLDENS "/gpt2/golden.safetensors", &options, &report, &err),
                   FB_ERROR_USAGE, &err, "isa|mmx");
    assert_null(report);
    fb_verify_free(NULL);
    fb_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        {"neox-parallel", tiny, NULL, NULL, (void *)(uintptr_t) "neox-parallel"},
        {"neox-serial", tiny, NULL, NULL, (void *)(uintptr_t) "neox-serial"},
        {"llama-gqa-tied", tiny, NULL, NULL, (void *)(uintptr_t) "llama-gqa-tied"},
        {"llama-mha", tiny, NULL, NULL, (void *)(uintptr_t) "llama-mha"},
        {"gpt2", tiny, NULL, NULL, (void *)(uintptr_t) "gpt2"},
        cmocka_unit_test(storyteller),
        cmocka_unit_test(wrong_numbers),
        cmocka_unit_test(wrong_numbers_in_16_bits),
        cmocka_unit_test(not_numbers),
        cmocka_unit_test(wrong_tokens),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
