/* The options of every public call: their defaults, the caller's struct converted to this library's version,
 * and the session options that they stand for. */
#ifndef FB_BASE_OPTIONS_H
#define FB_BASE_OPTIONS_H

#include "base/status.h"
#include "fusebox_batch.h"
#include "fusebox_tools.h"

/* fb_sized_take for each type: the caller's options (NULL: the defaults) as a complete struct. */
#define FB_OPTIONS(X)                                                                                        \
    X(fb_session_options)                                                                                    \
    X(fb_draft_options)                                                                                      \
    X(fb_scheduler_options)                                                                                  \
    X(fb_request_options)                                                                                    \
    X(fb_quantize_options)                                                                                   \
    X(fb_bench_options)                                                                                      \
    X(fb_bench_ops_options)                                                                                  \
    X(fb_bench_stream_options)                                                                               \
    X(fb_bench_draft_options)                                                                                \
    X(fb_draft_verify_options)                                                                               \
    X(fb_bench_batch_options)                                                                                \
    X(fb_profile_options)                                                                                    \
    X(fb_plan_report_options)                                                                                \
    X(fb_verify_options)                                                                                     \
    X(fb_fusion_options)                                                                                     \
    X(fb_batch_verify_options)                                                                               \
    X(fb_perplexity_options)                                                                                 \
    X(fb_curve_options)
#define X(type) fb_status type##_take(const type *given, type *out, fb_error *err);
FB_OPTIONS(X)
#undef X

/* The session options that a call's options stand for. Fields that the call does not have get their defaults.
 */
fb_session_options fb_bench_session(const fb_bench_options *options);
fb_session_options fb_bench_ops_session(const fb_bench_ops_options *options);
fb_session_options fb_bench_stream_session(const fb_bench_stream_options *options);
fb_session_options fb_bench_batch_session(const fb_bench_batch_options *options);
fb_session_options fb_bench_draft_session(const fb_bench_draft_options *options);
fb_session_options fb_draft_verify_session(const fb_draft_verify_options *options);
fb_session_options fb_profile_session(const fb_profile_options *options);
fb_session_options fb_verify_session(const fb_verify_options *options);
fb_session_options fb_fusion_session(const fb_fusion_options *options);
fb_session_options fb_batch_verify_session(const fb_batch_verify_options *options);
fb_session_options fb_perplexity_session(const fb_perplexity_options *options);
fb_session_options fb_curve_session(const fb_curve_options *options);

/* A plan report profiles decode steps. */
fb_profile_options fb_plan_report_profile(const fb_plan_report_options *options);

#endif
