#include "backend/cuda/cuda_harness.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda/gpu.h"
#include "base/pack_blocks.h"
#include "base/pack_gpu.h"
#include "base/quant_join.h"

bool cuda_invariant, cuda_records;
int64_t cuda_launched[FB_OP_COUNT];
cuda_step cuda_next_step;

/* ---- the library ---- */

/* clang-format off */
#define FUNCTIONS(X)                                                                                         \
    X(fb_gpu_open)                                                                                           \
    X(fb_gpu_describe)                                                                                       \
    X(fb_gpu_context)                                                                                        \
    X(fb_gpu_take)                                                                                           \
    X(fb_gpu_give) X(fb_gpu_upload) X(fb_gpu_download) X(fb_gpu_wait) X(fb_gpu_check)                        \
        X(fb_cuda_linear_scratch) X(fb_cuda_expert_scratch) X(fb_cuda_attention_scratch)
/* clang-format on */

static struct {
    bool tried, emulated;
    char why_not[768];
    void *library;
    fb_gpu *gpu;
    fb_cuda_context cx;
    const fb_cuda_launch *launches;
#define X(name) __typeof__(&name) name;
    FUNCTIONS(X)
#undef X
} cuda;

const char *cuda_emulated_path(void) {
    static char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 64);
    path[length > 0 ? length : 0] = 0;
    char *folder = strstr(path, "/backend/cuda/");
    if (!folder) return "";
    strcpy(folder, "/libfusebox_cuda_emulated.so");
    return access(path, R_OK) == 0 ? path : "";
}

static const char *library_path(void) {
    const char *given = getenv("FUSEBOX_CUDA_LIBRARY");
    return given && *given && strcmp(given, "none") != 0 ? given : cuda_emulated_path();
}

