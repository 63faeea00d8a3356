/* Measures a GPU from outside: executors of its backend run programs made for the purpose. */
#include <math.h>
#include <stdlib.h>

#include "backend/single.h"
#include "base/clock.h"
#include "base/quant.h"
#include "plan/calibrate.h"

#define FEW   16   /* logits of a step … */
#define MANY  8192 /* … and of one with many */
#define TINY  256  /* elements of an op that moves almost nothing */
#define SHORT 8    /* layers of a short chain … */
#define LONG  256  /* … and of a long one, each of two ops */
#define MOST  512  /* layers of a curve's point */
#define ROWS  512  /* rows of a prefill step, as in sessions */

/* The longest that a step should take. On a slow device the curves end early. */
#define STEP_SECONDS  0.2
#define TRIAL_SECONDS 0.1 /* time of all timed runs of a trial, unless two runs take longer */

/* What the layers of a trial's program compute. */
typedef enum work {
    WORK_SMALL,       /* an add and a norm of k elements */
    WORK_LINEAR,      /* n outputs of k inputs, float16 weights */
    WORK_NORM_LINEAR, /* the same, with a norm of the input */
    WORK_GIVEN,       /* the same with Q8_0 weights and an input that is already quantised */
    WORK_QUANTISE     /* the same, but the linear quantises its input */
} work;

typedef struct trial {
    work work;
    int64_t layers, k, n, rows, vocab;
    bool own;   /* each layer has a weight of its own */
    bool graph; /* the step is recorded as a graph */
} trial;

/* ---- one trial ---- */

enum { SLOT_TABLE, SLOT_LAYER, SLOT_NORM, SLOT_HEAD, SLOTS };
enum { VALUE_X, VALUE_LAYER, VALUE_NORM, VALUE_BLOCKS, VALUE_LOGITS, VALUES };

static fb_op make_op(fb_op_kind kind, int32_t in, int32_t out, int32_t weight) {
    fb_op op = {.kind = kind};
    for (int k = 0; k < FB_MAX_IN; k++) op.in[k] = FB_NONE;
    for (int k = 0; k < FB_MAX_OUT; k++) op.out[k] = FB_NONE;
    for (int k = 0; k < FB_MAX_WEIGHTS; k++) op.weights[k] = op.last_weights[k] = FB_NONE;
    op.in[0] = in;
    if (kind == FB_OP_ADD) op.in[1] = in;
    op.out[0] = out;
    op.weights[0] = weight;
    return op;
}

static void make_body(const trial *t, fb_program *p) {
    fb_op *op = p->ops[FB_BODY];
    p->op_count[FB_BODY] = t->work == WORK_SMALL ? 2 : 1;
    if (t->work == WORK_SMALL) {
        op[0] = make_op(FB_OP_ADD, VALUE_X, VALUE_LAYER, FB_NONE);
        op[1] = make_op(FB_OP_RMSNORM, VALUE_LAYER, VALUE_NORM, SLOT_NORM);
        op[1].attr.eps = 1e-5f;
        return;
    }
    bool norm = t->work == WORK_NORM_LINEAR, given = t->work == WORK_GIVEN;
    op[0] = make_op(norm ? FB_OP_LINEAR_GROUP : FB_OP_LINEAR, given ? VALUE_BLOCKS : VALUE_X, VALUE_LAYER,
                    SLOT_LAYER);
    op[0].attr.segments = 1;
    op[0].attr.segment[0] = (fb_segment){norm ? FB_OP_RMSNORM : FB_OP_COUNT, FB_OP_COUNT, 1e-5f,
                                         given                      ? FB_DOT_GIVEN
                                         : t->work == WORK_QUANTISE ? FB_DOT_QUANTIZE
                                                                    : FB_DOT_FLOAT};
    if (norm) op[0].weights[2] = op[0].last_weights[2] = SLOT_NORM;
    if (!given) return;
    p->op_count[FB_PROLOGUE] = 2;
    p->ops[FB_PROLOGUE][1] = make_op(FB_OP_QUANTIZE, VALUE_X, VALUE_BLOCKS, FB_NONE);
}

/* Every layer reads x, the embedding. They run one after the other all the same, as they are on one stream.
 */
