/* What a path that was given as a model is: a directory of Hugging Face, or a GGUF file. */
#ifndef FB_MODEL_LOCATE_H
#define FB_MODEL_LOCATE_H

#include "base/status.h"

typedef struct fb_located {
    char *path; /* released with free */
    bool gguf;  /* a GGUF file; else a directory */
} fb_located;

/* A file of a checkpoint (model.safetensors, one of its shards or their index, config.json, a tokenizer's)
 * stands for its directory, and a directory whose only model is a GGUF file for that file. Formats that
 * others write, and directories with several GGUF files, are refused with what to do. Anything else is taken
 * to be a GGUF file: opening it says what is wrong with it. */
fb_status fb_model_locate(const char *path, fb_located *out, fb_error *err);

#endif
