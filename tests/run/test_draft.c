/* Drafts: the same tokens and logits as one by one, whatever is guessed; and how many guesses are chosen. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "draft/choose.h"
#include "support/support.h"

/* ---- the same, to the bit ---- */

static int64_t drafted; /* by all checks of a source */

static void check(const fb_model *model, const char *name, fb_draft_verify_options *o) {
    fb_draft_report r = {.size = sizeof r};
    fb_error err;
    o->threads = 2;
    o->seed = (uint64_t)o->act + 1;
    assert_ok(fb_verify_draft(model, o, &r, &err), &err);
    if (!r.ok) fail_msg("%s, draft %s, %s: %s", name, o->source, fb_dtype_name(o->act), r.first);
    drafted += r.drafted;
}

/* With batches, a text goes round in a ring, too. */
static void check_model(const char *path, const char *golden, const char *source, fb_dtype act,
                        int64_t batches) {
    fb_model *model = fbt_model_open(path);
    fb_draft_verify_options o;
    fb_draft_verify_options_default(&o);
    o.source = source;
    o.golden = golden;
    o.act = act;
    o.gen = 16;
    o.rounds = batches;
    check(model, path, &o);
    fb_model_free(model);
}

static const char *const cases[] = {"llama-mha", "llama-gqa-tied", "neox-parallel", "neox-serial",
                                    "gpt2",      "gemma3",         "qwen3-moe",     "mistral-window"};
static const fb_dtype acts[] = {FB_F32, FB_F16, FB_BF16};
enum { CASES = sizeof cases / sizeof *cases };

static void check_cases(const char *source) {
    drafted = 0;
    for (int i = 0; i < CASES; i++) {
        if (fbt_passes_over(5)) continue;
        char *path = fbt_format("%s/%s", FBT_GOLDENS, cases[i]);
        char *golden = fbt_format("%s/golden.safetensors", path);
        check_model(path, golden, source ? source : path, acts[i % 3], i % 2);
        free(golden);
        free(path);
    }
    assert_true(drafted > 0);
}

static void guesses_of_every_kind(void **state) {
    (void)state;
    check_cases("scripted");
}

static void guesses_of_the_text(void **state) {
    (void)state;
    check_cases("ngram");
}

/* The same model, whose guesses are mostly right. */
static void guesses_of_a_model(void **state) {
    (void)state;
    check_cases(NULL);
}

static void guesses_of_smaller_weights(void **state) {
    (void)state;
    check_model(FBT_STORYTELLER, NULL, "q4", FB_F16, 0);
}

/* Nothing is read or guessed beyond the smaller model's context, and its window is no longer than that. */
static void a_model_with_a_shorter_context(void **state) {
    (void)state;
    fb_model *model = fbt_golden_stretched("llama-mha", 1000);
    fb_draft_verify_options o;
    fb_draft_verify_options_default(&o);
    o.source = FBT_GOLDENS "/llama-gqa-tied"; /* 128 tokens */
    o.prompt = 900;
    o.gen = 8;
    o.rounds = 0;
    check(model, "llama-mha", &o);
    o.prompt = 120; /* the context ends within the text */
    o.gen = 16;
    o.rounds = 1;
    check(model, "llama-mha", &o);
    fb_model_free(model);
}

static void quantised_weights(void **state) {
    (void)state;
    char *dir = fbt_dir_create(), *file = fbt_format("%s/q8.gguf", dir);
    fb_model *model = fbt_model_open(FBT_STORYTELLER);
    fb_error err;
    assert_ok(fb_model_quantize(model, file, NULL, NULL, &err), &err);
    fb_model_free(model);
    check_model(file, NULL, "q4", FB_F32, 0);
    if (!fbt_passes_over(5)) check_model(file, NULL, "scripted", FB_F16, 1);
    unlink(file);
    free(file);
    fbt_dir_remove(dir);
}

/* ---- sessions ---- */

static fb_model *model;

static int open_model(void **state) {
    (void)state;
    model = fbt_model_open(FBT_STORYTELLER);
    return 0;
}

static int close_model(void **state) {
    (void)state;
    fb_model_free(model);
    return 0;
}

enum { PROMPT = 4, GEN = 40 };
static const int32_t prompt[PROMPT] = {0, 48, 1717, 587};

