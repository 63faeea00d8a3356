/* Every step of a tokenizer against `tokenizers` and SentencePiece
 * (tests/data/tokenizer/steps/make_steps.py): small tokenizers that have them, and every character of
 * Unicode 16. */
#include <stdlib.h>
#include <string.h>

#include "file/json.h"
#include "support/support.h"
#include "text/normalize.h"
#include "text/split.h"
#include "text/tokenizer.h"
#include "text/unicode.h"
#include "text/utf8.h"

#define DATA "tests/data/tokenizer/steps/"

static fb_json *load(const char *path) {
    fb_json *json;
    fb_error err;
    size_t size;
    char *text = fbt_file_read(path, &size);
    assert_ok(fb_json_parse(path, text, size, 1 << 24, &json, &err), &err);
    free(text);
    return json;
}

/* ---- small tokenizers ---------------------------------------------------------------------------------- */

static void check_case(const char *path, const fb_tokenizer *tokenizer, const fb_json *item) {
    const fb_json *text = fb_json_get(item, "text"), *expected = fb_json_get(item, "ids");
    const fb_json *decoded = fb_json_get(item, "decoded"), *id = fb_json_first(expected);
    int32_t *ids;
    int64_t count;
    fb_error err;
    assert_ok(
        fb_tokenizer_encode(tokenizer, fb_json_text_of(text), fb_json_size(text), true, &ids, &count, &err),
        &err);
    bool same = count == (int64_t)fb_json_size(expected);
    for (int64_t i = 0; same && i < count; i++, id = fb_json_next(id)) same = ids[i] == fb_json_int_of(id);
    char shown[256], wanted[512];
    if (!same)
        fail_msg("%s: %s: expected %s", path, fb_json_show(text, shown, sizeof shown),
                 fb_json_show(expected, wanted, sizeof wanted));
    char *back = NULL;
    size_t bytes;
    if (decoded) assert_ok(fb_tokenizer_decode(tokenizer, ids, count, true, &back, &bytes, &err), &err);
    if (decoded && (bytes != fb_json_size(decoded) || memcmp(back, fb_json_text_of(decoded), bytes) != 0))
        fail_msg("%s: decoded \"%s\", expected %s", path, back, fb_json_show(decoded, wanted, sizeof wanted));
    fb_free(back);
    fb_free(ids);
}

static void check_cases(const char *path, const char *cases_path) {
    fb_tokenizer *tokenizer;
    fb_error err;
    assert_ok(fb_tokenizer_open(path, &tokenizer, &err), &err);
    fb_json *cases = load(cases_path);
    assert_true(fb_json_size(cases) > 30);
    for (const fb_json *item = fb_json_first(cases); item; item = fb_json_next(item))
        check_case(path, tokenizer, item);
    fb_json_free(cases);
    fb_tokenizer_free(tokenizer);
}

static void test_tokenizers(void **state) {
    (void)state;
    static const char *const names[] = {"t5",    "xlm",  "unigram-bytes", "nfd",
                                        "lower", "cuts", "deepseek",      "cased"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = fbt_format(DATA "%s.json", names[i]),
             *cases = fbt_format(DATA "%s.cases.json", names[i]);
        check_cases(path, cases);
        free(path);
        free(cases);
    }
}

static void test_pieces(void **state) {
    (void)state;
    static const char *const names[] = {"pieces-unigram", "pieces-unigram-bytes", "pieces-bpe",
                                        "pieces-llama"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = fbt_format(DATA "%s", names[i]), *cases = fbt_format(DATA "%s/cases.json", names[i]);
        check_cases(path, cases);
        free(path);
        free(cases);
    }
}

/* ---- every character ----------------------------------------------------------------------------------- */

