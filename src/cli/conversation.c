#include "cli/conversation.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/json_out.h"
#include "cli/output.h"
#include "cli/prompt.h"

int cli_conversation_add(cli_conversation *c, const char *role, const char *text, size_t bytes) {
    if (c->count == c->room) {
        int64_t room = c->room ? 2 * c->room : 16;
        cli_message *messages = realloc(c->messages, (size_t)room * sizeof *messages);
        if (!messages) return cli_fail(CLI_FAILED, "messages: no memory for %lld", (long long)room);
        c->messages = messages;
        c->room = room;
    }
    char *copy = malloc(bytes + 1);
    if (!copy) return cli_fail(CLI_FAILED, "messages: no memory for %zu bytes", bytes);
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    cli_message *message = &c->messages[c->count++];
    message->role = role;
    message->text = copy;
    message->bytes = bytes;
    return CLI_OK;
}

void cli_conversation_remove(cli_conversation *c, int64_t at, int64_t count) {
    for (int64_t i = at; i < at + count; i++) free(c->messages[i].text);
    if (count > 0)
        memmove(c->messages + at, c->messages + at + count,
                (size_t)(c->count - at - count) * sizeof *c->messages);
    c->count -= count;
}

void cli_conversation_free(cli_conversation *c) {
    cli_conversation_remove(c, 0, c->count);
    free(c->messages);
    *c = (cli_conversation){0};
}

int cli_conversation_json(const cli_conversation *c, char **json) {
    size_t bytes;
    *json = NULL;
    FILE *out = open_memstream(json, &bytes);
    if (!out) return cli_fail(CLI_FAILED, "messages: no memory");
    cli_json writer = {.out = out};
    cli_json_open(&writer, NULL, '[');
    for (int64_t i = 0; i < c->count; i++) {
        cli_json_open(&writer, NULL, '{');
        cli_json_string(&writer, "role", c->messages[i].role);
        cli_json_bytes(&writer, "content", c->messages[i].text, c->messages[i].bytes);
        cli_json_close(&writer, '}');
    }
    cli_json_close(&writer, ']');
    if (fclose(out) == 0 && *json) return CLI_OK;
    free(*json);
    *json = NULL;
    return cli_fail(CLI_FAILED, "messages: no memory");
}

void cli_chat_options(fb_chat_options *options) {
    time_t now = time(NULL);
    struct tm local;
    fb_chat_options_default(options);
    options->now = (int64_t)now;
    if (localtime_r(&now, &local)) options->now += local.tm_gmtoff;
}

int cli_chat_fail(const fb_error *err) {
    static const char none[] = "model: no chat template";
    if (strncmp(err->message, none, sizeof none - 1) != 0) return cli_fail_error(err);
    return cli_fail(CLI_USAGE, "%s: --template FILE gives one", err->message);
}

int cli_chat_read_template(const char *file, char **text) {
    cli_prompt read = {0};
    *text = NULL;
    if (!file) return CLI_OK;
    int status = cli_prompt_read(&read, NULL, file);
    *text = read.text;
    if (status == CLI_OK && strlen(read.text) != read.bytes)
        status = cli_fail(CLI_USAGE, "%s: a NUL inside (a template is text)", file);
    return status;
}

int cli_conversation_tokenize(const cli_conversation *c, const fb_model *model, const char *template_text,
                              int32_t **ids, int64_t *count) {
    fb_chat_options options;
    fb_error err;
    char *json;
    int status = cli_conversation_json(c, &json);
    if (status != CLI_OK) return status;
    cli_chat_options(&options);
    options.template_text = template_text;
    if (fb_chat_tokenize(model, json, &options, ids, count, &err) != FB_OK) status = cli_chat_fail(&err);
    free(json);
    if (status == CLI_OK && *count == 0)
        status = cli_fail(CLI_USAGE, "chat template: 0 tokens (it writes nothing for these messages)");
    return status;
}
