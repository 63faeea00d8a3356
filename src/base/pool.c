#include "base/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Spins before a waiting worker sleeps: about 100 us (a pause instruction takes 140 cycles on Skylake and
 * later, 40 on Zen). That is ten times the longest wait between balanced workers, and short enough that an
 * idle pool soon costs nothing. */
#define SPINS 2000

/* Spins between two checks whether this worker runs on the same core as another worker of the pool; if so, it
 * yields. Otherwise two workers on one core spin against each other: with one other process on two cores a
 * decode step took 10 ms instead of 1. The worker does not yield without this check: if a foreign process
 * shares its core, each yield costs a time slice. */
#define LOOK 64

/* Spins between two calls of the idle function: 3 us on Zen, 10 us on Intel. */
#define IDLE 200

/* Each counter has its own cache line. Spinning on one does not slow writes to another. */
typedef struct counter {
    _Alignas(64) atomic_uint value;
} counter;

/* A counter that workers wait on, and how many of them sleep in the kernel. */
typedef struct signal_line {
    _Alignas(64) atomic_uint value, sleepers;
} signal_line;

/* How many fork() calls lie between the process that loaded the library and this one. A child has none of its
 * parent's threads. */
static int32_t forks;
static void count_fork(void) { forks++; }
static pthread_once_t forks_counted = PTHREAD_ONCE_INIT;
static void count_forks(void) { pthread_atfork(NULL, NULL, count_fork); }

struct fb_pool {
    counter arrived;                         /* workers at the barrier */
    signal_line phase;                       /* counts barriers */
    signal_line called[FB_POOL_MAX_WORKERS]; /* by worker: the number of runs it was called to */
    counter core[FB_POOL_MAX_WORKERS];       /* by worker: the core on which it last ran */
    fb_pool_fn function;
    void *arg;
    void (*idle)(void *arg); /* or NULL */
    void *idle_arg;
    atomic_bool watching; /* worker 1 will call `idle` at least once more */
    bool stop;
    int32_t workers; /* threads in the pool, the caller's included */
    int32_t active;  /* of the current run */
    int32_t forks;   /* value of the global `forks` when the threads were started */
    int32_t cores;   /* cores that this process may use */
    pthread_t threads[FB_POOL_MAX_WORKERS];
};

typedef struct worker_start {
    fb_pool *pool;
    int32_t worker, creator; /* creator: the core of the thread that started this one */
} worker_start;

static inline void pause_cpu(void) {
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

static void futex_wait(atomic_uint *word, unsigned expected) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
}

/* The number of this thread's worker. The caller of fb_pool_run is worker 0 of every pool. */
static _Thread_local int32_t this_worker;

static void note_core(fb_pool *pool) {
    atomic_store_explicit(&pool->core[this_worker].value, (unsigned)sched_getcpu(), memory_order_relaxed);
}

/* Whether another worker of the run was last seen on this worker's core. */
static bool shares_core(fb_pool *pool, int32_t workers) {
    note_core(pool);
    unsigned core = atomic_load_explicit(&pool->core[this_worker].value, memory_order_relaxed);
    for (int32_t i = 0; i < workers; i++)
        if (i != this_worker && atomic_load_explicit(&pool->core[i].value, memory_order_relaxed) == core)
            return true;
    return false;
}

/* Waits until the value of `watched` is not `seen`. `workers` is the count of the run that this wait belongs
 * to. pool->active cannot be read here: the pool may start the next run before this worker notices the
 * change. */
static void wait_change(fb_pool *pool, signal_line *watched, unsigned seen, int32_t workers) {
    /* With more workers than cores a spinning worker takes the core from the worker it waits for. */
    int32_t spins = workers <= pool->cores ? SPINS : 0;
    bool watches = pool->idle && watched == &pool->called[1];
    for (int32_t i = 0; i < spins; i++) {
        if (atomic_load_explicit(&watched->value, memory_order_acquire) != seen) return;
        if (watches && i % IDLE == IDLE - 1) pool->idle(pool->idle_arg);
        pause_cpu();
        if (i % LOOK == LOOK - 1 && shares_core(pool, workers)) sched_yield();
    }
    if (watches) {
        atomic_store(&pool->watching, false);
        pool->idle(pool->idle_arg);
    }
    atomic_fetch_add(&watched->sleepers, 1);
    while (atomic_load(&watched->value) == seen) futex_wait(&watched->value, seen);
    atomic_fetch_sub(&watched->sleepers, 1);
}

/* Increments the counter and wakes the workers that sleep on it. No wake-up is lost: this side increments,
 * then reads `sleepers`; the other side increments `sleepers`, then reads the counter. All four are
 * sequentially consistent. */
static void advance(signal_line *advanced) {
    atomic_fetch_add(&advanced->value, 1);
    if (atomic_load(&advanced->sleepers)) futex_wake(&advanced->value);
}

void fb_pool_barrier(fb_pool *pool) {
    int32_t workers = pool->active;
    if (workers == 1) return;
    note_core(pool);
    unsigned phase = atomic_load_explicit(&pool->phase.value, memory_order_relaxed);
    if (atomic_fetch_add(&pool->arrived.value, 1) + 1 == (unsigned)workers) {
        atomic_store_explicit(&pool->arrived.value, 0, memory_order_relaxed);
        advance(&pool->phase);
    } else {
        wait_change(pool, &pool->phase, phase, workers);
    }
}

/* Moves a new thread to a core of its own, the worker-th after its creator's, and then lifts the restriction
 * again. Linux starts a thread on its creator's core. Workers that yield to each other there may stay
 * together for longer than a short run takes. */
