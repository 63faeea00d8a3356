/* Measures what kernels and ops cost. calibrate_memory.c measures memory and barriers. */
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "backend/cpu/host/isa.h"
#include "backend/single.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/pack.h"
#include "base/quant.h"
#include "plan/calibrate.h"

static void measure_clock(fb_machine *m) {
    double began = fb_now();
    for (int i = 0; i < 1000; i++) (void)fb_now();
    m->clock = (fb_now() - began) / 1000;
}

/* ---- the cost of an op outside its kernel ---- */

/* A real executor on a program whose layers do almost nothing: one add of 16 elements, a thousand times. */
#define IDLE_LAYERS 1000
#define IDLE_WIDTH  16

static void idle_program(fb_program *p) {
    memset(p, 0, sizeof *p);
    *p = (fb_program){.layers = IDLE_LAYERS,
                      .hidden = IDLE_WIDTH,
                      .vocab = IDLE_WIDTH,
                      .context = 1,
                      .kv_heads = 1,
                      .head_dim = 1,
                      .logits = 2,
                      .best = FB_NONE,
                      .value_count = 3,
                      .slot_count = 1,
                      .carry_count = 1};
    for (int32_t v = 0; v < 3; v++) p->values[v] = (fb_value){"v", v, 1, IDLE_WIDTH, 0, IDLE_WIDTH, false};
    p->slots[0] = (fb_slot){.name = "w", .rows = IDLE_WIDTH, .cols = IDLE_WIDTH};
    p->carries[0] = (fb_carry){0, 1};
    for (int s = 0; s < FB_SECTIONS; s++) {
        fb_op *op = &p->ops[s][0];
        p->op_count[s] = 1;
        for (int k = 0; k < FB_MAX_IN; k++) op->in[k] = FB_NONE;
        for (int k = 0; k < FB_MAX_OUT; k++) op->out[k] = FB_NONE;
        for (int k = 0; k < FB_MAX_WEIGHTS; k++) op->weights[k] = op->last_weights[k] = FB_NONE;
        op->kind = s == FB_PROLOGUE ? FB_OP_EMBED : s == FB_BODY ? FB_OP_ADD : FB_OP_LINEAR;
        op->out[0] = s;
        if (s != FB_PROLOGUE) op->in[0] = 0;
        if (s == FB_BODY) op->in[1] = 0;
        if (s != FB_BODY) op->weights[0] = 0;
    }
}

static fb_status time_engine(const fb_bound *bound, const fb_machine *m, double *seconds, fb_error *err) {
    fb_executor_options options = {.threads = 1,
                                   .act = m->act,
                                   .kv = m->act,
                                   .isa = m->isa,
                                   .capacity = 1,
                                   .chunk = 1,
                                   .epilogue_rows = 1};
    float logits[IDLE_WIDTH];
    fb_row row = {.wanted = 1};
    fb_single single;
    FB_TRY(fb_single_open(&fb_backend_cpu, 0, bound, &options, &single, err));
    fb_status status = FB_OK;
    *seconds = INFINITY;
    for (int run = 0; run < FB_CALIBRATE_RUNS && status == FB_OK; run++) {
        double began = fb_now();
        status = fb_single_run(&single, &row, 1, 1, logits, NULL, err);
        *seconds = fmin(*seconds, fb_now() - began);
    }
    fb_single_close(&single);
    return status;
}

static fb_status measure_dispatch(fb_machine *m, fb_error *err) {
    static const float table[IDLE_WIDTH * IDLE_WIDTH];
    fb_program *p = malloc(sizeof *p);
    fb_weight *weights = malloc(IDLE_LAYERS * sizeof *weights);
    fb_status status = p && weights ? FB_OK : fb_fail_memory(err, "dispatch measurement", sizeof *p);
    double seconds = 0;
    if (status == FB_OK) {
        idle_program(p);
        for (int i = 0; i < IDLE_LAYERS; i++)
            weights[i] = (fb_weight){.data = table, .dtype = FB_F32, .rows = IDLE_WIDTH, .cols = IDLE_WIDTH};
        status = time_engine(&(fb_bound){p, weights}, m, &seconds, err);
    }
    free(p);
    free(weights);
    m->dispatch = seconds / IDLE_LAYERS;
    return status;
}

