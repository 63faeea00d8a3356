/* Chunks of 8 elements: 16 bytes of a 16-bit type, 32 bytes of float32. Addresses are multiples of 16. */
#ifndef FB_BACKEND_CUDA_CHUNK_CUH
#define FB_BACKEND_CUDA_CHUNK_CUH

#include "backend/cuda/device.cuh"

#define FB_CHUNK 8

/* An unconverted chunk, so that several loads can be issued before the first is waited for. */
template <class T> struct fb_chunk {
    uint4 v;
    FB_DEVICE void get(const T *p) { v = *(const uint4 *)p; }
    FB_DEVICE void get_weight(const T *p) {
        v = __ldg((const uint4 *)p);
    } /* read-only cache: no kernel writes weights */
    FB_DEVICE void put(T *p) const { *(uint4 *)p = v; }
    FB_DEVICE void narrow(const float *x) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            words[i] = fb_narrow<T>(x[2 * i]).bits | (uint32_t)fb_narrow<T>(x[2 * i + 1]).bits << 16;
        v = make_uint4(words[0], words[1], words[2], words[3]);
    }
    FB_DEVICE void widen(float *x) const {
        uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[2 * i] = fb_widen(T{(uint16_t)words[i]});
            x[2 * i + 1] = fb_widen(T{(uint16_t)(words[i] >> 16)});
        }
    }
};
template <> struct fb_chunk<float> {
    float4 a, b;
    FB_DEVICE void get(const float *p) { a = *(const float4 *)p, b = *(const float4 *)(p + 4); }
    FB_DEVICE void get_weight(const float *p) {
        a = __ldg((const float4 *)p), b = __ldg((const float4 *)(p + 4));
    }
    FB_DEVICE void put(float *p) const { *(float4 *)p = a, *(float4 *)(p + 4) = b; }
    FB_DEVICE void narrow(const float *x) {
        a = make_float4(x[0], x[1], x[2], x[3]);
        b = make_float4(x[4], x[5], x[6], x[7]);
    }
    FB_DEVICE void widen(float *x) const {
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
        x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    }
};

template <class T> FB_DEVICE void fb_load_8(const T *p, float *x) {
    fb_chunk<T> raw;
    raw.get(p);
    raw.widen(x);
}

template <class T> FB_DEVICE void fb_store_8(T *p, const float *x) {
    fb_chunk<T> raw;
    raw.narrow(x);
    raw.put(p);
}

#endif
