/* What a checkpoint says about chats: its templates, and the special tokens that they name. */
#ifndef FB_MODEL_CHAT_H
#define FB_MODEL_CHAT_H

#include "file/gguf.h"
#include "text/tokenizer.h"

typedef struct fb_model_chat fb_model_chat;

/* From tokenizer_config.json, chat_template.jinja and chat_template.json of a directory, each of which may be
 * missing. A file that cannot be read leaves the model without templates: fb_chat_render then says why. */
fb_status fb_model_chat_open(const char *directory, fb_model_chat **out, fb_error *err);
/* From tokenizer.chat_template and tokenizer.chat_template.NAME. */
fb_status fb_model_chat_from_gguf(const fb_gguf *gguf, const fb_tokenizer *tokenizer, fb_model_chat **out,
                                  fb_error *err);
void fb_model_chat_free(fb_model_chat *chat);

#endif
