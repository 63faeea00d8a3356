/* A schema, and behind a line with 0xff a text: what the schema lets through, the parser reads. */
#include <stdlib.h>

#include "file/json.h"
#include "fuzz/fuzz.h"
#include "schema/schema.h"

static fb_status byte_of(const void *from, int32_t id, fb_bytes *out, fb_error *err) {
    (void)from;
    return id < 256 ? fb_bytes_append(out, &(char){(char)id}, 1, err) : FB_OK;
}

static bool is_end(const void *from, int32_t id) {
    (void)from;
    return id == 256;
}

static fb_token_set *bytes_only(void) {
    static fb_token_set *set;
    const fb_token_source source = {.vocab = 257, .bytes_of = byte_of, .is_end = is_end};
    if (!set) REQUIRE(fb_token_set_create(&source, &set, NULL) == FB_OK);
    return set;
}

/* An array around it: the parser takes nothing else on its own. */
static void check_document(const char *text, size_t size) {
    char *array = malloc(size + 2);
    fb_json *json = NULL;
    fb_error err;
    REQUIRE(array);
    array[0] = '[';
    memcpy(array + 1, text, size);
    array[size + 1] = ']';
    fb_status status = fb_json_parse("fuzz", array, size + 2, size + 2, &json, &err);
    /* Keys without a name in the schema may be there twice, which the parser refuses, as it does NUL in keys.
     */
    REQUIRE(status == FB_OK || strstr(err.message, "duplicate") || strstr(err.message, "NUL"));
    fb_json_free(json);
    free(array);
}

/* From each place that the text comes to there is a way on, and the mask says which. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    const uint8_t *border = size ? memchr(bytes, 0xff, size) : NULL;
    const size_t schema_size = border ? (size_t)(border - bytes) : size;
    fb_schema *schema;
    fb_cursor *cursor;
    fb_error err;
    fb_status status = fb_schema_compile(bytes_only(), (const char *)bytes, schema_size, &schema, &err);
    if (status != FB_OK) {
        require_refusal(status, &err, schema);
        return 0;
    }
    const char *text = border ? (const char *)border + 1 : "";
    const size_t text_size = border ? size - schema_size - 1 : 0;
    REQUIRE(fb_cursor_create(schema, &cursor, &err) == FB_OK);
    for (size_t i = 0; i <= text_size; i++) {
        uint64_t words[5], any = 0;
        REQUIRE(fb_cursor_mask(cursor, words, &err) == FB_OK);
        for (int k = 0; k < 5; k++) any |= words[k];
        REQUIRE(any);
        REQUIRE((words[4] & 1) == fb_cursor_complete(cursor));
        if (fb_cursor_complete(cursor)) check_document(text, i);
        if (i == text_size) break;
        const uint8_t byte = (uint8_t)text[i];
        const bool allowed = words[byte >> 6] >> (byte & 63) & 1;
        REQUIRE(fb_cursor_take_bytes(cursor, text + i, 1) == allowed);
        if (!allowed) break;
    }
    fb_cursor_free(cursor);
    fb_schema_free(schema);
    return 0;
}
