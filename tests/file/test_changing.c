/* Files that others change while they are read: metadata is what it was when it was checked, and a file that
 * became shorter is refused by its name, before its weights are read. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "file/safetensors.h"
#include "support/gguf_writer.h"

#define SECONDS 0.7 /* that a file is changed and read for */

/* ---- a thread that changes bytes ------------------------------------------------------------------------
 */

#define MAX_PLACES 8

typedef struct flipper {
    uint8_t *bytes; /* the file */
    size_t size;
    size_t places[MAX_PLACES]; /* of lengths, counts, types; their highest and lowest bytes change */
    int place_count;
    atomic_bool stop;
    pthread_t thread;
} flipper;

static void *flip(void *arg) {
    flipper *f = arg;
    volatile uint8_t *bytes = f->bytes;
    static const uint8_t others[] = {1, 0x7f, 0xff};
    for (unsigned i = 0; !atomic_load(&f->stop); i++) {
        size_t place = f->places[i % (unsigned)f->place_count] + (i / 64 % 2 ? 0 : 5);
        uint8_t was = bytes[place];
        bytes[place] = others[i % 3];
        for (volatile int wait = 0; wait < (int)(i % 200); wait++) {
        }
        bytes[place] = was;
        for (volatile int wait = 0; wait < (int)(i * 37 % 1000); wait++) {
        }
    }
    return NULL;
}

static void start(flipper *f, const char *path) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    f->bytes = mmap(NULL, f->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(f->bytes != MAP_FAILED);
    close(fd);
    assert_int_equal(pthread_create(&f->thread, NULL, flip, f), 0);
}

static void stop(flipper *f) {
    atomic_store(&f->stop, true);
    pthread_join(f->thread, NULL);
    munmap(f->bytes, f->size);
}

/* On a machine that is busy with other things, until both have happened. */
static bool go_on(double seconds, int64_t opened, int64_t refused) {
    return seconds < SECONDS || ((opened == 0 || refused == 0) && seconds < 30 * SECONDS);
}

/* ---- metadata that changes between the check and the use -------------------------------------------------
 */

enum { TEXTS = 64 };

static void write_gguf(const char *path, flipper *f) {
    fbt_bytes file = {0};
    fbt_gguf_start(&file, 3, 1, 3);
    f->places[f->place_count++] = file.size - 8; /* number of values */
    f->places[f->place_count++] = file.size;     /* length of a key */
    fbt_gguf_array(&file, "texts", FB_GGUF_STRING, TEXTS);
    f->places[f->place_count++] = file.size - 8; /* length of the array */
    for (int i = 0; i < TEXTS; i++) {
        if (i % 20 == 10) f->places[f->place_count++] = file.size; /* of a string */
        fbt_put_text(&file, "abc");
    }
    fbt_gguf_text(&file, "text", "three");
    fbt_gguf_f32(&file, "real", 2);
    fbt_gguf_tensor(&file, "a", 2, (uint64_t[]){8, 4}, 0, 0);
    f->places[f->place_count++] = file.size - 8; /* offset of its data */
    fbt_gguf_data(&file, 32, 128);
    fbt_file_write(path, file.data, file.size);
    f->size = file.size;
    free(file.data);
}

static void check_texts(const fb_gguf *gguf, size_t size) {
    const fb_gguf_array *texts = fb_gguf_find_array(gguf, "texts");
    if (!texts) return; /* the key was another one */
    const uint8_t *at = texts->data;
    assert_in_range(texts->count, 0, size);
    for (int64_t i = 0; i < texts->count; i++) {
        fb_gguf_text text = fb_gguf_next_text(&at);
        assert_in_range(text.size, 0, size);
        assert_in_range(at - texts->data, 0, size);
    }
}

static void gguf_changes(void **state) {
    (void)state;
    char *dir = fbt_dir_create(), *path = fbt_format("%s/x.gguf", dir);
    flipper f = {0};
    write_gguf(path, &f);
    start(&f, path);
    int64_t opened = 0, refused = 0;
    for (double begin = fb_now(); go_on(fb_now() - begin, opened, refused);) {
        fb_gguf *gguf;
        fb_error err;
        if (fb_gguf_open(path, &gguf, &err) != FB_OK) {
            refused++;
            continue;
        }
        opened++;
        for (int i = 0; i < 10; i++) check_texts(gguf, f.size);
        const fb_tensor_entry *entry = fb_tensors_at(gguf->tensors, 0);
        for (int64_t i = 0; i < fb_stored_bytes(entry->type, entry->count); i++)
            *(volatile const uint8_t *)&entry->data[i];
        fb_gguf_free(gguf);
    }
    print_message("# opened %lld times, refused %lld times\n", (long long)opened, (long long)refused);
    stop(&f);
    assert_true(opened > 0 && refused > 0);
    free(path);
    fbt_dir_remove(dir);
}

