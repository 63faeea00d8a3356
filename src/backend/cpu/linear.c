/* linear, linear_group and head_argmax: x [rows, K] times the transpose of weight [N, K]. Workers share the N
 * outputs. Fused parts round to the activation dtype where the plain ops would have stored, and quantise as
 * the plain quantize op would have. */
#include "backend/cpu/norm.h"
#include "backend/cpu/product.h"
#include "backend/cpu/screen.h"

/* Mean and scale of the rows that a segment normalises. Other segments that normalise the same rows reuse
 * them. */
typedef struct known_stats {
    row_stats row[BLOCK_M];
    int segment; /* the segment that computed them; -1: none */
} known_stats;

/* A worker's memory for one call. The inputs that it prepares follow it. */
typedef struct linear_work {
    tile_work tile;
    float sums[2][BLOCK_M * BLOCK_N];
    known_stats stats;
} linear_work;

_Static_assert(FB_LINEAR_GRAIN % FB_PACK_ROWS == 0, "a worker's outputs begin at a packed group");
_Static_assert(FB_SCREEN_COLS / 32 * sizeof(fb_q8) <= sizeof((tile_work *)NULL)->panel, "a screen's x");
_Static_assert(sizeof(linear_work) <= FB_LINEAR_WORK * sizeof(float), "scratch");

/* ---- inputs ---- */

FB_VARIANTS void widen(fb_dtype t, const fb_view *x, int64_t rows, int64_t k, float *out) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < k; i += VW)
            vf_put_n(FB_F32, out + row * k, i, k, vf_get_n(t, fb_view_at(x, row, 0), i, k, 0));
}

/* Whether segments e and s normalise the same rows with the same kind of norm, and so have the same mean and
 * scale. */
static bool same_rows(const fb_call *call, int e, int s) {
    const fb_segment *a = &call->attr.segment[e], *b = &call->attr.segment[s];
    return call->in[e].data == call->in[s].data && call->weights[4 * e].cols == call->weights[4 * s].cols &&
           a->norm == b->norm && a->eps == b->eps;
}

/* Whether the earlier segment e has prepared the same input. */
static bool same_input(const fb_call *call, int e, int s) {
    return same_rows(call, e, s) && call->attr.segment[e].dot == call->attr.segment[s].dot &&
           call->weights[4 * e + 2].data == call->weights[4 * s + 2].data &&
           call->weights[4 * e + 3].data == call->weights[4 * s + 3].data;
}

FB_VARIANTS void normalise_rows(fb_dtype t, fb_dtype to, const fb_call *call, int s, int64_t k,
                                known_stats *stats, void *out) {
    const fb_weight *w = &call->weights[4 * s + 2], *b = &call->weights[4 * s + 3];
    fb_op_kind norm = call->attr.segment[s].norm;
    bool known = stats->segment >= 0 && call->rows <= BLOCK_M && same_rows(call, stats->segment, s);
    if (!known) stats->segment = s;
    for (int64_t row = 0; row < call->rows; row++) {
        const void *x = fb_view_at(&call->in[s], row, 0);
        row_stats *of = &stats->row[row % BLOCK_M];
        if (!known) *of = stats_of(norm, t, x, k, call->attr.segment[s].eps);
        normalise(norm, t, to, x, *of, w, b, (void *)(uintptr_t)vf_address(to, out, row * k));
    }
}

/* The input as float32 rows: in place, or in `scratch`, which then advances. */
static input prepare_floats(const fb_call *call, int s, int64_t k, known_stats *stats, float **scratch) {
    const fb_view *x = &call->in[s];
    fb_op_kind norm = call->attr.segment[s].norm;
    if (norm == FB_OP_COUNT && x->dtype == FB_F32) return (input){.x = x->data, .ld = x->row_stride};
    float *out = *scratch;
    *scratch += call->rows * k;
    if (norm == FB_OP_COUNT)
        FB_FOR_DTYPE(x->dtype, T, widen(T, x, call->rows, k, out));
    else
        FB_FOR_DTYPE(x->dtype, T, normalise_rows(T, FB_F32, call, s, k, stats, out));
    return (input){.x = out, .ld = k};
}

/* The input as bfloat16 rows, which it is or is rounded to: in place, or in `scratch`, which then advances.
 */
