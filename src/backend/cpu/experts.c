/* Mixtures of experts: top_k, expert_linear, expert_sum, and the fused router and expert_group.
 *
 * Routes are pairs (expert, share) of a row, in the order of the experts. Workers share the outputs of each
 * expert. With many rows, those of an expert are gathered, so that its weights are read once for all of them.
 * The order of a sum depends neither on that nor on the number of rows. */
#include <math.h>

#include "backend/cpu/norm.h"
#include "backend/cpu/product.h"

/* ---- choosing ---- */

/* Pairs of the `used` largest scores. A NaN counts as the largest, and makes all shares NaN. `chosen`: bytes
 * for `count` scores. */
static void choose(const fb_op_attr *attr, const float *scores, int64_t count, uint8_t *chosen,
                   float *pairs) {
    float most = -INFINITY, sum = 0, shares = 0;
    memset(chosen, 0, (size_t)count);
    for (int32_t j = 0; j < attr->used; j++) {
        int64_t best = -1;
        for (int64_t i = 0; i < count; i++)
            if (!chosen[i] && (best < 0 || (scores[best] == scores[best] && !(scores[i] <= scores[best]))))
                best = i;
        chosen[best] = 1;
        if (j == 0) most = scores[best];
    }
    for (int64_t i = 0; i < count; i++) sum += expf(scores[i] - most);
    for (int64_t i = 0; i < count; i++) {
        if (!chosen[i]) continue;
        pairs[0] = (float)i;
        pairs[1] = expf(scores[i] - most) / sum;
        shares += pairs[1];
        pairs += 2;
    }
    for (int32_t j = 1; attr->shares_sum_to_one && j <= attr->used; j++) pairs[1 - 2 * j] /= shares;
}

FB_VARIANTS void widen_row(fb_dtype t, const void *from, int64_t count, float *to) {
    decode_floats(t, from, count, to);
}

static void floats_of(fb_dtype dtype, const void *from, int64_t count, float *to) {
    FB_FOR_DTYPE(dtype, T, widen_row(T, from, count, to));
}

void FB_KERNEL(top_k)(const fb_call *call, const fb_worker *worker) {
    const fb_view *x = &call->in[0];
    int64_t count = x->heads * x->width, begin, end;
    float *scores = worker->scratch;
    fb_worker_share(worker, call->rows, 1, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        floats_of(x->dtype, fb_view_at(x, row, 0), count, scores);
        choose(&call->attr, scores, count, (uint8_t *)(scores + count), fb_view_at(&call->out[0], row, 0));
    }
}

FB_VARIANTS void round_row(fb_dtype t, float *x, int64_t count) {
    for (int64_t i = 0; i < count; i += VW)
        vf_put_n(FB_F32, x, i, count, vf_rounded(t, vf_get_n(FB_F32, x, i, count, 0)));
}

/* Rows are shared. With one row, one worker does it all: it reads one matrix of `experts` rows. */
void FB_KERNEL(router)(const fb_call *call, const fb_worker *worker) {
    const fb_weight *w = &call->weights[0];
    const fb_segment *seg = &call->attr.segment[0];
    const fb_view *x = &call->in[0], *out = &call->out[0];
    tile_work *work = (tile_work *)(void *)worker->scratch;
    float *scores = worker->scratch + sizeof *work / sizeof(float), *floats = scores + 2 * w->rows + 64;
    int64_t begin, end, most = fb_dtype_is_float(w->dtype) ? w->rows : BLOCK_N;
    fb_worker_share(worker, call->rows, 1, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        const void *from = fb_view_at(x, row, 0);
        void *to = fb_view_at(out, row, 0);
        input in = {.x = floats, .ld = w->cols};
        FB_FOR_DTYPE(out->dtype, T,
                     normalise(seg->norm, T, T, from, stats_of(seg->norm, T, from, w->cols, seg->eps),
                               &call->weights[2], &call->weights[3], to));
        if (both_bf16(worker, w, out->dtype))
            in = (input){.bf16 = to, .ld = w->cols};
        else
            floats_of(out->dtype, to, w->cols, floats);
        for (int64_t n = 0; n < w->rows; n += most)
            products(worker, w, &in, 0, 1, n, w->rows - n < most ? w->rows - n : most, NULL, work,
                     scores + n);
        FB_FOR_DTYPE(out->dtype, T, round_row(T, scores, w->rows));
        choose(&call->attr, scores, w->rows, (uint8_t *)(scores + w->rows),
               fb_view_at(&call->out[1], row, 0));
    }
}

