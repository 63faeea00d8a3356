/* A tokenizer as lists: what GGUF files can say of it, and what is refused. */
#include "text/export.h"

#include <stdlib.h>
#include <string.h>

#include "file/json.h"
#include "support/support.h"

/* The tokenizer.json of a name under tests/data/tokenizer, less its added tokens that no list can describe,
 * with one member set (NULL: none). */
static fb_tokenizer *load(const char *name, const char *key, const char *json) {
    char *dir = fbt_dir_create(), *from = fbt_format("tests/data/tokenizer/%s.json", name),
         *path = fbt_format("%s/tokenizer.json", dir);
    fbt_file_copy(from, path);
    fbt_json_set(path, "added_tokens",
                 "[{\"id\": 0, \"content\": \"<|endoftext|>\", \"special\": true, \"normalized\": false}]");
    if (strcmp(name, "llama3") == 0)
        fbt_json_set(path, "added_tokens",
                     "[{\"id\": 0, \"content\": \"<|begin_of_text|>\", \"special\": true, "
                     "\"normalized\": false}]");
    if (key) fbt_json_set(path, key, json);
    fb_error err;
    fb_tokenizer *tokenizer;
    assert_ok(fb_tokenizer_open(path, &tokenizer, &err), &err);
    free(from);
    free(path);
    fbt_dir_remove(dir);
    return tokenizer;
}

#define BYTE_LEVEL                                                                                           \
    "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}"
#define DIGITS                                                                                               \
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\", \"individual_digits\": "            \
    "true}, " BYTE_LEVEL "]}"

