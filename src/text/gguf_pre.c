#include "text/gguf_pre.h"

#include <stddef.h>
#include <string.h>

#include "text/split.h"

#define GPT2 FB_PATTERN_GPT2
/* Llama 3's: contractions in any case, and digits in groups; `digits` is what a group is. The second is how
 * tokenizer.json spells contractions. */
#define SHORT_ANY_CASE    "'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])"
#define SHORT_HF          "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LLAMA3(digits)    SHORT_ANY_CASE "|" LLAMA3_REST(digits)
#define LLAMA3_HF(digits) SHORT_HF "|" LLAMA3_REST(digits)
#define LLAMA3_REST(digits)                                                                                  \
    "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define QWEN35(short)                                                                                        \
    short "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "                                                  \
          "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"                                               \
          "\\s+(?!\\S)|\\s+"
/* GPT-4o's: a word is capitals and then small letters. `upper` and `lower` are classes of both, `after` what
 * may follow a word, `digits` a group of them. */
#define GPT4O(upper, lower, after, digits, end)                                                              \
    "[^\\r\\n\\p{L}\\p{N}]?" upper "*" lower "+" after "|[^\\r\\n\\p{L}\\p{N}]?" upper "+" lower "*" after   \
    "|" digits "| ?[^\\s\\p{L}\\p{N}]+" end "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER   "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER   "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define NOT_HAN "(?!\\p{Han})"
/* DeepSeek's, with line ends as escapes or, in tokenizer.json, as they are. */
#define DEEPSEEK(cr, lf)                                                                                     \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^" cr lf                                         \
    "\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[" cr lf "]*|\\s*[" cr lf "]+|\\s+(?!\\S)|\\s+"
#define CHINESE_JAPANESE "[一-龥぀-ゟ゠-ヿ]+"
#define CHINESE_KOREAN   "[一-龥ࠀ-一가-퟿]+"
#define BLOOM            " ?[^(\\s|.,!?…。，、।۔،)]+"
/* Groups of three digits, counted from the last one. */
#define THREE       "(?:\\d{3})"
#define THREES(end) "\\d{1,3}(?=" THREE "*" end ")"

/* Letters of scripts that have case, as DeepSeek's first models list them. */
#define DEEPSEEK_LETTERS                                                                                     \
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷ"                                                        \
    "ͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-"                                                          \
    "ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-"                                        \
    "Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-"                                          \
    "ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕ"                                          \
    "ℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-"                                           \
    "ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-"                                         \
    "ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-"                                                 \
    "𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"

static const char *const gpt2[] = {GPT2, NULL};
static const char *const digits_gpt2[] = {FB_PATTERN_DIGIT, GPT2, NULL};
static const char *const llama3[] = {LLAMA3("\\p{N}{1,3}"), NULL};
static const char *const qwen2[] = {LLAMA3("\\p{N}"), NULL};
static const char *const qwen35[] = {QWEN35(SHORT_ANY_CASE), NULL};
static const char *const falcon[] = {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]", NULL};
static const char *const standard[] = {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]", NULL};
static const char *const deepseek_llm[] = {"[\\r\\n]",
                                           "\\s?[" DEEPSEEK_LETTERS "]+",
                                           "\\s?[!-/:-~！-／：-～‘-‟　-。]+",
                                           "(?<!\\s)\\s++(?!\\s|\\S)", /* white space at the end */
                                           CHINESE_KOREAN,
                                           "\\p{N}+",
                                           NULL};
static const char *const deepseek_coder[] = {"[\\r\\n]",     "\\s?\\p{L}+", "\\s?\\p{P}+",
                                             CHINESE_KOREAN, "\\p{N}",      NULL};
static const char *const deepseek3[] = {"\\p{N}{1,3}", CHINESE_JAPANESE, DEEPSEEK("\\r", "\\n"), NULL};
static const char *const gpt4o[] = {GPT4O(UPPER, LOWER, SHORT_HF "?", "\\p{N}{1,3}", "[\\r\\n/]*"), NULL};
static const char *const tekken[] = {GPT4O(UPPER, LOWER, "", "\\p{N}", "[\\r\\n/]*"), NULL};
static const char *const cohere2[] = {THREES("(?!\\w)"),
                                      GPT4O(UPPER, LOWER, SHORT_HF "?", "\\p{N}{1,3}", "[\\r\\n/]*"), NULL};
static const char *const kimi[] = {"\\p{Han}+|" GPT4O("(?:" NOT_HAN UPPER ")", "(?:" NOT_HAN LOWER ")",
                                                      SHORT_HF "?", "\\p{N}{1,3}", "[\\r\\n]*"),
                                   NULL};
