/* Fusebox: language models in C, every kernel fusion a switch.
 *
 * The whole public interface. The order of use:
 *
 *     fb_model_open       a checkpoint: config, weights (memory-mapped), tokenizer
 *     fb_tokenize         text to token ids
 *     fb_session_create   a KV cache, buffers and threads for one run of the model
 *     fb_session_prefill  many tokens at once
 *     fb_session_logits   the scores of the next token
 *     fb_sampler_next     scores to a token id
 *     fb_session_decode   one more token
 *     fb_text_push        token ids back to text, never half a UTF-8 character
 *
 * examples/story.c is this list as a program.
 *
 * Every function that can fail returns an fb_status and takes an fb_error, which may be NULL; on failure its
 * message names the thing, its value and the limit, in one line without a final newline, and every output
 * argument is left NULL or zero. The library never prints, exits or aborts, and reads no environment
 * variable.
 *
 * A model is immutable once open and may be shared by threads. A session, a sampler and a text stream belong
 * to one thread at a time; only fb_session_cancel may be called by any thread at any time. A model must
 * outlive its sessions and text streams. Passing NULL to a _free function is allowed.
 */
#ifndef FUSEBOX_H
#define FUSEBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FB_API __attribute__((visibility("default")))

#define FB_VERSION "0.1.0"

/* ---- status ----------------------------------------------------------------------------------------------
 */

typedef enum fb_status {
    FB_OK = 0,
    FB_ERROR_USAGE,       /* an argument is out of its range */
    FB_ERROR_FILE,        /* a file is missing, unreadable or malformed */
    FB_ERROR_UNSUPPORTED, /* well formed, but it asks for something that Fusebox does not do */
    FB_ERROR_MEMORY,      /* no memory for what was asked */
    FB_ERROR_SYSTEM,      /* the operating system refused something (a thread, a clock) */
    FB_ERROR_STOPPED      /* a callback or fb_session_cancel asked to stop */
} fb_status;

typedef struct fb_error {
    fb_status status;
    char message[512];
} fb_error;

/* The commit that the library was built from, as git describe names it, or "unknown". */
FB_API const char *fb_commit(void);

/* "ok", "usage", "file", … for logs. */
FB_API const char *fb_status_name(fb_status status);

/* Frees what a function below returned through a `char **` or `int32_t **`. */
FB_API void fb_free(void *memory);

/* ---- dtypes ----------------------------------------------------------------------------------------------
 */

/* Activations are F32, F16 or BF16, or F64 with the reference kernels ("ref"): a run that is the truth.
 * Weights are F32, F16, BF16, or blocks of small integers with a common scale, laid out as in GGUF files. */
typedef enum fb_dtype {
    FB_F32 = 0,
    FB_F16,
    FB_BF16,
    FB_F64,
    FB_FLOAT_COUNT,
    FB_Q8_0 = FB_FLOAT_COUNT,
    FB_Q4_0,
    FB_Q4_1,
    FB_Q5_0,
    FB_Q5_1,
    FB_Q4_K,
    FB_Q5_K,
    FB_Q6_K,
    FB_DTYPE_COUNT
} fb_dtype;

FB_API const char *fb_dtype_name(fb_dtype dtype);
FB_API fb_status fb_dtype_parse(const char *name, fb_dtype *out, fb_error *err);

/* The dtype of a KV cache under activations of dtype `act`: "f32", "f16", "bf16", "f64" (reference kernels
 * only), "act" for theirs, "auto" (or NULL) for f16, but bf16 and f64 with such activations. */
FB_API fb_status fb_dtype_parse_kv(const char *name, fb_dtype act, fb_dtype *out, fb_error *err);

/* ---- model -----------------------------------------------------------------------------------------------
 */

typedef struct fb_model fb_model;

/* Opens a Hugging Face directory: config.json, model.safetensors (or its sharded index) and, if it is there,
 * tokenizer.json; or a .gguf file, which has all of that. Weights stay in the file's dtype and, but for rows
 * that the file has in another order, in the page cache. */
FB_API fb_status fb_model_open(const char *path, fb_model **out, fb_error *err);
FB_API void fb_model_free(fb_model *model);

typedef struct fb_model_info {
    const char *architecture; /* "gpt_neox", "llama", "gpt2" */
    int64_t layers, hidden, vocab, context;
    int64_t parameters;              /* each stored weight counted once */
    int64_t weights[FB_DTYPE_COUNT]; /* parameters by dtype */
    int64_t weight_bytes[FB_DTYPE_COUNT];
    bool has_tokenizer;
} fb_model_info;

