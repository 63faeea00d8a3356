/* Options from tables: a row says what an option is, and parsing, range errors and --help come from it. */
#ifndef FB_CLI_ARGS_H
#define FB_CLI_ARGS_H

#include "cli/cli.h"

/* And what the target points to. */
typedef enum cli_kind {
    CLI_FLAG,   /* bool, set to true; the only kind without a value */
    CLI_INT,    /* int64_t in the range */
    CLI_SEED,   /* uint64_t, all of them */
    CLI_REAL,   /* double in the range */
    CLI_STRING, /* const char * into argv */
    CLI_DTYPE,  /* fb_dtype */
    CLI_CHOICE, /* const char *, one of `choices` */
    CLI_LIST    /* cli_list: the option may be given several times */
} cli_kind;

#define CLI_LIST_ROOM 64
typedef struct cli_list {
    const char *values[CLI_LIST_ROOM]; /* into argv */
    int32_t count;
} cli_list;

typedef struct cli_option {
    char letter;      /* of -n; 0: none */
    const char *name; /* of --name; never NULL */
    cli_kind kind;
    void *target;        /* holds the default before parsing */
    const char *metavar; /* the value's name in --help; NULL for flags */
    const char *help;
    struct {
        double min, max;
    } range;
    const char *const *choices; /* up to a NULL; a value may have other cases */
    const char *fallback;       /* the default in --help; NULL: the target's value */
    bool *given;                /* set when the option occurs; may be NULL */
} cli_option;

/* The members that every row has; others follow by name. */
#define CLI_ROW(l, n, k, t, m, h)                                                                            \
    .letter = (l), .name = (n), .kind = (k), .target = (t), .metavar = (m), .help = (h)

/* Options under one heading of --help. */
typedef struct cli_group {
    const char *title;
    const cli_option *options;
    int count;
} cli_group;

#define CLI_MAX_POSITIONALS 4

typedef struct cli_args {
    const cli_command *command;
    const char *notes; /* lines of --help above the options */
    const cli_group *groups;
    int group_count;
    int max_positionals;
    bool takes_model; /* the first positional is MODEL, which -m gives as well */
    /* Filled by parsing. */
    const char *positionals[CLI_MAX_POSITIONALS];
    int positional_count;
    bool model_given; /* -m gave positionals[0] */
} cli_args;

/* With argc 0, where the command is only described (cli.h), shows `args` to whoever asks and returns false.
 * Otherwise sets the targets of the options in argv[1 …]. False: the command ends here with *status, because
 * of an error, which was printed, or of --help. An option that occurs twice has its last value. */
bool cli_args_parse(cli_args *args, int argc, char **argv, int *status);

/* What an option accepts, "0 to 100" or "f32, f16, bf16"; and its default. Empty where there is nothing to
 * say. */
const char *cli_option_range(const cli_option *option, char *text, size_t size);
const char *cli_option_default(const cli_option *option, char *text, size_t size);

#endif
