/* The price of every fuse, and the reason why it is kept or dropped. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "plan/report.h"

/* Ops that move most of a layer's bytes. They stay in some op: a fuse removes only what is around them. */
#define STAYS                                                                                                \
    (1ull << FB_OP_LINEAR | 1ull << FB_OP_LINEAR_GROUP | 1ull << FB_OP_HEAD_ARGMAX |                         \
     1ull << FB_OP_EXPERT_LINEAR | 1ull << FB_OP_EXPERT_GROUP | 1ull << FB_OP_ATTN_SCORES |                  \
     1ull << FB_OP_ATTN_VALUES)

static bool has_op(const fb_program *p, fb_section section, const fb_op *op) {
    for (int32_t i = 0; i < p->op_count[section]; i++) {
        const fb_op *other = &p->ops[section][i];
        if (other->kind == op->kind && other->out[0] == op->out[0] && other->in[0] == op->in[0]) return true;
    }
    return false;
}

/* Seconds of a step that would be saved if everything the fuse removes were free. */
static double removed_seconds(const fb_program *plain, const fb_price *before, const fb_plan *alone,
                              const fb_price *after, const fb_machine *m) {
    double seconds = 0;
    int64_t ops = 0;
    for (int s = 0; s < FB_SECTIONS; s++) {
        int64_t times = s == FB_BODY ? plain->layers : 1;
        ops += times * (plain->op_count[s] - alone->program.op_count[s]);
        for (int32_t i = 0; i < plain->op_count[s]; i++) {
            const fb_op *op = &plain->ops[s][i];
            if (!(STAYS >> op->kind & 1) && !has_op(&alone->program, (fb_section)s, op))
                seconds += (double)times * before->op[s][i].kernel;
        }
    }
    seconds += m->gpu ? (double)ops * (m->node + before->wait)
                      : (double)(before->step_barriers - after->step_barriers) * m->barrier +
                            (double)ops * m->dispatch;
    return seconds + fmax(0, before->between - after->between);
}

static const char *show_bytes(double bytes, char text[32]) {
    double size = fabs(bytes);
    if (size < 1000)
        snprintf(text, 32, "%.0f bytes", size);
    else if (size < 999500)
        snprintf(text, 32, "%.1f KB", size / 1e3);
    else
        snprintf(text, 32, "%.1f MB", size / 1e6);
    return text;
}

/* The fuse that has taken this one's ops in the plan, if any. It comes earlier in the table and touches the
 * same plain ops. */
static const char *taken_by(const fb_program *plain, const fb_plan *chosen, int fuse,
                            fb_plan_options options) {
    const char *name = NULL;
    fb_plan both;
    for (int other = 0; other < fuse && !name; other++) {
        if (!(chosen->applied & FB_FUSE_BIT(other))) continue;
        options.fuses = FB_FUSE_BIT(other) | FB_FUSE_BIT(fuse);
        bool made = fb_plan_make(plain, &options, &both, NULL) == FB_OK;
        if (made && !(both.applied & FB_FUSE_BIT(fuse))) name = fb_fuse_name(other);
    }
    return name;
}

/* Whether quantising in the projections pays depends on how many of them read the same integers. */
static void describe_quantising(const fb_program *plain, char *text, size_t size) {
    int64_t values = 0, matmuls = 0, most = 0;
    for (int32_t i = 0; i < plain->op_count[FB_BODY]; i++) {
        const fb_op *quantize = &plain->ops[FB_BODY][i];
        int64_t readers = 0;
        if (quantize->kind != FB_OP_QUANTIZE) continue;
        for (int32_t k = i + 1; k < plain->op_count[FB_BODY]; k++)
            readers += plain->ops[FB_BODY][k].in[0] == quantize->out[0];
        values++;
        matmuls += readers;
        most = readers > most ? readers : most;
    }
    char users[48] = "one matmul each";
    if (most > 1) snprintf(users, sizeof users, "up to %lld matmuls each", (long long)most);
    snprintf(text, size,
             "a layer's %lld matmuls quantise their activations online, instead of reading %lld already "
             "quantised that %s use; ",
             (long long)matmuls, (long long)values, users);
}

