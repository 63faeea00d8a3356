/* An open checkpoint: its spec, its weights bound to the program, its tokenizer. */
#ifndef FB_MODEL_MODEL_H
#define FB_MODEL_MODEL_H

#include "arch/arch.h"
#include "backend/backend.h"
#include "base/dtype.h"
#include "file/gguf.h"
#include "text/tokenizer.h"

struct fb_model {
    fb_spec *spec;
    fb_gguf *gguf; /* the file, which has the tensors; NULL for a directory */
    fb_tensor_table *tensors;
    fb_weight *weights; /* [slots][layers] */
    void **repacked; /* [slots * layers]: copies of weights that the file has in another order, else NULL */
    void *packed;    /* the memory of weights that have moved, or NULL */
    struct fb_screen *screen; /* of the head; or NULL */
    fb_tokenizer *tokenizer;  /* or NULL */
    fb_model_info info;
    int64_t parameters[FB_DTYPE_COUNT], bytes[FB_DTYPE_COUNT]; /* of the weights as stored, by dtype */
};

/* Finds every weight of the program in model->tensors, checks its dtype and shape, and fills weights,
 * repacked and the counts of info. A tensor that no op reads is refused, unless the spec ignores it. */
fb_status fb_model_bind(fb_model *model, const char *path, fb_error *err);

/* Packs the weights that can be and moves others to better addresses (model/pack.c), then makes the linears
 * that read packed ones multiply integers. */
fb_status fb_model_pack(fb_model *model, fb_error *err);
fb_status fb_model_lower(fb_model *model, fb_error *err);
/* Gives the head a screen (base/screen.h), if it can have one. */
fb_status fb_model_screen(fb_model *model, fb_error *err);

/* Whether a session of these options quantises activations. */
bool fb_model_quantizes(const fb_model *model, const fb_session_options *options);

#endif
