/* Tokenizers from GGUF metadata: the ids of llama.cpp (tests/data/gguf/make_tokenizers.py), and refusals. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"
#include "text/tokenizer.h"

#define DATA "tests/data/gguf/"

static fb_tokenizer *open_tokenizer(const char *name, fb_gguf **gguf) {
    char *path = fbt_format(DATA "%s.gguf", name);
    fb_tokenizer *tokenizer;
    fb_error err;
    assert_ok(fb_gguf_open(path, gguf, &err), &err);
    assert_ok(fb_tokenizer_from_gguf(path, *gguf, &tokenizer, &err), &err);
    assert_non_null(tokenizer);
    free(path);
    return tokenizer;
}

static bool check_text(const char *name, const fb_tokenizer *tokenizer, const json_t *text,
                       const json_t *expected) {
    int32_t *ids;
    int64_t count;
    fb_error err;
    assert_ok(fb_tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text), true, &ids,
                                  &count, &err),
              &err);
    bool same = count == (int64_t)json_array_size(expected);
    for (int64_t i = 0; same && i < count; i++)
        same = ids[i] == json_integer_value(json_array_get(expected, (size_t)i));
    if (!same) {
        char *wanted = json_dumps(expected, JSON_COMPACT), *shown = json_dumps(text, JSON_ENCODE_ANY);
        print_message("%s: %s: expected %s, got", name, shown, wanted);
        for (int64_t i = 0; i < count; i++) print_message(" %d", ids[i]);
        print_message("\n");
        free(wanted);
        free(shown);
    }
    fb_free(ids);
    return same;
}

/* Without special tokens, whose ids llama.cpp shows as nothing too. */
static bool check_decoded(const char *name, const fb_tokenizer *tokenizer, const json_t *list,
                          const json_t *expected) {
    int64_t count = (int64_t)json_array_size(list);
    int32_t *ids = calloc((size_t)count + 1, sizeof *ids);
    char *text;
    size_t bytes;
    fb_error err;
    assert_non_null(ids);
    for (int64_t i = 0; i < count; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    assert_ok(fb_tokenizer_decode(tokenizer, ids, count, false, &text, &bytes, &err), &err);
    bool same =
        bytes == json_string_length(expected) && memcmp(text, json_string_value(expected), bytes) == 0;
    if (!same)
        print_message("%s: decoded \"%s\", expected \"%s\"\n", name, text, json_string_value(expected));
    fb_free(text);
    free(ids);
    return same;
}

static void ids_are_those_of_llama_cpp(void **state) {
    const char *name = *state;
    fb_gguf *gguf;
    fb_tokenizer *tokenizer = open_tokenizer(name, &gguf);
    json_error_t where;
    json_t *cases = json_load_file(DATA "tokenizer.cases.json", 0, &where);
    const json_t *texts = json_object_get(cases, "texts"), *ids = json_object_get(cases, name);
    assert_true(json_array_size(texts) > 250 && json_array_size(ids) == json_array_size(texts));
    int wrong = 0;
    for (size_t i = 0; i < json_array_size(texts); i++)
        wrong += !check_text(name, tokenizer, json_array_get(texts, i), json_array_get(ids, i));
    char *key = fbt_format("%s decoded", name);
    const json_t *decoded = json_object_get(cases, key);
    for (size_t i = 0; i < json_array_size(decoded); i++)
        wrong += !check_decoded(name, tokenizer, json_array_get(ids, i), json_array_get(decoded, i));
    free(key);
    assert_int_equal(wrong, 0);
    json_decref(cases);
    fb_tokenizer_free(tokenizer);
    fb_gguf_free(gguf);
}

int main(void) {
    static char names[][16] = {"bpe-gpt-2",     "bpe-default", "bpe-falcon", "bpe-smollm",
                               "bpe-llama-bpe", "bpe-qwen2",   "spm",        "spm-plain"};
    struct CMUnitTest tests[8];
    for (size_t i = 0; i < 8; i++)
        tests[i] = (struct CMUnitTest){names[i], ids_are_those_of_llama_cpp, NULL, NULL, names[i]};
    return cmocka_run_group_tests_name("tokenizer of a GGUF file", tests, NULL, NULL);
}
