#include "cli/args.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/foreign.h"
#include "cli/nearest.h"
#include "cli/output.h"

/* ---- one argument at a time ------------------------------------------------------------------ */

typedef enum step {
    STEP_END,
    STEP_OPTION,
    STEP_POSITIONAL,
    STEP_MODEL,   /* MODEL as the value of -m */
    STEP_NOTHING, /* a spelling of others that changes nothing */
    STEP_HELP,
    STEP_ERROR
} step;

typedef struct cursor {
    const cli_args *args;
    int argc, at; /* argv[at] is the next argument */
    char **argv;
    bool only_positionals; /* after "--" */
    /* The current argument. */
    const cli_option *option;
    const cli_foreign *foreign; /* as which it is spelled; NULL: as ours */
    int spelled;                /* bytes of argv that name the option: 6 of "--temp=1" */
    const char *name;           /* of the option as given: not terminated, `spelled` bytes */
    const char *value;          /* of the option, or the positional; NULL for a flag */
} cursor;

static const cli_option *find_long(const cli_args *args, const char *name, int bytes) {
    for (int g = 0; g < args->group_count; g++)
        for (int i = 0; i < args->groups[g].count; i++) {
            const cli_option *option = &args->groups[g].options[i];
            if ((int)strlen(option->name) == bytes && strncmp(option->name, name, (size_t)bytes) == 0)
                return option;
        }
    return NULL;
}

static const cli_option *find_letter(const cli_args *args, char letter) {
    for (int g = 0; g < args->group_count; g++)
        for (int i = 0; i < args->groups[g].count; i++)
            if (args->groups[g].options[i].letter == letter) return &args->groups[g].options[i];
    return NULL;
}

static int fail_see_help(const cli_args *args, const char *what, const char *value, int bytes) {
    return cli_fail(CLI_USAGE, "%s: %.*s (see fusebox %s --help)", what, bytes, value, args->command->name);
}

/* Whether a command has an option: for cli_command_describe. */
typedef struct wanted_option {
    const char *name;
    int bytes;
    bool found;
} wanted_option;

static void look_for(const cli_args *args, void *user) {
    wanted_option *wanted = user;
    wanted->found = find_long(args, wanted->name, wanted->bytes) != NULL;
}

/* The name of a command that has this option, or NULL. */
static const char *find_owner(const char *name, int bytes) {
    const cli_command *command;
    for (int i = 0; (command = cli_command_at(i)); i++) {
        wanted_option wanted = {.name = name, .bytes = bytes};
        cli_command_describe(command, look_for, &wanted);
        if (wanted.found) return command->name;
    }
    return NULL;
}

/* Others have options of execution only. */
static bool runs_model(const cli_args *args) { return find_long(args, "threads", 7) != NULL; }

/* Names the option that was meant: one of this command, also where it is spelled as others do; or else the
 * command that has it. */
static step fail_unknown(const cursor *c, const char *argument, int spelled) {
    const cli_args *args = c->args;
    cli_nearest nearest = {.word = argument + 2, .bytes = (size_t)spelled - 2};
    const cli_foreign *row;
    if (argument[1] == '-') {
        for (int g = 0; g < args->group_count; g++)
            for (int i = 0; i < args->groups[g].count; i++)
                cli_nearest_offer(&nearest, args->groups[g].options[i].name, args->groups[g].options[i].name);
        for (int i = 0; (row = cli_foreign_at(i)); i++)
            if (row->kind == CLI_FOREIGN_SAME && row->spelling[1] == '-' &&
                find_long(args, row->to, (int)strlen(row->to)))
                cli_nearest_offer(&nearest, row->spelling + 2, row->to);
    }
    const char *owner = argument[1] == '-' ? find_owner(argument + 2, spelled - 2) : NULL;
    bool same = c->foreign && c->foreign->kind == CLI_FOREIGN_SAME && runs_model(args);
    const char *other = same ? find_owner(c->foreign->to, (int)strlen(c->foreign->to)) : NULL;
    if (other)
        cli_fail(CLI_USAGE, "unknown option: %.*s (--%s of fusebox %s; see fusebox %s --help)", spelled,
                 argument, c->foreign->to, other, args->command->name);
    else if (owner)
        cli_fail(CLI_USAGE, "unknown option: %.*s (an option of fusebox %s; see fusebox %s --help)", spelled,
                 argument, owner, args->command->name);
    else if (nearest.meaning)
        cli_fail(CLI_USAGE, "unknown option: %.*s (did you mean --%s? see fusebox %s --help)", spelled,
                 argument, nearest.meaning, args->command->name);
    else
        fail_see_help(args, "unknown option", argument, spelled);
    return STEP_ERROR;
}