static input prepare_bf16(const fb_call *call, int s, int64_t k, known_stats *stats, float **scratch) {
    const fb_view *x = &call->in[s];
    if (call->attr.segment[s].norm == FB_OP_COUNT) return (input){.bf16 = x->data, .ld = x->row_stride};
    void *out = *scratch;
    *scratch += (call->rows * k + 1) / 2;
    normalise_rows(FB_BF16, FB_BF16, call, s, k, stats, out);
    return (input){.bf16 = out, .ld = k};
}

/* Quantised rows of the input of segment s. */
static void quantise_rows(const fb_call *call, int s, known_stats *stats, float *scratch, fb_q8 *out) {
    int64_t k = call->weights[4 * s].cols;
    input floats = prepare_floats(call, s, k, stats, &scratch);
    for (int64_t row = 0; row < call->rows; row++)
        quantize_row(floats.x + row * floats.ld, k, out + row * (k / 32));
}

static input prepare_blocks(const fb_worker *worker, const fb_call *call, int s, const input *earlier,
                            known_stats *stats, float **scratch) {
    int64_t k = call->weights[4 * s].cols;
    fb_dot dot = call->attr.segment[s].dot;
    bool bf16 = dot == FB_DOT_FLOAT && both_bf16(worker, &call->weights[4 * s], call->in[s].dtype);
    for (int e = 0; e < s; e++)
        if (same_input(call, e, s) && bf16 == (earlier[e].bf16 != NULL)) return earlier[e];
    if (bf16) return prepare_bf16(call, s, k, stats, scratch);
    if (dot == FB_DOT_GIVEN) {
        const fb_view *x = &call->in[s];
        return (input){.q = x->data, .ld = x->row_stride / fb_q8_floats(32)};
    }
    if (dot == FB_DOT_FLOAT) return prepare_floats(call, s, k, stats, scratch);
    fb_q8 *out = (fb_q8 *)(void *)*scratch;
    *scratch += call->rows * fb_q8_floats(k);
    quantise_rows(call, s, stats, *scratch, out); /* what it needs there is free afterwards */
    return (input){.q = out, .ld = k / 32};
}

/* Each worker prepares the whole input for itself, unless fb_prepares. That is K elements a row, against K
 * multiply-adds for each of its outputs. */
static input prepare(const fb_worker *worker, const fb_call *call, int s, const input *earlier,
                     known_stats *stats, float **scratch) {
    input in = prepare_blocks(worker, call, s, earlier, stats, scratch);
    add_halves(&call->weights[4 * s], call->rows, &in, scratch);
    return in;
}

/* Where the quantised input of segment s is in memory that all workers share, which begins at *at. */
static input shared_input(const fb_call *call, int s, const input *earlier, float **at) {
    const fb_weight *w = &call->weights[4 * s];
    int64_t blocks = w->cols / 32;
    input in = {.ld = blocks};
    for (int e = 0; e < s && !in.q; e++)
        if (same_input(call, e, s)) in = earlier[e];
    if (!in.q) {
        in.q = (const fb_q8 *)(const void *)*at;
        *at += call->rows * fb_q8_floats(w->cols);
    }
    if (!in.halves && packed_wants_halves(w->dtype)) {
        in.halves = (const int32_t *)(const void *)*at;
        *at += call->rows * blocks;
    }
    return in;
}

void FB_KERNEL(prepare)(const fb_call *call, const fb_worker *worker) {
    linear_work *work = (linear_work *)(void *)worker->scratch;
    float *scratch = worker->scratch + FB_LINEAR_WORK, *at = worker->prepared;
    input in[FB_MAX_SEGMENTS] = {{0}};
    fb_call part = *call;
    int64_t begin, end;
    fb_worker_share(worker, call->rows, 1, &begin, &end);
    part.rows = end - begin;
    work->stats.segment = -1;
    for (int s = 0; s < call->attr.segments; s++) {
        if (call->attr.segment[s].dot != FB_DOT_QUANTIZE) continue;
        bool known = false, halves_known = false;
        in[s] = shared_input(call, s, in, &at);
        for (int e = 0; e < s; e++) {
            known = known || in[e].q == in[s].q;
            halves_known = halves_known || in[e].halves == in[s].halves;
        }
        fb_q8 *q = (fb_q8 *)(uintptr_t)in[s].q + begin * in[s].ld;
        part.in[s].data = fb_view_at(&call->in[s], begin, 0);
        if (!known) quantise_rows(&part, s, &work->stats, scratch, q);
        if (in[s].halves && !halves_known)
            packed_halves(q, in[s].ld, call->weights[4 * s].cols, part.rows,
                          (int32_t *)(uintptr_t)in[s].halves + begin * in[s].ld);
    }
}

