/* fusebox verify without a golden: what fuses change, as a table or as JSON. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "cli/json_out.h"
#include "cli/output.h"
#include "cli/verify.h"

static const char *class_of(const fb_fusion_row *row) { return row->bit ? "bit" : "tol"; }

static void print_row(const fb_fusion_row *row, int width) {
    char calls[48];
    snprintf(calls, sizeof calls, "%" PRId64 " / %" PRId64, row->calls, row->calls_expected);
    printf("%-*s  %-5s  %-9s  %9.2e  %9.2e  %10.3e  %10.3e  %15s  %s%s\n", width, row->name, class_of(row),
           row->bit_identical ? "identical" : "differ", fabs(row->max_abs), row->bound, row->vs_f64_plain,
           fabs(row->vs_f64_fused), calls, row->ok ? "ok" : "FAILED: ", row->why);
}

/* A failure that the hidden states or the logits show. */
static bool differs(const fb_fusion_row *row, int64_t states) {
    bool ok = row->unshown_ok;
    for (int64_t s = 0; s <= states; s++) ok = ok && row->layers[s].ok;
    return row->calls > 0 && !ok;
}

/* Where a fuse that failed began to differ. */
static void print_layers(const fb_fusion_row *row, int64_t states) {
    char name[24];
    printf("\n%s, layer by layer\n%-8s  %12s  %9s  %12s  %s\n", row->name, "layer", "max abs", "bound",
           "relative", "verdict");
    for (int64_t s = 0; s <= states; s++) {
        const fb_verify_row *at = &row->layers[s];
        snprintf(name, sizeof name, "%" PRId64, s);
        printf("%-8s  %12.3e  %9.2e  %12.3e  %s\n", s == states ? "logits" : name, fabs(at->max_abs),
               at->limit, fabs(at->rel), at->ok ? "ok" : "FAILED");
    }
    if (!row->unshown_ok) printf("the logits differ, too, where no hidden states are shown\n");
}

static void print_verdict(const fb_fusion_report *r) {
    int64_t bad = 0;
    for (int64_t i = 0; i < r->count; i++) bad += !r->rows[i]->ok;
    if (!r->ok) {
        printf("FAILED: %" PRId64 " of %" PRId64 " rows\n", bad, r->count);
        return;
    }
    printf("verified: %" PRId64 " rows: %" PRId64 " hidden states and the logits of %" PRId64 " + %" PRId64
           " tokens, %" PRId64 " greedy tokens, perplexity and call counts hold\n",
           r->count, r->states, r->prompt, r->decoded, r->greedy_tokens);
}

void cli_fusion_table(const fb_fusion_report *r) {
    int width = 4;
    for (int64_t i = 0; i < r->count; i++) {
        int length = snprintf(NULL, 0, "%s", r->rows[i]->name);
        if (length > width) width = length;
    }
    printf("%-*s  %-5s  %-9s  %9s  %9s  %10s  %10s  %15s  %s\n", width, "fuse", "class", "bits", "max abs",
           "bound", "plain-f64", "fused-f64", "calls/expected", "verdict");
    for (int64_t i = 0; i < r->count; i++) print_row(r->rows[i], width);
    for (int64_t i = 0; i < r->count; i++)
        if (differs(r->rows[i], r->states)) print_layers(r->rows[i], r->states);
    printf("\ngreedy      %" PRId64 " tokens %s\n", r->greedy_tokens,
           r->greedy_match ? "equal" : "not equal: FAILED");
    printf("perplexity  %.9f plain, %.9f fused\n", r->perplexity_plain, r->perplexity_fused);
    printf("float64     distances over %" PRId64 " tokens\n", r->truth_tokens);
    if (r->sensitive)
        printf("bounds      measured: twice what the plain ops move by when their inputs are off by a "
               "rounding\n");
    print_verdict(r);
}

void cli_fusion_json(const fb_fusion_report *r) {
    cli_json json = {.out = stdout};
    cli_json_open(&json, NULL, '{');
    cli_json_bool(&json, "ok", r->ok);
    cli_json_open(&json, "fuses", '[');
    for (int64_t i = 0; i < r->count; i++) {
        const fb_fusion_row *row = r->rows[i];
        cli_json_open(&json, NULL, '{');
        cli_json_string(&json, "name", row->name);
        cli_json_string(&json, "class", class_of(row));
        cli_json_bool(&json, "bit_identical", row->bit_identical);
        cli_json_real(&json, "max_abs", row->max_abs);
        cli_json_real(&json, "bound", row->bound);
        cli_json_real(&json, "vs_f64_plain", row->vs_f64_plain);
        cli_json_real(&json, "vs_f64_fused", row->vs_f64_fused);
        cli_json_int(&json, "calls", row->calls);
        cli_json_int(&json, "calls_expected", row->calls_expected);
        cli_json_bool(&json, "ok", row->ok);
        if (*row->why) cli_json_string(&json, "why", row->why);
        cli_json_close(&json, '}');
    }
    cli_json_close(&json, ']');
    cli_json_bool(&json, "greedy_match", r->greedy_match);
    cli_json_real(&json, "perplexity_plain", r->perplexity_plain);
    cli_json_real(&json, "perplexity_fused", r->perplexity_fused);
    cli_json_int(&json, "prompt", r->prompt);
    cli_json_int(&json, "decoded", r->decoded);
    cli_json_int(&json, "truth_tokens", r->truth_tokens);
    cli_json_bool(&json, "sensitive", r->sensitive);
    cli_json_close(&json, '}');
    putchar('\n');
}
