/* Fusebox: language models in C, every kernel fusion a switch.
 *
 * This header has what a program needs to run models. fusebox_tools.h measures and checks models. The order
 * of use:
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
 * failure the message names the thing, its value and the limit, in one line without a final newline, and
 * every output argument is NULL or zero. The library never prints, exits or aborts, and reads no environment
 * variable. A _free function accepts NULL.
 *
 * Growth. A program compiled with an older header runs with a newer library.
 *   - A struct that the caller fills, or passes in to be filled, begins with its size in bytes. The library
 *     reads and writes no more than that. Fields that the caller's header lacks get their defaults. Bytes
 *     that the library does not know must be zero. `_default` functions set the size and all fields. A
 *     designated initialiser must set `.size = sizeof(the struct)`.
 *   - Options may be NULL: all defaults.
 *   - Functions named _init or _fill_ are for the inline functions below them, which pass the size that the
 *     caller was compiled with, and for other languages.
 *   - New fields are added at the end of a struct, and new values at the end of an enum. A caller must expect
 *     values that it does not know.
 *   - fb_error is frozen: it never changes, so it needs no size.
 *
 * Threads. What several threads may use at once:
 *   - Functions without an object (names, parsers, versions, devices): any thread at any time.
 *   - fb_tokenizer: shared by all threads, as fb_model is.
 *   - fb_model: shared by all threads. It does not change once it is open. It must outlive its sessions and
 *     text streams. Only fb_model_free needs exclusive access.
 *   - fb_session: one thread at a time. Different sessions may be used by different threads at once, even if
 *     they share a model or are forks of each other. Any thread may call fb_session_cancel at any time. One
 *     step runs at a time on a device. On a GPU steps run in the order of the calls. On the CPU a session may
 *     run several steps in a row, for up to 20 ms, before the next waiting session; all sessions share one
 * set of threads, as many as the largest number that one of them asked for.
 *   - fb_sampler, fb_text_stream, fb_stop: one thread at a time each. */
#ifndef FUSEBOX_H
#define FUSEBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FB_API __attribute__((visibility("default")))

/* ---- version ---- */

/* The version of this header. The number is 10000 major + 100 minor + patch. */
#define FB_VERSION        "0.1.0"
#define FB_VERSION_NUMBER 100

/* The version of the library that runs. */
FB_API const char *fb_version(void);
FB_API int32_t fb_version_number(void);

/* The commit that the library was built from, as git describe names it, or "unknown". */
FB_API const char *fb_commit(void);

/* ---- status ---- */

typedef enum fb_status {
    FB_OK = 0,
    FB_ERROR_USAGE = 1,       /* an argument is out of its range */
    FB_ERROR_FILE = 2,        /* a file is missing, unreadable or malformed */
    FB_ERROR_UNSUPPORTED = 3, /* well formed, but it asks for something that Fusebox does not support */
    FB_ERROR_MEMORY = 4,      /* too little memory for the request */
    FB_ERROR_SYSTEM = 5,      /* the operating system refused something (a thread, space on a disk) */
    FB_ERROR_STOPPED = 6      /* a callback or fb_session_cancel asked to stop */
} fb_status;

/* Frozen. */
typedef struct fb_error {
    fb_status status;
    char message[512];
} fb_error;

/* The name of a status: "ok", "usage", "file", … for logs. */
FB_API const char *fb_status_name(fb_status status);

/* Frees what a function below returned through a `char **` or `int32_t **`. */
FB_API void fb_free(void *memory);

/* ---- dtypes ---- */

/* Activations are F32, F16 or BF16. The reference kernels ("ref") also have F64, for a run that others are
 * measured against. Weights are F32, F16, BF16, or blocks of small integers with a common scale, laid out as
 * in GGUF files. */
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
    FB_Q6_K = 11,
    FB_Q2_K = 12,
    FB_Q3_K = 13,
    FB_IQ4_NL = 14,
    FB_IQ4_XS = 15,
    FB_MXFP4 = 16
} fb_dtype;

