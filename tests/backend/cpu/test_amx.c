/* Where AMX's instructions trap, finding that out disturbs nobody: no handler of the process runs, and nobody
 * else's wait() sees the child. Most machines that run this have no AMX, so that the instructions do trap. */
#include <sys/wait.h>

#include "backend/cpu/host/amx.c"
#include "support/support.h"

#if defined __x86_64__ && defined __linux__
static volatile sig_atomic_t handled;

static void handler(int number) {
    (void)number;
    handled++;
}

static void trying_disturbs_nobody(void **state) {
    (void)state;
    bool expected = fb_amx_usable();
    signal(SIGILL, handler);
    signal(SIGCHLD, handler);
    for (int i = 0; i < 3; i++) assert_int_equal(child_can(), expected);
    assert_int_equal(handled, 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG | __WALL), -1);
    assert_int_equal(errno, ECHILD);
    signal(SIGILL, SIG_DFL);
    signal(SIGCHLD, SIG_DFL);
}
#else
static void trying_disturbs_nobody(void **state) {
    (void)state;
    assert_false(fb_amx_usable());
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(trying_disturbs_nobody)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
