/* A GGUF file: its tables, the spec that its metadata becomes, and its tokenizer. */
#include "file/gguf.h"

#include "arch/gguf.h"
#include "fuzz/fuzz.h"
#include "text/tokenizer.h"

/* What the table promises of an entry; reading both ends of its data lets the sanitizer check the rest. */
static void check_entry(const fb_tensor_table *table, const fb_tensor_entry *entry, const uint8_t *bytes,
                        size_t size) {
    int64_t count = 1;
    REQUIRE(entry->dims >= 0 && entry->dims <= FB_MAX_DIMS && entry->type < FB_STORED_TYPE_COUNT);
    for (int32_t d = 0; d < entry->dims; d++) count *= entry->shape[d];
    REQUIRE(count == entry->count && fb_tensors_find(table, entry->name) == entry);
    REQUIRE(count % fb_stored_block(entry->type) == 0 && (count == 0) == (entry->data == NULL));
    if (count == 0) return;
    const uint8_t *end = entry->data + fb_stored_bytes(entry->type, count);
    REQUIRE(entry->data > bytes && end <= bytes + size && entry->data < end);
    volatile uint8_t sink = entry->data[0];
    sink = end[-1];
    (void)sink;
}

static void check_arrays(const fb_gguf *gguf) {
    const uint8_t *end = gguf->metadata + gguf->metadata_size;
    for (int64_t i = 0; i < gguf->array_count; i++) {
        const fb_gguf_array *array = &gguf->arrays[i];
        REQUIRE(fb_gguf_find_array(gguf, array->key) == array);
        const uint8_t *at = array->data;
        for (int64_t k = 0; k < array->count; k++) {
            if (array->type == FB_GGUF_STRING) fb_gguf_next_text(&at);
            if (fb_gguf_is_int(array->type)) fb_gguf_int_at(array, k);
            if (fb_gguf_is_real(array->type)) fb_gguf_real_at(array, k);
        }
        REQUIRE(at <= end);
    }
}

static void check_spec(const fb_gguf *gguf) {
    fb_spec *spec;
    fb_error err;
    fb_status status = fb_gguf_describe("fuzz", gguf, &spec, &err);
    if (status != FB_OK) require_refusal(status, &err, spec);
    fb_spec_free(spec);
}

static void check_tokenizer(const fb_gguf *gguf) {
    static const char text[] = "ab <e>\xc3\xa9 \xe2\x96\x81 1234'll <s>\n";
    fb_tokenizer *tokenizer;
    fb_error err;
    int32_t *ids;
    int64_t count;
    char *back;
    size_t size;
    fb_status status = fb_tokenizer_from_gguf("fuzz", gguf, &tokenizer, &err);
    if (status != FB_OK) require_refusal(status, &err, tokenizer);
    if (!tokenizer) return;
    if (fb_tokenizer_encode(tokenizer, text, sizeof text - 1, true, &ids, &count, &err) == FB_OK) {
        for (int64_t i = 0; i < count; i++) REQUIRE(ids[i] >= 0 && ids[i] < fb_tokenizer_vocab(tokenizer));
        REQUIRE(fb_tokenizer_decode(tokenizer, ids, count, true, &back, &size, &err) == FB_OK);
        fb_free(back);
        fb_free(ids);
    }
    fb_tokenizer_free(tokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    fb_gguf *gguf;
    fb_error err;
    fb_status status = fb_gguf_parse("fuzz", bytes, size, &gguf, &err);
    if (status != FB_OK) {
        require_refusal(status, &err, gguf);
        return 0;
    }
    for (int64_t i = 0; i < fb_tensors_count(gguf->tensors); i++)
        check_entry(gguf->tensors, fb_tensors_at(gguf->tensors, i), bytes, size);
    check_arrays(gguf);
    check_spec(gguf);
    check_tokenizer(gguf);
    fb_gguf_free(gguf);
    return 0;
}
