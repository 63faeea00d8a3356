/* Contexts: what they refuse, threads that share one, graphs, streams, and a device that fails. */
#include <pthread.h>
#include <sys/wait.h>

#include "ops/ops_harness.h"

/* ---- refusals ---- */

#define REFUSED(call, words) assert_refused(call, FB_ERROR_USAGE, &err, words)

static void tensors_are_refused(void **state) {
    (void)state;
    fb_error err;
    random_numbers = fbt_random_start(31);
    open_cpu(1);
    fb_ops_tensor x = filled(FB_F16, 3, 8), w = weight(FB_F32, 1, 8, 1, 0.1), out = tensor(FB_F16, 3, 8), t;
#define NORM(x, w, out) fb_ops_layer_norm(dev.ops, NULL, x, w, NULL, 1e-5f, out, &err)
    REFUSED(fb_ops_layer_norm(NULL, NULL, &x, &w, NULL, 1e-5f, &out, &err), "layer_norm|ops|NULL");
    REFUSED(NORM(NULL, &w, &out), "layer_norm|x|NULL");
    REFUSED(NORM(&x, NULL, &out), "layer_norm|weight|NULL");
    t = x, t.data = NULL;
    REFUSED(NORM(&t, &w, &out), "layer_norm|x|no data");
    t = x, t.data = (uint8_t *)x.data + 1;
    REFUSED(NORM(&t, &w, &out), "layer_norm|x|address|multiple of 2");
    t = x, t.dtype = FB_F64;
    REFUSED(NORM(&t, &w, &out), "layer_norm|x|f64|f32, f16 or bf16");
    t = x, t.dtype = FB_Q8_0;
    REFUSED(NORM(&t, &w, &out), "layer_norm|x|q8_0");
    t = x, t.dtype = (fb_dtype)99;
    REFUSED(NORM(&t, &w, &out), "layer_norm|x|unknown|99");
    t = x, t.rows = -1;
    REFUSED(NORM(&t, &w, &out), "layer_norm|x|rows -1|0");
    t = x, t.cols = 0;
    REFUSED(NORM(&t, &w, &out), "layer_norm|x|columns 0|1");
    t = x, t.stride = -8;
    REFUSED(NORM(&t, &w, &out), "layer_norm|x|stride -8|0");
    t = out, t.stride = 7;
    REFUSED(NORM(&x, &w, &t), "layer_norm|out|stride 7|8");
    t = out, t.rows = 2;
    REFUSED(NORM(&x, &w, &t), "layer_norm|out|rows 2|3");
    t = out, t.cols = 7;
    REFUSED(NORM(&x, &w, &t), "layer_norm|out|columns 7|8");
    t = out, t.dtype = FB_BF16;
    REFUSED(NORM(&x, &w, &t), "layer_norm|out|bf16|f16");
    t = w, t.cols = 7;
    REFUSED(NORM(&x, &t, &out), "layer_norm|weight|columns 7|8");
    t = w, t.rows = 2;
    REFUSED(NORM(&x, &t, &out), "layer_norm|weight|rows 2|1");
    REFUSED(fb_ops_layer_norm(dev.ops, NULL, &x, &w, &t, 1e-5f, &out, &err), "layer_norm|bias|rows 2|1");
    REFUSED(fb_ops_rms_norm(dev.ops, NULL, &x, &w, -1, &out, &err), "rms_norm|eps|-1");
    REFUSED(fb_ops_rms_norm(dev.ops, NULL, &x, &w, NAN, &out, &err), "rms_norm|eps|nan");
    for (int64_t i = 0; i < 3 * out.stride - (out.stride - 8); i++) /* nothing was written */
        assert_true(isnan(fb_dtype_get(FB_F16, out.data, i)));
    give_back();
    close_device();
}

