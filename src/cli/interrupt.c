#include "cli/interrupt.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/output.h"

static volatile sig_atomic_t interrupted;
static _Atomic(fb_session *) current; /* that Ctrl-C cancels */
static atomic_bool watched;           /* somebody asks cli_interrupted; otherwise Ctrl-C ends the process */

/* The signal's own action follows as soon as the handler returns, so that the caller sees what happened. */
static void on_end(int signal_number) {
    fb_discard_files();
    cli_progress_abandon();
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void on_interrupt(int signal_number) {
    fb_session *session = atomic_load(&current);
    if (interrupted || !atomic_load(&watched)) {
        on_end(signal_number);
        return;
    }
    interrupted = 1;
    if (session) fb_session_cancel(session);
}

static void set_handler(int signal_number, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(signal_number, &action, NULL);
}

void cli_signals_begin(void) {
    static const int ends[] = {SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct sigaction before;
        if (sigaction(ends[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN) continue; /* nohup */
        set_handler(ends[i], on_end);
    }
    set_handler(SIGINT, on_interrupt); /* also of a job in the background, whose shell had it ignored */
    signal(SIGXFSZ, SIG_IGN);
}

void cli_interrupt_catch(fb_session *session) {
    atomic_store(&current, session);
    atomic_store(&watched, true);
}

void cli_interrupt_release(void) {
    atomic_store(&watched, false);
    atomic_store(&current, NULL);
}

bool cli_interrupted(void) { return interrupted; }

void cli_interrupt_reset(void) { interrupted = 0; }

static char cut_message[4096 + 128];
static size_t cut_size;
static atomic_flag cut_said = ATOMIC_FLAG_INIT;

/* Only what may be called in a signal handler. A SIGBUS of another kind kills, as it always did: the
 * instruction is executed again. */
static void on_cut_file(int signal_number, siginfo_t *info, void *context) {
    (void)context;
    if (info->si_code != BUS_ADRERR) {
        signal(signal_number, SIG_DFL);
        return;
    }
    /* Several threads may read the missing part at once: one speaks, the others wait for its exit. */
    while (atomic_flag_test_and_set(&cut_said)) pause();
    fb_discard_files();
    cli_progress_abandon();
    ssize_t written = write(STDERR_FILENO, cut_message, cut_size);
    (void)written;
    _exit(CLI_FAILED);
}

void cli_cut_file_catch(const char *path) {
    int size =
        snprintf(cut_message, sizeof cut_message,
                 "fusebox: %.4096s: the file was truncated or its storage failed while it was in use", path);
    for (char *c = cut_message; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    cut_message[size] = '\n';
    cut_size = (size_t)size + 1;
    struct sigaction action = {.sa_sigaction = on_cut_file, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}
