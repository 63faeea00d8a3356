/* Structs by their size: what a shorter, a longer and a wrong one does, for the helper and for every public
 * struct. */
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "base/sized.h"
#include "fusebox_batch.h"
#include "support/support.h"

/* ---- the helper ---- */

typedef struct toy {
    size_t size;
    int64_t first;
    int64_t second, third;
} toy;

static const toy toy_defaults = {.size = sizeof(toy), .first = 1, .second = 2, .third = 3};
static const fb_sized toy_type = FB_SIZED(toy, first, &toy_defaults);
enum { TWO_FIELDS = offsetof(toy, third), ROOM = 256, POISON = 0xa5 };

static void defaults_stop_at_the_size(void **state) {
    (void)state;
    for (size_t size = 0; size <= ROOM; size++) {
        uint8_t memory[ROOM + 16];
        size_t written;
        memset(memory, POISON, sizeof memory);
        fb_sized_init(&toy_type, memory, size);
        if (size < sizeof size) {
            assert_int_equal(memory[0], POISON);
            continue;
        }
        memcpy(&written, memory, sizeof written);
        assert_int_equal(written, size);
        for (size_t i = sizeof size; i < size; i++)
            assert_int_equal(memory[i], i < sizeof(toy) ? ((const uint8_t *)&toy_defaults)[i] : 0);
        for (size_t i = size; i < sizeof memory; i++) assert_int_equal(memory[i], POISON);
    }
}

static void shorter_takes_defaults(void **state) {
    (void)state;
    toy given = {.size = TWO_FIELDS, .first = 10, .second = 20, .third = 30}, out;
    fb_error err;
    assert_ok(fb_sized_take(&toy_type, &given, &out, &err), &err);
    assert_int_equal(out.size, sizeof out);
    assert_int_equal(out.first, 10);
    assert_int_equal(out.second, 20);
    assert_int_equal(out.third, 3); /* it lies behind what was given */
    assert_ok(fb_sized_take(&toy_type, NULL, &out, &err), &err);
    assert_memory_equal(&out, &toy_defaults, sizeof out);
}

static void longer_must_be_zero(void **state) {
    (void)state;
    uint8_t given[ROOM];
    toy out;
    fb_error err;
    fb_sized_init(&toy_type, given, sizeof given);
    assert_ok(fb_sized_take(&toy_type, given, &out, &err), &err);
    assert_memory_equal(&out, &toy_defaults, sizeof out);
    for (size_t at = sizeof(toy); at < ROOM; at += 31) {
        given[at] = 1;
        assert_refused(fb_sized_take(&toy_type, given, &out, &err), FB_ERROR_USAGE, &err,
                       "toy: size: 256|32");
        given[at] = 0;
    }
}

static void sizes_that_cannot_be(void **state) {
    (void)state;
    toy given = {.first = 1}, out;
    fb_error err;
    assert_refused(fb_sized_take(&toy_type, &given, &out, &err), FB_ERROR_USAGE, &err, "toy: size: 0 |16 to");
    given.size = toy_type.least - 1;
    assert_refused(fb_sized_take(&toy_type, &given, &out, &err), FB_ERROR_USAGE, &err,
                   "toy: size: 15 |16 to");
    given.size = SIZE_MAX; /* never read by */
    assert_refused(fb_sized_take(&toy_type, &given, &out, &err), FB_ERROR_USAGE, &err, "toy: size: |16 to");
}

static void given_back_up_to_the_size(void **state) {
    (void)state;
    for (size_t size = 0; size <= ROOM; size++) {
        uint8_t memory[ROOM + 16];
        memset(memory, POISON, sizeof memory);
        memcpy(memory, &size, sizeof size);
        assert_int_equal(fb_sized_give(&toy_defaults, sizeof toy_defaults, memory), size >= sizeof size);
        assert_memory_equal(memory, &size, sizeof size);
        for (size_t i = sizeof size; i < sizeof memory; i++)
            assert_int_equal(memory[i], i >= size          ? POISON
                                        : i >= sizeof(toy) ? 0
                                                           : ((const uint8_t *)&toy_defaults)[i]);
    }
}

/* ---- options ---- */

/* Of every options struct: no size, and garbage behind what is known. The calls refuse before they look at
 * anything else. */