static void give_reason(fb_plan_fuse *f, const fb_plan_report *report, const fb_program *plain,
                        int64_t launches, const char *taker) {
    char moved[32], whole[32], act[256];
    double total = report->plain->predicted, percent = 100 * f->saving / total,
           best = 100 * (1 - 1 / f->ceiling);
    bool screen = strcmp(f->name, "head_screen") == 0, once = screen || strcmp(f->name, "head_argmax") == 0,
         gpu = report->machine->gpu;
    snprintf(act, sizeof act, "%s %s of %s a %s", f->bytes_saved < 0 ? "adds" : "saves",
             show_bytes(f->bytes_saved, moved), show_bytes(report->layer_bytes, whole), "layer");
    if (once)
        snprintf(act, sizeof act, "saves %s of %s a step", show_bytes(f->bytes_saved, moved),
                 screen ? "the head and the logits" : "logits");
    if (gpu && strcmp(f->name, "graph") == 0)
        snprintf(act, sizeof act, "launches a step's %lld ops as one", (long long)launches);
    if (gpu && strcmp(f->name, "step") == 0)
        snprintf(act, sizeof act, "does the layers in one kernel, priced as if they were launched");
    if (gpu && strcmp(f->name, "quant_gemm") == 0) {
        char saves[64];
        snprintf(saves, sizeof saves, "%s", act);
        describe_quantising(plain, act, sizeof act);
        snprintf(act + strlen(act), sizeof act - strlen(act), "%s", saves);
    }
    char barriers[64] = "";
    if (f->barriers_saved && !once)
        snprintf(barriers, sizeof barriers, " and %lld %s%s", (long long)f->barriers_saved,
                 gpu ? "launch" : "barrier",
                 f->barriers_saved == 1 ? ""
                 : gpu                  ? "es"
                                        : "s");
    const char *verdict =
        f->kept ? (f->saving > 0 ? "kept" : "kept because it is free") : "left: it would cost time";
    if (f->kept && percent >= 0 && percent < 1) verdict = "kept because it is free";
    if (!f->kept && taker)
        snprintf(f->reason, sizeof f->reason,
                 "%s%s: %.1f%% of the time, %.1f%% at best; left: %s takes its ops", act, barriers, percent,
                 best, taker);
    else
        snprintf(f->reason, sizeof f->reason, "%s%s: %.1f%% of the time, %.1f%% at best; %s", act, barriers,
                 percent, best, verdict);
}

typedef struct pricing {
    fb_plan none, alone;
    fb_price before, after;
} pricing;

static fb_status price_fuse(pricing *w, int fuse, fb_plan_report *report, const fb_model *model,
                            const fb_machine *m, const fb_shape *shape, const fb_plan *chosen,
                            const fb_plan_options *options, fb_error *err) {
    const fb_program *plain = &model->spec->program;
    fb_plan_fuse *f = report->fuses[fuse];
    f->name = fb_fuse_name(fuse);
    f->ceiling = 1;
    f->why_not = fb_fuse_why_not(plain, (fb_fuse_id)fuse, options);
    if (f->why_not) return FB_OK;
    fb_plan_options alone = *options;
    alone.fuses = FB_FUSE_BIT(fuse); /* `step` alone does nothing; it is priced like the launches */
    FB_TRY(fb_plan_make(plain, &alone, &w->alone, err));
    fb_price_plan(&w->alone, model->weights, m, shape, &w->after);
    bool in_layer =
        w->before.layer_bytes != w->after.layer_bytes || w->before.layer_barriers != w->after.layer_barriers;
    f->kept = chosen->applied & FB_FUSE_BIT(fuse);
    f->bytes_saved = in_layer ? (double)(w->before.layer_bytes - w->after.layer_bytes)
                              : (double)(w->before.step_bytes - w->after.step_bytes);
    f->barriers_saved = w->before.layer_barriers - w->after.layer_barriers;
    f->saving = w->before.total - w->after.total;
    double gone = removed_seconds(&w->none.program, &w->before, &w->alone, &w->after, m);
    f->ceiling = w->before.total / (w->before.total - fmax(gone, fmax(0, f->saving)));
    give_reason(f, report, &w->none.program, w->before.step_barriers,
                f->kept ? NULL : taken_by(plain, chosen, fuse, *options));
    return FB_OK;
}

fb_status fb_plan_price_fuses(fb_plan_report *report, const fb_model *model, const fb_machine *m,
                              const fb_shape *shape, const fb_plan *chosen, const fb_plan_options *options,
                              fb_error *err) {
    report->fuses = fb_memory_structs(FB_FUSE_COUNT, sizeof **report->fuses);
    pricing *w = malloc(sizeof *w);
    if (!w || !report->fuses) {
        free(w);
        return fb_fail_memory(err, "prices", sizeof *w);
    }
    fb_plan_options none = *options;
    none.fuses = 0;
    fb_status status = fb_plan_make(&model->spec->program, &none, &w->none, err);
    if (status == FB_OK) fb_price_plan(&w->none, model->weights, m, shape, &w->before);
    for (int fuse = 0; fuse < FB_FUSE_COUNT && status == FB_OK; fuse++)
        status = price_fuse(w, fuse, report, model, m, shape, chosen, options, err);
    report->fuse_count = FB_FUSE_COUNT;
    free(w);
    return status;
}
