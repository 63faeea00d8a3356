/* The cost of reading memory and of barriers. */
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/stats.h"
#include "plan/calibrate.h"

/* Runs of a barrier measurement: many short ones, so that other processes disturb only some of them. */
#define BARRIER_RUNS 150

/* ---- reading memory ---- */

typedef uint64_t words __attribute__((vector_size(32)));

/* Reads as the projections do (backend/cpu/tile.h): four rows by cache lines, with prefetches into both
 * caches. A plain sequential loop reads a fifth less from an L3 cache. The result depends on every byte, so
 * that the compiler cannot drop a load. */
#define ROW  1024
#define TILE (4 * ROW)
#define READ_BODY                                                                                            \
    words sum[4] = {{0}};                                                                                    \
    for (int64_t tile = 0; tile < bytes; tile += TILE)                                                       \
        for (int64_t i = 0; i < ROW; i += 64)                                                                \
            for (int k = 0; k < 4; k++) {                                                                    \
                const uint8_t *at = from + tile + k * ROW + i, *ahead = from + tile + 4 * i + 64 * k;        \
                __builtin_prefetch(ahead + TILE, 0, 3);                                                      \
                __builtin_prefetch(ahead + 3 * TILE, 0, 2);                                                  \
                sum[k] ^= *(const words *)(const void *)at;                                                  \
                sum[k] ^= *(const words *)(const void *)(at + 32);                                           \
            }                                                                                                \
    words all = sum[0] ^ sum[1] ^ sum[2] ^ sum[3];                                                           \
    return all[0] ^ all[1] ^ all[2] ^ all[3];

static uint64_t read_plain(const uint8_t *from, int64_t bytes) { READ_BODY }

#ifdef __x86_64__
__attribute__((target("avx2"))) static uint64_t read_avx2(const uint8_t *from, int64_t bytes) { READ_BODY }
#endif

typedef struct reading {
    fb_pool *pool;
    uint8_t *memory;
    int64_t bytes;
    int32_t times;
    uint64_t (*read)(const uint8_t *from, int64_t bytes);
    uint64_t sink[FB_POOL_MAX_WORKERS];
} reading;

static void touch_worker(void *arg, int32_t worker) {
    reading *r = arg;
    int64_t begin, end;
    fb_pool_share(r->bytes, 4096, worker, fb_pool_workers(r->pool), &begin, &end);
    memset(r->memory + begin, 1, (size_t)(end - begin));
}

static void read_worker(void *arg, int32_t worker) {
    reading *r = arg;
    int64_t begin, end;
    fb_pool_share(r->bytes, 4096, worker, fb_pool_workers(r->pool), &begin, &end);
    for (int32_t i = 0; i < r->times; i++) r->sink[worker] += r->read(r->memory + begin, end - begin);
}

static double best_read(reading *r) {
    double best = INFINITY;
    for (int run = 0; run < (r->bytes > 32 << 20 ? 3 : 60); run++) {
        double began = fb_now();
        fb_pool_run(r->pool, fb_pool_workers(r->pool), read_worker, r);
        best = fmin(best, (fb_now() - began) / r->times);
    }
    return best;
}

/* A chain of loads through the whole footprint in random order; each address comes from the load before.
 * There is one load per page, so the time includes the page lookup. */
static double measure_latency(uint8_t *memory, int64_t bytes) {
    enum { PAGE = 4096, LOADS = 2000 };
    int64_t pages = bytes / PAGE;
    uint64_t random = 1, at = 0;
    for (int64_t i = 0; i < pages; i++) memcpy(memory + i * PAGE, &(uint64_t){(uint64_t)i * PAGE}, 8);
    for (int64_t i = pages - 1; i > 0; i--) { /* Sattolo's algorithm: one cycle through all pages */
        uint64_t mine, other;
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint8_t *to = memory + (int64_t)((random >> 33) % (uint64_t)i) * PAGE;
        memcpy(&mine, memory + i * PAGE, 8);
        memcpy(&other, to, 8);
        memcpy(memory + i * PAGE, &other, 8);
        memcpy(to, &mine, 8);
    }
    double best = INFINITY;
    for (int run = 0; run < FB_CALIBRATE_RUNS; run++) {
        double began = fb_now();
        for (int i = 0; i < LOADS; i++) memcpy(&at, memory + at, 8);
        double took = fb_now() - began;
        best = fmin(best, took / LOADS + (at == 1)); /* at is never 1, but the compiler cannot know that */
    }
    return best;
}

