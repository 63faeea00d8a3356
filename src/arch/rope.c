#include "arch/rope.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- types ---- */

/* What a type reads from its dictionary. */
enum { FACTOR = 1, BANDS = 2, BETAS = 4, LISTS = 8 };

typedef struct fb_rope_type {
    const char *name;
    double (*scale)(const fb_rope *rope, double frequency, int32_t index); /* NULL: the frequency itself */
    uint32_t reads;
} fb_rope_type;

static double scale_linear(const fb_rope *r, double frequency, int32_t index) {
    return (void)index, frequency / r->factor;
}

/* Llama 3: frequencies whose wave is much shorter than the original context stay, those much longer are
 * divided by the factor, and in between the two are mixed. */
static double scale_llama3(const fb_rope *r, double frequency, int32_t index) {
    (void)index;
    double waves = (double)r->original_context * frequency / (2 * M_PI); /* in the original context */
    if (waves < r->low) return frequency / r->factor;
    if (waves > r->high) return frequency;
    double mix = (waves - r->low) / (r->high - r->low);
    return (1 - mix) * frequency / r->factor + mix * frequency;
}

/* The index of the frequency that turns `turns` times in the original context; not a whole number. */
static double turning(const fb_rope *r, double turns) {
    return r->rotary * log((double)r->original_context / (turns * 2 * M_PI)) / (2 * log(r->base));
}

/* YaRN: frequencies before the band stay, those behind it are divided by the factor; in between a ramp. */
static double scale_yarn(const fb_rope *r, double frequency, int32_t index) {
    double low = turning(r, r->high), high = turning(r, r->low);
    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, r->rotary - 1);
    if (low == high) high += 0.001; /* as Hugging Face does, against a division by zero */
    double ramp = fmin(fmax((index - low) / (high - low), 0), 1);
    return frequency / r->factor * ramp + frequency * (1 - ramp);
}

static const fb_rope_type types[] = {
    {"default", NULL, 0},
    {"linear", scale_linear, FACTOR},
    {"llama3", scale_llama3, FACTOR | BANDS},
    {"yarn", scale_yarn, FACTOR | BETAS},
    {"longrope", NULL, LISTS},
    {"su", NULL, LISTS}, /* longrope under its first name */
};

static fb_status find_type(const char *what, const fb_json *rope, const fb_rope_type **out, fb_error *err) {
    const char *name;
    char known[128] = "";
    FB_TRY(fb_json_string(what, rope, "type", "default", &name, err));
    FB_TRY(fb_json_string(what, rope, "rope_type", name, &name, err));
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        *out = &types[i];
        if (strcmp(name, types[i].name) == 0) return FB_OK;
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", types[i].name);
    }
    return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: rope_type: \"%.64s\" (known: %s)", what, name, known);
}

/* ---- reading ---- */

fb_status fb_rope_dictionary(const fb_config *config, const fb_json **rope, char *what, size_t size,
                             fb_error *err) {
    const char *key = fb_json_member(config->json, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    *rope = fb_json_member(config->json, key);
    snprintf(what, size, "%s: %s", config->what, key);
    if (*rope && !fb_json_is(*rope, FB_JSON_OBJECT))
        return fb_fail(err, FB_ERROR_FILE, "%s: not an object", what);
    const fb_json *other = fb_json_member(config->json, "rope_scaling");
    if (other && !fb_json_equal(*rope, other))
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: rope_scaling: contradicts rope_parameters",
                       config->what);
    return FB_OK;
}

/* Keys of a rope dictionary, and the types that read them; ANY: known to all. */
#define ANY ~0u
static const struct {
    const char *key;
    uint32_t types;
} known_keys[] = {
    {"type", ANY},
    {"rope_type", ANY},
    {"rope_theta", ANY},
    {"partial_rotary_factor", ANY},
    {"factor", ANY},
    {"low_freq_factor", ANY},
    {"high_freq_factor", ANY},
    {"original_max_position_embeddings", ANY},
    {"beta_fast", BETAS},
    {"beta_slow", BETAS},
    {"mscale", BETAS},
    {"mscale_all_dim", BETAS},
    {"truncate", BETAS},
    {"attention_factor", BETAS | LISTS},
    {"short_factor", LISTS},
    {"long_factor", LISTS},
};

