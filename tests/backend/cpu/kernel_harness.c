#include "kernel_harness.h"

#include "emulated.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const char *const kernel_family[FB_OP_COUNT] = {
#define X(KIND, family) [FB_OP_##KIND] = family,
    KERNEL_FAMILIES(X)
#undef X
};

const kernel_device *kernel_device_under_test;

static const fb_isa *isas(void) {
    return kernel_device_under_test ? kernel_device_under_test->isas : fb_isa_table;
}

#define MAX_ISAS 10
static int64_t checked[FB_OP_COUNT][MAX_ISAS];

/* ---- memory ---- */

static uint8_t canary(int64_t index) { return (uint8_t)(0x5a ^ (index % 61)); }

/* `slack` bytes lie between the end and the page that may not be touched. */
static fence fence_create(int64_t size, int64_t slack) {
    int64_t page = sysconf(_SC_PAGESIZE), inside = (size + slack + page) / page * page;
    fence f = {.size = size, .mapped = (size_t)(inside + 2 * page)};
    f.map = mmap(NULL, f.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f.map != MAP_FAILED);
    assert_int_equal(mprotect(f.map + page, (size_t)inside, PROT_READ | PROT_WRITE), 0);
    f.data = f.map + page + inside - slack - size;
    for (uint8_t *at = f.map + page; at < f.map + page + inside; at++) *at = canary(at - f.data);
    memset(f.data, 0xff, (size_t)size);
    return f;
}

static void fence_seal(const fence *f) {
    int64_t page = sysconf(_SC_PAGESIZE);
    assert_int_equal(mprotect(f->map + page, f->mapped - 2 * (size_t)page, PROT_READ), 0);
}

static bool fence_intact(const fence *f) {
    int64_t page = sysconf(_SC_PAGESIZE);
    for (const uint8_t *at = f->map + page; at < f->data; at++)
        if (*at != canary(at - f->data)) return false;
    for (const uint8_t *at = f->data + f->size; at < f->map + f->mapped - page; at++)
        if (*at != canary(at - f->data)) return false;
    return true;
}

static void fence_free(fence *f) {
    munmap(f->map, f->mapped);
    *f = (fence){0};
}

/* Bytes between the data and the guard page behind it. Aligned data begin at a multiple of 64, like the
 * engine's buffers. Skewed data do not, and end as close to the guard page as alignment allows: weights lie
 * at an odd address, activations at an address that is aligned for one element only. */
static int64_t slack_of(int64_t size, bool skewed, int64_t element) {
    int64_t aligned = (64 - size % 64) % 64;
    if (!skewed) return aligned;
    if (element == 1) return 1 - size % 2;
    return aligned ? 0 : element;
}

/* ---- making a rig ---- */

void rig_start(rig *r, fb_op_kind kind, fbt_random *random, bool skewed) {
    *r = (rig){.kind = kind, .random = random, .skewed = skewed, .call = {.rows = RIG_ROWS}};
}

int64_t rig_width(const fb_call *call, const fb_view *view, int64_t row) {
    return view->width ? view->width : call->row[row].position + 1;
}

fb_row *rig_rows(rig *r, int64_t first, spacing spaced) {
    assert_true(r->input_count < RIG_FENCES);
    fence *f = &r->inputs[r->input_count++];
    *f = fence_create(RIG_ROWS * (int64_t)sizeof(fb_row), 0);
    fb_row *row = (fb_row *)(void *)f->data;
    place_rows(row, RIG_ROWS, first, spaced);
    r->call.row = row;
    return row;
}

static fb_view lay_out(rig *r, fence *f, fb_dtype dtype, int64_t heads, int64_t width, gaps between,
                       int64_t capacity) {
    fb_view view = {.dtype = dtype, .heads = heads, .width = width};
    int64_t size = fb_dtype_size(dtype), columns = width ? width : capacity;
    view.head_stride = columns + between.head;
    view.row_stride = heads * view.head_stride + between.row;
    /* The last row ends with its last element: no memory may follow it. */
    int64_t bytes = ((RIG_ROWS - 1) * view.row_stride + (heads - 1) * view.head_stride + columns) * size;
    *f = fence_create(bytes, slack_of(bytes, r->skewed, size));
    view.data = f->data;
    return view;
}

