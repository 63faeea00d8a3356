/* Every allocation that the library makes fails once, in a process that goes on: what was asked for fails
 * with FB_ERROR_MEMORY or gives the same bits, nothing is leaked, and the session on which it failed can be
 * used. The linker leads the library's calls here (--wrap). */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "fusebox_batch.h"
#include "support/support.h"

#define TOKENS 5

/* ---- allocations --------------------------------------------------------------------------------------- */

static atomic_llong count;
static atomic_llong fail_at = -1; /* none */

static bool fails(void) {
    if (atomic_fetch_add(&count, 1) != atomic_load(&fail_at)) return false;
    errno = ENOMEM;
    return true;
}

/* What is not freed. Others' functions allocate, too, what the library frees: that is not in here. */
enum { MOST_LIVE = 1 << 16 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *live[MOST_LIVE];
static int64_t live_count;

static void *add(void *memory) {
    pthread_mutex_lock(&lock);
    if (memory && live_count < MOST_LIVE) live[live_count++] = memory;
    pthread_mutex_unlock(&lock);
    return memory;
}

static void *removed(void *memory) {
    pthread_mutex_lock(&lock);
    for (int64_t i = live_count; memory && i-- > 0;)
        if (live[i] == memory) {
            live[i] = live[--live_count];
            break;
        }
    pthread_mutex_unlock(&lock);
    return memory;
}

static int64_t count_live(void) {
    pthread_mutex_lock(&lock);
    int64_t number = live_count;
    pthread_mutex_unlock(&lock);
    return number;
}

/* clang-format off */
#define WRAP(type, name, parameters, failure, result)            \
    type __real_##name parameters;                               \
    type __wrap_##name parameters;                               \
    type __wrap_##name parameters { return fails() ? (failure) : (result); }
WRAP(void *, malloc, (size_t size), NULL, add(__real_malloc(size)))
WRAP(void *, calloc, (size_t number, size_t size), NULL, add(__real_calloc(number, size)))
WRAP(void *, realloc, (void *old, size_t size), NULL, add(__real_realloc(removed(old), size)))
WRAP(void *, aligned_alloc, (size_t alignment, size_t size), NULL, add(__real_aligned_alloc(alignment, size)))
WRAP(char *, strdup, (const char *text), NULL, add(__real_strdup(text)))
WRAP(FILE *, open_memstream, (char **text, size_t *size), NULL, __real_open_memstream(text, size))
WRAP(int, pthread_create, (pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *), void *arg),
     EAGAIN, __real_pthread_create(thread, attributes, function, arg))
/* clang-format on */

void __real_free(void *memory);
void __wrap_free(void *memory);
void __wrap_free(void *memory) { __real_free(removed(memory)); }

int __wrap_asprintf(char **text, const char *format, ...) __attribute__((format(printf, 2, 3)));
int __wrap_asprintf(char **text, const char *format, ...) {
    if (fails()) return -1;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(text, format, arguments);
    va_end(arguments);
    if (length >= 0) add(*text);
    return length;
}

/* ---- what is done while one fails -----------------------------------------------------------------------
 */

typedef struct stage {
    fb_model *model;
    fb_session *session; /* of `model`; has seen TOKENS tokens */
    fb_session_options options;
    float *logits, *before; /* [vocab]: of the step that is tried, and of the session until then */
    int64_t vocab;
    char *path;
} stage;

static const int32_t ids[TOKENS] = {7, 300, 12, 5, 42};

static void check_logits(fb_session *session, const float *wanted) {
    const float *logits;
    int64_t vocab;
    fb_error err;
    assert_ok(fb_session_logits(session, &logits, NULL, &vocab, &err), &err);
    assert_memory_equal(logits, wanted, (size_t)vocab * sizeof *logits);
}

static fb_status try_model(stage *s, fb_error *err) {
    fb_model *model;
    FB_TRY(fb_model_open(s->path, &model, err));
    fb_model_free(model);
    return FB_OK;
}

static fb_status try_gguf(stage *s, fb_error *err) {
    (void)s;
    fb_model *model;
    FB_TRY(fb_model_open("tests/data/gguf/llama-linear-sharded.gguf", &model, err));
    fb_model_free(model);
    return FB_OK;
}

