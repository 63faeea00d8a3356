/* Perplexity: against a computation that shares nothing with it but the logits, against transformers, and to
 * the bit whatever the threads, the pieces and the fuses of the bit class. */
#include "verify/perplexity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "file/safetensors.h"
#include "support/support.h"
#include "verify/golden.h"

#define G  FBT_GOLDENS "/"
#define OZ FBT_GOLDENS "/streaming/storyteller-oz.safetensors"

static fb_perplexity_options options(int64_t window) {
    fb_perplexity_options o;
    fb_perplexity_options_default(&o);
    o.window = window;
    o.threads = 2;
    return o;
}

static fb_perplexity_report *run(const fb_model *model, const fb_perplexity_options *o, const int32_t *ids,
                                 int64_t count) {
    fb_perplexity_report *report;
    fb_error err;
    assert_ok(fb_perplexity_run(model, o, ids, count, &report, &err), &err);
    return report;
}

/* ---- one row of logits ---- */

static void close_to(double have, double want, double relative) {
    if (!(fabs(have - want) <= relative * fabs(want)))
        fail_msg("%.17g, wanted %.17g (within %g of it)", have, want, relative);
}

static void one_row(void **state) {
    (void)state;
    const float even[] = {3, 3, 3, 3}, far[] = {-1000, 0, 1000};
    close_to(fb_nll(even, 4, 2), log(4), 1e-15);
    close_to(fb_nll(even, 1, 0) + 1, 1, 0); /* a vocabulary of one token is no surprise */
    close_to(fb_nll(far, 3, 0), 2000, 1e-15);
    assert_true(fb_nll(far, 3, 2) == 0);
    const float bad[][3] = {
        {NAN, 0, 0}, {0, NAN, 0}, {0, 0, NAN}, {0, INFINITY, 0}, {-INFINITY, -INFINITY, -INFINITY}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (int id = 0; id < 3; id++) assert_true(isnan(fb_nll(bad[i], 3, id)));
    const float never[] = {-INFINITY, 0};
    assert_true(isinf(fb_nll(never, 2, 0)));
}

/* ---- windows, slowly ---- */

enum { IDS = 50, WINDOW = 17 };

static void make_ids(const fb_model *model, int32_t ids[IDS]) {
    fb_model_info info;
    fb_model_get_info(model, &info);
    for (int i = 0; i < IDS; i++) ids[i] = (int32_t)((i * 7919 + 13) % info.vocab);
}

/* -ln p of each of ids[1 …], one token at a time. */
static void decode_window(fb_session *session, const int32_t *ids, int64_t count, double *nll) {
    fb_error err;
    fb_session_reset(session);
    for (int64_t i = 0; i + 1 < count; i++) {
        const float *logits;
        int64_t rows, vocab;
        assert_ok(fb_session_decode(session, ids[i], &err), &err);
        assert_ok(fb_session_logits(session, &logits, &rows, &vocab, &err), &err);
        long double total = 0;
        for (int64_t v = 0; v < vocab; v++) total += expl((long double)logits[v]);
        nll[i] = (double)(logl(total) - (long double)logits[ids[i + 1]]);
    }
}

static void check_score(const fb_score *have, const double *nll, int64_t count) {
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < count; i++) mean += nll[i] / (double)count;
    for (int64_t i = 0; i < count; i++) squares += (nll[i] - mean) * (nll[i] - mean);
    double error = sqrt(squares / (double)(count - 1) / (double)count);
    assert_int_equal(have->tokens, count);
    close_to(have->nll, mean, 1e-12);
    close_to(have->perplexity, exp(mean), 1e-12);
    if (count > 1) close_to(have->nll_error, error, 1e-9);
    if (count > 1) close_to(have->perplexity_error, exp(mean) * error, 1e-9);
    if (count == 1) assert_true(isnan(have->nll_error) && isnan(have->perplexity_error));
}

