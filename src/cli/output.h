/* What goes to the user: error lines, checked standard output, numbers for people. */
#ifndef FB_CLI_OUTPUT_H
#define FB_CLI_OUTPUT_H

#include <stdio.h>

#include "cli/cli.h"

/* Prints "fusebox: message" to stderr, always one line, and returns `status`. */
int cli_fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints "fusebox: warning: message" to stderr; the command goes on. */
void cli_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints the library's error and returns the exit status that belongs to it. */
int cli_fail_error(const fb_error *err);

/* Flushes stdout and returns `status`, or fails if anything written there was lost. */
int cli_finish_output(int status);

/* After a write to stdout failed with the errno `reason`: says so and returns CLI_FAILED. A reader that has
 * gone away (EPIPE) is no news for the user and gives no message. */
int cli_fail_output(int reason);

/* "prompt [###   ] 128 of 512 tokens" on one line of stderr, over what was there before; then that line is
 * wiped. Nothing where stderr is no terminal. */
void cli_progress(const char *what, int64_t done, int64_t total, const char *unit);
void cli_progress_clear(void);

/* "8,404,992" and "8.4 M" into `text`, and return it. */
#define CLI_NUMBER_BYTES 32
const char *cli_format_digits(int64_t value, char text[CLI_NUMBER_BYTES]);
const char *cli_format_scaled(double value, char text[CLI_NUMBER_BYTES]);

#endif
