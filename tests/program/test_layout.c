/* Buffers are shared by values whose lives do not overlap. The check here knows nothing of lives: it runs a
 * program on tags instead of numbers, and looks whether each op finds in its inputs' buffers what was written
 * for it. Ops without a barrier between them are a run: a worker may be in its last op while another one is
 * still in its first, so that no op of a run may write where an earlier one reads or writes another value. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch/arch.h"
#include "fuse/fuse.h"
#include "model/model.h"
#include "program/build.h"
#include "support/support.h"

enum { MOST_WORKERS = 8, MOST_TOUCHED = FB_MAX_OPS * (FB_MAX_IN + FB_MAX_OUT) };

/* What an op of the current run reads or writes. */
typedef struct touch {
    const fb_op *op;
    int32_t storage, buffer;
} touch;

typedef struct machine {
    const fb_program *p;
    const fb_layout *layout;
    int32_t workers; /* 1: there is nobody to wait for */
    touch touched[MOST_TOUCHED];
    int32_t touches;
    int32_t joined;                   /* ops so far that were followed by no barrier */
    int64_t in_buffer[FB_MAX_VALUES]; /* by buffer: the tag that lies there; 0: nothing */
    int64_t tag[FB_MAX_VALUES];       /* by storage: the tag of its present content */
    int64_t tags;
    char fault[160]; /* the first one */
} machine;

static void fault(machine *m, const fb_op *op, int32_t value, const char *what) {
    if (!*m->fault)
        snprintf(m->fault, sizeof m->fault, "%s: %s %s", fb_op_table[op->kind].name, m->p->values[value].name,
                 what);
}

static int32_t storage_of(const machine *m, int32_t value) { return m->p->values[value].storage; }
static int32_t buffer_of(const machine *m, int32_t value) { return m->layout->buffer[value]; }

static bool same_rows(const fb_value *a, const fb_value *b) {
    return a->heads == b->heads && a->width == b->width && a->stride == b->stride && a->offset == 0 &&
           b->offset == 0 && a->always_f32 == b->always_f32;
}

/* Whether an element of an output needs only the same element of input number k, which its worker has read
 * before it writes. */
static bool reads_one_by_one(const fb_op *op, int k) {
    return fb_op_table[op->kind].parts == FB_PARTS_ELEMENT &&
           (op->kind != FB_OP_LINEAR_GROUP || k == FB_RESIDUAL);
}

static void check_output(machine *m, const fb_op *op, int number) {
    int32_t out = op->out[number], buffer = buffer_of(m, out);
    const fb_value *v = &m->p->values[out];
    if (buffer < 0 || buffer >= m->layout->buffers) {
        fault(m, op, out, "has no buffer");
        return;
    }
    if (v->width ? m->layout->cols[buffer] < v->heads * v->width : m->layout->context_cols[buffer] < v->heads)
        fault(m, op, out, "does not fit its buffer");
    if (m->layout->always_f32[buffer] != v->always_f32) fault(m, op, out, "is in a buffer of another dtype");
    for (int k = 0; k < number; k++)
        if (op->out[k] != FB_NONE && buffer_of(m, op->out[k]) == buffer)
            fault(m, op, out, "is where another output is");
    for (int k = 0; k < FB_MAX_IN; k++) {
        if (op->in[k] == FB_NONE || buffer_of(m, op->in[k]) != buffer) continue;
        if (!reads_one_by_one(op, k)) fault(m, op, out, "overwrites an input that is still being read");
        if (!same_rows(&m->p->values[op->in[k]], v))
            fault(m, op, out, "overwrites an input of another shape");
    }
    for (int32_t i = 0; i < m->touches; i++)
        if (m->touched[i].op != op && m->touched[i].buffer == buffer &&
            m->touched[i].storage != storage_of(m, out))
            fault(m, op, out, "overwrites what an earlier op of its run has");
}

static void touch_value(machine *m, const fb_op *op, int32_t value) {
    assert_true(m->touches < MOST_TOUCHED);
    m->touched[m->touches++] = (touch){op, storage_of(m, value), buffer_of(m, value)};
}