FB_API const char *fb_dtype_name(fb_dtype dtype);
FB_API fb_status fb_dtype_parse(const char *name, fb_dtype *out, fb_error *err);

/* The dtype of a KV cache with activations of dtype `act`. "f32", "f16" and "bf16" name it; so does "f64",
 * with the reference kernels only. "act" is the dtype of the activations. "auto" (or NULL) is f16, but bf16
 * with bf16 activations and f64 with f64 activations. */
FB_API fb_status fb_dtype_parse_kv(const char *name, fb_dtype act, fb_dtype *out, fb_error *err);

/* ---- model ---- */

typedef struct fb_model fb_model;

/* Opens a Hugging Face directory, with config.json, model.safetensors (or its sharded index) and optionally
 * tokenizer.json or tokenizer.model; or a .gguf file, which contains all of that. A file of such a directory
 * stands for it, one of several GGUF files (NAME-00001-of-00003.gguf) for all, and a directory for the one
 * GGUF model in it. The files are mapped. The first session on a device loads the weights: the CPU reads most
 * float weights in place and packs quantised ones into memory, a GPU copies all weights. They stay loaded
 * until fb_model_free.
 *
 * fb_session_create refuses a file whose size has changed. A file that is truncated later raises SIGBUS when
 * a step reads the missing part, and only the program can handle that signal. To replace a model that is in
 * use, write a new file and rename it. */
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

/* The model's weights by dtype: index 0, 1, … until false. */
FB_API bool fb_model_weights(const fb_model *model, int index, fb_dtype *dtype, int64_t *weights,
                             int64_t *bytes);

/* Every config value that affects the result, as name and value, in reading order: index 0, 1, … until false.
 */
FB_API bool fb_model_fact(const fb_model *model, int index, const char **name, const char **value);

/* The plain program as text: one op a line, with shapes. */
FB_API fb_status fb_model_program_text(const fb_model *model, char **text, fb_error *err);

/* True for an id that ends a text or a turn: eos_token_id of generation_config.json or config.json; eos, eot
 * and eom of a GGUF file; and special tokens with one of the usual names, such as <|im_end|> or
 * <end_of_turn>. */
FB_API bool fb_model_is_end(const fb_model *model, int32_t id);

/* ---- text ---- */

/* A tokenizer alone, without weights: of a folder with a tokenizer.json or a SentencePiece tokenizer.model,
 * of one of these files or another one of a checkpoint, of a .gguf file, which need not have more than its
 * vocabulary, or of a folder with one such file. It does not change once it is open: any number of threads
 * may use it at once. */
typedef struct fb_tokenizer fb_tokenizer;
FB_API fb_status fb_tokenizer_open(const char *path, fb_tokenizer **out, fb_error *err);
FB_API void fb_tokenizer_free(fb_tokenizer *tokenizer);

/* A model's own, which lives as long as the model; NULL if it has none. */
FB_API const fb_tokenizer *fb_model_tokenizer(const fb_model *model);

/* The highest id + 1. */
FB_API int64_t fb_tokenizer_vocab(const fb_tokenizer *tokenizer);

/* A token as its vocabulary spells it: "Ġthe" or "▁the" rather than " the". The text belongs to the
 * tokenizer and is not terminated. False: no token has this id. */
FB_API bool fb_tokenizer_piece(const fb_tokenizer *tokenizer, int32_t id, const char **text, size_t *bytes);

/* As fb_tokenize and fb_detokenize. */
FB_API fb_status fb_tokenizer_encode(const fb_tokenizer *tokenizer, const char *text, size_t bytes,
                                     bool special, int32_t **ids, int64_t *count, fb_error *err);
FB_API fb_status fb_tokenizer_decode(const fb_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                                     bool special, char **text, size_t *bytes, fb_error *err);

/* Converts text (UTF-8; any bytes are accepted) to ids. `special` adds what the tokenizer's template puts
 * around a text, such as a begin-of-text token. Release the ids with fb_free. */
