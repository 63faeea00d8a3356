/* The scheduler: answers are those of a session, however many there are, and whatever happens to the others.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fusebox_batch.h"
#include "support/support.h"

#define MOST 64

static fb_model *story, *golden;

static int open_models(void **state) {
    (void)state;
    story = fbt_model_open("models/storyteller");
    golden = fbt_golden_open("llama-gqa-tied");
    return 0;
}

static int close_models(void **state) {
    (void)state;
    fb_model_free(story);
    fb_model_free(golden);
    return 0;
}

/* What one answer's callback saw. */
typedef struct heard {
    int32_t tokens[MOST];
    char text[4096];
    size_t bytes;
    int64_t count, cached;
    fb_finish finish;
    int ends; /* how often it was told that it ended */
    int64_t cancel_at;
} heard;

static bool listen(void *user, const fb_answer *a) {
    heard *h = (heard *)user + a->sample;
    assert_true(a->size == sizeof *a);
    assert_int_equal(h->ends, 0);
    assert_true(h->bytes + a->bytes < sizeof h->text);
    memcpy(h->text + h->bytes, a->text, a->bytes);
    h->bytes += a->bytes;
    h->text[h->bytes] = 0;
    h->cached = a->cached;
    if (a->finish != FB_FINISH_NONE) {
        h->finish = a->finish;
        h->ends++;
    } else if (a->token >= 0) {
        assert_non_null(a->logits);
        if (h->count < MOST) h->tokens[h->count] = a->token;
        h->count++;
        assert_int_equal(a->count, h->count);
    }
    return !(h->cancel_at && h->count >= h->cancel_at);
}

static fb_scheduler *scheduler_of(const fb_model *model, fb_scheduler_options *options) {
    fb_scheduler_options defaults;
    fb_session_options session;
    fb_scheduler *s;
    fb_error err;
    fb_scheduler_options_default(&defaults);
    fb_session_options_default(&session);
    session.threads = 2;
    assert_ok(fb_scheduler_create(model, &session, options ? options : &defaults, &s, &err), &err);
    return s;
}

static fb_request_options request_of(const int32_t *prompt, int64_t count, int64_t tokens, heard *to) {
    fb_request_options o;
    fb_request_options_default(&o);
    o.prompt = prompt;
    o.prompt_count = count;
    o.max_tokens = tokens;
    o.past_end = true;
    o.wants_logits = 1;
    o.on_answer = listen;
    o.user = to;
    return o;
}

static uint64_t submit(fb_scheduler *s, const fb_request_options *o) {
    uint64_t id;
    fb_error err;
    assert_ok(fb_scheduler_submit(s, o, &id, &err), &err);
    return id;
}

static void run(fb_scheduler *s) {
    bool busy = true;
    fb_error err;
    while (busy) assert_ok(fb_scheduler_step(s, &busy, &err), &err);
    fb_scheduler_stats stats;
    fb_scheduler_get_stats(s, &stats);
    assert_int_equal(stats.running + stats.waiting, 0);
    assert_int_equal(stats.blocks_free, stats.blocks);
}

/* The same by a session and a sampler. */
static void alone(const fb_model *model, const int32_t *prompt, int64_t count, int64_t tokens,
                  const fb_sampler_options *sampling, int32_t *out) {
    fb_session_options o;
    fb_session *session;
    fb_sampler *sampler;
    fb_error err;
    const float *logits;
    int64_t vocab;
    fb_session_options_default(&o);
    o.threads = 1;
    assert_ok(fb_session_create(model, &o, &session, &err), &err);
    assert_ok(fb_session_prefill(session, prompt, count, &err), &err);
    assert_ok(fb_session_logits(session, &logits, NULL, &vocab, &err), &err);
    assert_ok(fb_sampler_create(sampling, vocab, &sampler, &err), &err);
    for (int64_t i = 0; i < count; i++) fb_sampler_accept(sampler, prompt[i]);
    for (int64_t i = 0; i < tokens; i++) {
        if (i) assert_ok(fb_session_decode(session, out[i - 1], &err), &err);
        assert_ok(fb_session_logits(session, &logits, NULL, NULL, &err), &err);
        assert_ok(fb_sampler_next(sampler, logits, &out[i], &err), &err);
    }
    fb_sampler_free(sampler);
    fb_session_free(session);
}

static fb_sampler_options greedy(void) {
    fb_sampler_options o;
    fb_sampler_options_default(&o);
    o.temperature = 0;
    return o;
}

