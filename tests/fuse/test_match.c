/* Patterns and rewrites on programs that no architecture has. */
#include <stdio.h>

#include "toy.h"

/* Plans with `spec`, compares the bits, and returns the number of ops of `kind` in the body. */
static int fused(const toy *t, const char *spec, fb_op_kind kind) {
    fb_plan *plan = toy_plan(&t->program, spec);
    toy_check(&t->program, plan, spec);
    int count = toy_count(&plan->program, FB_BODY, kind);
    free(plan);
    return count;
}

/* ((a + b) + x) + a: a sum of three takes two of the additions, and the third stays. */
static void three_adds(void **state) {
    (void)state;
    toy *t = toy_start();
    int32_t a = toy_linear(t, "a", t->x, TOY_HIDDEN, TOY_HIDDEN),
            b = toy_linear(t, "b", t->x, TOY_HIDDEN, TOY_HIDDEN);
    int32_t s1 = toy_add(t, "s1", a, b), s2 = toy_add(t, "s2", t->x, s1);
    toy_end(t, toy_add(t, "s3", s2, a));
    assert_int_equal(fused(t, "add3", FB_OP_ADD3), 1);
    assert_int_equal(fused(t, "add3", FB_OP_ADD), 1);
    assert_int_equal(fused(t, "add3,add_norm", FB_OP_ADD), 1);
    fused(t, "all", FB_OP_ADD);
    free(t);
}

/* x + (a + b): addition commutes, so it is (a + b) + x; but a sum that two read stays. */
static void sums_with_two_readers(void **state) {
    (void)state;
    toy *t = toy_start();
    int32_t a = toy_linear(t, "a", t->x, TOY_HIDDEN, TOY_HIDDEN);
    int32_t s1 = toy_add(t, "s1", a, t->x), s2 = toy_add(t, "s2", s1, a);
    toy_end(t, toy_add(t, "s3", s2, s1));
    /* s2 + s1 with s2 = s1 + a: only s2 has one reader. */
    assert_int_equal(fused(t, "add3", FB_OP_ADD3), 1);
    assert_int_equal(fused(t, "down_add", FB_OP_LINEAR_GROUP), 0); /* a is read twice */
    free(t);
}

/* A norm that an addition reads, too, is wanted as it is. */
static void norm_with_another_reader(void **state) {
    (void)state;
    toy *t = toy_start();
    int32_t n = toy_norm(t, "n", t->x), a = toy_linear(t, "a", n, TOY_HIDDEN, TOY_HIDDEN);
    int32_t m = toy_norm(t, "m", t->x), b = toy_linear(t, "b", m, TOY_HIDDEN, TOY_HIDDEN);
    int32_t s = toy_add(t, "s", toy_add(t, "ab", a, b), n);
    toy_end(t, toy_add(t, "out", s, t->x));
    assert_int_equal(fused(t, "norm_linear", FB_OP_LINEAR_GROUP), 1);
    assert_int_equal(fused(t, "norm_linear", FB_OP_LAYERNORM), 1);
    fused(t, "all", FB_OP_ADD);
    free(t);
}

/* Two projections of one norm: both take it in, and it is gone. */
static void norm_with_two_projections(void **state) {
    (void)state;
    toy *t = toy_start();
    int32_t n = toy_norm(t, "n", t->x);
    int32_t a = toy_linear(t, "a", n, TOY_HIDDEN, TOY_HIDDEN),
            b = toy_linear(t, "b", n, TOY_HIDDEN, TOY_HIDDEN);
    toy_end(t, toy_add(t, "out", toy_add(t, "ab", a, b), t->x));
    assert_int_equal(fused(t, "norm_linear", FB_OP_LINEAR_GROUP), 2);
    assert_int_equal(fused(t, "norm_linear", FB_OP_LAYERNORM), 0);
    fb_plan *plan = toy_plan(&t->program, "norm_linear");
    assert_int_equal(plan->calls[FB_FUSE_NORM_LINEAR], 2 * TOY_LAYERS);
    free(plan);
    fused(t, "all", FB_OP_ADD);
    free(t);
}

