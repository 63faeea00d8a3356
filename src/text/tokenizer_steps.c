/* tokenizer.json: the normalizer, pre_tokenizer, post_processor and decoder sections. Each is one step or a
 * Sequence of them; a table says which steps there are. */
#include <stdio.h>
#include <string.h>

#include "file/json.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

#define WHERE 256 /* bytes of "file: section: list[3]" in messages */

/* Of a template; published ones have three pieces, and one id each. A special token may be named in every
 * piece: without limits a megabyte of pieces and ids would stand for gigabytes of ids. */
#define TEMPLATE_PIECES 256
#define TEMPLATE_IDS    256 /* of one special token */
#define TEMPLATE_TOTAL  1024

typedef fb_status (*load_fn)(fb_tokenizer *tokenizer, const char *what, const fb_json *step, fb_error *err);

typedef struct step_kind {
    const char *type;
    load_fn load;
} step_kind;

#define KINDS(table) ((int)(sizeof(table) / sizeof *(table)))

typedef struct section_kind {
    const char *list; /* the key of a Sequence's steps */
    const step_kind *kinds;
    int count;
} section_kind;

static fb_status load_step(const section_kind *section, fb_tokenizer *tokenizer, const char *what,
                           const fb_json *step, fb_error *err) {
    if (!fb_json_is(step, FB_JSON_OBJECT)) {
        char text[64];
        return fb_fail(err, FB_ERROR_FILE, "%s: %s (expected an object)", what,
                       fb_json_show(step, text, sizeof text));
    }
    const char *type;
    FB_TRY(fb_json_need_string(what, step, "type", &type, err));
    char known[160] = "";
    for (int i = 0; i < section->count; i++) {
        if (strcmp(type, section->kinds[i].type) == 0)
            return section->kinds[i].load(tokenizer, what, step, err);
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "", section->kinds[i].type);
    }
    return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: type: \"%.64s\" (known: %s)", what, type, known);
}

static fb_status load_section(const section_kind *section, fb_tokenizer *tokenizer, const char *what,
                              const fb_json *value, fb_error *err) {
    if (!value) return FB_OK;
    const fb_json *type = fb_json_get(value, "type");
    if (!fb_json_is(type, FB_JSON_STRING) || strcmp(fb_json_text_of(type), "Sequence") != 0)
        return load_step(section, tokenizer, what, value, err);
    const fb_json *list = fb_json_get(value, section->list);
    if (!fb_json_is(list, FB_JSON_ARRAY) || fb_json_size(list) > FB_STEPS_LIMIT) {
        char text[64];
        return fb_fail(err, FB_ERROR_FILE, "%s: %s: %s (expected an array of at most %d)", what,
                       section->list, fb_json_show(list, text, sizeof text), FB_STEPS_LIMIT);
    }
    for (size_t i = 0; i < fb_json_size(list); i++) {
        char where[WHERE];
        snprintf(where, sizeof where, "%s: %s[%zu]", what, section->list, i);
        FB_TRY(load_step(section, tokenizer, where, fb_json_at(list, i), err));
    }
    return FB_OK;
}

/* ---- members of steps ---- */

/* {"String": "…"} or {"Regex": "…"}. */
static fb_status load_pattern(const char *what, const fb_json *step, const char **text, int64_t *size,
                              bool *literal, fb_error *err) {
    const fb_json *pattern = fb_json_get(step, "pattern");
    const fb_json *string = fb_json_get(pattern, "String"), *regex = fb_json_get(pattern, "Regex");
    const fb_json *value = string ? string : regex;
    if (!fb_json_is(value, FB_JSON_STRING) || (string && regex) || fb_json_size(value) == 0) {
        char shown[64];
        return fb_fail(err, FB_ERROR_FILE, "%s: pattern: %s (expected one String or Regex, not empty)", what,
                       fb_json_show(pattern, shown, sizeof shown));
    }
    *text = fb_json_text_of(value);
    *size = (int64_t)fb_json_size(value);
    *literal = string != NULL;
    return FB_OK;
}

