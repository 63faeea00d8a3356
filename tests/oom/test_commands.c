/* Every allocation of a command fails once: the command then gives the same answer, or says that there was no
 * memory, and leaves nothing behind. One of each call stack is tried, and a later one with the same stack;
 * FUSEBOX_OOM=all tries all. */
#include <dirent.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/support.h"

#define MAX_ARGUMENTS 16
#define OUTPUT        "out.gguf"

typedef struct command {
    const char *name;
    const char *arguments[MAX_ARGUMENTS]; /* "@x": file x of the test's directory */
    const char *until;                    /* the answer ends where this begins: times and speeds follow */
    bool all;                             /* those after the one that fails fail, too */
} command;

/* clang-format off */
static const command commands[] = {
    {.name = "run", .arguments = {"run", "@model", "-p", "a b", "-n", "4", "--seed", "1", "--threads", "2"}},
    {.name = "run, greedy, from a GGUF file", .arguments = {"run", "@model.gguf", "-p", "a b", "-n", "4", "--temp", "0", "--threads", "2"}},
    {.name = "run --json", .arguments = {"run", "@model", "-p", "a b", "-n", "4", "--seed", "1", "--json", "--threads", "2"}, .until = "\"stats\":"},
    {.name = "run --json --logprobs", .arguments = {"run", "@model", "-p", "a b", "-n", "4", "--seed", "1", "--json", "--logprobs", "2", "--logit-bias", "3:1", "--threads", "1"}, .until = "\"stats\":"},
    {.name = "run --stream", .arguments = {"run", "@model", "-p", "a b", "-n", "40", "--temp", "0", "--stream", "--window", "16", "--threads", "1"}},
    {.name = "run, and no memory from then on", .arguments = {"run", "@model", "-p", "a b", "-n", "4", "--seed", "1", "--threads", "2"}, .all = true},
    {.name = "run --draft ngram", .arguments = {"run", "@model", "-p", "a b a b", "-n", "5", "--seed", "1", "--draft", "ngram", "--draft-tokens", "2", "--threads", "1"}},
    {.name = "run --draft MODEL", .arguments = {"run", "@model", "-p", "a b", "-n", "5", "--temp", "0", "--draft", "@model.gguf", "--draft-tokens", "2", "--threads", "1"}},
    {.name = "run --draft MODEL, several answers", .arguments = {"run", "@model", "-p", "a b", "-n", "4", "--seed", "1", "--batch", "2", "--draft", "@model.gguf", "--threads", "1"}},
    {.name = "tokenize", .arguments = {"tokenize", "@model", "-p", "a b", "--pieces"}},
    {.name = "tokenize a GGUF file", .arguments = {"tokenize", "@model.gguf", "-p", "a b", "--json"}},
    {.name = "tokenize with a tokenizer.model", .arguments = {"tokenize", "tests/data/tokenizer/steps/pieces-llama", "--decode", "5 6 7"}},
    {.name = "tokenize with Unigram", .arguments = {"tokenize", "tests/data/tokenizer/steps/xlm.json", "-p", "a  b \xC3\xA9 "}},
    {.name = "info", .arguments = {"info", "@model"}},
    {.name = "info --json of a GGUF file", .arguments = {"info", "@model.gguf", "--json"}},
    {.name = "info of GGUF files in parts, by their folder", .arguments = {"info", "@parts"}},
    {.name = "info of a name of the hub", .arguments = {"info", "some/model"}},
    {.name = "quantize", .arguments = {"quantize", "@model", "@" OUTPUT, "--type", "q4_0"}},
    {.name = "quantize a GGUF file", .arguments = {"quantize", "@model.gguf", "@" OUTPUT, "--type", "q4_0", "--json"}},
    {.name = "verify --golden", .arguments = {"verify", "@model", "--golden", "@model/golden.safetensors", "--threads", "1"}},
    {.name = "verify", .arguments = {"verify", "@model", "--threads", "1", "--fuse", "all"}},
    {.name = "fuses", .arguments = {"fuses", "@model"}},
};
/* clang-format on */

static char *directory, *program, *library;

/* The file beside this program's folder, or in it. */
static char *beside(const char *folder, const char *name) {
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    assert_true(length > 0);
    path[length] = 0;
    *strrchr(path, '/') = 0;
    char *found = fbt_format("%s/%s%s", path, folder, name);
    if (access(found, R_OK)) fail_msg("%s: missing (make tests)", found);
    return found;
}

/* ---- one run ------------------------------------------------------------------------------------------- */

