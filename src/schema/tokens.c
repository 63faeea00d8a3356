#include "schema/tokens.h"

#include <stdlib.h>
#include <string.h>

#include "schema/compile.h"

/* ---- bytes of tokens ---- */

static fb_status fail_memory(const fb_token_set *set, fb_error *err) {
    return fb_fail_memory(err, "tokens for schemas", set->bytes.size * 8 + set->vocab * 16);
}

static fb_status take_bytes(fb_token_set *set, const fb_token_source *source, fb_error *err) {
    set->offsets = calloc((size_t)set->vocab + 1, sizeof *set->offsets);
    set->ends = malloc((size_t)set->vocab * sizeof *set->ends);
    if (!set->offsets || !set->ends) return fail_memory(set, err);
    for (int64_t id = 0; id < set->vocab; id++) {
        const int64_t before = set->bytes.size;
        if (source->is_end(source->from, (int32_t)id))
            set->ends[set->end_count++] = (int32_t)id;
        else
            FB_TRY(source->bytes_of(source->from, (int32_t)id, &set->bytes, err));
        if (set->bytes.size - before > FB_TOKEN_LONGEST) set->bytes.size = before;
        set->offsets[id + 1] = set->bytes.size;
    }
    return FB_OK;
}

static fb_status find_not_first(fb_token_set *set, fb_error *err) {
    set->not_first = calloc((size_t)set->words, sizeof *set->not_first);
    if (!set->not_first) return fail_memory(set, err);
    for (int64_t id = 0; id < set->vocab; id++) {
        const int64_t size = set->offsets[id + 1] - set->offsets[id];
        if (size > 1 && memchr(set->bytes.data + set->offsets[id] + 1, ' ', (size_t)size - 1))
            set->not_first[id >> 6] |= UINT64_C(1) << (id & 63);
    }
    return FB_OK;
}

/* ---- the tree ---- */

typedef struct sorted_token {
    const char *text;
    int32_t size, id;
} sorted_token;

static int compare_tokens(const void *left, const void *right) {
    const sorted_token *a = left, *b = right;
    const int order = memcmp(a->text, b->text, (size_t)(a->size < b->size ? a->size : b->size));
    if (order != 0) return order;
    return a->size != b->size ? (a->size > b->size) - (a->size < b->size) : (a->id > b->id) - (a->id < b->id);
}

static int32_t in_common(const sorted_token *a, const sorted_token *b) {
    const int32_t most = a->size < b->size ? a->size : b->size;
    int32_t size = 0;
    while (size < most && a->text[size] == b->text[size]) size++;
    return size;
}

/* Node after node in the order of the sorted tokens. `path` has the nodes from the root to the last token. */
static void fill_tree(fb_token_set *set, const sorted_token *tokens, int32_t count) {
    int32_t path[FB_TOKEN_LONGEST + 1] = {0}, depth = 0;
    set->node_tokens[0] = 0;
    set->node_count = 1;
    for (int32_t i = 0; i < count; i++) {
        const int32_t shared = i > 0 ? in_common(&tokens[i - 1], &tokens[i]) : 0;
        for (; depth > shared; depth--) set->skips[path[depth]] = set->node_count;
        for (; depth < tokens[i].size; path[depth] = set->node_count++) {
            set->node_bytes[set->node_count] = (uint8_t)tokens[i].text[depth++];
            set->depths[set->node_count] = (uint16_t)depth;
            set->node_tokens[set->node_count] = i;
        }
        if (tokens[i].size > set->longest) set->longest = tokens[i].size;
        set->sorted[i] = tokens[i].id;
    }
    for (; depth >= 0; depth--) set->skips[path[depth]] = set->node_count;
    set->node_tokens[set->node_count] = count;
}

