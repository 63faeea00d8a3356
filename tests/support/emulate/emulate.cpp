/* Threads are coroutines with a stack each. A warp's threads run one after the other until all of them wait,
 * again and again as long as they only waited for each other; then the next warp does. */
#include "support/emulate/emulate.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <mutex>

#define MOST_THREADS 1024 /* of a block */
#define MOST_ALL     (40 * MOST_THREADS)
/* Not a power of two: at equal offsets of 128 KiB all stacks would share one set of every cache. */
#define STACK_BYTES ((128 << 10) + 11 * 64)
#define INVALID     1 /* cudaErrorInvalidValue */

const fb_emulated_place *fb_emulated_now;
__thread std::vector<std::function<int()>> *fb_emulated_recording;

namespace {

enum state { RUNS, AT_BLOCK, AT_SOME, AT_WARP, DONE };

struct thread {
    void *sp; /* its stack, where it stopped */
    enum state state;
    uint32_t mask;         /* AT_WARP: who is awaited */
    int some;              /* AT_SOME: how many are */
    const uint64_t *words; /* what its warp brought to the last meeting */
    fb_emulated_place place;
};

/* Held by the host's thread whose launch runs: all below, and the static variables that are shared memory,
 * belong to that launch. */
std::mutex device;

thread threads[MOST_ALL];
uint64_t left[MOST_ALL]; /* what each thread brought to its warp's meeting */
/* What a meeting gives to all that were there, at the first one's place. It stays until they leave again: the
 * first one's next meeting ends only after each of them ran. */
uint64_t words_of[MOST_ALL][32];
uint8_t *stacks, *shared_memory;
size_t shared_room, shared_taken; /* of a block; of all */
int count, current;               /* threads of a block; the one that runs, of all blocks */
int all;                          /* threads that run at once */
int warp_end;                     /* the warp that runs ends before this thread */
bool idle;                        /* the thread that runs waits for another one, and did nothing else */
bool went;                        /* of the warp's threads, one that ran was not idle … */
bool yielded;                     /* … one wants others to go on */
void *scheduler_sp;
const std::function<void()> *body;

[[noreturn]] void fail(const char *why) {
    fprintf(stderr, "emulated kernel: %s: block (%u, %u, %u), thread (%u, %u, %u)\n", why, blockIdx.x,
            blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    abort();
}

/* Saves what a call must keep, changes stacks, and takes it back there. It does not end with `ret`: a
 * processor would expect that to go back to where it was called from. A thread mostly goes on where the one
 * before did. */
#if defined __x86_64__
extern "C" void fb_emulated_switch(void **from, void *to);
asm(R"(
.text
.type fb_emulated_switch, @function
fb_emulated_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    pop %rcx
    jmp *%rcx
)");
#else
#error "the emulation of CUDA kernels needs x86-64"
#endif

int next_runnable(int t) {
    while (t < warp_end && threads[t].state != RUNS) t++;
    return t;
}

void *enter(int t) {
    current = t;
    idle = false;
    fb_emulated_now = &threads[t].place;
    return threads[t].sp;
}

/* To the warp's next thread that can run; behind the last one, to the scheduler. */
void leave() {
    int self = current, next = next_runnable(self + 1);
    went |= !idle;
    fb_emulated_switch(&threads[self].sp, next < warp_end ? enter(next) : scheduler_sp);
}

[[noreturn]] void start() {
    (*body)();
    threads[current].state = DONE;
    leave();
    fail("a thread came back from its end");
}

void prepare(int t) {
    uint64_t *top = (uint64_t *)(void *)(stacks + (size_t)(t + 1) * STACK_BYTES);
    top[-2] = (uint64_t)(uintptr_t)start; /* so that the stack is as after a call */
    memset(top - 8, 0, 6 * sizeof *top);
    threads[t].sp = top - 8;
    threads[t].state = RUNS;
}

/* Lets those of a warp go on that all wait for each other. */
bool release_warp(int first) {
    bool any = false;
    for (int t = first; t < warp_end; t++) {
        if (threads[t].state != AT_WARP) continue;
        uint32_t mask = threads[t].mask;
        bool all_here = true;
        for (int other = first; other < warp_end && all_here;
             other++) /* the hardware goes on without those DONE */
            if (mask >> (other - first) & 1 && threads[other].state != DONE)
                all_here = threads[other].state == AT_WARP && threads[other].mask == mask;
        if (!all_here) continue;
        uint64_t *words = words_of[t];
        memset(words, 0, sizeof words_of[t]);
        for (int other = t; other < warp_end; other++)
            if (mask >> (other - first) & 1 && threads[other].state == AT_WARP) {
                words[other - first] = left[other];
                threads[other].words = words;
                threads[other].state = RUNS;
            }
        any = true;
    }
    return any;
}

/* Those that wait for as many as there are. */
bool release_some(int first) {
    int waiting = 0, some = 0;
    for (int t = first; t < first + count; t++)
        if (threads[t].state == AT_SOME) {
            some = threads[t].some;
            waiting++;
        }
    if (!waiting || waiting < some) return false;
    for (int t = first; t < first + count; t++)
        if (threads[t].state == AT_SOME) threads[t].state = RUNS;
    return true;
}

bool release_block(int first) {
    bool any = false;
    for (int t = first; t < first + count; t++)
        if (threads[t].state != AT_BLOCK && threads[t].state != DONE) return false;
    for (int t = first; t < first + count; t++)
        if (threads[t].state == AT_BLOCK) {
            threads[t].state = RUNS;
            any = true;
        }
    return any;
}

/* As far as the warp's threads can go before they wait for another warp; whether that was anywhere. */
bool run_warp(int first, int end) {
    for (bool any = false;; any = true) {
        warp_end = end;
        went = yielded = false;
        int t = next_runnable(first);
        if (t < end) fb_emulated_switch(&scheduler_sp, enter(t));
        bool released = release_warp(first);
        if (!went && !released) return any;
        if (yielded) return true;
    }
}

/* The same of a block's threads, before they wait for another block. */
bool run_block(int first) {
    for (bool any = false;; any = true) {
        bool some_went = false;
        for (int warp = first; warp < first + count; warp += 32)
            some_went |= run_warp(warp, warp + 32 < first + count ? warp + 32 : first + count);
        bool released = release_some(first);
        if (!released) released = release_block(first);
        if (!some_went && !released) return any;
    }
}

/* One block runs far ahead of the next: what blocks read of each other without waiting is not there yet. */
void run_blocks() {
    for (;;) {
        bool any = false, left_over = false;
        for (int block = 0; block < all; block += count) any |= run_block(block);
        for (int t = 0; t < all; t++) left_over |= threads[t].state != DONE;
        if (!left_over) return;
        if (!any) fail("threads wait for each other");
    }
}

} // namespace

void *fb_emulated_shared() { return shared_memory + (size_t)(current / count) * shared_room; }

void fb_emulated_yield(bool did_nothing) {
    idle = did_nothing;
    yielded = true;
    leave();
}

void fb_emulated_some_meet(int some) {
    threads[current].some = some;
    threads[current].state = AT_SOME;
    leave();
}

void fb_emulated_block_meet() {
    threads[current].state = AT_BLOCK;
    leave();
}

const uint64_t *fb_emulated_warp_meet(uint32_t mask, uint64_t word) {
    if (!(mask >> fb_emulated_lane() & 1)) fail("a warp instruction's mask without its own thread");
    left[current] = word;
    threads[current].mask = mask;
    threads[current].state = AT_WARP;
    leave();
    return threads[current].words;
}

int fb_emulated_launch(bool together, dim3 grid, dim3 block, size_t shared_bytes, int shared_limit,
                       const std::function<void()> &thread) {
    std::lock_guard<std::mutex> mine(device);
    long long blocks = (long long)grid.x * grid.y * grid.z;
    count = (int)(block.x * block.y * block.z);
    if (count < 1 || count > MOST_THREADS || (long long)shared_bytes > shared_limit || !blocks ||
        grid.y > 65535 || grid.z > 65535 || (together && blocks * count > MOST_ALL))
        return INVALID;
    if (!stacks) {
        stacks = (uint8_t *)mmap(NULL, (size_t)MOST_ALL * STACK_BYTES, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stacks == MAP_FAILED) fail("no memory for stacks");
    }
    int at_once = together ? (int)blocks : 1;
    shared_room = (shared_bytes + 15) / 16 * 16 + 16;
    if (shared_room * (size_t)at_once >
        shared_taken) { /* memory from the system is kept: its first use is slow */
        free(shared_memory);
        shared_taken = shared_room * (size_t)at_once;
        shared_memory = (uint8_t *)aligned_alloc(16, shared_taken);
        if (!shared_memory) fail("no shared memory");
    }
    body = &thread;
    all = at_once * count;
    for (int t = 0; t < all; t++) {
        unsigned u = (unsigned)(t % count);
        threads[t].place = {dim3(u % block.x, u / block.x % block.y, u / block.x / block.y), dim3(), block,
                            grid};
    }
    for (long long first = 0; first < blocks; first += at_once) {
        memset(shared_memory, 0xff, shared_room * (size_t)at_once);
        for (int t = 0; t < all; t += count) {
            unsigned b = (unsigned)(first + t / count);
            const dim3 at(b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y);
            for (int i = t; i < t + count; i++) {
                threads[i].place.block = at;
                prepare(i);
            }
        }
        run_blocks();
    }
    return 0;
}
