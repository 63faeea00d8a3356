/* fusebox chat: the conversation in the terminal (chat_talk.c), and what a model sees (chat_render.c). */
#ifndef FB_CLI_CHAT_H
#define FB_CLI_CHAT_H

#include "cli/conversation.h"
#include "cli/draft.h"
#include "cli/model.h"
#include "cli/sampling.h"

typedef struct cli_chat_arguments {
    cli_model_options model;
    cli_sampling_options sampling;
    cli_draft draft;
    cli_list stop;
    const char *model_name, *text, *system, *template_file, *render, *tools, *variables;
    char *template_text; /* of template_file; NULL: the model's */
    int64_t tokens;      /* 0: what the context has left */
    int64_t context;
    bool tokens_given, context_given, single_turn, no_generation_prompt, as_tokens;
} cli_chat_arguments;

/* Both return the exit status. */
int cli_chat_talk(const cli_chat_arguments *arguments, const fb_model *model);
int cli_chat_render(const cli_chat_arguments *arguments, const fb_model *model);

#endif
