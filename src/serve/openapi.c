/* /openapi.json: the interface, from the tables that implement it. */
#include <string.h>

#include "cli/json_out.h"
#include "serve/server.h"

#define OBJECT "{\"type\":\"object\""
#define MODEL  "\"model\":{\"type\":[\"string\",\"null\"],\"description\":\"a name from /v1/models\"}"

/* One of two members is a text, and the other is not there. */
#define ONLY(there, other)                                                                                   \
    "{\"required\":[\"" there "\"],\"properties\":{\"" there "\":{\"type\":\"string\"},\"" other             \
    "\":{\"type\":\"null\"}}}"

/* The bodies of POST requests that have no table of parameters. */
static const struct {
    const char *path, *schema;
} bodies[] = {
    {"/v1/embeddings",
     OBJECT ",\"required\":[\"input\"],\"additionalProperties\":false,\"properties\":{" MODEL
            ",\"input\":{" SERVE_SCHEMA_PROMPT "},\"encoding_format\":{\"enum\":[\"float\",\"base64\","
            "null]},\"user\":{\"type\":[\"string\",\"null\"]}}}"},
    {"/tokenize",
     OBJECT ",\"additionalProperties\":false,\"properties\":{" MODEL
            ",\"add_special\":{\"type\":[\"boolean\",\"null\"]},\"content\":{},\"prompt\":{\"description\":"
            "\"another name of content\"}},\"oneOf\":[" ONLY("content", "prompt") "," ONLY("prompt",
                                                                                           "content") "]}"},
    {"/detokenize",
     OBJECT ",\"required\":[\"tokens\"],\"additionalProperties\":false,\"properties\":{" MODEL
            ",\"tokens\":{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0}}}}"},
    {"/fuses", OBJECT ",\"oneOf\":[{\"required\":[\"fuse\"]},{\"required\":[\"switch\"]}],"
                      "\"additionalProperties\":false,\"properties\":{" MODEL
                      ",\"fuse\":{\"type\":\"string\",\"description\":\"none, all, auto, or a list\"},"
                      "\"switch\":{\"type\":\"object\",\"minProperties\":1,\"additionalProperties\":{"
                      "\"type\":\"boolean\"}}}}"},
};

static void write_body(const char *path, FILE *out) {
    if (strcmp(path, "/v1/completions") == 0) {
        fputs(OBJECT ",\"required\":[\"prompt\"],\"additionalProperties\":false,\"properties\":{", out);
        serve_params_describe(SERVE_COMPLETION, out);
        fputs("}}", out);
        return;
    }
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        if (strcmp(bodies[i].path, path) != 0) continue;
        fputs(bodies[i].schema, out);
        return;
    }
    fputs(OBJECT ",\"required\":[\"messages\"],\"additionalProperties\":false,\"properties\":{", out);
    serve_params_describe(SERVE_CHAT, out);
    fputs("}}", out);
}

static const char *content_type(const char *path) {
    if (strcmp(path, "/") == 0) return "text/html; charset=utf-8";
    if (strcmp(path, "/metrics") == 0) return "text/plain; version=0.0.4; charset=utf-8";
    return "application/json";
}

static void write_error(FILE *out, const char *status, const char *text) {
    fprintf(out,
            ",\"%s\":{\"description\":\"%s\",\"content\":{\"application/json\":{\"schema\":{\"$ref\":"
            "\"#/components/schemas/Error\"}}}}",
            status, text);
}

static void write_operation(const serve_route *r, FILE *out) {
    cli_json json = {.out = out};
    bool post = strcmp(r->method, "POST") == 0;
    fprintf(out, "\"%s\":{", post ? "post" : "get");
    cli_json_string(&json, "summary", r->summary);
    if (r->flags & SERVE_OPEN) fputs(",\"security\":[]", out);
    if (!post && (strcmp(r->path, "/props") == 0 || strcmp(r->path, "/fuses") == 0))
        fputs(",\"parameters\":[{\"name\":\"model\",\"in\":\"query\",\"schema\":{\"type\":\"string\"}}]",
              out);
    if (strchr(r->path, '{'))
        fputs(",\"parameters\":[{\"name\":\"model\",\"in\":\"path\",\"required\":true,\"schema\":{\"type\":"
              "\"string\",\"minLength\":1}}]",
              out);
    if (post) {
        fputs(",\"requestBody\":{\"required\":true,\"content\":{\"application/json\":{\"schema\":", out);
        write_body(r->path, out);
        fputs("}}}", out);
    }
    fprintf(out, ",\"responses\":{\"200\":{\"description\":\"the answer\",\"content\":{\"%s\":{}",
            content_type(r->path));
    if (strstr(r->path, "completions")) fputs(",\"text/event-stream\":{}", out);
    fputs("}}", out);
    write_error(out, "400", "the request is wrong; the message says what, its value and the limit");
    write_error(out, "401", "a key is needed");
    write_error(out, "403", "not from this host, or not an admin");
    write_error(out, "404", "there is no such model");
    write_error(out, "413", "the body is too large");
    write_error(out, "429", "too many requests; Retry-After says when");
    write_error(out, "500", "the answer failed");
    write_error(out, "503", "the server is stopping, or has no room");
    fputs("}}", out);
}

void serve_openapi(serve_exchange *x) {
    serve_writer w;
    if (!serve_writer_open(x, &w)) return;
    fprintf(w.out,
            "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"Fusebox\",\"version\":\"%s\"},\"security\":[{},{"
            "\"key\":[]}],\"components\":{\"securitySchemes\":{\"key\":{\"type\":\"http\",\"scheme\":"
            "\"bearer\"}},\"schemas\":{\"Error\":{\"type\":\"object\",\"required\":[\"error\"],"
            "\"properties\":{\"error\":{\"type\":\"object\",\"required\":[\"message\",\"type\"],"
            "\"properties\":{\"message\":{\"type\":\"string\"},\"type\":{\"type\":\"string\"},\"param\":{"
            "\"type\":[\"string\",\"null\"]},\"code\":{\"type\":[\"string\",\"null\"]}}}}}}},\"paths\":{",
            fb_version());
    for (const serve_route *r = serve_routes, *before = NULL; r->path; before = r++) {
        bool same = before && strcmp(before->path, r->path) == 0;
        if (before) fputs(same ? "," : "},", w.out);
        if (!same) fprintf(w.out, "\"%s\":{", r->path);
        write_operation(r, w.out);
    }
    fputs("}}}", w.out);
    serve_writer_send(x, &w);
}