/* Finds the option's value: behind "=", attached to the letter, or in the next argument. */
static step take_value(cursor *c, const char *attached) {
    c->value = attached;
    if (c->option->kind == CLI_FLAG) {
        if (!attached) return STEP_OPTION;
        cli_fail(CLI_USAGE, "%.*s: %s (takes no value)", c->spelled, c->name, attached);
        return STEP_ERROR;
    }
    if (!attached && c->at < c->argc) c->value = c->argv[c->at++];
    if (c->value) return STEP_OPTION;
    cli_fail(CLI_USAGE, "%.*s: no value (needs %s)", c->spelled, c->name, c->option->metavar);
    return STEP_ERROR;
}

/* An option as others spell it. `attached`: its value behind "=", or NULL. */
static step take_foreign(cursor *c, const char *argument, const char *attached) {
    const cli_args *args = c->args;
    const cli_foreign *row = c->foreign;
    bool runs = runs_model(args);
    c->option = row->kind == CLI_FOREIGN_SAME || row->kind == CLI_FOREIGN_LAYERS
                    ? find_long(args, row->to, (int)strlen(row->to))
                    : NULL;
    if (c->option) return take_value(c, attached);
    if (row->kind == CLI_FOREIGN_MODEL && args->takes_model) {
        c->value = attached ? attached : c->at < c->argc ? c->argv[c->at++] : NULL;
        if (c->value) return STEP_MODEL;
        cli_fail(CLI_USAGE, "%.*s: no value (needs MODEL)", c->spelled, argument);
        return STEP_ERROR;
    }
    if (row->kind == CLI_FOREIGN_NOTHING && runs) {
        bool next = !attached && c->at < c->argc;
        c->at += next && (row->value == CLI_VALUE ||
                          (row->value == CLI_SWITCH && cli_foreign_is_switch(c->argv[c->at])));
        return STEP_NOTHING;
    }
    if (row->kind != CLI_FOREIGN_ADVICE || !runs) return fail_unknown(c, argument, c->spelled);
    cli_fail(CLI_USAGE, "unknown option: %.*s (%s)", c->spelled, argument, row->to);
    return STEP_ERROR;
}

/* "-n" and "--tokens" are ours first. "-ngl" is how others spell an option before it is -n with the value
 * "gl". */
static step advance_option(cursor *c, const char *argument) {
    bool is_long = argument[1] == '-';
    int spelled = (int)strcspn(argument, "=");
    const char *attached = argument[spelled] ? argument + spelled + 1 : NULL;
    c->name = argument;
    c->spelled = spelled;
    c->foreign = NULL;
    c->option = is_long       ? find_long(c->args, argument + 2, spelled - 2)
                : argument[2] ? NULL
                              : find_letter(c->args, argument[1]);
    if (c->option) return take_value(c, attached);
    c->foreign = cli_foreign_find(argument, spelled);
    if (c->foreign) return take_foreign(c, argument, attached);
    if (is_long) return fail_unknown(c, argument, spelled);
    c->spelled = 2;
    c->option = find_letter(c->args, argument[1]);
    return c->option ? take_value(c, argument + 2) : fail_unknown(c, argument, 2);
}

