/* Tagged words: how blocks of the persistent kernel hand values to each other.
 *
 * Blocks never synchronise. A tagged word is a 16-bit value in the low half and the step's tag in the high
 * half. A reader polls the word until it sees this step's tag. That costs one round trip to the L2. A barrier
 * of all blocks would cost four: stores and the wait for them, a counter's increment, its polling, and then
 * the loads of the values.
 *
 * Every output of every op has words of its own, and each is written once a step. So an old tag is always the
 * previous step's, and no word is overwritten while somebody may still read it: no other order is needed.
 *
 * The list's last outputs and the new keys and values are stored untagged as well, for later kernels. Only
 * the memory of attention's partial sums is used again by the next layer (persistent_attention.cuh). */
#ifndef FB_BACKEND_CUDA_PERSISTENT_TAGGED_CUH
#define FB_BACKEND_CUDA_PERSISTENT_TAGGED_CUH

#include "backend/cuda/matvec_pipeline.cuh"
#include "backend/cuda/persistent_list.h"

#define PK_LOADS_IN_FLIGHT 4 /* 16-byte loads that a thread issues before it waits for the first */

/* This step's tag, in the high half of a word. Never zero, because words start as zeros. */
FB_DEVICE uint32_t pk_tag_of(const pk_params &params) { return (*params.steps_done % 65535u + 1) << 16; }
FB_DEVICE bool pk_has_tag(uint32_t word, uint32_t tag) { return (word ^ tag) >> 16 == 0; }

struct pk_tagged_words {
    uint32_t *words; /* of all ops */
    uint32_t tag;    /* this step's */
};

template <class T> FB_DEVICE uint16_t pk_bits(T x) { return x.bits; }
template <class T> FB_DEVICE T pk_value(uint32_t word) { return T{(uint16_t)word}; }

FB_DEVICE void pk_tagged_store(uint32_t *to, uint32_t word) {
#ifdef FB_EMULATED
    *to = word;
#else
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
#endif
}
FB_DEVICE uint32_t pk_tagged_load(const uint32_t *from) {
#ifdef FB_EMULATED
    return *(volatile const uint32_t *)from;
#else
    uint32_t word;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
    return word;
#endif
}
FB_DEVICE uint4 pk_tagged_load_4(const uint32_t *from) {
#ifdef FB_EMULATED
    return *(const uint4 *)from;
#else
    uint4 words;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(from)
                 : "memory");
    return words;
#endif
}
/* Called between two polls; the emulation runs another thread. `idle`: the poll before also failed. */
FB_DEVICE void pk_poll_again(bool idle) {
#ifdef FB_EMULATED
    fb_emulated_yield(idle);
#else
    (void)idle;
#endif
}

/* Polls until the word has the tag. `word`: what a first load returned. */
FB_DEVICE uint32_t pk_tagged_wait(const uint32_t *from, uint32_t word, uint32_t tag) {
    for (bool idle = false; !pk_has_tag(word, tag); idle = true) {
        pk_poll_again(idle);
        word = pk_tagged_load(from);
    }
    return word;
}

/* Copies n values (a multiple of 8) from tagged words to shared memory as they arrive. All MV_THREADS threads
 * take part; an mv_sync must follow. */
FB_DEVICE void pk_load_row_tagged(const uint32_t *from, int n, uint32_t tag, uint8_t *shared) {
    const int stride = MV_THREADS * 4;
#pragma unroll 1
    for (int first = (int)threadIdx.x * 4; first < n; first += PK_LOADS_IN_FLIGHT * stride) {
        for (bool idle = false;; idle = true) {
            uint4 words[PK_LOADS_IN_FLIGHT];
            bool all = true;
#pragma unroll
            for (int i = 0; i < PK_LOADS_IN_FLIGHT; i++)
                words[i] =
                    first + i * stride < n
                        ? pk_tagged_load_4(from + first + i * stride)
                        : make_uint4(0, 0, 0, 0); /* unset, it would keep the registers of the last round */
#pragma unroll
            for (int i = 0; i < PK_LOADS_IN_FLIGHT; i++) {
                const uint4 four = words[i];
                if (first + i * stride >= n) continue;
                all = all && (((four.x ^ tag) | (four.y ^ tag) | (four.z ^ tag) | (four.w ^ tag)) >> 16) == 0;
                ((uint2 *)shared)[first / 4 + i * MV_THREADS] =
                    make_uint2((four.x & 0xffff) | four.y << 16, (four.z & 0xffff) | four.w << 16);
            }
            if (all) break;
            pk_poll_again(idle);
        }
    }
}

/* The same for values that were in memory, untagged, before the kernel began. */
FB_DEVICE void pk_load_row_untagged(const void *from, int n, uint8_t *shared) {
    for (int i = (int)threadIdx.x; i < n / 8; i += MV_THREADS)
        ((uint4 *)shared)[i] = __ldcg((const uint4 *)from + i);
}

#endif