static void choices_are_refused(void **state) {
    (void)state;
    fb_error err;
    random_numbers = fbt_random_start(32);
    open_cpu(1);
    fb_ops_tensor x[3], w = weight(FB_F32, 6, 8, 0, 1), w7 = weight(FB_F32, 7, 8, 0, 1), v[2], out[3], wide,
                        y = tensor(FB_F32, 3, 6);
    for (int k = 0; k < 3; k++) x[k] = filled(FB_F32, 3, 8), out[k] = tensor(FB_F32, 3, 8);
    for (int k = 0; k < 2; k++) v[k] = weight(FB_F32, 1, 8, 1, 0.1);
#define ADD_NORM(terms, norm, biases, norms, outs)                                                           \
    fb_ops_add_norm(dev.ops, NULL, x, terms, norm, v, biases, norms, 1e-5f, out, outs, &err)
    REFUSED(ADD_NORM(1, FB_OPS_RMS_NORM, NULL, 1, out + 1), "add_norm|term_count|1|2 or 3");
    REFUSED(ADD_NORM(2, FB_OPS_RMS_NORM, NULL, 3, out + 1), "add_norm|norm_count|3|1 or 2");
    REFUSED(ADD_NORM(2, (fb_ops_norm)5, NULL, 1, out + 1), "add_norm|norm|5");
    REFUSED(ADD_NORM(2, FB_OPS_RMS_NORM, v, 1, out + 1), "add_norm|biases[0]|RMS");
    REFUSED(ADD_NORM(2, FB_OPS_RMS_NORM, NULL, 1, NULL), "add_norm|outs[0]|NULL");
    x[2].cols = 7;
    REFUSED(ADD_NORM(3, FB_OPS_RMS_NORM, NULL, 1, out + 1), "add_norm|terms[2]|columns 7|8");
    REFUSED(fb_ops_add3(dev.ops, NULL, &x[0], &x[1], &x[2], &out[0], &err), "add3|c|columns 7|8");
    REFUSED(fb_ops_silu_mul(dev.ops, NULL, &x[0], &x[2], &out[0], &err), "silu_mul|up|columns 7|8");
#define LINEAR(w, act) fb_ops_linear_bias_act(dev.ops, NULL, x, w, NULL, act, &y, &err)
    REFUSED(LINEAR(&w, (fb_ops_activation)4), "linear_bias_act|activation|4|3");
    wide = w, wide.stride = 9;
    REFUSED(LINEAR(&wide, FB_OPS_NONE), "linear_bias_act|weight|stride 9|8");
    REFUSED(LINEAR(&w7, FB_OPS_NONE), "linear_bias_act|out|columns 6|7");
    REFUSED(fb_ops_swiglu(dev.ops, NULL, x, &w, &w7, FB_OPS_DUAL, &y, &err), "swiglu|w3|rows 7|6");
    REFUSED(fb_ops_swiglu(dev.ops, NULL, x, &w, &w, (fb_ops_strategy)3, &y, &err), "swiglu|strategy|3|2");
    REFUSED(
        fb_ops_norm_linear(dev.ops, NULL, x, FB_OPS_RMS_NORM, v, v, 1e-5f, &w, NULL, FB_OPS_NONE, &y, &err),
        "norm_linear|norm_bias|RMS");
    give_back();
    close_device();
}

static void contexts_are_refused(void **state) {
    (void)state;
    fb_error err;
    fb_ops *ops;
    REFUSED(fb_ops_create(-2, 0, &ops, &err), "ops|device -2|-1");
    REFUSED(fb_ops_create(FB_OPS_CPU, 1000, &ops, &err), "ops|threads 1000|256");
    assert_null(ops);
    open_cpu(1);
    REFUSED(fb_ops_reserve(dev.ops, NULL, -1, &err), "reserve|bytes|-1");
    assert_ok(fb_ops_reserve(dev.ops, NULL, 100, &err), &err);
    close_device();
    fb_ops_free(NULL);
    if (!open_gpu()) skip();
    REFUSED(fb_ops_create(99, 0, &ops, &err), "cuda:99");
    close_device();
}

/* Weights belong to a device. */
static void weights_of_another_device(void **state) {
    (void)state;
    fb_error err;
    fb_ops_weight *w;
    static uint8_t file[34];
    float x[32] = {0}, y;
    fb_ops_tensor in = {x, FB_F32, 1, 32, 32}, out = {&y, FB_F32, 1, 1, 1};
    if (!open_gpu()) skip();
    fb_ops *gpu = dev.ops;
    assert_ok(fb_ops_pack(gpu, FB_Q8_0, file, 1, 32, &w, &err), &err);
    open_cpu(1);
    REFUSED(fb_ops_linear_q8_0(dev.ops, NULL, &in, w, NULL, &out, &err), "linear_q8_0|weight|another device");
    fb_ops_weight_free(w);
    fb_ops_free(gpu);
    close_device();
}

/* ---- threads ---- */

enum { CALLERS = 4, CALLS = 30, WIDTH = 300 };

typedef struct caller {
    pthread_t thread;
    fb_ops_tensor x, w, out, want;
    bool failed;
} caller;

static void *call_often(void *arg) {
    caller *c = arg;
    for (int i = 0; i < CALLS; i++) {
        memset(c->out.data, 0xff, (size_t)(c->out.rows * c->out.stride * 4));
        if (fb_ops_swiglu(dev.ops, NULL, &c->x, &c->w, &c->w, (fb_ops_strategy)(i % 3), &c->out, NULL) !=
                FB_OK ||
            memcmp(c->out.data, c->want.data, (size_t)(c->out.rows * c->out.stride * 4)) != 0)
            c->failed = true;
    }
    return NULL;
}