static void make_program(const trial *t, fb_program *p) {
    const int64_t widths[VALUES] = {t->k, t->work == WORK_SMALL ? t->k : t->n, t->k, fb_q8_floats(t->k),
                                    t->vocab};
    memset(p, 0, sizeof *p);
    *p = (fb_program){.layers = t->layers,
                      .hidden = t->k,
                      .vocab = t->vocab,
                      .context = FB_CALIBRATE_RUNS + 2 + t->rows,
                      .kv_heads = 1,
                      .head_dim = 2,
                      .logits = VALUE_LOGITS,
                      .best = FB_NONE,
                      .op_count = {1, 0, 1},
                      .value_count = VALUES,
                      .slot_count = SLOTS};
    for (int32_t v = 0; v < VALUES; v++)
        p->values[v] = (fb_value){"v", v, 1, widths[v], 0, widths[v], v == VALUE_BLOCKS};
    p->slots[SLOT_TABLE] = (fb_slot){.name = "table", .rows = t->vocab, .cols = t->k};
    p->slots[SLOT_LAYER] = (fb_slot){.name = "w.{}", .rows = t->n, .cols = t->k, .per_layer = t->own};
    p->slots[SLOT_NORM] = (fb_slot){.name = "norm", .rows = 1, .cols = t->k, .vector = true};
    p->slots[SLOT_HEAD] = (fb_slot){.name = "head", .rows = t->vocab, .cols = t->k};
    p->ops[FB_PROLOGUE][0] = make_op(FB_OP_EMBED, FB_NONE, VALUE_X, SLOT_TABLE);
    make_body(t, p);
    p->ops[FB_EPILOGUE][0] = make_op(FB_OP_LINEAR, VALUE_X, VALUE_LOGITS, SLOT_HEAD);
}

/* The zeros of each layer begin 256 bytes after those of the layer before. The addresses differ, so the
 * backend copies each layer's weights, but the host needs little more memory than for one layer. */
#define APART 256

static fb_weight zero_weight(const uint8_t *zeros, fb_dtype dtype, int64_t rows, int64_t cols) {
    return (fb_weight){.data = zeros, .dtype = dtype, .rows = rows, .cols = cols};
}

static void fill_weights(const trial *t, uint8_t *zeros, fb_weight *weights) {
    fb_dtype dtype = t->work == WORK_GIVEN || t->work == WORK_QUANTISE ? FB_Q8_0 : FB_F16;
    for (int64_t layer = 0; layer < t->layers; layer++) {
        weights[SLOT_TABLE * t->layers + layer] = zero_weight(zeros, FB_F16, t->vocab, t->k);
        weights[SLOT_LAYER * t->layers + layer] =
            zero_weight(zeros + (t->own ? layer * APART : 0), dtype, t->n, t->k);
        weights[SLOT_NORM * t->layers + layer] = zero_weight(zeros, FB_F16, 1, t->k);
        weights[SLOT_HEAD * t->layers + layer] = zero_weight(zeros, FB_F16, t->vocab, t->k);
    }
}

typedef struct bench {
    const fb_backend *backend;
    int32_t device;
    fb_dtype act;
} bench;

/* The first step is not timed, because it may load kernels and record. Positions advance as in decoding, so
 * that a recorded step finds its position by itself. */
static fb_status time_steps(fb_single *single, const trial *t, double *seconds, fb_error *err) {
    float logits[MANY];
    fb_row rows[ROWS];
    double began = 0;
    *seconds = INFINITY;
    for (int64_t run = 0; run <= FB_CALIBRATE_RUNS; run++) {
        for (int64_t i = 0; i < t->rows; i++)
            rows[i] = (fb_row){.position = run + i, .wanted = i + 1 == t->rows};
        double start = fb_now();
        FB_TRY(fb_single_run(single, rows, t->rows, 1, logits, NULL, err));
        volatile int32_t best = 0;
        for (int32_t i = 1; i < t->vocab; i++)
            if (logits[i] > logits[best]) best = i;
        double took = fb_now() - start;
        if (run == 0)
            began = fb_now();
        else
            *seconds = fmin(*seconds, took);
        if (run >= 2 && fb_now() - began > TRIAL_SECONDS) break;
    }
    return FB_OK;
}

