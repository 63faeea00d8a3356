/* Fusebox: what measures, checks and converts models. A program that only runs them needs fusebox.h alone,
 * whose words on errors, growth and threads hold here, too.
 *
 * Every function here takes options of its own. A field that has the name of one of fb_session_options means
 * the same, and has the same default; what a call has no field for does not matter to it.
 *
 * Reports. The library makes them, and each has a _free function. They grow at their end: a program only ever
 * has pointers to them, and never copies one or takes its sizeof. Lists are arrays of pointers for the same
 * reason. The structs that lie in reports and arrays by value never change: fb_spread, fb_verify_row,
 * fb_score and fb_curve_row are frozen. Texts live as long as the report.
 *
 * Threads. Calls on one model may run in several threads at once, though times are then worth little. A
 * report is not changed once it is there, and may be read by any thread. Callbacks come from the thread that
 * made the call.
 */
#ifndef FUSEBOX_TOOLS_H
#define FUSEBOX_TOOLS_H

#include "fusebox.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- quantisation ---------------------------------------------------------------------------------------
 */

typedef struct fb_quantize_options {
    size_t size;
    fb_dtype type;              /* of matrices: FB_F16, FB_Q8_0 (the default) or FB_Q4_0 */
    fb_dtype head;              /* of the output head, which may be the embedding, too; the same choice */
    bool replace;               /* a file that has the name already */
    const char *name;           /* of the model, unless its file has one; NULL: none */
    fb_progress_fn on_progress; /* by weights; return false to stop. May be NULL */
    void *user;
} fb_quantize_options;

FB_API void fb_quantize_options_init(fb_quantize_options *options, size_t size);
static inline void fb_quantize_options_default(fb_quantize_options *o) {
    fb_quantize_options_init(o, sizeof *o);
}

/* All layers' tensors of one kind. */
typedef struct fb_quantize_kind {
    char name[64]; /* "ffn_up.weight" */
    fb_dtype type;
    bool no_blocks; /* kept in F16, because its rows are no whole blocks of what was asked for */
    int64_t tensors, weights, bytes;
    int64_t corrected; /* tensors that are biases, less what the rounding of their matrix adds on average */
    double rel;        /* norm of the error over the norm of the weights */
    double max_abs;    /* largest error of a weight */
} fb_quantize_kind;

typedef struct fb_quantize_report {
    int64_t weights;
    int64_t bytes_before, bytes_after; /* of the weights */
    int64_t file_bytes;                /* of the file: with its metadata */
    int64_t corrected;                 /* biases */
    int64_t kind_count;
    fb_quantize_kind **kinds;
} fb_quantize_report;

/* Writes the model as a GGUF file, tokenizer included: matrices in the types asked for, vectors in F32.
 * Scales of Q4_0 are searched for the least squared error. Where a matrix becomes Q4_0, its linear's
 * bias is corrected by the mean of the error, if the mean of the linear's input can be told from the weights:
 * after a LayerNorm, GELU or attention.
 * Refuses a model that such a file cannot describe. Under `path` there is the whole file or none. `report`
 * may be NULL. */
FB_API fb_status fb_model_quantize(const fb_model *model, const char *path,
                                   const fb_quantize_options *options, fb_quantize_report **report,
                                   fb_error *err);
FB_API void fb_quantize_free(fb_quantize_report *report);

/* ---- benchmarks -----------------------------------------------------------------------------------------
 */

/* Of repeated measurements: the median, the 10th and 90th percentile, and the shortest interval of order
 * statistics that holds the true median with 95% confidence or more; all values if they are too few, with the
 * confidence that is then left. Frozen. */
typedef struct fb_spread {
    double median, p10, p90;
    double low, high, confidence;
} fb_spread;

typedef struct fb_bench_options {
    size_t size;
    int32_t threads;
    fb_dtype act;
    const char *kv, *isa, *backend, *machine;
    bool exact, float_dot;
    int32_t spec_count;
    const char *const *specs;   /* the variants, as fb_session_options.fuse; none by default */
    int64_t prompt, gen;        /* tokens of the prompt, decode steps after it; 64 and 64 */
    int64_t reps;               /* repetitions of the whole; 9 */
    fb_progress_fn on_progress; /* after each repetition; return false to stop. May be NULL */
    void *user;
} fb_bench_options;

