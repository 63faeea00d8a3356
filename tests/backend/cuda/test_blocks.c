/* The CUDA kernels around caches in blocks and steps of several sequences: a row has the bits that it has
 * alone in a cache of one block, whatever else is in the step and however large the cache and its blocks are.
 * Blocks lie in shuffled memory. What no row sees is NaN, and tables have no block in which no row sees
 * anything: in a ring, those that a scheduler's sequence has given back. */
#include <math.h>
#include <string.h>

#include "backend/cuda/cuda_harness.h"

enum { POOL = 4096, MOST = 160, TABLE_AT = 3 };

static fbt_guard pool[POOL];
static int pooled;
static fbt_random random_numbers;

static void *take(int64_t bytes) {
    assert_true(pooled < POOL);
    pool[pooled] = fbt_guard_create((size_t)bytes, 0);
    return pool[pooled++].data;
}

static void give_back(void) {
    while (pooled) fbt_guard_free(&pool[--pooled]);
}

typedef struct shape {
    int64_t heads, kv_heads, width;
    fb_ring ring;
} shape;

/* A sequence is known by its number, which decides its numbers; in a step it has another index. */
typedef struct token {
    int sequence;
    int64_t position;
    bool prompt;
} token;

/* block 0: one block of all slots. A ring has a capacity of its own, and `more` times FB_RING_BLOCK slots
 * more than the shape's. */
typedef struct layout {
    int64_t block, capacity, more;
} layout;

/* ---- numbers that depend only on what they are ---- */

static double number(int what, int sequence, int64_t at, int64_t head, int64_t i) {
    uint64_t x = (uint64_t)what;
    const uint64_t parts[] = {(uint64_t)sequence, (uint64_t)at, (uint64_t)head, (uint64_t)i};
    for (int n = 0; n < 4; n++) {
        x = (x + parts[n] + 1) * 0x9e3779b97f4a7c15u;
        x ^= x >> 31;
    }
    x *= 0xbf58476d1ce4e5b9u;
    return (double)(x >> 11) * 0x1p-51 - 2; /* [-2, 2) */
}

enum { Q, SINK_Q, K, V, ANGLE };

static fb_view rows_of(fb_dtype t, int what, const token *tokens, int64_t rows, int64_t heads, int64_t width,
                       int64_t gap) {
    int64_t stride = heads * width + gap;
    fb_view view = {take(rows * stride * fb_dtype_size(t)), t, heads, width, stride, width};
    memset(view.data, 0xff, (size_t)(rows * stride * fb_dtype_size(t)));
    for (int64_t n = 0; what >= 0 && n < rows * heads * width; n++) {
        int64_t row = n / (heads * width), head = n / width % heads, i = n % width;
        fb_dtype_set(t, fb_view_at(&view, row, head), i,
                     number(what, tokens[row].sequence, tokens[row].position, head, i));
    }
    return view;
}

static fb_view empty(fb_dtype t, int64_t rows, int64_t heads, int64_t width) {
    return rows_of(t, -1, NULL, rows, heads, width, 1);
}

/* ---- caches ---- */

typedef struct cache {
    fb_kv kv;
    cuda_step step;
    int sequence[MOST]; /* numbers, by index */
} cache;

static int index_of(cache *c, int sequence) {
    int i = 0;
    while (i < c->step.sequences && c->sequence[i] != sequence) i++;
    if (i == c->step.sequences) c->sequence[c->step.sequences++] = sequence;
    return i;
}

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* The positions that a sequence's tokens of a step see: those from `first` to `last`, and what these see. */
typedef struct seen {
    int64_t first, last;
} seen;

/* The one after p; the first one after -1. */
static int64_t next_seen(const fb_ring *r, const seen *s, int64_t p) {
    bool left_behind = r->window && p + 1 >= r->sinks && p + 1 < s->first - r->window;
    return left_behind ? s->first - r->window : p + 1;
}

