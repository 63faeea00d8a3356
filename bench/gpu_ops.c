/* Times single ops of the CUDA backend at fixed shapes, without a model.
 *
 *   gpu_ops [--json] [--tiny] [--only TEXT]
 *
 * Each case is checked against a float64 computation on the host, then recorded as a graph of many launches
 * that rotate among several sets of inputs, weights and outputs, together four times the L2 where a set is
 * not tiny, and timed: median and 10 to 90 percent of REPEATS launches of the graph, divided by the launches
 * in it. The ceilings (bandwidth of `add`, of a matrix of 2 GB times a vector, rate of a 16-bit product) are
 * measured first in the same run. The exit status is 1 if a result is wrong.
 *
 * The library is $FUSEBOX_CUDA_LIBRARY, or libfusebox_cuda.so beside the program or in the folder above.
 * --tiny makes everything small, for the emulated library; --only runs the cases whose name has TEXT (and the
 * ceilings). */
#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda/gpu.h"
#include "base/quant.h"
#include "base/stats.h"

#define REPEATS        11
#define WARM           3
#define WARM_CEILING   100 /* until clocks are what they are under load */
#define MOST_SETS      128
#define MOST_STEPS     4
#define MOST_CASES     160
#define MOST_ARENA     (12ll << 30)
#define GRAPH_TIME     2e-3 /* that a graph should take, so that starting it does not count */
#define TOLERANCE      4e-3 /* of float16 results that are rounded up to four times on the way */
#define TOLERANCE_HEAD 1e-3 /* of one score, which is rounded once */

static void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("gpu_ops: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static void must(fb_status status, const fb_error *err) {
    if (status != FB_OK) die("%s", err->message);
}

static int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- the library ------------------------------------------------------------------------------------------
 */

#define FUNCTIONS(X)                                                                                         \
    X(fb_gpu_describe)                                                                                       \
    X(fb_gpu_open)                                                                                           \
    X(fb_gpu_close)                                                                                          \
    X(fb_gpu_context)                                                                                        \
    X(fb_gpu_take)                                                                                           \
    X(fb_gpu_give)                                                                                           \
    X(fb_gpu_take_host)                                                                                      \
    X(fb_gpu_give_host)                                                                                      \
    X(fb_gpu_upload)                                                                                         \
    X(fb_gpu_download)                                                                                       \
    X(fb_gpu_zero)                                                                                           \
    X(fb_gpu_wait)                                                                                           \
    X(fb_gpu_record_begin)                                                                                   \
    X(fb_gpu_record_end)                                                                                     \
    X(fb_gpu_graph_launch)                                                                                   \
    X(fb_gpu_graph_free)                                                                                     \
    X(fb_gpu_mark)                                                                                           \
    X(fb_gpu_between)                                                                                        \
    X(fb_gpu_check)                                                                                          \
    X(fb_cuda_linear_scratch)                                                                                \
    X(fb_cuda_attention_scratch)

static struct {
    const fb_cuda_launch *launches;
#define X(name) __typeof__(&name) name;
    FUNCTIONS(X)
#undef X
} cuda;

static struct {
    bool tiny, json;
    const char *only;
    fb_gpu *gpu;
    fb_gpu_info info;
    fb_cuda_context cx;
    uint8_t *arena; /* on the device; each case begins anew */
    int64_t arena_bytes, used;
    int64_t start; /* where in the block the next tensor's numbers begin */
    double read_rate, copy_rate, matmul_rate;
    int32_t printed, wrong;
} bench;

static void library_path(char path[4200]) {
    const char *given = getenv("FUSEBOX_CUDA_LIBRARY"), *places[] = {"", "../"};
    char folder[4096];
    if (given && *given) {
        snprintf(path, 4200, "%s", given);
        return;
    }
    ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
    folder[length > 0 ? length : 0] = 0;
    char *slash = strrchr(folder, '/');
    if (slash) slash[1] = 0;
    for (int i = 0; i < 2; i++) {
        snprintf(path, 4200, "%s%slibfusebox_cuda.so", folder, places[i]);
        if (access(path, R_OK) == 0) return;
    }
}

