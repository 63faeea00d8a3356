/* /v1/completions and /v1/chat/completions: from a request to a job, and from a job to its reply. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "serve/completion_json.h"
#include "serve/prompt.h"
#include "serve/record.h"
#include "serve/schema.h"
#include "serve/server.h"

/* Bytes of answers that become one reply with a length. */
#define SMALL_REPLY (48 << 10)

/* ---- from a request to a job --------------------------------------------------------------------- */

static bool no_memory(serve_fault *f) {
    return serve_fault_set(f, 503, NULL, "no_memory", "request: no memory");
}

static void name_job(serve_job *j, bool chat) {
    uint64_t random[2] = {0};
    static atomic_ullong last;
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        random[0] = atomic_fetch_add(&last, 1), random[1] = (uint64_t)j->created;
    snprintf(j->id, sizeof j->id, "%s-%012llx%012llx", chat ? "chatcmpl" : "cmpl",
             (unsigned long long)(random[0] & 0xffffffffffff),
             (unsigned long long)(random[1] & 0xffffffffffff));
}

static bool copy_stops(const serve_params *p, serve_job *j, serve_fault *f) {
    j->stops = calloc((size_t)p->stop_count + 1, sizeof *j->stops);
    for (int32_t i = 0; j->stops && i < p->stop_count; i++) {
        j->stops[i] = strdup(p->stops[i]);
        if (!j->stops[i]) return no_memory(f);
        j->stop_count++;
    }
    return j->stops || no_memory(f);
}

static bool copy_biases(const serve_params *p, serve_job *j, serve_fault *f) {
    for (int64_t i = 0; i < p->bias_count; i++)
        if (p->biases[i].id >= j->engine->vocab)
            return serve_fault_set(f, 400, "logit_bias", "invalid_value", "logit_bias: token %d (0 to %lld)",
                                   p->biases[i].id, (long long)j->engine->vocab - 1);
    if (!p->bias_count) return true;
    j->biases = malloc((size_t)p->bias_count * sizeof *j->biases);
    if (!j->biases) return no_memory(f);
    memcpy(j->biases, p->biases, (size_t)p->bias_count * sizeof *j->biases);
    return true;
}

static void take_sampler(const serve_params *p, serve_job *j) {
    fb_sampler_options *s = &j->sampler;
    fb_sampler_options_default(s);
    s->temperature = (float)p->temperature;
    s->top_p = (float)p->top_p;
    s->min_p = (float)p->min_p;
    s->top_k = p->top_k;
    s->repeat_penalty = (float)p->repeat_penalty;
    s->presence_penalty = (float)p->presence_penalty;
    s->frequency_penalty = (float)p->frequency_penalty;
    s->seed = p->seed;
    s->logit_bias = j->biases;
    s->logit_bias_count = p->bias_count;
}

/* A record has the log-probability of every token. */
static int64_t tops_of(const serve_engine *e, const serve_params *p) {
    return p->logprobs < 0 && e->record ? 0 : p->logprobs;
}

static bool fill_job(serve_job *j, const serve_params *p, serve_fault *f) {
    j->streams = p->stream;
    j->past_end = p->ignore_eos;
    name_job(j, p->messages != NULL);
    if (!copy_stops(p, j, f) || !copy_biases(p, j, f) || !serve_prompt_take(j->engine, p, j, f)) return false;
    take_sampler(p, j);
    /* The default of the API is 16 for a text, and for a chat what fits. */
    j->max_tokens = p->max_tokens >= 0 ? p->max_tokens : p->messages ? 0 : 16;
    if (p->max_tokens == 0) j->max_tokens = -1;
    return !p->json || serve_schema_take(p, j, f);
}

static bool submit(serve_job *j, const serve_params *p, serve_fault *f) {
    fb_request_options o;
    fb_request_options_default(&o);
    o.max_tokens = j->max_tokens;
    o.samples = j->samples;
    o.sampler = &j->sampler;
    o.stops = (const char *const *)j->stops;
    o.stop_count = j->stop_count;
    o.past_end = j->past_end;
    o.wants_logits = j->tops >= 0;
    o.prompt_logits = p->echo && p->logprobs >= 0;
    o.priority = j->priority;
    o.draft = !p->draft || !fb_json_is(p->draft, FB_JSON_BOOL) || fb_json_bool_of(p->draft);
    return serve_engine_submit(j->engine, j, &o, f);
}

/* ---- before the first step ------------------------------------------------------------------------ */

/* A draft is made when the server starts. A request may do without, or name it. */
static bool has_draft(const serve_engine *e, const fb_json *draft, serve_fault *f) {
    const char *name = fb_json_text_of(draft);
    if (!name && !fb_json_bool_of(draft)) return true;
    if (!e->draft)
        return serve_fault_set(f, 400, "draft", "invalid_value",
                               "draft: %.64s (%.64s is served without one: --draft)", name ? name : "true",
                               e->name);
    if (!name || strcmp(name, e->draft_source) == 0) return true;
    return serve_fault_set(f, 400, "draft", "invalid_value", "draft: %.64s (%.64s is served with %.200s)",
                           name, e->name, e->draft_source);
}

