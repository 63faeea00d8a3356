/* A model as a GGUF file: a list of tensors with their types, then one row after the other from the model's
 * weights to the file, whose error is taken on the way. What the errors do to the mean of a linear's output
 * is taken off its bias. */
#include "model/quantize.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "arch/gguf_names.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/pack.h"
#include "base/pool.h"
#include "base/quant.h"
#include "model/compensate.h"
#include "model/correct.h"
#include "model/importance.h"
#include "model/mix.h"

#define PROGRESS_WEIGHTS (1 << 20) /* between two calls of on_progress, at least */

/* A tensor of the file. */
typedef struct item {
    char name[FB_GGUF_NAME_SIZE];
    fb_weight weight; /* a vector has a row an element, since rows are what may stand in another order */
    bool vector;
    fb_row_order order;
    fb_dtype type;
    int32_t slot;
    int64_t layer;
    int32_t kind; /* in the report */
    bool part;    /* rows that go behind those of the item before, into its tensor */
    int64_t of;   /* rows of the whole tensor; 0: as many as the item has */
} item;

/* A slot's tensors are of three types at most: two better ones of a mix, and the mix's own. */
#define MAX_KINDS (3 * FB_MAX_SLOTS)

/* One call of fb_model_quantize. */
typedef struct quantizer {
    const fb_model *model;
    const fb_quantize_options *options;
    fb_quantize_report *report;
    double error[MAX_KINDS], norm[MAX_KINDS]; /* by kind: sums of squares */
    item *items;
    int64_t count;
    fb_rope_factors rope;
    fb_gguf_writer *writer;
    int64_t done, shown;          /* weights */
    fb_feedback own, shared;      /* of a matrix, or of an expert; of a layer's experts together */
    const float *shared_of;       /* the sums that `shared` was made of */
    const fb_feedback *feedback;  /* of the rows that are being written; NULL: none */
    double *mean;                 /* of the inputs of the matrix that is being written, or NULL */
    double *shift;                /* what its bias gets, by row */
    double *shifts[FB_MAX_SLOTS]; /* by bias: those of matrices that are written, until the bias is */
    /* Rows are converted BATCH at a time, shared by the workers, and then added up and written in order: the
     * file and the report do not depend on the number of workers. */
    fb_pool *pool;
    const item *converting;
    const int64_t *rows;     /* of the batch */
    int64_t row_count, room; /* room: elements of a row at most */
    float *values, *back;    /* [BATCH][room] */
    uint8_t *from, *to;
} quantizer;

#define BATCH 64

/* ---- the list ------------------------------------------------------------------------------------------ */

/* Learned positions are added to activations as they are; they stay exact, as vectors do. */
static bool is_position(const fb_program *p, int32_t slot) {
    for (int32_t i = 0; i < p->op_count[FB_PROLOGUE]; i++)
        if (p->ops[FB_PROLOGUE][i].kind == FB_OP_EMBED_POSITION)
            return p->ops[FB_PROLOGUE][i].weights[0] == slot;
    return false;
}

/* A router is small, and its roundings would choose other experts. */
static bool is_router(const fb_program *p, int32_t slot) {
    for (int32_t i = 0; i < p->op_count[FB_BODY]; i++) {
        const fb_op *linear = &p->ops[FB_BODY][i];
        for (int32_t k = 0; linear->weights[0] == slot && k < p->op_count[FB_BODY]; k++)
            if (p->ops[FB_BODY][k].kind == FB_OP_TOP_K && p->ops[FB_BODY][k].in[0] == linear->out[0])
                return true;
    }
    return false;
}

static bool is_embedding(const fb_program *p, int32_t slot) {
    for (int32_t i = 0; i < p->op_count[FB_PROLOGUE]; i++)
        if (p->ops[FB_PROLOGUE][i].kind == FB_OP_EMBED) return p->ops[FB_PROLOGUE][i].weights[0] == slot;
    return false;
}