/* A linear that an activation and something else read keeps its own result. */
static void linear_read_twice(void **state) {
    (void)state;
    static const fb_op_kind acts[] = {FB_OP_GELU, FB_OP_GELU_TANH, FB_OP_SILU};
    for (int i = 0; i < 3; i++) {
        toy *t = toy_start();
        int32_t a = toy_linear(t, "a", t->x, TOY_HIDDEN, TOY_HIDDEN),
                g = fb_build_unary(&t->b, acts[i], "g", a);
        toy_end(t, toy_add(t, "out", toy_add(t, "s", g, a), t->x));
        assert_int_equal(fused(t, "bias_act,swiglu_gemm", FB_OP_LINEAR_GROUP), 0);
        assert_int_equal(fused(t, "all", acts[i]), 1);
        free(t);
    }
}

static toy *gated(bool gate_first, bool same_input) {
    toy *t = toy_start();
    int32_t n = toy_norm(t, "n", t->x), m = same_input ? n : toy_norm(t, "m", t->x);
    int32_t gate = toy_linear(t, "gate", n, TOY_WIDE, TOY_HIDDEN),
            up = toy_linear(t, "up", m, TOY_WIDE, TOY_HIDDEN);
    int32_t silu = fb_build_unary(&t->b, FB_OP_SILU, "silu", gate);
    int32_t mul = fb_build_binary(&t->b, FB_OP_MUL, "mul", gate_first ? silu : up, gate_first ? up : silu);
    int32_t down = toy_linear(t, "down", mul, TOY_HIDDEN, TOY_WIDE);
    toy_end(t, toy_add(t, "out", down, t->x));
    return t;
}

static void gated_mlp(void **state) {
    (void)state;
    for (int order = 0; order < 2; order++) {
        toy *t = gated(order, true);
        assert_int_equal(fused(t, "swiglu_vec", FB_OP_SWIGLU), 1);
        assert_int_equal(fused(t, "swiglu_gemm", FB_OP_SILU), 0);
        assert_int_equal(fused(t, "swiglu_gemm", FB_OP_MUL), 1);
        assert_int_equal(fused(t, "swiglu_dual", FB_OP_MUL), 0);
        assert_int_equal(fused(t, "swiglu_dual,swiglu_gemm,swiglu_vec", FB_OP_LINEAR_GROUP), 1);
        assert_int_equal(fused(t, "swiglu_gemm,swiglu_vec", FB_OP_MUL), 1); /* the earlier one has the silu */
        fused(t, "all", FB_OP_ADD);
        free(t);
        /* Gate and up of different values are no dual; the others still apply. */
        t = gated(order, false);
        assert_int_equal(fused(t, "swiglu_dual", FB_OP_LINEAR_GROUP), 0);
        assert_int_equal(fused(t, "swiglu_vec", FB_OP_SWIGLU), 1);
        fused(t, "all", FB_OP_ADD);
        free(t);
    }
}

/* silu(a) * a is a product of two values of one projection: no room for a dual. */
static void gated_by_itself(void **state) {
    (void)state;
    toy *t = toy_start();
    int32_t a = toy_linear(t, "a", t->x, TOY_HIDDEN, TOY_HIDDEN),
            s = fb_build_unary(&t->b, FB_OP_SILU, "s", a);
    toy_end(t, toy_add(t, "out", fb_build_binary(&t->b, FB_OP_MUL, "m", a, s), t->x));
    assert_int_equal(fused(t, "swiglu_dual,swiglu_gemm", FB_OP_LINEAR_GROUP), 0);
    assert_int_equal(fused(t, "all", FB_OP_SWIGLU), 1);
    free(t);
}

