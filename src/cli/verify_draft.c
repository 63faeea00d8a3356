/* fusebox verify --draft: texts with guesses against the same texts decoded one by one. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/json_out.h"
#include "cli/output.h"
#include "cli/verify.h"

static void print_table(const fb_draft_report *r) {
    printf("%-28s  %" PRId64 " of %" PRId64 " kept\n", "guesses", r->kept, r->drafted);
    printf("%-28s  %" PRId64 "\n", "steps", r->steps);
    printf("%-28s  %" PRId64 " texts, %" PRId64 " tokens; %" PRId64 " texts differ\n",
           "compared with one by one", r->texts, r->tokens, r->different);
    if (r->ok)
        printf("verified: tokens and logits are those of decoding one by one, to the bit\n");
    else
        printf("FAILED: %s\n", r->first);
}

static void print_json(const fb_draft_report *r) {
    cli_json json = {.out = stdout};
    cli_json_open(&json, NULL, '{');
    cli_json_bool(&json, "ok", r->ok);
    cli_json_int(&json, "texts", r->texts);
    cli_json_int(&json, "tokens", r->tokens);
    cli_json_int(&json, "steps", r->steps);
    cli_json_int(&json, "drafted", r->drafted);
    cli_json_int(&json, "kept", r->kept);
    cli_json_int(&json, "different", r->different);
    cli_json_string(&json, "first", r->first);
    cli_json_close(&json, '}');
    putchar('\n');
}

int cli_verify_draft(const fb_model *model, const cli_model_options *how, fb_draft_verify_options *options,
                     bool as_json) {
    fb_error err;
    fb_draft_report report = {.size = sizeof report};
    CLI_MODEL_SET_FUSE(how, options);
    if (fb_verify_draft(model, options, &report, &err) != FB_OK) return cli_fail_error(&err);
    (as_json ? print_json : print_table)(&report);
    return report.ok ? CLI_OK : CLI_FAILED;
}