/* The LM head, also where its outputs are scaled or capped. */
static int32_t head_of(const fb_program *p) {
    int32_t value = p->logits;
    for (int32_t i = p->op_count[FB_EPILOGUE] - 1; i >= 0; i--) {
        const fb_op *op = &p->ops[FB_EPILOGUE][i];
        if (op->out[0] != value) continue;
        if (op->kind == FB_OP_LINEAR) return op->weights[0];
        value = op->in[0];
    }
    return FB_NONE;
}

static bool stays_f32(const fb_program *p, int32_t slot) {
    return p->slots[slot].vector || is_position(p, slot) || is_router(p, slot);
}

static fb_dtype asked_type(const quantizer *q, const item *like, int64_t layer) {
    const fb_spec *spec = q->model->spec;
    if (stays_f32(&spec->program, like->slot)) return FB_F32;
    if (like->slot == head_of(&spec->program)) return q->options->head;
    if (q->options->importance && is_embedding(&spec->program, like->slot)) return q->options->head;
    return fb_mix_type(q->options, spec, like->name, layer);
}

/* What all layers have in common. */
static fb_status describe_slot(const quantizer *q, int32_t slot, item *like, fb_error *err) {
    const fb_slot *s = &q->model->spec->program.slots[slot];
    if (!fb_gguf_name(q->model->spec->architecture, s->name, like->name, &like->order))
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: no GGUF name is known for it", s->name);
    like->vector = s->vector;
    like->slot = slot;
    like->part = s->first > 0;
    like->of = s->of;
    return FB_OK;
}

/* "blk.{}.ffn_up.weight" is of the kind "ffn_up.weight". */
static int32_t kind_of(quantizer *q, const item *like, fb_dtype asked, int64_t cols) {
    const char *hole = strstr(like->name, "{}."), *name = hole ? hole + 3 : like->name;
    for (int64_t i = 0; i < q->report->kind_count; i++)
        if (strcmp(q->report->kinds[i]->name, name) == 0 && q->report->kinds[i]->asked == asked)
            return (int32_t)i;
    fb_quantize_kind *kind = q->report->kinds[q->report->kind_count];
    snprintf(kind->name, sizeof kind->name, "%s", name);
    kind->asked = asked;
    kind->type = asked == FB_F32 ? FB_F32 : fb_mix_fitting(asked, cols);
    kind->no_blocks = kind->type != asked;
    return (int32_t)q->report->kind_count++;
}

/* The kinds of a slot's tensors, in the order of layers, before those of the next slot. */
static void add_kinds(quantizer *q, const item *like) {
    const fb_program *p = &q->model->spec->program;
    for (int64_t layer = 0; layer < (p->slots[like->slot].per_layer ? p->layers : 1); layer++)
        kind_of(q, like, asked_type(q, like, layer), p->slots[like->slot].cols);
}

static void add_item(quantizer *q, int32_t slot, int64_t layer, const item *like) {
    const fb_program *p = &q->model->spec->program;
    const fb_weight *w = &q->model->weights[slot * p->layers + layer];
    item *to = &q->items[q->count++];
    *to = *like;
    to->weight = *w;
    to->layer = layer;
    to->kind = kind_of(q, like, asked_type(q, like, layer), p->slots[slot].cols);
    if (like->vector) to->weight.rows = w->cols, to->weight.cols = 1;
    const char *hole = strstr(like->name, "{}");
    if (hole)
        snprintf(to->name, sizeof to->name, "%.*s%lld%s", (int)(hole - like->name), like->name,
                 (long long)layer, hole + 2);
    fb_quantize_kind *kind = q->report->kinds[to->kind];
    int64_t weights = to->weight.rows * to->weight.cols;
    to->type = kind->type;
    kind->tensors++;
    kind->weights += weights;
    kind->bytes += fb_dtype_bytes(to->type, weights);
}

/* Slots from `first` on, up to where those per layer begin or end; matrices before vectors, since a bias
 * depends on what became of its matrix. */