static uint32_t add_crc(uint32_t crc, const char *data, int64_t size) {
    for (int64_t i = 0; i < size; i++) {
        crc ^= (unsigned char)data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return crc;
}

/* What a step makes of one line, as the script writes it. */
typedef struct step {
    const char *name;
    bool splits;
    fb_normalizer normalizer;
    fb_splitter splitter;
} step;

static void apply(const step *s, uint32_t code, fb_bytes *out, fb_pieces pieces[2], fb_pattern_work *work) {
    char text[16];
    int size = 0;
    fb_growth growth = {"test", 0, 1 << 20};
    out->size = 0;
    if (!s->splits) {
        text[size++] = 'a';
        size += fb_utf8_write(0x345, text + size);
        size += fb_utf8_write(code, text + size);
        size += fb_utf8_write(0x301, text + size);
        size += fb_utf8_write(0x334, text + size);
        assert_int_equal(fb_normalizer_apply(&s->normalizer, work, text, size, &growth, out, NULL), FB_OK);
        return;
    }
    text[size++] = 'x';
    size += fb_utf8_write(code, text + size);
    text[size++] = '-';
    pieces[0].text.size = pieces[0].spans.size = 0;
    assert_int_equal(fb_bytes_append(&pieces[0].text, text, size, NULL), FB_OK);
    assert_int_equal(fb_spans_add(&pieces[0].spans, 0, size, NULL), FB_OK);
    assert_int_equal(fb_splitter_apply(&s->splitter, work, true, &pieces[0], &pieces[1], NULL), FB_OK);
    for (int64_t i = 0; i < pieces[0].spans.size; i++) {
        fb_span span = pieces[0].spans.data[i];
        if (i > 0) fb_bytes_append(out, "|", 1, NULL);
        fb_bytes_append(out, pieces[0].text.data + span.start, span.end - span.start, NULL);
    }
}

static void test_every_character(void **state) {
    (void)state;
    step steps[] = {
        {.name = "NFC", .normalizer.kind = FB_NORMALIZER_NFC},
        {.name = "NFD", .normalizer.kind = FB_NORMALIZER_NFD},
        {.name = "NFKC", .normalizer.kind = FB_NORMALIZER_NFKC},
        {.name = "NFKD", .normalizer.kind = FB_NORMALIZER_NFKD},
        {.name = "Lowercase", .normalizer.kind = FB_NORMALIZER_LOWERCASE},
        {.name = "StripAccents", .normalizer.kind = FB_NORMALIZER_STRIP_ACCENTS},
        {.name = "Punctuation", .splits = true, .splitter.kind = FB_SPLITTER_PUNCTUATION},
        {.name = "Digits", .splits = true, .splitter.kind = FB_SPLITTER_PATTERN},
        {.name = "Whitespace", .splits = true, .splitter.kind = FB_SPLITTER_WORDS},
        {.name = "WhitespaceSplit",
         .splits = true,
         .splitter = {.kind = FB_SPLITTER_SPACE, .behavior = FB_BEHAVIOR_REMOVED}},
    };
    fb_json *sums = load(DATA "every_character.json");
    fb_bytes out = {0};
    fb_pieces pieces[2] = {{{0}, {0}, {0}}, {{0}, {0}, {0}}};
    fb_pattern_work work = {0};
    assert_int_equal(fb_pattern_compile("t", FB_PATTERN_DIGIT, 5, false, &steps[7].splitter.pattern, NULL),
                     FB_OK);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        uint32_t crc = 0xFFFFFFFFu;
        for (uint32_t code = 0; code < 0x110000; code++) {
            fb_category category = fb_unicode_category(code);
            if (category == FB_CN || category == FB_CS) continue;
            apply(&steps[i], code, &out, pieces, &work);
            crc = add_crc(add_crc(crc, out.data, out.size), "\n", 1);
        }
        if ((int64_t)(crc ^ 0xFFFFFFFFu) != fb_json_int_of(fb_json_get(sums, steps[i].name)))
            fail_msg("%s: some character differs from `tokenizers`", steps[i].name);
    }
    fb_splitter_free(&steps[7].splitter);
    fb_pattern_work_free(&work);
    fb_pieces_free(&pieces[0]);
    fb_pieces_free(&pieces[1]);
    fb_bytes_free(&out);
    fb_json_free(sums);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokenizers),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_every_character),
    };
    return cmocka_run_group_tests_name("steps of tokenizers", tests, NULL, NULL);
}
