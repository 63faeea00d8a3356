/* One block of packed weights (pack.h): where what is, there and back. A header, as quant_blocks.h is. */
#ifndef FB_BASE_PACK_BLOCKS_H
#define FB_BASE_PACK_BLOCKS_H

#include "base/pack.h"
#include "base/quant_blocks.h"

/* Bytes of a group: of the block's scales and minimums; of the parts' scales, or minimums, of 32 columns; of
 * a plane of `bits` for 32 columns; of 32 columns in all; of a block. */
static inline int pack_head_bytes(const quant_type *t) { return 2 * FB_PACK_ROWS * (1 + t->minimums); }
static inline int pack_scale_bytes(const quant_type *t) {
    return t->scales ? FB_PACK_ROWS * (32 / t->part) : 0;
}
static inline int pack_minimum_bytes(const quant_type *t) {
    return t->minimums && !t->joint ? pack_scale_bytes(t) : 0;
}
static inline int pack_plane_bytes(int bits) { return FB_PACK_ROWS * 4 * bits; }
static inline int pack_columns_bytes(const quant_type *t) {
    return pack_scale_bytes(t) + pack_minimum_bytes(t) + pack_plane_bytes(t->low + t->high);
}
static inline int64_t pack_block_bytes(const quant_type *t) {
    return pack_head_bytes(t) + (int64_t)(t->columns / 32) * pack_columns_bytes(t);
}

/* Word j of a plane of `bits` holds the quads j, j + n, j + 2 n, … for n words: quad q is in word q % n, from
 * bit q / n * bits of each byte on. */
static inline int pack_words(int bits) { return bits; } /* of a row's 32 columns */

static inline uint32_t pack_mask(int bits) { return 0x01010101u * ((1u << bits) - 1); }

/* Bits [from, from + bits) of the quads' integers become a row's words of a plane, `each` bytes apart. */
static inline void pack_plane(const uint32_t *quads, int from, int bits, int each, uint8_t *to) {
    for (int j = 0; j < pack_words(bits); j++, to += each) {
        uint32_t word = 0;
        for (int q = j, shift = 0; q < 8; q += pack_words(bits), shift += bits)
            word |= (quads[q] >> from & pack_mask(bits)) << shift;
        memcpy(to, &word, sizeof word);
    }
}

static inline void unpack_plane(const uint8_t *from, int to, int bits, uint32_t *quads) {
    for (int j = 0; j < pack_words(bits); j++, from += 4 * FB_PACK_ROWS) {
        uint32_t word;
        memcpy(&word, from, sizeof word);
        for (int q = j, shift = 0; q < 8; q += pack_words(bits), shift += bits)
            quads[q] |= (word >> shift & pack_mask(bits)) << to;
    }
}

/* Row `row` of a group. `to`: the group's block. */
static inline void pack_block(const quant_type *t, const quant_parts *p, int64_t row, uint8_t *to) {
    memcpy(to + 2 * row, &p->scale, 2);
    if (t->minimums) memcpy(to + 2 * (FB_PACK_ROWS + row), &p->minimum, 2);
    to += pack_head_bytes(t);
    for (int first = 0; first < t->columns; first += 32) {
        for (int h = 0; h < pack_scale_bytes(t) / FB_PACK_ROWS; h++) {
            int part = first / t->part + h;
            int scale = p->scales[part] | (t->joint ? p->minimums[part] << 4 : 0);
            to[FB_PACK_ROWS * h + row] = (uint8_t)scale;
            if (pack_minimum_bytes(t))
                to[pack_scale_bytes(t) + FB_PACK_ROWS * h + row] = (uint8_t)p->minimums[part];
        }
        to += pack_scale_bytes(t) + pack_minimum_bytes(t);
        uint32_t quads[8];
        memcpy(quads, p->q + first, sizeof quads);
        pack_plane(quads, 0, t->low, 4 * FB_PACK_ROWS, to + 4 * row);
        to += pack_plane_bytes(t->low);
        pack_plane(quads, t->low, t->high, 4 * FB_PACK_ROWS, to + 4 * row);
        to += pack_plane_bytes(t->high);
    }
}

static inline void unpack_block(const quant_type *t, const uint8_t *from, int64_t row, quant_parts *p) {
    memcpy(&p->scale, from + 2 * row, 2);
    if (t->minimums) memcpy(&p->minimum, from + 2 * (FB_PACK_ROWS + row), 2);
    from += pack_head_bytes(t);
    for (int first = 0; first < t->columns; first += 32) {
        for (int h = 0; h < pack_scale_bytes(t) / FB_PACK_ROWS; h++) {
            int part = first / t->part + h;
            uint8_t scale = from[FB_PACK_ROWS * h + row];
            p->scales[part] = (int8_t)(t->joint ? scale & 15 : scale);
            p->minimums[part] = (int8_t)(t->joint ? scale >> 4 : 0);
            if (pack_minimum_bytes(t))
                p->minimums[part] = (int8_t)from[pack_scale_bytes(t) + FB_PACK_ROWS * h + row];
        }
        from += pack_scale_bytes(t) + pack_minimum_bytes(t);
        uint32_t quads[8] = {0};
        unpack_plane(from + 4 * row, 0, t->low, quads);
        from += pack_plane_bytes(t->low);
        unpack_plane(from + 4 * row, t->low, t->high, quads);
        from += pack_plane_bytes(t->high);
        memcpy(p->q + first, quads, sizeof quads);
    }
}

/* Columns [first, first + count) of a packed weight's row: whole blocks. */
static inline void unpack_columns(const fb_weight *w, int64_t row, int64_t first, int64_t count, float *out) {
    const quant_type *t = &quant_types[w->dtype];
    int64_t bytes = pack_block_bytes(t), group = row / FB_PACK_ROWS * (w->cols / t->columns);
    const uint8_t *block = (const uint8_t *)w->data + (group + first / t->columns) * bytes;
    quant_parts parts;
    for (int64_t k = 0; k < count; k += t->columns, block += bytes) {
        unpack_block(t, block, row % FB_PACK_ROWS, &parts);
        quant_values(t, &parts, out + k);
    }
}

#endif
