/* Perplexity along a stream: against goldens, row by row, and against the perplexity of a window;
 * what is refused, what can be stopped, and that the picture holds whatever was measured. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run/cache.h"
#include "support/support.h"
#include "verify/stream_golden.h"

#define G  FBT_GOLDENS "/"
#define OZ G "streaming/storyteller-oz.safetensors"

enum { IDS = 50 };

static int64_t context_of(const fb_model *model) {
    fb_model_info info;
    fb_model_get_info(model, &info);
    return info.context;
}

static void make_ids(const fb_model *model, int32_t *ids, int64_t count) {
    fb_model_info info;
    fb_model_get_info(model, &info);
    for (int64_t i = 0; i < count; i++) ids[i] = (int32_t)((i * 7919 + 13) % info.vocab);
}

/* All three caches, of unrounded keys. The kinds are those of the last call. */
static fb_cache_kind kinds[FB_CACHE_KINDS];
static fb_curve_options options(int64_t sinks, int64_t window, int64_t every) {
    fb_curve_options o;
    fb_curve_options_default(&o);
    o.threads = 2;
    o.kv = "f32";
    o.sinks = sinks;
    o.window = window;
    o.every = every;
    for (int i = 0; i < FB_CACHE_KINDS; i++) kinds[o.kind_count++] = (fb_cache_kind)i;
    o.kinds = kinds;
    return o;
}

static fb_curve_report *run(const fb_model *model, const fb_curve_options *o, const int32_t *ids,
                            int64_t count) {
    fb_curve_report *report;
    fb_error err;
    assert_ok(fb_curve_run(model, o, ids, count, &report, &err), &err);
    return report;
}

static void close_to(double have, double want, double most) {
    if (!(fabs(have - want) <= most)) fail_msg("%.17g, wanted %.17g (within %g)", have, want, most);
}

/* ---- goldens, in which all keys were rotated anew for every token ---- */

typedef struct text {
    fb_stream_golden golden;
    int32_t *ids;
} text;

static text open_text(const fb_model *model, const char *path) {
    text t;
    fb_error err;
    fb_model_info info;
    fb_model_get_info(model, &info);
    assert_ok(fb_stream_golden_open(path, info.vocab, &t.golden, &err), &err);
    t.ids = malloc((size_t)t.golden.tokens * sizeof *t.ids);
    assert_non_null(t.ids);
    for (int64_t i = 0; i < t.golden.tokens; i++) t.ids[i] = (int32_t)fb_golden_int(t.golden.ids, i);
    return t;
}

static void close_text(text *t) {
    fb_stream_golden_close(&t->golden);
    free(t->ids);
}

/* The golden's case that has this curve's cache. */
static const fb_stream_case *find_case(const text *t, const fb_curve *c) {
    for (int32_t i = 0; i < t->golden.count; i++) {
        const fb_stream_case *k = &t->golden.cases[i];
        if (k->cache == c->cache && k->sinks == c->sinks && k->window == c->window) return k;
    }
    fail_msg("no golden of %s, %lld sinks, window %lld", fb_cache_name(c->cache), (long long)c->sinks,
             (long long)c->window);
    return NULL;
}

/* Every row that the golden can tell, and the whole. Golden nll[i] is of ids[i + 1]: i tokens and itself were
 * read before. */
static void check_curve(const text *t, const fb_curve_report *r, int32_t curve) {
    const fb_stream_case *k = find_case(t, r->curves[curve]);
    int64_t at = 0;
    double all = 0;
    for (int64_t row = 0; row < r->row_count; row++) {
        double sum = 0;
        assert_int_equal(r->rows[row].position, at + r->rows[row].tokens);
        for (; at < r->rows[row].position; at++) sum += fb_golden_real(k->nll, at);
        close_to(r->rows[row].nll[curve], sum / (double)r->rows[row].tokens, 2e-5);
        all += sum;
    }
    assert_int_equal(at, r->total);
    close_to(r->curves[curve]->nll, all / (double)at, 2e-5);
}