FB_API void fb_bench_options_init(fb_bench_options *options, size_t size);
static inline void fb_bench_options_default(fb_bench_options *o) { fb_bench_options_init(o, sizeof *o); }

/* Times in seconds. Decoding is greedy, so that a step ends with its token. */
typedef struct fb_bench_variant {
    const char *spec;
    int64_t barriers_a_step;
    /* The check before anything is timed: the same tokens through this variant and the first one. */
    bool agrees; /* the same tokens and bits; where a fuse in it promises less, logits within its bound */
    bool bit_identical;   /* all logits of all steps */
    int64_t tokens_equal; /* of gen + 1 */
    double max_abs;       /* largest difference of a logit */
    /* By repetition. */
    double *prefill, *ttft, *tpot; /* [reps]; a repetition's tpot is the median of its steps */
    fb_spread prefill_spread, ttft_spread, tpot_spread;
    /* The first variant's time over this one's, paired by repetition: above 1 is faster. */
    fb_spread prefill_ratio, ttft_ratio, tpot_ratio;
} fb_bench_variant;

typedef struct fb_bench_report {
    bool agree; /* all of them; if not, nothing was timed */
    int64_t prompt, gen, reps;
    int32_t threads;
    char isa[16];
    int64_t variant_count;
    fb_bench_variant **variants;
} fb_bench_report;

/* Checks the variants against each other, then times them in turns. FB_OK means that this took place;
 * `report->agree` says whether there are times. The specs must outlive the report. */
FB_API fb_status fb_bench_run(const fb_model *model, const fb_bench_options *options,
                              fb_bench_report **report, fb_error *err);
FB_API void fb_bench_free(fb_bench_report *report);

typedef struct fb_bench_ops_options {
    size_t size;
    int32_t threads;
    fb_dtype act;
    const char *kv, *isa, *backend;
    bool exact, float_dot;
    int64_t prompt, gen, reps;  /* as in fb_bench_options */
    fb_progress_fn on_progress; /* after each fuse; return false to stop. May be NULL */
    void *user;
} fb_bench_ops_options;

FB_API void fb_bench_ops_options_init(fb_bench_ops_options *options, size_t size);
static inline void fb_bench_ops_options_default(fb_bench_ops_options *o) {
    fb_bench_ops_options_init(o, sizeof *o);
}

/* One fuse alone against the plain ops that it replaces, at the model's own shapes. Seconds a step, all
 * layers added up. */
typedef struct fb_bench_op {
    const char *fuse;
    int64_t rows; /* tokens in a step: 1, or the prompt's */
    bool agrees;  /* checked before it is timed, as above */
    bool bit_identical;
    double max_abs;        /* of the logits; NaN where the fuse leaves none */
    double *plain, *fused; /* [reps] */
    fb_spread plain_spread, fused_spread, ratio;
} fb_bench_op;

typedef struct fb_bench_ops_report {
    bool agree;
    int64_t prompt, gen, reps;
    int32_t threads;
    char isa[16];
    int64_t count;
    fb_bench_op **ops; /* for each fuse that applies: decode, then prefill */
} fb_bench_ops_report;

FB_API fb_status fb_bench_ops(const fb_model *model, const fb_bench_ops_options *options,
                              fb_bench_ops_report **report, fb_error *err);
FB_API void fb_bench_ops_free(fb_bench_ops_report *report);

/* One stream as it goes on, with one cache. */
typedef struct fb_bench_stream_options {
    size_t size;
    int32_t threads;
    fb_dtype act;
    const char *kv, *isa, *backend, *fuse, *machine;
    bool exact, float_dot;
    fb_cache_kind cache; /* FB_CACHE_SINKS by default */
    int64_t sinks, window, chunk;
    int64_t gen;       /* how far the stream goes, in tokens; 0: 16 times what the cache holds. A dense
                          cache ends at the model's context */
    double ttft_limit; /* seconds: a prompt that takes longer is given up; 10 */
    fb_progress_fn on_progress; /* by tokens of the stream; return false to stop. May be NULL */
    void *user;
} fb_bench_stream_options;

FB_API void fb_bench_stream_options_init(fb_bench_stream_options *options, size_t size);
static inline void fb_bench_stream_options_default(fb_bench_stream_options *o) {
    fb_bench_stream_options_init(o, sizeof *o);
}

