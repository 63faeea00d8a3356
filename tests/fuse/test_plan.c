/* The words of --fuse, and any subset of the fuses on every architecture. */
#include <stdio.h>
#include <string.h>

#include "base/screen.h"
#include "model/model.h"
#include "toy.h"

/* ---- words ---- */

static void words(void **state) {
    (void)state;
    const uint32_t add_norm = FB_FUSE_BIT(FB_FUSE_ADD_NORM), bias_act = FB_FUSE_BIT(FB_FUSE_BIAS_ACT);
    const struct {
        const char *spec;
        uint32_t fuses;
        bool automatic;
    } rows[] = {
        {"none", 0, false},
        {"all", FB_FUSE_ALL, false},
        {"auto", FB_FUSE_ALL, true},
        {"add_norm", add_norm, false},
        {"add_norm,bias_act", add_norm | bias_act, false},
        {"bias_act,add_norm,bias_act", add_norm | bias_act, false},
        {"all,-add_norm", FB_FUSE_ALL & ~add_norm, false},
        {"all,-add_norm,add_norm", FB_FUSE_ALL, false},
        {"none,bias_act", bias_act, false},
        {"add_norm,-add_norm", 0, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t fuses = 1;
        bool automatic = !rows[i].automatic;
        fb_error err;
        assert_ok(fb_fuse_parse(rows[i].spec, &fuses, &automatic, &err), &err);
        assert_int_equal(fuses, rows[i].fuses);
        assert_int_equal(automatic, rows[i].automatic);
    }
    for (int f = 0; f < FB_FUSE_COUNT; f++) {
        uint32_t fuses;
        bool automatic;
        assert_int_equal(fb_fuse_parse(fb_fuse_table[f].name, &fuses, &automatic, NULL), FB_OK);
        assert_int_equal(fuses, FB_FUSE_BIT(f));
    }
}

static void refused_words(void **state) {
    (void)state;
    static const char *const specs[] = {
        "",          ",",     "add4",   "add",  "add_norm,", ",all", "all,,add3", "all,none", "add3,all",
        "add3,auto", "all,-", "--add3", "ADD3", "add3 ",     "-all", "all,-all",  "add3;qkv"};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        uint32_t fuses;
        bool automatic;
        fb_error err;
        fb_status status = fb_fuse_parse(specs[i], &fuses, &automatic, &err);
        if (status == FB_OK) fail_msg("\"%s\" was accepted", specs[i]);
        assert_refused(status, FB_ERROR_USAGE, &err, "fuse: |none, all, auto");
        for (int f = 0; f < FB_FUSE_COUNT; f++) assert_non_null(strstr(err.message, fb_fuse_table[f].name));
    }
    uint32_t none;
    bool never;
    fb_error alone;
    assert_refused(fb_fuse_parse("-add3", &none, &never, &alone), FB_ERROR_USAGE, &alone,
                   "fuse: |\"-add3\"|all,-add3");
    char longest[2000];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    uint32_t fuses;
    bool automatic;
    fb_error err;
    assert_refused(fb_fuse_parse(longest, &fuses, &automatic, &err), FB_ERROR_USAGE, &err, "xxx|add3");
}

/* ---- subsets ---- */

static const char *const models[] = {"neox-parallel",  "neox-serial",       "neox-old-nobias",
                                     "llama-gqa-tied", "llama-llama3-bias", "llama-linear-sharded",
                                     "gpt2",           "gpt2-inner"};
enum { MODELS = sizeof models / sizeof *models };

/* Whatever is switched on, what comes out is a program: laid out, and every op of the body once a layer. */
static void any_subset_is_a_program(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(31);
    fb_plan *plan = malloc(sizeof *plan);
    assert_non_null(plan);
    for (int m = 0; m < MODELS; m++) {
        fb_model *model = fbt_golden_open(models[m]);
        for (int i = 0; i < 300; i++) {
            fb_plan_options options = {.fuses = (uint32_t)fbt_random_bits(&random) & FB_FUSE_ALL,
                                       .exact = fbt_random_below(&random, 2),
                                       .greedy = fbt_random_below(&random, 2)};
            fb_error err;
            fb_layout layout;
            if (fb_plan_make(&model->spec->program, &options, plan, &err) != FB_OK)
                fail_msg("%s, fuses %#x: %s", models[m], options.fuses, err.message);
            assert_ok(fb_layout_make(&plan->program, &layout, &err), &err);
            assert_int_equal(plan->applied & ~options.fuses, 0);
            assert_true((plan->program.logits == FB_NONE) == (plan->program.best != FB_NONE));
            for (int f = 0; f < FB_FUSE_COUNT; f++)
                assert_int_equal(plan->calls[f] > 0, plan->applied >> f & 1);
        }
        fb_model_free(model);
    }
    free(plan);
}

static void spec_of(uint32_t fuses, char *spec, size_t size) {
    snprintf(spec, size, "none");
    for (int f = 0; f < FB_FUSE_COUNT; f++)
        if (fuses & FB_FUSE_BIT(f))
            snprintf(spec + strlen(spec), size - strlen(spec), ",%s", fb_fuse_table[f].name);
}

