/* A session that forgets gives the answers of a decoder that was written from the published method alone
 * (support/slow_stream.h): whatever the sinks, the window, the chunk, the fuses, the threads and the pieces
 * that the tokens come in; after trims; and in forks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "file/safetensors.h"
#include "support/slow_stream.h"
#include "support/support.h"

enum { SUBJECTS = 4, LONGEST = 150, CONTEXT = 128, VOCAB = 320 };

/* Absolute: logits reach 30, and float32 was seen to be off by 8e-6. */
static const double tolerance = 1e-4;

typedef struct subject {
    const char *name;
    fb_model *model;
    slow_model *slow;
} subject;

static subject subjects[SUBJECTS] = {
    {.name = "neox-parallel"}, {.name = "neox-serial"}, {.name = "llama-gqa-tied"}, {.name = "llama-mha"}};

static int open_subjects(void **state) {
    (void)state;
    for (subject *s = subjects; s < subjects + SUBJECTS; s++) {
        char *path = fbt_format(FBT_GOLDENS "/%s", s->name);
        s->model = fbt_golden_open(s->name);
        s->slow = slow_open(path);
        assert_int_equal(slow_vocab(s->slow), VOCAB);
        free(path);
    }
    return 0;
}

static int free_subjects(void **state) {
    (void)state;
    for (subject *s = subjects; s < subjects + SUBJECTS; s++) {
        fb_model_free(s->model);
        slow_free(s->slow);
    }
    return 0;
}

static double *slow_logits(const subject *s, const int32_t *ids, int64_t count, int64_t sinks,
                           int64_t window) {
    double *logits = calloc((size_t)(count * VOCAB), sizeof *logits);
    assert_non_null(logits);
    slow_stream(s->slow, ids, count, sinks, window, logits);
    return logits;
}

/* ---- the reference is right ---- */

static const fb_tensor_entry *entry_of(const fb_tensor_table *table, const char *name, fb_stored_type type,
                                       int64_t count) {
    const fb_tensor_entry *entry = fb_tensors_find(table, name);
    assert_non_null(entry);
    assert_int_equal(entry->type, type);
    assert_int_equal(entry->count, count);
    return entry;
}

static void assert_golden(const fb_tensor_entry *golden, const double *have, double bound) {
    for (int64_t i = 0; i < golden->count; i++) {
        double want = fb_dtype_get(golden->type == FB_STORED_F64 ? FB_F64 : FB_F32, golden->data, i);
        if (!(fabs(have[i] - want) <= bound))
            fail_msg("token %lld, logit %lld: %.9g, the golden has %.9g", (long long)(i / VOCAB),
                     (long long)(i % VOCAB), have[i], want);
    }
}

/* Seen: within 4e-6. */
static void slow_is_dense(void **state) {
    (void)state;
    enum { TOKENS = 24 };
    for (const subject *s = subjects; s < subjects + SUBJECTS; s++) {
        char *path = fbt_format(FBT_GOLDENS "/%s/golden.safetensors", s->name);
        fb_tensor_table *table;
        fb_error err;
        assert_ok(fb_tensors_open(path, &table, &err), &err);
        int32_t ids[TOKENS];
        memcpy(ids, entry_of(table, "input_ids", FB_STORED_I32, TOKENS)->data, sizeof ids);
        const fb_tensor_entry *golden = entry_of(table, "logits_f64", FB_STORED_F64, TOKENS * VOCAB);
        double *dense = slow_logits(s, ids, TOKENS, 0, 0), *wide = slow_logits(s, ids, TOKENS, 3, TOKENS - 4);
        assert_golden(golden, dense, 1e-5);
        assert_golden(golden, wide, 1e-5); /* the last token sees all that are before it: 3 and 20 */
        free(dense);
        free(wide);
        fb_tensors_free(table);
        free(path);
    }
}

static void slow_is_published(void **state) {
    (void)state;
    enum { TOKENS = 79, SINKS = 2, WINDOW = 10 };
    for (int i = 0; i < SUBJECTS; i += 2) {
        char *path = fbt_format(FBT_GOLDENS "/streaming/%s.safetensors", subjects[i].name);
        fb_tensor_table *table;
        fb_error err;
        assert_ok(fb_tensors_open(path, &table, &err), &err);
        assert_string_equal(fb_tensors_metadata(table, "sinks"), "2");
        assert_string_equal(fb_tensors_metadata(table, "window"), "10");
        int32_t ids[TOKENS];
        memcpy(ids, entry_of(table, "input_ids", FB_STORED_I32, TOKENS + 1)->data, sizeof ids);
        double *logits = slow_logits(&subjects[i], ids, TOKENS, SINKS, WINDOW);
        assert_golden(entry_of(table, "logits", FB_STORED_F32, TOKENS * VOCAB), logits, tolerance);
        free(logits);
        fb_tensors_free(table);
        free(path);
    }
}