static void spread(int32_t worker, int32_t creator) {
    cpu_set_t allowed, one;
    if (creator < 0 || sched_getaffinity(0, sizeof allowed, &allowed)) return;
    int32_t core = creator;
    for (int32_t left = worker % CPU_COUNT(&allowed); left > 0;) {
        core = (core + 1) % CPU_SETSIZE;
        left -= CPU_ISSET(core, &allowed) != 0;
    }
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof one, &one) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
}

/* Whether a worker of the run was last seen on this core. */
static bool has_worker(fb_pool *pool, int32_t workers, int core) {
    for (int32_t i = 1; i < workers; i++)
        if (atomic_load_explicit(&pool->core[i].value, memory_order_relaxed) == (unsigned)core) return true;
    return false;
}

/* Moves the caller to a core without a worker. A caller that slept while others used the pool often wakes up
 * on a core where a worker spins, and the system takes long to separate them: eight callers in turn took 1.25
 * times as long. */
static void leave_worker(fb_pool *pool, int32_t workers) {
    cpu_set_t allowed, one;
    if (!has_worker(pool, workers, sched_getcpu()) || sched_getaffinity(0, sizeof allowed, &allowed)) return;
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &allowed) || has_worker(pool, workers, core)) continue;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        if (sched_setaffinity(0, sizeof one, &one) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
        return;
    }
}

static void *worker_main(void *start_arg) {
    worker_start start = *(worker_start *)start_arg;
    free(start_arg);
    fb_pool *pool = start.pool;
    this_worker = start.worker;
    spread(start.worker, start.creator);
    int32_t workers = start.worker + 1;
    for (unsigned seen = 0;; seen++) {
        wait_change(pool, &pool->called[start.worker], seen, workers);
        if (pool->stop) return NULL;
        workers = pool->active;
        pool->function(pool->arg, start.worker);
        fb_pool_barrier(pool);
    }
}

void fb_pool_run(fb_pool *pool, int32_t workers, fb_pool_fn function, void *arg) {
    this_worker = 0;
    pool->function = function;
    pool->arg = arg;
    pool->active = workers;
    if (workers > 1) {
        atomic_store(&pool->watching, true);
        if (workers <= pool->cores) leave_worker(pool, workers);
    }
    for (int32_t worker = 1; worker < workers; worker++) advance(&pool->called[worker]);
    function(arg, 0);
    fb_pool_barrier(pool);
}

void fb_pool_on_idle(fb_pool *pool, void (*idle)(void *arg), void *arg) {
    pool->idle_arg = arg;
    pool->idle = idle;
}

const atomic_bool *fb_pool_watching(const fb_pool *pool) { return &pool->watching; }

/* After a fork the child has no threads: the pool is reset to a new one. */
static void forget_threads(fb_pool *pool) {
    pool->forks = forks;
    pool->workers = pool->active = 1;
    atomic_init(&pool->arrived.value, 0);
    atomic_init(&pool->watching, false);
    for (int32_t i = -1; i < FB_POOL_MAX_WORKERS; i++) {
        signal_line *line = i < 0 ? &pool->phase : &pool->called[i];
        atomic_init(&line->value, 0);
        atomic_init(&line->sleepers, 0);
    }
}

fb_status fb_pool_grow(fb_pool *pool, int32_t workers, fb_error *err) {
    if (pool->forks != forks) forget_threads(pool);
    if (workers < 1 || workers > FB_POOL_MAX_WORKERS)
        return fb_fail(err, FB_ERROR_USAGE, "threads: %d (1 to %d)", workers, FB_POOL_MAX_WORKERS);
    for (; pool->workers < workers; pool->workers++) {
        worker_start *start = malloc(sizeof *start);
        if (!start) return fb_fail_memory(err, "threads", sizeof *start);
        *start = (worker_start){pool, pool->workers, sched_getcpu()};
        if (pthread_create(&pool->threads[pool->workers], NULL, worker_main, start)) {
            free(start);
            return fb_fail(err, FB_ERROR_SYSTEM, "threads: %d could be started (%d asked)", pool->workers,
                           workers);
        }
    }
    return FB_OK;
}

fb_status fb_pool_create(int32_t workers, fb_pool **out, fb_error *err) {
    *out = NULL;
    fb_pool *pool = aligned_alloc(64, sizeof *pool);
    if (!pool) return fb_fail_memory(err, "thread pool", sizeof *pool);
    memset(pool, 0, sizeof *pool);
    pthread_once(&forks_counted, count_forks);
    forget_threads(pool);
    pool->cores = fb_pool_cores();
    fb_status status = fb_pool_grow(pool, workers, err);
    if (status != FB_OK) {
        fb_pool_free(pool);
        return status;
    }
    *out = pool;
    return FB_OK;
}

void fb_pool_free(fb_pool *pool) {
    if (!pool) return;
    if (pool->forks != forks) forget_threads(pool);
    pool->stop = true;
    for (int32_t i = 1; i < pool->workers; i++) advance(&pool->called[i]);
    for (int32_t i = 1; i < pool->workers; i++) pthread_join(pool->threads[i], NULL);
    free(pool);
}

int32_t fb_pool_workers(const fb_pool *pool) { return pool->workers; }

int32_t fb_pool_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set)) return 1;
    int count = CPU_COUNT(&set);
    return count > FB_POOL_MAX_WORKERS ? FB_POOL_MAX_WORKERS : count;
}
