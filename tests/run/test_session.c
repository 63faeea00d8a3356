/* A session gives one answer, however its tokens are divided into calls, on any number of threads, every
 * time. */
#include <malloc.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/host/isa.h"
#include "model/model.h"
#include "support/support.h"

enum { TOKENS = 24 };

static const fb_dtype acts[] = {FB_F32, FB_F16, FB_BF16};
static const char *const caches[] = {"auto", "f32", "bf16"};

static const int32_t *some_ids(void) {
    static int32_t ids[TOKENS];
    fbt_random random = {31};
    for (int i = 0; i < TOKENS; i++) ids[i] = (int32_t)fbt_random_below(&random, 320);
    return ids;
}

static fb_session *create(const fb_model *model, const fb_session_options *options) {
    fb_session *session;
    fb_error err;
    assert_ok(fb_session_create(model, options, &session, &err), &err);
    return session;
}

static int64_t vocab_of(const fb_model *model) {
    fb_model_info info;
    fb_model_get_info(model, &info);
    return info.vocab;
}

/* Appends the tokens [position, position + count), and puts their logits (or the last one's) where they
 * belong. */
static void feed(fb_session *session, int64_t count, bool all, float *logits) {
    fb_error err;
    const float *have;
    int64_t rows, vocab, position = fb_session_position(session);
    assert_ok(fb_session_prefill(session, some_ids() + position, count, &err), &err);
    assert_ok(fb_session_logits(session, &have, &rows, &vocab, &err), &err);
    assert_int_equal(rows, all ? count : 1);
    assert_int_equal(fb_session_position(session), position + count);
    memcpy(logits + (position + count - rows) * vocab, have, (size_t)(rows * vocab) * sizeof *have);
}

/* The logits [TOKENS, vocab] of a new session, with the tokens fed `piece` at a time. */
static float *logits_of(const fb_model *model, fb_session_options options, int64_t piece) {
    options.all_logits = true;
    fb_session *session = create(model, &options);
    float *logits = calloc((size_t)(TOKENS * vocab_of(model)), sizeof *logits);
    assert_non_null(logits);
    for (int64_t done = 0; done < TOKENS; done += piece)
        feed(session, TOKENS - done < piece ? TOKENS - done : piece, true, logits);
    fb_session_free(session);
    return logits;
}

static void assert_same(const fb_model *model, const float *a, float *b, const char *what) {
    if (memcmp(a, b, (size_t)(TOKENS * vocab_of(model)) * sizeof *a)) fail_msg("%s: the logits differ", what);
    free(b);
}

/* ---- identity ---- */

static void check_threads(const fb_model *model, const fb_session_options *base, const float *logits) {
    for (int32_t threads = 1; threads <= 4; threads++) {
        fb_session_options options = *base;
        options.threads = threads;
        assert_same(model, logits, logits_of(model, options, TOKENS), "in one go, by threads");
        assert_same(model, logits, logits_of(model, options, 5), "five at a time, by threads");
    }
}

static void check_pieces(const fb_model *model, const fb_session_options *base, const float *logits) {
    static const int64_t pieces[] = {1, 5, 7};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        fb_session_options options = *base;
        assert_same(model, logits, logits_of(model, options, pieces[i]), "several calls");
        options.chunk = pieces[i];
        assert_same(model, logits, logits_of(model, options, TOKENS), "several chunks");
        assert_same(model, logits, logits_of(model, options, 3), "calls and chunks");
        options.capacity = TOKENS;
        assert_same(model, logits, logits_of(model, options, TOKENS), "a full cache");
    }
}

/* Token by token through fb_session_decode, without `all_logits`, as a user's run is; then again after a
 * reset. */