static step advance(cursor *c) {
    if (c->at >= c->argc) return STEP_END;
    const char *argument = c->argv[c->at++];
    if (!c->only_positionals && strcmp(argument, "--") == 0) {
        c->only_positionals = true;
        return advance(c);
    }
    if (c->only_positionals || argument[0] != '-' || argument[1] == '\0') {
        c->value = argument;
        return STEP_POSITIONAL;
    }
    if (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0) return STEP_HELP;

    return advance_option(c, argument);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Whole decimal numbers only: strtoll and strtod alone would take leading spaces, hexadecimal, "inf" and
 * "nan". */
static bool is_plain(const char *value, const char *characters) {
    return *value && value[strspn(value, characters)] == '\0';
}

static bool parse_int(const cli_option *option, const char *value) {
    char *end;
    errno = 0;
    int64_t number = strtoll(value, &end, 10);
    if (!is_plain(value, "-0123456789") || *end || errno) return false;
    if ((double)number < option->range.min || (double)number > option->range.max) return false;
    *(int64_t *)option->target = number;
    return true;
}

static bool parse_seed(const cli_option *option, const char *value) {
    errno = 0;
    uint64_t number = strtoull(value, NULL, 10);
    if (!is_plain(value, "0123456789") || errno) return false;
    *(uint64_t *)option->target = number;
    return true;
}

static bool parse_real(const cli_option *option, const char *value) {
    char *end;
    errno = 0;
    double number = strtod(value, &end);
    if (!is_plain(value, "+-.0123456789eE") || *end || errno) return false;
    if (!(number >= option->range.min && number <= option->range.max)) return false;
    *(double *)option->target = number;
    return true;
}

static bool parse_choice(const cli_option *option, const char *value) {
    for (const char *const *choice = option->choices; *choice; choice++)
        if (strcasecmp(*choice, value) == 0) {
            *(const char **)option->target = *choice;
            return true;
        }
    return false;
}

static bool add_to_list(cli_list *list, const char *value) {
    if (list->count == CLI_LIST_ROOM || !*value) return false;
    list->values[list->count++] = value;
    return true;
}

static bool set_target(const cli_option *option, const char *value) {
    switch (option->kind) {
    case CLI_FLAG:
        *(bool *)option->target = true;
        return true;
    case CLI_INT:
        return parse_int(option, value);
    case CLI_SEED:
        return parse_seed(option, value);
    case CLI_REAL:
        return parse_real(option, value);
    case CLI_STRING:
        *(const char **)option->target = value;
        return true;
    case CLI_DTYPE:
        return fb_dtype_parse(value, option->target, NULL) == FB_OK;
    case CLI_CHOICE:
        return parse_choice(option, value);
    case CLI_LIST:
        return add_to_list(option->target, value);
    }
    return false;
}

const char *cli_option_range(const cli_option *option, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    if (option->kind == CLI_INT) snprintf(text, size, "%.0f to %.0f", option->range.min, option->range.max);
    if (option->kind == CLI_LIST) snprintf(text, size, "not empty, up to %d times", CLI_LIST_ROOM);
    if (option->kind == CLI_SEED) snprintf(text, size, "0 to %" PRIu64, UINT64_MAX);
    if (option->kind == CLI_REAL) snprintf(text, size, "%g to %g", option->range.min, option->range.max);
    if (option->kind == CLI_DTYPE)
        for (int i = FB_F32; i <= FB_F64 && used < size; i++)
            used +=
                (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "", fb_dtype_name((fb_dtype)i));
    if (option->kind == CLI_CHOICE)
        for (int i = 0; option->choices[i] && used < size; i++)
            used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "", option->choices[i]);
    return text;
}

/* ---- help ------------------------------------------------------------------------------------ */

const char *cli_option_default(const cli_option *option, char *text, size_t size) {
    text[0] = '\0';
    if (option->fallback) {
        snprintf(text, size, "%s", option->fallback);
        return text;
    }
    switch (option->kind) {
    case CLI_INT:
        snprintf(text, size, "%" PRId64, *(int64_t *)option->target);
        break;
    case CLI_SEED:
        snprintf(text, size, "%" PRIu64, *(uint64_t *)option->target);
        break;
    case CLI_REAL:
        snprintf(text, size, "%g", *(double *)option->target);
        break;
    case CLI_DTYPE:
        snprintf(text, size, "%s", fb_dtype_name(*(fb_dtype *)option->target));
        break;
    case CLI_STRING:
    case CLI_CHOICE: {
        const char *value = *(const char **)option->target;
        if (value) snprintf(text, size, "%s", value);
        break;
    }
    case CLI_FLAG:
    case CLI_LIST:
        break;
    }
    return text;
}

/* "  -n, --tokens N" into `text`; returns its length. */
static int describe_names(const cli_option *option, char *text, size_t size) {
    char letter[] = "    ";
    if (option->letter) snprintf(letter, sizeof letter, "-%c, ", option->letter);
    return snprintf(text, size, "  %s--%s%s%s", option->letter ? letter : "    ", option->name,
                    option->metavar ? " " : "", option->metavar ? option->metavar : "");
}

