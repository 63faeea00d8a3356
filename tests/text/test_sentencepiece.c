/* tokenizer.model: what is refused, and in which words; files that are cut or changed anywhere. */
#include "text/sentencepiece.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file/json.h"
#include "support/support.h"

#define DATA "tests/data/tokenizer/steps/"

/* ---- a small file ---- */

typedef struct proto {
    uint8_t data[1024];
    size_t size;
} proto;

static void put(proto *p, const void *data, size_t size) {
    assert_true(p->size + size <= sizeof p->data);
    memcpy(p->data + p->size, data, size);
    p->size += size;
}

static void put_byte(proto *p, uint8_t byte) { put(p, &byte, 1); }

static void put_message(proto *p, int field, const proto *message) {
    put_byte(p, (uint8_t)(field << 3 | 2));
    assert_true(message->size < 128);
    put_byte(p, (uint8_t)message->size);
    put(p, message->data, message->size);
}

static void put_number(proto *p, int field, uint8_t value) {
    if (field > 15) {
        put_byte(p, (uint8_t)((field << 3 & 0x7F) | 0x80));
        put_byte(p, (uint8_t)(field >> 4));
    } else {
        put_byte(p, (uint8_t)(field << 3));
    }
    put_byte(p, value);
}

static void put_piece(proto *p, const char *text, float score, uint8_t type) {
    proto piece = {.size = 0}, name = {.size = 0};
    put(&name, text, strlen(text));
    put_message(&piece, 1, &name);
    put_byte(&piece, 2 << 3 | 5);
    put(&piece, &score, 4);
    put_number(&piece, 3, type);
    put_message(p, 1, &piece);
}

/* <unk>, <s>, </s>, U+2581, a, b, ab; of a type, with one more number of the trainer and the normalizer. */
static proto small_file(uint8_t type, int trainer, uint8_t trainer_value, int normalizer) {
    proto p = {.size = 0}, spec = {.size = 0}, rules = {.size = 0};
    put_piece(&p, "<unk>", 0, FB_PIECE_UNKNOWN);
    put_piece(&p, "<s>", 0, FB_PIECE_CONTROL);
    put_piece(&p, "</s>", 0, FB_PIECE_CONTROL);
    put_piece(&p, "\xE2\x96\x81", -1, FB_PIECE_NORMAL);
    put_piece(&p, "a", -2, FB_PIECE_NORMAL);
    put_piece(&p, "b", -3, FB_PIECE_NORMAL);
    put_piece(&p, "ab", -1, FB_PIECE_NORMAL);
    put_number(&spec, 3, type);
    if (trainer) put_number(&spec, trainer, trainer_value);
    put_message(&p, 2, &spec);
    if (normalizer) put_number(&rules, normalizer, 0);
    put_message(&p, 3, &rules);
    return p;
}

static fb_status parse(const proto *p, const char *config, fb_tokenizer **tokenizer, fb_error *err) {
    fb_json *json = NULL;
    if (config) assert_ok(fb_json_parse("config", config, strlen(config), 1 << 16, &json, err), err);
    fb_piece_options options = {.config = json};
    fb_status status = fb_tokenizer_parse_model("t.model", p->data, p->size, &options, tokenizer, err);
    if (json) fb_json_free(json);
    return status;
}

static void expect_ids(const char *config, uint8_t type, const char *text, const char *expected) {
    proto p = small_file(type, 0, 0, 0);
    fb_tokenizer *tokenizer;
    fb_error err;
    int32_t *ids;
    int64_t count;
    char found[128] = "";
    assert_ok(parse(&p, config, &tokenizer, &err), &err);
    assert_ok(fb_tokenizer_encode(tokenizer, text, strlen(text), true, &ids, &count, &err), &err);
    for (int64_t i = 0; i < count; i++) {
        char *more = fbt_format("%s%s%d", found, i ? " " : "", (int)ids[i]);
        snprintf(found, sizeof found, "%s", more);
        free(more);
    }
    assert_string_equal(found, expected);
    fb_free(ids);
    fb_tokenizer_free(tokenizer);
}

#define LLAMA "\"tokenizer_class\":\"LlamaTokenizer\""

