/* Schemas in samplers, sessions and the scheduler, with the built-in model. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "file/json.h"
#include "fusebox_batch.h"
#include "support/support.h"
#include "text/sampler.h"

static const char person[] = "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\","
                             "\"maxLength\":12},\"age\":{\"type\":\"integer\","
                             "\"minimum\":0,\"maximum\":99},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":"
                             "[\"red\",\"green\"]},\"maxItems\":3}},"
                             "\"required\":[\"name\",\"age\",\"tags\"],\"additionalProperties\":false}";

static fb_model *story;

static int open_story(void **state) {
    (void)state;
    story = fbt_model_open(FBT_STORYTELLER);
    return 0;
}

static int close_story(void **state) {
    (void)state;
    fb_model_free(story);
    return 0;
}

static fb_schema *compile(const char *text) {
    fb_schema *schema;
    fb_error err;
    assert_ok(fb_schema_create(story, text, text ? strlen(text) : 0, &schema, &err), &err);
    return schema;
}

static fb_sampler *sampler_of(const char *text, float temperature, uint64_t sequence) {
    fb_schema *schema = compile(text);
    fb_sampler_options o;
    fb_sampler *sampler;
    fb_model_info info;
    fb_error err;
    fb_model_get_info(story, &info);
    fb_sampler_options_default(&o);
    o.temperature = temperature;
    o.seed = 5;
    o.sequence = sequence;
    o.schema = schema;
    assert_ok(fb_sampler_create(&o, info.vocab, &sampler, &err), &err);
    fb_schema_free(schema); /* the sampler has it */
    return sampler;
}

static void check_person(const char *text, size_t bytes) {
    fb_json *json;
    fb_error err;
    assert_ok(fb_json_parse("answer", text, bytes, 1 << 20, &json, &err), &err);
    const fb_json *name = fb_json_get(json, "name"), *age = fb_json_get(json, "age"),
                  *tags = fb_json_get(json, "tags");
    assert_int_equal(fb_json_size(json), 3);
    assert_true(fb_json_is(name, FB_JSON_STRING) && fb_json_is(age, FB_JSON_INT) &&
                fb_json_is(tags, FB_JSON_ARRAY));
    assert_in_range(fb_json_int_of(age), 0, 99);
    assert_in_range(fb_json_size(tags), 0, 3);
    for (const fb_json *t = fb_json_first(tags); t; t = fb_json_next(t))
        assert_true(strcmp(fb_json_text_of(t), "red") == 0 || strcmp(fb_json_text_of(t), "green") == 0);
    fb_json_free(json);
}

/* ---- samplers ---- */

static void a_sampler_keeps_to_the_schema(void **state) {
    (void)state;
    fb_model_info info;
    fb_error err;
    fb_model_get_info(story, &info);
    float *logits = calloc((size_t)info.vocab, sizeof *logits);
    for (int greedy = 0; greedy < 2; greedy++) {
        fb_sampler *sampler = sampler_of("{\"enum\":[\"yes\",[true]]}", greedy ? 0 : 1, 0);
        fb_text_stream *stream;
        const char *text;
        size_t bytes;
        char whole[64] = "";
        assert_ok(fb_text_create(story, &stream, &err), &err);
        assert_int_equal(fb_sampler_wants(sampler), 0);
        for (int32_t id = 0; id < 200; id++) fb_sampler_accept(sampler, id); /* a prompt is no part of it */
        for (int i = 0; i < 20 && !fb_sampler_ended(sampler); i++) {
            int32_t id;
            assert_ok(fb_sampler_next(sampler, logits, &id, &err), &err);
            assert_false(fb_model_is_end(story, id));
            assert_ok(fb_text_push(stream, id, &text, &bytes, &err), &err);
            strncat(whole, text, bytes);
        }
        assert_true(fb_sampler_ended(sampler));
        const char *begin = whole + strspn(whole, " \n");
        assert_true(strcmp(begin, "\"yes\"") == 0 || strcmp(begin, "[true]") == 0);
        fb_text_free(stream);
        fb_sampler_free(sampler);
    }
    free(logits);
}