FB_API void fb_model_get_info(const fb_model *model, fb_model_info *info);

/* Every config value that changes the maths, as name and value, in reading order: index 0, 1, … until false.
 */
FB_API bool fb_model_fact(const fb_model *model, int index, const char **name, const char **value);

/* The plain program, one op a line with shapes. */
FB_API fb_status fb_model_program_text(const fb_model *model, char **text, fb_error *err);

/* ---- text ------------------------------------------------------------------------------------------------
 */

/* Text (UTF-8, any bytes are accepted) to ids. `special` adds what the tokenizer's template adds around a
 * text, such as a begin-of-text token. The ids are released with fb_free. */
FB_API fb_status fb_tokenize(const fb_model *model, const char *text, size_t bytes, bool special,
                             int32_t **ids, int64_t *count, fb_error *err);

/* Ids to text, NUL-terminated, released with fb_free. `special` keeps special tokens in the text. */
FB_API fb_status fb_detokenize(const fb_model *model, const int32_t *ids, int64_t count, bool special,
                               char **text, size_t *bytes, fb_error *err);

/* Ids to text as they come. A token may end inside a UTF-8 character: push returns only whole characters
 * (possibly none), flush returns what is left, with U+FFFD for what never became one. Special tokens give no
 * text. The text belongs to the stream, until its next call. */
typedef struct fb_text_stream fb_text_stream;
FB_API fb_status fb_text_create(const fb_model *model, fb_text_stream **out, fb_error *err);
FB_API fb_status fb_text_push(fb_text_stream *stream, int32_t id, const char **text, size_t *bytes,
                              fb_error *err);
FB_API fb_status fb_text_flush(fb_text_stream *stream, const char **text, size_t *bytes, fb_error *err);
FB_API void fb_text_free(fb_text_stream *stream);

/* True for an id that ends a text (eos_token_id of generation_config.json or config.json). */
FB_API bool fb_model_is_end(const fb_model *model, int32_t id);

/* ---- session ---------------------------------------------------------------------------------------------
 */

typedef struct fb_session fb_session;

/* rows of hidden state [rows, cols] after `layer` layers (0: the embedding; the last one is after the final
 * norm), for the tokens at positions `position`, position + 1, … Return false to stop. */
typedef bool (*fb_hidden_fn)(void *user, int64_t layer, int64_t position, const float *hidden, int64_t rows,
                             int64_t cols);

/* Called between the chunks of a prefill. Return false to stop: the session must then be reset. */
typedef bool (*fb_progress_fn)(void *user, int64_t done, int64_t total);

/* Which tokens a session remembers. A dense cache keeps all of them, and is full some day. The others go on
 * without end, at constant memory and time: a window keeps the last ones; sinks keep the very first, too, and
 * with them a model goes on as it was trained to (StreamingLLM). What is forgotten is as if it had never
 * been: a token's position is the one that it has in the cache. Only for rotary positions. */
typedef enum fb_cache_kind { FB_CACHE_DENSE, FB_CACHE_WINDOW, FB_CACHE_SINKS } fb_cache_kind;

FB_API const char *fb_cache_name(fb_cache_kind kind);
FB_API fb_status fb_cache_parse(const char *name, fb_cache_kind *out, fb_error *err);

typedef struct fb_session_options {
    int32_t threads; /* 0: one for each core this process may use */
    fb_dtype act;    /* the dtype in which every op stores its result */
    const char *kv;  /* the dtype of the KV cache, as fb_dtype_parse_kv takes it; NULL: "auto" */
    fb_cache_kind cache;
    int64_t capacity; /* dense: tokens that the KV cache has room for; 0: the model's context */
    /* Dense: more than the model's context is allowed. Its answers are not worth much there; to see that is
     * what this is for. */
    bool beyond_context;
    int64_t sinks;   /* cache sinks: how many first tokens are kept; 4 by default */
    int64_t window;  /* cache window or sinks: a token sees so many before it; 0: what the model was trained
                        on, but 4096 at most, sinks included */
    int64_t chunk;   /* tokens of a prefill that are computed at once; 0: a good value */
    bool all_logits; /* keep the logits of every token of the last prefill, not only of the last one */
    const char
        *fuse; /* which fuses: "none", "all", "auto" (NULL), or a list: "all,-qkv_up", "add_norm,bias_act" */
    const char
        *machine;    /* folder of the planner's measurements, by which "auto" chooses; NULL: by assumptions */
    bool exact;      /* only variants that are bit-identical to the plain ops */
    bool float_dot;  /* weights of Q8_0 and Q4_0 are multiplied with floats, not with 8-bit integers */
    bool greedy;     /* only the best token of a step is wanted (fb_session_best), not the logits */
    bool profile;    /* take the time of every op */
    const char *isa; /* "avx512vnni", "avx512", "avx2", "portable", "ref" (slow, in double); NULL: the best */
    /* "cpu", "cuda", "cuda:1" (the second device) or "auto" (NULL): a GPU if there is one, unless `isa` is
     * given or `act` is float64, which only the CPU has. */
    const char *backend;
    fb_hidden_fn on_hidden;
    fb_progress_fn on_progress;
    void *user;
} fb_session_options;

