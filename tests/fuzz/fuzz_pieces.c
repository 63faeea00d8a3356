#include <stdlib.h>

#include "fuzz/fuzz.h"
#include "text/sentencepiece.h"

/* Spaces at all places, a mark, characters that maps replace, one that no vocabulary has. */
static const char text[] =
    "  Once upon\ta time,\xC2\xA0 e\xCC\x81 \xEF\xBC\xA6\xE2\x80\xA6 \xF0\x9F\x98\x80 <s> ";

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    const fb_piece_options options = {0};
    fb_tokenizer *tokenizer;
    fb_error err;
    fb_status status = fb_tokenizer_parse_model("fuzz", bytes, size, &options, &tokenizer, &err);
    if (status != FB_OK) {
        require_refusal(status, &err, tokenizer);
        return 0;
    }
    int32_t *ids = NULL;
    int64_t count = 0;
    char *back = NULL;
    size_t size_back = 0;
    status = fb_tokenizer_encode(tokenizer, text, sizeof text - 1, true, &ids, &count, &err);
    if (status == FB_OK) {
        for (int64_t i = 0; i < count; i++) REQUIRE(ids[i] >= 0 && ids[i] < fb_tokenizer_vocab(tokenizer));
        status = fb_tokenizer_decode(tokenizer, ids, count, true, &back, &size_back, &err);
        REQUIRE(status == FB_OK && back[size_back] == 0);
    } else {
        require_refusal(status, &err, ids);
    }
    free(back);
    free(ids);
    fb_tokenizer_free(tokenizer);
    return 0;
}
