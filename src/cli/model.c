#include "cli/model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/hub.h"
#include "cli/interrupt.h"
#include "cli/output.h"

#define MAX_THREADS 256

static const char *const isas[] = {"amx",  "avx512bf16", "avx512vnni", "avx512",   "avxvnni", "avx2",
                                   "i8mm", "dotprod",    "neon",       "portable", "ref",     NULL};
static const char *const caches[] = {"auto", "act", "f32", "f16", "bf16", "f64", NULL};
static const char *const dots[] = {"q8", "float", NULL};

void cli_model_rows(cli_model_options *options, cli_option rows[CLI_MODEL_ROWS]) {
    *options = (cli_model_options){.threads = 0,
                                   .act = FB_F32,
                                   .kv = "auto",
                                   .isa = NULL,
                                   .fuse = "auto",
                                   .dot = "q8",
                                   .invariant = "on",
                                   .backend = "auto"};
    rows[0] = (cli_option){
        CLI_ROW('t', "threads", CLI_INT, &options->threads, "N", "threads; the result does not depend on it"),
        .range = {0, MAX_THREADS}, .fallback = "0, one a core"};
    rows[1] = (cli_option){
        CLI_ROW(0, "act", CLI_DTYPE, &options->act, "TYPE", "type in which operators store results")};
    rows[2] = (cli_option){
        CLI_ROW(0, "kv", CLI_CHOICE, &options->kv, "TYPE", "type of the KV cache; auto: 16 bits"),
        .choices = caches};
    rows[3] = (cli_option){
        CLI_ROW(0, "isa", CLI_CHOICE, &options->isa, "NAME", "kernels; ref is slow, in double precision"),
        .choices = isas, .fallback = "the best"};
    rows[4] = (cli_option){
        CLI_ROW(0, "fuse", CLI_STRING, &options->fuse, "SPEC",
                "none, all, auto, or a list: add_norm,bias_act or all,-qkv_up; see fusebox fuses")};
    rows[5] =
        (cli_option){CLI_ROW(0, "exact", CLI_FLAG, &options->exact, NULL,
                             "only fuses that give the plain operators' bits; on a GPU slower prompts")};
    rows[6] = (cli_option){CLI_ROW(0, "dot", CLI_CHOICE, &options->dot, "KIND",
                                   "what quantised weights are multiplied with: 8-bit integers or floats"),
                           .choices = dots};
    rows[7] = (cli_option){CLI_ROW(0, "backend", CLI_STRING, &options->backend, "NAME",
                                   "auto (a GPU if there is one), cpu, cuda, cuda:1")};
}

cli_option cli_model_invariant_row(cli_model_options *options) {
    static const char *const switches[] = {"on", "off", NULL};
    return (cli_option){CLI_ROW(0, "invariant", CLI_CHOICE, &options->invariant, "SWITCH",
                                "on a GPU: an answer's bits do not depend on what else a step computes"),
                        .choices = switches};
}

bool cli_model_any_order(const cli_model_options *options) { return strcmp(options->invariant, "off") == 0; }

fb_dtype cli_model_kv(const cli_model_options *options) {
    fb_dtype kv;
    return fb_dtype_parse_kv(options->kv, options->act, &kv, NULL) == FB_OK ? kv : options->act;
}

bool cli_model_float_dot(const cli_model_options *options) { return strcmp(options->dot, "float") == 0; }

int cli_model_find(const char *name, bool weights, char **path) {
    *path = NULL;
    if (name && !*name) return cli_fail(CLI_USAGE, "MODEL: \"\" (a directory or a .gguf file)");
    int status = CLI_FAILED;
    struct stat st;
    if (!name)
        *path = cli_builtin_find(&status);
    else if (lstat(name, &st) != 0 && errno == ENOENT &&
             cli_hub_is_name(name)) /* what is there comes first */
        *path = cli_hub_find(name, weights, &status);
    else if (!(*path = strdup(name)))
        cli_fail(CLI_FAILED, "MODEL: no memory");
    if (*path) cli_cut_file_catch(*path);
    return *path ? CLI_OK : status;
}

int cli_model_open(const char *name, char **path, fb_model **model) {
    *model = NULL;
    int status = cli_model_find(name, true, path);
    if (status != CLI_OK) return status;
    fb_error err;
    if (fb_model_open(*path, model, &err) == FB_OK) return CLI_OK;
    free(*path);
    *path = NULL;
    return cli_fail_error(&err);
}

void cli_faster_type(const fb_model *model, const char *isa, char *line, size_t size) {
    fb_dtype from, to;
    double bytes;
    line[0] = '\0';
    if (!fb_faster_type(model, isa, &from, &to, &bytes)) return;
    const char *name = fb_dtype_name(to);
    snprintf(line, size,
             "note: weights are %s; as %s a step would read %.2f times as much (fusebox quantize --type %s)",
             fb_dtype_name(from), name, bytes, name);
}
