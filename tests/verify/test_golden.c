#include "verify/golden.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"

static void opens_every_golden(void **state) {
    (void)state;
    for (int i = 0; fbt_cases[i]; i++) {
        char *path = fbt_format(FBT_GOLDENS "/%s/golden.safetensors", fbt_cases[i]);
        fb_golden golden;
        fb_error err;
        assert_ok(fb_golden_open(path, &golden, &err), &err);
        assert_int_equal(golden.tokens, 24);
        assert_int_equal(golden.layers, 4);
        assert_int_equal(golden.width, 64);
        assert_int_equal(golden.vocab, 320);
        assert_int_equal(golden.greedy->count, 32);
        assert_non_null(golden.logits_f64);
        for (int64_t at = 0; at < golden.logits->count; at++)
            assert_true(fabs(fb_golden_real(golden.logits, at) - fb_golden_real(golden.logits_f64, at)) <
                        1e-4);
        fb_golden_close(&golden);
        fb_golden_close(&golden); /* twice does no harm */
        free(path);
    }
}

static void reads_storyteller(void **state) {
    (void)state;
    static const int first[] = {0, 48, 1717, 587}, continued[] = {344, 260, 553, 604};
    fb_golden golden;
    fb_error err;
    assert_ok(fb_golden_open(FBT_GOLDENS "/storyteller/golden.safetensors", &golden, &err), &err);
    assert_int_equal(golden.layers, 9);
    assert_int_equal(golden.width, 256);
    assert_int_equal(golden.vocab, 4096);
    assert_null(golden.logits_f64);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(fb_golden_int(golden.ids, i), first[i]);
        assert_int_equal(fb_golden_int(golden.greedy, i), continued[i]);
    }
    fb_golden_close(&golden);
}

/* ---- damage: a golden of 2 tokens, 1 layer, width 3, 5 ids ---- */

enum { IDS, HIDDEN_0, HIDDEN_1, LOGITS, LOGITS_F64, GREEDY, PARTS };

typedef struct small_golden {
    int32_t ids[2];
    float hidden[2][6], logits[10];
    double logits_f64[10];
    int64_t greedy[2];
    fbt_tensor parts[PARTS];
} small_golden;

static void make_small(small_golden *g) {
    *g = (small_golden){.ids = {4, 0}, .greedy = {3, 4}};
    const fbt_tensor parts[PARTS] = {
        [IDS] = {"input_ids", "I32", 1, {2}, g->ids, sizeof g->ids},
        [HIDDEN_0] = {"hidden.0", "F32", 2, {2, 3}, g->hidden[0], sizeof g->hidden[0]},
        [HIDDEN_1] = {"hidden.1", "F32", 2, {2, 3}, g->hidden[1], sizeof g->hidden[1]},
        [LOGITS] = {"logits", "F32", 2, {2, 5}, g->logits, sizeof g->logits},
        [LOGITS_F64] = {"logits_f64", "F64", 2, {2, 5}, g->logits_f64, sizeof g->logits_f64},
        [GREEDY] = {"greedy", "I64", 1, {2}, g->greedy, sizeof g->greedy},
    };
    memcpy(g->parts, parts, sizeof parts);
}

static fb_status open_small(const small_golden *g, fb_golden *out, fb_error *err) {
    char *dir = fbt_dir_create(), *path = fbt_format("%s/golden.safetensors", dir);
    fbt_safetensors_write(path, g->parts, PARTS, NULL);
    fb_status status = fb_golden_open(path, out, err);
    free(path);
    fbt_dir_remove(dir);
    return status;
}

static void small_is_good(void **state) {
    (void)state;
    small_golden g;
    make_small(&g);
    fb_golden golden;
    fb_error err;
    assert_ok(open_small(&g, &golden, &err), &err);
    assert_int_equal(golden.tokens, 2);
    assert_int_equal(golden.layers, 2);
    assert_int_equal(fb_golden_int(golden.greedy, 1), 4);
    fb_golden_close(&golden);
}

static void optional_parts(void **state) {
    (void)state;
    small_golden g;
    make_small(&g);
    g.parts[GREEDY].name = "other";
    g.parts[LOGITS_F64].name = "another";
    fb_golden golden;
    fb_error err;
    assert_ok(open_small(&g, &golden, &err), &err);
    assert_null(golden.greedy);
    assert_null(golden.logits_f64);
    fb_golden_close(&golden);
}

static void refused(const small_golden *g, const char *words) {
    fb_golden golden;
    fb_error err;
    assert_refused(open_small(g, &golden, &err), FB_ERROR_FILE, &err, words);
    assert_refused(FB_ERROR_FILE, FB_ERROR_FILE, &err, "golden.safetensors");
    assert_null(golden.table);
    assert_null(golden.hidden);
}

