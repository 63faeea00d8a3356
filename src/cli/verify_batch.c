/* fusebox verify --batch: answers in a batch against the same answers alone. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/json_out.h"
#include "cli/output.h"
#include "cli/verify.h"

static void print_table(const fb_batch_report *r) {
    printf("%-28s  %" PRId64 ", with %" PRId64 " answers, %" PRId64 " of them cancelled\n", "requests",
           r->requests, r->answers, r->cancelled);
    printf("%-28s  %" PRId64 ", with %.1f rows on average, %" PRId64 " at most\n", "steps", r->steps,
           r->steps ? (double)r->rows / (double)r->steps : 0, r->most_rows);
    printf("%-28s  %" PRId64 " of them\n", "a prompt by some layers only", r->held_steps);
    printf("%-28s  %" PRId64 "\n", "answers put back", r->preempted);
    printf("%-28s  %" PRId64 "\n", "tokens from the prefix cache", r->cached_tokens);
    printf("%-28s  %" PRId64 "\n", "fuses switched meanwhile", r->plan_changes);
    printf("%-28s  %" PRId64 " tokens, and %" PRId64 " of prompts; %" PRId64 " answers differ\n",
           "compared with them alone", r->tokens, r->scores, r->different);
    if (r->ok)
        printf("verified: %" PRId64 " mixtures: all logits have the bits that they have alone\n", r->rounds);
    else
        printf("FAILED: %s\n", r->first);
}

static void print_json(const fb_batch_report *r) {
    cli_json json = {.out = stdout};
    cli_json_open(&json, NULL, '{');
    cli_json_bool(&json, "ok", r->ok);
    cli_json_int(&json, "rounds", r->rounds);
    cli_json_int(&json, "requests", r->requests);
    cli_json_int(&json, "answers", r->answers);
    cli_json_int(&json, "cancelled", r->cancelled);
    cli_json_int(&json, "steps", r->steps);
    cli_json_int(&json, "rows", r->rows);
    cli_json_int(&json, "most_rows", r->most_rows);
    cli_json_int(&json, "held_steps", r->held_steps);
    cli_json_int(&json, "preempted", r->preempted);
    cli_json_int(&json, "cached_tokens", r->cached_tokens);
    cli_json_int(&json, "plan_changes", r->plan_changes);
    cli_json_int(&json, "tokens", r->tokens);
    cli_json_int(&json, "prompt_tokens", r->scores);
    cli_json_int(&json, "different", r->different);
    cli_json_string(&json, "first", r->first);
    cli_json_close(&json, '}');
    putchar('\n');
}

int cli_verify_batch(const fb_model *model, const cli_model_options *how, int64_t rounds, uint64_t seed,
                     bool as_json) {
    fb_error err;
    fb_batch_verify_options options;
    fb_batch_report report = {.size = sizeof report};
    fb_batch_verify_options_default(&options);
    CLI_MODEL_SET_FUSE(how, &options);
    options.rounds = rounds;
    options.seed = seed;
    if (fb_verify_batch(model, &options, &report, &err) != FB_OK) return cli_fail_error(&err);
    (as_json ? print_json : print_table)(&report);
    return report.ok ? CLI_OK : CLI_FAILED;
}