/* Eight prompts at once, greedy and sampled, and text that is the tokens' text. */
static void answers_are_those_of_a_session(void **state) {
    (void)state;
    static const char *const texts[] = {"Once upon a time",
                                        "The king",
                                        "There was a wolf who",
                                        "A",
                                        "In the forest the old woman said",
                                        "One day",
                                        "The sea",
                                        "He"};
    fb_scheduler *s = scheduler_of(story, NULL);
    heard heard_by[8];
    int32_t *prompt[8];
    int64_t count[8];
    fb_sampler_options sampling[8];
    fb_error err;
    memset(heard_by, 0, sizeof heard_by);
    for (int i = 0; i < 8; i++) {
        assert_ok(fb_tokenize(story, texts[i], strlen(texts[i]), true, &prompt[i], &count[i], &err), &err);
        fb_sampler_options_default(&sampling[i]);
        sampling[i].seed = 7;
        sampling[i].sequence = (uint64_t)i;
        if (i % 2) sampling[i] = greedy();
        fb_request_options o = request_of(prompt[i], count[i], 24, &heard_by[i]);
        o.sampler = i % 4 == 1 ? NULL : &sampling[i];
        submit(s, &o);
    }
    run(s);
    for (int i = 0; i < 8; i++) {
        int32_t wanted[24];
        char *text;
        size_t bytes;
        alone(story, prompt[i], count[i], 24, &sampling[i], wanted);
        assert_int_equal(heard_by[i].count, 24);
        assert_int_equal(heard_by[i].finish, FB_FINISH_LENGTH);
        assert_memory_equal(heard_by[i].tokens, wanted, sizeof wanted);
        assert_ok(fb_detokenize(story, wanted, 24, false, &text, &bytes, &err), &err);
        assert_int_equal(heard_by[i].bytes, bytes);
        assert_memory_equal(heard_by[i].text, text, bytes);
        fb_free(text);
        fb_free(prompt[i]);
    }
    fb_scheduler_free(s);
}

/* Samples share the prompt's blocks, and answer i has the random numbers of sequence i. */
static void samples(void **state) {
    (void)state;
    fb_scheduler_options options;
    fb_scheduler_options_default(&options);
    options.block = 16;
    fb_scheduler *s = scheduler_of(golden, &options);
    int32_t prompt[60], wanted[8];
    heard heard_by[5];
    fb_sampler_options sampling;
    fb_scheduler_stats stats;
    bool busy;
    fb_error err;
    memset(heard_by, 0, sizeof heard_by);
    for (int i = 0; i < 60; i++) prompt[i] = (i * 7 + 3) % 90;
    fb_sampler_options_default(&sampling);
    sampling.temperature = 50; /* this model is sure of itself */
    sampling.min_p = 0;
    sampling.seed = 3;
    fb_request_options o = request_of(prompt, 60, 8, heard_by);
    o.samples = 5;
    o.sampler = &sampling;
    submit(s, &o);
    assert_ok(fb_scheduler_step(s, &busy, &err), &err);
    assert_ok(fb_scheduler_step(s, &busy, &err), &err);
    fb_scheduler_get_stats(s, &stats);
    assert_int_equal(stats.running, 5);
    /* Three full blocks once, and the block with tokens 48 to 63 five times. */
    assert_int_equal(stats.blocks - stats.blocks_free, 3 + 5);
    run(s);
    for (int i = 0; i < 5; i++) {
        sampling.sequence = (uint64_t)i;
        alone(golden, prompt, 60, 8, &sampling, wanted);
        assert_int_equal(heard_by[i].count, 8);
        assert_memory_equal(heard_by[i].tokens, wanted, sizeof wanted);
    }
    assert_memory_not_equal(heard_by[0].tokens, heard_by[1].tokens, sizeof wanted);
    fb_scheduler_free(s);
}