/* pattern and content of a Replace. */
static fb_status load_replacement(const char *what, const fb_json *step, fb_replacement *replace,
                                  fb_error *err) {
    const char *from, *to;
    int64_t from_size;
    bool literal;
    FB_TRY(load_pattern(what, step, &from, &from_size, &literal, err));
    FB_TRY(fb_json_need_string(what, step, "content", &to, err));
    if (literal)
        FB_TRY(fb_bytes_append(&replace->from, from, from_size, err));
    else
        FB_TRY(fb_pattern_compile(what, from, from_size, false, &replace->pattern, err));
    return fb_bytes_append(&replace->to, to, (int64_t)strlen(to), err);
}

/* A member that is one character. */
static fb_status load_char(const char *what, const fb_json *step, const char *key, const char *fallback,
                           char out[4], int *size, fb_error *err) {
    const char *text;
    FB_TRY(fb_json_string(what, step, key, fallback, &text, err));
    size_t length = text ? strlen(text) : 0;
    if (length == 0 || (size_t)fb_utf8_length(text[0]) != length)
        return fb_fail(err, FB_ERROR_FILE, "%s: %s: \"%.64s\" (expected one character)", what, key,
                       text ? text : "");
    memcpy(out, text, length);
    *size = (int)length;
    return FB_OK;
}

static fb_status load_prepend_scheme(const char *what, const fb_json *step, fb_prepend *out, fb_error *err) {
    const char *scheme;
    bool prefix;
    FB_TRY(fb_json_string(what, step, "prepend_scheme", "always", &scheme, err));
    if (strcmp(scheme, "always") == 0)
        *out = FB_PREPEND_ALWAYS;
    else if (strcmp(scheme, "first") == 0)
        *out = FB_PREPEND_FIRST;
    else if (strcmp(scheme, "never") == 0)
        *out = FB_PREPEND_NEVER;
    else
        return fb_fail(err, FB_ERROR_UNSUPPORTED,
                       "%s: prepend_scheme: \"%.64s\" (known: always, first, never)", what, scheme);
    /* Older files say it in this way, some in both. */
    FB_TRY(fb_json_bool(what, step, "add_prefix_space", *out != FB_PREPEND_NEVER, &prefix, err));
    if (prefix != (*out != FB_PREPEND_NEVER))
        return fb_fail(err, FB_ERROR_FILE, "%s: add_prefix_space: %s (prepend_scheme is \"%s\")", what,
                       prefix ? "true" : "false", scheme);
    return FB_OK;
}

/* ---- normalizer ---- */

static fb_normalizer *add_normalizer(fb_tokenizer *tokenizer, fb_normalizer_kind kind) {
    fb_normalizer *step = &tokenizer->normalizers[tokenizer->normalizer_count++];
    step->kind = kind;
    return step;
}

/* Steps without members. */
#define LOAD_PLAIN(name, kind)                                                                               \
    static fb_status name(fb_tokenizer *tokenizer, const char *what, const fb_json *step, fb_error *err) {   \
        (void)what, (void)step, (void)err;                                                                   \
        add_normalizer(tokenizer, kind);                                                                     \
        return FB_OK;                                                                                        \
    }

LOAD_PLAIN(load_nfc, FB_NORMALIZER_NFC)
LOAD_PLAIN(load_nfd, FB_NORMALIZER_NFD)
LOAD_PLAIN(load_nfkc, FB_NORMALIZER_NFKC)
LOAD_PLAIN(load_nfkd, FB_NORMALIZER_NFKD)
LOAD_PLAIN(load_lowercase, FB_NORMALIZER_LOWERCASE)
LOAD_PLAIN(load_strip_accents, FB_NORMALIZER_STRIP_ACCENTS)

static fb_status load_strip_ends(fb_tokenizer *tokenizer, const char *what, const fb_json *step,
                                 fb_error *err) {
    fb_normalizer *added = add_normalizer(tokenizer, FB_NORMALIZER_STRIP);
    FB_TRY(fb_json_bool(what, step, "strip_left", true, &added->left, err));
    return fb_json_bool(what, step, "strip_right", true, &added->right, err);
}

static fb_status load_precompiled(fb_tokenizer *tokenizer, const char *what, const fb_json *step,
                                  fb_error *err) {
    const char *text;
    FB_TRY(fb_json_string(what, step, "precompiled_charsmap", "", &text, err));
    fb_normalizer *added = add_normalizer(tokenizer, FB_NORMALIZER_CHARSMAP);
    return fb_charsmap_parse(what, text, (int64_t)strlen(text), &added->map, err);
}