static void check_decode(const fb_model *model, const fb_session_options *options, const float *logits) {
    int64_t vocab = vocab_of(model);
    fb_session *session = create(model, options);
    for (int round = 0; round < 2; round++) {
        float *mine = calloc((size_t)(TOKENS * vocab), sizeof *mine);
        assert_non_null(mine);
        feed(session, 1, false, mine);
        for (int64_t i = 1; i < TOKENS; i++) {
            fb_error err;
            const float *have;
            assert_ok(fb_session_decode(session, some_ids()[i], &err), &err);
            assert_ok(fb_session_logits(session, &have, NULL, NULL, &err), &err);
            memcpy(mine + i * vocab, have, (size_t)vocab * sizeof *have);
        }
        assert_same(model, logits, mine, round ? "after a reset" : "token by token");
        fb_session_reset(session);
        assert_int_equal(fb_session_position(session), 0);
    }
    fb_session_free(session);
}

/* Quantised weights: several threads prepare the inputs of many rows together, one thread alone, and of few
 * rows each its own. */
static void quantised_inputs(void **state) {
    (void)state;
    fb_model *model = fbt_model_open("tests/data/gguf/neox-parallel-q8_0.gguf");
    fb_session_options options;
    fb_session_options_default(&options);
    options.threads = 1;
    options.fuse = "all";
    float *logits = logits_of(model, options, TOKENS);
    assert_int_equal(fbt_count_nan(logits, TOKENS * vocab_of(model)), 0);
    check_threads(model, &options, logits);
    options.threads = 3;
    check_pieces(model, &options, logits);
    check_decode(model, &options, logits);
    free(logits);
    fb_model_free(model);
}

static void one_answer(void **state) {
    fb_model *model = fbt_golden_open(*state);
    for (const fb_isa *isa = fb_isa_table; isa->name; isa++)
        for (size_t a = 0; a < sizeof acts / sizeof *acts + 2; a++) {
            /* Each activation dtype with its own cache, then float32 with the others. */
            fb_dtype act = a < 3 ? acts[a] : FB_F32;
            const char *kv = a < 3 ? "auto" : caches[a - 2];
            if (!isa->available() || (a > 0 && strcmp(isa->name, "ref") == 0)) continue;
            fb_session_options options;
            fb_session_options_default(&options);
            options.threads = 1;
            options.isa = isa->name;
            options.act = act;
            options.kv = kv;
            print_message("# %s, %s, cache %s\n", isa->name, fb_dtype_name(act), kv);
            float *logits = logits_of(model, options, TOKENS);
            assert_int_equal(fbt_count_nan(logits, TOKENS * vocab_of(model)), 0);
            assert_same(model, logits, logits_of(model, options, TOKENS), "a second run");
            check_threads(model, &options, logits);
            check_pieces(model, &options, logits);
            check_decode(model, &options, logits);
            free(logits);
        }
    fb_model_free(model);
}

/* The cache is what the option says, and nothing else is: "auto" is f16 under float32; another cache is
 * another answer, near the unrounded one. */
static void cache_dtypes(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("llama-gqa-tied");
    int64_t count = TOKENS * vocab_of(model);
    fb_session_options options;
    fb_session_options_default(&options);
    options.kv = "f32";
    float *exact = logits_of(model, options, TOKENS);
    options.kv = "act";
    assert_same(model, exact, logits_of(model, options, TOKENS), "act is f32");
    options.kv = "f16";
    float *half = logits_of(model, options, TOKENS);
    options.kv = NULL;
    assert_same(model, half, logits_of(model, options, TOKENS), "auto is f16");
    options.kv = "bf16";
    float *brain = logits_of(model, options, TOKENS);
    double errors[2] = {0}, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        errors[0] += pow((double)half[i] - (double)exact[i], 2);
        errors[1] += pow((double)brain[i] - (double)exact[i], 2);
        norm += pow((double)exact[i], 2);
    }
    for (int i = 0; i < 2; i++) {
        double relative = sqrt(errors[i] / norm), unit = i ? 0x1p-8 : 0x1p-11;
        if (!(relative > unit / 64 && relative < unit)) fail_msg("cache %d: off by %g", i, relative);
    }
    /* The reference kernels have it, too, and there all 64 bits. */
    options.isa = "ref";
    options.act = FB_F64;
    options.kv = "auto";
    float *truth = logits_of(model, options, TOKENS);
    options.kv = "f64";
    assert_same(model, truth, logits_of(model, options, TOKENS), "auto is f64");
    free(exact);
    free(half);
    free(brain);
    free(truth);
    fb_model_free(model);
}

