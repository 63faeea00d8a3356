#include "file/safetensors.h"
#include "fuzz/fuzz.h"

/* What the table promises of an entry; reading both ends of its data lets the sanitizer check the rest. */
static void check_entry(const fb_tensor_table *table, const fb_tensor_entry *entry, const uint8_t *bytes,
                        size_t size) {
    int64_t count = 1;
    REQUIRE(entry->dims >= 0 && entry->dims <= FB_MAX_DIMS && entry->type < FB_STORED_PLAIN_COUNT);
    for (int32_t d = 0; d < entry->dims; d++) count *= entry->shape[d];
    REQUIRE(count == entry->count && fb_tensors_find(table, entry->name) == entry);
    REQUIRE((count == 0) == (entry->data == NULL));
    if (count == 0) return;
    const uint8_t *end = entry->data + fb_stored_bytes(entry->type, count);
    REQUIRE(entry->data >= bytes + 8 && end <= bytes + size && entry->data < end);
    volatile uint8_t sink = entry->data[0];
    sink = end[-1];
    (void)sink;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    fb_tensor_table *table;
    fb_error err;
    fb_status status = fb_tensors_parse("fuzz", bytes, size, &table, &err);
    if (status != FB_OK) {
        require_refusal(status, &err, table);
        return 0;
    }
    for (int64_t i = 0; i < fb_tensors_count(table); i++) {
        const fb_tensor_entry *entry = fb_tensors_at(table, i);
        if (i > 0) REQUIRE(strcmp(fb_tensors_at(table, i - 1)->name, entry->name) < 0);
        check_entry(table, entry, bytes, size);
    }
    fb_tensors_free(table);
    return 0;
}
