/* How far a document has come: a set of ways to read it. Most of the time it is one way, or one for each rule
 * that may come next. */
#include <stdlib.h>
#include <string.h>

#include "schema/schema.h"

/* Ways that are followed at once. More than these come only from alternatives that look alike for long and
 * lie in each other; the first ones are followed. */
#define MOST_WAYS 256

/* ---- room ---- */

static bool room_for_frame(fb_cursor *c) {
    if (c->frame_count < c->frame_room) return true;
    int32_t room = c->frame_room ? 2 * c->frame_room : 64;
    fb_frame *frames = realloc(c->frames, (size_t)room * sizeof *frames);
    if (!frames) {
        c->failed = true;
        return false;
    }
    c->frames = frames;
    c->frame_room = room;
    return true;
}

static bool room_for_spot(fb_cursor *c) {
    if (c->spot_count < c->spot_room) return true;
    int32_t room = c->spot_room ? 2 * c->spot_room : 64;
    fb_spot *spots = realloc(c->spots, (size_t)room * sizeof *spots);
    if (!spots) {
        c->failed = true;
        return false;
    }
    c->spots = spots;
    c->spot_room = room;
    return true;
}

void fb_cursor_put(fb_cursor *c, fb_spot spot) {
    if (room_for_spot(c)) c->spots[c->spot_count++] = spot;
}

/* ---- sets ---- */

static bool same_frames(const fb_cursor *c, int32_t a, int32_t b) {
    while (a != b) {
        if (a < 0 || b < 0) return false;
        const fb_frame *x = &c->frames[a], *y = &c->frames[b];
        if (x->back != y->back || x->count != y->count || x->depth != y->depth) return false;
        a = x->parent;
        b = y->parent;
    }
    return true;
}

static bool is_there(const fb_cursor *c, int32_t begin, const fb_spot *spot) {
    for (int32_t i = begin; i < c->spot_count; i++)
        if (c->spots[i].state == spot->state && c->spots[i].count == spot->count &&
            same_frames(c, c->spots[i].frame, spot->frame))
            return true;
    return false;
}

static int32_t depth_of(const fb_cursor *c, int32_t frame) { return frame < 0 ? 0 : c->frames[frame].depth; }

static void add_calls(fb_cursor *c, int32_t begin, fb_spot spot, const fb_machine_state *state) {
    const fb_machine *m = &c->schema->machine;
    const int32_t depth = depth_of(c, spot.frame) + 1;
    for (int32_t i = state->calls; i < state->calls_end; i++) {
        const fb_machine_call *call = &m->calls[i];
        const int32_t entry = m->rules[call->rule];
        if (depth + m->states[entry].height > FB_MACHINE_DEPTH ||
            depth - 1 + m->states[call->back].height > FB_MACHINE_DEPTH)
            continue;
        if (!room_for_frame(c)) return;
        c->frames[c->frame_count] = (fb_frame){call->back, spot.count, spot.frame, depth};
        fb_cursor_add(c, begin, (fb_spot){entry, 0, c->frame_count++});
    }
}

void fb_cursor_add(fb_cursor *c, int32_t begin, fb_spot spot) {
    const fb_machine *m = &c->schema->machine;
    const fb_machine_state *state = spot.state == FB_SPOT_DONE ? NULL : &m->states[spot.state];
    if (state && depth_of(c, spot.frame) + state->height > FB_MACHINE_DEPTH) return;
    if (is_there(c, begin, &spot) || c->spot_count - begin >= MOST_WAYS || !room_for_spot(c)) return;
    c->spots[c->spot_count++] = spot;
    if (!state) return;
    if (state->end && spot.frame < 0) {
        fb_cursor_add(c, begin, (fb_spot){FB_SPOT_DONE, 0, -1});
    } else if (state->end) {
        const fb_frame frame = c->frames[spot.frame];
        fb_cursor_add(c, begin, (fb_spot){frame.back, frame.count, frame.parent});
    }
    if (state->limits < 0 || spot.count >= m->limits[state->limits].min) add_calls(c, begin, spot, state);
}

/* Counts the byte where the state counts; false: the count does not allow it. */
static bool count_byte(const fb_machine *m, const fb_machine_state *state, uint8_t byte, int32_t *count) {
    if (state->limits < 0) return true;
    const fb_machine_limits *limits = &m->limits[state->limits];
    if (byte == state->close) return *count >= limits->min;
    if (*count >= limits->max) return false;
    if (*count < INT32_MAX) ++*count;
    return true;
}

void fb_cursor_step(fb_cursor *c, int32_t begin, int32_t end, uint8_t byte) {
    const fb_machine *m = &c->schema->machine;
    const int32_t made = c->spot_count;
    for (int32_t i = begin; i < end; i++) {
        fb_spot spot = c->spots[i];
        if (spot.state == FB_SPOT_DONE) continue;
        const fb_machine_state *state = &m->states[spot.state];
        const fb_machine_edge *edge = fb_machine_edge_of(m, state, byte);
        if (!edge || !count_byte(m, state, byte, &spot.count)) continue;
        spot.state = edge->to;
        fb_cursor_add(c, made, spot);
    }
}

/* ---- a text ---- */