static fb_session *session_with(const fb_draft *draft) {
    fb_session_options o;
    fb_session *s;
    fb_error err;
    fb_session_options_default(&o);
    o.greedy = true;
    o.threads = 1;
    o.draft = draft;
    assert_ok(fb_session_create(model, &o, &s, &err), &err);
    assert_ok(fb_session_prefill(s, prompt, PROMPT, &err), &err);
    return s;
}

static void one_by_one(int32_t *tokens) {
    fb_session *s = session_with(NULL);
    fb_error err;
    assert_ok(fb_session_best(s, &tokens[0], &err), &err);
    for (int i = 1; i < GEN; i++) {
        assert_ok(fb_session_decode(s, tokens[i - 1], &err), &err);
        assert_ok(fb_session_best(s, &tokens[i], &err), &err);
    }
    fb_session_free(s);
}

/* The text itself, as far as it is known. */
static int64_t truth(void *user, const int32_t *tokens, int64_t count, int64_t most, int32_t *ids) {
    const int32_t *text = user;
    (void)tokens;
    for (int64_t i = 0; i < most; i++) ids[i] = text[count - PROMPT + i < GEN ? count - PROMPT + i : 0];
    return most;
}

static fb_draft *draft_of(const int32_t *text) {
    fb_draft_options o;
    fb_draft *draft;
    fb_error err;
    fb_draft_options_default(&o);
    o.propose = truth;
    o.user = (void *)(uintptr_t)text;
    o.fixed = 1;
    assert_ok(fb_draft_create(model, &o, &draft, &err), &err);
    return draft;
}

/* Appends tokens [from, to) of a text, in runs. */
static void follow(fb_session *s, const int32_t *text, int64_t from, int64_t to) {
    fb_error err;
    while (from < to) {
        int32_t ids[FB_MAX_DRAFT + 1];
        int64_t count;
        assert_ok(fb_session_speculate(s, text[from], NULL, to - from, ids, &count, &err), &err);
        for (int64_t i = 0; i < count && from + 1 + i < GEN; i++)
            assert_int_equal(ids[i], text[from + 1 + i]);
        from += count;
    }
    assert_int_equal(fb_session_position(s), PROMPT + to);
}

static void a_session_goes_back_and_forks(void **state) {
    (void)state;
    int32_t text[GEN];
    fb_error err;
    fb_draft_stats stats;
    one_by_one(text);
    fb_draft *draft = draft_of(text);
    fb_session *s = session_with(draft), *fork;
    follow(s, text, 0, 21);
    fb_session_get_draft(s, &stats);
    assert_true(stats.steps == 3 && stats.tokens == 21 && stats.kept == 18);
    assert_ok(fb_session_trim(s, PROMPT + 10, &err), &err);
    follow(s, text, 10, 15);
    assert_ok(fb_session_fork(s, &fork, &err), &err);
    follow(fork, text, 15, 30);
    follow(s, text, 15, 30);
    fb_session_reset(s);
    assert_ok(fb_session_prefill(s, prompt, PROMPT, &err), &err);
    follow(s, text, 0, GEN - 1);
    fb_session_free(fork);
    fb_session_free(s);
    fb_draft_free(draft);
}

/* A run ends where the caller wants no more, and where the session is full. */
static void a_run_is_no_longer_than_wanted(void **state) {
    (void)state;
    int32_t text[GEN], ids[FB_MAX_DRAFT + 1];
    int64_t count;
    fb_error err;
    fb_session_options o;
    one_by_one(text);
    fb_draft *draft = draft_of(text);
    fb_session *s = session_with(draft);
    assert_ok(fb_session_speculate(s, text[0], NULL, 3, ids, &count, &err), &err);
    assert_int_equal(count, 3);
    assert_refused(fb_session_speculate(s, text[3], NULL, 0, ids, &count, &err), FB_ERROR_USAGE, &err,
                   "tokens: 0");
    assert_int_equal(count, 0);
    fb_session_free(s);
    fb_session_options_default(&o);
    o.capacity = PROMPT + 2;
    o.draft = draft;
    assert_ok(fb_session_create(model, &o, &s, &err), &err);
    assert_ok(fb_session_prefill(s, prompt, PROMPT, &err), &err);
    assert_ok(fb_session_speculate(s, text[0], NULL, 9, ids, &count, &err), &err);
    assert_int_equal(count, 2);
    assert_refused(fb_session_speculate(s, text[2], NULL, 9, ids, &count, &err), FB_ERROR_USAGE, &err,
                   "room for 0");
    fb_session_free(s);
    fb_draft_free(draft);
}