/* ---- outputs ---- */

typedef struct block {
    int64_t row, rows; /* rows of the call */
    int64_t n, ns;     /* outputs of the segment */
} block;

/* What the plain linear and activation would have stored for sums i … of a row. */
FB_VARIANTS vf finished(fb_dtype t, const fb_weight *bias, fb_op_kind act, const float *sums, int64_t n,
                        int64_t i, int64_t ns) {
    vf v = vf_get_n(FB_F32, sums, i, ns, 0);
    if (bias->data) v += vf_get_any(bias->dtype, fb_at(bias->data, bias->dtype, n), i, ns, 0);
    return activate(t, act, vf_rounded(t, v));
}

/* Finishes and stores a block. sums[s] holds segment s's sums. */
FB_VARIANTS void store(fb_dtype t, fb_combine combine, const fb_call *call, int s, const block *b,
                       float *const *sums) {
    const fb_view *out = &call->out[s];
    const fb_op_attr *attr = &call->attr;
    for (int64_t m = 0; m < b->rows; m++) {
        void *y = fb_view_at(out, b->row + m, 0);
        for (int64_t i = 0; i < b->ns; i += VW) {
            vf v = finished(t, &call->weights[4 * s + 1], attr->segment[s].act, sums[s] + m * BLOCK_N, b->n,
                            i, b->ns);
            if (combine == FB_COMBINE_MUL)
                v *= finished(t, &call->weights[5], attr->segment[1].act, sums[1] + m * BLOCK_N, b->n, i,
                              b->ns);
            if (combine == FB_COMBINE_ADD) {
                if (attr->segments == 2)
                    v = vf_rounded(t, v + finished(t, &call->weights[5], attr->segment[1].act,
                                                   sums[1] + m * BLOCK_N, b->n, i, b->ns));
                const void *x = fb_view_at(&call->in[FB_RESIDUAL], b->row + m, 0);
                v += vf_get_n(t, vf_address(t, x, b->n), i, b->ns, 0);
            }
            vf_put_n(t, (void *)(uintptr_t)vf_address(t, y, b->n), i, b->ns, v);
        }
    }
}

static void store_block(const fb_call *call, int s, const block *b, float *const *sums) {
    switch (call->attr.combine) {
    case FB_COMBINE_NONE:
        FB_FOR_DTYPE(call->out[s].dtype, T, store(T, FB_COMBINE_NONE, call, s, b, sums));
        break;
    case FB_COMBINE_MUL:
        FB_FOR_DTYPE(call->out[s].dtype, T, store(T, FB_COMBINE_MUL, call, s, b, sums));
        break;
    case FB_COMBINE_ADD:
        FB_FOR_DTYPE(call->out[s].dtype, T, store(T, FB_COMBINE_ADD, call, s, b, sums));
        break;
    case FB_COMBINE_SUM: /* of experts only */
        break;
    }
}

static void sums_of(const fb_worker *worker, const fb_call *call, int s, const input *in, const block *b,
                    const uint8_t *next, tile_work *work, float *sums) {
    products(worker, &call->weights[4 * s], &in[s], b->row, b->rows, b->n, b->ns, next, work, sums);
}

static const uint8_t *weights_at(const fb_call *call, int s, int64_t n) {
    return weight_row(&call->weights[4 * s], n);
}

/* The most outputs in a block. A single row takes as many as fit: its activations then do not wait for each
 * other, and two streams of weights alternate rarely. tiles_many has space for BLOCK_N. */
static int64_t block_outputs(const fb_call *call) {
    bool panels = call->rows > 1;
    for (int s = 0; s < call->attr.segments; s++)
        panels = panels || (call->attr.segment[s].dot == FB_DOT_FLOAT &&
                            !fb_dtype_is_float(call->weights[4 * s].dtype));
    return panels ? BLOCK_N : BLOCK_M * BLOCK_N;
}

