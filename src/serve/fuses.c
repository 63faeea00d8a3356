/* /fuses: what every fuse does to the model that runs, and switches. */
#include <stdlib.h>
#include <string.h>

#include "cli/json_out.h"
#include "serve/server.h"

#define TIMED_STEPS 16

uint32_t serve_fuses_on(serve_engine *e) {
    uint32_t on = 0;
    fb_fuse_state state;
    for (int i = 0; i < SERVE_STEP_FUSES && fb_scheduler_fuse_state(e->scheduler, i, &state); i++)
        if (state.on) on |= (uint32_t)1 << i;
    return on;
}

uint32_t serve_fuses_bounded(serve_engine *e) {
    uint32_t bounded = 0;
    fb_fuse_state state;
    for (int i = 0; i < SERVE_STEP_FUSES && fb_scheduler_fuse_state(e->scheduler, i, &state); i++)
        if (!state.bit) bounded |= (uint32_t)1 << i;
    return bounded;
}

void serve_fuses_list(serve_engine *e, uint32_t on, char *list, size_t size) {
    fb_fuse_state state;
    list[0] = '\0';
    for (int i = 0; i < SERVE_STEP_FUSES && fb_scheduler_fuse_state(e->scheduler, i, &state); i++) {
        if (!(on >> i & 1)) continue;
        size_t used = strlen(list);
        snprintf(list + used, size - used, "%s%s", used ? "," : "", state.name);
    }
    if (!list[0]) snprintf(list, size, "none");
}

/* ---- what there is ----------------------------------------------------------------------------- */

static void write_measured(serve_engine *e, int fuse, cli_json *json) {
    serve_saving saving = serve_steps_saving(&e->steps, fuse);
    if (!saving.with) {
        cli_json_string(json, "measured", NULL);
        return;
    }
    cli_json_open(json, "measured", '{');
    cli_json_real(json, "saves_us", 1e6 * saving.seconds);
    cli_json_int(json, "rows", saving.rows);
    cli_json_int(json, "steps_with", saving.with);
    cli_json_int(json, "steps_without", saving.without);
    cli_json_close(json, '}');
}

/* A fuse of a session that needs only the best token has no place in a scheduler. */
static const char *why_not(const serve_engine *e, const fb_fuse_info *info) {
    if (info->why_not) return info->why_not;
    if (info->greedy) return "only where one answer is written, and only its best token is needed";
    if (!strstr(info->backends, e->backend)) return "not on this backend";
    return NULL;
}

static void write_fuse(serve_engine *e, int index, const fb_fuse_state *state, cli_json *json) {
    fb_fuse_info info;
    if (!fb_model_fuse(e->model, index, &info)) return;
    const char *why = why_not(e, &info);
    cli_json_open(json, NULL, '{');
    cli_json_string(json, "name", info.name);
    cli_json_string(json, "text", info.text);
    cli_json_string(json, "class", state->bit ? "bit" : "tol");
    cli_json_string(json, "bound", state->bit ? NULL : info.bound);
    cli_json_bool(json, "applies", !why);
    cli_json_string(json, "why_not", why);
    cli_json_string(json, "taken_by", state->on ? NULL : info.taken_by);
    cli_json_bool(json, "on", state->on);
    cli_json_bool(json, "next", state->next);
    cli_json_int(json, "calls", state->calls);
    cli_json_int(json, "calls_per_step", state->calls_per_step);
    if (why)
        cli_json_string(json, "predicted_us", NULL);
    else
        cli_json_real(json, "predicted_us", 1e6 * state->saving);
    write_measured(e, index, json);
    cli_json_close(json, '}');
}