static void refuses_missing_parts(void **state) {
    (void)state;
    static const struct {
        int part;
        const char *words;
    } rows[] = {{IDS, "input_ids: missing"},
                {LOGITS, "logits: missing"},
                {HIDDEN_0, "hidden.0: missing"},
                {HIDDEN_1, NULL}}; /* hidden.0 alone is a model without layers */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        small_golden g;
        make_small(&g);
        g.parts[rows[i].part].name = "other";
        if (rows[i].words) refused(&g, rows[i].words);
    }
    small_golden g;
    make_small(&g);
    g.parts[HIDDEN_1].name = "hidden.2";
    refused(&g, "hidden.1: missing");
    g.parts[HIDDEN_1].name = "hidden.01";
    refused(&g, "hidden.1: missing");
}

static void refuses_other_types(void **state) {
    (void)state;
    static const struct {
        int part;
        const char *dtype, *words;
    } rows[] = {
        {IDS, "F32", "input_ids|F32|I32 or I64"}, {HIDDEN_1, "I32", "hidden.1|I32|F32"},
        {LOGITS, "I32", "logits|I32|F32"},        {LOGITS_F64, "I64", "logits_f64|I64|F64"},
        {GREEDY, "F64", "greedy|F64|I32 or I64"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        small_golden g;
        make_small(&g);
        g.parts[rows[i].part].dtype = rows[i].dtype;
        refused(&g, rows[i].words);
    }
}

static void refuses_other_shapes(void **state) {
    (void)state;
    static const struct {
        int part, dims;
        int64_t shape[2];
        const char *words;
    } rows[] = {
        {IDS, 2, {1, 2}, "input_ids|[1, 2]|one dimension"},
        {IDS, 2, {2, 1}, "input_ids|[2, 1]|one dimension"},
        {HIDDEN_0, 2, {3, 2}, "hidden.0|[3, 2]|[2, "},
        {HIDDEN_1, 1, {6}, "hidden.1|[6]|[2, 3]"},
        {HIDDEN_1, 2, {1, 6}, "hidden.1|[1, 6]|[2, 3]"},
        {LOGITS, 1, {10}, "logits|[10]"},
        {LOGITS, 2, {5, 2}, "logits|[5, 2]"},
        {LOGITS_F64, 2, {1, 10}, "logits_f64|[1, 10]|[2, 5]"},
        {GREEDY, 2, {2, 1}, "greedy|[2, 1]|one dimension"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        small_golden g;
        make_small(&g);
        g.parts[rows[i].part].dims = rows[i].dims;
        memcpy(g.parts[rows[i].part].shape, rows[i].shape, sizeof rows[i].shape);
        refused(&g, rows[i].words);
    }
}

static void refuses_nothing_at_all(void **state) {
    (void)state;
    static const struct {
        int part;
        const char *words;
    } rows[] = {{IDS, "input_ids|[0]|at least 1"}, {GREEDY, "greedy|[0]|at least 1"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        small_golden g;
        make_small(&g);
        g.parts[rows[i].part].shape[0] = 0;
        g.parts[rows[i].part].size = 0;
        refused(&g, rows[i].words);
    }
    small_golden g;
    make_small(&g);
    g.parts[LOGITS].shape[1] = 0;
    g.parts[LOGITS].size = 0;
    refused(&g, "logits|[2, 0]|at least 1");
}

static void refuses_bad_values(void **state) {
    (void)state;
    small_golden g;
    make_small(&g);
    g.ids[1] = 5;
    refused(&g, "input_ids: id 1: 5 (0 to 4)");
    make_small(&g);
    g.ids[0] = -1;
    refused(&g, "input_ids: id 0: -1 (0 to 4)");
    make_small(&g);
    g.greedy[1] = (int64_t)1 << 32; /* 0 if it were cut to 32 bits */
    refused(&g, "greedy: id 1: 4294967296 (0 to 4)");
    make_small(&g);
    g.hidden[1][5] = NAN;
    refused(&g, "hidden.1: element 5|nan");
    make_small(&g);
    g.logits[9] = INFINITY;
    refused(&g, "logits: element 9|inf");
    make_small(&g);
    g.logits_f64[0] = -INFINITY;
    refused(&g, "logits_f64: element 0|inf");
}

static void refuses_other_files(void **state) {
    (void)state;
    fb_golden golden;
    fb_error err;
    assert_refused(fb_golden_open("none.safetensors", &golden, &err), FB_ERROR_FILE, &err,
                   "none.safetensors|No such file");
    assert_refused(fb_golden_open(FBT_GOLDENS "/gpt2/model.safetensors", &golden, &err), FB_ERROR_FILE, &err,
                   "model.safetensors|input_ids: missing");
    assert_refused(fb_golden_open(FBT_GOLDENS "/gpt2/config.json", &golden, &err), FB_ERROR_FILE, &err,
                   "header length");
    assert_null(golden.table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_every_golden),    cmocka_unit_test(reads_storyteller),
        cmocka_unit_test(small_is_good),         cmocka_unit_test(optional_parts),
        cmocka_unit_test(refuses_missing_parts), cmocka_unit_test(refuses_other_types),
        cmocka_unit_test(refuses_other_shapes),  cmocka_unit_test(refuses_nothing_at_all),
        cmocka_unit_test(refuses_bad_values),    cmocka_unit_test(refuses_other_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
