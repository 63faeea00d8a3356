/* Which rows a step has, and who gets memory. */
#include "run/scheduler.h"

/* ---- an answer's cache ---- */

void fb_schedule_leave(fb_scheduler *s, fb_answer_state *a) {
    fb_held_drop(s, a);
    if (s->prefix) fb_prefix_release(s->prefix, a->entry, a->kept);
    a->entry = NULL;
    a->computed = a->kept = a->drafted = a->furthest = 0;
    fb_sequence_close(&a->sequence);
}

/* The tokens whose blocks may be shared. Where a prompt's tokens have other bits than generated ones, only
 * those of the prompt: another request may have the same tokens in another role. */
static int64_t shareable(const fb_scheduler *s, const fb_answer_state *a) {
    const fb_request *r = &s->execution->request;
    return r->backend->roles && !r->executor.one_role ? a->request->prompt_count : a->count;
}

/* Whether its request still wants logits of its prompt. */
static bool scores(const fb_answer_state *a) {
    const fb_submitted *r = a->request;
    return r->options.prompt_logits && a->sample == 0 && r->told < r->prompt_count;
}

/* Puts the blocks of its text that the next token sees into the answer's cache. */
static void share_blocks(fb_scheduler *s, fb_answer_state *a) {
    const fb_frame *f = fb_schedule_frame(s);
    for (fb_prefix_entry *e = a->entry; e; e = fb_prefix_before(e))
        for (int32_t group = 0; group < f->groups; group++)
            if (fb_prefix_sees(s->prefix, e, group, a->kept))
                fb_sequence_put(&a->sequence, fb_frame_entry(f, group, fb_prefix_begin(e)),
                                fb_prefix_block(e, group));
}

/* Opens the sequence, with what the prefix cache has of its tokens. The last token is always computed: its
 * logits are needed. */
static fb_status enter_cache(fb_scheduler *s, fb_answer_state *a, fb_error *err) {
    FB_TRY(fb_sequence_open(s->execution->executor, s->pool, &a->sequence, err));
    if (s->prefix && !scores(a)) {
        int64_t most = a->count - 1 < shareable(s, a) ? a->count - 1 : shareable(s, a);
        a->entry = fb_prefix_find(s->prefix, a->tokens, most);
        a->computed = a->kept = fb_prefix_end(a->entry);
        fb_prefix_hold(s->prefix, a->entry, a->kept);
        share_blocks(s, a);
    }
    if (a->count == a->request->prompt_count && a->sample == 0) a->request->cached = a->computed;
    return FB_OK;
}

/* Adds the next block of its text to the prefix cache. A text that is there already is shared: the blocks
 * have the same bits. */
static bool remember_block(fb_scheduler *s, fb_answer_state *a) {
    const fb_frame *f = fb_schedule_frame(s);
    fb_block *blocks[FB_MAX_LAYERS];
    int64_t begin = fb_prefix_end(a->entry);
    for (int32_t group = 0; group < f->groups; group++)
        blocks[group] = a->sequence.blocks[fb_frame_entry(f, group, begin)];
    fb_prefix_entry *e = fb_prefix_add(s->prefix, a->entry, a->tokens + begin, blocks, a->kept);
    if (!e) return false;
    for (int32_t group = 0; group < f->groups; group++) {
        fb_block *block = fb_prefix_block(e, group);
        if (!fb_prefix_sees(s->prefix, e, group, a->kept) || block == blocks[group]) continue;
        fb_sequence_put(&a->sequence, fb_frame_entry(f, group, begin), block);
        fb_block_give(blocks[group]);
    }
    a->entry = e;
    return true;
}

void fb_schedule_remember(fb_scheduler *s, fb_answer_state *a) {
    int64_t most = a->computed < shareable(s, a) ? a->computed : shareable(s, a);
    while (s->prefix && fb_prefix_next_end(s->prefix, a->entry) <= most && remember_block(s, a)) continue;
    if (s->prefix) fb_prefix_advance(s->prefix, a->entry, a->kept, a->computed);
    fb_sequence_forget(&a->sequence, a->kept, a->computed);
    a->kept = a->computed;
}

/* ---- lists ---- */

void fb_schedule_insert(fb_answer_state **list, fb_answer_state *a) {
    while (*list && (*list)->order <= a->order) list = &(*list)->next;
    a->next = *list;
    *list = a;
}

static void take_out(fb_answer_state **list, fb_answer_state *a) {
    while (*list && *list != a) list = &(*list)->next;
    if (*list) *list = a->next;
}

void fb_schedule_retire(fb_scheduler *s, fb_answer_state *a) {
    take_out(&s->running, a);
    take_out(&s->waiting, a);
    fb_schedule_leave(s, a);
}

