#include "run/answer.h"

#include <stdlib.h>

#include "draft/draft.h"
#include "text/sampler.h"

fb_status fb_answer_append(fb_answer_state *a, int32_t token, fb_error *err) {
    if (a->count == a->room) {
        int64_t room = a->room ? 2 * a->room : 64;
        int32_t *tokens = realloc(a->tokens, (size_t)room * sizeof *tokens);
        if (!tokens) return fb_fail_memory(err, "tokens", room * (int64_t)sizeof *tokens);
        a->tokens = tokens;
        a->room = room;
    }
    a->tokens[a->count++] = token;
    return FB_OK;
}

/* Memory for candidates. */
struct fb_answer_candidates {
    int32_t ids[FB_CANDIDATES];
    fb_candidate best[FB_CANDIDATES], gathered[FB_CANDIDATES];
};

static fb_status start_answer(const fb_model *model, const fb_request_options *o, fb_answer_state *a,
                              fb_error *err) {
    fb_sampler_options sampler;
    FB_TRY(fb_sampler_options_take(o->sampler, &sampler, err));
    if (!o->sampler) sampler.temperature = 0;
    sampler.sequence += (uint64_t)a->sample;
    FB_TRY(fb_sampler_create(&sampler, model->spec->program.vocab, &a->sampler, err));
    if (model->tokenizer) FB_TRY(fb_text_create(model, &a->text, err));
    if (o->stop_count) FB_TRY(fb_stop_create(o->stops, o->stop_count, &a->stop, err));
    for (int64_t i = 0; i < o->prompt_count; i++) {
        FB_TRY(fb_answer_append(a, o->prompt[i], err));
        fb_sampler_accept(a->sampler, o->prompt[i]);
    }
    return FB_OK;
}

fb_status fb_submitted_create(const fb_model *model, const fb_request_options *o, fb_submitted **out,
                              fb_error *err) {
    *out = NULL;
    fb_submitted *r = calloc(1, sizeof *r);
    if (!r) return fb_fail_memory(err, "request", sizeof *r);
    r->options = *o;
    r->options.prompt = NULL;
    r->options.stops = NULL;
    r->options.sampler = NULL;
    r->prompt_count = o->prompt_count;
    r->left = o->samples;
    r->answers = calloc((size_t)o->samples, sizeof *r->answers);
    fb_status status = FB_OK;
    if (!r->answers) status = fb_fail_memory(err, "request", o->samples * (int64_t)sizeof *r->answers);
    for (int32_t i = 0; status == FB_OK && i < o->samples; i++) {
        r->answers[i].request = r;
        r->answers[i].sample = i;
        r->answers[i].forked = i == 0;
        status = start_answer(model, o, &r->answers[i], err);
    }
    if (status != FB_OK) {
        fb_submitted_free(r);
        return status;
    }
    *out = r;
    return FB_OK;
}

void fb_submitted_free(fb_submitted *r) {
    if (!r) return;
    for (int32_t i = 0; r->answers && i < r->options.samples; i++) {
        fb_answer_state *a = &r->answers[i];
        fb_sampler_free(a->sampler);
        fb_text_free(a->text);
        fb_stop_free(a->stop);
        free(a->tokens);
        free(a->candidates);
        free(a->more);
        fb_draft_stream_close(a->stream);
    }
    free(r->answers);
    free(r);
}

/* ---- what the callback gets ---- */

static fb_answer describe(const fb_answer_state *a) {
    const fb_submitted *r = a->request;
    return (fb_answer){.size = sizeof(fb_answer),
                       .request = r->id,
                       .sample = a->sample,
                       .token = -1,
                       .text = "",
                       .count = a->count - r->prompt_count,
                       .prompt = r->prompt_count,
                       .cached = r->cached,
                       .position = a->count,
                       .drafted = a->all_drafted,
                       .kept = a->all_kept};
}

static void tell(fb_submitted *r, const fb_answer *answer) {
    if (r->options.on_answer && !r->options.on_answer(r->options.user, answer))
        atomic_store(&r->cancelled, true);
}

static void tell_prompt(const fb_answer_state *a, const float *logits) {
    fb_submitted *r = a->request;
    fb_answer told = describe(a);
    told.count = 0;
    told.position = r->told++;
    told.token = a->tokens[told.position];
    told.logits = logits;
    tell(r, &told);
}

void fb_answer_prompt(fb_answer_state *a, int64_t at, const float *logits) {
    fb_submitted *r = a->request;
    if (!r->options.prompt_logits || a->sample > 0) return;
    if (r->told == 0) tell_prompt(a, NULL);
    if (r->told == at + 1 && r->told < r->prompt_count && !atomic_load(&r->cancelled)) tell_prompt(a, logits);
}

