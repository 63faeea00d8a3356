/* The proof of fusion holds on every checkpoint, and the calls of the fused ops are those of this table. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"

/* Calls of each fuse alone in a step; `all`: of all fused ops with everything on, counted once for each fuse
 * that they carry. */
typedef struct expected_calls {
    const char *model;
    int64_t layers;
    int64_t head_screen; /* a step: the head has whole blocks of columns */
    int64_t attn_flash, rope_kv, swiglu_dual, swiglu_gemm, swiglu_vec, down_add, bias_act, qkv, qkv_up,
        norm_linear, add3, add_norm, all; /* a layer, but for `all`: a step */
} expected_calls;

#define G FBT_GOLDENS "/"
static const expected_calls expected[] = {
    /*                        hs af rk sd sg sv da ba q  qu nl a3 an all */
    {G "neox-parallel", 3, 1, 1, 1, 0, 0, 0, 1, 1, 0, 1, 2, 1, 1, 19},
    {G "neox-old-nobias", 3, 0, 1, 1, 0, 0, 0, 1, 1, 0, 1, 2, 1, 1, 19},
    {G "neox-serial", 3, 1, 1, 1, 0, 0, 0, 2, 1, 0, 0, 2, 0, 2, 22},
    {G "neox-fast-tied", 3, 1, 1, 1, 0, 0, 0, 2, 1, 0, 0, 2, 0, 2, 22},
    {G "llama-gqa-tied", 3, 1, 1, 1, 1, 1, 1, 2, 0, 1, 0, 5, 0, 2, 25},
    {G "llama-mha", 3, 1, 1, 1, 1, 1, 1, 2, 0, 1, 0, 5, 0, 2, 25},
    {G "llama-linear-sharded", 3, 0, 1, 1, 1, 1, 1, 2, 0, 1, 0, 5, 0, 2, 25},
    {G "llama-llama3-bias", 3, 0, 1, 1, 1, 1, 1, 2, 0, 1, 0, 5, 0, 2, 25},
    {G "gpt2", 3, 1, 1, 0, 0, 0, 0, 2, 1, 0, 0, 2, 0, 2, 19},
    {G "gpt2-inner", 3, 0, 1, 0, 0, 0, 0, 2, 1, 0, 0, 2, 0, 2, 19},
    {FBT_STORYTELLER, 8, 1, 1, 1, 0, 0, 0, 1, 1, 0, 1, 2, 1, 1, 49},
};
enum { MODELS = sizeof expected / sizeof *expected, STEPS = 25 };

static int64_t calls_of(const expected_calls *e, const char *name) {
    const struct {
        const char *name;
        int64_t a_layer;
    } rows[] = {{"attn_flash", e->attn_flash},
                {"rope_kv", e->rope_kv},
                {"swiglu_dual", e->swiglu_dual},
                {"swiglu_gemm", e->swiglu_gemm},
                {"swiglu_vec", e->swiglu_vec},
                {"down_add", e->down_add},
                {"bias_act", e->bias_act},
                {"qkv", e->qkv},
                {"qkv_up", e->qkv_up},
                {"norm_linear", e->norm_linear},
                {"add3", e->add3},
                {"add_norm", e->add_norm}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].name, name) == 0) return STEPS * e->layers * rows[i].a_layer;
    if (strcmp(name, "head_screen") == 0) return STEPS * e->head_screen;
    return strcmp(name, "head_argmax") == 0 ? STEPS : STEPS * e->all;
}

static int64_t fuses_of(const expected_calls *e) {
    const int64_t each[] = {e->attn_flash, e->rope_kv,     e->swiglu_dual, e->swiglu_gemm,
                            e->swiglu_vec, e->down_add,    e->bias_act,    e->qkv,
                            e->qkv_up,     e->norm_linear, e->add3,        e->add_norm};
    int64_t count = 1 + e->head_screen; /* head_argmax */
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) count += each[i] > 0;
    return count;
}

/* ---- the proof ---- */

