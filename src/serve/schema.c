#include "serve/schema.h"

#include <stdlib.h>
#include <string.h>

#include "serve/engine.h"
#include "serve/prompt.h"

bool serve_schema_compile(const char *schema, serve_job *j, serve_fault *f) {
    fb_error err;
    const char *text = schema[0] ? schema : NULL;
    if (fb_schema_create(j->engine->model, text, strlen(schema), &j->compiled, &err) == FB_OK) {
        j->sampler.schema = j->compiled;
        return true;
    }
    return serve_fault_set(f, err.status == FB_ERROR_MEMORY ? 503 : 400, "response_format", "invalid_value",
                           "response_format: %s", err.message);
}

bool serve_schema_take(const serve_params *p, serve_job *j, serve_fault *f) {
    if (!serve_prompt_json_text(p->schema, &j->schema, f)) return false;
    if (!j->schema) j->schema = strdup("");
    if (!j->schema) return serve_fault_set(f, 503, NULL, "no_memory", "request: no memory");
    return serve_schema_compile(j->schema, j, f);
}