static bool open_library(const char *path) {
    /* As many multiprocessors as a large device has; some cases have fewer rows. */
    setenv("FUSEBOX_EMULATE_SMS", "132", 0);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *symbol;
    cuda.library = library;
    if (!library) {
        snprintf(cuda.why_not, sizeof cuda.why_not, "%.700s", dlerror());
        return false;
    }
#define X(name)                                                                                              \
    symbol = dlsym(library, #name);                                                                          \
    memcpy(&cuda.name, &symbol, sizeof symbol);                                                              \
    if (!symbol) {                                                                                           \
        snprintf(cuda.why_not, sizeof cuda.why_not, "%.500s: no " #name, path);                              \
        return false;                                                                                        \
    }
    FUNCTIONS(X)
#undef X
    cuda.launches = dlsym(library, "fb_cuda_launches");
    if (!cuda.launches) snprintf(cuda.why_not, sizeof cuda.why_not, "%.500s: no fb_cuda_launches", path);
    return cuda.launches != NULL;
}

bool cuda_is_there(void) {
    const char *path = library_path();
    fb_error err = {0};
    fb_gpu_info info;
    if (cuda.tried) return cuda.gpu != NULL;
    cuda.tried = true;
    if (!*path)
        snprintf(cuda.why_not, sizeof cuda.why_not,
                 "no library: make build/tests/libfusebox_cuda_emulated.so, or set "
                 "FUSEBOX_CUDA_LIBRARY");
    else if (open_library(path)) {
        if (cuda.fb_gpu_describe(0, &info, &err) == FB_OK && cuda.fb_gpu_open(0, &cuda.gpu, &err) == FB_OK) {
            cuda.emulated = strcmp(info.name, "Emulated GPU") == 0;
            cuda.fb_gpu_context(cuda.gpu, &cuda.cx);
        } else
            snprintf(cuda.why_not, sizeof cuda.why_not, "%s", err.message);
    }
    if (!cuda.gpu) print_message("cuda kernels not tested: %s\n", cuda.why_not);
    return cuda.gpu != NULL;
}

bool cuda_is_emulated(void) { return cuda_is_there() && cuda.emulated; }

fb_gpu *cuda_gpu(fb_cuda_context *cx) {
    assert_true(cuda_is_there());
    *cx = cuda.cx;
    return cuda.gpu;
}

void *cuda_function(const char *name) {
    void *function = cuda_is_there() ? dlsym(cuda.library, name) : NULL;
    if (!function) fail_msg("%s: not in the library", name);
    return function;
}

int cuda_every(int emulated) {
    const char *given = getenv("FUSEBOX_KERNELS_EVERY");
    int every = given ? atoi(given) : cuda_is_emulated() ? emulated : 1;
    return every > 1 ? every : 1;
}

/* ---- the image: all that a launch may touch ---- */

enum { MOST_REGIONS = 40, BAND = 256 };

typedef struct region {
    const uint8_t *host; /* address in the call; NULL: the call has none */
    int64_t bytes;
    int64_t skew;   /* of its address, beyond a multiple of 64 */
    uint8_t *owned; /* its contents, if the device has another layout */
    bool written;
    int64_t offset; /* in the image */
    uint8_t *device;
} region;

typedef struct image {
    region regions[MOST_REGIONS];
    int count;
    int64_t bytes;
    uint8_t *before, *after, *again;
} image;

static struct {
    uint8_t *image, *scratch;
    int64_t image_bytes, scratch_bytes;
} device;

static void must(fb_status status, const fb_error *err) {
    if (status != FB_OK) fail_msg("%s", err->message);
}

static uint8_t *take(int64_t bytes) {
    void *memory;
    fb_error err;
    must(cuda.fb_gpu_take(cuda.gpu, "a test", bytes, &memory, &err), &err);
    return memory;
}

static uint8_t *allocate(int64_t bytes) {
    uint8_t *memory = malloc((size_t)(bytes ? bytes : 1));
    assert_non_null(memory);
    memset(memory, 0xff, (size_t)bytes);
    return memory;
}

static bool apart(void) { return getenv("FUSEBOX_KERNELS_APART") != NULL; }

static region *add_owned(image *im, const void *host, int64_t bytes) {
    assert_true(im->count < MOST_REGIONS);
    region *r = &im->regions[im->count++];
    *r = (region){.host = host, .bytes = bytes, .owned = allocate(bytes)};
    return r;
}

/* Adds a range of the call's memory. Ranges that overlap become one. */
static void add_range(image *im, const uint8_t *begin, const uint8_t *end, bool written) {
    for (int i = 0; i < im->count; i++) {
        region *r = &im->regions[i];
        if (r->owned || begin >= r->host + r->bytes || r->host >= end) continue;
        if (r->host < begin) begin = r->host;
        if (r->host + r->bytes > end) end = r->host + r->bytes;
        written = written || r->written;
        *r = im->regions[--im->count];
        i = -1;
    }
    assert_true(im->count < MOST_REGIONS);
    im->regions[im->count++] = (region){
        .host = begin, .bytes = end - begin, .skew = (int64_t)((uintptr_t)begin % 64), .written = written};
}

/* Whether a view is quantised blocks, whose rows lie at multiples of 8 bytes (kernel.h). */
static bool has_blocks(const fb_call *call, const fb_view *v) {
    for (int s = 0; s < FB_MAX_SEGMENTS; s++)
        if (v == &call->in[s] && call->attr.segment[s].dot == FB_DOT_GIVEN) return true;
    return false;
}

static void add_view(image *im, const fb_call *call, const fb_view *v, bool written) {
    if (!v->data) return;
    int64_t last = v->width ? v->width : fb_ring_count(&call->kv.ring, end_of_rows(call) - 1);
    const uint8_t *end =
        fb_at(v->data, v->dtype, (call->rows - 1) * v->row_stride + (v->heads - 1) * v->head_stride + last);
    add_range(im, v->data, end, written);
    if (has_blocks(call, v)) im->regions[im->count - 1].skew &= ~(int64_t)7;
}

/* Quants of all rows, then their scales. */
static void split(const fb_weight *w, uint8_t *to) {
    int64_t blocks = w->cols / 32, block = fb_dtype_bytes(w->dtype, 32), quants = block - 2;
    uint8_t *scales = to + w->rows * blocks * quants;
    for (int64_t at = 0; at < w->rows * blocks; at++, to += quants, scales += 2) {
        quant_parts p;
        if (w->packed)
            unpack_block(&quant_types[w->dtype],
                         (const uint8_t *)w->data +
                             (at / blocks / FB_PACK_ROWS * blocks + at % blocks) * fb_pack_block(w->dtype),
                         at / blocks % FB_PACK_ROWS, &p);
        else
            quant_types[w->dtype].split((const uint8_t *)w->data + at * block, &p);
        memcpy(scales, &p.scale, 2);
        for (int64_t i = 0; i < quants; i++)
            to[i] = (uint8_t)(w->dtype == FB_Q8_0 ? p.q[i] : p.q[i] | p.q[i + 16] << 4);
    }
}

/* Row `row` of a packed matrix as a file has it. */
static void join_row(const fb_weight *w, int64_t row, uint8_t *to) {
    const quant_type *t = &quant_types[w->dtype];
    int64_t blocks = w->cols / t->columns;
    for (int64_t b = 0; b < blocks; b++, to += fb_dtype_bytes(w->dtype, t->columns)) {
        quant_parts p;
        unpack_block(t,
                     (const uint8_t *)w->data + (row / FB_PACK_ROWS * blocks + b) * fb_pack_block(w->dtype),
                     row % FB_PACK_ROWS, &p);
        quant_joiners[w->dtype](&p, to);
    }
}

static bool is_records(fb_dtype dtype) {
    return fb_record_has(dtype) || (cuda_records && fb_pack_gpu_has(dtype));
}

/* The rows of a matrix in records. */
static void add_records(image *im, const fb_weight *w) {
    int64_t row = fb_record_row_bytes(w->dtype, w->cols), in_file = fb_dtype_bytes(w->dtype, w->cols);
    uint8_t *to = add_owned(im, w->data, w->rows * row)->owned, *from = malloc((size_t)in_file);
    assert_non_null(from);
    for (int64_t r = 0; r < w->rows; r++, to += row) {
        if (w->packed)
            join_row(w, r, from);
        else
            memcpy(from, (const uint8_t *)w->data + r * in_file, (size_t)in_file);
        fb_record_pack(w->dtype, from, w->cols, to);
    }
    free(from);
}

static void add_weight(image *im, const fb_weight *w) {
    if (!w->data) return;
    for (int i = 0; i < im->count; i++)
        if (im->regions[i].owned && im->regions[i].host == w->data) return;
    if (is_records(w->dtype)) {
        add_records(im, w);
        return;
    }
    int64_t bytes = fb_dtype_bytes(w->dtype, w->rows * w->cols);
    region *r = add_owned(im, w->data, bytes);
    if (fb_pack_gpu_has(w->dtype))
        split(w, r->owned);
    else
        memcpy(r->owned, w->data, (size_t)bytes);
}

/* Converts the keys of a cache from the CPU's layout to the device's, or back. */
static void move_keys(const fb_kv *kv, uint8_t *keys, bool back) {
    int64_t size = fb_dtype_size(kv->dtype);
    for (int64_t head = 0; head < kv->heads; head++)
        for (int64_t p = 0; p < kv->capacity; p++)
            for (int64_t i = 0; i < kv->width; i++) {
                uint8_t *here = (uint8_t *)fb_key_at(kv, head, p) + i * FB_KV_GROUP * size;
                uint8_t *there = keys + ((head * kv->capacity + p) * kv->width + i) * size;
                memcpy(back ? here : there, back ? there : here, (size_t)size);
            }
}

static int64_t cache_bytes(const fb_kv *kv) {
    return kv->heads * kv->capacity * kv->width * fb_dtype_size(kv->dtype);
}

static bool writes_cache(fb_op_kind kind) { return kind == FB_OP_KV_APPEND || kind == FB_OP_ROPE_KV; }

static void add_cache(image *im, fb_op_kind kind, const fb_kv *kv) {
    if (!kv->k) return;
    region *k = add_owned(im, kv->k, cache_bytes(kv)), *v = add_owned(im, kv->v, cache_bytes(kv));
    move_keys(kv, k->owned, false);
    memcpy(v->owned, kv->v, (size_t)v->bytes);
    k->written = v->written = writes_cache(kind);
}

/* Converts the keys of all blocks, and copies the rest. */
static void move_pool(const fb_kv *kv, uint8_t *blocks, bool back) {
    const cuda_step *step = &cuda_next_step;
    fb_kv block = *kv;
    block.capacity = kv->block;
    memcpy(back ? step->pool : blocks, back ? blocks : step->pool,
           (size_t)(step->blocks * step->block_bytes));
    for (int64_t i = 0; i < step->blocks; i++) {
        block.k = step->pool + i * step->block_bytes + kv->k_at;
        uint8_t *there = blocks + i * step->block_bytes + kv->k_at;
        move_keys(&block, there, back);
    }
}

static void add_pool(image *im, fb_op_kind kind, const fb_kv *kv) {
    if (!kv->tables) return;
    region *r = add_owned(im, cuda_next_step.pool, cuda_next_step.blocks * cuda_next_step.block_bytes);
    move_pool(kv, r->owned, false);
    r->written = writes_cache(kind);
}

/* The tables on the device: [entries, sequences]. */
static void set_tables(const fb_kv *kv, uint8_t *pool, uint8_t **to) {
    const cuda_step *step = &cuda_next_step;
    for (int64_t s = 0; s < step->sequences; s++)
        for (int64_t e = 0; e < step->entries; e++) {
            const uint8_t *block = kv->tables[s][e];
            to[e * step->sequences + s] = block ? pool + (block - step->pool) : NULL;
        }
}

/* The cache belongs to the second of two sequences, and begins KEYS_AT bytes before its keys. The table's
 * entry for the first sequence is wrong by WRONG_CACHE_AT bytes. A kernel that does not look up its row's
 * sequence reads NaN, or other keys and values, and writes where nothing may be written. */
enum { SEQUENCES = 2, SEQUENCE = 1, KEYS_AT = 256, WRONG_CACHE_AT = 128 };

static void add_rows(image *im, const fb_call *call) {
    if (!call->row) return;
    region *r = add_owned(im, call->row, call->rows * (int64_t)sizeof *call->row);
    for (int64_t i = 0; i < call->rows; i++) {
        fb_row row = call->row[i];
        if (!call->kv.tables) row.sequence = SEQUENCE;
        memcpy(r->owned + i * (int64_t)sizeof row, &row, sizeof row);
    }
}

static void add_bytes(image *im, const void *host, int64_t bytes) {
    if (host && bytes) memcpy(add_owned(im, host, bytes)->owned, host, (size_t)bytes);
}

static void lay_out(image *im) {
    im->bytes = BAND;
    for (int i = 0; i < im->count; i++) {
        region *r = &im->regions[i];
        r->offset = (im->bytes + 255) / 256 * 256 + r->skew;
        im->bytes = r->offset + r->bytes + BAND;
    }
    if (im->bytes > device.image_bytes && !apart()) {
        cuda.fb_gpu_give(cuda.gpu, device.image);
        device.image_bytes = 2 * im->bytes;
        device.image = take(device.image_bytes);
    }
    im->before = allocate(im->bytes);
    im->after = allocate(im->bytes);
    im->again = allocate(im->bytes);
    for (int i = 0; i < im->count; i++) {
        region *r = &im->regions[i];
        memcpy(im->before + r->offset, r->owned ? r->owned : r->host, (size_t)r->bytes);
        r->device = apart() ? take(r->skew + r->bytes) + r->skew : device.image + r->offset;
    }
}

static void copy(image *im, uint8_t *to, bool upload) {
    fb_error err;
    for (int i = 0; i < (apart() ? im->count : 1); i++) {
        const region *r = &im->regions[i];
        uint8_t *there = apart() ? r->device : device.image;
        int64_t offset = apart() ? r->offset : 0, bytes = apart() ? r->bytes : im->bytes;
        must(upload ? cuda.fb_gpu_upload(cuda.gpu, there, im->before + offset, bytes, &err)
                    : cuda.fb_gpu_download(cuda.gpu, to + offset, there, bytes, &err),
             &err);
    }
    must(cuda.fb_gpu_wait(cuda.gpu, &err), &err);
}

static void release(image *im) {
    for (int i = 0; i < im->count; i++) {
        free(im->regions[i].owned);
        if (apart()) cuda.fb_gpu_give(cuda.gpu, im->regions[i].device - im->regions[i].skew);
    }
    free(im->before);
    free(im->after);
    free(im->again);
}

/* The device address of an address in the call. */
static void *there(const image *im, const void *host) {
    for (int i = 0; host && i < im->count; i++) {
        const region *r = &im->regions[i];
        const uint8_t *at = host;
        if (r->owned ? at == r->host : at >= r->host && at < r->host + r->bytes)
            return r->device + (at - r->host);
    }
    assert_null(host);
    return NULL;
}

/* Contents for a region that was added without any. */
static void set_bytes(image *im, const void *host, int64_t bytes) {
    for (int i = 0; i < im->count; i++)
        if (im->regions[i].host == host) memcpy(im->before + im->regions[i].offset, host, (size_t)bytes);
}

static fb_call on_device(const image *im, const fb_call *call) {
    fb_call c = *call;
    for (int k = 0; k < FB_MAX_IN; k++) c.in[k].data = there(im, call->in[k].data);
    for (int k = 0; k < FB_MAX_OUT; k++) c.out[k].data = there(im, call->out[k].data);
    for (int k = 0; k < FB_MAX_WEIGHTS; k++) {
        c.weights[k].data = there(im, call->weights[k].data);
        const fb_dtype dtype = c.weights[k].dtype;
        c.weights[k].packed = c.weights[k].data && fb_pack_gpu_has(dtype) && !is_records(dtype);
    }
    c.kv.k = c.kv.v = NULL;
    c.kv.tables = NULL;
    if (call->kv.k) {
        c.kv.block = call->kv.capacity;
        c.kv.shift = FB_KV_WHOLE;
        c.kv.k_at = KEYS_AT;
        c.kv.v_at = KEYS_AT + ((uint8_t *)there(im, call->kv.v) - (uint8_t *)there(im, call->kv.k));
    }
    c.row = there(im, call->row);
    return c;
}

/* ---- launching ---- */

static int64_t scratch_of(fb_op_kind kind, const fb_call *c) {
    switch (kind) {
    case FB_OP_LINEAR:
    case FB_OP_LINEAR_GROUP:
    case FB_OP_HEAD_ARGMAX:
        return cuda.fb_cuda_linear_scratch(c, c->rows);
    case FB_OP_ROUTER:
    case FB_OP_EXPERT_LINEAR:
    case FB_OP_EXPERT_GROUP:
        return cuda.fb_cuda_expert_scratch(c, kind, c->rows);
    case FB_OP_ATTN_SCORES:
    case FB_OP_ATTN_VALUES:
    case FB_OP_ATTN_ROWS:
    case FB_OP_ATTN_FLASH:
        return cuda.fb_cuda_attention_scratch(c, c->rows, c->kv.capacity);
    default:
        return FB_CUDA_COUNTERS;
    }
}

/* Zeros, then NaN; the last BAND bytes belong to no op. */
static void make_scratch(int64_t bytes) {
    fb_error err;
    if (bytes + BAND > device.scratch_bytes || apart()) {
        cuda.fb_gpu_give(cuda.gpu, device.scratch);
        device.scratch_bytes = bytes + (apart() ? 0 : BAND);
        device.scratch = take(device.scratch_bytes);
    }
    uint8_t *fresh = allocate(bytes + BAND);
    memset(fresh, 0, FB_CUDA_COUNTERS);
    must(cuda.fb_gpu_upload(cuda.gpu, device.scratch, fresh, bytes + (apart() ? 0 : BAND), &err), &err);
    must(cuda.fb_gpu_wait(cuda.gpu, &err), &err);
    free(fresh);
}

static void check_scratch(const char *name, int64_t bytes) {
    static uint8_t counters[FB_CUDA_COUNTERS];
    uint8_t band[BAND];
    fb_error err;
    memset(band, 0xff, sizeof band);
    must(cuda.fb_gpu_download(cuda.gpu, counters, device.scratch, sizeof counters, &err), &err);
    if (!apart()) must(cuda.fb_gpu_download(cuda.gpu, band, device.scratch + bytes, BAND, &err), &err);
    must(cuda.fb_gpu_wait(cuda.gpu, &err), &err);
    for (size_t i = 0; i < sizeof counters; i++)
        if (counters[i]) fail_msg("cuda, %s: byte %zu of the counters is not zero afterwards", name, i);
    for (size_t i = 0; i < sizeof band; i++)
        if (band[i] != 0xff) fail_msg("cuda, %s: wrote behind its scratch", name);
}

static void launch(fb_op_kind kind, const fb_call *call, image *im, const fb_cuda_context *cx,
                   uint8_t *after) {
    const char *name = fb_op_table[kind].name;
    int64_t scratch = scratch_of(kind, call);
    fb_error err;
    fb_cuda_context full = *cx;
    assert_true(scratch >= FB_CUDA_COUNTERS);
    copy(im, NULL, true);
    make_scratch(scratch);
    full.scratch = device.scratch;
    full.scratch_bytes = scratch;
    must(cuda.fb_gpu_check(cuda.launches[kind](call, &full), name, &err), &err);
    must(cuda.fb_gpu_wait(cuda.gpu, &err), &err);
    copy(im, after, false);
    check_scratch(name, scratch);
}

/* Nothing but the outputs has changed. */
static void check_untouched(fb_op_kind kind, const image *im) {
    int64_t at = 0;
    for (int i = 0; i <= im->count; i++) {
        const region *r = &im->regions[i];
        int64_t end = i < im->count ? r->offset : im->bytes;
        if (memcmp(im->after + at, im->before + at, (size_t)(end - at)) != 0)
            fail_msg("cuda, %s: wrote outside its buffers (%s number %d of %d)", fb_op_table[kind].name,
                     i < im->count ? "before" : "after", i, im->count);
        if (i == im->count) break;
        at = r->offset + r->bytes;
        if (!r->written && memcmp(im->after + r->offset, im->before + r->offset, (size_t)r->bytes) != 0)
            fail_msg("cuda, %s: wrote to an input", fb_op_table[kind].name);
    }
}

static void fetch(const image *im, const fb_call *call) {
    for (int i = 0; i < im->count; i++) {
        const region *r = &im->regions[i];
        if (!r->written) continue;
        if (r->owned && r->host == call->kv.k)
            move_keys(&call->kv, im->after + r->offset, true);
        else if (r->owned && call->kv.tables && r->host == cuda_next_step.pool)
            move_pool(&call->kv, im->after + r->offset, true);
        else
            memcpy((uint8_t *)(uintptr_t)r->host, im->after + r->offset, (size_t)r->bytes);
    }
}

/* All rows look only into slots below this. */
static int64_t context_of(const fb_call *call) {
    int64_t most = fb_ring_count(&call->kv.ring, 0);
    for (int64_t i = 0; call->row && i < call->rows; i++) {
        int64_t count = fb_ring_count(&call->kv.ring, call->row[i].position);
        if (count > most) most = count;
    }
    return most;
}

static void run(fb_op_kind kind, const fb_call *call) {
    assert_true(cuda_is_there());
    image im = {0};
    const bool in_blocks = call->kv.tables != NULL;
    int64_t context = context_of(call), capacity = call->kv.capacity ? call->kv.capacity : context + 100;
    int64_t entries = in_blocks ? cuda_next_step.sequences * cuda_next_step.entries : SEQUENCES;
    uint8_t **tables = calloc((size_t)entries, sizeof *tables);
    assert_non_null(tables);
    for (int k = 0; k < FB_MAX_IN; k++) add_view(&im, call, &call->in[k], false);
    for (int k = 0; k < FB_MAX_OUT; k++) add_view(&im, call, &call->out[k], true);
    for (int k = 0; k < FB_MAX_WEIGHTS; k++) add_weight(&im, &call->weights[k]);
    add_cache(&im, kind, &call->kv);
    add_pool(&im, kind, &call->kv);
    add_rows(&im, call);
    add_bytes(&im, tables, entries * (int64_t)sizeof *tables);
    add_bytes(&im, call->attr.frequencies, call->attr.rotary / 2 * (int64_t)sizeof(double));
    lay_out(&im);
    if (call->kv.k) {
        tables[SEQUENCE] = (uint8_t *)there(&im, call->kv.k) - KEYS_AT;
        tables[1 - SEQUENCE] = tables[SEQUENCE] + WRONG_CACHE_AT;
    } else if (in_blocks) {
        set_tables(&call->kv, there(&im, cuda_next_step.pool), tables);
    }
    set_bytes(&im, tables, entries * (int64_t)sizeof *tables);
    fb_call c = on_device(&im, call);
    fb_cuda_context cx = cuda.cx;
    cx.tables = there(&im, tables);
    cx.sequences = in_blocks ? cuda_next_step.sequences : SEQUENCES;
    cx.runs = cuda_next_step.runs;
    cx.run_count = cuda_next_step.run_count;
    cx.invariant = cuda_invariant;
    cx.frequencies = there(&im, call->attr.rotary > 1 ? call->attr.frequencies : NULL);
    cx.context = context;
    launch(kind, &c, &im, &cx, im.after);
    check_untouched(kind, &im);
    if (!cuda.emulated || call->rows == 1 || cuda_launched[kind] % 8 == 0) {
        cx.context = capacity;
        cx.overlap = cx.limits->major >= 9;
        launch(kind, &c, &im, &cx, im.again);
        if (memcmp(im.after, im.again, (size_t)im.bytes) != 0)
            fail_msg("cuda, %s: a second launch gives other bits", fb_op_table[kind].name);
    }
    fetch(&im, call);
    release(&im);
    free(tables);
    cuda_launched[kind]++;
}

/* The first worker does all the work, however many there are. */
#define X(KIND, name, in, out, w, parts, text)                                                               \
    static void run_##name(const fb_call *call, const fb_worker *worker) {                                   \
        if (worker->index == 0) run(FB_OP_##KIND, call);                                                     \
    }
FB_OPS(X)
#undef X

static const fb_cpu_kernel kernels[FB_OP_COUNT] = {
#define X(KIND, name, in, out, w, parts, text) run_##name,
    FB_OPS(X)
#undef X
};

static bool always(void) { return true; }

const fb_isa cuda_isas[] = {{"cuda", kernels, NULL, NULL, cuda_is_there},
                            {"ref", fb_cpu_kernels_ref, NULL, NULL, always},
                            {NULL, NULL, NULL, NULL, NULL}};

/* ---- running tests ---- */

static void skipped(void **state) {
    (void)state;
    skip();
}

int cuda_run_group(const char *name, const struct CMUnitTest *tests, size_t count, CMFixtureFunction setup) {
    struct CMUnitTest *all = calloc(count, sizeof *all);
    if (!all) return 1;
    memcpy(all, tests, count * sizeof *all);
    for (size_t i = 0; i < count && !cuda_is_there(); i++) all[i].test_func = skipped;
    int failed = _cmocka_run_group_tests(name, all, count, setup, NULL);
    free(all);
    return failed;
}

/* The engine refuses wider heads. */
static bool has(const rig *r) { return r->call.kv.width <= 256; }

int cuda_run_family(const char *family, const struct CMUnitTest *tests, size_t count, int emulated) {
    static kernel_device under_test;
    if (!cuda_is_there()) return cuda_run_group(family, tests, count, NULL);
    under_test = (kernel_device){cuda_isas, has, cuda_every(emulated), !cuda_is_emulated()};
    kernel_device_under_test = &under_test;
    return kernel_run_family(family, tests, count);
}