static void check_row(const expected_calls *e, const fb_fusion_row *row, bool exact, fb_dtype act) {
    bool together = strcmp(row->name, "all") == 0 || strcmp(row->name, "auto") == 0;
    bool tol = !exact && (together || strcmp(row->name, "attn_flash") == 0);
    if (!row->ok)
        fail_msg("%s, %s%s: %s: %s (max abs %g, bound %g, calls %lld of %lld)", e->model, fb_dtype_name(act),
                 exact ? ", exact" : "", row->name, row->why, row->max_abs, row->bound, (long long)row->calls,
                 (long long)row->calls_expected);
    assert_int_equal(row->bit, !tol);
    assert_true(row->bit_identical || tol);
    assert_true(row->greedy_match);
    assert_true(row->max_abs <= row->bound);
    if (row->bit) assert_true(row->max_abs == 0 && row->vs_f64_fused == row->vs_f64_plain);
    /* The planner may choose fewer than all. */
    if (strcmp(row->name, "auto") != 0) assert_int_equal(row->calls, calls_of(e, row->name));
    assert_int_equal(row->calls, row->calls_expected);
}

static void prove(const expected_calls *e, const fb_fusion_options *o) {
    fb_model *model = fbt_model_open(e->model);
    fb_fusion_report *report;
    fb_error err;
    assert_ok(fb_verify_fusion(model, o, &report, &err), &err);
    assert_int_equal(report->count, fuses_of(e) + 2);
    assert_string_equal(report->rows[report->count - 2]->name, "all");
    assert_string_equal(report->rows[report->count - 1]->name, "auto");
    for (int64_t i = 0; i < report->count; i++) check_row(e, report->rows[i], o->exact, o->act);
    assert_int_equal(report->prompt, strcmp(e->model, FBT_STORYTELLER) == 0 ? 144 : 48);
    assert_int_equal(report->decoded, 24);
    assert_true(report->ok && report->greedy_match);
    assert_true(report->perplexity_plain > 1);
    if (o->exact) assert_true(report->perplexity_plain == report->perplexity_fused);
    fb_fusion_free(report);
    fb_model_free(model);
}

static void every_model(void **state) {
    (void)state;
    for (int i = 0; i < MODELS; i++)
        for (int act = FB_F32; act <= FB_BF16; act++)
            for (int exact = 0; exact <= 1; exact++) {
                /* The built-in model's float64 run takes seconds. */
                if (strcmp(expected[i].model, FBT_STORYTELLER) == 0 &&
                    (act == FB_BF16 || exact != (act == FB_F16) || FBT_SANITIZED))
                    continue;
                if (fbt_passes_over(23)) continue;
                fb_fusion_options o = {
                    .size = sizeof o, .threads = 2, .act = (fb_dtype)act, .exact = exact, .fuse = "auto"};
                prove(&expected[i], &o);
                o.kv = act == FB_F32 ? "act" : act == FB_F16 ? "f32" : "f16";
                if (i % 4 == 0) prove(&expected[i], &o);
            }
}

static void every_isa(void **state) {
    (void)state;
    static const char *const isas[] = {"amx",     "avx512bf16", "avx512vnni", "avx512",
                                       "avxvnni", "avx2",       "portable"};
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++)
        for (int m = 0; m < MODELS; m += 4) {
            if (fbt_passes_over(11)) continue;
            fb_session_options here = {.size = sizeof here, .isa = isas[i]};
            fb_fusion_options o = {
                .size = sizeof o, .threads = 2, .act = FB_BF16, .exact = true, .isa = isas[i]};
            fb_model *model = fbt_model_open(expected[m].model);
            fb_session *session;
            fb_status status = fb_session_create(model, &here, &session, NULL);
            if (status == FB_OK) fb_session_free(session);
            fb_model_free(model);
            if (status == FB_OK) prove(&expected[m], &o);
        }
}

/* The reference kernels round results only: there the fuses are held to the tolerance. */
static void reference_kernels(void **state) {
    (void)state;
    for (int act = FBT_SANITIZED ? FB_F64 : FB_F16; act <= FB_F64; act += 2) {
        fb_fusion_options o = {.size = sizeof o,
                               .threads = 1,
                               .act = (fb_dtype)act,
                               .isa = "ref",
                               .fuse = "swiglu_dual,norm_linear,add_norm"};
        fb_model *model = fbt_model_open(G "llama-gqa-tied");
        fb_fusion_report *report;
        fb_error err;
        assert_ok(fb_verify_fusion(model, &o, &report, &err), &err);
        for (int64_t i = 0; i < report->count; i++)
            if (!report->rows[i]->ok || report->rows[i]->bit)
                fail_msg("%s: %s", report->rows[i]->name, report->rows[i]->why);
        fb_fusion_free(report);
        fb_model_free(model);
    }
}

