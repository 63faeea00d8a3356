/* Whether two tokenizers are the same, and what is said of the first difference. */
#include <stdlib.h>
#include <string.h>

#include "support/support.h"
#include "text/tokenizer.h"

#define DATA "tests/data/tokenizer/"

static fb_tokenizer *open_file(const char *path) {
    fb_tokenizer *tokenizer;
    fb_error err;
    assert_ok(fb_tokenizer_open(path, &tokenizer, &err), &err);
    return tokenizer;
}

/* GPT-2's, with a part of its text replaced (NULL: none). */
static fb_tokenizer *gpt2_with(const char *from, const char *to) {
    size_t size;
    char *text = fbt_file_read(DATA "gpt2.json", &size), *at = from ? strstr(text, from) : text;
    assert_non_null(at);
    char *changed =
        fbt_format("%.*s%s%s", (int)(at - text), text, from ? to : "", at + (from ? strlen(from) : 0));
    fb_tokenizer *tokenizer;
    fb_error err;
    assert_ok(fb_tokenizer_parse("tokenizer.json", changed, strlen(changed), &tokenizer, &err), &err);
    free(changed);
    free(text);
    return tokenizer;
}

/* Both ways round. */
static void differ(fb_tokenizer *a, fb_tokenizer *b, const char *words, const char *reverse) {
    fb_error err;
    assert_refused(fb_tokenizer_compare("b.json", a, b, &err), FB_ERROR_USAGE, &err, words);
    assert_refused(fb_tokenizer_compare("a.json", b, a, &err), FB_ERROR_USAGE, &err, reverse);
    fb_tokenizer_free(a);
    fb_tokenizer_free(b);
}

static void same(fb_tokenizer *a, fb_tokenizer *b) {
    fb_error err;
    assert_ok(fb_tokenizer_compare("b", a, b, &err), &err);
    assert_ok(fb_tokenizer_compare("a", b, a, &err), &err);
    fb_tokenizer_free(a);
    fb_tokenizer_free(b);
}

static void files_of_one_kind(void **state) {
    (void)state;
    static const char *const files[] = {DATA "gpt2.json", DATA "llama2.json", DATA "llama3.json",
                                        DATA "qwen2.json", DATA "metaspace.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) same(open_file(files[i]), open_file(files[i]));
    same(open_file("models/storyteller"), open_file("models/storyteller"));
}

/* One more token, after the last one. */
#define LAST "\"special\":true}],\"normalizer\""
#define ADDED(text)                                                                                          \
    "\"special\":true},{\"id\":487,\"content\":\"" text                                                      \
    "\",\"special\":true,\"normalized\":false}],\"normalizer\""

static void other_tokens(void **state) {
    (void)state;
    differ(gpt2_with(NULL, NULL),
           gpt2_with("\"\xc5\x82\":255,\"\xc5\x83\":256", "\"\xc5\x83\":255,\"\xc5\x82\":256"),
           "b.json: token 255 is \"\xc5\x83\" (\"\xc5\x82\" in the model",
           "a.json: token 255 is \"\xc5\x82\"");
    differ(gpt2_with(NULL, NULL), gpt2_with(LAST, ADDED("<|more|>")),
           "token 487 is \"<|more|>\" (\"\" in the model", "token 487 is \"\" (\"<|more|>\" in the model");
}

/* A model may have more ids than its tokenizer has tokens. */
static void padding(void **state) {
    (void)state;
    same(gpt2_with(NULL, NULL), gpt2_with(LAST, ADDED("[PAD487]")));
    differ(gpt2_with(NULL, NULL), gpt2_with(LAST, ADDED("[PAD488]")), "token 487 is \"[PAD488]\"",
           "token 487 is \"\"");
}

static void other_merges(void **state) {
    (void)state;
    differ(gpt2_with(NULL, NULL),
           gpt2_with("\"merges\":[\"h e\",\"\xc4\xa0 t\"", "\"merges\":[\"\xc4\xa0 t\",\"h e\""),
           "merge \"h e\" is number 1 (0 in the model",
           "merge \"\xc4\xa0 t\" is number 1 (0 in the model|none; both");
    differ(gpt2_with(NULL, NULL), gpt2_with("\"merges\":[\"h e\",", "\"merges\":["),
           "merge \"h e\" is number -1 (0 in the model", "is number ");
}

static void other_rules(void **state) {
    (void)state;
    differ(gpt2_with(NULL, NULL), gpt2_with("\"add_prefix_space\":false", "\"add_prefix_space\":true"),
           "of the text \"The quick", "of the text \"The quick");
    differ(gpt2_with(NULL, NULL), gpt2_with("\"normalizer\":null", "\"normalizer\":{\"type\":\"Lowercase\"}"),
           "of the text \"The quick", "of the text \"The quick");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_of_one_kind), cmocka_unit_test(other_tokens), cmocka_unit_test(padding),
        cmocka_unit_test(other_merges),      cmocka_unit_test(other_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
