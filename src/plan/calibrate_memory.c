/* What reading memory and meeting at barriers take. */
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/stats.h"
#include "plan/calibrate.h"

/* Of barriers, many short runs: one that no other process disturbed is among them. */
#define MEETINGS 150

/* ---- reading memory ----------------------------------------------------------------------------------- */

typedef uint64_t words __attribute__((vector_size(32)));

/* As the projections read (backend/cpu/tile.h): four rows by cache lines, what comes next fetched ahead into
 * both caches. A loop that reads straight on gets a fifth less from a third-level cache. The result depends
 * on every byte, so that no load can be left out. */
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
    uint64_t sink[FB_POOL_MAX_LANES];
} reading;

static void touch_lane(void *arg, int32_t lane) {
    reading *r = arg;
    int64_t begin, end;
    fb_pool_share(r->bytes, 4096, lane, fb_pool_lanes(r->pool), &begin, &end);
    memset(r->memory + begin, 1, (size_t)(end - begin));
}

static void read_lane(void *arg, int32_t lane) {
    reading *r = arg;
    int64_t begin, end;
    fb_pool_share(r->bytes, 4096, lane, fb_pool_lanes(r->pool), &begin, &end);
    for (int32_t i = 0; i < r->times; i++) r->sink[lane] += r->read(r->memory + begin, end - begin);
}

static double best_read(reading *r) {
    double best = INFINITY;
    for (int run = 0; run < (r->bytes > 32 << 20 ? 3 : 60); run++) {
        double began = fb_now();
        fb_pool_run(r->pool, fb_pool_lanes(r->pool), read_lane, r);
        best = fmin(best, (fb_now() - began) / r->times);
    }
    return best;
}

/* A chain of loads through the whole footprint in random order, each address from the load before: one page
 * each, so that it includes finding the page. */
static double measure_latency(uint8_t *memory, int64_t bytes) {
    enum { PAGE = 4096, LOADS = 2000 };
    int64_t pages = bytes / PAGE;
    uint64_t random = 1, at = 0;
    for (int64_t i = 0; i < pages; i++) memcpy(memory + i * PAGE, &(uint64_t){(uint64_t)i * PAGE}, 8);
    for (int64_t i = pages - 1; i > 0; i--) { /* Sattolo: one cycle through all of them */
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
        best = fmin(best, took / LOADS + (at == 1)); /* never 1, which the compiler cannot know */
    }
    return best;
}

/* Small pages, as the mapped file of weights has them. Where the largest footprints find no room, the last
 * one that did stands for them. */
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
    fb_pool_run(pool, fb_pool_lanes(pool), touch_lane, &r);
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

/* ---- barriers and what is handed over at them --------------------------------------------------------- */

static uint64_t read_few(const uint8_t *from, int64_t bytes) {
    words sum = {0};
    for (int64_t i = 0; i < bytes; i += (int64_t)sizeof sum) sum ^= *(const words *)(const void *)(from + i);
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
}

typedef struct meeting {
    fb_pool *pool;
    int32_t times;
    int64_t bytes; /* that each lane writes and the next one reads between barriers */
    uint8_t *memory;
    uint64_t sink[FB_POOL_MAX_LANES];
    double began, ended; /* of lane 0, after all lanes have met once */
} meeting;

static void meet_lane(void *arg, int32_t lane) {
    meeting *m = arg;
    int32_t lanes = fb_pool_lanes(m->pool), next = (lane + 1) % lanes;
    fb_pool_barrier(m->pool);
    if (lane == 0) m->began = fb_now();
    for (int32_t i = 0; i < m->times; i++) {
        if (m->bytes) memset(m->memory + lane * m->bytes, i, (size_t)m->bytes);
        fb_pool_barrier(m->pool);
        if (m->bytes) m->sink[lane] += read_few(m->memory + next * m->bytes, m->bytes);
        if (m->bytes) fb_pool_barrier(m->pool);
    }
    if (lane == 0) m->ended = fb_now();
}

/* The 10th percentile: the very best runs are lucky ones, whose lanes arrived in step. */
static double best_meeting(meeting *m) {
    double seconds[MEETINGS];
    for (int run = 0; run < MEETINGS; run++) {
        fb_pool_run(m->pool, fb_pool_lanes(m->pool), meet_lane, m);
        seconds[run] = (m->ended - m->began) / m->times;
    }
    fb_stats_sort(seconds, MEETINGS);
    return fb_stats_quantile(seconds, MEETINGS, 0.1);
}

/* Keeps the lowest figures of several rounds. */
fb_status fb_calibrate_barriers(fb_machine *m, fb_pool *pool, fb_error *err) {
    enum { FEW = 1024, MANY = 4096 };
    void *memory;
    if (m->lanes == 1) return FB_OK;
    FB_TRY(fb_memory_take("barrier measurement", (int64_t)m->lanes * MANY, &memory, err));
    meeting at = {.pool = pool, .times = 16, .memory = memory};
    double empty = best_meeting(&at);
    at.times = 8;
    at.bytes = FEW;
    double few = best_meeting(&at);
    at.bytes = MANY;
    double many = best_meeting(&at);
    /* Between undisturbed rounds only does the difference mean anything. */
    if (empty < m->barrier) m->foreign = fmax(0, (many - few) / (MANY - FEW));
    m->barrier = fmin(m->barrier, empty);
    free(memory);
    return FB_OK;
}
