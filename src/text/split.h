/* From normalised text to words: the steps of a pre-tokenizer. */
#ifndef FB_TEXT_SPLIT_H
#define FB_TEXT_SPLIT_H

#include "text/pattern.h"

/* GPT-2's, which `tokenizers` has built in, and those of single digits and of numbers. */
#define FB_PATTERN_GPT2   "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define FB_PATTERN_DIGIT  "\\p{N}"
#define FB_PATTERN_DIGITS "\\p{N}+"

/* The characters that stand for the 256 bytes in a byte-level vocabulary: itself where it is printable,
 * otherwise the next of U+0100, U+0101, … ("Ġ" is the space). */
uint32_t fb_byte_to_char(unsigned char byte);
int fb_char_to_byte(uint32_t code); /* -1: no byte */

typedef enum fb_splitter_kind {
    FB_SPLITTER_PATTERN,
    FB_SPLITTER_BYTE_LEVEL,
    FB_SPLITTER_METASPACE,
    FB_SPLITTER_PUNCTUATION, /* a match is a character of punctuation … */
    FB_SPLITTER_SPACE,       /* … or of white space */
    FB_SPLITTER_WORDS        /* words and runs of other characters; white space is dropped */
} fb_splitter_kind;

/* What becomes of matches and of what is between them. */
typedef enum fb_behavior {
    FB_BEHAVIOR_ISOLATED,  /* each is a word */
    FB_BEHAVIOR_REMOVED,   /* matches are dropped */
    FB_BEHAVIOR_PREVIOUS,  /* a match belongs to what is before it … */
    FB_BEHAVIOR_NEXT,      /* … or behind it, but not to another match */
    FB_BEHAVIOR_CONTIGUOUS /* matches that touch are one word */
} fb_behavior;

typedef enum fb_prepend { FB_PREPEND_NEVER, FB_PREPEND_FIRST, FB_PREPEND_ALWAYS } fb_prepend;

typedef struct fb_splitter {
    fb_splitter_kind kind;
    fb_pattern *pattern;  /* PATTERN, and BYTE_LEVEL unless it does not split: each match is a word, and what
                             is between */
    fb_behavior behavior; /* PATTERN, PUNCTUATION, SPACE */
    bool invert;          /* PATTERN: matches are what is between them, and the reverse */
    bool prefix_space;    /* BYTE_LEVEL: a piece starts with a space */
    char space[4];        /* METASPACE: the character for a space */
    int space_size;
    fb_prepend prepend; /* METASPACE: which pieces start with it */
    bool split;         /* METASPACE: before each of them */
} fb_splitter;

void fb_splitter_free(fb_splitter *splitter);

/* A text and its cuts. */
typedef struct fb_pieces {
    fb_bytes text;
    fb_spans spans;
    fb_spans matches; /* room */
} fb_pieces;

void fb_pieces_free(fb_pieces *pieces);

/* One step: replaces `pieces` by what becomes of them. `first`: they are the start of the whole text. `spare`
 * is room. */
fb_status fb_splitter_apply(const fb_splitter *splitter, fb_pattern_work *work, bool first, fb_pieces *pieces,
                            fb_pieces *spare, fb_error *err);

#endif
