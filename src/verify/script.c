#include "verify/script.h"

#include <stdbool.h>
#include <string.h>

uint64_t fb_script_draw(uint64_t *state, uint64_t limit) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % limit;
}

/* Whether a text begins with these tokens, and goes on. */
static bool fits(const fb_script_text *t, const int32_t *tokens, int64_t count) {
    int64_t done = count - t->prompt_count;
    return done >= 0 && done < t->count &&
           memcmp(t->prompt, tokens, (size_t)t->prompt_count * sizeof *tokens) == 0 &&
           memcmp(t->tokens, tokens + t->prompt_count, (size_t)done * sizeof *tokens) == 0;
}

/* One of those that fit; NULL: none. */
static const fb_script_text *find(fb_script *s, const int32_t *tokens, int64_t count) {
    int64_t first = s->count ? (int64_t)fb_script_draw(&s->random, (uint64_t)s->count) : 0;
    for (int64_t i = 0; i < s->count; i++) {
        const fb_script_text *t = &s->texts[(first + i) % s->count];
        if (fits(t, tokens, count)) return t;
    }
    return NULL;
}

int64_t fb_script_propose(void *user, const int32_t *tokens, int64_t count, int64_t most, int32_t *ids) {
    fb_script *s = user;
    const fb_script_text *t = find(s, tokens, count);
    int64_t right = (int64_t)fb_script_draw(&s->random, (uint64_t)most + 1), made = 0;
    int64_t at = t ? count - t->prompt_count : 0;
    for (; t && made < right && at + made < t->count; made++) ids[made] = t->tokens[at + made];
    if (made == most) return fb_script_draw(&s->random, 4) ? most : most + 5;
    switch (fb_script_draw(&s->random, 6)) {
    case 0:
        return made;
    case 1:
        ids[made++] = -1 - (int32_t)fb_script_draw(&s->random, 100);
        return made;
    case 2:
        ids[made++] = (int32_t)(s->vocab + (int64_t)fb_script_draw(&s->random, 1000));
        return made;
    case 3:
        return made ? made : -3;
    default:
        while (made < most) ids[made++] = (int32_t)fb_script_draw(&s->random, (uint64_t)s->vocab);
        return made;
    }
}
