/* fusebox serve: models behind HTTP. */
#include "serve/serve.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/draft.h"
#include "cli/memory.h"
#include "cli/model.h"
#include "cli/output.h"
#include "cli/sampling.h"
#include "serve/server.h"

#define MAX_KEY_BYTES 512
/* Without --logit-bias and --seed, which belong to a request. */
#define SAMPLING_ROWS (CLI_SAMPLING_ROWS - 2)

/* Keys of one kind: those of the command line, and the lines of a file. */
typedef struct key_options {
    cli_list given;
    const char *file;
    const char *all[SERVE_MAX_KEYS];
    int count;
    char *text; /* of the file */
} key_options;

typedef struct serve_command {
    cli_model_options model;
    cli_sampling_options sampling;
    const char *host, *record;
    key_options keys, admin_keys;
    cli_list hosts, origins, drafts;
    int64_t port, max_body, max_bodies, timeout, grace, max_requests, connections, context, sequences,
        cache_tokens, draft_tokens;
    double stretch;
} serve_command;

static volatile int stopping;

static void on_signal(int number) {
    if (stopping) _exit(128 + number); /* the second one does not wait */
    stopping = 1;
}

static void catch_signals(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
        sigemptyset(&action.sa_mask);
        sigaction(numbers[i], &action, NULL);
    }
    signal(SIGPIPE, SIG_IGN);
}

/* ---- the command line ------------------------------------------------------------------------ */

