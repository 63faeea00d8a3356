/* The types that a file can have, and the mixes. A mix has a type for most matrices, a better one for the
 * head, and rules for the matrices of a layer whose errors cost most. The rules are those that readers of
 * GGUF files know by these names, as llama.cpp writes them. */
#include "model/mix.h"

#include <stdio.h>
#include <strings.h>

#include "base/options.h"
#include "base/quant.h"
#include "base/sized.h"

/* ---- types --------------------------------------------------------------------------------------------- */

static const struct {
    fb_dtype type;
    uint32_t file_type; /* general.file_type: most of the tensors are of it */
    fb_dtype instead;   /* where rows are no whole blocks */
    bool corrects;
} types[] = {
    {FB_F16, 1, FB_F16, false},        {FB_Q8_0, 7, FB_F16, false},    {FB_Q6_K, 18, FB_Q8_0, false},
    {FB_Q5_K, 16, FB_Q5_1, true},      {FB_Q5_1, 9, FB_F16, true},     {FB_Q5_0, 8, FB_F16, false},
    {FB_Q4_K, 14, FB_Q5_0, true},      {FB_Q4_1, 3, FB_F16, true},     {FB_Q4_0, 2, FB_F16, true},
    {FB_IQ4_XS, 30, FB_IQ4_NL, false}, {FB_IQ4_NL, 25, FB_F16, false}, {FB_MXFP4, 38, FB_F16, false},
    {FB_Q3_K, 11, FB_Q4_0, false},     {FB_Q2_K, 10, FB_Q4_0, true},
};

enum { TYPES = sizeof types / sizeof *types };

static int type_index(fb_dtype type) {
    for (int i = 0; i < TYPES; i++)
        if (types[i].type == type) return i;
    return -1;
}

bool fb_mix_has_type(fb_dtype type) { return type_index(type) >= 0; }

bool fb_mix_corrects(fb_dtype type) { return fb_mix_has_type(type) && types[type_index(type)].corrects; }

const char *fb_mix_types(char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < TYPES && used < size; i++)
        used +=
            (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "", fb_dtype_name(types[i].type));
    return text;
}

fb_dtype fb_mix_fitting(fb_dtype type, int64_t cols) {
    while (cols % fb_dtype_block(type) != 0) type = types[type_index(type)].instead;
    return type;
}

/* Whether it takes fewer bits a weight. */
static bool is_coarser(fb_dtype one, fb_dtype other) {
    return fb_dtype_bytes(one, FB_MAX_BLOCK) < fb_dtype_bytes(other, FB_MAX_BLOCK);
}

/* ---- mixes --------------------------------------------------------------------------------------------- */

typedef enum place { NOWHERE, EVERYWHERE, FIRST_2, FIRST_4, FIRST_16TH, FIRST_8TH, ENDS_AND_THIRDS } place;

static bool is_in(place where, int64_t layer, int64_t layers) {
    switch (where) {
    case NOWHERE:
        return false;
    case EVERYWHERE:
        return true;
    case FIRST_2:
        return layer < 2;
    case FIRST_4:
        return layer < 4;
    case FIRST_16TH:
        return layer < layers / 16;
    case FIRST_8TH:
        return layer < layers / 8;
    case ENDS_AND_THIRDS: /* the first and last eighth, and each third layer between them */
        return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
    }
    return false;
}

/* Models that a rule is for. */
typedef enum models { ALL, GROUPED /* four query heads or more share a KV head */, EIGHT_EXPERTS } models;

/* The first rule that fits decides. */
typedef struct rule {
    const char *tensor; /* part of its name */
    models models;
    place where;
    fb_dtype type;
} rule;

#define RULES 8

/* q, k and v as one matrix count as v. */
#define VALUES(models, where, type)                                                                          \
    {"attn_v.", models, where, type}, { "attn_qkv.", models, where, type }
#define OUTPUT(where, type)                                                                                  \
    { "attn_output.", ALL, where, type }
#define DOWN(where, type)                                                                                    \
    { "ffn_down", ALL, where, type }

/* Rules of all mixes: with few layers of attention beside many experts, attention is cheap to keep. */
static const rule common[] = {
    {"attn_v.", EIGHT_EXPERTS, EVERYWHERE, FB_Q8_0},
    {"attn_k.", EIGHT_EXPERTS, EVERYWHERE, FB_Q8_0},
    {"attn_output.", EIGHT_EXPERTS, EVERYWHERE, FB_Q5_K},
};

static const struct {
    const char *name;
    fb_dtype type;
    uint32_t file_type;
    rule rules[RULES];
} mixes[] = {
    [FB_MIX_Q2_K] = {"q2_K",
                     FB_Q2_K,
                     10,
                     {VALUES(GROUPED, EVERYWHERE, FB_Q4_K), VALUES(ALL, EVERYWHERE, FB_Q3_K),
                      OUTPUT(EVERYWHERE, FB_Q3_K), DOWN(EVERYWHERE, FB_Q3_K)}},
    [FB_MIX_Q3_K_S] = {"q3_K_S", FB_Q3_K, 11, {{0}}},
    [FB_MIX_Q3_K_M] = {"q3_K_M",
                       FB_Q3_K,
                       12,
                       {VALUES(ALL, FIRST_2, FB_Q5_K), VALUES(ALL, EVERYWHERE, FB_Q4_K),
                        OUTPUT(EVERYWHERE, FB_Q4_K), DOWN(FIRST_16TH, FB_Q5_K), DOWN(EVERYWHERE, FB_Q4_K)}},
    [FB_MIX_Q3_K_L] = {"q3_K_L",
                       FB_Q3_K,
                       13,
                       {VALUES(ALL, EVERYWHERE, FB_Q5_K), OUTPUT(EVERYWHERE, FB_Q5_K),
                        DOWN(EVERYWHERE, FB_Q5_K)}},
    [FB_MIX_Q4_K_S] = {"q4_K_S", FB_Q4_K, 14, {VALUES(ALL, FIRST_4, FB_Q5_K), DOWN(FIRST_8TH, FB_Q5_K)}},
    [FB_MIX_Q4_K_M] = {"q4_K_M",
                       FB_Q4_K,
                       15,
                       {VALUES(ALL, ENDS_AND_THIRDS, FB_Q6_K), DOWN(ENDS_AND_THIRDS, FB_Q6_K)}},
    [FB_MIX_Q5_K_S] = {"q5_K_S", FB_Q5_K, 16, {{0}}},
    [FB_MIX_Q5_K_M] = {"q5_K_M",
                       FB_Q5_K,
                       17,
                       {VALUES(ALL, ENDS_AND_THIRDS, FB_Q6_K), DOWN(ENDS_AND_THIRDS, FB_Q6_K)}},
    [FB_MIX_IQ4_XS] = {"iq4_xs",
                       FB_IQ4_XS,
                       30,
                       {VALUES(GROUPED, EVERYWHERE, FB_Q5_K), DOWN(FIRST_8TH, FB_Q5_K)}},
};

