/* An open checkpoint: its spec, its weights bound to the program, its tokenizer. */
#ifndef FB_MODEL_MODEL_H
#define FB_MODEL_MODEL_H

#include "arch/arch.h"
#include "base/dtype.h"
#include "base/tensor.h"
#include "file/gguf.h"
#include "model/chat.h"
#include "text/tokenizer.h"

#define FB_MAX_TURN_ENDS 16

struct fb_model {
    fb_spec *spec;
    fb_gguf *gguf; /* the file, which has the tensors; NULL for a directory */
    fb_tensor_table *tensors;
    fb_weight *weights;                  /* [slots][layers]: the file's */
    fb_tokenizer *tokenizer;             /* or NULL */
    fb_model_chat *chat;                 /* or NULL */
    int32_t turn_ends[FB_MAX_TURN_ENDS]; /* ids that end a turn, by the names of their tokens */
    int32_t turn_end_count;
    bool borrows; /* files, tokenizer and chat are another model's */
    fb_model_info info;
    struct fb_attached *attached; /* what others keep for the model as long as it is open */
    int64_t parameters[FB_DTYPE_COUNT], bytes[FB_DTYPE_COUNT]; /* of the weights as stored, by dtype */
};

/* One without contents. */
fb_status fb_model_new(fb_model **out, fb_error *err);

/* Has `release(arg)` called when the model is freed; from several threads at once. The model does not know
 * what it is: a device's copy of the weights, say. */
fb_status fb_model_attach(const fb_model *model, void (*release)(void *arg), void *arg, fb_error *err);
/* The `arg` that was last attached with this function; NULL: none. */
void *fb_model_attached(const fb_model *model, void (*release)(void *arg));

/* Finds every weight of the program in model->tensors, checks its dtype and shape, and fills weights,
 * the slots' dtypes and the counts of info. A tensor that no op reads is refused, unless the spec ignores it.
 */
fb_status fb_model_bind(fb_model *model, const char *path, fb_error *err);
/* Tells the program's slots the dtypes of their weights. */
void fb_model_note_dtypes(fb_model *model);

#endif