/* ---- hidden states ---- */

typedef struct watch {
    int64_t layers, calls, next_layer, position; /* what must come next */
    int64_t stop_at;                             /* the call that says stop; -1: none */
    fb_dtype act;
    int64_t wrong; /* values that `act` cannot hold */
    double sum;    /* to tell one run from another */
} watch;

static bool holds(fb_dtype act, float value) {
    uint64_t room = 0;
    fb_dtype_set(act, &room, 0, (double)value);
    return fb_dtype_get(act, &room, 0) == (double)value;
}

static bool on_hidden(void *user, int64_t layer, int64_t position, const float *hidden, int64_t rows,
                      int64_t cols) {
    watch *w = user;
    assert_int_equal(layer, w->next_layer);
    assert_int_equal(position, w->position);
    assert_int_equal(cols, 64);
    assert_true(rows >= 1);
    for (int64_t i = 0; i < rows * cols; i++) {
        w->wrong += !holds(w->act, hidden[i]);
        w->sum += (double)hidden[i] * (double)(i % 97 + layer);
    }
    w->next_layer = layer == w->layers ? 0 : layer + 1;
    if (layer == w->layers) w->position += rows;
    return w->calls++ != w->stop_at;
}

/* Every state of every token is shown once, in order, and can be held by the dtype that it was rounded to. */
static void hidden_states(void **state) {
    (void)state;
    for (const char *const *name = fbt_cases; *name; name++) {
        fb_model *model = fbt_golden_open(*name);
        double sums[3];
        for (size_t a = 0; a < 3; a++) {
            watch w = {.layers = 3, .stop_at = -1, .act = acts[a]};
            fb_session_options options;
            fb_session_options_default(&options);
            options.act = acts[a];
            options.chunk = 7;
            options.on_hidden = on_hidden;
            options.user = &w;
            fb_session *session = create(model, &options);
            float *logits = calloc((size_t)(TOKENS * vocab_of(model)), sizeof *logits);
            assert_non_null(logits);
            feed(session, TOKENS, false, logits);
            assert_int_equal(w.calls, 4 * ((TOKENS + 6) / 7));
            assert_int_equal(w.position, TOKENS);
            assert_int_equal(w.wrong, 0);
            for (int64_t i = (TOKENS - 1) * vocab_of(model); i < TOKENS * vocab_of(model); i++)
                assert_true(holds(acts[a], logits[i]));
            sums[a] = w.sum;
            free(logits);
            fb_session_free(session);
        }
        assert_true(sums[0] != sums[1] && sums[1] != sums[2] && sums[0] != sums[2]);
        fb_model_free(model);
    }
}

/* Watching changes nothing. */
static void watching_is_free(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("neox-parallel");
    fb_session_options options;
    fb_session_options_default(&options);
    options.chunk = 5;
    float *logits = logits_of(model, options, TOKENS);
    watch w = {.layers = 3, .stop_at = -1};
    options.on_hidden = on_hidden;
    options.user = &w;
    assert_same(model, logits, logits_of(model, options, TOKENS), "watched");
    free(logits);
    fb_model_free(model);
}

/* ---- stopping ---- */

static bool stop_second(void *user, int64_t done, int64_t total) {
    assert_int_equal(total, TOKENS);
    assert_true(done > 0 && done <= total);
    return ++*(int64_t *)user != 2;
}

