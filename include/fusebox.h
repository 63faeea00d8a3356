/* Fusebox: language models in C, every kernel fusion a switch.
 *
 * What a program needs to run models. fusebox_tools.h has what measures and checks them. The order of use:
 *
 *     fb_model_open       a checkpoint: config, weights (memory-mapped), tokenizer
 *     fb_tokenize         text to token ids
 *     fb_session_create   a KV cache for one stream of tokens
 *     fb_session_prefill  many tokens at once
 *     fb_session_logits   the scores of the next token
 *     fb_sampler_next     scores to a token id
 *     fb_session_decode   one more token
 *     fb_text_push        token ids back to text, never half a UTF-8 character
 *
 * examples/story.c is this list as a program.
 *
 * Errors. Every function that can fail returns an fb_status and takes an fb_error, which may be NULL. On
 * failure its message names the thing, its value and the limit, in one line without a final newline, and
 * every output argument is left NULL or zero. The library never prints, exits or aborts, and reads no
 * environment variable. Passing NULL to a _free function is allowed.
 *
 * Growth. A program that was compiled with an older header runs with a newer library.
 *   - A struct that the caller fills, or hands in to be filled, begins with its size in bytes. The library
 *     reads and writes no more than that. Fields that the caller's header does not have yet take their
 *     defaults; bytes that the library does not know yet must be zero. `_default` functions set the size and
 *     all fields. A designated initialiser must set `.size = sizeof(the struct)`.
 *   - Options may be NULL: all defaults.
 *   - Functions named _init or _fill_ are for the inline functions below them, which hand over the size that
 *     the caller was compiled with, and for other languages.
 *   - New fields are added at the end of a struct, and new values at the end of an enum. A caller must expect
 *     values that it does not know.
 *   - fb_error is frozen: it never changes, and so needs no size.
 *
 * Threads. What may be used by several threads at once, and what may not:
 *   - Functions without an object (names, parsers, versions, devices): by any thread at any time.
 *   - fb_model: shared. It does not change once it is open. It must outlive its sessions and text streams;
 *     only fb_model_free must be alone.
 *   - fb_session: one thread at a time. Different sessions, also of one model and also forks of each other,
 *     may be used by different threads at once. fb_session_cancel may be called by any thread at any time.
 *     Steps on one device take turns, in the order in which they were asked for. On the CPU all sessions
 * share one set of threads, as many as the largest number that one of them asked for.
 *   - fb_sampler, fb_text_stream: one thread at a time each.
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

/* ---- version --------------------------------------------------------------------------------------------
 */

/* Of this header. The number is 10000 major + 100 minor + patch. */
#define FB_VERSION        "0.1.0"
#define FB_VERSION_NUMBER 100

/* Of the library that runs. */
FB_API const char *fb_version(void);
FB_API int32_t fb_version_number(void);

/* The commit that the library was built from, as git describe names it, or "unknown". */
FB_API const char *fb_commit(void);

/* ---- status ---------------------------------------------------------------------------------------------
 */

typedef enum fb_status {
    FB_OK = 0,
    FB_ERROR_USAGE = 1,       /* an argument is out of its range */
    FB_ERROR_FILE = 2,        /* a file is missing, unreadable or malformed */
    FB_ERROR_UNSUPPORTED = 3, /* well formed, but it asks for something that Fusebox does not do */
    FB_ERROR_MEMORY = 4,      /* no memory for what was asked */
    FB_ERROR_SYSTEM = 5,      /* the operating system refused something (a thread, a clock) */
    FB_ERROR_STOPPED = 6      /* a callback or fb_session_cancel asked to stop */
} fb_status;

/* Frozen. */
typedef struct fb_error {
    fb_status status;
    char message[512];
} fb_error;

/* "ok", "usage", "file", … for logs. */
FB_API const char *fb_status_name(fb_status status);

/* Frees what a function below returned through a `char **` or `int32_t **`. */
FB_API void fb_free(void *memory);

/* ---- dtypes ---------------------------------------------------------------------------------------------
 */

