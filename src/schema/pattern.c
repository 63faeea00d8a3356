/* Regular expressions, as far as a finite automaton has them: a tree, then nodes. */
#include <stdlib.h>
#include <string.h>

#include "schema/nfa.h"
#include "text/utf8.h"

#define MOST_TREE   4096
#define MOST_RANGES 8192
#define MOST_DEPTH  32
#define MOST_REPEAT 1000
#define LAST_CODE   0x10ffff

typedef enum piece_kind { PIECE_SET, PIECE_SEQUENCE, PIECE_CHOICE, PIECE_REPEAT } piece_kind;

typedef struct piece {
    piece_kind kind;
    int32_t first, next;   /* children, and the next child of the parent; -1: none */
    int32_t ranges, count; /* SET */
    int32_t min, max;      /* REPEAT; max -1: no limit */
    bool at_start, at_end; /* SEQUENCE: it had a ^ or a $ */
} piece;

typedef struct range {
    uint32_t low, high;
} range;

typedef struct reader {
    const char *text;
    int64_t size, at;
    piece *pieces; /* [MOST_TREE] */
    range *ranges; /* [MOST_RANGES] */
    int32_t piece_count, range_count;
    int depth;
    fb_error *err;
} reader;

static fb_status refuse(const reader *r, const char *why) {
    return fb_fail(r->err, FB_ERROR_USAGE, "schema: pattern: \"%.*s\": at byte %lld: %s",
                   (int)(r->size < 100 ? r->size : 100), r->text, (long long)r->at, why);
}

static bool looking_at(const reader *r, const char *text) {
    const int64_t size = (int64_t)strlen(text);
    return r->size - r->at >= size && memcmp(r->text + r->at, text, (size_t)size) == 0;
}

static bool skip(reader *r, const char *text) {
    if (!looking_at(r, text)) return false;
    r->at += (int64_t)strlen(text);
    return true;
}

static fb_status add_piece(reader *r, piece_kind kind, int32_t *out) {
    if (r->piece_count == MOST_TREE) return refuse(r, "too long (at most 4096 parts)");
    r->pieces[ *out = r->piece_count++] = (piece){.kind = kind, .first = -1, .next = -1};
    return FB_OK;
}

/* ---- sets of characters ---- */

static fb_status add_range(reader *r, uint32_t low, uint32_t high) {
    if (r->range_count == MOST_RANGES) return refuse(r, "too long (at most 8192 ranges)");
    r->ranges[r->range_count++] = (range){low, high};
    return FB_OK;
}

static int compare_ranges(const void *left, const void *right) {
    const range *a = left, *b = right;
    return (a->low > b->low) - (a->low < b->low);
}

/* Sorts the ranges from `first` on and joins those that touch; or turns them into all others. */
static fb_status settle_ranges(reader *r, int32_t first, bool negated) {
    range *ranges = r->ranges + first;
    int32_t count = r->range_count - first, kept = 0;
    qsort(ranges, (size_t)count, sizeof *ranges, compare_ranges);
    for (int32_t i = 0; i < count; i++) {
        if (kept > 0 && ranges[i].low <= ranges[kept - 1].high + 1) {
            if (ranges[i].high > ranges[kept - 1].high) ranges[kept - 1].high = ranges[i].high;
        } else {
            ranges[kept++] = ranges[i];
        }
    }
    r->range_count = first + kept;
    if (!negated) return FB_OK;
    uint32_t next = 0;
    int32_t made = 0;
    for (int32_t i = 0; i < kept; i++) { /* a gap is written where its range was read */
        range old = ranges[i];
        if (old.low > next) ranges[made++] = (range){next, old.low - 1};
        next = old.high + 1;
    }
    r->range_count = first + made;
    return next <= LAST_CODE ? add_range(r, next, LAST_CODE) : FB_OK;
}