/* Times in seconds. */
typedef struct fb_bench_stream_line {
    int64_t position; /* tokens before the first step that was timed here */
    fb_spread tpot;   /* over report->steps decode steps */
    double ttft;      /* of a prompt of `position` tokens, in an empty session; NaN: over the limit */
    int64_t cache_bytes;
    int64_t resident_bytes; /* of the process, after these steps; 0: not known */
} fb_bench_stream_line;

typedef struct fb_bench_stream_report {
    fb_cache_kind cache;
    int64_t sinks, window; /* as settled; 0 if dense */
    int64_t gen;           /* as settled; of a dense cache, what was asked for or the context */
    int64_t context;       /* of the model */
    int64_t steps;
    int64_t checked; /* greedy tokens that were as with a dense cache, before it forgot any; dense: 0 */
    int32_t threads;
    char isa[16];
    int64_t line_count;
    fb_bench_stream_line **lines;
    /* The same without a cache that forgets: at each step all that the next token sees (sinks and window) is
     * read anew into an empty dense cache. None of this if the cache is dense. */
    int64_t recompute_steps;
    fb_spread recompute; /* a token */
    double ratio;        /* recompute over the last line's tpot: above 1, the stream is faster */
} fb_bench_stream_report;

/* Checks the cache against a dense one, then takes times along one greedy stream. Fails with FB_ERROR_SYSTEM
 * if the check does: nothing is timed then. */
FB_API fb_status fb_bench_stream_run(const fb_model *model, const fb_bench_stream_options *options,
                                     fb_bench_stream_report **report, fb_error *err);
FB_API void fb_bench_stream_free(fb_bench_stream_report *report);

/* ---- profile and plan -----------------------------------------------------------------------------------
 */

typedef struct fb_profile_op {
    char name[96];                 /* as in the program's text: the op, or its fuses joined by '+' */
    int32_t section;               /* 0: prologue, 1: layer, 2: epilogue */
    bool barrier;                  /* all threads meet after it; on a GPU, all ops */
    int64_t calls;                 /* a step */
    double seconds;                /* measured, all calls of a step */
    double predicted;              /* the machine model's */
    double bytes;                  /* of weights, activations and cache, all calls of a step … */
    double weight_bytes, kv_bytes; /* … and two parts of it */
    double flops;
    double bandwidth; /* bytes a second at most: at the step's footprint; on a GPU, at one call's bytes */
} fb_profile_op;

/* Where the time of a step goes: a decode step, or a whole prefill. */
typedef struct fb_profile {
    char *text; /* the program */
    int64_t op_count;
    fb_profile_op **ops;   /* in program order, a layer's ops once for all layers */
    int64_t layers, steps; /* steps that were averaged: the faster half */
    double wall;           /* seconds a step, with a clock around every op … */
    double between;        /* … and what of it lies outside of ops */
    double tpot;           /* seconds a step without those clocks, median; 0 if it was not taken */
    double predicted;      /* seconds a step */
    int64_t barriers;      /* a layer; on a GPU, launches */
    double layer_bytes;
} fb_profile;

typedef struct fb_machine_figures {
    bool gpu;
    char cpu[64], isa[16]; /* the GPU's name and architecture, if it is one */
    int32_t threads;       /* 0 on a GPU */
    int32_t points;
    double *bytes, *bandwidth; /* [points]: bytes a second, by bytes that are read over and over; on a GPU, by
                                  bytes of one launch */
    double barrier, dispatch;  /* seconds */
    double launch, node, small; /* seconds, on a GPU: of the host for a launch; between two ops; the least
                                   that an op takes besides */
    double flops;               /* a second */
    double footprint;           /* bytes of weights and cache that a step reads … */
    double footprint_bandwidth; /* … and bytes a second there */
} fb_machine_figures;

typedef struct fb_plan_fuse {
    const char *name;
    const char *why_not;    /* it does not apply to this model; NULL: it does */
    bool kept;              /* in the plan */
    double bytes_saved;     /* a layer (head_argmax: a step), alone against the plain program */
    int64_t barriers_saved; /* a layer; on a GPU, launches */
    double saving;          /* predicted seconds a step, alone */
    double ceiling;         /* of the speed-up, if all that it removes were free (Amdahl) */
    char reason[320];
} fb_plan_fuse;

