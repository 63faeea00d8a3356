/* Tokenizers from GGUF metadata: the ids of llama.cpp (tests/data/gguf/make_tokenizers.py), and refusals. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "file/json.h"
#include "support/gguf_writer.h"
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

static bool check_text(const char *name, const fb_tokenizer *tokenizer, const fb_json *text,
                       const fb_json *expected) {
    int32_t *ids;
    int64_t count;
    fb_error err;
    assert_ok(
        fb_tokenizer_encode(tokenizer, fb_json_text_of(text), fb_json_size(text), true, &ids, &count, &err),
        &err);
    bool same = count == (int64_t)fb_json_size(expected);
    for (int64_t i = 0; same && i < count; i++)
        same = ids[i] == fb_json_int_of(fb_json_at(expected, (size_t)i));
    if (!same) {
        char wanted[1024], shown[1024];
        print_message("%s: %s: expected %s, got", name, fb_json_show(text, shown, sizeof shown),
                      fb_json_show(expected, wanted, sizeof wanted));
        for (int64_t i = 0; i < count; i++) print_message(" %d", ids[i]);
        print_message("\n");
    }
    fb_free(ids);
    return same;
}

/* Without special tokens, whose ids llama.cpp shows as nothing too. */
static bool check_decoded(const char *name, const fb_tokenizer *tokenizer, const fb_json *list,
                          const fb_json *expected) {
    int64_t count = (int64_t)fb_json_size(list);
    int32_t *ids = calloc((size_t)count + 1, sizeof *ids);
    char *text;
    size_t bytes;
    fb_error err;
    assert_non_null(ids);
    for (int64_t i = 0; i < count; i++) ids[i] = (int32_t)fb_json_int_of(fb_json_at(list, (size_t)i));
    assert_ok(fb_tokenizer_decode(tokenizer, ids, count, false, &text, &bytes, &err), &err);
    bool same = bytes == fb_json_size(expected) && memcmp(text, fb_json_text_of(expected), bytes) == 0;
    if (!same) print_message("%s: decoded \"%s\", expected \"%s\"\n", name, text, fb_json_text_of(expected));
    fb_free(text);
    free(ids);
    return same;
}

static void ids_are_those_of_llama_cpp(void **state) {
    const char *name = *state;
    fb_gguf *gguf;
    fb_tokenizer *tokenizer = open_tokenizer(name, &gguf);
    fb_json *cases;
    fb_error err;
    assert_ok(fb_json_load(DATA "tokenizer.cases.json", 1 << 24, &cases, &err), &err);
    const fb_json *texts = fb_json_get(cases, "texts"), *ids = fb_json_get(cases, name);
    assert_true(fb_json_size(texts) > 250 && fb_json_size(ids) == fb_json_size(texts));
    int wrong = 0;
    for (size_t i = 0; i < fb_json_size(texts); i++)
        wrong += !check_text(name, tokenizer, fb_json_at(texts, i), fb_json_at(ids, i));
    char *key = fbt_format("%s decoded", name);
    const fb_json *decoded = fb_json_get(cases, key);
    for (size_t i = 0; i < fb_json_size(decoded); i++)
        wrong += !check_decoded(name, tokenizer, fb_json_at(ids, i), fb_json_at(decoded, i));
    free(key);
    assert_int_equal(wrong, 0);
    fb_json_free(cases);
    fb_tokenizer_free(tokenizer);
    fb_gguf_free(gguf);
}

/* ---- small files made here ----------------------------------------------------------------------------- */

typedef struct small {
    const char *model, *pre;       /* NULL: not said */
    const char *tokens[10];        /* up to NULL */
    const char *merge;             /* NULL: no array */
    void (*more)(fbt_bytes *file); /* further values … */
    uint64_t more_count;           /* … so many */
} small;

static fbt_bytes write_small(const small *s) {
    fbt_bytes file = {0};
    uint64_t tokens = 0;
    while (tokens < 10 && s->tokens[tokens]) tokens++;
    fbt_gguf_start(&file, 3, 0,
                   (s->model != NULL) + (s->pre != NULL) + (tokens > 0) + (s->merge != NULL) + s->more_count);
    if (s->model) fbt_gguf_text(&file, "tokenizer.ggml.model", s->model);
    if (s->pre) fbt_gguf_text(&file, "tokenizer.ggml.pre", s->pre);
    if (tokens) fbt_gguf_texts(&file, "tokenizer.ggml.tokens", s->tokens, tokens);
    if (s->merge) fbt_gguf_texts(&file, "tokenizer.ggml.merges", &s->merge, 1);
    if (s->more) s->more(&file);
    return file;
}