/* ---- trials ---- */

typedef struct trial {
    const subject *s;
    fb_session_options options;
    int64_t sinks, window; /* as slow_stream takes them */
    int64_t limit;         /* tokens that a session may be given */
    char fuse[512];
    char *text; /* all of it, for messages */
} trial;

static int64_t between(fbt_random *random, int64_t least, int64_t most) {
    return least + fbt_random_below(random, most - least + 1);
}

/* "none", "all", all but the one that writes keys, or any of those that could apply. */
static void draw_fuses(fbt_random *random, const fb_model *model, char fuse[512]) {
    static const char *const named[] = {"none", "all", "all,-rope_kv"};
    int64_t which = fbt_random_below(random, 5);
    fuse[0] = 0;
    fb_fuse_info info;
    for (int i = 0; which >= 3 && fb_model_fuse(model, i, &info); i++) {
        if (!strstr(info.backends, "cpu") || info.why_not || info.greedy) continue;
        if (fbt_random_below(random, 2)) continue;
        if (fuse[0]) strcat(fuse, ",");
        strcat(fuse, info.name);
    }
    if (!fuse[0]) strcpy(fuse, named[which % 3]);
}

static void draw_cache(fbt_random *random, bool dense, trial *t) {
    t->limit = LONGEST;
    t->options.cache = FB_CACHE_SINKS;
    t->window = between(random, 1, 40);
    /* Small ones more often: there the edges are. */
    t->sinks = fbt_random_below(random, 3) ? between(random, 0, 5) : between(random, 0, 20);
    if (fbt_random_below(random, 3) == 0) t->window = between(random, 1, 6);
    t->options.sinks = t->sinks;
    if (t->sinks == 0 && fbt_random_below(random, 3)) {
        t->options.cache = FB_CACHE_WINDOW; /* what it says of sinks does not matter */
        t->options.sinks = between(random, 0, 9);
    }
    t->options.window = t->window;
    if (!dense || fbt_random_below(random, 5)) return;
    t->options.cache = FB_CACHE_DENSE;
    t->sinks = t->window = t->options.window = 0;
    t->limit = CONTEXT;
}

static trial draw(fbt_random *random, int number, bool dense) {
    trial t = {.s = &subjects[fbt_random_below(random, SUBJECTS)]};
    fb_session_options_default(&t.options);
    draw_cache(random, dense, &t);
    draw_fuses(random, t.s->model, t.fuse);
    int64_t isa = fbt_random_below(random, 16);
    t.options.isa = isa == 0 ? "ref" : isa < 4 ? "portable" : NULL;
    if (isa == 0) t.limit = 40; /* the reference kernels take a hundred times as long */
    t.options.act = FB_F32;
    t.options.kv = "f32";
    t.options.backend = "cpu";
    t.options.exact = fbt_random_below(random, 4) == 0;
    t.options.chunk = between(random, 1, 40);
    t.options.threads = fbt_random_below(random, 2) ? 1 : (int32_t)between(random, 2, 3);
    t.options.all_logits = true;
    t.text = fbt_format("trial %d: %s, cache %s, sinks %lld, window %lld, chunk %lld, threads %d, isa %s, "
                        "fuse %s%s",
                        number, t.s->name, fb_cache_name(t.options.cache), (long long)t.sinks,
                        (long long)t.window, (long long)t.options.chunk, t.options.threads,
                        t.options.isa ? t.options.isa : "best", t.fuse, t.options.exact ? ", exact" : "");
    return t;
}

static void draw_ids(fbt_random *random, int32_t *ids, int64_t count) {
    for (int64_t i = 0; i < count; i++) ids[i] = (int32_t)fbt_random_below(random, VOCAB);
}

static fb_session *create(const trial *t) {
    fb_session_options options = t->options;
    options.fuse = t->fuse;
    fb_session *session = NULL;
    fb_error err;
    if (fb_session_create(t->s->model, &options, &session, &err) != FB_OK)
        fail_msg("%s: %s", t->text, err.message);
    return session;
}