static void safetensors_change(void **state) {
    (void)state;
    char *dir = fbt_dir_create(), *path = fbt_format("%s/x.safetensors", dir);
    const fbt_tensor tensors[] = {{"first", "F32", 1, {4}, NULL, 16}, {"second", "I8", 2, {2, 8}, NULL, 16}};
    fbt_safetensors_write(path, tensors, 2, "{\"key\": \"value\"}");
    flipper f = {.places = {0, 10, 20, 40, 60, 80}, .place_count = 6};
    free(fbt_file_read(path, &f.size));
    start(&f, path);
    int64_t opened = 0, refused = 0;
    for (double begin = fb_now(); go_on(fb_now() - begin, opened, refused);) {
        fb_tensor_table *table;
        fb_error err;
        if (fb_tensors_open(path, &table, &err) != FB_OK) {
            refused++;
            continue;
        }
        opened++;
        for (int64_t k = 0; k < fb_tensors_count(table); k++) {
            const fb_tensor_entry *entry = fb_tensors_at(table, k);
            for (int64_t i = 0; i < fb_stored_bytes(entry->type, entry->count); i++)
                *(volatile const uint8_t *)&entry->data[i];
        }
        fb_tensors_free(table);
    }
    print_message("# opened %lld times, refused %lld times\n", (long long)opened, (long long)refused);
    stop(&f);
    assert_true(opened > 0 && refused > 0);
    free(path);
    fbt_dir_remove(dir);
}

/* ---- files that become shorter ---------------------------------------------------------------------------
 */

/* In a child, which a SIGBUS may kill: 0 if a session, and a file, of a model whose file has `size` bytes by
 * now are refused in these words. */
static int use_shortened(const char *model_path, const char *file, off_t size, const char *words) {
    fb_model *model = fbt_model_open(model_path);
    fb_session *session;
    fb_error err;
    char *out = fbt_format("%s.out", file);
    assert_int_equal(truncate(file, size), 0);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGBUS, SIG_DFL);
        bool right = fb_session_create(model, NULL, &session, &err) == FB_ERROR_FILE &&
                     strstr(err.message, words) && strstr(err.message, file);
        right = right && fb_model_quantize(model, out, NULL, NULL, &err) == FB_ERROR_FILE &&
                strstr(err.message, words);
        if (!right) fprintf(stderr, "# %s\n", err.message);
        _exit(!right);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status)) print_message("# %s\n", strsignal(WTERMSIG(status)));
    fb_model_free(model);
    free(out);
    return status;
}

static void shortened_files(void **state) {
    (void)state;
    char *dir = fbt_dir_create(), *path = fbt_format("%s/x.gguf", dir);
    static const struct {
        off_t size;
        const char *words;
    } rows[] = {{100000, ": 100000 bytes (389984 when"},
                {0, ": 0 bytes (389984 when"},
                {400000, ": 400000 bytes (389984 when"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fbt_file_copy("tests/data/gguf/neox-parallel.gguf", path);
        assert_int_equal(use_shortened(path, path, rows[i].size, rows[i].words), 0);
    }
    free(path);
    fbt_dir_remove(dir);
}

static void shortened_shard(void **state) {
    (void)state;
    static const char *const names[] = {
        "config.json", "model.safetensors.index.json", "model-00001-of-00003.safetensors",
        "model-00003-of-00003.safetensors", "model-00002-of-00003.safetensors"};
    char *dir = fbt_dir_create(), *path = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *from = fbt_format(FBT_GOLDENS "/llama-linear-sharded/%s", names[i]);
        free(path);
        path = fbt_format("%s/%s", dir, names[i]);
        fbt_file_copy(from, path);
        free(from);
    }
    assert_int_equal(use_shortened(dir, path, 70000, ": 70000 bytes (74304 when"), 0);
    free(path);
    fbt_dir_remove(dir);
}

/* Who writes a new file and gives it the old one's name harms nobody. */
static void replaced_file(void **state) {
    (void)state;
    char *dir = fbt_dir_create(), *path = fbt_format("%s/x.gguf", dir), *other = fbt_format("%s/y", dir);
    fbt_file_copy("tests/data/gguf/neox-parallel.gguf", path);
    fb_model *model = fbt_model_open(path);
    fbt_text_write(other, "short");
    assert_int_equal(rename(other, path), 0);
    fb_session *session;
    fb_error err;
    assert_ok(fb_session_create(model, NULL, &session, &err), &err);
    assert_ok(fb_session_prefill(session, &(int32_t){1}, 1, &err), &err);
    fb_session_free(session);
    fb_model_free(model);
    free(path);
    free(other);
    fbt_dir_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gguf_changes),    cmocka_unit_test(safetensors_change),
        cmocka_unit_test(shortened_files), cmocka_unit_test(shortened_shard),
        cmocka_unit_test(replaced_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
