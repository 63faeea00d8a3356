#include "cli/foreign.h"

#include <string.h>

#define SAME    CLI_FOREIGN_SAME
#define NOTHING CLI_FOREIGN_NOTHING
#define ADVICE  CLI_FOREIGN_ADVICE

static const char mapped[] = "files are always mapped";
static const char fused[] = "attention is a fuse: --fuse attn_flash, on by default";
static const char chunks[] = "the planner chooses how many tokens a step has";
static const char turns[] = "fusebox chat talks in turns";
static const char one_device[] = "a model runs on one device: --backend cuda:1";
static const char no_grammar[] = "no grammar restricts the text";
static const char no_sampler[] = "the samplers are --temp, --top-k, --top-p and --min-p";
static const char no_download[] = "nothing is downloaded: hf download ORG/NAME, then give ORG/NAME as MODEL";
static const char no_chat[] = "fusebox chat applies the model's template";
static const char no_adapter[] = "no adapter is applied: merge it into the model first";

/* In the order of llama.cpp's own --help. */
static const cli_foreign rows[] = {
    {"-m", CLI_FOREIGN_MODEL, NULL, CLI_VALUE},
    {"--model", CLI_FOREIGN_MODEL, NULL, CLI_VALUE},
    {"-hf", CLI_FOREIGN_MODEL, NULL, CLI_VALUE},
    {"-hfr", CLI_FOREIGN_MODEL, NULL, CLI_VALUE},
    {"--hf-repo", CLI_FOREIGN_MODEL, NULL, CLI_VALUE},
    {"-hff", ADVICE, "give the file itself as MODEL", CLI_VALUE},
    {"--hf-file", ADVICE, "give the file itself as MODEL", CLI_VALUE},
    {"-mu", ADVICE, no_download, CLI_VALUE},
    {"--model-url", ADVICE, no_download, CLI_VALUE},
    {"-t", SAME, "threads", CLI_VALUE},
    {"--n-threads", SAME, "threads", CLI_VALUE},
    {"-tb", NOTHING, "a prompt is read with the threads of --threads", CLI_VALUE},
    {"--threads-batch", NOTHING, "a prompt is read with the threads of --threads", CLI_VALUE},
    {"-c", SAME, "ctx", CLI_VALUE},
    {"--ctx-size", SAME, "ctx", CLI_VALUE},
    {"--n-ctx", SAME, "ctx", CLI_VALUE},
    {"--n-predict", SAME, "tokens", CLI_VALUE},
    {"--predict", SAME, "tokens", CLI_VALUE},
    {"--max-tokens", SAME, "tokens", CLI_VALUE},
    {"--max-new-tokens", SAME, "tokens", CLI_VALUE},
    {"-b", NOTHING, chunks, CLI_VALUE},
    {"--batch-size", NOTHING, chunks, CLI_VALUE},
    {"-ub", NOTHING, chunks, CLI_VALUE},
    {"--ubatch-size", NOTHING, chunks, CLI_VALUE},
    {"--keep", ADVICE, "--cache sinks --sinks N keeps the first tokens", CLI_VALUE},
    {"-fa", NOTHING, fused, CLI_SWITCH},
    {"--flash-attn", NOTHING, fused, CLI_SWITCH},
    {"-bf", SAME, "file", CLI_VALUE},
    {"--binary-file", SAME, "file", CLI_VALUE},
    {"-e", ADVICE, "a shell writes line breaks: -p $'one\\ntwo'", CLI_ALONE},
    {"--escape", ADVICE, "a shell writes line breaks: -p $'one\\ntwo'", CLI_ALONE},
    {"--no-escape", NOTHING, "prompts are taken as they are", CLI_ALONE},
    {"-ctk", SAME, "kv", CLI_VALUE},
    {"--cache-type-k", SAME, "kv", CLI_VALUE},
    {"-ctv", SAME, "kv", CLI_VALUE},
    {"--cache-type-v", SAME, "kv", CLI_VALUE},
    {"--mlock", NOTHING, mapped, CLI_ALONE},
    {"--mmap", NOTHING, mapped, CLI_ALONE},
    {"--no-mmap", NOTHING, mapped, CLI_ALONE},
    {"--no-warmup", NOTHING, "there is no warm-up", CLI_ALONE},
    {"-dev", ADVICE, one_device, CLI_VALUE},
    {"--device", ADVICE, one_device, CLI_VALUE},
    {"-ngl", CLI_FOREIGN_LAYERS, "backend", CLI_VALUE},
    {"--gpu-layers", CLI_FOREIGN_LAYERS, "backend", CLI_VALUE},
    {"--n-gpu-layers", CLI_FOREIGN_LAYERS, "backend", CLI_VALUE},
    {"-sm", ADVICE, one_device, CLI_VALUE},
    {"--split-mode", ADVICE, one_device, CLI_VALUE},
    {"-ts", ADVICE, one_device, CLI_VALUE},
    {"--tensor-split", ADVICE, one_device, CLI_VALUE},
    {"-mg", ADVICE, one_device, CLI_VALUE},
    {"--main-gpu", ADVICE, one_device, CLI_VALUE},
    {"--lora", ADVICE, no_adapter, CLI_VALUE},
    {"--control-vector", ADVICE, no_adapter, CLI_VALUE},
    {"--log-disable", NOTHING, "there is no log", CLI_ALONE},
    {"-v", ADVICE, "--stats prints times, speed and memory", CLI_ALONE},
    {"--verbose", ADVICE, "--stats prints times, speed and memory", CLI_ALONE},
    {"--perf", SAME, "stats", CLI_ALONE},
    {"--no-perf", NOTHING, "times are printed only with --stats", CLI_ALONE},
    {"-s", SAME, "seed", CLI_VALUE},
    {"--temperature", SAME, "temp", CLI_VALUE},
    {"--samplers", ADVICE, no_sampler, CLI_VALUE},
    {"--typical", ADVICE, no_sampler, CLI_VALUE},
    {"--mirostat", ADVICE, no_sampler, CLI_VALUE},
    {"--ignore-eos", ADVICE, "--stream goes on after an end token", CLI_ALONE},
    {"--repetition-penalty", SAME, "repeat-penalty", CLI_VALUE},
    {"--repeat-last-n", ADVICE, "penalties are always for the last 64 tokens", CLI_VALUE},
    {"-l", SAME, "logit-bias", CLI_VALUE},
    {"--grammar", ADVICE, no_grammar, CLI_VALUE},
    {"--grammar-file", ADVICE, no_grammar, CLI_VALUE},
    {"-j", ADVICE, no_grammar, CLI_VALUE},
    {"--json-schema", ADVICE, no_grammar, CLI_VALUE},
    {"--color", NOTHING, "a terminal gets colours unless NO_COLOR is set", CLI_SWITCH},
    {"--no-display-prompt", NOTHING, "only a terminal gets the prompt", CLI_ALONE},
    {"--simple-io", NOTHING, "output is simple unless it is a terminal", CLI_ALONE},
    {"-sys", SAME, "system", CLI_VALUE},
    {"--system-prompt", SAME, "system", CLI_VALUE},
    {"-st", SAME, "single-turn", CLI_ALONE},
    {"-cnv", ADVICE, turns, CLI_ALONE},
    {"--conversation", ADVICE, turns, CLI_ALONE},
    {"-no-cnv", NOTHING, "fusebox run continues a text", CLI_ALONE},
    {"--no-conversation", NOTHING, "fusebox run continues a text", CLI_ALONE},
    {"-i", ADVICE, turns, CLI_ALONE},
    {"--interactive", ADVICE, turns, CLI_ALONE},
    {"-if", ADVICE, turns, CLI_ALONE},
    {"--interactive-first", ADVICE, turns, CLI_ALONE},
    {"-r", SAME, "stop", CLI_VALUE},
    {"--reverse-prompt", SAME, "stop", CLI_VALUE},
    {"--chat-template", ADVICE, "fusebox chat applies the model's template, or that of --template FILE",
     CLI_VALUE},
    {"--chat-template-file", SAME, "template", CLI_VALUE},
    {"--jinja", NOTHING, no_chat, CLI_ALONE},
    {"--n-chunks", SAME, "chunks", CLI_VALUE},
    {"--perplexity", ADVICE, "fusebox ppl measures perplexity", CLI_ALONE},
};

