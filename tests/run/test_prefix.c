/* The prefix cache where layers forget: a text is gone on with if the blocks that the next token sees are
 * still there, with the bits of computing it anew; and its blocks are counted right, whatever is evicted. */
#include <stdlib.h>
#include <string.h>

#include "backend/sequence.h"
#include "run/prefix.h"
#include "support/answers.h"

/* ---- the tree, with blocks that are nobody's ---- */

enum {
    GROUPS = 4,
    BLOCK = 16,
    MOST_PIECES = 24,
    USERS = 6,
    POOL = 7,
    ENTRIES = 16 * POOL,
    OPERATIONS = 40000
};

/* A text and what its user has of it: blocks for position `kept`, of its entries up to `entry`. */
typedef struct reader {
    int32_t ids[MOST_PIECES * BLOCK];
    int64_t kept;
    fb_prefix_entry *entry;
    fb_block *blocks[MOST_PIECES][GROUPS];
} reader;

static struct {
    fb_prefix *prefix;
    fb_frame frame;
    fbt_random random;
    reader readers[USERS];
    /* Each has the test as a user; `next` unused. What it holds is a hash of its text and group. */
    fb_block blocks[GROUPS * (ENTRIES + USERS * MOST_PIECES)];
    uint64_t content[GROUPS * (ENTRIES + USERS * MOST_PIECES)];
    int64_t hits, shortened, evicted, refilled;
} t;

enum { BLOCKS = sizeof t.blocks / sizeof *t.blocks };

static uint64_t content_of(const int32_t *ids, int64_t end, int32_t group) {
    uint64_t hash = 1469598103934665603u + (uint64_t)group;
    for (int64_t i = 0; i < end; i++) hash = (hash ^ (uint64_t)ids[i]) * 1099511628211u;
    return hash;
}

static fb_block *new_block(uint64_t content) {
    int64_t i = 0;
    while (i < BLOCKS && atomic_load(&t.blocks[i].users) > 1) i++;
    assert_true(i < BLOCKS);
    t.content[i] = content;
    return fb_block_share(&t.blocks[i]);
}

static void drop(fb_block **block) {
    if (*block) atomic_fetch_sub(&(*block)->users, 1);
    *block = NULL;
}

static int64_t next_end(const reader *r) { return fb_prefix_next_end(t.prefix, r->entry); }

/* Entries have numbers: that of the last one, and of those before. */
static int piece_of(const fb_prefix_entry *e) {
    int n = -1;
    for (; e; e = fb_prefix_before(e)) n++;
    return n;
}

static void enter(reader *r, int64_t most) {
    int64_t there = 0;
    fb_prefix_entry *longest = fb_prefix_find(t.prefix, r->ids, most);
    r->entry = longest;
    r->kept = fb_prefix_end(longest);
    fb_prefix_hold(t.prefix, longest, r->kept);
    for (fb_prefix_entry *e = longest; e; e = fb_prefix_before(e))
        for (int32_t group = 0; group < GROUPS; group++) {
            fb_block *block = fb_prefix_block(e, group);
            there += block != NULL;
            if (!fb_prefix_sees(t.prefix, e, group, r->kept)) continue;
            assert_non_null(block);
            assert_true(t.content[block - t.blocks] == content_of(r->ids, fb_prefix_end(e), group));
            r->blocks[piece_of(e)][group] = fb_block_share(block);
        }
    t.hits += longest != NULL;
    t.shortened += longest && there < GROUPS * (piece_of(longest) + 1);
}

/* The reader computes its next `pieces` at once, and then no longer needs what lies behind. */
static void compute(reader *r, int pieces) {
    int64_t end = r->kept;
    for (int i = 0; i < pieces; i++) {
        fb_block *made[GROUPS];
        int piece = piece_of(r->entry) + 1;
        if (piece == MOST_PIECES) break;
        end = next_end(r);
        for (int32_t group = 0; group < GROUPS; group++)
            made[group] = new_block(content_of(r->ids, end, group));
        fb_prefix_entry *e =
            fb_prefix_add(t.prefix, r->entry, r->ids + fb_prefix_end(r->entry), made, r->kept);
        if (!e) { /* all are held */
            for (int32_t group = 0; group < GROUPS; group++) drop(&made[group]);
            end = fb_prefix_end(r->entry);
            break;
        }
        for (int32_t group = 0; group < GROUPS; group++) {
            fb_block *block = fb_prefix_block(e, group);
            assert_non_null(block);
            assert_true(t.content[block - t.blocks] == content_of(r->ids, end, group));
            t.refilled += block == made[group] && group && fb_prefix_block(e, 0) != made[0];
            r->blocks[piece][group] = fb_block_share(block);
            drop(&made[group]);
        }
        r->entry = e;
    }
    fb_prefix_advance(t.prefix, r->entry, r->kept, end);
    r->kept = end;
    for (fb_prefix_entry *e = r->entry; e; e = fb_prefix_before(e))
        for (int32_t group = 0; group < GROUPS; group++)
            if (!fb_prefix_sees(t.prefix, e, group, r->kept)) drop(&r->blocks[piece_of(e)][group]);
}