/* After a stop the session takes nothing until it is reset, and is then as new. */
static void check_stopped(fb_session *session, const float *last) {
    fb_error err;
    const float *have;
    int64_t rows, vocab;
    assert_refused(fb_session_prefill(session, some_ids(), TOKENS, &err), FB_ERROR_STOPPED, &err, "stopped");
    assert_refused(fb_session_logits(session, &have, &rows, &vocab, &err), FB_ERROR_USAGE, &err, "logits");
    assert_null(have);
    assert_int_equal(rows + vocab, 0);
    assert_refused(fb_session_decode(session, 1, &err), FB_ERROR_USAGE, &err, "reset");
    assert_refused(fb_session_prefill(session, some_ids(), 1, &err), FB_ERROR_USAGE, &err, "reset");
    fb_session_reset(session);
    assert_int_equal(fb_session_position(session), 0);
    assert_ok(fb_session_prefill(session, some_ids(), TOKENS, &err), &err);
    assert_ok(fb_session_logits(session, &have, &rows, &vocab, &err), &err);
    assert_int_equal(rows, 1);
    assert_memory_equal(have, last, (size_t)vocab * sizeof *have);
}

static void stopping(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("llama-gqa-tied");
    fb_session_options options;
    fb_session_options_default(&options);
    options.threads = 2;
    options.chunk = 10;
    float *logits = logits_of(model, options, TOKENS), *last = logits + (TOKENS - 1) * vocab_of(model);
    int64_t times = 0;
    options.on_progress = stop_second;
    options.user = &times;
    fb_session *session = create(model, &options);
    check_stopped(session, last);
    fb_session_free(session);
    options.on_progress = NULL;
    options.on_hidden = on_hidden;
    for (int64_t stop_at = 0; stop_at < 8; stop_at++) {
        watch w = {.layers = 3, .stop_at = stop_at};
        options.user = &w;
        session = create(model, &options);
        fb_error err;
        assert_refused(fb_session_prefill(session, some_ids(), TOKENS, &err), FB_ERROR_STOPPED, &err,
                       "stopped");
        assert_int_equal(w.calls, stop_at + 1);
        assert_refused(fb_session_decode(session, 1, &err), FB_ERROR_USAGE, &err, "reset");
        fb_session_reset(session);
        w = (watch){.layers = 3, .stop_at = -1};
        const float *have;
        assert_ok(fb_session_prefill(session, some_ids(), TOKENS, &err), &err);
        assert_ok(fb_session_logits(session, &have, NULL, NULL, &err), &err);
        assert_memory_equal(have, last, (size_t)vocab_of(model) * sizeof *have);
        fb_session_free(session);
    }
    free(logits);
    fb_model_free(model);
}

/* ---- refusals ---- */

static void refuse(const fb_model *model, const fb_session_options *options, const char *words) {
    fb_session *session = (fb_session *)(uintptr_t)1;
    fb_error err = {0};
    assert_refused(fb_session_create(model, options, &session, &err), FB_ERROR_USAGE, &err, words);
    assert_null(session);
}

static void bad_options(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("gpt2");
    fb_session_options good, o;
    fb_session_options_default(&good);
#define REFUSE(words, ...) o = good, __VA_ARGS__, refuse(model, &o, words)
    REFUSE("capacity|129|128", o.capacity = 129);
    REFUSE("capacity|-1", o.capacity = -1);
    REFUSE("threads|-1|256", o.threads = -1);
    REFUSE("threads|257|256", o.threads = 257);
    REFUSE("chunk|-5", o.chunk = -5);
    REFUSE("act|f64|ref", o.act = FB_F64);
    REFUSE("act|f64|ref|portable", o.act = FB_F64, o.isa = "portable");
    REFUSE("act|4", o.act = FB_DTYPE_COUNT);
    REFUSE("act|-1", o.act = (fb_dtype)-1);
    REFUSE("isa|mmx|portable", o.isa = "mmx");
    REFUSE("kv|i8|auto|bf16", o.kv = "i8");
    REFUSE("kv|q8_0|auto|bf16", o.kv = "q8_0");
    REFUSE("kv|f64|ref", o.kv = "f64");
#undef REFUSE
    fb_session *session = create(model, NULL);
    assert_true(fb_session_threads(session) >= 1);
    const fb_isa *best;
    fb_error err;
    assert_ok(fb_isa_find(NULL, &best, &err), &err);
    assert_string_equal(fb_session_isa(session), best->name);
    fb_session_free(session);
    fb_session_free(NULL);
    fb_model_free(model);
}

