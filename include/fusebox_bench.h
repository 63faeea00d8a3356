/* Fusebox: times variants of a model, single fuses, streams, batches and drafts. What fusebox_tools.h says
 * about options, reports and threads holds here too. */
#ifndef FUSEBOX_BENCH_H
#define FUSEBOX_BENCH_H

#include "fusebox.h"

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif
#endif
