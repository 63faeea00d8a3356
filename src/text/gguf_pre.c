#include "text/gguf_pre.h"

#include <stddef.h>
#include <string.h>

/* GPT-2's words: contractions, letters, digits, the rest, each with a space before it; then white space. */
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
/* Llama 3's: contractions in any case, and digits in groups; `digits` is what a group is. */
#define LLAMA3(digits)                                                                                       \
    "'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                       \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const char *const gpt2[] = {GPT2, NULL};
static const char *const digits_gpt2[] = {"\\p{N}", GPT2, NULL};
static const char *const llama3[] = {LLAMA3("\\p{N}{1,3}"), NULL};
static const char *const qwen2[] = {LLAMA3("\\p{N}"), NULL};
static const char *const falcon[] = {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]", NULL};
static const char *const standard[] = {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]", NULL};

static const fb_gguf_pre table[] = {
    {"default", standard, false, false},
    {"gpt-2", gpt2, false, false},
    {"phi-2", gpt2, false, false},
    {"mpt", gpt2, false, false},
    {"olmo", gpt2, false, false}, /* GPT-NeoX's too */
    {"jais", gpt2, false, false},
    {"trillion", gpt2, false, false},
    {"exaone4", gpt2, false, false},
    {"mellum", gpt2, false, false},
    {"starcoder", digits_gpt2, false, false},
    {"refact", digits_gpt2, false, false},
    {"command-r", digits_gpt2, false, false},
    {"smollm", digits_gpt2, false, false},
    {"codeshell", digits_gpt2, false, false},
    {"exaone", digits_gpt2, false, false},
    {"minerva-7b", digits_gpt2, false, false},
    {"llama3", llama3, true, true},
    {"llama-v3", llama3, true, true},
    {"llama-bpe", llama3, true, true},
    {"falcon3", llama3, true, true},
    {"pixtral", llama3, true, true},
    {"dbrx", llama3, false, false},
    {"smaug-bpe", llama3, false, false},
    {"qwen2", qwen2, false, false},
    {"deepseek-r1-qwen", qwen2, false, false},
    {"megrez", qwen2, false, false},
    {"stablelm2", qwen2, false, false},
    {"hunyuan", qwen2, false, false},
    {"falcon", falcon, false, false},
};

const fb_gguf_pre *fb_gguf_pre_find(const char *name) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(name, table[i].name) == 0) return &table[i];
    return NULL;
}
