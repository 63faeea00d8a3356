#include "support/answers.h"

#include <stdlib.h>
#include <string.h>

#include "model/model.h"

uint64_t fbt_logits_hash(const float *logits, int64_t vocab) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < vocab; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        hash = (hash ^ bits) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    return hash;
}

static void listen_to_prompt(fbt_heard *h, const fb_answer *a) {
    assert_int_equal(a->sample, 0);
    assert_int_equal(h->count, 0);
    assert_int_equal(a->position, h->prompt_count);
    assert_int_equal(a->count, 0);
    assert_int_equal(a->bytes, 0);
    assert_int_equal(a->logits == NULL, a->position == 0);
    assert_true(h->prompt_count < FBT_MOST_TOKENS);
    h->prompt[h->prompt_count] = a->token;
    h->scores[h->prompt_count++] = a->logits ? fbt_logits_hash(a->logits, h->vocab) : 0;
}

static bool listen(void *user, const fb_answer *a) {
    fbt_heard *h = (fbt_heard *)user + a->sample;
    assert_int_equal(h->ends, 0);
    h->cached = a->cached;
    if (a->finish != FB_FINISH_NONE) {
        h->finish = a->finish;
        h->ends++;
    } else if (a->token >= 0 && a->position < a->prompt) {
        listen_to_prompt(h, a);
    } else if (a->token >= 0) {
        assert_true(h->count < FBT_MOST_TOKENS);
        h->tokens[h->count] = a->token;
        h->logits[h->count++] = a->logits ? fbt_logits_hash(a->logits, h->vocab) : 0;
        assert_int_equal(a->count, h->count);
        assert_int_equal(a->position, a->prompt + h->count - 1);
    }
    return !(h->cancel_at && h->prompt_count >= h->cancel_at);
}

uint64_t fbt_submit(fb_scheduler *scheduler, const fb_model *model, const fb_request_options *options,
                    const int32_t *prompt, int64_t count, int64_t tokens, fbt_heard *to) {
    fb_request_options o;
    fb_error err;
    uint64_t id;
    fb_request_options_default(&o);
    if (options) o = *options;
    o.prompt = prompt;
    o.prompt_count = count;
    o.max_tokens = tokens;
    o.past_end = true;
    o.wants_logits = 1;
    o.on_answer = listen;
    o.user = to;
    for (int32_t i = 0; i < o.samples; i++) to[i].vocab = model->spec->program.vocab;
    assert_ok(fb_scheduler_submit(scheduler, &o, &id, &err), &err);
    return id;
}

void fbt_run_all(fb_scheduler *scheduler) {
    fb_scheduler_stats stats;
    fb_error err;
    for (bool busy = true; busy;) assert_ok(fb_scheduler_step(scheduler, &busy, &err), &err);
    fb_scheduler_get_stats(scheduler, &stats);
    assert_int_equal(stats.running + stats.waiting, 0);
    assert_int_equal(stats.blocks_free, stats.blocks);
    assert_int_equal(stats.plan_pending, 0);
}

static void score_prompt(fb_session *session, const int32_t *prompt, int64_t count, fbt_heard *out) {
    const float *logits;
    int64_t rows;
    fb_error err;
    assert_ok(fb_session_logits(session, &logits, &rows, &out->vocab, &err), &err);
    assert_int_equal(rows, count);
    for (int64_t i = 0; i < count; i++) {
        out->prompt[i] = prompt[i];
        out->scores[i] = i ? fbt_logits_hash(logits + (i - 1) * out->vocab, out->vocab) : 0;
    }
    out->prompt_count = count;
}

void fbt_alone(const fb_model *model, const fb_session_options *options, const int32_t *prompt, int64_t count,
               int64_t tokens, fbt_heard *out) {
    fb_session_options o = *options;
    fb_session *session;
    fb_error err;
    o.all_logits = true;
    memset(out, 0, sizeof *out);
    assert_ok(fb_session_create(model, &o, &session, &err), &err);
    assert_ok(fb_session_prefill(session, prompt, count, &err), &err);
    score_prompt(session, prompt, count, out);
    for (int64_t i = 0; i < tokens; i++) {
        const float *logits;
        int64_t rows;
        if (i) assert_ok(fb_session_decode(session, out->tokens[i - 1], &err), &err);
        assert_ok(fb_session_logits(session, &logits, &rows, NULL, &err), &err);
        assert_ok(fb_session_best(session, &out->tokens[i], &err), &err);
        out->logits[i] = fbt_logits_hash(logits + (rows - 1) * out->vocab, out->vocab);
    }
    out->count = tokens;
    fb_session_free(session);
}

void fbt_check_same(const fbt_heard *heard, const fbt_heard *alone) {
    assert_int_equal(heard->ends, 1);
    assert_int_equal(heard->finish, FB_FINISH_LENGTH);
    assert_int_equal(heard->count, alone->count);
    assert_memory_equal(heard->tokens, alone->tokens, (size_t)alone->count * sizeof *alone->tokens);
    assert_memory_equal(heard->logits, alone->logits, (size_t)alone->count * sizeof *alone->logits);
}

static void ask_beginning(fb_scheduler *s, const fb_model *model, const fbt_beginning *of, fbt_heard *to) {
    int32_t *ids = malloc((size_t)of->count * sizeof *ids);
    assert_non_null(ids);
    for (int64_t i = 0; i < of->count; i++) ids[i] = (int32_t)(i * i / 7 + (i < of->same ? 11 : 5) * i) % 90;
    memset(to, 0, sizeof *to);
    fbt_submit(s, model, NULL, ids, of->count, 6, to);
    fbt_run_all(s);
    free(ids);
}

void fbt_ask_beginnings(const fb_model *model, const fb_session_options *session,
                        const fb_scheduler_options *options, const fbt_beginning *of, int64_t count,
                        fbt_heard *heard) {
    fb_scheduler *s[2];
    fb_error err;
    for (int cached = 0; cached < 2; cached++) {
        fb_scheduler_options o = *options;
        o.prefix_cache = cached;
        assert_ok(fb_scheduler_create(model, session, &o, &s[cached], &err), &err);
    }
    for (int64_t i = 0; i < count; i++) {
        fbt_heard anew;
        ask_beginning(s[0], model, &of[i], &anew);
        ask_beginning(s[1], model, &of[i], &heard[i]);
        assert_int_equal(anew.cached, 0);
        fbt_check_same(&heard[i], &anew);
    }
    for (int i = 0; i < 2; i++) fb_scheduler_free(s[i]);
}
