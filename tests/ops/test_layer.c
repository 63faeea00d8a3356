/* Layers on the caller's memory: the hidden states of a session, to the bit. A GPU's sums depend on the
 * number of rows: there, one sequence has the session's bits, and of two equal ones both have the same. */
#include "model/model.h"
#include "ops/ops_harness.h"

enum { TOKENS = 24, FIRST = 17, LAYERS = 3, WIDEST = 72, SEQUENCES = 2 /* at most */, CAPACITY = 40 };

static const int32_t *some_ids(void) {
    static int32_t ids[TOKENS];
    fbt_random random = {31};
    for (int i = 0; i < TOKENS; i++) ids[i] = (int32_t)fbt_random_below(&random, 320);
    return ids;
}

static const int parts[] = {0, FIRST, FIRST + 1, TOKENS};

/* ---- what a session computes ---- */

static float truth[LAYERS][TOKENS][WIDEST]; /* before each layer */
static int64_t hidden_size;

static bool on_hidden(void *user, int64_t layer, int64_t position, const float *hidden, int64_t rows,
                      int64_t cols) {
    (void)user;
    for (int64_t r = 0; layer < LAYERS && r < rows; r++)
        memcpy(truth[layer][position + r], hidden + r * cols, (size_t)cols * sizeof *hidden);
    return true;
}

static void run_session(const fb_model *model, fb_dtype act) {
    fb_session_options options;
    fb_session *session;
    fb_error err;
    hidden_size = model->spec->program.hidden;
    assert_true(hidden_size <= WIDEST && model->spec->program.layers == LAYERS);
    fb_session_options_default(&options);
    options.act = act;
    options.kv = fb_dtype_name(act);
    options.fuse = "none";
    options.backend = dev.cuda ? "cuda" : "cpu";
    options.on_hidden = on_hidden;
    assert_ok(fb_session_create(model, &options, &session, &err), &err);
    /* On a GPU up to 8 rows of a layer count as generated tokens, whose bits do not depend on their number.
     */
    for (int part = 0; part < 3; part++) {
        const int32_t *ids = some_ids() + parts[part];
        int count = parts[part + 1] - parts[part];
        if (count > 8)
            assert_ok(fb_session_prefill(session, ids, count, &err), &err);
        else
            for (int i = 0; i < count; i++) assert_ok(fb_session_decode(session, ids[i], &err), &err);
    }
    fb_session_free(session);
}

/* ---- layers ---- */

/* The tensors of a layer in memory of the case; a transposed one is turned round. */
static int32_t weights_of(const fb_model *model, int64_t layer, fb_ops_named *out) {
    const fb_program *p = &model->spec->program;
    int32_t count = 0;
    for (int32_t s = 0; s < p->slot_count; s++) {
        const char *hole = strstr(p->slots[s].name, "{}.");
        const fb_weight *w = &model->weights[s * p->layers + layer];
        if (!hole) continue;
        fb_ops_tensor t = {take(w->rows * w->cols * fb_dtype_size(w->dtype), 0), w->dtype, w->rows, w->cols,
                           w->cols};
        for (int64_t r = 0; r < w->rows; r++)
            for (int64_t i = 0; i < w->cols; i++)
                fb_dtype_set(
                    w->dtype, t.data, r * w->cols + i,
                    fb_dtype_get(w->dtype, w->data,
                                 w->order == FB_ROWS_TRANSPOSED ? i * w->rows + r : r * w->cols + i));
        out[count++] = (fb_ops_named){hole + 3, on_device(t)};
    }
    return count;
}

static char *config_of(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "tests/data/golden/%s/config.json", name);
    FILE *file = fopen(path, "rb");
    char *text = calloc(1, 1 << 16);
    assert_non_null(file);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 16) - 1, file) > 0);
    fclose(file);
    return text;
}

typedef struct stack {
    fb_ops_layer *layer[LAYERS];
    fb_ops_cache cache[LAYERS];
    void *k[LAYERS], *v[LAYERS]; /* in host memory */
    int64_t sequences, cache_elements;
    fb_dtype act;
} stack;