/* Empty blocks for the slots that the tokens see, in any order. */
static void make_blocks(cache *c, const seen *of) {
    fb_kv *kv = &c->kv;
    int64_t half = round_up(kv->heads * kv->block * kv->width * fb_dtype_size(kv->dtype), 256), used = 0;
    uint8_t ***tables = take(c->step.sequences * (int64_t)sizeof *tables);
    bool *needed = take(c->step.sequences * c->step.entries);
    memset(needed, 0, (size_t)(c->step.sequences * c->step.entries));
    kv->k_at = 256;
    kv->v_at = kv->k_at + half + 256;
    c->step.block_bytes = kv->v_at + half;
    for (int64_t s = 0; s < c->step.sequences; s++)
        for (int64_t p = next_seen(&kv->ring, &of[s], -1); p <= of[s].last;
             p = next_seen(&kv->ring, &of[s], p)) {
            int64_t entry = kv->table_at + fb_ring_slot(&kv->ring, p) / kv->block;
            c->step.blocks += !needed[s * c->step.entries + entry];
            needed[s * c->step.entries + entry] = true;
        }
    c->step.pool = take(c->step.blocks * c->step.block_bytes);
    memset(c->step.pool, 0xff, (size_t)(c->step.blocks * c->step.block_bytes));
    int32_t *order = take(c->step.blocks * (int64_t)sizeof *order);
    for (int64_t i = 0; i < c->step.blocks; i++) {
        int64_t other = fbt_random_below(&random_numbers, i + 1);
        order[i] = order[other];
        order[other] = (int32_t)i;
    }
    for (int64_t s = 0; s < c->step.sequences; s++) {
        tables[s] = take(c->step.entries * (int64_t)sizeof **tables);
        memset(tables[s], 0, (size_t)c->step.entries * sizeof **tables);
        for (int64_t entry = 0; entry < c->step.entries; entry++)
            if (needed[s * c->step.entries + entry])
                tables[s][entry] = c->step.pool + order[used++] * c->step.block_bytes;
    }
    kv->tables = (uint8_t *const *const *)tables;
}

/* A cache with what the tokens see, or, without `filled`, with NaN. */
static cache cache_of(fb_dtype t, const shape *s, layout l, const token *tokens, int64_t rows, bool filled) {
    fb_ring ring = s->ring;
    if (ring.window) {
        ring.size += l.more * FB_RING_BLOCK;
        l.capacity = ring.begin + ring.size;
    }
    cache c = {
        .kv = {.dtype = t,
               .heads = s->kv_heads,
               .capacity = l.capacity,
               .width = s->width,
               .ring = ring,
               .table_at = l.block ? TABLE_AT : 0,
               .block = l.block ? l.block : l.capacity,
               .shift = l.block ? (int32_t)__builtin_ctzll((unsigned long long)l.block) : FB_KV_WHOLE}};
    seen of[MOST];
    for (int64_t i = 0; i < rows; i++) {
        int before = (int)c.step.sequences, at = index_of(&c, tokens[i].sequence);
        if (at == before) of[at] = (seen){tokens[i].position, tokens[i].position};
        if (tokens[i].position < of[at].first) of[at].first = tokens[i].position;
        if (tokens[i].position > of[at].last) of[at].last = tokens[i].position;
        assert_true(fb_ring_count(&ring, tokens[i].position) <= l.capacity);
    }
    c.step.entries = c.kv.table_at + (l.capacity + c.kv.block - 1) / c.kv.block;
    make_blocks(&c, of);
    for (int32_t n = 0; filled && n < c.step.sequences; n++)
        for (int64_t p = next_seen(&ring, &of[n], -1); p <= of[n].last; p = next_seen(&ring, &of[n], p))
            for (int64_t head = 0, slot = fb_ring_slot(&ring, p); head < s->kv_heads; head++) {
                void *k = fb_key_of(&c.kv, n, head, slot), *v = fb_value_of(&c.kv, n, head, slot);
                for (int64_t i = 0; i < s->width; i++) {
                    fb_dtype_set(t, k, i * FB_KV_GROUP, number(K, c.sequence[n], p, head, i));
                    fb_dtype_set(t, v, i, number(V, c.sequence[n], p, head, i));
                }
            }
    return c;
}

