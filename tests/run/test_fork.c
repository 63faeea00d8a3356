/* Forks when things go wrong or have gone: the caller's words, memory for the copy, what was never written.
 * That forks give the right answers is in test_stream.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "support/support.h"

static fb_model *model;

static int open_model(void **state) {
    (void)state;
    fb_error err;
    assert_ok(fb_model_open("models/storyteller", &model, &err), &err);
    return 0;
}

static int close_model(void **state) {
    (void)state;
    fb_model_free(model);
    return 0;
}

static fb_session *session_of(const fb_session_options *options) {
    static const int32_t ids[] = {0, 48, 1717, 587};
    fb_session *s;
    fb_error err;
    assert_ok(fb_session_create(model, options, &s, &err), &err);
    assert_ok(fb_session_prefill(s, ids, 4, &err), &err);
    return s;
}

static int32_t next_of(fb_session *s, int32_t id) {
    fb_error err;
    int32_t best;
    assert_ok(fb_session_decode(s, id, &err), &err);
    assert_ok(fb_session_best(s, &best, &err), &err);
    return best;
}

/* What the options pointed to may go as soon as the session is there. */
static void the_callers_words_may_go(void **state) {
    (void)state;
    fb_session_options o;
    fb_error err;
    fb_session_options_default(&o);
    char *words[] = {strdup("portable"), strdup("none"), strdup("f32"), strdup("cpu")};
    o.isa = words[0];
    o.fuse = words[1];
    o.kv = words[2];
    o.backend = words[3];
    fb_session *s = session_of(&o), *fork;
    for (int i = 0; i < 4; i++) {
        memset(words[i], '#', strlen(words[i]));
        free(words[i]);
    }
    assert_ok(fb_session_fork(s, &fork, &err), &err);
    assert_string_equal(fb_session_isa(fork), "portable");
    assert_int_equal(next_of(fork, 7), next_of(s, 7));
    fb_session_free(s);
    fb_session_free(fork);
}

/* Kilobytes of address space, or resident: the first two numbers of statm, in pages of 4. */
static long pages(int number) {
    long value[2] = {0};
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld %ld", &value[0], &value[1]), 2);
    fclose(f);
    return value[number];
}

/* Without memory for the copy a step fails, and nothing else: it can be tried again. */
static void no_memory_for_the_copy(void **state) {
    (void)state;
    if (FBT_SANITIZED) skip(); /* which take address space as they like */
    fb_session_options o;
    fb_error err;
    fb_session_options_default(&o);
    o.capacity = 50000; /* 400 MB, which nobody has left over */
    o.beyond_context = true;
    fb_session *s = session_of(&o), *fork;
    assert_ok(fb_session_fork(s, &fork, &err), &err);
    struct rlimit before, tight;
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    tight = before;
    tight.rlim_cur = (rlim_t)(pages(0) * 4096) + (1 << 20);
    assert_int_equal(setrlimit(RLIMIT_AS, &tight), 0);
    fb_status refused = fb_session_decode(fork, 7, &err);
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_refused(refused, FB_ERROR_MEMORY, &err, "KV cache of 50000 tokens");
    assert_int_equal(fb_session_position(fork), 4);
    assert_int_equal(next_of(fork, 7), next_of(s, 7));
    fb_session_free(fork);
    fb_session_free(s);
}

/* A copy has what the tokens so far have written: pages beyond are not touched. */
static void copies_what_is_there(void **state) {
    (void)state;
    if (FBT_SANITIZED) skip();
    fb_session_options o;
    fb_error err;
    fb_session_options_default(&o);
    o.capacity = 200000; /* 1.6 GB, of which four tokens are there */
    o.beyond_context = true;
    fb_session *s = session_of(&o), *fork;
    assert_ok(fb_session_fork(s, &fork, &err), &err);
    long before = pages(1);
    int32_t have = next_of(fork, 7);
    assert_true((pages(1) - before) * 4096 < 4 << 20);
    assert_int_equal(have, next_of(s, 7));
    fb_session_free(fork);
    fb_session_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_callers_words_may_go),
                                       cmocka_unit_test(no_memory_for_the_copy),
                                       cmocka_unit_test(copies_what_is_there)};
    return cmocka_run_group_tests_name("fork", tests, open_model, close_model);
}