static void specs(void **state) {
    (void)state;
    fb_model *model = fbt_model_open(G "neox-parallel");
    fb_fusion_report *report;
    fb_error err;
    fb_fusion_options o = {.size = sizeof o, .threads = 1, .fuse = "add_norm,bias_act"};
    assert_ok(fb_verify_fusion(model, &o, &report, &err), &err);
    assert_true(report->ok);
    assert_int_equal(report->count, 3);
    assert_string_equal(report->rows[0]->name, "bias_act");
    assert_string_equal(report->rows[1]->name, "add_norm");
    assert_string_equal(report->rows[2]->name, "add_norm,bias_act");
    assert_int_equal(report->rows[2]->calls, 2 * 75);
    fb_fusion_free(report);
    /* Asked for by name, and it has nothing to do. */
    o.fuse = "bias_act,swiglu_vec";
    assert_ok(fb_verify_fusion(model, &o, &report, &err), &err);
    assert_false(report->ok);
    assert_string_equal(report->rows[0]->name, "swiglu_vec");
    assert_false(report->rows[0]->ok);
    assert_non_null(strstr(report->rows[0]->why, "does not apply"));
    assert_true(report->rows[1]->ok && report->rows[2]->ok);
    fb_fusion_free(report);
    o.fuse = "all,-attn_flash";
    assert_ok(fb_verify_fusion(model, &o, &report, &err), &err);
    assert_true(report->ok && report->rows[report->count - 1]->bit);
    fb_fusion_free(report);
    o.fuse = "none";
    assert_refused(fb_verify_fusion(model, &o, &report, &err), FB_ERROR_USAGE, &err, "none|at least one");
    assert_null(report);
    o.fuse = "add4";
    assert_refused(fb_verify_fusion(model, &o, &report, &err), FB_ERROR_USAGE, &err, "add4|add3");
    fb_model_free(model);
}

/* A checkpoint whose weights are NaN agrees with nothing, itself included. */
static void nan_fails(void **state) {
    (void)state;
    char *dir = fbt_dir_from_golden("gpt2"), *path = fbt_format("%s/model.safetensors", dir);
    size_t size;
    uint8_t *bytes = fbt_file_read(path, &size);
    for (size_t i = size - 400; i < size; i += 2) bytes[i] = 0, bytes[i + 1] = 0x7e;
    fbt_file_write(path, bytes, size);
    fb_model *model = fbt_model_open(dir);
    fb_fusion_report *report;
    fb_error err;
    fb_fusion_options o = {.size = sizeof o, .threads = 1, .exact = true};
    assert_ok(fb_verify_fusion(model, &o, &report, &err), &err);
    assert_false(report->ok);
    for (int64_t i = 0; i < report->count; i++) assert_false(report->rows[i]->ok);
    fb_fusion_free(report);
    fb_model_free(model);
    free(bytes);
    free(path);
    fbt_dir_remove(dir);
}

/* ---- sessions with everything on ---- */

enum { PROMPT = 41, DECODE = 9, TOKENS = PROMPT + DECODE };

/* Logits of every token, the prompt's in chunks, into a new array [TOKENS, vocab]. */
static float *run(fb_model *model, fb_session_options o, int64_t *vocab, int64_t *barriers) {
    fb_model_info info;
    fb_model_get_info(model, &info);
    *vocab = info.vocab;
    int32_t ids[TOKENS];
    for (int i = 0; i < TOKENS; i++) ids[i] = (int32_t)((i * i * 7 + i * 13 + 5) % info.vocab);
    float *out = malloc((size_t)(TOKENS * info.vocab) * sizeof *out);
    assert_non_null(out);
    fb_session *session;
    fb_error err;
    const float *logits;
    o.all_logits = true;
    assert_ok(fb_session_create(model, &o, &session, &err), &err);
    assert_ok(fb_session_prefill(session, ids, PROMPT, &err), &err);
    assert_ok(fb_session_logits(session, &logits, NULL, NULL, &err), &err);
    memcpy(out, logits, (size_t)(PROMPT * info.vocab) * sizeof *out);
    int64_t before = fb_session_barriers(session);
    for (int i = PROMPT; i < TOKENS; i++) {
        assert_ok(fb_session_decode(session, ids[i], &err), &err);
        assert_ok(fb_session_logits(session, &logits, NULL, NULL, &err), &err);
        memcpy(out + i * info.vocab, logits, (size_t)info.vocab * sizeof *out);
    }
    if (barriers) *barriers = (fb_session_barriers(session) - before) / DECODE;
    fb_session_free(session);
    return out;
}

