/* Every fuse with every quantised weight type: checkpoints whose matrices are replaced, in memory, by random
 * blocks. */
#include <stdlib.h>
#include <string.h>

#include "base/pack.h"
#include "fuse/fuse.h"
#include "model/model.h"
#include "support/support.h"

enum { MAX_COPIES = 256 };

static void *copies[MAX_COPIES];
static int copied;

/* Which matrices get a type: all; those of every other layer, or every other one of a layer, while others
 * become FB_Q5_0; those of every other layer, while others stay floats. */
typedef enum spread { EVERYWHERE, BY_LAYER, BY_MATRIX, FLOAT_LAYERS } spread;

static fb_dtype type_of(const fb_program *p, int64_t index, fb_dtype dtype, spread how) {
    int64_t number = how == BY_LAYER || how == FLOAT_LAYERS ? index % p->layers : 0;
    for (int64_t slot = 0; how == BY_MATRIX && slot < index / p->layers; slot++)
        number += !p->slots[slot].vector;
    return number % 2 == 0 ? dtype : how == FLOAT_LAYERS ? FB_F32 : FB_Q5_0;
}

/* Matrices whose rows are whole blocks become `wanted`, or what the spread says; a matrix that several layers
 * share stays shared. */
static int64_t retype(fb_model *m, fb_dtype wanted, spread how, fbt_random *random) {
    const fb_program *p = &m->spec->program;
    int64_t changed = 0;
    for (int64_t i = 0; i < p->slot_count * p->layers; i++) {
        fb_weight *w = &m->weights[i];
        const fb_slot *slot = &p->slots[i / p->layers];
        fb_dtype dtype = type_of(p, i, wanted, how);
        if (!slot->per_layer && i % p->layers) {
            *w = w[-1];
            continue;
        }
        if (slot->vector || fb_dtype_is_float(dtype) || w->cols % fb_dtype_block(dtype)) continue;
        assert_true(copied < MAX_COPIES);
        void *data = copies[copied++] = malloc((size_t)fb_dtype_bytes(dtype, w->rows * w->cols));
        assert_non_null(data);
        fbt_random_blocks(random, dtype, w->rows * w->cols, 0.08, data);
        *w = (fb_weight){.data = data, .dtype = dtype, .rows = w->rows, .cols = w->cols};
        changed++;
    }
    fb_model_note_dtypes(m);
    return changed;
}

static int64_t quantize_ops(const fb_model *m) {
    fb_program *p = malloc(sizeof *p);
    int64_t count = 0;
    fb_error err;
    assert_non_null(p);
    *p = m->spec->program;
    assert_ok(fb_program_quantize(p, 0, &err), &err);
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++) count += p->ops[s][i].kind == FB_OP_QUANTIZE;
    free(p);
    return count;
}

static void prove(const char *path, fb_dtype dtype, spread how, const fb_fusion_options *o, int64_t quantizes,
                  fbt_random *random) {
    fb_model *m;
    fb_error err;
    assert_ok(fb_model_open(path, &m, &err), &err);
    assert_true(retype(m, dtype, how, random) > 0);
    if (quantize_ops(m) != quantizes)
        fail_msg("%s, %s: %lld quantize ops, should be %lld", path, fb_dtype_name(dtype),
                 (long long)quantize_ops(m), (long long)quantizes);
    fb_fusion_report *report;
    assert_ok(fb_verify_fusion(m, o, &report, &err), &err);
    bool fused = false, norm = false; /* proven by themselves */
    for (int64_t i = 0; i < report->count; i++) {
        const fb_fusion_row *row = report->rows[i];
        fused = fused || strcmp(row->name, "quant_gemm") == 0;
        norm = norm || strcmp(row->name, "norm_linear") == 0;
        if (!row->ok)
            fail_msg("%s, %s, act %s, dot %s: %s: %s (max abs %g, bound %g, calls %lld of %lld)", path,
                     fb_dtype_name(dtype), fb_dtype_name(o->act), o->float_dot ? "float" : "q8", row->name,
                     row->why, row->max_abs, row->bound, (long long)row->calls,
                     (long long)row->calls_expected);
    }
    assert_true(report->ok && report->count > 5 && norm);
    assert_int_equal(fused, quantizes > 0 && !o->float_dot);
    fb_fusion_free(report);
    fb_model_free(m);
    while (copied) free(copies[--copied]);
}

