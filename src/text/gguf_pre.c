#include "text/gguf_pre.h"

#include <stddef.h>
#include <string.h>

#include "text/split.h"

#define GPT2 FB_PATTERN_GPT2
/* Llama 3's: contractions in any case, and digits in groups; `digits` is what a group is. The second is how
 * tokenizer.json spells contractions. */
#define LLAMA3(digits)    "'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|" LLAMA3_REST(digits)
#define LLAMA3_HF(digits) "(?i:'s|'t|'re|'ve|'m|'ll|'d)|" LLAMA3_REST(digits)
#define LLAMA3_REST(digits)                                                                                  \
    "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const char *const gpt2[] = {GPT2, NULL};
static const char *const digits_gpt2[] = {FB_PATTERN_DIGIT, GPT2, NULL};
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

/* Names for what a tokenizer.json may have. Of those that split alike, one is enough. */
static const char *const llama3_hf[] = {LLAMA3_HF("\\p{N}{1,3}"), NULL};
static const char *const qwen2_hf[] = {LLAMA3_HF("\\p{N}"), NULL};

static const struct {
    const char *const *patterns;
    const char *name;
} spelled[] = {
    {gpt2, "gpt-2"},          {digits_gpt2, "smollm"}, {llama3_hf, "llama-bpe"},
    {llama3_hf, "smaug-bpe"}, {qwen2_hf, "qwen2"},
};

const fb_gguf_pre *fb_gguf_pre_find(const char *name) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(name, table[i].name) == 0) return &table[i];
    return NULL;
}

static bool has_pattern(const char *const *known, const char *pattern) {
    for (; *known; known++)
        if (strcmp(*known, pattern) == 0) return true;
    return false;
}

bool fb_gguf_pre_has(const char *pattern) {
    static const char *const steps[] = {FB_PATTERN_GPT2, FB_PATTERN_DIGIT, FB_PATTERN_DIGITS, NULL};
    if (has_pattern(steps, pattern)) return true;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (has_pattern(table[i].patterns, pattern)) return true;
    for (size_t i = 0; i < sizeof spelled / sizeof *spelled; i++)
        if (has_pattern(spelled[i].patterns, pattern)) return true;
    return false;
}

static bool same_patterns(const char *const *known, const char *const *patterns, int count) {
    for (int i = 0; i < count; i++, known++)
        if (!*known || strcmp(*known, patterns[i]) != 0) return false;
    return !*known;
}

const fb_gguf_pre *fb_gguf_pre_match(const char *const *patterns, int count, bool ignore_merges) {
    for (size_t i = 0; i < sizeof spelled / sizeof *spelled; i++) {
        const fb_gguf_pre *pre = fb_gguf_pre_find(spelled[i].name);
        if (pre && pre->ignore_merges == ignore_merges && same_patterns(spelled[i].patterns, patterns, count))
            return pre;
    }
    return NULL;
}
