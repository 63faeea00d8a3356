/* fb_model_quantize: what is in the file, read back as a model; what its report says; what it refuses. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pack.h"
#include "base/quant.h"
#include "model/model.h"
#include "support/support.h"

static char *dir, *path;

static int make_dir(void **state) {
    (void)state;
    dir = fbt_dir_create();
    path = fbt_format("%s/out.gguf", dir);
    return 0;
}

static int remove_dir(void **state) {
    (void)state;
    free(path);
    fbt_dir_remove(dir);
    return 0;
}

static fb_quantize_report *write_model(const fb_model *model, fb_dtype type, fb_dtype head) {
    fb_quantize_options options;
    fb_quantize_report *report;
    fb_error err;
    fb_quantize_options_default(&options);
    options.type = type;
    options.head = head;
    options.replace = true;
    options.name = "a name";
    assert_ok(fb_model_quantize(model, path, &options, &report, &err), &err);
    return report;
}

static const fb_quantize_kind *kind_of(const fb_quantize_report *report, const char *name) {
    for (int64_t i = 0; i < report->kind_count; i++)
        if (strcmp(report->kinds[i]->name, name) == 0) return report->kinds[i];
    fail_msg("no kind %s", name);
    return NULL;
}

/* ---- the weights --------------------------------------------------------------------------------------- */

static void row_of(const fb_weight *w, int64_t row, float *values) {
    for (int64_t c = 0; c < w->cols; c++) values[c] = (float)fb_weight_get(w, row, c);
}

/* Each row of `got`, in the order that the program reads, is that of `from`, encoded with the best
 * scales. */
static void check_weight(const fb_weight *from, const fb_weight *got) {
    int64_t cols = from->cols;
    float *want = malloc((size_t)cols * sizeof *want), *have = malloc((size_t)cols * sizeof *have);
    uint8_t *bytes = malloc((size_t)cols * 4);
    assert_true(want && have && bytes);
    assert_int_equal(got->rows, from->rows);
    assert_int_equal(got->cols, cols);
    for (int64_t r = 0; r < from->rows; r++) {
        row_of(from, r, want);
        fb_quant_search(got->dtype, want, cols, NULL, bytes);
        fb_quant_decode(got->dtype, bytes, cols, want);
        row_of(got, r, have);
        assert_memory_equal(have, want, (size_t)cols * sizeof *want);
    }
    free(want);
    free(have);
    free(bytes);
}

/* The type that each tensor of a model must have. */
static fb_dtype wanted_type(const fb_slot *slot, fb_dtype type, fb_dtype head) {
    bool is_head = strcmp(slot->name, "embed_out.weight") == 0 || strcmp(slot->name, "lm_head.weight") == 0;
    if (slot->vector || strcmp(slot->name, "transformer.wpe.weight") == 0) return FB_F32;
    fb_dtype wanted = is_head ? head : type;
    return slot->cols % fb_dtype_block(wanted) ? FB_F16 : wanted;
}

/* Biases of linears, which are corrected with Q4_0: test_correct.c has them. */
static bool corrected(const fb_slot *slot, fb_dtype type) {
    const char *part = strrchr(slot->name, '.');
    bool of_norm = strstr(slot->name, "norm") || strstr(slot->name, ".ln_");
    return type == FB_Q4_0 && slot->vector && !of_norm && strcmp(part, ".bias") == 0;
}

static const char *const cases[] = {"neox-parallel",        "neox-serial",       "llama-mha",
                                    "llama-linear-sharded", "llama-llama3-bias", "gpt2"};

static void test_weights(void **state) {
    (void)state;
    static const fb_dtype types[][2] = {{FB_F16, FB_F16}, {FB_Q8_0, FB_F16}, {FB_Q4_0, FB_Q8_0}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            fb_model *from = fbt_golden_open(cases[c]);
            const fb_program *p = &from->spec->program;
            fb_dtype type = types[t][0], head = from->spec->hyper.tied ? type : types[t][1];
            fb_quantize_report *report = write_model(from, type, head);
            fb_model *got = fbt_model_open(path);
            assert_int_equal(report->weights, from->info.parameters);
            fb_quantize_free(report);
            for (int32_t s = 0; s < p->slot_count; s++)
                for (int64_t layer = 0; layer < p->layers; layer++) {
                    const fb_weight *w = &got->weights[s * p->layers + layer];
                    assert_int_equal(w->dtype, wanted_type(&p->slots[s], type, head));
                    if (!corrected(&p->slots[s], type))
                        check_weight(&from->weights[s * p->layers + layer], w);
                }
            fb_model_free(got);
            fb_model_free(from);
        }
}