/* A prompt that begins as an earlier one finds its full blocks; the answer is the same. */
static void prefixes(void **state) {
    (void)state;
    fb_scheduler_options options;
    fb_scheduler_options_default(&options);
    options.block = 16;
    int32_t prompt[100], wanted[6];
    fb_sampler_options sampling = greedy();
    for (int i = 0; i < 100; i++) prompt[i] = (i * 11 + 5) % 90;
    alone(golden, prompt, 100, 6, &sampling, wanted);
    for (int cached = 0; cached < 2; cached++) {
        options.prefix_cache = cached;
        fb_scheduler *s = scheduler_of(golden, &options);
        heard first = {.count = 0}, second = {.count = 0}, third = {.count = 0};
        fb_request_options a = request_of(prompt, 70, 3, &first), b = request_of(prompt, 100, 6, &second);
        submit(s, &a);
        run(s);
        submit(s, &b);
        run(s);
        assert_int_equal(second.cached, cached ? 64 : 0);
        assert_memory_equal(second.tokens, wanted, sizeof wanted);
        /* The last token is computed even if all blocks are there. */
        fb_request_options c = request_of(prompt, 96, 1, &third);
        submit(s, &c);
        run(s);
        assert_int_equal(third.cached, cached ? 80 : 0);
        fb_scheduler_free(s);
    }
}

/* Memory for little more than one request: the later ones are put back, and all are right. */
static void memory_is_short(void **state) {
    (void)state;
    fb_scheduler_options options;
    fb_scheduler_options_default(&options);
    options.block = 16;
    options.cache_tokens = 112;
    options.stretch = 0;
    for (options.prefix_cache = 0; options.prefix_cache < 2; options.prefix_cache++) {
        fb_scheduler *s = scheduler_of(golden, &options);
        fb_scheduler_stats stats;
        int32_t prompt[6][30], wanted[MOST];
        heard heard_by[6];
        fb_sampler_options sampling = greedy();
        memset(heard_by, 0, sizeof heard_by);
        for (int i = 0; i < 6; i++) {
            for (int j = 0; j < 30; j++) prompt[i][j] = (i * 17 + j * 13) % 90;
            fb_request_options o = request_of(prompt[i], 30, MOST, &heard_by[i]);
            submit(s, &o);
        }
        run(s);
        fb_scheduler_get_stats(s, &stats);
        assert_true(stats.preempted > 0);
        for (int i = 0; i < 6; i++) {
            alone(golden, prompt[i], 30, MOST, &sampling, wanted);
            assert_int_equal(heard_by[i].count, MOST);
            assert_memory_equal(heard_by[i].tokens, wanted, sizeof wanted);
        }
        fb_scheduler_free(s);
    }
}

static void stop_texts_and_ends(void **state) {
    (void)state;
    fb_scheduler *s = scheduler_of(story, NULL);
    heard plain = {.count = 0}, stopped = {.count = 0};
    int32_t *prompt;
    int64_t count;
    fb_error err;
    assert_ok(fb_tokenize(story, "Once upon a time", 16, true, &prompt, &count, &err), &err);
    fb_request_options o = request_of(prompt, count, 40, &plain);
    submit(s, &o);
    run(s);
    /* Stop at some letters in the middle of the text. */
    char stop[5] = {0};
    memcpy(stop, plain.text + 20, 4);
    const char *const stops[] = {"never to be seen", stop};
    o.user = &stopped;
    o.stops = stops;
    o.stop_count = 2;
    submit(s, &o);
    run(s);
    assert_int_equal(stopped.finish, FB_FINISH_STOP);
    assert_int_equal(stopped.ends, 1);
    char *expected = strstr(plain.text, stop);
    assert_int_equal(stopped.bytes, expected - plain.text);
    assert_memory_equal(stopped.text, plain.text, stopped.bytes);
    fb_free(prompt);
    fb_scheduler_free(s);
}

typedef struct canceller {
    fb_scheduler *scheduler;
    uint64_t id;
} canceller;

/* However little longer a step may get, it takes eight rows of a prompt through a layer or more. A few steps
 * in between have none, to time them. */