static const fb_row *step_rows(cache *c, const token *tokens, int64_t rows) {
    fb_row *row = take(rows * (int64_t)sizeof *row);
    for (int64_t i = 0; i < rows; i++)
        row[i] = (fb_row){.position = tokens[i].position,
                          .sequence = index_of(c, tokens[i].sequence),
                          .prompt = tokens[i].prompt};
    return row;
}

static void run(const cache *c, fb_op_kind kind, fb_call *call) {
    cuda_next_step = c->step;
    cuda_isas[0].kernels[kind](call, &(fb_worker){.count = 1});
    cuda_next_step = (cuda_step){0};
}

/* ---- attention ---- */

typedef enum way { FLASH, ROWS, PLAIN } way;
static const char *const way_names[] = {"attn_flash", "attn_rows", "plain attention"};

/* The runs of the step: tokens of a prompt with successive positions, and any generated ones. */
static int32_t runs_of(const token *tokens, int64_t rows, fb_cuda_rows *runs) {
    int32_t count = 0;
    for (int64_t i = 0; i < rows; i++) {
        const token *now = &tokens[i], *before = now - 1;
        bool joins =
            i && now->prompt == before->prompt &&
            (!now->prompt || (now->sequence == before->sequence && now->position == before->position + 1));
        if (!joins) runs[count++] = (fb_cuda_rows){.first = i, .prompt = now->prompt};
        runs[count - 1].rows++;
    }
    return count;
}

static void run_plain(const cache *c, fb_call call) {
    const fb_view *q = &call.in[0];
    fb_view scores = empty(q->dtype, call.rows, q->heads, call.kv.capacity);
    fb_view probs = empty(q->dtype, call.rows, q->heads, call.kv.capacity), out = call.out[0];
    scores.width = probs.width = 0;
    call.out[0] = scores;
    run(c, FB_OP_ATTN_SCORES, &call);
    call.in[0] = scores;
    call.in[1] = (fb_view){0};
    call.out[0] = probs;
    run(c, FB_OP_SOFTMAX, &call);
    call.in[0] = probs;
    call.out[0] = out;
    run(c, FB_OP_ATTN_VALUES, &call);
}

/* The outputs of a step with these tokens. */
static fb_view attend(way how, fb_dtype t, fb_dtype kv, const shape *s, layout l, const token *tokens,
                      int64_t rows) {
    fb_cuda_rows runs[MOST] = {{0}};
    assert_true(rows <= MOST);
    cache c = cache_of(kv, s, l, tokens, rows, true);
    c.step.runs = runs;
    c.step.run_count = runs_of(tokens, rows, runs);
    fb_call call = {.in = {rows_of(t, Q, tokens, rows, s->heads, s->width, 8)},
                    .out = {empty(t, rows, s->heads, s->width)},
                    .kv = c.kv,
                    .attr.scale = 0.3f,
                    .row = step_rows(&c, tokens, rows),
                    .rows = rows};
    if (s->ring.sinks) call.in[1] = rows_of(t, SINK_Q, tokens, rows, s->heads, s->width, 0);
    if (how == PLAIN)
        run_plain(&c, call);
    else
        run(&c, how == FLASH ? FB_OP_ATTN_FLASH : FB_OP_ATTN_ROWS, &call);
    return call.out[0];
}