/* Callers of one context get the bits that they get alone: with one thread, and with two. */
static void many_callers(void **state) {
    (void)state;
    caller callers[CALLERS];
    fb_error err;
    random_numbers = fbt_random_start(33);
    open_cpu(1);
    for (int i = 0; i < CALLERS; i++) {
        caller *c = &callers[i];
        *c = (caller){.x = weight(FB_F32, 3 + i, WIDTH, 0, 1), .w = weight(FB_F32, WIDTH, WIDTH, 0, 0.05)};
        c->out = weight(FB_F32, 3 + i, WIDTH, 0, 1);
        c->want = weight(FB_F32, 3 + i, WIDTH, 0, 1);
        assert_ok(fb_ops_swiglu(dev.ops, NULL, &c->x, &c->w, &c->w, FB_OPS_DUAL, &c->want, &err), &err);
    }
    close_device();
    open_cpu(2);
    for (int i = 0; i < CALLERS; i++)
        assert_int_equal(pthread_create(&callers[i].thread, NULL, call_often, &callers[i]), 0);
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(callers[i].thread, NULL);
        assert_false(callers[i].failed);
    }
    give_back();
    close_device();
}

/* ---- graphs ---- */

/* One op with scratch and temporary memory on the context's stream. */
static fb_status run_swiglu(fb_ops *ops, fb_ops_tensor x, fb_ops_tensor w, fb_ops_tensor out, fb_error *err) {
    return fb_ops_swiglu(ops, dev.stream, DEV(x), DEV(w), DEV(w), FB_OPS_VECTOR, DEV(out), err);
}

static void graphs(void **state) {
    (void)state;
    fb_error err;
    fb_gpu_graph *graph;
    random_numbers = fbt_random_start(34);
    if (!open_gpu()) skip();
    fb_ops_tensor x = filled(FB_F16, 12, 64), w = weight(FB_F16, 32, 64, 0, 0.1),
                  out = tensor(FB_F16, 12, 32), want = tensor(FB_F16, 12, 32);
    for (int warm = 0; warm < 2; warm++) { /* the first op of a stream can be a captured one */
        fb_ops *ops;
        assert_ok(fb_ops_create(0, 0, &ops, &err), &err);
        copy_regions(true);
        if (warm) assert_ok(run_swiglu(ops, x, w, want, &err), &err);
        assert_ok(dev.fb_gpu_record_begin(dev.gpu, &err), &err);
        assert_ok(run_swiglu(ops, x, w, out, &err), &err);
        assert_ok(dev.fb_gpu_record_end(dev.gpu, &graph, &err), &err);
        for (int i = 0; i < 2; i++) { /* the second time with other weights, which the graph must see */
            fill(FB_F16, w.data, 32 * 64, 0, 0.2);
            copy_regions(true);
            assert_ok(dev.fb_gpu_graph_launch(dev.gpu, graph, &err), &err);
            assert_ok(run_swiglu(ops, x, w, want, &err), &err);
            assert_ok(dev.fb_gpu_wait(dev.gpu, &err), &err);
            copy_regions(false);
            same("graph", out, want);
        }
        dev.fb_gpu_graph_free(graph);
        fb_ops_free(ops);
    }
    give_back();
    close_device();
}

/* A workspace that is replaced by a larger one stays valid for graphs that have its address. */
static void graphs_keep_their_workspace(void **state) {
    (void)state;
    fb_error err;
    fb_gpu_graph *graph;
    random_numbers = fbt_random_start(35);
    if (!open_gpu()) skip();
    fb_ops_tensor x = filled(FB_F16, 12, 64), w = weight(FB_F16, 32, 64, 0, 0.1),
                  out = tensor(FB_F16, 12, 32), want = tensor(FB_F16, 12, 32);
    copy_regions(true);
    assert_ok(run_swiglu(dev.ops, x, w, want, &err), &err);
    assert_ok(dev.fb_gpu_record_begin(dev.gpu, &err), &err);
    assert_ok(run_swiglu(dev.ops, x, w, out, &err), &err);
    assert_ok(dev.fb_gpu_record_end(dev.gpu, &graph, &err), &err);
    assert_ok(fb_ops_reserve(dev.ops, dev.stream, 200 << 20, &err), &err);
    assert_ok(dev.fb_gpu_graph_launch(dev.gpu, graph, &err), &err);
    assert_ok(dev.fb_gpu_wait(dev.gpu, &err), &err);
    copy_regions(false);
    same("graph after a larger workspace", out, want);
    dev.fb_gpu_graph_free(graph);
    give_back();
    close_device();
}