/* Computes outputs [begin, end) of segment s; if segments are combined, of all of them together. */
static void run_outputs(const fb_call *call, const fb_worker *worker, int s, const input *in, int64_t begin,
                        int64_t end, const uint8_t *next, linear_work *work) {
    float *const at[FB_MAX_SEGMENTS] = {work->sums[0], s == 1 ? work->sums[0] : work->sums[1], work->sums[0]};
    bool both = call->attr.combine != FB_COMBINE_NONE && call->attr.segments == 2;
    int64_t most = block_outputs(call);
    for (int64_t row = 0; row < call->rows; row += BLOCK_M)
        for (int64_t n = begin; n < end; n += most) {
            block b = {row, call->rows - row < BLOCK_M ? call->rows - row : BLOCK_M, n,
                       end - n < most ? end - n : most};
            if (call->rows > 1 && fb_worker_cancelled(worker)) return;
            const uint8_t *after = n + most < end ? weights_at(call, s, n + most) : next;
            sums_of(worker, call, s, in, &b, both ? weights_at(call, 1, n) : after, &work->tile, at[s]);
            if (both) sums_of(worker, call, 1, in, &b, after, &work->tile, at[1]);
            store_block(call, s, &b, at);
        }
}

/* The number of a segment's outputs, rounded up to whole grains. Each worker's part then begins at a packed
 * group. */
static int64_t shared_outputs(const fb_call *call, int s) {
    return (call->weights[4 * s].rows + FB_LINEAR_GRAIN - 1) / FB_LINEAR_GRAIN * FB_LINEAR_GRAIN;
}

/* Prefetches the worker's first weights, so that they arrive while the input is normalised. These are the
 * addresses that tile_one would prefetch before its first tile. */
static void fetch_first(const uint8_t *at, const fb_weight *w) {
    int64_t row = fb_dtype_bytes(w->dtype, w->cols), part = NEAR_BYTES / ONE_N;
    bool large = !w->packed && ONE_N * row > LARGE_BYTES;
    for (int n = 0; n < ONE_N; n++)
        for (int64_t i = 0; i < part; i += 64) __builtin_prefetch(at + n * (large ? row : part) + i, 0, 3);
}

/* The outputs [*begin, *end) of segment s that belong to this worker. Workers divide either the outputs of
 * all segments together or those of each segment. */
static void worker_outputs(const fb_call *call, const fb_worker *worker, int s, int64_t *begin,
                           int64_t *end) {
    int64_t total = 0, before = 0, rows = call->weights[4 * s].rows;
    bool together = call->attr.combine == FB_COMBINE_NONE && !worker->apart;
    for (int k = together ? 0 : s; k < (together ? call->attr.segments : s + 1); k++) {
        if (k == s) before = total;
        total += shared_outputs(call, k);
    }
    fb_worker_share(worker, total, FB_LINEAR_GRAIN, begin, end);
    *begin = *begin < before ? 0 : *begin - before;
    *end = *end - before < rows ? *end - before : rows;
}

static void run_group(const fb_call *call, const fb_worker *worker) {
    input in[FB_MAX_SEGMENTS] = {{0}};
    linear_work *work = (linear_work *)(void *)worker->scratch;
    float *scratch = worker->scratch + FB_LINEAR_WORK;
    int segments = call->attr.segments, ranges = call->attr.combine == FB_COMBINE_NONE ? segments : 1;
    int64_t begin[FB_MAX_SEGMENTS] = {0}, end[FB_MAX_SEGMENTS] = {0};
    const uint8_t *first[FB_MAX_SEGMENTS + 1] = {NULL}; /* the worker's first weights in segment s or later */
    for (int s = ranges - 1; s >= 0; s--) {
        worker_outputs(call, worker, s, &begin[s], &end[s]);
        first[s] = begin[s] < end[s] ? weights_at(call, s, begin[s]) : first[s + 1];
    }
    int own = 0; /* the first segment in which the worker has outputs */
    while (own < ranges && begin[own] >= end[own]) own++;
    if (own == ranges) return;
    fetch_first(first[own], &call->weights[4 * own]);
    work->stats.segment = -1;
    float *shared = worker->prepared;
    for (int s = 0; s < segments; s++)
        in[s] = shared && call->attr.segment[s].dot == FB_DOT_QUANTIZE
                    ? shared_input(call, s, in, &shared)
                    : prepare(worker, call, s, in, &work->stats, &scratch);
    for (int s = 0; s < ranges; s++) run_outputs(call, worker, s, in, begin[s], end[s], first[s + 1], work);
}

void FB_KERNEL(linear_group)(const fb_call *call, const fb_worker *worker) { run_group(call, worker); }