static void run_op(machine *m, const fb_op *op) {
    for (int k = 0; k < FB_MAX_IN; k++) {
        int32_t in = op->in[k];
        if (in == FB_NONE) continue;
        if (!m->tag[storage_of(m, in)]) fault(m, op, in, "was never written");
        if (buffer_of(m, in) != buffer_of(m, storage_of(m, in)))
            fault(m, op, in, "is not where its storage is");
        if (m->in_buffer[buffer_of(m, in)] != m->tag[storage_of(m, in)]) fault(m, op, in, "was overwritten");
        touch_value(m, op, in);
    }
    for (int k = 0; k < FB_MAX_OUT; k++)
        if (op->out[k] != FB_NONE) check_output(m, op, k);
    for (int k = 0; k < FB_MAX_OUT && !*m->fault; k++) {
        if (op->out[k] == FB_NONE) continue;
        m->tag[storage_of(m, op->out[k])] = ++m->tags;
        m->in_buffer[buffer_of(m, op->out[k])] = m->tags;
        touch_value(m, op, op->out[k]);
    }
}

static void run_section(machine *m, fb_section section) {
    for (int32_t i = 0; i < m->p->op_count[section] && !*m->fault; i++) {
        run_op(m, &m->p->ops[section][i]);
        if (m->workers == 1 || fb_program_barrier(m->p, section, i, m->workers))
            m->touches = 0;
        else
            m->joined++;
    }
    if (m->touches && !*m->fault) snprintf(m->fault, sizeof m->fault, "no barrier at a section's end");
}

/* Three passes of the body: the carried values of the second come from the first. The value that is shown
 * after each layer must be there. */
static void run_program(machine *m) {
    const fb_program *p = m->p;
    static const int passes[FB_SECTIONS] = {1, 3, 1};
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int pass = 0; pass < passes[s]; pass++) {
            run_section(m, (fb_section)s);
            for (int32_t c = 0; s == FB_BODY && c < p->carry_count && !*m->fault; c++) {
                int32_t next = storage_of(m, p->carries[c].next), from = storage_of(m, p->carries[c].from);
                m->tag[next] = m->tag[from];
                if (m->in_buffer[buffer_of(m, next)] != m->tag[next])
                    snprintf(m->fault, sizeof m->fault, "%s is not carried to %s", p->values[from].name,
                             p->values[next].name);
            }
        }
}

/* Checks a layout with 1 to MOST_WORKERS workers. Returns the largest number of ops that no barrier follows.
 */
static int32_t check_layout(const fb_program *p, const char *what) {
    fb_layout layout;
    fb_error err;
    int32_t most = 0;
    assert_ok(fb_layout_make(p, &layout, &err), &err);
    for (int32_t workers = 1; workers <= MOST_WORKERS; workers++) {
        machine m = {.p = p, .layout = &layout, .workers = workers};
        run_program(&m);
        if (*m.fault) fail_msg("%s, %d workers: %s", what, workers, m.fault);
        if (m.joined > most) most = m.joined;
    }
    return most;
}

/* ---- the architectures ---- */

static fb_spec *describe(const char *path) {
    size_t size;
    char *text = fbt_file_read(path, &size);
    fb_spec *spec;
    fb_error err;
    assert_ok(fb_arch_describe(path, text, size, &spec, &err), &err);
    free(text);
    return spec;
}

static void architectures(void **state) {
    (void)state;
    for (const char *const *name = fbt_cases; *name; name++) {
        char *path = fbt_format(FBT_GOLDENS "/%s/config.json", *name);
        fb_spec *spec = describe(path);
        check_layout(&spec->program, *name);
        fb_layout layout;
        assert_int_equal(fb_layout_make(&spec->program, &layout, NULL), FB_OK);
        assert_true(layout.buffers <= 8); /* of some twenty values */
        fb_spec_free(spec);
        free(path);
    }
}

/* ---- after fuses ---- */

static const char *const goldens[] = {
    "neox-parallel", "neox-serial",       "neox-old-nobias",      "neox-fast-tied", "llama-gqa-tied",
    "llama-mha",     "llama-llama3-bias", "llama-linear-sharded", "gpt2",           "gpt2-inner"};
enum { GOLDENS = sizeof goldens / sizeof *goldens };