static void open_library(void) {
    char path[4200];
    library_path(path);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *symbol;
    if (!library) die("%s", dlerror());
#define X(name)                                                                                              \
    symbol = dlsym(library, #name);                                                                          \
    if (!symbol) die("%s: no " #name, path);                                                                 \
    memcpy(&cuda.name, &symbol, sizeof symbol);
    FUNCTIONS(X)
#undef X
    cuda.launches = dlsym(library, "fb_cuda_launches");
    if (!cuda.launches) die("%s: no fb_cuda_launches", path);
}

/* ---- numbers ----------------------------------------------------------------------------------------------
 */

/* Random numbers that all tensors are cut from, round and round: the host need not keep what it uploads.
 * Halves are in -1 to 1; so are quantised weights. In memory that copies need not wait for. */
static struct {
    int64_t count, scale_count; /* powers of two */
    uint16_t *halves;           /* [count] */
    float *values;              /* the same */
    uint8_t *bytes;             /* [2 * count] */
    uint16_t *scales[2];        /* of Q8_0 and Q4_0: [scale_count] */
    uint8_t *memory;
} block;

static uint64_t next_random(void) {
    static uint64_t state = 0x9e3779b97f4a7c15;
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static void make_block(void) {
    fb_error err;
    void *memory;
    block.count = bench.tiny ? 1 << 18 : 1 << 25;
    block.scale_count = block.count / 32;
    int64_t bytes = 4 * block.count + 4 * block.scale_count;
    must(cuda.fb_gpu_take_host(bench.gpu, "random numbers", bytes, &memory, &err), &err);
    block.memory = memory;
    block.halves = memory;
    block.bytes = block.memory + 2 * block.count;
    block.scales[0] = (uint16_t *)(void *)(block.bytes + 2 * block.count);
    block.scales[1] = block.scales[0] + block.scale_count;
    block.values = malloc((size_t)block.count * sizeof *block.values);
    if (!block.values) die("no memory for random numbers");
    for (int64_t i = 0; i < block.count; i++) {
        uint64_t r = next_random();
        float value = (float)(int32_t)(uint32_t)r * 0x1p-31f;
        block.halves[i] = fb_f32_to_f16(value);
        block.values[i] = fb_f16_to_f32(block.halves[i]);
        for (int k = 0; k < 2; k++) {
            uint8_t byte = (uint8_t)(r >> (32 + 8 * k));
            block.bytes[2 * i + k] = byte == 0x80 ? 0x81 : byte; /* no encoder writes -128 */
        }
    }
    for (int64_t i = 0; i < block.scale_count; i++)
        for (int k = 0; k < 2; k++) {
            float value = 0.5f + (float)(next_random() >> 40) * 0x1p-25f;
            block.scales[k][i] = fb_f32_to_f16(value / (k ? 8.0f : 127.0f));
        }
}

/* [rows, cols] on the device. */
typedef struct tensor {
    uint8_t *at;
    fb_dtype dtype;
    int64_t rows, cols;
    int64_t start; /* its first number in the block; of quantised ones: byte, and scale */
} tensor;

static int64_t tensor_bytes(const tensor *t) {
    return t->at ? fb_dtype_bytes(t->dtype, t->rows * t->cols) : 0;
}

static uint8_t *take(int64_t bytes) {
    uint8_t *at = bench.arena + bench.used;
    bench.used += (bytes + 255) / 256 * 256;
    if (bench.used > bench.arena_bytes)
        die("a case needs more than %.1f GB of device memory", 1e-9 * (double)bench.arena_bytes);
    return at;
}

static void upload(uint8_t *to, const void *from, int64_t bytes) {
    fb_error err;
    must(cuda.fb_gpu_upload(bench.gpu, to, from, bytes, &err), &err);
}

/* `bytes` of a ring of `size` bytes, from byte `first` on. */
static void upload_ring(uint8_t *to, const void *ring, int64_t size, int64_t first, int64_t bytes) {
    for (int64_t done = 0; done < bytes;) {
        int64_t at = (first + done) % size, count = min_of(size - at, bytes - done);
        upload(to + done, (const uint8_t *)ring + at, count);
        done += count;
    }
}

static tensor take_tensor(fb_dtype dtype, int64_t rows, int64_t cols) {
    return (tensor){
        .at = take(fb_dtype_bytes(dtype, rows * cols)), .dtype = dtype, .rows = rows, .cols = cols};
}

static int which_scales(fb_dtype dtype) { return dtype == FB_Q4_0; }

static tensor take_random(fb_dtype dtype, int64_t rows, int64_t cols) {
    tensor t = take_tensor(dtype, rows, cols);
    t.start = bench.start;
    bench.start = (bench.start + 1000003) % block.count;
    if (dtype == FB_F16) {
        upload_ring(t.at, block.halves, 2 * block.count, 2 * t.start, tensor_bytes(&t));
        return t;
    }
    int64_t blocks = rows * cols / 32, integers = blocks * (dtype == FB_Q4_0 ? 16 : 32);
    upload_ring(t.at, block.bytes, 2 * block.count, t.start, integers);
    upload_ring(t.at + integers, block.scales[which_scales(dtype)], 2 * block.scale_count, 2 * t.start,
                2 * blocks);
    return t;
}

static double half_at(const tensor *t, int64_t index) {
    return (double)block.values[(t->start + index) & (block.count - 1)];
}

/* Row `row`, as the host computes with it. */
static void read_row(const tensor *t, int64_t row, double *to) {
    if (t->dtype == FB_F16) {
        for (int64_t i = 0; i < t->cols; i++) to[i] = half_at(t, row * t->cols + i);
        return;
    }
    const uint16_t *scales = block.scales[which_scales(t->dtype)];
    for (int64_t i = 0; i < t->cols; i++) {
        int64_t number = row * t->cols / 32 + i / 32, at = i % 32;
        double scale = (double)fb_f16_to_f32(scales[(t->start + number) & (block.scale_count - 1)]);
        bool four = t->dtype == FB_Q4_0;
        int64_t byte = t->start + (four ? 16 * number + at % 16 : 32 * number + at);
        uint8_t bits = block.bytes[byte & (2 * block.count - 1)];
        to[i] = scale * (four ? (at < 16 ? bits & 15 : bits >> 4) - 8 : (int8_t)bits);
    }
}

/* Row `row` of what the device wrote. */
static void fetch_row(const tensor *t, int64_t row, double *to) {
    fb_error err;
    int64_t bytes = fb_dtype_bytes(t->dtype, t->cols);
    uint8_t *raw = malloc((size_t)bytes);
    if (!raw) die("no memory for a row");
    must(cuda.fb_gpu_download(bench.gpu, raw, t->at + row * bytes, bytes, &err), &err);
    must(cuda.fb_gpu_wait(bench.gpu, &err), &err);
    for (int64_t i = 0; i < t->cols; i++) to[i] = fb_dtype_get(t->dtype, raw, i);
    free(raw);
}

static double *doubles(int64_t count) {
    double *memory = malloc((size_t)count * sizeof *memory);
    if (!memory) die("no memory for %lld numbers", (long long)count);
    return memory;
}

/* ---- cases ------------------------------------------------------------------------------------------------
 */

typedef enum family { MAPS, LINEARS, ATTENTION } family;

/* How linears are launched: as one linear_group; each alone (and, where they are multiplied, swiglu after
 * them); the same with one quantize before them; the first with its act as a group, the second alone, then
 * mul; head_argmax. */
typedef enum way { GROUP, ALONE, QUANTIZED, PRODUCT, HEAD } way;

typedef struct spec {
    const char *name;
    family family;
    double *ceiling; /* of the bench, that this case measures, or NULL */
    int64_t m;
    /* MAPS: m rows of n[0]. */
    fb_op_kind op;
    int32_t terms, norms;
    /* LINEARS */
    way way;
    int32_t segments;
    int64_t n[FB_MAX_SEGMENTS], k[FB_MAX_SEGMENTS];
    fb_dtype weight;
    fb_op_kind norm, act[FB_MAX_SEGMENTS];
    fb_combine combine;
    bool bias, same_x; /* same_x: all segments read the same */
    /* ATTENTION */
    int64_t heads, kv_heads, width, position, capacity;
} spec;

/* One set of a case's data, and its launches. */
typedef struct set {
    int32_t count;
    struct {
        fb_op_kind kind;
        fb_call call;
    } step[MOST_STEPS];
    tensor x[FB_MAX_IN], w[FB_MAX_SEGMENTS], bias[FB_MAX_SEGMENTS], norm_w[FB_MAX_SEGMENTS],
        norm_b[FB_MAX_SEGMENTS];
    tensor out[FB_MAX_OUT], keys, values;
    int64_t bytes; /* that the case must read and write */
} set;

static const fb_op_attr no_attr = {.segment = {{FB_OP_COUNT, FB_OP_COUNT, 0, FB_DOT_FLOAT},
                                               {FB_OP_COUNT, FB_OP_COUNT, 0, FB_DOT_FLOAT},
                                               {FB_OP_COUNT, FB_OP_COUNT, 0, FB_DOT_FLOAT}},
                                   .eps = 1e-5f};

static fb_view view_of(const tensor *t) { return (fb_view){t->at, t->dtype, 1, t->cols, t->cols, t->cols}; }

static fb_weight weight_of(const tensor *t) {
    return (fb_weight){t->at, t->dtype, t->rows, t->cols, t->dtype == FB_Q8_0 || t->dtype == FB_Q4_0};
}

static fb_call *add_step(set *s, const spec *c, fb_op_kind kind) {
    fb_call *call = &s->step[s->count].call;
    s->step[s->count++].kind = kind;
    *call = (fb_call){.attr = no_attr, .rows = c->m, .position = -1, .act = FB_F16};
    return call;
}

static fb_op_kind norm_of(const spec *c) {
    return c->op == FB_OP_ADD_NORM                              ? c->norm
           : c->op == FB_OP_LAYERNORM || c->op == FB_OP_RMSNORM ? c->op
                                                                : FB_OP_COUNT;
}

static void make_map(const spec *c, set *s) {
    fb_call *call = add_step(s, c, c->op);
    bool sum = c->op == FB_OP_ADD_NORM;
    int outs = (sum ? 1 : 0) + (c->norms ? c->norms : 1);
    for (int i = 0; i < c->terms; i++) {
        s->x[i] = take_random(FB_F16, c->m, c->n[0]);
        call->in[i] = view_of(&s->x[i]);
    }
    for (int i = 0; i < outs; i++) {
        s->out[i] = take_tensor(FB_F16, c->m, c->n[0]);
        call->out[i] = view_of(&s->out[i]);
    }
    for (int i = 0; i < c->norms; i++) {
        s->norm_w[i] = take_random(FB_F16, 1, c->n[0]);
        call->weights[2 * i] = weight_of(&s->norm_w[i]);
        if (norm_of(c) != FB_OP_LAYERNORM) continue;
        s->norm_b[i] = take_random(FB_F16, 1, c->n[0]);
        call->weights[2 * i + 1] = weight_of(&s->norm_b[i]);
    }
    call->attr.terms = c->terms;
    call->attr.norms = c->norms;
    call->attr.norm = norm_of(c);
}

static fb_dot dot_of(const spec *c) { return fb_dtype_is_float(c->weight) ? FB_DOT_FLOAT : FB_DOT_QUANTIZE; }

/* Segment `from` of the case as segment `to` of the call, into out[to]. */
static void put_segment(const spec *c, const set *s, int from, fb_call *call, int to, const tensor *x,
                        fb_dot dot) {
    call->in[to] = view_of(x);
    call->weights[4 * to] = weight_of(&s->w[from]);
    if (c->bias) call->weights[4 * to + 1] = weight_of(&s->bias[from]);
    call->attr.segment[to] = (fb_segment){c->norm, c->act[from], 1e-5f, dot};
    if (c->norm == FB_OP_COUNT) return;
    call->weights[4 * to + 2] = weight_of(&s->norm_w[from]);
    if (c->norm == FB_OP_LAYERNORM) call->weights[4 * to + 3] = weight_of(&s->norm_b[from]);
}

/* Segment `s` by itself, into `out`. */
static fb_call *put_alone(const spec *c, set *s, int from, fb_op_kind kind, const tensor *x, fb_dot dot,
                          const tensor *out) {
    fb_call *call = add_step(s, c, kind);
    put_segment(c, s, from, call, 0, x, dot);
    call->out[0] = view_of(out);
    if (kind == FB_OP_LINEAR_GROUP)
        call->attr.segments = 1;
    else
        call->attr.segment[0].act = FB_OP_COUNT;
    return call;
}

static void put_pair(const spec *c, set *s, fb_op_kind kind, const tensor *a, const tensor *b) {
    fb_call *call = add_step(s, c, kind);
    call->in[0] = view_of(a);
    call->in[1] = view_of(b);
    call->out[0] = view_of(&s->out[0]);
}

static void put_group(const spec *c, set *s) {
    fb_call *call = add_step(s, c, FB_OP_LINEAR_GROUP);
    bool combined = c->combine != FB_COMBINE_NONE;
    call->attr.segments = c->segments;
    call->attr.combine = c->combine;
    for (int i = 0; i < c->segments; i++) {
        put_segment(c, s, i, call, i, &s->x[i], dot_of(c));
        if (i == 0 || !combined) call->out[i] = view_of(&s->out[i]);
    }
    if (c->combine == FB_COMBINE_ADD) call->in[FB_RESIDUAL] = view_of(&s->x[FB_RESIDUAL]);
}

static void put_linears(const spec *c, set *s) {
    bool combined = c->combine != FB_COMBINE_NONE;
    fb_dot dot = dot_of(c);
    tensor blocks, parts[FB_MAX_SEGMENTS];
    if (c->way == QUANTIZED) {
        blocks = take_tensor(FB_F32, c->m, fb_q8_floats(c->k[0]));
        fb_call *call = add_step(s, c, FB_OP_QUANTIZE);
        call->in[0] = view_of(&s->x[0]);
        call->out[0] = view_of(&blocks);
        dot = FB_DOT_GIVEN;
    }
    for (int i = 0; i < c->segments; i++) {
        parts[i] = combined ? take_tensor(FB_F16, c->m, c->n[i]) : s->out[i];
        put_alone(c, s, i, c->way == PRODUCT && i == 0 ? FB_OP_LINEAR_GROUP : FB_OP_LINEAR,
                  c->way == QUANTIZED ? &blocks : &s->x[i], dot, &parts[i]);
    }
    if (combined) put_pair(c, s, c->way == PRODUCT ? FB_OP_MUL : FB_OP_SWIGLU, &parts[0], &parts[1]);
}

static void make_linears(const spec *c, set *s) {
    bool combined = c->combine != FB_COMBINE_NONE;
    for (int i = 0; i < c->segments; i++) {
        s->x[i] = c->same_x && i ? s->x[0] : take_random(FB_F16, c->m, c->k[i]);
        s->w[i] = take_random(c->weight, c->n[i], c->k[i]);
        if (c->bias) s->bias[i] = take_random(FB_F16, 1, c->n[i]);
        if (c->norm != FB_OP_COUNT) s->norm_w[i] = take_random(FB_F16, 1, c->k[i]);
        if (c->norm == FB_OP_LAYERNORM) s->norm_b[i] = take_random(FB_F16, 1, c->k[i]);
        if (c->way == HEAD)
            s->out[i] = take_tensor(FB_F32, c->m, 512);
        else if (i == 0 || !combined)
            s->out[i] = take_tensor(FB_F16, c->m, c->n[i]);
    }
    if (c->combine == FB_COMBINE_ADD) s->x[FB_RESIDUAL] = take_random(FB_F16, c->m, c->n[0]);
    if (c->way == HEAD)
        put_alone(c, s, 0, FB_OP_HEAD_ARGMAX, &s->x[0], dot_of(c), &s->out[0]);
    else if (c->way == GROUP)
        put_group(c, s);
    else
        put_linears(c, s);
}

/* Sharper than 1 / sqrt(width), which gives random keys nearly equal weights. */
static double scale_of(const spec *c) { return (double)(float)(4 / sqrt((double)c->width)); }

static void make_attention(const spec *c, set *s) {
    fb_call *call = add_step(s, c, FB_OP_ATTN_FLASH);
    s->x[0] = take_random(FB_F16, c->m, c->heads * c->width);
    s->out[0] = take_tensor(FB_F16, c->m, c->heads * c->width);
    s->keys = take_random(FB_F16, c->kv_heads * c->capacity, c->width);
    s->values = take_random(FB_F16, c->kv_heads * c->capacity, c->width);
    call->in[0] = view_of(&s->x[0]);
    call->out[0] = view_of(&s->out[0]);
    call->in[0].heads = call->out[0].heads = c->heads;
    call->in[0].width = call->out[0].width = c->width;
    call->in[0].head_stride = call->out[0].head_stride = c->width;
    call->kv = (fb_kv){.k = s->keys.at,
                       .v = s->values.at,
                       .dtype = FB_F16,
                       .heads = c->kv_heads,
                       .capacity = c->capacity,
                       .width = c->width};
    call->attr.scale = (float)scale_of(c);
}

static void make_set(const spec *c, set *s) {
    *s = (set){0};
    if (c->family == MAPS)
        make_map(c, s);
    else if (c->family == LINEARS)
        make_linears(c, s);
    else
        make_attention(c, s);
    for (int i = 0; i < FB_MAX_IN; i++)
        if (!(c->same_x && i && i < c->segments)) s->bytes += tensor_bytes(&s->x[i]);
    for (int i = 0; i < FB_MAX_SEGMENTS; i++)
        s->bytes += tensor_bytes(&s->w[i]) + tensor_bytes(&s->bias[i]) + tensor_bytes(&s->norm_w[i]) +
                    tensor_bytes(&s->norm_b[i]);
    for (int i = 0; i < FB_MAX_OUT; i++) s->bytes += c->way == HEAD ? 0 : tensor_bytes(&s->out[i]);
    if (c->family == ATTENTION) s->bytes += 2 * c->kv_heads * (c->position + c->m) * c->width * 2;
}

static double flops_of(const spec *c) {
    double flops = 0;
    if (c->family == LINEARS)
        for (int i = 0; i < c->segments; i++) flops += 2.0 * (double)c->m * (double)c->n[i] * (double)c->k[i];
    if (c->family == ATTENTION)
        for (int64_t t = 0; t < c->m; t++)
            flops += 4.0 * (double)c->heads * (double)c->width * (double)(c->position + t + 1);
    return flops;
}

/* ---- what the results should be ---------------------------------------------------------------------------
 */

/* Of the numbers compared so far: the largest difference, and what it is relative to. */
typedef struct comparison {
    double *got, *want;
    int64_t count, room;
} comparison;

static void compare(comparison *c, double got, double want) {
    if (c->count == c->room) {
        c->room = c->room ? 2 * c->room : 4096;
        c->got = realloc(c->got, (size_t)c->room * sizeof *c->got);
        c->want = realloc(c->want, (size_t)c->room * sizeof *c->want);
        if (!c->got || !c->want) die("no memory to compare in");
    }
    c->got[c->count] = got;
    c->want[c->count++] = want;
}

/* The largest |got - want| / (|want| + rms of all wanted); NaN where anything is none. Forgets them. */
static double compared(comparison *c) {
    double squares = 0, most = 0;
    for (int64_t i = 0; i < c->count; i++) squares += c->want[i] * c->want[i];
    double rms = sqrt(squares / (double)c->count);
    for (int64_t i = 0; i < c->count; i++) {
        double error = fabs(c->got[i] - c->want[i]) / (fabs(c->want[i]) + rms);
        if (!(error <= most)) most = error;
        if (most != most) break;
    }
    free(c->got);
    free(c->want);
    *c = (comparison){0};
    return most;
}

/* Rows that are looked at: the first, the last, and one between. */
static int sample_rows(int64_t m, int64_t rows[3]) {
    int count = 0;
    rows[count++] = 0;
    if (m > 2) rows[count++] = m / 2;
    if (m > 1) rows[count++] = m - 1;
    return count;
}

static double rounded(double value) { return (double)fb_f16_to_f32(fb_f32_to_f16((float)value)); }

static void normalise(fb_op_kind norm, const tensor *w, const tensor *b, double *x, int64_t n) {
    double mean = 0, squares = 0;
    if (norm == FB_OP_LAYERNORM)
        for (int64_t i = 0; i < n; i++) mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++) squares += (x[i] - mean) * (x[i] - mean) / (double)n;
    double scale = 1 / sqrt(squares + (double)1e-5f);
    for (int64_t i = 0; i < n; i++)
        x[i] = (x[i] - mean) * scale * half_at(w, i) + (norm == FB_OP_LAYERNORM ? half_at(b, i) : 0);
}

static double check_map(const spec *c, const set *s) {
    comparison all = {0};
    int64_t rows[3], n = c->n[0];
    int count = sample_rows(c->m, rows);
    double *got = doubles(n), *x = doubles(n), *y = doubles(n), most = 0;
    int outs = s->out[2].at ? 3 : s->out[1].at ? 2 : 1, sums = c->op == FB_OP_ADD_NORM || !c->norms;
    for (int o = 0; o < outs; o++) {
        for (int r = 0; r < count; r++) {
            read_row(&s->x[0], rows[r], x);
            for (int t = 1; t < c->terms; t++) {
                read_row(&s->x[t], rows[r], y);
                for (int64_t i = 0; i < n; i++) x[i] = rounded(x[i] + y[i]);
            }
            if (o >= sums) normalise(norm_of(c), &s->norm_w[o - sums], &s->norm_b[o - sums], x, n);
            fetch_row(&s->out[o], rows[r], got);
            for (int64_t i = 0; i < n; i++) compare(&all, got[i], x[i]);
        }
        double error = compared(&all);
        if (!(error <= most)) most = error;
    }
    free(got);
    free(x);
    free(y);
    return most;
}

/* As quantize does it, and back. */
static void through_blocks(double *x, int64_t n) {
    for (int64_t b = 0; b < n; b += 32) {
        double most = 0;
        for (int64_t i = b; i < b + 32; i++) most = fmax(most, fabs(x[i]));
        float scale = (float)(most / 127), back = (float)(127 / most);
        for (int64_t i = b; i < b + 32; i++)
            x[i] = most > 0 ? (double)scale * nearbyint((double)((float)x[i] * back)) : 0;
    }
}

/* Row `row` of segment i's input as its linear multiplies it. */
static double *input_row(const spec *c, const set *s, int i, int64_t row) {
    double *x = doubles(c->k[i]);
    read_row(&s->x[i], row, x);
    if (c->norm != FB_OP_COUNT) {
        normalise(c->norm, &s->norm_w[i], &s->norm_b[i], x, c->k[i]);
        for (int64_t j = 0; j < c->k[i]; j++)
            x[j] = rounded(x[j]); /* as stored: what is quantised depends on it */
    }
    if (dot_of(c) == FB_DOT_QUANTIZE) through_blocks(x, c->k[i]);
    return x;
}

static double activated(fb_op_kind act, double x) {
    if (act == FB_OP_GELU) return x / 2 * erfc(-x / sqrt(2));
    if (act == FB_OP_SILU) return x / (1 + exp(-x));
    return x;
}

static double dot(const double *x, const double *w, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * w[i];
    return sum;
}

/* The best column is that score, and none of those looked at has a better one. */
static double check_head(const spec *c, const set *s) {
    comparison all = {0};
    double *x = input_row(c, s, 0, 0), *w = doubles(c->k[0]), best[512];
    fetch_row(&s->out[0], 0, best);
    bool valid = best[1] >= 0 && best[1] < (double)c->n[0];
    if (valid) {
        read_row(&s->w[0], (int64_t)best[1], w);
        double score = dot(x, w, c->k[0]);
        compare(&all, best[0], score);
        for (int64_t i = 0; i < 4096; i++) {
            read_row(&s->w[0], i * c->n[0] / 4096, w);
            double other = dot(x, w, c->k[0]);
            compare(&all, fmax(other, best[0]), best[0]);
        }
    } else
        compare(&all, NAN, 0);
    free(x);
    free(w);
    return compared(&all);
}

static double check_linears(const spec *c, const set *s) {
    enum { COLUMNS = 96 };
    comparison all = {0};
    int64_t rows[3];
    int count = sample_rows(c->m, rows), outs = c->combine == FB_COMBINE_NONE ? c->segments : 1;
    double *x[FB_MAX_SEGMENTS][3], *got[3], most = 0;
    if (c->way == HEAD) return check_head(c, s);
    for (int i = 0; i < c->segments; i++)
        for (int r = 0; r < count; r++) x[i][r] = input_row(c, s, i, rows[r]);
    for (int o = 0; o < outs; o++) {
        for (int r = 0; r < count; r++) {
            got[r] = doubles(c->n[o]);
            fetch_row(&s->out[o], rows[r], got[r]);
        }
        for (int j = 0; j < COLUMNS; j++) {
            int64_t column = j == COLUMNS - 1 ? c->n[o] - 1 : j * c->n[o] / COLUMNS;
            double value[FB_MAX_SEGMENTS][3] = {{0}};
            for (int i = outs > 1 ? o : 0; i < (outs > 1 ? o + 1 : c->segments); i++) {
                double *w = doubles(c->k[i]), bias = c->bias ? half_at(&s->bias[i], column) : 0;
                read_row(&s->w[i], column, w);
                for (int r = 0; r < count; r++)
                    value[i][r] = activated(c->act[i], dot(x[i][r], w, c->k[i]) + bias);
                free(w);
            }
            for (int r = 0; r < count; r++) {
                double want = value[o][r];
                if (c->combine == FB_COMBINE_MUL) want *= value[1][r];
                if (c->combine == FB_COMBINE_ADD)
                    want += (c->segments == 2 ? value[1][r] : 0) +
                            half_at(&s->x[FB_RESIDUAL], rows[r] * c->n[0] + column);
                compare(&all, got[r][column], want);
            }
        }
        for (int r = 0; r < count; r++) free(got[r]);
        double error = compared(&all);
        if (!(error <= most)) most = error;
    }
    for (int i = 0; i < c->segments; i++)
        for (int r = 0; r < count; r++) free(x[i][r]);
    return most;
}

static double check_attention(const spec *c, const set *s) {
    comparison all = {0};
    int64_t rows[3], heads[2] = {0, c->heads - 1};
    int count = sample_rows(c->m, rows);
    double *q = doubles(c->heads * c->width), *got = doubles(c->heads * c->width), *one = doubles(c->width);
    double *score = doubles(c->position + c->m), *out = doubles(c->width);
    for (int r = 0; r < count; r++) {
        read_row(&s->x[0], rows[r], q);
        fetch_row(&s->out[0], rows[r], got);
        for (int h = 0; h < 2; h++) {
            int64_t first = heads[h] / (c->heads / c->kv_heads) * c->capacity, n = c->position + rows[r] + 1;
            double top = -INFINITY, total = 0;
            for (int64_t j = 0; j < n; j++) {
                read_row(&s->keys, first + j, one);
                score[j] = scale_of(c) * dot(q + heads[h] * c->width, one, c->width);
                top = fmax(top, score[j]);
            }
            for (int64_t i = 0; i < c->width; i++) out[i] = 0;
            for (int64_t j = 0; j < n; j++) {
                double weight = exp(score[j] - top);
                total += weight;
                read_row(&s->values, first + j, one);
                for (int64_t i = 0; i < c->width; i++) out[i] += weight * one[i];
            }
            for (int64_t i = 0; i < c->width; i++)
                compare(&all, got[heads[h] * c->width + i], out[i] / total);
        }
    }
    free(q);
    free(got);
    free(one);
    free(score);
    free(out);
    return compared(&all);
}

static double check(const spec *c, const set *s) {
    return c->family == MAPS      ? check_map(c, s)
           : c->family == LINEARS ? check_linears(c, s)
                                  : check_attention(c, s);
}

static double tolerance_of(const spec *c) { return c->way == HEAD ? TOLERANCE_HEAD : TOLERANCE; }

/* ---- one case ---------------------------------------------------------------------------------------------
 */

static int64_t scratch_of(const set *s) {
    int64_t most = FB_CUDA_COUNTERS;
    for (int i = 0; i < s->count; i++) {
        const fb_call *call = &s->step[i].call;
        switch (s->step[i].kind) {
        case FB_OP_LINEAR:
        case FB_OP_LINEAR_GROUP:
        case FB_OP_HEAD_ARGMAX:
            most = max_of(most, cuda.fb_cuda_linear_scratch(call, call->rows));
            break;
        case FB_OP_ATTN_FLASH:
            most = max_of(most, cuda.fb_cuda_attention_scratch(call, call->rows, call->kv.capacity));
            break;
        default:
            break;
        }
    }
    return most;
}

static void launch(const set *s, const fb_cuda_context *cx) {
    fb_error err;
    for (int i = 0; i < s->count; i++) {
        fb_op_kind kind = s->step[i].kind;
        must(cuda.fb_gpu_check(cuda.launches[kind](&s->step[i].call, cx), fb_op_table[kind].name, &err),
             &err);
    }
}

/* The context of the case's launches, with fresh scratch and the position on the device. */
static fb_cuda_context context_of(const spec *c, const set *s) {
    fb_cuda_context cx = bench.cx;
    fb_error err;
    cx.scratch_bytes = scratch_of(s);
    cx.scratch = take(cx.scratch_bytes);
    must(cuda.fb_gpu_zero(bench.gpu, cx.scratch, cx.scratch_bytes, &err), &err);
    uint8_t *position = take(sizeof c->position);
    upload(position, &c->position, sizeof c->position);
    cx.position = (const int64_t *)(const void *)position;
    cx.context =
        c->m == 1 && c->capacity ? c->capacity : c->position + c->m; /* as a recorded step, or a direct one */
    cx.overlap = cx.limits->major >= 9;
    must(cuda.fb_gpu_wait(bench.gpu, &err), &err);
    return cx;
}

static double floor_seconds(const spec *c, int64_t bytes) {
    double rate = c->family == MAPS ? bench.copy_rate : bench.read_rate;
    return fmax((double)bytes / rate, flops_of(c) / bench.matmul_rate);
}

/* As many as make four times the L2, if they fit. */
static int64_t sets_of(const set *s, int64_t bytes_taken) {
    if (bench.tiny) return 2;
    int64_t l2 = max_of(bench.info.limits.l2_bytes, 32 << 20), wanted = (4 * l2 + s->bytes - 1) / s->bytes;
    wanted = max_of(min_of(wanted, MOST_SETS), s->bytes > 1 << 30 ? 1 : 2);
    int64_t fit = 1 + (bench.arena_bytes - bench.used) / (bytes_taken + 65536);
    return min_of(wanted, fit);
}

static void measure(const set *sets, int64_t count, int64_t launches, const fb_cuda_context *cx, int warm,
                    double *quantiles) {
    fb_error err;
    fb_gpu_graph *graph;
    double seconds[REPEATS];
    int repeats = bench.tiny ? 3 : REPEATS;
    must(cuda.fb_gpu_record_begin(bench.gpu, &err), &err);
    for (int64_t i = 0; i < launches; i++) launch(&sets[i % count], cx);
    must(cuda.fb_gpu_record_end(bench.gpu, &graph, &err), &err);
    for (int i = 0; i < warm; i++) must(cuda.fb_gpu_graph_launch(bench.gpu, graph, &err), &err);
    for (int i = 0; i < repeats; i++) {
        must(cuda.fb_gpu_mark(bench.gpu, 2 * i, &err), &err);
        must(cuda.fb_gpu_graph_launch(bench.gpu, graph, &err), &err);
        must(cuda.fb_gpu_mark(bench.gpu, 2 * i + 1, &err), &err);
    }
    must(cuda.fb_gpu_wait(bench.gpu, &err), &err);
    for (int i = 0; i < repeats; i++) {
        must(cuda.fb_gpu_between(bench.gpu, 2 * i, 2 * i + 1, &seconds[i], &err), &err);
        seconds[i] /= (double)launches;
    }
    cuda.fb_gpu_graph_free(graph);
    fb_stats_sort(seconds, repeats);
    quantiles[0] = fb_stats_quantile(seconds, repeats, 0.1);
    quantiles[1] = fb_stats_quantile(seconds, repeats, 0.5);
    quantiles[2] = fb_stats_quantile(seconds, repeats, 0.9);
}

static void shape_text(const spec *c, char *text, size_t size) {
    long long m = c->m;
    int at;
    switch (c->family) {
    case MAPS:
        snprintf(text, size, "[%lld, %lld]", m, (long long)c->n[0]);
        break;
    case LINEARS:
        at = snprintf(text, size, "M=%lld", m);
        for (int i = 0; i < c->segments; i++)
            at += snprintf(text + at, size - (size_t)at, "%s%lldx%lld", i ? "+" : " ", (long long)c->n[i],
                           (long long)c->k[i]);
        break;
    case ATTENTION:
        snprintf(text, size, "M=%lld heads=%lld/%lld width=%lld position=%lld", m, (long long)c->heads,
                 (long long)c->kv_heads, (long long)c->width, (long long)c->position);
        break;
    }
}

static void report(const spec *c, const set *s, int64_t sets, int64_t launches, const double *q,
                   double error) {
    char shape[96];
    double flops = flops_of(c), percent = 100 * floor_seconds(c, s->bytes) / q[1];
    double rate = c->family == MAPS ? bench.copy_rate : bench.read_rate;
    bool reads = (double)s->bytes / rate >= flops / bench.matmul_rate;
    const char *dtype = c->family != LINEARS || c->weight == FB_F16 ? "f16"
                        : c->weight == FB_Q4_0                      ? "q4_0"
                                                                    : "q8_0";
    shape_text(c, shape, sizeof shape);
    if (bench.json)
        printf(
            "%s{\"name\": \"%s\", \"shape\": \"%s\", \"dtype\": \"%s\", \"us\": %.3f, \"us_p10\": %.3f, "
            "\"us_p90\": %.3f, "
            "\"bytes\": %lld, \"flops\": %.0f, \"gb_per_s\": %.1f, \"tflop_per_s\": %.2f, \"bound\": \"%s\", "
            "\"percent\": %.1f, \"error\": %.2e, \"ops\": %d, \"sets\": %lld, \"launches\": %lld}",
            bench.printed ? ",\n " : "[", c->name, shape, dtype, 1e6 * q[1], 1e6 * q[0], 1e6 * q[2],
            (long long)s->bytes, flops, 1e-9 * (double)s->bytes / q[1], 1e-12 * flops / q[1],
            reads ? "bandwidth" : "matmul", percent, error == error ? error : 9.99e99, s->count,
            (long long)sets, (long long)launches);
    else {
        printf("%-22s %-52s %-4s %9.2f us [%.2f, %.2f] ", c->name, shape, dtype, 1e6 * q[1], 1e6 * q[0],
               1e6 * q[2]);
        if (reads)
            printf("%7.1f GB/s", 1e-9 * (double)s->bytes / q[1]);
        else
            printf("%7.1f TFLOP/s", 1e-12 * flops / q[1]);
        printf(" %5.1f %%  error %.1e%s\n", percent, error, error <= tolerance_of(c) ? "" : "  WRONG");
    }
    fflush(stdout);
    bench.printed++;
}

static void run(const spec *c) {
    static set sets[MOST_SETS];
    fb_error err;
    bench.used = 0;
    make_set(c, &sets[0]);
    int64_t taken = bench.used;
    fb_cuda_context cx = context_of(c, &sets[0]);
    launch(&sets[0], &cx);
    must(cuda.fb_gpu_wait(bench.gpu, &err), &err);
    double error = check(c, &sets[0]), q[3];
    if (!(error <= tolerance_of(c))) bench.wrong++;
    int64_t count = sets_of(&sets[0], taken);
    for (int64_t i = 1; i < count; i++) make_set(c, &sets[i]);
    must(cuda.fb_gpu_wait(bench.gpu, &err), &err);
    double about = fmax((double)sets[0].bytes / 4e12, flops_of(c) / 6e14) + 2e-6 * sets[0].count;
    int64_t rounds = (int64_t)ceil(GRAPH_TIME / about / (double)count);
    int64_t launches = bench.tiny ? count : count * max_of(1, rounds);
    measure(sets, count, launches, &cx, bench.tiny ? 1 : c->ceiling ? WARM_CEILING : WARM, q);
    if (c->ceiling)
        *c->ceiling = (c->m > 8 && c->family == LINEARS ? flops_of(c) : (double)sets[0].bytes) / q[1];
    report(c, &sets[0], count, launches, q, error);
}

/* ---- all cases --------------------------------------------------------------------------------------------
 */

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

static void add_cases(void) {
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
}

/* What the other cases are compared with. */
static void run_ceilings(void) {
    spec *c[3] = {add_map("ceiling: add", FB_OP_ADD, 2, 0, 16384, 16384),
                  add_linear("ceiling: matvec", ALONE, FB_F16, 1, 131072, 8192),
                  add_linear("ceiling: matmul", ALONE, FB_F16, 4096, 8192, 8192)};
    double *rates[3] = {&bench.copy_rate, &bench.read_rate, &bench.matmul_rate};
    for (int i = 0; i < 3; i++) *rates[i] = INFINITY; /* until it is known */
    for (int i = 0; i < 3; i++) {
        c[i]->ceiling = rates[i];
        run(c[i]);
    }
    case_count = 0;
}

static void open_device(void) {
    fb_error err;
    void *memory;
    must(cuda.fb_gpu_describe(0, &bench.info, &err), &err);
    must(cuda.fb_gpu_open(0, &bench.gpu, &err), &err);
    cuda.fb_gpu_context(bench.gpu, &bench.cx);
    bench.arena_bytes = bench.tiny ? 256 << 20 : min_of(MOST_ARENA, bench.info.memory_free / 10 * 8);
    must(cuda.fb_gpu_take(bench.gpu, "all cases", bench.arena_bytes, &memory, &err), &err);
    bench.arena = memory;
    make_block();
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            bench.json = true;
        else if (strcmp(argv[i], "--tiny") == 0)
            bench.tiny = true;
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            bench.only = argv[++i];
        else
            die("%s (usage: gpu_ops [--json] [--tiny] [--only TEXT])", argv[i]);
    }
    open_library();
    open_device();
    if (!bench.json)
        printf("%s, sm_%d%d\n", bench.info.name, bench.info.limits.major, bench.info.limits.minor);
    run_ceilings();
    add_cases();
    for (int i = 0; i < case_count; i++)
        if (!bench.only || strstr(cases[i].name, bench.only)) run(&cases[i]);
    if (bench.json) puts("]");
    if (bench.wrong) fprintf(stderr, "gpu_ops: %d of %d results are wrong\n", bench.wrong, bench.printed);
    cuda.fb_gpu_give(bench.gpu, bench.arena);
    cuda.fb_gpu_give_host(bench.gpu, block.memory);
    free(block.values);
    cuda.fb_gpu_close(bench.gpu);
    return bench.wrong != 0;
}