static void a_prompt_goes_on_while_others_decode(void **state) {
    (void)state;
    enum { LONG = 203, GEN = 300, LAYERS = 8, ROWS = 8 };
    fb_scheduler_options options;
    fb_scheduler_options_default(&options);
    options.stretch = 1;
    fb_scheduler *s = scheduler_of(story, &options);
    int32_t first[8] = {5, 6, 7, 8, 9, 10, 11, 12}, prompt[LONG], wanted[4];
    heard stream = {.count = 0}, late = {.count = 0};
    fb_sampler_options sampling = greedy();
    fb_scheduler_stats before, after;
    bool busy = true;
    fb_error err;
    for (int i = 0; i < LONG; i++) prompt[i] = 100 + i % 300;
    fb_request_options a = request_of(first, 8, GEN, &stream), b = request_of(prompt, LONG, 4, &late);
    submit(s, &a);
    while (stream.count < 3) assert_ok(fb_scheduler_step(s, &busy, &err), &err);
    fb_scheduler_get_stats(s, &before);
    submit(s, &b);
    while (late.count < 1) assert_ok(fb_scheduler_step(s, &busy, &err), &err);
    fb_scheduler_get_stats(s, &after);
    int64_t most = (LONG + ROWS - 1) / ROWS * LAYERS;
    assert_in_range(after.steps - before.steps, most, most + 10);
    assert_int_equal(after.held_steps, most);
    assert_int_equal(after.rows - before.rows, after.steps - before.steps + LONG);
    assert_int_equal(stream.count - 3,
                     after.steps - before.steps); /* each of them had a token for the stream */
    run(s);
    alone(story, prompt, LONG, 4, &sampling, wanted);
    assert_memory_equal(late.tokens, wanted, sizeof wanted);
    fb_scheduler_free(s);
}

/* A request whose end submits another one. */
typedef struct relay {
    fb_scheduler *scheduler;
    fb_request_options next;
    int ends;
} relay;

static bool pass_on(void *user, const fb_answer *a) {
    relay *r = user;
    if (a->finish == FB_FINISH_NONE) return true;
    r->ends++;
    submit(r->scheduler, &r->next);
    return true;
}

/* There is something to do, although the step itself had no rows. */
static void submitted_by_the_last_end(void **state) {
    (void)state;
    fb_scheduler *s = scheduler_of(golden, NULL);
    int32_t prompt[20] = {1, 2, 3};
    heard last = {.count = 0};
    relay to = {.scheduler = s, .next = request_of(prompt, 20, 4, &last)};
    fb_request_options o = request_of(prompt, 20, 40, NULL);
    o.on_answer = pass_on;
    o.user = &to;
    fb_scheduler_cancel(s, submit(s, &o));
    run(s);
    assert_int_equal(to.ends, 1);
    assert_int_equal(last.finish, FB_FINISH_LENGTH);
    fb_scheduler_free(s);
}

static void *cancel_soon(void *arg) {
    canceller *c = arg;
    fb_scheduler_cancel(c->scheduler, c->id);
    return NULL;
}

static void cancels(void **state) {
    (void)state;
    fb_scheduler *s = scheduler_of(golden, NULL);
    int32_t prompt[20] = {1, 2, 3}, wanted[40];
    heard by_callback = {.cancel_at = 3}, by_thread = {.count = 0}, before = {.count = 0},
          other = {.count = 0};
    fb_request_options a = request_of(prompt, 20, 40, &by_callback),
                       b = request_of(prompt, 20, 40, &by_thread);
    fb_request_options c = request_of(prompt, 20, 40, &before), d = request_of(prompt, 20, 40, &other);
    fb_sampler_options sampling = greedy();
    bool busy;
    fb_error err;
    submit(s, &a);
    canceller thread_arg = {s, submit(s, &b)};
    fb_scheduler_cancel(s, submit(s, &c)); /* before any step */
    submit(s, &d);
    for (int i = 0; i < 6; i++) assert_ok(fb_scheduler_step(s, &busy, &err), &err);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, cancel_soon, &thread_arg), 0);
    pthread_join(thread, NULL);
    fb_scheduler_cancel(s, 12345); /* nobody */
    run(s);
    assert_int_equal(by_callback.finish, FB_FINISH_CANCELLED);
    assert_int_equal(by_callback.count, 3);
    assert_int_equal(by_thread.finish, FB_FINISH_CANCELLED);
    assert_true(by_thread.count > 0 && by_thread.count < 40);
    assert_int_equal(before.finish, FB_FINISH_CANCELLED);
    assert_int_equal(before.count, 0);
    assert_int_equal(other.finish, FB_FINISH_LENGTH);
    alone(golden, prompt, 20, 40, &sampling, wanted);
    assert_memory_equal(other.tokens, wanted, sizeof wanted);
    /* One that is freed in the middle. */
    submit(s, &d);
    other.ends = 0;
    other.count = 0;
    assert_ok(fb_scheduler_step(s, &busy, &err), &err);
    fb_scheduler_free(s);
}

/* Answers that are stopped now and then, also in the middle of their prompt and of several samples, say what
 * they would have said; meanwhile others go on, and have their blocks. */