static int32_t add_slots(quantizer *q, int32_t first, int64_t layer, const item *likes) {
    const fb_program *p = &q->model->spec->program;
    bool per_layer = first < p->slot_count && p->slots[first].per_layer;
    int32_t end = first;
    while (end < p->slot_count && p->slots[end].per_layer == per_layer) end++;
    for (int vector = 0; vector < 2; vector++)
        for (int32_t s = first; s < end; s++)
            if (likes[s].vector == vector) add_item(q, s, layer, &likes[s]);
    return end;
}

/* In the order of the program: what comes before the layers, the layers one by one, what comes after. */
static fb_status list_items(quantizer *q, fb_error *err) {
    const fb_program *p = &q->model->spec->program;
    item likes[FB_MAX_SLOTS] = {0};
    q->items = calloc((size_t)(p->slot_count * p->layers), sizeof *q->items);
    if (!q->items)
        return fb_fail_memory(err, "tensors", p->slot_count * p->layers * (int64_t)sizeof *q->items);
    for (int32_t s = 0; s < p->slot_count; s++) {
        FB_TRY(describe_slot(q, s, &likes[s], err));
        add_kinds(q, &likes[s]);
    }
    int32_t first = add_slots(q, 0, 0, likes), last = first;
    for (int64_t layer = 0; layer < p->layers; layer++) last = add_slots(q, first, layer, likes);
    add_slots(q, last, 0, likes);
    for (int64_t k = 0; k < q->report->kind_count; k++) {
        q->report->weights += q->report->kinds[k]->weights;
        q->report->bytes_after += q->report->kinds[k]->bytes;
    }
    return FB_OK;
}

static void declare(const quantizer *q) {
    for (int64_t i = 0; i < q->count; i++) {
        const item *t = &q->items[i];
        int64_t rows = t->of ? t->of : t->weight.rows;
        if (!t->part)
            fb_gguf_put_tensor(q->writer, t->name, t->type, t->weight.experts, t->vector ? 0 : rows,
                               t->vector ? rows : t->weight.cols);
    }
    for (int32_t i = 0; i < q->rope.count; i++)
        fb_gguf_put_tensor(q->writer, q->rope.name[i], FB_F32, 0, 0, q->model->spec->hyper.rotary / 2);
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

static fb_status make_room(quantizer *q, fb_error *err) {
    for (int64_t i = 0; i < q->count; i++)
        if (q->items[i].weight.cols > q->room) q->room = q->items[i].weight.cols;
    size_t bytes = BATCH * (size_t)q->room * sizeof(float);
    q->values = malloc(bytes);
    q->back = malloc(bytes);
    q->from = malloc(bytes);
    q->to = malloc(bytes);
    if (!q->values || !q->back || !q->from || !q->to) return fb_fail_memory(err, "rows", 4 * (int64_t)bytes);
    return fb_pool_create(fb_pool_cores(), &q->pool, err);
}

static float *row_at(float *rows, const quantizer *q, int64_t place) { return rows + place * q->room; }
static uint8_t *bytes_at(uint8_t *rows, const quantizer *q, int64_t place) {
    return rows + place * q->room * (int64_t)sizeof(float);
}

/* A row as ops read it; `place` is its number in the batch. */
static const uint8_t *source_row(const quantizer *q, const fb_weight *w, int64_t row, int64_t place) {
    if (w->order == FB_ROWS_SAME && !w->parts)
        return (const uint8_t *)w->data + row * fb_dtype_bytes(w->dtype, w->cols);
    fb_weight_copy(w, row, 1, bytes_at(q->from, q, place));
    return bytes_at(q->from, q, place);
}

static void convert_worker(void *arg, int32_t worker) {
    const quantizer *q = arg;
    const fb_weight *w = &q->converting->weight;
    int64_t begin, end;
    fb_pool_share(q->row_count, 1, worker, fb_pool_workers(q->pool), &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        float *values = row_at(q->values, q, i);
        uint8_t *to = bytes_at(q->to, q, i);
        fb_quant_decode(w->dtype, source_row(q, w, q->rows[i], i), w->cols, values);
        if (q->feedback) /* the row's errors lie where it will be decoded to */
            fb_quant_compensate(q->converting->type, values, w->cols, q->feedback, row_at(q->back, q, i), to);
        else
            fb_quant_search(q->converting->type, values, w->cols, NULL, to);
        fb_quant_decode(q->converting->type, to, w->cols, row_at(q->back, q, i));
    }
}

static fb_status add_error(quantizer *q, const item *t, int64_t row, int64_t place, fb_error *err) {
    double error = 0, norm = 0, most = q->report->kinds[t->kind]->max_abs;
    const float *values = row_at(q->values, q, place), *back = row_at(q->back, q, place);
    for (int64_t i = 0; i < t->weight.cols; i++) {
        double value = (double)values[i], difference = fabs((double)back[i] - value);
        error += difference * difference;
        norm += value * value;
        if (difference > most) most = difference;
    }
    if (!isfinite(error))
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: row %lld: a weight that %s cannot hold", t->name,
                       (long long)row, fb_dtype_name(t->type));
    q->error[t->kind] += error;
    q->norm[t->kind] += norm;
    q->report->kinds[t->kind]->max_abs = most;
    return FB_OK;
}

