/* A tensor info is a name, its dimensions (the one of neighbouring elements first), its type, and an offset
 * into the data, which starts at the next multiple of the alignment behind the infos, as every tensor does.
 */
#include <stdlib.h>
#include <string.h>

#include "file/gguf_cursor.h"
#include "file/json.h"
#include "file/tensors_table.h"

#define NAME_SIZE         96 /* bytes of a name and its NUL; ggml itself has room for 64 */
#define INFO_BYTES        24 /* the least that an info takes */
#define DEFAULT_ALIGNMENT 32

/* Element types by their number in the file. Those that are only named here cannot be read; the numbers
 * without a name were never given or are long gone. */
#define UNREADABLE FB_STORED_TYPE_COUNT

static const struct {
    const char *name;
    fb_stored_type type;
} tensor_types[] = {
    [0] = {"F32", FB_STORED_F32},      [1] = {"F16", FB_STORED_F16},      [2] = {"Q4_0", FB_STORED_Q4_0},
    [3] = {"Q4_1", FB_STORED_Q4_1},    [4] = {"Q4_2", UNREADABLE},        [5] = {"Q4_3", UNREADABLE},
    [6] = {"Q5_0", FB_STORED_Q5_0},    [7] = {"Q5_1", FB_STORED_Q5_1},    [8] = {"Q8_0", FB_STORED_Q8_0},
    [9] = {"Q8_1", UNREADABLE},        [10] = {"Q2_K", FB_STORED_Q2_K},   [11] = {"Q3_K", FB_STORED_Q3_K},
    [12] = {"Q4_K", FB_STORED_Q4_K},   [13] = {"Q5_K", FB_STORED_Q5_K},   [14] = {"Q6_K", FB_STORED_Q6_K},
    [15] = {"Q8_K", UNREADABLE},       [16] = {"IQ2_XXS", UNREADABLE},    [17] = {"IQ2_XS", UNREADABLE},
    [18] = {"IQ3_XXS", UNREADABLE},    [19] = {"IQ1_S", UNREADABLE},      [20] = {"IQ4_NL", FB_STORED_IQ4_NL},
    [21] = {"IQ3_S", UNREADABLE},      [22] = {"IQ2_S", UNREADABLE},      [23] = {"IQ4_XS", FB_STORED_IQ4_XS},
    [24] = {"I8", FB_STORED_I8},       [25] = {"I16", FB_STORED_I16},     [26] = {"I32", FB_STORED_I32},
    [27] = {"I64", FB_STORED_I64},     [28] = {"F64", FB_STORED_F64},     [29] = {"IQ1_M", UNREADABLE},
    [30] = {"BF16", FB_STORED_BF16},   [31] = {"Q4_0_4_4", UNREADABLE},   [32] = {"Q4_0_4_8", UNREADABLE},
    [33] = {"Q4_0_8_8", UNREADABLE},   [34] = {"TQ1_0", UNREADABLE},      [35] = {"TQ2_0", UNREADABLE},
    [36] = {"IQ4_NL_4_4", UNREADABLE}, [37] = {"IQ4_NL_4_8", UNREADABLE}, [38] = {"IQ4_NL_8_8", UNREADABLE},
    [39] = {"MXFP4", FB_STORED_MXFP4}, [40] = {"NVFP4", UNREADABLE},      [41] = {"Q1_0", UNREADABLE},
};

#define FAIL(c, entry, status, err, format, ...)                                                             \
    fb_fail(err, status, "%s: tensor %s: " format, (c)->what, (entry)->name, __VA_ARGS__)

/* An info's place in the data, until it is known where the data begins. */
typedef struct info {
    uint64_t offset;
    int64_t bytes;
} info;

static fb_status take_shape(fb_gguf_cursor *c, fb_tensor_entry *entry, fb_error *err) {
    uint32_t dims;
    FB_TRY(fb_gguf_take_u32(c, entry->name, &dims, err));
    if (dims > FB_MAX_DIMS)
        return FAIL(c, entry, FB_ERROR_UNSUPPORTED, err, "%u dimensions (at most %d)", dims, FB_MAX_DIMS);
    entry->dims = (int32_t)dims;
    entry->count = 1;
    for (uint32_t d = 0; d < dims; d++) {
        uint64_t size;
        FB_TRY(fb_gguf_take_u64(c, entry->name, &size, err));
        int64_t *to = &entry->shape[dims - 1 - d];
        *to = size > INT64_MAX ? -1 : (int64_t)size;
        if (*to < 0 || __builtin_mul_overflow(entry->count, *to, &entry->count))
            return FAIL(c, entry, FB_ERROR_FILE, err, "dimension %llu (less than 2^63 elements together)",
                        (unsigned long long)size);
    }
    return FB_OK;
}

static fb_status take_type(fb_gguf_cursor *c, fb_tensor_entry *entry, fb_error *err) {
    uint32_t type;
    FB_TRY(fb_gguf_take_u32(c, entry->name, &type, err));
    bool known = type < sizeof tensor_types / sizeof *tensor_types;
    if (!known || tensor_types[type].type == UNREADABLE)
        return FAIL(
            c, entry, FB_ERROR_UNSUPPORTED, err,
            "type %u, %s (known: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K, IQ4_NL, IQ4_XS, "
            "MXFP4)",
            type, known ? tensor_types[type].name : "which has no name here");
    entry->type = tensor_types[type].type;
    int64_t block = fb_stored_block(entry->type), row = entry->dims ? entry->shape[entry->dims - 1] : 1;
    if (row % block)
        return FAIL(c, entry, FB_ERROR_FILE, err, "rows of %lld elements (whole blocks of %lld for %s)",
                    (long long)row, (long long)block, fb_stored_name(entry->type));
    return FB_OK;
}