static fb_status make_tree(fb_token_set *set, sorted_token *tokens, fb_error *err) {
    int32_t count = 0;
    int64_t nodes = 1;
    for (int64_t id = 0; id < set->vocab; id++) {
        const int64_t size = set->offsets[id + 1] - set->offsets[id];
        if (size > 0)
            tokens[count++] = (sorted_token){set->bytes.data + set->offsets[id], (int32_t)size, (int32_t)id};
    }
    qsort(tokens, (size_t)count, sizeof *tokens, compare_tokens);
    for (int32_t i = 0; i < count; i++)
        nodes += tokens[i].size - (i > 0 ? in_common(&tokens[i - 1], &tokens[i]) : 0);
    if (nodes >= INT32_MAX) return fb_fail(err, FB_ERROR_USAGE, "schema: the vocabulary has too many bytes");
    set->sorted = malloc((size_t)(count ? count : 1) * sizeof *set->sorted);
    set->node_bytes = calloc((size_t)nodes, sizeof *set->node_bytes);
    set->depths = calloc((size_t)nodes, sizeof *set->depths);
    set->skips = calloc((size_t)nodes, sizeof *set->skips);
    set->node_tokens = malloc((size_t)(nodes + 1) * sizeof *set->node_tokens);
    if (!set->sorted || !set->node_bytes || !set->depths || !set->skips || !set->node_tokens)
        return fail_memory(set, err);
    fill_tree(set, tokens, count);
    return FB_OK;
}

/* ---- masks of leaf states ---- */

/* Fewer nodes than this are walked again each time, which takes some 10 us: most states of a schema are so.
 * The tree's root alone may have 256 children. */
#define NARROW 1024

fb_leaf_mask fb_leaf_narrow;

void fb_leaf_mask_free(fb_leaf_mask *mask) {
    if (!mask || mask == &fb_leaf_narrow) return;
    free(mask->bits);
    free(mask->exits);
    free(mask->by_count);
    free(mask->starts);
    free(mask);
}

typedef struct leaf_walk {
    const fb_token_set *set;
    const fb_machine *machine;
    int32_t *inside, *counts; /* [tokens]: those inside, and the characters that each begins */
    int32_t inside_count, most;
    fb_leaf_exit *exits;
    int32_t exit_count, exit_room;
    int64_t visited;
} leaf_walk;

static bool add_exit(leaf_walk *w, int32_t node, int32_t counted) {
    if (w->exit_count == w->exit_room) {
        int32_t room = w->exit_room ? 2 * w->exit_room : 64;
        fb_leaf_exit *exits = realloc(w->exits, (size_t)room * sizeof *exits);
        if (!exits) return false;
        w->exits = exits;
        w->exit_room = room;
    }
    w->exits[w->exit_count++] = (fb_leaf_exit){node, counted};
    return true;
}

/* False: no memory. */
static bool walk_leaf(leaf_walk *w, int32_t state) {
    const fb_token_set *set = w->set;
    const fb_machine *m = w->machine;
    struct {
        int32_t state, count;
    } at[FB_TOKEN_LONGEST + 1];
    at[0].state = state, at[0].count = 0;
    for (int32_t i = 1; i < set->node_count;) {
        const int32_t depth = set->depths[i];
        const fb_machine_state *from = &m->states[at[depth - 1].state];
        const uint8_t byte = set->node_bytes[i];
        const fb_machine_edge *edge = fb_machine_edge_of(m, from, byte);
        w->visited++;
        if (!edge || m->states[edge->to].height == FB_MACHINE_NEVER) {
            i = set->skips[i];
            continue;
        }
        const fb_machine_state *to = &m->states[edge->to];
        const int32_t count = at[depth - 1].count + (from->limits >= 0 && byte != from->close);
        const bool goes_on = to->edges < to->edges_end;
        at[depth].state = edge->to;
        at[depth].count = count;
        if (to->end && !add_exit(w, i, count)) return false;
        for (int32_t t = set->node_tokens[i]; goes_on && t < set->node_tokens[i + 1]; t++) {
            w->inside[w->inside_count] = set->sorted[t];
            w->counts[w->inside_count++] = count;
            if (count > w->most) w->most = count;
        }
        i = goes_on ? i + 1 : set->skips[i];
    }
    return true;
}

