#include "cli/line.h"

#include <histedit.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HISTORY_LINES 1000

struct cli_line {
    const char *prompt;
    EditLine *editor; /* NULL: no terminal */
    History *history;
    bool cancelled;
    char *text;
    size_t room;
};

static char *show_prompt(EditLine *editor) {
    void *user = NULL;
    static char empty[] = "", prompt[64];
    el_get(editor, EL_CLIENTDATA, &user);
    if (!user) return empty;
    snprintf(prompt, sizeof prompt, "%s", ((cli_line *)user)->prompt);
    return prompt;
}

/* The terminal sends no signal while a line is edited, so Ctrl-C is a key. */
static unsigned char cancel(EditLine *editor, int key) {
    void *user = NULL;
    (void)key;
    el_get(editor, EL_CLIENTDATA, &user);
    if (user) ((cli_line *)user)->cancelled = true;
    return CC_NEWLINE;
}

static bool open_editor(cli_line *line) {
    HistEvent event;
    setlocale(LC_CTYPE, ""); /* so that é is one character; numbers are still written as in C */
    line->editor = el_init("fusebox", stdin, stdout, stderr);
    line->history = history_init();
    if (!line->editor || !line->history) return false;
    history(line->history, &event, H_SETSIZE, HISTORY_LINES);
    history(line->history, &event, H_SETUNIQUE, 1);
    el_set(line->editor, EL_CLIENTDATA, line);
    el_set(line->editor, EL_PROMPT, show_prompt);
    el_set(line->editor, EL_EDITOR, "emacs");
    el_set(line->editor, EL_HIST, history, line->history);
    /* In wide characters: of others libedit makes copies, which it never frees. */
    el_wset(line->editor, EL_ADDFN, L"fusebox-cancel", L"give the line up", cancel);
    el_set(line->editor, EL_BIND, "^C", "fusebox-cancel", NULL);
    el_set(line->editor, EL_SETTY, "-d", "-isig", NULL);
    return true;
}

cli_line *cli_line_open(const char *prompt) {
    cli_line *line = calloc(1, sizeof *line);
    if (!line) return NULL;
    line->prompt = prompt;
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || open_editor(line)) return line;
    cli_line_free(line);
    return NULL;
}

void cli_line_free(cli_line *line) {
    if (!line) return;
    if (line->editor) el_end(line->editor);
    if (line->history) history_end(line->history);
    free(line->text);
    free(line);
}

bool cli_line_is_terminal(const cli_line *line) { return line->editor != NULL; }

static cli_line_kind finish(const char *text, size_t bytes, const char **out, size_t *out_bytes) {
    if (bytes > 0 && text[bytes - 1] == '\n') bytes--;
    *out = text;
    *out_bytes = bytes;
    return CLI_LINE_TEXT;
}

cli_line_kind cli_line_read(cli_line *line, const char **text, size_t *bytes) {
    *text = "";
    *bytes = 0;
    if (!line->editor) {
        ssize_t got = getline(&line->text, &line->room, stdin);
        return got < 0 ? CLI_LINE_END : finish(line->text, (size_t)got, text, bytes);
    }
    int got = 0;
    HistEvent event;
    line->cancelled = false;
    const char *read = el_gets(line->editor, &got);
    if (line->cancelled) {
        fputs("\n", stdout); /* the line that is given up stays above */
        return CLI_LINE_CANCELLED;
    }
    if (!read || got <= 0) return CLI_LINE_END;
    if (got > 1) history(line->history, &event, H_ENTER, read);
    return finish(read, (size_t)got, text, bytes);
}
