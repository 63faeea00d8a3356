/* Chats of a model: where its templates come from, and that text of users never becomes a special token. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/support.h"

#include "text/tokenizer.h"

/* ---- a tokenizer with added tokens of all kinds ---- */

static const char tokenizer_json[] =
    "{\"version\":\"1.0\",\"added_tokens\":["
    "{\"id\":20,\"content\":\"<|im_start|>\",\"special\":true,\"normalized\":false},"
    "{\"id\":21,\"content\":\"<|im_end|>\",\"special\":true,\"normalized\":false},"
    "{\"id\":22,\"content\":\"<t>\",\"special\":false,\"normalized\":false},"
    "{\"id\":23,\"content\":\"<b>\",\"special\":false,\"normalized\":false},"
    "{\"id\":24,\"content\":\"<n>\",\"special\":true,\"normalized\":true},"
    "{\"id\":25,\"content\":\"<|im_end|>!\",\"special\":true,\"normalized\":false},"
    "{\"id\":19,\"content\":\"rrr\",\"special\":true,\"normalized\":false}],"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"<\":0,\"|\":1,\">\":2,\"i\":3,\"m\":4,\"_\":5,\"e\":6,\"n\":7,"
    "\"d\":8,"
    "\"s\":9,\"t\":10,\"a\":11,\"r\":12,\"b\":13,\"\\n\":14,\"!\":15,\"en\":16,\"ab\":17,\"rr\":18,\"rrr\":"
    "19},"
    "\"merges\":[[\"e\",\"n\"],[\"a\",\"b\"],[\"r\",\"r\"],[\"rr\",\"r\"]]}}";

/* Encodes `text`, in which a user wrote what is between { and }. */
static char *encode(const char *text, const char *template_text) {
    char plain[256], *shown = malloc(1024), *to = shown;
    unsigned char marks[256];
    size_t size = 0;
    bool user = false;
    assert_non_null(shown);
    for (const char *c = text; *c; c++) {
        if (*c == '{' || *c == '}') {
            user = *c == '{';
            continue;
        }
        marks[size] = user;
        plain[size++] = *c;
    }
    fb_tokenizer *tokenizer;
    fb_error err;
    int32_t *ids;
    int64_t count;
    assert_ok(fb_tokenizer_parse("t.json", tokenizer_json, sizeof tokenizer_json - 1, &tokenizer, &err),
              &err);
    assert_ok(fb_tokenizer_encode_marked(tokenizer, plain, marks, size, template_text, &ids, &count, &err),
              &err);
    *to = '\0';
    for (int64_t i = 0; i < count; i++) to += sprintf(to, "%s%d", i ? " " : "", ids[i]);
    fb_free(ids);
    fb_tokenizer_free(tokenizer);
    return shown;
}

static void check_ids(const char *text, const char *template_text, const char *wanted) {
    char *shown = encode(text, template_text);
    if (strcmp(shown, wanted) != 0) fail_msg("%s: %s, wanted %s", text, shown, wanted);
    free(shown);
}

#define IM_END "0 1 3 4 5 16 8 1 2" /* <|im_end|> as plain text */

static void test_special(void **state) {
    (void)state;
    check_ids("<|im_start|>a<|im_end|>", "", "20 11 21");
    check_ids("<|im_start|>{a}<|im_end|>", "", "20 11 21");
    check_ids("<|im_start|>{<|im_end|>}<|im_end|>", "", "20 " IM_END " 21");
    /* A token that is made of both is plain text as well. */
    check_ids("<|im_{end|>}", "", IM_END);
    check_ids("{<|im_}end|>", "", IM_END);
    /* A longer token that reaches into the user's text leaves the shorter one that does not. */
    check_ids("<|im_end|>{!}", "", "21 15");
    check_ids("<|im_end|>!", "", "25");
    /* Nor do merges make one. */
    check_ids("rrr", "", "19");
    check_ids("{rrr}", "", "12 12 12");
    check_ids("{rr}", "", "18");
    /* Merges do not stop where the user's text begins. */
    check_ids("a{b}", "", "17");
    check_ids("{a}b<|im_end|>", "", "17 21");
}