/* ---- experts ---- */

typedef struct expert_work {
    tile_work tile;
    float sums[2][BLOCK_M * BLOCK_N];
} expert_work;

_Static_assert(sizeof(expert_work) <= FB_LINEAR_WORK * sizeof(float), "scratch");
_Static_assert(FB_EXPERT_ROWS <= BLOCK_M, "rows of a block");

/* One worker's part of an expert_linear or expert_group. */
typedef struct job {
    const fb_call *call;
    const fb_worker *worker;
    expert_work *work;
    int segments;
    fb_combine combine;
    int64_t begin, end; /* outputs */
    int32_t *order;     /* [rows * used]: row * used + j, sorted by expert */
    float *acc;         /* SUM: [rows][end - begin] */
    float *inputs[2];   /* scratch for gathered inputs */
} job;

static int64_t pair_count(const fb_call *call) { return call->rows * call->attr.used; }

/* Expert and share of pair row * used + j. */
static const float *pair_at(const fb_call *call, int64_t pair) {
    int64_t used = call->attr.used;
    return (const float *)fb_view_at(&call->in[1], pair / used, 0) + 2 * (pair % used);
}

static int64_t expert_of(const fb_call *call, int64_t pair) { return (int64_t)pair_at(call, pair)[0]; }

/* Pairs in the order of their experts, those of an expert in the order of rows. */
static void sort_pairs(job *j) {
    const fb_call *call = j->call;
    int64_t count = pair_count(call);
    int32_t at[FB_LIMIT_EXPERTS + 1] = {0}; /* by expert: where its next pair goes */
    for (int64_t i = 0; i < count; i++) at[expert_of(call, i) + 1]++;
    for (int64_t e = 0; e < call->weights[0].experts; e++) at[e + 1] += at[e];
    for (int64_t i = 0; i < count; i++) j->order[at[expert_of(call, i)]++] = (int32_t)i;
}

/* The input of segment s for `count` pairs: in place if it is one row that needs no change, or gathered. */
static input gather_rows(const job *j, int s, const int32_t *pairs, int64_t count) {
    const fb_call *call = j->call;
    const fb_view *x = &call->in[0];
    int64_t k = call->weights[4 * s].cols, used = call->attr.used;
    fb_dot dot = call->attr.segment[s].dot;
    int64_t part = dot == FB_DOT_GIVEN ? fb_q8_floats(k) : x->heads > 1 ? x->head_stride : k;
    fb_q8 *q = (fb_q8 *)(void *)j->inputs[s];
    float *floats = dot == FB_DOT_QUANTIZE ? j->inputs[s] + count * fb_q8_floats(k) : j->inputs[s];
    uint8_t *copies = (uint8_t *)j->inputs[s];
    const bool given = dot == FB_DOT_GIVEN;
    const bool bf16 = dot == FB_DOT_FLOAT && both_bf16(j->worker, &call->weights[4 * s], x->dtype);
    for (int64_t i = 0; i < count; i++) {
        int64_t row = pairs[i] / used, at = call->attr.each ? pairs[i] % used * part : 0;
        const void *from = fb_at(x->data, x->dtype, row * x->row_stride + at);
        if (count == 1 && given) return (input){.q = from, .ld = k / 32};
        if (count == 1 && bf16) return (input){.bf16 = from, .ld = k};
        if (count == 1 && dot == FB_DOT_FLOAT && x->dtype == FB_F32) return (input){.x = from, .ld = k};
        if (given)
            memcpy(q + i * (k / 32), from, (size_t)(k / 32) * sizeof *q);
        else if (bf16)
            memcpy(copies + 2 * i * k, from, 2 * (size_t)k);
        else
            floats_of(x->dtype, from, k, floats + i * k);
        if (dot == FB_DOT_QUANTIZE) quantize_row(floats + i * k, k, q + i * (k / 32));
    }
    if (bf16) return (input){.bf16 = copies, .ld = k};
    return dot == FB_DOT_FLOAT ? (input){.x = floats, .ld = k} : (input){.q = q, .ld = k / 32};
}

