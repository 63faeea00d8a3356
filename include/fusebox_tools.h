/* Fusebox: functions that measure, check and convert models. A program that only runs models needs only
 * fusebox.h. What that header says about errors, growth and threads holds here too.
 *
 * Every function here takes options of its own. A field with the name of a field of fb_session_options has
 * the same meaning and default.
 *
 * Reports. The library creates them, and each has a _free function. They grow at their end: a program only
 * has pointers to them, never copies one and never takes its sizeof. Lists are arrays of pointers for the
 * same reason. The structs that lie in reports and arrays by value never change: fb_spread, fb_verify_row,
 * fb_score and fb_curve_row are frozen. Texts live as long as the report.
 *
 * Threads. Calls on one model may run in several threads at once, but times then mean little. A finished
 * report does not change and may be read by any thread. Callbacks come from the thread that made the call. */
#ifndef FUSEBOX_TOOLS_H
#define FUSEBOX_TOOLS_H

#include "fusebox.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- quantisation ---- */

/* Mixes of types, by the names that people know. Most matrices have the type in the name, the head Q6_K, and
 * some in which errors cost more a better type: attention's v (or qkv) and output, and ffn_down, in all
 * layers or in some. */
typedef enum fb_mix {
    FB_MIX_NONE = 0,
    FB_MIX_Q2_K = 1,
    FB_MIX_Q3_K_S = 2,
    FB_MIX_Q3_K_M = 3,
    FB_MIX_Q3_K_L = 4,
    FB_MIX_Q4_K_S = 5,
    FB_MIX_Q4_K_M = 6,
    FB_MIX_Q5_K_S = 7,
    FB_MIX_Q5_K_M = 8,
    FB_MIX_IQ4_XS = 9
} fb_mix;

/* What a text says about the inputs of each matrix (fb_importance_collect). */
typedef struct fb_importance fb_importance;

typedef struct fb_quantize_options {
    size_t size;
    fb_dtype type;              /* of matrices: FB_F16 or any quantised type; FB_Q8_0 by default */
    fb_dtype head;              /* of the output head (which may also be the embedding); the same choice */
    bool replace;               /* overwrite an existing file */
    const char *name;           /* name of the model, unless its file has one; NULL: none */
    fb_progress_fn on_progress; /* counts weights; return false to stop. May be NULL */
    void *user;
    int64_t mix; /* an fb_mix, which then decides instead of `type` (not of `head`) */
    /* The errors of a row's columns make up for each other, by the products of the inputs; biases are
     * corrected by the inputs' means, with every type below 8 bits; and the embedding is of the type of the
     * head. An expert goes by the rows that were routed to it. NULL: all columns count alike. */
    const fb_importance *importance;
} fb_quantize_options;

FB_API void fb_quantize_options_init(fb_quantize_options *options, size_t size);
static inline void fb_quantize_options_default(fb_quantize_options *o) {
    fb_quantize_options_init(o, sizeof *o);
}

/* Sets `type`, `head` and `mix` by the name of a type or a mix, in any case: "q4_0", "Q4_K_M". "q2_k" and
 * "iq4_xs" are the mixes. The head is of the type; of FB_Q6_K with a mix, and if `importance` is set and the
 * type has fewer bits. fb_quantize_name(0), (1), … are all names, up to NULL. */
FB_API fb_status fb_quantize_options_parse(const char *name, fb_quantize_options *options, fb_error *err);
FB_API const char *fb_quantize_name(int64_t index);

/* All layers' tensors of one kind and type. */
typedef struct fb_quantize_kind {
    char name[64]; /* "ffn_up.weight" */
    fb_dtype type;
    bool no_blocks; /* its rows are not whole blocks of the type asked for: it is of another one */
    int64_t tensors, weights, bytes;
    int64_t corrected; /* bias tensors that were corrected by the mean error of their quantised matrix */
    double rel;        /* norm of the error over the norm of the weights */
    double max_abs;    /* largest error of a weight */
    fb_dtype asked;    /* the type that it would have if its rows were whole blocks */
} fb_quantize_kind;

typedef struct fb_quantize_report {
    int64_t weights;
    int64_t bytes_before, bytes_after; /* of the weights */
    int64_t file_bytes;                /* of the file, metadata included */
    int64_t corrected;                 /* biases */
    int64_t kind_count;
    fb_quantize_kind **kinds;
    /* With `importance`, matrices of experts that were quantised: by their own inputs; by those of all
     * experts of the layer, because the text hardly reached the expert, or there are too many to keep; by
     * none. */
    int64_t experts_own, experts_shared, experts_plain;
} fb_quantize_report;

