/* Layers: from a config and a caller's tensors to a plan. layer_run.c runs it. */
#include "ops/layer.h"

#include <math.h>
#include <stdlib.h>

/* ---- the plain program of one layer ---- */

/* The prologue's ops stay, so that their values have shapes. Only rope_angles of them is ever run. Nothing is
 * carried from layer to layer, and no epilogue follows: no fuse reaches beyond the layer. */
static fb_status cut_layer(fb_ops_layer *l, fb_error *err) {
    fb_program *p = &l->spec->program;
    l->in = p->residual;
    l->out = l->angles = FB_NONE;
    for (int32_t c = 0; c < p->carry_count; c++)
        if (p->carries[c].next == p->residual) l->out = p->carries[c].from;
    if (l->out == FB_NONE) return fb_fail(err, FB_ERROR_SYSTEM, "layer: it carries no hidden state");
    bool other = l->spec->hyper.experts > 0;
    for (int32_t s = 0; s < p->slot_count; s++) other = other || p->slots[s].of || p->slots[s].plus_one;
    for (int32_t i = 0; i < p->op_count[FB_PROLOGUE]; i++)
        other =
            other || (p->ops[FB_PROLOGUE][i].kind == FB_OP_ROPE_ANGLES && p->ops[FB_PROLOGUE][i].attr.scale);
    if (p->kind_count > 1 || p->kinds[0].window || p->long_context || other)
        return fb_fail(
            err, FB_ERROR_UNSUPPORTED,
            "layer: %s: windows, layers that differ, merged weights, norms stored less 1, scaled angles or "
            "experts (run the model itself)",
            l->spec->architecture);
    p->layers = 1;
    p->carry_count = 0;
    p->op_count[FB_EPILOGUE] = 0;
    for (int32_t i = 0; i < p->op_count[FB_PROLOGUE]; i++) {
        const fb_op *op = &p->ops[FB_PROLOGUE][i];
        if (op->kind != FB_OP_ROPE_ANGLES) continue;
        l->angles = op->out[0];
        l->rotary = op->attr.rotary;
    }
    if (l->rotary > 2 * FB_CUDA_NUMBERS)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "layer: rotary: %d (at most %d)", l->rotary,
                       2 * FB_CUDA_NUMBERS);
    return FB_OK;
}

/* ---- weights ---- */

/* A slot's name without what comes before the layer's number; NULL: not a weight of a layer. */
static const char *name_in_layer(const fb_slot *slot) {
    const char *hole = strstr(slot->name, "{}.");
    return hole ? hole + 3 : NULL;
}

static const fb_ops_tensor *find_weight(const fb_ops_named *weights, int32_t count, const char *name) {
    for (int32_t i = 0; i < count; i++)
        if (weights[i].name && strcmp(weights[i].name, name) == 0) return &weights[i].tensor;
    return NULL;
}

static fb_status bind_slot(const fb_check *c, fb_ops_layer *l, int32_t s, const fb_ops_named *weights,
                           int32_t count) {
    fb_slot *slot = &l->spec->program.slots[s];
    const char *name = name_in_layer(slot);
    fb_weight *w = &l->weights[s];
    if (!name) return FB_OK;
    const fb_ops_tensor *t = find_weight(weights, count, name);
    if (!t) return fb_fail(c->err, FB_ERROR_USAGE, "%s: %s: missing tensor", c->op, name);
    if (slot->vector)
        FB_TRY(fb_check_vector(c, name, t, slot->cols, false, w));
    else
        FB_TRY(fb_check_matrix(c, name, t, slot->cols, w));
    if (w->rows != slot->rows)
        return fb_fail(c->err, FB_ERROR_USAGE, "%s: %s: rows %lld (must be %lld)", c->op, name,
                       (long long)w->rows, (long long)slot->rows);
    w->head_dim = l->spec->program.head_dim;
    slot->dtypes = 1u << w->dtype;
    return FB_OK;
}

static fb_status check_unused(const fb_check *c, const fb_ops_layer *l, const fb_ops_named *weights,
                              int32_t count) {
    const fb_program *p = &l->spec->program;
    for (int32_t i = 0; i < count; i++) {
        bool used = false;
        for (int32_t s = 0; s < p->slot_count && weights[i].name; s++) {
            const char *name = name_in_layer(&p->slots[s]);
            used = used || (name && strcmp(name, weights[i].name) == 0);
        }
        if (!used)
            return fb_fail(c->err, FB_ERROR_UNSUPPORTED,
                           "%s: %.100s: unexpected tensor (nothing in a %s of this config reads it)", c->op,
                           weights[i].name ? weights[i].name : "NULL", l->spec->architecture);
    }
    return FB_OK;
}

static fb_status bind_weights(const fb_check *c, fb_ops_layer *l, const fb_ops_named *weights,
                              int32_t count) {
    if (count < 0 || (count && !weights))
        return fb_fail(c->err, FB_ERROR_USAGE, "%s: weights: %d of them", c->op, count);
    for (int32_t s = 0; s < l->spec->program.slot_count; s++) FB_TRY(bind_slot(c, l, s, weights, count));
    return check_unused(c, l, weights, count);
}

/* ---- creating ---- */