/* Values that mean "no limit", "off" or "random" there. */
static const struct {
    const char *option, *value, *ours; /* NULL: as if the option were not given */
} values[] = {
    {"tokens", "-2", "-1"}, /* until the context is full, as every text here */
    {"top-k", "-1", "0"},
    {"seed", "-1", NULL},
};

enum { ROWS = sizeof rows / sizeof *rows };

const cli_foreign *cli_foreign_at(int index) { return index >= 0 && index < ROWS ? &rows[index] : NULL; }

const cli_foreign *cli_foreign_find(const char *argument, int bytes) {
    for (int i = 0; i < ROWS; i++)
        if ((int)strlen(rows[i].spelling) == bytes && strncmp(rows[i].spelling, argument, (size_t)bytes) == 0)
            return &rows[i];
    return NULL;
}

const char *cli_foreign_translate(const char *option, const char *value) {
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (strcmp(values[i].option, option) == 0 && strcmp(values[i].value, value) == 0)
            return values[i].ours;
    return value;
}

const char *cli_foreign_layers(const char *value) {
    if (strcmp(value, "all") == 0 || strcmp(value, "auto") == 0) return "auto";
    const char *digits = *value == '-' ? value + 1 : value;
    if (!*digits || digits[strspn(digits, "0123456789")]) return NULL;
    return digits[strspn(digits, "0")] ? "auto" : "cpu";
}

bool cli_foreign_is_switch(const char *value) {
    static const char *const switches[] = {"on", "off", "auto", "0", "1"};
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++)
        if (strcmp(value, switches[i]) == 0) return true;
    return false;
}