/* A row's outputs, to the bit. */
static void same(const char *what, const shape *s, layout l, const token *of, const fb_view *have,
                 int64_t row, const fb_view *want, int64_t from) {
    for (int64_t i = 0; i < want->heads * want->width; i++) {
        const void *h = fb_at(fb_view_at(have, row, 0), have->dtype, i);
        const void *w = fb_at(fb_view_at(want, from, 0), want->dtype, i);
        double a = fb_dtype_get(have->dtype, h, 0), b = fb_dtype_get(want->dtype, w, 0);
        if (!isfinite(a) || memcmp(h, w, (size_t)fb_dtype_size(want->dtype)) != 0)
            fail_msg(
                "%s, %s, %lld heads of %lld on %lld, blocks of %lld of %lld slots: row %lld, sequence %d, "
                "position %lld, %s: column %lld: %.9g, should be %.9g",
                what, fb_dtype_name(want->dtype), (long long)s->heads, (long long)s->width,
                (long long)s->kv_heads, (long long)l.block, (long long)l.capacity, (long long)row,
                of->sequence, (long long)of->position, of->prompt ? "prompt" : "generated", (long long)i, a,
                b);
    }
}

static layout smallest(const shape *s, const token *tokens, int64_t rows) {
    int64_t slots = s->ring.window ? s->ring.begin + s->ring.size : 0;
    for (int64_t i = 0; !s->ring.window && i < rows; i++)
        if (tokens[i].position >= slots) slots = tokens[i].position + 1;
    return (layout){0, round_up(slots, FB_KV_GROUP), 0};
}

/* The tokens in one step, in each layout, against each alone in a cache of one block. */
static void together(way how, fb_dtype t, fb_dtype kv, const shape *s, const layout *layouts, int count,
                     const token *tokens, int64_t rows) {
    fb_view want[MOST];
    for (int64_t i = 0; i < rows; i++)
        want[i] = attend(how, t, kv, s, smallest(s, &tokens[i], 1), &tokens[i], 1);
    for (int n = 0; n < count; n++) {
        fb_view have = attend(how, t, kv, s, layouts[n], tokens, rows);
        for (int64_t i = 0; i < rows; i++)
            same(way_names[how], s, layouts[n], &tokens[i], &have, i, &want[i], 0);
    }
}

static const fb_dtype pairs[][2] = {
    {FB_F16, FB_F16}, {FB_BF16, FB_BF16}, {FB_F32, FB_F32}, {FB_BF16, FB_F16}, {FB_F32, FB_BF16}};
enum { PAIRS = sizeof pairs / sizeof *pairs };