/* Tokens that are refused leave the session, and the logits that it has, as they were. */
static void bad_tokens(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("neox-serial");
    fb_session_options options;
    fb_session_options_default(&options);
    float *logits = logits_of(model, options, TOKENS);
    int64_t vocab = vocab_of(model), rows;
    options.capacity = TOKENS;
    fb_session *session = create(model, &options);
    fb_error err;
    const float *have;
    assert_refused(fb_session_logits(session, &have, NULL, NULL, &err), FB_ERROR_USAGE, &err, "logits");
    assert_refused(fb_session_prefill(session, some_ids(), 0, &err), FB_ERROR_USAGE, &err, "tokens|0");
    assert_refused(fb_session_prefill(session, some_ids(), -3, &err), FB_ERROR_USAGE, &err, "tokens|-3");
    assert_ok(fb_session_prefill(session, some_ids(), 20, &err), &err);
    int32_t bad[4] = {1, 2, 320, 3}, too_many[5] = {0};
    assert_refused(fb_session_prefill(session, bad, 4, &err), FB_ERROR_USAGE, &err, "320|319|2");
    assert_refused(fb_session_decode(session, -1, &err), FB_ERROR_USAGE, &err, "-1|319");
    assert_refused(fb_session_decode(session, INT32_MAX, &err), FB_ERROR_USAGE, &err, "2147483647|319");
    assert_refused(fb_session_prefill(session, too_many, 5, &err), FB_ERROR_USAGE, &err, "5|4|24");
    assert_refused(fb_session_prefill(session, too_many, INT64_MAX, &err), FB_ERROR_USAGE, &err, "24");
    assert_int_equal(fb_session_position(session), 20);
    assert_ok(fb_session_logits(session, &have, &rows, NULL, &err), &err);
    assert_memory_equal(have, logits + 19 * vocab, (size_t)vocab * sizeof *have);
    assert_ok(fb_session_prefill(session, some_ids() + 20, 4, &err), &err);
    assert_ok(fb_session_logits(session, &have, &rows, NULL, &err), &err);
    assert_memory_equal(have, logits + 23 * vocab, (size_t)vocab * sizeof *have);
    assert_refused(fb_session_decode(session, 1, &err), FB_ERROR_USAGE, &err, "1|0|24");
    assert_int_equal(fb_session_decode(session, 1, NULL), FB_ERROR_USAGE);
    fb_session_free(session);
    free(logits);
    fb_model_free(model);
}

/* ---- counters and memory ---- */

static int64_t calls_of(const fb_session *session, const char *op) {
    const char *name;
    int64_t calls;
    for (int i = 0; fb_session_op_calls(session, i, &name, &calls); i++)
        if (strcmp(name, op) == 0) return calls;
    fail_msg("no counter for %s", op);
    return 0;
}

/* What the program says: `steps` passes through the layers, of which `ends` went on to the logits. */
static void check_calls(const fb_model *model, const fb_session *session, int64_t steps, int64_t ends) {
    const fb_program *p = &model->spec->program;
    int64_t want[FB_OP_COUNT] = {0};
    for (int s = 0; s < FB_SECTIONS; s++)
        for (int32_t i = 0; i < p->op_count[s]; i++)
            want[p->ops[s][i].kind] += s == FB_BODY ? steps * p->layers : s == FB_EPILOGUE ? ends : steps;
    for (int kind = 0; kind < FB_OP_COUNT; kind++)
        assert_int_equal(calls_of(session, fb_op_table[kind].name), want[kind]);
}