/* ---- kernels ---- */

/* Each kernel runs at two sizes, in which calls and units of its term differ. That gives both prices. */
typedef struct probe_size {
    int64_t rows, heads, width; /* of the values */
    int64_t outputs;            /* outputs of a linear; its inputs are heads * width */
    int64_t position;
} probe_size;

typedef struct probe {
    fb_term term;
    fb_op_kind kind;
    fb_dtype weight;
    probe_size small, large;
} probe;

/* Enough outputs that the cost of the call, which is priced as dispatch, does not matter: 256 KB of float16.
 */
#define ONE                                                                                                  \
    {1, 1, 256, 128, 0}, { 1, 1, 1024, 128, 0 }
#define MANY                                                                                                 \
    {48, 1, 256, 48, 0}, { 48, 1, 1024, 48, 0 }
#define ROW                                                                                                  \
    {1, 1, 256, 0, 0}, { 1, 1, 2048, 0, 0 }
#define PAST                                                                                                 \
    {1, 1, 32, 0, 255}, { 1, 1, 128, 0, 255 }
#define PAST_MANY                                                                                            \
    {64, 1, 32, 0, 192}, { 64, 1, 128, 0, 192 }

static const probe probes[] = {
    {FB_TERM_ONE_F32, FB_OP_LINEAR, FB_F32, ONE},
    {FB_TERM_ONE_F16, FB_OP_LINEAR, FB_F16, ONE},
    {FB_TERM_ONE_BF16, FB_OP_LINEAR, FB_BF16, ONE},
    {FB_TERM_MANY_F32, FB_OP_LINEAR, FB_F32, MANY},
    {FB_TERM_MANY_F16, FB_OP_LINEAR, FB_F16, MANY},
    {FB_TERM_MANY_BF16, FB_OP_LINEAR, FB_BF16, MANY},
    {FB_TERM_ONE_Q8_0, FB_OP_LINEAR, FB_Q8_0, ONE},
    {FB_TERM_ONE_Q4_0, FB_OP_LINEAR, FB_Q4_0, ONE},
    {FB_TERM_MANY_Q8_0, FB_OP_LINEAR, FB_Q8_0, MANY},
    {FB_TERM_MANY_Q4_0, FB_OP_LINEAR, FB_Q4_0, MANY},
    {FB_TERM_ONE_Q4_K, FB_OP_LINEAR, FB_Q4_K, ONE},
    {FB_TERM_ONE_Q6_K, FB_OP_LINEAR, FB_Q6_K, ONE},
    {FB_TERM_MANY_Q4_K, FB_OP_LINEAR, FB_Q4_K, MANY},
    {FB_TERM_MANY_Q6_K, FB_OP_LINEAR, FB_Q6_K, MANY},
    {FB_TERM_DECODED, FB_OP_LINEAR, FB_Q4_K, ONE},
    {FB_TERM_QUANTIZE, FB_OP_QUANTIZE, FB_F32, ROW},
    {FB_TERM_BEST, FB_OP_HEAD_ARGMAX, FB_F16, ONE},
    {FB_TERM_LAYERNORM, FB_OP_LAYERNORM, FB_F16, ROW},
    {FB_TERM_RMSNORM, FB_OP_RMSNORM, FB_F16, ROW},
    {FB_TERM_ADD, FB_OP_ADD, FB_F32, ROW},
    {FB_TERM_GELU, FB_OP_GELU, FB_F32, ROW},
    {FB_TERM_GELU_TANH, FB_OP_GELU_TANH, FB_F32, ROW},
    {FB_TERM_SILU, FB_OP_SILU, FB_F32, ROW},
    {FB_TERM_SCORES, FB_OP_ATTN_SCORES, FB_F32, PAST},
    {FB_TERM_SCORES_MANY, FB_OP_ATTN_SCORES, FB_F32, PAST_MANY},
    {FB_TERM_SOFTMAX, FB_OP_SOFTMAX, FB_F32, {1, 1, 32, 0, 70}, {1, 1, 32, 0, 518}},
    {FB_TERM_VALUES, FB_OP_ATTN_VALUES, FB_F32, PAST},
    {FB_TERM_VALUES_MANY, FB_OP_ATTN_VALUES, FB_F32, PAST_MANY},
    {FB_TERM_FLASH, FB_OP_ATTN_FLASH, FB_F32, PAST},
    {FB_TERM_FLASH_MANY, FB_OP_ATTN_FLASH, FB_F32, PAST_MANY},
    {FB_TERM_ROPE, FB_OP_ROPE, FB_F32, {1, 4, 32, 0, 0}, {1, 4, 256, 0, 0}},
    {FB_TERM_ROPE_RAGGED, FB_OP_ROPE, FB_F32, {1, 4, 8, 0, 0}, {1, 8, 8, 0, 0}},
    {FB_TERM_APPEND, FB_OP_KV_APPEND, FB_F32, {1, 4, 32, 0, 0}, {1, 4, 256, 0, 0}},
    {FB_TERM_ANGLES, FB_OP_ROPE_ANGLES, FB_F32, {1, 1, 16, 0, 100}, {1, 1, 128, 0, 100}},
};

