/* What fb_tokenizer_parse accepts and refuses, and in which words. */
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file/map.h"

/* The smallest tokenizer, with one part of it replaced. */
typedef struct parts {
    const char *model;  /* members of the model behind its type */
    const char *added;  /* elements of added_tokens */
    const char *others; /* further members */
} parts;

#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"<s>\":3},\"merges\":[[\"a\",\"b\"]]"

static fb_status parse(parts p, fb_tokenizer **tokenizer, fb_error *err) {
    char json[4096];
    int size = snprintf(
        json, sizeof json, "{\"version\":\"1.0\",\"added_tokens\":[%s],\"model\":{\"type\":\"BPE\",%s}%s%s}",
        p.added ? p.added : "", p.model ? p.model : VOCAB, p.others ? "," : "", p.others ? p.others : "");
    assert_true(size > 0 && size < (int)sizeof json);
    /* An exact copy, so that a read beyond the end shows under AddressSanitizer. */
    char *exact = malloc((size_t)size);
    assert_non_null(exact);
    memcpy(exact, json, (size_t)size);
    fb_status status = fb_tokenizer_parse("t.json", exact, (size_t)size, tokenizer, err);
    free(exact);
    return status;
}

static void refused(parts p, fb_status expected, const char *message) {
    fb_error err = {0};
    fb_tokenizer *tokenizer = (fb_tokenizer *)1;
    fb_status status = parse(p, &tokenizer, &err);
    if (status != expected || !strstr(err.message, message))
        fail_msg("status %s, \"%s\"; expected %s, \"%s\"", fb_status_name(status), err.message,
                 fb_status_name(expected), message);
    assert_null(tokenizer);
    assert_int_equal(parse(p, &tokenizer, NULL), expected);
}

static void unsupported(const char *others, const char *message) {
    refused((parts){.others = others}, FB_ERROR_UNSUPPORTED, message);
}

static void malformed(const char *others, const char *message) {
    refused((parts){.others = others}, FB_ERROR_FILE, message);
}

/* Accepted, and "text" becomes these ids, with special tokens. */
static void accepted(parts p, const char *text, int64_t count, const int32_t *expected) {
    fb_error err = {0};
    fb_tokenizer *tokenizer;
    if (parse(p, &tokenizer, &err) != FB_OK) fail_msg("%s", err.message);
    int32_t *ids;
    int64_t got;
    if (fb_tokenizer_encode(tokenizer, text, strlen(text), true, &ids, &got, &err) != FB_OK)
        fail_msg("%s", err.message);
    assert_int_equal(got, count);
    assert_memory_equal(ids, expected, (size_t)count * sizeof *ids);
    fb_free(ids);
    fb_tokenizer_free(tokenizer);
}

#define IDS(...)                                                                                             \
    (int64_t)(sizeof((int32_t[]){__VA_ARGS__}) / 4), (int32_t[]) { __VA_ARGS__ }

