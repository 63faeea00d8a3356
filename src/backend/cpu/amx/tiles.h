/* The tile instructions of AMX. With FB_AMX_EMULATED they are plain C on eight arrays a thread, so that the
 * kernels are tested on machines without AMX. A tile's number is a literal. */
#ifndef FB_BACKEND_CPU_AMX_TILES_H
#define FB_BACKEND_CPU_AMX_TILES_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define AMX_TILES 8
#define AMX_ROWS  16
#define AMX_BYTES 64 /* of a row */

/* What LDTILECFG reads. A tile's part that lies outside its rows and bytes is 0. */
typedef struct amx_shape {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* of a row of each tile */
    uint8_t rows[16];
} amx_shape;

_Static_assert(sizeof(amx_shape) == 64, "the operand of LDTILECFG");

#ifdef FB_AMX_EMULATED

typedef struct amx_state {
    amx_shape shape;
    uint8_t tile[AMX_TILES][AMX_ROWS][AMX_BYTES];
} amx_state;

static _Thread_local amx_state amx_now;

static inline void amx_configure(const amx_shape *shape) {
    memset(&amx_now, 0, sizeof amx_now);
    amx_now.shape = *shape;
}

static inline void amx_release(void) { memset(&amx_now, 0, sizeof amx_now); }

static inline void amx_zero(int t) { memset(amx_now.tile[t], 0, sizeof amx_now.tile[t]); }

static inline void amx_load(int t, const void *from, int64_t stride) {
    amx_zero(t);
    for (int r = 0; r < amx_now.shape.rows[t]; r++)
        memcpy(amx_now.tile[t][r], (const uint8_t *)from + r * stride, amx_now.shape.bytes[t]);
}

static inline void amx_store(int t, void *to, int64_t stride) {
    for (int r = 0; r < amx_now.shape.rows[t]; r++)
        memcpy((uint8_t *)to + r * stride, amx_now.tile[t][r], amx_now.shape.bytes[t]);
}

/* Unlike the instruction, which faults, it leaves the sum as it is where shapes do not fit. */
static inline void amx_dot(int c, int a, int b) {
    const amx_shape *s = &amx_now.shape;
    if (s->rows[c] != s->rows[a] || s->bytes[c] != s->bytes[b] || s->bytes[a] != 4 * s->rows[b]) return;
    for (int m = 0; m < s->rows[c]; m++)
        for (int n = 0; n < s->bytes[c] / 4; n++) {
            int32_t sum;
            memcpy(&sum, &amx_now.tile[c][m][4 * n], sizeof sum);
            for (int k = 0; k < s->bytes[a]; k++)
                sum += (int8_t)amx_now.tile[a][m][k] * (int8_t)amx_now.tile[b][k / 4][4 * n + k % 4];
            memcpy(&amx_now.tile[c][m][4 * n], &sum, sizeof sum);
        }
}

#define amx_ordered() ((void)0)

#else

#define amx_configure(shape)      _tile_loadconfig(shape)
#define amx_release()             _tile_release()
#define amx_zero(t)               _tile_zero(t)
#define amx_load(t, from, stride) _tile_loadd(t, from, stride)
#define amx_store(t, to, stride)  _tile_stored(t, to, stride)
#define amx_dot(c, a, b)          _tile_dpbssd(c, a, b) /* signed bytes */
/* gcc does not know what memory a load reads. What is to be loaded is stored before this. */
#define amx_ordered()             __asm__ volatile("" ::: "memory")

#endif
#endif