FB_API fb_status fb_tokenize(const fb_model *model, const char *text, size_t bytes, bool special,
                             int32_t **ids, int64_t *count, fb_error *err);

/* Converts ids to text, NUL-terminated; release it with fb_free. `special` keeps special tokens in the text.
 */
FB_API fb_status fb_detokenize(const fb_model *model, const int32_t *ids, int64_t count, bool special,
                               char **text, size_t *bytes, fb_error *err);

/* Converts ids to text one by one. A token may end inside a UTF-8 character. push returns only whole
 * characters (possibly none). flush returns the rest, with U+FFFD for incomplete characters. Special tokens
 * give no text. The text belongs to the stream and is valid until its next call. */
typedef struct fb_text_stream fb_text_stream;
FB_API fb_status fb_text_create(const fb_model *model, fb_text_stream **out, fb_error *err);
FB_API fb_status fb_text_push(fb_text_stream *stream, int32_t id, const char **text, size_t *bytes,
                              fb_error *err);
FB_API fb_status fb_text_flush(fb_text_stream *stream, const char **text, size_t *bytes, fb_error *err);
FB_API void fb_text_free(fb_text_stream *stream);

/* ---- chat ---- */

/* The model's chat templates: index 0, 1, … until false. "default" comes first if there is one. */
FB_API bool fb_model_chat_template(const fb_model *model, int index, const char **name, const char **text);
/* Where that template is from: the name of a file beside the model, or the key of the GGUF file. NULL behind
 * the last one. */
FB_API const char *fb_model_chat_source(const fb_model *model, int index);

/* A template is Jinja2, with the variables and functions that Hugging Face transformers gives it. It renders
 * under limits of time, memory and depth. */
typedef struct fb_chat_options {
    size_t size;
    bool add_generation_prompt; /* end with what begins an answer; true by default */
    const char *template_text;  /* another template; NULL: the model's */
    /* The model's template of this name; NULL: "default", or with tools "tool_use" if the model has it. */
    const char *template_name;
    const char *tools; /* JSON: an array of functions as JSON schemas; NULL: none */
    const char
        *variables; /* JSON: an object of more variables, such as {"enable_thinking": false}; NULL: none */
    int64_t now;    /* seconds since 1970 in the user's time zone, for templates that write the date; 0: the
                       clock,    in UTC */
} fb_chat_options;

FB_API void fb_chat_options_init(fb_chat_options *options, size_t size);
static inline void fb_chat_options_default(fb_chat_options *options) {
    fb_chat_options_init(options, sizeof *options);
}

/* Renders messages to what the model sees: NUL-terminated; release it with fb_free. Messages are JSON: an
 * array of objects with "role" and "content", or an object with this array as "messages" and perhaps "tools",
 * which options->tools overrides. Tokenizing this text would let a user write special tokens: use
 * fb_chat_tokenize. */
FB_API fb_status fb_chat_render(const fb_model *model, const char *messages, const fb_chat_options *options,
                                char **text, size_t *bytes, fb_error *err);

/* The same as ids; release them with fb_free. Special tokens come from the template alone: such text in
 * messages, tools or variables is encoded as plain text. Nothing is added around the text: a template writes
 * its own begin-of-text token. */
FB_API fb_status fb_chat_tokenize(const fb_model *model, const char *messages, const fb_chat_options *options,
                                  int32_t **ids, int64_t *count, fb_error *err);

/* Finds the end of an answer by its text. Stop texts may begin in one token and end in another. push returns
 * text that is certainly before the first stop text: what could be the beginning of one is held back. After
 * *stopped nothing more comes. flush returns what was held back when the answer ends in another way. The text
 * belongs to the object and is valid until its next call. At most 64 texts of 1 to 4096 bytes. */
typedef struct fb_stop fb_stop;
FB_API fb_status fb_stop_create(const char *const *texts, int32_t count, fb_stop **out, fb_error *err);
FB_API fb_status fb_stop_push(fb_stop *stop, const char *text, size_t bytes, const char **out,
                              size_t *out_bytes, bool *stopped, fb_error *err);