/* `begin` is what the tokenizer puts in front, -1 for nothing. */
static void check_windows(const char *path, int32_t begin, int64_t count) {
    fb_model *model = fbt_model_open(path);
    fb_perplexity_options o = options(WINDOW);
    o.chunk = 5;
    fb_session_options same;
    fb_session_options_default(&same);
    same.threads = o.threads;
    same.chunk = o.chunk;
    fb_session *session;
    fb_error err;
    assert_ok(fb_session_create(model, &same, &session, &err), &err);
    int32_t ids[IDS], window[WINDOW];
    double nll[IDS];
    int64_t scored = 0, windows = 0, front = begin >= 0;
    make_ids(model, ids);
    window[0] = begin;
    fb_perplexity_report *r = run(model, &o, ids, count);
    for (int64_t at = 0; at < count; at += WINDOW - front) {
        int64_t part = count - at < WINDOW - front ? count - at : WINDOW - front;
        memcpy(window + front, ids + at, (size_t)part * sizeof *ids);
        decode_window(session, window, part + front, nll + scored);
        if (part + front < 2) continue;
        check_score(&r->windows[windows++], nll + scored, part + front - 1);
        scored += part + front - 1;
    }
    assert_int_equal(r->window_count, windows);
    assert_int_equal(r->window, WINDOW);
    check_score(&r->all, nll, scored);
    fb_perplexity_free(r);
    fb_session_free(session);
    fb_model_free(model);
}

static void windows(void **state) {
    (void)state;
    static const char *const without[] = {G "neox-parallel", G "llama-gqa-tied", G "gpt2"};
    /* Whole windows, a last one that is shorter, and one of a single token, which nothing precedes. */
    static const int64_t counts[] = {2, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 2 * WINDOW + 2, IDS};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        for (size_t m = 0; m < sizeof without / sizeof *without; m++)
            check_windows(without[m], -1, counts[c]);
        check_windows(FBT_STORYTELLER, 0, counts[c]);
    }
    check_windows(FBT_STORYTELLER, 0, 1);
}

/* ---- second halves, slowly ---- */

/* The text with its begin token in whole windows; that token, if there is one, is also the first of each. */
static void check_halves(const char *path, int32_t begin, int64_t count, int64_t most) {
    fb_model *model = fbt_model_open(path);
    fb_perplexity_options o = options(WINDOW);
    o.scoring = FB_SCORE_SECOND_HALF;
    o.max_windows = most;
    o.chunk = 5;
    fb_session_options same;
    fb_session_options_default(&same);
    same.threads = o.threads;
    same.chunk = o.chunk;
    fb_session *session;
    fb_error err;
    assert_ok(fb_session_create(model, &same, &session, &err), &err);
    int32_t ids[IDS], all[IDS + 1];
    double nll[IDS], scores[IDS];
    int64_t scored = 0, front = begin >= 0, whole = (count + front) / WINDOW;
    enum { FIRST = WINDOW / 2 + 1 };
    make_ids(model, ids);
    all[0] = begin;
    memcpy(all + front, ids, (size_t)count * sizeof *ids);
    if (most && most < whole) whole = most;
    fb_perplexity_report *r = run(model, &o, ids, count);
    assert_int_equal(r->window_count, whole);
    for (int64_t w = 0; w < whole; w++) {
        if (front) all[w * WINDOW] = begin;
        decode_window(session, all + w * WINDOW, WINDOW, nll); /* nll[i] is of token i + 1 */
        check_score(&r->windows[w], nll + FIRST - 1, WINDOW - FIRST);
        memcpy(scores + scored, nll + FIRST - 1, (WINDOW - FIRST) * sizeof *nll);
        scored += WINDOW - FIRST;
    }
    check_score(&r->all, scores, scored);
    fb_perplexity_free(r);
    fb_session_free(session);
    fb_model_free(model);
}

static void second_halves(void **state) {
    (void)state;
    check_halves(G "llama-gqa-tied", -1, 2 * WINDOW, 0);
    check_halves(G "neox-parallel", -1, IDS, 0); /* the rest of 16 is left out */
    check_halves(FBT_STORYTELLER, 0, 2 * WINDOW - 1, 0);
    check_halves(FBT_STORYTELLER, 0, IDS, 0); /* 51 with the begin token: three windows */
    check_halves(FBT_STORYTELLER, 0, IDS, 2);
}

