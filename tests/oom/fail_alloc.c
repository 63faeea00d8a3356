/* A library for LD_PRELOAD that lets one allocation of a program fail: the N-th since main began. What counts
 * is malloc and what is made of it (strdup, asprintf, open_memstream, stdio's buffers), calloc, realloc,
 * aligned memory, anonymous mmap, and pthread_create. By environment variables:
 *
 *     FAIL_ALLOC_AT=N      which one fails, from 0
 *     FAIL_ALLOC_AFTER=1   all after it fail, too
 *     FAIL_ALLOC_LIST=F    none fails; file F gets one line for each: a hash of its call stack in hexadecimal
 *
 * A program that hangs is killed by SIGALRM. */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FRAMES  24 /* of a call stack that tell it from others */
#define SECONDS 20 /* until a program counts as hanging */

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
void *memalign(size_t alignment, size_t size);
int __libc_start_main(int (*main_function)(int, char **, char **), int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*rtld_fini)(void), void *stack_end);

static atomic_bool started;
static atomic_llong count;
static long long fail_at = -1;
static bool fail_after;
static int list = -1;
static _Thread_local bool listing; /* backtrace allocates */

/* The call stack without what is in this file. */
static uint64_t hash_stack(void) {
    void *frames[FRAMES];
    int found = backtrace(frames, FRAMES);
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 2; i < found; i++) hash = (hash ^ (uintptr_t)frames[i]) * 0x100000001b3u;
    return hash;
}

static __attribute__((noinline)) void note(void) {
    char line[32];
    listing = true;
    int size = snprintf(line, sizeof line, "%llx\n", (unsigned long long)hash_stack());
    if (write(list, line, (size_t)size) != size) abort();
    listing = false;
}

/* Whether this allocation is one to fail. */
static bool fails(void) {
    if (!atomic_load_explicit(&started, memory_order_relaxed) || listing) return false;
    long long index = atomic_fetch_add(&count, 1);
    if (list >= 0) note();
    if (fail_at < 0 || index < fail_at || (index > fail_at && !fail_after)) return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t size) { return fails() ? NULL : __libc_malloc(size); }
void *calloc(size_t number, size_t size) { return fails() ? NULL : __libc_calloc(number, size); }
void *realloc(void *old, size_t size) { return fails() ? NULL : __libc_realloc(old, size); }
void *memalign(size_t alignment, size_t size) { return fails() ? NULL : __libc_memalign(alignment, size); }
void *aligned_alloc(size_t alignment, size_t size) {
    return fails() ? NULL : __libc_memalign(alignment, size);
}
int posix_memalign(void **out, size_t alignment, size_t size) {
    void *memory = fails() ? NULL : __libc_memalign(alignment, size);
    if (memory) *out = memory;
    return memory ? 0 : ENOMEM;
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    if ((flags & MAP_ANONYMOUS) && fails()) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, address, size, protection, flags, fd, offset);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *),
                   void *arg) {
    static __typeof__(&pthread_create) real;
    if (fails()) return EAGAIN;
    listing = true; /* a thread's stack is part of it */
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    int status = real(thread, attributes, function, arg);
    listing = false;
    return status;
}

/* ---- main begins --------------------------------------------------------------------------------------- */

static int (*real_main)(int, char **, char **);

static int counted_main(int argc, char **argv, char **environment) {
    const char *at = getenv("FAIL_ALLOC_AT"), *path = getenv("FAIL_ALLOC_LIST");
    if (at) fail_at = atoll(at);
    fail_after = getenv("FAIL_ALLOC_AFTER") != NULL;
    if (path) list = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    void *frame;
    backtrace(&frame, 1); /* loads what it needs */
    alarm(SECONDS);
    atomic_store(&started, true);
    return real_main(argc, argv, environment);
}

int __libc_start_main(int (*main_function)(int, char **, char **), int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*rtld_fini)(void), void *stack_end) {
    __typeof__(&__libc_start_main) real;
    *(void **)&real = dlsym(RTLD_NEXT, "__libc_start_main");
    real_main = main_function;
    return real(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}