/* Activations are F32, F16 or BF16, or F64 with the reference kernels ("ref"): a run that is the truth.
 * Weights are F32, F16, BF16, or blocks of small integers with a common scale, laid out as in GGUF files. */
typedef enum fb_dtype {
    FB_F32 = 0,
    FB_F16 = 1,
    FB_BF16 = 2,
    FB_F64 = 3,
    FB_Q8_0 = 4,
    FB_Q4_0 = 5,
    FB_Q4_1 = 6,
    FB_Q5_0 = 7,
    FB_Q5_1 = 8,
    FB_Q4_K = 9,
    FB_Q5_K = 10,
    FB_Q6_K = 11
} fb_dtype;

FB_API const char *fb_dtype_name(fb_dtype dtype);
FB_API fb_status fb_dtype_parse(const char *name, fb_dtype *out, fb_error *err);

/* The dtype of a KV cache under activations of dtype `act`: "f32", "f16", "bf16", "f64" (reference kernels
 * only), "act" for theirs, "auto" (or NULL) for f16, but bf16 and f64 with such activations. */
FB_API fb_status fb_dtype_parse_kv(const char *name, fb_dtype act, fb_dtype *out, fb_error *err);

/* ---- model ----------------------------------------------------------------------------------------------
 */

typedef struct fb_model fb_model;

/* Opens a Hugging Face directory: config.json, model.safetensors (or its sharded index) and, if it is there,
 * tokenizer.json; or a .gguf file, which has all of that. Weights stay in the file, which is mapped: the
 * first session on a device loads them there, as its kernels read them, and they stay until fb_model_free. */
FB_API fb_status fb_model_open(const char *path, fb_model **out, fb_error *err);
FB_API void fb_model_free(fb_model *model);

typedef struct fb_model_info {
    size_t size;
    const char *architecture; /* "gpt_neox", "llama", "gpt2" */
    bool has_tokenizer;
    int64_t layers, hidden, vocab, context;
    int64_t parameters; /* each stored weight counted once */
} fb_model_info;

FB_API void fb_model_fill_info(const fb_model *model, fb_model_info *info);
static inline void fb_model_get_info(const fb_model *model, fb_model_info *info) {
    info->size = sizeof *info;
    fb_model_fill_info(model, info);
}

/* The weights by dtype, those that the model has: index 0, 1, … until false. */
FB_API bool fb_model_weights(const fb_model *model, int index, fb_dtype *dtype, int64_t *weights,
                             int64_t *bytes);

/* Every config value that changes the maths, as name and value, in reading order: index 0, 1, … until false.
 */
FB_API bool fb_model_fact(const fb_model *model, int index, const char **name, const char **value);

/* The plain program, one op a line with shapes. */
FB_API fb_status fb_model_program_text(const fb_model *model, char **text, fb_error *err);

/* True for an id that ends a text (eos_token_id of generation_config.json or config.json). */
FB_API bool fb_model_is_end(const fb_model *model, int32_t id);

/* ---- text -----------------------------------------------------------------------------------------------
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

/* ---- devices --------------------------------------------------------------------------------------------
 */

/* A GPU that this library could run on. */
typedef struct fb_device_info {
    size_t size;
    char name[128];
    char isa[16];                /* "sm_90" */
    int64_t memory, memory_free; /* bytes */
    int64_t l2_bytes;
    int32_t multiprocessors;
    int32_t shared_bytes;    /* of a block, at most */
    int32_t driver, runtime; /* CUDA versions: 13000 is 13.0 */
    char why_not[256];       /* it cannot be used, and why; empty if it can */
} fb_device_info;

/* Device 0, 1, … until `*found` is false. FB_ERROR_SYSTEM, with the reason, if there can be none: the CUDA
 * backend was not built or not found, or the driver is missing. */
FB_API fb_status fb_device_fill(int32_t index, bool *found, fb_device_info *info, fb_error *err);
static inline fb_status fb_device_get(int32_t index, bool *found, fb_device_info *info, fb_error *err) {
    info->size = sizeof *info;
    return fb_device_fill(index, found, info, err);
}