fb_view rig_input(rig *r, fb_dtype dtype, int64_t heads, int64_t width, gaps between, int64_t capacity) {
    assert_true(r->input_count < RIG_FENCES);
    return lay_out(r, &r->inputs[r->input_count++], dtype, heads, width, between, capacity);
}

fb_view rig_output(rig *r, fb_dtype dtype, int64_t heads, int64_t width, gaps between, int64_t capacity) {
    assert_int_equal(r->output_count, 0);
    return lay_out(r, &r->outputs[r->output_count++], dtype, heads, width, between, capacity);
}

static double draw(fbt_random *random, double mean, double deviation) {
    double far = fbt_random_below(random, 64) == 0 ? 20 : 1;
    return mean + far * deviation * fbt_random_normal(random);
}

void rig_fill(rig *r, const fb_view *view, double mean, double deviation) {
    for (int64_t row = 0; row < RIG_ROWS; row++)
        for (int64_t head = 0; head < view->heads; head++)
            for (int64_t i = 0; i < rig_width(&r->call, view, row); i++)
                fb_dtype_set(view->dtype, fb_view_at(view, row, head), i, draw(r->random, mean, deviation));
}

fb_weight rig_weight(rig *r, fb_dtype dtype, int64_t rows, int64_t cols, double mean, double deviation) {
    assert_true(r->input_count < RIG_FENCES);
    int64_t bytes = fb_dtype_bytes(dtype, rows * cols);
    fence *f = &r->inputs[r->input_count++];
    *f = fence_create(bytes, slack_of(bytes, r->skewed, 1));
    if (fb_dtype_is_float(dtype))
        for (int64_t i = 0; i < rows * cols; i++)
            fb_dtype_set(dtype, f->data, i, draw(r->random, mean, deviation));
    else
        fbt_random_blocks(r->random, dtype, rows * cols, deviation, f->data);
    return (fb_weight){.data = f->data, .dtype = dtype, .rows = rows, .cols = cols};
}

fb_weight rig_packed(rig *r, fb_weight w) {
    assert_true(r->input_count < RIG_FENCES);
    int64_t bytes = fb_pack_bytes(w.dtype, w.rows, w.cols);
    fence *f = &r->inputs[r->input_count++];
    *f = fence_create(bytes, slack_of(bytes, r->skewed, 1));
    memset(f->data, 0, (size_t)bytes);
    for (int64_t row = 0; row < w.rows; row++)
        fb_pack_row(w.dtype, (const uint8_t *)w.data + row * fb_dtype_bytes(w.dtype, w.cols), w.cols, row,
                    f->data);
    return (fb_weight){.data = f->data, .dtype = w.dtype, .rows = w.rows, .cols = w.cols, .packed = true};
}

fb_view rig_quantized(rig *r, int64_t width) {
    fb_view view = rig_input(r, FB_F32, 1, fb_q8_floats(width), (gaps){0, 0}, 0);
    for (int64_t row = 0; row < RIG_ROWS; row++)
        for (int64_t b = 0; b < width / 32; b++) {
            fb_q8 *block = (fb_q8 *)fb_view_at(&view, row, 0) + b;
            *block = (fb_q8){.scale = (float)fabs(draw(r->random, 0, 0.01))};
            for (int i = 0; i < 32; i++) {
                block->q[i] = (int8_t)(fbt_random_below(r->random, 255) - 127);
                block->sum += block->q[i];
            }
        }
    return view;
}

fb_kv rig_cache(rig *r, fb_dtype dtype, int64_t heads, int64_t capacity, int64_t width, double deviation,
                bool output) {
    capacity = (capacity + FB_KV_GROUP - 1) / FB_KV_GROUP * FB_KV_GROUP;
    fb_kv kv = {
        .dtype = dtype, .heads = heads, .capacity = capacity, .width = width, .ring = r->call.kv.ring};
    int64_t bytes = heads * capacity * width * fb_dtype_size(dtype);
    fence *f[2];
    for (int i = 0; i < 2; i++) {
        f[i] = output ? &r->outputs[r->output_count++] : &r->inputs[r->input_count++];
        *f[i] = fence_create(bytes, 0);
    }
    kv.k = f[0]->data;
    kv.v = f[1]->data;
    for (int64_t head = 0; !output && head < heads; head++)
        for (int64_t position = 0; position < end_of_rows(&r->call); position++)
            for (int64_t i = 0; i < width; i++) {
                fb_dtype_set(dtype, fb_key_at(&kv, head, position), i * FB_KV_GROUP,
                             draw(r->random, 0, deviation));
                fb_dtype_set(dtype, fb_value_at(&kv, head, position), i, draw(r->random, 0, deviation));
            }
    return kv;
}