static const shape shapes[] = {
    {2, 2, 64, {0}}, {4, 2, 80, {0}},  {3, 1, 24, {0}}, {8, 1, 128, {0}},
    {5, 1, 7, {0}},  {4, 1, 256, {0}}, {9, 1, 20, {0}}, {2, 1, 136, {0}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* Generated tokens of more sequences than FB_DECODE_ROWS; two have several tokens. */
static const token generated[] = {{1, 0, 0},   {2, 17, 0},  {3, 127, 0},  {4, 128, 0}, {5, 300, 0},
                                  {6, 15, 0},  {7, 16, 0},  {8, 255, 0},  {9, 256, 0}, {9, 257, 0},
                                  {9, 258, 0}, {10, 31, 0}, {11, 390, 0}, {11, 391, 0}};
enum { GENERATED = sizeof generated / sizeof *generated };

static void generated_tokens(void **state) {
    (void)state;
    static const layout layouts[] = {{16, 400, 0}, {32, 20000, 0}, {128, 512, 0}, {0, 400, 0}};
    for (int i = 0; i < SHAPES; i++)
        for (int pair = 0; pair < PAIRS; pair++, give_back()) {
            if ((pair + i) % cuda_every(PAIRS)) continue;
            together(FLASH, pairs[pair][0], pairs[pair][1], &shapes[i], layouts, 4, generated, GENERATED);
        }
}

/* One token, whose items share their keys only in caches of more than 4096 slots. */
static void large_caches(void **state) {
    (void)state;
    static const layout layouts[] = {{0, 8704, 0}, {64, 65536, 0}, {16, 4112, 0}};
    for (int i = 0; i < SHAPES; i++)
        for (int pair = 0; pair < PAIRS; pair++, give_back()) {
            if (shapes[i].kv_heads * shapes[i].width > 128 || (pair + i) % cuda_every(4)) continue;
            together(FLASH, pairs[pair][0], pairs[pair][1], &shapes[i], layouts, 3, &generated[11 + i % 3],
                     1);
        }
}

/* More rows than one launch has scratch for. */
static void several_launches(void **state) {
    (void)state;
    static const shape wide = {64, 8, 256, {0}};
    static const layout l = {128, 8192, 0};
    together(FLASH, FB_F16, FB_F16, &wide, &l, 1, generated, 10);
    give_back();
}

/* Contexts whose splits are longer than one tile. */
static void long_contexts(void **state) {
    (void)state;
    static const shape few = {2, 1, 8, {0}};
    static const token tokens[] = {{1, 8190, 0}, {2, 8191, 0}, {3, 8192, 0}, {4, 9000, 0}, {5, 100, 0}};
    static const layout layouts[] = {{128, 1 << 17, 0}, {16, 9008, 0}};
    for (int pair = 0; pair < PAIRS; pair++, give_back())
        if (pair % cuda_every(4) == 0)
            together(FLASH, pairs[pair][0], pairs[pair][1], &few, layouts, 2, tokens, 5);
}

/* For up to 100 tokens of a sequence in a step; the last one for 30. */
static const shape rings[] = {
    {4, 2, 16, {4, 60, 128, 384}}, {2, 1, 80, {0, 40, 0, 384}}, {8, 1, 32, {20, 40, 128, 256}}};

static void generated_in_rings(void **state) {
    (void)state;
    static const token tokens[] = {
        {1, 0, 0},   {2, 3, 0},    {3, 19, 0},   {4, 20, 0},  {5, 100, 0},
        {6, 250, 0}, {7, 5000, 0}, {8, 5001, 0}, {9, 139, 0}, {10, (1ll << 33) + 7, 0}};
    static const layout layouts[] = {{16, 0, 0}, {32, 0, 1}, {128, 0, 3}, {0, 0, 2}};
    for (int i = 0; i < 3; i++)
        for (int pair = 0; pair < PAIRS; pair++, give_back()) {
            if ((pair + i) % cuda_every(3)) continue;
            for (way how = FLASH; how <= PLAIN; how++)
                together(how, pairs[pair][0], pairs[pair][1], &rings[i], layouts, 4, tokens, 10);
        }
}

/* The chunk of a prompt between generated tokens and another prompt. */
static void among_others(fb_dtype t, fb_dtype kv, const shape *s, layout l, const token *chunk, int64_t rows,
                         const fb_view *want, int64_t from) {
    token step[MOST] = {{2, 77, false}, {3, 5, false}};
    int64_t count = 2 + rows;
    memcpy(step + 2, chunk, (size_t)rows * sizeof *chunk);
    for (int64_t i = 0; i < 9; i++) step[count++] = (token){4, 11 + i, true};
    step[count++] = (token){5, 140, false};
    fb_view have = attend(FLASH, t, kv, s, l, step, count);
    for (int64_t i = 0; i < rows; i++)
        same("a chunk among others, attn_flash", s, l, &chunk[i], &have, 2 + i, want, from + i);
    const int64_t others[] = {0, 1, count - 1};
    for (int k = 0; k < 3; k++) {
        const token *other = &step[others[k]];
        fb_view alone = attend(FLASH, t, kv, s, smallest(s, other, 1), other, 1);
        same("generated beside a prompt, attn_flash", s, l, other, &have, others[k], &alone, 0);
    }
}

/* A prompt's tokens in chunks of several lengths, against all of them in one step. */
static void check_prompt(fb_dtype t, fb_dtype kv, const shape *s, int64_t first, int64_t rows, int which) {
    static const int64_t lengths[] = {1, 7, 33, 2, 64, 5};
    static const layout layouts[] = {{16, 400, 0}, {32, 10240, 1}, {128, 512, 0}, {0, 400, 3}};
    token tokens[MOST];
    for (int64_t i = 0; i < rows; i++) tokens[i] = (token){1, first + i, true};
    fb_view want = attend(FLASH, t, kv, s, smallest(s, tokens, rows), tokens, rows);
    for (int64_t at = 0, n = 0, here; at < rows; at += here, n++) {
        layout l = layouts[(n + which) % 4];
        here = lengths[n % 6] < rows - at ? lengths[n % 6] : rows - at;
        fb_view have = attend(FLASH, t, kv, s, l, tokens + at, here);
        for (int64_t i = 0; i < here; i++)
            same("a chunk, attn_flash", s, l, &tokens[at + i], &have, i, &want, at + i);
        if (n == 1) among_others(t, kv, s, layouts[(which + 3) % 4], tokens + at, here, &want, at);
    }
}

static void prompts(void **state) {
    (void)state;
    for (int i = 0; i < SHAPES; i++)
        for (int pair = 0; pair < PAIRS; pair++, give_back())
            if ((pair + i) % cuda_every(PAIRS) == 0 && shapes[i].heads < 8)
                check_prompt(pairs[pair][0], pairs[pair][1], &shapes[i], 30 * i, 60, i);
    for (int i = 0; i < 3; i++)
        for (int pair = 0; pair < PAIRS; pair++, give_back())
            if ((pair + i) % cuda_every(PAIRS) == 0)
                check_prompt(pairs[pair][0], pairs[pair][1], &rings[i], i == 0 ? 130 : 5000,
                             i == 2 ? 30 : 100, i);
}

/* attn_rows and the plain ops, with prompts and generated tokens in any order. */
static void rows_and_plain(void **state) {
    (void)state;
    static const layout layouts[] = {{16, 400, 0}, {32, 12000, 0}, {128, 512, 0}};
    token tokens[GENERATED + 9];
    memcpy(tokens, generated, sizeof generated);
    for (int i = 0; i < 9; i++) tokens[GENERATED + i] = (token){12, 40 + i, true};
    for (int i = 0; i < SHAPES; i++)
        for (int pair = 0; pair < PAIRS; pair++, give_back()) {
            if ((pair + i) % cuda_every(5)) continue;
            together(ROWS, pairs[pair][0], pairs[pair][1], &shapes[i], layouts, 3, tokens, GENERATED + 9);
            together(PLAIN, pairs[pair][0], pairs[pair][1], &shapes[i], layouts + 2 * (i % 2), 1, tokens,
                     GENERATED + 9);
        }
}

/* ---- into the cache ---- */

/* What the step appends to a cache in this layout; *q: the rotated queries. */
static cache append(fb_op_kind kind, fb_dtype t, fb_dtype kv, const shape *s, layout l, const token *tokens,
                    int64_t rows, fb_view *q) {
    int64_t rotary = s->width / 4 * 2;
    cache c = cache_of(kv, s, l, tokens, rows, false);
    fb_view k = rows_of(t, K, tokens, rows, s->kv_heads, s->width, 0);
    fb_view v = rows_of(t, V, tokens, rows, s->kv_heads, s->width, 8);
    fb_call call = {.kv = c.kv, .row = step_rows(&c, tokens, rows), .rows = rows};
    *q = empty(t, rows, s->heads, s->width);
    if (kind == FB_OP_ROPE_KV) {
        call.attr.rotary = (int32_t)rotary;
        call.in[0] = rows_of(t, Q, tokens, rows, s->heads, s->width, 0);
        call.in[1] = k;
        call.in[2] = v;
        call.in[3] = rows_of(FB_F32, ANGLE, tokens, rows, 1, rotary, 0);
        call.out[0] = *q;
    } else {
        call.in[0] = k;
        call.in[1] = v;
    }
    run(&c, kind, &call);
    return c;
}

/* The keys and values of the tokens in both caches are the same; in `have` they are then NaN. */
static void same_slots(const shape *s, cache *have, cache *want, const token *tokens, int64_t rows) {
    int64_t size = fb_dtype_size(have->kv.dtype);
    for (int64_t n = 0; n < rows * s->kv_heads; n++) {
        const token *of = &tokens[n / s->kv_heads];
        int64_t head = n % s->kv_heads;
        int64_t slot = fb_ring_slot(&have->kv.ring, of->position);
        int64_t other = fb_ring_slot(&want->kv.ring, of->position);
        int here = index_of(have, of->sequence), there = index_of(want, of->sequence);
        for (int64_t i = 0; i < s->width; i++) {
            uint8_t *k = fb_at(fb_key_of(&have->kv, here, head, slot), have->kv.dtype, i * FB_KV_GROUP);
            uint8_t *v = fb_at(fb_value_of(&have->kv, here, head, slot), have->kv.dtype, i);
            assert_true(isfinite(fb_dtype_get(have->kv.dtype, k, 0)));
            assert_true(isfinite(fb_dtype_get(have->kv.dtype, v, 0)));
            assert_memory_equal(
                k, fb_at(fb_key_of(&want->kv, there, head, other), want->kv.dtype, i * FB_KV_GROUP),
                (size_t)size);
            assert_memory_equal(v, fb_at(fb_value_of(&want->kv, there, head, other), want->kv.dtype, i),
                                (size_t)size);
            memset(k, 0xff, (size_t)size);
            memset(v, 0xff, (size_t)size);
        }
    }
}

static void check_append(fb_op_kind kind, fb_dtype t, fb_dtype kv, const shape *s) {
    static const layout layouts[] = {{16, 400, 0}, {32, 10240, 1}, {128, 512, 0}, {0, 400, 0}};
    for (int n = 0; n < 4; n++) {
        fb_view q, alone_q;
        cache have = append(kind, t, kv, s, layouts[n], generated, GENERATED, &q);
        for (int64_t i = 0; i < GENERATED; i++) {
            cache alone = append(kind, t, kv, s, smallest(s, &generated[i], 1), &generated[i], 1, &alone_q);
            same_slots(s, &have, &alone, &generated[i], 1);
            if (kind == FB_OP_ROPE_KV) same("rope_kv", s, layouts[n], &generated[i], &q, i, &alone_q, 0);
        }
        for (int64_t i = 0; i < have.step.blocks * have.step.block_bytes; i++)
            assert_int_equal(have.step.pool[i], 0xff);
    }
}

static void into_the_cache(void **state) {
    (void)state;
    for (int i = 0; i < SHAPES + 3; i++)
        for (int pair = 0; pair < PAIRS; pair++, give_back()) {
            if ((pair + i) % cuda_every(PAIRS)) continue;
            const shape *s = i < SHAPES ? &shapes[i] : &rings[i - SHAPES];
            check_append(FB_OP_ROPE_KV, pairs[pair][0], pairs[pair][1], s);
            check_append(FB_OP_KV_APPEND, pairs[pair][0], pairs[pair][1], s);
        }
}

static int start(void **state) {
    (void)state;
    random_numbers = fbt_random_start(47);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generated_tokens),   cmocka_unit_test(large_caches),
        cmocka_unit_test(several_launches),   cmocka_unit_test(long_contexts),
        cmocka_unit_test(generated_in_rings), cmocka_unit_test(prompts),
        cmocka_unit_test(rows_and_plain),     cmocka_unit_test(into_the_cache),
    };
    return cuda_run_group("blocks", tests, sizeof tests / sizeof *tests, start);
}