static void leave(reader *r) {
    fb_prefix_release(t.prefix, r->entry, r->kept);
    for (int i = 0; i < MOST_PIECES; i++)
        for (int32_t group = 0; group < GROUPS; group++) drop(&r->blocks[i][group]);
    r->entry = NULL;
    r->kept = 0;
}

/* A text that begins as another one does, or as its own did. */
static void rewrite(reader *r) {
    const reader *other = &t.readers[fbt_random_below(&t.random, USERS)];
    int64_t same = fbt_random_below(&t.random, MOST_PIECES * BLOCK);
    memmove(r->ids, other->ids, (size_t)same * sizeof *r->ids);
    for (int64_t i = same; i < MOST_PIECES * BLOCK; i++) r->ids[i] = (int32_t)fbt_random_below(&t.random, 2);
}

/* The blocks that only the prefix cache uses: the test itself is one more user. */
static int64_t only_cached(void) {
    int64_t count = 0;
    for (int i = 0; i < BLOCKS; i++) count += atomic_load(&t.blocks[i].users) == 2;
    for (int u = 0; u < USERS; u++)
        for (int i = 0; i < MOST_PIECES; i++)
            for (int32_t group = 0; group < GROUPS; group++) {
                fb_block *block = t.readers[u].blocks[i][group];
                count -= block && atomic_load(&block->users) == 2;
            }
    return count;
}

static void one_operation(void) {
    reader *r = &t.readers[fbt_random_below(&t.random, USERS)];
    int64_t what = fbt_random_below(&t.random, 8);
    if (what == 0) {
        leave(r);
        rewrite(r);
        enter(r, fbt_random_below(&t.random, MOST_PIECES * BLOCK));
    } else if (what < 5) {
        compute(r, 1 + (int)fbt_random_below(&t.random, 4));
    } else {
        t.evicted += fb_prefix_evict(t.prefix);
    }
    assert_int_equal(fb_prefix_idle(t.prefix), only_cached());
}

/* Groups 0 and 3 are of a kind with all tokens, 1 of a short window, 2 of a longer one; or all are of two
 * windows after sinks. */
static void open_tree(int64_t sinks) {
    fb_error err;
    memset(&t, 0, sizeof t);
    for (int i = 0; i < BLOCKS; i++) atomic_init(&t.blocks[i].users, 1);
    t.frame.groups = GROUPS;
    t.frame.options.block = BLOCK;
    for (int32_t group = 0; group < GROUPS; group++) t.frame.group[group].kind = group % 3;
    if (sinks) t.frame.cache[0].ring = (fb_ring){.sinks = sinks, .window = 50};
    t.frame.cache[1].ring = (fb_ring){.sinks = sinks, .window = 17};
    t.frame.cache[2].ring = (fb_ring){.sinks = sinks, .window = 70};
    assert_ok(fb_prefix_open(&t.frame, POOL, &t.prefix, &err), &err);
}

static void random_texts(int64_t sinks) {
    open_tree(sinks);
    t.random = fbt_random_start(31 + (uint64_t)sinks);
    for (int u = 0; u < USERS; u++) rewrite(&t.readers[u]);
    for (int i = 0; i < OPERATIONS; i++) one_operation();
    for (int u = 0; u < USERS; u++) leave(&t.readers[u]);
    assert_int_equal(fb_prefix_idle(t.prefix), only_cached());
    fb_prefix_close(t.prefix);
    for (int i = 0; i < BLOCKS; i++) assert_int_equal(atomic_load(&t.blocks[i].users), 1);
    print_message("%lld hits, %lld of them without old blocks, %lld evicted, %lld blocks came back\n",
                  (long long)t.hits, (long long)t.shortened, (long long)t.evicted, (long long)t.refilled);
    assert_true(t.hits > 500 && t.shortened > 100 && t.evicted > 5000 && t.refilled > 100);
}

static void trees(void **state) {
    (void)state;
    random_texts(0);
    random_texts(4);
    random_texts(16);
    random_texts(37);
}

