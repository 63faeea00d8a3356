#include "run/prefix.h"

#include <stdlib.h>

#define MOST_PARTS (1 + FB_MAX_KINDS)
/* Entries for each block of the pool. Where all layers forget, texts are longer than what is left of them. */
#define ENTRIES_PER_BLOCK 16

/* Who uses a part, and when it was used. */
typedef struct usage {
    fb_prefix_entry *entry;
    int64_t holders;
    struct usage *newer, *older; /* neighbours in an order of use */
    bool listed;                 /* it is in that order */
    uint64_t time;               /* when it came there */
} usage;

/* An order of use, of parts that nobody holds. */
typedef struct order {
    usage *newest, *oldest;
} order;

struct fb_prefix_entry {
    fb_prefix_entry *before; /* the entry that it follows; NULL: none */
    fb_prefix_entry *chain;  /* the next one of its bucket */
    uint64_t hash;           /* of all tokens up to its last one */
    int64_t begin, end;      /* positions */
    int64_t children;
    fb_block **blocks;       /* [groups]; NULL: its part was evicted, or never there */
    int32_t *ids;            /* [end - begin] */
    usage usage[MOST_PARTS]; /* by part */
};

struct fb_prefix {
    int64_t block, sinks, most; /* tokens of a block; positions that all tokens see; entries */
    int64_t count, idle;        /* entries; blocks in parts that nobody holds */
    int32_t groups, parts;
    int32_t part_of[FB_MAX_LAYERS]; /* by group */
    struct {
        int64_t window, groups;
        int32_t first; /* a group of the part */
    } part[MOST_PARTS];
    int64_t widest;  /* window */
    int64_t buckets; /* a power of two */
    fb_prefix_entry **bucket;
    order entries, others; /* parts 0 of entries that no entry follows; the other parts */
    uint64_t time;         /* counts up */
};

/* Part 0 has the groups whose layers see all tokens. Kinds of layers that forget have a part each. */
static void divide_parts(fb_prefix *p, const fb_frame *f) {
    int32_t part_of_kind[FB_MAX_KINDS] = {0};
    p->parts = 1;
    for (int32_t group = 0; group < p->groups; group++) {
        int32_t kind = f->group[group].kind, *at = &part_of_kind[kind];
        const fb_ring *ring = &f->cache[kind].ring;
        if (ring->window && !*at) {
            *at = p->parts++;
            p->part[*at].window = ring->window;
            p->part[*at].first = group;
            p->sinks = ring->sinks;
            if (ring->window > p->widest) p->widest = ring->window;
        }
        p->part_of[group] = *at;
        p->part[*at].groups++;
    }
}

fb_status fb_prefix_open(const fb_frame *frame, int64_t blocks, fb_prefix **out, fb_error *err) {
    *out = NULL;
    fb_prefix *p = calloc(1, sizeof *p);
    if (!p) return fb_fail_memory(err, "prefix cache", sizeof *p);
    p->block = frame->options.block;
    p->groups = frame->groups;
    p->most = blocks * ENTRIES_PER_BLOCK;
    p->buckets = 64;
    divide_parts(p, frame);
    while (p->buckets < blocks && p->buckets < 1 << 20) p->buckets *= 2;
    p->bucket = calloc((size_t)p->buckets, sizeof *p->bucket);
    if (!p->bucket) {
        fb_status status = fb_fail_memory(err, "prefix cache", p->buckets * (int64_t)sizeof *p->bucket);
        free(p);
        return status;
    }
    *out = p;
    return FB_OK;
}

/* ---- entries and their parts ---- */

int64_t fb_prefix_begin(const fb_prefix_entry *e) { return e->begin; }
int64_t fb_prefix_end(const fb_prefix_entry *e) { return e ? e->end : 0; }
fb_prefix_entry *fb_prefix_before(const fb_prefix_entry *e) { return e->before; }
fb_block *fb_prefix_block(const fb_prefix_entry *e, int32_t group) { return e->blocks[group]; }
int64_t fb_prefix_idle(const fb_prefix *p) { return p->idle; }

/* The blocks of a ring begin after the sinks. */
int64_t fb_prefix_next_end(const fb_prefix *p, const fb_prefix_entry *e) {
    int64_t begin = fb_prefix_end(e), end = begin + p->block;
    return begin < p->sinks && p->sinks < end ? p->sinks : end;
}

