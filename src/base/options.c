#include "base/options.h"

#include "base/sized.h"

/* ---- defaults, and structs by their size ---- */

/* Defines the public _init and the internal _take of an options type whose last field is `last`. */
#define OPTIONS(type, first, last, ...)                                                                      \
    FB_SIZED_ENDS_WITH(type, last);                                                                          \
    static const type type##_defaults = {.size = sizeof(type), __VA_ARGS__};                                 \
    static const fb_sized type##_sized = FB_SIZED(type, first, &type##_defaults);                            \
    void type##_init(type *options, size_t size) { fb_sized_init(&type##_sized, options, size); }            \
    fb_status type##_take(const type *given, type *out, fb_error *err) {                                     \
        return fb_sized_take(&type##_sized, given, out, err);                                                \
    }

#define SINKS 4 /* as in StreamingLLM */

OPTIONS(fb_session_options, threads, draft, .act = FB_F32, .fuse = "auto", .sinks = SINKS)
OPTIONS(fb_draft_options, source, user, .most = FB_MAX_DRAFT)
OPTIONS(fb_scheduler_options, sequences, prefix_cache, .sequences = 16, .block = 32, .stretch = 1.8f,
        .prefix_cache = 1)
OPTIONS(fb_request_options, prompt, draft, .samples = 1, .draft = 1)
OPTIONS(fb_quantize_options, type, importance, .type = FB_Q8_0, .head = FB_Q8_0)
OPTIONS(fb_bench_options, threads, any_order, .prompt = 64, .gen = 64, .reps = 9)
OPTIONS(fb_bench_ops_options, threads, user, .prompt = 64, .gen = 64, .reps = 9)
OPTIONS(fb_bench_stream_options, threads, user, .fuse = "auto", .cache = FB_CACHE_SINKS, .sinks = SINKS,
        .ttft_limit = 10)
OPTIONS(fb_bench_batch_options, threads, arrival, .fuse = "auto", .prompt = 64, .gen = 64)
OPTIONS(fb_bench_draft_options, threads, user, .fuse = "auto", .prompt = 64, .gen = 128, .reps = 5,
        .most = FB_MAX_DRAFT)
OPTIONS(fb_draft_verify_options, threads, rounds, .fuse = "auto", .gen = 24, .prompt = 48, .rounds = 3)
OPTIONS(fb_profile_options, threads, gen, .fuse = "auto", .prompt = 64, .gen = 64)
OPTIONS(fb_plan_report_options, threads, gen, .fuse = "auto", .prompt = 64, .gen = 64)
OPTIONS(fb_verify_options, threads, chunk, .fuse = "auto")
OPTIONS(fb_fusion_options, threads, chunk, .fuse = "auto", .sinks = SINKS)
OPTIONS(fb_batch_verify_options, threads, seed, .fuse = "auto", .rounds = 20)
OPTIONS(fb_perplexity_options, threads, max_windows, .fuse = "auto")
OPTIONS(fb_curve_options, threads, user, .fuse = "auto", .sinks = SINKS, .every = 256)

/* ---- sessions ---- */

/* The fields that every call's options have. */
#define COMMON(o)                                                                                            \
    .size = sizeof(fb_session_options), .threads = (o)->threads, .act = (o)->act, .kv = (o)->kv,             \
    .isa = (o)->isa, .backend = (o)->backend, .exact = (o)->exact, .float_dot = (o)->float_dot

fb_session_options fb_bench_session(const fb_bench_options *o) {
    return (fb_session_options){COMMON(o), .machine = o->machine, .sinks = SINKS, .any_order = o->any_order};
}

fb_session_options fb_bench_ops_session(const fb_bench_ops_options *o) {
    return (fb_session_options){COMMON(o), .sinks = SINKS};
}

fb_session_options fb_bench_stream_session(const fb_bench_stream_options *o) {
    return (fb_session_options){COMMON(o),         .fuse = o->fuse,   .machine = o->machine,
                                .cache = o->cache, .sinks = o->sinks, .window = o->window,
                                .chunk = o->chunk};
}

fb_session_options fb_bench_batch_session(const fb_bench_batch_options *o) {
    return (fb_session_options){COMMON(o),
                                .fuse = o->fuse,
                                .machine = o->machine,
                                .sinks = SINKS,
                                .capacity = o->prompt + o->gen,
                                .any_order = o->any_order};
}

fb_session_options fb_bench_draft_session(const fb_bench_draft_options *o) {
    return (fb_session_options){COMMON(o), .fuse = o->fuse, .machine = o->machine, .sinks = SINKS,
                                .capacity = o->prompt + o->gen};
}

fb_session_options fb_draft_verify_session(const fb_draft_verify_options *o) {
    return (fb_session_options){COMMON(o), .fuse = o->fuse, .machine = o->machine, .sinks = SINKS};
}

fb_session_options fb_profile_session(const fb_profile_options *o) {
    return (fb_session_options){COMMON(o), .fuse = o->fuse, .machine = o->machine, .sinks = SINKS};
}

fb_session_options fb_verify_session(const fb_verify_options *o) {
    return (fb_session_options){COMMON(o), .fuse = o->fuse, .machine = o->machine, .sinks = SINKS,
                                .chunk = o->chunk};
}

fb_session_options fb_fusion_session(const fb_fusion_options *o) {
    return (fb_session_options){COMMON(o),         .fuse = o->fuse,   .machine = o->machine,
                                .cache = o->cache, .sinks = o->sinks, .window = o->window,
                                .chunk = o->chunk};
}

fb_session_options fb_batch_verify_session(const fb_batch_verify_options *o) {
    return (fb_session_options){COMMON(o), .fuse = o->fuse, .machine = o->machine, .sinks = SINKS};
}

fb_session_options fb_perplexity_session(const fb_perplexity_options *o) {
    return (fb_session_options){COMMON(o), .fuse = o->fuse, .machine = o->machine, .sinks = SINKS,
                                .chunk = o->chunk};
}

fb_session_options fb_curve_session(const fb_curve_options *o) {
    return (fb_session_options){COMMON(o),         .fuse = o->fuse,     .machine = o->machine,
                                .sinks = o->sinks, .window = o->window, .chunk = o->chunk};
}

fb_profile_options fb_plan_report_profile(const fb_plan_report_options *o) {
    return (fb_profile_options){.size = sizeof(fb_profile_options),
                                .threads = o->threads,
                                .act = o->act,
                                .kv = o->kv,
                                .isa = o->isa,
                                .backend = o->backend,
                                .fuse = o->fuse,
                                .machine = o->machine,
                                .exact = o->exact,
                                .float_dot = o->float_dot,
                                .calibrate = o->calibrate,
                                .prompt = o->prompt,
                                .gen = o->gen};
}