/* Appends `count` tokens, and copies the logits of the last one or of all to `logits`. */
static void prefill(fb_session *session, const int32_t *ids, int64_t count, bool all, float *logits) {
    fb_error err;
    const float *have;
    int64_t rows, vocab, before = fb_session_position(session);
    assert_ok(fb_session_prefill(session, ids, count, &err), &err);
    assert_ok(fb_session_logits(session, &have, &rows, &vocab, &err), &err);
    assert_int_equal(rows, all ? count : 1);
    assert_int_equal(vocab, VOCAB);
    assert_int_equal(fb_session_position(session), before + count);
    memcpy(logits, have, (size_t)(rows * vocab) * sizeof *logits);
}

/* `most` is the number of tokens that the session has had at most: more than now, after a trim. */
static void check_cache(const trial *t, const fb_session *session, int64_t most) {
    fb_cache_info info;
    int64_t position = fb_session_position(session), kept = t->window ? t->sinks + t->window : position;
    fb_session_get_cache(session, &info);
    assert_int_equal(info.kind, t->options.cache);
    assert_int_equal(info.sinks, t->sinks);
    assert_int_equal(info.window, t->window);
    assert_int_equal(info.held, position < kept ? position : kept);
    /* What has forgotten nothing can go back to the beginning; what is as far as it ever was, by a chunk. */
    int64_t least = 0;
    if (position == most) least = position < t->options.chunk ? position : t->options.chunk;
    if (t->window == 0 || most <= kept) least = position;
    assert_in_range(info.trimmable, least, position);
}

/* ---- the answers ---- */

static float *token_by_token(const trial *t, const int32_t *ids, int64_t count) {
    trial mine = *t;
    mine.options.all_logits = false;
    fb_session *session = create(&mine);
    float *logits = malloc((size_t)(count * VOCAB) * sizeof *logits);
    assert_non_null(logits);
    prefill(session, ids, 1, false, logits);
    check_cache(t, session, fb_session_position(session));
    for (int64_t i = 1; i < count; i++) {
        fb_error err;
        const float *have;
        assert_ok(fb_session_decode(session, ids[i], &err), &err);
        assert_ok(fb_session_logits(session, &have, NULL, NULL, &err), &err);
        memcpy(logits + i * VOCAB, have, VOCAB * sizeof *logits);
        check_cache(t, session, fb_session_position(session));
    }
    fb_session_free(session);
    return logits;
}

static float *in_pieces(const trial *t, const int32_t *ids, int64_t count, fbt_random *random) {
    fb_session *session = create(t);
    float *logits = malloc((size_t)(count * VOCAB) * sizeof *logits);
    assert_non_null(logits);
    for (int64_t done = 0, piece; done < count; done += piece) {
        piece = between(random, 1, fbt_random_below(random, 2) ? 8 : 3 * t->options.chunk);
        if (piece > count - done) piece = count - done;
        prefill(session, ids + done, piece, true, logits + done * VOCAB);
        check_cache(t, session, fb_session_position(session));
    }
    fb_session_free(session);
    return logits;
}

static void assert_near(const trial *t, const char *how, const float *have, const double *want,
                        int64_t count) {
    for (int64_t i = 0; i < count * VOCAB; i++)
        if (!(fabs((double)have[i] - want[i]) <= tolerance))
            fail_msg("%s, %s: token %lld of %lld, logit %lld: %.9g instead of %.9g", t->text, how,
                     (long long)(i / VOCAB), (long long)count, (long long)(i % VOCAB), (double)have[i],
                     want[i]);
}

static void assert_bits(const trial *t, const char *how, const float *have, const float *want,
                        int64_t count) {
    for (int64_t i = 0; i < count * VOCAB; i++)
        if (memcmp(&have[i], &want[i], sizeof *have) != 0)
            fail_msg("%s, %s: token %lld of %lld, logit %lld: %.9g instead of %.9g", t->text, how,
                     (long long)(i / VOCAB), (long long)count, (long long)(i % VOCAB), (double)have[i],
                     (double)want[i]);
}

