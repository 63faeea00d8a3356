#include <stdlib.h>

#include "fuzz/fuzz.h"
#include "text/tokenizer.h"

/* Words, digits, spaces, a byte that is no UTF-8, combining marks, a special token: something for every rule.
 */
static const char text[] =
    " Once upon\ta time, it's 2024\r\n\n\xff e\xcc\x81\xf0\x9f\x98\x80 <|endoftext|>  abab";

/* Whatever the tokenizer is, its own ids decode, unless its decoder makes too much of them. */
static void round_trip(const fb_tokenizer *tokenizer, bool special) {
    int32_t *ids = NULL;
    int64_t count = 0;
    char *back = NULL;
    size_t bytes = 0;
    fb_error err;
    fb_status status = fb_tokenizer_encode(tokenizer, text, sizeof text - 1, special, &ids, &count, &err);
    if (status != FB_OK) {
        require_refusal(status, &err, ids);
        return;
    }
    for (int64_t i = 0; i < count; i++) REQUIRE(ids[i] >= 0 && ids[i] < fb_tokenizer_vocab(tokenizer));
    status = fb_tokenizer_decode(tokenizer, ids, count, special, &back, &bytes, &err);
    if (status == FB_OK)
        REQUIRE(back[bytes] == 0);
    else
        require_refusal(status, &err, back);
    REQUIRE(status == FB_OK || status == FB_ERROR_UNSUPPORTED);
    free(back);
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    fb_tokenizer *tokenizer;
    fb_error err;
    fb_status status = fb_tokenizer_parse("fuzz", (const char *)bytes, size, &tokenizer, &err);
    if (status != FB_OK) {
        require_refusal(status, &err, tokenizer);
        return 0;
    }
    round_trip(tokenizer, false);
    round_trip(tokenizer, true);
    fb_tokenizer_free(tokenizer);
    return 0;
}
