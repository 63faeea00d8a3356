/* Guesses from a function of the caller. */
#include "draft/draft.h"

static fb_status guess(fb_drafter *d, fb_draft_ask *asks, int64_t count, fb_error *err) {
    const fb_draft_options *o = &d->draft->options;
    (void)err;
    for (int64_t i = 0; i < count; i++) {
        fb_draft_ask *a = &asks[i];
        a->class = 0;
        a->made = a->most > 0 ? o->propose(o->user, a->tokens, a->count, a->most, a->ids) : 0;
        if (a->made < 0) a->made = 0;
        if (a->made > a->most) a->made = a->most;
    }
    return FB_OK;
}

const fb_draft_source fb_draft_callback = {
    .name = "callback", .free = true, .classes = 1, .prior = {0.6}, .guess = guess};