/* Text up to the first stop text. */
static fb_status until_stop(fb_answer_state *a, fb_answer *told, bool *stopped, fb_error *err) {
    if (!a->stop) return FB_OK;
    return fb_stop_push(a->stop, told->text, told->bytes, &told->text, &told->bytes, stopped, err);
}

/* What was held back: bytes of an incomplete character, and what could have become a stop text. */
static void end_text(fb_answer_state *a, bool *stopped) {
    fb_answer told = describe(a);
    if (a->text && fb_text_flush(a->text, &told.text, &told.bytes, NULL) == FB_OK &&
        until_stop(a, &told, stopped, NULL) == FB_OK && told.bytes)
        tell(a->request, &told);
    if (!a->stop || *stopped) return;
    told = describe(a);
    fb_stop_flush(a->stop, &told.text, &told.bytes);
    if (told.bytes) tell(a->request, &told);
}

void fb_answer_end(fb_answer_state *a, fb_finish finish, const char *message) {
    if (a->ended) return;
    bool stopped = finish == FB_FINISH_STOP;
    if (finish == FB_FINISH_END || finish == FB_FINISH_LENGTH) end_text(a, &stopped);
    a->ended = true;
    a->request->left--;
    fb_answer told = describe(a);
    told.finish = stopped ? FB_FINISH_STOP : finish;
    told.message = message;
    tell(a->request, &told);
}

/* The answers that fork from a prompt's last token all choose from its logits. */
fb_choice fb_answer_choice(fb_answer_state *a, int64_t guess) {
    const fb_submitted *r = a->request;
    bool forks = r->options.samples > 1 && a->sample == 0 && a->count == r->prompt_count;
    int64_t wants = forks || r->options.wants_logits ? 0 : fb_sampler_wants(a->sampler);
    if (wants && guess && !a->more) a->more = malloc(FB_MAX_DRAFT * sizeof *a->more);
    if (wants && !a->candidates) a->candidates = malloc(sizeof *a->candidates);
    struct fb_answer_candidates *c = guess && a->more ? a->more + guess - 1 : guess ? NULL : a->candidates;
    if (!wants || !c) return (fb_choice){0};
    return (fb_choice){.count = wants,
                       .best = c->best,
                       .id_count = fb_sampler_changed(a->sampler, c->ids, FB_CANDIDATES),
                       .ids = c->ids,
                       .gathered = c->gathered};
}

static fb_status choose(fb_answer_state *a, const float *logits, const fb_choice *choice, int32_t *token,
                        fb_error *err) {
    if (!choice || !choice->count) return fb_sampler_next(a->sampler, logits, token, err);
    return fb_sampler_next_among(a->sampler, choice->best, choice->count, choice->gathered, choice->id_count,
                                 token, err);
}

static fb_status next(const fb_model *model, fb_answer_state *a, const float *logits, const fb_choice *choice,
                      fb_error *err) {
    const fb_request_options *o = &a->request->options;
    fb_answer told = describe(a);
    bool stopped = false;
    if (o->max_tokens == FB_NO_ANSWER) {
        fb_answer_end(a, FB_FINISH_LENGTH, NULL);
        return FB_OK;
    }
    FB_TRY(choose(a, logits, choice, &told.token, err));
    if (!o->past_end && fb_model_is_end(model, told.token)) {
        fb_answer_end(a, FB_FINISH_END, NULL);
        return FB_OK;
    }
    FB_TRY(fb_answer_append(a, told.token, err));
    told.count++;
    if (o->wants_logits) told.logits = logits;
    if (a->text) FB_TRY(fb_text_push(a->text, told.token, &told.text, &told.bytes, err));
    FB_TRY(until_stop(a, &told, &stopped, err));
    tell(a->request, &told);
    if (stopped)
        fb_answer_end(a, FB_FINISH_STOP, NULL);
    else if (fb_sampler_ended(a->sampler))
        fb_answer_end(a, FB_FINISH_END, NULL);
    else if (told.count == o->max_tokens)
        fb_answer_end(a, FB_FINISH_LENGTH, NULL);
    return FB_OK;
}

void fb_answer_next(const fb_model *model, fb_answer_state *a, const float *logits, const fb_choice *choice) {
    fb_error err;
    if (next(model, a, logits, choice, &err) != FB_OK) fb_answer_end(a, FB_FINISH_FAILED, err.message);
}