/* The fuses number i: none, all, each alone, all but one, then others at random. */
static uint32_t fuses_of(int i, fbt_random *random) {
    if (i < 2) return i ? FB_FUSE_ALL : 0;
    i -= 2;
    if (i < FB_FUSE_COUNT) return FB_FUSE_BIT(i);
    i -= FB_FUSE_COUNT;
    return i < FB_FUSE_COUNT ? FB_FUSE_ALL & ~FB_FUSE_BIT(i)
                             : (uint32_t)fbt_random_bits(random) & FB_FUSE_ALL;
}

static int32_t check_fused(const fb_program *plain, const char *name, fbt_random *random) {
    int32_t joined = 0;
    fb_plan *plan = malloc(sizeof *plan);
    assert_non_null(plan);
    for (int i = 0; i < 2 + 2 * FB_FUSE_COUNT + 100; i++)
        for (int way = 0; way < 8; way++) {
            bool ring = way & 4;
            if (ring && !plain->frequencies) continue; /* only for rotary positions */
            fb_plan_options options = {.fuses = fuses_of(i, random),
                                       .exact = way & 1,
                                       .greedy = way & 2,
                                       .sinks = ring ? 4 : 0,
                                       .window = ring ? 8 : 0};
            fb_error err;
            assert_ok(fb_plan_make(plain, &options, plan, &err), &err);
            char *what = fbt_format("%s, fuses %#x, way %d", name, options.fuses, way);
            int32_t here = check_layout(&plan->program, what);
            if (here > joined) joined = here;
            free(what);
        }
    free(plan);
    return joined;
}

static void fused_architectures(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(43);
    for (int i = 0; i < GOLDENS; i++) {
        char *path = fbt_format(FBT_GOLDENS "/%s/config.json", goldens[i]);
        fb_spec *spec = describe(path);
        int32_t joined = check_fused(&spec->program, goldens[i], &random);
        print_message("# %s: up to %d ops without a barrier\n", goldens[i], joined);
        /* rope_kv, then attention, where there is rope, and a head for each of two workers. */
        if (spec->program.frequencies && spec->program.kv_heads > 1) assert_true(joined > 0);
        fb_spec_free(spec);
        free(path);
    }
    fb_model *quantised = fbt_model_open("tests/data/gguf/neox-parallel-q8_0.gguf");
    assert_true(check_fused(&quantised->spec->program, "q8_0", &random) > 0);
    fb_model_free(quantised);
}

/* ---- the check sees what is wrong ---- */

static void give_buffer(const fb_program *p, fb_layout *layout, int32_t storage, int32_t buffer) {
    for (int32_t v = 0; v < p->value_count; v++)
        if (p->values[v].storage == storage) layout->buffer[v] = buffer;
}

/* Two values of a good layout are made to share a buffer. Some pairs may, but each value that is read has
 * others that it may not share with. */
static void the_check_can_fail(void **state) {
    (void)state;
    fb_spec *spec = describe(FBT_GOLDENS "/llama-gqa-tied/config.json");
    const fb_program *p = &spec->program;
    fb_layout good;
    assert_int_equal(fb_layout_make(p, &good, NULL), FB_OK);
    int faults = 0, pairs = 0;
    for (int32_t a = 0; a < p->value_count; a++)
        for (int32_t b = 0; b < p->value_count; b++) {
            if (good.buffer[a] == good.buffer[b] || p->values[a].storage != a || p->values[b].storage != b)
                continue;
            fb_layout bad = good;
            give_buffer(p, &bad, a, good.buffer[b]);
            machine m = {.p = p, .layout = &bad, .workers = 1};
            run_program(&m);
            faults += *m.fault != 0;
            pairs++;
        }
    print_message("# %d of %d pairs are faults\n", faults, pairs);
    assert_true(faults > pairs / 2);
    fb_spec_free(spec);
}

static const fb_op *find_op(const fb_program *p, fb_op_kind kind) {
    for (int32_t i = 0; i < p->op_count[FB_BODY]; i++)
        if (p->ops[FB_BODY][i].kind == kind) return &p->ops[FB_BODY][i];
    fail_msg("no %s", fb_op_table[kind].name);
    return NULL;
}

/* Attention's output gets the buffer that the projections read, which is not read later. With one worker this
 * is correct. With two, the other worker may still read it in its projections. */
