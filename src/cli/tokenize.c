/* fusebox tokenize: text to token ids and back. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/interrupt.h"
#include "cli/json_out.h"
#include "cli/model.h"
#include "cli/output.h"
#include "cli/prompt.h"

typedef struct tokenize_options {
    const char *model, *text, *file, *decode;
    bool ids, pieces, json, plain;
} tokenize_options;

/* ---- output ---- */

static void print_ids(const int32_t *ids, int64_t count) {
    for (int64_t i = 0; i < count; i++) printf("%s%" PRId32, i ? " " : "", ids[i]);
    putchar('\n');
}

/* As one line: what would steer a terminal is escaped. */
static void put_piece(const char *text, size_t bytes) {
    char shown[FB_SHOWN_BYTES];
    for (size_t at = 0; at < bytes;) {
        at += fb_show_character(text + at, bytes - at, false, shown);
        fputs(shown, stdout);
    }
}

/* One token a line: its id, and how the vocabulary spells it. */
static void print_pieces(const fb_tokenizer *tokenizer, const int32_t *ids, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const char *text;
        size_t bytes;
        printf("%8" PRId32 "  ", ids[i]);
        if (fb_tokenizer_piece(tokenizer, ids[i], &text, &bytes)) put_piece(text, bytes);
        putchar('\n');
    }
}

static void print_json(const fb_tokenizer *tokenizer, const char *text, size_t size, const int32_t *ids,
                       int64_t count) {
    cli_json json = {.out = stdout};
    cli_json_open(&json, NULL, '{');
    cli_json_bytes(&json, "text", text, size);
    cli_json_int(&json, "count", count);
    cli_json_open(&json, "ids", '[');
    for (int64_t i = 0; i < count; i++) cli_json_int(&json, NULL, ids[i]);
    cli_json_close(&json, ']');
    cli_json_open(&json, "pieces", '[');
    for (int64_t i = 0; i < count; i++) {
        const char *piece;
        size_t bytes;
        if (fb_tokenizer_piece(tokenizer, ids[i], &piece, &bytes))
            cli_json_bytes(&json, NULL, piece, bytes);
        else
            cli_json_string(&json, NULL, NULL);
    }
    cli_json_close(&json, ']');
    cli_json_close(&json, '}');
    putchar('\n');
}

static void print_tokens(const tokenize_options *o, const fb_tokenizer *tokenizer, const char *text,
                         size_t bytes, const int32_t *ids, int64_t count) {
    if (o->json)
        print_json(tokenizer, text, bytes, ids, count);
    else if (o->pieces)
        print_pieces(tokenizer, ids, count);
    else
        print_ids(ids, count);
}

/* ---- text to ids ---- */

static int encode(const tokenize_options *o, const fb_tokenizer *tokenizer) {
    cli_prompt prompt = {0};
    fb_error err;
    int status = cli_prompt_read(&prompt, o->text, o->file);
    if (status == CLI_OK && fb_tokenizer_encode(tokenizer, prompt.text, prompt.bytes, !o->plain, &prompt.ids,
                                                &prompt.count, &err) != FB_OK)
        status = cli_fail_error(&err);
    if (status == CLI_OK) print_tokens(o, tokenizer, prompt.text, prompt.bytes, prompt.ids, prompt.count);
    cli_prompt_free(&prompt);
    return status;
}

/* ---- ids to text ---- */

/* "1,2 3": numbers with commas, spaces or brackets between them. */
static int read_ids(const char *list, int32_t **ids, int64_t *count) {
    *count = 0;
    *ids = malloc((strlen(list) / 2 + 1) * sizeof **ids);
    if (!*ids) return cli_fail(CLI_FAILED, "--decode: no memory");
    for (const char *at = list; *at;) {
        size_t skip = strspn(at, " ,\t\n[]");
        at += skip;
        if (!*at) break;
        char *end;
        errno = 0;
        long long id = strtoll(at, &end, 10);
        if (end == at || errno || id < INT32_MIN || id > INT32_MAX || !strchr(" ,\t\n[]", *end))
            return cli_fail(CLI_USAGE, "--decode: %.32s (numbers with commas or spaces between them)", at);
        (*ids)[(*count)++] = (int32_t)id;
        at = end;
    }
    return CLI_OK;
}