static void write_timeline(serve_engine *e, cli_json *json) {
    static const char *const sections[] = {"prologue", "layer", "epilogue"};
    fb_timeline *t = NULL;
    if (fb_scheduler_timeline(e->scheduler, &t, NULL) != FB_OK || !t) {
        cli_json_string(json, "timeline", NULL);
        return;
    }
    cli_json_open(json, "timeline", '{');
    cli_json_int(json, "rows", t->rows);
    cli_json_int(json, "layers", t->layers);
    cli_json_real(json, "us", 1e6 * t->seconds);
    cli_json_open(json, "ops", '[');
    for (int64_t i = 0; i < t->op_count; i++) {
        const fb_timeline_op *op = t->ops[i];
        cli_json_open(json, NULL, '{');
        cli_json_string(json, "section", sections[op->section]);
        cli_json_string(json, "op", op->op);
        cli_json_open(json, "fuses", '[');
        for (int32_t f = 0; f < op->fuse_count; f++) cli_json_string(json, NULL, op->fuses[f]);
        cli_json_close(json, ']');
        cli_json_real(json, "us", 1e6 * op->seconds);
        cli_json_close(json, '}');
    }
    cli_json_close(json, ']');
    cli_json_close(json, '}');
    fb_timeline_free(t);
}

static void write_steps(serve_engine *e, const fb_scheduler_stats *stats, cli_json *json) {
    fb_model_info info;
    fb_model_get_info(e->model, &info);
    cli_json_open(json, "steps", '{');
    cli_json_int(json, "count", stats->steps);
    cli_json_int(json, "rows", stats->last_rows);
    cli_json_real(json, "tokens_per_second", serve_steps_rate(&e->steps));
    cli_json_real(json, "step_us", 1e6 * serve_steps_median(&e->steps, serve_fuses_on(e)));
    cli_json_close(json, '}');
    cli_json_open(json, "per_layer", '{');
    cli_json_real(json, strcmp(e->backend, "cpu") == 0 ? "barriers" : "launches",
                  info.layers ? (double)stats->layer_barriers / (double)info.layers : 0);
    cli_json_close(json, '}');
}

static void reply_fuses(serve_exchange *x, serve_engine *e) {
    serve_writer w;
    fb_scheduler_stats stats;
    fb_fuse_state state;
    char *list = NULL;
    if (!serve_writer_open(x, &w)) return;
    fb_scheduler_get_stats(e->scheduler, &stats);
    fb_scheduler_fuse_text(e->scheduler, &list, NULL);
    cli_json json = {.out = w.out};
    cli_json_open(&json, NULL, '{');
    cli_json_string(&json, "model", e->name);
    cli_json_string(&json, "backend", e->backend);
    cli_json_string(&json, "fuse", list);
    cli_json_bool(&json, "pending", stats.plan_pending);
    cli_json_int(&json, "changes", stats.plan_changes);
    cli_json_open(&json, "fuses", '[');
    for (int i = 0; fb_scheduler_fuse_state(e->scheduler, i, &state); i++) write_fuse(e, i, &state, &json);
    cli_json_close(&json, ']');
    write_steps(e, &stats, &json);
    write_timeline(e, &json);
    cli_json_int(&json, "running", stats.running);
    cli_json_int(&json, "waiting", stats.waiting);
    cli_json_int(&json, "blocks", stats.blocks);
    cli_json_int(&json, "blocks_free", stats.blocks_free);
    cli_json_close(&json, '}');
    fb_free(list);
    serve_writer_send(x, &w);
}

void serve_fuses(serve_exchange *x) {
    serve_engine *e = serve_query_engine(x);
    if (!e) return;
    const char *timeline = serve_query(x, "timeline");
    if (timeline && strcmp(timeline, "1") == 0) fb_scheduler_profile(e->scheduler, TIMED_STEPS, NULL);
    reply_fuses(x, e);
}

/* ---- switching --------------------------------------------------------------------------------- */

static int find_fuse(serve_engine *e, const char *name) {
    fb_fuse_state state;
    for (int i = 0; i < SERVE_STEP_FUSES && fb_scheduler_fuse_state(e->scheduler, i, &state); i++)
        if (strcmp(state.name, name) == 0) return i;
    return -1;
}

/* What was asked for: a list, or the running one with some fuses switched. `fuse`: the only one that is
 * switched, or -1. */