/* A run with options `b` gives the logits `one`, which came from options `a`. */
static void same_bits(fb_model *model, const char *name, const float *one, const fb_session_options *a,
                      const fb_session_options *b) {
    int64_t vocab;
    float *other = run(model, *b, &vocab, NULL);
    assert_int_equal(fbt_count_nan(one, TOKENS * vocab), 0);
    for (int64_t i = 0; i < TOKENS * vocab; i++)
        if (memcmp(&one[i], &other[i], sizeof *one) != 0)
            fail_msg("%s, %s, threads %d and %d, chunk %lld and %lld: token %lld, logit %lld: %.9g and %.9g",
                     name, fb_dtype_name(a->act), a->threads, b->threads, (long long)a->chunk,
                     (long long)b->chunk, (long long)(i / vocab), (long long)(i % vocab), (double)one[i],
                     (double)other[i]);
    free(other);
}

static void threads_and_chunks(void **state) {
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        if (FBT_SANITIZED && expected[m].layers > 3) continue;
        fb_model *model = fbt_model_open(expected[m].model);
        for (int act = FB_F32; act <= FB_BF16; act++)
            for (int exact = 0; exact <= 1; exact++) {
                if (expected[m].layers > 3 && exact) continue; /* enough of the larger one */
                if (fbt_passes_over(3)) continue;
                fb_session_options whole = {.size = sizeof whole,
                                            .threads = 1,
                                            .act = (fb_dtype)act,
                                            .kv = m % 2 ? "act" : "auto",
                                            .exact = exact,
                                            .fuse = "all",
                                            .chunk = PROMPT};
                int64_t vocab;
                float *base = run(model, whole, &vocab, NULL);
                for (int threads = 2; threads <= 3; threads++) {
                    fb_session_options other = whole;
                    other.threads = threads;
                    same_bits(model, expected[m].model, base, &whole, &other);
                }
                static const int64_t chunks[] = {1, 5, 7};
                for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
                    fb_session_options other = whole;
                    other.chunk = chunks[i];
                    other.threads = 2;
                    same_bits(model, expected[m].model, base, &whole, &other);
                }
                free(base);
            }
        fb_model_free(model);
    }
}

/* If barriers are removed, a missing one would show as a different result now and then. */
static void again_and_again(void **state) {
    (void)state;
    static const char *const models[] = {G "neox-parallel", G "llama-gqa-tied", G "llama-llama3-bias"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        fb_model *model = fbt_model_open(models[m]);
        fb_session_options plain = {.size = sizeof plain, .threads = 1, .fuse = "none"};
        int64_t vocab;
        float *base = run(model, plain, &vocab, NULL);
        for (int threads = 2; threads <= 3; threads++)
            for (int i = 0; i < (FBT_SANITIZED ? 3 : 20); i++) {
                fb_session_options other = plain;
                other.threads = threads;
                other.fuse = "all";
                other.exact = true;
                same_bits(model, models[m], base, &plain, &other);
            }
        free(base);
        fb_model_free(model);
    }
}

/* Barriers of a decode step: the layers' and those of the prologue and the epilogue. */
static void barriers(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int64_t layers, a_layer, others;
    } rows[] = {{G "neox-parallel", 3, 2, 4},
                {FBT_STORYTELLER, 8, 2, 4},
                {G "llama-mha", 3, 4, 4},
                {G "llama-gqa-tied", 3, 4, 4},
                {G "gpt2", 3, 6, 5}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fb_model *model = fbt_model_open(rows[i].model);
        fb_session_options o = {.size = sizeof o, .threads = 2, .fuse = "all"};
        int64_t vocab, plain, fused;
        free(run(model, o, &vocab, &fused));
        o.fuse = "none";
        free(run(model, o, &vocab, &plain));
        if (fused > rows[i].layers * rows[i].a_layer + rows[i].others)
            fail_msg("%s: %lld barriers a step (at most %lld)", rows[i].model, (long long)fused,
                     (long long)(rows[i].layers * rows[i].a_layer + rows[i].others));
        assert_true(plain >= 12 * rows[i].layers);
        fb_model_free(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_model),     cmocka_unit_test(every_isa), cmocka_unit_test(reference_kernels),
        cmocka_unit_test(specs),           cmocka_unit_test(nan_fails), cmocka_unit_test(threads_and_chunks),
        cmocka_unit_test(again_and_again), cmocka_unit_test(barriers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