static void rig_end(rig *r) {
    for (int i = 0; i < r->input_count; i++) fence_free(&r->inputs[i]);
    for (int i = 0; i < r->output_count; i++) fence_free(&r->outputs[i]);
    fence_free(&r->scratch);
}

/* ---- running ---- */

static void fail_rig(const rig *r, const char *isa, const char *what) {
    fail_msg("%s, %s%s: %s: %s", isa, fb_op_table[r->kind].name, r->skewed ? ", skewed" : "", r->text, what);
}

/* The call for rows [first, first + rows). */
static fb_call slice(const fb_call *whole, int64_t first, int64_t rows) {
    fb_call call = *whole;
    call.rows = rows;
    if (call.row) call.row += first;
    for (int k = 0; k < FB_MAX_IN; k++)
        if (call.in[k].data) call.in[k].data = fb_view_at(&call.in[k], first, 0);
    for (int k = 0; k < FB_MAX_OUT; k++)
        if (call.out[k].data) call.out[k].data = fb_view_at(&call.out[k], first, 0);
    return call;
}

/* Fills the scratch with NaN. The middle of a linear's working memory is skipped if it is large: these shapes
 * do not reach it. */
static void poison_scratch(const rig *r) {
    int64_t begin = 64 << 10, end = FB_LINEAR_WORK * 4;
    if (r->scratch.size < end) begin = end = r->scratch.size;
    memset(r->scratch.data, 0xff, (size_t)begin);
    memset(r->scratch.data + end, 0xff, (size_t)(r->scratch.size - end));
}

/* Runs all workers one after the other, the last one first: a worker that needs another's result finds NaN.
 */
static void run_workers(const rig *r, const fb_isa *isa, const fb_call *call, int32_t workers) {
    for (int32_t worker = workers - 1; worker >= 0; worker--) {
        poison_scratch(r);
        isa->kernels[r->kind](
            call,
            &(fb_worker){.index = worker, .count = workers, .scratch = (float *)(void *)r->scratch.data});
    }
    if (!fence_intact(&r->scratch)) fail_rig(r, isa->name, "wrote outside its scratch");
    for (int i = 0; i < r->output_count; i++)
        if (!fence_intact(&r->outputs[i])) fail_rig(r, isa->name, "wrote outside its output");
}

static void poison_outputs(const rig *r) {
    for (int i = 0; i < r->output_count; i++) memset(r->outputs[i].data, 0xff, (size_t)r->outputs[i].size);
}

static fb_dtype output_dtype(const rig *r) {
    return r->kind == FB_OP_KV_APPEND ? r->call.kv.dtype : r->call.out[0].dtype;
}

static int64_t output_heads(const rig *r) {
    return r->kind == FB_OP_KV_APPEND ? r->call.kv.heads : r->call.out[0].heads;
}

/* Elements of a row of a head of the output. */
static int64_t output_width(const rig *r, int64_t row) {
    return r->kind == FB_OP_KV_APPEND ? r->call.kv.width : rig_width(&r->call, &r->call.out[0], row);
}

/* Which element of output number o is element i of a row and head. */
static int64_t place(const rig *r, int o, int64_t row, int64_t head, int64_t i) {
    const fb_view *out = &r->call.out[0];
    const fb_kv *kv = &r->call.kv;
    if (r->kind != FB_OP_KV_APPEND) return row * out->row_stride + head * out->head_stride + i;
    int64_t slot = fb_ring_slot(&kv->ring, r->call.row[row].position);
    const uint8_t *at = o ? fb_value_at(kv, head, slot) : fb_key_at(kv, head, slot);
    return (at - r->outputs[o].data) / fb_dtype_size(kv->dtype) + i * (o ? 1 : FB_KV_GROUP);
}

