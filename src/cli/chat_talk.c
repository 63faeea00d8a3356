/* fusebox chat: turns of a user and a model. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/chat.h"
#include "cli/generate.h"
#include "cli/interrupt.h"
#include "cli/line.h"
#include "cli/output.h"

/* Room that an answer should have before old turns are dropped: a quarter of the context, at most this. */
#define ANSWER_ROOM 256

typedef struct talk {
    const cli_chat_arguments *arguments;
    const fb_model *model;
    fb_session_options session_options;
    fb_session *session;
    fb_draft *draft;               /* of the session, or NULL */
    cli_conversation conversation; /* the system's message, if any, is the first */
    int32_t *held;                 /* [held_count], the ids in the session */
    int64_t held_count, held_room;
    cli_line *line;
    bool screen;
    bool done;
    bool refused; /* a message was not answered */
    /* Of the last answer, for /stats. */
    int64_t prompt, reused, answered;
    double prefill_seconds, first_seconds, answer_seconds;
} talk;

/* A line about the chat itself, which is not the model's. */
static void note(const talk *t, const char *text) {
    cli_begin_message();
    fprintf(stderr, t->screen ? "\033[2m(%s)\033[0m\n" : "(%s)\n", text);
}

/* ---- the session ----------------------------------------------------------------------------- */

static bool keep_held(talk *t, const int32_t *ids, int64_t count, int64_t at) {
    if (at + count > t->held_room) {
        int64_t room = 2 * (at + count);
        int32_t *held = realloc(t->held, (size_t)room * sizeof *held);
        if (!held) return false;
        t->held = held;
        t->held_room = room;
    }
    if (count > 0) memcpy(t->held + at, ids, (size_t)count * sizeof *ids);
    t->held_count = at + count;
    return true;
}

static void forget(talk *t) {
    fb_session_reset(t->session);
    t->held_count = 0;
}

/* Keeps what the session and the ids have in common. At least one id is left to compute. */
static int64_t reuse(talk *t, const int32_t *ids, int64_t count) {
    int64_t same = 0;
    while (same < t->held_count && same < count - 1 && t->held[same] == ids[same]) same++;
    if (same < t->held_count && fb_session_trim(t->session, same, NULL) != FB_OK) {
        forget(t);
        return 0;
    }
    t->held_count = same;
    return same;
}

/* ---- one answer ------------------------------------------------------------------------------ */

static int64_t first_turn(const talk *t) {
    return t->conversation.count > 0 && strcmp(t->conversation.messages[0].role, "system") == 0;
}

/* The conversation as ids. If it leaves too little room for an answer, the oldest turns go first. */
static int tokenize(talk *t, int32_t **ids, int64_t *count) {
    int64_t context = t->arguments->context, room = context / 4 < ANSWER_ROOM ? context / 4 : ANSWER_ROOM;
    bool dropped = false;
    for (;;) {
        int status =
            cli_conversation_tokenize(&t->conversation, t->model, t->arguments->template_text, ids, count);
        if (status != CLI_OK) return status;
        int64_t first = first_turn(t), turn = t->conversation.count - first;
        if (*count + room <= context || (turn < 3 && *count < context)) break;
        fb_free(*ids);
        *ids = NULL;
        if (turn < 3) {
            char text[128];
            snprintf(text, sizeof text,
                     "the message has %" PRId64 " tokens, the context %" PRId64 ": not sent", *count,
                     context);
            note(t, text);
            *count = 0;
            return CLI_OK;
        }
        cli_conversation_remove(&t->conversation, first, 2);
        dropped = true;
    }
    if (dropped) note(t, "the context is full: the oldest turns are forgotten");
    return CLI_OK;
}