static fb_status load_prepend(fb_tokenizer *tokenizer, const char *what, const fb_json *step, fb_error *err) {
    const char *text;
    FB_TRY(fb_json_need_string(what, step, "prepend", &text, err));
    fb_normalizer *added = add_normalizer(tokenizer, FB_NORMALIZER_PREPEND);
    return fb_bytes_append(&added->replace.to, text, (int64_t)strlen(text), err);
}

static fb_status load_replace(fb_tokenizer *tokenizer, const char *what, const fb_json *step, fb_error *err) {
    return load_replacement(what, step, &add_normalizer(tokenizer, FB_NORMALIZER_REPLACE)->replace, err);
}

fb_status fb_tokenizer_load_normalizer(fb_tokenizer *tokenizer, const char *what, const fb_json *section,
                                       fb_error *err) {
    static const step_kind kinds[] = {{"NFC", load_nfc},
                                      {"NFD", load_nfd},
                                      {"NFKC", load_nfkc},
                                      {"NFKD", load_nfkd},
                                      {"Lowercase", load_lowercase},
                                      {"StripAccents", load_strip_accents},
                                      {"Strip", load_strip_ends},
                                      {"Prepend", load_prepend},
                                      {"Replace", load_replace},
                                      {"Precompiled", load_precompiled}};
    return load_section(&(section_kind){"normalizers", kinds, KINDS(kinds)}, tokenizer, what, section, err);
}

/* ---- pre_tokenizer ---- */

static fb_splitter *add_splitter(fb_tokenizer *tokenizer, fb_splitter_kind kind) {
    fb_splitter *step = &tokenizer->splitters[tokenizer->splitter_count++];
    step->kind = kind;
    return step;
}

static fb_status load_byte_level(fb_tokenizer *tokenizer, const char *what, const fb_json *step,
                                 fb_error *err) {
    static const char pattern[] = FB_PATTERN_GPT2;
    fb_splitter *added = add_splitter(tokenizer, FB_SPLITTER_BYTE_LEVEL);
    bool split;
    FB_TRY(fb_json_bool(what, step, "add_prefix_space", true, &added->prefix_space, err));
    FB_TRY(fb_json_bool(what, step, "use_regex", true, &split, err));
    return split ? fb_pattern_compile(what, pattern, sizeof pattern - 1, false, &added->pattern, err) : FB_OK;
}

static fb_status load_behavior(const char *what, const fb_json *step, const char *fallback, fb_behavior *out,
                               fb_error *err) {
    static const struct {
        const char *name;
        fb_behavior behavior;
    } names[] = {{"Isolated", FB_BEHAVIOR_ISOLATED},
                 {"Removed", FB_BEHAVIOR_REMOVED},
                 {"MergedWithPrevious", FB_BEHAVIOR_PREVIOUS},
                 {"MergedWithNext", FB_BEHAVIOR_NEXT},
                 {"Contiguous", FB_BEHAVIOR_CONTIGUOUS}};
    const char *name;
    FB_TRY(fb_json_string(what, step, "behavior", fallback, &name, err));
    for (int i = 0; i < KINDS(names); i++)
        if (name && strcmp(name, names[i].name) == 0) {
            *out = names[i].behavior;
            return FB_OK;
        }
    return fb_fail(err, FB_ERROR_UNSUPPORTED,
                   "%s: behavior: \"%.64s\" (known: Isolated, Removed, MergedWithPrevious, MergedWithNext, "
                   "Contiguous)",
                   what, name ? name : "");
}

static fb_status load_split(fb_tokenizer *tokenizer, const char *what, const fb_json *step, fb_error *err) {
    const char *text;
    bool literal;
    int64_t size;
    fb_splitter *added = add_splitter(tokenizer, FB_SPLITTER_PATTERN);
    FB_TRY(load_behavior(what, step, NULL, &added->behavior, err));
    FB_TRY(fb_json_bool(what, step, "invert", false, &added->invert, err));
    FB_TRY(load_pattern(what, step, &text, &size, &literal, err));
    return fb_pattern_compile(what, text, size, literal, &added->pattern, err);
}

