/* Runs programs to measure them, and makes the parts of a report. */
#ifndef FB_PLAN_REPORT_H
#define FB_PLAN_REPORT_H

#include "base/options.h"
#include "model/model.h"
#include "plan/price.h"
#include "run/session.h"

/* A session whose steps are timed. */
typedef struct fb_runner {
    fb_session *session;
    const fb_plan *plan; /* the session's plan */
} fb_runner;

/* Rows of a prefill step, as in a session: on the CPU, and on a GPU. */
#define FB_RUNNER_CHUNK     128
#define FB_RUNNER_CHUNK_GPU 512

fb_status fb_runner_open(fb_runner *runner, const fb_model *model, const fb_session_options *options,
                         const fb_planning *planning, fb_error *err);
void fb_runner_close(fb_runner *runner);
/* Prefills `tokens` tokens into an empty session. */
fb_status fb_runner_prefill(fb_runner *runner, int64_t tokens, fb_error *err);
/* One decode step, including the choice of its token. */
fb_status fb_runner_decode(fb_runner *runner, double *seconds, fb_error *err);

/* Fills in the counted and predicted figures. */
fb_status fb_profile_price(fb_profile *profile, const fb_plan *plan, const fb_weight *weights,
                           const fb_machine *machine, const fb_shape *shapes, int count, fb_error *err);
/* Runs the session, which must be opened with `profile`, and fills in the measured figures. */
fb_status fb_profile_measure(fb_profile *profile, fb_runner *runner, const fb_profile_options *request,
                             fb_error *err);

/* The shapes of the steps that a request is about: one decode step in the middle, or all steps of a prefill.
 */
#define FB_MAX_SHAPES 1024
int fb_request_shapes(const fb_profile_options *request, const fb_machine *machine, fb_dtype kv,
                      fb_shape *shapes);

/* Prices every fuse alone, and says why it is kept or dropped. */
fb_status fb_plan_price_fuses(fb_plan_report *report, const fb_model *model, const fb_machine *machine,
                              const fb_shape *shape, const fb_plan *chosen, const fb_plan_options *options,
                              fb_error *err);

/* ---- draft.c ---- */

/* Prices guesses for a stream of `model`, whose steps of one row have this plan, options and shape. */
fb_status fb_plan_price_drafts(fb_plan_report *report, const fb_model *model, const fb_machine *machine,
                               const fb_shape *shape, const fb_plan *plan, const fb_plan_options *options,
                               fb_error *err);

/* Measures the steps that check guesses. `options`: of a session with this plan. */
fb_status fb_plan_measure_drafts(fb_plan_report *report, const fb_model *model,
                                 const fb_session_options *options, const fb_planning *planning,
                                 fb_error *err);

#endif
