/* One stream, timed. Nothing here depends on how fast anything is. */
#include <math.h>
#include <stdlib.h>

#include "bench/bench.h"
#include "support/support.h"

enum { SINKS = 4, WINDOW = 12, REACH = SINKS + WINDOW, CONTEXT = 128 };

static fb_bench_stream_options small(fb_cache_kind cache) {
    fb_bench_stream_options o;
    fb_bench_stream_options_default(&o);
    assert_int_equal(o.cache, FB_CACHE_SINKS);
    assert_true(o.ttft_limit == 10);
    o.cache = cache;
    o.window = WINDOW;
    o.threads = 2;
    return o;
}

static fb_bench_stream_report *run(const char *name, const fb_bench_stream_options *o) {
    fb_model *model = fbt_golden_open(name);
    fb_bench_stream_report *r;
    fb_error err;
    assert_ok(fb_bench_stream_run(model, o, &r, &err), &err);
    fb_model_free(model);
    return r;
}

/* ---- where it is looked at ---- */

static void check_positions(int64_t first, int64_t last, int64_t steps, const int64_t *wanted,
                            int32_t count) {
    int64_t positions[FB_BENCH_STREAM_LINES];
    assert_int_equal(fb_bench_stream_positions(first, last, steps, positions), count);
    for (int32_t i = 0; i < count; i++) assert_int_equal(positions[i], wanted[i]);
}

static void positions(void **state) {
    (void)state;
    check_positions(256, 256, 128, (int64_t[]){256}, 1);
    check_positions(256, 383, 128, (int64_t[]){256}, 1); /* its steps come that far */
    check_positions(256, 384, 128, (int64_t[]){256, 384}, 2);
    check_positions(256, 2048, 128, (int64_t[]){256, 512, 1024, 2048}, 4);
    check_positions(256, 3000, 128, (int64_t[]){256, 512, 1024, 2048, 3000}, 5);
    check_positions(1, 128, 1, (int64_t[]){1, 2, 4, 8, 16, 32, 64, 128}, 8);
    check_positions(1, 200, 1, (int64_t[]){1, 4, 16, 64, 200}, 5); /* the end would be the ninth */
    check_positions(1, 256, 1, (int64_t[]){1, 4, 16, 64, 256}, 5);
    check_positions(1, 1ll << 30, 1, (int64_t[]){1, 32, 1 << 10, 1 << 15, 1 << 20, 1 << 25, 1 << 30}, 7);
}

/* ---- the lines ---- */

static void check_spread(const fb_spread *s) {
    assert_true(s->p10 > 0 && s->p10 <= s->median && s->median <= s->p90 && isfinite(s->p90));
}

static void check_lines(const fb_bench_stream_report *r) {
    for (int32_t i = 0; i < r->line_count; i++) {
        const fb_bench_stream_line *line = r->lines[i];
        if (i) assert_true(line->position >= r->lines[i - 1]->position + r->steps);
        check_spread(&line->tpot);
        assert_true(line->ttft > 0 && isfinite(line->ttft));
        assert_int_equal(line->cache_bytes, r->lines[0]->cache_bytes);
        assert_true(line->resident_bytes > 1 << 20);
    }
}

static void stream_is_timed_along_its_way(void **state) {
    (void)state;
    static const char *const names[] = {"llama-gqa-tied", "neox-parallel"};
    for (int i = 0; i < 4; i++) {
        bool sinks = i % 2;
        fb_bench_stream_options o = small(sinks ? FB_CACHE_SINKS : FB_CACHE_WINDOW);
        o.gen = 300; /* more than twice the model's context */
        fb_bench_stream_report *r = run(names[i / 2], &o);
        int64_t reach = sinks ? REACH : WINDOW, at = reach;
        assert_int_equal(r->cache, o.cache);
        assert_int_equal(r->sinks, sinks ? SINKS : 0);
        assert_int_equal(r->window, WINDOW);
        assert_int_equal(r->gen, 300);
        assert_int_equal(r->context, CONTEXT);
        assert_int_equal(r->steps, reach);
        assert_int_equal(r->checked, reach);
        assert_int_equal(r->threads, 2);
        assert_int_equal(r->line_count, 6);
        for (int32_t l = 0; l < 5; l++, at *= 2) assert_int_equal(r->lines[l]->position, at);
        assert_int_equal(r->lines[5]->position, 300);
        check_lines(r);
        assert_int_equal(r->recompute_steps, 5);
        check_spread(&r->recompute);
        assert_true(fabs(r->ratio * r->lines[5]->tpot.median / r->recompute.median - 1) < 1e-12);
        fb_bench_stream_free(r);
    }
}