/* A caller that cancels while guesses are made, every third time. */
typedef struct canceller {
    fb_session *session;
    const int32_t *text;
    int calls;
} canceller;

static int64_t truth_or_cancel(void *user, const int32_t *tokens, int64_t count, int64_t most, int32_t *ids) {
    canceller *c = user;
    if (c->calls++ % 3 == 0) fb_session_cancel(c->session);
    return truth((void *)(uintptr_t)c->text, tokens, count, most, ids);
}

/* A step that was cancelled can be repeated, and nothing is lost. */
static void a_step_is_cancelled(void **state) {
    (void)state;
    int32_t text[GEN], ids[FB_MAX_DRAFT + 1];
    int64_t count, done = 0;
    fb_error err;
    fb_draft_options o;
    fb_draft *draft;
    one_by_one(text);
    canceller c = {.text = text};
    fb_draft_options_default(&o);
    o.propose = truth_or_cancel;
    o.user = &c;
    o.fixed = 1;
    o.most = 3;
    assert_ok(fb_draft_create(model, &o, &draft, &err), &err);
    c.session = session_with(draft);
    for (int cancelled = 0; done < GEN - 1;) {
        fb_status status =
            fb_session_speculate(c.session, text[done], NULL, GEN - 1 - done, ids, &count, &err);
        if (status != FB_OK) {
            assert_int_equal(status, FB_ERROR_STOPPED);
            assert_true(count == 0 && fb_session_position(c.session) == PROMPT + done && ++cancelled < GEN);
            continue;
        }
        for (int64_t i = 0; i < count; i++) assert_int_equal(ids[i], text[done + 1 + i]);
        done += count;
    }
    assert_true(c.calls > 12);
    fb_session_free(c.session);
    fb_draft_free(draft);
}

/* ---- what is refused ---- */

static void bad_drafts(void **state) {
    (void)state;
    fb_model *other = fbt_golden_open("llama-mha");
    fb_draft_options o;
    fb_draft *draft;
    fb_session *s;
    fb_session_options session;
    fb_error err;
    fb_draft_options_default(&o);
    assert_refused(fb_draft_create(model, &o, &draft, &err), FB_ERROR_USAGE, &err, "no source|ngram");
    o.source = "no/such/model";
    assert_true(fb_draft_create(model, &o, &draft, &err) != FB_OK);
    o.source = FBT_GOLDENS "/llama-mha";
    assert_refused(fb_draft_create(model, &o, &draft, &err), FB_ERROR_USAGE, &err, "llama-mha");
    o.source = "ngram";
    o.most = FB_MAX_DRAFT + 1;
    assert_refused(fb_draft_create(model, &o, &draft, &err), FB_ERROR_USAGE, &err, "8 tokens|1 to 7");
    o.most = 1;
    o.fixed = 2;
    assert_refused(fb_draft_create(model, &o, &draft, &err), FB_ERROR_USAGE, &err, "fixed: 2");
    o.fixed = 1;
    assert_ok(fb_draft_create(model, &o, &draft, &err), &err);
    fb_session_options_default(&session);
    session.draft = draft;
    assert_refused(fb_session_create(other, &session, &s, &err), FB_ERROR_USAGE, &err, "another model");
    fb_draft_free(draft);
    fb_model_free(other);
}

/* ---- how many ---- */

static const double prior[] = {0.5};

/* A step takes 1, and 0.1 more for each row; a guess takes 0.2. */
static fb_draft_choice choice_with(double right) {
    fb_draft_choice c = {.prior = prior, .total = 1000, .plain = 2};
    for (int64_t rows = 1; rows <= FB_DRAFT_ROWS; rows++) {
        c.step.guess[rows] = c.step.known[rows] = 0.9 + 0.1 * (double)rows;
        c.draft.guess[rows] = c.draft.known[rows] = 0.2;
    }
    for (int d = 0; d < FB_MAX_DRAFT; d++) {
        c.rates.tried[0][d] = 1000;
        c.rates.right[0][d] = 1000 * right;
    }
    return c;
}

static int64_t chosen(const fb_draft_choice *c, int64_t room, bool free) {
    fb_draft_wish wish = {.rates = &c->rates, .most = FB_MAX_DRAFT};
    fb_draft_choose(c, &wish, 1, room, free);
    return wish.length;
}

