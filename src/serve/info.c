/* What the server says about itself: models, properties, health, metrics. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/json_out.h"
#include "serve/prompt.h"
#include "serve/server.h"

static void write_model(const serve_server *server, const serve_engine *e, cli_json *json) {
    cli_json_open(json, NULL, '{');
    cli_json_string(json, "id", e->name);
    cli_json_string(json, "object", "model");
    cli_json_int(json, "created", server->started);
    cli_json_string(json, "owned_by", "fusebox");
    cli_json_int(json, "max_model_len", e->capacity);
    cli_json_close(json, '}');
}

void serve_one_model(serve_exchange *x) {
    serve_server *server = x->user;
    serve_writer w;
    serve_fault fault = {0};
    const serve_engine *e = serve_find_engine(server, x->rest, &fault);
    if (!e) {
        serve_refuse_fault(x, &fault);
        return;
    }
    if (!serve_writer_open(x, &w)) return;
    cli_json json = {.out = w.out};
    write_model(server, e, &json);
    serve_writer_send(x, &w);
}

void serve_models(serve_exchange *x) {
    serve_server *server = x->user;
    serve_writer w;
    if (!serve_writer_open(x, &w)) return;
    cli_json json = {.out = w.out};
    cli_json_open(&json, NULL, '{');
    cli_json_string(&json, "object", "list");
    cli_json_open(&json, "data", '[');
    for (int i = 0; i < server->count; i++) write_model(server, server->engines[i], &json);
    cli_json_close(&json, ']');
    cli_json_close(&json, '}');
    serve_writer_send(x, &w);
}

void serve_health(serve_exchange *x) {
    static const char good[] = "{\"status\":\"ok\"}", stopping[] = "{\"status\":\"stopping\"}";
    const serve_server *server = x->user;
    if (atomic_load(&server->draining))
        serve_reply(x, 503, "application/json", stopping, sizeof stopping - 1);
    else
        serve_reply(x, 200, "application/json", good, sizeof good - 1);
}

void serve_metrics_text(serve_exchange *x) {
    serve_server *server = x->user;
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    if (out) {
        serve_metrics_write(server->engines, server->count, serve_http_connections(server->http),
                            serve_http_bodies(server->http), out);
        fclose(out);
    }
    if (text)
        serve_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", text, bytes);
    else
        serve_refuse(x, 503, NULL, "no_memory", "metrics: no memory");
    free(text);
}

static void write_props(const serve_engine *e, bool admin, cli_json *json) {
    fb_model_info info;
    fb_scheduler_stats stats;
    fb_model_get_info(e->model, &info);
    fb_scheduler_get_stats(e->scheduler, &stats);
    cli_json_string(json, "model", e->name);
    cli_json_bool(json, "chat", e->chat);
    cli_json_string(json, "chat_template", e->chat ? "model" : "default");
    cli_json_string(json, "chat_template_source",
                    e->chat ? fb_model_chat_source(e->model, 0) : serve_default_template);
    cli_json_int(json, "context", e->capacity);
    cli_json_int(json, "vocab", e->vocab);
    cli_json_string(json, "architecture", info.architecture);
    cli_json_int(json, "parameters", info.parameters);
    cli_json_string(json, "backend", e->backend);
    cli_json_string(json, "isa", e->isa);
    cli_json_int(json, "threads", e->threads);
    cli_json_string(json, "act", fb_dtype_name(e->session.act));
    cli_json_string(json, "kv", e->session.kv);
    cli_json_bool(json, "exact", e->session.exact);
    cli_json_string(json, "draft", e->draft_source);
    if (e->draft_tokens)
        cli_json_int(json, "draft_tokens", e->draft_tokens);
    else
        cli_json_string(json, "draft_tokens", NULL);
    cli_json_int(json, "sequences", e->options.sequences);
    cli_json_int(json, "cache_tokens", stats.blocks * stats.block_tokens);
    cli_json_int(json, "cache_bytes", stats.blocks * stats.block_bytes);
    cli_json_string(json, "fingerprint", e->fingerprint);
    cli_json_string(json, "version", fb_version());
    cli_json_string(json, "commit", fb_commit());
    cli_json_bool(json, "admin", admin);
}

void serve_props(serve_exchange *x) {
    serve_writer w;
    serve_engine *e = serve_query_engine(x);
    if (!e || !serve_writer_open(x, &w)) return;
    cli_json json = {.out = w.out};
    cli_json_open(&json, NULL, '{');
    write_props(e, x->admin, &json);
    cli_json_close(&json, '}');
    serve_writer_send(x, &w);
}