typedef struct fb_plan_report {
    fb_machine_figures *machine;
    int64_t prompt, gen;
    fb_profile *plain, *fused; /* plain: NULL in a report of fb_profile_make */
    int64_t fuse_count;        /* 0 in a report of fb_profile_make */
    fb_plan_fuse **fuses;
    double layer_bytes; /* of the plain program */
} fb_plan_report;

typedef struct fb_profile_options {
    size_t size;
    int32_t threads;
    fb_dtype act;
    const char *kv, *isa, *backend, *fuse;
    const char *machine; /* folder of measured machines; NULL: measure, keep nothing */
    bool exact, float_dot;
    bool calibrate;      /* measure the machine again */
    bool prefill;        /* profile the prefill, not the decode steps */
    int64_t prompt, gen; /* tokens, at least 1; 64 and 64 */
} fb_profile_options;

FB_API void fb_profile_options_init(fb_profile_options *options, size_t size);
static inline void fb_profile_options_default(fb_profile_options *o) {
    fb_profile_options_init(o, sizeof *o);
}

FB_API fb_status fb_profile_make(const fb_model *model, const fb_profile_options *options,
                                 fb_plan_report **report, fb_error *err);

typedef struct fb_plan_report_options { /* as in fb_profile_options */
    size_t size;
    int32_t threads;
    fb_dtype act;
    const char *kv, *isa, *backend, *fuse, *machine;
    bool exact, float_dot, calibrate;
    int64_t prompt, gen;
} fb_plan_report_options;

FB_API void fb_plan_report_options_init(fb_plan_report_options *options, size_t size);
static inline void fb_plan_report_options_default(fb_plan_report_options *o) {
    fb_plan_report_options_init(o, sizeof *o);
}

/* The same for the plain program and the plan, decode only, with a price for every fuse. */
FB_API fb_status fb_plan_report_make(const fb_model *model, const fb_plan_report_options *options,
                                     fb_plan_report **report, fb_error *err);
FB_API void fb_plan_report_free(fb_plan_report *report);

/* The roofline and the timelines of fb_plan_report_make as one self-contained SVG file. */
FB_API fb_status fb_plan_report_svg(const fb_plan_report *report, const char *path, fb_error *err);

/* ---- verification ---------------------------------------------------------------------------------------
 */

/* Frozen. */
typedef struct fb_verify_row {
    int64_t layer;
    double max_abs;   /* largest absolute error of an element */
    double limit;     /* of max_abs */
    double rel;       /* norm of the error over the norm of the reference */
    double rel_limit; /* of rel */
    bool ok;          /* both hold */
} fb_verify_row;

typedef struct fb_verify_report {
    bool ok;
    int64_t tokens;
    int64_t layers; /* rows below: the embedding and each layer */
    fb_verify_row *rows;
    fb_verify_row logits;
    double logits_f64_max_abs; /* distance of the logits to the golden's float64 logits; NaN if it has none */
    int64_t greedy_tokens;     /* tokens of the continuation */
    int64_t greedy_equal;      /* how many of them were chosen */
    int64_t greedy_near; /* others: the golden's token is within the logits' error bound of ours (f16 and bf16
                            only) */
    bool greedy_match;   /* equal + near = tokens */
} fb_verify_report;

/* Of both kinds of golden. A golden's cache was not rounded: "auto" for kv is "act" here. */
typedef struct fb_verify_options {
    size_t size;
    int32_t threads;
    fb_dtype act;
    const char *kv, *isa, *backend, *fuse, *machine;
    bool exact, float_dot;
    int64_t chunk;
} fb_verify_options;

FB_API void fb_verify_options_init(fb_verify_options *options, size_t size);
static inline void fb_verify_options_default(fb_verify_options *o) { fb_verify_options_init(o, sizeof *o); }

/* Runs the golden's ids and compares every hidden state, the logits and the greedy continuation. FB_OK means
 * that the comparison took place; `report->ok` is its outcome. */
FB_API fb_status fb_verify_golden(const fb_model *model, const char *golden, const fb_verify_options *options,
                                  fb_verify_report **report, fb_error *err);
FB_API void fb_verify_free(fb_verify_report *report);