static void test_pre(void **state) {
    (void)state;
    static const struct {
        const char *file, *key, *json, *name;
        bool nfc;
    } cases[] = {
        {"gpt2", NULL, NULL, "gpt-2", false},
        {"gpt2", "normalizer", "{\"type\": \"NFC\"}", "gpt-2", true},
        {"gpt2", "pre_tokenizer", DIGITS, "smollm", false},
        {"llama3", NULL, NULL, "llama-bpe", false},
        {"llama3", "model.ignore_merges", "false", "smaug-bpe", false},
        {"qwen2", NULL, NULL, "qwen2", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fb_tokenizer *tokenizer = load(cases[i].file, cases[i].key, cases[i].json);
        fb_exported exported;
        fb_error err;
        assert_ok(fb_tokenizer_export(tokenizer, &exported, &err), &err);
        assert_string_equal(exported.pre, cases[i].name);
        assert_int_equal(exported.nfc, cases[i].nfc);
        assert_int_equal(exported.begin, strcmp(cases[i].file, "llama3") == 0 ? 0 : -1);
        assert_int_equal(exported.end, -1);
        assert_int_equal(exported.unknown, -1);
        fb_exported_free(&exported);
        fb_tokenizer_free(tokenizer);
    }
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *file, *key, *json, *words;
    } cases[] = {
        {"gpt2", "pre_tokenizer", "{\"type\": \"Digits\", \"individual_digits\": true}", "not byte-level"},
        {"gpt2", "pre_tokenizer", "null", "not byte-level"},
        {"gpt2", "pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}",
         "add_prefix_space"},
        {"gpt2", "pre_tokenizer",
         "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}", "no GGUF name"},
        {"gpt2", "pre_tokenizer",
         "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "
         "\"a+b\"}, "
         "\"behavior\": \"Isolated\"}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": "
         "false}]}",
         "a+b|no GGUF name"},
        {"gpt2", "model.ignore_merges", "true", "ignore_merges|no GGUF name"},
        {"gpt2", "model.byte_fallback", "true", "byte_fallback"},
        {"gpt2", "model",
         "{\"type\": \"BPE\", \"vocab\": {\"<|endoftext|>\": 0, \" \": 1, \"a\": 2, \" a\": 3}, "
         "\"merges\": [[\" \", \"a\"]]}",
         "merges|space"},
        {"gpt2", "normalizer", "{\"type\": \"Prepend\", \"prepend\": \"x\"}", "normalizer"},
        {"gpt2", "added_tokens", "[{\"id\": 0, \"content\": \"<|endoftext|>\", \"lstrip\": true}]",
         "endoftext|lstrip"},
        {"gpt2", "post_processor",
         "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"a\"}}, "
         "{\"Sequence\": "
         "{\"id\": \"A\"}}], \"special_tokens\": {\"a\": {\"ids\": [1, 2]}}}",
         "post_processor"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fb_tokenizer *tokenizer = load(cases[i].file, cases[i].key, cases[i].json);
        fb_exported exported;
        fb_error err;
        assert_refused(fb_tokenizer_export(tokenizer, &exported, &err), FB_ERROR_UNSUPPORTED, &err,
                       cases[i].words);
        fb_exported_free(&exported);
        fb_tokenizer_free(tokenizer);
    }
}

/* The lists are the file's own. */
static void test_lists(void **state) {
    (void)state;
    fb_error err;
    fb_tokenizer *tokenizer;
    fb_exported exported;
    assert_ok(fb_tokenizer_open(FBT_STORYTELLER "/tokenizer.json", &tokenizer, &err), &err);
    assert_ok(fb_tokenizer_export(tokenizer, &exported, &err), &err);
    fb_json *root;
    assert_ok(fb_json_load(FBT_STORYTELLER "/tokenizer.json", 1 << 24, &root, &err), &err);
    const fb_json *vocab = fb_json_get(fb_json_get(root, "model"), "vocab"),
                  *merges = fb_json_get(fb_json_get(root, "model"), "merges"), *id;
    assert_int_equal(exported.count, fb_json_size(vocab));
    for (id = fb_json_first(vocab); id; id = fb_json_next(id)) {
        const char *text = fb_json_key(id);
        const fb_exported_token *token = &exported.tokens[fb_json_int_of(id)];
        assert_int_equal(token->size, strlen(text));
        assert_memory_equal(token->text, text, strlen(text));
        assert_int_equal(token->kind, fb_json_int_of(id) < 2 ? FB_TOKEN_SPECIAL : FB_TOKEN_NORMAL);
    }
    assert_true(exported.merge_count > 1000);
    assert_int_equal(exported.merge_count, fb_json_size(merges));
    const fb_json *merge = fb_json_first(merges);
    for (int64_t i = 0; i < exported.merge_count; i++, merge = fb_json_next(merge))
        for (int side = 0; side < 2; side++) {
            const char *part = fb_json_text_of(fb_json_at(merge, (size_t)side));
            assert_non_null(part);
            assert_int_equal(fb_json_int_of(fb_json_get(vocab, part)), exported.merges[i][side]);
        }
    assert_int_equal(exported.begin, 0);
    fb_json_free(root);
    fb_exported_free(&exported);
    fb_tokenizer_free(tokenizer);
}

/* Added tokens that are not special, and ids that nobody has. */
static void test_kinds(void **state) {
    (void)state;
    fb_tokenizer *tokenizer = load("gpt2", "added_tokens",
                                   "[{\"id\": 0, \"content\": \"<|endoftext|>\", \"special\": true}, "
                                   "{\"id\": 480, \"content\": \"<tool>\", "
                                   "\"special\": false, \"normalized\": true}, {\"id\": 481, \"content\": "
                                   "\"a b\", \"special\": false}]");
    fb_exported exported;
    fb_error err;
    assert_ok(fb_tokenizer_export(tokenizer, &exported, &err), &err);
    assert_int_equal(exported.count, 482);
    assert_int_equal(exported.tokens[0].kind, FB_TOKEN_SPECIAL);
    assert_int_equal(exported.tokens[1].kind, FB_TOKEN_NORMAL);
    assert_int_equal(exported.tokens[480].kind, FB_TOKEN_ADDED);
    assert_int_equal(exported.tokens[481].kind, FB_TOKEN_ADDED);
    assert_memory_equal(exported.tokens[481].text, "a b", 3);
    fb_exported_free(&exported);
    fb_tokenizer_free(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pre),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_kinds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