static void answers(void **state) {
    (void)state;
    enum { TRIALS = 64 };
    fbt_random random = fbt_random_start(19);
    for (int number = 0; number < TRIALS; number++) {
        trial t = draw(&random, number, false);
        int32_t ids[LONGEST];
        int64_t count = between(&random, 1, t.limit);
        draw_ids(&random, ids, count);
        double *want = slow_logits(t.s, ids, count, t.sinks, t.window);
        float *single = token_by_token(&t, ids, count), *pieces = in_pieces(&t, ids, count, &random);
        assert_near(&t, "token by token", single, want, count);
        assert_near(&t, "in pieces", pieces, want, count);
        assert_bits(&t, "in pieces, not token by token", pieces, single, count);
        free(want);
        free(single);
        free(pieces);
        free(t.text);
    }
}

/* ---- trims and forks ---- */

/* A session, and the tokens that it has been given and not taken back. */
typedef struct teller {
    const trial *t;
    fb_session *session;
    int32_t ids[LONGEST];
    int64_t count, most; /* now, and ever */
} teller;

/* A few more tokens: the answers are those of a new session that is given all of them. */
static void tell(teller *a, fbt_random *random) {
    int64_t more = between(random, 1, fbt_random_below(random, 2) ? 5 : 50), left = a->t->limit - a->count;
    if (more > left) more = left;
    if (more == 0) return;
    draw_ids(random, a->ids + a->count, more);
    float *have = malloc((size_t)(more * VOCAB) * sizeof *have);
    float *want = malloc((size_t)((a->count + more) * VOCAB) * sizeof *want);
    assert_non_null(have);
    assert_non_null(want);
    prefill(a->session, a->ids + a->count, more, true, have);
    a->count += more;
    if (a->count > a->most) a->most = a->count;
    fb_session *fresh = create(a->t);
    prefill(fresh, a->ids, a->count, true, want);
    assert_bits(a->t, "not as a new session", have, want + (a->count - more) * VOCAB, more);
    check_cache(a->t, a->session, a->most);
    fb_session_free(fresh);
    free(have);
    free(want);
}

/* Back by as many tokens as may be, or fewer. Returns how many; negative if something was forgotten. */
static int64_t take_back(teller *a, fbt_random *random) {
    fb_cache_info info;
    fb_error err;
    const float *logits;
    fb_session_get_cache(a->session, &info);
    assert_refused(fb_session_trim(a->session, a->count - info.trimmable - 1, &err), FB_ERROR_USAGE, &err,
                   "trim");
    assert_refused(fb_session_trim(a->session, a->count + 1, &err), FB_ERROR_USAGE, &err, "trim");
    assert_int_equal(fb_session_position(a->session), a->count);
    int64_t back = fbt_random_below(random, 3) ? between(random, 0, info.trimmable) : info.trimmable;
    bool forgot = info.held < a->count;
    assert_ok(fb_session_trim(a->session, a->count - back, &err), &err);
    a->count -= back;
    assert_int_equal(fb_session_position(a->session), a->count);
    if (back > 0)
        assert_refused(fb_session_logits(a->session, &logits, NULL, NULL, &err), FB_ERROR_USAGE, &err,
                       "logits");
    check_cache(a->t, a->session, a->most);
    return forgot ? -back : back;
}

static void check_slow(const teller *a) {
    if (a->count == 0) return;
    float *have = malloc((size_t)(a->count * VOCAB) * sizeof *have);
    assert_non_null(have);
    double *want = slow_logits(a->t->s, a->ids, a->count, a->t->sinks, a->t->window);
    fb_session *fresh = create(a->t);
    prefill(fresh, a->ids, a->count, true, have);
    assert_near(a->t, "all at once", have, want, a->count);
    fb_session_free(fresh);
    free(have);
    free(want);
}

static void trims(void **state) {
    (void)state;
    enum { TRIALS = 24, ROUNDS = 6 };
    fbt_random random = fbt_random_start(20);
    int64_t early = 0, late = 0;
    for (int number = 0; number < TRIALS; number++) {
        trial t = draw(&random, number, true);
        teller a = {.t = &t, .session = create(&t)};
        for (int round = 0; round < ROUNDS; round++) {
            tell(&a, &random);
            for (int64_t times = between(&random, 1, 3); times > 0; times--) {
                int64_t back = take_back(&a, &random);
                early += back > 0;
                late += back < 0;
            }
        }
        check_slow(&a);
        fb_session_free(a.session);
        free(t.text);
    }
    assert_true(early > TRIALS / 4 && late > TRIALS / 4);
}