static fbt_process run_command(const command *c) {
    const char *argv[MAX_ARGUMENTS + 2] = {program};
    char *paths[MAX_ARGUMENTS] = {NULL};
    for (int i = 0; i < MAX_ARGUMENTS && c->arguments[i]; i++) {
        const char *argument = c->arguments[i];
        if (*argument == '@') argument = paths[i] = fbt_format("%s/%s", directory, argument + 1);
        argv[i + 1] = argument;
    }
    setenv("LD_PRELOAD", library, 1);
    fbt_process process = fbt_process_run(argv, NULL);
    unsetenv("LD_PRELOAD");
    for (int i = 0; i < MAX_ARGUMENTS; i++) free(paths[i]);
    if (c->until) {
        char *end = strstr(process.out, c->until);
        if (end) process.out_size = (size_t)(end - process.out);
    }
    return process;
}

/* The file that the command writes, or NULL. */
static void *take_output(size_t *size) {
    char *path = fbt_format("%s/" OUTPUT, directory);
    void *bytes = access(path, R_OK) == 0 ? fbt_file_read(path, size) : NULL;
    unlink(path);
    free(path);
    return bytes;
}

static int count_files(void) {
    int count = 0;
    DIR *files = opendir(directory);
    assert_non_null(files);
    while (readdir(files)) count++;
    closedir(files);
    return count;
}

/* ---- which allocations --------------------------------------------------------------------------------- */

typedef struct allocation {
    uint64_t stack; /* hash of it */
    int64_t index;
} allocation;