/* A value of a bias, less what rounding its row of the matrix adds to the mean of the output. */
static fb_status write_shifted(quantizer *q, const item *t, int64_t row, fb_error *err) {
    float value;
    fb_quant_decode(t->weight.dtype, source_row(q, &t->weight, row, 0), 1, &value);
    value = (float)((double)value + q->shifts[t->slot][row]);
    if (!isfinite(value))
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: row %lld: %g after the matrix was rounded (a number)",
                       t->name, (long long)row, (double)value);
    return fb_gguf_writer_data(q->writer, &value, sizeof value, err);
}

static void add_shift(quantizer *q, int64_t row, int64_t place, int64_t cols) {
    const float *values = row_at(q->values, q, place), *back = row_at(q->back, q, place);
    double sum = 0;
    for (int64_t i = 0; i < cols; i++) sum += ((double)values[i] - (double)back[i]) * q->mean[i];
    q->shift[row] = sum;
}

static bool converts(const quantizer *q, const item *t) {
    return !q->shifts[t->slot] && t->weight.dtype != t->type;
}

static fb_status write_row(quantizer *q, const item *t, int64_t row, int64_t place, fb_error *err) {
    if (q->shifts[t->slot]) return write_shifted(q, t, row, err);
    int64_t cols = t->weight.cols, size = fb_dtype_bytes(t->type, cols);
    if (!converts(q, t))
        return fb_gguf_writer_data(q->writer, source_row(q, &t->weight, row, place), size, err);
    FB_TRY(add_error(q, t, row, place, err));
    if (q->mean) add_shift(q, row, place, cols);
    return fb_gguf_writer_data(q->writer, bytes_at(q->to, q, place), size, err);
}

static fb_status write_batch(quantizer *q, const item *t, const int64_t *rows, int64_t count, fb_error *err) {
    if (converts(q, t)) {
        q->converting = t;
        q->rows = rows;
        q->row_count = count;
        fb_pool_run(q->pool, fb_pool_workers(q->pool), convert_worker, q);
    }
    for (int64_t i = 0; i < count; i++) FB_TRY(write_row(q, t, rows[i], i, err));
    return FB_OK;
}

static fb_status show_progress(quantizer *q, int64_t weights, fb_error *err) {
    q->done += weights;
    if (!q->options->on_progress || (q->done - q->shown < PROGRESS_WEIGHTS && q->done < q->report->weights))
        return FB_OK;
    q->shown = q->done;
    return q->options->on_progress(q->options->user, q->done, q->report->weights)
               ? FB_OK
               : fb_fail(err, FB_ERROR_STOPPED, "quantize: stopped");
}

