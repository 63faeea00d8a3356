/* Goldens of streams: the given ones, and what such a file may have wrong. That a run holds to them is
 * checked from the command line (tests/cli/stream.sh). */
#include "verify/stream_golden.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"

static void opens_the_given_ones(void **state) {
    (void)state;
    fb_stream_golden g;
    fb_error err;
    bool streams;
    const char *path = FBT_GOLDENS "/streaming/neox-parallel.safetensors";
    assert_ok(fb_golden_streams(path, &streams, &err), &err);
    assert_true(streams);
    assert_ok(fb_stream_golden_open(path, 320, &g, &err), &err);
    assert_int_equal(g.tokens, 80);
    assert_int_equal(g.count, 1);
    assert_int_equal(g.cases[0].cache, FB_CACHE_SINKS);
    assert_int_equal(g.cases[0].sinks, 2);
    assert_int_equal(g.cases[0].window, 10);
    assert_non_null(g.cases[0].logits);
    fb_stream_golden_close(&g);
    fb_stream_golden_close(&g); /* twice does no harm */
    assert_ok(fb_stream_golden_open(FBT_GOLDENS "/streaming/storyteller-oz.safetensors", 4096, &g, &err),
              &err);
    assert_int_equal(g.tokens, 2501);
    assert_int_equal(g.count, 5);
    assert_int_equal(g.cases[0].cache, FB_CACHE_DENSE);
    assert_int_equal(g.cases[1].cache, FB_CACHE_WINDOW);
    assert_int_equal(g.cases[1].window, 256);
    assert_int_equal(g.cases[4].sinks, 4);
    assert_int_equal(g.cases[4].window, 508);
    assert_null(g.cases[4].logits);
    fb_stream_golden_close(&g);
    assert_ok(fb_golden_streams(FBT_GOLDENS "/gpt2/golden.safetensors", &streams, &err), &err);
    assert_false(streams);
    assert_int_equal(fb_golden_streams("nowhere.safetensors", &streams, &err), FB_ERROR_FILE);
}

/* A golden of 3 tokens of 5 ids. */
typedef struct small_golden {
    int32_t ids[3];
    float nll[2], logits[10];
    fbt_tensor parts[3];
    const char *metadata;
} small_golden;

static void make_small(small_golden *g) {
    *g = (small_golden){.ids = {4, 0, 3}, .metadata = "{\"sinks\": \"1\", \"window\": \"2\"}"};
    const fbt_tensor parts[] = {{"input_ids", "I32", 1, {3}, g->ids, sizeof g->ids},
                                {"nll", "F32", 1, {2}, g->nll, sizeof g->nll},
                                {"logits", "F32", 2, {2, 5}, g->logits, sizeof g->logits}};
    memcpy(g->parts, parts, sizeof parts);
}

static fb_status open_small(const small_golden *g, fb_stream_golden *out, fb_error *err) {
    char *dir = fbt_dir_create(), *path = fbt_format("%s/golden.safetensors", dir);
    fbt_safetensors_write(path, g->parts, 3, g->metadata);
    fb_status status = fb_stream_golden_open(path, 5, out, err);
    free(path);
    fbt_dir_remove(dir);
    return status;
}

static void small_is_good(void **state) {
    (void)state;
    small_golden g;
    fb_stream_golden golden;
    fb_error err;
    make_small(&g);
    assert_ok(open_small(&g, &golden, &err), &err);
    assert_int_equal(golden.cases[0].cache, FB_CACHE_SINKS);
    fb_stream_golden_close(&golden);
    g.metadata = "{\"sinks\": \"0\", \"window\": \"2\"}";
    assert_ok(open_small(&g, &golden, &err), &err);
    assert_int_equal(golden.cases[0].cache, FB_CACHE_WINDOW);
    fb_stream_golden_close(&golden);
    g.parts[1].name = "nll.sinks12_window345";
    g.metadata = NULL;
    assert_ok(open_small(&g, &golden, &err), &err);
    assert_int_equal(golden.cases[0].sinks, 12);
    assert_int_equal(golden.cases[0].window, 345);
    fb_stream_golden_close(&golden);
}

static void refused(const small_golden *g, const char *words) {
    fb_stream_golden golden;
    fb_error err;
    assert_refused(open_small(g, &golden, &err), FB_ERROR_FILE, &err, words);
    assert_null(golden.table);
}

static void refuses_damage(void **state) {
    (void)state;
    static const char *const names[] = {"nll.",
                                        "nll.sinks",
                                        "nll.sinks4_window",
                                        "nll.sinks4_window0",
                                        "nll.sinks-1_window4",
                                        "nll.sinks4_window4x",
                                        "nll.densest",
                                        "nll.sinks4_window99999999999999999999"};
    small_golden g;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        make_small(&g);
        g.parts[1].name = names[i];
        refused(&g, "name (nll.dense or nll.sinksN_windowN)");
    }
    static const struct {
        const char *metadata, *words;
    } metadata[] = {{NULL, "metadata: sinks: missing"},
                    {"{\"sinks\": \"1\"}", "metadata: window: missing"},
                    {"{\"sinks\": \"one\", \"window\": \"2\"}", "metadata: sinks: \"one\" (a number)"},
                    {"{\"sinks\": \"1\", \"window\": \"2 \"}", "metadata: window: \"2 \" (a number)"}};
    for (size_t i = 0; i < sizeof metadata / sizeof *metadata; i++) {
        make_small(&g);
        g.metadata = metadata[i].metadata;
        refused(&g, metadata[i].words);
    }
    make_small(&g);
    g.nll[1] = NAN;
    refused(&g, "nll: element 1: nan (finite)");
    make_small(&g);
    g.ids[2] = 5;
    refused(&g, "input_ids: id 2: 5 (0 to 4)");
    make_small(&g);
    g.parts[0].name = "ids";
    refused(&g, "input_ids: missing");
    make_small(&g);
    g.parts[1].dtype = "I32";
    refused(&g, "nll: dtype: I32 (expected F32 or F64)");
    make_small(&g);
    g.parts[1] = (fbt_tensor){"nll", "F32", 1, {3}, NULL, 12};
    refused(&g, "nll: shape: [3] (expected [2])");
    make_small(&g);
    g.parts[2] = (fbt_tensor){"logits", "F32", 2, {2, 4}, NULL, 32};
    refused(&g, "logits: shape: [2, 4] (expected [2, 5])");
    make_small(&g);
    g.parts[0] = (fbt_tensor){"input_ids", "I32", 1, {1}, NULL, 4};
    refused(&g, "input_ids: 1 token (at least 2)");
    make_small(&g);
    g.parts[1].name = "nlls";
    refused(&g, "nll: missing");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(opens_the_given_ones),
                                       cmocka_unit_test(small_is_good), cmocka_unit_test(refuses_damage)};
    return cmocka_run_group_tests_name("stream_golden", tests, NULL, NULL);
}