FB_API void fb_stop_flush(fb_stop *stop, const char **out, size_t *out_bytes);
FB_API void fb_stop_free(fb_stop *stop);

/* ---- devices ---- */

/* A GPU that this library may be able to use. The CPU is not in this list. */
typedef struct fb_device_info {
    size_t size;
    char name[128];
    char isa[16];                /* "sm_90" */
    int64_t memory, memory_free; /* bytes */
    int64_t l2_bytes;
    int32_t multiprocessors;
    int32_t shared_bytes;    /* shared memory of a block, at most */
    int32_t driver, runtime; /* CUDA versions: 13000 is 13.0 */
    char why_not[256];       /* the reason if it cannot be used; empty if it can */
} fb_device_info;

/* Device 0, 1, … until `*found` is false. FB_ERROR_SYSTEM, with the reason, if there cannot be any: the CUDA
 * backend was not built or not found, or the driver is missing. */
FB_API fb_status fb_device_fill(int32_t index, bool *found, fb_device_info *info, fb_error *err);
static inline fb_status fb_device_get(int32_t index, bool *found, fb_device_info *info, fb_error *err) {
    info->size = sizeof *info;
    return fb_device_fill(index, found, info, err);
}

/* Sets the file of the CUDA backend; a relative path counts from the working directory of this call. "none":
 * do not use one. NULL (the initial state): libfusebox_cuda.so beside this library or program, in ../lib, or
 * where the system looks for libraries. The backend is opened once, by the first fb_device_get or session
 * that may run on a GPU. After that, naming another file fails with FB_ERROR_USAGE. */
FB_API fb_status fb_cuda_library(const char *path, fb_error *err);

/* ---- session ---- */

typedef struct fb_session fb_session;

typedef struct fb_sampler fb_sampler;

/* Receives the hidden state [rows, cols] after `layer` layers, for the tokens at positions `position`,
 * position + 1, … Layer 0 is the embedding; the last layer's state comes after the final norm. Return false
 * to stop: the session must then be reset. It is called in the middle of a step, which holds the device, so
 * it must not run another session on that device. */
typedef bool (*fb_hidden_fn)(void *user, int64_t layer, int64_t position, const float *hidden, int64_t rows,
                             int64_t cols);

/* Called between the chunks of a prefill. Return false to stop: the session must then be reset. */
typedef bool (*fb_progress_fn)(void *user, int64_t done, int64_t total);

/* Which tokens a session remembers. A dense cache keeps all of them, and is full at some point. The other two
 * run without end in constant memory and time. A window keeps the last tokens. Sinks also keep the very first
 * ones, with which a model keeps working as it was trained (StreamingLLM). Attention sees distances as if the
 * forgotten tokens had never existed; fb_session_position counts all tokens. Window and sinks need rotary
 * positions. */
typedef enum fb_cache_kind { FB_CACHE_DENSE = 0, FB_CACHE_WINDOW = 1, FB_CACHE_SINKS = 2 } fb_cache_kind;

FB_API const char *fb_cache_name(fb_cache_kind kind);
FB_API fb_status fb_cache_parse(const char *name, fb_cache_kind *out, fb_error *err);