/* The file's row i is the checkpoint's row order[i]. */
static fb_status file_order(const quantizer *q, const item *t, int64_t **out, fb_error *err) {
    int64_t rows = t->weight.rows, head_dim = q->model->spec->program.head_dim;
    int64_t *order = *out = malloc((size_t)rows * sizeof *order);
    if (!order) return fb_fail_memory(err, t->name, rows * (int64_t)sizeof *order);
    for (int64_t i = 0; i < rows; i++) order[fb_order_row(t->order, rows, head_dim, i)] = i;
    return FB_OK;
}

static fb_status write_rows(quantizer *q, const item *t, const int64_t *rows, int64_t count, fb_error *err) {
    for (int64_t i = 0, some; i < count; i += some) {
        some = count - i < BATCH ? count - i : BATCH;
        FB_TRY(write_batch(q, t, rows + i, some, err));
        FB_TRY(show_progress(q, some * t->weight.cols, err));
    }
    return FB_OK;
}

/* Counts whose inputs an expert's matrix was calibrated by. */
static void count_expert(quantizer *q, const fb_products *products, bool layers) {
    if (!products->sums)
        q->report->experts_plain++;
    else if (layers)
        q->report->experts_shared++;
    else
        q->report->experts_own++;
}

/* Before a matrix, or an expert's, that the text was multiplied with. All experts of a layer that share its
 * inputs have one factoring. */
static fb_status begin_feedback(quantizer *q, const item *t, int64_t expert, fb_error *err) {
    const fb_importance *known = q->options->importance;
    q->feedback = NULL;
    if (!known || t->vector || fb_dtype_is_float(t->type) || !converts(q, t)) return FB_OK;
    bool layers;
    fb_products products = fb_importance_products(known, t->slot, t->layer, expert, &layers);
    if (t->weight.experts) count_expert(q, &products, layers);
    fb_feedback *to = layers ? &q->shared : &q->own;
    if (!layers || products.sums != q->shared_of) {
        fb_compensation_free(to);
        FB_TRY(fb_compensation_of(&products, q->pool, to, err));
    }
    if (layers) q->shared_of = products.sums;
    if (to->lower) q->feedback = to;
    return FB_OK;
}

static fb_status write_matrices(quantizer *q, const item *t, fb_error *err) {
    int64_t *order, count = t->weight.experts ? t->weight.experts : 1, rows = t->weight.rows / count;
    FB_TRY(file_order(q, t, &order, err));
    fb_status status = FB_OK;
    for (int64_t i = 0; i < count && status == FB_OK; i++) {
        status = begin_feedback(q, t, i, err);
        if (status == FB_OK) status = write_rows(q, t, order + i * rows, rows, err);
    }
    free(order);
    return status;
}

/* Before a matrix whose linear has a bias. */
static fb_status begin_shift(quantizer *q, const item *t, fb_error *err) {
    const fb_importance *known = q->options->importance;
    bool rounds = !fb_dtype_is_float(t->type) && t->type != FB_Q8_0;
    if (!(known ? rounds : fb_mix_corrects(t->type)) || !fb_dtype_is_float(t->weight.dtype)) return FB_OK;
    int32_t bias = fb_model_bias_slot(q->model, t->slot);
    if (bias == FB_NONE) return FB_OK;
    FB_TRY(known ? fb_importance_mean(known, t->slot, t->layer, &q->mean, err)
                 : fb_model_input_mean(q->model, t->slot, t->layer, &q->mean, err));
    if (!q->mean) return FB_OK;
    q->shift = q->shifts[bias] = calloc((size_t)t->weight.rows, sizeof *q->shift);
    return q->shift ? FB_OK : fb_fail_memory(err, t->name, t->weight.rows * (int64_t)sizeof *q->shift);
}

static fb_status write_item(quantizer *q, const item *t, fb_error *err) {
    FB_TRY(begin_shift(q, t, err));
    FB_TRY(write_matrices(q, t, err));
    free(q->mean);
    q->mean = NULL;
    if (!q->shifts[t->slot]) return FB_OK;
    free(q->shifts[t->slot]);
    q->shifts[t->slot] = NULL;
    q->report->kinds[t->kind]->corrected++;
    q->report->corrected++;
    return FB_OK;
}

/* ---- the file ------------------------------------------------------------------------------------------ */