/* One cache of a stream, against a golden. */
typedef struct fb_stream_row {
    fb_cache_kind cache;
    int64_t sinks, window;
    double nll_max_abs, nll_limit;       /* of -ln p of each token */
    double logits_max_abs, logits_limit; /* NaN: the golden has no logits */
    double perplexity, perplexity_wanted;
    bool ok;
} fb_stream_row;

typedef struct fb_stream_report {
    bool ok;
    int64_t tokens; /* scored */
    int64_t count;
    fb_stream_row **rows;
} fb_stream_report;

/* Whether a golden is one of a stream: how badly each token of a long text was foreseen, by cache. */
FB_API fb_status fb_golden_streams(const char *golden, bool *streams, fb_error *err);

/* Runs the golden's ids with each of its caches, in chunks and token by token, and compares every token's
 * score, and the logits where the golden has them. A dense cache may go beyond the model's context here. */
FB_API fb_status fb_verify_stream(const fb_model *model, const char *golden, const fb_verify_options *options,
                                  fb_stream_report **report, fb_error *err);
FB_API void fb_stream_free(fb_stream_report *report);

/* One fuse, or several together, against the plain program. */
typedef struct fb_fusion_row {
    char name[64];      /* of the fuse; "all", "auto", or the spec */
    bool bit;           /* its class: bit-identical; else within a tolerance */
    bool bit_identical; /* what it was: every hidden state and logit, in prefill and in decode */
    bool greedy_match;
    bool unshown_ok; /* logits also hold in a run that shows no hidden states */
    bool ok;
    char why[128];                     /* what failed; empty if ok */
    double max_abs;                    /* largest difference, where it comes nearest to its bound */
    double bound;                      /* of max_abs there; 0 where bits are promised */
    double vs_f64_plain, vs_f64_fused; /* norm of the logits' error over their norm, against a float64 run */
    int64_t calls, calls_expected;     /* of its fused ops, in the greedy run */
    double perplexity;
    fb_verify_row *layers; /* [states + 1]: after 0, 1, … layers, then the logits */
} fb_fusion_row;

typedef struct fb_fusion_report {
    bool ok, greedy_match;
    int64_t prompt, decoded; /* ids in a prefill, then one by one */
    int64_t greedy_tokens, truth_tokens;
    int64_t states; /* hidden states compared: the embedding and each layer */
    int64_t count;
    fb_fusion_row **rows; /* each fuse that applies alone, then together: "all" and "auto", or the spec */
    double perplexity_plain, perplexity_fused; /* of the ids; fused: the last row's */
} fb_fusion_report;

typedef struct fb_fusion_options {
    size_t size;
    int32_t threads;
    fb_dtype act;
    const char *kv, *isa, *backend, *machine;
    /* NULL or "auto": each fuse that applies alone, all together, the planner's choice; else each of the spec
     * alone, then the spec. */
    const char *fuse;
    bool exact, float_dot;
    fb_cache_kind cache;
    int64_t sinks;
    int64_t window; /* 0: a quarter of the tokens that are compared */
    int64_t chunk;  /* 0: 29 tokens, so that the prefill has a full and a partial chunk */
} fb_fusion_options;

FB_API void fb_fusion_options_init(fb_fusion_options *options, size_t size);
static inline void fb_fusion_options_default(fb_fusion_options *o) { fb_fusion_options_init(o, sizeof *o); }

/* Runs the same ids through the plain program and through fuses. FB_OK means that the comparison took place;
 * `report->ok` is its outcome. */
FB_API fb_status fb_verify_fusion(const fb_model *model, const fb_fusion_options *options,
                                  fb_fusion_report **report, fb_error *err);
FB_API void fb_fusion_free(fb_fusion_report *report);

/* ---- perplexity -----------------------------------------------------------------------------------------
 */

/* How well some tokens were foreseen. The errors are standard errors, as of independent tokens; NaN for one
 * token alone. Frozen. */
typedef struct fb_score {
    int64_t tokens;                      /* that were scored */
    double nll, nll_error;               /* mean of -ln p, in nats a token */
    double perplexity, perplexity_error; /* its exponential */
    double seconds;
} fb_score;

/* Called many times a window. Return false to stop. */
typedef bool (*fb_score_fn)(void *user, const fb_score *so_far, int64_t total);

typedef struct fb_perplexity_options {
    size_t size;
    int32_t threads;
    fb_dtype act;
    const char *kv, *isa, *backend, *fuse, *machine;
    bool exact, float_dot;
    int64_t chunk;
    int64_t window; /* tokens that are read from an empty cache; 0: the model's context, at most 512 */
    fb_score_fn on_progress; /* may be NULL */
    void *user;
} fb_perplexity_options;

