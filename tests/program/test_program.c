#include "program/program.h"

#include <stdlib.h>
#include <string.h>

#include "arch/arch.h"
#include "support/support.h"

static fb_spec *describe(const char *name) {
    char *path = fbt_format(FBT_GOLDENS "/%s/config.json", name);
    size_t size;
    char *text = fbt_file_read(path, &size);
    fb_spec *spec;
    fb_error err;
    assert_ok(fb_arch_describe(path, text, size, &spec, &err), &err);
    free(text);
    free(path);
    return spec;
}

/* The lines occur in this order, each a whole line. */
static void check_lines(const char *name, const char *const *lines) {
    fb_spec *spec = describe(name);
    char *text;
    fb_error err;
    assert_ok(fb_program_print(&spec->program, NULL, &text, &err), &err);
    const char *at = text;
    for (; *lines; lines++) {
        char *line = fbt_format("%s\n", *lines);
        const char *found = strstr(at, line);
        if (!found || (found != text && found[-1] != '\n'))
            fail_msg("%s: no line \"%s\" in\n%s", name, *lines, text);
        at = found + strlen(line);
        free(line);
    }
    free(text);
    fb_spec_free(spec);
}

static void printed(void **state) {
    (void)state;
    check_lines("neox-parallel",
                (const char *[]){"prologue:", "  x [T, 64] = embed(ids, gpt_neox.embed_in.weight [320, 64])",
                                 "  angles [T, 4] = rope_angles(rotary 4)",
                                 "layer, 3 times:", "  q_rot [T, 4, 16] = rope(qkv.q, angles, rotary 4)",
                                 "  cache [P+T, 2, 4, 16] = kv_append(k_rot, qkv.v)",
                                 "  scores [T, 4, P+T] = attn_scores(q_rot, cache, scale 0.25)",
                                 "  probs [T, 4, P+T] = softmax(scores)",
                                 "  context [T, 4, 16] = attn_values(probs, cache)",
                                 "  act [T, 256] = gelu(up)", "  sum [T, 64] = add(mlp, attn)",
                                 "  x_out [T, 64] = add(sum, x)", "  next layer's x = x_out", "epilogue:",
                                 "  logits [T, 320] = linear(final, embed_out.weight [320, 64])", NULL});
    check_lines("neox-serial", (const char *[]){"  x_mid [T, 64] = add(attn, x)",
                                                "  x_out [T, 64] = add(mlp, x_mid)", NULL});
    check_lines("llama-gqa-tied",
                (const char *[]){
                    "  n1 [T, 64] = rmsnorm(x, input_layernorm.weight [64], eps 1e-05)",
                    "  k_flat [T, 32] = linear(n1, self_attn.k_proj.weight [32, 64])",
                    "  k_rot [T, 2, 16] = rope(k_flat.k, angles, rotary 16)",
                    "  cache [P+T, 2, 2, 16] = kv_append(k_rot, v_flat.v)", "  gated [T, 176] = mul(act, up)",
                    "  logits [T, 320] = linear(final, model.embed_tokens.weight [320, 64])", NULL});
    check_lines("llama-mha",
                (const char *[]){"  logits [T, 320] = linear(final, lm_head.weight [320, 64])", NULL});
    check_lines("gpt2", (const char *[]){"  x [T, 64] = add(token, position)",
                                         "  act [T, 256] = gelu_tanh(up)", NULL});
}

/* Each op has as many inputs and outputs as its row says (attention's second query only with sinks), at most
 * so many weights, and writes what nothing wrote. */
static void check_section(const fb_program *p, int section, bool sinks, bool *written) {
    for (int32_t i = 0; i < p->op_count[section]; i++) {
        const fb_op *op = &p->ops[section][i];
        const fb_op_row *row = &fb_op_table[op->kind];
        int32_t in = 0, out = 0, weights = 0;
        for (int k = 0; k < FB_MAX_IN; k++) in += op->in[k] != FB_NONE;
        for (int k = 0; k < FB_MAX_WEIGHTS; k++) weights += op->weights[k] != FB_NONE;
        for (int k = 0; k < FB_MAX_OUT; k++) {
            if (op->out[k] == FB_NONE) continue;
            out++;
            assert_false(written[op->out[k]]);
            written[op->out[k]] = true;
        }
        if (in != row->inputs - (op->kind == FB_OP_ATTN_SCORES && !sinks) || out != row->outputs ||
            weights > row->weights)
            fail_msg("%s: %d inputs, %d outputs, %d weights", row->name, in, out, weights);
    }
}

static void check_program(const fb_program *p, bool sinks) {
    bool written[FB_MAX_VALUES] = {false};
    for (int section = 0; section < FB_SECTIONS; section++) check_section(p, section, sinks, written);
    for (int32_t v = 0; v < p->value_count; v++) {
        const fb_value *value = &p->values[v], *storage = &p->values[value->storage];
        assert_true(written[value->storage] && storage->storage == value->storage);
        int64_t end = value->offset + (value->heads - 1) * value->stride + value->width;
        assert_true(value->offset >= 0 && (value->width == 0 || end <= storage->heads * storage->width));
    }
    assert_int_equal(p->carry_count, 1);
    assert_int_equal(p->carries[0].next, p->residual);
}

static void well_formed(void **state) {
    (void)state;
    for (const char *const *name = fbt_cases; *name; name++) {
        fb_spec *spec = describe(*name);
        fb_error err;
        check_program(&spec->program, false);
        if (spec->program.frequencies) {
            assert_ok(fb_program_add_sinks(&spec->program, 12, &err), &err);
            check_program(&spec->program, true);
        } else {
            assert_int_equal(fb_program_add_sinks(&spec->program, 12, &err), FB_ERROR_SYSTEM);
        }
        fb_spec_free(spec);
    }
}

/* The query for the sinks has angles of its own, which stop at the limit. */
static void sinks(void **state) {
    (void)state;
    fb_spec *spec = describe("llama-gqa-tied");
    fb_program *p = &spec->program;
    fb_error err;
    char *text;
    assert_ok(fb_program_add_sinks(p, 12, &err), &err);
    assert_ok(fb_program_print(p, NULL, &text, &err), &err);
    assert_non_null(strstr(text, "  angles_sinks [T, 16] = rope_angles(rotary 16, at most 12)\n"));
    assert_non_null(strstr(text, "  q_rot_sinks [T, 4, 16] = rope(q_flat.q, angles_sinks, rotary 16)\n"));
    assert_non_null(
        strstr(text, "  scores [T, 4, P+T] = attn_scores(q_rot, q_rot_sinks, cache, scale 0.25)\n"));
    free(text);
    fb_spec_free(spec);
}

static void op_table(void **state) {
    (void)state;
    for (int a = 0; a < FB_OP_COUNT; a++) {
        const fb_op_row *row = &fb_op_table[a];
        assert_true(row->name && *row->name && row->text && *row->text);
        assert_true(row->inputs <= FB_MAX_IN && row->outputs <= FB_MAX_OUT && row->weights <= FB_MAX_WEIGHTS);
        for (int b = 0; b < a; b++) assert_string_not_equal(row->name, fb_op_table[b].name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(printed),
        cmocka_unit_test(well_formed),
        cmocka_unit_test(sinks),
        cmocka_unit_test(op_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