typedef struct fb_session_options {
    size_t size;
    int32_t threads; /* threads that a step uses, the caller's included; 0: one for each core that this
                        process may use */
    fb_dtype act;    /* the dtype in which every op stores its result */
    const char *kv;  /* the dtype of the KV cache, as fb_dtype_parse_kv takes it; NULL: "auto" */
    const char *isa; /* "amx", "avx512bf16", "avx512vnni", "avx512", "avxvnni", "avx2"; on ARM "i8mm",
                        "dotprod", "neon"; "portable", "ref" (slow, in double); NULL: the best */
    /* "cpu", "cuda", "cuda:1" (the second device) or "auto" (NULL): a GPU if there is one, unless `isa` is
     * given or `act` is float64, which only the CPU supports. */
    const char *backend;
    /* The fuses: "none", "all", "auto" (NULL), or a list: "all,-qkv_up", "add_norm,bias_act". */
    const char *fuse;
    /* Folder with the planner's measurements of machines, which "auto" uses; NULL: built-in estimates. */
    const char *machine;
    /* Only variants that are bit-identical to the plain ops; on a GPU a prompt's tokens get the bits of
     * generated ones. */
    bool exact;
    bool float_dot;  /* multiply quantised weights with floats instead of 8-bit integers */
    bool greedy;     /* compute only the best token of a step (fb_session_best), not the logits */
    bool all_logits; /* keep the logits of every token of the last prefill, not only of the last one */
    bool profile;    /* measure the time of every op */
    /* Dense cache: allow more tokens than the model's context. The answers there are poor; this option exists
     * to show it. */
    bool beyond_context;
    fb_cache_kind cache;
    int64_t capacity; /* dense: tokens that the KV cache can hold; 0: the model's context */
    int64_t sinks;    /* cache sinks: how many of the first tokens are kept; 4 by default */
    int64_t window;   /* cache window or sinks: how many tokens before it a token sees; 0: the smaller
                         of the model's context and 4096, less 1 and the sinks */
    int64_t chunk;    /* tokens of a prefill that are computed at once; 0: a good value */
    fb_hidden_fn on_hidden;
    fb_progress_fn on_progress;
    void *user; /* passed to both callbacks */
    /* A GPU may add products in an order that depends on how many tokens a step has: it reads long prompts
     * faster, and the bits of an answer depend on how its prompt was cut. */
    int64_t any_order; /* 0 or 1 */
    /* Guesses for fb_session_speculate, or for the answers of a scheduler; NULL: none. */
    const struct fb_draft *draft;
} fb_session_options;

FB_API void fb_session_options_init(fb_session_options *options, size_t size);
static inline void fb_session_options_default(fb_session_options *options) {
    fb_session_options_init(options, sizeof *options);
}

FB_API fb_status fb_session_create(const fb_model *model, const fb_session_options *options, fb_session **out,
                                   fb_error *err);
FB_API void fb_session_free(fb_session *session);

/* Appends tokens. Fails without a change if an id is not in the vocabulary or the cache is too small. After
 * FB_ERROR_USAGE, FB_ERROR_MEMORY or fb_session_cancel the session goes on from its last finished chunk.
 * After any other failure, or when a callback returned false, it must be reset. */
FB_API fb_status fb_session_prefill(fb_session *session, const int32_t *ids, int64_t count, fb_error *err);
FB_API fb_status fb_session_decode(fb_session *session, int32_t id, fb_error *err);
/* Appends a token and chooses the one after it: fb_session_decode, then fb_sampler_next with its logits. A
 * GPU selects the candidates itself, so that not all logits are copied to the host; there are none afterwards
 * then (fb_session_logits). The token is the same. */
FB_API fb_status fb_session_next(fb_session *session, int32_t id, fb_sampler *sampler, int32_t *next,
                                 fb_error *err);

/* Makes the current prefill or decode return FB_ERROR_STOPPED. If none runs, or it is almost done, the next
 * one returns it. The tokens of finished chunks of a prefill stay, and the session can go on from there.
 * There are no logits until the next token. fb_session_reset withdraws a cancel that has not stopped anything
 * yet. */
FB_API void fb_session_cancel(fb_session *session);

/* Logits [rows, vocab] of the last prefill or decode: its last token's, or all of them with `all_logits`.
 * They belong to the session and are valid until its next call. */
FB_API fb_status fb_session_logits(fb_session *session, const float **logits, int64_t *rows, int64_t *vocab,
                                   fb_error *err);

/* The token with the highest logit of the last prefill or decode; the lowest id among equals. */
FB_API fb_status fb_session_best(fb_session *session, int32_t *id, fb_error *err);

