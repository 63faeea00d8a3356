/* Guesses from texts that are known beforehand: some right, then perhaps a wrong one, one that is no token,
 * or more than were asked for. */
#ifndef FB_VERIFY_SCRIPT_H
#define FB_VERIFY_SCRIPT_H

#include <stdint.h>

/* A prompt, and what follows it. */
typedef struct fb_script_text {
    const int32_t *prompt, *tokens;
    int64_t prompt_count, count;
} fb_script_text;

typedef struct fb_script {
    uint64_t random; /* the state of its choices */
    int64_t vocab;
    const fb_script_text *texts; /* of several that fit, any one may be taken */
    int64_t count;
} fb_script;

/* An fb_draft_fn; `user` is the script. */
int64_t fb_script_propose(void *user, const int32_t *tokens, int64_t count, int64_t most, int32_t *ids);

/* A number below the limit; changes the state. */
uint64_t fb_script_draw(uint64_t *state, uint64_t limit);

#endif