static bool parse(const cli_command *command, int argc, char **argv, serve_command *o, cli_args *args,
                  int *status) {
    *o = (serve_command){.host = "127.0.0.1",
                         .port = 8080,
                         .max_body = 4,
                         .timeout = 60,
                         .grace = 30,
                         .max_requests = 512,
                         .connections = 4096,
                         .sequences = 64,
                         .stretch = 8};
    cli_option rows[CLI_MODEL_ROWS + 1], sampling[CLI_SAMPLING_ROWS];
    cli_sampling_rows(&o->sampling, sampling);
    cli_model_rows(&o->model, rows);
    rows[CLI_MODEL_ROWS] = cli_model_invariant_row(&o->model);
    const cli_option network[] = {
        {CLI_ROW(0, "host", CLI_STRING, &o->host, "NAME",
                 "the address to listen on; 0.0.0.0 is all of them")},
        {CLI_ROW('p', "port", CLI_INT, &o->port, "N", "0: any that is free"), .range = {0, 65535}},
        {CLI_ROW(0, "api-key", CLI_LIST, &o->keys.given, "KEY",
                 "a key that clients must send; may be given several times")},
        {CLI_ROW(0, "api-key-file", CLI_STRING, &o->keys.file, "FILE", "keys, one a line"),
         .fallback = "no key is needed"},
        {CLI_ROW(0, "admin-key", CLI_LIST, &o->admin_keys.given, "KEY",
                 "a key that may also switch fuses; without one, clients on this machine may, unless --host, "
                 "a key or --allow- let others in")},
        {CLI_ROW(0, "admin-key-file", CLI_STRING, &o->admin_keys.file, "FILE", "such keys, one a line"),
         .fallback = "none"},
        {CLI_ROW(0, "allow-host", CLI_LIST, &o->hosts, "NAME",
                 "a name that requests may use for this server, besides localhost, such as that of a proxy; "
                 "not needed with keys")},
        {CLI_ROW(0, "allow-origin", CLI_LIST, &o->origins, "URL",
                 "a web page's origin that may use the server; * is all")},
    };
    const cli_option limits[] = {
        {CLI_ROW(0, "max-requests", CLI_INT, &o->max_requests, "N",
                 "answers that run or wait; more get a 429 and may try again"),
         .range = {1, 65536}},
        {CLI_ROW(0, "max-body", CLI_INT, &o->max_body, "MB", "of a request, at most"), .range = {1, 1024}},
        {CLI_ROW(0, "max-bodies", CLI_INT, &o->max_bodies, "MB",
                 "of all requests that arrive or are answered, at most"),
         .range = {1, 1 << 20}, .fallback = "32 times --max-body"},
        {CLI_ROW(0, "timeout", CLI_INT, &o->timeout, "S",
                 "close connections that neither send nor take a byte for so long"),
         .range = {1, 86400}},
        {CLI_ROW(0, "grace", CLI_INT, &o->grace, "S", "on SIGTERM, let answers run on for so long"),
         .range = {0, 86400}},
        {CLI_ROW(0, "max-connections", CLI_INT, &o->connections, "N", "open at the same time"),
         .range = {1, 65536}},
    };
    const cli_option batch[] = {
        {CLI_ROW('c', "ctx", CLI_INT, &o->context, "N", "tokens of one prompt and its answer"),
         .range = {0, 1e9}, .fallback = "the model's context, but no more than 32768"},
        {CLI_ROW(0, "sequences", CLI_INT, &o->sequences, "N", "answers that are computed at the same time"),
         .range = {1, 1024}},
        {CLI_ROW(0, "cache-tokens", CLI_INT, &o->cache_tokens, "N",
                 "tokens that the KV cache holds, of all answers"),
         .range = {0, 1e9}, .fallback = "enough for all, but no more than 65536"},
        {CLI_ROW(0, "stretch", CLI_REAL, &o->stretch, "X",
                 "while answers are written, prompts may make a step X times as long; 0: any time"),
         .range = {0, 1000}},
    };
    const cli_option draft[] = {
        {CLI_ROW(0, "draft", CLI_LIST, &o->drafts, "[NAME=]SOURCE",
                 "guess tokens and check several in one step; answers stay the same: ngram, q4 or a smaller "
                 "MODEL; for all models or the one of this name"),
         .fallback = "none"},
        {CLI_ROW(0, "draft-tokens", CLI_INT, &o->draft_tokens, "N", "with --draft: always guess N tokens"),
         .range = {1, FB_MAX_DRAFT}, .fallback = "as many as are worth it"},
    };
    const cli_option output[] = {
        {CLI_ROW(0, "record", CLI_STRING, &o->record, "FILE",
                 "append every answer, and what fusebox replay needs to run it again")},
    };
    const cli_group groups[] = {
        {"network", network, sizeof network / sizeof *network},
        {"limits", limits, sizeof limits / sizeof *limits},
        {"batch", batch, sizeof batch / sizeof *batch},
        {"guesses", draft, sizeof draft / sizeof *draft},
        {"what a request does not say", sampling, SAMPLING_ROWS},
        {"execution", rows, CLI_MODEL_ROWS + 1},
        {"output", output, 1},
    };
    *args = (cli_args){.command = command,
                       .notes = CLI_MODEL_NOTES
                       "Each MODEL is served under its own name, or as NAME; the first one is the default.\n"
                       "GET / is a page to try it with; docs/serve.md describes the interface.\n",
                       .groups = groups,
                       .group_count = sizeof groups / sizeof *groups,
                       .max_positionals = CLI_MAX_POSITIONALS,
                       .takes_model = true};
    return cli_args_parse(args, argc, argv, status);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* A client sends a key in a header, which has no spaces around it and no control characters. */
static int add_key(key_options *o, const char *key, const char *from, int line) {
    char where[32] = "";
    size_t size = strlen(key);
    if (line) snprintf(where, sizeof where, ": line %d", line);
    if (!size || size > MAX_KEY_BYTES)
        return cli_fail(CLI_USAGE, "%s%s: a key of %zu bytes (1 to %d)", from, where, size, MAX_KEY_BYTES);
    for (const char *c = key; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return cli_fail(CLI_USAGE, "%s%s: a key with a control character", from, where);
    if (key[0] == ' ' || key[size - 1] == ' ')
        return cli_fail(CLI_USAGE, "%s%s: a key with a space around it", from, where);
    if (o->count == SERVE_MAX_KEYS)
        return cli_fail(CLI_USAGE, "%s%s: more than %d keys", from, where, SERVE_MAX_KEYS);
    o->all[o->count++] = key;
    return CLI_OK;
}

/* The line without what editors leave around it. */
static char *trim(char *line) {
    line += strspn(line, " \t");
    size_t size = strlen(line);
    while (size && strchr(" \t\r", line[size - 1])) size--;
    line[size] = '\0';
    return line;
}

static int read_keys(key_options *o) {
    static const char mark[] = "\xef\xbb\xbf"; /* of UTF-8, as some editors write it */
    size_t room = 0;
    int number = 1, before = o->count;
    FILE *file = fopen(o->file, "re");
    if (!file) return cli_fail(CLI_USAGE, "%s: %s", o->file, strerror(errno));
    ssize_t size = getdelim(&o->text, &room, '\0', file);
    bool failed = ferror(file) != 0;
    fclose(file);
    if (failed || size < 0) return cli_fail(CLI_USAGE, "%s: no keys", o->file);
    if (strlen(o->text) != (size_t)size) return cli_fail(CLI_USAGE, "%s: not a text: it has a NUL", o->file);
    char *line = o->text;
    if (strncmp(line, mark, sizeof mark - 1) == 0) line += sizeof mark - 1;
    for (char *next; line; line = next, number++) {
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        const char *key = trim(line);
        int status = !*key || *key == '#' ? CLI_OK : add_key(o, key, o->file, number);
        if (status != CLI_OK) return status;
    }
    return o->count > before ? CLI_OK : cli_fail(CLI_USAGE, "%s: no keys", o->file);
}

static int check_bodies(const serve_command *o) {
    if (!o->max_bodies || o->max_bodies >= o->max_body) return CLI_OK;
    return cli_fail(CLI_USAGE, "--max-bodies: %" PRId64 " (at least --max-body, which is %" PRId64 ")",
                    o->max_bodies, o->max_body);
}

static int take_keys(key_options *o, const char *option) {
    int status = CLI_OK;
    for (int32_t i = 0; status == CLI_OK && i < o->given.count; i++)
        status = add_key(o, o->given.values[i], option, 0);
    return status == CLI_OK && o->file ? read_keys(o) : status;
}

/* ---- models ---------------------------------------------------------------------------------- */

/* "storyteller" of ".../storyteller/" and of "storyteller.gguf". */
static char *name_of(const char *path) {
    size_t size = strlen(path);
    while (size > 1 && path[size - 1] == '/') size--;
    size_t begin = size;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    if (size - begin > 5 && strncmp(path + size - 5, ".gguf", 5) == 0) size -= 5;
    return strndup(path + begin, size - begin);
}

/* Behind NAME in NAME=MODEL; NULL: it is MODEL alone, which may have a = itself. */
static const char *find_equals(const char *argument) {
    const char *equals = argument ? strchr(argument, '=') : NULL,
               *slash = equals ? strchr(argument, '/') : NULL;
    return equals && !(slash && slash < equals) && access(argument, F_OK) != 0 ? equals : NULL;
}

static bool is_name(const char *text, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (text[i] == '"' || text[i] == '\\' || (unsigned char)text[i] < 0x20) return false;
    return size > 0;
}

static int open_model(const char *argument, serve_model *out) {
    const char *equals = find_equals(argument), *model = equals ? equals + 1 : argument;
    if (equals && !is_name(argument, (size_t)(equals - argument)))
        return cli_fail(CLI_USAGE, "MODEL: %s: a name is not empty and has no quotes or backslashes",
                        argument);
    int status = cli_model_open(model, &out->path, &out->model);
    if (status != CLI_OK) return status;
    out->name = equals ? strndup(argument, (size_t)(equals - argument)) : name_of(out->path);
    /* It becomes a label of metrics. */
    for (char *c = out->name; c && *c; c++)
        if (*c == '"' || *c == '\\' || (unsigned char)*c < 0x20) *c = '_';
    return out->name ? CLI_OK : cli_fail(CLI_FAILED, "MODEL: no memory");
}

static void close_models(serve_model *models, int count) {
    for (int i = 0; i < count; i++) {
        fb_draft_free(models[i].draft);
        fb_model_free(models[i].model);
        free(models[i].path);
        free(models[i].name);
    }
}

/* Without MODEL, the built-in one. On failure the models are closed. */
static int open_models(const cli_args *args, serve_model *models, int *count) {
    int wanted = args->positional_count ? args->positional_count : 1, status = CLI_OK;
    for (*count = 0; status == CLI_OK && *count < wanted; ++*count)
        status = open_model(args->positionals[*count], &models[*count]);
    for (int i = 0; status == CLI_OK && i < *count; i++)
        for (int k = 0; k < i; k++)
            if (strcmp(models[i].name, models[k].name) == 0)
                status =
                    cli_fail(CLI_USAGE, "MODEL: two are called %s (give one as NAME=MODEL)", models[i].name);
    if (status != CLI_OK) close_models(models, *count);
    return status;
}

/* ---- drafts ---------------------------------------------------------------------------------- */

static bool is_named(const char *draft, const char *equals, const char *name) {
    size_t size = equals ? (size_t)(equals - draft) : 0;
    return equals && strlen(name) == size && memcmp(name, draft, size) == 0;
}

/* What was said for the model by its name, or else for all; of two, the last. NULL: nothing. */
static const char *find_draft(const cli_list *drafts, const char *name) {
    const char *own = NULL, *common = NULL;
    for (int32_t i = 0; i < drafts->count; i++) {
        const char *draft = drafts->values[i], *equals = find_equals(draft);
        if (is_named(draft, equals, name)) own = equals + 1;
        if (!equals) common = draft;
    }
    return own ? own : common;
}

static int check_names(const cli_list *drafts, const serve_model *models, int count) {
    for (int32_t i = 0; i < drafts->count; i++) {
        const char *draft = drafts->values[i], *equals = find_equals(draft);
        int k = 0;
        while (k < count && !is_named(draft, equals, models[k].name)) k++;
        if (equals && k == count)
            return cli_fail(CLI_USAGE, "--draft: %s: no model is called %.*s", draft, (int)(equals - draft),
                            draft);
    }
    return CLI_OK;
}

static int open_drafts(const serve_command *o, serve_model *models, int count) {
    int status = check_names(&o->drafts, models, count);
    for (int i = 0; status == CLI_OK && i < count; i++) {
        const char *source = models[i].source = find_draft(&o->drafts, models[i].name);
        cli_draft draft = {.source = source, .most = source || !o->drafts.count ? o->draft_tokens : 0};
        status = cli_draft_open(&draft, models[i].model, &models[i].draft);
    }
    if (status != CLI_OK) close_models(models, count);
    return status;
}

/* ---- running --------------------------------------------------------------------------------- */

static void on_ready(const char *url, int count, const char *const *names) {
    cli_begin_message();
    fprintf(stderr, "fusebox: serving");
    for (int i = 0; i < count; i++) fprintf(stderr, "%s %s", i ? "," : "", names[i]);
    fprintf(stderr, " at %s (Ctrl-C stops)\n", url);
}

static bool is_loopback(const char *host) {
    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
}

static serve_names names_of(const cli_list *list) { return (serve_names){list->values, list->count}; }

static int serve(const serve_command *o, serve_model *models, int count) {
    fb_error err;
    serve_options s = {.models = models,
                       .model_count = count,
                       .host = o->host,
                       .port = (uint16_t)o->port,
                       .access = {.keys = {o->keys.all, o->keys.count},
                                  .admin_keys = {o->admin_keys.all, o->admin_keys.count},
                                  .hosts = names_of(&o->hosts),
                                  .origins = names_of(&o->origins),
                                  .loopback = is_loopback(o->host)},
                       .max_body = (size_t)o->max_body << 20,
                       .max_bodies = (size_t)(o->max_bodies ? o->max_bodies : 32 * o->max_body) << 20,
                       .timeout = (int32_t)o->timeout,
                       .connections = (int32_t)o->connections,
                       .max_requests = o->max_requests,
                       .grace = (double)o->grace,
                       .draft_tokens = o->draft_tokens,
                       .context = o->context,
                       .record = o->record,
                       .on_ready = on_ready};
    cli_sampling_take(&o->sampling, &s.sampling);
    fb_session_options_default(&s.session);
    CLI_MODEL_SET_FUSE(&o->model, &s.session);
    s.session.any_order = cli_model_any_order(&o->model);
    fb_scheduler_options_default(&s.scheduler);
    s.scheduler.sequences = o->sequences;
    s.scheduler.cache_tokens = o->cache_tokens;
    s.scheduler.stretch = (float)o->stretch;
    if (o->sequences > 128) s.scheduler.rows = o->sequences;
    if (!s.access.loopback && !o->keys.count)
        cli_warn("--host %s: anybody who reaches this address can use the server (--api-key)", o->host);
    catch_signals();
    if (serve_run(&s, &stopping, &err) != FB_OK) return cli_fail_error(&err);
    return CLI_OK;
}

int cli_serve(const cli_command *command, int argc, char **argv) {
    serve_command *o = malloc(sizeof *o);
    cli_args args;
    serve_model models[CLI_MAX_POSITIONALS] = {{0}};
    int status, count;
    if (!o) return cli_fail(CLI_FAILED, "serve: no memory");
    if (parse(command, argc, argv, o, &args, &status)) {
        status = check_bodies(o);
        if (status == CLI_OK) status = take_keys(&o->keys, "--api-key");
        if (status == CLI_OK) status = take_keys(&o->admin_keys, "--admin-key");
        if (status == CLI_OK) status = open_models(&args, models, &count);
        if (status == CLI_OK) status = open_drafts(o, models, count);
        if (status == CLI_OK) status = serve(o, models, count);
        free(o->keys.text);
        free(o->admin_keys.text);
    }
    free(o);
    return status;
}