/* The values that are quantised when all matrices are: norms' outputs, attention, the MLP's middle and the
 * head's input; rows of 176 are no whole blocks, so that Llama's down projection stays as it is. */
static const struct {
    const char *path;
    int64_t quantizes;
} models[] = {{FBT_GOLDENS "/neox-parallel", 5},
              {FBT_GOLDENS "/neox-serial", 5},
              {FBT_GOLDENS "/llama-mha", 4},
              {FBT_GOLDENS "/gpt2", 5},
              {FBT_GOLDENS "/llama-gqa-tied", 4}};

static void blocks_of_32(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(61);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int dtype = FB_Q8_0; dtype <= FB_Q5_1; dtype++) {
            /* One of the other types a model. */
            if (dtype > FB_Q4_0 && (size_t)(dtype - FB_Q4_1) != i % 3) continue;
            if (fbt_passes_over(3)) continue;
            int64_t quantizes = models[i].quantizes;
            fb_fusion_options o = {.size = sizeof o, .threads = 2, .act = FB_F32, .fuse = "auto"};
            prove(models[i].path, (fb_dtype)dtype, EVERYWHERE, &o, quantizes, &random);
            o.float_dot = true;
            if (((size_t)dtype + i) % 2)
                prove(models[i].path, (fb_dtype)dtype, EVERYWHERE, &o, quantizes, &random);
            o.float_dot = false;
            o.act = i % 2 ? FB_F16 : FB_BF16;
            o.exact = true;
            prove(models[i].path, (fb_dtype)dtype, EVERYWHERE, &o, quantizes, &random);
        }
}

/* Several types in one file: another in every other layer, or in every other matrix. Where a layer's matrix
 * is not quantised, that of all layers is multiplied with floats, and some decode it from packed rows. */
static void mixed_types(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(64);
    fb_fusion_options o = {.size = sizeof o, .threads = 2, .act = FB_F32, .fuse = "auto"};
    prove(models[0].path, FB_Q8_0, BY_LAYER, &o, 5, &random);
    prove(models[2].path, FB_Q4_0, FLOAT_LAYERS, &o, 1, &random);
    o.act = FB_BF16;
    prove(models[0].path, FB_Q4_0, BY_MATRIX, &o, 5, &random);
    prove(models[2].path, FB_Q8_0, FLOAT_LAYERS, &o, 1, &random);
}

static void blocks_of_256(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(62);
    static const fb_dtype types[] = {FB_Q4_K, FB_Q5_K, FB_Q6_K, FB_Q2_K, FB_Q3_K, FB_IQ4_XS};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        fb_fusion_options o = {.size = sizeof o, .threads = 2, .act = FB_F32, .fuse = "auto"};
        if (fbt_passes_over(5)) continue;
        prove(FBT_GOLDENS "/neox-parallel", types[t], EVERYWHERE, &o, 1,
              &random); /* its down projection only */
    }
}

static void other_instruction_sets(void **state) {
    (void)state;
    static const char *const isas[] = {"avx512", "avx2", "portable"};
    fbt_random random = fbt_random_start(63);
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++)
        for (int dtype = FB_Q8_0; dtype <= FB_Q4_0; dtype++) {
            fb_session_options s = {.size = sizeof s, .isa = isas[i]};
            fb_fusion_options o = {
                .size = sizeof o, .threads = 3, .act = FB_F32, .fuse = "auto", .isa = isas[i]};
            fb_session *session = NULL;
            fb_model *m;
            fb_error err;
            assert_ok(fb_model_open(models[0].path, &m, &err), &err);
            bool here = fb_session_create(m, &s, &session, &err) == FB_OK;
            fb_session_free(session);
            fb_model_free(m);
            if (here)
                prove(models[0].path, (fb_dtype)dtype, EVERYWHERE, &o, models[0].quantizes, &random);
            else
                print_message("# %s: not on this machine\n", isas[i]);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_of_32),
        cmocka_unit_test(mixed_types),
        cmocka_unit_test(blocks_of_256),
        cmocka_unit_test(other_instruction_sets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
