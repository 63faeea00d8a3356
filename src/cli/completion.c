/* fusebox completion: a script for a shell, from the tables of all commands. */
#include <stdio.h>
#include <string.h>

#include "cli/args.h"
#include "cli/output.h"

/* What may follow an option. */
typedef enum follows { NOTHING_FOLLOWS, ANYTHING_FOLLOWS, A_CHOICE_FOLLOWS, A_FILE_FOLLOWS } follows;

static follows what_follows(const cli_option *option) {
    if (option->kind == CLI_FLAG) return NOTHING_FOLLOWS;
    if (option->kind == CLI_CHOICE || option->kind == CLI_DTYPE) return A_CHOICE_FOLLOWS;
    return option->metavar && strcmp(option->metavar, "FILE") == 0 ? A_FILE_FOLLOWS : ANYTHING_FOLLOWS;
}

/* The choices as they are in --help, "a, b", with spaces alone between them. */
static void print_choices(const cli_option *option) {
    char text[160];
    cli_option_range(option, text, sizeof text);
    for (const char *at = text; *at; at++)
        if (*at != ',') putchar(*at);
}

/* Every option of every group of a command. */
#define EACH_OPTION(args, option)                                                                            \
    for (int g_ = 0; g_ < (args)->group_count; g_++)                                                         \
        for (const cli_option *option = (args)->groups[g_].options;                                          \
             option < (args)->groups[g_].options + (args)->groups[g_].count; option++)

static void print_commands(void) {
    const cli_command *command;
    for (int i = 0; (command = cli_command_at(i)); i++) printf("%s ", command->name);
    fputs("help", stdout);
}

/* Text inside single quotes of a shell. A colon separates name and description for zsh. */
static void print_quoted(const char *text, bool zsh) {
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", stdout);
        else if (zsh && strchr("[]:\\", *text))
            printf("\\%c", *text);
        else
            putchar(*text);
    }
}

/* ---- bash ------------------------------------------------------------------------------------ */

static void bash_command(const cli_args *args, void *user) {
    (void)user;
    printf("    %s)\n        options=\"", args->command->name);
    EACH_OPTION(args, option) {
        if (option->letter) printf("-%c ", option->letter);
        printf("--%s ", option->name);
    }
    printf("%s--help -h\"\n        case $previous in\n", args->takes_model ? "-m --model " : "");
    EACH_OPTION(args, option) {
        follows what = what_follows(option);
        if (what == NOTHING_FOLLOWS) continue;
        fputs("        ", stdout);
        if (option->letter) printf("-%c | ", option->letter);
        printf("--%s) ", option->name);
        if (what == A_CHOICE_FOLLOWS) {
            fputs("words=\"", stdout);
            print_choices(option);
            puts("\" files=no ;;");
        } else
            puts(what == A_FILE_FOLLOWS ? "options= ;;" : "options= files=no ;;");
    }
    puts("        esac\n        ;;");
}

static void print_bash(void) {
    const cli_command *command;
    puts("# bash completion of fusebox; source it, or save it as\n"
         "# ~/.local/share/bash-completion/completions/fusebox\n"
         "_fusebox() {\n"
         "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}\n"
         "    local options= words= files=yes\n"
         "    COMPREPLY=()\n"
         "    if [ \"$COMP_CWORD\" -eq 1 ]; then");
    fputs("        COMPREPLY=($(compgen -W \"", stdout);
    print_commands();
    puts(" --help --version\" -- \"$current\"))\n"
         "        return\n"
         "    fi\n"
         "    case ${COMP_WORDS[1]} in\n"
         "    help)");
    fputs("        words=\"", stdout);
    print_commands();
    puts("\" files=no\n        ;;\n    completion)\n        words=\"bash zsh fish\" files=no\n        ;;");
    for (int i = 0; (command = cli_command_at(i)); i++)
        if (command->run != cli_completion) cli_command_describe(command, bash_command, NULL);
    puts("    esac\n"
         "    if [ -n \"$words\" ]; then\n"
         "        COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
         "    elif [[ $current == -* && -n $options ]]; then\n"
         "        COMPREPLY=($(compgen -W \"$options\" -- \"$current\"))\n"
         "    elif [ $files = yes ]; then\n"
         "        compopt -o filenames 2>/dev/null\n"
         "        local IFS=$'\\n'\n"
         "        COMPREPLY=($(compgen -f -- \"$current\"))\n"
         "    fi\n"
         "}\n"
         "complete -F _fusebox fusebox");
}

/* ---- zsh ------------------------------------------------------------------------------------- */

/* "'(-n --tokens)'{-n,--tokens}'[tokens at most]:N: '" */
static void zsh_option(const cli_option *option) {
    fputs("            ", stdout);
    if (option->letter)
        printf("'(-%c --%s)'{-%c,--%s}'[", option->letter, option->name, option->letter, option->name);
    else
        printf("'--%s[", option->name);
    print_quoted(option->help, true);
    putchar(']');
    switch (what_follows(option)) {
    case NOTHING_FOLLOWS:
        break;
    case A_CHOICE_FOLLOWS:
        printf(":%s:(", option->metavar);
        print_choices(option);
        putchar(')');
        break;
    case A_FILE_FOLLOWS:
        printf(":%s:_files", option->metavar);
        break;
    case ANYTHING_FOLLOWS:
        putchar(':');
        print_quoted(option->metavar, true);
        fputs(": ", stdout);
        break;
    }
    puts("' \\");
}