static fb_status load_small(const small *s, fb_tokenizer **tokenizer, fb_error *err) {
    fbt_bytes file = write_small(s);
    fb_gguf *gguf;
    assert_ok(fb_gguf_parse("small", file.data, file.size, &gguf, err), err);
    fb_status status = fb_tokenizer_from_gguf("small", gguf, tokenizer, err);
    fb_gguf_free(gguf);
    free(file.data);
    return status;
}

#define T(name) "tokenizer.ggml." name

static void integer_tokens(fbt_bytes *file) { fbt_gguf_array(file, T("tokens"), FB_GGUF_U32, 0); }
static void no_tokens(fbt_bytes *file) { fbt_gguf_array(file, T("tokens"), FB_GGUF_STRING, 0); }
static void one_type(fbt_bytes *file) {
    fbt_gguf_array(file, T("token_type"), FB_GGUF_I32, 1);
    fbt_put_u32(file, 1);
}
static void real_types(fbt_bytes *file) {
    fbt_gguf_array(file, T("token_type"), FB_GGUF_F32, 3);
    fbt_put(file, (float[3]){1, 1, 1}, 12);
}
static void bad_scores(fbt_bytes *file) {
    fbt_gguf_array(file, T("scores"), FB_GGUF_F32, 3);
    fbt_put(file, (float[3]){1, (float)NAN, 1}, 12);
}
static void integer_scores(fbt_bytes *file) {
    fbt_gguf_array(file, T("scores"), FB_GGUF_U32, 3);
    fbt_put(file, (uint32_t[3]){1, 1, 1}, 12);
}
static void add_bos(fbt_bytes *file) { fbt_gguf_bool(file, T("add_bos_token"), 1); }
static void add_sep(fbt_bytes *file) { fbt_gguf_bool(file, T("add_sep_token"), 1); }
static void space_prefix(fbt_bytes *file) { fbt_gguf_bool(file, T("add_space_prefix"), 1); }
static void high_bos(fbt_bytes *file) { fbt_gguf_u32(file, T("bos_token_id"), 3); }
static void charsmap(fbt_bytes *file) { fbt_gguf_array(file, T("precompiled_charsmap"), FB_GGUF_U8, 0); }

static void no_merges(fbt_bytes *file) {
    fbt_gguf_array(file, T("merges"), FB_GGUF_STRING, 0);
    fbt_gguf_bool(file, T("add_bos_token"), 0);
}

/* Files with one thing wrong, of each of the two models. */
#define BPE(...)                                                                                             \
    { .model = "gpt2", .pre = "gpt-2", __VA_ARGS__ }
#define AB(...)   BPE(.tokens = {"a", "b", "ab"}, __VA_ARGS__)
#define MORE(...) AB(.merge = "a b", .more = __VA_ARGS__, .more_count = 1)
#define LLAMA(...)                                                                                           \
    { .model = "llama", .tokens = {"a", "b", "ab"}, .more = __VA_ARGS__, .more_count = 1 }
#define F FB_ERROR_FILE
#define U FB_ERROR_UNSUPPORTED

static const struct {
    small file;
    fb_status status;
    const char *words;
} refusals[] = {
    {{.model = "bert"}, U, T("model") ": \"bert\" (known: gpt2, llama, t5, gemma4)"},
    {{.model = "gpt2", .pre = "other", .tokens = {"a"}}, U, T("pre") ": \"other\" (known:"},
    {BPE(.merge = "a b"), F, T("tokens") ": missing"},
    {BPE(.more = integer_tokens, .more_count = 1), F, T("tokens") ": array of u32 (strings)"},
    {BPE(.more = no_tokens, .more_count = 1), F, T("tokens") ": 0 tokens"},
    {BPE(.tokens = {"a", "b", "a"}, .merge = "a b"), F, "tokens[2]: \"a\" (token 0 already)"},
    {BPE(.tokens = {"a", "\xff"}, .merge = "a b"), F, "tokens[1]: not UTF-8"},
    {AB(.merge = NULL), F, T("merges") ": missing"},
    {AB(.merge = "ab"), F, "merges[0]: \"ab\" (two tokens"},
    {AB(.merge = "ab "), F, "merges[0]: \"ab \" (two tokens"},
    {AB(.merge = "b a"), F, "merges[0]: \"ba\" (not in the vocabulary"},
    {MORE(one_type), F, "token_type: 1 elements (3"},
    {MORE(real_types), F, "token_type: array of f32"},
    {MORE(add_bos), F, "bos_token_id: missing"},
    {MORE(high_bos), F, "bos_token_id: 3 (0 to 2)"},
    {MORE(add_sep), U, "add_sep_token: true"},
    {MORE(space_prefix), U, "add_space_prefix: true"},
    {LLAMA(charsmap), U, "precompiled_charsmap"},
    {LLAMA(bad_scores), F, T("scores") "[1]: nan"},
    {LLAMA(integer_scores), F, "scores: array of u32"},
    {{.model = "llama", .tokens = {"a"}}, F, "bos_token_id: missing"},
    {{.model = "t5", .tokens = {"a"}}, F, "unknown_token_id: 2 (0 to 0)"},
    {{.model = "t5", .tokens = {"a", "b", "c"}}, F, "scores: missing array"},
};

