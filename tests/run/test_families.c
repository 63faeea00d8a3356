/* Every family of models beyond the first three: the reference answers in each activation type, the proofs of
 * the fuses, and sessions whose layers have windows of their own. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"

static const char *const families[] = {"mistral-window", "qwen2",    "qwen2-window", "qwen3",   "gemma2",
                                       "gemma3",         "phi3",     "phi3-long",    "olmo2",   "granite",
                                       "smollm3",        "stablelm", "gemma3-old",   "mixtral", "qwen3-moe"};
enum { FAMILIES = sizeof families / sizeof *families, TOKENS = 40, VOCAB = 320 };

static void golden(const fb_model *model, const char *name, fb_dtype act, const char *fuse, const char *isa,
                   int64_t chunk) {
    char *path = fbt_format(FBT_GOLDENS "/%s/golden.safetensors", name);
    fb_verify_report *report;
    fb_verify_options o;
    fb_error err;
    fb_verify_options_default(&o);
    o.threads = 2;
    o.act = act;
    o.fuse = fuse;
    o.isa = isa;
    o.chunk = chunk;
    assert_ok(fb_verify_golden(model, path, &o, &report, &err), &err);
    if (!report->ok)
        fail_msg("%s, %s, fuse %s, isa %s: logits off by %g (%g), %lld of %lld tokens", name,
                 fb_dtype_name(act), fuse, isa ? isa : "best", report->logits.max_abs, report->logits.limit,
                 (long long)report->greedy_equal, (long long)report->greedy_tokens);
    fb_verify_free(report);
    free(path);
}

static void goldens(void **state) {
    (void)state;
    for (int i = 0; i < FAMILIES; i++) {
        fb_model *model = fbt_golden_open(families[i]);
        for (int act = FB_F32; act <= FB_BF16; act++)
            golden(model, families[i], (fb_dtype)act, "all", NULL, i % 2 ? 5 : 0);
        golden(model, families[i], FB_F32, "none", i % 2 ? "portable" : "ref", 0);
        golden(model, families[i], FB_F16, "auto", i % 2 ? "avx2" : NULL, 3);
        fb_model_free(model);
    }
}

static void proofs(void **state) {
    (void)state;
    for (int i = 0; i < FAMILIES; i++)
        for (int act = i % 3; act <= FB_BF16; act += 3) { /* one activation type each */
            fb_model *model = fbt_golden_open(families[i]);
            fb_fusion_options o = {
                .size = sizeof o, .threads = 2, .act = (fb_dtype)act, .exact = i % 2, .fuse = "auto"};
            fb_fusion_report *report;
            fb_error err;
            assert_ok(fb_verify_fusion(model, &o, &report, &err), &err);
            for (int64_t row = 0; row < report->count; row++)
                if (!report->rows[row]->ok)
                    fail_msg("%s, %s: %s: %s", families[i], fb_dtype_name((fb_dtype)act),
                             report->rows[row]->name, report->rows[row]->why);
            assert_true(report->ok);
            fb_fusion_free(report);
            fb_model_free(model);
        }
}

/* ---- sessions ---- */

static int32_t token(int64_t i) { return (int32_t)((i * 37 + 11) % VOCAB); }

/* Appends tokens from the session's position up to `end`, `most` at a time, and keeps each one's logits if it
 * is the last of its call. */
static void feed(fb_session *session, int64_t end, int64_t most, float *logits) {
    fb_error err;
    for (int64_t at = fb_session_position(session); at < end; at = fb_session_position(session)) {
        int32_t ids[TOKENS];
        int64_t count = end - at < most ? end - at : most;
        const float *last;
        for (int64_t i = 0; i < count; i++) ids[i] = token(at + i);
        assert_ok(fb_session_prefill(session, ids, count, &err), &err);
        assert_ok(fb_session_logits(session, &last, NULL, NULL, &err), &err);
        memcpy(logits + (at + count - 1) * VOCAB, last, VOCAB * sizeof *last);
    }
}