#define PROBE_ROWS   64 /* at most */
#define PROBE_FLOATS (256 << 10)
enum { PROBE_IN, PROBE_IN2, PROBE_OUT, PROBE_WEIGHT, PROBE_KV, PROBE_SCRATCH, PROBE_Q8, PROBE_BUFFERS };

static double probe_calls(const probe *p, const probe_size *s) {
    switch (p->kind) {
    case FB_OP_LINEAR:
    case FB_OP_HEAD_ARGMAX:
        return (double)(s->rows * s->outputs);
    case FB_OP_ATTN_SCORES:
    case FB_OP_ATTN_VALUES:
    case FB_OP_ATTN_FLASH:
        return (double)(s->rows * (s->position + 1) + s->rows * (s->rows - 1) / 2);
    default:
        return (double)(s->rows * s->heads);
    }
}

static double probe_units(const probe *p, const probe_size *s) {
    switch (p->kind) {
    case FB_OP_LINEAR:
    case FB_OP_ATTN_SCORES:
    case FB_OP_ATTN_VALUES:
    case FB_OP_ATTN_FLASH:
        return probe_calls(p, s) * (double)s->width;
    case FB_OP_SOFTMAX:
        return (double)(s->position + 1);
    case FB_OP_ROPE_ANGLES:
        return (double)s->width / 2;
    case FB_OP_HEAD_ARGMAX:
        return 0;
    default:
        return (double)(s->rows * s->heads * s->width);
    }
}

/* Only the default dtype of the cache is measured. Others cost about the same to compute with, and their
 * bytes are counted exactly. */
static fb_dtype probe_kv(fb_dtype act) {
    fb_dtype kv;
    return fb_dtype_parse_kv(NULL, act, &kv, NULL) == FB_OK ? kv : act;
}

static fb_view probe_view(float *data, fb_dtype dtype, int64_t heads, int64_t width) {
    return (fb_view){data, dtype, heads, width, heads * width, width};
}