/* \d, \w, \s and their opposites; `*found` is false for another letter. */
static fb_status read_class(reader *r, bool *found) {
    static const struct {
        char letter;
        int count;
        range ranges[6];
    } classes[] = {{'d', 1, {{'0', '9'}}},
                   {'w', 4, {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}},
                   {'s', 2, {{'\t', '\r'}, {' ', ' '}}}};
    *found = false;
    if (r->at >= r->size) return refuse(r, "nothing behind \\");
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        const char letter = r->text[r->at];
        if ((letter | 0x20) != classes[i].letter || (letter != classes[i].letter && letter >= 'a')) continue;
        const int32_t first = r->range_count;
        for (int k = 0; k < classes[i].count; k++)
            FB_TRY(add_range(r, classes[i].ranges[k].low, classes[i].ranges[k].high));
        *found = true;
        r->at++;
        return settle_ranges(r, first, letter != classes[i].letter);
    }
    return FB_OK;
}

static fb_status read_hex(reader *r, int digits, uint32_t *code) {
    *code = 0;
    for (int i = 0; i < digits; i++, r->at++) {
        const char c = r->at < r->size ? r->text[r->at] : 0;
        const char *found = c ? strchr("0123456789abcdef", c >= 'A' && c <= 'F' ? c | 0x20 : c) : NULL;
        if (!found) return refuse(r, "not a hexadecimal digit");
        *code = *code * 16 + (uint32_t)(found - "0123456789abcdef");
    }
    return FB_OK;
}

