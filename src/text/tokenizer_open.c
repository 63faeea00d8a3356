/* A tokenizer's files: those of a folder, a tokenizer.json, a tokenizer.model or a GGUF file. */
#include <stdio.h>
#include <string.h>

#include "file/gguf.h"
#include "file/map.h"
#include "text/sentencepiece.h"
#include "text/tokenizer.h"

#define PATH_SIZE 4096

static fb_status join(const char *folder, const char *name, char path[PATH_SIZE], fb_error *err) {
    if (snprintf(path, PATH_SIZE, "%s/%s", folder, name) >= PATH_SIZE)
        return fb_fail(err, FB_ERROR_FILE, "%.64s...: path of %zu bytes (at most %d)", folder,
                       strlen(folder) + strlen(name), PATH_SIZE);
    return FB_OK;
}

fb_status fb_tokenizer_open_folder(const char *folder, fb_tokenizer **out, const char **name, fb_error *err) {
    static const struct {
        const char *name;
        fb_status (*open)(const char *path, fb_tokenizer **out, fb_error *err);
    } files[] = {{"tokenizer.json", fb_tokenizer_open_json}, {"tokenizer.model", fb_tokenizer_open_model}};
    *out = NULL;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[PATH_SIZE];
        FB_TRY(join(folder, files[i].name, path, err));
        *name = files[i].name;
        if (!fb_map_missing(path)) return files[i].open(path, out, err);
    }
    return FB_OK;
}

static fb_status open_gguf(const char *path, fb_tokenizer **out, fb_error *err) {
    fb_gguf *gguf;
    FB_TRY(fb_gguf_open(path, &gguf, err));
    fb_status status = fb_tokenizer_from_gguf(path, gguf, out, err);
    fb_gguf_free(gguf);
    if (status == FB_OK && !*out)
        return fb_fail(err, FB_ERROR_FILE, "%s: tokenizer.ggml.model: none (text needs one)", path);
    return status;
}

fb_status fb_tokenizer_open_file(const char *path, fb_tokenizer **out, fb_error *err) {
    fb_map map;
    uint8_t first[4] = {0};
    FB_TRY(fb_map_open(path, &map, err));
    size_t size = map.size < sizeof first ? map.size : sizeof first;
    fb_status status = fb_map_copy(&map, path, 0, size, first, err);
    fb_map_close(&map);
    FB_TRY(status);
    if (memcmp(first, "GGUF", 4) == 0) return open_gguf(path, out, err);
    size_t length = strlen(path);
    bool json = first[0] == '{' || (length > 5 && strcmp(path + length - 5, ".json") == 0);
    return json ? fb_tokenizer_open_json(path, out, err) : fb_tokenizer_open_model(path, out, err);
}
