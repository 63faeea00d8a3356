/* fusebox: the table of subcommands, and the choice of one. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/args.h"
#include "cli/interrupt.h"
#include "cli/nearest.h"
#include "cli/output.h"

static const cli_command commands[] = {
    {"run", "[MODEL] [TEXT | -p TEXT | -f FILE | -] [options]", "Continue a text with a language model",
     cli_run},
    {"tokenize", "[MODEL] [TEXT | -p TEXT | -f FILE | - | --decode IDS] [options]",
     "Turn a text into token ids, or ids into text", cli_tokenize},
    {"chat", "[MODEL] [TEXT | -p TEXT] [options]",
     "Talk with a model, or show what it sees of a conversation", cli_chat},
    {"serve", "[MODEL | NAME=MODEL]... [options]",
     "Answer requests over HTTP, as OpenAI's API does, and show the fuses at work", cli_serve},
    {"replay", "FILE [MODEL] [options]",
     "Run recorded answers of a server again, alone, and compare their bits", cli_replay},
    {"info", "[MODEL] [options]", "Show what a model is and the operators it runs", cli_info},
    {"verify", "[MODEL] [--golden FILE] [options]", "Prove the fuses, or compare with a reference answer",
     cli_verify},
    {"ppl", "[MODEL] -f FILE [options]", "Measure how well a model foresees a text: its perplexity", cli_ppl},
    {"quantize", "[MODEL] OUT.gguf [options]", "Write a model as a smaller GGUF file", cli_quantize},
    {"fuses", "[MODEL] [options]", "Show every fuse, and what it does to a model", cli_fuses},
    {"bench", "[MODEL] [options]", "Time fuses against each other, or a stream as it goes on", cli_bench},
    {"profile", "[MODEL] [options]", "Show where the time of a step goes", cli_profile},
    {"plan", "[MODEL] [options]", "Price every fuse, and check the prediction", cli_plan},
    {"completion", "bash | zsh | fish", "Print what makes a shell complete commands and options",
     cli_completion},
};

/* Not listed: a build calls it. */
static const cli_command man = {"man", "", "Print the manual page fusebox(1)", cli_man};

/* What programs like this one call their commands. */
static const struct {
    const char *name, *ours;
} foreign_commands[] = {
    {"perplexity", "ppl"}, {"generate", "run"},     {"complete", "run"},      {"cli", "run"},
    {"show", "info"},      {"convert", "quantize"}, {"quantise", "quantize"}, {"benchmark", "bench"},
};

enum { COMMANDS = sizeof commands / sizeof *commands };

static const cli_command *find_command(const char *name) {
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return strcmp(name, man.name) == 0 ? &man : NULL;
}

const cli_command *cli_command_at(int index) {
    return index >= 0 && index < COMMANDS ? &commands[index] : NULL;
}

void cli_command_describe(const cli_command *command, void (*describe)(const cli_args *args, void *user),
                          void *user) {
    const cli_described described = {.command = *command, .describe = describe, .user = user};
    char *arguments[] = {NULL};
    command->run(&described.command, 0, arguments);
}

/* ---- what was meant -------------------------------------------------------------------------- */

static bool names_file(const char *name) {
    const char *dot = strrchr(name, '.');
    return strchr(name, '/') || (dot && strcmp(dot, ".gguf") == 0) || access(name, F_OK) == 0;
}

/* Names the command that was meant. */
static int fail_unknown(const char *name) {
    if (name[0] == '-')
        return cli_fail(CLI_USAGE,
                        "unknown option: %s (a command comes first, as in fusebox run; see fusebox --help)",
                        name);
    cli_nearest nearest = {.word = name, .bytes = strlen(name)};
    for (int i = 0; i < COMMANDS; i++) cli_nearest_offer(&nearest, commands[i].name, commands[i].name);
    for (size_t i = 0; i < sizeof foreign_commands / sizeof *foreign_commands; i++)
        cli_nearest_offer(&nearest, foreign_commands[i].name, foreign_commands[i].ours);
    if (nearest.meaning)
        return cli_fail(CLI_USAGE, "unknown command: %s (did you mean %s? see fusebox --help)", name,
                        nearest.meaning);
    if (names_file(name))
        return cli_fail(CLI_USAGE, "unknown command: %s (did you mean fusebox run %s? see fusebox --help)",
                        name, name);
    return cli_fail(CLI_USAGE, "unknown command: %s (see fusebox --help)", name);
}

static void print_usage(FILE *out) {
    fprintf(out, "usage: fusebox COMMAND [arguments]\n\n"
                 "Fusebox runs language models, and makes every kernel fusion a switch.\n\n");
    for (int i = 0; i < COMMANDS; i++) fprintf(out, "  %-10s  %s\n", commands[i].name, commands[i].summary);
    fprintf(out, "\nfusebox COMMAND --help lists a command's options; fusebox --version prints the version.\n"
                 "MODEL is a Hugging Face directory, a .gguf file, or ORG/NAME in the cache of Hugging Face; "
                 "without one,\n"
                 "the built-in storyteller runs.\n");
}

static int help(int argc, char **argv) {
    if (argc < 3) {
        print_usage(stdout);
        return CLI_OK;
    }
    const cli_command *command = find_command(argv[2]);
    if (!command) return fail_unknown(argv[2]);
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
    return fail_unknown(name);
}

int main(int argc, char **argv) {
    fb_error err;
    cli_signals_begin();
    if (fb_cuda_library(getenv("FUSEBOX_CUDA_LIBRARY"), &err) != FB_OK) return cli_fail_error(&err);
    return cli_finish_output(dispatch(argc, argv));
}
