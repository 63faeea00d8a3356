/* tokenizer.json: a model directory may come without one, but not with a bad one. What a tokenizer alone can
 * have wrong is in tests/text; here it passes through fb_model_open. */
#include "corrupt/corrupt.h"

#define FILE_ "tokenizer.json"

static void cut_file(const char *dir, const damage *row) {
    char *path = damaged_path(dir, row);
    size_t size;
    void *bytes = fbt_file_read(FBT_STORYTELLER "/" FILE_, &size);
    fbt_file_write(path, bytes, size * (size_t)atoi(row->value) / 100);
    free(bytes);
    free(path);
}

static void change_storyteller(const char *dir, const damage *row) {
    char *path = damaged_path(dir, row);
    fbt_file_copy(FBT_STORYTELLER "/" FILE_, path);
    free(path);
    set_member(dir, row);
}

#define TEXT(name, text, words)                                                                              \
    { name, "neox-parallel", write_file, FILE_, NULL, text, FILE_ "|" words }
#define CUT(percent)                                                                                         \
    { "cut at " percent "%", "neox-parallel", cut_file, FILE_, NULL, percent, FILE_ "|" }
#define SET(name, key, value, words)                                                                         \
    { name, "neox-parallel", change_storyteller, FILE_, key, value, FILE_ "|" words }

static const damage rows[] = {
    TEXT("empty", "", "empty"),
    TEXT("array", "[]", "object"),
    TEXT("empty object", "{}", "model"),
    TEXT("not UTF-8", "{\"model\": \"\xc3(\"}", "not JSON"),
    {"nested a million deep", "neox-parallel", nest_deeply, FILE_, NULL, NULL, FILE_ "|depth"},
    CUT("1"),
    CUT("50"),
    CUT("99"),
    SET("more ids than the model has", "version", "\"1.0\"", "4095|320"),
    SET("no model", "model", NULL, "model"),
    SET("model a list", "model", "[]", "model"),
    SET("model of another kind", "model.type", "\"WordPiece\"", "WordPiece"),
    SET("vocabulary a list", "model.vocab", "[]", "vocab"),
    SET("vocabulary with a negative id", "model.vocab", "{\"a\": -1}", "-1"),
    SET("vocabulary with a huge id", "model.vocab", "{\"a\": 1000000000000}", "1000000000000"),
    SET("vocabulary with a far id", "model.vocab", "{\"a\": 9000000}", "vocab|9000000|262147"),
    SET("vocabulary with one id twice", "model.vocab", "{\"a\": 1, \"b\": 1}", "1"),
    SET("vocabulary with a text for an id", "model.vocab", "{\"a\": \"1\"}", "vocab"),
    SET("merges a number", "model.merges", "3", "merges"),
    SET("merge of nothing known", "model.merges", "[\"nonesuch neither\"]", "merges"),
    SET("merge of three", "model.merges", "[[\"a\", \"b\", \"c\"]]", "merges"),
    SET("dropout", "model.dropout", "0.5", "dropout"),
    SET("normalizer unknown", "normalizer", "{\"type\": \"Nmt\"}", "normalizer|Nmt"),
    SET("pre-tokenizer unknown", "pre_tokenizer", "{\"type\": \"BertPreTokenizer\"}",
        "pre_tokenizer|BertPreTokenizer"),
    SET("pre-tokenizer a number", "pre_tokenizer", "7", "pre_tokenizer"),
    SET("post-processor unknown", "post_processor", "{\"type\": \"OtherProcessing\"}",
        "post_processor|OtherProcessing"),
    SET("post-processor without its tokens", "post_processor", "{\"type\": \"RobertaProcessing\"}",
        "post_processor|cls"),
    SET("template of an id that is not there", "post_processor",
        "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"S\"}}], "
        "\"special_tokens\": "
        "{\"S\": {\"ids\": [9000000]}}}",
        "post_processor|\"S\"|9000000"),
    SET("decoder unknown", "decoder", "{\"type\": \"CTC\"}", "decoder|CTC"),
    SET("added tokens a number", "added_tokens", "1", "added_tokens"),
    SET("added token without content", "added_tokens", "[{\"id\": 0}]", "added_tokens"),
};

int main(void) { return RUN_ROWS("tokenizer", run_damage, rows); }