#define CHECK(type, call)                                                                                    \
    do {                                                                                                     \
        struct {                                                                                             \
            type options;                                                                                    \
            uint8_t later[64];                                                                               \
        } l;                                                                                                 \
        memset(&l, 0, sizeof l);                                                                             \
        const type *given = &l.options;                                                                      \
        assert_refused(call, FB_ERROR_USAGE, &err, #type ": size: 0 ");                                      \
        type##_init(&l.options, sizeof l);                                                                   \
        assert_int_equal(l.options.size, sizeof l);                                                          \
        l.later[63] = 1;                                                                                     \
        assert_refused(call, FB_ERROR_USAGE, &err, #type ": size: |not all zero");                           \
        type whole, defaults;                                                                                \
        type##_default(&whole);                                                                              \
        assert_int_equal(whole.size, sizeof whole);                                                          \
        assert_ok(type##_take(NULL, &defaults, &err), &err);                                                 \
        assert_memory_equal(&whole, &defaults, sizeof whole);                                                \
    } while (0)

static void every_call_checks(void **state) {
    (void)state;
    fb_model *model;
    fb_error err;
    const int32_t ids[] = {1, 2, 3};
    const char *golden = FBT_GOLDENS "/gpt2/golden.safetensors";
    assert_ok(fb_model_open(FBT_GOLDENS "/gpt2", &model, &err), &err);
    fb_session *session;
    CHECK(fb_session_options, fb_session_create(model, given, &session, &err));
    CHECK(fb_quantize_options, fb_model_quantize(model, "/none/x.gguf", given, NULL, &err));
    fb_bench_report *bench;
    CHECK(fb_bench_options, fb_bench_run(model, given, &bench, &err));
    fb_bench_ops_report *ops;
    CHECK(fb_bench_ops_options, fb_bench_ops(model, given, &ops, &err));
    fb_bench_stream_report *stream;
    CHECK(fb_bench_stream_options, fb_bench_stream_run(model, given, &stream, &err));
    fb_plan_report *plan;
    CHECK(fb_profile_options, fb_profile_make(model, given, &plan, &err));
    CHECK(fb_plan_report_options, fb_plan_report_make(model, given, &plan, &err));
    fb_verify_report *verified;
    CHECK(fb_verify_options, fb_verify_golden(model, golden, given, &verified, &err));
    fb_stream_report *streamed;
    CHECK(fb_verify_options, fb_verify_stream(model, golden, given, &streamed, &err));
    fb_fusion_report *fusion;
    CHECK(fb_fusion_options, fb_verify_fusion(model, given, &fusion, &err));
    fb_batch_report batched = {.size = sizeof batched};
    CHECK(fb_batch_verify_options, fb_verify_batch(model, given, &batched, &err));
    fb_bench_batch_report *batches;
    CHECK(fb_bench_batch_options, fb_bench_batch(model, given, &batches, &err));
    fb_scheduler *scheduler;
    CHECK(fb_scheduler_options, fb_scheduler_create(model, NULL, given, &scheduler, &err));
    fb_perplexity_report *perplexity;
    CHECK(fb_perplexity_options, fb_perplexity_run(model, given, ids, 3, &perplexity, &err));
    fb_curve_report *curve;
    CHECK(fb_curve_options, fb_curve_run(model, given, ids, 3, &curve, &err));
    assert_true(!session && !bench && !ops && !stream && !plan && !verified && !streamed && !fusion &&
                !perplexity && !curve && !batches && !scheduler);
    fb_model_free(model);
}

static void sampler_checks(void **state) {
    (void)state;
    fb_sampler_options options;
    fb_sampler *sampler;
    fb_error err;
    fb_sampler_options_default(&options);
    options.seed = UINT64_MAX;
    options.size = offsetof(fb_sampler_options, repeat_window);
    assert_ok(fb_sampler_create(&options, 10, &sampler, &err), &err);
    fb_sampler_free(sampler);
    /* The struct as it was before sequences: what lies behind it is not read. */
    memset((uint8_t *)&options + offsetof(fb_sampler_options, sequence), POISON,
           sizeof options - offsetof(fb_sampler_options, sequence));
    options.size = offsetof(fb_sampler_options, sequence);
    assert_ok(fb_sampler_create(&options, 10, &sampler, &err), &err);
    fb_sampler_free(sampler);
    options.size = sizeof options;
    assert_refused(fb_sampler_create(&options, 10, &sampler, &err), FB_ERROR_USAGE, &err,
                   "logit_bias_count: ");
    assert_ok(fb_sampler_create(NULL, 10, &sampler, &err), &err);
    fb_sampler_free(sampler);
    options.size = 0;
    assert_refused(fb_sampler_create(&options, 10, &sampler, &err), FB_ERROR_USAGE, &err,
                   "fb_sampler_options: size: 0 ");
    assert_null(sampler);
}

static void chat_checks(void **state) {
    (void)state;
    fb_model *model = fbt_model_open(FBT_STORYTELLER);
    fb_chat_options options;
    char *text;
    size_t bytes;
    fb_error err;
    fb_chat_options_default(&options);
    options.template_text = "{{ tools }}{{ add_generation_prompt }}";
    options.tools = "not JSON";
    options.size = offsetof(fb_chat_options, tools); /* an older header */
    assert_ok(fb_chat_render(model, "[]", &options, &text, &bytes, &err), &err);
    assert_string_equal(text, "NoneTrue");
    fb_free(text);
    options.size = 0;
    assert_refused(fb_chat_render(model, "[]", &options, &text, &bytes, &err), FB_ERROR_USAGE, &err,
                   "fb_chat_options: size: 0 ");
    assert_null(text);
    fb_model_free(model);
}

/* A field behind the given size has its default, whatever lies there. */
static void session_reads_no_further(void **state) {
    (void)state;
    fb_model *model;
    fb_session *session;
    fb_session_options options;
    fb_cache_info cache;
    fb_error err;
    assert_ok(fb_model_open(FBT_GOLDENS "/neox-parallel", &model, &err), &err);
    memset(&options, POISON, sizeof options);
    fb_session_options_init(&options, offsetof(fb_session_options, capacity));
    options.threads = 1;
    options.cache = FB_CACHE_SINKS;
    assert_ok(fb_session_create(model, &options, &session, &err), &err);
    fb_session_get_cache(session, &cache);
    assert_int_equal(cache.sinks, 4);
    assert_int_equal(cache.window, 128 - 1 - 4);
    fb_session_free(session);
    fb_model_free(model);
}

/* ---- structs that the library fills ---- */

/* For every size up to beyond the whole: `fill` writes what `whole` has, zeros beyond, and no further. */
static void check_fill(void (*fill)(void *info), const void *whole, size_t known) {
    uint8_t *memory = malloc(known + 64);
    assert_non_null(memory);
    for (size_t size = 0; size <= known + 32; size++) {
        memset(memory, POISON, known + 64);
        memcpy(memory, &size, sizeof size);
        fill(memory);
        for (size_t i = sizeof size; i < known + 64; i++)
            assert_int_equal(memory[i], i >= size ? POISON : i >= known ? 0 : ((const uint8_t *)whole)[i]);
    }
    free(memory);
}

static fb_model *filled_model;
static fb_session *filled_session;
static fb_scheduler *filled_scheduler;
static void fill_model(void *info) { fb_model_fill_info(filled_model, info); }
static void fill_cache(void *info) { fb_session_fill_cache(filled_session, info); }
static void fill_fuse(void *info) { fb_model_fill_fuse(filled_model, 1, info); }
static void fill_stats(void *info) { fb_scheduler_fill_stats(filled_scheduler, info); }
static void fill_state(void *info) { fb_scheduler_fill_fuse(filled_scheduler, 3, info); }

static void fill_device(void *info) {
    bool found;
    fb_error err;
    size_t size;
    memcpy(&size, info, sizeof size);
    fb_status status = fb_device_fill(-1, &found, info, &err);
    assert_refused(status, FB_ERROR_USAGE, &err, size < sizeof size ? "fb_device_info: size" : "device: -1");
    assert_false(found);
}

static void infos_stop_at_the_size(void **state) {
    (void)state;
    fb_error err;
    fb_model_info model;
    fb_cache_info cache;
    fb_fuse_info fuse;
    fb_device_info device;
    fb_scheduler_stats stats;
    fb_fuse_state state_of_fuse;
    assert_ok(fb_model_open(FBT_GOLDENS "/gpt2", &filled_model, &err), &err);
    assert_ok(fb_scheduler_create(filled_model, NULL, NULL, &filled_scheduler, &err), &err);
    fb_scheduler_get_stats(filled_scheduler, &stats);
    check_fill(fill_stats, &stats, sizeof stats);
    assert_true(fb_scheduler_fuse_state(filled_scheduler, 3, &state_of_fuse));
    check_fill(fill_state, &state_of_fuse, sizeof state_of_fuse);
    fb_scheduler_free(filled_scheduler);
    assert_ok(fb_session_create(filled_model, NULL, &filled_session, &err), &err);
    memset(&model, 0, sizeof model);
    fb_model_get_info(filled_model, &model);
    assert_int_equal(model.size, sizeof model);
    check_fill(fill_model, &model, sizeof model);
    fb_session_get_cache(filled_session, &cache);
    check_fill(fill_cache, &cache, sizeof cache);
    assert_true(fb_model_fuse(filled_model, 1, &fuse));
    check_fill(fill_fuse, &fuse, sizeof fuse);
    memset(&device, 0, sizeof device);
    check_fill(fill_device, &device, sizeof device);
    fb_session_free(filled_session);
    fb_model_free(filled_model);
}

static void weights_by_dtype(void **state) {
    (void)state;
    fb_model *model;
    fb_error err;
    fb_dtype dtype;
    int64_t weights, bytes, sum = 0;
    int index = 0;
    assert_ok(fb_model_open(FBT_STORYTELLER, &model, &err), &err);
    for (; fb_model_weights(model, index, &dtype, &weights, &bytes); index++) {
        assert_int_equal(bytes, fb_dtype_bytes(dtype, weights));
        sum += weights;
    }
    fb_model_info info;
    fb_model_get_info(model, &info);
    assert_true(index > 0);
    assert_int_equal(sum, info.parameters);
    assert_false(fb_model_weights(model, -1, &dtype, &weights, &bytes));
    assert_false(fb_model_weights(model, index + 1, &dtype, &weights, &bytes));
    fb_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_stop_at_the_size),
        cmocka_unit_test(shorter_takes_defaults),
        cmocka_unit_test(longer_must_be_zero),
        cmocka_unit_test(sizes_that_cannot_be),
        cmocka_unit_test(given_back_up_to_the_size),
        cmocka_unit_test(every_call_checks),
        cmocka_unit_test(sampler_checks),
        cmocka_unit_test(chat_checks),
        cmocka_unit_test(session_reads_no_further),
        cmocka_unit_test(infos_stop_at_the_size),
        cmocka_unit_test(weights_by_dtype),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