static fb_session *start(const fb_model *model, int64_t chunk, fb_cache_kind cache, int64_t window) {
    fb_session_options o;
    fb_session *session;
    fb_error err;
    fb_session_options_default(&o);
    o.chunk = chunk;
    o.threads = 2;
    o.cache = cache;
    o.window = window;
    assert_ok(fb_session_create(model, &o, &session, &err), &err);
    return session;
}

static void same(const char *name, const char *what, const float *a, const float *b) {
    if (memcmp(a + (TOKENS - 1) * VOCAB, b + (TOKENS - 1) * VOCAB, VOCAB * sizeof *a) != 0)
        fail_msg("%s: %s: other logits", name, what);
}

/* One token at a time, some at a time, all at once; a fork; a trim and the same tokens again: the same bits,
 * though the windows have long begun to forget. */
static void sessions(void **state) {
    (void)state;
    float *one = calloc(2 * TOKENS * VOCAB, sizeof *one), *other = one + TOKENS * VOCAB;
    for (int i = 0; i < FAMILIES; i++) {
        fb_model *model = fbt_golden_open(families[i]);
        fb_session *session = start(model, 6, FB_CACHE_DENSE, 0), *fork;
        fb_error err;
        feed(session, TOKENS, 1, one);
        fb_session_reset(session);
        feed(session, TOKENS, TOKENS, other);
        same(families[i], "in chunks", one, other);
        fb_session_reset(session);
        feed(session, 20, 4, other);
        assert_ok(fb_session_fork(session, &fork, &err), &err);
        feed(session, TOKENS, 7, other);
        same(families[i], "after a fork", one, other);
        feed(fork, TOKENS, 3, other);
        same(families[i], "a fork", one, other);
        fb_session_free(fork);
        fb_cache_info cache;
        fb_session_get_cache(session, &cache);
        assert_true(cache.trimmable >= 1);
        int64_t back = cache.trimmable < 9 ? cache.trimmable : 9;
        assert_ok(fb_session_trim(session, TOKENS - back, &err), &err);
        feed(session, TOKENS, 2, other);
        same(families[i], "after a trim", one, other);
        fb_session_free(session);
        fb_model_free(model);
    }
    free(one);
}

/* Layers with a window hold less, and what the others forget can be trimmed no further than they remember. */
static void windows(void **state) {
    (void)state;
    const int64_t context = 1024, tokens = 300; /* more than a ring of the shortest windows holds */
    float *logits = calloc((size_t)tokens * VOCAB, sizeof *logits);
    fb_model *model = fbt_golden_stretched("gemma3", context),
             *plain = fbt_golden_stretched("qwen3", context);
    fb_session *session = start(model, 4, FB_CACHE_DENSE, 0), *dense = start(plain, 4, FB_CACHE_DENSE, 0);
    fb_cache_info cache, all;
    fb_error err;
    feed(session, tokens, 4, logits);
    fb_session_get_cache(session, &cache);
    fb_session_get_cache(dense, &all);
    assert_int_equal(cache.kind, FB_CACHE_DENSE);
    assert_true(cache.bytes / 6 < all.bytes / 4); /* of a layer; both have two KV heads of 24 elements */
    /* A window of 6 tokens and steps of 4 have a ring of 256 slots; 5 of them are before the next token. */
    assert_int_equal(cache.trimmable, 251);
    assert_refused(fb_session_trim(session, 48, &err), FB_ERROR_USAGE, &err, "trim|48|49");
    fb_session_free(session);
    fb_session_free(dense);
    /* A cache that forgets, over layers that forget sooner. */
    session = start(model, 4, FB_CACHE_WINDOW, 12);
    feed(session, TOKENS, 4, logits);
    fb_session_free(session);
    fb_session_options o;
    fb_session_options_default(&o);
    o.cache = FB_CACHE_SINKS;
    o.window = 12;
    assert_refused(fb_session_create(model, &o, &session, &err), FB_ERROR_UNSUPPORTED, &err, "sinks|6");
    fb_model_free(model);
    fb_model_free(plain);
    free(logits);
}