/* The logits of 11 tokens: 7 at once, then one by one. */
static float *logits_of(const fb_model *model, const char *spec, fb_dtype act, int64_t *count) {
    fb_session_options o = {
        .size = sizeof o, .threads = 2, .act = act, .exact = true, .fuse = spec, .capacity = 11};
    fb_session *session;
    fb_error err;
    const float *logits;
    int64_t vocab;
    int32_t ids[11];
    assert_ok(fb_session_create(model, &o, &session, &err), &err);
    for (int i = 0; i < 11; i++) ids[i] = i * i % 300;
    float *out = NULL;
    for (int64_t at = 7; at <= 11; at++) {
        assert_ok(at == 7 ? fb_session_prefill(session, ids, 7, &err)
                          : fb_session_decode(session, ids[at - 1], &err),
                  &err);
        assert_ok(fb_session_logits(session, &logits, NULL, &vocab, &err), &err);
        if (!out) out = malloc((size_t)(5 * vocab) * sizeof *out);
        assert_non_null(out);
        memcpy(out + (at - 7) * vocab, logits, (size_t)vocab * sizeof *out);
    }
    fb_session_free(session);
    *count = 5 * vocab;
    return out;
}

static void any_subset_gives_the_same_bits(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(32);
    for (int m = 0; m < MODELS; m++) {
        fb_model *model = fbt_golden_open(models[m]);
        for (int act = FB_F32; act <= FB_BF16; act++) {
            int64_t count;
            float *plain = logits_of(model, "none", (fb_dtype)act, &count);
            assert_int_equal(fbt_count_nan(plain, count), 0);
            for (int i = 0; i < 12; i++) {
                char spec[256];
                spec_of((uint32_t)fbt_random_bits(&random) & FB_FUSE_ALL, spec, sizeof spec);
                float *fused = logits_of(model, spec, (fb_dtype)act, &count);
                if (memcmp(plain, fused, (size_t)count * sizeof *plain) != 0)
                    fail_msg("%s, %s, %s: the logits differ", models[m], fb_dtype_name((fb_dtype)act), spec);
                free(fused);
            }
            free(plain);
        }
        fb_model_free(model);
    }
}

/* ---- what does not apply ---- */

static void why_not(void **state) {
    (void)state;
    static const struct {
        const char *model;
        fb_fuse_id fuse;
        bool greedy;
        const char *words; /* NULL: it applies */
    } rows[] = {
        {"neox-parallel", FB_FUSE_QKV_UP, false, NULL},
        {"neox-parallel", FB_FUSE_QKV, false, "one projection already"},
        {"neox-parallel", FB_FUSE_SWIGLU_VEC, false, "gated"},
        {"neox-parallel", FB_FUSE_HEAD_ARGMAX, true, NULL},
        {"neox-parallel", FB_FUSE_HEAD_SCREEN, true, NULL},
        {"neox-parallel", FB_FUSE_HEAD_SCREEN, false, "logits are wanted"},
        {"gpt2-inner", FB_FUSE_HEAD_SCREEN, true, "no copy in 8 bits"},
        {"neox-parallel", FB_FUSE_HEAD_ARGMAX, false, "logits are wanted"},
        {"neox-serial", FB_FUSE_QKV_UP, false, "serial"},
        {"neox-serial", FB_FUSE_ADD3, false, "serial"},
        {"llama-gqa-tied", FB_FUSE_QKV, false, NULL},
        {"llama-gqa-tied", FB_FUSE_BIAS_ACT, false, "gelu"},
        {"llama-gqa-tied", FB_FUSE_QKV_UP, false, "serial"},
        {"gpt2", FB_FUSE_ROPE_KV, false, "rotary"},
        {"gpt2", FB_FUSE_DOWN_ADD, false, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fb_model *model = fbt_golden_open(rows[i].model);
        const fb_program *p = &model->spec->program;
        const fb_weight *head = &model->weights[fb_program_head(p) * p->layers];
        fb_plan_options options = {.greedy = rows[i].greedy, .screen = fb_screen_fits(head)};
        const char *reason = fb_fuse_why_not(p, rows[i].fuse, &options);
        if (!rows[i].words)
            assert_null(reason);
        else
            assert_true(reason && strstr(reason, rows[i].words));
        fb_model_free(model);
    }
}

/* ---- without memory ---- */

static const char *no_memory(const void *arg, const fb_program *program) {
    (void)arg;
    (void)program;
    return FB_NO_MEMORY;
}

/* To leave the fuse out would give other bits. */
static void no_memory_is_no_plan(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("llama-gqa-tied");
    fb_plan_options options = {.fuses = FB_FUSE_ALL, .graph = true, .step_why_not = no_memory};
    fb_plan plan;
    fb_error err;
    assert_refused(fb_plan_make(&model->spec->program, &options, &plan, &err), FB_ERROR_MEMORY, &err,
                   "step|memory");
    options.fuses &= ~FB_FUSE_BIT(FB_FUSE_STEP);
    assert_ok(fb_plan_make(&model->spec->program, &options, &plan, &err), &err);
    fb_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words),
        cmocka_unit_test(refused_words),
        cmocka_unit_test(any_subset_is_a_program),
        cmocka_unit_test(any_subset_gives_the_same_bits),
        cmocka_unit_test(why_not),
        cmocka_unit_test(no_memory_is_no_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
