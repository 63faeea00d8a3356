/* Plans of models whose matrices are Q8_0: where the program quantises, and what the fuses make of it. Only
 * plans are made, so that the weights need no data. */
#include <string.h>

#include "model/model.h"
#include "toy.h"

/* A checkpoint as if its matrices, as far as their rows are whole blocks, were Q8_0. */
static fb_model *open_quantised(const char *name) {
    fb_model *m = fbt_golden_open(name);
    const fb_program *p = &m->spec->program;
    for (int64_t i = 0; i < p->slot_count * p->layers; i++)
        if (!p->slots[i / p->layers].vector && m->weights[i].cols % 32 == 0) m->weights[i].dtype = FB_Q8_0;
    fb_model_note_dtypes(m);
    return m;
}

static fb_plan *plan_of(const fb_model *m, uint32_t fuses, bool greedy, bool float_dot) {
    fb_plan *plan = malloc(sizeof *plan);
    fb_plan_options options = {.fuses = fuses, .greedy = greedy, .float_dot = float_dot};
    fb_error err;
    assert_non_null(plan);
    assert_ok(fb_plan_make(&m->spec->program, &options, plan, &err), &err);
    return plan;
}

static int quantizes(const fb_program *p) {
    int count = 0;
    for (int s = 0; s < FB_SECTIONS; s++) count += toy_count(p, (fb_section)s, FB_OP_QUANTIZE);
    return count;
}

/* Segments of projections (the head's, too) that multiply like this. */
static int segments_with(const fb_program *p, fb_section section, fb_dot dot) {
    int count = 0;
    for (int32_t i = 0; i < p->op_count[section]; i++) {
        const fb_op *op = &p->ops[section][i];
        bool one = op->kind == FB_OP_LINEAR || op->kind == FB_OP_HEAD_ARGMAX;
        int segments = one ? 1 : op->kind == FB_OP_LINEAR_GROUP ? op->attr.segments : 0;
        for (int s = 0; s < segments; s++) count += op->attr.segment[s].dot == dot;
    }
    return count;
}

/* The op that writes what input k of the op with this output reads. */
static const fb_op *behind(const fb_program *p, fb_section section, const fb_op *op, int k) {
    int32_t writer = fb_op_writing(p, section, op->in[k]);
    assert_true(writer != FB_NONE);
    return &p->ops[section][writer];
}

#define BIT(id) FB_FUSE_BIT(FB_FUSE_##id)

/* q, k and v read one quantised value, gate and up another, attention's projection a third; down, whose rows
 * are no whole blocks, reads floats. */
static void one_quantize_for_all_readers(void **state) {
    (void)state;
    fb_model *m = open_quantised("llama-mha");
    fb_plan *plan = plan_of(m, 0, false, false);
    const fb_program *p = &plan->program;
    assert_int_equal(toy_count(p, FB_BODY, FB_OP_QUANTIZE), 3);
    assert_int_equal(toy_count(p, FB_EPILOGUE, FB_OP_QUANTIZE), 1);
    assert_int_equal(segments_with(p, FB_BODY, FB_DOT_GIVEN), 6);
    assert_int_equal(segments_with(p, FB_BODY, FB_DOT_FLOAT), 1);
    int readers[FB_MAX_VALUES] = {0};
    for (int32_t i = 0; i < p->op_count[FB_BODY]; i++) {
        const fb_op *op = &p->ops[FB_BODY][i];
        if (op->kind == FB_OP_QUANTIZE) assert_int_equal(p->values[op->out[0]].width, 64 / 32 * 10);
        if (op->kind != FB_OP_LINEAR || op->attr.segment[0].dot != FB_DOT_GIVEN) continue;
        const fb_op *quantize = behind(p, FB_BODY, op, 0);
        assert_int_equal(quantize->kind, FB_OP_QUANTIZE);
        readers[quantize->in[0]]++;
    }
    int of[4] = {0};
    for (int v = 0; v < FB_MAX_VALUES; v++) of[readers[v]]++;
    assert_int_equal(of[3], 1);
    assert_int_equal(of[2], 1);
    assert_int_equal(of[1], 1);
    free(plan);
    fb_model_free(m);
}

