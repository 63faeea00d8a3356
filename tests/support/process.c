#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "support/support.h"

extern char **environ;

/* Output goes to files: two pipes could fill up while the other one is being read. */
fbt_process fbt_process_run(const char *const argv[], const char *input) {
    char *dir = fbt_dir_create();
    char *paths[3] = {fbt_format("%s/in", dir), fbt_format("%s/out", dir), fbt_format("%s/err", dir)};
    fbt_text_write(paths[0], input ? input : "");
    posix_spawn_file_actions_t actions;
    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    for (int fd = 0; fd < 3; fd++) {
        int flags = fd == 0 ? O_RDONLY : O_WRONLY | O_CREAT | O_TRUNC;
        assert_int_equal(posix_spawn_file_actions_addopen(&actions, fd, paths[fd], flags, 0600), 0);
    }
    pid_t pid;
    int status, failure = posix_spawnp(&pid, argv[0], &actions, NULL, (char **)(uintptr_t)argv, environ);
    if (failure) fail_msg("cannot run %s", argv[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    posix_spawn_file_actions_destroy(&actions);

    fbt_process process = {.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)};
    process.out = fbt_file_read(paths[1], &process.out_size);
    process.err = fbt_file_read(paths[2], &process.err_size);
    for (int fd = 0; fd < 3; fd++) free(paths[fd]);
    fbt_dir_remove(dir);
    return process;
}

void fbt_process_free(fbt_process *process) {
    free(process->out);
    free(process->err);
    *process = (fbt_process){0};
}
