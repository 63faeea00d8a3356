/* Whether this process may use AMX.
 *
 * Linux gives a process the tile registers when it asks. Some virtual machines announce AMX, and its
 * instructions then fault. So a child process tries one first. A handler for the fault would be the whole
 * process's, and another thread may need its own meanwhile. The child is no fork() that others can see: it
 * runs no handlers of pthread_atfork, sends no SIGCHLD when it ends, and wait() of the rest of the process
 * does not return it. It runs only system calls and the instructions themselves. */
#include "backend/cpu/host/amx.h"

#if defined __x86_64__ && defined __linux__
#include <cpuid.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/cpu/amx/tiles.h"

#define REQUEST_PERMISSION 0x1023 /* ARCH_REQ_XCOMP_PERM */
#define TILE_DATA          18     /* the state's number */
#define TILE_STATES        (3u << 17)
/* CPUID leaf 7, EDX: clang 14 has no names for them. */
#define BIT_AMX_TILE (1u << 24)
#define BIT_AMX_INT8 (1u << 25)

__attribute__((target("xsave"))) static bool announced(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return false;
    if ((_xgetbv(0) & TILE_STATES) != TILE_STATES) return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & BIT_AMX_TILE) && (d & BIT_AMX_INT8);
}

/* The child: the instructions of the kernels, and whether the product is right. */
__attribute__((target("amx-tile,amx-int8"))) static int try_tiles(void) {
    const amx_shape shape = {.palette = 1, .bytes = {4, 4, 4}, .rows = {1, 1, 1}};
    const int8_t a[4] = {1, -2, 3, -4}, b[4] = {5, 6, -7, 8};
    int32_t sum = 0;
    amx_configure(&shape);
    amx_zero(0);
    amx_ordered();
    amx_load(1, a, 4);
    amx_load(2, b, 4);
    amx_dot(0, 1, 2);
    amx_store(0, &sum, 4);
    amx_release();
    return sum == 5 - 12 - 21 - 32 ? 0 : 1;
}

static bool child_can(void) {
    long child = syscall(SYS_clone, 0, NULL, NULL, NULL, NULL);
    if (child == 0) {
        static const int faults[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGTRAP};
        for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) signal(faults[i], SIG_DFL);
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
        _exit(try_tiles());
    }
    int status = -1;
    while (child > 0 && waitpid((pid_t)child, &status, __WALL) < 0)
        if (errno != EINTR) return false;
    return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool usable;

static void look(void) {
    usable = announced() && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0 && child_can();
}

bool fb_amx_usable(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look);
    return usable;
}
#else
bool fb_amx_usable(void) { return false; }
#endif