static void pauses(void **state) {
    (void)state;
    fb_scheduler_options options;
    fb_scheduler_options_default(&options);
    options.sequences = 6;
    options.rows = 8; /* prompts take several steps */
    fb_scheduler *s = scheduler_of(story, &options);
    int32_t prompt[30] = {5, 6, 7};
    heard filled[8][6];
    fb_request_options fillers[8];
    memset(filled, 0, sizeof filled);
    for (int i = 0; i < 8; i++) {
        fillers[i] = request_of(prompt, 9, 3, filled[i]);
        fillers[i].samples = 6;
    }
    heard got[4][2], alone_[4][2];
    uint64_t ids[4];
    fb_request_options o[4];
    fb_scheduler_stats stats;
    fb_sampler_options sampling;
    bool busy;
    fb_error err;
    fb_sampler_options_default(&sampling);
    sampling.seed = 7;
    for (int round = 0; round < 2; round++) {
        memset(got, 0, sizeof got);
        for (int i = 0; i < 4; i++) {
            o[i] = request_of(prompt, 30 - i, 40, round ? got[i] : alone_[i]);
            o[i].samples = 1 + i % 2;
            o[i].sampler = &sampling;
            memset(alone_[i], 0, round ? 0 : sizeof alone_[i]);
            ids[i] = submit(s, &o[i]);
            if (!round) run(s);
        }
    }
    for (uint32_t step = 0, random = 1; step < 400; step++) {
        random = random * 1664525 + 1013904223;
        fb_scheduler_pause(s, ids[random >> 30], (random >> 20 & 3) != 0);
        if (step % 50 == 20) submit(s, &fillers[step / 50]); /* they need the places */
        assert_ok(fb_scheduler_step(s, &busy, &err), &err);
    }
    for (int i = 0; i < 4; i++) fb_scheduler_pause(s, ids[i], true);
    assert_ok(fb_scheduler_step(s, &busy, &err), &err);
    fb_scheduler_pause(s, 12345, true); /* nobody */
    for (int i = 0; i < 4; i++) fb_scheduler_pause(s, ids[i], false);
    run(s);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < o[i].samples; k++) {
            assert_int_equal(got[i][k].finish, FB_FINISH_LENGTH);
            assert_memory_equal(got[i][k].tokens, alone_[i][k].tokens, sizeof alone_[i][k].tokens);
        }
    /* All are stopped, and there is nothing to do. Another one gets a place of theirs. */
    memset(got, 0, sizeof got);
    for (int i = 0; i < 4; i++) ids[i] = submit(s, &o[i]);
    for (int i = 0; i < 20; i++) assert_ok(fb_scheduler_step(s, &busy, &err), &err);
    const int64_t said = got[0][0].count;
    assert_true(said > 0 && said < 40);
    for (int i = 0; i < 4; i++) fb_scheduler_pause(s, ids[i], true);
    for (int i = 0; i < 2; i++) assert_ok(fb_scheduler_step(s, &busy, &err), &err);
    assert_false(busy);
    fb_scheduler_get_stats(s, &stats);
    assert_true(stats.running > 0 && stats.blocks_free < stats.blocks);
    const int64_t preempted = stats.preempted;
    heard other[6];
    memset(other, 0, sizeof other);
    fb_request_options more = request_of(prompt, 10, 20, other);
    more.samples = 6;
    submit(s, &more);
    for (busy = true; busy;) assert_ok(fb_scheduler_step(s, &busy, &err), &err);
    assert_int_equal(other[5].finish, FB_FINISH_LENGTH);
    assert_int_equal(got[0][0].count, said);
    fb_scheduler_get_stats(s, &stats);
    assert_true(stats.preempted > preempted);
    assert_int_equal(stats.running, 0);
    /* One goes on, one is cancelled, the others are freed with the scheduler. */
    fb_scheduler_pause(s, ids[0], false);
    fb_scheduler_cancel(s, ids[1]);
    for (busy = true; busy;) assert_ok(fb_scheduler_step(s, &busy, &err), &err);
    assert_int_equal(got[0][0].finish, FB_FINISH_LENGTH);
    assert_memory_equal(got[0][0].tokens, alone_[0][0].tokens, sizeof alone_[0][0].tokens);
    assert_int_equal(got[1][1].finish, FB_FINISH_CANCELLED);
    assert_int_equal(got[2][0].ends, 0);
    fb_scheduler_free(s);
}