static void test_added(void **state) {
    (void)state;
    /* A token that is not special is a word like others, unless the template gives it a meaning. */
    check_ids("{<t><b>}", "", "22 23");
    check_ids("{<t><b>}<t>", "write <t> here", "0 10 2 23 22");
    /* One that is looked for in normalised text. */
    check_ids("<n>{<n>a}<n>", "", "24 0 7 2 11 24");
    check_ids("<n>a", "", "24 11");
}

/* ---- a model ---- */

/* The storyteller with other files beside its weights. */
static char *make_model(void) {
    static const char *const links[] = {"config.json", "generation_config.json", "model.safetensors",
                                        "tokenizer.json"};
    char here[2048], *dir = fbt_dir_create();
    assert_non_null(getcwd(here, sizeof here));
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        char *from = fbt_format("%s/" FBT_STORYTELLER "/%s", here, links[i]);
        char *to = fbt_format("%s/%s", dir, links[i]);
        assert_int_equal(symlink(from, to), 0);
        free(from);
        free(to);
    }
    return dir;
}

static void write_file(const char *dir, const char *name, const char *text) {
    char *path = fbt_format("%s/%s", dir, name);
    fbt_text_write(path, text);
    free(path);
}

#define MESSAGES "[{\"role\":\"user\",\"content\":\"Hi<|endoftext|>\"}]"

static void check_render(const fb_model *model, const fb_chat_options *options, const char *wanted) {
    char *text;
    size_t bytes;
    fb_error err;
    assert_ok(fb_chat_render(model, MESSAGES, options, &text, &bytes, &err), &err);
    assert_string_equal(text, wanted);
    assert_int_equal(bytes, strlen(wanted));
    fb_free(text);
}

static void test_sources(void **state) {
    (void)state;
    char *dir = make_model();
    fb_chat_options options;
    const char *name, *text;
    fb_chat_options_default(&options);
    write_file(dir, "tokenizer_config.json",
               "{\"bos_token\":{\"content\":\"<|endoftext|>\"},\"eos_token\":\"E\",\"chat_template\":["
               "{\"name\":\"tool_use\",\"template\":\"T{{ tools|length }}\"},"
               "{\"name\":\"default\",\"template\":\"{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
               "{{ add_generation_prompt }}{{ tools }}{{ pad_token }}{{ extra }}\"}]}");
    fb_model *model = fbt_model_open(dir);
    check_render(model, &options, "<|endoftext|>Hi<|endoftext|>ETrueNone");
    check_render(model, NULL, "<|endoftext|>Hi<|endoftext|>ETrueNone");
    assert_true(fb_model_chat_template(model, 0, &name, &text));
    assert_string_equal(name, "default");
    assert_true(fb_model_chat_template(model, 1, &name, &text));
    assert_false(fb_model_chat_template(model, 2, &name, &text));
    assert_string_equal(fb_model_chat_source(model, 0), "tokenizer_config.json");
    assert_string_equal(fb_model_chat_source(model, 1), "tokenizer_config.json");
    assert_null(fb_model_chat_source(model, 2));
    assert_null(fb_model_chat_source(model, -1));
    options.tools = "[1, 2]";
    check_render(model, &options, "T2");
    options.template_name = "default";
    options.add_generation_prompt = false;
    options.variables = "{\"extra\": \"x\", \"eos_token\": \"F\"}";
    check_render(model, &options, "<|endoftext|>Hi<|endoftext|>FFalse[1, 2]x");
    options.template_text = "{{ strftime_now('%Y-%m-%d') }}";
    options.now = 86400;
    check_render(model, &options, "1970-01-02");
    fb_model_free(model);

    write_file(dir, "chat_template.jinja", "J{{ messages|length }}\n");
    model = fbt_model_open(dir);
    check_render(model, NULL, "J1");
    assert_string_equal(fb_model_chat_source(model, 0), "chat_template.jinja");
    assert_string_equal(fb_model_chat_source(model, 1), "tokenizer_config.json");
    fb_model_free(model);
    fbt_dir_remove(dir);
}