static void refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        fb_tokenizer *tokenizer = (fb_tokenizer *)(uintptr_t)1;
        fb_error err = {0};
        fb_status status = load_small(&refusals[i].file, &tokenizer, &err);
        if (status == FB_OK) fail_msg("%s: loaded", refusals[i].words);
        assert_null(tokenizer);
        assert_refused(status, refusals[i].status, &err, refusals[i].words);
    }
}

static void none(void **state) {
    (void)state;
    static const small files[] = {{.pre = "gpt-2"}, {.model = "none"}, {.model = "no_vocab"}};
    for (size_t i = 0; i < 3; i++) {
        fb_tokenizer *tokenizer = (fb_tokenizer *)(uintptr_t)1;
        fb_error err;
        assert_ok(load_small(&files[i], &tokenizer, &err), &err);
        assert_null(tokenizer);
    }
}

/* Without scores the leftmost pair merges first, whatever its id; a character that is no token may be part of
 * one; else, without tokens for its bytes, it is the unknown token. SentencePiece's numbers hold where the
 * file is silent. */
static void least_llama(void **state) {
    (void)state;
    static const small file = {
        .model = "llama",
        .tokens = {"<unk>", "<s>", "</s>", "bc", "ab", "a", "aa", "aaaa", "aaaaaaaa", "\xE2\x96\x81"}};
    static const struct {
        const char *text;
        int32_t ids[6];
        int64_t count;
    } cases[] = {
        {"aaa", {1, 9, 6, 5}, 4},
        {"abc bc", {1, 9, 4, 0, 9, 3}, 6},
        {"z", {1, 9, 0}, 3},
        {"aaaaaaaaa", {1, 9, 8, 5}, 4},
    };
    fb_tokenizer *tokenizer;
    fb_error err;
    assert_ok(load_small(&file, &tokenizer, &err), &err);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t *ids;
        int64_t count;
        assert_ok(
            fb_tokenizer_encode(tokenizer, cases[i].text, strlen(cases[i].text), true, &ids, &count, &err),
            &err);
        assert_int_equal(count, cases[i].count);
        assert_memory_equal(ids, cases[i].ids, (size_t)count * sizeof *ids);
        fb_free(ids);
    }
    fb_tokenizer_free(tokenizer);
}

static void five_types(fbt_bytes *file) {
    fbt_gguf_array(file, T("token_type"), FB_GGUF_I32, 5);
    fbt_put(file, (int32_t[5]){1, 1, 1, 3, 5}, 20);
}

static void t5_values(fbt_bytes *file) {
    fbt_gguf_array(file, T("scores"), FB_GGUF_F32, 7);
    fbt_put(file, (float[7]){0, 0, 0, -1, -2, -3, -9}, 28);
    fbt_gguf_array(file, T("token_type"), FB_GGUF_I32, 7);
    fbt_put(file, (int32_t[7]){3, 3, 2, 1, 1, 1, 1}, 28);
}

static void t5_merged(fbt_bytes *file) {
    t5_values(file);
    fbt_gguf_bool(file, T("remove_extra_whitespaces"), 1);
    fbt_gguf_bool(file, T("add_eos_token"), 0);
}

static void expect_ids(const small *file, const char *text, int64_t count, const int32_t *expected) {
    fb_tokenizer *tokenizer;
    fb_error err;
    int32_t *ids;
    int64_t found;
    assert_ok(load_small(file, &tokenizer, &err), &err);
    assert_ok(fb_tokenizer_encode(tokenizer, text, strlen(text), true, &ids, &found, &err), &err);
    assert_int_equal(found, count);
    assert_memory_equal(ids, expected, (size_t)count * sizeof *ids);
    fb_free(ids);
    fb_tokenizer_free(tokenizer);
}

#define IDS(...)                                                                                             \
    sizeof((int32_t[]){__VA_ARGS__}) / 4, (int32_t[]) { __VA_ARGS__ }

/* A Unigram vocabulary: the best way, not the longest token; spaces as the file says; one unknown token for a
 * run. */