static void refused_halves(void **state) {
    (void)state;
    fb_model *model = fbt_model_open(FBT_STORYTELLER);
    fb_perplexity_options o = options(WINDOW);
    fb_perplexity_report *r;
    fb_error err;
    int32_t ids[IDS];
    make_ids(model, ids);
    o.scoring = FB_SCORE_SECOND_HALF;
    assert_refused(fb_perplexity_run(model, &o, ids, 2 * WINDOW - 2, &r, &err), FB_ERROR_USAGE, &err,
                   "text: 33 tokens|two windows of 17");
    o.window = 2;
    assert_refused(fb_perplexity_run(model, &o, ids, IDS, &r, &err), FB_ERROR_USAGE, &err,
                   "window: 2|3 to 512");
    o.window = WINDOW;
    o.max_windows = -1;
    assert_refused(fb_perplexity_run(model, &o, ids, IDS, &r, &err), FB_ERROR_USAGE, &err, "max_windows: -1");
    o.scoring = (fb_scoring)7;
    assert_refused(fb_perplexity_run(model, &o, ids, IDS, &r, &err), FB_ERROR_USAGE, &err, "scoring: 7");
    fb_model_free(model);
}

/* ---- the same text as transformers read it ---- */

static int32_t *read_oz(const fb_tensor_table *table, int64_t *count) {
    const fb_tensor_entry *entry = fb_tensors_find(table, "input_ids");
    assert_non_null(entry);
    int32_t *ids = malloc((size_t)entry->count * sizeof *ids);
    assert_non_null(ids);
    for (int64_t i = 0; i < entry->count; i++) ids[i] = (int32_t)fb_golden_int(entry, i);
    *count = entry->count;
    return ids;
}

static void transformers(void **state) {
    (void)state;
    fb_tensor_table *table;
    fb_error err;
    int64_t count;
    assert_ok(fb_tensors_open(OZ, &table, &err), &err);
    int32_t *ids = read_oz(table, &count);
    const fb_tensor_entry *nll = fb_tensors_find(table, "nll.dense");
    assert_int_equal(ids[0], 0); /* what the tokenizer puts in front */
    fb_model *model = fbt_model_open(FBT_STORYTELLER);
    static const int64_t sizes[] = {2, 3, 65, 512};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        fb_perplexity_options o = options(sizes[i]);
        fb_perplexity_report *r = run(model, &o, ids + 1, sizes[i] - 1);
        double sum = 0;
        for (int64_t t = 0; t < sizes[i] - 1; t++) sum += fb_golden_real(nll, t);
        close_to(r->all.nll, sum / (double)(sizes[i] - 1), 5e-4);
        fb_perplexity_free(r);
    }
    fb_model_free(model);
    fb_tensors_free(table);
    free(ids);
}

/* ---- bits ---- */

static void same_bits(void **state) {
    (void)state;
    static const struct {
        int32_t threads;
        const char *fuse;
        bool exact;
        int64_t chunk;
    } rows[] = {{1, "none", false, 0},
                {2, "none", false, 7},
                {1, "all,-attn_flash", false, 0},
                {2, "all,-attn_flash", false, 0},
                {2, "all", true, 3},
                {3, "auto", true, 1},
                {2, "add_norm", false, 0},
                {1, "rope_kv", false, 64}};
    static const char *const models[] = {FBT_STORYTELLER, G "llama-gqa-tied", G "gpt2"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        fb_model *model = fbt_model_open(models[m]);
        int32_t ids[IDS];
        make_ids(model, ids);
        fb_perplexity_options o = options(WINDOW);
        o.fuse = "none";
        fb_perplexity_report *plain = run(model, &o, ids, IDS);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            o.threads = rows[i].threads;
            o.fuse = rows[i].fuse;
            o.exact = rows[i].exact;
            o.chunk = rows[i].chunk;
            fb_perplexity_report *r = run(model, &o, ids, IDS);
            assert_memory_equal(&r->all.perplexity, &plain->all.perplexity, sizeof r->all.perplexity);
            assert_memory_equal(&r->all.nll_error, &plain->all.nll_error, sizeof r->all.nll_error);
            assert_int_equal(r->threads, rows[i].threads);
            fb_perplexity_free(r);
        }
        fb_perplexity_free(plain);
        fb_model_free(model);
    }
}

static void default_window(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int64_t window;
    } rows[] = {{FBT_STORYTELLER, 512}, {G "neox-parallel", 128}, {NULL, 512}};
    char *dir = fbt_dir_from_golden("neox-parallel"), *config = fbt_format("%s/config.json", dir);
    fbt_json_set(config, "max_position_embeddings", "1024");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fb_model *model = fbt_model_open(rows[i].model ? rows[i].model : dir);
        int32_t ids[IDS];
        make_ids(model, ids);
        fb_perplexity_options o = options(0);
        fb_perplexity_report *r = run(model, &o, ids, IDS);
        assert_int_equal(r->window, rows[i].window);
        fb_perplexity_free(r);
        fb_model_free(model);
    }
    free(config);
    fbt_dir_remove(dir);
}

