/* Damaged GGUF files through fb_model_open: cut, patched, with random bytes. What the format alone can have
 * wrong is in tests/file/test_gguf_refusals.c, what the metadata can in tests/arch/test_gguf.c. */
#include "corrupt/corrupt.h"
#include "support/gguf_writer.h"

#define SOURCE "tests/data/gguf/neox-parallel.gguf"

typedef struct patch {
    const char *name;
    const char *text; /* the first place where the file has it … */
    enum { RENAME, VALUE, SHAPE, TYPE } kind;
    const char *other; /* … becomes this text of the same length, or what stands behind it becomes … */
    uint32_t number;   /* … this number: a value, a matrix's columns, or its type */
    const char *words;
} patch;

#define QKV  "blk.1.attn_qkv.weight"
#define NORM "output_norm.weight"

static const patch patches[] = {
    {"magic", "GGUF", RENAME, "GGUT", 0, "does not start with"},
    {"architecture", "gptneox", RENAME, "gptneov", 0, "general.architecture: \"gptneov\""},
    {"unknown key", "gptneox.use_parallel_residual", RENAME, "gptneox.use_parallel_residues", 0, "residues"},
    {"one layer more", "gptneox.block_count", VALUE, NULL, 4, "blk.3.|missing"},
    {"one layer less", "gptneox.block_count", VALUE, NULL, 2, "blk.2.|unexpected"},
    {"no layers", "gptneox.block_count", VALUE, NULL, 0, "num_hidden_layers: 0"},
    {"layers without end", "gptneox.block_count", VALUE, NULL, UINT32_MAX, "num_hidden_layers"},
    {"heads", "gptneox.attention.head_count", VALUE, NULL, 5, "heads: 5"},
    {"width", "gptneox.embedding_length", VALUE, NULL, 128, "shape|[320, 64]"},
    {"rotation", "gptneox.rope.dimension_count", VALUE, NULL, 3, "3 (an even number)"},
    {"missing matrix", QKV, RENAME, "blk.1.attn_qkw.weight", 0, QKV ": missing"},
    {"missing vector", NORM, RENAME, "output_morn.weight", 0, NORM ": missing"},
    {"missing embedding", "token_embd.weight", RENAME, "token_embt.weight", 0, "token_embd.weight|missing"},
    {"no output, so tied, but there it is", "output.weight", RENAME, "outputs.weigh", 0, "outputs.weigh"},
    {"another shape", QKV, SHAPE, NULL, 128, QKV "|[96, 128]|[192, 64]"},
    {"another type", QKV, TYPE, NULL, 8, "hole in the data"},
    {"integers", QKV, TYPE, NULL, 25, QKV "|dtype I16"},
    {"an unreadable type", QKV, TYPE, NULL, 22, QKV "|IQ2_S"},
};

static void apply(uint8_t *bytes, size_t size, const patch *p) {
    size_t length = strlen(p->text);
    uint8_t *at = memmem(bytes, size, p->text, length);
    assert_non_null(at);
    at += length;
    if (p->kind == RENAME) {
        assert_int_equal(strlen(p->other), length);
        memcpy(at - length, p->other, length);
    }
    if (p->kind == VALUE) memcpy(at + 4, &p->number, sizeof p->number); /* behind the value's type */
    uint32_t rows = 192 * 64 / (p->number ? p->number : 1);
    if (p->kind == SHAPE) { /* behind the number of dimensions: the columns, then the rows */
        memcpy(at + 4, &p->number, sizeof p->number);
        memcpy(at + 4 + 8, &rows, sizeof rows);
    }
    if (p->kind == TYPE) memcpy(at + 4 + 2 * 8, &p->number, sizeof p->number);
}

static void run_patch(void **state) {
    const patch *p = *state;
    char *dir = fbt_dir_create(), *path = fbt_format("%s/model.gguf", dir);
    size_t size;
    uint8_t *bytes = fbt_file_read(SOURCE, &size);
    apply(bytes, size, p);
    fbt_file_write(path, bytes, size);
    require_model_refused(path, p->words);
    free(bytes);
    free(path);
    fbt_dir_remove(dir);
}

