/* From text to ids, as a tokenizer.json or the metadata of a GGUF file says: normalise, split, merge byte
 * pairs, add the template; and back. */
#ifndef FB_TEXT_TOKENIZER_H
#define FB_TEXT_TOKENIZER_H

#include "file/gguf.h"
#include "fusebox.h"

/* Parses the bytes of a tokenizer.json. `what` names them in errors. Anything that would change the ids and
 * is not known here is refused by name. The fuzz entry. */
fb_status fb_tokenizer_parse(const char *what, const char *json, size_t size, fb_tokenizer **out,
                             fb_error *err);
fb_status fb_tokenizer_open_json(const char *path, fb_tokenizer **out, fb_error *err);
/* The tokenizer.json of a folder or else its tokenizer.model, whose name goes to `name`; NULL if it has
 * neither. */
fb_status fb_tokenizer_open_folder(const char *folder, fb_tokenizer **out, const char **name, fb_error *err);

/* Of a file of any kind: by the first bytes, GGUF's magic or JSON's brace, or by the name; otherwise
 * SentencePiece's protocol buffer. */
fb_status fb_tokenizer_open_file(const char *path, fb_tokenizer **out, fb_error *err);
/* From a GGUF file's metadata; NULL if it has no tokenizer. Ids are those of llama.cpp. */
fb_status fb_tokenizer_from_gguf(const char *what, const fb_gguf *gguf, fb_tokenizer **out, fb_error *err);

/* The ids that the template puts in front of a text; they belong to the tokenizer. */
const int32_t *fb_tokenizer_prefix(const fb_tokenizer *tokenizer, int64_t *count);

/* The bytes that one token stands for, which may be a part of a character only. `first`: at the start of a
 * text, where some tokenizers drop a space; without it, the bytes of a text's tokens together are the text.
 * Release them with fb_free. */
fb_status fb_tokenizer_token_bytes(const fb_tokenizer *tokenizer, int32_t id, bool first, bool special,
                                   char **text, size_t *bytes, fb_error *err);

/* Tells of a model whose vocabulary is padded to `ids`: those beyond the tokenizer's own then decode to
 * nothing instead of being an error. */
void fb_tokenizer_pad(fb_tokenizer *tokenizer, int64_t ids);

/* Encodes a text of which users wrote the bytes with a mark, without the template around it. Special tokens
 * are only made of bytes without a mark. The same holds for added tokens that occur in `template_text`, which
 * gives them their meaning; white space is no such token. `bytes` is valid UTF-8. */
fb_status fb_tokenizer_encode_marked(const fb_tokenizer *tokenizer, const char *text,
                                     const unsigned char *marks, size_t bytes, const char *template_text,
                                     int32_t **ids, int64_t *count, fb_error *err);

/* The id of a special or added token by its text, or -1. */
int32_t fb_tokenizer_find_added(const fb_tokenizer *tokenizer, const char *text);
/* The text of a token, not terminated; NULL if there is none with this id. */
const char *fb_tokenizer_token_text(const fb_tokenizer *tokenizer, int64_t id, int64_t *size);

/* Refuses another tokenizer that is not the same, and names the first difference: of tokens, of the order of
 * merges or scores, of what both make of some texts, which shows other rules of splitting. Ids that only one
 * of them has must be padding: without a token, or named [PADn], n being the id. */
fb_status fb_tokenizer_compare(const char *what, const fb_tokenizer *tokenizer, const fb_tokenizer *other,
                               fb_error *err);

/* The streaming form behind fb_text_stream; fusebox.h describes it. */
fb_status fb_tokenizer_stream(const fb_tokenizer *tokenizer, fb_text_stream **out, fb_error *err);

#endif