static void probe_call(const probe *p, const probe_size *s, fb_dtype act, float *const *buffer,
                       const double *frequencies, fb_row *row, fb_call *call) {
    bool linear = p->kind == FB_OP_LINEAR || p->kind == FB_OP_HEAD_ARGMAX, soft = p->kind == FB_OP_SOFTMAX;
    fb_dtype angles = act == FB_F64 ? FB_F64 : FB_F32;
    int64_t context = s->position + s->rows;
    int64_t width = soft || p->kind == FB_OP_ATTN_VALUES ? context : s->width;
    memset(call, 0, sizeof *call);
    call->rows = s->rows;
    call->row = row;
    for (int64_t r = 0; r < s->rows; r++) row[r] = (fb_row){.position = s->position + r};
    call->attr =
        (fb_op_attr){.eps = 1e-5f, .scale = 0.1f, .rotary = (int32_t)s->width, .frequencies = frequencies};
    call->in[0] = probe_view(buffer[PROBE_IN], act, s->heads, width);
    call->in[1] = probe_view(buffer[PROBE_IN2], p->kind == FB_OP_ROPE ? angles : act, s->heads, s->width);
    call->out[0] = probe_view(buffer[PROBE_OUT], act, s->heads, linear ? s->outputs : s->width);
    if (p->kind == FB_OP_HEAD_ARGMAX || p->kind == FB_OP_ROPE_ANGLES) call->out[0].dtype = angles;
    if (soft || p->kind == FB_OP_ATTN_SCORES) call->out[0].width = call->out[0].row_stride = context;
    bool pack = fb_pack_has(p->weight), integers = pack && p->term != FB_TERM_DECODED;
    call->weights[0] = (fb_weight){.data = buffer[PROBE_WEIGHT],
                                   .dtype = p->weight,
                                   .rows = linear ? s->outputs : 1,
                                   .cols = s->heads * s->width,
                                   .packed = pack};
    if (integers) call->attr.segment[0].dot = FB_DOT_GIVEN;
    if (integers) call->in[0].row_stride = fb_q8_floats(s->width);
    if (integers) call->in[0].data = buffer[PROBE_Q8];
    if (p->kind == FB_OP_LAYERNORM) call->weights[1] = call->weights[0];
    call->kv = (fb_kv){.k = buffer[PROBE_KV],
                       .v = buffer[PROBE_KV] + PROBE_FLOATS / 2,
                       .dtype = probe_kv(act),
                       .heads = s->heads,
                       .capacity = (context + FB_KV_GROUP - 1) / FB_KV_GROUP * FB_KV_GROUP,
                       .width = s->width};
}

static double best_call(fb_cpu_kernel kernel, const fb_call *call, float *scratch) {
    fb_worker worker = {.count = 1, .scratch = scratch};
    double best = INFINITY;
    int64_t times = 1;
    for (int run = 0; run < FB_CALIBRATE_RUNS;) {
        double began = fb_now();
        for (int64_t i = 0; i < times; i++) kernel(call, &worker);
        double took = fb_now() - began;
        if (run == 0 && took < 50e-6) {
            times *= 2; /* until a run is long compared with reading the clock */
            continue;
        }
        best = fmin(best, took / (double)times);
        run++;
    }
    return best;
}

/* Solves calls * a + units * b = seconds at both sizes. Neither price may be negative. */
static fb_work solve(const double calls[2], const double units[2], const double seconds[2]) {
    double det = calls[0] * units[1] - calls[1] * units[0];
    if (det == 0) return (fb_work){seconds[1] / calls[1], 0};
    double call = (seconds[0] * units[1] - seconds[1] * units[0]) / det;
    if (call < 0) return (fb_work){0, seconds[1] / units[1]};
    double unit = (calls[0] * seconds[1] - calls[1] * seconds[0]) / det;
    return unit < 0 ? (fb_work){seconds[1] / calls[1], 0} : (fb_work){call, unit};
}

