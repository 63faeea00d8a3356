#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "chat/eval.h"

#define STEPS_LIMIT   (INT64_C(20) << 20) /* about a second; a conversation of 1000 turns takes 200,000 */
#define MEMORY_LIMIT  (INT64_C(256) << 20)
#define PARSING_LIMIT (INT64_C(256) << 20) /* a template of one megabyte that is all operators */
#define TEMPLATE_NAME 96

struct fb_jinja_template {
    char name[TEMPLATE_NAME];
    fb_jinja_arena arena;
    const fb_jinja_node *statements;
};

/* Numbers and dates are written and read as in C, whatever locale the program has. */
typedef struct c_locale {
    locale_t own, before;
} c_locale;

static fb_status use_c_locale(c_locale *l, fb_error *err) {
    l->own = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!l->own) return fb_fail_memory(err, "template: locale", 0);
    l->before = uselocale(l->own);
    return FB_OK;
}

static void restore_locale(c_locale *l) {
    uselocale(l->before);
    freelocale(l->own);
}

fb_status fb_jinja_parse(const char *name, const char *source, size_t size, fb_jinja_template **out,
                         fb_error *err) {
    *out = NULL;
    c_locale locale = {0};
    if (size > FB_JINJA_TEMPLATE_LIMIT)
        return fb_fail(err, FB_ERROR_FILE, "%.80s: %zu bytes (at most %d)", name, size,
                       FB_JINJA_TEMPLATE_LIMIT);
    fb_jinja_template *parsed = calloc(1, sizeof *parsed);
    if (!parsed) return fb_fail_memory(err, "template", sizeof *parsed);
    strncpy(parsed->name, name, sizeof parsed->name - 1);
    fb_status status = use_c_locale(&locale, err);
    if (status != FB_OK) {
        free(parsed);
        return status;
    }
    fb_jinja_shared base = {.name = parsed->name, .err = err, .arena.limit = PARSING_LIMIT, .line = 1};
    fb_jinja_node *statements = NULL;
    status = fb_jinja_parse_source(&base, source, (int64_t)size, &statements);
    restore_locale(&locale);
    parsed->arena = base.arena;
    parsed->statements = statements;
    if (status == FB_OK)
        *out = parsed;
    else
        fb_jinja_free(parsed);
    return status;
}

void fb_jinja_free(fb_jinja_template *parsed) {
    if (!parsed) return;
    fb_jinja_arena_free(&parsed->arena);
    free(parsed);
}

/* ---- rendering ---- */

static fb_status set_variables(fb_jinja_run *run, const fb_jinja_options *options) {
    FB_TRY(fb_jinja_scope_push(run, NULL));
    for (int64_t i = 0; i < options->count; i++) {
        const fb_jinja_variable *v = &options->variables[i];
        fb_jinja_value value = fb_jinja_none();
        if (v->json)
            FB_TRY(fb_jinja_from_json(run, v->json, &value));
        else if (v->text)
            value = fb_jinja_string(fb_jinja_literal(v->text));
        else if (v->is_bool)
            value = fb_jinja_bool(v->truth);
        FB_TRY(fb_jinja_assign(run, fb_jinja_literal(v->name), value));
    }
    return fb_jinja_scope_push(run, run->scope); /* what the template sets hides them */
}

static fb_status copy_output(fb_jinja_run *run, const fb_jinja_builder *b, fb_jinja_output *out) {
    size_t size = (size_t)b->size;
    out->text = malloc(size + 1);
    out->marks = calloc(size + 1, 1);
    if (!out->text || !out->marks) {
        fb_jinja_output_free(out);
        return fb_jinja_fail_memory(&run->base);
    }
    if (size > 0) memcpy(out->text, b->bytes, size);
    if (size > 0 && b->marks) memcpy(out->marks, b->marks, size);
    out->text[size] = '\0';
    out->size = size;
    return FB_OK;
}

fb_status fb_jinja_render(const fb_jinja_template *parsed, const fb_jinja_options *options,
                          fb_jinja_output *out, fb_error *err) {
    fb_jinja_builder text = {0};
    c_locale locale = {0};
    fb_jinja_run run = {.base = {.name = parsed->name, .err = err, .line = 1},
                        .steps = options->steps ? options->steps : STEPS_LIMIT,
                        .now = options->now,
                        .out = &text};
    run.step_limit = run.steps;
    *out = (fb_jinja_output){0};
    run.base.arena.limit = options->memory ? options->memory : MEMORY_LIMIT;
    FB_TRY(use_c_locale(&locale, err));
    fb_status status = set_variables(&run, options);
    if (status == FB_OK) status = fb_jinja_exec(&run, parsed->statements);
    if (status == FB_OK) status = copy_output(&run, &text, out);
    restore_locale(&locale);
    fb_jinja_arena_free(&run.base.arena);
    return status;
}

void fb_jinja_output_free(fb_jinja_output *output) {
    free(output->text);
    free(output->marks);
    *output = (fb_jinja_output){0};
}
