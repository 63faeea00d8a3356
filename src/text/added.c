#include "text/added.h"

#include <stdlib.h>
#include <string.h>

#include "text/unicode.h"
#include "text/utf8.h"

#define ROOT 0

fb_status fb_added_insert(fb_added *added, fb_added_token token, const char *text, int64_t size,
                          fb_error *err) {
    if (size == 0) return FB_OK;
    if (size > FB_ADDED_LIMIT - added->texts.size)
        return fb_fail(err, FB_ERROR_FILE, "added tokens: %lld bytes of text (at most %lld)",
                       (long long)(added->texts.size + size), (long long)FB_ADDED_LIMIT);
    fb_added_token *tokens =
        fb_array_grow(added->tokens, added->count, &added->capacity, 1, sizeof *added->tokens);
    if (!tokens) return fb_fail_memory(err, "added tokens", (added->count + 1) * (int64_t)sizeof *tokens);
    added->tokens = tokens;
    FB_TRY(fb_bytes_reserve(&added->texts, size, err));
    for (int64_t i = size - 1; i >= 0; i--) added->texts.data[added->texts.size++] = text[i];
    token.size = (int32_t)size;
    added->tokens[added->count++] = token;
    return FB_OK;
}

void fb_added_free(fb_added *added) {
    free(added->tokens);
    free(added->nodes);
    free(added->bytes);
    fb_bytes_free(&added->texts);
    *added = (fb_added){0};
}

/* ---- the automaton ---- */