/* The type of the head counts for an embedding that is the head, too. */
static void test_tied_head(void **state) {
    (void)state;
    fb_model *from = fbt_golden_open("llama-gqa-tied");
    fb_quantize_report *report = write_model(from, FB_Q4_0, FB_Q8_0);
    assert_int_equal(kind_of(report, "token_embd.weight")->type, FB_Q8_0);
    assert_int_equal(kind_of(report, "ffn_up.weight")->type, FB_Q4_0);
    fb_quantize_free(report);
    fb_model_free(from);
    from = fbt_golden_open("llama-mha");
    report = write_model(from, FB_Q4_0, FB_Q8_0);
    assert_int_equal(kind_of(report, "token_embd.weight")->type, FB_Q4_0);
    assert_int_equal(kind_of(report, "output.weight")->type, FB_Q8_0);
    fb_quantize_free(report);
    fb_model_free(from);
}

/* What decides about the maths comes back, whatever it was. */
static void test_facts(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        fb_model *from = fbt_golden_open(cases[c]);
        fb_quantize_free(write_model(from, FB_F16, FB_F16));
        fb_model *got = fbt_model_open(path);
        const fb_program *a = &from->spec->program, *b = &got->spec->program;
        const fb_hyper *x = &from->spec->hyper, *y = &got->spec->hyper;
        char *want, *have;
        fb_error err;
        assert_ok(fb_model_program_text(from, &want, &err), &err);
        assert_ok(fb_model_program_text(got, &have, &err), &err);
        assert_string_equal(have, want);
        assert_int_equal(a->context, b->context);
        assert_int_equal(a->kv_heads, b->kv_heads);
        assert_int_equal(a->head_dim, b->head_dim);
        assert_true((float)x->eps == (float)y->eps);
        assert_true(x->heads == y->heads && x->mlp == y->mlp && x->activation == y->activation);
        assert_true(x->parallel == y->parallel && x->tied == y->tied && x->rotary == y->rotary);
        for (int32_t i = 0; i < x->rotary / 2; i++)
            assert_true(fabs(a->frequencies[i] / b->frequencies[i] - 1) < 1e-7);
        fb_free(want);
        fb_free(have);
        fb_model_free(got);
        fb_model_free(from);
    }
}

/* Texts give the same ids, normalised or not, and end where they did. */
static void test_tokenizer(void **state) {
    (void)state;
    static const char *const texts[] = {"Once upon a time, there was a dog.", "e\xCC\x81",
                                        "<|endoftext|>a\n\n b", "\xF0\x9F\x99\x82  x", "\xff\xfe"};
    fb_model *from = fbt_model_open(FBT_STORYTELLER);
    fb_quantize_free(write_model(from, FB_Q8_0, FB_Q8_0));
    fb_model *got = fbt_model_open(path);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (int special = 0; special < 2; special++) {
            int32_t *want, *have;
            int64_t want_count, have_count;
            char *text;
            size_t bytes;
            fb_error err;
            assert_ok(fb_tokenize(from, texts[i], strlen(texts[i]), special, &want, &want_count, &err), &err);
            assert_ok(fb_tokenize(got, texts[i], strlen(texts[i]), special, &have, &have_count, &err), &err);
            assert_int_equal(want_count, have_count);
            assert_memory_equal(want, have, (size_t)want_count * sizeof *want);
            assert_ok(fb_detokenize(got, have, have_count, false, &text, &bytes, &err), &err);
            fb_free(text);
            fb_free(want);
            fb_free(have);
        }
    for (int32_t id = 0; id < 4096; id++)
        assert_int_equal(fb_model_is_end(from, id), fb_model_is_end(got, id));
    fb_model_free(got);
    fb_model_free(from);
}

/* ---- the report ---------------------------------------------------------------------------------------- */

static int64_t bytes_of(const fb_model *model) {
    fb_dtype dtype;
    int64_t weights, bytes, sum = 0;
    for (int i = 0; fb_model_weights(model, i, &dtype, &weights, &bytes); i++) sum += bytes;
    return sum;
}

static void test_report(void **state) {
    (void)state;
    fb_model *from = fbt_golden_open("neox-parallel");
    fb_quantize_report *report = write_model(from, FB_Q8_0, FB_Q8_0);
    fb_model *got = fbt_model_open(path);
    const fb_program *p = &from->spec->program;
    int32_t slot = 0;
    while (strcmp(p->slots[slot].name, "gpt_neox.layers.{}.mlp.dense_h_to_4h.weight") != 0) slot++;
    double error = 0, norm = 0, most = 0;
    for (int64_t layer = 0; layer < p->layers; layer++) {
        const fb_weight *a = &from->weights[slot * p->layers + layer],
                        *b = &got->weights[slot * p->layers + layer];
        for (int64_t i = 0; i < a->rows * a->cols; i++) {
            double x = fb_weight_get(a, i / a->cols, i % a->cols),
                   d = fb_weight_get(b, i / a->cols, i % a->cols) - x;
            error += d * d;
            norm += x * x;
            most = fmax(most, fabs(d));
        }
    }
    const fb_quantize_kind *kind = kind_of(report, "ffn_up.weight");
    assert_true(fabs(kind->rel / sqrt(error / norm) - 1) < 1e-9);
    assert_true(kind->max_abs == most && most > 0);
    assert_int_equal(kind->tensors, p->layers);
    assert_int_equal(kind->weights, p->layers * p->slots[slot].rows * p->slots[slot].cols);
    assert_int_equal(kind->bytes, kind->weights / 32 * 34);
    assert_true(kind_of(report, "attn_norm.bias")->rel == 0);
    assert_int_equal(report->bytes_before, bytes_of(from));
    assert_int_equal(report->bytes_after, bytes_of(got));
    size_t size;
    free(fbt_file_read(path, &size));
    assert_int_equal(report->file_bytes, size);
    fb_quantize_free(report);
    fb_model_free(got);
    fb_model_free(from);
}