static int decode(const tokenize_options *o, const fb_tokenizer *tokenizer) {
    cli_prompt list = {0};
    char *text = NULL;
    size_t bytes;
    fb_error err;
    bool is_stdin = strcmp(o->decode, "-") == 0;
    int status = cli_prompt_read(&list, is_stdin ? NULL : o->decode, is_stdin ? "-" : NULL);
    if (status == CLI_OK) status = read_ids(list.text, &list.ids, &list.count);
    if (status == CLI_OK &&
        fb_tokenizer_decode(tokenizer, list.ids, list.count, !o->plain, &text, &bytes, &err) != FB_OK)
        status = cli_fail_error(&err);
    if (status == CLI_OK && (o->ids || o->pieces || o->json)) {
        print_tokens(o, tokenizer, text, bytes, list.ids, list.count);
    } else if (status == CLI_OK) {
        if (isatty(STDOUT_FILENO))
            cli_put_lines(stdout, text, bytes);
        else
            fwrite(text, 1, bytes, stdout);
        putchar('\n');
    }
    fb_free(text);
    free(list.ids);
    list.ids = NULL;
    cli_prompt_free(&list);
    return status;
}

/* ---- the command line ---- */

static int take_positionals(const cli_args *args, tokenize_options *o) {
    int status = cli_prompt_take(args, &o->model, &o->text, &o->file);
    if (status != CLI_OK) return status;
    if ((o->text != NULL) + (o->file != NULL) + (o->decode != NULL) != 1)
        return cli_fail(CLI_USAGE, "tokenize: what? (one of TEXT, -p TEXT, -f FILE, - and --decode IDS)");
    if (o->ids + o->pieces + o->json > 1)
        return cli_fail(CLI_USAGE, "tokenize: several forms (one of --ids, --pieces and --json)");
    return CLI_OK;
}

static int run(const tokenize_options *o) {
    char *path;
    int status = cli_model_find(o->model, false, &path);
    if (status != CLI_OK) return status;
    fb_error err;
    fb_tokenizer *tokenizer;
    if (fb_tokenizer_open(path, &tokenizer, &err) != FB_OK)
        status = cli_fail_error(&err);
    else
        status = (o->decode ? decode : encode)(o, tokenizer);
    fb_tokenizer_free(tokenizer);
    free(path);
    return status;
}

int cli_tokenize(const cli_command *command, int argc, char **argv) {
    tokenize_options o = {0};
    bool special = false;
    const cli_option input[] = {
        {CLI_ROW('p', "prompt", CLI_STRING, &o.text, "TEXT", "the text to tokenize")},
        {CLI_ROW('f', "file", CLI_STRING, &o.file, "FILE", "read it from a file; - is standard input")},
        {CLI_ROW(0, "decode", CLI_STRING, &o.decode, "IDS",
                 "back to text: ids with commas or spaces between them; - reads them from standard input")},
        {CLI_ROW(0, "special", CLI_FLAG, &special, NULL,
                 "add what the tokenizer puts around a text; with --decode show it (default)")},
        {CLI_ROW(0, "no-special", CLI_FLAG, &o.plain, NULL, "the text alone")},
    };
    const cli_option output[] = {
        {CLI_ROW(0, "ids", CLI_FLAG, &o.ids, NULL, "ids on one line (default)")},
        {CLI_ROW(0, "pieces", CLI_FLAG, &o.pieces, NULL,
                 "one token a line: its id, and how the vocabulary spells it")},
        {CLI_ROW(0, "json", CLI_FLAG, &o.json, NULL, "one JSON object: text, count, ids, pieces")},
    };
    const cli_group groups[] = {{"input", input, sizeof input / sizeof *input},
                                {"output", output, sizeof output / sizeof *output}};
    cli_args args = {
        .command = command,
        .notes = "MODEL, or -m MODEL, is a folder with a tokenizer.json or a tokenizer.model, one of "
                 "these files, a\n.gguf file, or ORG/NAME, which is looked up in the cache of Hugging "
                 "Face; no weights are needed.\nWithout one, the built-in storyteller's is used.\nThe text "
                 "may stand alone, behind MODEL or in quotes; a single - reads it "
                 "from standard input.\n",
        .groups = groups,
        .group_count = 2,
        .max_positionals = 2,
        .takes_model = true};
    int status;
    if (!cli_args_parse(&args, argc, argv, &status)) return status;
    if (special && o.plain) return cli_fail(CLI_USAGE, "--special: with --no-special (one of them)");
    status = take_positionals(&args, &o);
    return status == CLI_OK ? run(&o) : status;
}