/* ---- what ends early ---- */

typedef struct progress {
    int calls, stop_at;
    int64_t tokens;
} progress;

static bool count_calls(void *user, const fb_score *so_far, int64_t total) {
    progress *p = user;
    assert_true(so_far->tokens > p->tokens && so_far->tokens <= total);
    assert_int_equal(total, IDS);
    p->tokens = so_far->tokens;
    return ++p->calls != p->stop_at;
}

static void progress_and_stop(void **state) {
    (void)state;
    fb_model *model = fbt_model_open(FBT_STORYTELLER);
    int32_t ids[IDS];
    make_ids(model, ids);
    progress p = {0};
    fb_perplexity_options o = options(WINDOW);
    o.chunk = 8;
    o.on_progress = count_calls;
    o.user = &p;
    fb_perplexity_free(run(model, &o, ids, IDS));
    assert_int_equal(p.tokens, IDS);
    assert_int_equal(p.calls, 7); /* three windows of two pieces, and two tokens */
    p = (progress){.stop_at = 3};
    fb_perplexity_report *r;
    fb_error err;
    assert_refused(fb_perplexity_run(model, &o, ids, IDS, &r, &err), FB_ERROR_STOPPED, &err,
                   "perplexity|24 of 50 tokens");
    assert_null(r);
    fb_model_free(model);
}

static void refuse(const fb_model *model, int64_t window, const int32_t *ids, int64_t count,
                   const char *words) {
    fb_perplexity_options o = options(window);
    fb_perplexity_report *r;
    fb_error err;
    assert_refused(fb_perplexity_run(model, &o, ids, count, &r, &err), FB_ERROR_USAGE, &err, words);
    assert_null(r);
}

static void refusals(void **state) {
    (void)state;
    fb_model *story = fbt_model_open(FBT_STORYTELLER), *bare = fbt_model_open(G "neox-parallel");
    int32_t ids[IDS];
    make_ids(bare, ids);
    refuse(story, 1, ids, IDS, "window: 1 |2 to 512");
    refuse(story, 513, ids, IDS, "window: 513 |2 to 512");
    refuse(story, -1, ids, IDS, "window: -1 ");
    refuse(bare, 1, ids, IDS, "window: 1 |2 to 128");
    refuse(story, 0, ids, 0, "text: 0 tokens|at least 1");
    refuse(bare, 0, ids, 1, "text: 1 tokens|at least 2");
    refuse(bare, 0, ids, -1, "text: -1 tokens");
    ids[IDS - 1] = 1 << 20; /* never read by the model, only looked up */
    refuse(bare, 0, ids, IDS, "token 49|1048576");
    ids[IDS - 1] = -1;
    refuse(bare, 0, ids, IDS, "token 49|-1");
    fb_model_free(story);
    fb_model_free(bare);
}

/* The last bytes of the checkpoint are weights; float16 NaN is 0x7e00. */
static void nan_fails(void **state) {
    (void)state;
    char *dir = fbt_dir_from_golden("llama-mha"), *path = fbt_format("%s/model.safetensors", dir);
    size_t size;
    uint8_t *bytes = fbt_file_read(path, &size);
    for (size_t i = size - 400; i < size; i += 2) memcpy(bytes + i, "\x00\x7e", 2);
    fbt_file_write(path, bytes, size);
    fb_model *model = fbt_model_open(dir);
    fb_perplexity_options o = options(0);
    fb_perplexity_report *r;
    fb_error err;
    int32_t ids[IDS];
    make_ids(model, ids);
    assert_refused(fb_perplexity_run(model, &o, ids, IDS, &r, &err), FB_ERROR_SYSTEM, &err,
                   "logits: NaN|position 0 of window 1");
    assert_null(r);
    fb_model_free(model);
    free(bytes);
    free(path);
    fbt_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_row),        cmocka_unit_test(windows),
        cmocka_unit_test(second_halves),  cmocka_unit_test(refused_halves),
        cmocka_unit_test(transformers),   cmocka_unit_test(same_bits),
        cmocka_unit_test(default_window), cmocka_unit_test(progress_and_stop),
        cmocka_unit_test(refusals),       cmocka_unit_test(nan_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
