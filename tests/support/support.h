/* What all tests share. Everything here asserts: a helper that cannot do its work fails the running test.
 * What a function returns as `char *` or `void *` is released with free(), unless it says otherwise. Tests
 * run in the repository's root. */
#ifndef FB_TESTS_SUPPORT_H
#define FB_TESTS_SUPPORT_H

/* cmocka.h needs these before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "fusebox_tools.h"

/* ---- failures ------------------------------------------------------------------------------------------ */

/* A refusal: `status` is `expected`, and the message in `err` is one line that holds each of the `words`,
 * which are separated by '|'. */
#define assert_refused(status, expected, err, words)                                                         \
    fbt_check_refused(status, expected, err, words, __FILE__, __LINE__)
void fbt_check_refused(fb_status status, fb_status expected, const fb_error *err, const char *words,
                       const char *file, int line);

/* FB_OK, or the message in `err` is shown. */
#define assert_ok(status, err) fbt_check_ok(status, err, __FILE__, __LINE__)
void fbt_check_ok(fb_status status, const fb_error *err, const char *file, int line);

/* ---- files --------------------------------------------------------------------------------------------- */

#define FBT_GOLDENS     "tests/data/golden"
#define FBT_STORYTELLER "models/storyteller"

/* The five tiny checkpoints under FBT_GOLDENS, each with a golden.safetensors; NULL ends the list. */
extern const char *const fbt_cases[];

char *fbt_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A new directory under $TMPDIR or /tmp. Removing takes everything in it along, and frees the name. */
char *fbt_dir_create(void);
void fbt_dir_remove(char *dir);

/* A checkpoint, by its path, or by its name under FBT_GOLDENS. */
fb_model *fbt_model_open(const char *path);
fb_model *fbt_golden_open(const char *name);
/* The latter as if it had been trained on texts of `context` tokens. */
fb_model *fbt_golden_stretched(const char *name, int64_t context);

/* A new directory that holds a copy of one of the fbt_cases, for a test to damage. */
char *fbt_dir_from_golden(const char *name);

void fbt_file_write(const char *path, const void *bytes, size_t size);
void fbt_text_write(const char *path, const char *text);
/* The bytes, with a NUL after them. `size` may be NULL. */
void *fbt_file_read(const char *path, size_t *size);
void fbt_file_copy(const char *from, const char *to);

/* A JSON text with a member set to `json` or, if that is NULL, without it. A '.' in `key` goes one object
 * deeper. */
char *fbt_json_with(const char *text, const char *key, const char *json);
/* The same for every member of `changes`, where a null removes one that is there. No key has a '.'. */
char *fbt_json_merge(const char *text, const char *changes);
/* The same in a file. */
void fbt_json_set(const char *path, const char *key, const char *json);

/* ---- safetensors --------------------------------------------------------------------------------------- */

#define FBT_DIMS 8

typedef struct fbt_tensor {
    const char *name;
    const char *dtype; /* as in the file: "F16" */
    int dims;
    int64_t shape[FBT_DIMS];
    const void *bytes; /* NULL: zeros */
    size_t size;
} fbt_tensor;

/* A well-formed file as long as each tensor's size agrees with its shape; nothing is checked here. The data
 * lies in the order of the list. `metadata` is a JSON object, or NULL for none. */
void fbt_safetensors_write(const char *path, const fbt_tensor *tensors, size_t count, const char *metadata);

/* The bytes of a file with this header, its length in front, and `size` bytes of data (NULL: zeros). */
uint8_t *fbt_safetensors_bytes(const char *header, const void *data, size_t size, size_t *total);

/* ---- random numbers ------------------------------------------------------------------------------------ */

typedef struct fbt_random {
    uint64_t state;
} fbt_random;

/* Starts from `seed`, or from the environment's FUSEBOX_SEED, and prints which, so that a failing test's
 * output says how to repeat it. */
fbt_random fbt_random_start(uint64_t seed);
uint64_t fbt_random_bits(fbt_random *random);
int64_t fbt_random_below(fbt_random *random, int64_t limit);            /* 0 … limit - 1 */
double fbt_random_uniform(fbt_random *random, double low, double high); /* [low, high) */
/* `count` elements as blocks of a quantised type, of about this deviation; no special numbers. */
void fbt_random_blocks(fbt_random *random, fb_dtype dtype, int64_t count, double deviation, void *blocks);
double fbt_random_normal(fbt_random *random); /* mean 0, variance 1 */

/* ---- sanitizers ---------------------------------------------------------------------------------------- */

/* Whether this is a build with a sanitizer: gcc and clang say so in different words. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FBT_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FBT_SANITIZED 1
#endif
#endif
#ifndef FBT_SANITIZED
#define FBT_SANITIZED 0
#endif

/* Where a case takes ten times as long, one in `every` is enough: true for the others, in a build with a
 * sanitizer; else false. A prime number meets all of several nested loops. */
bool fbt_passes_over(int every);

/* The same in a build that an emulator runs (make test-arm), where floats take a hundred times as long. */
#ifndef FBT_EMULATED
#define FBT_EMULATED 0
#endif
bool fbt_emulated_passes_over(int every);

/* ---- guarded buffers ----------------------------------------------------------------------------------- */

/* A buffer between two bands of a known pattern. Its contents are 0xff bytes: NaN as F64, F32, F16 and BF16
 * alike, so that what a kernel does not write, and what it reads without a right to, shows. */
typedef struct fbt_guard {
    void *data;
    size_t size;
    uint8_t *memory;
} fbt_guard;

/* `data` lies `offset` bytes behind a 64-byte boundary: 0 for aligned, or less than 64 to be unaligned on
 * purpose. */
fbt_guard fbt_guard_create(size_t size, size_t offset);
bool fbt_guard_intact(const fbt_guard *guard);
/* Asserts that both bands are intact, and frees. */
void fbt_guard_free(fbt_guard *guard);

/* How many of the floats, aligned or not, are NaN: 0 after a kernel wrote them all. */
int64_t fbt_count_nan(const void *values, int64_t count);

/* ---- processes ----------------------------------------------------------------------------------------- */

typedef struct fbt_process {
    int status; /* of exit, or 128 + the signal */
    char *out, *err;
    size_t out_size, err_size;
} fbt_process;

/* Runs argv[0] (found in PATH), NULL-terminated, with `input` on its standard input (NULL: nothing). */
fbt_process fbt_process_run(const char *const argv[], const char *input);
void fbt_process_free(fbt_process *process);

#endif
