#include "base/quant_encode.h"
#include "base/quant_join.h"

static void decode_floats(fb_dtype dtype, const uint8_t *from, int64_t count, float *to) {
    uint16_t half;
    switch (dtype) {
    case FB_F32:
        memcpy(to, from, (size_t)count * sizeof *to);
        break;
    case FB_F16:
        for (int64_t i = 0; i < count; i++) {
            memcpy(&half, from + 2 * i, sizeof half);
            to[i] = fb_f16_to_f32(half);
        }
        break;
    case FB_BF16:
        for (int64_t i = 0; i < count; i++) {
            memcpy(&half, from + 2 * i, sizeof half);
            to[i] = fb_bf16_to_f32(half);
        }
        break;
    default:
        for (int64_t i = 0; i < count; i++) to[i] = (float)fb_dtype_get(dtype, from, i);
    }
}

void fb_quant_decode(fb_dtype dtype, const void *from, int64_t count, float *to) {
    if (fb_dtype_is_float(dtype))
        decode_floats(dtype, from, count, to);
    else
        quant_decode_blocks(dtype, from, count, to);
}

/* ---- encoding -------------------------------------------------------------------------------- */

static void encode_floats(fb_dtype dtype, const float *from, int64_t count, uint8_t *to) {
    uint16_t half;
    switch (dtype) {
    case FB_F32:
        memcpy(to, from, (size_t)count * sizeof *from);
        break;
    case FB_F16:
        for (int64_t i = 0; i < count; i++) {
            half = fb_f32_to_f16(from[i]);
            memcpy(to + 2 * i, &half, sizeof half);
        }
        break;
    case FB_BF16:
        for (int64_t i = 0; i < count; i++) {
            half = fb_f32_to_bf16(from[i]);
            memcpy(to + 2 * i, &half, sizeof half);
        }
        break;
    default:
        for (int64_t i = 0; i < count; i++) fb_dtype_set(dtype, to, i, (double)from[i]);
    }
}

void fb_quant_encode(fb_dtype dtype, const float *from, int64_t count, void *to) {
    if (fb_dtype_is_float(dtype)) {
        encode_floats(dtype, from, count, to);
        return;
    }
    const quant_type *t = &quant_types[dtype];
    quant_parts parts = {0};
    uint8_t *block = to;
    for (int64_t i = 0; i < count; i += t->columns, block += fb_dtype_bytes(dtype, t->columns)) {
        fb_quant_round_block(t, from + i, &parts);
        quant_joiners[dtype](&parts, block);
    }
}

void fb_quant_search(fb_dtype dtype, const float *from, int64_t count, const float *weights, void *to) {
    if (fb_dtype_is_float(dtype) || dtype == FB_Q8_0) {
        fb_quant_encode(dtype, from, count, to);
        return;
    }
    const quant_type *t = &quant_types[dtype];
    quant_parts parts = {0};
    uint8_t *block = to;
    for (int64_t i = 0; i < count; i += t->columns, block += fb_dtype_bytes(dtype, t->columns)) {
        fb_quant_round_block(t, from + i, &parts);
        fb_quant_search_block(t, from + i, weights ? weights + i : NULL, &parts);
        quant_joiners[dtype](&parts, block);
    }
}