/* The outputs hold the rows [first, first + rows) of `images`, and poison everywhere else. */
static bool outputs_are(const rig *r, uint8_t *const images[2], int64_t first, int64_t rows) {
    int64_t size = fb_dtype_size(output_dtype(r));
    bool same = true;
    for (int o = 0; o < r->output_count && same; o++) {
        const fence *f = &r->outputs[o];
        uint8_t *want = malloc((size_t)f->size);
        assert_non_null(want);
        memset(want, 0xff, (size_t)f->size);
        for (int64_t row = first; row < first + rows; row++)
            for (int64_t head = 0; head < output_heads(r); head++) {
                for (int64_t i = 0; i < output_width(r, row); i++) {
                    int64_t at = place(r, o, row, head, i) * size;
                    memcpy(want + at, images[o] + at, (size_t)size);
                }
            }
        same = memcmp(want, f->data, (size_t)f->size) == 0;
        free(want);
    }
    return same;
}

/* ---- accuracy ---- */

/* Half the distance between neighbours of `dtype` at x. */
static double half_ulp(fb_dtype dtype, double x) {
    int mantissa = dtype == FB_F32 ? 23 : dtype == FB_F16 ? 10 : 7, least = dtype == FB_F16 ? -14 : -126;
    int exponent = x == 0 ? least : ilogb(x);
    return ldexp(0.5, (exponent < least ? least : exponent) - mantissa);
}

typedef struct sums {
    double largest;       /* |truth| */
    double naive, naive2; /* the naive loop's largest error, and the sum of its squares */
    double error2, rounding2;
} sums;

/* How far the naive loop may be from ref, relative to the largest element; it loses tails to cancellation.
 * Both compute the same thing. Without this check, a wrong reference would excuse a wrong kernel. */
#define AGREES 1e-3
#define LOST   1e-6

/* `truth` and `naive` lie as the output does, in float64 and float32. */
static void gather(const rig *r, int64_t row, int64_t head, const double *truth, const float *naive,
                   sums *s) {
    int64_t at = place(r, 0, row, head, 0), count = output_width(r, row);
    for (int64_t i = at; i < at + count; i++) {
        double error = fabs((double)naive[i] - truth[i]);
        if (!isfinite(truth[i]) || !isfinite(error))
            fail_rig(r, "ref", "not finite: the test's data are wrong");
        s->largest = fmax(s->largest, fabs(truth[i]));
        s->naive = fmax(s->naive, error);
        s->naive2 += error * error;
        double rounding = half_ulp(FB_F32, truth[i]);
        s->rounding2 += rounding * rounding;
    }
}

static void judge_part(const rig *r, const char *isa, int64_t row, int64_t head, const double *truth,
                       sums *s) {
    fb_dtype dtype = output_dtype(r);
    int64_t at = place(r, 0, row, head, 0), count = output_width(r, row);
    for (int64_t i = 0; i < count; i++) {
        double have = fb_dtype_get(dtype, r->outputs[0].data, at + i), error = fabs(have - truth[at + i]);
        double limit = 2 * s->naive + 2 * half_ulp(FB_F32, s->largest);
        if (dtype != FB_F32) {
            double rounding = half_ulp(dtype, truth[at + i]);
            limit += rounding;
            s->rounding2 += rounding * rounding;
        }
        s->error2 += error * error;
        if (error <= limit) continue;
        char text[160];
        snprintf(text, sizeof text,
                 "row %lld head %lld element %lld: %.9g, should be %.9g: off by %.3g (limit %.3g)",
                 (long long)row, (long long)head, (long long)i, have, truth[at + i], error, limit);
        fail_rig(r, isa, text);
    }
}

static void judge_rows(const rig *r, const char *isa, int64_t begin, int64_t end, const double *truth,
                       const float *naive) {
    sums s = {0};
    for (int64_t row = begin; row < end; row++)
        for (int64_t head = 0; head < output_heads(r); head++) gather(r, row, head, truth, naive, &s);
    if (!(s.naive <= (r->naive_is_near ? r->naive_is_near : AGREES) * s.largest + LOST))
        fail_rig(r, "ref", "the naive loop gives something else");
    for (int64_t row = begin; row < end; row++)
        for (int64_t head = 0; head < output_heads(r); head++) judge_part(r, isa, row, head, truth, &s);
    if (!(sqrt(s.error2) <= 2 * sqrt(s.naive2) + sqrt(s.rounding2)))
        fail_rig(r, isa, "the error's norm is more than twice the naive loop's");
}

/* All rows are compared together, because the naive error of a single row is a matter of luck. */
static void judge(const rig *r, const char *isa, const double *truth, const float *naive) {
    int64_t together = r->row_by_row ? 1 : RIG_ROWS;
    for (int64_t row = 0; row < RIG_ROWS; row += together)
        judge_rows(r, isa, row, row + together, truth, naive);
}

