#include "arch/config.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void fb_spec_fact(fb_spec *spec, const char *name, const char *format, ...) {
    if (spec->fact_count == FB_MAX_FACTS) return;
    fb_fact *fact = &spec->facts[spec->fact_count++];
    snprintf(fact->name, sizeof fact->name, "%s", name);
    va_list args;
    va_start(args, format);
    vsnprintf(fact->value, sizeof fact->value, format, args);
    va_end(args);
}

fb_status fb_config_size(const fb_config *config, const char *const *keys, int64_t max, int64_t *out,
                         fb_error *err) {
    const char *const *key = keys;
    while (key[1] && !fb_json_member(config->json, *key)) key++;
    if (!fb_json_member(config->json, *key)) key = keys;
    return fb_json_need_int(config->what, config->json, *key, 1, max, out, err);
}

fb_status fb_config_heads(const fb_config *config, int64_t hidden, int64_t heads, int64_t *head_dim,
                          fb_error *err) {
    if (hidden % heads)
        return fb_fail(err, FB_ERROR_FILE, "%s: attention heads: %lld (a divisor of the hidden size %lld)",
                       config->what, (long long)heads, (long long)hidden);
    int64_t stated;
    FB_TRY(
        fb_json_int(config->what, config->json, "head_dim", 1, FB_LIMIT_WIDTH, hidden / heads, &stated, err));
    *head_dim = hidden / heads;
    if (stated != *head_dim)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: head_dim: %lld (only hidden size / heads = %lld)",
                       config->what, (long long)stated, (long long)*head_dim);
    return FB_OK;
}

static const struct {
    const char *name;
    fb_op_kind kind;
} activation_table[] = {
    {"gelu", FB_OP_GELU},
    {"gelu_new", FB_OP_GELU_TANH},
    /* The same function as gelu_new, factored differently. */
    {"gelu_fast", FB_OP_GELU_TANH},
    {"gelu_pytorch_tanh", FB_OP_GELU_TANH},
    {"silu", FB_OP_SILU},
    {"swish", FB_OP_SILU},
};

fb_status fb_config_activation(const fb_config *config, const char *key, const char *fallback,
                               fb_op_kind *out, const char **name, fb_error *err) {
    FB_TRY(fb_json_string(config->what, config->json, key, fallback, name, err));
    char known[128] = "";
    for (size_t i = 0; i < sizeof activation_table / sizeof *activation_table; i++) {
        *out = activation_table[i].kind;
        if (strcmp(*name, activation_table[i].name) == 0) return FB_OK;
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                 activation_table[i].name);
    }
    return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %s: \"%s\" (known: %s)", config->what, key, *name, known);
}

/* ---- rope
 * ------------------------------------------------------------------------------------------------------ */

typedef struct rope_scaling {
    double factor, low, high;
    int64_t original_context;
} rope_scaling;

/* Llama 3: frequencies whose wave is much shorter than the original context stay, those much longer are
 * divided by the factor, and in between the two are mixed. */
static double scale_llama3(double frequency, const rope_scaling *s) {
    double waves = (double)s->original_context * frequency / (2 * M_PI); /* in the original context */
    if (waves < s->low) return frequency / s->factor;
    if (waves > s->high) return frequency;
    double mix = (waves - s->low) / (s->high - s->low);
    return (1 - mix) * frequency / s->factor + mix * frequency;
}

static double scale_linear(double frequency, const rope_scaling *s) { return frequency / s->factor; }
static double scale_default(double frequency, const rope_scaling *s) { return (void)s, frequency; }

typedef struct rope_type {
    const char *name;
    double (*scale)(double frequency, const rope_scaling *scaling);
    bool has_factor, has_bands;
} rope_type;

static const rope_type rope_types[] = {
    {"default", scale_default, false, false},
    {"linear", scale_linear, true, false},
    {"llama3", scale_llama3, true, true},
};

static fb_status find_rope_type(const char *what, const fb_json *rope, const rope_type **out, fb_error *err) {
    const char *name;
    FB_TRY(fb_json_string(what, rope, "type", "default", &name, err));
    FB_TRY(fb_json_string(what, rope, "rope_type", name, &name, err));
    for (size_t i = 0; i < sizeof rope_types / sizeof *rope_types; i++) {
        *out = &rope_types[i];
        if (strcmp(name, rope_types[i].name) == 0) return FB_OK;
    }
    return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: rope_type: \"%s\" (known: default, linear, llama3)", what,
                   name);
}