static fb_status make_plan(const fb_check *c, fb_ops_layer *l, const char *fuse, bool exact) {
    bool automatic;
    l->options = (fb_plan_options){.exact = exact};
    FB_TRY(fb_fuse_parse(fuse ? fuse : "all", &l->options.fuses, &automatic, c->err));
    if (automatic)
        return fb_fail(c->err, FB_ERROR_USAGE,
                       "%s: fuse: auto (none, all or a list; the planner needs a model)", c->op);
    FB_TRY(fb_plan_make(&l->spec->program, &l->options, &l->plan, c->err));
    fb_bound bound = {&l->plan.program, l->weights};
    fb_executor_options o = {.act = l->act, .kv = l->act, .capacity = 1, .chunk = 1, .epilogue_rows = 1};
    return fb_frame_init(&l->frame, &bound, &o, c->err);
}

static fb_status check_act(const fb_check *c, fb_dtype act) {
    if (act == FB_F32 || act == FB_F16 || act == FB_BF16) return FB_OK;
    return fb_fail(c->err, FB_ERROR_USAGE, "%s: act: dtype %d (must be f32, f16 or bf16)", c->op, (int)act);
}

static fb_status describe(const fb_check *c, fb_ops_layer *l, const char *config) {
    FB_TRY(check_act(c, l->act));
    if (!config) return fb_fail(c->err, FB_ERROR_USAGE, "%s: config: NULL (must be text)", c->op);
    FB_TRY(fb_arch_describe("config", config, strlen(config), &l->spec, c->err));
    return cut_layer(l, c->err);
}

/* The model's own, where they are not what its config says: rounded to 16 bits, say. */
static fb_status set_frequencies(const fb_check *c, fb_ops_layer *l, const double *frequencies,
                                 int32_t count) {
    if (count != l->rotary / 2)
        return fb_fail(c->err, FB_ERROR_USAGE, "%s: frequencies: %d of them (must be %d)", c->op, count,
                       l->rotary / 2);
    for (int32_t i = 0; i < count; i++) {
        if (!isfinite(frequencies[i]))
            return fb_fail(c->err, FB_ERROR_USAGE, "%s: frequencies[%d]: %g (must be finite)", c->op, i,
                           frequencies[i]);
        l->spec->program.frequencies[i] = frequencies[i];
    }
    return FB_OK;
}

fb_status fb_ops_layer_create(fb_ops *ops, const char *config, const fb_ops_named *weights, int32_t count,
                              const double *frequencies, int32_t frequency_count, fb_dtype act,
                              const char *fuse, bool exact, fb_ops_layer **out, fb_error *err) {
    const fb_check c = {ops, "layer", err};
    *out = NULL;
    FB_TRY(fb_check_ops(&c));
    fb_ops_layer *l = calloc(1, sizeof *l);
    if (!l) return fb_fail_memory(err, "layer", sizeof *l);
    l->ops = ops;
    l->act = act;
    pthread_mutex_init(&l->lock, NULL);
    fb_status status = describe(&c, l, config);
    if (status == FB_OK && frequencies) status = set_frequencies(&c, l, frequencies, frequency_count);
    if (status == FB_OK) status = bind_weights(&c, l, weights, count);
    if (status == FB_OK) status = make_plan(&c, l, fuse, exact);
    if (status != FB_OK) {
        fb_ops_layer_free(l);
        return status;
    }
    *out = l;
    return FB_OK;
}

void fb_ops_layer_free(fb_ops_layer *l) {
    if (!l) return;
    fb_spec_free(l->spec);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

/* ---- what it is ---- */

static const char *why_not(const fb_ops_layer *l, fb_fuse_id fuse) {
    if (l->plan.applied & FB_FUSE_BIT(fuse)) return NULL;
    if (!(l->options.fuses & FB_FUSE_BIT(fuse))) return "off";
    if (fuse == FB_FUSE_STEP || fuse == FB_FUSE_GRAPH) return "of a whole step, not of a layer";
    if (fuse == FB_FUSE_HEAD_ARGMAX || fuse == FB_FUSE_HEAD_SCREEN) return "of the head, not of a layer";
    const char *reason = fb_fuse_why_not(&l->spec->program, fuse, &l->options);
    return reason ? reason : "another fuse took its ops";
}

fb_status fb_ops_layer_fuse_at(fb_ops_layer *l, int32_t index, fb_ops_layer_fuse *out, bool *more,
                               fb_error *err) {
    FB_TRY(fb_check_ops(&(fb_check){l ? l->ops : NULL, "layer", err}));
    *more = index >= 0 && index < FB_FUSE_COUNT;
    if (!*more) return FB_OK;
    pthread_mutex_lock(&l->lock);
    *out = (fb_ops_layer_fuse){.name = fb_fuse_table[index].name,
                               .why_not = why_not(l, (fb_fuse_id)index),
                               .bit = l->options.exact || fb_fuse_table[index].exactness == FB_EXACT_BIT,
                               .each = l->plan.calls[index],
                               .calls = l->calls[index]};
    pthread_mutex_unlock(&l->lock);
    return FB_OK;
}

fb_status fb_ops_layer_print(const fb_ops_layer *l, char **text, fb_error *err) {
    FB_TRY(fb_check_ops(&(fb_check){l ? l->ops : NULL, "layer", err}));
    return fb_program_print(&l->plan.program, fb_fuse_name, text, err);
}