static fb_status read_info(fb_gguf_cursor *c, int64_t index, fb_tensor_entry *entry, char *name, info *where,
                           fb_error *err) {
    FB_TRY(fb_gguf_take_name(c, "tensor", (uint64_t)index, name, NAME_SIZE, err));
    entry->name = name;
    FB_TRY(take_shape(c, entry, err));
    FB_TRY(take_type(c, entry, err));
    where->bytes = fb_stored_bytes(entry->type, entry->count);
    return fb_gguf_take_u64(c, entry->name, &where->offset, err);
}

static fb_status read_alignment(const fb_gguf_cursor *c, const fb_gguf *gguf, int64_t *out, fb_error *err) {
    FB_TRY(
        fb_json_int(c->what, gguf->values, "general.alignment", 1, UINT32_MAX, DEFAULT_ALIGNMENT, out, err));
    if (*out & (*out - 1))
        return fb_fail(err, FB_ERROR_FILE, "%s: general.alignment: %lld (a power of two)", c->what,
                       (long long)*out);
    return FB_OK;
}

/* Gives every entry its data, which starts at the cursor, and fills the ranges. */
static fb_status place_data(const fb_gguf_cursor *c, const fb_tensor_table *table, const info *infos,
                            int64_t alignment, fb_tensor_range *ranges, fb_error *err) {
    uint64_t start = (c->at + (uint64_t)alignment - 1) & ~((uint64_t)alignment - 1);
    uint64_t size = c->size > start ? c->size - start : 0;
    for (int64_t i = 0; i < table->count; i++) {
        fb_tensor_entry *entry = &table->entries[i];
        unsigned long long offset = infos[i].offset, bytes = (unsigned long long)infos[i].bytes;
        if (offset & ((uint64_t)alignment - 1))
            return FAIL(c, entry, FB_ERROR_FILE, err, "offset %llu (a multiple of %lld)", offset,
                        (long long)alignment);
        if (offset > size || bytes > size - offset)
            return FAIL(c, entry, FB_ERROR_FILE, err, "%llu bytes at offset %llu (the file has %llu of data)",
                        bytes, offset, (unsigned long long)size);
        if (bytes) entry->data = c->file->data + start + offset;
        ranges[i] = (fb_tensor_range){(int64_t)offset, (int64_t)(offset + bytes), entry->name};
    }
    return FB_OK;
}

fb_status fb_gguf_check_names(const char *what, const fb_tensor_table *table, fb_error *err) {
    for (int64_t i = 1; i < table->count; i++)
        if (strcmp(table->entries[i - 1].name, table->entries[i].name) == 0)
            return fb_fail(err, FB_ERROR_FILE, "%s: duplicate tensor %s", what, table->entries[i].name);
    return FB_OK;
}

static fb_status fill_table(fb_gguf_cursor *c, const fb_gguf *gguf, int64_t count, info *infos,
                            fb_tensor_range *ranges, fb_error *err) {
    fb_tensor_table *table = gguf->tensors;
    int64_t alignment, end;
    for (; table->count < count; table->count++)
        FB_TRY(read_info(c, table->count, &table->entries[table->count],
                         table->names + table->count * NAME_SIZE, &infos[table->count], err));
    FB_TRY(read_alignment(c, gguf, &alignment, err));
    FB_TRY(place_data(c, table, infos, alignment, ranges, err));
    /* Padding before a tensor, and no more than that, may be unused. */
    FB_TRY(fb_tensors_check_ranges(c->what, ranges, count, alignment - 1, &end, err));
    fb_tensors_sort(table);
    return fb_gguf_check_names(c->what, table, err);
}

fb_status fb_gguf_read_tensors(fb_gguf_cursor *c, fb_gguf *gguf, uint64_t count, fb_error *err) {
    if (count > (c->size - c->at) / INFO_BYTES)
        return fb_fail(err, FB_ERROR_FILE, "%s: %llu tensors (%zu bytes are left in the file)", c->what,
                       (unsigned long long)count, c->size - c->at);
    size_t room = (size_t)count + 1; /* never an allocation of nothing */
    fb_tensor_table *table = gguf->tensors = calloc(1, sizeof *table);
    info *infos = calloc(room, sizeof *infos);
    fb_tensor_range *ranges = calloc(room, sizeof *ranges);
    if (table) {
        table->entries = calloc(room, sizeof *table->entries);
        table->names = calloc(room, NAME_SIZE);
    }
    fb_status status;
    if (table && table->entries && table->names && infos && ranges)
        status = fill_table(c, gguf, (int64_t)count, infos, ranges, err);
    else
        status = fb_fail_memory(err, c->what, (int64_t)(room * (sizeof *table->entries + NAME_SIZE)));
    free(infos);
    free(ranges);
    return status;
}
