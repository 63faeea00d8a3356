/* fusebox man: the manual page, from the tables of all commands. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "cli/args.h"

#define LINE 70 /* columns after which a line of the page's source ends */

/* Text of a page: a dash is what one types, a backslash is itself, and no line begins with what roff would
 * take as a request. */
static void put_text(const char *text) {
    int column = 0;
    for (; *text; text++) {
        if (column++ == 0 && (*text == '.' || *text == '\'')) fputs("\\&", stdout);
        if (*text == '\n' || (column > LINE && *text == ' ')) {
            putchar('\n');
            column = 0;
        } else if (*text == '-')
            fputs("\\-", stdout);
        else if (*text == '\\')
            fputs("\\e", stdout);
        else
            putchar(*text);
    }
}

static void put_upper(const char *text) {
    for (; *text; text++) putchar(toupper((unsigned char)*text));
}

static void put_line(const char *request, const char *text) {
    fputs(request, stdout);
    put_text(text);
    putchar('\n');
}

static void put_option(const cli_option *option) {
    char range[160], fallback[80];
    cli_option_range(option, range, sizeof range);
    cli_option_default(option, fallback, sizeof fallback);
    puts(".TP");
    if (option->letter) printf("\\fB\\-%c\\fR, ", option->letter);
    fputs("\\fB", stdout);
    put_text("--");
    put_text(option->name);
    fputs("\\fR", stdout);
    if (option->metavar) {
        fputs(" \\fI", stdout);
        put_text(option->metavar);
        fputs("\\fR", stdout);
    }
    putchar('\n');
    put_text(option->help);
    if (range[0] || fallback[0]) {
        fputs(" (", stdout);
        put_text(range);
        if (range[0] && fallback[0]) fputs("; ", stdout);
        if (fallback[0]) fputs("default ", stdout);
        put_text(fallback);
        putchar(')');
    }
    putchar('\n');
}

/* Lines that belong together are filled; an empty one begins a paragraph, and one that is laid out with
 * spaces keeps its place. */
static void put_notes(const char *notes) {
    char line[256];
    while (notes && *notes) {
        size_t bytes = strcspn(notes, "\n");
        snprintf(line, sizeof line, "%.*s", (int)bytes, notes);
        notes += bytes + (notes[bytes] == '\n');
        if (!*line)
            puts(".PP");
        else if (strstr(line, "  ")) {
            put_line("", line);
            puts(".br");
        } else
            put_line("", line);
    }
}

static void put_command(const cli_args *args, void *user) {
    (void)user;
    const cli_command *command = args->command;
    fputs(".SH FUSEBOX ", stdout);
    put_upper(command->name);
    printf("\n\\fBfusebox %s\\fR ", command->name);
    put_text(command->synopsis);
    puts("\n.PP");
    put_text(command->summary);
    puts(".");
    if (args->notes && *args->notes) puts(".PP");
    put_notes(args->notes);
    for (int g = 0; g < args->group_count; g++) {
        put_line(".SS ", args->groups[g].title);
        for (int i = 0; i < args->groups[g].count; i++) put_option(&args->groups[g].options[i]);
    }
}

static void put_synopsis(void) {
    const cli_command *command;
    puts(".SH SYNOPSIS");
    for (int i = 0; (command = cli_command_at(i)); i++) {
        printf("\\fBfusebox %s\\fR ", command->name);
        put_text(command->synopsis);
        puts("\n.br");
    }
    puts("\\fBfusebox help\\fR \\fICOMMAND\\fR\n.br\n\\fBfusebox \\-\\-version\\fR");
}

/* What is true of all commands. */
static const char ends[] =
    ".SH EXIT STATUS\n"
    ".TP\n0\nsuccess\n"
    ".TP\n1\na run or a verification failed\n"
    ".TP\n2\nthe command line or a file is wrong, or asks for what Fusebox does not do\n"
    ".TP\n130\nCtrl\\-C\n"
    ".SH ENVIRONMENT\n"
    ".TP\nHF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME, XDG_CACHE_HOME\n"
    "where the cache of Hugging Face is, in which a MODEL like \\fIORG/NAME\\fR is looked up\n"
    ".TP\nXDG_CACHE_HOME\nwhere the planner keeps its measurements of this machine\n"
    ".TP\nFUSEBOX_CUDA_LIBRARY\nthe library of the CUDA backend; \\fBnone\\fR: no GPU is used\n"
    ".TP\nNO_COLOR, TERM\nwithout colours and progress bars if NO_COLOR is set or TERM is \\fBdumb\\fR\n";

int cli_man(const cli_command *command, int argc, char **argv) {
    cli_args args = {.command = command, .notes = ""};
    const cli_command *each;
    int status;
    if (!cli_args_parse(&args, argc, argv, &status)) return status;
    printf(".TH FUSEBOX 1 \"\" \"fusebox %s\" \"User Commands\"\n", FB_VERSION);
    puts(".SH NAME\nfusebox \\- run language models, and make every kernel fusion a switch");
    put_synopsis();
    puts(".SH DESCRIPTION\nOptions may stand anywhere, as \\fB\\-\\-name value\\fR or "
         "\\fB\\-\\-name=value\\fR; "
         "\\fB\\-\\-\\fR ends them.\nAn option that is given twice has its last value.\nEvery command has "
         "\\fB\\-h\\fR, \\fB\\-\\-help\\fR.");
    for (int i = 0; (each = cli_command_at(i)); i++) cli_command_describe(each, put_command, NULL);
    fputs(ends, stdout);
    return CLI_OK;
}