/* Ids: the template's token once, the user's as text. */
static void test_tokens(void **state) {
    (void)state;
    char *dir = make_model();
    int32_t *ids, *plain;
    int64_t count, plain_count;
    fb_error err;
    write_file(
        dir, "tokenizer_config.json",
        "{\"bos_token\":\"<|endoftext|>\",\"chat_template\":\"{{ bos_token }}{{ messages[0].content }}\"}");
    fb_model *model = fbt_model_open(dir);
    assert_ok(fb_chat_tokenize(model, MESSAGES, NULL, &ids, &count, &err), &err);
    assert_int_equal(ids[0], 0);
    for (int64_t i = 1; i < count; i++) assert_true(ids[i] > 1);
    char *text;
    size_t bytes;
    assert_ok(fb_detokenize(model, ids, count, false, &text, &bytes, &err), &err);
    assert_string_equal(text, "Hi<|endoftext|>");
    fb_free(text);
    /* As a plain text the same would be a special token. */
    assert_ok(fb_tokenize(model, "Hi<|endoftext|>", 15, false, &plain, &plain_count, &err), &err);
    assert_int_equal(plain[plain_count - 1], 0);
    assert_true(count > plain_count + 1);
    fb_free(ids);
    fb_free(plain);
    fb_model_free(model);
    fbt_dir_remove(dir);
}

static void check_refused(const fb_model *model, const char *messages, const fb_chat_options *options,
                          fb_status wanted, const char *words) {
    char *text = (char *)1;
    size_t bytes = 1;
    int32_t *ids = (int32_t *)1;
    int64_t count = 1;
    fb_error err = {0};
    fb_status status = fb_chat_render(model, messages, options, &text, &bytes, &err);
    assert_refused(status, wanted, &err, words);
    assert_true(!text && !bytes);
    status = fb_chat_tokenize(model, messages, options, &ids, &count, &err);
    assert_refused(status, wanted, &err, words);
    assert_true(!ids && !count);
}

static void test_refusals(void **state) {
    (void)state;
    char *dir = make_model();
    fb_chat_options options;
    fb_model *model = fbt_model_open(dir);
    fb_chat_options_default(&options);
    check_refused(model, MESSAGES, NULL, FB_ERROR_UNSUPPORTED, "no chat template");
    options.template_text = "{{ messages[0].content.x.y }}";
    check_refused(model, MESSAGES, &options, FB_ERROR_FILE, "chat template: line 1|'x' is undefined");
    options.template_text = "\n{{ raise_exception('no ' ~ messages[0].role) }}";
    check_refused(model, MESSAGES, &options, FB_ERROR_FILE, "line 2|no user");
    options.template_text = "a";
    check_refused(model, "{}", &options, FB_ERROR_USAGE, "messages: not a JSON array");
    check_refused(model, "[1]", &options, FB_ERROR_USAGE, "messages[0]: 1");
    check_refused(model, "[{\"role\":1}]", &options, FB_ERROR_USAGE, "messages[0]: role: 1");
    check_refused(model, "{\"messages\":1}", &options, FB_ERROR_USAGE, "messages: 1");
    check_refused(model, "[{\"role\":\"user\"}]", &options, FB_ERROR_USAGE, "messages[0]: content: missing");
    check_refused(model, "[", &options, FB_ERROR_FILE, "messages");
    check_refused(model, NULL, &options, FB_ERROR_USAGE, "messages: none");
    options.tools = "{}";
    check_refused(model, MESSAGES, &options, FB_ERROR_USAGE, "tools: not a JSON array");
    options.tools = NULL;
    options.template_text = NULL;
    options.template_name = "rag";
    check_refused(model, MESSAGES, &options, FB_ERROR_USAGE, "\"rag\"");
    fb_model_free(model);
    /* A broken file does not keep a model from being opened: a chat says what is wrong. */
    write_file(dir, "tokenizer_config.json", "{\"chat_template\": ");
    model = fbt_model_open(dir);
    check_refused(model, MESSAGES, NULL, FB_ERROR_FILE, "no chat template|tokenizer_config.json");
    fb_model_free(model);
    fbt_dir_remove(dir);
}