static bool take_job(serve_reply_state *r, serve_fault *f) {
    const serve_server *server = r->exchange->user;
    const serve_params *p = &r->params;
    serve_engine *e = serve_find_engine(server, p->model, f);
    if (!e) return false;
    if (atomic_load(&server->draining))
        return serve_fault_set(f, 503, NULL, "stopping", "server: it is stopping");
    if (p->n > e->options.sequences)
        return serve_fault_set(f, 400, "n", "invalid_value", "n: %lld (at most %lld, --sequences)",
                               (long long)p->n, (long long)e->options.sequences);
    if (!has_draft(e, p->draft, f)) return false;
    int32_t prompts = p->messages ? 1 : serve_prompt_count(p, f);
    if (!prompts) return false;
    if (serve_jobs_full(e))
        return serve_fault_set(f, 429, NULL, "busy", "server: too much waits for clients to read it");
    if (e->record && serve_record_full(e->record))
        return serve_fault_set(f, 503, NULL, "busy", "server: the record cannot be written as fast");
    r->job = serve_job_create(e, prompts, (int32_t)p->n, tops_of(e, p));
    r->offsets = calloc((size_t)prompts * (size_t)p->n, sizeof *r->offsets);
    if (!r->job || !r->offsets) return no_memory(f);
    r->job->priority = (int32_t)p->priority;
    r->job->began = r->began;
    return fill_job(r->job, p, f) && submit(r->job, p, f);
}

static bool parse(serve_reply_state *r) {
    serve_exchange *x = r->exchange;
    const serve_server *server = x->user;
    r->parsed =
        serve_params_parse(r->endpoint, x->body, x->body_size, &server->sampling, &r->params, &r->fault);
    serve_body_done(x);
    return r->parsed;
}

/* The client may leave meanwhile: either on_gone cancels the job or this does. */
static void prepare(serve_reply_state *r) {
    if (r->parsed || parse(r)) take_job(r, &r->fault);
    atomic_store(&r->prepared, true);
    if (r->job && atomic_load(&r->gone)) serve_job_cancel(r->job);
}

static void prepare_later(serve_work *work) {
    serve_reply_state *r = (serve_reply_state *)(void *)work;
    prepare(r);
    serve_wake(r->exchange); /* which may free it at once */
}

/* ---- the reply --------------------------------------------------------------------------------- */

/* Any thread. */
static void on_gone(serve_exchange *x) {
    serve_reply_state *r = x->state;
    atomic_store(&r->gone, true);
    if (atomic_load(&r->prepared) && r->job) serve_job_cancel(r->job);
}

static void on_release(serve_exchange *x) {
    serve_reply_state *r = x->state;
    if (!r) return;
    if (r->job) {
        serve_job_leave(r->job);
        serve_job_give(r->job);
    }
    serve_pieces_free(&r->pieces);
    serve_params_free(&r->params);
    free(r->offsets);
    free(r);
}

static bool on_part(serve_exchange *x, FILE *out) {
    if (serve_completion_write(x->state, out)) return true;
    putc('\n', out);
    return false;
}

/* The whole answer: at once if it is small. */
static void on_done(serve_exchange *x) {
    serve_reply_state *r = x->state;
    serve_job *j = r->job;
    serve_writer w;
    if (!serve_job_done(j)) return;
    for (int32_t i = 0; i < j->choice_count; i++) {
        if (j->choices[i].finish != FB_FINISH_FAILED) continue;
        serve_refuse(x, 500, NULL, "failed", "answer %d: %s", i, j->choices[i].message);
        return;
    }
    if (j->unread > SMALL_REPLY) {
        x->more = on_part;
        serve_reply_parts(x);
        return;
    }
    if (!serve_writer_open(x, &w)) return;
    while (serve_completion_write(r, w.out)) continue;
    serve_writer_send(x, &w);
}

static bool on_more(serve_exchange *x, FILE *out) { return serve_completion_stream(x->state, out); }

/* The job runs, or there is a fault. */
static void on_prepared(serve_exchange *x) {
    serve_reply_state *r = x->state;
    if (!atomic_load(&r->prepared)) return;
    if (r->fault.status) {
        serve_refuse_fault(x, &r->fault);
        return;
    }
    serve_job_attend(r->job, x);
    if (r->params.stream) {
        x->more = on_more;
        x->resume = NULL;
        serve_stream(x);
    } else {
        x->resume = on_done;
        on_done(x);
    }
}

static void complete(serve_exchange *x, int endpoint) {
    serve_reply_state *r = calloc(1, sizeof *r);
    if (!r) {
        serve_refuse(x, 503, NULL, "no_memory", "request: no memory");
        return;
    }
    x->state = r;
    x->release = on_release;
    r->exchange = x;
    r->endpoint = endpoint;
    r->began = fb_now();
    if (x->body_size <= SERVE_SMALL_BODY && !parse(r)) {
        serve_refuse_fault(x, &r->fault);
        return;
    }
    x->gone = on_gone;
    x->resume = on_prepared;
    if (!r->parsed || r->params.schema) { /* it may take long */
        r->work.run = prepare_later;
        if (serve_prepare_later(x->user, &r->work, &r->fault)) return;
        atomic_store(&r->prepared, true);
    } else {
        prepare(r);
    }
    on_prepared(x);
}

void serve_completions(serve_exchange *x) { complete(x, SERVE_COMPLETION); }
void serve_chat(serve_exchange *x) { complete(x, SERVE_CHAT); }
