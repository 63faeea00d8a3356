/* A digest of every logit of a model under many options, one line each. Two builds that print the same lines
 * compute the same bits. Usage: digest BACKEND ISA MODEL... ("-" for the default ISA) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fusebox.h"

#define PROMPT 21
#define DECODE 6
#define GREEDY 12

typedef struct digest {
    uint64_t hash;
    bool failed;
} digest;

static void add(digest *d, const void *data, size_t bytes) {
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) d->hash = (d->hash ^ at[i]) * 0x100000001b3ull;
}

static void add_logits(digest *d, fb_session *s) {
    const float *logits;
    int64_t rows, vocab;
    if (fb_session_logits(s, &logits, &rows, &vocab, NULL) != FB_OK)
        d->failed = true;
    else
        add(d, logits, (size_t)(rows * vocab) * sizeof *logits);
}

static void check(digest *d, fb_status status, const fb_error *err) {
    if (status == FB_OK) return;
    d->failed = true;
    add(d, err->message, strlen(err->message)); /* a refusal is an answer, too */
}

static void some_ids(int64_t vocab, int32_t *ids, int count) {
    uint64_t state = 4711;
    for (int i = 0; i < count; i++) {
        state = state * 48271 % 2147483647;
        ids[i] = (int32_t)((int64_t)state % vocab);
    }
}

/* All logits of a prefill, of decode steps, of a fork and of what follows a trim. */
static digest run_logits(const fb_model *model, const fb_session_options *options, int64_t vocab) {
    digest d = {0xcbf29ce484222325ull, false};
    fb_session *s = NULL, *fork = NULL;
    fb_error err;
    int32_t ids[PROMPT + 2 * DECODE];
    some_ids(vocab, ids, PROMPT + 2 * DECODE);
    check(&d, fb_session_create(model, options, &s, &err), &err);
    if (!d.failed) check(&d, fb_session_prefill(s, ids, PROMPT, &err), &err);
    if (!d.failed) add_logits(&d, s);
    if (!d.failed) check(&d, fb_session_fork(s, &fork, &err), &err);
    for (int i = 0; i < DECODE && !d.failed; i++) {
        check(&d, fb_session_decode(s, ids[PROMPT + i], &err), &err);
        add_logits(&d, s);
        check(&d, fb_session_decode(fork, ids[PROMPT + DECODE + i], &err), &err);
        add_logits(&d, fork);
    }
    if (!d.failed) check(&d, fb_session_trim(s, PROMPT + 2, &err), &err);
    if (!d.failed) check(&d, fb_session_prefill(s, ids, 5, &err), &err);
    if (!d.failed) add_logits(&d, s);
    fb_session_free(fork);
    fb_session_free(s);
    return d;
}

static digest run_greedy(const fb_model *model, const fb_session_options *options, int64_t vocab) {
    digest d = {0xcbf29ce484222325ull, false};
    fb_session *s = NULL;
    fb_error err;
    int32_t ids[PROMPT], id = 0;
    some_ids(vocab, ids, PROMPT);
    check(&d, fb_session_create(model, options, &s, &err), &err);
    if (!d.failed) check(&d, fb_session_prefill(s, ids, PROMPT, &err), &err);
    for (int i = 0; i < GREEDY && !d.failed; i++) {
        check(&d, fb_session_best(s, &id, &err), &err);
        add(&d, &id, sizeof id);
        if (!d.failed) check(&d, fb_session_decode(s, id, &err), &err);
    }
    fb_session_free(s);
    return d;
}

static void print(const char *model, const char *backend, const char *isa, const fb_session_options *o,
                  const char *what, digest d) {
    const char *name = strrchr(model, '/');
    printf("%s %s %s %s %s%s%s %s %016llx%s\n", name ? name + 1 : model, backend, isa ? isa : "-",
           fb_dtype_name(o->act), o->fuse, o->exact ? ",exact" : "", o->float_dot ? ",float" : "", what,
           (unsigned long long)d.hash, d.failed ? " refused" : "");
    fflush(stdout);
}

static void digest_options(const fb_model *model, const char *path, int64_t vocab, fb_session_options o) {
    o.all_logits = true;
    print(path, o.backend, o.isa, &o, "logits", run_logits(model, &o, vocab));
    o.all_logits = false;
    print(path, o.backend, o.isa, &o, "last", run_logits(model, &o, vocab));
    o.greedy = true;
    print(path, o.backend, o.isa, &o, "greedy", run_greedy(model, &o, vocab));
    o.greedy = false;
    o.cache = FB_CACHE_SINKS;
    o.capacity = 0;
    o.sinks = 3;
    o.window = 14;
    o.chunk = 5;
    print(path, o.backend, o.isa, &o, "sinks", run_logits(model, &o, vocab));
}

static void digest_model(const fb_model *model, const char *path, const char *backend, const char *isa) {
    fb_model_info info;
    fb_model_get_info(model, &info);
    static const fb_dtype acts[] = {FB_F32, FB_F16, FB_BF16};
    for (int a = 0; a < 3; a++) {
        fb_session_options o;
        fb_session_options_default(&o);
        o.backend = backend;
        o.isa = isa;
        o.threads = strcmp(backend, "cpu") == 0 ? 2 : 0;
        o.act = acts[a];
        o.capacity = info.context < 64 ? info.context : 64;
        o.chunk = 8;
        fb_session_options ring = o;
        ring.capacity = 0;
        static const char *const specs[] = {"none", "all"};
        for (int i = 0; i < 6; i++) {
            o.fuse = specs[i % 2];
            o.exact = i >= 2 && i < 4;
            o.float_dot = i >= 4;
            digest_options(model, path, info.vocab, o);
            if (i >= 2) continue;
            ring.fuse = o.fuse;
            ring.cache = FB_CACHE_WINDOW;
            ring.window = 17;
            print(path, backend, isa, &ring, "window", run_logits(model, &ring, info.vocab));
        }
        o.float_dot = false;
        fb_fuse_info fuse;
        for (int i = 0; fb_model_fuse(model, i, &fuse); i++) {
            if (fuse.why_not) continue;
            o.fuse = fuse.name;
            digest_options(model, path, info.vocab, o);
        }
    }
}

int main(int count, char **arguments) {
    if (count < 4) {
        fprintf(stderr, "usage: digest BACKEND ISA MODEL...\n");
        return 2;
    }
    for (int i = 3; i < count; i++) {
        fb_model *model;
        fb_error err;
        if (fb_model_open(arguments[i], &model, &err) != FB_OK) {
            fprintf(stderr, "digest: %s\n", err.message);
            return 1;
        }
        const char *isa = strcmp(arguments[2], "-") == 0 ? NULL : arguments[2];
        digest_model(model, arguments[i], arguments[1], isa);
        fb_model_free(model);
    }
    return 0;
}