static input gather(const job *j, int s, const int32_t *pairs, int64_t count) {
    const fb_weight *w = &j->call->weights[4 * s];
    float *scratch = j->inputs[s] + count * fb_q8_floats(w->cols); /* behind the blocks */
    input in = gather_rows(j, s, pairs, count);
    add_halves(w, count, &in, &scratch);
    return in;
}

/* What the plain ops would have stored of `count` pairs and outputs [n, n + ns). */
FB_VARIANTS void store_pairs(fb_dtype t, const job *j, const int32_t *pairs, int64_t count, int64_t n,
                             int64_t ns) {
    const fb_call *call = j->call;
    const fb_op_attr *attr = &call->attr;
    for (int64_t m = 0; m < count; m++) {
        int64_t row = pairs[m] / attr->used, head = pairs[m] % attr->used;
        const float *sums[2] = {j->work->sums[0] + m * BLOCK_N, j->work->sums[1] + m * BLOCK_N};
        float *acc = j->acc + row * (j->end - j->begin) + n - j->begin;
        vf share = vf_set1(pair_at(call, pairs[m])[1]);
        for (int64_t i = 0; i < ns; i += VW) {
            vf v = vf_rounded(t, vf_get_n(FB_F32, sums[0], i, ns, 0));
            if (j->combine == FB_COMBINE_SUM) {
                vf_put_n(FB_F32, acc, i, ns, vf_fma(share, v, vf_get_n(FB_F32, acc, i, ns, 0)));
                continue;
            }
            if (j->combine == FB_COMBINE_MUL)
                v = activate(t, attr->segment[0].act, v) *
                    activate(t, attr->segment[1].act, vf_rounded(t, vf_get_n(FB_F32, sums[1], i, ns, 0)));
            vf_put_n(t, (void *)(uintptr_t)vf_address(t, fb_view_at(&call->out[0], row, head), n), i, ns, v);
        }
    }
}

/* `count` pairs of one expert. `next`: the weights that come after them; NULL: none. */
static void run_pairs(const job *j, const fb_weight *weights, const int32_t *pairs, int64_t count,
                      const uint8_t *next) {
    input in[2];
    bool panels = count > 1;
    for (int s = 0; s < j->segments; s++) {
        bool same = s && j->call->attr.segment[0].dot == j->call->attr.segment[1].dot;
        in[s] = same ? in[0] : gather(j, s, pairs, count);
        panels = panels || (!in[s].q && !fb_dtype_is_float(weights[s].dtype));
    }
    int64_t most = panels ? BLOCK_N : BLOCK_M * BLOCK_N;
    for (int64_t n = j->begin; n < j->end; n += most) {
        int64_t ns = j->end - n < most ? j->end - n : most;
        if (count > 1 && fb_worker_cancelled(j->worker)) return;
        for (int s = 0; s < j->segments; s++) {
            const uint8_t *then = s + 1 < j->segments ? weight_row(&weights[s + 1], n)
                                  : n + most < j->end ? weight_row(&weights[0], n + most)
                                                      : next;
            products(j->worker, &weights[s], &in[s], 0, count, n, ns, then, &j->work->tile, j->work->sums[s]);
        }
        FB_FOR_DTYPE(j->call->out[0].dtype, T, store_pairs(T, j, pairs, count, n, ns));
    }
}

/* The sums of all experts, rounded as expert_sum would have, plus the residual. */
FB_VARIANTS void store_sums(fb_dtype t, const job *j) {
    const fb_call *call = j->call;
    int64_t ns = j->end - j->begin;
    for (int64_t row = 0; row < call->rows; row++) {
        void *y = (void *)(uintptr_t)vf_address(t, fb_view_at(&call->out[0], row, 0), j->begin);
        for (int64_t i = 0; i < ns; i += VW) {
            vf v = vf_get_n(FB_F32, j->acc + row * ns, i, ns, 0);
            if (call->in[FB_RESIDUAL].data) {
                const void *x = fb_view_at(&call->in[FB_RESIDUAL], row, 0);
                v = vf_rounded(t, v) + vf_get_n(t, vf_address(t, x, j->begin), i, ns, 0);
            }
            vf_put_n(t, y, i, ns, v);
        }
    }
}