static bool take_list(serve_engine *e, const fb_json *body, char *list, size_t size, int *fuse, bool *on,
                      serve_fault *f) {
    const fb_json *text = fb_json_member(body, "fuse"), *switches = fb_json_member(body, "switch");
    uint32_t wanted = e->wanted;
    *fuse = -1;
    for (const fb_json *v = fb_json_first(body); v; v = fb_json_next(v))
        if (strcmp(fb_json_key(v), "fuse") != 0 && strcmp(fb_json_key(v), "switch") != 0 &&
            strcmp(fb_json_key(v), "model") != 0)
            return serve_fault_set(f, 400, fb_json_key(v), "unknown_parameter", "%.64s: unknown parameter",
                                   fb_json_key(v));
    if (fb_json_is(text, FB_JSON_STRING) && !switches) {
        if (snprintf(list, size, "%s", fb_json_text_of(text)) < (int)size &&
            strlen(list) == fb_json_size(text))
            return true;
        return serve_fault_set(f, 400, "fuse", "invalid_value", "fuse: %zu bytes (at most %zu, and no NUL)",
                               fb_json_size(text), size - 1);
    }
    if (!fb_json_is(switches, FB_JSON_OBJECT) || text || !fb_json_size(switches))
        return serve_fault_set(f, 400, "switch", "invalid_value",
                               "body: neither \"fuse\", a list, nor \"switch\", an object of fuses");
    for (const fb_json *v = fb_json_first(switches); v; v = fb_json_next(v)) {
        int index = find_fuse(e, fb_json_key(v));
        if (index < 0 || !fb_json_is(v, FB_JSON_BOOL))
            return serve_fault_set(f, 400, "switch", "invalid_value", "switch: %.64s: %s", fb_json_key(v),
                                   index < 0 ? "no such fuse" : "not true or false");
        uint32_t bit = (uint32_t)1 << index;
        wanted = fb_json_bool_of(v) ? wanted | bit : wanted & ~bit;
        if (fb_json_size(switches) == 1) *fuse = index;
        *on = fb_json_bool_of(v);
    }
    serve_fuses_list(e, wanted, list, size);
    return true;
}

static bool switch_fuses(serve_engine *e, const fb_json *body, serve_fault *f) {
    char list[1024];
    fb_error err;
    int fuse;
    bool on;
    pthread_mutex_lock(&e->switching);
    uint32_t before = serve_fuses_on(e), after = 0;
    bool good = take_list(e, body, list, sizeof list, &fuse, &on, f);
    if (good && fb_scheduler_fuse(e->scheduler, list, &err) != FB_OK)
        good = serve_fault_set(f, 400, "fuse", "invalid_value", "%s", err.message);
    if (good) {
        fb_fuse_state state;
        for (int i = 0; i < SERVE_STEP_FUSES && fb_scheduler_fuse_state(e->scheduler, i, &state); i++)
            if (state.next) after |= (uint32_t)1 << i;
        if (fuse >= 0)
            e->wanted = on ? e->wanted | (uint32_t)1 << fuse : e->wanted & ~((uint32_t)1 << fuse);
        else
            e->wanted = after;
        if (fuse >= 0 && before != after)
            serve_steps_switched(&e->steps, fuse, on ? after : before, on ? before : after);
        serve_engine_wake(e); /* a plan takes over in a step */
    }
    pthread_mutex_unlock(&e->switching);
    return good;
}

void serve_fuses_switch(serve_exchange *x) {
    serve_server *server = x->user;
    serve_fault fault = {0};
    fb_json *body = NULL;
    serve_engine *e = NULL;
    if (!x->admin) {
        serve_refuse(
            x, 403, NULL, "not_admin",
            "fuses: only with a key of --admin-key; from this machine also without, if --host, keys and "
            "--allow- let nobody else in");
        return;
    }
    if (serve_body_parse(x->body, x->body_size, &body, &fault)) {
        const fb_json *model = fb_json_member(body, "model");
        const char *name = model && !fb_json_text_of(model) ? "" : fb_json_text_of(model);
        e = serve_find_engine(server, name, &fault);
        if (e && !switch_fuses(e, body, &fault)) e = NULL;
    }
    fb_json_free(body);
    if (e)
        reply_fuses(x, e);
    else
        serve_refuse_fault(x, &fault);
}
