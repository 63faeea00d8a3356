/* The K best logits of each row, against a sort on the host. Outputs are poisoned before, and lie between
 * bands that must not change. Every launch runs twice, the second time as in a recorded step. */
#include "backend/cuda/candidates.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_harness.h"
#include "base/quant.h"
#include "text/sampler.h"

enum { BAND = 256, POISON = 0xa5 };

static struct {
    fb_gpu *gpu;
    fb_cuda_context cx;
    __typeof__(&fb_gpu_take) take;
    __typeof__(&fb_gpu_give) give;
    __typeof__(&fb_gpu_upload) upload;
    __typeof__(&fb_gpu_download) download;
    __typeof__(&fb_gpu_wait) wait;
    __typeof__(&fb_gpu_check) check;
    __typeof__(&fb_gpu_record_begin) record_begin;
    __typeof__(&fb_gpu_record_end) record_end;
    __typeof__(&fb_gpu_graph_launch) graph_launch;
    __typeof__(&fb_gpu_graph_free) graph_free;
    __typeof__(&fb_gpu_mark) mark;
    __typeof__(&fb_gpu_between) between;
    __typeof__(&fb_cuda_candidates) candidates;
    __typeof__(&fb_cuda_candidates_scratch) scratch;
} device;

#define FIND(member, name)                                                                                   \
    do {                                                                                                     \
        void *function = cuda_function(#name);                                                               \
        memcpy(&device.member, &function, sizeof function);                                                  \
    } while (0)

static int open_device(void **state) {
    (void)state;
    if (!cuda_is_there()) return 0;
    device.gpu = cuda_gpu(&device.cx);
    FIND(take, fb_gpu_take);
    FIND(give, fb_gpu_give);
    FIND(upload, fb_gpu_upload);
    FIND(download, fb_gpu_download);
    FIND(wait, fb_gpu_wait);
    FIND(check, fb_gpu_check);
    FIND(record_begin, fb_gpu_record_begin);
    FIND(record_end, fb_gpu_record_end);
    FIND(graph_launch, fb_gpu_graph_launch);
    FIND(graph_free, fb_gpu_graph_free);
    FIND(mark, fb_gpu_mark);
    FIND(between, fb_gpu_between);
    FIND(candidates, fb_cuda_candidates);
    FIND(scratch, fb_cuda_candidates_scratch);
    return 0;
}

static void must(fb_status status, const fb_error *err) {
    if (status != FB_OK) fail_msg("%s", err->message);
}

static void *zeros(int64_t count, size_t size) {
    void *memory = calloc((size_t)(count ? count : 1), size);
    assert_non_null(memory);
    return memory;
}

/* ---- buffers ---- */

/* Device memory with a band on either side, or, for compute-sanitizer, of exactly its size. */
typedef struct buffer {
    uint8_t *host, *base; /* with bands, what was uploaded; the device's */
    uint8_t *device;
    int64_t bytes, band, skew;
} buffer;

static buffer make(int64_t bytes, int64_t skew) {
    fb_error err;
    void *memory;
    buffer b = {.bytes = bytes, .band = getenv("FUSEBOX_KERNELS_APART") ? 0 : BAND, .skew = skew};
    must(device.take(device.gpu, "a test", bytes + skew + 2 * b.band, &memory, &err), &err);
    b.base = memory;
    b.device = b.base + b.band + skew;
    b.host = zeros(bytes + skew + 2 * b.band, 1);
    memset(b.host, POISON, (size_t)(bytes + skew + 2 * b.band));
    return b;
}

static uint8_t *inside(const buffer *b) { return b->host + b->band + b->skew; }

static void send(const buffer *b) {
    fb_error err;
    must(device.upload(device.gpu, b->base, b->host, b->bytes + b->skew + 2 * b->band, &err), &err);
    must(device.wait(device.gpu, &err), &err);
}

/* The buffer's bytes; its bands must be as they were. */
static uint8_t *fetch(const buffer *b) {
    fb_error err;
    int64_t all = b->bytes + b->skew + 2 * b->band, before = b->band + b->skew;
    uint8_t *now = zeros(all, 1);
    must(device.download(device.gpu, now, b->base, all, &err), &err);
    must(device.wait(device.gpu, &err), &err);
    assert_memory_equal(now, b->host, (size_t)before);
    assert_memory_equal(now + before + b->bytes, b->host + before + b->bytes, (size_t)b->band);
    memmove(now, now + before, (size_t)b->bytes);
    return now;
}

static void drop(buffer *b) {
    device.give(device.gpu, b->base);
    free(b->host);
}

/* ---- the obvious selection ---- */

static bool is_bad(float x) { return !(x < INFINITY); }

static int by_rank(const void *one, const void *other) {
    const fb_candidate *a = one, *b = other;
    if (is_bad(a->logit) != is_bad(b->logit)) return is_bad(a->logit) ? -1 : 1;
    if (!is_bad(a->logit) && a->logit != b->logit) return a->logit > b->logit ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

static bool same(const fb_candidate *a, const fb_candidate *b) {
    bool nan = isnan(a->logit) && isnan(b->logit);
    return a->id == b->id && (nan || memcmp(&a->logit, &b->logit, sizeof a->logit) == 0);
}

/* ---- cases ---- */

static uint32_t state32 = 1;
static uint32_t random32(void) { return (state32 = state32 * 1664525u + 1013904223u) >> 1; }
static double between(double low, double high) { return low + (high - low) * random32() / 2147483648.0; }

typedef enum content {
    RANDOM,
    FEW_VALUES,
    EQUAL,
    ZEROS,
    RULED_OUT,
    ALL_OUT,
    BAD,
    TOGETHER,
    CONTENTS
} content;
static const char *const content_names[] = {"random", "few values", "equal", "zeros",
                                            "-inf",   "all -inf",   "bad",   "together"};

static float logit_of(content what, int64_t i, int64_t vocab) {
    const float bad[] = {NAN, INFINITY, -NAN};
    double gauss = between(-1, 1) + between(-1, 1) + between(-1, 1) + between(-1, 1);
    switch (what) {
    case FEW_VALUES:
        return (float)(random32() % 7) - 3;
    case EQUAL:
        return -2.5f;
    case ZEROS:
        return random32() & 64 ? -0.0f : 0.0f;
    case RULED_OUT:
        return random32() % 50 ? -INFINITY : (float)gauss;
    case ALL_OUT:
        return -INFINITY;
    case BAD:
        return (int64_t)(random32() % (uint32_t)vocab) < 4 ? bad[random32() % 3] : (float)gauss;
    case TOGETHER: /* the best lie in a few groups of a kernel's thread */
        return i % 4096 < 96 ? 20 + (float)gauss : (float)gauss;
    default:
        return 5 * (float)gauss;
    }
}

static float stored(fb_dtype dtype, uint8_t *to, int64_t i, float x) {
    uint16_t bits = dtype == FB_F16 ? fb_f32_to_f16(x) : fb_f32_to_bf16(x);
    if (dtype == FB_F32)
        memcpy(to + 4 * i, &x, 4);
    else
        memcpy(to + 2 * i, &bits, 2);
    return dtype == FB_F32 ? x : dtype == FB_F16 ? fb_f16_to_f32(bits) : fb_bf16_to_f32(bits);
}

typedef struct shape {
    fb_dtype dtype;
    int64_t rows, vocab, gap, skew, count, room; /* gap: elements between rows; room: for ids, 0: none */
    content what;
} shape;

typedef struct trial {
    const shape *of;
    buffer logits, best, ids, id_count, gathered, scratch;
    float *values;           /* [rows, vocab] */
    fb_candidate *expected;  /* [rows, vocab], the best first */
    fb_cuda_selection given; /* to the kernel */
} trial;

static void make_logits(trial *r) {
    const shape *s = r->of;
    int64_t size = fb_dtype_size(s->dtype), stride = s->vocab + s->gap;
    r->logits = make(((s->rows - 1) * stride + s->vocab) * size, s->skew * size);
    r->values = zeros(s->rows * s->vocab, sizeof *r->values);
    r->expected = zeros(s->rows * s->vocab, sizeof *r->expected);
    memset(inside(&r->logits), 0xff, (size_t)r->logits.bytes); /* NaN, also between rows */
    for (int64_t row = 0; row < s->rows; row++) {
        fb_candidate *all = r->expected + row * s->vocab;
        for (int64_t i = 0; i < s->vocab; i++) {
            float x = stored(s->dtype, inside(&r->logits), row * stride + i, logit_of(s->what, i, s->vocab));
            r->values[row * s->vocab + i] = x;
            all[i] = (fb_candidate){x, (int32_t)i};
        }
        qsort(all, (size_t)s->vocab, sizeof *all, by_rank);
    }
}

static void make_ids(trial *r) {
    const shape *s = r->of;
    r->ids = make(s->rows * s->room * 4, 0);
    r->id_count = make(s->rows * 4, 0);
    r->gathered = make(s->rows * s->room * 8, 0);
    for (int64_t row = 0; row < s->rows; row++) {
        int32_t count = row % 3 == 0 ? (int32_t)s->room : (int32_t)(random32() % (uint32_t)(s->room + 1));
        memcpy(inside(&r->id_count) + 4 * row, &count, 4);
        for (int64_t i = 0; i < count; i++) {
            int32_t id = (int32_t)(random32() % (uint32_t)s->vocab);
            memcpy(inside(&r->ids) + 4 * (row * s->room + i), &id, 4);
        }
    }
}

static trial make_trial(const shape *s) {
    trial r = {.of = s};
    make_logits(&r);
    make_ids(&r);
    r.best = make(s->rows * s->count * 8, 0);
    r.scratch = make(device.scratch(s->rows, s->vocab), 0);
    memset(inside(&r.scratch), 0, FB_CUDA_COUNTERS);
    r.given = (fb_cuda_selection){.logits = r.logits.device,
                                  .dtype = s->dtype,
                                  .row_stride = s->vocab + s->gap,
                                  .rows = s->rows,
                                  .vocab = s->vocab,
                                  .count = s->count,
                                  .best = (fb_candidate *)(void *)r.best.device};
    if (s->room > 0) {
        r.given.ids = (const int32_t *)(const void *)r.ids.device;
        r.given.id_count = (const int32_t *)(const void *)r.id_count.device;
        r.given.ids_stride = s->room;
        r.given.gathered = (fb_candidate *)(void *)r.gathered.device;
    }
    return r;
}

static void free_trial(trial *r) {
    buffer *all[] = {&r->logits, &r->best, &r->ids, &r->id_count, &r->gathered, &r->scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) drop(all[i]);
    free(r->values);
    free(r->expected);
}

static void check_best(const trial *r, const fb_candidate *best) {
    const shape *s = r->of;
    for (int64_t row = 0; row < s->rows; row++)
        for (int64_t i = 0; i < s->count; i++) {
            const fb_candidate none = {-INFINITY, -1}, *got = &best[row * s->count + i],
                               *wanted = i < s->vocab ? &r->expected[row * s->vocab + i] : &none;
            if (!same(got, wanted))
                fail_msg("%s, %s, row %d of %d, vocab %d, best %d of %d: %g, id %d; expected %g, id %d",
                         fb_dtype_name(s->dtype), content_names[s->what], (int)row, (int)s->rows,
                         (int)s->vocab, (int)i, (int)s->count, (double)got->logit, got->id,
                         (double)wanted->logit, wanted->id);
        }
}

static void check_gathered(const trial *r, const uint8_t *gathered) {
    const shape *s = r->of;
    for (int64_t row = 0; row < s->rows && s->room; row++) {
        int32_t count, id;
        memcpy(&count, inside(&r->id_count) + 4 * row, 4);
        for (int64_t i = 0; i < s->room; i++) {
            int64_t at = row * s->room + i;
            fb_candidate got, wanted;
            memcpy(&id, inside(&r->ids) + 4 * at, 4);
            memcpy(&got, gathered + 8 * at, 8);
            memset(&wanted, POISON, sizeof wanted);
            if (i < count) wanted = (fb_candidate){r->values[row * s->vocab + id], id};
            if (!same(&got, &wanted)) fail_msg("row %d, id %d of %d: another logit", (int)row, (int)i, count);
        }
    }
}

static fb_cuda_context context_of(const trial *t) {
    fb_cuda_context cx = device.cx;
    cx.overlap = cx.limits->major >= 9;
    cx.scratch = t->scratch.device;
    cx.scratch_bytes = t->scratch.bytes;
    return cx;
}

static void send_all(const trial *t) {
    send(&t->logits), send(&t->best), send(&t->ids), send(&t->id_count), send(&t->gathered);
    send(&t->scratch);
}

static void run(const shape *s) {
    trial t = make_trial(s);
    for (int again = 0; again < 2; again++) {
        fb_error err;
        fb_cuda_context cx = context_of(&t);
        cx.overlap &= again;
        send_all(&t);
        must(device.check(device.candidates(&t.given, &cx), "candidates", &err), &err);
        must(device.wait(device.gpu, &err), &err);
        uint8_t *best = fetch(&t.best), *gathered = fetch(&t.gathered), *scratch = fetch(&t.scratch),
                *logits = fetch(&t.logits);
        check_best(&t, (const fb_candidate *)(const void *)best);
        check_gathered(&t, gathered);
        for (int i = 0; i < FB_CUDA_COUNTERS; i++) assert_int_equal(scratch[i], 0);
        assert_memory_equal(logits, inside(&t.logits), (size_t)t.logits.bytes);
        free(best), free(gathered), free(scratch), free(logits);
    }
    free_trial(&t);
}

static const fb_dtype dtypes[] = {FB_F16, FB_BF16, FB_F32};

/* All contents and dtypes, vocabularies of less than a group to several blocks. */
static void small_vocabularies(void **state) {
    (void)state;
    static const int64_t vocabs[] = {1, 7, 300, 1000, 20000}, counts[] = {1, 40, 256};
    for (int what = 0; what < CONTENTS; what++)
        for (int d = 0; d < 3; d++)
            for (int v = 0; v < 5; v++)
                for (int k = 0; k < 3; k++) {
                    if (vocabs[v] == 20000 && (what + d + k) % 3) continue;
                    run(&(shape){dtypes[d], 1 + (what + k) % 3, vocabs[v], (v + k) % 3, (k + 2 * d) % 5,
                                 counts[k], k * 9, (content)what});
                }
}

/* Every beginning of a row within 16 bytes. */
static void all_alignments(void **state) {
    (void)state;
    for (int skew = 0; skew < 8; skew++)
        run(&(shape){dtypes[skew % 3], 3, 700 + skew, skew % 4, skew, 33, 5, FEW_VALUES});
}

static void real_vocabularies(void **state) {
    (void)state;
    static const int64_t vocabs[] = {50257, 128256}, counts[] = {1, 40, 256};
    for (int k = 0; k < 3; k++) {
        run(&(shape){FB_F16, 2, vocabs[1], 0, 0, counts[k], 64, RANDOM});
        run(&(shape){dtypes[k], 1, vocabs[0], 0, 0, counts[k], 0, RANDOM});
        run(&(shape){FB_F16, 2, vocabs[0], 0, 0, counts[k], 100, k == 1 ? EQUAL : FEW_VALUES});
        run(&(shape){dtypes[k], 1, vocabs[1], 0, 0, 256, 0, k == 0 ? TOGETHER : k == 1 ? BAD : RULED_OUT});
    }
}

static void many_rows(void **state) {
    (void)state;
    run(&(shape){FB_F16, 64, 1500, 4, 0, 50, 30, RANDOM});
}

/* ---- in a graph ---- */

static fb_gpu_graph *record(const trial *t, int launches) {
    fb_error err;
    fb_gpu_graph *graph;
    const fb_cuda_context cx = context_of(t);
    must(device.record_begin(device.gpu, &err), &err);
    for (int i = 0; i < launches; i++)
        must(device.check(device.candidates(&t->given, &cx), "candidates", &err), &err);
    must(device.record_end(device.gpu, &graph, &err), &err);
    return graph;
}

/* A graph is recorded once; logits, ids and their number change. The sampler chooses from what it selects as
 * from all logits. */
static void a_sampler_of_each_row(void **state) {
    (void)state;
    enum { ROWS = 3, VOCAB = 4000, STEPS = 12 };
    const shape s = {FB_F16, ROWS, VOCAB, 0, 0, FB_CUDA_CANDIDATES, FB_CUDA_CANDIDATES, RANDOM};
    const fb_logit_bias bias[] = {{17, 9}, {3, -INFINITY}, {1000, -2}};
    fb_sampler *full[ROWS], *among[ROWS];
    fb_error err;
    trial first = make_trial(&s);
    for (int r = 0; r < ROWS; r++) {
        fb_sampler_options o;
        fb_sampler_options_default(&o);
        o.seed = (uint64_t)r;
        o.top_k = 1 + 80 * r;
        o.temperature = r ? 1.5f : 0;
        o.min_p = 0;
        o.logit_bias = bias;
        o.logit_bias_count = r == 1 ? 3 : 0;
        must(fb_sampler_create(&o, VOCAB, &full[r], &err), &err);
        must(fb_sampler_create(&o, VOCAB, &among[r], &err), &err);
    }
    send_all(&first);
    fb_gpu_graph *graph = record(&first, 1);
    for (int step = 0; step < STEPS; step++) {
        trial t = make_trial(&s);
        memcpy(inside(&first.logits), inside(&t.logits), (size_t)first.logits.bytes);
        for (int r = 0; r < ROWS; r++) {
            int32_t ids[FB_CUDA_CANDIDATES];
            int32_t count = (int32_t)fb_sampler_changed(among[r], ids, FB_CUDA_CANDIDATES);
            memcpy(inside(&first.ids) + (size_t)r * sizeof ids, ids, sizeof ids);
            memcpy(inside(&first.id_count) + 4 * r, &count, 4);
        }
        send(&first.logits), send(&first.ids), send(&first.id_count);
        must(device.graph_launch(device.gpu, graph, &err), &err);
        must(device.wait(device.gpu, &err), &err);
        uint8_t *best = fetch(&first.best), *gathered = fetch(&first.gathered);
        for (int r = 0; r < ROWS; r++) {
            int32_t count, got, wanted;
            size_t row = (size_t)r * FB_CUDA_CANDIDATES * sizeof(fb_candidate);
            memcpy(&count, inside(&first.id_count) + 4 * r, 4);
            must(fb_sampler_next(full[r], t.values + (int64_t)r * VOCAB, &wanted, &err), &err);
            must(fb_sampler_next_among(
                     among[r], (const fb_candidate *)(const void *)(best + row), FB_CUDA_CANDIDATES,
                     (const fb_candidate *)(const void *)(gathered + row), count, &got, &err),
                 &err);
            assert_int_equal(got, wanted);
        }
        free(best), free(gathered);
        free_trial(&t);
    }
    device.graph_free(graph);
    for (int r = 0; r < ROWS; r++) fb_sampler_free(full[r]), fb_sampler_free(among[r]);
    free_trial(&first);
}

/* Prints the time of one launch among many, on a GPU. */
static void times(void **state) {
    (void)state;
    enum { LAUNCHES = 200 };
    static const int64_t rows[] = {1, 8, 64}, counts[] = {40, FB_CUDA_CANDIDATES};
    if (cuda_is_emulated()) skip();
    for (int i = 0; i < 6; i++) {
        const shape s = {FB_F16, rows[i / 2], 128256, 0, 0, counts[i % 2], 64, RANDOM};
        trial t = make_trial(&s);
        fb_error err;
        double seconds;
        send_all(&t);
        fb_gpu_graph *graph = record(&t, LAUNCHES);
        for (int again = 0; again < 3; again++) {
            must(device.mark(device.gpu, 0, &err), &err);
            must(device.graph_launch(device.gpu, graph, &err), &err);
            must(device.mark(device.gpu, 1, &err), &err);
        }
        must(device.wait(device.gpu, &err), &err);
        must(device.between(device.gpu, 0, 1, &seconds, &err), &err);
        print_message("the best %d of %d rows of %d float16: %.2f us\n", (int)s.count, (int)s.rows,
                      (int)s.vocab, 1e6 * seconds / LAUNCHES);
        device.graph_free(graph);
        free_trial(&t);
    }
}

static void bad_arguments(void **state) {
    (void)state;
    const shape s = {FB_F16, 1, 100, 0, 0, 10, 0, RANDOM};
    trial t = make_trial(&s);
    const fb_cuda_context cx = context_of(&t);
#define REFUSE(member, value)                                                                                \
    do {                                                                                                     \
        fb_cuda_selection bad = t.given;                                                                     \
        bad.member = value;                                                                                  \
        assert_int_not_equal(device.candidates(&bad, &cx), 0);                                               \
    } while (0)
    REFUSE(count, 0);
    REFUSE(count, FB_CUDA_CANDIDATES + 1);
    REFUSE(rows, 0);
    REFUSE(rows, 16385);
    REFUSE(vocab, 0);
    REFUSE(vocab, (int64_t)1 << 31);
    REFUSE(dtype, FB_Q8_0);
    free_trial(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_vocabularies),
        cmocka_unit_test(all_alignments),
        cmocka_unit_test(real_vocabularies),
        cmocka_unit_test(many_rows),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(a_sampler_of_each_row),
        cmocka_unit_test(times),
    };
    return cuda_run_group("candidates", tests, sizeof tests / sizeof *tests, open_device);
}