/* The best number by trying all. */
static int64_t best_by_hand(double right, double guess) {
    int64_t best = 0;
    double rate = 1 * 1.02;
    for (int64_t k = 1; k <= FB_MAX_DRAFT; k++) {
        double tokens = 1, all = 1;
        for (int64_t d = 0; d < k; d++) tokens += all *= right;
        double seconds = 1 + 0.1 * (double)k + guess * (double)k;
        if (tokens / seconds > rate) best = k, rate = tokens / seconds;
    }
    return best;
}

static void the_best_number_is_chosen(void **state) {
    (void)state;
    for (int i = 0; i <= 20; i++) {
        fb_draft_choice c = choice_with(0.05 * i);
        c.owed = 1000;
        if (best_by_hand(0.05 * i, 0.2) == 0) assert_int_equal(chosen(&c, 64, false), 0);
        c.owed = 8; /* too much to find out more, not too much to go on */
        assert_int_equal(chosen(&c, 64, false), best_by_hand(0.05 * i, 0.2));
        assert_int_equal(chosen(&c, 64, true), best_by_hand(0.05 * i, 0));
    }
    fb_draft_choice good = choice_with(1);
    assert_int_equal(chosen(&good, 2, false), 2);
    assert_int_equal(chosen(&good, 0, false), 0);
}

/* What guessing has cost is limited, and now and then a step goes without. */
static void losses_are_limited(void **state) {
    (void)state;
    fb_draft_choice c = choice_with(0.9);
    assert_true(chosen(&c, 64, false) > 0);
    c.owed = 0.02 * c.total;
    assert_int_equal(chosen(&c, 64, false), 0);
    c.owed = c.plain = 0;
    assert_int_equal(chosen(&c, 64, false), 0);
    c = choice_with(0.9);
    for (int i = 0; i < 64; i++) fb_draft_choice_learn(&c, 1, 3, 4, 1.3, 0.6);
    assert_int_equal(chosen(&c, 64, false), 0);
    fb_draft_choice_learn(&c, 1, 0, 1, 1, 0);
    assert_true(chosen(&c, 64, false) > 0);
    /* One guess that is never right costs 0.3 a step; it is tried again as often as 0.5% of the time allows.
     */
    c = choice_with(0);
    c.total = 0;
    int64_t tried = 0;
    for (int i = 0; i < 10000; i++) {
        int64_t k = chosen(&c, 64, false);
        tried += k > 0;
        fb_draft_choice_learn(&c, 1, k, 1, 1 + 0.1 * (double)k, 0.2 * (double)k);
    }
    assert_in_range(tried, 100, 500);
    assert_true(c.owed < 0.0075 * c.total);
}

static void times_follow_what_is_measured(void **state) {
    (void)state;
    fb_draft_times t = {0};
    for (int64_t rows = 1; rows <= FB_DRAFT_ROWS; rows++) t.guess[rows] = 1 + 0.1 * (double)rows;
    fb_draft_time_learn(&t, 1, 2.2); /* twice as long as predicted */
    assert_true(fb_draft_time(&t, 1) == 2.2);
    assert_true(fb_draft_time(&t, 4) > 2.79 && fb_draft_time(&t, 4) < 2.81);
    fb_draft_time_learn(&t, 5, 6.0);
    assert_true(fb_draft_time(&t, 3) > 2.6 && fb_draft_time(&t, 3) < 6.0);
    assert_true(fb_draft_time(&t, 200) > fb_draft_time(&t, 100));
    for (int i = 0; i < 20; i++) fb_draft_time_learn(&t, 5, 3.0);
    assert_true(fb_draft_time(&t, 5) < 3.01);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_of_every_kind),
        cmocka_unit_test(guesses_of_the_text),
        cmocka_unit_test(guesses_of_a_model),
        cmocka_unit_test(guesses_of_smaller_weights),
        cmocka_unit_test(a_model_with_a_shorter_context),
        cmocka_unit_test(quantised_weights),
        cmocka_unit_test(a_session_goes_back_and_forks),
        cmocka_unit_test(a_run_is_no_longer_than_wanted),
        cmocka_unit_test(a_step_is_cancelled),
        cmocka_unit_test(bad_drafts),
        cmocka_unit_test(the_best_number_is_chosen),
        cmocka_unit_test(losses_are_limited),
        cmocka_unit_test(times_follow_what_is_measured),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