static fb_status time_trial(const bench *b, const trial *t, double *seconds, fb_error *err) {
    int64_t wide = t->n > t->vocab ? t->n : t->vocab, bytes = wide * t->k * 2 + t->layers * APART;
    fb_executor_options options = {.act = b->act,
                                   .kv = b->act,
                                   .graph = t->graph,
                                   .capacity = FB_CALIBRATE_RUNS + 2 + t->rows,
                                   .chunk = t->rows,
                                   .epilogue_rows = 1};
    fb_program *program = malloc(sizeof *program);
    fb_weight *weights = calloc((size_t)(SLOTS * t->layers), sizeof *weights);
    uint8_t *zeros = calloc(1, (size_t)bytes);
    fb_single single = {0};
    fb_status status = program && weights && zeros ? FB_OK : fb_fail_memory(err, "GPU measurement", bytes);
    if (status == FB_OK) {
        make_program(t, program);
        fill_weights(t, zeros, weights);
        status = fb_single_open(b->backend, b->device, &(fb_bound){program, weights}, &options, &single, err);
    }
    if (status == FB_OK) status = time_steps(&single, t, seconds, err);
    fb_single_close(&single);
    free(program);
    free(weights);
    free(zeros);
    return status;
}

/* ---- what is measured ---- */

/* Times chains of ops that move almost nothing: seconds per op, and seconds of a step without its ops. The
 * step has two ops more. */
static fb_status measure_chain(const bench *b, bool graph, double *op, double *step, fb_error *err) {
    trial t = {WORK_SMALL, SHORT, TINY, 1, 1, FEW, false, graph};
    double few, many;
    FB_TRY(time_trial(b, &t, &few, err));
    t.layers = LONG;
    FB_TRY(time_trial(b, &t, &many, err));
    *op = fmax((many - few) / (2 * (LONG - SHORT)), 1e-9);
    *step = fmax(few - (2 * SHORT + 2) * *op, 0);
    return FB_OK;
}

/* Copying logits to the host and finding the largest, as a session does. */
static fb_status measure_logits(const bench *b, fb_machine *m, fb_error *err) {
    trial t = {WORK_SMALL, 1, TINY, 1, 1, FEW, false, true};
    double few, many;
    FB_TRY(time_trial(b, &t, &few, err));
    t.vocab = MANY;
    FB_TRY(time_trial(b, &t, &many, err));
    m->term[FB_TERM_LOGITS].units = fmax(0, (many - few) / (MANY - FEW));
    return FB_OK;
}

static double median(double *values, int count) {
    for (int i = 1; i < count; i++)
        for (int k = i; k > 0 && values[k] < values[k - 1]; k--) {
            double swap = values[k];
            values[k] = values[k - 1];
            values[k - 1] = swap;
        }
    return count ? values[count / 2] : 0;
}

/* Splits the time of a small op in two. The first part is what a large op also pays on top of its bytes: the
 * time that more launches of the same bytes cost, per launch. The second is the least that a kernel takes; it
 * gets at least half. */
static void split_small(fb_machine *m, double tiny, const double *seconds, int count) {
    double more[FB_CURVE_POINTS];
    for (int i = 1; i < count; i++) {
        double parts = m->bytes[i] / m->bytes[i - 1];
        more[i - 1] = (parts * seconds[i - 1] - seconds[i]) / (parts - 1);
    }
    m->node = fmin(fmax(median(more, count - 1), 0), tiny / 2);
    m->small = tiny - m->node;
}

/* Linears of one token with weights of growing size. Each launch has its own weights, and there are so many
 * that the cache does not keep them until the next step. */