/* What goes first: the blocks behind the windows, then a text from its end. */
static void order_of_eviction(void **state) {
    (void)state;
    reader *r = &t.readers[0], *other = &t.readers[1];
    open_tree(0);
    compute(r, 8); /* 128 tokens: windows of 17 and 70 see the last two blocks, and the last five */
    leave(r);
    int64_t idle = fb_prefix_idle(t.prefix);
    assert_int_equal(idle, 8 * GROUPS);
    for (int i = 0; i < 6 + 3; i++) assert_true(fb_prefix_evict(t.prefix));
    assert_int_equal(fb_prefix_idle(t.prefix), idle - 9);
    enter(other, 128);
    assert_int_equal(other->kept, 128); /* all that it needs */
    leave(other);
    enter(other, 127);
    assert_int_equal(other->kept, 0); /* nothing shorter */
    leave(other);
    compute(other, 2);
    leave(other);
    enter(r, 127);
    assert_int_equal(r->kept, 32); /* its blocks are there again */
    leave(r);
    fb_prefix_close(t.prefix);
}

/* ---- requests, one after another ---- */

enum { REQUESTS = 6 };

typedef struct setting {
    const char *model;
    fb_cache_kind cache;
    int64_t sinks, window;
    int64_t block, cache_tokens; /* 0: 32, and enough */
} setting;

static void ask(const setting *given, const fbt_beginning *of, fbt_heard *heard) {
    fb_model *model = fbt_golden_stretched(given->model, 2048);
    fb_session_options session;
    fb_scheduler_options options;
    fb_session_options_default(&session);
    session.threads = 2;
    session.cache = given->cache;
    session.sinks = given->sinks;
    session.window = given->window;
    fb_scheduler_options_default(&options);
    options.sequences = 4;
    options.rows = 64;
    options.stretch = 0;
    if (given->block) options.block = given->block;
    options.cache_tokens = given->cache_tokens ? given->cache_tokens : 8192;
    fbt_ask_beginnings(model, &session, &options, of, REQUESTS, heard);
    fb_model_free(model);
}

/* Longer than a ring. */
static void beginnings(void **state) {
    (void)state;
    static const setting rigs[] = {
        {"mistral-window", FB_CACHE_DENSE, 0, 0, 0, 0},   {"gemma3", FB_CACHE_DENSE, 0, 0, 16, 0},
        {"gemma3", FB_CACHE_DENSE, 0, 0, 128, 0},         {"gemma2", FB_CACHE_WINDOW, 0, 30, 64, 0},
        {"llama-gqa-tied", FB_CACHE_WINDOW, 0, 97, 0, 0}, {"llama-gqa-tied", FB_CACHE_SINKS, 4, 97, 0, 0},
        {"neox-parallel", FB_CACHE_SINKS, 40, 60, 0, 0},
    };
    static const fbt_beginning of[REQUESTS] = {{900, 900}, {850, 880}, {400, 500},
                                               {899, 900}, {400, 480}, {850, 880}};
    fbt_heard heard[REQUESTS];
    for (size_t i = 0; i < sizeof rigs / sizeof *rigs; i++) {
        const setting *r = &rigs[i];
        int64_t block = r->block ? r->block : 32;
        ask(r, of, heard);
        for (int j = 1; j < REQUESTS; j++) {
            /* The last two were there before but for their last token. */
            int64_t same = (j < 4 ? of[j].same : of[j].count - 1) - r->sinks;
            assert_int_equal(heard[j].cached, r->sinks + same / block * block);
        }
    }
}

/* In little memory: what was read first is given up first, and comes back when it is read again. */
static void little_memory(void **state) {
    (void)state;
    static const setting given = {"gemma3", FB_CACHE_DENSE, 0, 0, 0, 1000};
    static const fbt_beginning of[REQUESTS] = {{900, 900}, {850, 880}, {60, 100},
                                               {60, 90},   {900, 900}, {100, 900}};
    fbt_heard heard[REQUESTS];
    ask(&given, of, heard);
    assert_int_equal(heard[1].cached, 832);
    assert_int_equal(heard[2].cached, 0);
    assert_int_equal(heard[3].cached, 64);
}

/* A prompt longer than the ring, which is all the memory that there is. */
static void one_ring(void **state) {
    (void)state;
    static const setting given = {"mistral-window", FB_CACHE_DENSE, 0, 0, 0, 768};
    static const fbt_beginning of[REQUESTS] = {{900, 900}, {850, 880}, {60, 100},
                                               {60, 990},  {850, 880}, {880, 900}};
    fbt_heard heard[REQUESTS];
    ask(&given, of, heard);
    assert_int_equal(heard[1].cached, 832);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(trees), cmocka_unit_test(order_of_eviction),
                                       cmocka_unit_test(beginnings), cmocka_unit_test(little_memory),
                                       cmocka_unit_test(one_ring)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