/* Writes the model as a GGUF file, tokenizer included: matrices in the types asked for, vectors in F32.
 * Scales are searched for the least squared error, but for Q8_0. Where a matrix becomes Q4_0, Q4_1, Q5_1,
 * Q2_K, Q4_K or Q5_K, the bias of its linear is corrected by the mean of the error, if the weights tell the
 * mean of the linear's input: after a LayerNorm, GELU or attention. A row that is no whole blocks of 256 gets
 * a type of about as many bits with blocks of 32: Q5_0 for Q4_K, Q5_1 for Q5_K, Q8_0 for Q6_K, IQ4_NL for
 * IQ4_XS, Q4_0 for Q3_K and Q2_K; a row that is no whole blocks of 32, F16. Refuses a model that such a file
 * cannot describe. `path` never holds a partial file. `report` may be NULL. */
FB_API fb_status fb_model_quantize(const fb_model *model, const char *path,
                                   const fb_quantize_options *options, fb_quantize_report **report,
                                   fb_error *err);
FB_API void fb_quantize_free(fb_quantize_report *report);

/* ---- benchmarks ---- */

/* Repeated measurements: the median, the 10th and 90th percentile, and the shortest interval of order
 * statistics that contains the true median with at least 95% confidence. With too few values it spans all of
 * them, and `confidence` is lower. Frozen. */
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
    const char *const *specs;   /* the variants, each as fb_session_options.fuse; none by default */
    int64_t prompt, gen;        /* tokens of the prompt, and decode steps after it; 64 and 64 */
    int64_t reps;               /* repetitions of everything; 9 */
    fb_progress_fn on_progress; /* after each repetition; return false to stop. May be NULL */
    void *user;
    int64_t any_order; /* as fb_session_options.any_order */
} fb_bench_options;

FB_API void fb_bench_options_init(fb_bench_options *options, size_t size);
static inline void fb_bench_options_default(fb_bench_options *o) { fb_bench_options_init(o, sizeof *o); }

/* Times in seconds. Decoding is greedy, so a step includes the choice of its token. */
typedef struct fb_bench_variant {
    const char *spec;
    int64_t barriers_a_step;
    /* The check before anything is timed. This variant and the first one read the same tokens. */
    bool agrees; /* the same tokens and bits; if one of its fuses promises less, logits within its bound */
    bool bit_identical;   /* all logits of all steps are */
    int64_t tokens_equal; /* of gen + 1 */
    double max_abs;       /* largest difference of a logit */
    /* Times by repetition. */
    double *prefill, *ttft, *tpot; /* [reps]; a repetition's tpot is the median of its steps */
    fb_spread prefill_spread, ttft_spread, tpot_spread;
    /* The first variant's time divided by this one's, paired by repetition: above 1 is faster. */
    fb_spread prefill_ratio, ttft_ratio, tpot_ratio;
} fb_bench_variant;

typedef struct fb_bench_report {
    bool agree; /* all variants agree; if not, nothing was timed */
    int64_t prompt, gen, reps;
    int32_t threads;
    char isa[16];
    int64_t variant_count;
    fb_bench_variant **variants;
} fb_bench_report;

/* Checks the variants against each other, then times them in turn. FB_OK means that this took place;
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

/* One fuse alone against the plain ops that it replaces, with the model's shapes. Seconds per step, all
 * layers added up. */
