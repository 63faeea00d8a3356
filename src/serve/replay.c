#include "serve/replay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "file/json.h"
#include "serve/engine.h"
#include "serve/record.h"
#include "serve/schema.h"

#define MAX_LINE ((size_t)1 << 30)

typedef struct replay {
    const serve_replay_options *options;
    serve_replay_report *report;
    const char *file;
    int64_t line;
    serve_engine *engine; /* of the last "serves" line whose model an answer needed; NULL: none */
    fb_json *served;      /* that line */
    char fuse[1024];      /* of the engine */
    int64_t samples;      /* that it can compute at the same time */
} replay;

static fb_status fail(const replay *r, fb_error *err, fb_status status, const char *what) {
    err->status = status;
    snprintf(err->message, sizeof err->message, "%.200s: line %lld: %.250s", r->file, (long long)r->line,
             what);
    return status;
}

static const char *text_of(const fb_json *object, const char *key) {
    return fb_json_text_of(fb_json_member(object, key));
}

/* ---- the model --------------------------------------------------------------------------------- */

static void close_engine(replay *r) {
    if (r->engine) serve_engine_close(r->engine);
    free(r->engine);
    r->engine = NULL;
}

static fb_status set_session(const replay *r, const char *fuse, fb_session_options *o, fb_error *err) {
    const fb_json *s = r->served;
    const char *act = text_of(s, "act"), *backend = text_of(s, "backend");
    fb_session_options_default(o);
    if (!act || fb_dtype_parse(act, &o->act, NULL) != FB_OK || !backend)
        return fail(r, err, FB_ERROR_FILE, "no model that is served");
    o->threads = r->options->threads;
    o->kv = text_of(s, "kv");
    o->exact = fb_json_bool_of(fb_json_member(s, "exact"));
    o->float_dot = fb_json_bool_of(fb_json_member(s, "float_dot"));
    o->any_order = fb_json_bool_of(fb_json_member(s, "any_order"));
    o->capacity = fb_json_int_of(fb_json_member(s, "capacity"));
    o->fuse = fuse;
    o->backend = r->options->backend ? r->options->backend : backend;
    if (strcmp(o->backend, "cpu") == 0) o->isa = text_of(s, "isa");
    return FB_OK;
}

/* The engine of the served model with these fuses; without a thread. */
static fb_status take_engine(replay *r, const char *fuse, int64_t samples, fb_error *err) {
    if (r->engine && strcmp(r->fuse, fuse) == 0 && samples <= r->samples) return FB_OK;
    const char *path = r->options->model ? r->options->model : text_of(r->served, "path");
    close_engine(r);
    if (!path) return fail(r, err, FB_ERROR_FILE, "an answer before any model");
    snprintf(r->fuse, sizeof r->fuse, "%s", fuse);
    serve_engine *e = r->engine = calloc(1, sizeof *e);
    if (!e) return fail(r, err, FB_ERROR_MEMORY, "no memory");
    fb_status status = set_session(r, r->fuse, &e->session, err);
    if (status == FB_OK) status = fb_model_open(path, &e->model, err);
    fb_scheduler_options_default(&e->options);
    e->options.sequences = r->samples = samples > 64 ? samples : 64;
    if (samples > 128) e->options.rows = samples;
    e->max_jobs = 1 << 20;
    if (status == FB_OK) status = serve_engine_open(e, err);
    if (status != FB_OK) return status;
    return FB_OK;
}

static void compare_fingerprints(replay *r, const fb_json *line) {
    const char *theirs = text_of(line, "fingerprint"), *dash = theirs ? strchr(theirs, '-') : NULL;
    const char *served = text_of(r->served, "fingerprint");
    /* With other fuses that change bits, the server did not probe. */
    if (r->report->note[0] || dash || !served || strcmp(served, r->engine->fingerprint) == 0) return;
    snprintf(r->report->note, sizeof r->report->note,
             "the fingerprint is %s here and %.32s in the record: another model, processor or build (commit "
             "%.16s there, %.16s here)",
             r->engine->fingerprint, served,
             text_of(r->served, "commit") ? text_of(r->served, "commit") : "?", fb_commit());
}

/* ---- one request ------------------------------------------------------------------------------- */

