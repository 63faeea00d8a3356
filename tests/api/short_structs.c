/* A program that was compiled with older and shorter structs than the library has, and once with a longer one
 * than it knows. It includes no header: what it declares is what an older header would have said. Fields keep
 * their places for good, so this file never changes.
 *
 *     short_structs MODEL */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct fb_model fb_model;
typedef struct fb_session fb_session;
typedef struct fb_sampler fb_sampler;

typedef struct fb_error {
    int status;
    char message[512];
} fb_error;

typedef struct fb_session_options {
    size_t size;
    int32_t threads;
    int act;
    const char *kv;
} fb_session_options;

typedef struct fb_sampler_options {
    size_t size;
    float temperature;
    float top_p;
} fb_sampler_options;

typedef struct fb_model_info {
    size_t size;
    const char *architecture;
    bool has_tokenizer;
    int64_t layers;
} fb_model_info;

typedef struct fb_perplexity_options {
    size_t size;
    int32_t threads;
    int act;
} fb_perplexity_options;

const char *fb_version(void);
int32_t fb_version_number(void);
int fb_model_open(const char *path, fb_model **out, fb_error *err);
void fb_model_free(fb_model *model);
void fb_model_fill_info(const fb_model *model, fb_model_info *info);
void fb_session_options_init(fb_session_options *options, size_t size);
int fb_session_create(const fb_model *model, const fb_session_options *options, fb_session **out,
                      fb_error *err);
int fb_session_prefill(fb_session *session, const int32_t *ids, int64_t count, fb_error *err);
int32_t fb_session_threads(const fb_session *session);
void fb_session_free(fb_session *session);
void fb_sampler_options_init(fb_sampler_options *options, size_t size);
int fb_sampler_create(const fb_sampler_options *options, int64_t vocab, fb_sampler **out, fb_error *err);
void fb_sampler_free(fb_sampler *sampler);
void fb_perplexity_options_init(fb_perplexity_options *options, size_t size);
int fb_perplexity_run(const fb_model *model, const fb_perplexity_options *options, const int32_t *ids,
                      int64_t count, void **report, fb_error *err);
void fb_perplexity_free(void *report);

static int failures;

static void need(bool ok, const char *what, const fb_error *err) {
    if (ok) return;
    printf("failed: %s%s%s\n", what, err ? ": " : "", err ? err->message : "");
    failures++;
}

/* What lies behind a short struct: the caller's own memory. */
#define GUARD 0x5a
typedef struct guarded_options {
    fb_session_options options;
    unsigned char guard[512];
} guarded_options;
typedef struct guarded_info {
    fb_model_info info;
    unsigned char guard[512];
} guarded_info;

static bool intact(const unsigned char *guard, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (guard[i] != GUARD) return false;
    return true;
}

static void info_is_short(const fb_model *model) {
    guarded_info g;
    memset(&g, GUARD, sizeof g);
    g.info.size = sizeof g.info;
    fb_model_fill_info(model, &g.info);
    need(g.info.layers == 8 && g.info.has_tokenizer, "model info", NULL);
    need(strcmp(g.info.architecture, "gpt_neox") == 0, "architecture", NULL);
    need(intact(g.guard, sizeof g.guard), "memory behind a short model info", NULL);
}

static void session_is_short(const fb_model *model) {
    const int32_t ids[] = {1, 2, 3, 4};
    guarded_options g;
    fb_session *session = NULL;
    fb_error err = {0};
    memset(&g, GUARD, sizeof g);
    fb_session_options_init(&g.options, sizeof g.options);
    need(g.options.size == sizeof g.options && g.options.threads == 0 && !g.options.kv, "defaults", NULL);
    need(intact(g.guard, sizeof g.guard), "memory behind short options", NULL);
    g.options.threads = 2;
    need(fb_session_create(model, &g.options, &session, &err) == 0, "session", &err);
    if (session) need(fb_session_threads(session) == 2, "threads", NULL);
    if (session) need(fb_session_prefill(session, ids, 4, &err) == 0, "prefill", &err);
    fb_session_free(session);
}

static void sampler_is_short(void) {
    fb_sampler_options options;
    fb_sampler *sampler = NULL;
    fb_error err = {0};
    fb_sampler_options_init(&options, sizeof options);
    need(options.temperature > 0 && options.top_p > 0, "sampler defaults", NULL);
    options.temperature = 0;
    need(fb_sampler_create(&options, 100, &sampler, &err) == 0, "sampler", &err);
    fb_sampler_free(sampler);
}

static void tool_is_short(const fb_model *model) {
    const int32_t ids[] = {1, 2, 3, 4};
    fb_perplexity_options options;
    void *report = NULL;
    fb_error err = {0};
    fb_perplexity_options_init(&options, sizeof options);
    options.threads = 1;
    need(fb_perplexity_run(model, &options, ids, 4, &report, &err) == 0, "perplexity", &err);
    fb_perplexity_free(report);
}

/* As if a later header had 256 bytes more. */
static void session_is_long(const fb_model *model) {
    struct {
        fb_session_options options;
        unsigned char later[512];
    } l;
    fb_session *session = NULL;
    fb_error err = {0};
    fb_session_options_init(&l.options, sizeof l);
    need(l.options.size == sizeof l && l.later[511] == 0, "defaults of long options", NULL);
    need(fb_session_create(model, &l.options, &session, &err) == 0, "long options", &err);
    fb_session_free(session);
    l.later[511] = 1;
    need(fb_session_create(model, &l.options, &session, &err) == 1, "an option from the future is refused",
         NULL);
    need(strstr(err.message, "fb_session_options: size: ") != NULL, "its message", &err);
    need(session == NULL, "no session", NULL);
}

int main(int argc, char **argv) {
    fb_model *model = NULL;
    fb_error err = {0};
    if (argc != 2 || fb_model_open(argv[1], &model, &err) != 0) {
        printf("usage: short_structs MODEL (%s)\n", err.message);
        return 2;
    }
    need(fb_version_number() >= 100 && *fb_version(), "version", NULL);
    info_is_short(model);
    session_is_short(model);
    sampler_is_short();
    tool_is_short(model);
    session_is_long(model);
    fb_model_free(model);
    return failures != 0;
}