static fb_status load_delimiter(fb_tokenizer *tokenizer, const char *what, const fb_json *step,
                                fb_error *err) {
    char delimiter[4];
    int size;
    fb_splitter *added = add_splitter(tokenizer, FB_SPLITTER_PATTERN);
    added->behavior = FB_BEHAVIOR_REMOVED;
    FB_TRY(load_char(what, step, "delimiter", NULL, delimiter, &size, err));
    return fb_pattern_compile(what, delimiter, size, true, &added->pattern, err);
}

static fb_status load_punctuation(fb_tokenizer *tokenizer, const char *what, const fb_json *step,
                                  fb_error *err) {
    fb_splitter *added = add_splitter(tokenizer, FB_SPLITTER_PUNCTUATION);
    return load_behavior(what, step, "Isolated", &added->behavior, err);
}

static fb_status load_space_split(fb_tokenizer *tokenizer, const char *what, const fb_json *step,
                                  fb_error *err) {
    (void)what, (void)step, (void)err;
    add_splitter(tokenizer, FB_SPLITTER_SPACE)->behavior = FB_BEHAVIOR_REMOVED;
    return FB_OK;
}

static fb_status load_words(fb_tokenizer *tokenizer, const char *what, const fb_json *step, fb_error *err) {
    (void)what, (void)step, (void)err;
    add_splitter(tokenizer, FB_SPLITTER_WORDS);
    return FB_OK;
}

static fb_status load_digits(fb_tokenizer *tokenizer, const char *what, const fb_json *step, fb_error *err) {
    bool individual;
    FB_TRY(fb_json_bool(what, step, "individual_digits", false, &individual, err));
    const char *pattern = individual ? FB_PATTERN_DIGIT : FB_PATTERN_DIGITS;
    fb_splitter *added = add_splitter(tokenizer, FB_SPLITTER_PATTERN);
    return fb_pattern_compile(what, pattern, (int64_t)strlen(pattern), false, &added->pattern, err);
}

static fb_status load_metaspace(fb_tokenizer *tokenizer, const char *what, const fb_json *step,
                                fb_error *err) {
    fb_splitter *added = add_splitter(tokenizer, FB_SPLITTER_METASPACE);
    FB_TRY(load_char(what, step, "replacement", "\xE2\x96\x81", added->space, &added->space_size, err));
    FB_TRY(load_prepend_scheme(what, step, &added->prepend, err));
    return fb_json_bool(what, step, "split", true, &added->split, err);
}

fb_status fb_tokenizer_load_splitter(fb_tokenizer *tokenizer, const char *what, const fb_json *section,
                                     fb_error *err) {
    static const step_kind kinds[] = {{"ByteLevel", load_byte_level},
                                      {"Split", load_split},
                                      {"Digits", load_digits},
                                      {"Metaspace", load_metaspace},
                                      {"Punctuation", load_punctuation},
                                      {"Whitespace", load_words},
                                      {"WhitespaceSplit", load_space_split},
                                      {"CharDelimiterSplit", load_delimiter}};
    return load_section(&(section_kind){"pretokenizers", kinds, KINDS(kinds)}, tokenizer, what, section, err);
}

/* ---- post_processor ---- */

static fb_status load_no_effect(fb_tokenizer *tokenizer, const char *what, const fb_json *step,
                                fb_error *err) {
    (void)tokenizer, (void)what, (void)step, (void)err; /* trims offsets, which are not kept here */
    return FB_OK;
}

/* Appends the ids of one special token of a template. */
static fb_status load_special(const fb_tokenizer *tokenizer, const char *what, const fb_json *tokens,
                              const char *name, fb_ids *out, fb_error *err) {
    const fb_json *ids = fb_json_get(fb_json_get(tokens, name), "ids");
    if (!fb_json_is(ids, FB_JSON_ARRAY))
        return fb_fail(err, FB_ERROR_FILE, "%s: special_tokens: \"%.64s\": no ids (expected an array)", what,
                       name);
    const fb_vocab *vocab = &tokenizer->bpe.vocab;
    int64_t count = (int64_t)fb_json_size(ids);
    int64_t total = tokenizer->prefix.size + tokenizer->suffix.size + count;
    if (count > TEMPLATE_IDS)
        return fb_fail(err, FB_ERROR_FILE, "%s: special_tokens: \"%.64s\": %lld ids (at most %d)", what, name,
                       (long long)count, TEMPLATE_IDS);
    if (total > TEMPLATE_TOTAL)
        return fb_fail(err, FB_ERROR_FILE, "%s: single: %lld ids around a text (at most %d)", what,
                       (long long)total, TEMPLATE_TOTAL);
    for (const fb_json *value = fb_json_first(ids); value; value = fb_json_next(value)) {
        int64_t id = fb_json_is(value, FB_JSON_INT) ? fb_json_int_of(value) : -1;
        if (id < 0 || id >= vocab->ids || !vocab->tokens[id].used) {
            char text[64];
            return fb_fail(err, FB_ERROR_FILE, "%s: special_tokens: \"%.64s\": id %s (not in the vocabulary)",
                           what, name, fb_json_show(value, text, sizeof text));
        }
        FB_TRY(fb_ids_append(out, &(int32_t){(int32_t)id}, 1, err));
    }
    return FB_OK;
}

