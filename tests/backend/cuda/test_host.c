/* The engine's host code when the device fails: at every call that can fail, and without memory; a recorded
 * step while a ring wraps; forks. Each run is a process of its own, because the emulated device
 * (tests/support/emulate) is told once when to fail. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/cuda/cuda_harness.h"
#include "fusebox.h"

enum { PROMPT = 6, STEPS = 2, CHUNK = 4 };

static fb_model *model;
static int32_t expected[STEPS + 1]; /* greedy tokens, by the CPU */

static const int32_t prompt[PROMPT] = {5, 250, 17, 9, 111, 42};

static int32_t best_of(const float *logits, int64_t vocab) {
    int32_t best = 0;
    for (int64_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = (int32_t)i;
    return best;
}

static fb_status next_token(fb_session *s, bool greedy, int32_t *id, fb_error *err) {
    const float *logits;
    int64_t rows, vocab;
    if (greedy) return fb_session_best(s, id, err);
    fb_status status = fb_session_logits(s, &logits, &rows, &vocab, err);
    if (status == FB_OK) *id = best_of(logits, vocab);
    return status;
}

static fb_status write_tokens(fb_session *s, bool greedy, int32_t *tokens, fb_error *err) {
    fb_status status = fb_session_prefill(s, prompt, PROMPT, err);
    if (status == FB_OK) status = next_token(s, greedy, &tokens[0], err);
    for (int i = 0; status == FB_OK && i < STEPS; i++) {
        status = fb_session_decode(s, tokens[i], err);
        if (status == FB_OK) status = next_token(s, greedy, &tokens[i + 1], err);
    }
    return status;
}

typedef struct way {
    const char *fuse;
    bool greedy, profile;
    fb_dtype act; /* 16 bits: the persistent kernel runs the layers */
} way;
static const way ways[] = {{"all", true, false, FB_F32},
                           {"none", false, false, FB_F32},
                           {"all,-graph", false, true, FB_F32},
                           {"all", false, false, FB_F16}};
enum { WAYS = sizeof ways / sizeof *ways };

static fb_session_options options_of(const char *backend, const way *w) {
    fb_session_options o;
    fb_session_options_default(&o);
    o.backend = backend;
    o.fuse = w->fuse;
    o.greedy = w->greedy;
    o.act = w->act;
    o.profile = w->profile;
    o.chunk = CHUNK;
    return o;
}

/* ---- in the child ---- */

static int complain(const char *what, const char *detail) {
    fprintf(stderr, "%s: %s\n", what, detail);
    return 1;
}

/* A refusal names the device or the memory, in one line. */
static int check_refusal(fb_status status, const fb_error *err) {
    if (status != FB_ERROR_SYSTEM && status != FB_ERROR_MEMORY)
        return complain("another status", err->message);
    if (err->status != status || strncmp(err->message, "cuda: ", 6) != 0 || strchr(err->message, '\n'))
        return complain("a bad message", err->message);
    return 0;
}

/* In a child process. Its parent has no model open: threads do not survive a fork. */
static void open_model(void) {
    fb_error err;
    if (fb_model_open(FBT_GOLDENS "/llama-gqa-tied", &model, &err) != FB_OK) _exit(126);
}

/* Weights stay on the device as long as the model is open. */
static int check_nothing_is_held(void) {
    fb_device_info info;
    fb_error err;
    bool found;
    fb_model_free(model);
    open_model();
    if (fb_device_get(0, &found, &info, &err) != FB_OK || !found)
        return complain("no device afterwards", err.message);
    return info.memory_free == info.memory ? 0 : complain("device memory is still held", "");
}

static int check_tokens(const int32_t *tokens, const char *when) {
    return memcmp(tokens, expected, sizeof expected) == 0 ? 0 : complain("other tokens", when);
}

enum { NEVER_FAILED = 77 };

/* Runs everything in this order; one call fails somewhere. Then the session goes on after a reset, or, if
 * there is none, a new one works. */
static int survive(const way *w) {
    fb_session_options o = options_of("cuda", w);
    int32_t tokens[STEPS + 1];
    fb_session *s = NULL;
    fb_error err;
    bool failed = false, was_session = false;
    fb_status status = fb_session_create(model, &o, &s, &err);
    if (status != FB_OK) {
        if (s) return complain("a session in spite of a failure", err.message);
        if (check_refusal(status, &err)) return 1;
        failed = true;
    } else {
        was_session = true;
        status = write_tokens(s, w->greedy, tokens, &err);
        if (status == FB_OK && check_tokens(tokens, "without a failure")) return 1;
        if (status != FB_OK) {
            if (check_refusal(status, &err)) return 1;
            failed = true;
            fb_session_reset(s);
            status = write_tokens(s, w->greedy, tokens, &err);
            if (status != FB_OK) return complain("after a reset", err.message);
            if (check_tokens(tokens, "after a reset")) return 1;
        }
    }
    fb_session_free(s);
    if (check_nothing_is_held()) return 1;
    if (!failed) return NEVER_FAILED;
    if (was_session) return 0;
    if (fb_session_create(model, &o, &s, &err) != FB_OK) return complain("a new session", err.message);
    if (write_tokens(s, w->greedy, tokens, &err) != FB_OK) return complain("in a new session", err.message);
    fb_session_free(s);
    return check_tokens(tokens, "in a new session") || check_nothing_is_held();
}

/* Prints the message. Many rows at once, so that activations are larger than the staging buffers of loading.
 */
static int create_only(const way *w) {
    fb_session_options o = options_of("cuda", w);
    o.chunk = 0;
    o.all_logits = true;
    o.kv = "f32";
    fb_session *s;
    fb_error err;
    fb_status status = fb_session_create(model, &o, &s, &err);
    if (status == FB_OK) {
        fb_session_free(s);
        return NEVER_FAILED;
    }
    printf("%d %s", (int)status, err.message);
    if (s) return complain("a session in spite of a failure", err.message);
    fb_device_info info;
    bool found;
    if (fb_device_get(0, &found, &info, &err) == FB_OK && found && check_nothing_is_held()) return 1;
    o.backend = "auto";
    if (status != FB_ERROR_MEMORY) { /* then the CPU serves */
        if (fb_session_create(model, &o, &s, &err) != FB_OK) return complain("auto", err.message);
        if (strcmp(fb_session_backend(s), "cpu") != 0) return complain("auto", fb_session_backend(s));
        fb_session_free(s);
    }
    return 0;
}

/* Sinks, and a ring of a window and a chunk: 14 slots. */
enum { RING = 14, WRAPS = 3, BEFORE = 10, AFTER = 2 }; /* tokens around a fork */
static fb_session_options ring_options(const char *backend, const way *w) {
    fb_session_options o = options_of(backend, w);
    o.cache = FB_CACHE_SINKS;
    o.sinks = 2;
    o.window = RING - CHUNK;
    return o;
}

/* A count that the emulated device keeps. */
static int64_t counted(const char *name) {
    void *library = dlopen(cuda_emulated_path(), RTLD_NOW | RTLD_NOLOAD);
    const int64_t *count = library ? dlsym(library, name) : NULL;
    return count ? *count : -1;
}
static int64_t graphs_recorded(void) { return counted("fb_emulated_graphs"); }

static int64_t graphs_launched(const fb_session *s) {
    const char *name;
    int64_t calls, a_step, a_head;
    for (int i = 0; fb_session_fuse_calls(s, i, &name, &calls, &a_step, &a_head); i++)
        if (strcmp(name, "graph") == 0) return calls;
    return -1;
}

static fb_status stream(fb_session *s, int32_t *tokens, fb_error *err) {
    fb_status status = fb_session_prefill(s, prompt, PROMPT, err);
    for (int i = 0; status == FB_OK && i <= WRAPS * RING; i++) {
        status = fb_session_best(s, &tokens[i], err);
        if (status == FB_OK && i < WRAPS * RING) status = fb_session_decode(s, tokens[i], err);
    }
    return status;
}

/* One recording serves every position of a ring, and gives the CPU's tokens. */
static int turn_the_ring(const way *w) {
    int32_t have[WRAPS * RING + 1], want[WRAPS * RING + 1];
    fb_session_options o = ring_options("cpu", w);
    fb_session *s;
    fb_error err;
    if (fb_session_create(model, &o, &s, &err) != FB_OK) return complain("cpu", err.message);
    if (stream(s, want, &err) != FB_OK) return complain("cpu", err.message);
    fb_session_free(s);
    o = ring_options("cuda", w);
    if (fb_session_create(model, &o, &s, &err) != FB_OK) return complain("cuda", err.message);
    if (stream(s, have, &err) != FB_OK) return complain("cuda", err.message);
    if (memcmp(have, want, sizeof want) != 0) return complain("the ring", "other tokens than the CPU's");
    if (graphs_launched(s) != WRAPS * RING) return complain("the ring", "a decode step was no graph");
    if (graphs_recorded() != 1) return complain("the ring", "not one recording");
    fb_session_free(s);
    return check_nothing_is_held();
}

/* How a session continues: the prompt, then tokens of a kind, one by one in `steps` steps from the kind's
 * step number `from` on. Every kind begins with the last token before the fork. The device then already has
 * the row, because the step before had the same token. Only the cache has changed, and must be sent. */
static fb_status go_on(fb_session *s, int kind, int from, int steps, fb_error *err) {
    fb_status status = FB_OK;
    for (int i = from; status == FB_OK && i < from + steps; i++)
        status = fb_session_decode(s, (i ? kind * 50 + i * 7 : (BEFORE - 1) * 7) % 256, err);
    return status;
}

static int same_logits(fb_session *a, fb_session *b, const char *what) {
    const float *x, *y;
    int64_t rows, vocab;
    fb_error err;
    if (fb_session_logits(a, &x, &rows, &vocab, &err) != FB_OK) return complain(what, err.message);
    if (fb_session_logits(b, &y, &rows, &vocab, &err) != FB_OK) return complain(what, err.message);
    return memcmp(x, y, (size_t)vocab * sizeof *x) == 0 ? 0 : complain("not a fresh session's logits", what);
}

/* A session that has read the same tokens as a fork, before and after it was forked. */
static int is_fresh(fb_session *s, const fb_session_options *o, int kind, const char *what) {
    fb_session *fresh;
    fb_error err;
    if (fb_session_create(model, o, &fresh, &err) != FB_OK) return complain(what, err.message);
    if (fb_session_prefill(fresh, prompt, PROMPT, &err) != FB_OK ||
        go_on(fresh, 0, 0, BEFORE, &err) != FB_OK || go_on(fresh, kind, 0, 2 * AFTER, &err) != FB_OK)
        return complain(what, err.message);
    int differs = same_logits(s, fresh, what);
    fb_session_free(fresh);
    return differs;
}

static int64_t memory_free(void) {
    fb_device_info info;
    fb_error err;
    bool found;
    return fb_device_get(0, &found, &info, &err) == FB_OK && found ? info.memory_free : -1;
}

/* The first of the two that goes on takes the copy. Parent and fork share a recording, which serves any
 * cache. */
static int part_ways(const fb_session_options *o, bool parent_first) {
    fb_session *s[2];
    fb_cache_info cache;
    fb_error err;
    if (fb_session_create(model, o, &s[0], &err) != FB_OK ||
        fb_session_prefill(s[0], prompt, PROMPT, &err) != FB_OK || go_on(s[0], 0, 0, BEFORE, &err) != FB_OK)
        return complain("the parent", err.message);
    fb_session_get_cache(s[0], &cache);
    int64_t graphs = graphs_recorded();
    if (fb_session_fork(s[0], &s[1], &err) != FB_OK) return complain("the fork", err.message);
    if (same_logits(s[0], s[1], "a fork at once")) return 1;
    int64_t before = memory_free();
    int first = parent_first ? 0 : 1;
    for (int round = 0; round < 2; round++)
        for (int n = 0; n < 2; n++) {
            int who = n ? 1 - first : first;
            if (go_on(s[who], 1 + who, round * AFTER, AFTER, &err) != FB_OK)
                return complain("after the fork", err.message);
            if (before - memory_free() != cache.bytes) return complain("the fork", "not one copy");
        }
    if (graphs_recorded() != graphs) return complain("the fork", "recordings");
    if (is_fresh(s[0], o, 1, "the parent") || is_fresh(s[1], o, 2, "the fork")) return 1;
    fb_session_free(s[first]);
    if (go_on(s[1 - first], 3, 0, 1, &err) != FB_OK) return complain("alone", err.message);
    fb_session_free(s[1 - first]);
    return check_nothing_is_held();
}

static int fork_sessions(const way *w) {
    fb_session_options dense = options_of("cuda", w), ring = ring_options("cuda", w);
    dense.capacity = 64; /* whole pages of a cache: nothing is rounded up */
    fb_session_options half = dense;
    half.act = FB_F16;
    return part_ways(&dense, true) || part_ways(&half, true) || part_ways(&half, false) ||
           part_ways(&ring, true) || part_ways(&ring, false);
}

/* One call fails somewhere: it is reported, and nothing leaks. Prints how many calls could fail before the
 * fork, and until both own their caches. */
static int fork_and_fail(const way *w) {
    fb_session_options o = ring_options("cuda", w);
    fb_session *s[2] = {NULL, NULL};
    fb_error err;
    fb_status status = fb_session_create(model, &o, &s[0], &err);
    if (status == FB_OK) status = fb_session_prefill(s[0], prompt, PROMPT, &err);
    printf("%lld ", (long long)counted("fb_emulated_calls"));
    if (status == FB_OK) status = fb_session_fork(s[0], &s[1], &err);
    fb_model_info info;
    fb_model_get_info(model, &info);
    /* Allocation, clearing, a copy of each layer's k and v, the wait; then the next call. */
    printf("%lld", (long long)counted("fb_emulated_calls") + 4 + 2 * info.layers);
    for (int n = 0; status == FB_OK && n < 2; n++) status = go_on(s[n], n, 0, 1, &err);
    fb_session_free(s[0]);
    if (s[1] && status != FB_OK) { /* the other one still works */
        fb_session_reset(s[1]);
        if (fb_session_prefill(s[1], prompt, PROMPT, &err) != FB_OK) return complain("a fork", err.message);
    }
    fb_session_free(s[1]);
    if (check_nothing_is_held()) return 1;
    printf(" %s", status == FB_OK ? "" : err.message);
    return status == FB_OK ? NEVER_FAILED : check_refusal(status, &err);
}

/* ---- in the parent ---- */

/* Runs `body` in a child with these settings. Returns its exit status (128 + signal); `said`: what it
 * printed. */
static int in_child(int (*body)(const way *), const way *w, const char *name, long value, char *said,
                    size_t size) {
    int out[2], status;
    assert_int_equal(pipe(out), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char number[32];
        close(out[0]);
        dup2(out[1], 1);
        snprintf(number, sizeof number, "%ld", value);
        if (fb_cuda_library(cuda_emulated_path(), NULL) != FB_OK) _exit(127);
        open_model();
        setenv(name, number, 1);
        alarm(60);
        status = body(w);
        fflush(NULL);
        _exit(status);
    }
    close(out[1]);
    size_t length = 0;
    for (ssize_t n = 1; n > 0 && length + 1 < size; length += n > 0 ? (size_t)n : 0)
        n = read(out[0], said + length, size - 1 - length);
    said[length] = 0;
    close(out[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The Nth call fails, for N = 1, 2, … until there are no more calls; after the first ones not every N. */
static void every_call_fails_once(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        long n = 1;
        int failures = 0;
        for (;; n += n < (w ? 4 : 12) ? 1 : w == 0 ? 37 : w == 3 ? 11 : 17) {
            char said[1024];
            int status = in_child(survive, &ways[w], "FUSEBOX_EMULATE_FAIL", n, said, sizeof said);
            if (status == NEVER_FAILED) break;
            if (status) fail_msg("fuse %s: failure %ld: exit status %d", ways[w].fuse, n, status);
            failures++;
        }
        print_message("fuse %s: %d failures of %ld calls\n", ways[w].fuse, failures, n);
        assert_true(failures > 15);
    }
}

/* The message for too little memory names its purpose and its size. */
static void memory_runs_out(void **state) {
    (void)state;
    static const char *const what[] = {"weights", "activations", "KV cache of"};
    bool seen[3] = {false};
    for (long bytes = 1000;; bytes += 30000) {
        char said[1024];
        int status = in_child(create_only, &ways[0], "FUSEBOX_EMULATE_MEMORY", bytes, said, sizeof said);
        if (status == NEVER_FAILED) break;
        if (status) fail_msg("%ld bytes: exit status %d: %s", bytes, status, said);
        assert_int_equal(atoi(said), FB_ERROR_MEMORY);
        assert_non_null(strstr(said, "device memory"));
        assert_non_null(strstr(said, "MiB"));
        for (int i = 0; i < 3; i++) seen[i] = seen[i] || strstr(said, what[i]);
        assert_true(bytes < 1l << 30);
    }
    for (int i = 0; i < 3; i++)
        if (!seen[i]) fail_msg("nothing was said of %s", what[i]);
}

static void devices_that_will_not_do(void **state) {
    (void)state;
    char said[1024];
    assert_int_equal(in_child(create_only, &ways[0], "FUSEBOX_EMULATE_MAJOR", 7, said, sizeof said), 0);
    assert_int_equal(atoi(said), FB_ERROR_UNSUPPORTED);
    assert_non_null(strstr(said, "compute capability 7.0 (at least 8.0)"));
    assert_int_equal(in_child(create_only, &ways[0], "FUSEBOX_EMULATE_DEVICES", 0, said, sizeof said), 0);
    assert_int_equal(atoi(said), FB_ERROR_SYSTEM);
    assert_non_null(strstr(said, "no NVIDIA GPU"));
}

/* Less shared memory than the newest devices have: the same tokens. */
static int tokens_only(const way *w) {
    int status = survive(w);
    return status == NEVER_FAILED ? 0 : 1;
}
static void a_smaller_device(void **state) {
    (void)state;
    char said[1024];
    for (int w = 0; w < WAYS; w++) {
        assert_int_equal(in_child(tokens_only, &ways[w], "FUSEBOX_EMULATE_SHARED", 101376, said, sizeof said),
                         0);
        assert_int_equal(in_child(tokens_only, &ways[w], "FUSEBOX_EMULATE_MAJOR", 8, said, sizeof said), 0);
    }
}

static void a_ring_under_graph(void **state) {
    (void)state;
    char said[1024];
    assert_int_equal(in_child(turn_the_ring, &ways[0], "FUSEBOX_EMULATE_DEVICES", 1, said, sizeof said), 0);
}

static void forks(void **state) {
    (void)state;
    static const way logits = {"all", false, false, FB_F32};
    char said[1024];
    assert_int_equal(in_child(fork_sessions, &logits, "FUSEBOX_EMULATE_DEVICES", 1, said, sizeof said), 0);
}

static void forks_that_fail(void **state) {
    (void)state;
    static const way logits = {"all", false, false, FB_F32};
    static const char *const what[] = {"KV cache of", "copy", "waiting"};
    bool seen[3] = {false};
    long first, last;
    char said[1024];
    assert_int_equal(in_child(fork_and_fail, &logits, "FUSEBOX_EMULATE_FAIL", 0, said, sizeof said),
                     NEVER_FAILED);
    assert_int_equal(sscanf(said, "%ld %ld", &first, &last), 2);
    for (long n = first + 1; n <= last; n++) {
        int status = in_child(fork_and_fail, &logits, "FUSEBOX_EMULATE_FAIL", n, said, sizeof said);
        if (status) fail_msg("failure %ld of %ld to %ld: exit status %d", n, first, last, status);
        for (int i = 0; i < 3; i++) seen[i] = seen[i] || strstr(said, what[i]);
    }
    for (int i = 0; i < 3; i++)
        if (!seen[i]) fail_msg("nothing was said of %s", what[i]);
}

static int start(void **state) {
    (void)state;
    fb_error err;
    fb_session *s;
    assert_ok(fb_model_open(FBT_GOLDENS "/llama-gqa-tied", &model, &err), &err);
    fb_session_options o = options_of("cpu", &ways[1]);
    assert_ok(fb_session_create(model, &o, &s, &err), &err);
    assert_ok(write_tokens(s, false, expected, &err), &err);
    fb_session_free(s);
    fb_model_free(model);
    model = NULL;
    return 0;
}

static void not_built(void **state) {
    (void)state;
    print_message("no emulated library: make build/tests/libfusebox_cuda_emulated.so\n");
    skip();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_fails_once),    cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(devices_that_will_not_do), cmocka_unit_test(a_smaller_device),
        cmocka_unit_test(a_ring_under_graph),       cmocka_unit_test(forks),
        cmocka_unit_test(forks_that_fail),
    };
    const struct CMUnitTest none[] = {cmocka_unit_test(not_built)};
    if (!*cuda_emulated_path()) return cmocka_run_group_tests(none, NULL, NULL);
    return cmocka_run_group_tests(tests, start, NULL);
}
