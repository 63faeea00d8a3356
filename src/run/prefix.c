#include "run/prefix.h"

#include <stdlib.h>

struct fb_prefix_entry {
    fb_prefix_entry *before;        /* the entry that it follows; NULL: none */
    fb_prefix_entry *chain;         /* the next one of its bucket */
    fb_prefix_entry *newer, *older; /* neighbours in the order of use */
    bool listed;                    /* it is in that order */
    uint64_t hash;                  /* of all tokens up to its last one */
    int64_t children, holders;
    fb_block **blocks; /* [groups] */
    int32_t *ids;      /* [tokens] */
};

struct fb_prefix {
    int64_t tokens, most; /* of a block; entries */
    int64_t count, idle;  /* entries, and those that nobody holds */
    int32_t groups;
    int64_t buckets; /* a power of two */
    fb_prefix_entry **bucket;
    fb_prefix_entry *newest, *oldest;
};

fb_status fb_prefix_open(int64_t tokens, int32_t groups, int64_t most, fb_prefix **out, fb_error *err) {
    *out = NULL;
    fb_prefix *p = calloc(1, sizeof *p);
    if (!p) return fb_fail_memory(err, "prefix cache", sizeof *p);
    *p = (fb_prefix){.tokens = tokens, .groups = groups, .most = most, .buckets = 64};
    while (p->buckets < most && p->buckets < 1 << 20) p->buckets *= 2;
    p->bucket = calloc((size_t)p->buckets, sizeof *p->bucket);
    if (!p->bucket) {
        fb_status status = fb_fail_memory(err, "prefix cache", p->buckets * (int64_t)sizeof *p->bucket);
        free(p);
        return status;
    }
    *out = p;
    return FB_OK;
}

/* ---- the order of use, of entries that nobody follows or holds: only they can be evicted ---- */

static void unlist(fb_prefix *p, fb_prefix_entry *e) {
    if (!e->listed) return;
    *(e->newer ? &e->newer->older : &p->newest) = e->older;
    *(e->older ? &e->older->newer : &p->oldest) = e->newer;
    e->listed = false;
}

static void list_newest(fb_prefix *p, fb_prefix_entry *e) {
    e->older = p->newest;
    e->newer = NULL;
    *(p->newest ? &p->newest->newer : &p->oldest) = e;
    p->newest = e;
    e->listed = true;
}

static void list_oldest(fb_prefix *p, fb_prefix_entry *e) {
    e->newer = p->oldest;
    e->older = NULL;
    *(p->oldest ? &p->oldest->older : &p->newest) = e;
    p->oldest = e;
    e->listed = true;
}

/* ---- finding ---- */

/* FNV-1a over the tokens, continued from the entry before. */
static uint64_t hash_of(const fb_prefix *p, const fb_prefix_entry *before, const int32_t *ids) {
    uint64_t hash = before ? before->hash : 0xcbf29ce484222325u;
    for (int64_t i = 0; i < p->tokens; i++) {
        hash = (hash ^ (uint32_t)ids[i]) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    return hash;
}

static fb_prefix_entry **bucket_of(const fb_prefix *p, uint64_t hash) {
    return &p->bucket[(hash ^ hash >> 32) & (uint64_t)(p->buckets - 1)];
}

static fb_prefix_entry *find(const fb_prefix *p, const fb_prefix_entry *before, const int32_t *ids,
                             uint64_t hash) {
    for (fb_prefix_entry *e = *bucket_of(p, hash); e; e = e->chain)
        if (e->hash == hash && e->before == before &&
            memcmp(e->ids, ids, (size_t)p->tokens * sizeof *ids) == 0)
            return e;
    return NULL;
}

static void hold_one(fb_prefix *p, fb_prefix_entry *e) {
    if (e->holders++ > 0) return;
    p->idle--;
    unlist(p, e);
}

fb_prefix_entry *fb_prefix_find(fb_prefix *p, fb_prefix_entry *before, const int32_t *ids) {
    fb_prefix_entry *e = find(p, before, ids, hash_of(p, before, ids));
    if (e) hold_one(p, e);
    return e;
}

fb_block *fb_prefix_block(const fb_prefix_entry *e, int32_t group) { return e->blocks[group]; }
int64_t fb_prefix_idle(const fb_prefix *p) { return p->idle; }

void fb_prefix_hold(fb_prefix *p, fb_prefix_entry *entry) {
    for (fb_prefix_entry *e = entry; e; e = e->before) hold_one(p, e);
}

void fb_prefix_release(fb_prefix *p, fb_prefix_entry *entry) {
    for (fb_prefix_entry *e = entry; e; e = e->before)
        if (--e->holders == 0) {
            p->idle++;
            if (!e->children) list_newest(p, e);
        }
}

/* ---- adding and evicting ---- */

static void free_entry(fb_prefix_entry *e) {
    if (!e) return;
    free(e->blocks);
    free(e->ids);
    free(e);
}

static void forget(fb_prefix *p, fb_prefix_entry *e) {
    fb_prefix_entry **at = bucket_of(p, e->hash), *before = e->before;
    while (*at != e) at = &(*at)->chain;
    *at = e->chain;
    unlist(p, e);
    p->count--;
    p->idle--;
    for (int32_t group = 0; group < p->groups; group++) fb_block_give(e->blocks[group]);
    /* It was used no later than what followed it: it is the next to go. */
    if (before && --before->children == 0 && !before->holders) list_oldest(p, before);
    free_entry(e);
}

bool fb_prefix_evict(fb_prefix *p) {
    if (!p->oldest) return false;
    forget(p, p->oldest);
    return true;
}

static fb_prefix_entry *make_entry(const fb_prefix *p, const int32_t *ids, fb_block *const *blocks) {
    fb_prefix_entry *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    e->ids = malloc((size_t)p->tokens * sizeof *ids);
    e->blocks = malloc((size_t)p->groups * sizeof(fb_block *));
    if (!e->ids || !e->blocks) {
        free_entry(e);
        return NULL;
    }
    memcpy(e->ids, ids, (size_t)p->tokens * sizeof *ids);
    for (int32_t group = 0; group < p->groups; group++) e->blocks[group] = fb_block_share(blocks[group]);
    return e;
}

fb_prefix_entry *fb_prefix_add(fb_prefix *p, fb_prefix_entry *before, const int32_t *ids,
                               fb_block *const *blocks) {
    fb_prefix_entry *e = fb_prefix_find(p, before, ids);
    if (e || (p->count >= p->most && !fb_prefix_evict(p))) return e;
    if (!(e = make_entry(p, ids, blocks))) return NULL;
    e->before = before;
    e->hash = hash_of(p, before, ids);
    e->holders = 1;
    e->chain = *bucket_of(p, e->hash);
    *bucket_of(p, e->hash) = e;
    if (before) before->children++;
    p->count++;
    return e;
}

void fb_prefix_close(fb_prefix *p) {
    if (!p) return;
    while (fb_prefix_evict(p))
        ;
    free(p->bucket);
    free(p);
}