/* A linear as a group of one segment. */
static fb_call as_group(const fb_call *call) {
    fb_call group = *call;
    group.attr.segments = 1;
    group.attr.combine = FB_COMBINE_NONE;
    group.attr.segment[0].norm = group.attr.segment[0].act = FB_OP_COUNT;
    return group;
}

void FB_KERNEL(linear)(const fb_call *call, const fb_worker *worker) {
    fb_call group = as_group(call);
    run_group(&group, worker);
}

/* Rounds scores to the activation dtype. Returns whether one of them is above `best` or NaN. */
FB_VARIANTS bool round_scores(fb_dtype t, float *scores, int64_t n, float best) {
    vf most = vf_set1(-INFINITY);
    bool nan = false;
    for (int64_t i = 0; i < n; i += VW) {
        vf v = vf_rounded(t, vf_get_n(FB_F32, scores, i, n, -INFINITY));
        vf_put_n(FB_F32, scores, i, n, v);
        most = vf_max(most, v);
        nan = nan || vf_has_nan(v);
    }
    return nan || vf_max_of(most) > best;
}

/* Finds the best of n scores, whose columns start at `first`. Replaces `best` (value, column) if it is
 * better. */
static void look(fb_dtype act, float *scores, int64_t n, int64_t first, float *best) {
    bool better = false;
    FB_FOR_DTYPE(act, T, better = round_scores(T, scores, n, best[0]));
    for (int64_t i = 0; better && i < n; i++)
        if (scores[i] > best[0] || (scores[i] != scores[i] && best[0] == best[0])) {
            best[0] = scores[i];
            best[1] = (float)(first + i);
        }
}

/* A worker's part of head_argmax for one row. */
typedef struct head {
    const fb_worker *worker;
    const fb_call *call; /* a linear */
    const input *in;
    const input *floats; /* the same rows, for the screen */
    fb_dtype act;
    int64_t row, begin, end;
    linear_work *work;
    float *best; /* value, column */
} head;

static void start_best(const head *h) {
    h->best[0] = -INFINITY;
    h->best[1] = (float)h->begin;
}

/* Computes outputs n to n + ns - 1 in full and looks for the best. */
static void look_at(const head *h, int64_t n, int64_t ns, const uint8_t *next, float *sums) {
    block b = {h->row, 1, n, ns};
    sums_of(h->worker, h->call, 0, h->in, &b, next, &h->work->tile, sums);
    for (int64_t i = 0; i < ns; i += BLOCK_N)
        look(h->act, sums + i, ns - i < BLOCK_N ? ns - i : BLOCK_N, n + i, h->best);
}

static void find_best(const head *h) {
    int64_t most = block_outputs(h->call);
    start_best(h);
    for (int64_t n = h->begin; n < h->end; n += most) {
        const uint8_t *next = n + most < h->end ? weights_at(h->call, 0, n + most) : NULL;
        look_at(h, n, h->end - n < most ? h->end - n : most, next, h->work->sums[0]);
    }
}

/* How many of the ns rows from n on can be the best one. */
static int64_t count_candidates(const fb_screen *s, screened x, int64_t n, int64_t ns, const float *sums,
                                float limit) {
    int64_t count = 0;
    for (int64_t i = 0; i < ns; i += VW) {
        vf high = screen_high(s, x, n, i, ns, sums);
        if (!vf_reaches(high, limit)) continue;
        for (int j = 0; j < VW; j++) count += high[j] >= limit;
    }
    return count;
}

/* Looks at those of the outputs n to n + ns - 1 whose products with the screen, `sums`, reach the best.
 * False: the screen cannot tell. */
static bool look_screened(const head *h, screened x, int64_t n, int64_t ns, const float *sums) {
    const fb_screen *s = h->call->weights[0].screen;
    float limit = screen_limit(s, x, n, ns, sums, h->best[0], h->act);
    if (limit != limit) return false;
    if (count_candidates(s, x, n, ns, sums, limit) >
        ns / SCREEN_FEW) { /* reading all rows in order is faster */
        look_at(h, n, ns, NULL, h->work->sums[1]);
        return true;
    }
    for (int64_t i = 0; i < ns; i += VW) {
        vf high = screen_high(s, x, n, i, ns, sums);
        if (!vf_reaches(high, limit)) continue;
        for (int j = 0; j < VW; j++)
            if (high[j] >= limit) look_at(h, n + i + j, 1, NULL, h->work->sums[1]);
    }
    return true;
}

/* Rows that go through a head together: each weight is then read once for all of them. */
#define HEAD_ROWS 8