/* Whatever else stands in the rope dictionary belongs to a variant that is not known here. */
static fb_status check_keys(const char *what, const fb_json *rope, const fb_rope_type *type, fb_error *err) {
    for (const fb_json *value = fb_json_first(rope); value; value = fb_json_next(value)) {
        const char *key = fb_json_key(value);
        bool found = fb_json_is(value, FB_JSON_NULL);
        for (size_t i = 0; i < sizeof known_keys / sizeof *known_keys; i++)
            found = found || (strcmp(key, known_keys[i].key) == 0 &&
                              (known_keys[i].types == ANY || known_keys[i].types & type->reads));
        char text[64];
        if (!found)
            return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %.64s: %s (not known for rope_type \"%s\")", what,
                           key, fb_json_show(value, text, sizeof text), type->name);
    }
    return FB_OK;
}

/* A number that may stand in the rope dictionary or, in one of two older spellings, in the config itself. */
static fb_status read_either(const fb_config *config, const char *what, const fb_json *rope, const char *key,
                             const char *old, double min, double max, double fallback, double *out,
                             fb_error *err) {
    FB_TRY(fb_json_real(config->what, config->json, old, min, max, fallback, out, err));
    FB_TRY(fb_json_real(config->what, config->json, key, min, max, *out, out, err));
    return fb_json_real(what, rope, key, min, max, *out, out, err);
}

