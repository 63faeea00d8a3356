#include "base/pack_gpu.h"

#include "base/pack_blocks.h"

/* Bytes of a block's scale and minimum, and of a chunk's parts. */
static int head_bytes(const quant_type *t) { return t->power ? 1 : 2 * (1 + t->minimums); }
static int part_bytes(const quant_type *t) {
    return t->scales ? 32 / t->part * (t->minimums && !t->joint ? 2 : 1) : 0;
}

int64_t fb_record_bytes(fb_dtype dtype, int64_t cols) {
    const quant_type *t = &quant_types[dtype];
    int64_t chunk = 4 * (t->low + t->high) + part_bytes(t);
    return (cols / 32 * chunk + cols / t->columns * head_bytes(t) + 15) / 16 * 16;
}

int64_t fb_record_row_bytes(fb_dtype dtype, int64_t cols) {
    int64_t last = cols % FB_RECORD_COLUMNS;
    return cols / FB_RECORD_COLUMNS * fb_record_bytes(dtype, FB_RECORD_COLUMNS) +
           fb_record_bytes(dtype, last);
}

/* Where a record's next chunks go. */
typedef struct record {
    uint8_t *low, *high, *heads, *parts;
} record;

static void put_block(const quant_type *t, const uint8_t *block, const quant_parts *p, record *to) {
    if (t->power) {
        *to->heads = *block;
    } else {
        memcpy(to->heads, &p->scale, 2);
        if (t->minimums) memcpy(to->heads + 2, &p->minimum, 2);
    }
    to->heads += head_bytes(t);
    for (int first = 0; first < t->columns; first += 32) {
        uint32_t quads[8];
        memcpy(quads, p->q + first, sizeof quads);
        pack_plane(quads, 0, t->low, 4, to->low);
        pack_plane(quads, t->low, t->high, 4, to->high);
        to->low += 4 * t->low, to->high += 4 * t->high;
        for (int part = first / t->part; t->scales && part < (first + 32) / t->part; part++) {
            *to->parts++ = (uint8_t)(p->scales[part] | (t->joint ? p->minimums[part] << 4 : 0));
            if (t->minimums && !t->joint) *to->parts++ = (uint8_t)p->minimums[part];
        }
    }
}

void fb_record_pack(fb_dtype dtype, const void *from, int64_t cols, void *to) {
    const quant_type *t = &quant_types[dtype];
    const uint8_t *block = from;
    uint8_t *at = to;
    while (cols > 0) {
        int64_t count = cols < FB_RECORD_COLUMNS ? cols : FB_RECORD_COLUMNS, chunks = count / 32;
        int64_t bytes = fb_record_bytes(dtype, count);
        record r = {.low = at};
        r.high = r.low + chunks * 4 * t->low;
        r.heads = r.high + chunks * 4 * t->high;
        r.parts = r.heads + count / t->columns * head_bytes(t);
        memset(at + bytes - 16, 0, 16); /* what is left of it */
        for (int64_t k = 0; k < count; k += t->columns, block += fb_dtype_bytes(dtype, t->columns)) {
            quant_parts p;
            t->split(block, &p);
            put_block(t, block, &p, &r);
        }
        at += bytes, cols -= count;
    }
}
