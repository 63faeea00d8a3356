/* Another plan while answers are being written, and what runs. */
#include <stdio.h>
#include <stdlib.h>

#include "base/sized.h"
#include "run/scheduler.h"

FB_SIZED_ENDS_WITH(fb_fuse_state, saving);

/* ---- making a plan, on any thread ---- */

fb_status fb_replan_take(const fb_scheduler *s, const char *fuse, bool profile, fb_execution **out,
                         fb_error *err) {
    fb_session_options session = s->session;
    session.fuse = fuse;
    session.profile = profile;
    fb_execution_options more = {
        .block = s->options.block, .wanted = s->options.sequences, .drafted = fb_schedule_guesses(s)};
    return fb_execution_take(s->model, &session, &more, out, err);
}

static bool same_groups(const fb_frame *a, const fb_frame *b) {
    for (int32_t group = 0; group < a->groups; group++)
        if (a->group[group].kind != b->group[group].kind ||
            a->group[group].table_at != b->group[group].table_at ||
            a->group[group].entries != b->group[group].entries)
            return false;
    return true;
}

static bool same_kinds(const fb_frame *a, const fb_frame *b) {
    for (int k = 0; k < FB_MAX_KINDS; k++)
        if (a->cache[k].capacity != b->cache[k].capacity || a->cache[k].half != b->cache[k].half ||
            a->cache[k].ring.window != b->cache[k].ring.window ||
            a->cache[k].ring.size != b->cache[k].ring.size)
            return false;
    return true;
}

/* Whether both can use the same caches, in the same steps. */
static bool same_layout(const fb_execution *x, const fb_execution *y) {
    const fb_frame *a = &x->executor->frame, *b = &y->executor->frame;
    int64_t layers = a->bound.program->layers;
    if (x->device != y->device || layers != b->bound.program->layers || a->options.kv != b->options.kv ||
        a->options.chunk != b->options.chunk || a->options.sequences != b->options.sequences ||
        a->options.epilogue_rows != b->options.epilogue_rows || a->groups != b->groups ||
        a->entries != b->entries || a->block_bytes != b->block_bytes || a->shift != b->shift)
        return false;
    for (int64_t layer = 0; layer < layers; layer++)
        if (a->group_of[layer] != b->group_of[layer] || a->cache_at[layer] != b->cache_at[layer])
            return false;
    return same_groups(a, b) && same_kinds(a, b);
}

/* The plan that runs, with one user more. */
static fb_execution *hold_execution(fb_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    fb_execution *x = s->execution;
    fb_execution_share(x);
    pthread_mutex_unlock(&s->lock);
    return x;
}

fb_status fb_scheduler_fuse(fb_scheduler *s, const char *fuse, fb_error *err) {
    fb_execution *made, *runs = hold_execution(s);
    fb_status status = fb_replan_take(s, fuse, s->session.profile, &made, err);
    if (status == FB_OK && !same_layout(runs, made)) {
        fb_execution_give(made);
        status = fb_fail(err, FB_ERROR_UNSUPPORTED, "fuse: \"%.64s\": its caches have another layout",
                         fuse ? fuse : "auto");
    }
    fb_execution_give(runs);
    FB_TRY(status);
    pthread_mutex_lock(&s->lock);
    fb_execution *dropped = s->next;
    s->next = made;
    if (made == s->execution) {
        s->next = NULL;
        fb_execution_give(made); /* not its last user */
    }
    pthread_mutex_unlock(&s->lock);
    fb_execution_give(dropped);
    return FB_OK;
}

/* ---- taking over, in a step ---- */

static uint32_t within_a_bound(const fb_execution *x) {
    uint32_t fuses = 0;
    for (int i = 0; i < FB_FUSE_COUNT; i++)
        if (fb_fuse_table[i].exactness == FB_EXACT_TOL && !x->options.exact) fuses |= FB_FUSE_BIT(i);
    return x->plan.applied & fuses;
}

/* Whether the bits of answers change. */
static bool changes_bits(const fb_execution *from, const fb_execution *to) {
    return within_a_bound(from) != within_a_bound(to);
}

bool fb_replan_pending(const fb_scheduler *s) { return s->next && changes_bits(s->execution, s->next); }

