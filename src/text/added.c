#include "text/added.h"

#include <stdlib.h>

#include "text/utf8.h"

/* ---- the trie ---- */

static fb_status add_node(fb_added *added, unsigned char byte, int32_t sibling, int32_t *node,
                          fb_error *err) {
    fb_trie_node *nodes =
        fb_array_grow(added->nodes, added->node_count, &added->node_capacity, 1, sizeof *added->nodes);
    if (!nodes || added->node_count == INT32_MAX)
        return fb_fail_memory(err, "added tokens", (added->node_count + 1) * (int64_t)sizeof *nodes);
    added->nodes = nodes;
    *node = (int32_t)added->node_count++;
    nodes[*node] = (fb_trie_node){-1, sibling, -1, byte};
    return FB_OK;
}

static int32_t find_child(const fb_added *added, int32_t node, unsigned char byte) {
    int32_t child = added->nodes[node].child;
    while (child >= 0 && added->nodes[child].byte != byte) child = added->nodes[child].sibling;
    return child;
}

fb_status fb_added_insert(fb_added *added, fb_added_token token, const char *text, int64_t size,
                          fb_error *err) {
    if (size == 0) return FB_OK;
    fb_added_token *tokens =
        fb_array_grow(added->tokens, added->count, &added->capacity, 1, sizeof *added->tokens);
    if (!tokens) return fb_fail_memory(err, "added tokens", (added->count + 1) * (int64_t)sizeof *tokens);
    added->tokens = tokens;
    if (added->count == 0)
        for (int i = 0; i < 256; i++) added->roots[i] = -1;

    unsigned char first = (unsigned char)text[0];
    int32_t node = added->roots[first];
    if (node < 0) {
        FB_TRY(add_node(added, first, -1, &node, err));
        added->roots[first] = node;
    }
    for (int64_t i = 1; i < size; i++) {
        unsigned char byte = (unsigned char)text[i];
        int32_t child = find_child(added, node, byte);
        if (child < 0) {
            FB_TRY(add_node(added, byte, added->nodes[node].child, &child, err));
            added->nodes[node].child = child;
        }
        node = child;
    }
    /* Two tokens may be equal once they are normalised: the first one counts. */
    if (added->nodes[node].token < 0) added->nodes[node].token = (int32_t)added->count;
    added->tokens[added->count++] = token;
    return FB_OK;
}

void fb_added_free(fb_added *added) {
    free(added->tokens);
    free(added->nodes);
    *added = (fb_added){0};
}

/* The longest token that starts at `at`; its end, or -1. */
static int64_t match_at(const fb_added *added, const char *text, int64_t size, int64_t at, int32_t *token) {
    int64_t end = -1;
    int32_t node = added->roots[(unsigned char)text[at]];
    while (node >= 0) {
        at++;
        if (added->nodes[node].token >= 0) {
            *token = added->nodes[node].token;
            end = at;
        }
        node = at < size ? find_child(added, node, (unsigned char)text[at]) : -1;
    }
    return end;
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

static int64_t space_after(const char *text, int64_t size, int64_t at) {
    while (at < size) {
        fb_utf8_char c = fb_utf8_read(text + at, size - at);
        if (!fb_unicode_is_space(c.code)) break;
        at += c.size;
    }
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
    parts->size = 0;
    int64_t done = 0; /* text before it is in a part */
    for (int64_t at = 0; at < size && added->count > 0;) {
        int32_t index = -1;
        int64_t end = match_at(added, text, size, at, &index);
        if (end < 0) {
            at++;
            continue;
        }
        const fb_added_token *token = &added->tokens[index];
        fb_span span = {at, end};
        at = end; /* from there the search goes on, whatever is stripped: the next match may start inside that
                     space */
        if (token->single_word && !is_single_word(text, size, span)) continue;
        if (token->lstrip) span.start = space_before(text, span.start, done);
        if (token->rstrip) span.end = space_after(text, size, span.end);
        if (done < span.start) FB_TRY(add_part(parts, (fb_span){done, span.start}, -1, err));
        FB_TRY(add_part(parts, span, token->id, err));
        done = span.end;
    }
    return done < size ? add_part(parts, (fb_span){done, size}, -1, err) : FB_OK;
}

void fb_parts_free(fb_parts *parts) {
    free(parts->data);
    *parts = (fb_parts){0};
}