static fb_status try_shards(stage *s, fb_error *err) {
    (void)s;
    fb_model *model;
    FB_TRY(fb_model_open(FBT_GOLDENS "/llama-linear-sharded", &model, err));
    fb_model_free(model);
    return FB_OK;
}

static fb_status try_session(stage *s, fb_error *err) {
    fb_session *session;
    FB_TRY(fb_session_create(s->model, &s->options, &session, err));
    fb_status status = fb_session_prefill(session, ids, TOKENS, err);
    if (status == FB_OK) check_logits(session, s->before);
    fb_session_free(session);
    return status;
}

/* A model without a session: its weights are loaded and a device is opened. */
static fb_status try_first_session(stage *s, fb_error *err) {
    stage own = *s;
    FB_TRY(fb_model_open(s->path, &own.model, err));
    fb_status status = try_session(&own, err);
    fb_model_free(own.model);
    return status;
}

/* Without memory for the head's screen, the token is the same. */
static fb_status try_greedy(stage *s, fb_error *err) {
    fb_model *model;
    fb_session *session = NULL;
    int32_t best = 0, wanted = 0;
    for (int32_t i = 0; i < s->vocab; i++) wanted = s->before[i] > s->before[wanted] ? i : wanted;
    FB_TRY(fb_model_open(s->path, &model, err));
    fb_session_options options = s->options;
    options.greedy = true;
    fb_status status = fb_session_create(model, &options, &session, err);
    if (status == FB_OK) status = fb_session_prefill(session, ids, TOKENS, err);
    if (status == FB_OK) status = fb_session_best(session, &best, err);
    if (status == FB_OK) assert_int_equal(best, wanted);
    fb_session_free(session);
    fb_model_free(model);
    return status;
}

/* The session itself goes on, or can go on. */
static fb_status try_step(stage *s, fb_error *err) {
    fb_status status = fb_session_decode(s->session, 9, err);
    if (status != FB_OK) return status;
    check_logits(s->session, s->logits);
    return fb_session_trim(s->session, TOKENS, err);
}

/* Whoever writes first has to copy the cache. */
static fb_status try_fork(stage *s, fb_error *err) {
    fb_session *fork;
    FB_TRY(fb_session_fork(s->session, &fork, err));
    fb_status status = fb_session_decode(fork, 9, err);
    if (status == FB_OK) check_logits(fork, s->logits);
    if (status == FB_OK) status = try_step(s, err);
    fb_session_free(fork);
    return status;
}

static fb_status try_text(stage *s, fb_error *err) {
    int32_t *tokens = NULL;
    int64_t number;
    char *text = NULL;
    size_t bytes;
    FB_TRY(fb_tokenize(s->model, "a b c", 5, false, &tokens, &number, err));
    fb_status status = fb_detokenize(s->model, tokens, number, false, &text, &bytes, err);
    if (status == FB_OK) assert_non_null(strstr(text, "b c"));
    fb_free(tokens);
    fb_free(text);
    return status;
}

/* The template is read with the model, parsed and rendered, and its text becomes ids; stop texts. */
static fb_status try_chat(stage *s, fb_error *err) {
    fb_model *model;
    int32_t *tokens = NULL;
    int64_t number;
    fb_stop *stop = NULL;
    const char *text;
    size_t bytes;
    bool stopped;
    FB_TRY(fb_model_open(s->path, &model, err));
    fb_status status =
        fb_chat_tokenize(model, "[{\"role\":\"user\",\"content\":\"a b\"}]", NULL, &tokens, &number, err);
    if (status == FB_OK) status = fb_stop_create((const char *[]){"ab", "c"}, 2, &stop, err);
    if (status == FB_OK) status = fb_stop_push(stop, "aab", 3, &text, &bytes, &stopped, err);
    if (status == FB_OK) assert_true(number > 0 && stopped && bytes == 1);
    fb_stop_free(stop);
    fb_free(tokens);
    fb_model_free(model);
    return status;
}