static const char *const bloom[] = {BLOOM, NULL};
static const char *const viking[] = {BLOOM, "\\p{N}", NULL};
static const char *const superbpe[] = {"\\p{N}+", "\\p{N}(?:(?!" THREE "+(?!\\d))\\p{N})*", NULL};
static const char *const bailing[] = {
    SHORT_ANY_CASE "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]|"
                   "\\s+(?!\\S)|\\s+",
    NULL};
static const char *const seed_coder[] = {SHORT_ANY_CASE
                                         "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|"
                                         "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
                                         NULL};

static const fb_gguf_pre table[] = {
    {"default", standard, false, false},
    {"gpt-2", gpt2, false, false},
    {"phi-2", gpt2, false, false},
    {"mpt", gpt2, false, false},
    {"olmo", gpt2, false, false}, /* GPT-NeoX's too */
    {"jais", gpt2, false, false},
    {"trillion", gpt2, false, false},
    {"granite-docling", gpt2, false, false},
    {"exaone4", gpt2, false, false},
    {"mellum", gpt2, false, false},
    {"gigachat", gpt2, false, false},
    {"a.x-4.0", gpt2, false, false},
    {"jina-es", gpt2, false, false},
    {"jina-de", gpt2, false, false},
    {"jina-v2-es", gpt2, false, false},
    {"jina-v2-de", gpt2, false, false},
    {"modern-bert", gpt2, false, false},
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
    {"falcon-h1", llama3, true, true},
    {"pixtral", llama3, true, true},
    {"midm-2.0", llama3, true, true},
    {"lfm2", llama3, true, true},
    {"dbrx", llama3, false, false},
    {"smaug-bpe", llama3, false, false},
    {"glm4", llama3, false, false},
    {"chatglm-bpe", llama3, false, false},
    {"qwen2", qwen2, false, false},
    {"deepseek-r1-qwen", qwen2, false, false},
    {"kormo", qwen2, false, false},
    {"megrez", qwen2, false, false},
    {"stablelm2", qwen2, false, false},
    {"hunyuan", qwen2, false, false},
    {"solar-open", qwen2, false, false},
    {"grok-2", qwen2, false, false},
    {"qwen35", qwen35, false, false},
    {"falcon", falcon, false, false},
    {"deepseek-llm", deepseek_llm, false, false},
    {"deepseek-coder", deepseek_coder, false, false},
    {"deepseek-v3", deepseek3, false, false},
    {"hunyuan-dense", deepseek3, false, false},
    {"joyai-llm", deepseek3, false, false},
    {"gpt-4o", gpt4o, false, false},
    {"llama4", gpt4o, false, false},
    {"kanana2", gpt4o, false, false},
    {"minimax-m2", gpt4o, false, false},
    {"tekken", tekken, true, true},
    {"tiny_aya", cohere2, false, false},
    {"cohere2moe", cohere2, false, false},
    {"kimi-k2", kimi, false, false},
    {"poro-chat", bloom, false, false},
    {"bloom", bloom, false, false},
    {"gpt3-finnish", bloom, false, false},
    {"viking", viking, false, false},
    {"superbpe", superbpe, false, false},
    {"bailingmoe", bailing, false, false},
    {"bailingmoe2", bailing, false, false},
    {"llada-moe", bailing, false, false},
    {"seed-coder", seed_coder, false, false},
};

/* Names for what a tokenizer.json may have. Of those that split alike, one is enough. */
static const char *const llama3_hf[] = {LLAMA3_HF("\\p{N}{1,3}"), NULL};
static const char *const qwen2_hf[] = {LLAMA3_HF("\\p{N}"), NULL};
static const char *const qwen35_hf[] = {QWEN35(SHORT_HF), NULL};
static const char *const deepseek3_hf[] = {"\\p{N}{1,3}", CHINESE_JAPANESE, DEEPSEEK("\r", "\n"), NULL};

static const struct {
    const char *const *patterns;
    const char *name;
} spelled[] = {
    {gpt2, "gpt-2"},     {digits_gpt2, "smollm"}, {llama3_hf, "llama-bpe"},      {llama3_hf, "smaug-bpe"},
    {qwen2_hf, "qwen2"}, {qwen35_hf, "qwen35"},   {deepseek3_hf, "deepseek-v3"}, {gpt4o, "gpt-4o"},
    {tekken, "tekken"},
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
    if (strstr(pattern, THREE)) return false; /* looks at the rest of a number for each group of digits */
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