/* Keeps the frames that the ways still need. A frame's parent comes before it. */
static bool drop_frames(fb_cursor *c) {
    int32_t kept = 0;
    int32_t *moved = calloc((size_t)c->frame_count + 1, sizeof *moved);
    if (!moved) {
        c->failed = true;
        return false;
    }
    for (int32_t i = 0; i < c->count; i++)
        for (int32_t f = c->spots[i].frame; f >= 0 && !moved[f]; f = c->frames[f].parent) moved[f] = 1;
    for (int32_t f = 0; f < c->frame_count; f++) {
        if (!moved[f]) continue;
        fb_frame frame = c->frames[f];
        if (frame.parent >= 0) frame.parent = moved[frame.parent];
        c->frames[kept] = frame;
        moved[f] = kept++;
    }
    for (int32_t i = 0; i < c->count; i++)
        if (c->spots[i].frame >= 0) c->spots[i].frame = moved[c->spots[i].frame];
    c->frame_count = c->kept_frames = kept;
    free(moved);
    return true;
}

bool fb_cursor_take_bytes(fb_cursor *c, const char *bytes, size_t size) {
    const int32_t frames = c->frame_count;
    int32_t begin = 0, end = c->count;
    c->spot_count = c->count;
    for (size_t i = 0; i < size && begin < end && !c->failed; i++) {
        fb_cursor_step(c, begin, end, (uint8_t)bytes[i]);
        begin = end;
        end = c->spot_count;
    }
    if (begin == end || c->failed) {
        c->spot_count = c->count;
        c->frame_count = frames;
        return false;
    }
    c->count = end - begin;
    memmove(c->spots, c->spots + begin, (size_t)c->count * sizeof *c->spots);
    c->spot_count = c->count;
    return c->frame_count < 2 * c->kept_frames + 256 || drop_frames(c);
}

static fb_status fail_memory(fb_cursor *c, fb_error *err) {
    c->failed = false;
    return fb_fail_memory(err, "schema", (int64_t)c->frame_room * (int64_t)sizeof *c->frames);
}

fb_status fb_cursor_take(fb_cursor *c, int32_t id, fb_error *err) {
    const fb_token_set *set = c->schema->set;
    for (int32_t i = 0; i < set->end_count; i++)
        if (set->ends[i] == id && fb_cursor_complete(c)) {
            c->closed = true;
            return FB_OK;
        }
    const int64_t size = id >= 0 && id < set->vocab ? set->offsets[id + 1] - set->offsets[id] : 0;
    if (size > 0 && !c->closed && fb_cursor_take_bytes(c, set->bytes.data + set->offsets[id], (size_t)size)) {
        c->started = true;
        return FB_OK;
    }
    if (c->failed) return fail_memory(c, err);
    return fb_fail(err, FB_ERROR_USAGE, "schema: token %d does not continue the document", (int)id);
}

bool fb_cursor_complete(const fb_cursor *c) {
    for (int32_t i = 0; i < c->count; i++)
        if (c->spots[i].state == FB_SPOT_DONE) return true;
    return false;
}

/* Spots without edges are the states behind what ended. */
bool fb_cursor_ended(const fb_cursor *c) {
    const fb_machine *m = &c->schema->machine;
    if (c->closed) return true;
    if (!fb_cursor_complete(c)) return false;
    for (int32_t i = 0; i < c->count && c->schema->set->end_count > 0; i++)
        if (c->spots[i].state >= 0 &&
            m->states[c->spots[i].state].edges < m->states[c->spots[i].state].edges_end)
            return false;
    return true;
}

/* ---- life ---- */

fb_status fb_cursor_create(const fb_schema *schema, fb_cursor **out, fb_error *err) {
    const fb_token_set *set = schema->set;
    fb_cursor *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c) return fb_fail_memory(err, "schema", sizeof *c);
    c->schema = fb_schema_hold(schema);
    c->levels = malloc(((size_t)set->longest + 1) * sizeof *c->levels);
    c->scratch = malloc((size_t)set->words * sizeof *c->scratch);
    if (c->levels && c->scratch) fb_cursor_add(c, 0, (fb_spot){schema->machine.rules[schema->first], 0, -1});
    if (!c->levels || !c->scratch || c->failed) {
        fb_cursor_free(c);
        return fb_fail_memory(err, "schema", set->words * (int64_t)sizeof *c->scratch);
    }
    c->count = c->spot_count;
    *out = c;
    return FB_OK;
}

fb_status fb_cursor_copy(const fb_cursor *from, fb_cursor *to, fb_error *err) {
    to->frame_count = to->kept_frames = to->spot_count = to->count = 0;
    to->failed = false;
    for (int32_t i = 0; i < from->frame_count && room_for_frame(to); i++)
        to->frames[to->frame_count++] = from->frames[i];
    for (int32_t i = 0; i < from->count && room_for_spot(to); i++)
        to->spots[to->spot_count++] = from->spots[i];
    if (to->failed) return fail_memory(to, err);
    to->kept_frames = from->kept_frames;
    to->count = from->count;
    to->started = from->started;
    to->closed = from->closed;
    return FB_OK;
}

void fb_cursor_free(fb_cursor *c) {
    if (!c) return;
    fb_schema_release(c->schema);
    free(c->frames);
    free(c->spots);
    free(c->levels);
    free(c->scratch);
    free(c);
}