static bool sees(const fb_prefix *p, const fb_prefix_entry *e, int32_t part, int64_t position) {
    return part == 0 || e->begin < p->sinks || e->end > position - p->part[part].window;
}

bool fb_prefix_sees(const fb_prefix *p, const fb_prefix_entry *e, int32_t group, int64_t position) {
    return sees(p, e, p->part_of[group], position);
}

static bool is_there(const fb_prefix *p, const fb_prefix_entry *e, int32_t part) {
    return part == 0 || e->blocks[p->part[part].first];
}

/* Fills in a part that nobody holds. */
static void take_blocks(fb_prefix *p, fb_prefix_entry *e, int32_t part, fb_block *const *blocks) {
    for (int32_t group = 0; group < p->groups; group++)
        if (p->part_of[group] == part) e->blocks[group] = fb_block_share(blocks[group]);
    p->idle += p->part[part].groups;
}

static void give_blocks(fb_prefix *p, fb_prefix_entry *e, int32_t part) {
    for (int32_t group = 0; group < p->groups; group++)
        if (p->part_of[group] == part) {
            fb_block_give(e->blocks[group]);
            e->blocks[group] = NULL;
        }
    p->idle -= p->part[part].groups;
}

/* ---- orders of use ---- */

static order *order_of(fb_prefix *p, const usage *u) {
    return u == u->entry->usage ? &p->entries : &p->others;
}

static void unlist(fb_prefix *p, usage *u) {
    order *o = order_of(p, u);
    if (!u->listed) return;
    *(u->newer ? &u->newer->older : &o->newest) = u->older;
    *(u->older ? &u->older->newer : &o->oldest) = u->newer;
    u->listed = false;
}

static void list_newest(fb_prefix *p, usage *u) {
    order *o = order_of(p, u);
    u->older = o->newest;
    u->newer = NULL;
    *(o->newest ? &o->newest->newer : &o->oldest) = u;
    o->newest = u;
    u->listed = true;
    u->time = ++p->time;
}

/* An entry that was used no later than another one, which was the oldest. */
static void list_oldest(fb_prefix *p, usage *u, uint64_t time) {
    order *o = &p->entries;
    u->newer = o->oldest;
    u->older = NULL;
    *(o->oldest ? &o->oldest->older : &o->newest) = u;
    o->oldest = u;
    u->listed = true;
    u->time = time;
}

/* ---- holding ---- */

static void hold_part(fb_prefix *p, fb_prefix_entry *e, int32_t part) {
    if (e->usage[part].holders++ > 0) return;
    p->idle -= p->part[part].groups;
    unlist(p, &e->usage[part]);
}

static void release_part(fb_prefix *p, fb_prefix_entry *e, int32_t part) {
    if (--e->usage[part].holders > 0) return;
    p->idle += p->part[part].groups;
    if (part || !e->children) list_newest(p, &e->usage[part]);
}

void fb_prefix_hold(fb_prefix *p, fb_prefix_entry *entry, int64_t position) {
    for (int32_t part = 0; part < p->parts; part++)
        for (fb_prefix_entry *e = entry; e; e = e->before)
            if (sees(p, e, part, position)) hold_part(p, e, part);
}

/* The last entry goes before the parts that it needs: without these it would be of no use, but a shorter text
 * may be. */
void fb_prefix_release(fb_prefix *p, fb_prefix_entry *entry, int64_t position) {
    for (int32_t part = 0; part < p->parts; part++)
        for (fb_prefix_entry *e = entry; e; e = e->before)
            if (sees(p, e, part, position)) release_part(p, e, part);
}

void fb_prefix_advance(fb_prefix *p, fb_prefix_entry *entry, int64_t from, int64_t to) {
    for (fb_prefix_entry *e = entry; e && e->end > from - p->widest; e = e->before)
        for (int32_t part = 1; part < p->parts; part++)
            if (sees(p, e, part, from) && !sees(p, e, part, to)) release_part(p, e, part);
}

/* ---- finding ---- */