/* A GPU that this library could run on. */
typedef struct fb_device_info {
    char name[128];
    char isa[16];                /* "sm_90" */
    int64_t memory, memory_free; /* bytes */
    int32_t multiprocessors;
    int64_t l2_bytes;
    int32_t shared_bytes;    /* of a block, at most */
    int32_t driver, runtime; /* CUDA versions: 13000 is 13.0 */
    char why_not[256];       /* it cannot be used, and why; empty if it can */
} fb_device_info;

/* Device 0, 1, … until `*found` is false. FB_ERROR_SYSTEM, with the reason, if there can be none: the CUDA
 * backend was not built or not found, or the driver is missing. */
FB_API fb_status fb_device_get(int32_t index, bool *found, fb_device_info *info, fb_error *err);

/* The file of the CUDA backend; "none": there is none; NULL, as before any call: libfusebox_cuda.so beside
 * this library or program, in ../lib, or where the system looks for libraries. The backend is opened once,
 * by the first fb_device_get or session that may run on a GPU. After that, another file is refused with
 * FB_ERROR_USAGE. */
FB_API fb_status fb_cuda_library(const char *path, fb_error *err);

FB_API void fb_session_options_default(fb_session_options *options);
FB_API fb_status fb_session_create(const fb_model *model, const fb_session_options *options, fb_session **out,
                                   fb_error *err);
FB_API void fb_session_free(fb_session *session);

/* Appends tokens. Fails without a change when an id is not in the vocabulary or the cache has no room. */
FB_API fb_status fb_session_prefill(fb_session *session, const int32_t *ids, int64_t count, fb_error *err);
FB_API fb_status fb_session_decode(fb_session *session, int32_t id, fb_error *err);

/* Makes the prefill or decode that runs now, or if none runs the next one, return FB_ERROR_STOPPED. The
 * tokens of a prefill's finished chunks stay, the session goes on from there. There are no logits until the
 * next token. fb_session_reset takes a cancel back that has stopped nothing yet. */
FB_API void fb_session_cancel(fb_session *session);

/* Logits [rows, vocab] of the last prefill or decode: its last token's, or all of them with `all_logits`.
 * They belong to the session, until its next call. */
FB_API fb_status fb_session_logits(fb_session *session, const float **logits, int64_t *rows, int64_t *vocab,
                                   fb_error *err);

/* The token with the highest logit of the last prefill or decode, the lowest among equals. */
FB_API fb_status fb_session_best(fb_session *session, int32_t *id, fb_error *err);

FB_API int64_t fb_session_position(const fb_session *session);    /* tokens so far */
FB_API const char *fb_session_backend(const fb_session *session); /* "cpu" or "cuda" */
FB_API int32_t fb_session_threads(const fb_session *session);     /* of the CPU; 0 on a GPU */
FB_API const char *fb_session_isa(const fb_session *session);     /* "avx2"; of a GPU "sm_90" */
FB_API void fb_session_reset(fb_session *session);                /* back to no tokens */

typedef struct fb_cache_info {
    fb_cache_kind kind;
    int64_t sinks, window; /* as settled; 0 if dense */
    int64_t slots, bytes;  /* of the cache */
    int64_t held;          /* tokens that the next one will see */
    int64_t trimmable;     /* tokens that fb_session_trim can drop now */
} fb_cache_info;

FB_API void fb_session_get_cache(const fb_session *session, fb_cache_info *info);

