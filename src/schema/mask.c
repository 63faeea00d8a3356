/* Which tokens may come next. Leaf states, where most tokens may come, have masks of the whole vocabulary;
 * what goes on behind a leaf, and what is no leaf, is found by walking the tree of tokens and the machine
 * together. */
#include <stdlib.h>
#include <string.h>

#include "schema/schema.h"

/* Masks of a schema, in bytes; states beyond them are walked each time. */
#define MOST_CACHED (64 << 20)

/* ---- masks of leaf states ---- */

static fb_leaf_slot *slot_of(const fb_schema *s, int32_t state) {
    const int32_t like = s->machine.states[state].like, at = like >= 0 ? like : state;
    const int32_t base = s->set->base.state_count;
    return at < base ? &s->set->slots[at] : &s->cache->slots[at - base];
}

/* Threads that make the same mask at once make the same bits: one of them is kept. */
static const fb_leaf_mask *make_mask(const fb_schema *s, int32_t state, int64_t *visited) {
    fb_leaf_mask *mask, *there = NULL;
    if (fb_leaf_mask_make(s->set, &s->machine, state, &mask, visited, NULL) != FB_OK) return NULL;
    const int64_t bytes = mask ? mask->bytes : 0;
    if (atomic_fetch_add(&s->cache->bytes, bytes) + bytes > MOST_CACHED) {
        fb_leaf_mask_free(mask);
        mask = NULL;
        atomic_fetch_sub(&s->cache->bytes, bytes);
    }
    if (!mask) mask = &fb_leaf_narrow;
    if (atomic_compare_exchange_strong(slot_of(s, state), &there, mask)) return mask;
    fb_leaf_mask_free(mask);
    return there;
}

/* States that count, but not characters, have none. */
static bool has_mask(const fb_schema *s, int32_t number) {
    const fb_machine_state *state = &s->machine.states[number];
    return state->leaf && state->edges < state->edges_end && state->height != FB_MACHINE_NEVER &&
           (state->limits < 0 || state->like >= 0 || number < s->set->base.state_count);
}

const fb_leaf_mask *fb_schema_mask(const fb_schema *s, int32_t state) {
    int64_t visited = 0;
    if (!has_mask(s, state)) return NULL;
    const fb_leaf_mask *mask = atomic_load(slot_of(s, state));
    if (!mask) mask = make_mask(s, state, &visited);
    return mask == &fb_leaf_narrow ? NULL : mask;
}

void fb_schema_prepare(const fb_schema *s, int32_t state, int64_t *visited) {
    if (has_mask(s, state) && !atomic_load(slot_of(s, state))) make_mask(s, state, visited);
}

/* ---- walks ---- */

/* Allows what is below a node for the set of spots from `begin` to the end. */
static void walk(fb_cursor *c, int32_t node, int32_t begin, uint64_t *words) {
    const fb_token_set *set = c->schema->set;
    const int32_t top = set->depths[node], last = set->skips[node];
    struct fb_cursor_level *levels = c->levels;
    levels[0] = (struct fb_cursor_level){begin, c->spot_count, c->frame_count};
    for (int32_t i = node + 1; i < last && !c->failed;) {
        const int32_t level = set->depths[i] - top;
        const struct fb_cursor_level above = levels[level - 1];
        c->spot_count = above.end;
        c->frame_count = above.frames;
        fb_cursor_step(c, above.begin, above.end, set->node_bytes[i]);
        if (c->spot_count == above.end) {
            i = set->skips[i];
            continue;
        }
        levels[level] = (struct fb_cursor_level){above.end, c->spot_count, c->frame_count};
        fb_token_set_allow(set, i, words);
        i++;
    }
    c->spot_count = levels[0].end;
    c->frame_count = levels[0].frames;
}