FB_API int64_t fb_session_position(const fb_session *session);    /* tokens so far */
FB_API const char *fb_session_backend(const fb_session *session); /* "cpu" or "cuda" */
FB_API int32_t fb_session_threads(const fb_session *session);     /* threads of the CPU; 0 on a GPU */
FB_API const char *fb_session_isa(const fb_session *session);     /* "avx2"; on a GPU "sm_90" */
FB_API void fb_session_reset(fb_session *session);                /* back to no tokens */

typedef struct fb_cache_info {
    size_t size;
    fb_cache_kind kind;
    int64_t sinks, window; /* after defaults; 0 if dense */
    int64_t slots, bytes;  /* of the cache */
    int64_t held;          /* tokens that the next token will see */
    int64_t trimmable;     /* tokens that fb_session_trim can drop now */
} fb_cache_info;

FB_API void fb_session_fill_cache(const fb_session *session, fb_cache_info *info);
static inline void fb_session_get_cache(const fb_session *session, fb_cache_info *info) {
    info->size = sizeof *info;
    fb_session_fill_cache(session, info);
}

/* Keeps the first `count` tokens and drops the rest. There are no logits until the next token. A cache that
 * has begun to forget can go back only while it still holds what the next token must see: one chunk. */
FB_API fb_status fb_session_trim(fb_session *session, int64_t count, fb_error *err);

/* Creates a second session with the same tokens and options. Both share their cache until one of them writes
 * to it; that one then gets a copy. */
FB_API fb_status fb_session_fork(const fb_session *session, fb_session **out, fb_error *err);

/* How often each op ran since the session was created, by index 0, 1, … until false. One call counts once,
 * for any number of tokens. */
FB_API bool fb_session_op_calls(const fb_session *session, int index, const char **name, int64_t *calls);

/* The same for each fuse, and the calls that a step must make: layers times calls per layer; 0 if the fuse is
 * not in the plan. `calls_per_head` of these belong to the final norm and the head, which run only in steps
 * whose logits are wanted: in a prefill, only in the last chunk. `graph` and `step` count once in each decode
 * step, and in no other step, and not in steps with on_hidden. */
FB_API bool fb_session_fuse_calls(const fb_session *session, int index, const char **name, int64_t *calls,
                                  int64_t *calls_per_step, int64_t *calls_per_head);

/* On the CPU, how often all threads waited for each other; on a GPU, the ops launched. Since the session was
 * created. */
FB_API int64_t fb_session_barriers(const fb_session *session);

/* The program after its fuses, printed as by fb_model_program_text. */
FB_API fb_status fb_session_plan_text(const fb_session *session, char **text, fb_error *err);

/* ---- drafts ---- */

/* Guesses of the next tokens, from something cheap. A step of a model reads all weights, for one token or for
 * eight. So guesses are checked together, in one step: each is kept if it is the token that would have been
 * chosen there, and the first one that is not ends the run. Tokens, logits and samples are those of decoding
 * one by one, to the bit; only the speed differs (docs/speculation.md). */
typedef struct fb_draft fb_draft;

#define FB_MAX_DRAFT 7 /* tokens that are guessed at once, at most */

/* Guesses up to `most` tokens after tokens [count], and returns how many. They may be wrong in any way. */
typedef int64_t (*fb_draft_fn)(void *user, const int32_t *tokens, int64_t count, int64_t most, int32_t *ids);

typedef struct fb_draft_options {
    size_t size;
    /* "ngram": what followed the last tokens where they were before; "q4": the model itself, with weights of
     * Q4_1, on a GPU Q4_0, and a head of Q8_0, which are made now, in memory; otherwise the path of a smaller
     * model with the same tokenizer. */
    const char *source;
    int64_t most;        /* tokens at once: 1 to FB_MAX_DRAFT, which is the default */
    int64_t fixed;       /* 1: always so many; 0: as many as are worth it, none included */
    fb_draft_fn propose; /* guesses instead of a source; NULL: none */
    void *user;
} fb_draft_options;

FB_API void fb_draft_options_init(fb_draft_options *options, size_t size);
static inline void fb_draft_options_default(fb_draft_options *options) {
    fb_draft_options_init(options, sizeof *options);
}

