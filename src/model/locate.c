#include "model/locate.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "file/map.h"

/* ---- names --------------------------------------------------------------------------------------------- */

static const char *base_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool ends_in(const char *text, const char *ending) {
    size_t length = strlen(text), wanted = strlen(ending);
    return length >= wanted && strcmp(text + length - wanted, ending) == 0;
}

/* Files that are no models by themselves: their directory is one. */
static bool stands_for_directory(const char *name) {
    static const char *const names[] = {"config.json",     "generation_config.json",
                                        "tokenizer.json",  "tokenizer_config.json",
                                        "tokenizer.model", "special_tokens_map.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return ends_in(name, ".safetensors") || ends_in(name, ".safetensors.index.json");
}

/* "-00002-of-00003.gguf": a part after the first. */
static bool is_later_part(const char *name) {
    size_t length = strlen(name);
    const char *end = length > 20 ? name + length - 20 : NULL;
    return end && end[0] == '-' && strspn(end + 1, "0123456789") == 5 && strncmp(end + 6, "-of-", 4) == 0 &&
           strncmp(end, "-00001", 6) != 0;
}

/* ---- formats of others --------------------------------------------------------------------------------- */

static const char pickled[] =
    "PyTorch's pickles hold code, which is not run: in Python, "
    "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW), which writes "
    "model.safetensors; or llama.cpp's convert_hf_to_gguf.py";
static const char elsewhere[] = "a format that is not read (model.safetensors beside config.json, or a .gguf "
                                "file)";

static const struct {
    const char *ending, *advice;
} refused[] = {
    {".bin", pickled},    {".bin.index.json", pickled}, {".pt", pickled},
    {".pth", pickled},    {".ckpt", pickled},           {".pkl", pickled},
    {".onnx", elsewhere}, {".h5", elsewhere},           {".msgpack", elsewhere},
    {".ggml", elsewhere}, {".tflite", elsewhere},
};

static const char *refusal_of(const char *name) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (ends_in(name, refused[i].ending)) return refused[i].advice;
    return NULL;
}

/* ---- a directory --------------------------------------------------------------------------------------- */

static fb_status take(fb_located *out, const char *directory, const char *name, bool gguf, fb_error *err) {
    out->gguf = gguf;
    if (name && asprintf(&out->path, "%s/%s", directory, name) < 0) out->path = NULL;
    if (!name) out->path = strdup(directory);
    return out->path ? FB_OK : fb_fail_memory(err, directory, (int64_t)strlen(directory));
}

static bool has_file(const char *directory, const char *name) {
    char path[4096];
    return snprintf(path, sizeof path, "%s/%s", directory, name) < (int)sizeof path && !fb_map_missing(path);
}

/* A GGUF file that is a language model, or the first part of one: a projector of images is none. */
static int is_gguf_model(const struct dirent *entry) {
    const char *name = entry->d_name;
    return *name != '.' && ends_in(name, ".gguf") && !is_later_part(name) && strncmp(name, "mmproj", 6) != 0;
}

static int is_pickle(const struct dirent *entry) {
    const char *name = entry->d_name;
    return *name != '.' && refusal_of(name) == pickled && strcmp(name, "training_args.bin") != 0;
}

/* The names that `wanted` accepts, in alphabetical order. */
typedef struct listing {
    struct dirent **entries;
    int count;
} listing;

static fb_status list(const char *directory, int (*wanted)(const struct dirent *entry), listing *out,
                      fb_error *err) {
    out->count = scandir(directory, &out->entries, wanted, alphasort);
    if (out->count >= 0) return FB_OK;
    *out = (listing){0};
    if (errno == ENOMEM) return fb_fail_memory(err, directory, (int64_t)sizeof(struct dirent));
    return fb_fail(err, FB_ERROR_FILE, "%s: %s", directory, strerror(errno));
}

static void free_listing(listing *l) {
    for (int i = 0; i < l->count; i++) free(l->entries[i]);
    free(l->entries);
}

static fb_status fail_several(const char *directory, const listing *l, fb_error *err) {
    char names[256] = "";
    size_t used = 0;
    for (int i = 0; i < l->count; i++) {
        const char *name = l->entries[i]->d_name;
        if (used + strlen(name) + 8 > sizeof names) {
            snprintf(names + used, sizeof names - used, ", ...");
            break;
        }
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", name);
    }
    return fb_fail(err, FB_ERROR_USAGE, "%s: %d GGUF files (give one of them: %s)", directory, l->count,
                   names);
}

/* A directory without safetensors. */
static fb_status locate_other(const char *directory, fb_located *out, fb_error *err) {
    listing models, pickles = {0};
    FB_TRY(list(directory, is_gguf_model, &models, err));
    fb_status status = models.count ? FB_OK : list(directory, is_pickle, &pickles, err);
    if (status != FB_OK)
        ;
    else if (models.count == 1)
        status = take(out, directory, models.entries[0]->d_name, true, err);
    else if (models.count > 1)
        status = fail_several(directory, &models, err);
    else if (pickles.count)
        status =
            fb_fail(err, FB_ERROR_UNSUPPORTED, "%s/%s: %s", directory, pickles.entries[0]->d_name, pickled);
    else
        status = take(out, directory, NULL, false, err); /* opening it says what is missing */
    free_listing(&models);
    free_listing(&pickles);
    return status;
}

static fb_status locate_in(const char *directory, fb_located *out, fb_error *err) {
    bool weights =
        has_file(directory, "model.safetensors") || has_file(directory, "model.safetensors.index.json");
    return weights ? take(out, directory, NULL, false, err) : locate_other(directory, out, err);
}

/* ---- a path -------------------------------------------------------------------------------------------- */

static bool is_directory(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static fb_status locate_beside(const char *path, const char *name, fb_located *out, fb_error *err) {
    char *directory = name == path ? strdup(".") : strndup(path, (size_t)(name - path));
    if (!directory) return fb_fail_memory(err, path, (int64_t)strlen(path));
    size_t length = strlen(directory);
    while (length > 1 && directory[length - 1] == '/') directory[--length] = '\0';
    fb_status status = take(out, directory, NULL, false, err);
    free(directory);
    return status;
}

fb_status fb_model_locate(const char *path, fb_located *out, fb_error *err) {
    *out = (fb_located){0};
    if (is_directory(path)) return locate_in(path, out, err);
    const char *name = base_of(path), *advice = refusal_of(name);
    if (!fb_map_missing(path)) {
        if (stands_for_directory(name)) return locate_beside(path, name, out, err);
        if (advice) return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %s", path, advice);
    }
    return take(out, path, NULL, true, err);
}
