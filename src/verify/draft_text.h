/* Texts of sessions with drafts, compared with the same decoded one by one: for verify/draft.c. */
#ifndef FB_VERIFY_DRAFT_TEXT_H
#define FB_VERIFY_DRAFT_TEXT_H

#include "fusebox_tools.h"
#include "verify/script.h"

/* How the tokens of a text are chosen. */
typedef struct fb_text_mode {
    const char *name;
    bool greedy;  /* a session that computes only the best tokens */
    bool sampled; /* by a sampler; otherwise the best token of all logits */
    bool few;     /* among two tokens: a guess is often right, whoever made it */
    float temperature, presence;
    int64_t top_k;
} fb_text_mode;

/* A text as decoding one by one writes it: its tokens, and a hash of the logits that each was chosen from; 0:
 * none were computed. */
typedef struct fb_plain_text {
    int32_t *tokens;  /* [room] */
    uint64_t *logits; /* [room] */
    int64_t count, room;
} fb_plain_text;

typedef struct fb_draft_proof {
    const fb_model *model;
    fb_session_options session;
    fb_draft_report report;
    uint64_t random;
    int64_t vocab, prompt_count;
    int32_t *prompt;
    int32_t few[2]; /* the tokens of such texts */
    fb_plain_text plain;
    fb_script script;
    fb_script_text known; /* the script's: the plain text */
} fb_draft_proof;

/* Writes the plain text of `count` tokens. */
fb_status fb_plain_text_write(fb_draft_proof *proof, const fb_text_mode *mode, int64_t count, fb_error *err);

/* Compares a session's runs with the plain text, up to its end. With `turns`, that many times, each in runs
 * of any length, up to any place and then back: to any place, or as far as the cache can. With `beyond`, up
 * to the end, then back as far as the cache can; the first time by so many tokens, which are too many for it,
 * unless it refuses that. `draft` may be NULL. */
typedef struct fb_text_course {
    const fb_draft *draft;
    int64_t turns, beyond;
} fb_text_course;
fb_status fb_text_follow(fb_draft_proof *proof, const fb_text_mode *mode, const fb_text_course *course,
                         fb_error *err);

#endif