static fb_status set_sampler(const replay *r, const fb_json *line, serve_job *j, fb_error *err) {
    const fb_json *s = fb_json_member(line, "sampler"), *bias = fb_json_member(s, "logit_bias");
    const char *seed = text_of(s, "seed");
    fb_sampler_options *o = &j->sampler;
    if (!seed) return fail(r, err, FB_ERROR_FILE, "no seed");
    fb_sampler_options_default(o);
    o->temperature = (float)fb_json_real_of(fb_json_member(s, "temperature"));
    o->top_p = (float)fb_json_real_of(fb_json_member(s, "top_p"));
    o->min_p = (float)fb_json_real_of(fb_json_member(s, "min_p"));
    o->top_k = fb_json_int_of(fb_json_member(s, "top_k"));
    o->repeat_penalty = (float)fb_json_real_of(fb_json_member(s, "repeat_penalty"));
    o->presence_penalty = (float)fb_json_real_of(fb_json_member(s, "presence_penalty"));
    o->frequency_penalty = (float)fb_json_real_of(fb_json_member(s, "frequency_penalty"));
    o->seed = strtoull(seed, NULL, 10);
    j->biases = calloc(fb_json_size(bias) / 2 + 1, sizeof *j->biases);
    if (!j->biases) return fail(r, err, FB_ERROR_MEMORY, "no memory");
    for (const fb_json *v = fb_json_first(bias); v && fb_json_next(v); v = fb_json_next(fb_json_next(v)))
        j->biases[o->logit_bias_count++] =
            (fb_logit_bias){(int32_t)fb_json_int_of(v), (float)fb_json_real_of(fb_json_next(v))};
    o->logit_bias = j->biases;
    return FB_OK;
}

static fb_status set_stops(const replay *r, const fb_json *line, serve_job *j, fb_error *err) {
    const fb_json *stops = fb_json_member(line, "stop");
    j->stops = calloc(fb_json_size(stops) + 1, sizeof *j->stops);
    for (const fb_json *v = fb_json_first(stops); j->stops && v; v = fb_json_next(v)) {
        j->stops[j->stop_count] = fb_json_text_of(v) ? strdup(fb_json_text_of(v)) : NULL;
        if (!j->stops[j->stop_count++]) return fail(r, err, FB_ERROR_FILE, "a stop that is no text");
    }
    return j->stops ? FB_OK : fail(r, err, FB_ERROR_MEMORY, "no memory");
}

static fb_status set_prompts(const replay *r, const fb_json *prompts, serve_job *j, fb_error *err) {
    const fb_json *prompt = fb_json_first(prompts);
    for (int32_t i = 0; i < j->part_count; i++, prompt = fb_json_next(prompt)) {
        serve_part *part = &j->parts[i];
        part->prompt = malloc(fb_json_size(prompt) * sizeof *part->prompt + 1);
        if (!part->prompt) return fail(r, err, FB_ERROR_MEMORY, "no memory");
        for (const fb_json *v = fb_json_first(prompt); v; v = fb_json_next(v))
            part->prompt[part->prompt_count++] = (int32_t)fb_json_int_of(v);
    }
    return FB_OK;
}

/* What an answer was, and what it is now. */
static void compare(replay *r, const serve_job *j, int32_t choice, const fb_json *answer, const char *id) {
    const fb_json *token = fb_json_first(fb_json_member(answer, "tokens"));
    const fb_json *score = fb_json_first(fb_json_member(answer, "logprobs"));
    const fb_json *text = fb_json_first(fb_json_member(answer, "text"));
    const char *finish = text_of(answer, "finish");
    bool whole = finish && strcmp(finish, "cancelled") != 0 && strcmp(finish, "failed") != 0;
    int64_t at = 0;
    const char *what = NULL;
    const serve_pieces *all = &j->choices[choice].pieces;
    for (int64_t i = 0; !what && i < all->count; i++) {
        const serve_piece *p = &all->pieces[i];
        if (!whole && !token) continue;
        if (p->token >= 0) {
            double logprob = all->scores[i * (1 + j->tops)].logprob;
            if (!fb_json_is(token, FB_JSON_INT) || fb_json_int_of(token) != p->token)
                what = "another token";
            else if (fb_json_real_of(score) != logprob)
                what = "another log-probability";
            token = fb_json_next(token);
            score = fb_json_next(score);
            at++;
        }
        if (!what && p->text_bytes) {
            if (fb_json_size(text) != p->text_bytes ||
                memcmp(fb_json_text_of(text), all->text + p->text_at, p->text_bytes) != 0)
                what = "another text";
            text = fb_json_next(text);
        }
    }
    if (!what && token) what = "the answer ends earlier";
    if (!what && whole && text) what = "the text ends earlier";
    if (!what && whole && strcmp(finish, serve_finish_name(j->choices[choice].finish)) != 0)
        what = "another end";
    r->report->answers++;
    r->report->tokens += at;
    r->report->cut += !whole;
    if (!what) return;
    if (!r->report->differ++)
        snprintf(r->report->first, sizeof r->report->first, "%.48s, answer %d, token %lld: %s", id ? id : "?",
                 choice, (long long)at, what);
}