static void run_experts(const fb_call *call, const fb_worker *worker, int segments, fb_combine combine) {
    const fb_weight *w = &call->weights[0];
    int64_t outputs = w->rows / w->experts, pairs = pair_count(call);
    int64_t block = pairs < FB_EXPERT_ROWS ? pairs : FB_EXPERT_ROWS;
    float *scratch = worker->scratch + FB_LINEAR_WORK;
    job j = {.call = call, .worker = worker, .segments = segments, .combine = combine};
    j.work = (expert_work *)(void *)worker->scratch;
    j.inputs[0] = scratch;
    j.inputs[1] = scratch + fb_linear_input(block, w->cols);
    j.order = (int32_t *)(void *)(scratch + 2 * fb_linear_input(block, w->cols));
    j.acc = (float *)(void *)(j.order + (pairs + 15) / 16 * 16);
    fb_worker_share(worker, (outputs + FB_LINEAR_GRAIN - 1) / FB_LINEAR_GRAIN * FB_LINEAR_GRAIN,
                    FB_LINEAR_GRAIN, &j.begin, &j.end);
    if (j.end > outputs) j.end = outputs;
    if (j.begin >= j.end) return;
    if (combine == FB_COMBINE_SUM) memset(j.acc, 0, (size_t)(call->rows * (j.end - j.begin)) * sizeof *j.acc);
    sort_pairs(&j);
    for (int64_t i = 0, count; i < pairs; i += count) {
        if (call->rows > 1 && fb_worker_cancelled(worker)) return;
        int64_t expert = expert_of(call, j.order[i]);
        fb_weight of[2];
        for (count = 1; i + count < pairs && count < FB_EXPERT_ROWS; count++)
            if (expert_of(call, j.order[i + count]) != expert) break;
        for (int s = 0; s < segments; s++) of[s] = fb_weight_expert(&call->weights[4 * s], expert);
        const uint8_t *next = NULL;
        if (i + count < pairs) {
            fb_weight after = fb_weight_expert(w, expert_of(call, j.order[i + count]));
            next = weight_row(&after, j.begin);
        }
        run_pairs(&j, of, j.order + i, count, next);
    }
    if (combine == FB_COMBINE_SUM) FB_FOR_DTYPE(call->out[0].dtype, T, store_sums(T, &j));
}

void FB_KERNEL(expert_linear)(const fb_call *call, const fb_worker *worker) {
    run_experts(call, worker, 1, FB_COMBINE_NONE);
}

void FB_KERNEL(expert_group)(const fb_call *call, const fb_worker *worker) {
    run_experts(call, worker, call->attr.segments, call->attr.combine);
}

FB_VARIANTS void sum_rows(fb_dtype t, const fb_call *call, int64_t begin, int64_t end) {
    const fb_view *x = &call->in[0];
    for (int64_t row = 0; row < call->rows; row++) {
        const float *pairs = fb_view_at(&call->in[1], row, 0);
        void *y = fb_view_at(&call->out[0], row, 0);
        for (int64_t i = begin; i < end; i += VW) {
            vf sum = vf_set1(0);
            for (int32_t k = 0; k < call->attr.used; k++)
                sum = vf_fma(vf_set1(pairs[2 * k + 1]), vf_get_n(t, fb_view_at(x, row, k), i, end, 0), sum);
            vf_put_n(t, y, i, end, sum);
        }
    }
}

void FB_KERNEL(expert_sum)(const fb_call *call, const fb_worker *worker) {
    int64_t begin, end;
    fb_worker_share(worker, call->out[0].width, 16, &begin, &end);
    FB_FOR_DTYPE(call->out[0].dtype, T, sum_rows(T, call, begin, end));
}
