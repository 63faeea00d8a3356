#include "cli/output.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio_ext.h>
#include <string.h>
#include <unistd.h>

/* Arguments and file names are echoed: they must neither break the line nor steer the terminal. */
static void say(const char *before, const char *format, va_list args) {
    char message[1024];
    vsnprintf(message, sizeof message, format, args);
    for (char *c = message; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    fprintf(stderr, "fusebox: %s%s\n", before, message);
}

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

void cli_progress(const char *what, int64_t done, int64_t total, const char *unit) {
    static const char full[] = "##############################";
    enum { WIDTH = sizeof full - 1 };
    int filled = (int)(WIDTH * done / total);
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r%s [%.*s%*s] %" PRId64 " of %" PRId64 " %s", what, filled, full, WIDTH - filled,
                "", done, total, unit);
}

void cli_progress_clear(void) {
    if (isatty(STDERR_FILENO)) fputs("\r\033[K", stderr);
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
