#include "cli/output.h"

#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- an answer and the messages about it ----------------------------------------------------- */

static bool inside_line; /* the answer on stdout did not end its line yet */

void cli_answer_wrote(const char *text, size_t bytes) {
    if (bytes > 0) inside_line = text[bytes - 1] != '\n';
}

void cli_answer_end_line(void) {
    putchar('\n');
    fflush(stdout); /* its failure is kept, and cli_finish_output tells it */
    inside_line = false;
}

static bool same_place(int a, int b) {
    struct stat first, second;
    return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

void cli_begin_message(void) {
    fflush(stdout);
    if (inside_line && same_place(STDOUT_FILENO, STDERR_FILENO)) {
        fputc('\n', stderr);
        inside_line = false;
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Arguments and file names are echoed: they must neither break the line nor steer the terminal. */
static void say(const char *before, const char *format, va_list args) {
    char message[1024], line[4 * sizeof message], shown[FB_SHOWN_BYTES];
    size_t used = 0;
    vsnprintf(message, sizeof message, format, args);
    for (const char *at = message; *at; used += strlen(shown)) {
        at += fb_show_character(at, strlen(at), false, shown);
        memcpy(line + used, shown, strlen(shown));
    }
    cli_begin_message();
    fprintf(stderr, "fusebox: %s%.*s\n", before, (int)used, line);
}

static void put_shown(FILE *out, const char *text, size_t bytes, bool lines) {
    char shown[FB_SHOWN_BYTES];
    for (size_t at = 0; at < bytes;) {
        at += fb_show_character(text + at, bytes - at, lines, shown);
        fputs(shown, out);
    }
}

void cli_put(const char *text) { put_shown(stdout, text, strlen(text), false); }

void cli_put_lines(FILE *out, const char *text, size_t bytes) { put_shown(out, text, bytes, true); }

int cli_fail(int status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    say("", format, args);
    va_end(args);
    return status;
}

void cli_warn(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say("warning: ", format, args);
    va_end(args);
}

void cli_note(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say("note: ", format, args);
    va_end(args);
}

int cli_fail_error(const fb_error *err) {
    bool bad_input =
        err->status == FB_ERROR_USAGE || err->status == FB_ERROR_FILE || err->status == FB_ERROR_UNSUPPORTED;
    return cli_fail(bad_input ? CLI_USAGE : CLI_FAILED, "%s", err->message);
}

int cli_fail_output(int reason) {
    /* What could not be written is given up, so that it fails once and not again at exit. */
    __fpurge(stdout);
    clearerr(stdout);
    if (reason == EPIPE) return CLI_FAILED;
    return cli_fail(CLI_FAILED, "standard output: %s", reason ? strerror(reason) : "write error");
}

int cli_finish_output(int status) {
    errno = 0;
    return fflush(stdout) == 0 && !ferror(stdout) ? status : cli_fail_output(errno);
}

bool cli_has_screen(int descriptor) {
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    bool plain = (no_color && *no_color) || !term || strcmp(term, "dumb") == 0;
    return !plain && isatty(descriptor);
}

int cli_check_svg(const char *path) {
    struct stat st;
    bool there = lstat(path, &st) == 0; /* a link is written through */
    int reason = 0;
    char *copy = strdup(path);
    if (!copy) return cli_fail(CLI_FAILED, "%s: no memory", path);
    if (!*path)
        reason = ENOENT;
    else if (there && S_ISDIR(st.st_mode))
        reason = EISDIR;
    else if (there && !S_ISREG(st.st_mode))
        reason =
            access(path, W_OK) != 0 && errno != ENOENT ? errno : 0; /* a link to nothing makes a file there */
    else if (access(dirname(copy), W_OK) != 0)
        reason = errno;
    free(copy);
    return reason ? cli_fail(CLI_USAGE, "%s: %s", *path ? path : "--svg: \"\"", strerror(reason)) : CLI_OK;
}

static volatile sig_atomic_t in_progress; /* a line is on the screen that is not wiped yet */
#define WIPE "\r\033[K"

void cli_progress(const char *what, int64_t done, int64_t total, const char *unit) {
    static const char full[] = "##############################";
    enum { WIDTH = sizeof full - 1 };
    int filled = (int)(WIDTH * done / total);
    if (!cli_has_screen(STDERR_FILENO)) return;
    in_progress = 1;
    fprintf(stderr, "\r%s [%.*s%*s] %" PRId64 " of %" PRId64 " %s", what, filled, full, WIDTH - filled, "",
            done, total, unit);
}

void cli_progress_clear(void) {
    if (in_progress) fputs(WIPE, stderr);
    in_progress = 0;
}

void cli_progress_abandon(void) {
    if (in_progress && write(STDERR_FILENO, WIPE, sizeof WIPE - 1) < 0) in_progress = 0;
}

const char *cli_format_digits(int64_t value, char text[CLI_NUMBER_BYTES]) {
    char digits[CLI_NUMBER_BYTES];
    int length = snprintf(digits, sizeof digits, "%" PRId64, value), at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0 && digits[i - 1] != '-') text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = '\0';
    return text;
}

const char *cli_format_scaled(double value, char text[CLI_NUMBER_BYTES]) {
    static const char *const units[] = {"", " k", " M", " G", " T"};
    size_t unit = 0;
    for (; value >= 999.95 && unit + 1 < sizeof units / sizeof *units; unit++) value /= 1000;
    snprintf(text, CLI_NUMBER_BYTES, unit ? "%.1f%s" : "%.0f%s", value, units[unit]);
    return text;
}
