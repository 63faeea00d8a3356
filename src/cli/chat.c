/* fusebox chat: its options. */
#include "cli/chat.h"

#include <stdlib.h>

#include "cli/output.h"
#include "cli/prompt.h"

#define CONTEXT_DEFAULT 8192
#define CONTEXT_LEAST   16

/* Which argument is MODEL, and which the first message. */
static int take_positionals(const cli_args *args, cli_chat_arguments *a) {
    const char *file = NULL;
    int status = cli_prompt_take(args, &a->model_name, &a->text, &file);
    if (status != CLI_OK) return status;
    if (file)
        return cli_fail(CLI_USAGE,
                        "-: not a message (the lines of standard input are, unless it is a terminal)");
    if (a->render && (a->text || a->single_turn))
        return cli_fail(CLI_USAGE, "--render: with %s (its FILE has all messages)",
                        a->text ? "a message" : "--single-turn");
    if (!a->render && (a->tools || a->variables || a->no_generation_prompt || a->as_tokens))
        return cli_fail(CLI_USAGE, "--tools, --variables, --no-generation-prompt, --ids: only with --render");
    return CLI_OK;
}

static int settle_tokens(cli_chat_arguments *a) {
    if (a->tokens_given && a->tokens == 0)
        return cli_fail(CLI_USAGE, "--tokens: 0 (1 or more; -1: what the context has left)");
    if (a->tokens < 0) a->tokens = 0;
    return CLI_OK;
}

static bool parse(const cli_command *command, int argc, char **argv, cli_chat_arguments *a, int *status) {
    *a = (cli_chat_arguments){0};
    cli_option model_rows[CLI_MODEL_ROWS + CLI_DRAFT_ROWS], sampling[CLI_SAMPLING_ROWS];
    cli_model_rows(&a->model, model_rows);
    cli_draft_rows(&a->draft, model_rows + CLI_MODEL_ROWS);
    cli_sampling_rows(&a->sampling, sampling);
    const cli_option chat[] = {
        {CLI_ROW('p', "prompt", CLI_STRING, &a->text, "TEXT", "the first message; others follow")},
        {CLI_ROW(0, "single-turn", CLI_FLAG, &a->single_turn, NULL, "end after the first answer")},
        {CLI_ROW(0, "system", CLI_STRING, &a->system, "TEXT", "the system's message")},
        {CLI_ROW('n', "tokens", CLI_INT, &a->tokens, "N",
                 "tokens of an answer at most; -1: what the context has left"),
         .range = {-1, 1e9}, .fallback = "-1", .given = &a->tokens_given},
        {CLI_ROW(0, "stop", CLI_LIST, &a->stop, "TEXT", "end an answer before this text")},
        {CLI_ROW('c', "ctx", CLI_INT, &a->context, "N",
                 "tokens of the conversation at most; 0: the model's context"),
         .range = {0, 1e9}, .fallback = "the model's context, at most 8192", .given = &a->context_given},
        {CLI_ROW(0, "template", CLI_STRING, &a->template_file, "FILE",
                 "a chat template instead of the model's")},
    };
    const cli_option render[] = {
        {CLI_ROW(0, "render", CLI_STRING, &a->render, "FILE",
                 "print what the model would see of these messages (JSON; - is standard input), and end")},
        {CLI_ROW(0, "tools", CLI_STRING, &a->tools, "FILE", "with --render: a JSON array of functions")},
        {CLI_ROW(0, "variables", CLI_STRING, &a->variables, "JSON",
                 "with --render: more variables, such as {\"enable_thinking\": false}")},
        {CLI_ROW(0, "no-generation-prompt", CLI_FLAG, &a->no_generation_prompt, NULL,
                 "with --render: without what begins an answer")},
        {CLI_ROW(0, "ids", CLI_FLAG, &a->as_tokens, NULL, "with --render: token ids instead of text")},
    };
    const cli_group groups[] = {
        {"chat", chat, sizeof chat / sizeof *chat},
        {"render", render, sizeof render / sizeof *render},
        {"sampling", sampling, CLI_SAMPLING_ROWS},
        {"execution", model_rows, CLI_MODEL_ROWS + CLI_DRAFT_ROWS},
    };
    cli_args args = {
        .command = command,
        .notes = CLI_MODEL_NOTES
        "The first message may stand behind MODEL or in quotes: fusebox chat MODEL \"Hello there\".\n"
        "The model needs a chat template, or --template. On a terminal, lines can be edited; /help\n"
        "lists what else can be typed. Ctrl-C stops an answer, Ctrl-D or /exit ends the chat.\n",
        .groups = groups,
        .group_count = sizeof groups / sizeof *groups,
        .max_positionals = 2,
        .takes_model = true};
    if (!cli_args_parse(&args, argc, argv, status)) return false;
    *status = take_positionals(&args, a);
    if (*status == CLI_OK) *status = settle_tokens(a);
    if (*status == CLI_OK) *status = cli_sampling_parse(&a->sampling);
    return *status == CLI_OK;
}

/* A dense cache for the whole context of a large model would take gigabytes. */
static int settle_context(cli_chat_arguments *a, const fb_model *model) {
    fb_model_info info;
    fb_model_get_info(model, &info);
    if (a->context > info.context)
        return cli_fail(CLI_USAGE, "--ctx: %lld (the model's is %lld)", (long long)a->context,
                        (long long)info.context);
    if (a->context_given && a->context > 0 && a->context < CONTEXT_LEAST)
        return cli_fail(CLI_USAGE, "--ctx: %lld (%d or more; 0: the model's context)", (long long)a->context,
                        CONTEXT_LEAST);
    if (a->context_given && a->context == 0) a->context = info.context;
    if (a->context == 0) a->context = info.context < CONTEXT_DEFAULT ? info.context : CONTEXT_DEFAULT;
    return CLI_OK;
}

int cli_chat(const cli_command *command, int argc, char **argv) {
    cli_chat_arguments a;
    fb_model *model = NULL;
    char *path = NULL;
    int status;
    if (!parse(command, argc, argv, &a, &status)) return status;
    status = cli_chat_read_template(a.template_file, &a.template_text);
    if (status == CLI_OK) status = cli_model_open(a.model_name, &path, &model);
    if (status == CLI_OK) status = cli_sampling_settle(&a.sampling, model);
    if (status == CLI_OK) status = settle_context(&a, model);
    if (status == CLI_OK) status = a.render ? cli_chat_render(&a, model) : cli_chat_talk(&a, model);
    cli_sampling_free(&a.sampling);
    fb_model_free(model);
    free(a.template_text);
    free(path);
    return status;
}