/* What the whole call should give: for an exact op the outputs of ref, otherwise the truth and the naive
 * loop's result. */
typedef struct expectation {
    uint8_t *images[2];
    double *truth;
    float *naive;
} expectation;

static void keep_images(const rig *r, expectation *e) {
    for (int i = 0; i < r->output_count; i++) {
        e->images[i] = realloc(e->images[i], (size_t)r->outputs[i].size);
        assert_non_null(e->images[i]);
        memcpy(e->images[i], r->outputs[i].data, (size_t)r->outputs[i].size);
    }
}

static void expect(const rig *r, expectation *e) {
    const fb_isa *ref;
    fb_error err;
    assert_ok(fb_isa_find("ref", &ref, &err), &err);
    *e = (expectation){0};
    if (r->exact) {
        poison_outputs(r);
        run_workers(r, ref, &r->call, 1);
        keep_images(r, e);
        return;
    }
    size_t elements = (size_t)(r->outputs[0].size / fb_dtype_size(output_dtype(r)));
    e->truth = calloc(elements, sizeof *e->truth);
    e->naive = calloc(elements, sizeof *e->naive);
    assert_true(e->truth && e->naive);
    fb_call call = r->call;
    call.out[0].dtype = FB_F64;
    call.out[0].data = e->truth;
    run_workers(r, ref, &call, 1);
    call.out[0].dtype = FB_F32;
    call.out[0].data = e->naive;
    r->naive(&call);
}

/* ---- checking ---- */

static void check_slice(const rig *r, const fb_isa *isa, int64_t first, int64_t rows, int32_t workers,
                        const expectation *e) {
    fb_call call = slice(&r->call, first, rows);
    poison_outputs(r);
    run_workers(r, isa, &call, workers);
    char text[128];
    snprintf(text, sizeof text,
             "rows %lld to %lld on %d workers differ from the whole, or something else was written",
             (long long)first, (long long)(first + rows - 1), workers);
    if (!outputs_are(r, e->images, first, rows)) fail_rig(r, isa->name, text);
}

/* An elementwise op over its input number `k`. */
static void check_in_place(const rig *r, const fb_isa *isa, int k, int32_t workers, const expectation *e) {
    fb_call call = r->call;
    int64_t size = fb_dtype_size(call.in[k].dtype);
    poison_outputs(r);
    for (int64_t row = 0; row < RIG_ROWS; row++)
        for (int64_t head = 0; head < call.out[0].heads; head++)
            memcpy(fb_view_at(&call.out[0], row, head), fb_view_at(&call.in[k], row, head),
                   (size_t)(rig_width(&r->call, &call.in[k], row) * size));
    call.in[k] = call.out[0];
    run_workers(r, isa, &call, workers);
    if (!outputs_are(r, e->images, 0, RIG_ROWS))
        fail_rig(r, isa->name, "in place, the result is another one");
}

/* Rows [first, first + rows) of a device: near the truth, nothing else written, and the same bits in place.
 */
static void check_device_rows(const rig *r, const fb_isa *isa, int64_t first, int64_t rows, expectation *e) {
    fb_call call = slice(&r->call, first, rows);
    poison_outputs(r);
    run_workers(r, isa, &call, 1);
    if (!r->exact) {
        sums s = {0};
        for (int64_t row = 0; row < RIG_ROWS; row++)
            for (int64_t head = 0; head < output_heads(r) && (!r->row_by_row || row == first); head++)
                gather(r, row, head, e->truth, e->naive, &s);
        for (int64_t row = first; row < first + rows; row++)
            for (int64_t head = 0; head < output_heads(r); head++)
                judge_part(r, isa->name, row, head, e->truth, &s);
        keep_images(r, e);
    }
    if (!outputs_are(r, e->images, first, rows)) fail_rig(r, isa->name, "something else was written");
}