static stack open_stack(const fb_model *model, const char *name, fb_dtype act, const char *fuse,
                        int64_t sequences) {
    const fb_program *p = &model->spec->program;
    stack s = {.act = act,
               .sequences = sequences,
               .cache_elements = sequences * p->kv_heads * (CAPACITY + 3) * p->head_dim};
    char *config = config_of(name);
    fb_error err;
    for (int64_t l = 0; l < LAYERS; l++) {
        fb_ops_named weights[24];
        int32_t count = weights_of(model, l, weights);
        assert_ok(
            fb_ops_layer_create(dev.ops, config, weights, count, NULL, 0, act, fuse, true, &s.layer[l], &err),
            &err);
        int64_t bytes = s.cache_elements * fb_dtype_size(act), head = (CAPACITY + 3) * p->head_dim;
        s.k[l] = take(bytes, 0);
        s.v[l] = take(bytes, 0);
        s.cache[l] = (fb_ops_cache){there(s.k[l]), there(s.v[l]), sequences,          p->kv_heads,
                                    CAPACITY,      p->head_dim,   p->kv_heads * head, head};
    }
    free(config);
    return s;
}

/* A GPU has other kernels, with other sums, for what is not aligned as a session has it. */
static fb_ops_tensor state_of(fb_dtype act, int64_t rows) {
    if (!dev.cuda) return tensor(act, rows, hidden_size);
    return (fb_ops_tensor){take(rows * hidden_size * fb_dtype_size(act), 0), act, rows, hidden_size,
                           hidden_size};
}

/* Rows [first, first + rows) of both sequences, through all layers; each state is compared. */
static void run_rows(stack *s, int64_t first, int64_t rows, bool given) {
    int64_t total = s->sequences * rows, at[SEQUENCES * TOKENS];
    fb_ops_tensor x = state_of(s->act, total);
    int64_t *positions = take((int64_t)sizeof at, 0);
    for (int64_t r = 0; r < total; r++) {
        positions[r] = first + r % rows;
        for (int64_t i = 0; i < hidden_size; i++)
            fb_dtype_set(s->act, x.data, r * x.stride + i, (double)truth[0][first + r % rows][i]);
    }
    void *places = take(fb_ops_places_bytes(s->layer[0], total), 0);
    fb_ops_positions p = {given ? there(positions) : NULL, 64};
    RUN(fb_ops_places(s->layer[0], dev.stream, p, first, s->sequences, rows, CAPACITY, there(places),
                      &run_err));
    for (int64_t l = 0; l < LAYERS; l++) {
        fb_ops_tensor out = state_of(s->act, total);
        RUN(fb_ops_layer_run(s->layer[l], dev.stream, DEV(x), there(places), &s->cache[l], DEV(out),
                             &run_err));
        for (int64_t r = 0; l + 1 < LAYERS && r < total; r++)
            for (int64_t i = 0; i < hidden_size; i++) {
                double have = fb_dtype_get(s->act, out.data, r * out.stride + i);
                double want = dev.cuda && s->sequences > 1
                                  ? fb_dtype_get(s->act, out.data, r % rows * out.stride + i)
                                  : (double)truth[l + 1][first + r % rows][i];
                if (have != want)
                    fail_msg("layer %lld, row %lld of %lld, element %lld: %.9g, should be %.9g", (long long)l,
                             (long long)r, (long long)total, (long long)i, have, want);
            }
        x = out;
    }
}

/* Slots that no row has are untouched: NaN. */
static void check_cache(const fb_model *model, const stack *s) {
    const fb_program *p = &model->spec->program;
    for (int64_t l = 0; l < LAYERS; l++)
        for (int64_t i = 0; i < s->cache_elements; i++) {
            bool written = i / p->head_dim % (CAPACITY + 3) < TOKENS;
            if (isnan(fb_dtype_get(s->act, s->k[l], i)) == written ||
                isnan(fb_dtype_get(s->act, s->v[l], i)) == written)
                fail_msg("layer %lld: slot %lld is%s written", (long long)l,
                         (long long)(i / p->head_dim % (CAPACITY + 3)), written ? " not" : "");
        }
}