/* It has the answers that its parent has at that moment, or none. */
static teller fork_of(const teller *a) {
    teller b = *a;
    fb_error err;
    const float *want, *have;
    int64_t rows, copied;
    assert_ok(fb_session_fork(a->session, &b.session, &err), &err);
    assert_int_equal(fb_session_position(b.session), b.count);
    fb_status status = fb_session_logits(a->session, &want, &rows, NULL, NULL);
    assert_int_equal(fb_session_logits(b.session, &have, &copied, NULL, NULL), status);
    assert_int_equal(copied, rows);
    if (status == FB_OK) assert_bits(a->t, "in a fork", have, want, rows);
    check_cache(a->t, b.session, b.most);
    return b;
}

/* Parent and child in turns; then one is freed, and the other goes on. */
static void forks(void **state) {
    (void)state;
    enum { TRIALS = 16 };
    fbt_random random = fbt_random_start(21);
    for (int number = 0; number < TRIALS; number++) {
        trial t = draw(&random, number, true);
        teller two[2] = {{.t = &t, .session = create(&t)}};
        for (int64_t i = fbt_random_below(&random, 4); i > 0; i--) tell(&two[0], &random);
        two[1] = fork_of(&two[0]);
        for (int turn = 0; turn < 6; turn++) tell(&two[(turn + number / 2) % 2], &random);
        fb_session_free(two[number % 2].session);
        teller *left = &two[1 - number % 2];
        take_back(left, &random);
        tell(left, &random);
        tell(left, &random);
        check_slow(left);
        fb_session_free(left->session);
        free(t.text);
    }
}

/* Forks of forks that go on, go back, begin anew and go away, in any order. */
static void families(void **state) {
    (void)state;
    enum { TRIALS = 12, STEPS = 30, MOST = 4 };
    fbt_random random = fbt_random_start(22);
    for (int number = 0; number < TRIALS; number++) {
        trial t = draw(&random, number, true);
        teller all[MOST] = {{.t = &t, .session = create(&t)}};
        int64_t count = 1;
        for (int i = 0; i < STEPS; i++) {
            int64_t at = fbt_random_below(&random, count), action = fbt_random_below(&random, 10);
            if (action == 0 && count > 1) {
                fb_session_free(all[at].session);
                all[at] = all[--count];
            } else if (action <= 3 && count < MOST) {
                all[count] = fork_of(&all[at]);
                count++;
            } else if (action <= 5) {
                take_back(&all[at], &random);
            } else if (action == 6) {
                fb_session_reset(all[at].session);
                all[at].count = all[at].most = 0;
            } else {
                tell(&all[at], &random);
            }
        }
        while (count > 0) fb_session_free(all[--count].session);
        free(t.text);
    }
}

/* ---- refusals ---- */

static void refuse(const fb_model *model, const fb_session_options *options, fb_status status,
                   const char *words) {
    fb_session *session = (fb_session *)(uintptr_t)1;
    fb_error err = {0};
    assert_refused(fb_session_create(model, options, &session, &err), status, &err, words);
    assert_null(session);
}

static void learned_positions(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("gpt2");
    fb_session_options o;
    fb_session_options_default(&o);
    o.backend = "cpu";
    for (int i = 0; i < 2; i++) {
        o.cache = i ? FB_CACHE_SINKS : FB_CACHE_WINDOW;
        refuse(model, &o, FB_ERROR_UNSUPPORTED, "learned|position");
    }
    fb_model_free(model);
}

static void bad_options(void **state) {
    (void)state;
    fb_session_options good, o;
    fb_session_options_default(&good);
    good.backend = "cpu";
    good.cache = FB_CACHE_SINKS;
    good.window = 8;
#define REFUSE(words, ...) o = good, __VA_ARGS__, refuse(subjects[0].model, &o, FB_ERROR_USAGE, words)
    REFUSE("sinks|-1", o.sinks = -1);
    REFUSE("sinks|-9223372036854775808", o.sinks = INT64_MIN);
    REFUSE("sinks|129|128", o.sinks = 129);
    REFUSE("sinks|9223372036854775807", o.sinks = INT64_MAX);
    REFUSE("window|-1", o.window = -1);
    REFUSE("window|129|128", o.window = 129);
    REFUSE("window|9223372036854775807", o.window = INT64_MAX);
    REFUSE("window|-1", o.window = -1, o.cache = FB_CACHE_WINDOW);
    REFUSE("window|129|128", o.window = 129, o.cache = FB_CACHE_WINDOW);
    REFUSE("sinks|64|window|65|128", o.sinks = 64, o.window = 65);
    REFUSE("cache|3", o.cache = (fb_cache_kind)3);
    REFUSE("cache|-1", o.cache = (fb_cache_kind)-1);
#undef REFUSE
}