/* FNV-1a over the tokens, continued from the entry before. */
static uint64_t hash_of(const fb_prefix_entry *before, const int32_t *ids, int64_t count) {
    uint64_t hash = before ? before->hash : 0xcbf29ce484222325u;
    for (int64_t i = 0; i < count; i++) {
        hash = (hash ^ (uint32_t)ids[i]) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    return hash;
}

static fb_prefix_entry **bucket_of(const fb_prefix *p, uint64_t hash) {
    return &p->bucket[(hash ^ hash >> 32) & (uint64_t)(p->buckets - 1)];
}

/* The entry of `ids` after another. */
static fb_prefix_entry *find_after(const fb_prefix *p, const fb_prefix_entry *before, const int32_t *ids) {
    int64_t count = fb_prefix_next_end(p, before) - fb_prefix_end(before);
    uint64_t hash = hash_of(before, ids, count);
    for (fb_prefix_entry *e = *bucket_of(p, hash); e; e = e->chain)
        if (e->hash == hash && e->before == before && memcmp(e->ids, ids, (size_t)count * sizeof *ids) == 0)
            return e;
    return NULL;
}

fb_prefix_entry *fb_prefix_find(const fb_prefix *p, const int32_t *ids, int64_t most) {
    fb_prefix_entry *last = NULL, *e = NULL,
                    *lacking[MOST_PARTS] = {NULL}; /* the last one without the part */
    while (fb_prefix_next_end(p, e) <= most && (e = find_after(p, e, ids + fb_prefix_end(e)))) {
        bool usable = true;
        for (int32_t part = 1; part < p->parts; part++) {
            if (!is_there(p, e, part)) lacking[part] = e;
            usable = usable && !(lacking[part] && sees(p, lacking[part], part, e->end));
        }
        if (usable) last = e;
        if (!usable && e->begin < p->sinks) break;
    }
    return last;
}

/* ---- adding and evicting ---- */

static void free_entry(fb_prefix_entry *e) {
    if (!e) return;
    free(e->blocks);
    free(e->ids);
    free(e);
}

/* Evicts the oldest entry that nobody holds or follows; false: there is none. */
static bool evict_entry(fb_prefix *p) {
    if (!p->entries.oldest) return false;
    fb_prefix_entry *e = p->entries.oldest->entry, **at = bucket_of(p, e->hash), *before = e->before;
    while (*at != e) at = &(*at)->chain;
    *at = e->chain;
    for (int32_t part = 0; part < p->parts; part++) {
        unlist(p, &e->usage[part]);
        if (is_there(p, e, part)) give_blocks(p, e, part);
    }
    p->count--;
    if (before && --before->children == 0 && !before->usage[0].holders)
        list_oldest(p, &before->usage[0], e->usage[0].time);
    free_entry(e);
    return true;
}

bool fb_prefix_evict(fb_prefix *p) {
    usage *entry = p->entries.oldest, *other = p->others.oldest;
    if (!other || (entry && entry->time < other->time)) return evict_entry(p);
    unlist(p, other);
    give_blocks(p, other->entry, (int32_t)(other - other->entry->usage));
    return true;
}

static fb_prefix_entry *make_entry(fb_prefix *p, fb_prefix_entry *before, const int32_t *ids,
                                   fb_block *const *blocks) {
    if (p->count >= p->most && !evict_entry(p)) return NULL;
    fb_prefix_entry *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    e->begin = fb_prefix_end(before);
    e->end = fb_prefix_next_end(p, before);
    size_t count = (size_t)(e->end - e->begin);
    e->ids = malloc(count * sizeof *ids);
    e->blocks = calloc((size_t)p->groups, sizeof *e->blocks);
    if (!e->ids || !e->blocks) {
        free_entry(e);
        return NULL;
    }
    memcpy(e->ids, ids, count * sizeof *ids);
    for (int32_t part = 0; part < p->parts; part++) e->usage[part].entry = e;
    take_blocks(p, e, 0, blocks);
    e->before = before;
    e->hash = hash_of(before, ids, (int64_t)count);
    e->chain = *bucket_of(p, e->hash);
    *bucket_of(p, e->hash) = e;
    if (before) before->children++;
    p->count++;
    return e;
}

fb_prefix_entry *fb_prefix_add(fb_prefix *p, fb_prefix_entry *before, const int32_t *ids,
                               fb_block *const *blocks, int64_t position) {
    fb_prefix_entry *e = find_after(p, before, ids);
    if (!e && !(e = make_entry(p, before, ids, blocks))) return NULL;
    for (int32_t part = 0; part < p->parts; part++) {
        if (!sees(p, e, part, position)) continue;
        if (!is_there(p, e, part)) take_blocks(p, e, part, blocks);
        hold_part(p, e, part);
    }
    return e;
}

void fb_prefix_close(fb_prefix *p) {
    if (!p) return;
    while (fb_prefix_evict(p))
        ;
    free(p->bucket);
    free(p);
}
