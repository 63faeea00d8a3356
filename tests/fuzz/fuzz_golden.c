#include <math.h>

#include "fuzz/fuzz.h"
#include "verify/golden.h"
#include "verify/stream_golden.h"

static void read_stream(fb_tensor_table *table) {
    enum { VOCAB = 320 };
    fb_stream_golden golden;
    fb_error err;
    fb_status status = fb_stream_golden_from_table("fuzz", table, VOCAB, &golden, &err);
    if (status != FB_OK) {
        require_refusal(status, &err, golden.table);
        return;
    }
    for (int32_t c = 0; c < golden.count; c++) {
        const fb_stream_case *one = &golden.cases[c];
        REQUIRE((one->cache == FB_CACHE_DENSE) == (one->window == 0));
        for (int64_t i = 0; i + 1 < golden.tokens; i++) {
            REQUIRE(fb_golden_int(golden.ids, i + 1) < VOCAB && isfinite(fb_golden_real(one->nll, i)));
            if (one->logits) REQUIRE(isfinite(fb_golden_real(one->logits, (i + 1) * VOCAB - 1)));
        }
    }
    fb_stream_golden_close(&golden);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    fb_tensor_table *table;
    fb_error err;
    if (fb_tensors_parse("fuzz", bytes, size, &table, &err) != FB_OK) return 0;
    if (fb_stream_golden_is(table)) {
        read_stream(table);
        return 0;
    }
    fb_golden golden;
    fb_status status = fb_golden_from_table("fuzz", table, &golden, &err);
    if (status != FB_OK) {
        require_refusal(status, &err, golden.table);
        return 0;
    }
    /* Every index that a comparison will use must be readable. */
    for (int64_t i = 0; i < golden.tokens; i++) {
        int64_t id = fb_golden_int(golden.ids, i);
        REQUIRE(id >= 0 && id < golden.vocab);
        for (int64_t layer = 0; layer < golden.layers; layer++)
            REQUIRE(isfinite(fb_golden_real(golden.hidden[layer], (i + 1) * golden.width - 1)));
        REQUIRE(isfinite(fb_golden_real(golden.logits, (i + 1) * golden.vocab - 1)));
        if (golden.logits_f64)
            REQUIRE(isfinite(fb_golden_real(golden.logits_f64, (i + 1) * golden.vocab - 1)));
    }
    for (int64_t i = 0; golden.greedy && i < golden.greedy->count; i++)
        REQUIRE(fb_golden_int(golden.greedy, i) < golden.vocab);
    fb_golden_close(&golden);
    return 0;
}