/* The file of the CUDA backend; "none": there is none; NULL, as before any call: libfusebox_cuda.so beside
 * this library or program, in ../lib, or where the system looks for libraries. The backend is opened once,
 * by the first fb_device_get or session that may run on a GPU. After that, another file is refused with
 * FB_ERROR_USAGE. */
FB_API fb_status fb_cuda_library(const char *path, fb_error *err);

/* ---- session --------------------------------------------------------------------------------------------
 */

typedef struct fb_session fb_session;

/* rows of hidden state [rows, cols] after `layer` layers (0: the embedding; the last one is after the final
 * norm), for the tokens at positions `position`, position + 1, … Return false to stop. It is called in the
 * middle of a step, which has the device: it must not run another session on it. */
typedef bool (*fb_hidden_fn)(void *user, int64_t layer, int64_t position, const float *hidden, int64_t rows,
                             int64_t cols);

/* Called between the chunks of a prefill. Return false to stop: the session must then be reset. */
typedef bool (*fb_progress_fn)(void *user, int64_t done, int64_t total);

/* Which tokens a session remembers. A dense cache keeps all of them, and is full some day. The others go on
 * without end, at constant memory and time: a window keeps the last ones; sinks keep the very first, too, and
 * with them a model goes on as it was trained to (StreamingLLM). What is forgotten is as if it had never
 * been: a token's position is the one that it has in the cache. Only for rotary positions. */
typedef enum fb_cache_kind { FB_CACHE_DENSE = 0, FB_CACHE_WINDOW = 1, FB_CACHE_SINKS = 2 } fb_cache_kind;

FB_API const char *fb_cache_name(fb_cache_kind kind);
FB_API fb_status fb_cache_parse(const char *name, fb_cache_kind *out, fb_error *err);

typedef struct fb_session_options {
    size_t size;
    int32_t threads; /* that a step uses, the caller's included; 0: one for each core this process may use */
    fb_dtype act;    /* the dtype in which every op stores its result */
    const char *kv;  /* the dtype of the KV cache, as fb_dtype_parse_kv takes it; NULL: "auto" */
    const char *isa; /* "avx512vnni", "avx512", "avx2", "portable", "ref" (slow, in double); NULL: the best */
    /* "cpu", "cuda", "cuda:1" (the second device) or "auto" (NULL): a GPU if there is one, unless `isa` is
     * given or `act` is float64, which only the CPU has. */
    const char *backend;
    /* Which fuses: "none", "all", "auto" (NULL), or a list: "all,-qkv_up", "add_norm,bias_act". */
    const char *fuse;
    /* Folder of the planner's measurements, by which "auto" chooses; NULL: by assumptions. */
    const char *machine;
    bool exact;      /* only variants that are bit-identical to the plain ops */
    bool float_dot;  /* weights of Q8_0 and Q4_0 are multiplied with floats, not with 8-bit integers */
    bool greedy;     /* only the best token of a step is wanted (fb_session_best), not the logits */
    bool all_logits; /* keep the logits of every token of the last prefill, not only of the last one */
    bool profile;    /* take the time of every op */
    /* Dense: more than the model's context is allowed. Its answers are not worth much there; to see that is
     * what this is for. */
    bool beyond_context;
    fb_cache_kind cache;
    int64_t capacity; /* dense: tokens that the KV cache has room for; 0: the model's context */
    int64_t sinks;    /* cache sinks: how many first tokens are kept; 4 by default */
    int64_t window;   /* cache window or sinks: a token sees so many before it; 0: what the model was trained
                         on, but 4096 at most, sinks included */
    int64_t chunk;    /* tokens of a prefill that are computed at once; 0: a good value */
    fb_hidden_fn on_hidden;
    fb_progress_fn on_progress;
    void *user; /* of both */
} fb_session_options;

FB_API void fb_session_options_init(fb_session_options *options, size_t size);
static inline void fb_session_options_default(fb_session_options *options) {
    fb_session_options_init(options, sizeof *options);
}

FB_API fb_status fb_session_create(const fb_model *model, const fb_session_options *options, fb_session **out,
                                   fb_error *err);
FB_API void fb_session_free(fb_session *session);

