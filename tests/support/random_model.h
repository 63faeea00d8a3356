/* Checkpoints that nobody chose: a folder with a random config of an architecture and random weights. */
#ifndef FB_TESTS_RANDOM_MODEL_H
#define FB_TESTS_RANDOM_MODEL_H

#include "support/support.h"

/* The architectures, by their model_type; NULL ends the list. */
extern const char *const fbt_architectures[];

/* A new folder with config.json and model.safetensors in float16: one to three layers, up to 96 elements
 * wide, odd sizes, every switch of the config either way. The gain of each weight is drawn too, so that some
 * models amplify what enters a layer and others forget it. Released with fbt_dir_remove. `config` gets the
 * text of config.json for messages, released with free. */
char *fbt_random_model(fbt_random *random, const char *architecture, char **config);

#endif
