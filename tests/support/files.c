#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/support.h"

const char *const fbt_cases[] = {"neox-parallel", "neox-serial", "llama-gqa-tied", "llama-mha", "gpt2", NULL};

char *fbt_format(const char *format, ...) {
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int length = vasprintf(&text, format, args);
    va_end(args);
    assert_true(length >= 0);
    return text;
}

char *fbt_dir_create(void) {
    const char *base = getenv("TMPDIR");
    char *dir = fbt_format("%s/fusebox-test-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(dir)) fail_msg("cannot make %s", dir);
    return dir;
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *where) {
    (void)st, (void)kind, (void)where;
    return remove(path);
}

void fbt_dir_remove(char *dir) {
    assert_int_equal(nftw(dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
    free(dir);
}

fb_model *fbt_model_open(const char *path) {
    fb_model *model;
    fb_error err;
    assert_ok(fb_model_open(path, &model, &err), &err);
    return model;
}

fb_model *fbt_golden_open(const char *name) {
    char *path = fbt_format(FBT_GOLDENS "/%s", name);
    fb_model *model = fbt_model_open(path);
    free(path);
    return model;
}

char *fbt_dir_from_golden(const char *name) {
    static const char *const files[] = {"config.json", "model.safetensors", "golden.safetensors"};
    char *dir = fbt_dir_create();
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *from = fbt_format(FBT_GOLDENS "/%s/%s", name, files[i]);
        char *to = fbt_format("%s/%s", dir, files[i]);
        fbt_file_copy(from, to);
        free(from);
        free(to);
    }
    return dir;
}

fb_model *fbt_golden_stretched(const char *name, int64_t context) {
    char *dir = fbt_dir_from_golden(name);
    char *config = fbt_format("%s/config.json", dir), *length = fbt_format("%lld", (long long)context);
    fbt_json_set(config, "max_position_embeddings", length);
    fb_model *model = fbt_model_open(dir);
    free(length);
    free(config);
    fbt_dir_remove(dir);
    return model;
}

void fbt_file_write(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    if (!file) fail_msg("cannot write %s", path);
    if (size) assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

void fbt_text_write(const char *path, const char *text) { fbt_file_write(path, text, strlen(text)); }

void *fbt_file_read(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("cannot read %s", path);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long length = ftell(file);
    assert_true(length >= 0);
    rewind(file);
    char *bytes = malloc((size_t)length + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, (size_t)length, file), length);
    bytes[length] = 0;
    fclose(file);
    if (size) *size = (size_t)length;
    return bytes;
}

void fbt_file_copy(const char *from, const char *to) {
    size_t size;
    void *bytes = fbt_file_read(from, &size);
    fbt_file_write(to, bytes, size);
    free(bytes);
}