bool fb_replan_waits(fb_scheduler *s) {
    pthread_mutex_lock(&s->lock);
    bool waits = s->next != NULL;
    pthread_mutex_unlock(&s->lock);
    return waits;
}

/* Whether an answer has begun that has not ended. */
static bool any_begun(const fb_scheduler *s) {
    if (s->running) return true;
    for (const fb_answer_state *a = s->waiting; a; a = a->next)
        if (a->begun) return true;
    return false;
}

/* Open sequences go on with the new executor: its caches have the same layout. */
static void move_sequences(fb_scheduler *s) {
    for (fb_submitted *r = s->requests; r; r = r->next)
        for (int32_t i = 0; i < r->options.samples; i++)
            if (r->answers[i].sequence.executor) r->answers[i].sequence.executor = s->execution->executor;
}

void fb_replan_begin(fb_scheduler *s) {
    fb_execution *old = NULL, *timer = NULL;
    pthread_mutex_lock(&s->lock);
    bool bits = fb_replan_pending(s);
    s->draining = bits && any_begun(s);
    bool takes_over = s->next && !s->draining;
    if (takes_over) {
        old = s->execution;
        timer = fb_timing_drop(s);
        s->execution = s->next;
        s->next = NULL;
        s->plan_number++;
        s->stats.plan_changes++;
        move_sequences(s);
        fb_held_drop(s, NULL); /* another plan may carry other values from layer to layer */
    }
    pthread_mutex_unlock(&s->lock);
    /* Blocks of the old plan have its bits. */
    while (takes_over && bits && s->prefix && fb_prefix_evict(s->prefix)) continue;
    fb_execution_give(timer);
    fb_execution_give(old);
}

/* ---- what runs ---- */

/* Prices are found once for a plan, without the lock. */
static void price_plan(fb_scheduler *s) {
    double savings[FB_FUSE_COUNT];
    pthread_mutex_lock(&s->lock);
    uint64_t number = s->plan_number + 1;
    bool known = s->savings_of == number;
    fb_execution *x = s->execution;
    if (!known) fb_execution_share(x);
    pthread_mutex_unlock(&s->lock);
    if (known) return;
    fb_savings_find(x, savings);
    fb_execution_give(x);
    pthread_mutex_lock(&s->lock);
    memcpy(s->savings, savings, sizeof savings);
    s->savings_of = number;
    pthread_mutex_unlock(&s->lock);
}

bool fb_scheduler_fill_fuse(fb_scheduler *s, int index, fb_fuse_state *out) {
    if (index < 0 || index >= FB_FUSE_COUNT) return false;
    fb_fuse_state state;
    memset(&state, 0, sizeof state); /* clears padding too, because the struct is copied to the caller */
    price_plan(s);
    pthread_mutex_lock(&s->lock);
    const fb_execution *x = s->execution, *next = s->next ? s->next : x;
    state.name = fb_fuse_table[index].name;
    state.bit = fb_fuse_table[index].exactness == FB_EXACT_BIT || x->options.exact;
    state.on = (x->plan.applied & FB_FUSE_BIT(index)) != 0;
    state.next = (next->plan.applied & FB_FUSE_BIT(index)) != 0;
    state.calls = s->fuse_calls[index];
    state.calls_per_step = x->plan.calls[index];
    state.calls_per_head = x->plan.head_calls[index];
    state.saving = s->savings[index];
    pthread_mutex_unlock(&s->lock);
    return fb_sized_give(&state, sizeof state, out);
}

fb_status fb_scheduler_plan_text(fb_scheduler *s, char **text, fb_error *err) {
    fb_execution *x = hold_execution(s);
    fb_status status = fb_program_print(&x->plan.program, fb_fuse_name, text, err);
    fb_execution_give(x);
    return status;
}

fb_status fb_scheduler_fuse_text(fb_scheduler *s, char **text, fb_error *err) {
    fb_execution *x = hold_execution(s);
    *text = strdup(x->request.session.fuse);
    fb_status status = *text ? FB_OK : fb_fail_memory(err, "text", (int64_t)strlen(x->request.session.fuse));
    fb_execution_give(x);
    return status;
}