static void logits_that_leave_nothing(void **state) {
    (void)state;
    fb_model_info info;
    fb_error err;
    int32_t id;
    int64_t brace = -1;
    fb_model_get_info(story, &info);
    float *logits = malloc((size_t)info.vocab * sizeof *logits);
    fb_sampler *sampler = sampler_of(NULL, 1, 0);
    for (int64_t i = 0; i < info.vocab; i++) {
        const char *text;
        size_t bytes;
        fb_text_stream *stream;
        assert_ok(fb_text_create(story, &stream, &err), &err);
        assert_ok(fb_text_push(stream, (int32_t)i, &text, &bytes, &err), &err);
        const bool begins = memchr(text, '{', bytes) || bytes == 0 || text[0] == ' ' || text[0] == '\n';
        logits[i] = begins ? -INFINITY : 1;
        if (bytes == 1 && text[0] == '{') brace = i;
        fb_text_free(stream);
    }
    assert_refused(fb_sampler_next(sampler, logits, &id, &err), FB_ERROR_USAGE, &err,
                   "schema: no token that continues the document has a finite score");
    assert_true(brace >= 0);
    logits[brace] = -50; /* far below the others */
    assert_ok(fb_sampler_next(sampler, logits, &id, &err), &err);
    assert_int_equal(id, brace);
    logits[7] = NAN; /* also where the schema allows nothing */
    assert_refused(fb_sampler_next(sampler, logits, &id, &err), FB_ERROR_USAGE, &err,
                   "logits: |nan| for token 7");
    fb_sampler_free(sampler);
    free(logits);
}

/* A number may go on: then the model says when it has ended. */
static void a_number_at_the_top(void **state) {
    (void)state;
    const fb_tokenizer *tokenizer = fb_model_tokenizer(story);
    fb_model_info info;
    fb_error err;
    int32_t id, *one;
    int64_t count;
    fb_model_get_info(story, &info);
    float *logits = calloc((size_t)info.vocab, sizeof *logits);
    for (int32_t i = 0; i < info.vocab; i++) logits[i] = fb_model_is_end(story, i) ? 9 : 0;
    assert_ok(fb_tokenizer_encode(tokenizer, "1", 1, false, &one, &count, &err), &err);
    assert_int_equal(count, 1);
    logits[one[0]] = 5;
    fb_sampler *sampler = sampler_of("{\"type\":\"integer\"}", 0, 0);
    assert_ok(fb_sampler_next(sampler, logits, &id, &err), &err);
    assert_int_equal(id, one[0]); /* not the end, which is better, but no document */
    assert_false(fb_sampler_ended(sampler));
    assert_ok(fb_sampler_next(sampler, logits, &id, &err), &err);
    assert_true(fb_model_is_end(story, id) && fb_sampler_ended(sampler));
    fb_free(one);
    fb_sampler_free(sampler);
    free(logits);
}

static void a_schema_of_another_model(void **state) {
    (void)state;
    fb_schema *schema = compile(NULL);
    fb_sampler_options o;
    fb_sampler *sampler;
    fb_model *golden = fbt_golden_open("gpt2");
    fb_error err;
    fb_sampler_options_default(&o);
    o.schema = schema;
    assert_refused(fb_sampler_create(&o, 90, &sampler, &err), FB_ERROR_USAGE, &err,
                   "schema: tokens of its model: 4096 (90 to 90)");
    assert_null(sampler);
    fb_schema_free(schema);
    schema = (fb_schema *)-1;
    assert_refused(fb_schema_create(golden, NULL, 0, &schema, &err), FB_ERROR_FILE, &err,
                   "schema: the model has no tokenizer");
    assert_null(schema);
    fb_model_free(golden);
}

/* ---- answers ---- */

typedef struct heard {
    char text[4096];
    size_t bytes;
    int32_t tokens[512];
    int64_t count;
    fb_finish finish;
} heard;

static bool listen(void *user, const fb_answer *a) {
    heard *h = (heard *)user + a->sample;
    memcpy(h->text + h->bytes, a->text, a->bytes);
    h->bytes += a->bytes;
    if (a->finish != FB_FINISH_NONE)
        h->finish = a->finish;
    else if (a->token >= 0)
        h->tokens[h->count++] = a->token;
    return true;
}

