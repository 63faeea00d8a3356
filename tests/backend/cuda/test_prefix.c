/* The prefix cache of a device whose layers forget: blocks lie in the slots where computing anew puts them,
 * and slots that nobody sees have numbers. Emulated kernels are slow: few tokens, and the smallest rings. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_harness.h"
#include "support/answers.h"

enum { REQUESTS = 3 };

/* A ring of this window has 256 slots. Two prompts go round; the last one ends early. */
static const fbt_beginning of[REQUESTS] = {{330, 330}, {310, 320}, {70, 80}};

static void ask(const char *name, fb_cache_kind cache, int64_t sinks, const char *fuse) {
    fb_model *model = fbt_golden_stretched(name, 1024);
    fb_session_options session;
    fb_scheduler_options options;
    fbt_heard heard[REQUESTS];
    fb_session_options_default(&session);
    session.backend = "cuda";
    session.act = FB_F16;
    session.fuse = fuse;
    session.cache = cache;
    session.sinks = sinks;
    session.window = 17; /* one more than a block: it sees one token of another */
    fb_scheduler_options_default(&options);
    options.sequences = 2;
    options.rows = 64;
    options.block = 16;
    options.cache_tokens = 4096;
    fbt_ask_beginnings(model, &session, &options, of, REQUESTS, heard);
    assert_int_equal(heard[1].cached, sinks + (310 - sinks) / 16 * 16);
    assert_int_equal(heard[2].cached, sinks + (70 - sinks) / 16 * 16);
    fb_model_free(model);
}

static void window(void **state) {
    (void)state;
    ask("llama-gqa-tied", FB_CACHE_WINDOW, 0, "all");
}

static void sinks(void **state) {
    (void)state;
    ask("neox-parallel", FB_CACHE_SINKS, 4, "none");
}

/* A request goes on from the answer of another. A block with generated tokens is found again if they have the
 * bits of a prompt's. */
static void go_on(bool exact, int64_t cached) {
    enum { PROMPT = 20, TOKENS = 24, MORE = 5, BLOCK = 16 };
    fb_model *model = fbt_golden_open("llama-gqa-tied");
    fb_session_options session;
    fb_scheduler_options options;
    fb_scheduler *s;
    fb_error err;
    fbt_heard first = {0}, second = {0}, alone;
    int32_t ids[PROMPT + TOKENS + MORE];
    for (int i = 0; i < PROMPT + TOKENS + MORE; i++) ids[i] = 10 + i * i % 90;
    fb_session_options_default(&session);
    session.backend = "cuda";
    session.act = FB_F16;
    session.fuse = "all,-step"; /* the emulated device of these tests has too many multiprocessors for it */
    session.exact = exact;
    fb_scheduler_options_default(&options);
    options.sequences = 2;
    options.block = BLOCK;
    assert_ok(fb_scheduler_create(model, &session, &options, &s, &err), &err);
    fbt_submit(s, model, NULL, ids, PROMPT, TOKENS, &first);
    fbt_run_all(s);
    memcpy(ids + PROMPT, first.tokens, sizeof(int32_t) * TOKENS);
    fbt_submit(s, model, NULL, ids, PROMPT + TOKENS + MORE, 3, &second);
    fbt_run_all(s);
    fb_scheduler_free(s);
    assert_int_equal(second.cached, cached);
    fbt_alone(model, &session, ids, PROMPT + TOKENS + MORE, 3, &alone);
    fbt_check_same(&second, &alone);
    fb_model_free(model);
}

static void generated_tokens(void **state) {
    (void)state;
    go_on(true, 32);
    go_on(false, 16);
}

int main(void) {
    const char *given = getenv("FUSEBOX_CUDA_LIBRARY");
    if (!given || !*given || strcmp(given, "none") == 0) fb_cuda_library(cuda_emulated_path(), NULL);
    const struct CMUnitTest tests[] = {cmocka_unit_test(window), cmocka_unit_test(sinks),
                                       cmocka_unit_test(generated_tokens)};
    return cuda_run_group("prefix", tests, 3, NULL);
}
