/* A compiled schema, and how far a document has come in it. */
#ifndef FB_SCHEMA_SCHEMA_H
#define FB_SCHEMA_SCHEMA_H

#include "schema/tokens.h"

#define FB_SCHEMA_BYTES (1 << 20)

/* What changes in a schema: threads share it. */
typedef struct fb_schema_cache {
    fb_schema *schema;
    atomic_int users;
    atomic_llong bytes;   /* of masks */
    fb_leaf_slot slots[]; /* of the states behind the base's */
} fb_schema_cache;

struct fb_schema {
    fb_token_set *set;
    fb_machine machine; /* begins with the base */
    int32_t first;      /* the rule of a document */
    fb_schema_cache *cache;
};

/* `text` NULL: any object. */
fb_status fb_schema_compile(fb_token_set *set, const char *text, size_t bytes, fb_schema **out,
                            fb_error *err);
const fb_schema *fb_schema_hold(const fb_schema *schema); /* until fb_schema_release */
void fb_schema_release(const fb_schema *schema);

/* The mask of a leaf state; NULL: it has none. */
const fb_leaf_mask *fb_schema_mask(const fb_schema *schema, int32_t state);

/* Makes it beforehand, and counts the nodes that this looked at. */
void fb_schema_prepare(const fb_schema *schema, int32_t state, int64_t *visited);

/* ---- a document ---- */

#define FB_SPOT_DONE (-1) /* as a state: the document is complete */

/* A call that has not ended: where it goes on, and the count there. */
typedef struct fb_frame {
    int32_t back, count;
    int32_t parent, depth; /* -1: the document; frames above this one */
} fb_frame;

typedef struct fb_spot {
    int32_t state, count, frame;
} fb_spot;

typedef struct fb_cursor {
    const fb_schema *schema;
    fb_frame *frames;
    fb_spot *spots; /* the ways to read the text so far, up to `count`; behind them scratch */
    int32_t frame_count, frame_room, kept_frames, spot_count, spot_room, count;
    bool failed;  /* no memory */
    bool started; /* a token was taken … */
    bool closed;  /* … and one that ends the answer */
    struct fb_cursor_level {
        int32_t begin, end, frames;
    } * levels;        /* [longest token + 1], of a walk */
    uint64_t *scratch; /* [words] */
} fb_cursor;

fb_status fb_cursor_create(const fb_schema *schema, fb_cursor **out, fb_error *err);
void fb_cursor_free(fb_cursor *cursor);
/* Makes a cursor of the same schema as far as another one. */
fb_status fb_cursor_copy(const fb_cursor *from, fb_cursor *to, fb_error *err);

/* Which tokens may come next: bits of words [set->words]. */
fb_status fb_cursor_mask(fb_cursor *cursor, uint64_t *words, fb_error *err);
/* Takes a token that the mask allows. */
fb_status fb_cursor_take(fb_cursor *cursor, int32_t id, fb_error *err);
/* Takes bytes; false: they do not fit, and nothing has changed. */
bool fb_cursor_take_bytes(fb_cursor *cursor, const char *bytes, size_t size);

bool fb_cursor_complete(const fb_cursor *cursor); /* the text is a document */
/* Complete, and nothing can follow: no more bytes and no token that ends an answer is worth a step. */
bool fb_cursor_ended(const fb_cursor *cursor);

/* ---- within a cursor ---- */

/* Adds to the set from `begin` on a way to read on, and what it leads to without a byte. */
void fb_cursor_add(fb_cursor *cursor, int32_t begin, fb_spot spot);
/* Behind all spots, alone. */
void fb_cursor_put(fb_cursor *cursor, fb_spot spot);
/* The set that the spots from begin to end become with a byte, behind all spots. */
void fb_cursor_step(fb_cursor *cursor, int32_t begin, int32_t end, uint8_t byte);

#endif
