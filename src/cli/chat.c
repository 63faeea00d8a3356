/* fusebox chat: its options. */
#include "cli/chat.h"

#include <stdlib.h>
#include <string.h>

#include "cli/output.h"
#include "cli/prompt.h"

#define CONTEXT_DEFAULT 8192

static bool parse(const cli_command *command, int argc, char **argv, cli_chat_arguments *a, int *status) {
    *a = (cli_chat_arguments){0};
    cli_option model_rows[CLI_MODEL_ROWS], sampling[CLI_SAMPLING_ROWS];
    cli_model_rows(&a->model, model_rows);
    cli_sampling_rows(&a->sampling, sampling);
    const cli_option chat[] = {
        {CLI_ROW(0, "system", CLI_STRING, &a->system, "TEXT", "the system's message")},
        {CLI_ROW('n', "tokens", CLI_INT, &a->tokens, "N", "tokens of an answer at most"), .range = {1, 1e9},
         .fallback = "what the context has left"},
        {CLI_ROW(0, "stop", CLI_LIST, &a->stop, "TEXT", "end an answer before this text")},
        {CLI_ROW('c', "ctx", CLI_INT, &a->context, "N", "tokens of the conversation at most"),
         .range = {16, 1e9}, .fallback = "the model's context, at most 8192"},
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
        {"execution", model_rows, CLI_MODEL_ROWS},
    };
    cli_args args = {
        .command = command,
        .notes = CLI_MODEL_NOTES
        "The model needs a chat template, or --template. On a terminal, lines can be edited; /help\n"
        "lists what else can be typed. Ctrl-C stops an answer, Ctrl-D or /exit ends the chat.\n",
        .groups = groups,
        .group_count = sizeof groups / sizeof *groups,
        .max_positionals = 1,
        .takes_model = true};
    if (!cli_args_parse(&args, argc, argv, status)) return false;
    if (args.positional_count > 0) a->model_name = args.positionals[0];
    if (!a->render && (a->tools || a->variables || a->no_generation_prompt || a->as_tokens)) {
        *status =
            cli_fail(CLI_USAGE, "--tools, --variables, --no-generation-prompt, --ids: only with --render");
        return false;
    }
    return true;
}

static int read_template(cli_chat_arguments *a) {
    cli_prompt file = {0};
    if (!a->template_file) return CLI_OK;
    int status = cli_prompt_read(&file, NULL, a->template_file);
    a->template_text = file.text;
    if (status == CLI_OK && file.text && strlen(file.text) != file.bytes)
        status = cli_fail(CLI_USAGE, "%s: a NUL inside (a template is text)", a->template_file);
    return status;
}

/* A dense cache for the whole context of a large model would take gigabytes. */
static int settle_context(cli_chat_arguments *a, const fb_model *model) {
    fb_model_info info;
    fb_model_get_info(model, &info);
    if (a->context > info.context)
        return cli_fail(CLI_USAGE, "--ctx: %lld (the model's is %lld)", (long long)a->context,
                        (long long)info.context);
    if (a->context == 0) a->context = info.context < CONTEXT_DEFAULT ? info.context : CONTEXT_DEFAULT;
    return CLI_OK;
}

int cli_chat(const cli_command *command, int argc, char **argv) {
    cli_chat_arguments a;
    fb_model *model = NULL;
    char *path = NULL;
    int status;
    if (!parse(command, argc, argv, &a, &status)) return status;
    status = read_template(&a);
    if (status == CLI_OK) status = cli_model_open(a.model_name, &path, &model);
    if (status == CLI_OK) status = cli_sampling_seed(&a.sampling);
    if (status == CLI_OK) status = settle_context(&a, model);
    if (status == CLI_OK) status = a.render ? cli_chat_render(&a, model) : cli_chat_talk(&a, model);
    fb_model_free(model);
    free(a.template_text);
    free(path);
    return status;
}