static void set_generation(talk *t, cli_generation *g, FILE *sink, const int32_t *ids, int64_t count) {
    const cli_chat_arguments *a = t->arguments;
    int64_t left = a->context - count;
    *g = (cli_generation){
        .model = t->model, .kept_session = t->session, .session_options = t->session_options};
    cli_sampling_take(&a->sampling, &g->sampler_options);
    g->prompt = ids;
    g->prompt_count = count;
    g->held = reuse(t, ids, count);
    g->limit = a->tokens > 0 && a->tokens < left ? a->tokens : left;
    g->context_is_limit = g->limit == left;
    g->keep_all = true;
    g->stop_texts = a->stop.values;
    g->stop_count = a->stop.count;
    g->sink = sink;
}

/* Text goes to the screen and into the conversation: a stream that does both. */
typedef struct tee {
    FILE *copy;
    bool terminal;
} tee;

static ssize_t write_tee(void *cookie, const char *bytes, size_t size) {
    tee *t = cookie;
    if (t->terminal)
        cli_put_lines(stdout, bytes, size);
    else
        fwrite(bytes, 1, size, stdout);
    cli_answer_wrote(bytes, size);
    if (fflush(stdout) != 0) return 0;
    return fwrite(bytes, 1, size, t->copy) == size ? (ssize_t)size : 0;
}

/* What happened, for /stats, and which ids the session holds: the last one drawn was not computed. */
static void settle(talk *t, const cli_generation *g) {
    t->prompt = g->prompt_count;
    t->reused = g->held;
    t->answered = g->count;
    t->prefill_seconds = g->prefill_seconds;
    t->first_seconds = g->first_seconds;
    t->answer_seconds = 0;
    for (int64_t i = 1; i < g->count; i++) t->answer_seconds += g->seconds[i];
    int64_t computed = fb_session_position(t->session) - g->prompt_count;
    bool kept = g->stop != CLI_STOP_INTERRUPT && computed >= 0 && computed <= g->count &&
                keep_held(t, g->prompt, g->prompt_count, 0) &&
                keep_held(t, g->tokens, computed, g->prompt_count);
    if (!kept) forget(t); /* also a Ctrl-C that came too late to stop anything */
}

static int answer(talk *t, FILE *sink, int32_t *ids, int64_t count, cli_stop *stop) {
    cli_generation g;
    set_generation(t, &g, sink, ids, count);
    int status = cli_generate(&g);
    cli_interrupt_release();
    if (status == CLI_OK || status == CLI_INTERRUPTED) settle(t, &g);
    *stop = g.stop;
    cli_generation_free(&g);
    return status;
}

static int reply(talk *t) {
    int32_t *ids = NULL;
    int64_t count = 0;
    char *text = NULL;
    size_t bytes = 0;
    cli_stop stop = CLI_STOP_NONE;
    int status = tokenize(t, &ids, &count);
    if (status != CLI_OK || count == 0) {
        cli_conversation_remove(&t->conversation, t->conversation.count - 1, 1);
        t->refused = true;
        return status == CLI_USAGE ? CLI_OK : status; /* the template refuses: the user may try another way */
    }
    tee both = {open_memstream(&text, &bytes), isatty(STDOUT_FILENO)};
    FILE *sink = both.copy ? fopencookie(&both, "w", (cookie_io_functions_t){.write = write_tee}) : NULL;
    if (sink) status = answer(t, sink, ids, count, &stop);
    if (sink) fclose(sink);
    if (!both.copy || fclose(both.copy) != 0 || !text || !sink)
        status = cli_fail(CLI_FAILED, "answer: no memory");
    if (status == CLI_OK || status == CLI_INTERRUPTED) {
        cli_answer_end_line();
        if (stop == CLI_STOP_CONTEXT) note(t, "the context is full: the answer ends here");
        if (stop == CLI_STOP_INTERRUPT) note(t, "stopped");
        status = cli_conversation_add(&t->conversation, "assistant", text, bytes);
    }
    cli_interrupt_reset();
    free(text);
    fb_free(ids);
    return status;
}

