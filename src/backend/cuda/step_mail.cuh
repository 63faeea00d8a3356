/* How blocks of a step's kernel hand values to each other: not through a meeting of all, but with every value
 * saying itself whether it is there.
 *
 * A word of a mail is a value of 16 bits and, above it, the step's tag. Whoever needs the value reads until
 * it sees the tag: one trip to the second-level cache, where a meeting would be four (stores that are waited
 * for, a counter, its reading, and then the values'). Each output of each op has words of its own, written
 * once a step, so that an old tag is always the step's before, and nothing has to be ordered: no word is read
 * and written again. What is stored besides (the list's last outputs, new keys and values) is for later
 * kernels; only attention's partial sums are used again by the next layer (step_attention.cuh). */
#ifndef FB_BACKEND_CUDA_STEP_MAIL_CUH
#define FB_BACKEND_CUDA_STEP_MAIL_CUH

#include "backend/cuda/matvec_ring.cuh"
#include "backend/cuda/step_list.h"

#define ST_TAKEN 4 /* quadruples of words that a thread asks for at once */

/* Of the step that is done, as it stands in a word; never zero, which words are at first. */
FB_DEVICE uint32_t st_tag_of(const st_rooms &rooms) { return (*rooms.steps % 65535u + 1) << 16; }
FB_DEVICE bool st_tagged(uint32_t word, uint32_t tag) { return (word ^ tag) >> 16 == 0; }

struct st_post_box {
    uint32_t *mails;
    uint32_t tag;
};

template <class T> FB_DEVICE uint16_t st_bits(T x) { return x.bits; }
template <class T> FB_DEVICE T st_value(uint32_t word) { return T{(uint16_t)word}; }

FB_DEVICE void st_post(uint32_t *to, uint32_t word) {
#ifdef FB_EMULATED
    *to = word;
#else
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
#endif
}
FB_DEVICE uint32_t st_look(const uint32_t *from) {
#ifdef FB_EMULATED
    return *(volatile const uint32_t *)from;
#else
    uint32_t word;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
    return word;
#endif
}
FB_DEVICE uint4 st_look_4(const uint32_t *from) {
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
/* Between two looks; `idle`: not after the first. */
FB_DEVICE void st_look_again(bool idle) {
#ifdef FB_EMULATED
    fb_emulated_yield(idle);
#else
    (void)idle;
#endif
}

/* `word`: what was seen there already. */
FB_DEVICE uint32_t st_await(const uint32_t *from, uint32_t word, uint32_t tag) {
    for (bool idle = false; !st_tagged(word, tag); idle = true) {
        st_look_again(idle);
        word = st_look(from);
    }
    return word;
}

/* n values (a multiple of 8) into shared memory, by all threads that multiply. An mv_sync must follow. */
FB_DEVICE void st_take(const uint32_t *mail, int n, uint32_t tag, uint8_t *shared) {
    const int stride = MV_THREADS * 4;
#pragma unroll 1
    for (int first = (int)threadIdx.x * 4; first < n; first += ST_TAKEN * stride) {
        for (bool idle = false;; idle = true) {
            uint4 words[ST_TAKEN];
            bool all = true;
#pragma unroll
            for (int i = 0; i < ST_TAKEN; i++)
                words[i] = first + i * stride < n ? st_look_4(mail + first + i * stride)
                                                  : make_uint4(0, 0, 0, 0); /* not what was there before */
#pragma unroll
            for (int i = 0; i < ST_TAKEN; i++) {
                const uint4 four = words[i];
                if (first + i * stride >= n) continue;
                all = all && (((four.x ^ tag) | (four.y ^ tag) | (four.z ^ tag) | (four.w ^ tag)) >> 16) == 0;
                ((uint2 *)shared)[first / 4 + i * MV_THREADS] =
                    make_uint2((four.x & 0xffff) | four.y << 16, (four.z & 0xffff) | four.w << 16);
            }
            if (all) break;
            st_look_again(idle);
        }
    }
}

/* The same where they lie in memory as they are: from before the kernel. */
FB_DEVICE void st_take_plain(const void *from, int n, uint8_t *shared) {
    for (int i = (int)threadIdx.x; i < n / 8; i += MV_THREADS)
        ((uint4 *)shared)[i] = __ldcg((const uint4 *)from + i);
}

#endif
