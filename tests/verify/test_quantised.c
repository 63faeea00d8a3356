/* Every fuse with every quantised weight type: checkpoints whose matrices are replaced, in memory, by random
 * blocks. */
#include <stdlib.h>
#include <string.h>

#include "base/pack.h"
#include "fuse/fuse.h"
#include "model/model.h"
#include "support/support.h"
#include "verify/tape.h"

enum { MAX_COPIES = 256 };

static void *copies[MAX_COPIES];
static int copied;

/* Which matrices get a type: all; those of every other layer, or every other one of a layer, while others
 * become FB_Q5_0. */
typedef enum spread { EVERYWHERE, BY_LAYER, BY_MATRIX } spread;

static fb_dtype type_of(const fb_program *p, int64_t index, fb_dtype dtype, spread how) {
    int64_t number = how == BY_LAYER ? index % p->layers : 0;
    for (int64_t slot = 0; how == BY_MATRIX && slot < index / p->layers; slot++)
        number += !p->slots[slot].vector;
    return number % 2 == 0 ? dtype : FB_Q5_0;
}

static void *new_copy(int64_t bytes) {
    assert_true(copied < MAX_COPIES);
    void *data = copies[copied++] = malloc((size_t)bytes);
    assert_non_null(data);
    return data;
}

static void free_copies(void) {
    while (copied) free(copies[--copied]);
}

static void make_blocks(fb_weight *w, fb_dtype dtype, fbt_random *random) {
    void *data = new_copy(fb_dtype_bytes(dtype, w->rows * w->cols));
    fbt_random_blocks(random, dtype, w->rows * w->cols, 0.08, data);
    *w = (fb_weight){.data = data, .dtype = dtype, .rows = w->rows, .cols = w->cols, .experts = w->experts};
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
        make_blocks(w, dtype, random);
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
    assert_ok(fb_program_quantize(p, &err), &err);
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++) count += p->ops[s][i].kind == FB_OP_QUANTIZE;
    free(p);
    return count;
}

/* Takes the model. */
static void prove_model(fb_model *m, const char *path, fb_dtype dtype, const fb_fusion_options *o,
                        int64_t quantizes) {
    fb_error err;
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
    free_copies();
}

static void prove(const char *path, fb_dtype dtype, spread how, const fb_fusion_options *o, int64_t quantizes,
                  fbt_random *random) {
    fb_model *m = fbt_model_open(path);
    assert_true(retype(m, dtype, how, random) > 0);
    prove_model(m, path, dtype, o, quantizes);
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

/* Several types in one file: another in every other layer, or in every other matrix. */
static void mixed_types(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(64);
    fb_fusion_options o = {.size = sizeof o, .threads = 2, .act = FB_F32, .fuse = "auto"};
    prove(models[0].path, FB_Q8_0, BY_LAYER, &o, 5, &random);
    o.act = FB_BF16;
    prove(models[0].path, FB_Q4_0, BY_MATRIX, &o, 5, &random);
}

/* Quantised matrices, and floats among them. */
typedef struct mix {
    const char *model;
    fb_dtype type, floats;
    uint32_t layers; /* by bit: layers whose matrices are floats … */
    const char
        *matrix; /* … if their names contain this; NULL: all of the layer, and none outside of layers */
    int64_t quantizes; /* quantize ops: values that a matrix of some layer needs in integers */
} mix;

#define ALL_LAYERS UINT32_MAX

static const mix mixes[] = {
    /* Whole layers: the first, one in the middle, the last, all but one. */
    {"llama-mha", FB_Q4_0, FB_F16, 1 << 0, NULL, 4},
    {"neox-parallel", FB_Q8_0, FB_F16, 1 << 1, NULL, 5},
    {"gpt2", FB_Q5_1, FB_F32, 1 << 2, NULL, 5},
    {"neox-serial", FB_Q4_1, FB_BF16, 1 << 0 | 1 << 2, NULL, 5},
    /* One matrix of a group, in some layers or in all. */
    {"llama-mha", FB_Q8_0, FB_F16, 1 << 1, "v_proj", 4},
    {"llama-gqa-tied", FB_Q4_0, FB_F16, ALL_LAYERS, "v_proj", 4},
    {"llama-mha", FB_Q5_0, FB_BF16, 1 << 2, "gate_proj", 4},
    {"llama-gqa-tied", FB_Q4_0, FB_F32, ALL_LAYERS, "up_proj", 4},
    /* One whose input nothing else reads. */
    {"neox-parallel", FB_Q8_0, FB_BF16, 1 << 0, "dense_4h_to_h", 5},
    {"neox-parallel", FB_Q4_K, FB_F16, 1 << 1, "dense_4h_to_h", 1},
    {"neox-serial", FB_Q4_0, FB_BF16, ALL_LAYERS, "dense_4h_to_h", 4},
    /* The head; the table of embeddings. */
    {"llama-mha", FB_Q8_0, FB_F16, ALL_LAYERS, "lm_head", 3},
    {"neox-parallel", FB_Q4_0, FB_BF16, ALL_LAYERS, "embed_in", 5},
    /* Experts: their down projections, whose inputs a token has several of. */
    {"mixtral", FB_Q8_0, FB_BF16, 1 << 0, "w2", 5},
    {"mixtral", FB_Q4_0, FB_BF16, 1 << 1, NULL, 5},
};

static void make_floats(fb_weight *w, fb_dtype dtype) {
    if (w->dtype == dtype || w->parts || w->order != FB_ROWS_SAME) return;
    void *data = new_copy(fb_dtype_bytes(dtype, w->rows * w->cols));
    for (int64_t i = 0; i < w->rows * w->cols; i++)
        fb_dtype_set(dtype, data, i, fb_dtype_get(w->dtype, w->data, i));
    w->data = data;
    w->dtype = dtype;
    w->mapped = false;
}

/* A matrix has the same blocks in every mix of its model and type. */
static fb_model *open_mix(const mix *x) {
    fb_model *m = fbt_golden_open(x->model);
    const fb_program *p = &m->spec->program;
    fbt_random random = fbt_random_start(65);
    int64_t kept = 0;
    for (int64_t i = 0; i < p->slot_count * p->layers; i++) {
        fb_weight *w = &m->weights[i], blocks = *w;
        const fb_slot *slot = &p->slots[i / p->layers];
        bool floats = (x->layers >> (i % p->layers) & 1) &&
                      (x->matrix ? strstr(slot->name, x->matrix) != NULL : slot->per_layer);
        if (slot->vector) continue;
        if (!slot->per_layer && i % p->layers) {
            *w = w[-1];
            continue;
        }
        if (w->cols % fb_dtype_block(x->type) == 0) make_blocks(&blocks, x->type, &random);
        if (floats)
            make_floats(w, x->floats);
        else
            *w = blocks;
        kept += floats;
    }
    assert_true(kept > 0 || x->layers == 0);
    fb_model_note_dtypes(m);
    return m;
}

static void floats_among_quantised(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++) {
        fb_fusion_options o = {
            .size = sizeof o, .threads = 2, .act = i % 3 == 1 ? FB_F16 : FB_F32, .fuse = "auto"};
        if (fbt_passes_over(5)) continue;
        prove_model(open_mix(&mixes[i]), mixes[i].model, mixes[i].type, &o, mixes[i].quantizes);
        o.exact = i % 2;
        o.float_dot = !o.exact;
        if (i % 3 == 0)
            prove_model(open_mix(&mixes[i]), mixes[i].model, mixes[i].type, &o, mixes[i].quantizes);
    }
}

