/* Signals: what ends a command, Ctrl-C while a text is written, and a mapped file that is cut off. */
#ifndef FB_CLI_INTERRUPT_H
#define FB_CLI_INTERRUPT_H

#include "cli/cli.h"

/* Called first. From here on, Ctrl-C, SIGTERM and SIGHUP remove temporary files before they end the process,
 * and a write beyond the limit on file sizes is an error of that write. */
void cli_signals_begin(void);

/* From here on the first Ctrl-C cancels the session's step (NULL: none) and sets cli_interrupted, and system
 * calls go on, so that nothing is lost; a second one ends the process. Release before the session is freed.
 */
void cli_interrupt_catch(fb_session *session);
void cli_interrupt_release(void);
bool cli_interrupted(void);
/* The next Ctrl-C is the first one again. */
void cli_interrupt_reset(void);

/* From here on, a read of what is no longer in a mapped file ends the program with CLI_FAILED and a message
 * that names `path`, which is copied. */
void cli_cut_file_catch(const char *path);

#endif