/* Every fuse that is on has run as often as the plan says. */
static int64_t check_calls(const stack *s, int64_t runs) {
    int64_t on = 0;
    for (int l = 0; l < LAYERS; l++) {
        bool more = true;
        fb_error err;
        for (int32_t f = 0; more; f++) {
            fb_ops_layer_fuse fuse = {0};
            assert_ok(fb_ops_layer_fuse_at(s->layer[l], f, &fuse, &more, &err), &err);
            assert_int_equal(fuse.calls, runs * fuse.each);
            assert_true(!more || (fuse.why_not == NULL) == (fuse.each > 0));
            assert_true(!more || fuse.bit);
            on += fuse.each > 0;
        }
    }
    return on;
}

static void session(void **state) {
    (void)state;
    NEEDS_DEVICE();
    static const char *const names[] = {"neox-parallel",  "neox-serial",       "neox-old-nobias",
                                        "llama-gqa-tied", "llama-llama3-bias", "gpt2"};
    static const char *const fuses[] = {"none", "all", "all,-norm_linear,-attn_flash"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) FOR_ACTS(act) {
            bool slow = dev.cuda && !dev.real; /* the emulated GPU gets a third of the cases */
            if (slow && (fb_dtype)act != acts[n % 3]) continue;
            fb_model *model = fbt_golden_open(names[n]);
            run_session(model, (fb_dtype)act);
            for (int f = 0; f < 6; f += slow ? 4 : 1) {
                stack s = open_stack(model, names[n], (fb_dtype)act, fuses[f % 3], 1 + f / 3);
                for (int part = 0; part < 3; part++)
                    run_rows(&s, parts[part], parts[part + 1] - parts[part], (f + part) % 2);
                check_cache(model, &s);
                assert_int_equal(check_calls(&s, 3) > 0, f % 3 > 0);
                for (int l = 0; l < LAYERS; l++) fb_ops_layer_free(s.layer[l]);
                give_back();
            }
            fb_model_free(model);
        }
}

/* ---- refusals ---- */