/* ---- commands -------------------------------------------------------------------------------- */

static int set_system(talk *t, const char *text) {
    cli_conversation_remove(&t->conversation, 0, t->conversation.count);
    note(t, *text ? "a new conversation with this system message"
                  : "a new conversation without a system message");
    return *text ? cli_conversation_add(&t->conversation, "system", text, strlen(text)) : CLI_OK;
}

static int reset(talk *t, const char *text) {
    (void)text;
    int64_t first = first_turn(t);
    cli_conversation_remove(&t->conversation, first, t->conversation.count - first);
    note(t, "a new conversation");
    return CLI_OK;
}

/* As JSON that --render reads. */
static int save(talk *t, const char *path) {
    char *json;
    if (!*path) {
        note(t, "/save needs the name of a file");
        return CLI_OK;
    }
    int status = cli_conversation_json(&t->conversation, &json);
    if (status != CLI_OK) return status;
    FILE *out = fopen(path, "wx"); /* an existing file may be something else */
    bool written = out && fprintf(out, "%s\n", json) > 0;
    if (out && fclose(out) != 0) written = false;
    free(json);
    note(t, written ? "saved" : "not saved: the file exists or cannot be written");
    return CLI_OK;
}

static int show_stats(talk *t, const char *text) {
    (void)text;
    fprintf(stderr, "conversation     %" PRId64 " messages, %" PRId64 " of %" PRId64 " tokens\n",
            t->conversation.count, t->held_count, t->arguments->context);
    if (t->prompt == 0) return CLI_OK;
    int64_t read = t->prompt - t->reused;
    fprintf(stderr,
            "last prompt      %" PRId64 " tokens, %" PRId64
            " of them kept from before, %.1f ms for the rest\n",
            t->prompt, t->reused, t->prefill_seconds * 1e3);
    if (t->prefill_seconds > 0)
        fprintf(stderr, "prompt speed     %.1f tokens/s\n", (double)read / t->prefill_seconds);
    fprintf(stderr, "last answer      %" PRId64 " tokens, the first after %.1f ms\n", t->answered,
            t->first_seconds * 1e3);
    if (t->answered > 1 && t->answer_seconds > 0)
        fprintf(stderr, "answer speed     %.1f tokens/s\n", (double)(t->answered - 1) / t->answer_seconds);
    fb_draft_stats guesses;
    fb_session_get_draft(t->session, &guesses);
    cli_draft_print(&t->arguments->draft, &guesses, stderr);
    return CLI_OK;
}

static int leave(talk *t, const char *text) {
    (void)text;
    t->done = true;
    return CLI_OK;
}

static int help(talk *t, const char *text);

static const struct {
    const char *name, *argument, *text;
    int (*run)(talk *t, const char *text);
} commands[] = {
    {"/system", " TEXT", "a new conversation with this system message; without TEXT, with none", set_system},
    {"/reset", "", "a new conversation with the same system message", reset},
    {"/save", " FILE", "write the conversation as JSON, which --render reads", save},
    {"/stats", "", "tokens and speed", show_stats},
    {"/help", "", "this list", help},
    {"/exit", "", "end; Ctrl-D does so, too", leave},
};

static int help(talk *t, const char *text) {
    (void)t;
    (void)text;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(stderr, "%s%-*s %s\n", commands[i].name, (int)(14 - strlen(commands[i].name)),
                commands[i].argument, commands[i].text);
    fprintf(stderr, "A line that begins with // is sent with one /. Ctrl-C stops an answer.\n");
    return CLI_OK;
}

static int run_command(talk *t, const char *line) {
    size_t size = strcspn(line, " ");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strlen(commands[i].name) == size && strncmp(commands[i].name, line, size) == 0)
            return commands[i].run(t, line + size + strspn(line + size, " "));
    note(t, "no such command: /help lists them, and // begins a message with /");
    return CLI_OK;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int send(talk *t, const char *text, size_t bytes) {
    int status = cli_conversation_add(&t->conversation, "user", text, bytes);
    if (status == CLI_OK) status = reply(t);
    t->done = t->arguments->single_turn;
    return status;
}