/* Two sessions of other capacities, whose rings are as large. */
static void capacities(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("mistral-window");
    fb_session *sessions[2];
    float *logits = calloc(TOKENS * VOCAB, sizeof *logits);
    fb_error err;
    for (int i = 0; i < 2; i++) {
        fb_session_options o;
        fb_session_options_default(&o);
        o.chunk = 18;
        o.capacity = 20 + 2 * i;
        assert_ok(fb_session_create(model, &o, &sessions[i], &err), &err);
    }
    feed(sessions[1], 22, 22, logits);
    feed(sessions[0], 20, 20, logits);
    int32_t id = 1;
    assert_refused(fb_session_decode(sessions[0], id, &err), FB_ERROR_USAGE, &err, "0 more of 20");
    fb_session_free(sessions[0]);
    fb_session_free(sessions[1]);
    fb_model_free(model);
    free(logits);
}

/* A session that stays within the context that the model was first trained on has the short frequencies. */
static void long_context(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("phi3-long");
    float *last[2];
    for (int i = 0; i < 2; i++) {
        fb_session_options o;
        fb_session *session;
        fb_error err;
        fb_session_options_default(&o);
        o.capacity = i ? 17 : 16;
        assert_ok(fb_session_create(model, &o, &session, &err), &err);
        last[i] = calloc(TOKENS * VOCAB, sizeof *last[i]);
        feed(session, 16, 16, last[i]);
        fb_session_free(session);
    }
    assert_true(memcmp(last[0] + 15 * VOCAB, last[1] + 15 * VOCAB, VOCAB * sizeof(float)) != 0);
    free(last[0]);
    free(last[1]);
    fb_model_free(model);
}

/* A GGUF file of each family, written and read again: the reference answers still hold. What the format
 * cannot say is refused by name. */
static void round_trips(void **state) {
    (void)state;
    static const struct {
        const char *family, *refused;
    } cases[] = {{"mistral-window", NULL},
                 {"qwen2", NULL}, /* yarn */
                 {"qwen2-window", "layer_types|windows"},
                 {"qwen3", NULL},
                 {"gemma2", "query_pre_attn_scalar|20|24"},
                 {"gemma3-old", NULL},
                 {"phi3", NULL},
                 {"phi3-long", NULL},
                 {"granite", NULL},
                 {"smollm3", "no_rope_layers|fourth"},
                 {"stablelm", NULL},
                 {"mixtral", NULL},
                 {"qwen3-moe", NULL}};
    char *dir = fbt_dir_create();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fb_model *model = fbt_golden_open(cases[i].family);
        char *path = fbt_format("%s/%s.gguf", dir, cases[i].family);
        fb_quantize_options o;
        fb_quantize_report *report = NULL;
        fb_error err;
        fb_quantize_options_default(&o);
        o.type = o.head = FB_F16;
        fb_status status = fb_model_quantize(model, path, &o, &report, &err);
        if (cases[i].refused) {
            assert_refused(status, FB_ERROR_UNSUPPORTED, &err, cases[i].refused);
        } else {
            assert_ok(status, &err);
            fb_quantize_free(report);
            fb_model *again = fbt_model_open(path);
            golden(again, cases[i].family, FB_F32, "all", NULL, 0);
            fb_model_free(again);
        }
        fb_model_free(model);
        free(path);
    }
    fbt_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goldens),     cmocka_unit_test(proofs),       cmocka_unit_test(sessions),
        cmocka_unit_test(windows),     cmocka_unit_test(long_context), cmocka_unit_test(capacities),
        cmocka_unit_test(round_trips),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