static void print_option(const cli_option *option, int width) {
    char names[80], range[160], fallback[80];
    describe_names(option, names, sizeof names);
    cli_option_range(option, range, sizeof range);
    cli_option_default(option, fallback, sizeof fallback);
    printf("%-*s  %s", width, names, option->help);
    if (range[0] || fallback[0])
        printf(" (%s%s%s%s)", range, range[0] && fallback[0] ? "; " : "", fallback[0] ? "default " : "",
               fallback);
    putchar('\n');
}

static void print_help(const cli_args *args) {
    static const cli_option help = {.letter = 'h', .name = "help", .kind = CLI_FLAG, .help = "this text"};
    char names[80];
    int width = 0;
    for (int g = 0; g < args->group_count; g++)
        for (int i = 0; i < args->groups[g].count; i++) {
            int length = describe_names(&args->groups[g].options[i], names, sizeof names);
            if (length > width) width = length;
        }
    printf("usage: fusebox %s %s\n\n%s.\n\n%s", args->command->name, args->command->synopsis,
           args->command->summary, args->notes);
    for (int g = 0; g < args->group_count; g++) {
        printf("\n%s\n", args->groups[g].title);
        for (int i = 0; i < args->groups[g].count; i++) print_option(&args->groups[g].options[i], width);
    }
    print_option(&help, width);
}

/* ---- parsing --------------------------------------------------------------------------------- */

static bool end_with(int *status, int value) {
    *status = value;
    return false;
}

static bool take_option(const cursor *c, int *status) {
    const char *value = c->value;
    if (c->foreign && c->foreign->kind == CLI_FOREIGN_LAYERS && !(value = cli_foreign_layers(value)))
        return end_with(status, cli_fail(CLI_USAGE, "%.*s: %s (a number of layers, all or auto)", c->spelled,
                                         c->name, c->value));
    if (value) value = cli_foreign_translate(c->option->name, value);
    if (c->option->given) *c->option->given = value || c->option->kind == CLI_FLAG;
    if ((!value && c->value) || set_target(c->option, value)) return true;
    char range[160];
    cli_option_range(c->option, range, sizeof range);
    return end_with(status, cli_fail(CLI_USAGE, "%.*s: %s (%s)", c->spelled, c->name,
                                     *c->value ? c->value : "\"\"", range));
}

static bool take_positional(cli_args *args, const char *value, int *status) {
    if (args->positional_count == args->max_positionals)
        return end_with(status, fail_see_help(args, "too many arguments", value, (int)strlen(value)));
    args->positionals[args->positional_count++] = value;
    return true;
}

/* -m is the first positional, wherever it stands. */
static bool take_model(cli_args *args, const char *value, int *status) {
    if (args->model_given) args->positionals[0] = value; /* the last one counts */
    if (args->model_given) return true;
    if (!take_positional(args, value, status)) return false;
    for (int i = args->positional_count - 1; i > 0; i--) args->positionals[i] = args->positionals[i - 1];
    args->positionals[0] = value;
    args->model_given = true;
    return true;
}

/* One step of parsing. */
static bool take(cli_args *args, const cursor *c, step next, int *status) {
    switch (next) {
    case STEP_OPTION:
        return take_option(c, status);
    case STEP_MODEL:
        return take_model(args, c->value, status);
    case STEP_NOTHING:
        cli_note("%.*s: ignored (%s)", c->spelled, c->name, c->foreign->to);
        return true;
    default:
        return take_positional(args, c->value, status);
    }
}

bool cli_args_parse(cli_args *args, int argc, char **argv, int *status) {
    if (argc == 0) {
        const cli_described *described = (const cli_described *)args->command;
        described->describe(args, described->user);
        return end_with(status, CLI_OK);
    }
    const cursor start = {.args = args, .argc = argc, .at = 1, .argv = argv};
    step next;
    /* First look for --help alone: it shows the targets as defaults, so none may have been set yet. */
    for (cursor c = start; (next = advance(&c)) != STEP_END;) {
        if (next == STEP_ERROR) return end_with(status, CLI_USAGE);
        if (next == STEP_HELP) {
            print_help(args);
            return end_with(status, CLI_OK);
        }
    }
    args->positional_count = 0;
    args->model_given = false;
    for (cursor c = start; (next = advance(&c)) != STEP_END;)
        if (!take(args, &c, next, status)) return false;
    return true;
}
