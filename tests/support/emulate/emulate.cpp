/* Threads of a block are coroutines with a stack each; one scheduler goes round among those that do not wait.
 */
#include "support/emulate/emulate.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define MOST_THREADS 1024
#define STACK_BYTES  (128 << 10)
#define INVALID      1 /* cudaErrorInvalidValue */

fb_emulated_place fb_emulated_now;
std::vector<std::function<int()>> *fb_emulated_recording;

namespace {

enum state { RUNS, AT_BLOCK, AT_WARP, DONE };

struct thread {
    void *sp; /* its stack, where it stopped */
    enum state state;
    uint32_t mask; /* AT_WARP: who is awaited */
    uint64_t words[32];
    fb_emulated_place place;
};

thread threads[MOST_THREADS];
uint64_t left[MOST_THREADS]; /* what each thread brought to its warp's meeting */
uint8_t *stacks, *shared_memory;
size_t shared_room;
int count, current;
void *scheduler_sp;
const std::function<void()> *body;

[[noreturn]] void fail(const char *why) {
    fprintf(stderr, "emulated kernel: %s: block (%u, %u, %u), thread (%u, %u, %u)\n", why, blockIdx.x,
            blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    abort();
}

/* Saves what a call must keep, changes stacks, and takes it back there. */
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
    ret
)");
#else
#error "the emulation of CUDA kernels needs x86-64"
#endif

void leave() { fb_emulated_switch(&threads[current].sp, scheduler_sp); }

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

bool release_warp(int first) {
    bool any = false;
    int last = first + 32 < count ? first + 32 : count;
    for (int t = first; t < last; t++) {
        if (threads[t].state != AT_WARP) continue;
        uint32_t mask = threads[t].mask;
        bool all = true;
        for (int lane = 0; lane < 32; lane++)
            if (mask >> lane & 1) {
                int other = first + lane;
                if (other >= last || threads[other].state == DONE)
                    continue; /* the hardware goes on without it */
                all = all && threads[other].state == AT_WARP && threads[other].mask == mask;
            }
        if (!all) continue;
        uint64_t words[32] = {0};
        for (int lane = 0; lane < 32 && first + lane < last; lane++)
            if (mask >> lane & 1 && threads[first + lane].state == AT_WARP) words[lane] = left[first + lane];
        for (int lane = 0; lane < 32 && first + lane < last; lane++)
            if (mask >> lane & 1 && threads[first + lane].state == AT_WARP) {
                memcpy(threads[first + lane].words, words, sizeof words);
                threads[first + lane].state = RUNS;
            }
        any = true;
    }
    return any;
}

bool release_block() {
    bool any = false;
    for (int t = 0; t < count; t++)
        if (threads[t].state == AT_WARP || threads[t].state == RUNS) return false;
    for (int t = 0; t < count; t++)
        if (threads[t].state == AT_BLOCK) {
            threads[t].state = RUNS;
            any = true;
        }
    return any;
}

void run_block() {
    for (;;) {
        bool ran = false, left_over = false;
        for (int t = 0; t < count; t++) {
            left_over |= threads[t].state != DONE;
            if (threads[t].state != RUNS) continue;
            current = t;
            fb_emulated_now = threads[t].place;
            fb_emulated_switch(&scheduler_sp, threads[t].sp);
            ran = true;
        }
        if (!left_over) return;
        for (int first = 0; first < count; first += 32) ran |= release_warp(first);
        if (!ran && !release_block()) fail("threads wait for each other");
    }
}

} // namespace

void *fb_emulated_shared() { return shared_memory; }

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

int fb_emulated_launch(dim3 grid, dim3 block, size_t shared_bytes, int shared_limit,
                       const std::function<void()> &thread) {
    count = (int)(block.x * block.y * block.z);
    if (count < 1 || count > MOST_THREADS || (long long)shared_bytes > shared_limit || !grid.x || !grid.y ||
        !grid.z || grid.y > 65535 || grid.z > 65535)
        return INVALID;
    if (!stacks) {
        stacks = (uint8_t *)mmap(NULL, (size_t)MOST_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stacks == MAP_FAILED) fail("no memory for stacks");
    }
    free(shared_memory);
    shared_room = (shared_bytes + 15) / 16 * 16 + 16;
    shared_memory = (uint8_t *)aligned_alloc(16, shared_room);
    body = &thread;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                memset(shared_memory, 0xff, shared_room);
                for (int t = 0; t < count; t++) {
                    unsigned u = (unsigned)t;
                    threads[t].place = {dim3(u % block.x, u / block.x % block.y, u / block.x / block.y),
                                        dim3(x, y, z), block, grid};
                    prepare(t);
                }
                run_block();
            }
    return 0;
}
