/* SentencePiece's tokenizer.model: a protocol buffer of pieces with scores, of type BPE or Unigram. */
#ifndef FB_TEXT_SENTENCEPIECE_H
#define FB_TEXT_SENTENCEPIECE_H

#include "text/tokenizer.h"

/* Who splits and normalises: SentencePiece itself, or one of the tokenizers that Hugging Face makes of such a
 * file, which differ in what becomes of spaces. */
typedef enum fb_piece_style {
    FB_PIECES_PLAIN, /* SentencePiece */
    FB_PIECES_LLAMA, /* a space in front of the text, or with `legacy` of every part between special tokens */
    FB_PIECES_GEMMA, /* no space in front */
    FB_PIECES_T5     /* words at white space, each with a space in front; Unigram */
} fb_piece_style;

/* What the files beside it say; `config` may be NULL. */
typedef struct fb_piece_options {
    const fb_json *config;        /* tokenizer_config.json */
    const fb_json *added_tokens;  /* added_tokens.json, or NULL */
    const fb_json *special_names; /* special_tokens_map.json, or NULL */
} fb_piece_options;

/* Parses the bytes of a tokenizer.model. `what` names them in errors. The fuzz entry. */
fb_status fb_tokenizer_parse_model(const char *what, const uint8_t *bytes, size_t size,
                                   const fb_piece_options *options, fb_tokenizer **out, fb_error *err);
/* A file, and those beside it. */
fb_status fb_tokenizer_open_model(const char *path, fb_tokenizer **out, fb_error *err);

/* ---- the protocol buffer ------------------------------------------------------------------------------- */

enum {
    FB_PIECE_NORMAL = 1,
    FB_PIECE_UNKNOWN,
    FB_PIECE_CONTROL,
    FB_PIECE_USER,
    FB_PIECE_UNUSED,
    FB_PIECE_BYTE
};
enum { FB_PIECES_UNIGRAM = 1, FB_PIECES_BPE };

typedef struct fb_piece {
    const char *text; /* in the file's bytes; not terminated */
    int64_t size;
    float score;
    int type;
} fb_piece;

typedef struct fb_piece_file {
    fb_piece *pieces; /* [count] by id */
    int64_t count, capacity;
    int64_t model_type;
    int64_t unknown, begin, end; /* ids; -1: none */
    bool byte_fallback, suffix_space;
    bool prefix, merge_spaces, escape;
    const uint8_t *charsmap; /* in the file's bytes */
    int64_t charsmap_size;
} fb_piece_file;

/* The bytes must outlive the result, which is released with free(out->pieces), also after a failure. */
fb_status fb_piece_file_parse(const char *what, const uint8_t *bytes, size_t size, fb_piece_file *out,
                              fb_error *err);

#endif