/* ---- ends of turns ---- */

static void test_turn_ends(void **state) {
    (void)state;
    char *dir = make_model();
    char *path = fbt_format("%s/tokenizer.json", dir), *text = fbt_file_read(path, NULL), *at;
    assert_int_equal(unlink(path), 0);
    /* Id 1 gets another name of the same size. */
    while ((at = strstr(text, "<|padding|>")) != NULL) memcpy(at, "<|im_end|>", 10), at[10] = ' ';
    while ((at = strstr(text, "<|im_end|> \"")) != NULL) memcpy(at, "<|im_end|>\" ", 12);
    fbt_text_write(path, text);
    free(text);
    free(path);
    fb_model *named = fbt_model_open(dir);
    assert_true(fb_model_is_end(named, 0));
    assert_true(fb_model_is_end(named, 1));
    assert_false(fb_model_is_end(named, 2));
    fb_model_free(named);
    fb_model *plain = fbt_model_open(FBT_STORYTELLER);
    assert_true(fb_model_is_end(plain, 0));
    assert_false(fb_model_is_end(plain, 1));
    fb_model_free(plain);
    fbt_dir_remove(dir);
}

/* ---- stop texts ---- */

static void check_stop(const char *const *pieces, const char *wanted, bool wanted_stop) {
    static const char *const texts[] = {"STOP", "\n\n", "STO!", "x\n\ny"};
    char all[256] = "";
    const char *out;
    size_t bytes;
    bool stopped = false;
    fb_stop *stop;
    fb_error err;
    assert_ok(fb_stop_create(texts, 4, &stop, &err), &err);
    for (; *pieces; pieces++) {
        assert_ok(fb_stop_push(stop, *pieces, strlen(*pieces), &out, &bytes, &stopped, &err), &err);
        strncat(all, out, bytes);
    }
    fb_stop_flush(stop, &out, &bytes);
    strncat(all, out, bytes);
    assert_string_equal(all, wanted);
    assert_int_equal(stopped, wanted_stop);
    fb_stop_free(stop);
}

static void test_stop(void **state) {
    (void)state;
    check_stop((const char *[]){"a", "bSTOPc", "d", NULL}, "ab", true);
    check_stop((const char *[]){"aS", "T", "", "OP", "x", NULL}, "a", true);
    check_stop((const char *[]){"aST", "OX", "STO", NULL}, "aSTOXSTO", false);
    check_stop((const char *[]){"aSTO", "!", "b", NULL}, "a", true);
    check_stop((const char *[]){"a\n", "b\n", "\nc", NULL}, "a\nb", true);
    check_stop((const char *[]){"SSTSTOSTOP", NULL}, "SSTSTO", true);
    /* One that is there counts, although a longer one might begin before it. */
    check_stop((const char *[]){"x\n", "\n", "y", NULL}, "x", true);
    check_stop((const char *[]){"", NULL}, "", false);
    fb_stop *stop;
    fb_error err;
    assert_refused(fb_stop_create((const char *[]){""}, 1, &stop, &err), FB_ERROR_USAGE, &err, "0 bytes");
    assert_refused(fb_stop_create(NULL, 65, &stop, &err), FB_ERROR_USAGE, &err, "65 texts|at most 64");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_special), cmocka_unit_test(test_added),    cmocka_unit_test(test_sources),
        cmocka_unit_test(test_tokens),  cmocka_unit_test(test_refusals), cmocka_unit_test(test_turn_ends),
        cmocka_unit_test(test_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
