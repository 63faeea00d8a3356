/* fusebox fuses: every fuse, and what it does to a model. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/json_out.h"
#include "cli/model.h"
#include "cli/output.h"

#define CONFLICT_RULE "applied in this order; one whose ops an earlier one has taken does not apply"

/* What happens to it under --fuse all, in a few words. */
static const char *describe(const fb_fuse_info *f, char text[128]) {
    if (f->why_not)
        snprintf(text, 128, "no: %s", f->why_not);
    else if (f->taken_by)
        snprintf(text, 128, "alone only: taken by %s", f->taken_by);
    else
        snprintf(text, 128, "yes, %" PRId64 " call%s a step%s", f->calls_per_step,
                 f->calls_per_step == 1 ? "" : "s", f->greedy ? ", when greedy" : "");
    return text;
}

static void print_table(const fb_model *model, const char *path) {
    fb_fuse_info f;
    char text[128];
    printf("%-12s  %-5s  %-9s  %-54s  %s\n", "fuse", "class", "backends", "applies here", "what becomes one");
    for (int i = 0; fb_model_fuse(model, i, &f); i++)
        printf("%-12s  %-5s  %-9s  %-54s  %s\n", f.name, f.bit ? "bit" : "tol", f.backends,
               describe(&f, text), f.text);
    fputs("\nhere: ", stdout);
    cli_put(path);
    putchar('\n');
    puts("bit: the bits of the plain operators");
    for (int i = 0; fb_model_fuse(model, i, &f); i++)
        if (!f.bit) printf("tol: %s: %s\n", f.name, f.bound);
    puts(CONFLICT_RULE);
}

static void write_fuse(cli_json *json, const fb_fuse_info *f) {
    cli_json_open(json, NULL, '{');
    cli_json_string(json, "name", f->name);
    cli_json_string(json, "replaces", f->text);
    cli_json_string(json, "class", f->bit ? "bit" : "tol");
    cli_json_bool(json, "bit_with_exact", true);
    cli_json_string(json, "bound", f->bound);
    cli_json_open(json, "backends", '[');
    cli_json_string(json, NULL, f->backends);
    cli_json_close(json, ']');
    cli_json_bool(json, "applies", !f->why_not);
    cli_json_string(json, "why_not", f->why_not);
    cli_json_int(json, "calls_per_step", f->calls_per_step);
    cli_json_bool(json, "greedy_only", f->greedy);
    cli_json_bool(json, "in_all", f->in_all);
    cli_json_string(json, "taken_by", f->taken_by);
    cli_json_close(json, '}');
}

static void print_json(const fb_model *model, const char *path) {
    fb_fuse_info f;
    cli_json json = {.out = stdout};
    cli_json_open(&json, NULL, '{');
    cli_json_string(&json, "model", path);
    cli_json_open(&json, "fuses", '[');
    for (int i = 0; fb_model_fuse(model, i, &f); i++) write_fuse(&json, &f);
    cli_json_close(&json, ']');
    cli_json_string(&json, "conflicts", CONFLICT_RULE);
    cli_json_close(&json, '}');
    putchar('\n');
}

int cli_fuses(const cli_command *command, int argc, char **argv) {
    bool as_json = false;
    const cli_option output[] = {
        {CLI_ROW(0, "json", CLI_FLAG, &as_json, NULL, "one JSON object instead of the table")},
    };
    const cli_group groups[] = {{"output", output, 1}};
    cli_args args = {.command = command,
                     .notes = CLI_MODEL_NOTES,
                     .groups = groups,
                     .group_count = 1,
                     .max_positionals = 1,
                     .takes_model = true};
    int status;
    if (!cli_args_parse(&args, argc, argv, &status)) return status;
    char *path;
    fb_model *model;
    status = cli_model_open(args.positional_count ? args.positionals[0] : NULL, &path, &model);
    if (status == CLI_OK) (as_json ? print_json : print_table)(model, path);
    fb_model_free(model);
    free(path);
    return status;
}