static fb_status try_quantize(stage *s, fb_error *err) {
    char *dir = fbt_dir_create(), *path = fbt_format("%s/x.gguf", dir);
    fb_quantize_options options = {.size = sizeof options};
    fb_quantize_options_default(&options);
    options.type = options.head = FB_Q4_0;
    fb_status status = fb_model_quantize(s->model, path, &options, NULL, err);
    free(path);
    fbt_dir_remove(dir);
    return status;
}

/* What a request's callback heard. */
typedef struct heard {
    int32_t tokens[TOKENS];
    int64_t count;
    int ends;
    fb_finish finish;
    char message[256];
} heard;

static bool listen(void *user, const fb_answer *a) {
    heard *h = user;
    assert_int_equal(h->ends, 0);
    if (a->finish == FB_FINISH_NONE && a->token >= 0) h->tokens[h->count++] = a->token;
    h->ends += a->finish != FB_FINISH_NONE;
    h->finish = a->finish;
    if (a->message) snprintf(h->message, sizeof h->message, "%s", a->message);
    return true;
}

static fb_status submit_to(fb_scheduler *scheduler, int64_t prompt, heard *to, fb_error *err) {
    fb_request_options o = {.size = sizeof o};
    fb_request_options_default(&o);
    o.prompt = ids;
    o.prompt_count = prompt;
    o.max_tokens = TOKENS;
    o.past_end = true;
    o.on_answer = listen;
    o.user = to;
    return fb_scheduler_submit(scheduler, &o, NULL, err);
}

static bool next_has(fb_scheduler *scheduler, const char *fuse) {
    fb_fuse_state state;
    for (int i = 0; fb_scheduler_fuse_state(scheduler, i, &state); i++)
        if (strcmp(state.name, fuse) == 0) return state.next;
    fail_msg("no fuse %s", fuse);
    return false;
}

/* Another plan, a step with clocks, and what they say. A plan that cannot be made changes nothing. */
static fb_status replan(fb_scheduler *scheduler, bool on, fb_error *err) {
    fb_timeline *timeline;
    char *text;
    bool before = next_has(scheduler, "qkv_up");
    fb_status status = fb_scheduler_fuse(scheduler, on ? "all" : "all,-qkv_up", err);
    assert_int_equal(next_has(scheduler, "qkv_up"), status == FB_OK ? on : before);
    FB_TRY(status);
    FB_TRY(fb_scheduler_profile(scheduler, 1, err));
    FB_TRY(fb_scheduler_timeline(scheduler, &timeline, err));
    fb_timeline_free(timeline);
    FB_TRY(fb_scheduler_fuse_text(scheduler, &text, err));
    fb_free(text);
    FB_TRY(fb_scheduler_plan_text(scheduler, &text, err));
    fb_free(text);
    return FB_OK;
}

/* Every request that was taken ends, with all its tokens or with a message. */
static fb_status answer_two(fb_scheduler *scheduler, bool replans, fb_error *err) {
    static int32_t wanted[2][TOKENS];
    static bool known;
    heard to[2] = {{.ends = 0}};
    fb_status status = FB_OK;
    bool taken[2];
    for (int i = 0; i < 2; i++) {
        fb_status submitted = submit_to(scheduler, TOKENS - i, &to[i], err);
        taken[i] = submitted == FB_OK;
        if (!taken[i]) status = submitted;
    }
    int64_t steps = 0;
    for (bool busy = true; busy; steps++) {
        if (replans) {
            fb_status replanned = replan(scheduler, steps % 3 == 2, err);
            if (replanned != FB_OK) status = replanned;
        }
        fb_status step = fb_scheduler_step(scheduler, &busy, err);
        if (step != FB_OK) status = step;
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(to[i].ends, taken[i]);
        if (!taken[i]) continue;
        if (to[i].finish == FB_FINISH_FAILED) {
            status = fb_fail(err, FB_ERROR_MEMORY, "%s", to[i].message);
            continue;
        }
        assert_int_equal(to[i].finish, FB_FINISH_LENGTH);
        if (known) assert_memory_equal(to[i].tokens, wanted[i], sizeof wanted[i]);
        memcpy(wanted[i], to[i].tokens, sizeof wanted[i]);
    }
    known = true;
    return status;
}