/* Of requests that wait, a higher priority starts first; but it does not overtake those that came long
 * before. */
static int32_t finished_first;
static bool note_first(void *user, const fb_answer *a) {
    if (a->finish != FB_FINISH_NONE && !finished_first) finished_first = *(int32_t *)user;
    return true;
}

static void priorities(void **state) {
    (void)state;
    fb_scheduler_options options;
    fb_scheduler_options_default(&options);
    options.sequences = 1;
    fb_scheduler *s = scheduler_of(golden, &options);
    int32_t prompt[4] = {1, 2, 3, 4}, name[] = {1, 2, 3};
    for (int i = 0; i < 3; i++) {
        fb_request_options o = request_of(prompt, 4, 2, NULL);
        o.on_answer = note_first;
        o.user = &name[i];
        o.priority = i == 1;
        submit(s, &o);
    }
    finished_first = 0;
    run(s);
    assert_int_equal(finished_first, 2);
    /* Sixty-five requests before it: the first of them has waited longer than a priority of 1 is worth. */
    finished_first = 0;
    for (int i = 0; i < 66; i++) {
        fb_request_options o = request_of(prompt, 4, 1, NULL);
        o.on_answer = note_first;
        o.user = &name[i == 65];
        o.priority = i == 65;
        submit(s, &o);
    }
    run(s);
    assert_int_equal(finished_first, 1);
    fb_scheduler_free(s);
}

static void refusals(void **state) {
    (void)state;
    fb_scheduler_options so;
    fb_session_options session;
    fb_scheduler *s;
    fb_error err;
    int32_t prompt[200] = {1};
    uint64_t id = 9;
    fb_session_options_default(&session);
#define REFUSED_OPTION(field, value, words)                                                                  \
    fb_scheduler_options_default(&so);                                                                       \
    so.field = value;                                                                                        \
    assert_refused(fb_scheduler_create(golden, &session, &so, &s, &err), FB_ERROR_USAGE, &err, words);       \
    assert_null(s)
    REFUSED_OPTION(sequences, 0, "sequences|0|1 to 1024");
    REFUSED_OPTION(sequences, 5000, "sequences|5000");
    REFUSED_OPTION(block, 24, "block|24|16, 32, 64 or 128");
    REFUSED_OPTION(cache_tokens, -1, "cache_tokens|-1");
    REFUSED_OPTION(rows, 3, "rows|3|sequences, 16");
    REFUSED_OPTION(stretch, 0.5f, "stretch|0.5");
    REFUSED_OPTION(prefix_cache, 2, "prefix_cache|2");
    fb_scheduler_options_default(&so);
    so.cache_tokens = 64;
    assert_ok(fb_scheduler_create(golden, &session, &so, &s, &err), &err);
#define REFUSED(count, field, value, words)                                                                  \
    do {                                                                                                     \
        fb_request_options o = request_of(prompt, count, 1, NULL);                                           \
        o.field = value;                                                                                     \
        assert_refused(fb_scheduler_submit(s, &o, &id, &err), FB_ERROR_USAGE, &err, words);                  \
        assert_int_equal(id, 0);                                                                             \
    } while (0)
    REFUSED(0, samples, 1, "prompt|0 tokens");
    REFUSED(200, samples, 1, "prompt|200|127");
    REFUSED(3, samples, 0, "samples|0");
    REFUSED(3, samples, 17, "samples|17|16");
    REFUSED(3, max_tokens, -2, "max_tokens|-2");
    REFUSED(3, max_tokens, 126, "max_tokens|126|125");
    REFUSED(3, max_tokens, 100, "102 tokens|4 blocks|2");
    REFUSED(3, priority, 5000, "priority|5000");
    REFUSED(3, stop_count, 100, "stop texts|100");
    prompt[1] = 100000;
    REFUSED(3, samples, 1, "token 1|100000");
    fb_scheduler_free(s);
    fb_scheduler_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_those_of_a_session),
        cmocka_unit_test(samples),
        cmocka_unit_test(prefixes),
        cmocka_unit_test(memory_is_short),
        cmocka_unit_test(stop_texts_and_ends),
        cmocka_unit_test(a_prompt_goes_on_while_others_decode),
        cmocka_unit_test(cancels),
        cmocka_unit_test(pauses),
        cmocka_unit_test(submitted_by_the_last_end),
        cmocka_unit_test(priorities),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