static int take_line(talk *t, const char *line, size_t bytes) {
    if (line[strspn(line, " \t")] == '\0') return CLI_OK;
    if (line[0] == '/' && line[1] != '/') return run_command(t, line);
    size_t skip = line[0] == '/';
    return send(t, line + skip, bytes - skip);
}

/* The message of the command line. On a terminal it is shown as if it were typed. */
static int send_first(talk *t) {
    if (cli_line_is_terminal(t->line)) {
        fputs("> ", stdout);
        cli_put(t->arguments->text);
        putchar('\n');
    }
    return send(t, t->arguments->text, strlen(t->arguments->text));
}

static int loop(talk *t) {
    const cli_chat_arguments *a = t->arguments;
    int status = a->text ? send_first(t) : CLI_OK;
    while (status == CLI_OK && !t->done) {
        const char *text;
        size_t bytes;
        cli_line_kind kind = cli_line_read(t->line, &text, &bytes);
        if (kind == CLI_LINE_END) break;
        if (kind == CLI_LINE_CANCELLED) continue;
        char *copy = strndup(text, bytes);
        if (!copy) return cli_fail(CLI_FAILED, "line: no memory for %zu bytes", bytes);
        status = take_line(t, copy, strlen(copy));
        free(copy);
    }
    if (cli_line_is_terminal(t->line) && !t->done) putchar('\n');
    /* Nobody reads the notes of a chat in a script: its status tells it. */
    bool lost = t->refused && (a->single_turn || !cli_line_is_terminal(t->line));
    return cli_finish_output(status == CLI_OK && lost ? CLI_USAGE : status);
}

/* Fails before the first line if there is no template, rather than after it. */
static int check_template(const talk *t) {
    const char *name, *text;
    fb_chat_options options;
    fb_error err;
    char *rendered;
    size_t bytes;
    if (t->arguments->template_text || fb_model_chat_template(t->model, 0, &name, &text)) return CLI_OK;
    cli_chat_options(&options);
    fb_chat_render(t->model, "[]", &options, &rendered, &bytes, &err);
    return cli_chat_fail(&err);
}

static int open_talk(talk *t) {
    fb_error err;
    int status = check_template(t);
    if (status != CLI_OK) return status;
    const cli_chat_arguments *a = t->arguments;
    fb_session_options_default(&t->session_options);
    CLI_MODEL_SET_FUSE(&a->model, &t->session_options);
    t->session_options.greedy = cli_sampling_takes_best(&a->sampling);
    t->session_options.capacity = a->context;
    t->session_options.on_progress = cli_generation_progress;
    if ((status = cli_draft_open(&a->draft, t->model, &t->draft)) != CLI_OK) return status;
    t->session_options.draft = t->draft;
    if (fb_session_create(t->model, &t->session_options, &t->session, &err) != FB_OK)
        return cli_fail_error(&err);
    t->line = cli_line_open("> ");
    if (!t->line) return cli_fail(CLI_FAILED, "line: no memory");
    t->screen = cli_has_screen(STDERR_FILENO);
    if (a->system) status = cli_conversation_add(&t->conversation, "system", a->system, strlen(a->system));
    if (cli_line_is_terminal(t->line)) note(t, "/help lists what can be typed; Ctrl-D ends");
    return status;
}

int cli_chat_talk(const cli_chat_arguments *arguments, const fb_model *model) {
    talk t = {.arguments = arguments, .model = model};
    int status = open_talk(&t);
    if (status == CLI_OK) status = loop(&t);
    cli_line_free(t.line);
    fb_session_free(t.session);
    fb_draft_free(t.draft);
    cli_conversation_free(&t.conversation);
    free(t.held);
    return status;
}