enum { MIXES = sizeof mixes / sizeof *mixes, HEAD = FB_Q6_K /* of every mix */ };

bool fb_mix_is_known(int64_t mix) { return mix >= 0 && mix < MIXES; }

static bool is_for(models which, const fb_spec *spec) {
    if (which == GROUPED) return spec->hyper.heads >= 4 * spec->program.kv_heads;
    return which == ALL || spec->hyper.experts == 8;
}

static const rule *find_rule(const rule *rules, int count, const fb_spec *spec, const char *name,
                             int64_t layer) {
    for (int i = 0; i < count && rules[i].tensor; i++)
        if (strstr(name, rules[i].tensor) && is_for(rules[i].models, spec) &&
            is_in(rules[i].where, layer, spec->program.layers))
            return &rules[i];
    return NULL;
}

fb_dtype fb_mix_type(const fb_quantize_options *o, const fb_spec *spec, const char *name, int64_t layer) {
    if (o->mix == FB_MIX_NONE) return o->type;
    const rule *found = find_rule(common, sizeof common / sizeof *common, spec, name, layer);
    if (!found) found = find_rule(mixes[o->mix].rules, RULES, spec, name, layer);
    return found ? found->type : mixes[o->mix].type;
}

uint32_t fb_mix_file_type(const fb_quantize_options *o) {
    return o->mix == FB_MIX_NONE ? types[type_index(o->type)].file_type : mixes[o->mix].file_type;
}

/* ---- names --------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    fb_dtype type;
    fb_mix mix;
} names[] = {
    {"f16", FB_F16, FB_MIX_NONE},         {"q8_0", FB_Q8_0, FB_MIX_NONE},
    {"q6_k", FB_Q6_K, FB_MIX_NONE},       {"q5_K_M", FB_Q5_K, FB_MIX_Q5_K_M},
    {"q5_K_S", FB_Q5_K, FB_MIX_Q5_K_S},   {"q5_k", FB_Q5_K, FB_MIX_NONE},
    {"q5_1", FB_Q5_1, FB_MIX_NONE},       {"q5_0", FB_Q5_0, FB_MIX_NONE},
    {"q4_K_M", FB_Q4_K, FB_MIX_Q4_K_M},   {"q4_K_S", FB_Q4_K, FB_MIX_Q4_K_S},
    {"q4_k", FB_Q4_K, FB_MIX_NONE},       {"q4_1", FB_Q4_1, FB_MIX_NONE},
    {"q4_0", FB_Q4_0, FB_MIX_NONE},       {"iq4_nl", FB_IQ4_NL, FB_MIX_NONE},
    {"iq4_xs", FB_IQ4_XS, FB_MIX_IQ4_XS}, {"mxfp4", FB_MXFP4, FB_MIX_NONE},
    {"q3_K_L", FB_Q3_K, FB_MIX_Q3_K_L},   {"q3_K_M", FB_Q3_K, FB_MIX_Q3_K_M},
    {"q3_K_S", FB_Q3_K, FB_MIX_Q3_K_S},   {"q3_k", FB_Q3_K, FB_MIX_NONE},
    {"q2_k", FB_Q2_K, FB_MIX_Q2_K},
};

enum { NAMES = sizeof names / sizeof *names };

const char *fb_quantize_name(int64_t index) { return index >= 0 && index < NAMES ? names[index].name : NULL; }

fb_status fb_quantize_options_parse(const char *name, fb_quantize_options *options, fb_error *err) {
    fb_quantize_options o;
    char text[400];
    size_t used = 0;
    FB_TRY(fb_quantize_options_take(options, &o, err));
    for (int i = 0; name && i < NAMES; i++) {
        if (strcasecmp(name, names[i].name) != 0) continue;
        o.type = names[i].type;
        o.mix = names[i].mix;
        bool better = o.mix != FB_MIX_NONE || (o.importance && is_coarser(o.type, (fb_dtype)HEAD));
        o.head = better ? HEAD : o.type;
        if (o.mix != FB_MIX_NONE && options->size < offsetof(fb_quantize_options, mix) + sizeof o.mix)
            return fb_fail(err, FB_ERROR_USAGE, "type: %s (the program's fb_quantize_options has no mixes)",
                           name);
        fb_sized_give(&o, sizeof o, options);
        return FB_OK;
    }
    for (int i = 0; i < NAMES && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i ? ", " : "", names[i].name);
    return fb_fail(err, FB_ERROR_USAGE, "type: %s (%s)", name ? name : "NULL", text);
}