/* How much attention is sharpened when the context grows by `factor`. */
static double yarn_magnitude(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static fb_status read_yarn(const char *what, const fb_json *rope, fb_rope *r, fb_error *err) {
    double mscale, all_dim;
    FB_TRY(fb_json_real(what, rope, "beta_fast", 1e-6, 1e6, 32, &r->high, err));
    FB_TRY(fb_json_real(what, rope, "beta_slow", 1e-6, 1e6, 1, &r->low, err));
    FB_TRY(fb_json_bool(what, rope, "truncate", true, &r->truncate, err));
    FB_TRY(fb_json_real(what, rope, "mscale", 0, 1e6, 0, &mscale, err));
    FB_TRY(fb_json_real(what, rope, "mscale_all_dim", 0, 1e6, 0, &all_dim, err));
    double magnitude = mscale != 0 && all_dim != 0
                           ? yarn_magnitude(r->factor, mscale) / yarn_magnitude(r->factor, all_dim)
                           : yarn_magnitude(r->factor, 1);
    return fb_json_real(what, rope, "attention_factor", 1e-6, 1e6, magnitude, &r->magnitude, err);
}

/* One list of divisors, as long as there are frequencies. */
static fb_status check_list(const char *what, const fb_json *rope, const char *key, int32_t count,
                            const fb_json **out, fb_error *err) {
    const fb_json *list = *out = fb_json_member(rope, key);
    char text[64];
    if (!fb_json_is(list, FB_JSON_ARRAY) || fb_json_size(list) != (size_t)count)
        return fb_fail(err, FB_ERROR_FILE, "%s: %s: %s (a list of %d numbers)", what, key,
                       list ? fb_json_show(list, text, sizeof text) : "missing", count);
    for (const fb_json *value = fb_json_first(list); value; value = fb_json_next(value)) {
        double number = fb_json_real_of(value);
        bool is_number = fb_json_is(value, FB_JSON_INT) || fb_json_is(value, FB_JSON_REAL);
        if (!is_number || !(number > 1e-6 && number < 1e6))
            return fb_fail(err, FB_ERROR_FILE, "%s: %s: %s (1e-06 to 1e+06)", what, key,
                           fb_json_show(value, text, sizeof text));
    }
    return FB_OK;
}

static fb_status read_lists(const char *what, const fb_json *rope, int64_t context, fb_rope *r,
                            fb_error *err) {
    FB_TRY(check_list(what, rope, "short_factor", r->rotary / 2, &r->shorts, err));
    FB_TRY(check_list(what, rope, "long_factor", r->rotary / 2, &r->longs, err));
    FB_TRY(fb_json_real(what, rope, "factor", 1e-6, 1e6, (double)context / (double)r->original_context,
                        &r->factor, err));
    double magnitude = r->factor <= 1 ? 1 : sqrt(1 + log(r->factor) / log((double)r->original_context));
    return fb_json_real(what, rope, "attention_factor", 1e-6, 1e6, magnitude, &r->magnitude, err);
}

static fb_status read_scaling(const fb_config *config, const char *what, const fb_json *rope, int64_t context,
                              fb_rope *r, fb_error *err) {
    uint32_t reads = r->type->reads;
    FB_TRY(fb_json_int(what, rope, "original_max_position_embeddings", 1, FB_LIMIT_CONTEXT, context,
                       &r->original_context, err));
    /* The config's own key counts more. Logarithms of it must not be zero. */
    if (reads & (BANDS | BETAS | LISTS))
        FB_TRY(fb_json_int(config->what, config->json, "original_max_position_embeddings", 1,
                           FB_LIMIT_CONTEXT, r->original_context, &r->original_context, err));
    if (reads & LISTS && r->original_context < 2)
        return fb_fail(err, FB_ERROR_FILE, "%s: original_max_position_embeddings: %lld (at least 2)", what,
                       (long long)r->original_context);
    if (reads & BETAS && r->base <= 1)
        return fb_fail(err, FB_ERROR_FILE, "%s: rope_theta: %g (above 1 for yarn)", what, r->base);
    if (reads & FACTOR) {
        if (!fb_json_member(rope, "factor")) return fb_fail(err, FB_ERROR_FILE, "%s: factor: missing", what);
        FB_TRY(fb_json_real(what, rope, "factor", 1, 1e6, 1, &r->factor, err));
    }
    if (reads & BANDS) {
        FB_TRY(fb_json_real(what, rope, "low_freq_factor", 1e-6, 1e6, 1, &r->low, err));
        FB_TRY(fb_json_real(what, rope, "high_freq_factor", 1e-6, 1e6, 4, &r->high, err));
    }
    if (reads & BETAS) FB_TRY(read_yarn(what, rope, r, err));
    if (reads & (BANDS | BETAS) && r->low >= r->high)
        return fb_fail(err, FB_ERROR_FILE, "%s: %s: %g (below %s %g)", what,
                       reads & BANDS ? "low_freq_factor" : "beta_slow", r->low,
                       reads & BANDS ? "high_freq_factor" : "beta_fast", r->high);
    return reads & LISTS ? read_lists(what, rope, context, r, err) : FB_OK;
}

fb_status fb_rope_read(const fb_config *config, const char *what, const fb_json *rope, int64_t head_dim,
                       int64_t context, double default_base, double default_fraction, fb_rope *out,
                       fb_error *err) {
    fb_rope *r = out;
    *r = (fb_rope){.factor = 1, .magnitude = 1};
    FB_TRY(find_type(what, rope, &r->type, err));
    FB_TRY(check_keys(what, rope, r->type, err));
    FB_TRY(read_either(config, what, rope, "rope_theta", "rotary_emb_base", 1, 1e12, default_base, &r->base,
                       err));
    FB_TRY(read_either(config, what, rope, "partial_rotary_factor", "rotary_pct", 0, 1, default_fraction,
                       &r->fraction, err));
    r->rotary = (int32_t)((double)head_dim * r->fraction);
    if (r->rotary % 2)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: rotating elements of a head: %d (an even number)",
                       config->what, r->rotary);
    return read_scaling(config, what, rope, context, r, err);
}

/* ---- frequencies ---- */

bool fb_rope_is_usual_yarn(const fb_rope *r) {
    return r->type->scale == scale_yarn && r->low == 1 && r->high == 32 && r->truncate &&
           r->magnitude == yarn_magnitude(r->factor, 1);
}

bool fb_rope_is_other(const fb_rope *r) { return r->type->scale == scale_yarn && !fb_rope_is_usual_yarn(r); }

bool fb_rope_is_default(const fb_rope *r) { return !r->type->scale && !(r->type->reads & LISTS); }

bool fb_rope_is_linear(const fb_rope *r) { return r->type->scale == scale_linear; }

bool fb_rope_has_long(const fb_rope *r) { return r->longs != NULL; }