/* A draft for answers of `model`, which must outlive it. It must outlive the sessions and schedulers that
 * have it in their options; any number of them may share it, in any threads. */
FB_API fb_status fb_draft_create(const fb_model *model, const fb_draft_options *options, fb_draft **out,
                                 fb_error *err);
FB_API void fb_draft_free(fb_draft *draft);

/* What became of guesses. */
typedef struct fb_draft_stats {
    size_t size;
    int64_t steps, plain_steps; /* that chose tokens; of these, those that checked no guess */
    int64_t tokens;             /* chosen */
    int64_t drafted, kept;      /* guesses */
    /* By depth: guesses that were compared because all before them were right, and those that were right. */
    int64_t tried[FB_MAX_DRAFT], right[FB_MAX_DRAFT];
    double step_seconds, draft_seconds; /* of these steps, and of guessing */
} fb_draft_stats;

/* As fb_session_next, but it may append more tokens than `id`: the session's draft guesses what follows, and
 * guesses that are right are appended, too. ids [FB_MAX_DRAFT + 1] gets the *count tokens that were chosen,
 * at least 1 and at most `most`. The last one is not appended: it is the next call's `id`. A run ends with a
 * token that ends a text or a document of a schema.
 *
 * `sampler` NULL: the best tokens, as fb_session_best. Afterwards there are logits of *count tokens, as after
 * a prefill with all_logits, unless the session is greedy or a GPU selected candidates. A caller that does
 * not want the last n tokens trims the session by n. A session without a draft guesses nothing. */
FB_API fb_status fb_session_speculate(fb_session *session, int32_t id, fb_sampler *sampler, int64_t most,
                                      int32_t *ids, int64_t *count, fb_error *err);

/* Since the session was created; zeros without a draft. */
FB_API void fb_session_fill_draft(const fb_session *session, fb_draft_stats *stats);
static inline void fb_session_get_draft(const fb_session *session, fb_draft_stats *stats) {
    stats->size = sizeof *stats;
    fb_session_fill_draft(session, stats);
}

/* ---- schemas ---- */

/* What an answer must be: a JSON document that fits a JSON schema. Compiled for the vocabulary of one model.
 * Immutable, shared by any number of threads. docs/constrained.md says which keywords there are. */
typedef struct fb_schema fb_schema;

/* `schema` [bytes] is a JSON schema, at most 1 MiB; NULL: any JSON object. Refuses keywords that are not
 * supported and would change what is valid, and a schema that no document fits. The first one of a model
 * takes up to a second, because it sorts the vocabulary. */
FB_API fb_status fb_schema_create(const fb_model *model, const char *schema, size_t bytes, fb_schema **out,
                                  fb_error *err);
/* Samplers and requests that have the schema keep it as long as they need it. */
FB_API void fb_schema_free(fb_schema *schema);

/* ---- sampling ---- */

/* What is added to a token's logit. Frozen, as fb_error. */
typedef struct fb_logit_bias {
    int32_t id; /* 0 to vocab - 1 */
    float bias; /* -100 to 100, or -INFINITY: the token is never chosen */
} fb_logit_bias;

/* Applied in this order: schema, logit bias, repeat penalty, presence and frequency penalty, top-k,
 * temperature, top-p, min-p, one draw. At temperature 0 the highest score is taken after bias, presence and
 * frequency penalty; the other options have no effect. */
typedef struct fb_sampler_options {
    size_t size;
    float temperature; /* 0: take the highest score; at most 100 */
    float top_p;       /* keep the best tokens until their probabilities add up to p; 1: all */
    float min_p;       /* drop tokens less probable than p times the best; 0: none */
    /* Positive scores of recent tokens are divided by this, negative ones multiplied; 1: off. */
    float repeat_penalty;
    int64_t repeat_window; /* how many tokens count as recent, for all three penalties; the prompt's, too */
    int64_t top_k;         /* keep the k best; 0: all */
    uint64_t seed;
    uint64_t sequence; /* draws of different sequences are independent, also with one seed */
    /* [logit_bias_count], copied by fb_sampler_create. Several biases of one token add up. */
    const fb_logit_bias *logit_bias;
    int64_t logit_bias_count; /* 0 to vocab */
    /* Subtracted from the score of a recent token: once, and once for each time that it is recent. -2 to 2;
     * 0: off. */
    float presence_penalty, frequency_penalty;
    /* Tokens that do not continue a document of this schema are never chosen, and once it is complete only
     * the model's end tokens are. NULL: none. */
    const fb_schema *schema;
} fb_sampler_options;

