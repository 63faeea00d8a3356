#include "serve/record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/json_out.h"
#include "serve/engine.h"

/* Bytes of jobs that wait to be written. */
#define MOST_WAITING (64 << 20)

/* A job that waits. Its engine may be gone when it is written. */
typedef struct entry {
    serve_job *job;
    char *model;
    char fuses[1024], fingerprint[SERVE_FINGERPRINT_BYTES];
    int64_t bytes;
    struct entry *next;
} entry;

struct serve_record {
    FILE *file;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* Guarded by the lock: */
    entry *first, **last;
    int64_t waiting; /* bytes */
    bool failed, stop;
};

static void *run(void *arg);

static fb_status fail(const char *path, fb_status status, const char *why, fb_error *err) {
    err->status = status;
    snprintf(err->message, sizeof err->message, "%.256s: %s", path, why);
    return status;
}

fb_status serve_record_open(const char *path, serve_record **out, fb_error *err) {
    *out = NULL;
    serve_record *r = calloc(1, sizeof *r);
    if (!r) return fail(path, FB_ERROR_MEMORY, "no memory", err);
    r->file = fopen(path, "ae");
    r->last = &r->first;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->wake, NULL);
    if (!r->file)
        fail(path, FB_ERROR_FILE, strerror(errno), err);
    else if (pthread_create(&r->thread, NULL, run, r) == 0)
        *out = r;
    else
        fail(path, FB_ERROR_SYSTEM, "no thread", err);
    if (*out) return FB_OK;
    if (r->file) fclose(r->file);
    free(r);
    return err->status;
}

bool serve_record_close(serve_record *r) {
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    bool good = fclose(r->file) == 0 && !r->failed;
    pthread_cond_destroy(&r->wake);
    pthread_mutex_destroy(&r->lock);
    free(r);
    return good;
}

static void lose(serve_record *r) {
    pthread_mutex_lock(&r->lock);
    r->failed = true;
    pthread_mutex_unlock(&r->lock);
}

/* A line is written as a whole, so that a record that is cut short has whole lines before the cut. */
static void end_line(serve_record *r) {
    putc('\n', r->file);
    if (fflush(r->file) != 0 || ferror(r->file)) lose(r);
}

/* Before the first answer, so that nobody else writes. */
void serve_record_engine(serve_record *r, serve_engine *e) {
    cli_json json = {.out = r->file};
    const fb_session_options *o = &e->session;
    cli_json_open(&json, NULL, '{');
    cli_json_string(&json, "serves", e->name);
    cli_json_string(&json, "path", e->path);
    cli_json_string(&json, "fingerprint", e->fingerprint);
    cli_json_string(&json, "commit", fb_commit());
    cli_json_string(&json, "backend", e->backend);
    cli_json_string(&json, "isa", e->isa);
    cli_json_string(&json, "act", fb_dtype_name(o->act));
    cli_json_string(&json, "kv", o->kv);
    cli_json_string(&json, "fuse", o->fuse);
    cli_json_bool(&json, "exact", o->exact);
    cli_json_bool(&json, "float_dot", o->float_dot);
    cli_json_bool(&json, "any_order", o->any_order != 0);
    cli_json_int(&json, "capacity", e->capacity);
    cli_json_close(&json, '}');
    end_line(r);
}

static void write_sampler(cli_json *json, const serve_job *j) {
    const fb_sampler_options *s = &j->sampler;
    cli_json_open(json, "sampler", '{');
    cli_json_double(json, "temperature", (double)s->temperature);
    cli_json_double(json, "top_p", (double)s->top_p);
    cli_json_double(json, "min_p", (double)s->min_p);
    cli_json_int(json, "top_k", s->top_k);
    cli_json_double(json, "repeat_penalty", (double)s->repeat_penalty);
    cli_json_double(json, "presence_penalty", (double)s->presence_penalty);
    cli_json_double(json, "frequency_penalty", (double)s->frequency_penalty);
    /* As a text: readers of JSON keep no more than 53 bits of a number. */
    char seed[24];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)s->seed);
    cli_json_string(json, "seed", seed);
    cli_json_open(json, "logit_bias", '[');
    for (int64_t i = 0; i < s->logit_bias_count; i++) {
        cli_json_int(json, NULL, s->logit_bias[i].id);
        cli_json_double(json, NULL, (double)s->logit_bias[i].bias);
    }
    cli_json_close(json, ']');
    cli_json_close(json, '}');
}

const char *serve_finish_name(fb_finish finish) {
    static const char *const names[] = {"none", "end", "stop", "length", "cancelled", "failed"};
    return (unsigned)finish < sizeof names / sizeof *names ? names[finish] : "failed";
}