static void defaults_follow_the_cache(void **state) {
    (void)state;
    fb_bench_stream_options o = small(FB_CACHE_SINKS);
    fb_bench_stream_report *r = run("llama-gqa-tied", &o);
    assert_int_equal(r->gen, 16 * REACH);
    assert_int_equal(r->line_count, 5);
    fb_bench_stream_free(r);
    /* As small as a cache can be. */
    o = small(FB_CACHE_WINDOW);
    o.window = 1;
    r = run("llama-gqa-tied", &o);
    assert_int_equal(r->steps, 1);
    assert_int_equal(r->checked, 1);
    assert_int_equal(r->lines[0]->position, 1);
    check_lines(r);
    fb_bench_stream_free(r);
}

static void dense_ends_at_the_context(void **state) {
    (void)state;
    static const char *const names[] = {"llama-gqa-tied", "gpt2"};
    for (int i = 0; i < 4; i++) {
        fb_bench_stream_options o = small(FB_CACHE_DENSE);
        o.gen = i < 2 ? 0 : 100000;
        fb_bench_stream_report *r = run(names[i % 2], &o);
        assert_int_equal(r->sinks + r->window + r->checked + r->recompute_steps, 0);
        assert_true(isnan(r->ratio));
        assert_int_equal(r->gen, i < 2 ? CONTEXT : 100000);
        assert_int_equal(r->line_count, 5);
        assert_int_equal(r->lines[4]->position + r->steps, CONTEXT);
        check_lines(r);
        fb_bench_stream_free(r);
    }
    fb_bench_stream_options o = small(FB_CACHE_DENSE);
    o.gen = 3;
    fb_bench_stream_report *r = run("llama-gqa-tied", &o);
    assert_int_equal(r->line_count, 1);
    assert_int_equal(r->lines[0]->position, 3);
    fb_bench_stream_free(r);
}

/* Without any time to wait, a prompt is read that is one chunk, and none that is longer. */
static void long_prompts_are_given_up(void **state) {
    (void)state;
    fb_bench_stream_options o = small(FB_CACHE_SINKS);
    o.chunk = REACH;
    o.ttft_limit = 0;
    fb_bench_stream_report *r = run("llama-gqa-tied", &o);
    assert_true(r->lines[0]->ttft > 0);
    for (int32_t i = 1; i < r->line_count; i++) assert_true(isnan(r->lines[i]->ttft));
    check_spread(&r->recompute);
    fb_bench_stream_free(r);
}

/* ---- the check ---- */

static fb_session *create(const fb_model *model, fb_cache_kind cache, int64_t window, bool greedy) {
    fb_session_options o;
    fb_session_options_default(&o);
    o.cache = cache;
    o.window = window;
    o.greedy = greedy;
    o.threads = 1;
    fb_session *session;
    fb_error err;
    assert_ok(fb_session_create(model, &o, &session, &err), &err);
    return session;
}

enum { PROMPT = 20, SAID = 20 };

/* A prompt, and what a session with this window says after it. */
static void generate(const fb_model *model, int64_t window, int32_t ids[PROMPT + SAID + 1]) {
    fb_error err;
    fb_session *session = create(model, FB_CACHE_WINDOW, window, true);
    fb_bench_ids(model, ids, PROMPT);
    assert_ok(fb_session_prefill(session, ids, PROMPT, &err), &err);
    for (int i = 0; i <= SAID; i++) {
        assert_ok(fb_session_best(session, &ids[PROMPT + i], &err), &err);
        if (i < SAID) assert_ok(fb_session_decode(session, ids[PROMPT + i], &err), &err);
    }
    fb_session_free(session);
}

