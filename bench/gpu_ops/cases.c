/* The cases: shapes of Pythia 2.8B, Llama 3.2 1B and of single operators. */
#include <math.h>

#include "gpu_ops.h"

#define MOST_CASES 160

static spec cases[MOST_CASES];
static int case_count;

static int64_t tiny_columns(int64_t n) { return bench.tiny ? (n / 40 + 63) / 64 * 64 : n; }
static int64_t tiny_rows(int64_t m) { return !bench.tiny || m <= 8 ? m : m <= 128 ? 10 : 20; }

static spec *add_case(const char *name, family which, int64_t m) {
    if (case_count == MOST_CASES) die("more than %d cases", MOST_CASES);
    spec *c = &cases[case_count++];
    *c = (spec){.name = name, .family = which, .m = tiny_rows(m), .norm = FB_OP_COUNT, .weight = FB_F16};
    for (int i = 0; i < FB_MAX_SEGMENTS; i++) c->act[i] = FB_OP_COUNT;
    return c;
}

static spec *add_map(const char *name, fb_op_kind op, int32_t terms, int32_t norms, int64_t m, int64_t n) {
    spec *c = add_case(name, MAPS, m);
    c->op = op;
    c->norm = FB_OP_LAYERNORM;
    c->terms = terms;
    c->norms = norms;
    c->n[0] = tiny_columns(n);
    return c;
}

static void add_segment(spec *c, int64_t n, int64_t k) {
    c->n[c->segments] = tiny_columns(n);
    c->k[c->segments++] = tiny_columns(k);
}

static spec *add_linear(const char *name, way how, fb_dtype weight, int64_t m, int64_t n, int64_t k) {
    spec *c = add_case(name, LINEARS, m);
    c->way = how;
    c->weight = weight;
    add_segment(c, n, k);
    return c;
}

static void add_maps(void) {
    static const int64_t shapes[][2] = {{1, 2560}, {128, 2560}, {16384, 2560}, {16384, 4096}};
    for (int i = 0; i < 4; i++) {
        int64_t m = shapes[i][0], n = shapes[i][1];
        add_map("add_norm 2 terms", FB_OP_ADD_NORM, 2, 1, m, n);
        if (i == 0) add_map("add_norm 3 terms 2 norms", FB_OP_ADD_NORM, 3, 2, m, n);
        add_map("layernorm", FB_OP_LAYERNORM, 1, 1, m, n);
        add_map("rmsnorm", FB_OP_RMSNORM, 1, 1, m, n);
        if (i != 3) add_map("add3", FB_OP_ADD3, 3, 0, m, n);
    }
}

static void add_swiglu(void) {
    static const struct {
        const char *name;
        way way;
    } ways[] = {{"swiglu_vec", ALONE}, {"swiglu_gemm", PRODUCT}, {"swiglu_dual", GROUP}};
    static const int64_t rows[] = {1, 4, 512};
    for (int r = 0; r < 3; r++)
        for (int i = 0; i < 3; i++) {
            spec *c = add_linear(ways[i].name, ways[i].way, FB_F16, rows[r], 11008, 4096);
            add_segment(c, 11008, 4096);
            c->combine = FB_COMBINE_MUL;
            c->act[0] = FB_OP_SILU;
            c->same_x = true;
        }
}

static void add_quantised(void) {
    static const int64_t rows[] = {1, 4, 32, 512};
    static const fb_dtype types[] = {FB_Q4_0, FB_Q8_0};
    for (int r = 0; r < 4; r++) {
        add_linear("linear", ALONE, FB_F16, rows[r], 10240, 2560);
        for (int t = 0; t < 2; t++) {
            add_linear("quantize, linear", QUANTIZED, types[t], rows[r], 10240, 2560);
            add_linear("linear, quantising", ALONE, types[t], rows[r], 10240, 2560);
            for (int i = 0; i < 3; i++) {
                static const char *const names[] = {"quantize, 3 linears", "3 linears, quantising",
                                                    "group of 3"};
                static const way ways[] = {QUANTIZED, ALONE, GROUP};
                spec *c = add_linear(names[i], ways[i], types[t], rows[r], 10240, 2560);
                add_segment(c, 10240, 2560);
                add_segment(c, 10240, 2560);
                c->same_x = true;
            }
        }
    }
}

/* A decode step's linears: those of a model with parallel attention and MLP, and of one with SwiGLU. */
static void add_decode(fb_dtype type) {
    for (int64_t m = 1; m <= 8; m *= 2) {
        spec *c = add_linear("norms, qkv + up gelu", GROUP, type, m, 7680, 2560);
        add_segment(c, 10240, 2560);
        c->norm = FB_OP_LAYERNORM;
        c->act[1] = FB_OP_GELU;
        c->bias = c->same_x = true;
    }
    spec *c = add_linear("out + down, residual", GROUP, type, 1, 2560, 2560);
    add_segment(c, 2560, 10240);
    c->combine = FB_COMBINE_ADD;
    c->bias = true;
    add_linear("head_argmax", HEAD, type, 1, 50304, 2560);
    c = add_linear("norm, qkv", GROUP, type, 1, 3072, 2048);
    c->norm = FB_OP_RMSNORM;
    c = add_linear("norm, swiglu_dual", GROUP, type, 1, 8192, 2048);
    add_segment(c, 8192, 2048);
    c->combine = FB_COMBINE_MUL;
    c->norm = FB_OP_RMSNORM;
    c->act[0] = FB_OP_SILU;
    c->same_x = true;
    c = add_linear("down, residual", GROUP, type, 1, 2048, 8192);
    c->combine = FB_COMBINE_ADD;
    add_linear("head_argmax", HEAD, type, 1, 128256, 2048);
}

static void add_attention(int64_t m, int64_t heads, int64_t kv_heads, int64_t width, int64_t position,
                          int64_t capacity) {
    spec *c = add_case("attn_flash", ATTENTION, m);
    int64_t less = bench.tiny ? 16 : 1;
    c->heads = bench.tiny ? heads / 8 : heads;
    c->kv_heads = bench.tiny ? kv_heads / 8 : kv_heads;
    c->width = width;
    c->position = position / less;
    c->capacity = max_of(capacity / less, 128);
}

/* What the other cases are compared with. */
static void add_ceilings(void) {
    spec *c[3] = {add_map("ceiling: add", FB_OP_ADD, 2, 0, 16384, 16384),
                  add_linear("ceiling: matvec", ALONE, FB_F16, 1, 131072, 8192),
                  add_linear("ceiling: matmul", ALONE, FB_F16, 4096, 8192, 8192)};
    double *rates[3] = {&bench.copy_rate, &bench.read_rate, &bench.matmul_rate};
    for (int i = 0; i < 3; i++) {
        *rates[i] = INFINITY; /* until it is known */
        c[i]->ceiling = rates[i];
    }
}

int make_cases(const spec **all) {
    add_ceilings();
    add_maps();
    add_swiglu();
    add_quantised();
    add_decode(FB_F16);
    add_decode(FB_Q4_0);
    add_attention(1, 32, 32, 80, 64, 2048);
    add_attention(1, 32, 32, 80, 500, 2048);
    add_attention(1, 32, 32, 80, 2000, 2048);
    add_attention(1, 32, 8, 64, 500, 8192);
    add_attention(1, 32, 8, 64, 8000, 8192);
    add_attention(512, 32, 32, 80, 0, 2048);
    add_attention(512, 32, 8, 64, 0, 8192);
    *all = cases;
    return case_count;
}