/* ---- a device that fails ---- */

/* Every op once; the number of calls that failed. Each message is one line. */
static int every_op(fb_ops *ops) {
    float x[4 * 64] = {0}, w[64 * 64] = {0}, y[4 * 64], z[4 * 64];
    static uint8_t file[64 * 2 * 34];
    int64_t positions[] = {0, 1, 2, 3};
    fb_ops_tensor in = {x, FB_F32, 4, 64, 64}, matrix = {w, FB_F32, 64, 64, 64},
                  vector = {w, FB_F32, 1, 64, 64}, out = {y, FB_F32, 4, 64, 64}, sum = {z, FB_F32, 4, 64, 64},
                  terms[] = {in, in};
    fb_ops_heads q = {x, FB_F32, 4, 2, 32, 64, 32}, to = {y, FB_F32, 4, 2, 32, 64, 32};
    fb_ops_positions p = {positions, 64};
    fb_ops_weight *packed = NULL;
    fb_error err[9];
    memset(err, 0, sizeof err);
    fb_status status[] = {
        fb_ops_layer_norm(ops, NULL, &in, &vector, NULL, 1e-5f, &out, &err[0]),
        fb_ops_add_norm(ops, NULL, terms, 2, FB_OPS_RMS_NORM, &vector, NULL, 1, 1e-5f, &sum, &out, &err[1]),
        fb_ops_silu_mul(ops, NULL, &in, &in, &out, &err[2]),
        fb_ops_swiglu(ops, NULL, &in, &matrix, &matrix, FB_OPS_VECTOR, &out, &err[3]),
        fb_ops_rope(ops, NULL, &q, p, 32, 1e4, NULL, &to, &err[4]),
        fb_ops_attention(ops, NULL, &q, &q, &q, p, 1, false, &to, &err[5]),
        fb_ops_pack(ops, FB_Q8_0, file, 64, 64, &packed, &err[6]),
        packed ? fb_ops_linear_q8_0(ops, NULL, &in, packed, NULL, &out, &err[7]) : FB_OK,
        fb_ops_reserve(ops, NULL, 3 << 20, &err[8]),
    };
    int failures = 0;
    fb_ops_weight_free(packed);
    for (size_t i = 0; i < sizeof status / sizeof *status; i++)
        if (status[i] != FB_OK) {
            failures++;
            if (strlen(err[i].message) < 8 || strchr(err[i].message, '\n')) return 100;
        }
    return failures;
}

/* In a child, whose device fails at its `fail`th call. 0: nothing failed; 1: one op failed, and all work
 * afterwards; 52: more failed; other: something is wrong. */
static int fails_at(int fail, const char *memory) {
    pid_t child = fork();
    if (child == 0) {
        char text[16];
        fb_ops *ops;
        fb_error err;
        int failed;
        snprintf(text, sizeof text, "%d", fail);
        setenv("FUSEBOX_EMULATE_FAIL", text, 1);
        setenv("FUSEBOX_EMULATE_MEMORY", memory, 1);
        if (fb_cuda_library(cuda_path(), &err) != FB_OK) _exit(50);
        if (fb_ops_create(0, 0, &ops, &err) != FB_OK) _exit(ops ? 51 : 1);
        failed = every_op(ops);
        if (failed > 1 || (failed && every_op(ops))) failed = 52;
        fb_ops_free(ops);
        _exit(failed);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

static void failures(void **state) {
    (void)state;
    int fail = 1,
        ended = 0; /* a call whose failure nobody hears of, as when memory is freed, counts as ended */
    if (!*cuda_path() || !strstr(cuda_path(), "emulated")) skip();
    for (; ended < 8 && fail < 500; fail++) {
        int outcome = fails_at(fail, "100000000");
        assert_in_range(outcome, 0, 1);
        ended = outcome ? 0 : ended + 1;
    }
    assert_in_range(fail, 30, 400); /* so many calls can fail */
    assert_int_equal(fails_at(0, "20000000"), 0);
    /* No memory for a workspace: ops that need none still work. */
    assert_int_equal(fails_at(0, "1000000"), 52);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_refused),
        cmocka_unit_test(choices_are_refused),
        cmocka_unit_test(failures),
        cmocka_unit_test(contexts_are_refused),
        cmocka_unit_test(many_callers),
        cmocka_unit_test(weights_of_another_device),
        cmocka_unit_test(graphs),
        cmocka_unit_test(graphs_keep_their_workspace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