/* Keeps the first `count` tokens of those so far, and drops the rest; there are no logits until the next
 * token. A cache that has begun to forget can go back only as far as it still has what the next token must
 * see: one chunk. */
FB_API fb_status fb_session_trim(fb_session *session, int64_t count, fb_error *err);

/* A second session that has seen the same tokens, with the same options. The two share their cache until one
 * of them writes to it, which then takes a copy. */
FB_API fb_status fb_session_fork(const fb_session *session, fb_session **out, fb_error *err);

/* How often each op ran since the session was created, by index 0, 1, … until false. An op counts once a
 * call, whatever the number of tokens in it. */
FB_API bool fb_session_op_calls(const fb_session *session, int index, const char **name, int64_t *calls);

/* The same for each fuse, and how many calls a step must make: layers times calls a layer; 0 where it is not
 * in the plan. Of these, `calls_a_head` belong to the final norm and the head, which run only in steps whose
 * logits are wanted: not in the chunks of a prefill before its last. `graph` and `step` are called once in
 * each decode step, and in no other, and in none that shows its hidden states. */
FB_API bool fb_session_fuse_calls(const fb_session *session, int index, const char **name, int64_t *calls,
                                  int64_t *calls_a_step, int64_t *calls_a_head);

/* Times that all threads waited for each other. */
FB_API int64_t fb_session_barriers(const fb_session *session);

/* The program after its fuses, as fb_model_program_text prints the plain one. */
FB_API fb_status fb_session_plan_text(const fb_session *session, char **text, fb_error *err);

/* ---- sampling --------------------------------------------------------------------------------------------
 */

typedef struct fb_sampler fb_sampler;

/* In this order: the repeat penalty, top-k, the temperature, top-p, min-p, one draw. */
typedef struct fb_sampler_options {
    float temperature; /* 0: the highest score, nothing else matters then; at most 100 */
    int64_t top_k;     /* keep the k best; 0: all */
    float top_p;       /* keep the best until their probabilities add up to p; 1: all */
    float min_p;       /* drop what is less probable than p times the best; 0: nothing */
    float
        repeat_penalty; /* divide the positive scores of recent tokens by it, multiply the negative; 1: off */
    int64_t repeat_window; /* how many tokens are recent */
    uint64_t seed;
} fb_sampler_options;

FB_API void fb_sampler_options_default(fb_sampler_options *options);
FB_API fb_status fb_sampler_create(const fb_sampler_options *options, int64_t vocab, fb_sampler **out,
                                   fb_error *err);
/* Tells the sampler of a token that it did not choose itself (the prompt's), for the repeat penalty. */
FB_API void fb_sampler_accept(fb_sampler *sampler, int32_t id);
/* Chooses a token from logits [vocab] and accepts it. Fails if a logit is NaN or +inf, or none is finite. */
FB_API fb_status fb_sampler_next(fb_sampler *sampler, const float *logits, int32_t *id, fb_error *err);
FB_API void fb_sampler_free(fb_sampler *sampler);

/* ---- fuses -----------------------------------------------------------------------------------------------
 */

/* A fuse, and what it does to a model. Fuses are applied in the order of their indices; one whose ops an
 * earlier one has taken does not apply. */
typedef struct fb_fuse_info {
    const char *name;
    const char *text;     /* what becomes one */
    bool bit;             /* bit-identical to the plain ops; else so with `exact` only */
    const char *bound;    /* what it differs by otherwise; NULL if it never does */
    const char *backends; /* that have it */
    const char *why_not;  /* it does not apply to the model, even alone; NULL: it does */
    int64_t calls_a_step; /* when it is the only one */
    bool in_all;          /* it applies when all are on … */
    const char *taken_by; /* … or this fuse has taken its ops; NULL if it applies, and if why_not says more */
    bool greedy;          /* applies to greedy sessions only */
} fb_fuse_info;

/* Index 0, 1, … until false. */
FB_API bool fb_model_fuse(const fb_model *model, int index, fb_fuse_info *info);

/* ---- quantisation ----------------------------------------------------------------------------------------
 */

typedef struct fb_quantize_options {
    fb_dtype type;              /* of matrices: FB_F16, FB_Q8_0 or FB_Q4_0 */
    fb_dtype head;              /* of the output head, which may be the embedding, too; the same choice */
    const char *name;           /* of the model, unless its file has one; NULL: none */
    bool replace;               /* a file that has the name already */
    fb_progress_fn on_progress; /* by weights; return false to stop. May be NULL */
    void *user;
} fb_quantize_options;