static void the_check_sees_runs(void **state) {
    (void)state;
    fb_spec *spec = describe(FBT_GOLDENS "/llama-gqa-tied/config.json");
    fb_plan_options options = {.fuses = FB_FUSE_BIT(FB_FUSE_QKV) | FB_FUSE_BIT(FB_FUSE_ROPE_KV) |
                                        FB_FUSE_BIT(FB_FUSE_ATTN_FLASH)};
    fb_plan *plan = malloc(sizeof *plan);
    assert_non_null(plan);
    fb_error err;
    assert_ok(fb_plan_make(&spec->program, &options, plan, &err), &err);
    const fb_program *p = &plan->program;
    fb_layout layout;
    assert_ok(fb_layout_make(p, &layout, &err), &err);
    int32_t shared = layout.buffers++;
    layout.cols[shared] = p->hidden;
    give_buffer(p, &layout, p->values[find_op(p, FB_OP_LINEAR_GROUP)->in[0]].storage, shared);
    give_buffer(p, &layout, find_op(p, FB_OP_ATTN_FLASH)->out[0], shared);
    for (int32_t workers = 1; workers <= 2; workers++) {
        machine m = {.p = p, .layout = &layout, .workers = workers};
        run_program(&m);
        if (workers == 1)
            assert_string_equal(m.fault, "");
        else
            assert_non_null(strstr(m.fault, "an earlier op of its run"));
    }
    free(plan);
    fb_spec_free(spec);
}

/* A residual that the projection also reads as its input cannot be overwritten, though it is not read again.
 */
static void a_residual_that_is_read_twice(void **state) {
    (void)state;
    static fb_program program;
    fb_build b = {.program = &program};
    int32_t x = fb_build_embed(&b, "x", fb_build_matrix(&b, "table", 9, 8), 1);
    b.section = FB_EPILOGUE;
    int32_t sum = fb_build_linear(&b, "sum", x, fb_build_matrix(&b, "square", 8, 8), FB_NONE);
    fb_op *op = &program.ops[FB_EPILOGUE][0];
    op->kind = FB_OP_LINEAR_GROUP;
    op->attr.combine = FB_COMBINE_ADD;
    op->attr.segments = 1;
    op->in[FB_RESIDUAL] = x;
    check_layout(&program, "a residual read twice");
    op->in[0] = fb_build_embed(&b, "y", fb_build_matrix(&b, "other", 9, 8), 1);
    program.ops[FB_PROLOGUE][program.op_count[FB_PROLOGUE]++] = program.ops[FB_EPILOGUE][1];
    program.op_count[FB_EPILOGUE] = 1;
    check_layout(&program, "a residual read once");
    fb_layout layout;
    assert_int_equal(fb_layout_make(&program, &layout, NULL), FB_OK);
    assert_int_equal(layout.buffer[sum], layout.buffer[x]);
}

/* ---- programs at random ---- */

static int32_t pick(fbt_random *random, const int32_t *from, int32_t count) {
    return from[fbt_random_below(random, count)];
}

/* A body of `ops` ops of any kind on what is there; the residual may be read anywhere but after its
 * successor. */