static bool fill_mask(leaf_walk *w, fb_leaf_mask *mask) {
    const int64_t words = w->set->words;
    mask->bits = calloc((size_t)words, sizeof *mask->bits);
    mask->starts = calloc((size_t)w->most + 2, sizeof *mask->starts);
    mask->by_count = malloc((size_t)(w->inside_count ? w->inside_count : 1) * sizeof *mask->by_count);
    if (!mask->bits || !mask->starts || !mask->by_count) return false;
    mask->most = w->most;
    mask->exits = w->exits;
    mask->exit_count = w->exit_count;
    w->exits = NULL;
    for (int32_t i = 0; i < w->inside_count; i++) mask->starts[w->counts[i] + 1]++;
    for (int32_t n = 0; n <= w->most; n++) mask->starts[n + 1] += mask->starts[n];
    for (int32_t i = 0; i < w->inside_count; i++) {
        const int32_t id = w->inside[i];
        mask->bits[id >> 6] |= UINT64_C(1) << (id & 63);
        mask->by_count[mask->starts[w->counts[i]]++] = id;
    }
    for (int32_t n = w->most + 1; n > 0; n--) mask->starts[n] = mask->starts[n - 1];
    mask->starts[0] = 0;
    mask->bytes = words * 8 + 4 * ((int64_t)w->most + 2 + w->inside_count) + 8 * (int64_t)w->exit_count;
    return true;
}

fb_status fb_leaf_mask_make(const fb_token_set *set, const fb_machine *machine, int32_t state,
                            fb_leaf_mask **out, int64_t *visited, fb_error *err) {
    leaf_walk w = {.set = set, .machine = machine};
    const size_t room = (size_t)set->node_tokens[set->node_count] + 1;
    fb_leaf_mask *mask = NULL;
    *out = NULL;
    w.inside = malloc(room * sizeof *w.inside);
    w.counts = malloc(room * sizeof *w.counts);
    bool made = w.inside && w.counts && walk_leaf(&w, state);
    const bool wide = w.visited >= NARROW;
    if (made && wide) {
        mask = calloc(1, sizeof *mask);
        made = mask && fill_mask(&w, mask);
    }
    free(w.inside);
    free(w.counts);
    free(w.exits);
    *visited += w.visited;
    if (!made) {
        fb_leaf_mask_free(mask);
        return fail_memory(set, err);
    }
    *out = mask;
    return FB_OK;
}

/* ---- life ---- */

static fb_status make_base(fb_token_set *set, fb_error *err) {
    FB_TRY(fb_compile_base(&set->base, &set->string_end, err));
    set->slots = calloc((size_t)set->base.state_count, sizeof *set->slots);
    if (!set->slots) return fail_memory(set, err);
    for (int32_t i = 0; i < set->base.state_count; i++) {
        fb_leaf_mask *mask;
        int64_t visited = 0;
        if (!set->base.states[i].leaf || set->base.states[i].height == FB_MACHINE_NEVER) continue;
        FB_TRY(fb_leaf_mask_make(set, &set->base, i, &mask, &visited, err));
        atomic_store(&set->slots[i], mask ? mask : &fb_leaf_narrow);
    }
    return FB_OK;
}

fb_status fb_token_set_create(const fb_token_source *source, fb_token_set **out, fb_error *err) {
    *out = NULL;
    fb_token_set *set = calloc(1, sizeof *set);
    if (!set) return fb_fail_memory(err, "tokens for schemas", sizeof *set);
    atomic_store(&set->users, 1);
    set->vocab = source->vocab;
    set->words = (source->vocab + 63) / 64;
    fb_status status = take_bytes(set, source, err);
    sorted_token *tokens = malloc((size_t)source->vocab * sizeof *tokens);
    if (status == FB_OK && !tokens) status = fail_memory(set, err);
    if (status == FB_OK) status = make_tree(set, tokens, err);
    free(tokens);
    if (status == FB_OK && source->first_loses_spaces) status = find_not_first(set, err);
    if (status == FB_OK) status = make_base(set, err);
    if (status != FB_OK) {
        fb_token_set_free(set);
        return status;
    }
    *out = set;
    return FB_OK;
}

fb_token_set *fb_token_set_hold(fb_token_set *set) {
    atomic_fetch_add(&set->users, 1);
    return set;
}

void fb_token_set_free(fb_token_set *set) {
    if (!set || atomic_fetch_sub(&set->users, 1) > 1) return;
    for (int32_t i = 0; set->slots && i < set->base.state_count; i++)
        fb_leaf_mask_free(atomic_load(&set->slots[i]));
    free(set->slots);
    fb_machine_free(&set->base);
    fb_bytes_free(&set->bytes);
    free(set->offsets);
    free(set->ends);
    free(set->sorted);
    free(set->node_bytes);
    free(set->depths);
    free(set->skips);
    free(set->node_tokens);
    free(set->not_first);
    free(set);
}