/* All readers of a quantised value take it in, whatever op they have become. */
static void quant_gemm(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int body, floats;
    } rows[] = {{"neox-parallel", 4, 0}, {"llama-mha", 6, 1}, {"gpt2", 4, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fb_model *m = open_quantised(rows[i].model);
        for (int before = 0; before < 2; before++) { /* alone, and after head_argmax */
            fb_plan *plan = plan_of(m, BIT(QUANT_GEMM) | (before ? BIT(HEAD_ARGMAX) : 0), true, false);
            const fb_program *p = &plan->program;
            assert_int_equal(quantizes(p), 0);
            assert_int_equal(segments_with(p, FB_BODY, FB_DOT_QUANTIZE), rows[i].body);
            assert_int_equal(segments_with(p, FB_BODY, FB_DOT_FLOAT), rows[i].floats);
            assert_int_equal(segments_with(p, FB_EPILOGUE, FB_DOT_QUANTIZE), 1);
            assert_int_equal(toy_count(p, FB_EPILOGUE, FB_OP_HEAD_ARGMAX), before);
            assert_int_equal(p->ops[FB_EPILOGUE][p->op_count[FB_EPILOGUE] - 1].in[0], p->final_norm);
            assert_int_equal(plan->calls[FB_FUSE_QUANT_GEMM], rows[i].body * p->layers + 1);
            assert_int_equal(plan->head_calls[FB_FUSE_QUANT_GEMM], 1);
            free(plan);
        }
        /* Without it, head_argmax reads what the head would have read. */
        fb_plan *plan = plan_of(m, BIT(HEAD_ARGMAX), true, false);
        assert_int_equal(segments_with(&plan->program, FB_EPILOGUE, FB_DOT_GIVEN), 1);
        assert_int_equal(toy_count(&plan->program, FB_EPILOGUE, FB_OP_QUANTIZE), 1);
        free(plan);
        fb_model_free(m);
    }
}

/* A norm that is quantised cannot move into its projections, unless the quantising has moved there. */
static void norm_linear_after_quant_gemm(void **state) {
    (void)state;
    static const char *const names[] = {"neox-parallel", "llama-mha", "gpt2"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        fb_model *m = open_quantised(names[i]);
        fb_plan *plan = plan_of(m, BIT(NORM_LINEAR), false, false);
        assert_int_equal(plan->applied, 0);
        free(plan);
        plan = plan_of(m, BIT(NORM_LINEAR) | BIT(QUANT_GEMM), false, false);
        const fb_program *p = &plan->program;
        assert_int_equal(plan->applied, BIT(NORM_LINEAR) | BIT(QUANT_GEMM));
        assert_int_equal(toy_count(p, FB_BODY, FB_OP_LAYERNORM) + toy_count(p, FB_BODY, FB_OP_RMSNORM), 0);
        for (int32_t k = 0; k < p->op_count[FB_BODY]; k++)
            if (p->ops[FB_BODY][k].kind == FB_OP_LINEAR_GROUP) {
                assert_int_equal(p->ops[FB_BODY][k].attr.segment[0].dot, FB_DOT_QUANTIZE);
                assert_int_not_equal(p->ops[FB_BODY][k].attr.segment[0].norm, FB_OP_COUNT);
            }
        free(plan);
        fb_model_free(m);
    }
}