/* Tokens that stay inside the leaf, and have room for their characters. */
static void allow_inside(fb_cursor *c, const fb_leaf_mask *mask, int32_t left, uint64_t *words) {
    const int64_t count = c->schema->set->words;
    const uint64_t *bits = mask->bits;
    if (left < mask->most) {
        const int32_t fit = mask->starts[left + 1], all = mask->starts[mask->most + 1];
        if (fit < all / 2) {
            for (int32_t i = 0; i < fit; i++)
                words[mask->by_count[i] >> 6] |= UINT64_C(1) << (mask->by_count[i] & 63);
            return;
        }
        memcpy(c->scratch, bits, (size_t)count * sizeof *bits);
        for (int32_t i = fit; i < all; i++)
            c->scratch[mask->by_count[i] >> 6] &= ~(UINT64_C(1) << (mask->by_count[i] & 63));
        bits = c->scratch;
    }
    for (int64_t i = 0; i < count; i++) words[i] |= bits[i];
}

static void allow_leaf(fb_cursor *c, fb_spot spot, const fb_leaf_mask *mask, uint64_t *words) {
    const fb_token_set *set = c->schema->set;
    const fb_machine *m = &c->schema->machine;
    const int32_t begin = c->spot_count, frames = c->frame_count;
    const int32_t scope = m->states[spot.state].scope;
    const fb_machine_limits limits = scope >= 0 ? m->limits[scope] : (fb_machine_limits){0, INT32_MAX};
    const int32_t left = limits.max - spot.count, need = limits.min - spot.count;
    allow_inside(c, mask, left, words);
    if (spot.frame >= 0) {
        const fb_frame frame = c->frames[spot.frame];
        fb_cursor_add(c, begin, (fb_spot){frame.back, frame.count, frame.parent});
    }
    for (int32_t i = 0; i < mask->exit_count && !c->failed; i++) {
        const fb_leaf_exit *out = &mask->exits[i];
        if (out->counted > left || out->counted < need) continue;
        fb_token_set_allow(set, out->node, words);
        if (spot.frame >= 0 && set->skips[out->node] > out->node + 1) walk(c, out->node, begin, words);
    }
    c->spot_count = begin;
    c->frame_count = frames;
}

/* ---- the whole ---- */

static void allow_ends(const fb_token_set *set, uint64_t *words) {
    for (int32_t i = 0; i < set->end_count; i++)
        words[set->ends[i] >> 6] |= UINT64_C(1) << (set->ends[i] & 63);
}

fb_status fb_cursor_mask(fb_cursor *c, uint64_t *words, fb_error *err) {
    const fb_token_set *set = c->schema->set;
    const int32_t frames = c->frame_count;
    c->spot_count = c->count;
    memset(words, 0, (size_t)set->words * sizeof *words);
    if (c->closed) {
        allow_ends(set, words);
        return FB_OK;
    }
    /* Ways without a mask are walked together. */
    for (int32_t i = 0; i < c->count; i++) {
        const fb_spot spot = c->spots[i];
        if (spot.state == FB_SPOT_DONE || fb_schema_mask(c->schema, spot.state)) continue;
        const fb_machine_state *state = &c->schema->machine.states[spot.state];
        if (state->edges < state->edges_end) fb_cursor_put(c, spot);
    }
    if (c->spot_count > c->count) walk(c, 0, c->count, words);
    c->spot_count = c->count;
    for (int32_t i = 0; i < c->count && !c->failed; i++) {
        const fb_spot spot = c->spots[i];
        const fb_leaf_mask *mask = spot.state == FB_SPOT_DONE ? NULL : fb_schema_mask(c->schema, spot.state);
        if (mask) allow_leaf(c, spot, mask, words);
    }
    c->frame_count = frames;
    if (c->failed) {
        c->failed = false;
        return fb_fail_memory(err, "schema", c->spot_room * (int64_t)sizeof *c->spots);
    }
    if (!c->started && set->not_first)
        for (int64_t i = 0; i < set->words; i++) words[i] &= ~set->not_first[i];
    if (fb_cursor_complete(c)) allow_ends(set, words);
    return FB_OK;
}
