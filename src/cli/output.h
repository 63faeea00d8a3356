/* What goes to the user: error lines, checked standard output, numbers for people. */
#ifndef FB_CLI_OUTPUT_H
#define FB_CLI_OUTPUT_H

#include <stdio.h>

#include "cli/cli.h"

/* Prints "fusebox: message" to stderr, always one line, and returns `status`. */
int cli_fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints "fusebox: warning: message" to stderr; the command goes on. */
void cli_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints "fusebox: note: message" to stderr: what was done is not quite what was asked for. */
void cli_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints the library's error and returns the exit status that belongs to it. */
int cli_fail_error(const fb_error *err);

/* Flushes stdout and returns `status`, or fails if anything written there was lost. */
int cli_finish_output(int status);

/* After a write to stdout failed with the errno `reason`: says so and returns CLI_FAILED. A reader that has
 * gone away (EPIPE) is no news for the user and gives no message. */
int cli_fail_output(int reason);

/* The text of an answer that was just written to stdout, and the end of its line, which is flushed. Until
 * then a message on stderr ends that line first, if both lead to the same terminal, pipe or file. */
void cli_answer_wrote(const char *text, size_t bytes);
void cli_answer_end_line(void);

/* What every message on stderr begins with: stdout so far comes first, and ends its line. */
void cli_begin_message(void);

/* Text from files or arguments to stdout, as one line: what would steer a terminal is escaped. */
void cli_put(const char *text);

/* The same with its lines and tabs, as a terminal may get it. */
void cli_put_lines(FILE *out, const char *text, size_t bytes);

/* Whether a picture can be written there, as far as it can be known before the minutes that it takes to make
 * it. CLI_OK, or an exit status after printing why not. */
int cli_check_svg(const char *path);

/* Whether this is a terminal that knows colours and cursor movements, and the user wants them: not with
 * TERM=dumb or NO_COLOR. */
bool cli_has_screen(int descriptor);

/* "prompt [###   ] 128 of 512 tokens" on one line of stderr, over what was there before; then that line is
 * wiped. Nothing where stderr has no screen. */
void cli_progress(const char *what, int64_t done, int64_t total, const char *unit);
void cli_progress_clear(void);
/* For a signal handler. */
void cli_progress_abandon(void);

/* "8,404,992" and "8.4 M" into `text`, and return it. */
#define CLI_NUMBER_BYTES 32
const char *cli_format_digits(int64_t value, char text[CLI_NUMBER_BYTES]);
const char *cli_format_scaled(double value, char text[CLI_NUMBER_BYTES]);

#endif