/* find_best of `rows` rows by the screen. False: it cannot tell the best of some row. */
static bool find_screened(const head *rows, int64_t count) {
    const fb_weight *w = &rows->call->weights[0];
    const int64_t most = BLOCK_M * BLOCK_N / (count > 1 ? HEAD_ROWS : 1), blocks = w->cols / 32;
    float *sums = rows->work->sums[0];
    fb_q8 *q = (fb_q8 *)(void *)rows->work->tile.panel;
    screened x[HEAD_ROWS];
    for (int64_t m = 0; m < count; m++) {
        x[m] =
            screen_of(w->screen, rows->floats->x + rows[m].row * rows->floats->ld, w->cols, q + m * blocks);
        if (x[m].bound != x[m].bound) return false;
        start_best(&rows[m]);
    }
    for (int64_t n = rows->begin; n < rows->end; n += most) {
        int64_t ns = rows->end - n < most ? rows->end - n : most;
        packed_sums(rows->worker, FB_Q8_0, count)(packed_at(FB_Q8_0, w->screen->copy.data, w->cols, n), q,
                                                  NULL, blocks, w->cols, count,
                                                  (ns + FB_PACK_ROWS - 1) / FB_PACK_ROWS, sums, most);
        for (int64_t m = 0; m < count; m++)
            if (!look_screened(&rows[m], x[m], n, ns, sums + m * most)) return false;
    }
    return true;
}

/* find_best of several rows. */
static void find_best_rows(const head *rows, int64_t count) {
    float *sums = rows->work->sums[0];
    for (int64_t m = 0; m < count; m++) start_best(&rows[m]);
    for (int64_t n = rows->begin; n < rows->end; n += BLOCK_N) {
        block b = {rows->row, count, n, rows->end - n < BLOCK_N ? rows->end - n : BLOCK_N};
        const uint8_t *next = n + BLOCK_N < rows->end ? weights_at(rows->call, 0, n + BLOCK_N) : NULL;
        sums_of(rows->worker, rows->call, 0, rows->in, &b, next, &rows->work->tile, sums);
        for (int64_t m = 0; m < count; m++) look(rows->act, sums + m * BLOCK_N, b.ns, n, rows[m].best);
    }
}

/* Each worker writes its best output as two floats (value, column) at its index in the output row; a NaN
 * counts as best. The reader takes the best of these, the first among equals. A column is exact in float32 up
 * to 2^24, the largest vocabulary allowed. */
void FB_KERNEL(head_argmax)(const fb_call *call, const fb_worker *worker) {
    const fb_weight *w = &call->weights[0];
    fb_call plain = as_group(call);
    linear_work *work = (linear_work *)(void *)worker->scratch;
    float *scratch = worker->scratch + FB_LINEAR_WORK;
    head h = {.worker = worker, .call = &plain, .act = call->act, .work = work};
    fb_worker_share(worker, w->rows, FB_LINEAR_GRAIN, &h.begin, &h.end);
    bool screen = call->attr.screen && w->screen && w->screen->ready;
    if (!screen && h.begin < h.end) fetch_first(weights_at(&plain, 0, h.begin), w);
    work->stats.segment = -1;
    input in = prepare(worker, &plain, 0, NULL, &work->stats, &scratch), floats = in;
    if (screen && in.bf16) floats = prepare_floats(&plain, 0, w->cols, &work->stats, &scratch);
    h.in = &in;
    h.floats = &floats;
    /* As many rows as have room for what the screen multiplies. */
    const int64_t room = (int64_t)(sizeof work->tile.panel / (size_t)(w->cols / 32 + 1) / sizeof(fb_q8));
    const int64_t most = !screen || room > HEAD_ROWS ? HEAD_ROWS : room > 1 ? room : 1;
    for (int64_t row = 0; row < call->rows; row += most) {
        head rows[HEAD_ROWS];
        int64_t count = call->rows - row < most ? call->rows - row : most;
        if (row > 0 && fb_worker_cancelled(worker)) return;
        for (int64_t m = 0; m < count; m++) {
            rows[m] = h;
            rows[m].row = row + m;
            rows[m].best = (float *)fb_view_at(&call->out[0], row + m, 0) + 2 * worker->index;
        }
        if (screen && find_screened(rows, count)) continue;
        if (count == 1)
            find_best(rows);
        else
            find_best_rows(rows, count);
    }
}