/* Matrices and the head in Q8_0. */
FB_API void fb_quantize_options_default(fb_quantize_options *options);

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
    int32_t kind_count;
    fb_quantize_kind kinds[64];
} fb_quantize_report;

/* Writes the model as a GGUF file, tokenizer included: matrices in the types asked for, vectors in F32.
 * Scales of Q4_0 are searched for the least squared error. Where a matrix becomes Q4_0, its linear's
 * bias is corrected by the mean of the error, if the mean of the linear's input can be told from the weights:
 * after a LayerNorm, GELU or attention.
 * Refuses a model that such a file cannot describe. Under `path` there is the whole file or none. */
FB_API fb_status fb_model_quantize(const fb_model *model, const char *path,
                                   const fb_quantize_options *options, fb_quantize_report *report,
                                   fb_error *err);

/* ---- benchmarks ------------------------------------------------------------------------------------------
 */

/* Of repeated measurements: the median, the 10th and 90th percentile, and the shortest interval of order
 * statistics that holds the true median with 95% confidence or more; all values if they are too few, with the
 * confidence that is then left. */
typedef struct fb_spread {
    double median, p10, p90;
    double low, high, confidence;
} fb_spread;

typedef struct fb_bench_options {
    fb_session_options session; /* threads, act, kv, isa and exact count */
    const char *const *specs;   /* the variants, as fb_session_options.fuse */
    int32_t spec_count;
    int64_t prompt, gen;        /* tokens of the prompt, decode steps after it; at least 1 */
    int64_t reps;               /* repetitions of the whole; at least 1 */
    fb_progress_fn on_progress; /* after each repetition; return false to stop. May be NULL */
    void *user;
} fb_bench_options;

/* prompt 64, gen 64, reps 9, no variants. */
FB_API void fb_bench_options_default(fb_bench_options *options);

/* Times in seconds. Decoding is greedy, so that a step ends with its token. */
typedef struct fb_bench_variant {
    const char *spec;
    int64_t barriers_a_step;
    /* The check before anything is timed: the same tokens through this variant and the first one. */
    bool agrees; /* the same tokens and bits; where a fuse in it promises less, logits within its bound */
    int64_t tokens_equal; /* of gen + 1 */
    bool bit_identical;   /* all logits of all steps */
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
    const char *isa;
    int32_t variant_count;
    fb_bench_variant *variants;
} fb_bench_report;

/* Checks the variants against each other, then times them in turns. FB_OK means that this took place;
 * `report->agree` says whether there are times. The specs must outlive the report. */
FB_API fb_status fb_bench_run(const fb_model *model, const fb_bench_options *options,
                              fb_bench_report **report, fb_error *err);
FB_API void fb_bench_free(fb_bench_report *report);

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
    const char *isa;
    int64_t count;
    fb_bench_op *ops; /* for each fuse that applies: decode, then prefill */
} fb_bench_ops_report;

/* The same for single fuses: the specs do not count. */
FB_API fb_status fb_bench_ops(const fb_model *model, const fb_bench_options *options,
                              fb_bench_ops_report **report, fb_error *err);
FB_API void fb_bench_ops_free(fb_bench_ops_report *report);

/* One stream as it goes on, with one cache. */
typedef struct fb_bench_stream_options {
    fb_session_options session; /* all but capacity, beyond_context, all_logits, greedy, profile and the
                                   callbacks count */
    int64_t gen;       /* how far the stream goes, in tokens; 0: 16 times what the cache holds. A dense
                          cache ends at the model's context */
    double ttft_limit; /* seconds: a prompt that takes longer is given up */
    fb_progress_fn on_progress; /* by tokens of the stream; return false to stop. May be NULL */
    void *user;
} fb_bench_stream_options;

/* cache sinks, gen 0, ttft_limit 10. */
FB_API void fb_bench_stream_options_default(fb_bench_stream_options *options);

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
    int32_t line_count;
    fb_bench_stream_line *lines;
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

/* ---- profile and plan ------------------------------------------------------------------------------------
 */

