/* How blocks of a step's kernel hand values to each other: not through a meeting of all, but with every value
 * saying itself whether it is there.
 *
 * A word of a mail is a value of 16 bits and, above it, the step's tag. Whoever needs the value reads until
 * it sees the tag: one trip to the second-level cache, where a meeting would be four (stores that are waited
 * for, a counter, its reading, and then the values'). Each output of each op has words of its own, written
 * once a step, so that an old tag is always the step's before; and a block that has all of an op's inputs
 * knows that all blocks have done with the inputs of that op's predecessors. Nothing else is ordered, or has
 * to be. */
#ifndef FB_BACKEND_CUDA_STEP_MAIL_CUH
#define FB_BACKEND_CUDA_STEP_MAIL_CUH

#include "backend/cuda/matvec_ring.cuh"
#include "backend/cuda/step_list.h"

#define ST_EARLY 2 /* quadruples of words that a thread asks for before it needs them */
#define ST_TAKEN 4 /* and then at once */

/* Of the step that is done, as it stands in a word; never zero, which words are at first. */
FB_DEVICE uint32_t st_tag_of(const st_rooms &rooms) { return (*rooms.steps % 65535u + 1) << 16; }
FB_DEVICE bool st_tagged(uint32_t word, uint32_t tag) { return (word ^ tag) >> 16 == 0; }

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
FB_DEVICE void st_look_again() {
#ifdef FB_EMULATED
    fb_emulated_yield(true);
#endif
}

/* `word`: what was seen there already. */
FB_DEVICE uint32_t st_await(const uint32_t *from, uint32_t word, uint32_t tag) {
    while (!st_tagged(word, tag)) {
        st_look_again();
        word = st_look(from);
    }
    return word;
}

/* Four words each, of a thread, MV_THREADS * 4 apart. A look at them asks, and may come too early. */
template <int N> struct st_words { uint4 of[N]; };
#define ST_STRIDE (MV_THREADS * 4)
template <int N> FB_DEVICE void st_look_at(const uint32_t *mail, int n, int first, st_words<N> *words) {
#pragma unroll
    for (int i = 0; i < N; i++)
        words->of[i] = first + i * ST_STRIDE < n ? st_look_4(mail + first + i * ST_STRIDE)
                                                 : make_uint4(0, 0, 0, 0); /* not what was there before */
}

/* When all have come, into shared memory. */
template <int N>
FB_DEVICE void st_take_words(const uint32_t *mail, int n, int first, uint32_t tag, st_words<N> words,
                             uint8_t *shared) {
    bool again;
    do {
        again = false;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint4 four = words.of[i];
            bool there = (((four.x ^ tag) | (four.y ^ tag) | (four.z ^ tag) | (four.w ^ tag)) >> 16) == 0;
            if (first + i * ST_STRIDE >= n) continue;
            if (there)
                ((uint2 *)shared)[first / 4 + i * MV_THREADS] =
                    make_uint2((four.x & 0xffff) | four.y << 16, (four.z & 0xffff) | four.w << 16);
            else
                again = true;
        }
        if (!again) break;
        st_look_again();
        st_look_at(mail, n, first, &words);
    } while (true);
}

/* n values (a multiple of 8) into shared memory, by all threads that multiply. An mv_sync must follow.
 * `early`: the thread's first look. */
FB_DEVICE void st_take(const uint32_t *mail, int n, uint32_t tag, const st_words<ST_EARLY> &early,
                       uint8_t *shared) {
    int first = (int)threadIdx.x * 4;
    st_take_words(mail, n, first, tag, early, shared);
#pragma unroll 1
    for (first += ST_EARLY * ST_STRIDE; first < n; first += ST_TAKEN * ST_STRIDE) {
        st_words<ST_TAKEN> words;
        st_look_at(mail, n, first, &words);
        st_take_words(mail, n, first, tag, words, shared);
    }
}

/* The same where they lie in memory as they are: from before the kernel. */
FB_DEVICE void st_take_plain(const void *from, int n, uint8_t *shared) {
    for (int i = (int)threadIdx.x; i < n / 8; i += MV_THREADS)
        ((uint4 *)shared)[i] = __ldcg((const uint4 *)from + i);
}

#endif
