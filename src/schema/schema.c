#include "schema/schema.h"

#include <stdlib.h>

#include "schema/compile.h"

/* Nodes of the tree of tokens that creating a schema looks at: some 20 ms. Masks of other states are made
 * when a document comes there. */
#define MOST_VISITED 4000000

/* A schema comes from a caller, not from a file. */
static fb_status parse(const char *text, size_t bytes, fb_json **root, fb_error *err) {
    fb_error reason;
    fb_status status = fb_json_parse("schema", text, bytes, FB_SCHEMA_BYTES, root, &reason);
    if (status == FB_ERROR_FILE) status = FB_ERROR_USAGE;
    if (status != FB_OK) return fb_fail(err, status, "%s", reason.message);
    return fb_json_is(*root, FB_JSON_OBJECT) ? FB_OK : fb_fail(err, FB_ERROR_USAGE, "schema: not an object");
}

static fb_status compile(fb_schema *s, const char *text, size_t bytes, fb_error *err) {
    fb_json *root = NULL;
    fb_status status = text ? parse(text, bytes, &root, err) : FB_OK;
    if (status == FB_OK)
        status = fb_compile_schema(&s->set->base, s->set->string_end, root, &s->machine, &s->first, err);
    fb_json_free(root);
    return status;
}

static void make_masks(const fb_schema *s) {
    int64_t visited = 0;
    for (int32_t i = s->set->base.state_count; i < s->machine.state_count && visited < MOST_VISITED; i++)
        fb_schema_prepare(s, i, &visited);
}

fb_status fb_schema_compile(fb_token_set *set, const char *text, size_t bytes, fb_schema **out,
                            fb_error *err) {
    *out = NULL;
    fb_schema *s = calloc(1, sizeof *s);
    if (!s) return fb_fail_memory(err, "schema", sizeof *s);
    s->set = fb_token_set_hold(set);
    fb_status status = compile(s, text, bytes, err);
    const size_t own = status == FB_OK ? (size_t)(s->machine.state_count - set->base.state_count) : 0;
    s->cache = calloc(1, sizeof *s->cache + own * sizeof *s->cache->slots);
    if (!s->cache) {
        fb_machine_free(&s->machine);
        fb_token_set_free(set);
        free(s);
        return status != FB_OK ? status
                               : fb_fail_memory(err, "schema", (int64_t)(own * sizeof(fb_leaf_slot)));
    }
    s->cache->schema = s;
    atomic_store(&s->cache->users, 1);
    if (status != FB_OK) {
        fb_schema_free(s);
        return status;
    }
    make_masks(s);
    *out = s;
    return FB_OK;
}

const fb_schema *fb_schema_hold(const fb_schema *s) {
    atomic_fetch_add(&s->cache->users, 1);
    return s;
}

void fb_schema_release(const fb_schema *s) {
    if (s) fb_schema_free(s->cache->schema);
}

void fb_schema_free(fb_schema *s) {
    if (!s || atomic_fetch_sub(&s->cache->users, 1) > 1) return;
    const int32_t base = s->set->base.state_count;
    for (int32_t i = base; i < s->machine.state_count; i++)
        fb_leaf_mask_free(atomic_load(&s->cache->slots[i - base]));
    free(s->cache);
    fb_machine_free(&s->machine);
    fb_token_set_free(s->set);
    free(s);
}