/* Appends tokens. Fails without a change when an id is not in the vocabulary or the cache has no room. */
FB_API fb_status fb_session_prefill(fb_session *session, const int32_t *ids, int64_t count, fb_error *err);
FB_API fb_status fb_session_decode(fb_session *session, int32_t id, fb_error *err);

/* Makes the prefill or decode that runs now, or if none runs or it is almost done the next one, return
 * FB_ERROR_STOPPED. The tokens of a prefill's finished chunks stay, the session goes on from there. There are
 * no logits until the next token. fb_session_reset takes a cancel back that has stopped nothing yet. */
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
    size_t size;
    fb_cache_kind kind;
    int64_t sinks, window; /* as settled; 0 if dense */
    int64_t slots, bytes;  /* of the cache */
    int64_t held;          /* tokens that the next one will see */
    int64_t trimmable;     /* tokens that fb_session_trim can drop now */
} fb_cache_info;

FB_API void fb_session_fill_cache(const fb_session *session, fb_cache_info *info);
static inline void fb_session_get_cache(const fb_session *session, fb_cache_info *info) {
    info->size = sizeof *info;
    fb_session_fill_cache(session, info);
}

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

/* ---- sampling -------------------------------------------------------------------------------------------
 */

typedef struct fb_sampler fb_sampler;

/* In this order: the repeat penalty, top-k, the temperature, top-p, min-p, one draw. */
typedef struct fb_sampler_options {
    size_t size;
    float temperature; /* 0: the highest score, nothing else matters then; at most 100 */
    float top_p;       /* keep the best until their probabilities add up to p; 1: all */
    float min_p;       /* drop what is less probable than p times the best; 0: nothing */
    /* Divide the positive scores of recent tokens by it, multiply the negative; 1: off. */
    float repeat_penalty;
    int64_t repeat_window; /* how many tokens are recent */
    int64_t top_k;         /* keep the k best; 0: all */
    uint64_t seed;
} fb_sampler_options;

FB_API void fb_sampler_options_init(fb_sampler_options *options, size_t size);
static inline void fb_sampler_options_default(fb_sampler_options *options) {
    fb_sampler_options_init(options, sizeof *options);
}

FB_API fb_status fb_sampler_create(const fb_sampler_options *options, int64_t vocab, fb_sampler **out,
                                   fb_error *err);
/* Tells the sampler of a token that it did not choose itself (the prompt's), for the repeat penalty. */
FB_API void fb_sampler_accept(fb_sampler *sampler, int32_t id);
/* Chooses a token from logits [vocab] and accepts it. Fails if a logit is NaN or +inf, or none is finite. */
FB_API fb_status fb_sampler_next(fb_sampler *sampler, const float *logits, int32_t *id, fb_error *err);
FB_API void fb_sampler_free(fb_sampler *sampler);

/* ---- fuses ----------------------------------------------------------------------------------------------
 */

/* A fuse, and what it does to a model. Fuses are applied in the order of their indices; one whose ops an
 * earlier one has taken does not apply. */
typedef struct fb_fuse_info {
    size_t size;
    const char *name;
    const char *text;     /* what becomes one */
    const char *bound;    /* what it differs by from the plain ops; NULL if it never does */
    const char *backends; /* that have it */
    const char *why_not;  /* it does not apply to the model, even alone; NULL: it does */
    const char *taken_by; /* with all fuses on this one has taken its ops; NULL if in_all, or why_not */
    bool in_all;          /* it applies when all are on */
    bool bit;             /* bit-identical to the plain ops; else so with `exact` only */
    bool greedy;          /* applies to greedy sessions only */
    int64_t calls_a_step; /* when it is the only one */
} fb_fuse_info;

/* Index 0, 1, … until false. */
FB_API bool fb_model_fill_fuse(const fb_model *model, int index, fb_fuse_info *info);
static inline bool fb_model_fuse(const fb_model *model, int index, fb_fuse_info *info) {
    info->size = sizeof *info;
    return fb_model_fill_fuse(model, index, info);
}

#ifdef __cplusplus
}
#endif
#endif
