/* fusebox chat --render: what the model would see. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/chat.h"
#include "cli/output.h"
#include "cli/prompt.h"

/* What was read from a file is blamed on that file: "FILE: messages[0]: role: 1". */
static int fail(const cli_chat_arguments *a, const fb_error *err) {
    bool bad_input = err->status == FB_ERROR_USAGE || err->status == FB_ERROR_FILE;
    const char *file = strncmp(err->message, "messages", 8) == 0            ? a->render
                       : a->tools && strncmp(err->message, "tools", 5) == 0 ? a->tools
                                                                            : NULL;
    if (file && strcmp(file, "-") == 0) file = "standard input";
    return file && bad_input ? cli_fail(CLI_USAGE, "%s: %s", file, err->message) : cli_chat_fail(err);
}

static int print_text(const cli_chat_arguments *a, const fb_model *model, const char *messages,
                      const fb_chat_options *options) {
    char *text;
    size_t bytes;
    fb_error err;
    if (fb_chat_render(model, messages, options, &text, &bytes, &err) != FB_OK) return fail(a, &err);
    fwrite(text, 1, bytes, stdout);
    fb_free(text);
    return cli_finish_output(CLI_OK);
}

/* One line: 1 2 3. */
static int print_ids(const cli_chat_arguments *a, const fb_model *model, const char *messages,
                     const fb_chat_options *options) {
    int32_t *ids;
    int64_t count;
    fb_error err;
    if (fb_chat_tokenize(model, messages, options, &ids, &count, &err) != FB_OK) return fail(a, &err);
    for (int64_t i = 0; i < count; i++) printf("%s%" PRId32, i ? " " : "", ids[i]);
    putchar('\n');
    fb_free(ids);
    return cli_finish_output(CLI_OK);
}

int cli_chat_render(const cli_chat_arguments *a, const fb_model *model) {
    cli_prompt messages = {0}, tools = {0};
    fb_chat_options options;
    cli_chat_options(&options);
    int status = cli_prompt_read(&messages, NULL, a->render);
    if (status == CLI_OK && strlen(messages.text ? messages.text : "") != messages.bytes)
        status = cli_fail(CLI_USAGE, "%s: a NUL inside (expected JSON)", a->render);
    if (status == CLI_OK && a->tools) status = cli_prompt_read(&tools, NULL, a->tools);
    options.template_text = a->template_text;
    options.tools = tools.text;
    options.variables = a->variables;
    options.add_generation_prompt = !a->no_generation_prompt;
    if (status == CLI_OK)
        status = a->as_tokens ? print_ids(a, model, messages.text, &options)
                              : print_text(a, model, messages.text, &options);
    cli_prompt_free(&messages);
    cli_prompt_free(&tools);
    return status;
}