static void check_device(const rig *r, const fb_isa *isa, expectation *e) {
    static const int64_t some_rows[] = {1, 2, 5, 8, 9};
    enum { COUNTS = sizeof some_rows / sizeof *some_rows };
    static size_t turn;
    turn++;
    for (size_t i = 0; i < COUNTS; i++)
        if (kernel_device_under_test->all_rows || turn % COUNTS == i)
            check_device_rows(r, isa, (RIG_ROWS - some_rows[i]) / 2, r->row_by_row ? 1 : some_rows[i], e);
    poison_outputs(r);
    run_workers(r, isa, &r->call, 1);
    if (!r->exact) {
        judge(r, isa->name, e->truth, e->naive);
        keep_images(r, e);
    }
    if (!outputs_are(r, e->images, 0, RIG_ROWS)) fail_rig(r, isa->name, "something else was written");
    if (fb_op_table[r->kind].parts == FB_PARTS_ELEMENT)
        for (int k = 0; k < fb_op_table[r->kind].inputs; k++)
            if (kernel_device_under_test->all_rows || turn % 2 == (size_t)k) check_in_place(r, isa, k, 1, e);
}

static void check_isa(const rig *r, const fb_isa *isa, expectation *e) {
    static const int64_t some_rows[] = {1, 2, 3, 4, 5, 6, 7, 13, 16, RIG_ROWS};
    static const int32_t some_workers[] = {1, 2, 3, 5};
    if (!r->exact) {
        poison_outputs(r);
        run_workers(r, isa, &r->call, 1);
        judge(r, isa->name, e->truth, e->naive);
        keep_images(r, e);
    }
    for (size_t i = 0; i < sizeof some_rows / sizeof *some_rows; i++)
        for (size_t j = 0; j < sizeof some_workers / sizeof *some_workers; j++)
            if (!fbt_emulated_passes_over(7))
                check_slice(r, isa, (RIG_ROWS - some_rows[i]) / 2, some_rows[i], some_workers[j], e);
    for (int64_t row = 0; row < RIG_ROWS; row += 5) check_slice(r, isa, row, 1, 1, e);
    if (fb_op_table[r->kind].parts == FB_PARTS_ELEMENT)
        for (int k = 0; k < fb_op_table[r->kind].inputs; k++)
            for (int32_t workers = 1; workers <= 3; workers += 2) check_in_place(r, isa, k, workers, e);
}

void rig_check(rig *r) {
    static int64_t rigs, turns[FB_OP_COUNT][MAX_ISAS];
    const bool integers = r->kind == FB_OP_LINEAR && r->call.attr.segment[0].dot != FB_DOT_FLOAT;
    const kernel_device *device = kernel_device_under_test;
    assert_true(r->exact != (r->naive != NULL) && r->output_count > 0);
    if (device && (!device->has(r) || rigs++ % device->every)) {
        rig_end(r);
        return;
    }
    for (int i = 0; i < r->input_count; i++) fence_seal(&r->inputs[i]);
    r->scratch = fence_create((r->scratch_floats + 15) / 16 * 64, 0);
    expectation e;
    expect(r, &e);
    for (int i = 0; isas()[i].name; i++) {
        if (!isas()[i].available() || strcmp(isas()[i].name, "ref") == 0) continue;
        if (!integers && emulated_again(&isas()[i], &turns[r->kind][i])) continue;
        if (device)
            check_device(r, &isas()[i], &e);
        else
            check_isa(r, &isas()[i], &e);
        checked[r->kind][i]++;
    }
    for (int i = 0; i < r->output_count; i++) free(e.images[i]);
    free(e.truth);
    free(e.naive);
    rig_end(r);
}

static void family_is_covered(void **state) {
    for (int kind = 0; kind < FB_OP_COUNT; kind++)
        for (int i = 0; isas()[i].name; i++) {
            assert_true(i < MAX_ISAS);
            if (!kernel_family[kind] || strcmp(kernel_family[kind], *state) != 0) continue;
            if (!isas()[i].available() || strcmp(isas()[i].name, "ref") == 0) continue;
            if (!checked[kind][i])
                fail_msg("%s was not checked on %s", fb_op_table[kind].name, isas()[i].name);
        }
}

int kernel_run_family(const char *family, const struct CMUnitTest *tests, size_t count) {
    struct CMUnitTest *all = calloc(count + 1, sizeof *all);
    if (!all) return 1;
    memcpy(all, tests, count * sizeof *all);
    all[count] = (struct CMUnitTest){"every op of the family was checked", family_is_covered, NULL, NULL,
                                     (void *)(uintptr_t)family};
    int failed = _cmocka_run_group_tests(family, all, count + 1, NULL, NULL);
    free(all);
    return failed;
}
