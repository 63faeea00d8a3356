/* Guesses for the answers of a step: asked before its parts are chosen, judged when it has run. */
#include <stdlib.h>

#include "draft/draft.h"
#include "run/cache.h"
#include "run/scheduler.h"

/* Rows for guesses that a step may have, at most: each needs memory for its logits. With many answers a step
 * has enough rows to be worth reading the weights. */
#define MOST_ROWS 32

int64_t fb_schedule_guesses(const fb_scheduler *s) {
    const fb_draft *draft = s->session.draft;
    int64_t most = draft ? s->options.sequences * draft->options.most : 0;
    return most < MOST_ROWS ? most : MOST_ROWS;
}

fb_status fb_schedule_drafts_open(fb_scheduler *s, fb_error *err) {
    const fb_draft *draft = s->session.draft;
    size_t n = (size_t)s->options.sequences;
    if (!draft) return FB_OK;
    if (draft->model != s->model)
        return fb_fail(err, FB_ERROR_USAGE, "draft: of another model (fb_draft_create with the scheduler's)");
    s->asks = malloc(n * sizeof *s->asks);
    s->asked = malloc(n * sizeof *s->asked);
    if (!s->asks || !s->asked) return fb_fail_memory(err, "draft", (int64_t)(n * sizeof *s->asks));
    return fb_drafter_open(draft, s->execution, s->options.sequences, false, &s->drafter, err);
}

void fb_schedule_drafts_close(fb_scheduler *s) {
    fb_drafter_close(s->drafter);
    free(s->asks);
    free(s->asked);
}

/* ---- asking ---- */

/* How many guesses an answer can use: what it may still write, and what its cache can forget again. */
static int64_t most_guesses(const fb_scheduler *s, const fb_answer_state *a) {
    const fb_request_options *o = &a->request->options;
    const fb_executor_options *e = &s->execution->request.executor;
    int64_t most = o->max_tokens - (a->count - a->request->prompt_count) - 1;
    if (!o->draft) return 0;
    if (most > FB_MAX_DRAFT) most = FB_MAX_DRAFT;
    for (; most > 0; most--) {
        int64_t end = a->count + most, furthest = end > a->furthest ? end : a->furthest;
        if (a->count >= furthest - fb_cache_trimmable(&s->execution->plan.program, e, furthest)) break;
    }
    return most;
}

/* Guesses lie behind the answer's tokens. */
static bool has_room(fb_answer_state *a) {
    if (a->count + FB_MAX_DRAFT <= a->room) return true;
    int64_t room = 2 * a->room + FB_MAX_DRAFT;
    int32_t *tokens = realloc(a->tokens, (size_t)room * sizeof *tokens);
    if (!tokens) return false;
    a->tokens = tokens;
    a->room = room;
    return true;
}

static bool add_ask(fb_scheduler *s, fb_answer_state *a) {
    if (!has_room(a)) return false;
    if (!a->stream && fb_draft_stream_open(s->drafter, &a->stream, NULL) != FB_OK) return false;
    int64_t most = most_guesses(s, a);
    if (most && s->drafter->draft->shares && !fb_schedule_evict(s, a, most)) most = 0;
    if (most && a->count + most > a->furthest) a->furthest = a->count + most;
    s->asked[s->ask_count] = a;
    s->asks[s->ask_count++] = (fb_draft_ask){.stream = a->stream,
                                             .tokens = a->tokens,
                                             .count = a->count,
                                             .sequence = &a->sequence,
                                             .sampler = a->sampler,
                                             .most = most};
    return true;
}

/* The rows of a step that may be guesses. Half of what answers that decode leave is for prompts, if there are
 * any. */
static int64_t guess_room(const fb_scheduler *s) {
    int64_t room = s->options.rows, most = fb_schedule_guesses(s);
    bool prompts = s->waiting != NULL;
    for (const fb_answer_state *a = s->running; a; a = a->next)
        if (fb_schedule_decodes(s, a))
            room--;
        else if (!a->paused)
            prompts = true;
    if (prompts) {
        int64_t half = room / 2, beside = room - s->held.rows;
        room = beside < half ? beside : half;
    }
    return room < 0 ? 0 : room < most ? room : most;
}

void fb_schedule_ask(fb_scheduler *s) {
    s->ask_count = 0;
    if (!s->drafter) return;
    s->part_blocks = 0;
    for (fb_answer_state *a = s->running; a; a = a->next) a->drafted = 0;
    for (fb_answer_state *a = s->running; a; a = a->next) {
        if (!fb_schedule_decodes(s, a) || a->count == a->request->prompt_count) continue;
        if (add_ask(s, a)) continue;
        s->ask_count = 0; /* no memory: no guesses */
        return;
    }
    if (!s->ask_count) return;
    /* Answers do not fail because nobody could guess. */
    if (fb_drafter_ask(s->drafter, s->asks, s->ask_count, guess_room(s), NULL) != FB_OK) s->ask_count = 0;
    for (int64_t i = 0; i < s->ask_count; i++) {
        fb_answer_state *a = s->asked[i];
        a->drafted = s->asks[i].made;
        a->asked = i;
        memcpy(a->tokens + a->count, s->asks[i].ids, (size_t)a->drafted * sizeof *a->tokens);
    }
}

/* ---- judging ---- */

bool fb_schedule_judge(fb_scheduler *s, fb_answer_state *a, int64_t guess, int32_t token) {
    fb_draft_ask *ask = &s->asks[a->asked];
    ask->checked++;
    if (ask->ids[guess] != token) return false;
    ask->right++;
    return true;
}

void fb_schedule_learn(fb_scheduler *s, int64_t rows, double seconds) {
    int64_t made = 0, kept = 0;
    for (int64_t i = 0; i < s->ask_count; i++) {
        made += s->asks[i].made;
        kept += s->asks[i].right;
    }
    if (!s->ask_count) return;
    /* A step with other rows, or without some of these, says nothing about times. */
    fb_drafter_learn(s->drafter, s->asks, s->ask_count, rows == s->ask_count + made ? seconds : 0);
    fb_scheduler_count(s, &s->stats.drafted, made);
    fb_scheduler_count(s, &s->stats.kept, kept);
}