static void op_calls(void **state) {
    (void)state;
    for (const char *const *name = fbt_cases; *name; name++) {
        fb_model *model = fbt_golden_open(*name);
        fb_session_options options;
        fb_session_options_default(&options);
        options.threads = 3;
        options.chunk = 10;
        options.fuse = "none";
        fb_session *session = create(model, &options);
        fb_error err;
        check_calls(model, session, 0, 0);
        assert_ok(fb_session_prefill(session, some_ids(), 10, &err), &err);
        check_calls(model, session, 1, 1);
        if (strcmp(*name, "neox-parallel") == 0) {
            static const struct {
                const char *op;
                int64_t calls;
            } rows[] = {{"embed", 1},       {"rope_angles", 1}, {"layernorm", 7}, {"linear", 13},
                        {"rope", 6},        {"gelu", 3},        {"add", 6},       {"attn_scores", 3},
                        {"attn_values", 3}, {"softmax", 3},     {"rmsnorm", 0},   {"kv_append", 3},
                        {"gelu_tanh", 0},   {"mul", 0},         {"silu", 0}};
            for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
                assert_int_equal(calls_of(session, rows[i].op), rows[i].calls);
        }
        assert_ok(fb_session_decode(session, 5, &err), &err);
        check_calls(model, session, 2, 2);
        assert_ok(fb_session_prefill(session, some_ids(), TOKENS, &err), &err); /* in three chunks */
        check_calls(model, session, 5, 3);
        const char *op;
        int64_t calls;
        assert_false(fb_session_op_calls(session, FB_OP_COUNT, &op, &calls));
        assert_false(fb_session_op_calls(session, -1, &op, &calls));
        fb_session_free(session);
        fb_model_free(model);
    }
}

/* If all tokens have the same score the first is the best, whichever worker computes it, fused or not. */
static void best_among_equals(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("neox-parallel");
    const fb_program *p = &model->spec->program;
    const fb_op *head = &p->ops[FB_EPILOGUE][p->op_count[FB_EPILOGUE] - 1];
    assert_int_equal(head->out[0], p->logits);
    fb_weight *w = &model->weights[head->weights[0] * p->layers];
    int64_t row = w->cols * fb_dtype_size(w->dtype);
    char *rows = malloc((size_t)(w->rows * row));
    assert_non_null(rows);
    for (int64_t i = 0; i < w->rows; i++) memcpy(rows + i * row, w->data, (size_t)row);
    w->data = rows;
    w->mapped = false;
    for (int32_t threads = 1; threads <= 4; threads++)
        for (int fused = 0; fused < 3; fused++) {
            static const char *const fuses[] = {"none", "head_argmax", "head_screen"};
            fb_session_options options;
            fb_session_options_default(&options);
            options.threads = threads;
            options.greedy = true;
            options.fuse = fuses[fused];
            fb_session *session = create(model, &options);
            fb_error err;
            int32_t best = -1;
            assert_ok(fb_session_prefill(session, some_ids(), TOKENS, &err), &err);
            assert_ok(fb_session_best(session, &best, &err), &err);
            assert_int_equal(best, 0);
            fb_session_free(session);
        }
    fb_model_free(model);
    free(rows);
}