static void write_random(fbt_random *random, fb_build *b) {
    int32_t values[FB_MAX_VALUES], count = 0, narrow = fb_build_matrix(b, "narrow", 8, 16),
                                   wide = fb_build_matrix(b, "wide", 16, 8),
                                   table = fb_build_matrix(b, "table", 9, 8);
    b->section = FB_PROLOGUE;
    for (int64_t i = 0; i < 1 + fbt_random_below(random, 3); i++)
        values[count++] = fb_build_embed(b, "start", table, 1);
    int32_t residual = values[0];
    b->section = FB_BODY;
    int64_t ops = 1 + fbt_random_below(random, 15);
    for (int64_t i = 0; i < ops; i++) {
        int32_t x = pick(random, values, count), y = pick(random, values, count);
        switch (fbt_random_below(random, 4)) {
        case 0:
            values[count++] = fb_build_binary(b, FB_OP_ADD, "sum", x, y);
            break;
        case 1:
            values[count++] = fb_build_unary(b, FB_OP_GELU, "act", x);
            break;
        case 2:
            values[count++] =
                fb_build_linear(b, "narrow", fb_build_linear(b, "wide", x, wide, FB_NONE), narrow, FB_NONE);
            break;
        default:
            values[count++] = fb_build_linear(
                b, "view", fb_build_view(b, "part", fb_build_linear(b, "wide", y, wide, FB_NONE), 1, 8, 8, 8),
                narrow, FB_NONE);
            break;
        }
    }
    int32_t successor =
        fb_build_binary(b, FB_OP_ADD, "next", pick(random, values, count), pick(random, values, count));
    fb_build_carry(b, residual, successor);
    if (fbt_random_below(random, 4) == 0)
        fb_build_unary(b, FB_OP_GELU, "late", residual); /* a fault of the program */
    b->section = FB_EPILOGUE;
    b->program->residual = residual;
    int32_t last = fbt_random_below(random, 2) ? residual : successor; /* the same memory */
    b->program->final_norm = fb_build_unary(b, FB_OP_SILU, "final", residual);
    int32_t middle = fb_build_linear(b, "middle", b->program->final_norm, wide, FB_NONE);
    int32_t sum =
        fb_build_binary(b, FB_OP_ADD, "sum", fb_build_linear(b, "narrow", middle, narrow, FB_NONE), last);
    b->program->logits = fb_build_linear(b, "logits", sum, wide, FB_NONE);
}

static void random_programs(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(41);
    int accepted = 0, refused = 0;
    for (int i = 0; i < 3000; i++) {
        static fb_program program;
        memset(&program, 0, sizeof program);
        program.layers = 3;
        fb_build b = {.program = &program};
        write_random(&random, &b);
        fb_error err;
        assert_ok(fb_build_end(&b, &err), &err);
        fb_layout layout;
        bool late = strcmp(program.values[program.ops[FB_BODY][program.op_count[FB_BODY] - 1].out[0]].name,
                           "late") == 0;
        fb_status status = fb_layout_make(&program, &layout, &err);
        if (late) {
            assert_refused(status, FB_ERROR_SYSTEM, &err, "overwritten");
            refused++;
            continue;
        }
        check_layout(&program, "random program");
        accepted++;
    }
    assert_true(accepted > 1000 && refused > 100);
}

/* ---- faults of a program ---- */

static void read_before_written(void **state) {
    (void)state;
    static fb_program program;
    fb_build b = {.program = &program};
    int32_t table = fb_build_matrix(&b, "table", 9, 8);
    b.section = FB_EPILOGUE;
    int32_t late = fb_build_embed(&b, "late", table, 1);
    b.section = FB_BODY;
    fb_build_unary(&b, FB_OP_GELU, "early", late);
    fb_layout layout;
    fb_error err;
    assert_refused(fb_layout_make(&program, &layout, &err), FB_ERROR_SYSTEM, &err, "late|read before");
}

/* One op more than a section has room for, and so on: refused at the end, with nothing written out of bounds.
 */
static void too_long(void **state) {
    (void)state;
    for (int what = 0; what < 4; what++) {
        fb_program *program = calloc(1, sizeof *program);
        assert_non_null(program);
        fb_build b = {.program = program};
        int32_t table = fb_build_matrix(&b, "table", 9, 8), x = fb_build_embed(&b, "x", table, 1);
        for (int i = 0; i < 200 && what == 0; i++) fb_build_kv_append(&b, x, x);
        for (int i = 0; i < 200 && what == 1; i++) fb_build_view(&b, "view", x, 1, 4, 0, 4);
        for (int i = 0; i < 200 && what == 2; i++) fb_build_vector(&b, "vector", 8);
        for (int i = 0; i < 200 && what == 3; i++) fb_build_carry(&b, x, x);
        fb_error err;
        assert_refused(fb_build_end(&b, &err), FB_ERROR_SYSTEM, &err, "program|too long");
        free(program);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(architectures),
        cmocka_unit_test(fused_architectures),
        cmocka_unit_test(the_check_can_fail),
        cmocka_unit_test(the_check_sees_runs),
        cmocka_unit_test(a_residual_that_is_read_twice),
        cmocka_unit_test(random_programs),
        cmocka_unit_test(read_before_written),
        cmocka_unit_test(too_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