/* A child of `node`, or ROOT if it has none for this byte. */
static int32_t find_child(const fb_added *added, int32_t node, unsigned char byte) {
    int32_t low = added->nodes[node].first, high = added->nodes[node + 1].first;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (added->bytes[middle] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low < added->nodes[node + 1].first && added->bytes[low] == byte ? low : ROOT;
}

/* Where one more byte leads: to the longest node that the text read so far starts with. */
static int32_t step(const fb_added *added, int32_t node, unsigned char byte) {
    while (node != ROOT) {
        int32_t child = find_child(added, node, byte);
        if (child != ROOT) return child;
        node = added->nodes[node].fail;
    }
    return added->roots[byte];
}

/* A token while the automaton is built. */
typedef struct sorted_token {
    const char *text; /* reversed */
    int32_t size, index;
} sorted_token;

static int64_t common_size(const sorted_token *a, const sorted_token *b) {
    int64_t size = 0, most = a->size < b->size ? a->size : b->size;
    while (size < most && a->text[size] == b->text[size]) size++;
    return size;
}

static int compare_tokens(const void *left, const void *right) {
    const sorted_token *a = left, *b = right;
    int order = memcmp(a->text, b->text, (size_t)(a->size < b->size ? a->size : b->size));
    if (order != 0) return order;
    if (a->size != b->size) return a->size < b->size ? -1 : 1;
    return a->index < b->index ? -1 : 1;
}

/* The sorted tokens that end with a node's text. */
typedef struct token_range {
    int32_t start, end;
} token_range;

typedef struct building {
    fb_added *added;
    sorted_token *tokens;
    token_range *ranges; /* [nodes] */
    int32_t count;       /* nodes so far */
} building;

static void add_child(building *b, int32_t parent, unsigned char byte, token_range range) {
    fb_added *added = b->added;
    int32_t node = b->count++;
    added->bytes[node] = byte;
    b->ranges[node] = range;
    added->nodes[node] = (fb_added_node){.token = -1};
    if (parent == ROOT)
        added->roots[byte] = node;
    else
        added->nodes[node].fail = step(added, added->nodes[parent].fail, byte);
}

/* What a node of `depth` bytes stands for, and its children, which come behind all nodes so far. */
static void expand(building *b, int32_t node, int32_t depth) {
    fb_added *added = b->added;
    fb_added_node *at = &added->nodes[node];
    token_range range = b->ranges[node];
    at->first = b->count;
    if (node != ROOT) at->token = added->nodes[at->fail].token;
    /* Two tokens may be equal once they are normalised: the first one counts. */
    if (range.start < range.end && b->tokens[range.start].size == depth)
        at->token = b->tokens[range.start].index;
    while (range.start < range.end && b->tokens[range.start].size == depth) range.start++;
    while (range.start < range.end) {
        char byte = b->tokens[range.start].text[depth];
        token_range child = {range.start, range.start + 1};
        while (child.end < range.end && b->tokens[child.end].text[depth] == byte) child.end++;
        add_child(b, node, (unsigned char)byte, child);
        range.start = child.end;
    }
}

static void build_nodes(building *b) {
    fb_added *added = b->added;
    added->nodes[ROOT] = (fb_added_node){.token = -1};
    added->bytes[ROOT] = 0;
    b->ranges[ROOT] = (token_range){0, (int32_t)added->count};
    b->count = 1;
    int32_t depth = 0, level_end = 1; /* nodes lie by depth: this one's end here */
    for (int32_t node = 0; node < b->count; node++) {
        if (node == level_end) {
            depth++;
            level_end = b->count;
        }
        expand(b, node, depth);
    }
    added->nodes[added->node_count].first = b->count;
}

static void sort_tokens(building *b) {
    const fb_added *added = b->added;
    const char *text = added->texts.data;
    for (int64_t i = 0; i < added->count; i++) {
        b->tokens[i] = (sorted_token){text, added->tokens[i].size, (int32_t)i};
        text += added->tokens[i].size;
    }
    qsort(b->tokens, (size_t)added->count, sizeof *b->tokens, compare_tokens);
}

/* The root, and a node for each byte that a token does not share with the one before it. */
static int64_t count_nodes(const building *b) {
    int64_t nodes = 1;
    for (int64_t i = 0; i < b->added->count; i++)
        nodes += b->tokens[i].size - (i > 0 ? common_size(&b->tokens[i - 1], &b->tokens[i]) : 0);
    return nodes;
}

fb_status fb_added_build(fb_added *added, fb_error *err) {
    if (added->count == 0) return FB_OK;
    building b = {.added = added};
    b.tokens = malloc((size_t)added->count * sizeof *b.tokens);
    if (!b.tokens) return fb_fail_memory(err, "added tokens", added->count * (int64_t)sizeof *b.tokens);
    sort_tokens(&b);
    int64_t nodes = added->node_count = count_nodes(&b);
    added->nodes = malloc((size_t)(nodes + 1) * sizeof *added->nodes);
    added->bytes = malloc((size_t)nodes);
    b.ranges = malloc((size_t)nodes * sizeof *b.ranges);
    fb_status status = FB_OK;
    if (added->nodes && added->bytes && b.ranges)
        build_nodes(&b);
    else
        status = fb_fail_memory(err, "added tokens",
                                nodes * (int64_t)(sizeof *added->nodes + 1 + sizeof *b.ranges));
    free(b.ranges);
    free(b.tokens);
    fb_bytes_free(&added->texts);
    return status;
}

/* Shorter tokens that are tried where a longer one is not allowed. Published sets have at most a handful of
 * which one begins another. */
#define SHORTER_TRIED 64

/* The longest token that starts where `node` was reached and is allowed there; -1: none. `free_bytes`
 * from there on have no mark. */
static int32_t find_allowed(const fb_added *added, int32_t node, const fb_added_filter *filter,
                            int64_t free_bytes) {
    for (int tried = 0; tried < SHORTER_TRIED; tried++, node = added->nodes[node].fail) {
        int32_t token = added->nodes[node].token;
        if (token < 0 || !filter) return token;
        if (added->tokens[token].size <= free_bytes || !filter->guarded[added->tokens[token].id])
            return token;
    }
    return -1;
}

/* The longest token at every byte of the text where one starts, the last such byte first. */
static fb_status find_matches(const fb_added *added, const char *text, int64_t size,
                              const fb_added_filter *filter, fb_parts *parts, fb_error *err) {
    int32_t node = ROOT;
    int64_t free_bytes = 0;
    for (int64_t at = size - 1; at >= 0; at--) {
        node = step(added, node, (unsigned char)text[at]);
        free_bytes = filter && filter->marks[at] ? 0 : free_bytes + 1;
        int32_t token = find_allowed(added, node, filter, free_bytes);
        if (token < 0) continue;
        fb_added_match *matches = fb_array_grow(parts->matches, parts->match_count, &parts->match_capacity, 1,
                                                sizeof *parts->matches);
        if (!matches)
            return fb_fail_memory(err, "added tokens", (parts->match_count + 1) * (int64_t)sizeof *matches);
        parts->matches = matches;
        parts->matches[parts->match_count++] = (fb_added_match){(int32_t)at, token};
    }
    return FB_OK;
}

/* ---- what is around a match ---- */

static int64_t char_before(const char *text, int64_t at, uint32_t *code) {
    int64_t start = at - 1;
    while (start > 0 && ((unsigned char)text[start] & 0xC0) == 0x80) start--;
    *code = fb_utf8_read(text + start, at - start).code;
    return start;
}

static bool is_single_word(const char *text, int64_t size, fb_span match) {
    if (match.start > 0) {
        uint32_t code;
        char_before(text, match.start, &code);
        if (fb_unicode_is_word(code)) return false;
    }
    return match.end >= size || !fb_unicode_is_word(fb_utf8_read(text + match.end, size - match.end).code);
}

static int64_t space_before(const char *text, int64_t at, int64_t limit) {
    while (at > limit) {
        uint32_t code;
        int64_t start = char_before(text, at, &code);
        if (!fb_unicode_is_space(code)) break;
        at = start;
    }
    return at < limit ? limit : at;
}

/* `known` is the white space that was found last: matches inside it must not go through it again. */
static int64_t space_after(const char *text, int64_t size, int64_t at, fb_span *known) {
    if (at >= known->start && at < known->end) return known->end;
    known->start = at;
    while (at < size) {
        fb_utf8_char c = fb_utf8_read(text + at, size - at);
        if (!fb_unicode_is_space(c.code)) break;
        at += c.size;
    }
    known->end = at;
    return at;
}

static fb_status add_part(fb_parts *parts, fb_span span, int32_t id, fb_error *err) {
    fb_part *grown = fb_array_grow(parts->data, parts->size, &parts->capacity, 1, sizeof *parts->data);
    if (!grown) return fb_fail_memory(err, "added tokens", (parts->size + 1) * (int64_t)sizeof *grown);
    parts->data = grown;
    parts->data[parts->size++] = (fb_part){span, id};
    return FB_OK;
}

fb_status fb_added_cut(const fb_added *added, const char *text, int64_t size, fb_parts *parts,
                       fb_error *err) {
    return fb_added_cut_filtered(added, text, size, NULL, parts, err);
}

fb_status fb_added_cut_filtered(const fb_added *added, const char *text, int64_t size,
                                const fb_added_filter *filter, fb_parts *parts, fb_error *err) {
    parts->size = parts->match_count = 0;
    if (added->count > 0) FB_TRY(find_matches(added, text, size, filter, parts, err));
    fb_span space = {0, 0};
    int64_t done = 0; /* text before it is in a part */
    int64_t from = 0; /* the next match starts here or behind it, also in space that was stripped */
    for (int64_t i = parts->match_count - 1; i >= 0; i--) {
        fb_added_match match = parts->matches[i];
        if (match.start < from) continue;
        const fb_added_token *token = &added->tokens[match.token];
        fb_span span = {match.start, match.start + token->size};
        from = span.end;
        if (token->single_word && !is_single_word(text, size, span)) continue;
        if (token->lstrip) span.start = space_before(text, span.start, done);
        if (token->rstrip) span.end = space_after(text, size, span.end, &space);
        if (done < span.start) FB_TRY(add_part(parts, (fb_span){done, span.start}, -1, err));
        FB_TRY(add_part(parts, span, token->id, err));
        done = span.end;
    }
    return done < size ? add_part(parts, (fb_span){done, size}, -1, err) : FB_OK;
}

void fb_parts_free(fb_parts *parts) {
    free(parts->data);
    free(parts->matches);
    *parts = (fb_parts){0};
}
