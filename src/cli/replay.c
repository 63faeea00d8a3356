/* fusebox replay: recorded answers, again and alone. */
#include "serve/replay.h"

#include <inttypes.h>
#include <stdlib.h>

#include "cli/model.h"
#include "cli/output.h"

static void print(const serve_replay_report *r) {
    char requests[CLI_NUMBER_BYTES], answers[CLI_NUMBER_BYTES], tokens[CLI_NUMBER_BYTES];
    printf("%s requests, %s answers, %s tokens: ", cli_format_digits(r->requests, requests),
           cli_format_digits(r->answers, answers), cli_format_digits(r->tokens, tokens));
    if (r->differ)
        printf("%" PRId64 " answers differ\n  first: %s\n", r->differ, r->first);
    else
        printf("the same tokens, text and log-probabilities, to the bit\n");
    if (r->cut)
        printf("  %" PRId64 " answers were cut off by their clients, and are compared up to there\n", r->cut);
    if (r->note[0]) printf("  %s\n", r->note);
}

int cli_replay(const cli_command *command, int argc, char **argv) {
    int64_t threads = 0;
    const char *backend = NULL;
    const cli_option execution[] = {
        {CLI_ROW('t', "threads", CLI_INT, &threads, "N", "threads; the result does not depend on it"),
         .range = {0, 256}, .fallback = "0, one a core"},
        {CLI_ROW(0, "backend", CLI_STRING, &backend, "NAME", "cpu, cuda, cuda:1"),
         .fallback = "as in the record"},
    };
    const cli_group groups[] = {{"execution", execution, sizeof execution / sizeof *execution}};
    cli_args args = {.command = command,
                     .notes =
                         "FILE is what fusebox serve --record wrote. Each answer is computed again with no "
                         "other beside it,\non the model and with the options of the record. MODEL stands "
                         "for the record's, if it has moved.\n",
                     .groups = groups,
                     .group_count = 1,
                     .max_positionals = 2};
    serve_replay_report report;
    fb_error err;
    char *path = NULL;
    int status;
    if (!cli_args_parse(&args, argc, argv, &status)) return status;
    if (!args.positionals[0]) return cli_fail(CLI_USAGE, "FILE: missing (what fusebox serve --record wrote)");
    if (args.positionals[1] && (status = cli_model_find(args.positionals[1], true, &path)) != CLI_OK)
        return status;
    serve_replay_options options = {
        .record = args.positionals[0], .model = path, .threads = (int32_t)threads, .backend = backend};
    status = CLI_OK;
    if (serve_replay(&options, &report, &err) != FB_OK)
        status = cli_fail_error(&err);
    else
        print(&report);
    free(path);
    if (status == CLI_OK && report.differ) status = CLI_FAILED;
    return cli_finish_output(status);
}
