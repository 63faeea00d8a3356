/* What the files of gpu_ops share: the library under test, its device, tensors on it, and cases. */
#ifndef FB_BENCH_GPU_OPS_H
#define FB_BENCH_GPU_OPS_H

#include "backend/cuda/gpu.h"
#include "base/quant.h"

#define MOST_STEPS 4

/* ---- device.c: the library, the device, numbers ----------------------------------------------------------
 */

#define FUNCTIONS(X)                                                                                         \
    X(fb_gpu_describe)                                                                                       \
    X(fb_gpu_open)                                                                                           \
    X(fb_gpu_close)                                                                                          \
    X(fb_gpu_context)                                                                                        \
    X(fb_gpu_take)                                                                                           \
    X(fb_gpu_give)                                                                                           \
    X(fb_gpu_take_host)                                                                                      \
    X(fb_gpu_give_host)                                                                                      \
    X(fb_gpu_upload)                                                                                         \
    X(fb_gpu_download)                                                                                       \
    X(fb_gpu_zero)                                                                                           \
    X(fb_gpu_wait)                                                                                           \
    X(fb_gpu_record_begin)                                                                                   \
    X(fb_gpu_record_end)                                                                                     \
    X(fb_gpu_graph_launch)                                                                                   \
    X(fb_gpu_graph_free)                                                                                     \
    X(fb_gpu_mark)                                                                                           \
    X(fb_gpu_between)                                                                                        \
    X(fb_gpu_check)                                                                                          \
    X(fb_cuda_linear_scratch)                                                                                \
    X(fb_cuda_attention_scratch)

typedef struct cuda_library {
    const fb_cuda_launch *launches;
#define X(name) __typeof__(&name) name;
    FUNCTIONS(X)
#undef X
} cuda_library;
extern cuda_library cuda;

typedef struct bench_state {
    bool tiny, json;
    const char *only;
    fb_gpu *gpu;
    fb_gpu_info info;
    fb_cuda_context cx;
    uint8_t *arena; /* on the device; each case begins anew */
    int64_t arena_bytes, used;
    const fb_row *row; /* of the case: [m], on the device */
    int64_t start;     /* where in the block the next tensor's numbers begin */
    double read_rate, copy_rate, matmul_rate;
    int32_t printed, wrong;
} bench_state;
extern bench_state bench;

/* Ends the program. */
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* Ends it unless that went well. */
void must(fb_status status, const fb_error *err);

static inline int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

void open_device(void);
void close_device(void);

/* [rows, cols] on the device. */
typedef struct tensor {
    uint8_t *at;
    fb_dtype dtype;
    int64_t rows, cols;
    int64_t start; /* its first number in the block; of quantised ones: byte, and scale */
} tensor;

int64_t tensor_bytes(const tensor *t);
/* Memory of the device, until the next case. */
uint8_t *take(int64_t bytes);
void upload(uint8_t *to, const void *from, int64_t bytes);
tensor take_tensor(fb_dtype dtype, int64_t rows, int64_t cols);
tensor take_random(fb_dtype dtype, int64_t rows, int64_t cols);
/* A number of a random float16 tensor; a row of any random one, as the host computes with it. */
double half_at(const tensor *t, int64_t index);
void read_row(const tensor *t, int64_t row, double *to);
/* Row `row` of what the device wrote. */
void fetch_row(const tensor *t, int64_t row, double *to);
double *doubles(int64_t count);

/* ---- cases.c: what is timed ------------------------------------------------------------------------------
 */

typedef enum family { MAPS, LINEARS, ATTENTION } family;

/* How linears are launched: as one linear_group; each alone (and, where they are multiplied, swiglu after
 * them); the same with one quantize before them; the first with its act as a group, the second alone, then
 * mul; head_argmax. */
typedef enum way { GROUP, ALONE, QUANTIZED, PRODUCT, HEAD } way;

typedef struct spec {
    const char *name;
    family family;
    double *ceiling; /* of the bench, that this case measures, or NULL */
    int64_t m;
    /* MAPS: m rows of n[0]. */
    fb_op_kind op;
    int32_t terms, norms;
    /* LINEARS */
    way way;
    int32_t segments;
    int64_t n[FB_MAX_SEGMENTS], k[FB_MAX_SEGMENTS];
    fb_dtype weight;
    fb_op_kind norm, act[FB_MAX_SEGMENTS];
    fb_combine combine;
    bool bias, same_x; /* same_x: all segments read the same */
    /* ATTENTION */
    int64_t heads, kv_heads, width, position, capacity;
} spec;

/* All cases, in order; those that measure the ceilings first, which each fill one rate of the bench. */
int make_cases(const spec **cases);

/* ---- sets.c: data and launches of a case -----------------------------------------------------------------
 */

/* One set of a case's data, and its launches. */
typedef struct set {
    int32_t count;
    struct {
        fb_op_kind kind;
        fb_call call;
    } step[MOST_STEPS];
    tensor x[FB_MAX_IN], w[FB_MAX_SEGMENTS], bias[FB_MAX_SEGMENTS], norm_w[FB_MAX_SEGMENTS],
        norm_b[FB_MAX_SEGMENTS];
    tensor out[FB_MAX_OUT], keys, values;
    int64_t bytes; /* that the case must read and write */
} set;

void make_set(const spec *c, set *s);
double flops_of(const spec *c);
fb_op_kind norm_of(const spec *c);
fb_dot dot_of(const spec *c);
double scale_of(const spec *c);

/* ---- check.c ---------------------------------------------------------------------------------------------
 */

/* The largest error of a set's results, relative to what the host computes in float64; NaN where one is none.
 */
double check(const spec *c, const set *s);
double tolerance_of(const spec *c);

#endif
