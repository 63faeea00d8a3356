#include "cli/sampling.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "cli/output.h"
#include "cli/prompt.h"

#define MAX_BIAS 100

void cli_sampling_rows(cli_sampling_options *o, cli_option rows[CLI_SAMPLING_ROWS]) {
    fb_sampler_options sampler;
    fb_sampler_options_default(&sampler);
    *o = (cli_sampling_options){.top_k = sampler.top_k};
    o->temp = sampler.temperature;
    o->top_p = sampler.top_p;
    o->min_p = sampler.min_p;
    o->repeat_penalty = sampler.repeat_penalty;
    o->presence_penalty = sampler.presence_penalty;
    o->frequency_penalty = sampler.frequency_penalty;
    rows[0] = (cli_option){CLI_ROW(0, "temp", CLI_REAL, &o->temp, "T", "temperature; 0 takes the best token"),
                           .range = {0, 100}};
    rows[1] = (cli_option){CLI_ROW(0, "top-k", CLI_INT, &o->top_k, "K", "draw from the K best; 0 is off"),
                           .range = {0, 1e9}};
    rows[2] = (cli_option){
        CLI_ROW(0, "top-p", CLI_REAL, &o->top_p, "P", "draw from the best with probability P together"),
        .range = {0, 1}};
    rows[3] =
        (cli_option){CLI_ROW(0, "min-p", CLI_REAL, &o->min_p, "P", "drop what is below P times the best"),
                     .range = {0, 1}};
    rows[4] = (cli_option){
        CLI_ROW(0, "repeat-penalty", CLI_REAL, &o->repeat_penalty, "R", "for the last 64 tokens; 1 is off"),
        .range = {0.01, 100}};
    rows[5] = (cli_option){CLI_ROW(0, "presence-penalty", CLI_REAL, &o->presence_penalty, "X",
                                   "subtract X from the scores of the last 64 tokens"),
                           .range = {-2, 2}};
    rows[6] = (cli_option){CLI_ROW(0, "frequency-penalty", CLI_REAL, &o->frequency_penalty, "X",
                                   "the same once for each time that a token is there"),
                           .range = {-2, 2}};
    rows[7] = (cli_option){CLI_ROW(0, "logit-bias", CLI_LIST, &o->logit_bias, "ID:BIAS",
                                   "add BIAS, -100 to 100, to a token's score; -inf bans it")};
    rows[8] = (cli_option){CLI_ROW(0, "schema", CLI_STRING, &o->schema_file, "FILE",
                                   "answer with JSON that fits this JSON schema; any: any object")};
    rows[9] = (cli_option){CLI_ROW('s', "seed", CLI_SEED, &o->seed, "S", "the same seed gives the same text"),
                           .fallback = "random", .given = &o->seed_given};
}

/* "15043:-1.5", or as llama.cpp has it "15043-1.5"; "15043:-inf" and "15043-inf". */
static bool parse_bias(const char *text, fb_logit_bias *out) {
    size_t digits = strspn(text, "0123456789");
    const char *number = text + digits + (text[digits] == ':');
    char *end;
    errno = 0;
    int64_t id = strtoll(text, NULL, 10);
    if (digits == 0 || errno || id > INT32_MAX || !strchr(":+-", text[digits])) return false;
    *out = (fb_logit_bias){(int32_t)id, -INFINITY};
    if (strcmp(number, "-inf") == 0) return true;
    double bias = strtod(number, &end);
    out->bias = (float)bias;
    return *number && !number[strspn(number, "+-.0123456789eE")] && !*end && fabs(bias) <= MAX_BIAS;
}

int cli_sampling_parse(cli_sampling_options *o) {
    for (int32_t i = 0; i < o->logit_bias.count; i++)
        if (!parse_bias(o->logit_bias.values[i], &o->bias[i]))
            return cli_fail(
                CLI_USAGE,
                "--logit-bias: %s (ID:BIAS, a token's id and %d to %d, or -inf; such as 15043:-1.5)",
                o->logit_bias.values[i], -MAX_BIAS, MAX_BIAS);
    return CLI_OK;
}

static int check_bias(const cli_sampling_options *o, const fb_model *model) {
    fb_model_info info;
    fb_model_get_info(model, &info);
    for (int32_t i = 0; i < o->logit_bias.count; i++)
        if (o->bias[i].id >= info.vocab)
            return cli_fail(CLI_USAGE, "--logit-bias: %s (the model's ids are 0 to %lld)",
                            o->logit_bias.values[i], (long long)info.vocab - 1);
    return CLI_OK;
}

static int read_schema(cli_sampling_options *o, const fb_model *model) {
    cli_prompt read = {0};
    fb_error err;
    if (!o->schema_file) return CLI_OK;
    const bool any = strcmp(o->schema_file, "any") == 0;
    int status = any ? CLI_OK : cli_prompt_read(&read, NULL, o->schema_file);
    if (status == CLI_OK && fb_schema_create(model, read.text, read.bytes, &o->schema, &err) != FB_OK)
        status = any ? cli_fail_error(&err) : cli_fail(CLI_USAGE, "%s: %s", o->schema_file, err.message);
    cli_prompt_free(&read);
    return status;
}

void cli_sampling_free(cli_sampling_options *o) { fb_schema_free(o->schema); }

/* A random seed has 32 bits: short to type again, and exact in every JSON reader. */
int cli_sampling_settle(cli_sampling_options *o, const fb_model *model) {
    uint32_t random;
    int status = check_bias(o, model);
    if (status == CLI_OK) status = read_schema(o, model);
    if (status != CLI_OK || o->seed_given) return status;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return cli_fail(CLI_FAILED, "seed: no random number from the system (give --seed)");
    o->seed = random;
    return CLI_OK;
}

bool cli_sampling_takes_best(const cli_sampling_options *o) {
    return o->temp == 0 && o->presence_penalty == 0 && o->frequency_penalty == 0 &&
           o->logit_bias.count == 0 && !o->schema_file;
}

void cli_sampling_take(const cli_sampling_options *o, fb_sampler_options *out) {
    fb_sampler_options_default(out);
    out->temperature = (float)o->temp;
    out->top_k = o->top_k;
    out->top_p = (float)o->top_p;
    out->min_p = (float)o->min_p;
    out->repeat_penalty = (float)o->repeat_penalty;
    out->presence_penalty = (float)o->presence_penalty;
    out->frequency_penalty = (float)o->frequency_penalty;
    out->logit_bias = o->bias;
    out->logit_bias_count = o->logit_bias.count;
    out->seed = o->seed;
    out->schema = o->schema;
}