int64_t fb_schedule_places(const fb_scheduler *s) {
    int64_t count = 0;
    for (const fb_answer_state *a = s->running; a; a = a->next) {
        count++;
        for (int32_t i = 1; a->sample == 0 && i < a->request->options.samples; i++)
            count += !a->request->answers[i].forked;
    }
    return count;
}

/* ---- which rows ---- */

static int64_t pending(const fb_answer_state *a) { return a->count - a->computed; }

bool fb_schedule_decodes(const fb_scheduler *s, const fb_answer_state *a) {
    return pending(a) == 1 && a != s->held.answer && !a->paused;
}

/* Puts a running answer back. It will be computed again, to the same bits. */
static void put_back(fb_scheduler *s, fb_answer_state *a) {
    for (int64_t i = 0; i < s->part_count; i++)
        if (s->parts[i].answer == a) {
            s->parts[i].answer = NULL;
            s->part_blocks -= s->parts[i].blocks;
            s->free_wanted += s->parts[i].scored;
        }
    take_out(&s->running, a);
    fb_schedule_leave(s, a);
    fb_schedule_insert(&s->waiting, a);
    fb_scheduler_count(s, &s->stats.preempted, 1);
}

void fb_schedule_pause(fb_scheduler *s) {
    fb_answer_state *lists[] = {s->running, s->waiting};
    for (int i = 0; i < 2; i++)
        for (fb_answer_state *a = lists[i]; a; a = a->next)
            a->paused = !s->draining && atomic_load(&a->request->paused);
}

/* Puts back a running answer that is paused, for others. False: there is none. */
static bool put_back_paused(fb_scheduler *s) {
    fb_answer_state *a = s->running;
    while (a && !a->paused) a = a->next;
    if (a) put_back(s, a);
    return a != NULL;
}

/* Whether `blocks` are there besides those of the step's other parts. Evicts what only the prefix cache
 * holds. */
static bool evict_for(fb_scheduler *s, int64_t blocks) {
    while (fb_blocks_free(s->pool) - s->part_blocks < blocks)
        if (!s->prefix || !fb_prefix_evict(s->prefix)) return false;
    return true;
}

bool fb_schedule_evict(fb_scheduler *s, const fb_answer_state *a, int64_t count) {
    int64_t blocks = fb_sequence_needs(&a->sequence, a->computed, a->count + count);
    if (!evict_for(s, blocks)) return false;
    s->part_blocks += blocks;
    return true;
}

int64_t fb_schedule_scored(const fb_answer_state *a, int64_t rows) {
    int64_t end = a->computed + rows, first = end == a->count ? end - 1 : end;
    if (scores(a)) {
        int64_t wanted = a->request->told ? a->request->told - 1 : 0;
        if (wanted < a->computed) wanted = a->computed;
        if (wanted < first) first = wanted;
    }
    return end - first;
}

/* The rows that an answer may have, of `left` rows. */
static int64_t fitting_rows(const fb_scheduler *s, const fb_answer_state *a, int64_t left) {
    int64_t rows = pending(a) < left ? pending(a) : left;
    while (rows > 0 && fb_schedule_scored(a, rows) > s->free_wanted) rows--;
    return rows;
}

/* For its blocks, answers that are paused are put back, then those that came last; if it is the last one, it
 * is put back itself. */
void fb_schedule_add(fb_scheduler *s, fb_answer_state *a, int64_t rows) {
    int64_t blocks = fb_sequence_needs(&a->sequence, a->computed, a->computed + rows + a->drafted);
    if (a->drafted && !evict_for(s, blocks)) { /* nobody is put back for guesses */
        a->drafted = 0;
        blocks = fb_sequence_needs(&a->sequence, a->computed, a->computed + rows);
    }
    while (!evict_for(s, blocks)) {
        if (put_back_paused(s)) continue;
        fb_answer_state *last = s->running;
        while (last->next) last = last->next;
        put_back(s, last);
        s->short_of_blocks = true;
        if (last == a) return;
    }
    int64_t scored = (fb_held_ends(s, a) ? fb_schedule_scored(a, rows) : 0) + a->drafted;
    s->parts[s->part_count++] = (fb_part){
        .answer = a, .rows = rows + a->drafted, .scored = scored, .drafted = a->drafted, .blocks = blocks};
    s->part_blocks += blocks;
    s->free_wanted -= scored;
}

/* Adds as many of a prompt's rows as fit. Returns how many. */
static int64_t add_rows(fb_scheduler *s, fb_answer_state *a, int64_t left, int64_t decodes) {
    int64_t rows = fitting_rows(s, a, left);
    if (rows && fb_held_begin(s, a, rows, left, decodes)) return left;
    if (rows) fb_schedule_add(s, a, rows);
    return rows;
}