/* The file again, its vectors as Q8_0: well formed, and of a type that matrices may have. */
static void quantised_vectors(void **state) {
    (void)state;
    char *dir = fbt_dir_create(), *path = fbt_format("%s/model.gguf", dir);
    size_t size;
    uint8_t *bytes = fbt_file_read(SOURCE, &size);
    fb_gguf *gguf;
    fb_error err;
    assert_ok(fb_gguf_parse("source", bytes, size, &gguf, &err), &err);
    /* The values end where the first info begins, with the length of its name. */
    const uint8_t *infos = memmem(bytes, size, "output.weight", 13);
    assert_non_null(infos);
    fbt_bytes file = {0}, data = {0};
    fbt_put(&file, bytes, (size_t)(infos - 8 - bytes));
    for (int64_t i = 0; i < fb_tensors_count(gguf->tensors); i++) {
        const fb_tensor_entry *t = fb_tensors_at(gguf->tensors, i);
        bool vector = t->dims == 1;
        uint64_t sizes[] = {(uint64_t)t->shape[t->dims - 1], (uint64_t)t->shape[0]};
        fbt_gguf_tensor(&file, t->name, (uint32_t)t->dims, sizes, vector ? 8 : 1, data.size);
        fbt_gguf_data(&data, 32, (size_t)fb_stored_bytes(vector ? FB_STORED_Q8_0 : t->type, t->count));
        while (data.size % 32) fbt_put(&data, "", 1);
    }
    fbt_gguf_data(&file, 32, 0);
    fbt_put(&file, data.data, data.size);
    fbt_file_write(path, file.data, file.size);
    require_model_refused(path, "attn_norm.|dtype Q8_0 (F32, F16 or BF16)");
    fb_gguf_free(gguf);
    free(file.data);
    free(data.data);
    free(bytes);
    free(path);
    fbt_dir_remove(dir);
}

static void cut_anywhere(void **state) {
    (void)state;
    char *dir = fbt_dir_create(), *path = fbt_format("%s/model.gguf", dir);
    size_t size;
    uint8_t *bytes = fbt_file_read(SOURCE, &size);
    const size_t cuts[] = {0, 1, 4, 23, 24, 100, 1000, 3000, size / 2, size - 4096, size - 33};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        fbt_file_write(path, bytes, cuts[i]);
        require_model_refused(path, "model.gguf");
    }
    free(bytes);
    free(path);
    fbt_dir_remove(dir);
}

/* Wrong bytes in the header: whatever comes of it, it ends with a model or a message. */
static void random_bytes(void **state) {
    (void)state;
    char *dir = fbt_dir_create(), *path = fbt_format("%s/model.gguf", dir);
    size_t size;
    uint8_t *bytes = fbt_file_read(SOURCE, &size);
    fbt_random random = fbt_random_start(5);
    int opened = 0, refused = 0;
    for (int i = 0; i < 300; i++) {
        uint8_t *copy = malloc(size);
        assert_non_null(copy);
        memcpy(copy, bytes, size);
        for (int k = 0; k <= i % 3; k++)
            copy[fbt_random_below(&random, 3300)] = (uint8_t)fbt_random_bits(&random);
        fbt_file_write(path, copy, size);
        fb_model *model;
        fb_error err = {0};
        fb_status status = fb_model_open(path, &model, &err);
        assert_true((status == FB_OK) == (model != NULL));
        assert_true(status == FB_OK || err.message[0]);
        opened += status == FB_OK;
        refused += status != FB_OK;
        fb_model_free(model);
        free(copy);
    }
    print_message("# %d opened, %d refused\n", opened, refused);
    assert_true(refused > 0);
    free(bytes);
    free(path);
    fbt_dir_remove(dir);
}

static void no_such_file(void **state) {
    (void)state;
    require_model_refused("tests/data/gguf/none.gguf", "none.gguf: No such file");
    require_model_refused("tests/data/gguf/make_gguf.py", "make_gguf.py: does not start with \"GGUF\"");
    require_model_refused("tests/data/gguf/spm.gguf", "spm.gguf: llama.context_length: missing");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantised_vectors),
        cmocka_unit_test(cut_anywhere),
        cmocka_unit_test(random_bytes),
        cmocka_unit_test(no_such_file),
    };
    int failed = RUN_ROWS("corrupt GGUF files: patches", run_patch, patches);
    return failed + cmocka_run_group_tests_name("corrupt GGUF files", tests, NULL, NULL);
}