static fb_status write_file(quantizer *q, fb_error *err) {
    FB_TRY(fb_model_put_metadata(q->model, q->options, q->writer, err));
    declare(q);
    FB_TRY(fb_gguf_writer_begin(q->writer, err));
    for (int64_t i = 0; i < q->count; i++) FB_TRY(write_item(q, &q->items[i], err));
    for (int32_t i = 0; i < q->rope.count; i++) {
        int64_t bytes = q->model->spec->hyper.rotary / 2 * (int64_t)sizeof(float);
        FB_TRY(fb_gguf_writer_data(q->writer, q->rope.factors[i], bytes, err));
    }
    return fb_gguf_writer_finish(q->writer, &q->report->file_bytes, err);
}

static fb_status quantize(quantizer *q, const char *path, fb_error *err) {
    FB_TRY(list_items(q, err));
    FB_TRY(make_room(q, err));
    FB_TRY(fb_model_rope_factors(q->model, &q->rope, err));
    FB_TRY(fb_gguf_writer_create(path, q->options->replace, &q->writer, err));
    FB_TRY(write_file(q, err));
    for (int64_t k = 0; k < q->report->kind_count; k++)
        q->report->kinds[k]->rel = q->norm[k] > 0 ? sqrt(q->error[k] / q->norm[k]) : 0;
    for (int i = 0; i < FB_DTYPE_COUNT; i++) q->report->bytes_before += q->model->bytes[i];
    return FB_OK;
}

static fb_status check_type(const char *what, fb_dtype type, fb_error *err) {
    char types[160];
    if (fb_mix_has_type(type)) return FB_OK;
    return fb_fail(err, FB_ERROR_USAGE, "%s: %s (%s)", what, fb_dtype_name(type),
                   fb_mix_types(types, sizeof types));
}

static fb_status make_report(fb_quantize_report **out, fb_error *err) {
    int64_t kinds = MAX_KINDS;
    fb_quantize_report *report = *out = calloc(1, sizeof *report);
    if (report) report->kinds = fb_memory_structs(kinds, sizeof **report->kinds);
    if (report && report->kinds) return FB_OK;
    return fb_fail_memory(err, "report", kinds * (int64_t)sizeof **report->kinds);
}

void fb_quantize_free(fb_quantize_report *report) {
    if (!report) return;
    free(report->kinds);
    free(report);
}

fb_status fb_model_quantize(const fb_model *model, const char *path, const fb_quantize_options *given,
                            fb_quantize_report **report, fb_error *err) {
    if (report) *report = NULL;
    fb_quantize_options options;
    FB_TRY(fb_quantize_options_take(given, &options, err));
    if (!path || !*path) return fb_fail(err, FB_ERROR_USAGE, "quantize: no path given");
    FB_TRY(check_type("type", options.type, err));
    FB_TRY(check_type("head", options.head, err));
    if (!fb_mix_is_known(options.mix))
        return fb_fail(err, FB_ERROR_USAGE, "mix: %lld (an fb_mix)", (long long)options.mix);
    if (options.importance && !fb_importance_fits(options.importance, model))
        return fb_fail(err, FB_ERROR_USAGE, "importance: of a model of another shape");
    FB_TRY(fb_tensors_check_files(model->tensors, err));
    quantizer q = {.model = model, .options = &options};
    fb_status status = make_report(&q.report, err);
    if (status == FB_OK) status = quantize(&q, path, err);
    fb_gguf_writer_free(q.writer);
    for (int32_t i = 0; i < FB_MAX_SLOTS; i++) free(q.shifts[i]);
    fb_compensation_free(&q.own);
    fb_compensation_free(&q.shared);
    free(q.mean);
    free(q.rope.factors[0]);
    free(q.rope.factors[1]);
    free(q.items);
    fb_pool_free(q.pool);
    free(q.values);
    free(q.back);
    free(q.from);
    free(q.to);
    if (status == FB_OK && report)
        *report = q.report;
    else
        fb_quantize_free(q.report);
    return status;
}