typedef struct fb_profile_op {
    char name[96];                 /* as in the program's text: the op, or its fuses joined by '+' */
    int32_t section;               /* 0: prologue, 1: layer, 2: epilogue */
    int64_t calls;                 /* a step */
    double seconds;                /* measured, all calls of a step */
    double predicted;              /* the machine model's */
    double bytes;                  /* of weights, activations and cache, all calls of a step … */
    double weight_bytes, kv_bytes; /* … and two parts of it */
    double flops;
    double bandwidth; /* bytes a second at most: at the step's footprint; on a GPU, at one call's bytes */
    bool barrier;     /* all threads meet after it; on a GPU, all ops */
} fb_profile_op;

/* Where the time of a step goes: a decode step, or a whole prefill. */
typedef struct fb_profile {
    char *text; /* the program */
    int64_t op_count;
    fb_profile_op *ops;    /* in program order, a layer's ops once for all layers */
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
    double bytes[16], bandwidth[16]; /* bytes a second, by bytes that are read over and over; on a GPU, by
                                        bytes of one launch */
    double barrier, dispatch;        /* seconds */
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
    fb_machine_figures machine;
    int64_t prompt, gen;
    fb_profile plain, fused;
    int32_t fuse_count;
    fb_plan_fuse fuses[32];
    double layer_bytes; /* of the plain program */
} fb_plan_report;

typedef struct fb_plan_request {
    int64_t prompt, gen; /* tokens; at least 1 */
    bool prefill;        /* profile the prefill, not the decode steps */
    const char *cache;   /* folder of measured machines; NULL: measure, keep nothing */
    bool calibrate;      /* measure the machine again */
} fb_plan_request;

/* Of the session's options, backend, threads, act, kv, fuse, exact and isa count. */
FB_API fb_status fb_profile_make(const fb_model *model, const fb_session_options *options,
                                 const fb_plan_request *request, fb_plan_report **report, fb_error *err);

/* The same for the plain program and the plan, decode only, with a price for every fuse. */
FB_API fb_status fb_plan_report_make(const fb_model *model, const fb_session_options *options,
                                     const fb_plan_request *request, fb_plan_report **report, fb_error *err);
FB_API void fb_plan_report_free(fb_plan_report *report);

/* The roofline and the timelines as one self-contained SVG file. */
FB_API fb_status fb_plan_report_svg(const fb_plan_report *report, const char *path, fb_error *err);

/* ---- verification ----------------------------------------------------------------------------------------
 */

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

/* Runs the golden's ids and compares every hidden state, the logits and the greedy continuation. FB_OK means
 * that the comparison took place; `report->ok` is its outcome. Of the options, all count but
 * capacity, all_logits, greedy and the callbacks; "auto" for kv is "act" here, as a golden's cache was not
 * rounded. */
FB_API fb_status fb_verify_golden(const fb_model *model, const char *golden,
                                  const fb_session_options *options, fb_verify_report **report,
                                  fb_error *err);
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
    int32_t count;
    fb_stream_row *rows;
} fb_stream_report;

/* Whether a golden is one of a stream: how badly each token of a long text was foreseen, by cache. */
FB_API fb_status fb_golden_streams(const char *golden, bool *streams, fb_error *err);

/* Runs the golden's ids with each of its caches, in chunks and token by token, and compares every token's
 * score, and the logits where the golden has them. A dense cache may go beyond the model's context here. Of
 * the options, all count but the cache's, all_logits, greedy and the callbacks. */
FB_API fb_status fb_verify_stream(const fb_model *model, const char *golden,
                                  const fb_session_options *options, fb_stream_report **report,
                                  fb_error *err);
FB_API void fb_stream_free(fb_stream_report *report);

/* One fuse, or several together, against the plain program. */
typedef struct fb_fusion_row {
    char name[64];      /* of the fuse; "all", "auto", or the spec */
    bool bit;           /* its class: bit-identical; else within a tolerance */
    bool bit_identical; /* what it was: every hidden state and logit, in prefill and in decode */
    double max_abs;     /* largest difference, where it comes nearest to its bound */
    double bound;       /* of max_abs there; 0 where bits are promised */
    double vs_f64_plain, vs_f64_fused; /* norm of the logits' error over their norm, against a float64 run */
    int64_t calls, calls_expected;     /* of its fused ops, in the greedy run */
    bool greedy_match;
    double perplexity;
    fb_verify_row *layers; /* [states + 1]: after 0, 1, … layers, then the logits */
    bool unshown_ok;       /* logits also hold in a run that shows no hidden states */
    char why[128];         /* what failed; empty if ok */
    bool ok;
} fb_fusion_row;