static fb_status load_template(fb_tokenizer *tokenizer, const char *what, const fb_json *step,
                               fb_error *err) {
    const fb_json *single = fb_json_get(step, "single"), *tokens = fb_json_get(step, "special_tokens");
    if (!fb_json_is(single, FB_JSON_ARRAY))
        return fb_fail(err, FB_ERROR_FILE, "%s: single: missing (expected an array)", what);
    if (fb_json_size(single) > TEMPLATE_PIECES)
        return fb_fail(err, FB_ERROR_FILE, "%s: single: %zu pieces (at most %d)", what, fb_json_size(single),
                       TEMPLATE_PIECES);
    if (tokenizer->has_template)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: a second TemplateProcessing (at most 1)", what);
    tokenizer->has_template = true;
    int texts = 0;
    size_t i = 0;
    for (const fb_json *piece = fb_json_first(single); piece; piece = fb_json_next(piece)) {
        char where[WHERE];
        snprintf(where, sizeof where, "%s: single[%zu]", what, i++);
        const fb_json *special = fb_json_get(piece, "SpecialToken"), *text = fb_json_get(piece, "Sequence");
        const char *name;
        FB_TRY(fb_json_need_string(where, special ? special : text, "id", &name, err));
        if (special) {
            FB_TRY(load_special(tokenizer, what, tokens, name,
                                texts ? &tokenizer->suffix : &tokenizer->prefix, err));
        } else {
            if (strcmp(name, "A") != 0)
                return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: Sequence: \"%.64s\" (known: A)", where, name);
            texts++;
        }
    }
    if (texts != 1)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: single: the text %d times (known: once)", what, texts);
    return FB_OK;
}

/* BERT's and RoBERTa's: {"cls": ["<s>", 0], "sep": ["</s>", 2]}. */
static fb_status load_pair(const fb_tokenizer *tokenizer, const char *what, const fb_json *step,
                           const char *key, fb_ids *out, fb_error *err) {
    const fb_json *pair = fb_json_get(step, key), *value = fb_json_at(pair, 1);
    int64_t id = fb_json_is(value, FB_JSON_INT) ? fb_json_int_of(value) : -1;
    const fb_vocab *vocab = &tokenizer->bpe.vocab;
    if (id < 0 || id >= vocab->ids || !vocab->tokens[id].used) {
        char text[64];
        return fb_fail(err, FB_ERROR_FILE, "%s: %s: %s (a token and its id)", what, key,
                       fb_json_show(pair, text, sizeof text));
    }
    return fb_ids_append(out, &(int32_t){(int32_t)id}, 1, err);
}

static fb_status load_bert(fb_tokenizer *tokenizer, const char *what, const fb_json *step, fb_error *err) {
    if (tokenizer->has_template)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: a second template (at most 1)", what);
    tokenizer->has_template = true;
    FB_TRY(load_pair(tokenizer, what, step, "cls", &tokenizer->prefix, err));
    return load_pair(tokenizer, what, step, "sep", &tokenizer->suffix, err);
}

fb_status fb_tokenizer_load_template(fb_tokenizer *tokenizer, const char *what, const fb_json *section,
                                     fb_error *err) {
    static const step_kind kinds[] = {{"ByteLevel", load_no_effect},
                                      {"TemplateProcessing", load_template},
                                      {"BertProcessing", load_bert},
                                      {"RobertaProcessing", load_bert}};
    return load_section(&(section_kind){"processors", kinds, KINDS(kinds)}, tokenizer, what, section, err);
}

/* ---- decoder ----
 * Steps come in the order of fb_decoder: replacements, the way of joining, Fuse, Strip. */