static fb_status measure_reading(const bench *b, const fb_device_info *device, fb_machine *m, double tiny,
                                 fb_error *err) {
    static const int64_t sizes[FB_CURVE_POINTS][2] = {
        {64, 64},     {128, 128},   {256, 256},   {512, 512},   {512, 1024},  {1024, 1024},
        {1024, 2048}, {2048, 2048}, {2048, 4096}, {4096, 4096}, {8192, 8192},
    };
    double seconds[FB_CURVE_POINTS], last = tiny;
    for (int i = 0; i < FB_CURVE_POINTS; i++) m->bytes[i] = (double)(2 * sizes[i][0] * sizes[i][1]);
    int count = 0;
    while (count < FB_CURVE_POINTS) {
        double wanted = fmin(fmax(2.0 * (double)device->l2_bytes / m->bytes[count], 4), MOST);
        double possible =
            fmax(STEP_SECONDS / 4 / (4 * last), 2); /* the next point has at most four times the bytes */
        double fitting = (double)device->memory_free / 2 / m->bytes[count];
        if (count && fitting < 2) break;
        if (!count) possible = SHORT; /* the first point: no time of a linear is known yet */
        int64_t layers = (int64_t)fmin(fmin(wanted, possible), fmax(fitting, 2));
        trial t = {WORK_LINEAR, layers, sizes[count][0], sizes[count][1], 1, FEW, true, true};
        double step;
        FB_TRY(time_trial(b, &t, &step, err));
        last = fmax((step - m->graph - 2 * tiny) / (double)t.layers, 1e-9);
        seconds[count++] = last;
        if (step > STEP_SECONDS) break;
    }
    split_small(m, tiny, seconds, count);
    for (int i = 0; i < FB_CURVE_POINTS; i++)
        m->bandwidth[i] =
            i < count ? m->bytes[i] / fmax(seconds[i] - m->node, seconds[i] / 2) : m->bandwidth[count - 1];
    return FB_OK;
}

/* Times a linear with and without a folded norm or quantising, at two sizes. */
#define FOLD_LAYERS 8
static fb_status measure_folding(const bench *b, work without, work with, const fb_machine *m, fb_work *price,
                                 fb_error *err) {
    double longer[2];
    int64_t k = 4096;
    while (k > 256 && FOLD_LAYERS * 2.0 * (double)(k * k) / fb_machine_bandwidth(m, 2.0 * (double)(k * k)) >
                          STEP_SECONDS / 16)
        k /= 2;
    for (int large = 0; large < 2; large++) {
        int64_t width = large ? k : k / 4;
        trial t = {without, FOLD_LAYERS, width, width, 1, FEW, true, true};
        double plain, folded;
        FB_TRY(time_trial(b, &t, &plain, err));
        t.work = with;
        FB_TRY(time_trial(b, &t, &folded, err));
        longer[large] = fmax(0, (folded - plain) / FOLD_LAYERS);
    }
    double products = (double)(k * k);
    price->units = fmax(0, (longer[1] - longer[0]) / (products * 15 / 16));
    price->calls = fmax(0, longer[0] - price->units * products / 16);
    return FB_OK;
}

static fb_status measure_products(const bench *b, fb_machine *m, fb_error *err) {
    m->flops = 0;
    for (int64_t k = 64; k <= 4096; k *= 2) {
        trial t = {WORK_LINEAR, 4, k, k, ROWS, FEW, false, false};
        double step;
        FB_TRY(time_trial(b, &t, &step, err));
        double flops = 2.0 * (double)(k * k) * ROWS * (double)t.layers;
        m->flops = fmax(m->flops, flops / fmax(step - m->step, step / 2));
        if (step > STEP_SECONDS / 4) break;
    }
    return FB_OK;
}

fb_status fb_machine_measure_gpu(const fb_backend *backend, int32_t device, fb_dtype act, fb_machine *m,
                                 fb_error *err) {
    const bench b = {backend, device, act};
    fb_device_info info;
    bool found;
    double tiny, stream;
    FB_TRY(fb_device_get(device, &found, &info, err));
    if (!found) return fb_fail(err, FB_ERROR_USAGE, "device: %d (there is none)", device);
    fb_machine_assume_gpu(m, device, act);
    FB_TRY(measure_chain(&b, true, &tiny, &m->graph, err));
    FB_TRY(measure_chain(&b, false, &stream, &m->step, err));
    /* Host and device work in parallel: the slower one determines the speed. */
    m->launch = stream;
    FB_TRY(measure_logits(&b, m, err));
    FB_TRY(measure_reading(&b, &info, m, tiny, err));
    FB_TRY(measure_folding(&b, WORK_LINEAR, WORK_NORM_LINEAR, m, &m->norm, err));
    FB_TRY(measure_folding(&b, WORK_GIVEN, WORK_QUANTISE, m, &m->quantise, err));
    return measure_products(&b, m, err);
}