/* Uses small pages, as the mapped file of weights does. If memory is too short for the largest footprints,
 * they get the figure of the last one that fit. */
fb_status fb_calibrate_bandwidth(fb_machine *m, fb_pool *pool, fb_error *err) {
    int64_t most = 512 << 20;
    while (most > 1 << 20 && most > fb_memory_available() / 2) most /= 2;
    uint8_t *memory = mmap(NULL, (size_t)most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return fb_fail_memory(err, "bandwidth measurement", most);
    madvise(memory, (size_t)most, MADV_NOHUGEPAGE);
    reading r = {.pool = pool, .memory = memory, .bytes = most, .read = read_plain};
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) r.read = read_avx2;
#endif
    fb_pool_run(pool, fb_pool_workers(pool), touch_worker, &r);
    for (int i = 0; i < FB_CURVE_POINTS; i++) {
        int64_t wanted = (int64_t)(512 << 10) << i;
        r.bytes = wanted < most ? wanted : most;
        r.times = (int32_t)((4 << 20) / r.bytes);
        if (r.times < 1) r.times = 1;
        m->bytes[i] = (double)wanted;
        m->bandwidth[i] = (double)r.bytes / best_read(&r);
    }
    m->latency = measure_latency(memory, FB_CALIBRATE_STREAMED < most ? FB_CALIBRATE_STREAMED : most);
    munmap(memory, (size_t)most);
    return FB_OK;
}

/* ---- barriers, and bytes that pass between workers ---- */

static uint64_t read_few(const uint8_t *from, int64_t bytes) {
    words sum = {0};
    for (int64_t i = 0; i < bytes; i += (int64_t)sizeof sum) sum ^= *(const words *)(const void *)(from + i);
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
}

typedef struct barrier_run {
    fb_pool *pool;
    int32_t times;
    int64_t bytes; /* bytes that each worker writes and the next one reads between barriers */
    uint8_t *memory;
    uint64_t sink[FB_POOL_MAX_WORKERS];
    double began, ended; /* times of worker 0, after a first barrier of all workers */
} barrier_run;

static void barrier_worker(void *arg, int32_t worker) {
    barrier_run *m = arg;
    int32_t workers = fb_pool_workers(m->pool), next = (worker + 1) % workers;
    fb_pool_barrier(m->pool);
    if (worker == 0) m->began = fb_now();
    for (int32_t i = 0; i < m->times; i++) {
        if (m->bytes) memset(m->memory + worker * m->bytes, i, (size_t)m->bytes);
        fb_pool_barrier(m->pool);
        if (m->bytes) m->sink[worker] += read_few(m->memory + next * m->bytes, m->bytes);
        if (m->bytes) fb_pool_barrier(m->pool);
    }
    if (worker == 0) m->ended = fb_now();
}

/* The 10th percentile. The very best runs are lucky: all workers arrived at the same time. */
static double barrier_seconds(barrier_run *m) {
    double seconds[BARRIER_RUNS];
    for (int run = 0; run < BARRIER_RUNS; run++) {
        fb_pool_run(m->pool, fb_pool_workers(m->pool), barrier_worker, m);
        seconds[run] = (m->ended - m->began) / m->times;
    }
    fb_stats_sort(seconds, BARRIER_RUNS);
    return fb_stats_quantile(seconds, BARRIER_RUNS, 0.1);
}

/* Keeps the lowest figures of several calls. */
fb_status fb_calibrate_barriers(fb_machine *m, fb_pool *pool, fb_error *err) {
    enum { FEW = 1024, MANY = 4096 };
    void *memory;
    if (m->workers == 1) return FB_OK;
    FB_TRY(fb_memory_take("barrier measurement", (int64_t)m->workers * MANY, &memory, err));
    barrier_run at = {.pool = pool, .times = 16, .memory = memory};
    double empty = barrier_seconds(&at);
    at.times = 8;
    at.bytes = FEW;
    double few = barrier_seconds(&at);
    at.bytes = MANY;
    double many = barrier_seconds(&at);
    /* The difference is meaningful only if this round was undisturbed. */
    if (empty < m->barrier) m->foreign = fmax(0, (many - few) / (MANY - FEW));
    m->barrier = fmin(m->barrier, empty);
    free(memory);
    return FB_OK;
}