static void probe_kernels(fb_machine *m, const fb_isa *isa, float *const *buffer, const double *frequencies) {
    for (size_t i = 0; i < sizeof probes / sizeof *probes; i++) {
        const probe *p = &probes[i];
        double calls[2], units[2], seconds[2];
        for (int k = 0; k < 2; k++) {
            const probe_size *s = k ? &p->large : &p->small;
            fb_row row[PROBE_ROWS];
            fb_call call;
            probe_call(p, s, m->act, buffer, frequencies, row, &call);
            calls[k] = probe_calls(p, s);
            units[k] = probe_units(p, s);
            seconds[k] = best_call(isa->kernels[p->kind], &call, buffer[PROBE_SCRATCH]);
            if (p->kind == FB_OP_HEAD_ARGMAX) /* its cost on top of the linear that it contains */
                seconds[k] =
                    fmax(0, seconds[k] - calls[k] * (m->term[FB_TERM_ONE_F16].calls +
                                                     (double)s->width * m->term[FB_TERM_ONE_F16].units));
        }
        m->term[p->term] = solve(calls, units, seconds);
    }
    /* Two operations a multiply-add, at a width of 1024. */
    fb_work many = m->term[FB_TERM_MANY_F16];
    m->flops = 2 * m->workers / (many.units + many.calls / 1024);
}

/* Copying out a row of logits and finding the largest, as a session does. */
static void measure_logits(fb_machine *m, float *const *buffer) {
    enum { LOGITS = 4096 };
    double best = INFINITY;
    for (int run = 0; run < FB_CALIBRATE_RUNS; run++) {
        double began = fb_now();
        float *out = buffer[PROBE_OUT];
        for (int64_t i = 0; i < LOGITS; i++) out[i] = (float)fb_dtype_get(m->act, buffer[PROBE_IN], i);
        volatile int32_t winner = 0;
        for (int32_t i = 1; i < LOGITS; i++)
            if (out[i] > out[winner]) winner = i;
        best = fmin(best, fb_now() - began);
    }
    m->term[FB_TERM_LOGITS] = (fb_work){0, best / LOGITS};
}

static fb_status measure_kernels(fb_machine *m, const fb_isa *isa, fb_error *err) {
    void *memory;
    FB_TRY(fb_memory_take("kernel measurement", (int64_t)PROBE_BUFFERS * PROBE_FLOATS * 8, &memory, err));
    float *buffer[PROBE_BUFFERS];
    for (int b = 0; b < PROBE_BUFFERS; b++) {
        buffer[b] = (float *)memory + 2 * (int64_t)b * PROBE_FLOATS;
        /* Small numbers in every dtype, but never subnormal: those would slow some machines down. */
        fb_dtype dtype = b == PROBE_WEIGHT ? FB_F16 : b == PROBE_KV ? probe_kv(m->act) : m->act;
        for (int64_t i = 0; i < PROBE_FLOATS; i++)
            fb_dtype_set(dtype, buffer[b], i, 0.25 + 0.01 * (double)(i % 7));
        if (b == PROBE_Q8) memset(buffer[b], 0, 2 * PROBE_FLOATS * sizeof(float)); /* blocks, not floats */
    }
    double frequencies[128];
    for (int i = 0; i < 128; i++) frequencies[i] = pow(10000, -i / 128.0);
    probe_kernels(m, isa, buffer, frequencies);
    measure_logits(m, buffer);
    free(memory);
    return FB_OK;
}

/* ---- computing while reading ---- */

/* Weights as in real layers: matrix after matrix of 512 KB in small pages, with a barrier after each. */
#define STREAM_K       256
#define STREAM_OUTPUTS 1024
#define STREAM_BYTES   (STREAM_OUTPUTS * STREAM_K * 2)
#define STREAM_CALLS   (FB_CALIBRATE_STREAMED / STREAM_BYTES)
#define STREAM_SCRATCH (FB_LINEAR_WORK + 2 * STREAM_K)

typedef struct streaming {
    fb_pool *pool;
    fb_cpu_kernel kernel;
    fb_call call;
    uint8_t *weights;
    float *scratch; /* [workers][STREAM_SCRATCH] */
} streaming;