static fb_status wrong_order(const char *what, fb_error *err) {
    return fb_fail(
        err, FB_ERROR_UNSUPPORTED,
        "%s: a step out of order (known: Replace, then one of ByteLevel, ByteFallback and Metaspace, then "
        "Fuse, then Strip)",
        what);
}

static fb_status set_joining(fb_decoder *decoder, const char *what, fb_decoder_kind kind, fb_error *err) {
    if (decoder->kind != FB_DECODER_CONCATENATE || decoder->fused) return wrong_order(what, err);
    decoder->kind = kind;
    return FB_OK;
}

static fb_status load_decode_replace(fb_tokenizer *tokenizer, const char *what, const fb_json *step,
                                     fb_error *err) {
    fb_decoder *decoder = &tokenizer->decoder;
    if (decoder->kind != FB_DECODER_CONCATENATE || decoder->fused) return wrong_order(what, err);
    fb_replacement *added = &decoder->replaces[decoder->replace_count++];
    FB_TRY(load_replacement(what, step, added, err));
    if (added->pattern)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: pattern: Regex: \"%.64s\" (known: String)", what,
                       fb_pattern_source(added->pattern));
    return FB_OK;
}

static fb_status load_decode_byte_level(fb_tokenizer *tokenizer, const char *what, const fb_json *step,
                                        fb_error *err) {
    (void)step;
    FB_TRY(set_joining(&tokenizer->decoder, what, FB_DECODER_BYTE_LEVEL, err));
    tokenizer->decoder.fused = true; /* it joins the bytes of all tokens */
    return FB_OK;
}

static fb_status load_decode_byte_fallback(fb_tokenizer *tokenizer, const char *what, const fb_json *step,
                                           fb_error *err) {
    (void)step;
    return set_joining(&tokenizer->decoder, what, FB_DECODER_BYTE_FALLBACK, err);
}

static fb_status load_decode_metaspace(fb_tokenizer *tokenizer, const char *what, const fb_json *step,
                                       fb_error *err) {
    fb_decoder *decoder = &tokenizer->decoder;
    fb_prepend prepend;
    FB_TRY(set_joining(decoder, what, FB_DECODER_METASPACE, err));
    FB_TRY(load_char(what, step, "replacement", "\xE2\x96\x81", decoder->space, &decoder->space_size, err));
    FB_TRY(load_prepend_scheme(what, step, &prepend, err));
    decoder->drop_first = prepend != FB_PREPEND_NEVER;
    return FB_OK;
}

static fb_status load_fuse(fb_tokenizer *tokenizer, const char *what, const fb_json *step, fb_error *err) {
    (void)step;
    if (tokenizer->decoder.strip_count > 0) return wrong_order(what, err);
    tokenizer->decoder.fused = true;
    return FB_OK;
}

static fb_status load_strip(fb_tokenizer *tokenizer, const char *what, const fb_json *step, fb_error *err) {
    fb_decoder *decoder = &tokenizer->decoder;
    int64_t stop;
    if (!decoder->fused || decoder->strip_count > 0) return wrong_order(what, err);
    FB_TRY(load_char(what, step, "content", NULL, decoder->strip, &decoder->strip_size, err));
    FB_TRY(fb_json_need_int(what, step, "start", 0, INT32_MAX, &decoder->strip_count, err));
    FB_TRY(fb_json_need_int(what, step, "stop", 0, INT32_MAX, &stop, err));
    if (stop > 0) /* the end of a text is not known while it streams */
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: stop: %lld (known: 0)", what, (long long)stop);
    return FB_OK;
}

fb_status fb_tokenizer_load_decoder(fb_tokenizer *tokenizer, const char *what, const fb_json *section,
                                    fb_error *err) {
    static const step_kind kinds[] = {{"Replace", load_decode_replace},
                                      {"ByteLevel", load_decode_byte_level},
                                      {"ByteFallback", load_decode_byte_fallback},
                                      {"Metaspace", load_decode_metaspace},
                                      {"Fuse", load_fuse},
                                      {"Strip", load_strip}};
    tokenizer->decoder.kind = section ? FB_DECODER_CONCATENATE : FB_DECODER_NONE;
    return load_section(&(section_kind){"decoders", kinds, KINDS(kinds)}, tokenizer, what, section, err);
}