/* Whether the memory for all that an answer has to compute is there. Its sequence is open. */
static bool has_blocks(const fb_scheduler *s, const fb_answer_state *a) {
    int64_t free_blocks = fb_blocks_free(s->pool) - s->part_blocks;
    if (s->prefix) free_blocks += fb_prefix_idle(s->prefix);
    for (int64_t i = 0; i < a->sequence.entries; i++) free_blocks += a->sequence.blocks[i] != NULL;
    return fb_schedule_blocks(s, a->count) <= free_blocks;
}

/* The first waiting answer that may start. */
static fb_answer_state *first_waiting(const fb_scheduler *s) {
    fb_answer_state *a = s->waiting;
    while (a && ((s->draining && !a->begun) || a->paused)) a = a->next;
    return a;
}

/* Gives a waiting answer a place and a cache. False: there is no room; it may be made. */
static bool enter(fb_scheduler *s, fb_answer_state *a, fb_status *status, fb_error *err) {
    bool first = a->sample == 0 && a->count == a->request->prompt_count;
    if (fb_schedule_places(s) + (first ? a->request->options.samples : 1) > s->options.sequences)
        return false;
    *status = enter_cache(s, a, err);
    if (*status != FB_OK || has_blocks(s, a)) return true;
    fb_schedule_leave(s, a);
    return false;
}

/* Starts the first waiting answer if there are a place and memory for it, or paused answers have them.
 * Requests that cannot even get a table of blocks end: nothing says that they could later. */
static fb_answer_state *admit(fb_scheduler *s) {
    fb_error err;
    fb_answer_state *a;
    for (fb_status status = FB_ERROR_MEMORY;;
         fb_scheduler_end(s, a->request, FB_FINISH_FAILED, err.message)) {
        a = first_waiting(s);
        if (!a) return NULL;
        while (!enter(s, a, &status, &err))
            if (!put_back_paused(s)) return NULL;
        if (status == FB_OK) break;
    }
    a->begun = true;
    take_out(&s->waiting, a);
    fb_schedule_insert(&s->running, a);
    fb_scheduler_count(s, &s->stats.prompt_tokens, a->count);
    fb_scheduler_count(s, &s->stats.cached_tokens, a->computed);
    return a;
}

/* The running answer after one that may have been put back meanwhile. */
static fb_answer_state *next_running(const fb_scheduler *s, int64_t order) {
    fb_answer_state *a = s->running;
    while (a && a->order <= order) a = a->next;
    return a;
}

/* The same among those that read a prompt, or were put back. */
static fb_answer_state *next_prompt(const fb_scheduler *s, int64_t order) {
    fb_answer_state *a = next_running(s, order);
    while (a && (pending(a) <= 1 || a->paused)) a = a->next;
    return a;
}

/* Starts the first waiting answer if it comes before `a`, which may be NULL. */
static fb_answer_state *admit_before(fb_scheduler *s, const fb_answer_state *a) {
    const fb_answer_state *first = s->short_of_blocks ? NULL : first_waiting(s);
    return first && (!a || first->order < a->order) ? admit(s) : NULL;
}

/* Whether the step goes on with held rows. A request that comes before theirs and can start takes their
 * place: what was computed of them is computed again. */
static bool goes_on_with_held(fb_scheduler *s, int64_t decodes) {
    if (!fb_held_waits(s, decodes)) return false;
    if (!admit_before(s, s->held.answer)) return true;
    fb_held_drop(s, NULL);
    return false;
}

/* Answers that decode, then prompts: those that run and those that wait, in their order. */
int64_t fb_schedule_parts(fb_scheduler *s) {
    s->part_count = s->part_blocks = 0;
    s->short_of_blocks = false;
    s->free_wanted = s->options.sequences + fb_schedule_guesses(s);
    for (fb_answer_state *a = s->running; a; a = next_running(s, a->order))
        if (fb_schedule_decodes(s, a)) fb_schedule_add(s, a, 1);
    int64_t decodes = 0;
    for (int64_t i = 0; i < s->part_count; i++) decodes += s->parts[i].answer ? s->parts[i].rows : 0;
    int64_t left = fb_pace_rows(&s->pace, decodes);
    if (s->held.answer && s->held.answer->paused) put_back(s, s->held.answer);
    if (left > 0 ? goes_on_with_held(s, decodes) : fb_held_waits(s, decodes)) {
        if (left > 0) fb_held_add(s, decodes);
        return decodes;
    }
    for (int64_t order = INT64_MIN; left > 0;) {
        fb_answer_state *a = next_prompt(s, order), *first = admit_before(s, a);
        if (first) a = first;
        if (!a) break;
        order = a->order;
        left -= add_rows(s, a, left, decodes);
    }
    return decodes;
}