static void refusals(void **state) {
    (void)state;
    fb_error err;
    fb_ops_layer *layer;
    fb_ops_named weights[24], some[24];
    random_numbers = fbt_random_start(23);
    open_cpu(1);
    fb_model *model = fbt_golden_open("neox-parallel");
    char *config = config_of("neox-parallel");
    int32_t count = weights_of(model, 0, weights);
#define CREATE(config, weights, count, act, fuse)                                                            \
    fb_ops_layer_create(dev.ops, config, weights, count, NULL, 0, act, fuse, false, &layer, &err)
    assert_refused(CREATE(NULL, weights, count, FB_F32, "all"), FB_ERROR_USAGE, &err, "layer|config|NULL");
    assert_refused(CREATE("{", weights, count, FB_F32, "all"), FB_ERROR_FILE, &err, "config");
    static const char *const others[] = {"mistral-window", "gemma2", "phi3", "smollm3", "qwen2"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) { /* what a layer's caller does not have */
        char *path = fbt_format(FBT_GOLDENS "/%s/config.json", others[i]), *text = fbt_file_read(path, NULL);
        assert_refused(CREATE(text, weights, count, FB_F32, "all"), FB_ERROR_UNSUPPORTED, &err,
                       "layer|windows");
        free(text);
        free(path);
    }
    assert_refused(CREATE(config, weights, count - 1, FB_F32, "all"), FB_ERROR_USAGE, &err, "missing tensor");
    assert_refused(CREATE(config, weights, count, FB_Q4_0, "all"), FB_ERROR_USAGE, &err, "act|f32");
    assert_refused(CREATE(config, weights, count, FB_F32, "no_such"), FB_ERROR_USAGE, &err, "no_such");
    assert_refused(CREATE(config, weights, count, FB_F32, "auto"), FB_ERROR_USAGE, &err, "auto");
    memcpy(some, weights, sizeof some);
    some[count] = (fb_ops_named){"attention.rotary.weight", weights[0].tensor};
    assert_refused(CREATE(config, some, count + 1, FB_F32, "all"), FB_ERROR_UNSUPPORTED, &err,
                   "attention.rotary.weight|unexpected");
    memcpy(some, weights, sizeof some);
    some[0].tensor.cols--;
    assert_refused(CREATE(config, some, count, FB_F32, "all"), FB_ERROR_USAGE, &err, "columns 63|64");

    double frequencies[] = {1, 0.1, INFINITY};
    assert_refused(fb_ops_layer_create(dev.ops, config, weights, count, frequencies, 3, FB_F32, "all", false,
                                       &layer, &err),
                   FB_ERROR_USAGE, &err, "layer|frequencies|3 of them");

    assert_ok(CREATE(config, weights, count, FB_F32, "all"), &err);
    fb_ops_tensor x = filled(FB_F32, 2, 64), out = tensor(FB_F32, 2, 64), wrong;
    const fb_program *p = &model->spec->program;
    int64_t elements = p->kv_heads * 8 * p->head_dim;
    fb_ops_cache cache =
                     {take(elements * 4, 0), take(elements * 4, 0), 1, p->kv_heads, 8, p->head_dim, elements,
                      8 * p->head_dim},
                 bad;
    void *places = take(fb_ops_places_bytes(layer, 2), 0);
    fb_ops_positions none = {NULL, 64};
    assert_refused(fb_ops_places(layer, NULL, none, 7, 1, 2, 8, places, &err), FB_ERROR_USAGE, &err,
                   "places|first|7|6");
    assert_ok(fb_ops_places(layer, NULL, none, 0, 1, 2, 8, places, &err), &err);
#define RUN_REFUSED(x, places, cache, out, words)                                                            \
    assert_refused(fb_ops_layer_run(layer, NULL, &x, places, &cache, &out, &err), FB_ERROR_USAGE, &err, words)
    wrong = x, wrong.dtype = FB_F16;
    RUN_REFUSED(wrong, places, cache, out, "layer|x|f16|f32");
    RUN_REFUSED(x, places, cache, x, "layer|out|memory of x");
    RUN_REFUSED(x, NULL, cache, out, "layer|places");
    bad = cache, bad.capacity = 9;
    RUN_REFUSED(x, places, bad, out, "layer|head stride");
    bad = cache, bad.width = 7;
    RUN_REFUSED(x, places, bad, out, "layer|cache|heads of 7 elements");
    bad = cache, bad.heads++;
    RUN_REFUSED(x, places, bad, out, "layer|cache|heads of");
    bad = cache, bad.sequences = 3;
    RUN_REFUSED(x, places, bad, out, "layer|rows 2|3 sequences");
    bad = cache, bad.k = NULL;
    RUN_REFUSED(x, places, bad, out, "layer|cache|k");
    ((fb_row *)places)[1].position = 0;
    RUN_REFUSED(x, places, cache, out, "layer|position 0|row 1|one more");
    ((fb_row *)places)[1].position = 8;
    RUN_REFUSED(x, places, cache, out, "layer|position 8|row 1|8");
    ((fb_row *)places)[1].position = 1;
    assert_ok(fb_ops_layer_run(layer, NULL, &x, places, &cache, &out, &err), &err);
    x.rows = out.rows = 0;
    assert_ok(fb_ops_layer_run(layer, NULL, &x, places, &cache, &out, &err), &err);
    char *text;
    assert_ok(fb_ops_layer_print(layer, &text, &err), &err);
    assert_non_null(strstr(text, "attn_flash"));
    fb_free(text);
    fb_ops_layer_free(layer);
    free(config);
    fb_model_free(model);
    give_back();
    close_device();
}

int main(void) {
    const struct CMUnitTest tests[] = {EVERYWHERE(session), cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