FB_API void fb_perplexity_options_init(fb_perplexity_options *options, size_t size);
static inline void fb_perplexity_options_default(fb_perplexity_options *o) {
    fb_perplexity_options_init(o, sizeof *o);
}

typedef struct fb_perplexity_report {
    fb_score all;
    int64_t window; /* tokens of one, with what the tokenizer puts in front */
    int64_t window_count;
    fb_score *windows; /* [window_count]; the last one may be shorter */
    int32_t threads;
    char isa[16];
} fb_perplexity_report;

/* Scores ids (of a text, without special tokens around it) in windows that do not overlap. Each begins with
 * an empty cache and what the tokenizer puts in front of a text, such as a begin-of-text token. Every id that
 * has a predecessor in its window is scored. Fails if a logit is NaN or +inf. */
FB_API fb_status fb_perplexity_run(const fb_model *model, const fb_perplexity_options *options,
                                   const int32_t *ids, int64_t count, fb_perplexity_report **report,
                                   fb_error *err);
FB_API void fb_perplexity_free(fb_perplexity_report *report);

/* ---- perplexity along a stream --------------------------------------------------------------------------
 */

/* How well some tokens of the stream were foreseen, by cache. Frozen. */
typedef struct fb_curve_row {
    int64_t position; /* tokens that were read before its last one, the tokenizer's included */
    int64_t tokens;   /* that were scored */
    double *nll;      /* [curve_count]: mean of -ln p, in nats a token */
} fb_curve_row;

typedef struct fb_curve {
    fb_cache_kind cache;
    int64_t sinks, window; /* as settled; 0 if dense */
    int64_t bytes;         /* of the cache */
    double nll;            /* of all that it has scored; NaN if that is nothing */
    double seconds;        /* it took, without the others */
} fb_curve;

typedef struct fb_curve_report {
    int64_t context; /* what the model was trained on */
    int64_t every;
    int64_t tokens, total; /* scored by every cache; to be scored by each */
    int64_t curve_count;
    fb_curve **curves;
    int64_t row_count;
    fb_curve_row *rows; /* the last one may have fewer tokens than `every` */
    const char *backend;
    char isa[16];
    int32_t threads;
} fb_curve_report;

/* The report so far; of the row that is being read, caches have scored `part` tokens, added up. Return false
 * to stop. */
typedef bool (*fb_curve_fn)(void *user, const fb_curve_report *so_far, int64_t part);

typedef struct fb_curve_options {
    size_t size;
    int32_t threads;
    fb_dtype act;
    const char *kv, *isa, *backend, *fuse, *machine;
    bool exact, float_dot;
    int32_t kind_count;
    const fb_cache_kind *kinds; /* each at most once; none by default */
    int64_t sinks, chunk;
    int64_t window; /* beside one with sinks, a cache that is a window has sinks and window together, so that
                       both see as many tokens */
    int64_t every;  /* tokens of a row; 256 */
    fb_curve_fn on_chunk;    /* after each row; may be NULL */
    fb_curve_fn on_progress; /* before the first row, then many times a row; may be NULL */
    void *user;
} fb_curve_options;

FB_API void fb_curve_options_init(fb_curve_options *options, size_t size);
static inline void fb_curve_options_default(fb_curve_options *o) { fb_curve_options_init(o, sizeof *o); }

/* Scores ids (of a text, without special tokens around it) as one stream, whatever its length, after what the
 * tokenizer puts in front of a text; row by row, with one cache after the other. Every id that has a
 * predecessor is scored. A dense cache holds all of the text, beyond the model's context, too, but for a
 * model that cannot go there. Fails if a logit is NaN or +inf. */
FB_API fb_status fb_curve_run(const fb_model *model, const fb_curve_options *options, const int32_t *ids,
                              int64_t count, fb_curve_report **report, fb_error *err);
FB_API void fb_curve_free(fb_curve_report *report);

/* Perplexity against position, a curve a cache, as one self-contained SVG file. */
FB_API fb_status fb_curve_svg(const fb_curve_report *report, const char *path, fb_error *err);

#ifdef __cplusplus
}
#endif
#endif
