#include "base/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Spins before a waiting lane sleeps: about 100 us (a pause is 140 cycles on Skylake and later, 40 on Zen),
 * an order of magnitude above the longest wait between balanced lanes, and short enough that an idle pool
 * soon costs nothing. */
#define SPINS 2000

/* Spins after which a lane looks whether it keeps another one from running. Lanes that the system has put on
 * one core would otherwise wait out each other's spins: with one other process on two cores a decode step
 * took 10 ms instead of 1. Yielding always is no answer: to a lane that shares its core with a stranger it
 * costs a time slice. */
#define LOOK 64

/* Spins between two calls of the idle function: 3 us on Zen, 10 us on Intel. */
#define IDLE 200

/* Each counter on its own cache line, so that spinning on one does not slow writing another. */
typedef struct counter {
    _Alignas(64) atomic_uint value;
} counter;

/* What a waiting lane watches, and how many sleep in the kernel on it. */
typedef struct signal_line {
    _Alignas(64) atomic_uint value, sleepers;
} signal_line;

/* How often this process is a fork of one that had the library: a child has none of its parent's threads. */
static int32_t forks;
static void count_fork(void) { forks++; }
static pthread_once_t forks_counted = PTHREAD_ONCE_INIT;
static void count_forks(void) { pthread_atfork(NULL, NULL, count_fork); }

struct fb_pool {
    counter arrived;                       /* lanes at the barrier */
    signal_line phase;                     /* counts barriers */
    signal_line called[FB_POOL_MAX_LANES]; /* by lane: counts the runs that it was called to */
    counter core[FB_POOL_MAX_LANES];       /* where each lane was last seen */
    fb_pool_fn function;
    void *arg;
    void (*idle)(void *arg); /* or NULL */
    void *idle_arg;
    atomic_bool watching; /* the first worker will call it once more */
    bool stop;
    int32_t lanes;  /* threads that there are, the caller's included */
    int32_t active; /* of the current run */
    int32_t forks;  /* when the threads were started */
    int32_t cores;  /* that this process may use */
    pthread_t threads[FB_POOL_MAX_LANES];
};

typedef struct worker_start {
    fb_pool *pool;
    int32_t lane, creator; /* the core that the creator is on */
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

/* The lane that this thread is. The caller of fb_pool_run is lane 0 of every pool. */
static _Thread_local int32_t this_lane;

static void note_core(fb_pool *pool) {
    atomic_store_explicit(&pool->core[this_lane].value, (unsigned)sched_getcpu(), memory_order_relaxed);
}

/* Whether another of the run's lanes was last seen on the core that this one is on. */
static bool shares_core(fb_pool *pool, int32_t lanes) {
    note_core(pool);
    unsigned core = atomic_load_explicit(&pool->core[this_lane].value, memory_order_relaxed);
    for (int32_t i = 0; i < lanes; i++)
        if (i != this_lane && atomic_load_explicit(&pool->core[i].value, memory_order_relaxed) == core)
            return true;
    return false;
}

/* Waits until `watched` is no longer `seen`. `lanes`: of the run that the wait belongs to; the pool may be in
 * the next one before this lane has seen that it need not wait any more. */
static void wait_change(fb_pool *pool, signal_line *watched, unsigned seen, int32_t lanes) {
    /* With more lanes than cores, spinning only keeps the core from the lane that is waited for. */
    int32_t spins = lanes <= pool->cores ? SPINS : 0;
    bool watches = pool->idle && watched == &pool->called[1];
    for (int32_t i = 0; i < spins; i++) {
        if (atomic_load_explicit(&watched->value, memory_order_acquire) != seen) return;
        if (watches && i % IDLE == IDLE - 1) pool->idle(pool->idle_arg);
        pause_cpu();
        if (i % LOOK == LOOK - 1 && shares_core(pool, lanes)) sched_yield();
    }
    if (watches) {
        atomic_store(&pool->watching, false);
        pool->idle(pool->idle_arg);
    }
    atomic_fetch_add(&watched->sleepers, 1);
    while (atomic_load(&watched->value) == seen) futex_wait(&watched->value, seen);
    atomic_fetch_sub(&watched->sleepers, 1);
}

/* Advances `advanced` and wakes who sleeps on it. The order (advance, then look for sleepers; there:
 * announce, then look at the counter) in sequentially consistent atomics leaves no gap for a lost wake-up. */
static void advance(signal_line *advanced) {
    atomic_fetch_add(&advanced->value, 1);
    if (atomic_load(&advanced->sleepers)) futex_wake(&advanced->value);
}

void fb_pool_barrier(fb_pool *pool) {
    int32_t lanes = pool->active;
    if (lanes == 1) return;
    note_core(pool);
    unsigned phase = atomic_load_explicit(&pool->phase.value, memory_order_relaxed);
    if (atomic_fetch_add(&pool->arrived.value, 1) + 1 == (unsigned)lanes) {
        atomic_store_explicit(&pool->arrived.value, 0, memory_order_relaxed);
        advance(&pool->phase);
    } else {
        wait_change(pool, &pool->phase, phase, lanes);
    }
}

/* Starts a lane on a core of its own, the lane-th after its creator's, and leaves it free to move. A new
 * thread begins beside its creator, and lanes that are polite to each other there may stay for longer than a
 * short run takes. */
static void spread(int32_t lane, int32_t creator) {
    cpu_set_t allowed, one;
    if (creator < 0 || sched_getaffinity(0, sizeof allowed, &allowed)) return;
    int32_t core = creator;
    for (int32_t left = lane % CPU_COUNT(&allowed); left > 0;) {
        core = (core + 1) % CPU_SETSIZE;
        left -= CPU_ISSET(core, &allowed) != 0;
    }
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof one, &one) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
}