/* Without a window there is the largest whose tokens all have positions that the model was trained on. */
static void default_window(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        fb_session_options o;
        fb_session_options_default(&o);
        o.backend = "cpu";
        o.cache = i ? FB_CACHE_SINKS : FB_CACHE_WINDOW;
        fb_session *session;
        fb_error err;
        fb_cache_info info;
        assert_ok(fb_session_create(subjects[0].model, &o, &session, &err), &err);
        fb_session_get_cache(session, &info);
        assert_int_equal(info.kind, o.cache);
        assert_int_equal(info.sinks, i ? 4 : 0);
        assert_int_equal(info.sinks + info.window + 1, CONTEXT);
        assert_int_equal(info.held + info.trimmable, 0);
        fb_session_free(session);
    }
}

/* The logits of all tokens, read in chunks of this size. */
static float *in_chunks(const subject *s, const fb_session_options *given, const int32_t *ids, int64_t count,
                        int64_t chunk) {
    fb_session_options o = *given;
    fb_session *session;
    const float *logits;
    fb_error err;
    o.chunk = chunk;
    o.all_logits = true;
    assert_ok(fb_session_create(s->model, &o, &session, &err), &err);
    assert_ok(fb_session_prefill(session, ids, count, &err), &err);
    assert_ok(fb_session_logits(session, &logits, NULL, NULL, &err), &err);
    float *copy = malloc((size_t)(count * VOCAB) * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, logits, (size_t)(count * VOCAB) * sizeof *copy);
    fb_session_free(session);
    return copy;
}

/* The size of the ring, which the chunk decides, changes no bit: also after some turns of the smaller one. */
static void chunks_change_no_bit(void **state) {
    (void)state;
    enum { TOKENS = 600 };
    static const int64_t chunks[] = {1, 7, 64, 300};
    static const char *const isas[] = {NULL, "portable", "ref"}, *const fuses[] = {"none", "all"};
    int32_t ids[TOKENS];
    for (int i = 0; i < TOKENS; i++) ids[i] = (i * 37 + i / 9) % VOCAB;
    for (int which = 0; which < 24; which++) {
        const subject *s = &subjects[which % SUBJECTS];
        fb_session_options o;
        fb_session_options_default(&o);
        o.cache = which & 4 ? FB_CACHE_SINKS : FB_CACHE_WINDOW;
        o.sinks = which & 4 ? 3 + which / 8 : 0;
        o.window = 20 + 45 * (which % 3);
        o.fuse = fuses[which / 2 % 2];
        o.isa = isas[which / 8];
        o.backend = "cpu";
        o.act = o.isa ? FB_F32 : FB_F16;
        if (which >= 16 && (FBT_SANITIZED || which % 2)) continue; /* slow */
        float *want = in_chunks(s, &o, ids, TOKENS, chunks[0]);
        for (size_t i = 1; i < sizeof chunks / sizeof *chunks; i++) {
            float *have = in_chunks(s, &o, ids, TOKENS, chunks[i]);
            for (int64_t at = 0; at < TOKENS; at++)
                if (memcmp(have + at * VOCAB, want + at * VOCAB, VOCAB * sizeof *have) != 0)
                    fail_msg("%s, %lld sinks, window %lld, fuse %s, chunk %lld: token %lld differs", s->name,
                             (long long)o.sinks, (long long)o.window, o.fuse, (long long)chunks[i],
                             (long long)at);
            free(have);
        }
        free(want);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slow_is_dense), cmocka_unit_test(slow_is_published),
        cmocka_unit_test(answers),       cmocka_unit_test(trims),
        cmocka_unit_test(forks),         cmocka_unit_test(chunks_change_no_bit),
        cmocka_unit_test(families),      cmocka_unit_test(learned_positions),
        cmocka_unit_test(bad_options),   cmocka_unit_test(default_window),
    };
    return cmocka_run_group_tests(tests, open_subjects, free_subjects);
}
