/* What every command that runs a model shares: how MODEL is found, and the options of how it runs. */
#ifndef FB_CLI_MODEL_H
#define FB_CLI_MODEL_H

#include "cli/args.h"

typedef struct cli_model_options {
    int64_t threads; /* 0: all */
    fb_dtype act;
    const char *kv;        /* "auto", "act" or a dtype */
    const char *isa;       /* NULL: the best */
    const char *backend;   /* "auto", "cpu", "cuda", "cuda:1" */
    const char *fuse;      /* "none", "all", "auto" or a list */
    const char *dot;       /* "q8" or "float" */
    bool exact;            /* only variants that are bit-identical to the plain ops */
    const char *invariant; /* "on" or "off", of commands that have this option */
} cli_model_options;

/* Sets the defaults and writes the rows whose targets are in `options`. */
enum { CLI_MODEL_ROWS = 8 };
void cli_model_rows(cli_model_options *options, cli_option rows[CLI_MODEL_ROWS]);

/* The row of --invariant, for commands that have it; and whether it is off. */
cli_option cli_model_invariant_row(cli_model_options *options);
bool cli_model_any_order(const cli_model_options *options);

/* The dtype of the KV cache. */
fb_dtype cli_model_kv(const cli_model_options *options);

bool cli_model_float_dot(const cli_model_options *options);

/* Into the fields that all options of the library have in common; `to` points to any of them. */
#define CLI_MODEL_SET(options, to)                                                                           \
    do {                                                                                                     \
        (to)->threads = (int32_t)(options)->threads;                                                         \
        (to)->act = (options)->act;                                                                          \
        (to)->kv = (options)->kv;                                                                            \
        (to)->isa = (options)->isa;                                                                          \
        (to)->backend = (options)->backend;                                                                  \
        (to)->exact = (options)->exact;                                                                      \
        (to)->float_dot = cli_model_float_dot(options);                                                      \
    } while (0)

/* And those of options that choose fuses. */
#define CLI_MODEL_SET_FUSE(options, to)                                                                      \
    do {                                                                                                     \
        CLI_MODEL_SET(options, to);                                                                          \
        (to)->fuse = (options)->fuse;                                                                        \
        (to)->machine = cli_cache_folder();                                                                  \
    } while (0)

/* Opens MODEL, or the built-in model if it is NULL; the path that was opened goes to *path, released with
 * free. Returns CLI_OK, or an exit status after printing why. */
int cli_model_open(const char *name, char **path, fb_model **model);

/* A line that says in which type the model's weights would be read much faster on kernels of this name;
 * empty: in none. */
void cli_faster_type(const fb_model *model, const char *isa, char *line, size_t size);

/* The path of MODEL alone, which may be ORG/NAME, or of the built-in model if it is NULL. `weights`: a
 * download must have them. */
int cli_model_find(const char *name, bool weights, char **path);

/* The directory of the built-in model, released with free, or NULL after printing why; *status is then the
 * exit status. */
char *cli_builtin_find(int *status);

/* Where the planner's measurements lie: $XDG_CACHE_HOME/fusebox or ~/.cache/fusebox; NULL where there is
 * neither. */
const char *cli_cache_folder(void);

/* The lines of --help about MODEL. */
#define CLI_MODEL_NOTES                                                                                      \
    "MODEL, or -m MODEL, is a Hugging Face directory (config.json, model.safetensors or its index,\n"        \
    "tokenizer.json) or a file of it; a .gguf file, of several the first; or ORG/NAME, which is looked up\n" \
    "in the cache of Hugging Face. Without one, the built-in storyteller runs.\n"

#endif