/* The same scheduler answers once more, after whatever failed. */
static fb_status try_scheduler(stage *s, fb_error *err) {
    fb_scheduler *scheduler;
    fb_error ignored;
    FB_TRY(fb_scheduler_create(s->model, &s->options, NULL, &scheduler, err));
    fb_status status = answer_two(scheduler, false, err);
    if (status != FB_OK) assert_ok(answer_two(scheduler, false, &ignored), &ignored);
    fb_scheduler_free(scheduler);
    return status;
}

static fb_status try_replan(stage *s, fb_error *err) {
    fb_scheduler *scheduler;
    fb_error ignored;
    FB_TRY(fb_scheduler_create(s->model, &s->options, NULL, &scheduler, err));
    fb_status status = answer_two(scheduler, true, err);
    if (status != FB_OK) assert_ok(answer_two(scheduler, true, &ignored), &ignored);
    fb_scheduler_free(scheduler);
    return status;
}

/* The vocabulary as a tree, the schema, and an answer of it; without memory for a mask the tokens are the
 * same. */
static fb_status answer_by(stage *s, const fb_schema *schema, int32_t chosen[TOKENS], fb_error *err) {
    fb_sampler_options options;
    fb_sampler *sampler;
    fb_sampler_options_default(&options);
    options.schema = schema;
    options.seed = 3;
    options.top_k = 0;
    FB_TRY(fb_sampler_create(&options, s->vocab, &sampler, err));
    fb_status status = FB_OK;
    for (int i = 0; i < TOKENS && status == FB_OK && !fb_sampler_ended(sampler); i++)
        status = fb_sampler_next(sampler, s->logits, &chosen[i], err);
    fb_sampler_free(sampler);
    return status;
}

static fb_status try_schema(stage *s, fb_error *err) {
    static const char text[] =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":9},"
        "\"b\":{\"pattern\":\"^[a-c]+$\"},\"c\":{\"items\":{\"enum\":[1,\"x\"]},\"maxItems\":3}},"
        "\"additionalProperties\":{\"type\":\"integer\",\"minimum\":3}}";
    static int32_t wanted[TOKENS];
    static bool known;
    int32_t chosen[TOKENS] = {0};
    fb_model *model;
    fb_schema *schema = NULL;
    FB_TRY(fb_model_open(s->path, &model, err));
    fb_status status = fb_schema_create(model, text, sizeof text - 1, &schema, err);
    fb_model_free(model); /* the schema keeps what it needs */
    if (status == FB_OK) status = answer_by(s, schema, chosen, err);
    fb_schema_free(schema);
    if (status == FB_OK && known) assert_memory_equal(chosen, wanted, sizeof wanted);
    if (status == FB_OK) memcpy(wanted, chosen, sizeof wanted);
    known = known || status == FB_OK;
    return status;
}

/* ---- the loop ------------------------------------------------------------------------------------------ */

static stage stages[1];

/* A thread that has just been started frees what it was started with. */
static void check_leaks(int64_t before) {
    for (int i = 0; i < 1000 && count_live() != before; i++) usleep(1000);
    assert_int_equal(count_live(), before);
}

static void survives(void **state) {
    fb_status (*attempt)(stage * s, fb_error * err);
    *(void **)&attempt = *state;
    stage *s = stages;
    fb_error err = {0};
    atomic_store(&count, 0);
    assert_ok(attempt(s, &err), &err);
    int64_t all = atomic_load(&count), failed = 0, before = count_live();
    for (int64_t i = 0; i < all; i++) {
        if (fbt_passes_over(3)) continue;
        memset(&err, 0, sizeof err);
        atomic_store(&count, 0);
        atomic_store(&fail_at, i);
        fb_status status = attempt(s, &err);
        atomic_store(&fail_at, -1);
        failed += status != FB_OK;
        check_leaks(before);
        bool thread = status == FB_ERROR_SYSTEM && strstr(err.message, "threads: ");
        if (status != FB_OK && !thread) assert_refused(status, FB_ERROR_MEMORY, &err, "memory");
        /* The session is where it was, and takes the same step. */
        assert_int_equal(fb_session_position(s->session), TOKENS);
        if (i % 7 == 0) assert_ok(try_step(s, &err), &err);
    }
    assert_true(all > 0 && failed > 0);
    print_message("# %lld allocations, %lld of them needed\n", (long long)all, (long long)failed);
}

