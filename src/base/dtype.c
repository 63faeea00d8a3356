#include "base/dtype.h"

#include "base/quant.h"

static const struct {
    const char *name;
    int64_t block, bytes; /* elements and bytes of a block */
} dtypes[FB_DTYPE_COUNT] = {
    [FB_F32] = {"f32", 1, 4},           [FB_F16] = {"f16", 1, 2},       [FB_BF16] = {"bf16", 1, 2},
    [FB_F64] = {"f64", 1, 8},           [FB_Q8_0] = {"q8_0", 32, 34},   [FB_Q4_0] = {"q4_0", 32, 18},
    [FB_Q4_1] = {"q4_1", 32, 20},       [FB_Q5_0] = {"q5_0", 32, 22},   [FB_Q5_1] = {"q5_1", 32, 24},
    [FB_Q4_K] = {"q4_k", 256, 144},     [FB_Q5_K] = {"q5_k", 256, 176}, [FB_Q6_K] = {"q6_k", 256, 210},
    [FB_Q2_K] = {"q2_k", 256, 84},      [FB_Q3_K] = {"q3_k", 256, 110}, [FB_IQ4_NL] = {"iq4_nl", 32, 18},
    [FB_IQ4_XS] = {"iq4_xs", 256, 136}, [FB_MXFP4] = {"mxfp4", 32, 17},
};

const char *fb_dtype_name(fb_dtype dtype) {
    return (unsigned)dtype < FB_DTYPE_COUNT ? dtypes[dtype].name : "unknown";
}

int64_t fb_dtype_block(fb_dtype dtype) { return dtypes[dtype].block; }

int64_t fb_dtype_bytes(fb_dtype dtype, int64_t count) {
    return count / dtypes[dtype].block * dtypes[dtype].bytes;
}

fb_status fb_dtype_parse(const char *name, fb_dtype *out, fb_error *err) {
    *out = FB_F32;
    for (int i = 0; i < FB_DTYPE_COUNT; i++)
        if (strcmp(name, dtypes[i].name) == 0) {
            *out = (fb_dtype)i;
            return FB_OK;
        }
    return fb_fail(err, FB_ERROR_USAGE, "dtype: %s (f32, f16, bf16, f64, or a quantised type such as q8_0)",
                   name);
}

fb_status fb_dtype_parse_kv(const char *name, fb_dtype act, fb_dtype *out, fb_error *err) {
    *out = act;
    if (!name || strcmp(name, "auto") == 0) {
        if (act == FB_F32) *out = FB_F16;
        return FB_OK;
    }
    if (strcmp(name, "act") == 0) return FB_OK;
    if (fb_dtype_parse(name, out, NULL) == FB_OK && fb_dtype_is_float(*out)) return FB_OK;
    return fb_fail(err, FB_ERROR_USAGE, "kv: %.32s (auto, act, f32, f16, bf16, f64)", name);
}

double fb_dtype_get(fb_dtype dtype, const void *array, int64_t index) {
    if (!fb_dtype_is_float(dtype)) {
        int64_t block = dtypes[dtype].block;
        float values[FB_MAX_BLOCK];
        fb_quant_decode(dtype, (const uint8_t *)array + index / block * dtypes[dtype].bytes, block, values);
        return values[index % block];
    }
    const uint8_t *at = (const uint8_t *)array + index * dtypes[dtype].bytes;
    uint16_t half;
    float single;
    double value;
    switch (dtype) {
    case FB_F32:
        memcpy(&single, at, sizeof single);
        return single;
    case FB_F16:
        memcpy(&half, at, sizeof half);
        return fb_f16_to_f32(half);
    case FB_BF16:
        memcpy(&half, at, sizeof half);
        return fb_bf16_to_f32(half);
    default:
        memcpy(&value, at, sizeof value);
        return value;
    }
}

/* Rounds to odd at float32. The second rounding, to 16 bits, then gives the same result as one rounding from
 * double. */
static float round_to_odd(double value) {
    float near = (float)value;
    double back = near;
    uint32_t bits = fb_f32_bits(near);
    if (back == value || value != value || (bits & 1) || (bits & 0x7f800000) == 0x7f800000) return near;
    bool up = (back < value) == (value > 0);
    return fb_f32_from_bits(up ? bits + 1 : bits - 1);
}

void fb_dtype_set(fb_dtype dtype, void *array, int64_t index, double value) {
    uint8_t *at = (uint8_t *)array + index * dtypes[dtype].bytes;
    float single = (float)value;
    uint16_t half;
    switch (dtype) {
    case FB_F32:
        memcpy(at, &single, sizeof single);
        break;
    case FB_F16:
        half = fb_f32_to_f16(round_to_odd(value));
        memcpy(at, &half, sizeof half);
        break;
    case FB_BF16:
        half = fb_f32_to_bf16(round_to_odd(value));
        memcpy(at, &half, sizeof half);
        break;
    default:
        memcpy(at, &value, sizeof value);
    }
}