static void test_accepted(void **state) {
    (void)state;
    accepted((parts){0}, "abba", IDS(2, 1, 0));
    accepted((parts){.model = "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"#version: 0.2\",\"a b\"]"},
             "ab", IDS(2));
    accepted((parts){.model = "\"vocab\":{\"a\":0,\"b\":7},\"merges\":[]"}, "abz",
             IDS(0, 7)); /* z is dropped */
    accepted((parts){.model = "\"dropout\":0.0,\"continuing_subword_prefix\":\"\"," VOCAB}, "ab", IDS(2));
    accepted((parts){.model = "\"unk_token\":\"<s>\"," VOCAB}, "zzab", IDS(3, 3, 2));
    accepted((parts){.model = "\"unk_token\":\"<s>\",\"fuse_unk\":true," VOCAB}, "zzab", IDS(3, 2));
    accepted((parts){.model = "\"unk_token\":\"no\"," VOCAB}, "ab", IDS(2)); /* as long as it is not needed */
    accepted(
        (parts){.added = "{\"id\":3,\"content\":\"<s>\",\"special\":true},{\"id\":4,\"content\":\"<e>\"}"},
        "a<e><s>b", IDS(0, 4, 3, 1));
    accepted((parts){.added = "{\"id\":4,\"content\":\"<e>\"},{\"id\":5,\"content\":\"<e>>\"}"}, "<e>><e>a<e",
             IDS(5, 4, 0));
    static const char aba[] = "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"aba\":3},\"merges\":[[\"a\",\"b\"]]";
    accepted((parts){.model = aba}, "aba", IDS(2, 0));
    char ignore[128];
    snprintf(ignore, sizeof ignore, "\"ignore_merges\":true,%s", aba);
    accepted((parts){.model = ignore}, "aba", IDS(3));
    accepted((parts){.model = ignore}, "abaa", IDS(2, 0, 0));
    accepted((parts){.others = "\"padding\":{\"strategy\":\"BatchLongest\",\"pad_to_multiple_of\":null}"},
             "ab", IDS(2));
    accepted(
        (parts){.others =
                    "\"normalizer\":null,\"pre_tokenizer\":null,\"post_processor\":null,\"decoder\":null"},
        "ab", IDS(2));
    accepted(
        (parts){
            .others =
                "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
                "\"S\"}},"
                "{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"S\"}}],\"special_tokens\":{\"S\":"
                "{\"ids\":[3,1]}}}"},
        "ab", IDS(3, 1, 2, 3, 1));
    accepted((parts){.others = "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[]}"}, "ab", IDS(2));
}

static void test_file(void **state) {
    (void)state;
    static const struct {
        const char *json, *message;
    } cases[] = {
        {"", "not JSON"},
        {"[]", "not a JSON object"},
        {"null", "not JSON"},
        {"{}", "model: missing"},
        {"{\"model\":[]}", "model: missing"},
        {"{\"model\":{\"type\":\"BPE\"}", "not JSON"},
        {"{\"model\":{},\"model\":{}}", "not JSON"},
        {"{\"added_tokens\":{}}", "added_tokens: not an array"},
        {"{\"added_tokens\":[3]}", "added_tokens[0]: not an object"},
        {"{\"model\":{\"vocab\":{\"\xFF\":0}}}", "not JSON"},
        {"{\"version\":\"2.0\"}", "version: \"2.0\" (known: 1.0)"},
        {"{\"version\":2}", "version: 2 (expected a string)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fb_error err = {0};
        fb_tokenizer *tokenizer = (fb_tokenizer *)1;
        fb_status status =
            fb_tokenizer_parse("t.json", cases[i].json, strlen(cases[i].json), &tokenizer, &err);
        if (status == FB_OK || !strstr(err.message, cases[i].message))
            fail_msg("%s: %s", cases[i].json, err.message);
        assert_null(tokenizer);
    }
    fb_tokenizer *tokenizer;
    fb_error err = {0};
    assert_int_equal(fb_tokenizer_open("tests/data/tokenizer/none.json", &tokenizer, &err), FB_ERROR_FILE);
    assert_non_null(strstr(err.message, "none.json"));
}

static void test_model(void **state) {
    (void)state;
#define MODEL(members, status, message) refused((parts){.model = members}, status, message)
    MODEL("\"type\":\"x\"", FB_ERROR_FILE, "not JSON"); /* a duplicate */
    MODEL("\"vocab\":[],\"merges\":[]", FB_ERROR_FILE, "vocab: missing (expected an object)");
    MODEL("\"vocab\":{\"a\":-1},\"merges\":[]", FB_ERROR_FILE, "\"a\": -1 (an id is 0 to 16777215)");
    MODEL("\"vocab\":{\"a\":16777216},\"merges\":[]", FB_ERROR_FILE,
          "\"a\": 16777216 (an id is 0 to 16777215)");
    MODEL("\"vocab\":{\"a\":9223372036854775807},\"merges\":[]", FB_ERROR_FILE, "9223372036854775807");
    MODEL("\"vocab\":{\"a\":1.0},\"merges\":[]", FB_ERROR_FILE, "\"a\": 1.0 (an id is");
    MODEL("\"vocab\":{\"a\":\"1\"},\"merges\":[]", FB_ERROR_FILE, "\"a\": \"1\" (an id is");
    MODEL("\"vocab\":{\"a\":5,\"b\":5},\"merges\":[]", FB_ERROR_FILE, "\"b\": id 5 (taken by \"a\")");
    MODEL("\"vocab\":{\"a\":0}", FB_ERROR_FILE, "merges: 0 (expected an array");
    MODEL("\"vocab\":{\"a\":0},\"merges\":{}", FB_ERROR_FILE, "merges: 0 (expected an array");
    MODEL("\"vocab\":{\"a\":0},\"merges\":[\"a\"]", FB_ERROR_FILE, "merges[0]: \"a\" (expected two tokens)");
    MODEL("\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]", FB_ERROR_FILE,
          "merges[0]: \"a a a\" (expected two tokens)");
    MODEL("\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]", FB_ERROR_FILE,
          "merges[0]: [\"a\"] (expected two tokens)");
    MODEL("\"vocab\":{\"a\":0},\"merges\":[[\"a\",1]]", FB_ERROR_FILE,
          "merges[0]: [\"a\",1] (expected two tokens)");
    MODEL("\"vocab\":{\"a\":0},\"merges\":[7]", FB_ERROR_FILE, "merges[0]: 7 (expected two tokens)");
    MODEL("\"vocab\":{\"a\":0},\"merges\":[\"a b\"]", FB_ERROR_FILE,
          "merges[0]: \"b\" (not in the vocabulary)");
    MODEL("\"vocab\":{\"a\":0},\"merges\":[\"x a\"]", FB_ERROR_FILE,
          "merges[0]: \"x\" (not in the vocabulary)");
    MODEL("\"vocab\":{\"a\":0},\"merges\":[\"a a\"]", FB_ERROR_FILE,
          "merges[0]: \"aa\" (not in the vocabulary)");
    MODEL("\"dropout\":0.1," VOCAB, FB_ERROR_UNSUPPORTED, "dropout: 0.1 (known: null)");
    MODEL("\"dropout\":2," VOCAB, FB_ERROR_FILE, "dropout: 2 (0 to 1)");
    MODEL("\"end_of_word_suffix\":\"</w>\"," VOCAB, FB_ERROR_UNSUPPORTED,
          "end_of_word_suffix: \"</w>\" (known: null)");
    MODEL("\"continuing_subword_prefix\":\"##\"," VOCAB, FB_ERROR_UNSUPPORTED,
          "continuing_subword_prefix: \"##\"");
    MODEL("\"byte_fallback\":1," VOCAB, FB_ERROR_FILE, "byte_fallback: 1 (expected true or false)");
    MODEL("\"unk_token\":3," VOCAB, FB_ERROR_FILE, "unk_token: 3 (expected a string)");
    fb_tokenizer *tokenizer;
    fb_error err = {0};
    static const char pieces[] = "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}";
    assert_int_equal(fb_tokenizer_parse("t.json", pieces, sizeof pieces - 1, &tokenizer, &err),
                     FB_ERROR_UNSUPPORTED);
    assert_string_equal(err.message, "t.json: model: type: \"WordPiece\" (known: BPE, Unigram)");
}

static fb_status parse_unigram(const char *members, fb_tokenizer **tokenizer, fb_error *err) {
    char json[512];
    snprintf(json, sizeof json, "{\"model\":{\"type\":\"Unigram\",%s}}", members);
    return fb_tokenizer_parse("t.json", json, strlen(json), tokenizer, err);
}

static void test_unigram(void **state) {
    (void)state;
    static const struct {
        const char *members, *message;
    } cases[] = {
        {"\"vocab\":{}", "vocab: 0 tokens (expected an array of 1 to 16777216)"},
        {"\"vocab\":[]", "vocab: 0 tokens"},
        {"\"vocab\":[[\"a\"]]", "vocab[0]: [\"a\"] (expected a token and a score)"},
        {"\"vocab\":[[\"a\",\"b\"]]", "vocab[0]: [\"a\",\"b\"]"},
        {"\"vocab\":[[\"a\",0],[\"a\",1]]", "vocab[1]: \"a\" (token 0 already)"},
        {"\"vocab\":[[\"a\",0]],\"unk_id\":1", "unk_id: 1 (0 to 0)"},
    };
    fb_tokenizer *tokenizer;
    fb_error err = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(parse_unigram(cases[i].members, &tokenizer, &err), FB_ERROR_FILE);
        if (!strstr(err.message, cases[i].message)) fail_msg("%s: %s", cases[i].members, err.message);
    }
    /* The better of two ways counts, not the longer token; a character that is no token needs the unknown
     * one. */
    int32_t *ids;
    int64_t count;
    assert_int_equal(
        parse_unigram("\"vocab\":[[\"a\",-1.0],[\"b\",-1],[\"ab\",-1.5],[\"abb\",-9]]", &tokenizer, NULL),
        FB_OK);
    assert_int_equal(fb_tokenizer_encode(tokenizer, "abb", 3, true, &ids, &count, NULL), FB_OK);
    assert_int_equal(count, 2);
    assert_true(ids[0] == 2 && ids[1] == 1);
    fb_free(ids);
    assert_int_equal(fb_tokenizer_encode(tokenizer, "abz", 3, true, &ids, &count, &err), FB_ERROR_FILE);
    assert_non_null(strstr(err.message, "unk_id: null (\"z\" is not in the vocabulary)"));
    fb_tokenizer_free(tokenizer);
    /* a, bc: -9. ab and an unknown c, which costs 10 more than the lowest score: -17. */
    assert_int_equal(parse_unigram("\"unk_id\":0,\"vocab\":[[\"?\",0],[\"a\",-3],[\"ab\",-1],[\"bc\",-6]]",
                                   &tokenizer, NULL),
                     FB_OK);
    assert_int_equal(fb_tokenizer_encode(tokenizer, "abc", 3, true, &ids, &count, NULL), FB_OK);
    assert_true(count == 2 && ids[0] == 1 && ids[1] == 3);
    fb_free(ids);
    fb_tokenizer_free(tokenizer);
}

static void test_unknown_needed(void **state) {
    (void)state;
    fb_tokenizer *tokenizer;
    fb_error err = {0};
    int32_t *ids = (int32_t *)1;
    int64_t count = 1;
    assert_int_equal(parse((parts){.model = "\"unk_token\":\"no\"," VOCAB}, &tokenizer, NULL), FB_OK);
    assert_int_equal(fb_tokenizer_encode(tokenizer, "abz", 3, true, &ids, &count, &err), FB_ERROR_FILE);
    assert_non_null(strstr(err.message, "unk_token: \"no\" (not in the vocabulary)"));
    assert_null(ids);
    assert_int_equal(count, 0);
    fb_tokenizer_free(tokenizer);
}

static void test_added(void **state) {
    (void)state;
#define ADDED(elements, message) refused((parts){.added = elements}, FB_ERROR_FILE, message)
    ADDED("{\"content\":\"x\"}", "added_tokens[0]: id: missing");
    ADDED("{\"id\":-1,\"content\":\"x\"}", "added_tokens[0]: id: -1 (0 to 16777215)");
    ADDED("{\"id\":99999999,\"content\":\"x\"}", "id: 99999999 (0 to 16777215)");
    ADDED("{\"id\":4}", "added_tokens[0]: content: missing");
    ADDED("{\"id\":4,\"content\":\"\"}", "content: \"\" (expected some text)");
    ADDED("{\"id\":4,\"content\":5}", "content: 5 (expected a string)");
    ADDED("{\"id\":4,\"content\":\"x\",\"lstrip\":0}", "lstrip: 0 (expected true or false)");
    ADDED("{\"id\":9,\"content\":\"x\"}", "\"x\": id 9 (expected 4: the next free one)");
    ADDED("{\"id\":1,\"content\":\"x\"}", "\"x\": id 1 (expected 4: the next free one)");
    ADDED("{\"id\":4,\"content\":\"ab\"}", "\"ab\": id 4 (expected 2: the vocabulary's)");
    ADDED("{\"id\":4,\"content\":\"x\"},{\"id\":4,\"content\":\"x\"}",
          "added_tokens[1]: \"x\": id 4 (expected 5");
}

static void test_normalizer(void **state) {
    (void)state;
    unsupported("\"normalizer\":{\"type\":\"Nmt\"}",
                "t.json: normalizer: type: \"Nmt\" (known: NFC, NFD, NFKC, ");
    unsupported(
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Sequence\"}]}",
        "normalizers[1]: type: \"Sequence\"");
    unsupported("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\b\"},\"content\":\"\"}",
                "pattern: \"\\b\" at byte 0");
    malformed("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"?\"}", "byte 0 (base64)");
    malformed("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"////////\"}",
              "6 bytes, an array of 4294967295");
    malformed("\"normalizer\":\"NFC\"", "normalizer: \"NFC\" (expected an object)");
    malformed("\"normalizer\":{}", "normalizer: type: missing");
    malformed("\"normalizer\":{\"type\":\"Sequence\"}",
              "normalizers: nothing (expected an array of at most 16)");
    malformed("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}",
              "at most 16");
    malformed("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[3]}",
              "normalizers[0]: 3 (expected an object)");
    malformed("\"normalizer\":{\"type\":\"Prepend\"}", "prepend: missing");
    malformed("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"x\"}",
              "pattern: {\"String\":\"\"}");
    malformed("\"normalizer\":{\"type\":\"Replace\",\"pattern\":\" \",\"content\":\"x\"}", "pattern: \" \"");
    malformed("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"}}", "content: missing");
}