/* With a model that was trained: what it says depends on more than its last token. */
static void check_sees_what_was_forgotten(void **state) {
    (void)state;
    fb_error err;
    fb_model *model;
    assert_ok(fb_model_open(FBT_STORYTELLER, &model, &err), &err);
    fb_session *dense = create(model, FB_CACHE_DENSE, 0, false);
    int32_t ids[PROMPT + SAID + 1];
    double tolerance = fb_bench_tolerance(model, &(fb_session_options){.act = FB_F32});
    generate(model, PROMPT + SAID, ids); /* nothing is forgotten */
    assert_ok(fb_bench_stream_check(dense, ids, PROMPT, SAID, tolerance, &err), &err);
    ids[PROMPT + SAID] ^= 1; /* the last one counts, too */
    fb_session_reset(dense);
    assert_refused(fb_bench_stream_check(dense, ids, PROMPT, SAID, tolerance, &err), FB_ERROR_SYSTEM, &err,
                   "after 40 tokens the stream says|a dense cache");
    generate(model, 3, ids);
    fb_session_reset(dense);
    assert_refused(fb_bench_stream_check(dense, ids, PROMPT, SAID, tolerance, &err), FB_ERROR_SYSTEM, &err,
                   "the stream says|a dense cache");
    fb_session_free(dense);
    fb_model_free(model);
}

/* ---- refusals ---- */

typedef struct watch {
    int64_t calls, stop_at;
    int64_t furthest;
} watch;

static bool count_until(void *user, int64_t done, int64_t total) {
    watch *w = user;
    assert_true(done >= 0 && done <= total);
    assert_int_equal(total, 256 + REACH);
    assert_true(done - w->furthest <= 16); /* often enough for who waits */
    if (done > w->furthest) w->furthest = done;
    return w->calls++ < w->stop_at;
}

/* Whenever it wishes: in the check, in the stream, in a prompt, in a recomputation. */
static void owner_can_stop(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("llama-gqa-tied");
    watch all = {.stop_at = INT64_MAX};
    fb_bench_stream_options o = small(FB_CACHE_SINKS);
    fb_bench_stream_report *r;
    fb_error err;
    o.on_progress = count_until;
    o.user = &all;
    assert_ok(fb_bench_stream_run(model, &o, &r, &err), &err);
    fb_bench_stream_free(r);
    assert_int_equal(all.furthest, 256 + REACH);
    for (int64_t stop_at = 0; stop_at < all.calls; stop_at++) {
        watch w = {.stop_at = stop_at};
        o.user = &w;
        fb_status status = fb_bench_stream_run(model, &o, &r, &err);
        assert_refused(status, FB_ERROR_STOPPED, &err, "bench: stopped after|of 272 tokens");
        assert_null(r);
        assert_int_equal(w.calls, stop_at + 1);
    }
    fb_model_free(model);
}

static void check_refused(const char *name, const fb_bench_stream_options *o, fb_status status,
                          const char *words) {
    fb_model *model = fbt_golden_open(name);
    fb_bench_stream_report *r;
    fb_error err;
    assert_refused(fb_bench_stream_run(model, o, &r, &err), status, &err, words);
    assert_null(r);
    fb_model_free(model);
}

static void refusals(void **state) {
    (void)state;
    fb_bench_stream_options o = small(FB_CACHE_SINKS);
    check_refused("gpt2", &o, FB_ERROR_UNSUPPORTED, "cache: sinks|learned positions|128");
    o.gen = REACH - 1;
    check_refused("llama-gqa-tied", &o, FB_ERROR_USAGE, "gen: 15|at least 16");
    o.gen = -1;
    check_refused("llama-gqa-tied", &o, FB_ERROR_USAGE, "gen: -1|0 to");
    o.gen = INT64_MAX;
    check_refused("llama-gqa-tied", &o, FB_ERROR_USAGE, "gen: 9223372036854775807|0 to 1073741824");
    o = small(FB_CACHE_SINKS);
    o.window = CONTEXT;
    check_refused("llama-gqa-tied", &o, FB_ERROR_USAGE, "window: 128|124");
    o = small(FB_CACHE_SINKS);
    o.fuse = "nothing";
    check_refused("llama-gqa-tied", &o, FB_ERROR_USAGE, "nothing|add_norm");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(positions),
        cmocka_unit_test(stream_is_timed_along_its_way),
        cmocka_unit_test(defaults_follow_the_cache),
        cmocka_unit_test(dense_ends_at_the_context),
        cmocka_unit_test(long_prompts_are_given_up),
        cmocka_unit_test(check_sees_what_was_forgotten),
        cmocka_unit_test(owner_can_stop),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
