/* Ctrl-C, noticed between two steps of what a command does. */
#ifndef FB_CLI_INTERRUPT_H
#define FB_CLI_INTERRUPT_H

#include <stdbool.h>

/* From here on the first Ctrl-C only sets cli_interrupted, and system calls go on, so that nothing is lost; a
 * second one kills. */
void cli_interrupt_catch(void);
bool cli_interrupted(void);

#endif