/* A head with a weight that is not finite can have no screen, and the session says what it runs instead. */
static void no_screen(void **state) {
    (void)state;
    for (int bad = 0; bad < 2; bad++) {
        fb_model *model = fbt_golden_open("neox-parallel");
        const fb_program *p = &model->spec->program;
        const fb_op *head = &p->ops[FB_EPILOGUE][p->op_count[FB_EPILOGUE] - 1];
        fb_weight *w = &model->weights[head->weights[0] * p->layers];
        size_t bytes = (size_t)fb_dtype_bytes(w->dtype, w->rows * w->cols);
        void *copy = malloc(bytes);
        assert_non_null(copy);
        memcpy(copy, w->data, bytes);
        if (bad) fb_dtype_set(w->dtype, copy, 5 * w->cols, INFINITY);
        w->data = copy;
        w->mapped = false;
        fb_session_options options;
        fb_session_options_default(&options);
        options.greedy = true;
        options.fuse = "head_screen,head_argmax";
        fb_session *session = create(model, &options);
        fb_error err;
        assert_ok(fb_session_prefill(session, some_ids(), TOKENS, &err), &err);
        const char *name;
        int64_t calls, a_step, a_head;
        for (int i = 0; fb_session_fuse_calls(session, i, &name, &calls, &a_step, &a_head); i++) {
            bool runs = strcmp(name, bad ? "head_argmax" : "head_screen") == 0;
            assert_int_equal(a_step, runs);
            assert_int_equal(a_head, runs);
            assert_int_equal(calls, runs);
        }
        fb_session_free(session);
        fb_model_free(model);
        free(copy);
    }
}

/* The plan's text is that of the program that runs: an op that was fused carries the names of its fuses. */
static void plan_text(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("neox-parallel");
    fb_session_options options;
    fb_session_options_default(&options);
    char *plain, *none, *all;
    fb_error err;
    assert_ok(fb_model_program_text(model, &plain, &err), &err);
    options.fuse = "none";
    fb_session *session = create(model, &options);
    assert_ok(fb_session_plan_text(session, &none, &err), &err);
    fb_session_free(session);
    options.fuse = "all";
    session = create(model, &options);
    assert_ok(fb_session_plan_text(session, &all, &err), &err);
    fb_session_free(session);
    assert_string_equal(plain, none);
    assert_null(strstr(plain, "qkv_up"));
    assert_non_null(strstr(all, "qkv_up"));
    assert_non_null(strstr(all, "rope_kv"));
    assert_null(strstr(all, "softmax"));
    fb_free(plain);
    fb_free(none);
    fb_free(all);
    fb_model_free(model);
}

static void memory_does_not_grow(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("llama-mha");
    fb_session_options options;
    fb_session_options_default(&options);
    options.threads = 2;
    fb_session *session = create(model, &options);
    fb_error err;
    size_t used = 0;
    for (int round = 0; round < 12; round++) {
        fb_session_reset(session);
        assert_ok(fb_session_prefill(session, some_ids(), TOKENS, &err), &err);
        for (int i = 0; i < 20; i++) assert_ok(fb_session_decode(session, some_ids()[i], &err), &err);
        size_t now = mallinfo2().uordblks;
        if (round == 1) used = now;
        if (round > 1) assert_int_equal(now, used);
    }
    fb_session_free(session);
    fb_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        {"one answer: neox-parallel", one_answer, NULL, NULL, (void *)(uintptr_t) "neox-parallel"},
        {"one answer: neox-serial", one_answer, NULL, NULL, (void *)(uintptr_t) "neox-serial"},
        {"one answer: llama-gqa-tied", one_answer, NULL, NULL, (void *)(uintptr_t) "llama-gqa-tied"},
        {"one answer: llama-mha", one_answer, NULL, NULL, (void *)(uintptr_t) "llama-mha"},
        {"one answer: gpt2", one_answer, NULL, NULL, (void *)(uintptr_t) "gpt2"},
        cmocka_unit_test(quantised_inputs),
        cmocka_unit_test(cache_dtypes),
        cmocka_unit_test(hidden_states),
        cmocka_unit_test(watching_is_free),
        cmocka_unit_test(stopping),
        cmocka_unit_test(bad_options),
        cmocka_unit_test(bad_tokens),
        cmocka_unit_test(op_calls),
        cmocka_unit_test(best_among_equals),
        cmocka_unit_test(no_screen),
        cmocka_unit_test(plan_text),
        cmocka_unit_test(memory_does_not_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