static toy *block(bool parallel) {
    toy *t = toy_start();
    int32_t attn = toy_linear(t, "attn", toy_attention(t, toy_norm(t, "n1", t->x)), TOY_HIDDEN, TOY_HIDDEN);
    int32_t middle = parallel ? t->x : toy_add(t, "mid", attn, t->x);
    int32_t up = toy_linear(t, "up", toy_norm(t, "n2", middle), TOY_WIDE, TOY_HIDDEN);
    int32_t act = fb_build_unary(&t->b, FB_OP_GELU, "act", up);
    int32_t mlp = toy_linear(t, "mlp", act, TOY_HIDDEN, TOY_WIDE);
    /* The attention's branch first: another order of addition than GPT-NeoX's. */
    int32_t sum = parallel ? toy_add(t, "sum", attn, mlp) : mlp;
    toy_end(t, toy_add(t, "out", sum, middle));
    return t;
}

static void dependencies(void **state) {
    (void)state;
    toy *t = block(true);
    assert_int_equal(fused(t, "qkv_up", FB_OP_LINEAR_GROUP), 1);
    assert_int_equal(fused(t, "down_add", FB_OP_LINEAR_GROUP), 1);
    fused(t, "all", FB_OP_ADD);
    free(t);
    t = block(false);
    fb_plan *plan = toy_plan(&t->program, "qkv_up");
    assert_int_equal(plan->applied, 0);
    free(plan);
    assert_int_equal(fused(t, "down_add", FB_OP_LINEAR_GROUP), 2);
    fused(t, "all", FB_OP_ADD);
    free(t);
}

/* up reads a norm of x, as qkv does, but the attention's result as well: joining them would be a circle. */
static void a_circle_is_refused(void **state) {
    (void)state;
    toy *t = toy_start();
    int32_t n = toy_norm(t, "n", t->x), context = toy_attention(t, n);
    int32_t attn = toy_linear(t, "attn", context, TOY_HIDDEN, TOY_HIDDEN);
    int32_t gate = fb_build_unary(&t->b, FB_OP_SILU, "gate", attn);
    int32_t both = fb_build_binary(&t->b, FB_OP_MUL, "both", gate, n);
    toy_end(t, toy_add(t, "out", toy_linear(t, "up", both, TOY_HIDDEN, TOY_HIDDEN), t->x));
    fb_plan *plan = toy_plan(&t->program, "qkv_up");
    assert_int_equal(plan->applied, 0);
    free(plan);
    fused(t, "all", FB_OP_ADD);
    free(t);
}

/* x + W norm(x): with the norm and the addition folded in, the projection reads all of x while it writes
 * over it. */
static void no_room_in_place(void **state) {
    (void)state;
    toy *t = toy_start();
    int32_t a = toy_linear(t, "a", toy_norm(t, "n", t->x), TOY_HIDDEN, TOY_HIDDEN);
    toy_end(t, toy_add(t, "out", a, t->x));
    fused(t, "norm_linear,down_add", FB_OP_ADD);
    fused(t, "all", FB_OP_ADD);
    free(t);
    /* The same where the sum is not carried, and would only take over x's memory. */
    t = toy_start();
    int32_t y = fb_build_unary(&t->b, FB_OP_GELU, "y", t->x);
    a = toy_linear(t, "a", toy_norm(t, "n", y), TOY_HIDDEN, TOY_HIDDEN);
    int32_t s = toy_add(t, "s", a, y);
    toy_end(t, fb_build_unary(&t->b, FB_OP_SILU, "out", s));
    fused(t, "norm_linear,down_add", FB_OP_ADD);
    fused(t, "all", FB_OP_ADD);
    free(t);
}

/* A final norm that is not like the layers' stays in the epilogue. */
static void another_final_norm(void **state) {
    (void)state;
    toy *t = toy_start();
    int32_t a = toy_linear(t, "a", toy_norm(t, "n", t->x), TOY_HIDDEN, TOY_HIDDEN);
    int32_t g = fb_build_unary(&t->b, FB_OP_GELU, "g", a);
    toy_end_eps(t, toy_add(t, "out", g, t->x), 1e-2);
    fb_plan *plan = toy_plan(&t->program, "add_norm");
    assert_int_equal(toy_count(&plan->program, FB_EPILOGUE, FB_OP_LAYERNORM), 1);
    assert_int_equal(toy_count(&plan->program, FB_BODY, FB_OP_ADD_NORM), 1);
    free(plan);
    assert_int_equal(fused(t, "add_norm", FB_OP_LAYERNORM), 0);
    fused(t, "all", FB_OP_ADD);
    free(t);
}