/* By a session. */
static int64_t alone(const int32_t *prompt, int64_t count, uint64_t sequence, int32_t *out) {
    fb_session_options o;
    fb_session *session;
    fb_error err;
    const float *logits;
    int64_t made = 0;
    fb_sampler *sampler = sampler_of(person, 1.5f, sequence);
    fb_session_options_default(&o);
    o.threads = 1;
    assert_ok(fb_session_create(story, &o, &session, &err), &err);
    assert_ok(fb_session_prefill(session, prompt, count, &err), &err);
    for (int64_t i = 0; i < count; i++) fb_sampler_accept(sampler, prompt[i]);
    assert_ok(fb_session_logits(session, &logits, NULL, NULL, &err), &err);
    assert_ok(fb_sampler_next(sampler, logits, &out[made++], &err), &err);
    for (; !fb_sampler_ended(sampler) && made < 400; made++)
        assert_ok(fb_session_next(session, out[made - 1], sampler, &out[made], &err), &err);
    fb_sampler_free(sampler);
    fb_session_free(session);
    return made;
}

/* Few blocks, so that answers are put back and computed again. */
static void answers_of_a_scheduler(void **state) {
    (void)state;
    enum { SAMPLES = 6 };
    static heard to[SAMPLES];
    fb_scheduler_options options;
    fb_session_options session;
    fb_scheduler *s;
    fb_scheduler_stats stats;
    fb_sampler_options sampling;
    fb_request_options o;
    fb_error err;
    int32_t *prompt, wanted[512];
    int64_t count;
    bool busy = true;
    memset(to, 0, sizeof to);
    assert_ok(fb_tokenize(story, "A person:", 9, true, &prompt, &count, &err), &err);
    fb_scheduler_options_default(&options);
    fb_session_options_default(&session);
    session.threads = 2;
    session.capacity = 128;
    options.block = 16;
    options.cache_tokens = 160;
    assert_ok(fb_scheduler_create(story, &session, &options, &s, &err), &err);
    fb_schema *schema = compile(person);
    fb_sampler_options_default(&sampling);
    sampling.temperature = 1.5f;
    sampling.seed = 5;
    sampling.schema = schema;
    fb_request_options_default(&o);
    o.prompt = prompt;
    o.prompt_count = count;
    o.max_tokens = 110;
    o.samples = SAMPLES;
    o.sampler = &sampling;
    o.on_answer = listen;
    o.user = to;
    assert_ok(fb_scheduler_submit(s, &o, NULL, &err), &err);
    fb_schema_free(schema);
    while (busy) assert_ok(fb_scheduler_step(s, &busy, &err), &err);
    fb_scheduler_get_stats(s, &stats);
    assert_true(stats.preempted > 0);
    for (int i = 0; i < SAMPLES; i++) {
        const int64_t made = alone(prompt, count, (uint64_t)i, wanted);
        assert_int_equal(to[i].finish, FB_FINISH_END);
        assert_int_equal(to[i].count, made);
        assert_memory_equal(to[i].tokens, wanted, (size_t)made * sizeof *wanted);
        check_person(to[i].text, to[i].bytes);
    }
    fb_free(prompt);
    fb_scheduler_free(s);
}

/* ---- threads ---- */

static void *sample_in_a_thread(void *arg) {
    const int32_t first = *(const int32_t *)arg;
    int32_t out[512];
    const int64_t made = alone(&first, 1, (uint64_t)first, out);
    return made < 400 ? arg : NULL;
}

static void threads_share_a_model(void **state) {
    (void)state;
    pthread_t threads[3];
    int32_t firsts[3] = {5, 6, 7};
    void *done;
    close_story(NULL);
    open_story(NULL); /* nothing of schemas is there yet */
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, sample_in_a_thread, &firsts[i]), 0);
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], &done);
        assert_ptr_equal(done, &firsts[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sampler_keeps_to_the_schema), cmocka_unit_test(logits_that_leave_nothing),
        cmocka_unit_test(a_number_at_the_top),           cmocka_unit_test(a_schema_of_another_model),
        cmocka_unit_test(answers_of_a_scheduler),        cmocka_unit_test(threads_share_a_model),
    };
    return cmocka_run_group_tests(tests, open_story, close_story);
}