static void check_rows(const fb_curve_report *r, int64_t every, int64_t total) {
    assert_int_equal(r->total, total);
    assert_int_equal(r->tokens, total);
    assert_int_equal(r->every, every);
    assert_int_equal(r->row_count, (total + every - 1) / every);
    for (int64_t row = 0; row < r->row_count; row++)
        assert_int_equal(r->rows[row].tokens, row + 1 < r->row_count ? every : total - row * every);
}

/* Five times what the model was trained on: the order of the three is the point of it all. */
static void storyteller(void **state) {
    (void)state;
    fb_model *model = fbt_model_open(FBT_STORYTELLER);
    text t = open_text(model, OZ);
    assert_int_equal(t.ids[0], 0); /* what the tokenizer puts in front */
    fb_curve_options o = options(4, 252, 100);
    fb_curve_report *r = run(model, &o, t.ids + 1, t.golden.tokens - 1);
    check_rows(r, 100, 2500);
    for (int32_t i = 0; i < 3; i++) check_curve(&t, r, i);
    close_to(exp(r->curves[0]->nll), 58.48, 0.005);
    close_to(exp(r->curves[1]->nll), 61.03, 0.005);
    close_to(exp(r->curves[2]->nll), 42.53, 0.005);
    assert_int_equal(r->context, 512);
    assert_int_equal(r->threads, 2);
    assert_string_equal(r->backend, "cpu");
    for (int32_t i = 0; i < 3; i++) assert_true(r->curves[i]->seconds > 0);
    assert_true(r->curves[1]->bytes < r->curves[0]->bytes && r->curves[2]->bytes < r->curves[0]->bytes);
    fb_curve_free(r);
    o = options(1, 255, 300);
    kinds[0] = FB_CACHE_SINKS;
    o.kind_count = 1;
    r = run(model, &o, t.ids + 1, 900);
    check_rows(r, 300, 900);
    check_curve(&t, r, 0);
    fb_curve_free(r);
    close_text(&t);
    fb_model_free(model);
}

/* No tokenizer, so that the first id is not scored; rows and steps that meet the ring's ends anywhere. A
 * dense cache gives the same bits for all of them, but for the order in which rows are added; where a token
 * lies in a ring, and so the order of its sums, depends on the step. */
static void small_models(void **state) {
    (void)state;
    static const char *const names[] = {"neox-parallel", "llama-gqa-tied"};
    static const int64_t everies[] = {7, 1, 1000, 64}, chunks[] = {0, 1, 5, 13};
    for (size_t m = 0; m < 2; m++) {
        char *dir = fbt_format(G "%s", names[m]), *path = fbt_format(G "streaming/%s.safetensors", names[m]);
        fb_model *model = fbt_model_open(dir);
        text t = open_text(model, path);
        fb_curve_report *first = NULL;
        for (int i = 0; i < 4; i++) {
            fb_curve_options o = options(2, 10, everies[i]);
            o.exact = true;
            o.chunk = chunks[i];
            fb_curve_report *r = run(model, &o, t.ids, t.golden.tokens);
            check_rows(r, everies[i], t.golden.tokens - 1);
            check_curve(&t, r, 2);
            for (int32_t c = 0; first && c < 3; c++)
                close_to(r->curves[c]->nll, first->curves[c]->nll, c ? 1e-6 : 1e-12);
            if (first) fb_curve_free(r);
            if (!first) first = r;
        }
        assert_true(first->curves[0]->nll != first->curves[1]->nll);
        fb_curve_free(first);
        close_text(&t);
        fb_model_free(model);
        free(path);
        free(dir);
    }
}

/* Within the context a dense stream is one window of perplexity. */
static void one_window(void **state) {
    (void)state;
    static const char *const models[] = {FBT_STORYTELLER, G "gpt2", G "llama-mha"};
    for (size_t m = 0; m < 3; m++) {
        fb_model *model = fbt_model_open(models[m]);
        int32_t ids[IDS];
        make_ids(model, ids, IDS);
        fb_curve_options o = options(4, 0, 9);
        o.kind_count = 1;
        fb_perplexity_options po;
        fb_perplexity_options_default(&po);
        po.threads = o.threads;
        po.kv = o.kv;
        po.window = IDS + (m == 0); /* the storyteller's begin-of-text token */
        fb_perplexity_report *pr;
        fb_error err;
        assert_ok(fb_perplexity_run(model, &po, ids, IDS, &pr, &err), &err);
        fb_curve_report *r = run(model, &o, ids, IDS);
        assert_int_equal(r->tokens, pr->all.tokens);
        close_to(r->curves[0]->nll, pr->all.nll, 1e-6);
        fb_curve_free(r);
        fb_perplexity_free(pr);
        fb_model_free(model);
    }
}

