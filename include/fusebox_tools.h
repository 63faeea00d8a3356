/* Fusebox: functions that measure and check models; with fusebox_bench.h, which times them, and
 * fusebox_quantize.h, which converts them. A program that only runs models needs only fusebox.h. What that
 * header says about errors, growth and threads holds here too.
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

#include "fusebox_bench.h"
#include "fusebox_quantize.h"

#ifdef __cplusplus
extern "C" {
#endif

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