static fb_status run_job(replay *r, serve_job *j, const fb_json *line, fb_error *err) {
    serve_fault fault = {0};
    fb_request_options o;
    fb_request_options_default(&o);
    o.max_tokens = fb_json_int_of(fb_json_member(line, "max_tokens"));
    o.samples = j->samples;
    o.sampler = &j->sampler;
    o.stops = (const char *const *)j->stops;
    o.stop_count = j->stop_count;
    o.past_end = fb_json_bool_of(fb_json_member(line, "ignore_eos"));
    o.wants_logits = 1;
    if (!serve_engine_submit(r->engine, j, &o, &fault)) return fail(r, err, FB_ERROR_FILE, fault.message);
    fb_status status = FB_OK;
    for (bool busy = true; status == FB_OK && busy;)
        status = fb_scheduler_step(r->engine->scheduler, &busy, err);
    return status;
}

static fb_status replay_request(replay *r, const fb_json *line, fb_error *err) {
    const fb_json *prompts = fb_json_member(line, "prompts"), *answers = fb_json_member(line, "answers");
    const char *fuse = text_of(line, "fuse"), *schema = text_of(line, "schema");
    int64_t n = fb_json_int_of(fb_json_member(line, "n")), count = (int64_t)fb_json_size(prompts);
    if (!r->served || !fuse || n < 1 || n > 1024 || count < 1 || count > 4096 ||
        (int64_t)fb_json_size(answers) != n * count)
        return fail(r, err, FB_ERROR_FILE, "neither a model nor an answer of one");
    FB_TRY(take_engine(r, fuse, n, err));
    compare_fingerprints(r, line);
    serve_job *j = serve_job_create(r->engine, (int32_t)count, (int32_t)n, 0);
    if (!j) return fail(r, err, FB_ERROR_MEMORY, "no memory");
    fb_status status = set_sampler(r, line, j, err);
    if (status == FB_OK) status = set_stops(r, line, j, err);
    if (status == FB_OK) status = set_prompts(r, prompts, j, err);
    serve_fault fault = {0};
    if (status == FB_OK && schema && !serve_schema_compile(schema, j, &fault))
        status = fail(r, err, FB_ERROR_FILE, fault.message);
    if (status == FB_OK) status = run_job(r, j, line, err);
    const fb_json *answer = fb_json_first(answers);
    for (int32_t i = 0; status == FB_OK && i < j->choice_count; i++, answer = fb_json_next(answer))
        compare(r, j, i, answer, text_of(line, "id"));
    serve_job_give(j);
    r->report->requests++;
    return status;
}

/* ---- the file ---------------------------------------------------------------------------------- */

static fb_status replay_line(replay *r, const char *text, size_t size, fb_error *err) {
    fb_json *line;
    fb_status status = fb_json_parse(r->file, text, size, MAX_LINE, &line, err);
    if (status != FB_OK) return fail(r, err, FB_ERROR_FILE, "cut short, or not a record");
    if (text_of(line, "serves")) {
        close_engine(r);
        fb_json_free(r->served);
        r->served = line;
        return FB_OK;
    }
    status = replay_request(r, line, err);
    fb_json_free(line);
    return status;
}

fb_status serve_replay(const serve_replay_options *options, serve_replay_report *report, fb_error *err) {
    replay r = {.options = options, .report = report, .file = options->record};
    char *text = NULL;
    size_t room = 0;
    *report = (serve_replay_report){0};
    FILE *file = fopen(options->record, "re");
    if (!file) {
        err->status = FB_ERROR_FILE;
        snprintf(err->message, sizeof err->message, "%.256s: %s", options->record, strerror(errno));
        return err->status;
    }
    fb_status status = FB_OK;
    for (ssize_t size; status == FB_OK && (size = getline(&text, &room, file)) > 0;) {
        r.line++;
        status = replay_line(&r, text, (size_t)size, err);
    }
    if (status == FB_OK && ferror(file)) status = fail(&r, err, FB_ERROR_FILE, "cannot be read");
    fclose(file);
    free(text);
    close_engine(&r);
    fb_json_free(r.served);
    return status;
}
