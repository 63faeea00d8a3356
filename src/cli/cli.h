/* The command line, built on the public headers alone. A subcommand is one row in main.c and one file with
 * its function. */
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

typedef struct cli_command {
    const char *name;
    const char *synopsis; /* what follows the name in the usage line */
    const char *summary;  /* one line */
    /* Returns the exit status. argv[0] is the name of the command. */
    int (*run)(const struct cli_command *command, int argc, char **argv);
} cli_command;

int cli_run(const cli_command *command, int argc, char **argv);
int cli_info(const cli_command *command, int argc, char **argv);
int cli_verify(const cli_command *command, int argc, char **argv);
int cli_ppl(const cli_command *command, int argc, char **argv);
int cli_quantize(const cli_command *command, int argc, char **argv);
int cli_fuses(const cli_command *command, int argc, char **argv);
int cli_bench(const cli_command *command, int argc, char **argv);
int cli_profile(const cli_command *command, int argc, char **argv);
int cli_plan(const cli_command *command, int argc, char **argv);

#endif
