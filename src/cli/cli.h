/* The command line, built on the public headers alone. A subcommand is one row in main.c and one file with
 * its function. Completions and the man page come from the same tables as --help. */
#ifndef FB_CLI_CLI_H
#define FB_CLI_CLI_H

#include "fusebox_tools.h"

/* Exit statuses. */
enum {
    CLI_OK = 0,
    CLI_FAILED = 1,       /* a run or a verification failed */
    CLI_USAGE = 2,        /* the command line or a file is wrong, or asks for what Fusebox does not do */
    CLI_INTERRUPTED = 130 /* Ctrl-C */
};

struct cli_args;

typedef struct cli_command {
    const char *name;
    const char *synopsis; /* what follows the name in the usage line */
    const char *summary;  /* one line */
    /* Returns the exit status. argv[0] is the name of the command. The first thing that it does is to make
     * its tables and call cli_args_parse. */
    int (*run)(const struct cli_command *command, int argc, char **argv);
} cli_command;

/* A command to be described: `run` with no arguments at all (argc 0) gets the first member of this, and does
 * nothing but pass its tables to `describe`. */
typedef struct cli_described {
    cli_command command;
    void (*describe)(const struct cli_args *args, void *user);
    void *user;
} cli_described;

/* All commands in the order of --help: index 0, 1, … until NULL. */
const cli_command *cli_command_at(int index);

/* Shows a command's tables, which exist only during the call, to `describe`. */
void cli_command_describe(const cli_command *command,
                          void (*describe)(const struct cli_args *args, void *user), void *user);

int cli_run(const cli_command *command, int argc, char **argv);
int cli_tokenize(const cli_command *command, int argc, char **argv);
int cli_chat(const cli_command *command, int argc, char **argv);
int cli_info(const cli_command *command, int argc, char **argv);
int cli_verify(const cli_command *command, int argc, char **argv);
int cli_ppl(const cli_command *command, int argc, char **argv);
int cli_quantize(const cli_command *command, int argc, char **argv);
int cli_fuses(const cli_command *command, int argc, char **argv);
int cli_bench(const cli_command *command, int argc, char **argv);
int cli_profile(const cli_command *command, int argc, char **argv);
int cli_plan(const cli_command *command, int argc, char **argv);
int cli_serve(const cli_command *command, int argc, char **argv);

int cli_replay(const cli_command *command, int argc, char **argv);
int cli_completion(const cli_command *command, int argc, char **argv);
int cli_man(const cli_command *command, int argc, char **argv);

#endif