static void test_styles(void **state) {
    (void)state;
    expect_ids(NULL, FB_PIECES_BPE, "ab  b", "1 3 6 3 5");
    expect_ids(NULL, FB_PIECES_UNIGRAM, "ab  zzb", "3 6 3 0 5");
    expect_ids("{\"add_bos_token\":false,\"add_eos_token\":true}", FB_PIECES_BPE, "b", "3 5 2");
    expect_ids("{" LLAMA "}", FB_PIECES_BPE, "a<s>b", "1 3 4 1 5");
    expect_ids("{" LLAMA ",\"legacy\":true}", FB_PIECES_BPE, "a<s>b", "1 3 4 1 3 5");
    expect_ids("{" LLAMA ",\"add_prefix_space\":false}", FB_PIECES_BPE, "a  b", "1 4 3 3 5");
    expect_ids("{\"tokenizer_class\":\"GemmaTokenizerFast\"}", FB_PIECES_BPE, "a b", "1 4 3 5");
    expect_ids("{\"tokenizer_class\":\"T5Tokenizer\"}", FB_PIECES_UNIGRAM, " a\nb", "3 4 3 5 2");
    expect_ids(
        "{\"added_tokens_decoder\":{\"7\":{\"content\":\"<x>\",\"special\":true}},\"bos_token\":\"<x>\"}",
        FB_PIECES_BPE, "a<x>", "7 3 4 7");
}

static void refused(const proto *p, const char *config, fb_status expected, const char *words) {
    fb_tokenizer *tokenizer = (fb_tokenizer *)(uintptr_t)1;
    fb_error err = {0};
    fb_status status = parse(p, config, &tokenizer, &err);
    assert_null(tokenizer);
    assert_refused(status, expected, &err, words);
}

static void test_refused(void **state) {
    (void)state;
    proto p = small_file(3, 0, 0, 0);
    refused(&p, NULL, FB_ERROR_UNSUPPORTED, "model_type: 3 (known: 1, Unigram, and 2, BPE)");
    p = small_file(FB_PIECES_BPE, 24, 1, 0);
    refused(&p, NULL, FB_ERROR_UNSUPPORTED, "treat_whitespace_as_suffix: true");
    p = small_file(FB_PIECES_BPE, 0, 0, 5);
    refused(&p, NULL, FB_ERROR_UNSUPPORTED, "escape_whitespaces: false");
    p = small_file(FB_PIECES_BPE, 40, 9, 0);
    refused(&p, NULL, FB_ERROR_FILE, "unk_id: 9 (0 to 6)");
    p = small_file(FB_PIECES_BPE, 0, 0, 0);
    refused(&p, "{\"tokenizer_class\":\"OtherTokenizer\"}", FB_ERROR_UNSUPPORTED,
            "tokenizer_class: \"OtherTokenizer\" (known: LlamaTokenizer");
    refused(&p, "{\"tokenizer_class\":\"T5Tokenizer\"}", FB_ERROR_UNSUPPORTED,
            "\"T5Tokenizer\" of a BPE model");
    refused(&p, "{\"bos_token\":\"<z>\"}", FB_ERROR_FILE, "bos_token: \"<z>\" (no piece and no added token)");
    refused(&p, "{\"added_tokens_decoder\":{\"x\":{\"content\":\"y\"}}}", FB_ERROR_FILE,
            "added token \"x\": no id");
    refused(&p, "{\"added_tokens_decoder\":{\"4\":{\"content\":\"y\"}}}", FB_ERROR_FILE,
            "added token \"y\": id 4 (another piece's)");
    put_piece(&p, "a", 0, FB_PIECE_NORMAL);
    refused(&p, NULL, FB_ERROR_FILE, "piece 7: \"a\" (piece 4 already)");
    proto empty = {.size = 0};
    refused(&empty, NULL, FB_ERROR_FILE, "0 pieces");
    proto text = {.size = 0};
    put(&text, "version https://git-lfs", 23);
    refused(&text, NULL, FB_ERROR_FILE, "t.model: byte");
}

/* Every prefix of a real file, and the file with every byte changed once: refused or accepted, but in one
 * piece. */
static void test_corrupt(void **state) {
    (void)state;
    size_t size;
    uint8_t *bytes = (uint8_t *)fbt_file_read(DATA "pieces-unigram/tokenizer.model", &size);
    const fb_piece_options options = {0};
    for (size_t i = 0; i < size; i += FBT_SANITIZED ? 7 : 3) {
        fb_tokenizer *tokenizer;
        uint8_t *cut = malloc(i + 1); /* so that a sanitizer sees a read behind its end */
        assert_non_null(cut);
        memcpy(cut, bytes, i);
        if (fb_tokenizer_parse_model("cut", cut, i, &options, &tokenizer, NULL) == FB_OK)
            fb_tokenizer_free(tokenizer);
        free(cut);
        bytes[i] ^= 0xFF;
        if (fb_tokenizer_parse_model("bent", bytes, size, &options, &tokenizer, NULL) == FB_OK) {
            int32_t *ids;
            int64_t count;
            if (fb_tokenizer_encode(tokenizer, "a \xC2\xA0 b\xEF\xBC\xA6", 9, true, &ids, &count, NULL) ==
                FB_OK)
                fb_free(ids);
            fb_tokenizer_free(tokenizer);
        }
        bytes[i] ^= 0xFF;
    }
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_styles),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_corrupt),
    };
    return cmocka_run_group_tests_name("tokenizer.model", tests, NULL, NULL);
}
