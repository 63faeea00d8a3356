/* A tokenizer by what stands for its model: fb_tokenizer_open. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "model/locate.h"
#include "text/tokenizer.h"

/* A folder with a tokenizer of its own, or with one GGUF model. */
static fb_status open_folder(const char *folder, fb_tokenizer **out, fb_error *err) {
    const char *name;
    fb_located located;
    FB_TRY(fb_tokenizer_open_folder(folder, out, &name, err));
    if (*out) return FB_OK;
    fb_error reason;
    fb_status status = fb_model_locate(folder, &located, &reason);
    if (status == FB_OK && located.gguf) {
        status = fb_tokenizer_open_file(located.path, out, err);
    } else if (status == FB_ERROR_USAGE || status == FB_ERROR_MEMORY) { /* several GGUF files */
        status = fb_fail(err, status, "%s", reason.message);
    } else {
        status = fb_fail(err, FB_ERROR_FILE, "%s: neither tokenizer.json nor tokenizer.model", folder);
    }
    free(located.path);
    return status;
}

/* Files that are no tokenizer, but stand for a folder with one: config.json, model.safetensors. */
static bool stands_for_folder(const char *path, fb_located *located) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    *located = (fb_located){0};
    if (strcmp(name, "tokenizer.json") == 0 || strcmp(name, "tokenizer.model") == 0) return false;
    return fb_model_locate(path, located, NULL) == FB_OK && !located->gguf;
}

fb_status fb_tokenizer_open(const char *path, fb_tokenizer **out, fb_error *err) {
    struct stat st;
    fb_located located;
    *out = NULL;
    if (!path || !*path) return fb_fail(err, FB_ERROR_USAGE, "tokenizer: no path given");
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return open_folder(path, out, err);
    fb_status status = stands_for_folder(path, &located) ? open_folder(located.path, out, err)
                                                         : fb_tokenizer_open_file(path, out, err);
    free(located.path);
    return status;
}