void fb_rope_fill(const fb_rope *r, bool is_long, double *to) {
    const fb_json *list = is_long ? r->longs : r->shorts, *divisor = list ? fb_json_first(list) : NULL;
    for (int32_t i = 0; i < r->rotary / 2; i++) {
        if (!r->type) { /* no rotation */
            to[i] = 0;
            continue;
        }
        double frequency = pow(r->base, -2.0 * i / r->rotary);
        if (r->type->scale) frequency = r->type->scale(r, frequency, i);
        to[i] = divisor ? frequency / fb_json_real_of(divisor) : frequency;
        if (divisor) divisor = fb_json_next(divisor);
    }
}

void fb_rope_facts(const fb_rope *r, fb_spec *spec, int64_t head_dim) {
    uint32_t reads = r->type->reads;
    fb_spec_fact(spec, "rotary fraction", "%g (%d of %lld elements of a head)", r->fraction, r->rotary,
                 (long long)head_dim);
    fb_spec_fact(spec, "rotary base", "%g", r->base);
    fb_spec_fact(spec, "rotary type", "%s", r->type->name);
    if (reads & (FACTOR | LISTS)) fb_spec_fact(spec, "rotary factor", "%g", r->factor);
    if (reads & BANDS)
        fb_spec_fact(spec, "rotary bands", "%g to %g waves in %lld tokens", r->low, r->high,
                     (long long)r->original_context);
    if (reads & BETAS)
        fb_spec_fact(spec, "rotary ramp", "%g to %g turns in %lld tokens", r->low, r->high,
                     (long long)r->original_context);
    if (reads & LISTS)
        fb_spec_fact(spec, "rotary lists", "the long one beyond %lld tokens", (long long)r->original_context);
    if (r->magnitude != 1) fb_spec_fact(spec, "rotary magnitude", "%g", r->magnitude);
}

/* ---- for models with one table ---- */

fb_status fb_config_rope(const fb_config *config, fb_spec *spec, int64_t head_dim, double default_fraction,
                         int32_t *rotary, fb_error *err) {
    const fb_json *dictionary;
    char what[512];
    fb_rope rope;
    FB_TRY(fb_rope_dictionary(config, &dictionary, what, sizeof what, err));
    FB_TRY(fb_rope_read(config, what, dictionary, head_dim, spec->program.context, 10000, default_fraction,
                        &rope, err));
    if (rope.type->reads & (BETAS | LISTS))
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: rope_type: \"%s\" (not with this architecture)", what,
                       rope.type->name);
    *rotary = rope.rotary;
    spec->hyper.rotary = rope.rotary;
    spec->hyper.rope_base = rope.base;
    spec->hyper.rope_linear = fb_rope_is_linear(&rope) ? rope.factor : 1;
    fb_rope_facts(&rope, spec, head_dim);
    if (rope.rotary == 0) return FB_OK;
    return fb_rope_tables(&rope, 1, spec, err);
}

fb_status fb_rope_tables(const fb_rope *ropes, int32_t count, fb_spec *spec, fb_error *err) {
    fb_program *p = &spec->program;
    int64_t half = ropes->rotary / 2, tables = 0;
    for (int32_t i = 1; i < count; i++)
        if (ropes[i].rotary != ropes->rotary)
            return fb_fail(err, FB_ERROR_UNSUPPORTED,
                           "rope: %d and %d elements of a head rotate (one number for all)", ropes->rotary,
                           ropes[i].rotary);
    for (int32_t i = 0; i < count; i++) tables += 1 + fb_rope_has_long(&ropes[i]);
    int64_t bytes = tables * half * (int64_t)sizeof *p->frequencies;
    p->frequencies = malloc((size_t)bytes);
    if (!p->frequencies) return fb_fail_memory(err, "rotary frequencies", bytes);
    p->frequency_tables = 0;
    for (int32_t i = 0; i < count; i++)
        for (int n = 0; n < (fb_rope_has_long(&ropes[i]) ? 2 : 1); n++)
            fb_rope_fill(&ropes[i], n == 1, p->frequencies + half * p->frequency_tables++);
    if (fb_rope_has_long(ropes)) p->long_context = ropes->original_context;
    return FB_OK;
}