/* ---- stopping and refusals ----------------------------------------------------------------------------- */

static int files(void) {
    DIR *open = opendir(dir);
    assert_non_null(open);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(open));) count += entry->d_name[0] != '.';
    closedir(open);
    return count;
}

typedef struct progress {
    int64_t last, total;
    int calls, stop_at;
} progress;

static bool on_progress(void *user, int64_t done, int64_t total) {
    progress *p = user;
    assert_true(done > p->last && done <= total);
    assert_int_equal(files(), 0); /* nothing has a name yet */
    p->last = done;
    p->total = total;
    return ++p->calls != p->stop_at;
}

static void test_stop(void **state) {
    (void)state;
    fb_model *model = fbt_model_open(FBT_STORYTELLER);
    fb_quantize_options options;
    fb_quantize_report *report;
    fb_error err;
    fb_quantize_options_default(&options);
    options.on_progress = on_progress;
    progress whole = {0};
    options.user = &whole;
    assert_ok(fb_model_quantize(model, path, &options, NULL, &err), &err);
    assert_true(whole.calls > 3);
    assert_int_equal(whole.last, whole.total);
    assert_int_equal(whole.total, model->info.parameters);
    remove(path);
    for (int stop = 1; stop <= whole.calls; stop++) {
        progress part = {.stop_at = stop};
        options.user = &part;
        assert_int_equal(fb_model_quantize(model, path, &options, &report, &err), FB_ERROR_STOPPED);
        assert_null(report);
        assert_int_equal(files(), 0);
    }
    fb_model_free(model);
}

static void refuse(const char *model_path, fb_dtype type, fb_dtype head, fb_status status,
                   const char *words) {
    fb_model *model = fbt_model_open(model_path);
    fb_quantize_options options;
    fb_error err;
    fb_quantize_options_default(&options);
    options.type = type;
    options.head = head;
    assert_refused(fb_model_quantize(model, path, &options, NULL, &err), status, &err, words);
    assert_int_equal(files(), 0);
    fb_model_free(model);
}

static void test_refusals(void **state) {
    (void)state;
    refuse(FBT_GOLDENS "/gpt2", FB_BF16, FB_F16, FB_ERROR_USAGE, "type|bf16|q8_0");
    refuse(FBT_GOLDENS "/gpt2", FB_Q8_0, FB_F32, FB_ERROR_USAGE, "head|f32|q8_0");
    refuse(FBT_GOLDENS "/gpt2-inner", FB_F16, FB_F16, FB_ERROR_UNSUPPORTED, "activation|gelu|gelu_tanh");
    refuse(FBT_GOLDENS "/neox-old-nobias", FB_F16, FB_F16, FB_ERROR_UNSUPPORTED, "activation|gelu_tanh|gelu");
    fb_model *model = fbt_golden_open("gpt2");
    fb_error err;
    fb_quantize_options options;
    fb_quantize_options_default(&options);
    assert_refused(fb_model_quantize(model, "", &options, NULL, &err), FB_ERROR_USAGE, &err, "path");
    fb_model_free(model);
}

/* A weight that is no number, or is too large for the type. */
static void test_not_finite(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, 3e38f, -1e9f};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fb_model *model = fbt_golden_open("neox-parallel");
        const fb_program *p = &model->spec->program;
        int32_t slot = 0;
        while (strcmp(p->slots[slot].name, "embed_out.weight") != 0) slot++;
        fb_weight *w = &model->weights[slot * p->layers];
        float *values = malloc((size_t)(w->rows * w->cols) * sizeof *values);
        assert_non_null(values);
        for (int64_t k = 0; k < w->rows * w->cols; k++)
            values[k] = (float)fb_weight_get(w, k / w->cols, k % w->cols);
        values[5 * w->cols + 3] = bad[i];
        w->data = values;
        w->dtype = FB_F32;
        static const fb_dtype types[] = {FB_F16, FB_Q8_0, FB_Q4_0};
        for (size_t t = 0; t < 3; t++) {
            fb_quantize_options options;
            fb_error err;
            fb_quantize_options_default(&options);
            options.type = options.head = types[t];
            assert_refused(fb_model_quantize(model, path, &options, NULL, &err), FB_ERROR_UNSUPPORTED, &err,
                           "output.weight|row 5|cannot hold");
            assert_int_equal(files(), 0);
        }
        free(values);
        fb_model_free(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_weights, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_tied_head, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_facts, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_tokenizer, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_report, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_stop, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_refusals, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_not_finite, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