static void least_t5(void **state) {
    (void)state;
    small file = {.model = "t5",
                  .tokens = {"<pad>", "</s>", "<unk>", "\xE2\x96\x81", "a", "b", "ab"},
                  .more = t5_values,
                  .more_count = 2};
    expect_ids(&file, "ab  zzb", IDS(3, 4, 5, 3, 3, 2, 5, 1));
    file.more = t5_merged;
    file.more_count = 4;
    expect_ids(&file, " ab  zzb ", IDS(3, 4, 5, 3, 2, 5));
}

/* Merges of characters, where a space is a letter and no word goes over a line's end. */
static void least_gemma4(void **state) {
    (void)state;
    static const small file = {.model = "gemma4",
                               .tokens = {"<0xC3>", "<0xA9>", "\xE2\x96\x81", "a", "\n",
                                          "\xE2\x96\x81"
                                          "a"},
                               .merge = "\xE2\x96\x81 a"};
    expect_ids(&file, "a a\n\xC3\xA9", IDS(3, 5, 4, 0, 1));
}

/* The patterns of these names compile, and lose no part of a text: all that are tokens here are digits. */
static void every_pre(void **state) {
    (void)state;
    static const char *const names[] = {
        "default", "gpt-2",    "smollm",         "llama-bpe",    "qwen2",     "qwen35",      "falcon",
        "tekken",  "gpt-4o",   "kimi-k2",        "deepseek-llm", "viking",    "deepseek-v3", "superbpe",
        "bloom",   "tiny_aya", "deepseek-coder", "bailingmoe",   "seed-coder"};
    static const char text[] = "HTTPServer it's 1234567 \xE6\x9C\x88 a.b  \n\t x\xC3\x89T 12 ";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        small file = {.model = "gpt2", .pre = names[i], .tokens = {"1", "2", "3"}, .merge = NULL};
        file.more = no_merges;
        file.more_count = 2;
        fb_tokenizer *tokenizer;
        fb_error err;
        int32_t *ids;
        int64_t count;
        assert_ok(load_small(&file, &tokenizer, &err), &err);
        assert_ok(fb_tokenizer_encode(tokenizer, text, sizeof text - 1, false, &ids, &count, &err), &err);
        assert_int_equal(count, 5); /* 1 2 3, 1 2 */
        fb_free(ids);
        fb_tokenizer_free(tokenizer);
    }
}

/* Control tokens are shown if asked for; a number that is only filled is so too, but not found in a text. */
static void types_decide(void **state) {
    (void)state;
    static const small file =
        BPE(.tokens = {"a", "b", "ab", "<c>", "[P]"}, .merge = "a b", .more = five_types, .more_count = 1);
    static const int32_t ids[] = {2, 3, 4, 0};
    fb_tokenizer *tokenizer;
    fb_error err;
    char *text;
    size_t bytes;
    int32_t *found;
    int64_t count;
    assert_ok(load_small(&file, &tokenizer, &err), &err);
    assert_ok(fb_tokenizer_decode(tokenizer, ids, 4, false, &text, &bytes, &err), &err);
    assert_string_equal(text, "aba");
    fb_free(text);
    assert_ok(fb_tokenizer_decode(tokenizer, ids, 4, true, &text, &bytes, &err), &err);
    assert_string_equal(text, "ab<c>[P]a");
    fb_free(text);
    assert_ok(fb_tokenizer_encode(tokenizer, "ab<c>[P]a", 9, true, &found, &count, &err), &err);
    assert_int_equal(count, 3); /* none of "[P]" is a token but itself */
    assert_memory_equal(found, ((int32_t[]){2, 3, 0}), 12);
    fb_free(found);
    fb_tokenizer_free(tokenizer);
}

int main(void) {
    static char names[][16] = {"bpe-gpt-2",     "bpe-default", "bpe-falcon", "bpe-smollm",
                               "bpe-llama-bpe", "bpe-qwen2",   "spm",        "spm-plain"};
    enum { FILES = sizeof names / sizeof *names };
    struct CMUnitTest tests[FILES + 7] = {cmocka_unit_test(refused),     cmocka_unit_test(none),
                                          cmocka_unit_test(least_llama), cmocka_unit_test(types_decide),
                                          cmocka_unit_test(least_t5),    cmocka_unit_test(least_gemma4),
                                          cmocka_unit_test(every_pre)};
    for (size_t i = 0; i < FILES; i++)
        tests[7 + i] = (struct CMUnitTest){names[i], ids_are_those_of_llama_cpp, NULL, NULL, names[i]};
    return cmocka_run_group_tests_name("tokenizer of a GGUF file", tests, NULL, NULL);
}
