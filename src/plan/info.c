/* What each fuse does to a model, for fb_model_fuse. */
#include <stdlib.h>

#include "backend/cuda/persistent_ops.h"
#include "base/screen.h"
#include "base/sized.h"
#include "fuse/fuse.h"
#include "fuse/tolerance.h"
#include "model/model.h"

/* What the best device could do. It does not depend on this machine. */
static const char *step_why_not(const void *arg, const fb_program *p) {
    (void)arg;
    return fb_cuda_persistent_has_ops(p) ? NULL : "its kernel has not all of a layer's ops";
}

static fb_plan_options options_of(const fb_model *model, uint32_t fuses, bool greedy) {
    const fb_program *p = &model->spec->program;
    int32_t head = fb_program_head(p);
    return (fb_plan_options){.fuses = fuses,
                             .greedy = greedy,
                             .screen = head != FB_NONE && fb_screen_fits(&model->weights[head * p->layers]),
                             .graph = true,
                             .step_why_not = step_why_not};
}

/* The fuses that apply when those of the mask are on, and how often a step calls each. */
static uint32_t apply(const fb_model *model, uint32_t fuses, fb_plan *plan) {
    fb_plan_options options = options_of(model, fuses, true);
    return fb_plan_make(&model->spec->program, &options, plan, NULL) == FB_OK ? plan->applied : 0;
}

/* The first fuse that keeps `fuse` from applying. Earlier fuses are switched on one by one until it no longer
 * applies. */
static const char *find_taker(const fb_model *model, int fuse, fb_plan *plan) {
    uint32_t on = FB_FUSE_BIT(fuse);
    for (int earlier = 0; earlier < fuse; earlier++) {
        on |= FB_FUSE_BIT(earlier);
        if (!(apply(model, on, plan) & FB_FUSE_BIT(fuse))) return fb_fuse_name(earlier);
    }
    return NULL;
}

static void fill(const fb_model *model, int fuse, fb_fuse_info *info, fb_plan *plan) {
    const fb_program *plain = &model->spec->program;
    fb_plan_options options = options_of(model, 0, true), sampling = options_of(model, 0, false);
    info->why_not = fb_fuse_why_not(plain, (fb_fuse_id)fuse, &options);
    if (info->why_not) return;
    info->greedy = fb_fuse_why_not(plain, (fb_fuse_id)fuse, &sampling) != NULL;
    apply(model, fb_fuse_required(fuse), plan);
    info->calls_per_step = plan->calls[fuse];
    info->in_all = apply(model, FB_FUSE_ALL, plan) & FB_FUSE_BIT(fuse);
    if (!info->in_all) info->taken_by = find_taker(model, fuse, plan);
}

FB_SIZED_ENDS_WITH(fb_fuse_info, calls_per_step);

static void describe(const fb_model *model, int index, fb_fuse_info *info) {
    const fb_fuse *fuse = &fb_fuse_table[index];
    info->name = fuse->name;
    info->text = fuse->text;
    info->bit = fuse->exactness == FB_EXACT_BIT;
    if (!info->bit) info->bound = FB_FUSE_TOLERANCE_TEXT "; bit with --exact";
    if (index == FB_FUSE_STEP)
        info->bound = "attn_flash is in it, and differs; otherwise the bits of all,-step; not with --exact";
    info->backends = index == FB_FUSE_GRAPH || index == FB_FUSE_STEP ? "cuda"
                     : index == FB_FUSE_HEAD_SCREEN                  ? "cpu"
                                                                     : "cpu, cuda";
    fb_plan plan;
    fill(model, index, info, &plan);
}

bool fb_model_fill_fuse(const fb_model *model, int index, fb_fuse_info *out) {
    fb_fuse_info info;
    memset(&info, 0, sizeof info); /* clears padding too, because the struct is copied to the caller */
    bool found = index >= 0 && index < FB_FUSE_COUNT;
    if (found) describe(model, index, &info);
    return fb_sized_give(&info, sizeof info, out) && found;
}

/* The plain program, with its quantize ops. */
fb_status fb_model_program_text(const fb_model *model, char **text, fb_error *err) {
    fb_plan *plan = malloc(sizeof *plan);
    if (!plan) return fb_fail_memory(err, "program", sizeof *plan);
    fb_status status = fb_plan_make(&model->spec->program, &(fb_plan_options){0}, plan, err);
    if (status == FB_OK) status = fb_program_print(&plan->program, NULL, text, err);
    free(plan);
    return status;
}