/* Half of a projection's columns, through a view: neither an activation nor an addition can move into it. */
static void views_stay(void **state) {
    (void)state;
    toy *t = toy_start();
    int32_t a = toy_linear(t, "a", t->x, 2 * TOY_HIDDEN, TOY_HIDDEN);
    int32_t half = fb_build_view(&t->b, "half", a, 1, TOY_HIDDEN, TOY_HIDDEN, TOY_HIDDEN);
    toy_end(t, toy_add(t, "out", half, t->x));
    assert_int_equal(fused(t, "down_add", FB_OP_LINEAR_GROUP), 0);
    fused(t, "all", FB_OP_ADD);
    free(t);
    t = toy_start();
    a = toy_linear(t, "a", toy_norm(t, "n", t->x), 2 * TOY_HIDDEN, TOY_HIDDEN);
    half = fb_build_view(&t->b, "half", a, 1, TOY_HIDDEN, TOY_HIDDEN, TOY_HIDDEN);
    toy_end(t, toy_add(t, "out", t->x, half));
    assert_int_equal(fused(t, "down_add", FB_OP_LINEAR_GROUP), 0);
    free(t);
    t = toy_start();
    a = toy_linear(t, "a", t->x, 2 * TOY_HIDDEN, TOY_HIDDEN);
    half = fb_build_view(&t->b, "half", a, 1, TOY_HIDDEN, TOY_HIDDEN, TOY_HIDDEN);
    int32_t g = fb_build_unary(&t->b, FB_OP_GELU, "g", half);
    toy_end(t, toy_add(t, "out", g, t->x));
    assert_int_equal(fused(t, "bias_act", FB_OP_LINEAR_GROUP), 0);
    fused(t, "all", FB_OP_ADD);
    free(t);
}

/* Sorting puts an op behind what it needs even where no value says so: attention behind the append to the
 * cache, and what overwrites a carried value behind its last reader. */
static void order_without_values(void **state) {
    (void)state;
    toy *t = toy_start();
    fb_program *p = &t->program;
    int32_t heads = fb_build_view(&t->b, "heads", t->x, 1, TOY_HIDDEN, 0, TOY_HIDDEN);
    int32_t context = fb_build_attention(&t->b, "context", heads, 0.5, 0);
    fb_build_kv_append(&t->b, heads, heads);
    int32_t out = toy_add(t, "out", context, context);
    int32_t late = toy_norm(t, "late", t->x);
    (void)late;
    fb_build_carry(&t->b, t->x, out);
    assert_true(fb_section_sort(p, FB_BODY));
    int32_t append = FB_NONE, scores = FB_NONE, norm = FB_NONE, add = FB_NONE;
    for (int32_t i = 0; i < p->op_count[FB_BODY]; i++) {
        if (p->ops[FB_BODY][i].kind == FB_OP_KV_APPEND) append = i;
        if (p->ops[FB_BODY][i].kind == FB_OP_ATTN_SCORES) scores = i;
        if (p->ops[FB_BODY][i].kind == FB_OP_LAYERNORM) norm = i;
        if (p->ops[FB_BODY][i].kind == FB_OP_ADD) add = i;
    }
    assert_true(append < scores);
    assert_true(norm < add);
    free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_adds),
        cmocka_unit_test(sums_with_two_readers),
        cmocka_unit_test(norm_with_another_reader),
        cmocka_unit_test(norm_with_two_projections),
        cmocka_unit_test(linear_read_twice),
        cmocka_unit_test(gated_mlp),
        cmocka_unit_test(gated_by_itself),
        cmocka_unit_test(dependencies),
        cmocka_unit_test(a_circle_is_refused),
        cmocka_unit_test(no_room_in_place),
        cmocka_unit_test(another_final_norm),
        cmocka_unit_test(views_stay),
        cmocka_unit_test(order_without_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