typedef struct fb_bench_op {
    const char *fuse;
    int64_t rows; /* tokens in a step: 1, or the prompt's length */
    bool agrees;  /* checked before it is timed, as above */
    bool bit_identical;
    double max_abs;        /* of the logits; NaN if the fused plan computes none */
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

/* One long stream with one cache. */
typedef struct fb_bench_stream_options {
    size_t size;
    int32_t threads;
    fb_dtype act;
    const char *kv, *isa, *backend, *fuse, *machine;
    bool exact, float_dot;
    fb_cache_kind cache; /* FB_CACHE_SINKS by default */
    int64_t sinks, window, chunk;
    int64_t gen; /* length of the stream in tokens; 0: 16 times what the cache holds. A dense cache ends at
                    the model's context */
    double ttft_limit;          /* seconds: a prompt that takes longer is given up; 10 */
    fb_progress_fn on_progress; /* counts tokens of the stream; return false to stop. May be NULL */
    void *user;
} fb_bench_stream_options;

FB_API void fb_bench_stream_options_init(fb_bench_stream_options *options, size_t size);
static inline void fb_bench_stream_options_default(fb_bench_stream_options *o) {
    fb_bench_stream_options_init(o, sizeof *o);
}

/* Times in seconds. */
typedef struct fb_bench_stream_line {
    int64_t position; /* tokens before the first step that is timed on this line */
    fb_spread tpot;   /* over report->steps decode steps */
    double ttft; /* time to the first token of a prompt of `position` tokens in an empty session; NaN: over
                    the limit */
    int64_t cache_bytes;
    int64_t resident_bytes; /* of the process, after these steps; 0: unknown */
} fb_bench_stream_line;

typedef struct fb_bench_stream_report {
    fb_cache_kind cache;
    int64_t sinks, window; /* after defaults; 0 if dense */
    int64_t gen;           /* after defaults; for a dense cache, the number asked for or the context */
    int64_t context;       /* context of the model */
    int64_t steps;
    int64_t checked; /* greedy tokens equal to a dense cache's, before any was forgotten; dense: 0 */
    int32_t threads;
    char isa[16];
    int64_t line_count;
    fb_bench_stream_line **lines;
    /* The alternative to a cache that forgets: for each token, all that it sees (sinks and window) is read
     * again into an empty dense cache. Not set if the cache is dense. */
    int64_t recompute_steps;
    fb_spread recompute; /* seconds per token */
    double ratio;        /* recompute divided by the last line's tpot: above 1, the stream is faster */
} fb_bench_stream_report;

/* Checks the cache against a dense one, then takes times along one greedy stream. If the check fails, returns
 * FB_ERROR_SYSTEM and times nothing. */
FB_API fb_status fb_bench_stream_run(const fb_model *model, const fb_bench_stream_options *options,
                                     fb_bench_stream_report **report, fb_error *err);
FB_API void fb_bench_stream_free(fb_bench_stream_report *report);

/* Times decode steps of several sequences at once, in a scheduler (fusebox_batch.h). Every sequence has a
 * prompt of its own and generates greedily. */
typedef struct fb_bench_batch_options {
    size_t size;
    int32_t threads;
    fb_dtype act;
    const char *kv, *isa, *backend, *fuse, *machine;
    bool exact, float_dot;
    int64_t prompt, gen;        /* tokens of each sequence */
    const int64_t *batches;     /* numbers of sequences, each 1 to 1024 */
    int64_t batch_count;        /* 1 to 16 */
    fb_progress_fn on_progress; /* counts batches; return false to stop. May be NULL */
    void *user;
    int64_t any_order; /* as fb_session_options.any_order */
    int64_t arrival;   /* tokens of a prompt that arrives while an answer is written; 0: none does */
} fb_bench_batch_options;

FB_API void fb_bench_batch_options_init(fb_bench_batch_options *options, size_t size);
static inline void fb_bench_batch_options_default(fb_bench_batch_options *o) {
    fb_bench_batch_options_init(o, sizeof *o);
}

/* Times in seconds. */
typedef struct fb_bench_batch_line {
    int64_t sequences;
    fb_spread step;      /* of steps in which all sequences decode */
    double prompts;      /* from the first step until every prompt is read */
    double read_bytes;   /* that a step must read at least: weights once, and the caches, halfway */
    double floor;        /* the time of reading that, at the machine's measured bandwidth for so many bytes */
    fb_spread any_order; /* `step` with the option any_order; zeros if the report's any_order is 0 */
} fb_bench_batch_line;

/* Seconds from one token of an answer to the next. Frozen. */
typedef struct fb_bench_gaps {
    int64_t count;
    double median, p99, most;
} fb_bench_gaps;

typedef struct fb_bench_batch_report {
    int32_t threads;
    char isa[16];
    int64_t line_count;
    fb_bench_batch_line **lines;
    /* 1: each line was also timed with any_order. Only where that option matters, and was not given. */
    int64_t any_order;
    char cpu[64]; /* or the GPU's name */
    char architecture[32];
    int64_t parameters;  /* of the model */
    int64_t prompt, gen; /* tokens of each sequence */
    /* The first token of a prompt whose beginning the prefix cache has, 90% of its blocks, in seconds. 0
     * tokens: not timed, because the prompt has less than 10 blocks. */
    int64_t cached_tokens;
    double first, first_cached; /* without the prefix cache, and with it; medians */
    int64_t cached_same;        /* 1: in both ways the logits had the same bits */
    /* An answer before and while the prompt of `arrival` tokens is read; counts of 0: not timed. */
    int64_t arrival;
    fb_bench_gaps before, during;
} fb_bench_batch_report;

/* The first call on a machine measures it, in one or two seconds. Later ones find that in the folder
 * `machine`, which may be NULL. */
FB_API fb_status fb_bench_batch(const fb_model *model, const fb_bench_batch_options *options,
                                fb_bench_batch_report **report, fb_error *err);
FB_API void fb_bench_batch_free(fb_bench_batch_report *report);

/* Draws tokens per second and the time of a step against the number of sequences. */
FB_API fb_status fb_bench_batch_svg(const fb_bench_batch_report *report, const char *path, fb_error *err);

/* Times greedy decoding with drafts beside decoding one by one, in turns. */
typedef struct fb_bench_draft_options {
    size_t size;
    int32_t threads;
    fb_dtype act;
    const char *kv, *isa, *backend, *fuse, *machine;
    bool exact, float_dot;
    int32_t source_count;
    /* Each as fb_draft_options.source, or "scripted:P": the right token with a chance of P, at no cost. */
    const char *const *sources;
    const int32_t *ids;         /* [prompt]; NULL: as other benchmarks */
    int64_t prompt, gen, reps;  /* tokens; repetitions */
    int64_t most, fixed;        /* as in fb_draft_options */
    float temperature;          /* 0: the best tokens */
    fb_progress_fn on_progress; /* after each repetition; return false to stop. May be NULL */
    void *user;
} fb_bench_draft_options;

FB_API void fb_bench_draft_options_init(fb_bench_draft_options *options, size_t size);
static inline void fb_bench_draft_options_default(fb_bench_draft_options *o) {
    fb_bench_draft_options_init(o, sizeof *o);
}

/* One source. Times are seconds a token. */
typedef struct fb_bench_draft_line {
    const char *source;
    bool same;               /* the tokens are those of decoding one by one; if not, nothing was timed */
    fb_draft_stats stats;    /* of all repetitions */
    double acceptance;       /* of guesses that were compared, those that were right */
    double create_seconds;   /* of the draft */
    double *plain, *drafted; /* [reps] */
    fb_spread plain_spread, drafted_spread;
    fb_spread ratio;  /* plain over drafted, paired by repetition: above 1 is faster */
    double predicted; /* the same, from the times of steps and guesses and the acceptance alone */
} fb_bench_draft_line;

typedef struct fb_bench_draft_report {
    int32_t threads;
    char isa[16];
    char cpu[64]; /* or the GPU's name */
    int64_t prompt, gen, reps;
    int64_t line_count;
    fb_bench_draft_line **lines;
    /* Measured seconds of steps of 1, 2, … rows; 0: there was none. */
    double step_seconds[FB_MAX_DRAFT + 1];
} fb_bench_draft_report;

FB_API fb_status fb_bench_draft(const fb_model *model, const fb_bench_draft_options *options,
                                fb_bench_draft_report **report, fb_error *err);
FB_API void fb_bench_draft_free(fb_bench_draft_report *report);
/* Draws the speed-up against the acceptance: the predicted curve, and a point for each line. */
FB_API fb_status fb_bench_draft_svg(const fb_bench_draft_report *report, const char *path, fb_error *err);

/* ---- profile and plan ---- */

typedef struct fb_profile_op {
    char name[96];                 /* as in the program's text: the op, or its fuses joined by '+' */
    int32_t section;               /* 0: prologue, 1: layer, 2: epilogue */
    bool barrier;                  /* all threads wait for each other after it; on a GPU, true for all ops */
    int64_t calls;                 /* calls per step */
    double seconds;                /* measured, all calls of a step added up */
    double predicted;              /* prediction of the machine model */
    double bytes;                  /* of weights, activations and cache, for all calls of a step … */
    double weight_bytes, kv_bytes; /* … and two parts of them */
    double flops;
    double bandwidth; /* bytes a second at most: for the step's footprint; on a GPU, for one call */
} fb_profile_op;

/* Where the time of a step goes: a decode step, or a whole prefill. */
typedef struct fb_profile {
    char *text; /* the program */
    int64_t op_count;
    fb_profile_op **ops;   /* in program order; a layer's ops appear once for all layers */
    int64_t layers, steps; /* steps: number averaged, the faster half */
    double wall;           /* seconds per step, with a clock around every op … */
    double between;        /* … and the part of it outside of ops */
    double tpot;           /* seconds per step without those clocks, median; 0 if it was not measured */
    double predicted;      /* predicted seconds per step */
    int64_t barriers;      /* per layer; on a GPU, launches */
    double layer_bytes;
} fb_profile;

/* Whether a step would read much less if the model's weights had another type, on kernels of this name (`isa`
 * of a report): most are of type `from`, `to` is the smaller one without much loss, and a step would read
 * `bytes` times as much. */
FB_API bool fb_faster_type(const fb_model *model, const char *isa, fb_dtype *from, fb_dtype *to,
                           double *bytes);

typedef struct fb_machine_figures {
    bool gpu;
    char cpu[64], isa[16]; /* or the GPU's name and architecture */
    int32_t threads;       /* 0 on a GPU */
    int32_t points;
    double *bytes, *bandwidth;  /* [points]: bandwidth in bytes a second, by the bytes that are read
                                   repeatedly; on a GPU, by the bytes of one launch */
    double barrier, dispatch;   /* seconds */
    double launch, node, small; /* seconds, on a GPU: for the host to launch an op; between two ops; the least
                                   that an op takes in addition */
    double flops;               /* operations a second */
    double footprint;           /* bytes of weights and cache that a step reads … */
    double footprint_bandwidth; /* … and the bandwidth there */
} fb_machine_figures;

typedef struct fb_plan_fuse {
    const char *name;
    const char *why_not;    /* why it does not apply to this model; NULL: it does */
    bool kept;              /* in the plan */
    double bytes_saved;     /* per layer (head_argmax: per step), alone against the plain program */
    int64_t barriers_saved; /* per layer; on a GPU, launches */
    double saving;          /* predicted seconds per step, alone */
    double ceiling;         /* limit of the speed-up, if all that it removes were free (Amdahl) */
    char reason[320];
} fb_plan_fuse;

#define FB_PLAN_CHANCES 5

/* What a draft should save one stream (docs/speculation.md), from predicted times alone. */
typedef struct fb_plan_draft {
    const char *source; /* "ngram", "q4" */
    char why_not[128];  /* why there is none for this model; empty: there is */
    double guess;       /* seconds that a guess takes; 0: none to speak of */
    double break_even;  /* the chance that a guess is right from which on guessing pays; NaN: never */
    double chance[FB_PLAN_CHANCES];   /* that a guess is right: … */
    int64_t guesses[FB_PLAN_CHANCES]; /* … the best number of them; 0: it does not pay … */
    double speedup[FB_PLAN_CHANCES];  /* … and the tokens a second, over decoding one by one */
} fb_plan_draft;

typedef struct fb_plan_report {
    fb_machine_figures *machine;
    int64_t prompt, gen;
    fb_profile *plain, *fused; /* plain: NULL in a report of fb_profile_make */
    int64_t fuse_count;        /* 0 in a report of fb_profile_make */
    fb_plan_fuse **fuses;
    double layer_bytes;  /* of the plain program */
    int64_t draft_count; /* 0 in a report of fb_profile_make */
    fb_plan_draft **drafts;
    /* Seconds of a decode step of 1, 2, … tokens of one stream, all of which are checked. */
    double rows_predicted[FB_MAX_DRAFT + 1], rows_measured[FB_MAX_DRAFT + 1];
} fb_plan_report;

typedef struct fb_profile_options {
    size_t size;
    int32_t threads;
    fb_dtype act;
    const char *kv, *isa, *backend, *fuse;
    const char *machine; /* folder of measured machines; NULL: measure, and save nothing */
    bool exact, float_dot;
    bool calibrate;      /* measure the machine again */
    bool prefill;        /* profile the prefill instead of decode steps */
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

/* The same for the plain program and the plan, for decode steps only, with a price for every fuse. */
FB_API fb_status fb_plan_report_make(const fb_model *model, const fb_plan_report_options *options,
                                     fb_plan_report **report, fb_error *err);
FB_API void fb_plan_report_free(fb_plan_report *report);

/* The roofline and the timelines of fb_plan_report_make as one self-contained SVG file. */
FB_API fb_status fb_plan_report_svg(const fb_plan_report *report, const char *path, fb_error *err);

/* ---- verification ---- */

/* Frozen. */
typedef struct fb_verify_row {
    int64_t layer;
    double max_abs;   /* largest absolute error of an element */
    double limit;     /* limit of max_abs */
    double rel;       /* norm of the error over the norm of the reference */
    double rel_limit; /* limit of rel */
    bool ok;          /* both limits hold */
} fb_verify_row;

typedef struct fb_verify_report {
    bool ok;
    int64_t tokens;
    int64_t layers; /* number of rows below: the embedding and each layer */
    fb_verify_row *rows;
    fb_verify_row logits;
    double logits_f64_max_abs; /* largest difference of the logits to the golden's float64 logits; NaN if it
                                  has none */
    int64_t greedy_tokens;     /* tokens of the continuation */
    int64_t greedy_equal;      /* how many of them were chosen */
    int64_t greedy_near; /* of the others, those whose golden token is within the logits' error bound of ours
                            (f16 and bf16 only) */
    bool greedy_match;   /* equal + near = tokens */
} fb_verify_report;

/* For both kinds of golden. A golden's cache was not rounded, so "auto" for kv means "act" here. */
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

/* One cache of a stream compared with a golden. */
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
    int64_t tokens; /* tokens that were scored */
    int64_t count;
    fb_stream_row **rows;
} fb_stream_report;

/* Whether a golden is one of a stream: the -ln p of each token of a long text, for one or more caches. */
FB_API fb_status fb_golden_streams(const char *golden, bool *streams, fb_error *err);

/* Runs the golden's ids with each of its caches, in chunks and token by token. Compares the score of every
 * token, and the logits if the golden has them. A dense cache may go beyond the model's context here. */
FB_API fb_status fb_verify_stream(const fb_model *model, const char *golden, const fb_verify_options *options,
                                  fb_stream_report **report, fb_error *err);
FB_API void fb_stream_free(fb_stream_report *report);

/* One fuse, or several together, against the plain program. */
typedef struct fb_fusion_row {
    char name[64];      /* name of the fuse; "all", "auto", or the spec */
    bool bit;           /* its class: bit-identical; if false, within a tolerance */
    bool bit_identical; /* the result: every hidden state and logit was, in prefill and in decode */
    bool greedy_match;
    bool unshown_ok; /* the logits also hold in a run without on_hidden */
    bool ok;
    char why[128];                     /* what failed; empty if ok */
    double max_abs;                    /* largest difference in the place that comes nearest to its bound */
    double bound;                      /* bound of max_abs there; 0 if bits are promised */
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
    fb_fusion_row **rows; /* each fuse that applies, alone; then together: "all" and "auto", or the spec */
    double perplexity_plain, perplexity_fused; /* of the ids; fused: that of the last row */
    /* A fuse exceeded the usual bound, so bounds were measured: twice as far as the plain ops move if each
     * layer's input is off by a rounding. */
    bool sensitive;
} fb_fusion_report;

typedef struct fb_fusion_options {
    size_t size;
    int32_t threads;
    fb_dtype act;
    const char *kv, *isa, *backend, *machine;
    /* NULL or "auto": each fuse that applies, alone; then all together; then the planner's choice. Otherwise
     * each fuse of the spec alone, then the spec. */
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

/* Random mixtures of requests in a scheduler (fusebox_batch.h): joins and ends, forks, shared beginnings,
 * cancels, answers that are put back, blocks and steps of every size; meanwhile bit-identical fuses are
 * switched, and some steps are timed op by op. Each answer is compared with the same request alone in a
 * session with `fuse`: the bits of all logits, and the tokens. */
typedef struct fb_batch_verify_options {
    size_t size;
    int32_t threads;
    fb_dtype act;
    const char *kv, *isa, *backend, *fuse, *machine;
    bool exact, float_dot;
    int64_t rounds; /* mixtures */
    uint64_t seed;  /* of all choices */
} fb_batch_verify_options;

FB_API void fb_batch_verify_options_init(fb_batch_verify_options *options, size_t size);
static inline void fb_batch_verify_options_default(fb_batch_verify_options *o) {
    fb_batch_verify_options_init(o, sizeof *o);
}

typedef struct fb_batch_report {
    size_t size;
    int64_t rounds, requests, answers;
    int64_t tokens;        /* whose logits were compared */
    int64_t steps, rows;   /* of the scheduler */
    int64_t most_rows;     /* in one step */
    int64_t preempted;     /* answers that were put back and computed again */
    int64_t cached_tokens; /* tokens of prompts that the prefix cache had */
    int64_t cancelled;     /* answers */
    int64_t different;     /* answers that differ */
    int64_t ok;            /* 1: all are the same, and no memory is left in use */
    char first[256];       /* the first difference; empty: none */
    int64_t plan_changes;  /* changes of bit-identical fuses while answers were being written */
    int64_t scores;        /* tokens of prompts whose logits were compared */
    int64_t held_steps;    /* steps that took rows of a prompt through some layers only */
} fb_batch_report;

FB_API fb_status fb_verify_batch(const fb_model *model, const fb_batch_verify_options *options,
                                 fb_batch_report *report, fb_error *err);

/* Texts with drafts, in sessions and in batches, compared with the same decoded one by one: the tokens, and
 * the bits of all logits that are computed. Greedy and sampled, with penalties, with every cache that the
 * model can have, with guesses of every number and of the number that pays; in runs that end anywhere, and
 * going back, with the draft and without; from a golden's ids, or random ones. It fails if no guess was
 * right: then nothing was checked. */
typedef struct fb_draft_verify_options {
    size_t size;
    int32_t threads;
    fb_dtype act;
    const char *kv, *isa, *backend, *fuse, *machine;
    bool exact, float_dot;
    const char *source; /* as in fb_draft_options; "scripted": guesses that are right, wrong, and no tokens */
    const char *golden; /* NULL: random ids */
    int64_t gen;        /* tokens of a text */
    uint64_t seed;      /* of all choices */
    int64_t prompt;     /* its tokens, at most */
    int64_t rounds;     /* batches to try, too; 0: none, and no text that goes round in a ring */
} fb_draft_verify_options;

FB_API void fb_draft_verify_options_init(fb_draft_verify_options *options, size_t size);
static inline void fb_draft_verify_options_default(fb_draft_verify_options *o) {
    fb_draft_verify_options_init(o, sizeof *o);
}

typedef struct fb_draft_report {
    size_t size;
    int64_t texts, tokens; /* compared */
    int64_t steps;         /* with the draft */
    int64_t drafted, kept; /* guesses */
    int64_t different;     /* texts that differ */
    int64_t ok;            /* 1: all are the same, and guesses were checked */
    char first[256];       /* the first difference; empty: none */
} fb_draft_report;

FB_API fb_status fb_verify_draft(const fb_model *model, const fb_draft_verify_options *options,
                                 fb_draft_report *report, fb_error *err);

/* ---- perplexity ---- */

/* The score of some tokens. The errors are standard errors, assuming independent tokens; NaN for a single
 * token. Frozen. */
typedef struct fb_score {
    int64_t tokens;                      /* tokens that were scored */
    double nll, nll_error;               /* mean of -ln p, in nats per token */
    double perplexity, perplexity_error; /* its exponential */
    double seconds;
} fb_score;

/* Called many times per window. Return false to stop. */
typedef bool (*fb_score_fn)(void *user, const fb_score *so_far, int64_t total);

/* Which ids of a text are scored. */
typedef enum fb_scoring {
    FB_SCORE_ALL = 0,        /* every id that has a predecessor in its window */
    FB_SCORE_SECOND_HALF = 1 /* those behind the middle of whole windows, as llama-perplexity does */
} fb_scoring;

typedef struct fb_perplexity_options {
    size_t size;
    int32_t threads;
    fb_dtype act;
    const char *kv, *isa, *backend, *fuse, *machine;
    bool exact, float_dot;
    int64_t chunk;
    int64_t window; /* tokens that are read into an empty cache; 0: the model's context, at most 512 */
    fb_score_fn on_progress; /* may be NULL */
    void *user;
    fb_scoring scoring;
    int64_t max_windows; /* score no more of them; 0: all */
} fb_perplexity_options;

FB_API void fb_perplexity_options_init(fb_perplexity_options *options, size_t size);
static inline void fb_perplexity_options_default(fb_perplexity_options *o) {
    fb_perplexity_options_init(o, sizeof *o);
}

typedef struct fb_perplexity_report {
    fb_score all;
    int64_t window; /* tokens per window, including those that the tokenizer puts in front */
    int64_t window_count;
    fb_score *windows; /* [window_count]; the last one may be shorter */
    int32_t threads;
    char isa[16];
} fb_perplexity_report;

/* Scores ids (of a text, without special tokens around it) in windows that do not overlap. Each window begins
 * with an empty cache and what the tokenizer puts in front of a text, such as a begin-of-text token. Every id
 * that has a predecessor in its window is scored. Fails if a logit is NaN or +inf.
 *
 * With FB_SCORE_SECOND_HALF the text, its begin token included, is divided into whole windows, at least two;
 * the rest is left out. In each window the begin token, if the tokenizer adds one, replaces the first id, and
 * the ids at positions window / 2 + 1 to window - 1 are scored. */
FB_API fb_status fb_perplexity_run(const fb_model *model, const fb_perplexity_options *options,
                                   const int32_t *ids, int64_t count, fb_perplexity_report **report,
                                   fb_error *err);
FB_API void fb_perplexity_free(fb_perplexity_report *report);

/* Scores a text as fb_perplexity_run does, by the plain ops on the CPU in float32, and keeps the mean of
 * every column that a matrix is multiplied with, and the products of columns: 4 bytes for each of 1024
 * others, of 512 or 256 where that would be more than 2 GiB. Each expert of a mixture has products of its
 * own, from the rows that were routed to it. They take 2 GiB at most, or a byte for five weights. Where that
 * is not enough, experts that read the same share one. Some ten thousand tokens of the kind of text that the
 * model is for are enough, more if it has many experts. Of the options: threads, kv, isa,
 * chunk, window, max_windows, scoring, on_progress and user. `report` may be NULL. */
FB_API fb_status fb_importance_collect(const fb_model *model, const fb_perplexity_options *options,
                                       const int32_t *ids, int64_t count, fb_importance **importance,
                                       fb_perplexity_report **report, fb_error *err);
FB_API void fb_importance_free(fb_importance *importance);

/* ---- perplexity along a stream ---- */

/* The score of some tokens of a stream, by cache. Frozen. */
typedef struct fb_curve_row {
    int64_t position; /* tokens read before its last one, the tokenizer's included */
    int64_t tokens;   /* tokens that were scored */
    double *nll;      /* [curve_count]: mean of -ln p, in nats per token */
} fb_curve_row;

typedef struct fb_curve {
    fb_cache_kind cache;
    int64_t sinks, window; /* after defaults; 0 if dense */
    int64_t bytes;         /* of the cache */
    double nll;            /* of all tokens that it has scored; NaN if there are none */
    double seconds;        /* time that it took, without the other caches */
} fb_curve;

typedef struct fb_curve_report {
    int64_t context; /* length that the model was trained on */
    int64_t every;
    int64_t tokens, total; /* tokens: scored by every cache so far; total: to be scored by each */
    int64_t curve_count;
    fb_curve **curves;
    int64_t row_count;
    fb_curve_row *rows; /* the last one may have fewer tokens than `every` */
    const char *backend;
    char isa[16];
    int32_t threads;
} fb_curve_report;

/* Called with the report so far. In the current row the caches have scored `part` tokens, added up over
 * caches. Return false to stop. */
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
    int64_t window; /* if there is also a cache with sinks, a window cache gets sinks and window together, so
                       that both see as many tokens */
    int64_t every;  /* tokens per row; 256 */
    fb_curve_fn on_chunk;    /* after each row; may be NULL */
    fb_curve_fn on_progress; /* before the first row, then many times per row; may be NULL */
    void *user;
} fb_curve_options;

FB_API void fb_curve_options_init(fb_curve_options *options, size_t size);
static inline void fb_curve_options_default(fb_curve_options *o) { fb_curve_options_init(o, sizeof *o); }

/* Scores ids (of a text, without special tokens around it) as one stream of any length, after what the
 * tokenizer puts in front of a text. It goes row by row, with one cache after the other. Every id that has a
 * predecessor is scored. A dense cache holds the whole text, even beyond the model's context, unless the
 * model has no positions there. Fails if a logit is NaN or +inf. */
FB_API fb_status fb_curve_run(const fb_model *model, const fb_curve_options *options, const int32_t *ids,
                              int64_t count, fb_curve_report **report, fb_error *err);
FB_API void fb_curve_free(fb_curve_report *report);

/* Perplexity against position, one curve per cache, as one self-contained SVG file. */
FB_API fb_status fb_curve_svg(const fb_curve_report *report, const char *path, fb_error *err);

/* ---- files and terminals --------------------------------------------------------------------------------
 */

/* Removes the temporary names under which the library is writing files: on most file systems there are none.
 * For the handler of a signal that ends the process: it calls nothing but unlink. */
FB_API void fb_discard_files(void);

/* The first character of text[bytes], bytes > 0, as a terminal may get it: itself, or an escape for what
 * would steer the terminal or is no UTF-8. These are control characters (\x1b, \u009b), bytes that are no
 * character
 * (\xff), and marks and overrides of the direction of text (\u202e). With `lines`, newline and tab stay.
 * Returns how many bytes of the text that was; `shown` ends with a 0. */
#define FB_SHOWN_BYTES 8
FB_API size_t fb_show_character(const char *text, size_t bytes, bool lines, char shown[FB_SHOWN_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
