#include "cli/interrupt.h"

#include <signal.h>

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    interrupted = 1;
}

void cli_interrupt_catch(void) {
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART | SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

bool cli_interrupted(void) { return interrupted; }