/* ---- options ---- */

static void reach(void **state) {
    (void)state;
    fb_model *model = fbt_model_open(G "neox-parallel");
    int64_t context = context_of(model);
    int32_t ids[IDS];
    make_ids(model, ids, IDS);
    const struct {
        int64_t sinks, window, settled;
    } rows[] = {{3, 11, 11}, {0, 20, 20}, {4, 0, context - 5}, {1, context - 1, context - 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fb_curve_options o = options(rows[i].sinks, rows[i].window, 256);
        fb_curve_report *r = run(model, &o, ids, IDS);
        assert_int_equal(r->curves[0]->window, 0);
        assert_int_equal(r->curves[1]->sinks, 0);
        assert_int_equal(r->curves[1]->window, rows[i].sinks + rows[i].settled);
        assert_int_equal(r->curves[2]->sinks, rows[i].sinks);
        assert_int_equal(r->curves[2]->window, rows[i].settled);
        fb_curve_free(r);
    }
    fb_model_free(model);
}

static void refuse(const fb_model *model, const fb_curve_options *o, const int32_t *ids, int64_t count,
                   fb_status status, const char *words) {
    fb_curve_report *r;
    fb_error err;
    assert_refused(fb_curve_run(model, o, ids, count, &r, &err), status, &err, words);
    assert_null(r);
}

static void refusals(void **state) {
    (void)state;
    fb_model *story = fbt_model_open(FBT_STORYTELLER), *bare = fbt_model_open(G "neox-parallel");
    int32_t ids[IDS];
    make_ids(bare, ids, IDS);
    fb_curve_options good = options(2, 10, 8), o = good;
    o.kind_count = 0;
    refuse(bare, &o, ids, IDS, FB_ERROR_USAGE, "caches: 0|1 to 3");
    o.kind_count = 4;
    refuse(bare, &o, ids, IDS, FB_ERROR_USAGE, "caches: 4|1 to 3");
    o = good;
    kinds[2] = FB_CACHE_DENSE;
    refuse(bare, &o, ids, IDS, FB_ERROR_USAGE, "cache: dense|twice");
    o = options(2, 10, 0);
    refuse(bare, &o, ids, IDS, FB_ERROR_USAGE, "every: 0|at least 1");
    o = options(-1, 10, 8);
    refuse(bare, &o, ids, IDS, FB_ERROR_USAGE, "sinks: -1|0 to 127");
    o = options(2, INT64_MAX, 8);
    refuse(bare, &o, ids, IDS, FB_ERROR_USAGE, "window: 9223372036854775807|128");
    o = options(2, 127, 8);
    refuse(bare, &o, ids, IDS, FB_ERROR_USAGE, "window: 127|1 to 126: with 2 sinks|128");
    good = options(2, 10, 8);
    refuse(bare, &good, ids, 1, FB_ERROR_USAGE, "text: 1 tokens|at least 2");
    refuse(bare, &good, ids, -1, FB_ERROR_USAGE, "text: -1 tokens");
    refuse(story, &good, ids, 0, FB_ERROR_USAGE, "text: 0 tokens|at least 1");
    ids[IDS - 1] = 1 << 20; /* never read by the model, only looked up */
    refuse(bare, &good, ids, IDS, FB_ERROR_USAGE, "token 49|1048576");
    ids[IDS - 1] = -1;
    refuse(bare, &good, ids, IDS, FB_ERROR_USAGE, "token 49|-1");
    fb_model_free(story);
    fb_model_free(bare);
}

/* Nothing stands for a learned position beyond the last: such a model is dense, and ends with its context. */
static void learned_positions(void **state) {
    (void)state;
    fb_model *model = fbt_model_open(G "gpt2");
    int64_t context = context_of(model);
    int32_t *ids = malloc((size_t)(context + 2) * sizeof *ids);
    assert_non_null(ids);
    make_ids(model, ids, context + 2);
    fb_curve_options o = options(2, 10, 1000);
    for (int kind = 1; kind < FB_CACHE_KINDS; kind++) {
        o.kind_count = 1;
        kinds[0] = (fb_cache_kind)kind;
        refuse(model, &o, ids, IDS, FB_ERROR_UNSUPPORTED, "cache: |learned positions");
    }
    kinds[0] = FB_CACHE_DENSE;
    fb_curve_report *r = run(model, &o, ids, context + 1); /* the last one is foreseen, not read */
    assert_int_equal(r->tokens, context);
    fb_curve_free(r);
    refuse(model, &o, ids, context + 2, FB_ERROR_USAGE, "capacity: |the model's context is");
    free(ids);
    fb_model_free(model);
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
    int32_t ids[IDS];
    make_ids(model, ids, IDS);
    fb_curve_options o = options(2, 10, 8);
    refuse(model, &o, ids, IDS, FB_ERROR_SYSTEM, "logits: NaN|position 0 with cache dense");
    fb_model_free(model);
    free(bytes);
    free(path);
    fbt_dir_remove(dir);
}

/* ---- callbacks ---- */

typedef struct calls {
    int chunks, progress, stop_chunk, stop_progress;
    int64_t done; /* of the caches together */
    int64_t positions[16];
    double last[16]; /* the last curve's nll */
} calls;

static bool on_progress(void *user, const fb_curve_report *r, int64_t part) {
    calls *c = user;
    int64_t done = r->curve_count * r->tokens + part;
    assert_int_equal(r->total, IDS);
    assert_int_equal(r->curve_count, 3);
    assert_int_equal(r->row_count, c->chunks);
    if (c->progress == 0) assert_true(done == 0 && isnan(r->curves[0]->nll));
    if (c->progress > 0) assert_true(done > c->done && done <= 3 * IDS);
    c->done = done;
    return ++c->progress != c->stop_progress;
}

static bool on_chunk(void *user, const fb_curve_report *r, int64_t part) {
    calls *c = user;
    assert_int_equal(part, 0);
    assert_int_equal(r->row_count, c->chunks + 1);
    assert_int_equal(r->tokens, r->rows[r->row_count - 1].position);
    c->positions[c->chunks] = r->rows[r->row_count - 1].position;
    c->last[c->chunks++] = r->rows[r->row_count - 1].nll[r->curve_count - 1];
    return c->chunks != c->stop_chunk;
}

static void callbacks(void **state) {
    (void)state;
    fb_model *model = fbt_model_open(FBT_STORYTELLER);
    int32_t ids[IDS];
    make_ids(model, ids, IDS);
    calls c = {0};
    fb_curve_options o = options(2, 10, 16);
    o.chunk = 8;
    o.on_chunk = on_chunk;
    o.on_progress = on_progress;
    o.user = &c;
    fb_curve_report *r = run(model, &o, ids, IDS);
    assert_int_equal(c.chunks, 4);
    assert_int_equal(c.progress, 1 + 3 * 2 * 3 + 3); /* two steps a row and cache, the last row in one */
    assert_int_equal(c.done, 3 * IDS);
    for (int i = 0; i < 4; i++)
        assert_true(c.positions[i] == r->rows[i].position && c.last[i] == r->rows[i].nll[2]);
    fb_curve_free(r);
    c = (calls){.stop_chunk = 2};
    refuse(model, &o, ids, IDS, FB_ERROR_STOPPED, "stream: stopped|32 of 50 tokens");
    c = (calls){.stop_progress = 3};
    refuse(model, &o, ids, IDS, FB_ERROR_STOPPED, "stream: stopped|0 of 50 tokens");
    assert_int_equal(c.chunks, 0);
    fb_model_free(model);
}

/* ---- the picture ---- */

/* Of a report that no model made: `nll` is of every row, but for one row of one curve. The last row of
 * several has one token. */
static char *draw(const char *dir, int64_t rows, int64_t every, double nll, double odd) {
    fb_curve curves[] = {{.cache = FB_CACHE_DENSE, .nll = odd},
                         {.cache = FB_CACHE_WINDOW, .window = 12, .nll = nll},
                         {.cache = FB_CACHE_SINKS, .sinks = 1, .window = 11, .nll = nll}};
    fb_curve_report r = {.context = 512,
                         .every = every,
                         .tokens = rows * every,
                         .total = rows * every,
                         .curve_count = 3,
                         .row_count = rows,
                         .curves = (fb_curve *[]){&curves[0], &curves[1], &curves[2]}};
    double even[] = {nll, nll, nll}, other[] = {odd, nll, nll};
    r.rows = calloc((size_t)rows, sizeof *r.rows);
    assert_non_null(r.rows);
    for (int64_t i = 0; i < rows; i++)
        r.rows[i] =
            (fb_curve_row){.position = (i + 1) * every, .tokens = every, .nll = i == rows / 2 ? other : even};
    if (rows > 1) r.rows[rows - 1].tokens = 1;
    if (rows > 1) r.rows[rows - 1].position -= every - 1;
    char *path = fbt_format("%s/x.svg", dir);
    fb_error err;
    assert_ok(fb_curve_svg(&r, path, &err), &err);
    size_t size;
    char *svg = fbt_file_read(path, &size);
    svg = realloc(svg, size + 1);
    assert_non_null(svg);
    svg[size] = '\0';
    free(path);
    free(r.rows);
    return svg;
}

static void need(const char *svg, const char *words, bool there) {
    if ((strstr(svg, words) != NULL) != there)
        fail_msg("\"%s\" %s: %s", words, there ? "missing" : "there", svg);
}

static int count_of(const char *svg, const char *words) {
    int count = 0;
    for (const char *c = svg; (c = strstr(c, words)); c++) count++;
    return count;
}

static void pictures(void **state) {
    (void)state;
    const struct {
        int64_t rows, every;
        double nll, odd;
        const char *there;
        int lines; /* from point to point */
    } cases[] = {
        {10, 256, 3, 3.5, ">1 sink + window of 11<", 24}, /* an even scale */
        {10, 256, 3, 9, ">all of the text: 8,103<", 24},  /* decades */
        {10, 256, 3, 700, ">dense<", 24},                 /* many of them */
        {10, 256, 3, INFINITY, ">all of the text: ∞<", 22},
        {10, 256, 3, INFINITY, ">20.2<", 22}, /* the scale of the others */
        {1, 1, 3, 3, ">window of 12<", 0},    /* one point */
        {1, 1, INFINITY, INFINITY, ">dense<", 0},
        {1, 1, 0, 0, ">all of the text: 1.00<", 0}, /* all of it foreseen */
        {5000, 100, 3, 4, ">One text of 500,000 tokens, read from beginning to end<", 297},
    };
    char *dir = fbt_dir_create();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *svg = draw(dir, cases[i].rows, cases[i].every, cases[i].nll, cases[i].odd);
        need(svg, "nan", false);
        need(svg, "inf", false);
        need(svg, cases[i].there, true);
        need(svg, ">trained on 512 tokens<", cases[i].rows * cases[i].every >= 512);
        /* The axes, their ticks, and a line to each label; as many points as can be told apart, and none of
         * the one token at the end. */
        assert_in_range(count_of(svg, "<line "), 6, 40);
        assert_int_equal(count_of(svg, "L"), cases[i].lines);
        assert_true(strlen(svg) < 16000); /* however long the text was */
        assert_string_equal(svg + strlen(svg) - 7, "</svg>\n");
        free(svg);
    }
    fb_curve_report none = {.rows = NULL};
    fb_error err;
    assert_refused(fb_curve_svg(&none, dir, &err), FB_ERROR_USAGE, &err, "curve: 0 rows|at least 1");
    fbt_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(storyteller), cmocka_unit_test(small_models), cmocka_unit_test(one_window),
        cmocka_unit_test(reach),       cmocka_unit_test(refusals),     cmocka_unit_test(learned_positions),
        cmocka_unit_test(nan_fails),   cmocka_unit_test(callbacks),    cmocka_unit_test(pictures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
