/* The messages of a chat. */
#ifndef FB_CLI_CONVERSATION_H
#define FB_CLI_CONVERSATION_H

#include "cli/cli.h"

typedef struct cli_message {
    const char *role; /* a constant */
    char *text;
    size_t bytes;
} cli_message;

/* Begins as all zero. */
typedef struct cli_conversation {
    cli_message *messages;
    int64_t count, room;
} cli_conversation;

/* Functions that return an int: CLI_OK, or an exit status after printing why. */
int cli_conversation_add(cli_conversation *conversation, const char *role, const char *text, size_t bytes);
/* Removes messages [at, at + count). */
void cli_conversation_remove(cli_conversation *conversation, int64_t at, int64_t count);
void cli_conversation_free(cli_conversation *conversation);

/* As JSON, in the form that fb_chat_render takes; released with free. */
int cli_conversation_json(const cli_conversation *conversation, char **json);
/* Through the model's template to ids, released with fb_free. `template_text` may be NULL. */
int cli_conversation_tokenize(const cli_conversation *conversation, const fb_model *model,
                              const char *template_text, int32_t **ids, int64_t *count);

/* Prints an error of fb_chat_render or fb_chat_tokenize, and what to do about it; returns the exit status. */
int cli_chat_fail(const fb_error *err);

/* Reads --template FILE into *text, released with free; NULL for no file. */
int cli_chat_read_template(const char *file, char **text);

/* Options with the local time. */
void cli_chat_options(fb_chat_options *options);

#endif