/* Behind a backslash. */
static fb_status read_escape(reader *r, uint32_t *code) {
    static const char letters[] = "nrtfv", meanings[] = "\n\r\t\f\v";
    const char c = r->text[r->at];
    const char *letter = c ? strchr(letters, c) : NULL;
    if (letter) {
        r->at++;
        *code = (uint32_t)meanings[letter - letters];
        return FB_OK;
    }
    if (skip(r, "x")) return read_hex(r, 2, code);
    if (skip(r, "u")) {
        FB_TRY(read_hex(r, 4, code));
        if (*code >= 0xd800 && *code < 0xe000) return refuse(r, "half a surrogate pair: not supported");
        return FB_OK;
    }
    if ((c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'))
        return refuse(r, "this escape is not supported");
    *code = fb_utf8_read(r->text + r->at, r->size - r->at).code;
    r->at += fb_utf8_length(c);
    return FB_OK;
}

/* A character of a class, or a class in it. */
static fb_status read_member(reader *r, uint32_t *code, bool *class) {
    *class = false;
    if (r->at >= r->size) return refuse(r, "[ without ]");
    if (!skip(r, "\\")) {
        *code = fb_utf8_read(r->text + r->at, r->size - r->at).code;
        r->at += fb_utf8_length(r->text[r->at]);
        return FB_OK;
    }
    FB_TRY(read_class(r, class));
    if (*class) return FB_OK;
    *code = '\b';
    return skip(r, "b") ? FB_OK : read_escape(r, code);
}

/* Behind the bracket. */
static fb_status read_set(reader *r, int32_t first) {
    const bool negated = skip(r, "^");
    while (!skip(r, "]")) {
        uint32_t low, high;
        bool class;
        FB_TRY(read_member(r, &low, &class));
        if (class) continue;
        high = low;
        if (looking_at(r, "-") && r->at + 1 < r->size && r->text[r->at + 1] != ']') {
            r->at++;
            FB_TRY(read_member(r, &high, &class));
            if (class || high < low) return refuse(r, "not a range");
        }
        FB_TRY(add_range(r, low, high));
    }
    return settle_ranges(r, first, negated);
}

/* ---- the tree ---- */

static fb_status read_choice(reader *r, int32_t *out);

static fb_status read_group(reader *r, int32_t *out) {
    if (looking_at(r, "?") && !skip(r, "?:")) return refuse(r, "this kind of group is not supported");
    if (++r->depth > MOST_DEPTH) return refuse(r, "too many groups in each other (at most 32)");
    FB_TRY(read_choice(r, out));
    if (!skip(r, ")")) return refuse(r, "( without )");
    for (int32_t i = r->pieces[*out].first; i >= 0; i = r->pieces[i].next)
        if (r->pieces[i].at_start || r->pieces[i].at_end)
            return refuse(r, "^ or $ in a group: not supported");
    r->depth--;
    return FB_OK;
}

static fb_status read_atom(reader *r, int32_t *out) {
    const char c = r->text[r->at];
    if (c == '(') {
        r->at++;
        return read_group(r, out);
    }
    if (strchr("*+?{", c)) return refuse(r, "nothing to repeat");
    FB_TRY(add_piece(r, PIECE_SET, out));
    const int32_t first = r->range_count;
    bool class = false;
    uint32_t code = 0;
    if (skip(r, "[")) {
        FB_TRY(read_set(r, first));
    } else if (skip(r, ".")) { /* no line end */
        FB_TRY(add_range(r, '\n', '\n'));
        FB_TRY(add_range(r, '\r', '\r'));
        FB_TRY(add_range(r, 0x2028, 0x2029));
        FB_TRY(settle_ranges(r, first, true));
    } else if (skip(r, "\\")) {
        FB_TRY(read_class(r, &class));
        if (!class) {
            FB_TRY(read_escape(r, &code));
            FB_TRY(add_range(r, code, code));
        }
    } else {
        code = fb_utf8_read(r->text + r->at, r->size - r->at).code;
        r->at += fb_utf8_length(c);
        FB_TRY(add_range(r, code, code));
    }
    r->pieces[*out].ranges = first;
    r->pieces[*out].count = r->range_count - first;
    return FB_OK;
}

static fb_status read_number(reader *r, int32_t *out) {
    const int64_t from = r->at;
    *out = 0;
    for (; r->at < r->size && r->text[r->at] >= '0' && r->text[r->at] <= '9'; r->at++) {
        *out = *out * 10 + (r->text[r->at] - '0');
        if (*out > MOST_REPEAT) return refuse(r, "repeated too often (at most 1000)");
    }
    return r->at > from ? FB_OK : refuse(r, "not a number");
}

static fb_status read_quantifier(reader *r, int32_t *atom) {
    int32_t min = 0, max = -1, made = -1;
    if (skip(r, "+")) {
        min = 1;
    } else if (skip(r, "?")) {
        max = 1;
    } else if (skip(r, "{")) {
        FB_TRY(read_number(r, &min));
        max = min;
        if (skip(r, ",")) max = -1;
        if (max < 0 && !looking_at(r, "}")) FB_TRY(read_number(r, &max));
        if (!skip(r, "}")) return refuse(r, "{ without }");
        if (max >= 0 && max < min) return refuse(r, "repeated from more to less");
    } else if (!skip(r, "*")) {
        return FB_OK;
    }
    skip(r, "?"); /* lazy: the same texts match */
    FB_TRY(add_piece(r, PIECE_REPEAT, &made));
    r->pieces[made].first = *atom;
    r->pieces[made].min = min;
    r->pieces[made].max = max;
    *atom = made;
    return FB_OK;
}

static fb_status read_sequence(reader *r, int32_t *out) {
    int32_t last = -1;
    FB_TRY(add_piece(r, PIECE_SEQUENCE, out));
    r->pieces[*out].at_start = skip(r, "^");
    while (r->at < r->size && !looking_at(r, "|") && !looking_at(r, ")")) {
        int32_t atom;
        if (r->pieces[*out].at_end) return refuse(r, "something behind $");
        if (looking_at(r, "^")) return refuse(r, "^ not at the beginning");
        if (skip(r, "$")) {
            r->pieces[*out].at_end = true;
            continue;
        }
        FB_TRY(read_atom(r, &atom));
        FB_TRY(read_quantifier(r, &atom));
        if (last < 0)
            r->pieces[*out].first = atom;
        else
            r->pieces[last].next = atom;
        last = atom;
    }
    return FB_OK;
}

static fb_status read_choice(reader *r, int32_t *out) {
    int32_t last = -1;
    FB_TRY(add_piece(r, PIECE_CHOICE, out));
    do {
        int32_t sequence = -1;
        FB_TRY(read_sequence(r, &sequence));
        if (last < 0)
            r->pieces[*out].first = sequence;
        else
            r->pieces[last].next = sequence;
        last = sequence;
    } while (skip(r, "|"));
    return FB_OK;
}

/* ---- nodes ---- */

static fb_status emit(const reader *r, fb_nfa *nfa, int32_t number, int32_t from, int32_t to);

static fb_status emit_repeat(const reader *r, fb_nfa *nfa, const piece *p, int32_t from, int32_t to) {
    int32_t next;
    for (int32_t i = 0; i < p->min || i < p->max; i++, from = next) {
        if (i >= p->min) FB_TRY(fb_nfa_skip(nfa, from, to, r->err));
        FB_TRY(fb_nfa_node_add(nfa, &next, r->err));
        FB_TRY(emit(r, nfa, p->first, from, next));
    }
    if (p->max < 0) { /* a loop at a node of its own */
        FB_TRY(fb_nfa_node_add(nfa, &next, r->err));
        FB_TRY(fb_nfa_skip(nfa, from, next, r->err));
        FB_TRY(emit(r, nfa, p->first, next, next));
        from = next;
    }
    return fb_nfa_skip(nfa, from, to, r->err);
}

static fb_status emit(const reader *r, fb_nfa *nfa, int32_t number, int32_t from, int32_t to) {
    const piece *p = &r->pieces[number];
    int32_t next;
    switch (p->kind) {
    case PIECE_SET:
        for (int32_t i = 0; i < p->count; i++) {
            const range *c = &r->ranges[p->ranges + i];
            FB_TRY(fb_nfa_characters(nfa, from, c->low, c->high, to, r->err));
        }
        return FB_OK;
    case PIECE_CHOICE:
        for (int32_t i = p->first; i >= 0; i = r->pieces[i].next) FB_TRY(emit(r, nfa, i, from, to));
        return FB_OK;
    case PIECE_SEQUENCE:
        for (int32_t i = p->first; i >= 0; i = r->pieces[i].next, from = next) {
            FB_TRY(fb_nfa_node_add(nfa, &next, r->err));
            FB_TRY(emit(r, nfa, i, from, next));
        }
        return fb_nfa_skip(nfa, from, to, r->err);
    case PIECE_REPEAT:
        return emit_repeat(r, nfa, p, from, to);
    }
    return FB_OK;
}

/* A place where any characters may come. */
static fb_status add_loop(const reader *r, fb_nfa *nfa, int32_t *node) {
    FB_TRY(fb_nfa_node_add(nfa, node, r->err));
    return fb_nfa_characters(nfa, *node, 0, LAST_CODE, *node, r->err);
}

/* A pattern may match anywhere, unless it says where. */
static fb_status emit_whole(const reader *r, fb_nfa *nfa, int32_t whole, int32_t from, int32_t to) {
    int32_t before = -1, behind = -1;
    for (int32_t i = r->pieces[whole].first; i >= 0; i = r->pieces[i].next) {
        if (!r->pieces[i].at_start && before < 0) {
            FB_TRY(add_loop(r, nfa, &before));
            FB_TRY(fb_nfa_skip(nfa, from, before, r->err));
        }
        if (!r->pieces[i].at_end && behind < 0) {
            FB_TRY(add_loop(r, nfa, &behind));
            FB_TRY(fb_nfa_skip(nfa, behind, to, r->err));
        }
        FB_TRY(emit(r, nfa, i, r->pieces[i].at_start ? from : before, r->pieces[i].at_end ? to : behind));
    }
    return FB_OK;
}

fb_status fb_nfa_pattern(fb_nfa *nfa, int32_t from, const char *pattern, size_t size, int32_t to,
                         fb_error *err) {
    reader r = {.text = pattern, .size = (int64_t)size, .err = err};
    r.pieces = malloc(MOST_TREE * sizeof *r.pieces);
    r.ranges = malloc(MOST_RANGES * sizeof *r.ranges);
    fb_status status = FB_OK;
    int32_t whole;
    if (!r.pieces || !r.ranges) status = fb_fail_memory(err, "schema", MOST_TREE * (int64_t)sizeof *r.pieces);
    if (status == FB_OK) status = read_choice(&r, &whole);
    if (status == FB_OK && r.at < r.size) status = refuse(&r, ") without (");
    if (status == FB_OK) status = emit_whole(&r, nfa, whole, from, to);
    free(r.pieces);
    free(r.ranges);
    return status;
}
