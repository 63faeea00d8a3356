#include "verify/sensitivity.h"

#include <math.h>
#include <stdlib.h>

#include "model/perturb.h"
#include "verify/distance.h"

/* One draw may happen to move a state little. That all of four do so is rare. */
#define DRAWS 4
/* The widest limit of the norm of all differences, relative to the norm. Zeros instead of an answer are off
 * by 1. */
#define MOST 0.5

static void note(const fb_tape *draw, const fb_tape *plain, const fb_tape *truth, fb_sensitivity *to) {
    for (int64_t s = 0; s <= plain->states; s++) {
        fb_verify_row row = {0};
        fb_compare_state(draw, plain, s, 0, &row);
        to->max_abs[s] = fmax(to->max_abs[s], row.max_abs);
        to->rel[s] = fmax(to->rel[s], row.rel);
    }
    to->vs_truth = fmax(to->vs_truth, fmin(fb_tape_distance(draw, truth), MOST));
}

static fb_status measure_one(const fb_model *model, const fb_session_options *plain, const fb_script *script,
                             double amount, uint64_t seed, fb_tape *out, fb_error *err) {
    fb_model *perturbed;
    FB_TRY(fb_model_perturb(model, amount, seed, &perturbed, err));
    fb_status status = fb_tape_record_states(perturbed, plain, script, out, err);
    fb_model_free(perturbed);
    return status;
}

fb_status fb_sensitivity_measure(const fb_model *model, const fb_session_options *options,
                                 const fb_script *script, const fb_tape *plain, const fb_tape *truth,
                                 double amount, fb_sensitivity *out, fb_error *err) {
    int64_t rows = plain->states + 1;
    fb_session_options o = *options;
    o.fuse = "none";
    *out = (fb_sensitivity){.max_abs = calloc((size_t)rows, sizeof *out->max_abs),
                            .rel = calloc((size_t)rows, sizeof *out->rel)};
    fb_status status =
        out->max_abs && out->rel ? FB_OK : fb_fail_memory(err, "report", rows * (int64_t)sizeof *out->rel);
    for (uint64_t seed = 1; seed <= DRAWS && status == FB_OK; seed++) {
        fb_tape draw;
        status = measure_one(model, &o, script, amount, seed, &draw, err);
        if (status != FB_OK) break;
        note(&draw, plain, truth, out);
        fb_tape_free(&draw);
    }
    if (status != FB_OK) fb_sensitivity_free(out);
    return status;
}

/* Both the fused and the plain run may be off by as much as the perturbed ones. */
void fb_sensitivity_widen(const fb_sensitivity *measured, fb_verify_row *row) {
    double most = 2 * measured->max_abs[row->layer];
    if (isfinite(most)) row->limit = fmax(row->limit, most);
    row->rel_limit = fmax(row->rel_limit, fmin(2 * measured->rel[row->layer], MOST));
    row->ok = row->max_abs <= row->limit && row->rel <= row->rel_limit;
}

void fb_sensitivity_free(fb_sensitivity *sensitivity) {
    free(sensitivity->max_abs);
    free(sensitivity->rel);
    *sensitivity = (fb_sensitivity){0};
}
