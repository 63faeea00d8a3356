#include "cli/sampling.h"

#include <sys/random.h>

#include "cli/output.h"

void cli_sampling_rows(cli_sampling_options *o, cli_option rows[CLI_SAMPLING_ROWS]) {
    fb_sampler_options sampler;
    fb_sampler_options_default(&sampler);
    *o = (cli_sampling_options){.top_k = sampler.top_k};
    o->temp = sampler.temperature;
    o->top_p = sampler.top_p;
    o->min_p = sampler.min_p;
    o->repeat_penalty = sampler.repeat_penalty;
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
    rows[5] = (cli_option){CLI_ROW('s', "seed", CLI_SEED, &o->seed, "S", "the same seed gives the same text"),
                           .fallback = "random", .given = &o->seed_given};
}

/* A random seed has 32 bits: short to type again, and exact in every JSON reader. */
int cli_sampling_seed(cli_sampling_options *o) {
    uint32_t random;
    if (o->seed_given) return CLI_OK;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return cli_fail(CLI_FAILED, "seed: no random number from the system (give --seed)");
    o->seed = random;
    return CLI_OK;
}

void cli_sampling_take(const cli_sampling_options *o, fb_sampler_options *out) {
    fb_sampler_options_default(out);
    out->temperature = (float)o->temp;
    out->top_k = o->top_k;
    out->top_p = (float)o->top_p;
    out->min_p = (float)o->min_p;
    out->repeat_penalty = (float)o->repeat_penalty;
    out->seed = o->seed;
}