static void stream_worker(void *arg, int32_t index) {
    const streaming *s = arg;
    fb_worker worker = {
        .index = index, .count = fb_pool_workers(s->pool), .scratch = s->scratch + index * STREAM_SCRATCH};
    fb_call call = s->call;
    for (int i = 0; i < STREAM_CALLS; i++) {
        call.weights[0].data = s->weights + (int64_t)i * STREAM_BYTES;
        s->kernel(&call, &worker);
        fb_pool_barrier(s->pool);
    }
}

static double best_stream(streaming *s) {
    double best = INFINITY;
    for (int run = 0; run < 4 * FB_CALIBRATE_RUNS; run++) {
        double began = fb_now();
        fb_pool_run(s->pool, fb_pool_workers(s->pool), stream_worker, s);
        best = fmin(best, fb_now() - began);
    }
    return best / STREAM_CALLS;
}

/* A linear of one token whose weights exceed a core's cache takes longer than reading alone or computing
 * alone. The overlap is the fraction of the shorter one that is hidden. */
static fb_status measure_overlap(fb_machine *m, const fb_isa *isa, fb_pool *pool, fb_error *err) {
    size_t bytes =
        FB_CALIBRATE_STREAMED + (STREAM_K + STREAM_OUTPUTS) * 8 + (size_t)m->workers * STREAM_SCRATCH * 4;
    uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return fb_fail_memory(err, "overlap measurement", (int64_t)bytes);
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    memset(memory, 0, bytes);
    streaming s = {.pool = pool, .kernel = isa->kernels[FB_OP_LINEAR], .weights = memory};
    uint8_t *at = memory + FB_CALIBRATE_STREAMED;
    s.call = (fb_call){
        .rows = 1, .weights = {{.data = memory, .dtype = FB_F16, .rows = STREAM_OUTPUTS, .cols = STREAM_K}}};
    s.call.in[0] = probe_view((float *)(void *)at, m->act, 1, STREAM_K);
    s.call.out[0] = probe_view((float *)(void *)(at + STREAM_K * 8), m->act, 1, STREAM_OUTPUTS);
    s.scratch = (float *)(void *)(at + (STREAM_K + STREAM_OUTPUTS) * 8);
    double took = best_stream(&s) - m->barrier - m->latency;
    munmap(memory, bytes);
    const fb_work *one = &m->term[FB_TERM_ONE_F16];
    double compute = (double)STREAM_OUTPUTS / m->workers * (one->calls + STREAM_K * one->units);
    double memory_time = STREAM_BYTES / fb_machine_bandwidth(m, FB_CALIBRATE_STREAMED);
    m->overlap = fmin(1, fmax(0, (compute + memory_time - took) / fmin(compute, memory_time)));
    return FB_OK;
}

fb_status fb_machine_measure(int32_t workers, const char *isa_name, fb_dtype act, fb_machine *m,
                             fb_error *err) {
    const fb_isa *isa;
    fb_pool *pool;
    FB_TRY(fb_isa_find(isa_name, &isa, err));
    if (!workers) workers = fb_pool_cores();
    fb_machine_assume(m, workers, act);
    strncpy(m->isa, isa->name, sizeof m->isa - 1);
    FB_TRY(fb_pool_create(workers, &pool, err));
    m->barrier = workers > 1 ? INFINITY : 0;
    fb_status status = fb_calibrate_barriers(m, pool, err);
    if (status == FB_OK) status = fb_calibrate_bandwidth(m, pool, err);
    if (status == FB_OK) status = fb_calibrate_barriers(m, pool, err);
    measure_clock(m);
    if (status == FB_OK) status = measure_kernels(m, isa, err);
    if (status == FB_OK) status = measure_overlap(m, isa, pool, err);
    fb_pool_free(pool);
    if (status == FB_OK) status = measure_dispatch(m, err);
    /* A step has two more barriers: to start the pool's run, and to end it. */
    m->step = 2 * m->barrier + 2 * m->clock;
    return status;
}