static void zsh_command(const cli_args *args, void *user) {
    (void)user;
    printf("    %s)\n        _arguments -s \\\n", args->command->name);
    EACH_OPTION(args, option) zsh_option(option);
    if (args->takes_model) puts("            '(-m --model)'{-m,--model}'[MODEL]:MODEL:_files' \\");
    puts("            '(-h --help)'{-h,--help}'[this text]' \\\n            '*:argument:_files'\n        ;;");
}

static void print_zsh(void) {
    const cli_command *command;
    puts("#compdef fusebox\n"
         "# zsh completion of fusebox: save it as _fusebox in a folder of $fpath\n"
         "_fusebox() {\n"
         "    local -a commands\n"
         "    commands=(");
    for (int i = 0; (command = cli_command_at(i)); i++) {
        printf("        '%s:", command->name);
        print_quoted(command->summary, true);
        puts("'");
    }
    puts("        'help:Show the options of a command'\n"
         "    )\n"
         "    if ((CURRENT == 2)); then\n"
         "        _describe command commands\n"
         "        return\n"
         "    fi\n"
         "    local command=$words[2]\n"
         "    shift words\n"
         "    ((CURRENT--))\n"
         "    case $command in\n"
         "    help) _describe command commands ;;\n"
         "    completion) _values shell bash zsh fish ;;");
    for (int i = 0; (command = cli_command_at(i)); i++)
        if (command->run != cli_completion) cli_command_describe(command, zsh_command, NULL);
    puts("    esac\n"
         "}\n"
         "if [ \"$funcstack[1]\" = _fusebox ]; then _fusebox \"$@\"; else compdef _fusebox fusebox; fi");
}

/* ---- fish ------------------------------------------------------------------------------------ */

static void fish_command(const cli_args *args, void *user) {
    (void)user;
    const char *name = args->command->name;
    EACH_OPTION(args, option) {
        printf("complete -c fusebox -n '__fish_seen_subcommand_from %s' -l %s", name, option->name);
        if (option->letter) printf(" -s %c", option->letter);
        switch (what_follows(option)) {
        case NOTHING_FOLLOWS:
            break;
        case A_CHOICE_FOLLOWS:
            fputs(" -x -a '", stdout);
            print_choices(option);
            putchar('\'');
            break;
        case A_FILE_FOLLOWS:
            fputs(" -r -F", stdout);
            break;
        case ANYTHING_FOLLOWS:
            fputs(" -x", stdout);
            break;
        }
        fputs(" -d '", stdout);
        print_quoted(option->help, false);
        puts("'");
    }
    if (args->takes_model)
        printf("complete -c fusebox -n '__fish_seen_subcommand_from %s' -s m -l model -r -F -d MODEL\n",
               name);
    printf("complete -c fusebox -n '__fish_seen_subcommand_from %s' -s h -l help -d 'this text'\n", name);
}

static void print_fish(void) {
    const cli_command *command;
    puts("# fish completion of fusebox: save it as ~/.config/fish/completions/fusebox.fish\n"
         "complete -c fusebox -e\n"
         "complete -c fusebox -n __fish_use_subcommand -f -a help -d 'Show the options of a command'\n"
         "complete -c fusebox -n __fish_use_subcommand -l version -d 'Print the version'\n"
         "complete -c fusebox -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'");
    fputs("complete -c fusebox -n '__fish_seen_subcommand_from help' -f -a '", stdout);
    print_commands();
    puts("'");
    for (int i = 0; (command = cli_command_at(i)); i++) {
        printf("complete -c fusebox -n __fish_use_subcommand -f -a %s -d '", command->name);
        print_quoted(command->summary, false);
        puts("'");
        if (command->run != cli_completion) cli_command_describe(command, fish_command, NULL);
    }
}

/* ---------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*print)(void);
} shells[] = {{"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};

int cli_completion(const cli_command *command, int argc, char **argv) {
    cli_args args = {.command = command,
                     .notes = "For bash:  source <(fusebox completion bash)\n"
                              "For zsh:   fusebox completion zsh >\"${fpath[1]}/_fusebox\"\n"
                              "For fish:  fusebox completion fish >~/.config/fish/completions/fusebox.fish\n",
                     .max_positionals = 1};
    int status;
    if (!cli_args_parse(&args, argc, argv, &status)) return status;
    const char *shell = args.positional_count ? args.positionals[0] : NULL;
    for (size_t i = 0; shell && i < sizeof shells / sizeof *shells; i++)
        if (strcmp(shell, shells[i].name) == 0) {
            shells[i].print();
            return CLI_OK;
        }
    return cli_fail(CLI_USAGE, "shell: %s (bash, zsh or fish)", shell ? shell : "none given");
}