typedef struct fb_fusion_report {
    bool ok;
    int64_t prompt, decoded; /* ids in a prefill, then one by one */
    int64_t greedy_tokens, truth_tokens;
    int64_t states; /* hidden states compared: the embedding and each layer */
    int64_t count;
    fb_fusion_row *rows; /* each fuse that applies alone, then together: "all" and "auto", or the spec */
    bool greedy_match;
    double perplexity_plain, perplexity_fused; /* of the ids; fused: the last row's */
} fb_fusion_report;

/* Runs the same ids through the plain program and through fuses. With options->fuse NULL or "auto": each that
 * applies alone, all together, the planner's choice; else each of the spec alone, then the spec. FB_OK means
 * that the comparison took place; `report->ok` is its outcome. Of the options, threads, act, kv, exact, chunk
 * and isa count, too. */
FB_API fb_status fb_verify_fusion(const fb_model *model, const fb_session_options *options,
                                  fb_fusion_report **report, fb_error *err);
FB_API void fb_fusion_free(fb_fusion_report *report);

/* ---- perplexity ------------------------------------------------------------------------------------------
 */

/* How well some tokens were foreseen. The errors are standard errors, as of independent tokens; NaN for one
 * token alone. */
typedef struct fb_score {
    int64_t tokens;                      /* that were scored */
    double nll, nll_error;               /* mean of -ln p, in nats a token */
    double perplexity, perplexity_error; /* its exponential */
    double seconds;
} fb_score;

/* Called many times a window. Return false to stop. */
typedef bool (*fb_score_fn)(void *user, const fb_score *so_far, int64_t total);

typedef struct fb_perplexity_options {
    fb_session_options session; /* all but capacity, all_logits, greedy, profile and the callbacks count */
    int64_t window;             /* tokens; 0: the model's context, at most 512 */
    fb_score_fn on_progress;    /* may be NULL */
    void *user;
} fb_perplexity_options;

FB_API void fb_perplexity_options_default(fb_perplexity_options *options);

typedef struct fb_perplexity_report {
    fb_score all;
    int64_t window; /* tokens of one, with what the tokenizer puts in front */
    int64_t window_count;
    fb_score *windows; /* [window_count]; the last one may be shorter */
    int32_t threads;
    const char *isa;
} fb_perplexity_report;

/* Scores ids (of a text, without special tokens around it) in windows that do not overlap. Each begins with
 * an empty cache and what the tokenizer puts in front of a text, such as a begin-of-text token. Every id that
 * has a predecessor in its window is scored. Fails if a logit is NaN or +inf. */
FB_API fb_status fb_perplexity_run(const fb_model *model, const fb_perplexity_options *options,
                                   const int32_t *ids, int64_t count, fb_perplexity_report **report,
                                   fb_error *err);
FB_API void fb_perplexity_free(fb_perplexity_report *report);

/* ---- perplexity along a stream ---------------------------------------------------------------------------
 */

#define FB_CACHE_KINDS 3

/* How well some tokens of the stream were foreseen, by cache. */
typedef struct fb_curve_row {
    int64_t position;           /* tokens that were read before its last one, the tokenizer's included */
    int64_t tokens;             /* that were scored */
    double nll[FB_CACHE_KINDS]; /* mean of -ln p, in nats a token, in the order of the report's curves */
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
    int32_t curve_count;
    fb_curve curves[FB_CACHE_KINDS];
    int64_t row_count;
    fb_curve_row *rows; /* the last one may have fewer tokens than `every` */
    const char *backend, *isa;
    int32_t threads;
} fb_curve_report;

/* The report so far; of the row that is being read, caches have scored `part` tokens, added up. Return false
 * to stop. */
typedef bool (*fb_curve_fn)(void *user, const fb_curve_report *so_far, int64_t part);

typedef struct fb_curve_options {
    /* All but cache, capacity, beyond_context, all_logits, greedy, profile and the callbacks count. A cache
     * that is a window has sinks and window together, so that one with sinks sees as many tokens. */
    fb_session_options session;
    fb_cache_kind kinds[FB_CACHE_KINDS]; /* each at most once */
    int32_t kind_count;
    int64_t every;           /* tokens of a row; at least 1 */
    fb_curve_fn on_chunk;    /* after each row; may be NULL */
    fb_curve_fn on_progress; /* before the first row, then many times a row; may be NULL */
    void *user;
} fb_curve_options;

/* 256 tokens a row, no caches. */
FB_API void fb_curve_options_default(fb_curve_options *options);

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
