#include "arch/config.h"

#include <stdarg.h>
#include <stdio.h>

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
