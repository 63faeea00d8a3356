/* fusebox: the table of subcommands, and the choice of one. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/interrupt.h"
#include "cli/output.h"

static const cli_command commands[] = {
    {"run", "[MODEL] [-p TEXT | -f FILE | -] [options]", "Continue a text with a language model", cli_run},
    {"info", "[MODEL] [options]", "Show what a model is and the operators it runs", cli_info},
    {"verify", "[MODEL] [--golden FILE] [options]", "Prove the fuses, or compare with a reference answer",
     cli_verify},
    {"ppl", "[MODEL] -f FILE [options]", "Measure how well a model foresees a text: its perplexity", cli_ppl},
    {"quantize", "[MODEL] OUT.gguf [options]", "Write a model as a smaller GGUF file", cli_quantize},
    {"fuses", "[MODEL] [options]", "Show every fuse, and what it does to a model", cli_fuses},
    {"bench", "[MODEL] [options]", "Time fuses against each other, or a stream as it goes on", cli_bench},
    {"profile", "[MODEL] [options]", "Show where the time of a step goes", cli_profile},
    {"plan", "[MODEL] [options]", "Price every fuse, and check the prediction", cli_plan},
};

enum { COMMANDS = sizeof commands / sizeof *commands };

static const cli_command *find_command(const char *name) {
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

static void print_usage(FILE *out) {
    fprintf(out, "usage: fusebox COMMAND [arguments]\n\n"
                 "Fusebox runs language models, and makes every kernel fusion a switch.\n\n");
    for (int i = 0; i < COMMANDS; i++) fprintf(out, "  %-8s  %s\n", commands[i].name, commands[i].summary);
    fprintf(
        out,
        "\nfusebox COMMAND --help lists a command's options; fusebox --version prints the version.\n"
        "MODEL is a Hugging Face directory or a .gguf file; without one, the built-in storyteller runs.\n");
}

static int help(int argc, char **argv) {
    if (argc < 3) {
        print_usage(stdout);
        return CLI_OK;
    }
    const cli_command *command = find_command(argv[2]);
    if (!command) return cli_fail(CLI_USAGE, "unknown command: %s (see fusebox --help)", argv[2]);
    char option[] = "--help";
    char *arguments[] = {argv[2], option, NULL};
    return command->run(command, 2, arguments);
}

static int dispatch(int argc, char **argv) {
    if (argc < 2) {
        print_usage(stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0)
        return help(argc, argv);
    if (strcmp(name, "--version") == 0) {
        printf("fusebox %s\n", FB_VERSION);
        return CLI_OK;
    }
    const cli_command *command = find_command(name);
    if (command) return command->run(command, argc - 1, argv + 1);
    return cli_fail(CLI_USAGE, "unknown %s: %s (see fusebox --help)", name[0] == '-' ? "option" : "command",
                    name);
}

int main(int argc, char **argv) {
    fb_error err;
    cli_signals_begin();
    if (fb_cuda_library(getenv("FUSEBOX_CUDA_LIBRARY"), &err) != FB_OK) return cli_fail_error(&err);
    return cli_finish_output(dispatch(argc, argv));
}