static void test_pre_tokenizer(void **state) {
    (void)state;
#define SPLIT(members) "\"pre_tokenizer\":{\"type\":\"Split\"," members "}"
    unsupported("\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}",
                "pre_tokenizer: type: \"BertPreTokenizer\" (known: ByteLevel, Split, Digits, Metaspace, ");
    unsupported(SPLIT("\"behavior\":\"Shuffled\",\"pattern\":{\"String\":\" \"}"),
                "behavior: \"Shuffled\" (known: Isolated, Removed, ");
    unsupported(SPLIT("\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"\\\\bx\"}"),
                "pattern: \"\\b\" at byte 0");
    malformed(SPLIT("\"behavior\":\"Isolated\""), "pattern: nothing (expected one String or Regex");
    malformed(SPLIT("\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"(a\"}"),
              "pattern: missing closing parenthesis");
    malformed(SPLIT("\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":5}"), "pattern: {\"Regex\":5}");
    malformed("\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":\"no\"}",
              "use_regex: \"no\" (expected true or false)");
    malformed("\"pre_tokenizer\":{\"type\":\"Digits\",\"individual_digits\":1}", "individual_digits: 1");
    malformed("\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"__\"}",
              "replacement: \"__\" (expected one character)");
    malformed("\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\"}",
              "replacement: \"\" (expected one character)");
    unsupported("\"pre_tokenizer\":{\"type\":\"Metaspace\",\"prepend_scheme\":\"last\"}",
                "prepend_scheme: \"last\"");
    malformed("\"pre_tokenizer\":{\"type\":\"Metaspace\",\"add_prefix_space\":false}",
              "add_prefix_space: false");
}

static void test_post_processor(void **state) {
    (void)state;
#define TEMPLATE(single, tokens)                                                                             \
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[" single                                \
    "],\"special_tokens\":{" tokens "}}"
#define A   "{\"Sequence\":{\"id\":\"A\"}}"
#define S   "{\"SpecialToken\":{\"id\":\"S\"}}"
#define ONE "{\"type\":\"TemplateProcessing\",\"single\":[" A "],\"special_tokens\":{}}"
    unsupported("\"post_processor\":{\"type\":\"Other\"}",
                "type: \"Other\" (known: ByteLevel, TemplateProcessing, ");
    malformed("\"post_processor\":{\"type\":\"BertProcessing\"}", "cls: nothing (a token and its id)");
    malformed("\"post_processor\":{\"type\":\"RobertaProcessing\",\"cls\":[\"a\",0],\"sep\":[\"z\",9]}",
              "sep: [\"z\",9] (a token and its id)");
    unsupported(TEMPLATE(A "," A, ""), "the text 2 times (known: once)");
    unsupported(TEMPLATE("", ""), "the text 0 times (known: once)");
    unsupported(TEMPLATE("{\"Sequence\":{\"id\":\"B\"}}", ""), "single[0]: Sequence: \"B\" (known: A)");
    unsupported("\"post_processor\":{\"type\":\"Sequence\",\"processors\":[" ONE "," ONE "]}",
                "a second TemplateProcessing");
    malformed(TEMPLATE(A "," S, ""), "special_tokens: \"S\": no ids");
    malformed(TEMPLATE(A "," S, "\"S\":{\"ids\":[4]}"), "\"S\": id 4 (not in the vocabulary)");
    malformed(TEMPLATE(A "," S, "\"S\":{\"ids\":[-1]}"), "\"S\": id -1 (not in the vocabulary)");
    malformed(TEMPLATE(A "," S, "\"S\":{\"ids\":[\"3\"]}"), "\"S\": id \"3\" (not in the vocabulary)");
    malformed(TEMPLATE("7", ""), "single[0]: id: missing");
    malformed("\"post_processor\":{\"type\":\"TemplateProcessing\"}", "single: missing");
}

static void test_decoder(void **state) {
    (void)state;
#define DECODERS(list) "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[" list "]}"
#define STRIP(stop)    "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":" stop "}"
    unsupported(
        "\"decoder\":{\"type\":\"WordPiece\"}",
        "decoder: type: \"WordPiece\" (known: Replace, ByteLevel, ByteFallback, Metaspace, Fuse, Strip)");
    unsupported(DECODERS("{\"type\":\"ByteFallback\"},{\"type\":\"ByteLevel\"}"),
                "decoders[1]: a step out of order");
    unsupported(DECODERS("{\"type\":\"Fuse\"},{\"type\":\"ByteFallback\"}"),
                "decoders[1]: a step out of order");
    unsupported(DECODERS(STRIP("0")), "decoders[0]: a step out of order");
    unsupported(DECODERS("{\"type\":\"Fuse\"}," STRIP("1")), "stop: 1 (known: 0)");
    malformed(DECODERS("{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"start\":1,\"stop\":0}"), "content: \"\"");
    malformed(DECODERS("{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":-1,\"stop\":0}"),
              "start: -1");
}

static void test_truncation(void **state) {
    (void)state;
    unsupported("\"truncation\":{\"max_length\":8}", "truncation: {\"max_length\":8} (known: null)");
    unsupported("\"padding\":{\"strategy\":{\"Fixed\":8}}",
                "padding: strategy: {\"Fixed\":8} (known: BatchLongest)");
    unsupported("\"padding\":{\"strategy\":\"BatchLongest\",\"pad_to_multiple_of\":8}",
                "pad_to_multiple_of: 8 (known: null)");
}

/* Every prefix of a real file, and the file with every byte changed once: refused or accepted, but in one
 * piece. */
static void test_corrupt(void **state) {
    (void)state;
    static const char *const names[] = {"tests/data/tokenizer/prefix.json",
                                        "tests/data/tokenizer/metaspace.json"};
    for (size_t n = 0; n < 2; n++) {
        fb_map map;
        assert_int_equal(fb_map_open(names[n], &map, NULL), FB_OK);
        char *bytes = malloc(map.size);
        assert_non_null(bytes);
        memcpy(bytes, map.data, map.size);
        for (size_t i = 0; i < map.size; i += 41) {
            fb_tokenizer *tokenizer;
            char *cut = malloc(i + 1);
            assert_non_null(cut);
            memcpy(cut, bytes, i);
            assert_int_equal(fb_tokenizer_parse("cut", cut, i, &tokenizer, NULL), FB_ERROR_FILE);
            free(cut);
            char keep = bytes[i];
            bytes[i] = "]}0\"x,"[i % 6];
            if (fb_tokenizer_parse("bent", bytes, map.size, &tokenizer, NULL) == FB_OK) {
                int32_t *ids;
                int64_t count;
                if (fb_tokenizer_encode(tokenizer, "It's 12 <s>", 11, true, &ids, &count, NULL) == FB_OK)
                    fb_free(ids);
                fb_tokenizer_free(tokenizer);
            }
            bytes[i] = keep;
        }
        free(bytes);
        fb_map_close(&map);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepted),       cmocka_unit_test(test_file),
        cmocka_unit_test(test_model),          cmocka_unit_test(test_unigram),
        cmocka_unit_test(test_unknown_needed), cmocka_unit_test(test_added),
        cmocka_unit_test(test_normalizer),     cmocka_unit_test(test_pre_tokenizer),
        cmocka_unit_test(test_post_processor), cmocka_unit_test(test_decoder),
        cmocka_unit_test(test_truncation),     cmocka_unit_test(test_corrupt),
    };
    return cmocka_run_group_tests_name("tokenizer_load", tests, NULL, NULL);
}