/* What leaves the first layer. */
static float *first_layer(const char *model, uint32_t float_layers, const char *fuse, size_t *bytes) {
    const mix x = {.model = model, .type = FB_Q4_0, .floats = FB_F16, .layers = float_layers};
    fb_model *m = open_mix(&x);
    fb_session_options o = {.size = sizeof o, .threads = 2, .fuse = fuse};
    fb_script script;
    fb_tape tape;
    fb_error err;
    assert_ok(fb_script_make(m, 0, &script, &err), &err);
    assert_ok(fb_tape_record_states(m, &o, &script, &tape, &err), &err);
    *bytes = (size_t)(tape.tokens * tape.width) * sizeof(float);
    float *state = malloc(*bytes);
    assert_non_null(state);
    memcpy(state, tape.hidden + tape.tokens * tape.width, *bytes);
    fb_tape_free(&tape);
    fb_script_free(&script);
    fb_model_free(m);
    free_copies();
    return state;
}

/* A layer computes what it computes in a model that has nothing else: integers if it is quantised, and floats
 * if it is not, whatever the other layers are. */
static void a_layer_is_its_own(void **state) {
    (void)state;
    static const char *const names[] = {"neox-parallel", "llama-mha", "gpt2"};
    static const char *const fuses[] = {"none", "all", "all,-quant_gemm"};
    for (size_t i = 0; i < 3; i++)
        for (size_t f = 0; f < 3; f++) {
            size_t bytes;
            float *integers = first_layer(names[i], 0, fuses[f], &bytes);
            float *others = first_layer(names[i], ALL_LAYERS & ~1u, fuses[f], &bytes);
            float *floats = first_layer(names[i], ALL_LAYERS, fuses[f], &bytes);
            float *alone = first_layer(names[i], 1, fuses[f], &bytes);
            assert_memory_equal(others, integers, bytes);
            assert_memory_equal(alone, floats, bytes);
            assert_memory_not_equal(floats, integers, bytes);
            free(integers);
            free(others);
            free(floats);
            free(alone);
        }
}

/* Answers in mixtures of requests are those of each request alone. */
static void batches(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i += 4) {
        fb_batch_verify_options o = {.size = sizeof o, .threads = 2, .act = FB_F32, .rounds = 2, .seed = 7};
        fb_model *m = open_mix(&mixes[i]);
        fb_batch_report report = {.size = sizeof report};
        fb_error err;
        assert_ok(fb_verify_batch(m, &o, &report, &err), &err);
        if (!report.ok) fail_msg("%s, mix %zu: %s", mixes[i].model, i, report.first);
        fb_model_free(m);
        free_copies();
    }
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
        cmocka_unit_test(floats_among_quantised),
        cmocka_unit_test(a_layer_is_its_own),
        cmocka_unit_test(batches),
        cmocka_unit_test(blocks_of_256),
        cmocka_unit_test(other_instruction_sets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