/* Groups of projections form whether their inputs are quantised before or within. */
static void groups(void **state) {
    (void)state;
    static const struct {
        const char *model;
        fb_fuse_id fuse;
        int segments;
    } rows[] = {{"neox-parallel", FB_FUSE_QKV_UP, 2},
                {"llama-mha", FB_FUSE_QKV, 3},
                {"llama-mha", FB_FUSE_SWIGLU_DUAL, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int within = 0; within < 2; within++) {
            fb_model *m = open_quantised(rows[i].model);
            fb_plan *plan =
                plan_of(m, FB_FUSE_BIT(rows[i].fuse) | (within ? BIT(QUANT_GEMM) : 0), false, false);
            assert_int_equal(plan->calls[rows[i].fuse], plan->program.layers);
            for (int32_t k = 0; k < plan->program.op_count[FB_BODY]; k++) {
                const fb_op *op = &plan->program.ops[FB_BODY][k];
                if (op->kind != FB_OP_LINEAR_GROUP) continue;
                assert_int_equal(op->attr.segments, rows[i].segments);
                for (int s = 0; s < op->attr.segments; s++)
                    assert_int_equal(op->attr.segment[s].dot, within ? FB_DOT_QUANTIZE : FB_DOT_GIVEN);
            }
            free(plan);
            fb_model_free(m);
        }
}

/* The projection of v: its op, and which segment it is. */
static const fb_op *find_v(const fb_program *p, int *segment) {
    for (int32_t i = 0; i < p->op_count[FB_BODY]; i++)
        for (int s = 0; s < FB_MAX_SEGMENTS; s++) {
            const fb_op *op = &p->ops[FB_BODY][i];
            int32_t slot = op->weights[4 * s];
            if (slot == FB_NONE || !strstr(p->slots[slot].name, "v_proj")) continue;
            *segment = s;
            return op;
        }
    fail_msg("no v");
    return NULL;
}

/* Where layers differ, an op has both inputs, and keeps them in a group; quantising in the projection needs
 * one. Where v is floats in all layers, it is so in the group, too. */
static void floats_in_some_layers(void **state) {
    (void)state;
    static const struct {
        uint32_t layers; /* in which v is floats */
        uint32_t fuses;
        fb_dot dot;
        bool both;
    } rows[] = {{1 << 1, 0, FB_DOT_GIVEN, true},
                {1 << 1, BIT(QKV), FB_DOT_GIVEN, true},
                {1 << 1, BIT(QUANT_GEMM), FB_DOT_QUANTIZE, false},
                {1 << 1, BIT(QUANT_GEMM) | BIT(QKV) | BIT(NORM_LINEAR), FB_DOT_QUANTIZE, false},
                {7, 0, FB_DOT_FLOAT, false},
                {7, BIT(QKV), FB_DOT_FLOAT, false},
                {7, BIT(QUANT_GEMM) | BIT(QKV) | BIT(NORM_LINEAR), FB_DOT_FLOAT, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fb_model *m = open_quantised("llama-mha");
        for (int64_t k = 0; k < m->spec->program.slot_count * 3; k++)
            if (strstr(m->spec->program.slots[k / 3].name, "v_proj") && (rows[i].layers >> k % 3 & 1))
                m->weights[k].dtype = FB_F16;
        fb_model_note_dtypes(m);
        fb_plan *plan = plan_of(m, rows[i].fuses, false, false);
        int s = 0;
        const fb_op *op = find_v(&plan->program, &s);
        assert_int_equal(plan->applied, rows[i].fuses);
        assert_int_equal(op->attr.segment[s].dot, rows[i].dot);
        assert_int_equal(op->in[FB_UNQUANTIZED + s] != FB_NONE, rows[i].both);
        if (rows[i].both)
            assert_int_equal(behind(&plan->program, FB_BODY, op, s)->in[0], op->in[FB_UNQUANTIZED + s]);
        if (rows[i].fuses & BIT(QKV)) { /* q has no layer of floats */
            assert_int_equal(op->attr.segments, 3);
            assert_int_equal(op->attr.segment[0].dot,
                             rows[i].fuses & BIT(QUANT_GEMM) ? FB_DOT_QUANTIZE : FB_DOT_GIVEN);
            assert_int_equal(op->in[FB_UNQUANTIZED], FB_NONE);
        }
        free(plan);
        fb_model_free(m);
    }
}

/* With floats the plan is the one of float weights: nothing is quantised, and no op differs. */
static void float_dot(void **state) {
    (void)state;
    static const char *const names[] = {"neox-parallel", "llama-mha", "gpt2"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int fused = 0; fused < 2; fused++) {
            fb_model *m = open_quantised(names[i]), *floats = fbt_golden_open(names[i]);
            fb_plan *have = plan_of(m, fused ? FB_FUSE_ALL : 0, true, true),
                    *want = plan_of(floats, fused ? FB_FUSE_ALL : 0, true, false);
            assert_int_equal(quantizes(&have->program), 0);
            assert_int_equal(have->applied, want->applied);
            for (int s = 0; s < FB_SECTIONS; s++) {
                assert_int_equal(have->program.op_count[s], want->program.op_count[s]);
                for (int32_t k = 0; k < have->program.op_count[s]; k++) {
                    const fb_op *a = &have->program.ops[s][k], *b = &want->program.ops[s][k];
                    assert_int_equal(a->kind, b->kind);
                    for (int n = 0; n < FB_MAX_IN; n++) assert_int_equal(a->in[n], b->in[n]);
                }
                assert_int_equal(segments_with(&have->program, (fb_section)s, FB_DOT_GIVEN) +
                                     segments_with(&have->program, (fb_section)s, FB_DOT_QUANTIZE),
                                 0);
            }
            free(have);
            free(want);
            fb_model_free(m);
            fb_model_free(floats);
        }
}

static int64_t layer_barriers(const fb_program *p) {
    int64_t count = 0;
    for (int32_t i = 0; i < p->op_count[FB_BODY]; i++) count += fb_program_barrier(p, FB_BODY, i, 2);
    return count;
}

/* What ops must not do if no barrier lies between them: one worker may be at the last op of a joined run
 * while another is at the first, which still reads and writes its part. */
static int check_joined(const char *name, const fb_program *p) {
    const fb_op *ops = p->ops[FB_BODY];
    int joined = 0;
    fb_layout layout;
    fb_error err;
    assert_ok(fb_layout_make(p, &layout, &err), &err);
    for (int32_t first = 0; first < p->op_count[FB_BODY]; first++)
        for (int32_t i = first; !fb_program_barrier(p, FB_BODY, i, 1); i++, joined++)
            for (int k = 0; k < FB_MAX_OUT; k++)
                for (int n = 0; n < FB_MAX_IN + FB_MAX_OUT; n++) {
                    int32_t v = n < FB_MAX_IN ? ops[first].in[n] : ops[first].out[n - FB_MAX_IN];
                    int32_t out = ops[i + 1].out[k];
                    if (v == FB_NONE || out == FB_NONE || p->values[v].storage == p->values[out].storage)
                        continue;
                    if (layout.buffer[v] == layout.buffer[out])
                        fail_msg("%s: %s of %s is where %s of %s still works", name, p->values[out].name,
                                 fb_op_table[ops[i + 1].kind].name, p->values[v].name,
                                 fb_op_table[ops[first].kind].name);
                }
    return joined;
}

/* With all fuses, and without each one of them. */
static void joined_ops_keep_apart(void **state) {
    (void)state;
    for (const char *const *name = fbt_cases; *name; name++) {
        fb_model *m = open_quantised(*name);
        for (int without = 0; without <= FB_FUSE_COUNT; without++) {
            fb_plan *plan = plan_of(m, FB_FUSE_ALL & ~FB_FUSE_BIT(without), true, false);
            int joined = check_joined(*name, &plan->program);
            assert_true(joined > 0 || without < FB_FUSE_COUNT || strncmp(*name, "gpt2", 4) == 0);
            free(plan);
        }
        fb_model_free(m);
    }
}

/* There is a barrier before rope_kv if workers cannot take whole KV heads, or not equally many. */
static void uneven_heads(void **state) {
    (void)state;
    fb_model *m = open_quantised("neox-parallel");
    fb_plan *plan = plan_of(m, FB_FUSE_ALL, true, false);
    const fb_program *p = &plan->program;
    for (int32_t workers = 1; workers <= 2 * p->kv_heads; workers++) {
        assert_int_equal(p->ops[FB_BODY][0].kind, FB_OP_LINEAR_GROUP);
        assert_int_equal(fb_program_barrier(p, FB_BODY, 0, workers), p->kv_heads % workers != 0);
        assert_int_equal(fb_program_barrier(p, FB_BODY, 1, workers), p->kv_heads < workers);
    }
    /* And if all queries come before all keys, and these before all values. */
    for (int k = 0; k < 3; k++) {
        fb_value *v = &plan->program.values[p->ops[FB_BODY][1].in[k]];
        v->offset = k * v->heads * v->width;
        v->stride = v->width;
    }
    assert_true(fb_program_barrier(p, FB_BODY, 0, 2));
    free(plan);
    fb_model_free(m);
    /* And if a head's outputs are not whole grains: 2 KV heads of 11. */
    m = open_quantised("llama-llama3-bias");
    plan = plan_of(m, FB_FUSE_ALL, true, false);
    p = &plan->program;
    for (int32_t i = 0; i + 1 < p->op_count[FB_BODY]; i++)
        if (p->ops[FB_BODY][i + 1].kind == FB_OP_ROPE_KV) assert_true(fb_program_barrier(p, FB_BODY, i, 2));
    assert_int_equal(toy_count(p, FB_BODY, FB_OP_ROPE_KV), 1);
    free(plan);
    fb_model_free(m);
}

/* With all fuses there are as many barriers as with float weights. */
static void barriers(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int64_t a_layer;
    } rows[] = {
        {"neox-parallel", 2}, {"neox-serial", 4}, {"llama-mha", 4}, {"llama-gqa-tied", 4}, {"gpt2", 6}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fb_model *m = open_quantised(rows[i].model);
        fb_plan *all = plan_of(m, FB_FUSE_ALL, true, false), *none = plan_of(m, 0, true, false),
                *floats = plan_of(m, FB_FUSE_ALL, true, true);
        assert_int_equal(layer_barriers(&all->program), rows[i].a_layer);
        assert_int_equal(layer_barriers(&floats->program), rows[i].a_layer);
        /* The plain program has one more barrier for each value that is quantised. */
        free(floats);
        floats = plan_of(m, 0, true, true);
        assert_int_equal(layer_barriers(&none->program) - layer_barriers(&floats->program),
                         toy_count(&none->program, FB_BODY, FB_OP_QUANTIZE));
        assert_int_equal(all->program.op_count[FB_EPILOGUE], 2); /* the norm and head_argmax */
        free(all);
        free(none);
        free(floats);
        fb_model_free(m);
    }
}

/* All four matrices of a layer, where one of three layers has them as floats. */
static void quantised_in_some_layers(void **state) {
    (void)state;
    fb_model *m;
    fb_error err;
    assert_ok(fb_model_open(FBT_GOLDENS "/neox-parallel", &m, &err), &err);
    const fb_program *p = &m->spec->program;
    for (int64_t i = 0; i < p->slot_count * p->layers; i++)
        if (!p->slots[i / p->layers].vector && (i % p->layers != 1 || !p->slots[i / p->layers].per_layer))
            m->weights[i].dtype = FB_Q8_0;
    fb_model_note_dtypes(m);
    fb_plan *plan = plan_of(m, 0, false, false);
    p = &plan->program;
    assert_int_equal(toy_count(p, FB_BODY, FB_OP_QUANTIZE), 4);
    assert_int_equal(toy_count(p, FB_EPILOGUE, FB_OP_QUANTIZE), 1);
    for (int s = FB_BODY; s <= FB_EPILOGUE; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++) {
            const fb_op *op = &p->ops[s][i];
            if (op->kind != FB_OP_LINEAR) continue;
            assert_int_equal(op->attr.segment[0].dot, FB_DOT_GIVEN);
            assert_int_equal(op->in[FB_UNQUANTIZED],
                             s == FB_BODY ? behind(p, FB_BODY, op, 0)->in[0] : FB_NONE);
        }
    free(plan);
    fb_model_free(m);
}

static void why_not(void **state) {
    (void)state;
    fb_model *m = open_quantised("neox-parallel"), *floats;
    const fb_program *p = &m->spec->program;
    fb_error err;
    assert_ok(fb_model_open(FBT_GOLDENS "/neox-parallel", &floats, &err), &err);
    assert_null(
        fb_fuse_why_not(p, FB_FUSE_QUANT_GEMM, &(fb_plan_options){.greedy = false, .float_dot = false}));
    assert_non_null(
        strstr(fb_fuse_why_not(p, FB_FUSE_QUANT_GEMM, &(fb_plan_options){.greedy = false, .float_dot = true}),
               "no quantised weights"));
    assert_non_null(strstr(fb_fuse_why_not(&floats->spec->program, FB_FUSE_QUANT_GEMM,
                                           &(fb_plan_options){.greedy = false, .float_dot = false}),
                           "no quantised weights"));
    /* What the norm lacks is not a projection. */
    assert_non_null(strstr(
        fb_fuse_why_not(p, FB_FUSE_NORM_LINEAR, &(fb_plan_options){.greedy = false, .float_dot = false}),
        "only with quant_gemm"));
    assert_null(
        fb_fuse_why_not(p, FB_FUSE_NORM_LINEAR, &(fb_plan_options){.greedy = false, .float_dot = true}));
    for (int f = 0; f < FB_FUSE_COUNT; f++) {
        assert_int_equal(fb_fuse_after_quant_gemm(p, (fb_fuse_id)f,
                                                  &(fb_plan_options){.greedy = true, .float_dot = false}),
                         f == FB_FUSE_NORM_LINEAR);
        assert_false(fb_fuse_after_quant_gemm(p, (fb_fuse_id)f,
                                              &(fb_plan_options){.greedy = true, .float_dot = true}));
        assert_false(fb_fuse_after_quant_gemm(&floats->spec->program, (fb_fuse_id)f,
                                              &(fb_plan_options){.greedy = true, .float_dot = false}));
    }
    fb_model_free(m);
    fb_model_free(floats);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_quantize_for_all_readers),
        cmocka_unit_test(quant_gemm),
        cmocka_unit_test(norm_linear_after_quant_gemm),
        cmocka_unit_test(groups),
        cmocka_unit_test(floats_in_some_layers),
        cmocka_unit_test(float_dot),
        cmocka_unit_test(barriers),
        cmocka_unit_test(joined_ops_keep_apart),
        cmocka_unit_test(uneven_heads),
        cmocka_unit_test(quantised_in_some_layers),
        cmocka_unit_test(why_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