FB_API void fb_sampler_options_init(fb_sampler_options *options, size_t size);
static inline void fb_sampler_options_default(fb_sampler_options *options) {
    fb_sampler_options_init(options, sizeof *options);
}

FB_API fb_status fb_sampler_create(const fb_sampler_options *options, int64_t vocab, fb_sampler **out,
                                   fb_error *err);
/* Tells the sampler about a token that it did not choose (a prompt's), for the penalties. */
FB_API void fb_sampler_accept(fb_sampler *sampler, int32_t id);
/* Chooses a token from logits [vocab] and accepts it. Fails if a logit is NaN or +inf, or if none is finite
 * that is not banned. */
FB_API fb_status fb_sampler_next(fb_sampler *sampler, const float *logits, int32_t *id, fb_error *err);

/* The next token chosen is number `number`; the first one of a sampler is 0. Every choice counts, also one at
 * temperature 0. With fb_sampler_accept for the tokens before it, a request that is computed again goes on as
 * it would have.
 *
 * A draw is a function of seed, sequence and number alone. With mix() the mixer of SplitMix64, G its constant
 * 0x9e3779b97f4a7c15, and all sums modulo 2^64, the random number of a draw is the upper 53 bits of
 * mix(seed + mix(sequence) + (number + 1) * G), over 2^53. mix(0) is 0: sequence 0 is SplitMix64 itself. */
FB_API void fb_sampler_seek(fb_sampler *sampler, uint64_t number);

/* A token and the natural logarithm of its probability. Frozen, as fb_error. */
typedef struct fb_logprob {
    double logprob;
    int32_t id;
} fb_logprob;

#define FB_MAX_LOGPROBS 20

/* Log-probabilities from logits [vocab] as the model gave them: the softmax over the whole vocabulary, before
 * bias, penalties and temperature. `logprob` gets that of `chosen`, top [count] the best tokens: the best
 * first, the lower id first among equals. `count` is 0 to FB_MAX_LOGPROBS, and at most vocab; with 0, `top`
 * may be NULL. Fails for the logits for which fb_sampler_next fails. */
FB_API fb_status fb_sampler_logprobs(const fb_sampler *sampler, const float *logits, int32_t chosen,
                                     double *logprob, fb_logprob *top, int64_t count, fb_error *err);

/* With a schema: whether the tokens chosen so far are a document that nothing can continue, so that the
 * answer has ended. Without one: false. */
FB_API bool fb_sampler_ended(const fb_sampler *sampler);
FB_API void fb_sampler_free(fb_sampler *sampler);

/* ---- fuses ---- */

/* A fuse, and what it does to a model. Fuses are applied in the order of their indices. A fuse does not apply
 * if an earlier one has taken its ops. */
typedef struct fb_fuse_info {
    size_t size;
    const char *name;
    const char *text;       /* what it combines */
    const char *bound;      /* how far it may differ from the plain ops; NULL: not at all */
    const char *backends;   /* backends that have it */
    const char *why_not;    /* why it does not apply to the model, even alone; NULL: it does */
    const char *taken_by;   /* the fuse that takes its ops when all are on; NULL if in_all, or why_not */
    bool in_all;            /* it applies when all are on */
    bool bit;               /* always bit-identical to the plain ops; false: within `bound`. With `exact` its
                               bit-identical variant is used, or it does not apply */
    bool greedy;            /* applies to greedy sessions only */
    int64_t calls_per_step; /* calls in a step when it is the only fuse */
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