/* A plan that has been replaced is freed. */
static void plans_are_freed(void **state) {
    (void)state;
    stage *s = stages;
    fb_scheduler *scheduler;
    fb_scheduler_options options;
    fb_scheduler_stats stats;
    fb_error err;
    bool busy;
    int64_t before = 0, without = count_live();
    fb_scheduler_options_default(&options);
    options.sequences = 5; /* no plan is shared with what ran before */
    assert_ok(fb_scheduler_create(s->model, &s->options, &options, &scheduler, &err), &err);
    for (int i = 0; i < 201; i++) {
        assert_ok(replan(scheduler, i % 2, &err), &err);
        assert_ok(fb_scheduler_step(scheduler, &busy, &err), &err);
        if (i == 0) before = count_live();
    }
    fb_scheduler_get_stats(scheduler, &stats);
    assert_int_equal(stats.plan_changes, 201);
    check_leaks(before);
    fb_scheduler_free(scheduler);
    check_leaks(without); /* another user of a plan would keep it */
}

static float *copy_logits(fb_session *session, int64_t *vocab) {
    const float *logits;
    fb_error err;
    assert_ok(fb_session_logits(session, &logits, NULL, vocab, &err), &err);
    float *copy = malloc((size_t)*vocab * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, logits, (size_t)*vocab * sizeof *copy);
    return copy;
}

static int set_up(void **state) {
    (void)state;
    stage *s = stages;
    fb_error err;
    s->path = fbt_dir_from_golden("neox-parallel");
    char *tokenizer = fbt_format("%s/tokenizer.json", s->path);
    fbt_file_copy("tests/data/tokenizer/prefix.json", tokenizer);
    fbt_json_set(tokenizer, "pre_tokenizer.add_prefix_space", "false"); /* a GGUF file cannot say more */
    fbt_json_set(tokenizer, "added_tokens", "[]");
    free(tokenizer);
    char *config = fbt_format("%s/tokenizer_config.json", s->path);
    fbt_text_write(config,
                   "{\"bos_token\": \"a\", \"chat_template\": \"{% macro f(x) %}{{ x|upper }}{% endmacro %}"
                   "{% for m in messages %}{{ bos_token ~ m.content ~ f(m|tojson) }}{% endfor %}\"}");
    free(config);
    s->model = fbt_model_open(s->path);
    s->options.size = sizeof s->options;
    fb_session_options_default(&s->options);
    s->options.threads = 2;
    s->options.fuse = "all";
    assert_ok(fb_session_create(s->model, &s->options, &s->session, &err), &err);
    assert_ok(fb_session_prefill(s->session, ids, TOKENS, &err), &err);
    s->before = copy_logits(s->session, &s->vocab);
    assert_ok(fb_session_decode(s->session, 9, &err), &err);
    s->logits = copy_logits(s->session, &s->vocab);
    assert_ok(fb_session_trim(s->session, TOKENS, &err), &err);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    stage *s = stages;
    fb_session_free(s->session);
    fb_model_free(s->model);
    free(s->before);
    free(s->logits);
    fbt_dir_remove(s->path);
    return 0;
}

#define ATTEMPT(function)                                                                                    \
    { #function, survives, NULL, NULL, (void *)(uintptr_t)(function) }

int main(void) {
    const struct CMUnitTest tests[] = {
        ATTEMPT(try_model),     ATTEMPT(try_gguf),
        ATTEMPT(try_shards),    ATTEMPT(try_session),
        ATTEMPT(try_fork),      ATTEMPT(try_first_session),
        ATTEMPT(try_text),      ATTEMPT(try_quantize),
        ATTEMPT(try_greedy),    ATTEMPT(try_chat),
        ATTEMPT(try_scheduler), ATTEMPT(try_replan),
        ATTEMPT(try_schema),    cmocka_unit_test(plans_are_freed),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
