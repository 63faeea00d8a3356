#include "cli/draft.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/model.h"
#include "cli/output.h"

void cli_draft_rows(cli_draft *draft, cli_option rows[CLI_DRAFT_ROWS]) {
    *draft = (cli_draft){0};
    const cli_option all[CLI_DRAFT_ROWS] = {
        {CLI_ROW(
             0, "draft", CLI_STRING, &draft->source, "SOURCE",
             "guess tokens and check several in one step; the text stays the same: ngram, q4 or a smaller "
             "MODEL"),
         .fallback = "none"},
        {CLI_ROW(0, "draft-tokens", CLI_INT, &draft->most, "N", "with --draft: always guess N tokens"),
         .range = {1, FB_MAX_DRAFT}, .fallback = "as many as are worth it"},
    };
    memcpy(rows, all, sizeof all);
}

/* The path of a smaller model may be ORG/NAME, too. */
static int find_source(const char *source, char **path) {
    *path = NULL;
    fb_dtype type;
    if (strcmp(source, "ngram") == 0 || strcmp(source, "q4") == 0) return CLI_OK;
    if (fb_dtype_parse(source, &type, NULL) == FB_OK) return CLI_OK;
    if (!strchr(source, '/') && access(source, F_OK) != 0)
        return cli_fail(CLI_USAGE, "--draft: %s: neither a source (ngram, q4) nor a model", source);
    return cli_model_find(source, true, path);
}

int cli_draft_open(const cli_draft *draft, const fb_model *model, fb_draft **out) {
    fb_draft_options options;
    fb_error err;
    char *path;
    *out = NULL;
    if (!draft->source && draft->most)
        return cli_fail(CLI_USAGE, "--draft-tokens: %" PRId64 " (only with --draft)", draft->most);
    if (!draft->source) return CLI_OK;
    int status = find_source(draft->source, &path);
    if (status != CLI_OK) return status;
    fb_draft_options_default(&options);
    options.source = path ? path : draft->source;
    options.fixed = draft->most > 0;
    if (draft->most) options.most = draft->most;
    if (fb_draft_create(model, &options, out, &err) != FB_OK) status = cli_fail_error(&err);
    free(path);
    return status;
}

void cli_draft_print(const cli_draft *draft, const fb_draft_stats *s, FILE *out) {
    double right = s->drafted ? 100 * (double)s->kept / (double)s->drafted : 0;
    if (!draft->source || !s->steps) return;
    fprintf(out,
            "draft            %s: %.2f tokens a step, %" PRId64 " of %" PRId64 " guesses kept (%.0f%%)\n",
            draft->source, (double)s->tokens / (double)s->steps, s->kept, s->drafted, right);
}

void cli_draft_json(const fb_draft_stats *s, cli_json *json) {
    cli_json_int(json, "drafted", s->drafted);
    cli_json_int(json, "kept", s->kept);
}