static fb_status read_scaling(const char *what, const fb_json *rope, const rope_type *type, int64_t context,
                              rope_scaling *s, fb_error *err) {
    *s = (rope_scaling){.factor = 1};
    if (type->has_factor) {
        if (!fb_json_member(rope, "factor")) return fb_fail(err, FB_ERROR_FILE, "%s: factor: missing", what);
        FB_TRY(fb_json_real(what, rope, "factor", 1, 1e6, 1, &s->factor, err));
    }
    if (type->has_bands) {
        FB_TRY(fb_json_real(what, rope, "low_freq_factor", 1e-6, 1e6, 1, &s->low, err));
        FB_TRY(fb_json_real(what, rope, "high_freq_factor", 1e-6, 1e6, 4, &s->high, err));
        FB_TRY(fb_json_int(what, rope, "original_max_position_embeddings", 1, FB_LIMIT_CONTEXT, context,
                           &s->original_context, err));
        if (s->low >= s->high)
            return fb_fail(err, FB_ERROR_FILE, "%s: low_freq_factor: %g (below high_freq_factor %g)", what,
                           s->low, s->high);
    }
    return FB_OK;
}

/* Whatever else stands in the rope dictionary belongs to a variant that is not known here. */
static fb_status check_rope_keys(const char *what, const fb_json *rope, fb_error *err) {
    static const char *const known[] = {
        "type",   "rope_type",       "rope_theta",       "partial_rotary_factor",
        "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"};
    for (const fb_json *value = fb_json_first(rope); value; value = fb_json_next(value)) {
        const char *key = fb_json_key(value);
        bool found = fb_json_is(value, FB_JSON_NULL);
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) found = found || strcmp(key, known[i]) == 0;
        char text[64];
        if (!found)
            return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: %.64s: %s (not known)", what, key,
                           fb_json_show(value, text, sizeof text));
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

fb_status fb_config_rope(const fb_config *config, fb_spec *spec, int64_t head_dim, double default_fraction,
                         int32_t *rotary, fb_error *err) {
    const char *key = fb_json_member(config->json, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    const fb_json *rope = fb_json_member(config->json, key);
    char what[512];
    snprintf(what, sizeof what, "%s: %s", config->what, key);
    if (rope && !fb_json_is(rope, FB_JSON_OBJECT))
        return fb_fail(err, FB_ERROR_FILE, "%s: not an object", what);
    double base, fraction;
    const rope_type *type;
    rope_scaling scaling;
    FB_TRY(find_rope_type(what, rope, &type, err));
    FB_TRY(check_rope_keys(what, rope, err));
    const fb_json *other = fb_json_member(config->json, "rope_scaling");
    if (other && !fb_json_equal(rope, other))
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: rope_scaling: contradicts rope_parameters",
                       config->what);
    FB_TRY(read_scaling(what, rope, type, spec->program.context, &scaling, err));
    FB_TRY(read_either(config, what, rope, "rope_theta", "rotary_emb_base", 1, 1e12, 10000, &base, err));
    FB_TRY(read_either(config, what, rope, "partial_rotary_factor", "rotary_pct", 0, 1, default_fraction,
                       &fraction, err));

    *rotary = (int32_t)((double)head_dim * fraction);
    spec->hyper.rotary = *rotary;
    spec->hyper.rope_base = base;
    spec->hyper.rope_linear = type->scale == scale_linear ? scaling.factor : 1;
    if (*rotary % 2)
        return fb_fail(err, FB_ERROR_UNSUPPORTED, "%s: rotating elements of a head: %d (an even number)",
                       config->what, *rotary);
    fb_spec_fact(spec, "rotary fraction", "%g (%d of %lld elements of a head)", fraction, *rotary,
                 (long long)head_dim);
    fb_spec_fact(spec, "rotary base", "%g", base);
    fb_spec_fact(spec, "rotary type", "%s", type->name);
    if (type->has_factor) fb_spec_fact(spec, "rotary factor", "%g", scaling.factor);
    if (type->has_bands)
        fb_spec_fact(spec, "rotary bands", "%g to %g waves in %lld tokens", scaling.low, scaling.high,
                     (long long)scaling.original_context);
    if (*rotary == 0) return FB_OK;

    double *frequencies = malloc((size_t)(*rotary / 2) * sizeof *frequencies);
    if (!frequencies)
        return fb_fail_memory(err, "rotary frequencies", *rotary / 2 * (int64_t)sizeof *frequencies);
    for (int32_t i = 0; i < *rotary / 2; i++)
        frequencies[i] = type->scale(pow(base, -2.0 * i / *rotary), &scaling);
    spec->program.frequencies = frequencies;
    return FB_OK;
}