static int by_stack(const void *a, const void *b) {
    const allocation *x = a, *y = b;
    if (x->stack != y->stack) return x->stack < y->stack ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

/* Moves those to try to the front: of each call stack the first, and the one in the middle. */
static int64_t choose(allocation *all, int64_t count, int64_t *stacks) {
    bool every = getenv("FUSEBOX_OOM") && strcmp(getenv("FUSEBOX_OOM"), "all") == 0;
    int64_t chosen = 0;
    *stacks = 0;
    qsort(all, (size_t)count, sizeof *all, by_stack);
    for (int64_t begin = 0, end; begin < count; begin = end) {
        for (end = begin + 1; end < count && all[end].stack == all[begin].stack;) end++;
        ++*stacks;
        int64_t middle = begin + (end - begin) / 2;
        for (int64_t i = begin; i < end; i++)
            if (every || i == begin || i == middle) all[chosen++] = all[i];
    }
    return chosen;
}

static allocation *list_allocations(const command *c, fbt_process *answer, int64_t *count) {
    char *path = fbt_format("%s/list", directory), *text, *at;
    setenv("FAIL_ALLOC_LIST", path, 1);
    *answer = run_command(c);
    unsetenv("FAIL_ALLOC_LIST");
    size_t size;
    at = text = fbt_file_read(path, &size);
    allocation *all = malloc((size + 1) * sizeof *all);
    assert_non_null(all);
    *count = 0;
    for (char *end; *at; at = end + 1) {
        all[*count] = (allocation){strtoull(at, &end, 16), *count};
        ++*count;
    }
    unlink(path);
    free(path);
    free(text);
    return all;
}

/* ---- what must hold ------------------------------------------------------------------------------------ */

/* Why the run was wrong, or NULL. */
static const char *judge(const fbt_process *run, const fbt_process *answer, const regex_t *allowed) {
    if (run->status >= 128) return run->status == 128 + 14 ? "hangs" : "crashes";
    if (run->status == 0) {
        bool same = run->out_size == answer->out_size && memcmp(run->out, answer->out, run->out_size) == 0;
        return !same ? "another answer" : run->err_size ? "success, with a message" : NULL;
    }
    const char *end = strchr(run->err, '\n');
    if (!end || end[1]) return "not one line on standard error";
    return regexec(allowed, run->err, 0, NULL, 0) ? "a message about something else" : NULL;
}

static const char *judge_file(const void *wanted, size_t wanted_size, int status) {
    size_t size = 0;
    void *bytes = take_output(&size);
    bool right =
        status == 0 && wanted ? bytes && size == wanted_size && !memcmp(bytes, wanted, size) : !bytes;
    free(bytes);
    return right ? NULL : status == 0 ? "another file" : "a file is left behind";
}

static void survives(void **state) {
    const command *c = *state;
    if (FBT_SANITIZED) skip(); /* the sanitizers have allocators of their own */
    fbt_process answer;
    int64_t count, stacks, same = 0, wrong = 0;
    size_t file_size = 0;
    regex_t allowed;
    assert_int_equal(regcomp(&allowed, "^fusebox: .*(memory|threads: [0-9]+ could be)", REG_EXTENDED), 0);
    allocation *all = list_allocations(c, &answer, &count);
    if (answer.status) fail_msg("exit status %d: %s", answer.status, answer.err);
    void *file = take_output(&file_size);
    int files = count_files();
    int64_t chosen = choose(all, count, &stacks);
    if (c->all) setenv("FAIL_ALLOC_AFTER", "1", 1);
    for (int64_t i = 0; i < chosen; i++) {
        char *at = fbt_format("%lld", (long long)all[i].index);
        setenv("FAIL_ALLOC_AT", at, 1);
        free(at);
        fbt_process run = run_command(c);
        const char *why = judge_file(file, file_size, run.status);
        if (count_files() != files) why = "a file is left behind";
        if (!why) why = judge(&run, &answer, &allowed);
        if (why) {
            wrong++;
            print_message("# FAIL_ALLOC_AT=%lld: %s: exit status %d: %s\n", (long long)all[i].index, why,
                          run.status, run.err);
        }
        same += run.status == 0;
        fbt_process_free(&run);
    }
    unsetenv("FAIL_ALLOC_AT");
    unsetenv("FAIL_ALLOC_AFTER");
    print_message(
        "# %s: %lld of %lld allocations failed, of %lld call stacks; %lld times the answer was there\n",
        c->name, (long long)chosen, (long long)count, (long long)stacks, (long long)same);
    regfree(&allowed);
    free(all);
    free(file);
    fbt_process_free(&answer);
    assert_true(chosen > 0);
    assert_int_equal(wrong, 0);
}

/* ---- a small model as a directory and as a file ---------------------------------------------------------
 */

static void run_or_fail(const char *const argv[]) {
    fbt_process process = fbt_process_run(argv, NULL);
    if (process.status) fail_msg("%s", process.err);
    fbt_process_free(&process);
}

/* The model in the cache of Hugging Face, as some/model. */
static void fill_hub(const char *model) {
    char *hub = fbt_format("%s/hub", directory), *refs = fbt_format("%s/models--some--model/refs", hub),
         *snapshots = fbt_format("%s/models--some--model/snapshots", hub), *ref = fbt_format("%s/main", refs),
         *snapshot = fbt_format("%s/abc", snapshots);
    run_or_fail((const char *const[]){"/bin/mkdir", "-p", refs, snapshots, NULL});
    fbt_text_write(ref, "abc");
    assert_int_equal(symlink(model, snapshot), 0);
    setenv("HF_HUB_CACHE", hub, 1);
    free(hub);
    free(refs);
    free(snapshots);
    free(ref);
    free(snapshot);
}

/* The file as two, alone in a folder. */
static void split_file(const char *file) {
    char *folder = fbt_format("%s/parts", directory), *name = fbt_format("%s/model", folder);
    run_or_fail((const char *const[]){"/bin/mkdir", folder, NULL});
    run_or_fail((const char *const[]){"/usr/bin/env", "python3", "tests/support/gguf_edit.py", "split", file,
                                      name, "2", NULL});
    free(folder);
    free(name);
}

static int set_up(void **state) {
    (void)state;
    if (FBT_SANITIZED) return 0;
    program = beside("../../", "fusebox");
    library = beside("", "fail_alloc.so");
    setenv("FUSEBOX_CUDA_LIBRARY", "none", 1);
    directory = fbt_dir_create();
    char *copy = fbt_dir_from_golden("neox-parallel"), *model = fbt_format("%s/model", directory);
    assert_int_equal(rename(copy, model), 0);
    char *tokenizer = fbt_format("%s/tokenizer.json", model), *file = fbt_format("%s/model.gguf", directory);
    fbt_file_copy("tests/data/tokenizer/prefix.json", tokenizer);
    fbt_json_set(tokenizer, "pre_tokenizer.add_prefix_space", "false"); /* a GGUF file cannot say more */
    fbt_json_set(tokenizer, "added_tokens", "[]");
    const char *argv[] = {program, "quantize", model, file, "--type", "q8_0", NULL};
    run_or_fail(argv);
    split_file(file);
    fill_hub(model);
    free(copy);
    free(model);
    free(tokenizer);
    free(file);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    if (FBT_SANITIZED) return 0;
    fbt_dir_remove(directory);
    free(program);
    free(library);
    return 0;
}

int main(void) {
    enum { COUNT = sizeof commands / sizeof *commands };
    struct CMUnitTest tests[COUNT];
    for (int i = 0; i < COUNT; i++)
        tests[i] = (struct CMUnitTest){.name = commands[i].name,
                                       .test_func = survives,
                                       .initial_state = (void *)(uintptr_t)&commands[i]};
    return _cmocka_run_group_tests("commands", tests, COUNT, set_up, tear_down);
}