/* Whether a worker of the run was last seen on the core. */
static bool has_worker(fb_pool *pool, int32_t lanes, int core) {
    for (int32_t i = 1; i < lanes; i++)
        if (atomic_load_explicit(&pool->core[i].value, memory_order_relaxed) == (unsigned)core) return true;
    return false;
}

/* A caller that was asleep while others had the pool wakes up beside a worker that spins, and would stay
 * there until the system notices: eight callers in turns took 1.25 times as long. It moves to a core without
 * one. */
static void leave_worker(fb_pool *pool, int32_t lanes) {
    cpu_set_t allowed, one;
    if (!has_worker(pool, lanes, sched_getcpu()) || sched_getaffinity(0, sizeof allowed, &allowed)) return;
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &allowed) || has_worker(pool, lanes, core)) continue;
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
    this_lane = start.lane;
    spread(start.lane, start.creator);
    int32_t lanes = start.lane + 1;
    for (unsigned seen = 0;; seen++) {
        wait_change(pool, &pool->called[start.lane], seen, lanes);
        if (pool->stop) return NULL;
        lanes = pool->active;
        pool->function(pool->arg, start.lane);
        fb_pool_barrier(pool);
    }
}

void fb_pool_run(fb_pool *pool, int32_t lanes, fb_pool_fn function, void *arg) {
    this_lane = 0;
    pool->function = function;
    pool->arg = arg;
    pool->active = lanes;
    if (lanes > 1) {
        atomic_store(&pool->watching, true);
        if (lanes <= pool->cores) leave_worker(pool, lanes);
    }
    for (int32_t lane = 1; lane < lanes; lane++) advance(&pool->called[lane]);
    function(arg, 0);
    fb_pool_barrier(pool);
}

void fb_pool_on_idle(fb_pool *pool, void (*idle)(void *arg), void *arg) {
    pool->idle_arg = arg;
    pool->idle = idle;
}

const atomic_bool *fb_pool_watching(const fb_pool *pool) { return &pool->watching; }

/* In a child of the process that started them, there are no threads: as in a new pool. */
static void forget_threads(fb_pool *pool) {
    pool->forks = forks;
    pool->lanes = pool->active = 1;
    atomic_init(&pool->arrived.value, 0);
    atomic_init(&pool->watching, false);
    for (int32_t i = -1; i < FB_POOL_MAX_LANES; i++) {
        signal_line *line = i < 0 ? &pool->phase : &pool->called[i];
        atomic_init(&line->value, 0);
        atomic_init(&line->sleepers, 0);
    }
}

fb_status fb_pool_grow(fb_pool *pool, int32_t lanes, fb_error *err) {
    if (pool->forks != forks) forget_threads(pool);
    if (lanes < 1 || lanes > FB_POOL_MAX_LANES)
        return fb_fail(err, FB_ERROR_USAGE, "threads: %d (1 to %d)", lanes, FB_POOL_MAX_LANES);
    for (; pool->lanes < lanes; pool->lanes++) {
        worker_start *start = malloc(sizeof *start);
        if (start) *start = (worker_start){pool, pool->lanes, sched_getcpu()};
        if (!start || pthread_create(&pool->threads[pool->lanes], NULL, worker_main, start)) {
            free(start);
            return fb_fail(err, FB_ERROR_SYSTEM, "threads: %d could be started (%d asked)", pool->lanes,
                           lanes);
        }
    }
    return FB_OK;
}

fb_status fb_pool_create(int32_t lanes, fb_pool **out, fb_error *err) {
    *out = NULL;
    fb_pool *pool = aligned_alloc(64, sizeof *pool);
    if (!pool) return fb_fail_memory(err, "thread pool", sizeof *pool);
    memset(pool, 0, sizeof *pool);
    pthread_once(&forks_counted, count_forks);
    forget_threads(pool);
    pool->cores = fb_pool_cores();
    fb_status status = fb_pool_grow(pool, lanes, err);
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
    for (int32_t i = 1; i < pool->lanes; i++) advance(&pool->called[i]);
    for (int32_t i = 1; i < pool->lanes; i++) pthread_join(pool->threads[i], NULL);
    free(pool);
}

int32_t fb_pool_lanes(const fb_pool *pool) { return pool->lanes; }

int32_t fb_pool_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set)) return 1;
    int count = CPU_COUNT(&set);
    return count > FB_POOL_MAX_LANES ? FB_POOL_MAX_LANES : count;
}