static void write_answer(cli_json *json, const serve_job *j, int32_t index) {
    const serve_pieces *p = &j->choices[index].trail;
    cli_json_open(json, NULL, '{');
    cli_json_string(json, "finish", serve_finish_name(j->choices[index].finish));
    cli_json_open(json, "tokens", '[');
    for (int64_t i = 0; i < p->count; i++)
        if (p->pieces[i].token >= 0) cli_json_int(json, NULL, p->pieces[i].token);
    cli_json_close(json, ']');
    cli_json_open(json, "logprobs", '[');
    for (int64_t i = 0; i < p->count; i++)
        if (p->pieces[i].token >= 0) cli_json_double(json, NULL, p->scores[i].logprob);
    cli_json_close(json, ']');
    cli_json_open(json, "text", '[');
    for (int64_t i = 0; i < p->count; i++)
        if (p->pieces[i].text_bytes)
            cli_json_bytes(json, NULL, p->text + p->pieces[i].text_at, p->pieces[i].text_bytes);
    cli_json_close(json, ']');
    cli_json_close(json, '}');
}

static void write_entry(serve_record *r, const entry *e) {
    const serve_job *j = e->job;
    cli_json json = {.out = r->file};
    cli_json_open(&json, NULL, '{');
    cli_json_string(&json, "id", j->id);
    cli_json_int(&json, "created", j->created);
    cli_json_string(&json, "model", e->model);
    cli_json_string(&json, "fingerprint", e->fingerprint);
    cli_json_string(&json, "fuse", e->fuses);
    cli_json_int(&json, "n", j->samples);
    cli_json_int(&json, "max_tokens", j->max_tokens);
    cli_json_bool(&json, "ignore_eos", j->past_end);
    write_sampler(&json, j);
    cli_json_open(&json, "stop", '[');
    for (int32_t i = 0; i < j->stop_count; i++) cli_json_string(&json, NULL, j->stops[i]);
    cli_json_close(&json, ']');
    cli_json_string(&json, "schema", j->schema);
    cli_json_open(&json, "prompts", '[');
    for (int32_t p = 0; p < j->part_count; p++) {
        cli_json_open(&json, NULL, '[');
        for (int64_t i = 0; i < j->parts[p].prompt_count; i++)
            cli_json_int(&json, NULL, j->parts[p].prompt[i]);
        cli_json_close(&json, ']');
    }
    cli_json_close(&json, ']');
    cli_json_open(&json, "answers", '[');
    for (int32_t i = 0; i < j->choice_count; i++) write_answer(&json, j, i);
    cli_json_close(&json, ']');
    cli_json_close(&json, '}');
    end_line(r);
}

/* ---- what waits -------------------------------------------------------------------------------- */

static void free_entry(entry *e) {
    if (!e) return;
    serve_job_give(e->job);
    free(e->model);
    free(e);
}

/* The first one, which is still counted; NULL: that was all. */
static entry *take(serve_record *r) {
    pthread_mutex_lock(&r->lock);
    while (!r->first && !r->stop) pthread_cond_wait(&r->wake, &r->lock);
    entry *e = r->first;
    if (e) r->first = e->next;
    if (!r->first) r->last = &r->first;
    pthread_mutex_unlock(&r->lock);
    return e;
}

static void *run(void *arg) {
    serve_record *r = arg;
    for (entry *e; (e = take(r));) {
        write_entry(r, e);
        pthread_mutex_lock(&r->lock);
        r->waiting -= e->bytes;
        pthread_mutex_unlock(&r->lock);
        free_entry(e);
    }
    return NULL;
}

static int64_t bytes_of(const serve_job *j) {
    int64_t bytes = (int64_t)sizeof(entry) + (int64_t)sizeof *j;
    for (int32_t i = 0; i < j->part_count; i++) bytes += j->parts[i].prompt_count * (int64_t)sizeof(int32_t);
    for (int32_t i = 0; i < j->choice_count; i++) {
        const serve_pieces *p = &j->choices[i].trail;
        bytes += (int64_t)(sizeof j->choices[i] + p->text_room) +
                 p->room * (int64_t)(sizeof *p->pieces + sizeof *p->scores);
    }
    return bytes;
}

void serve_record_write(serve_record *r, serve_job *j) {
    entry *e = calloc(1, sizeof *e);
    if (e) e->model = strdup(j->engine->name);
    if (!e || !e->model) {
        free(e);
        lose(r);
        return;
    }
    serve_job_share(j);
    e->job = j;
    serve_engine_fingerprint(j->engine, j->plan, e->fingerprint);
    serve_fuses_list(j->engine, j->plan, e->fuses, sizeof e->fuses);
    e->bytes = bytes_of(j);
    pthread_mutex_lock(&r->lock);
    *r->last = e;
    r->last = &e->next;
    r->waiting += e->bytes;
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->lock);
}

bool serve_record_full(serve_record *r) {
    pthread_mutex_lock(&r->lock);
    bool full = r->waiting > MOST_WAITING;
    pthread_mutex_unlock(&r->lock);
    return full;
}
