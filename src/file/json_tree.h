/* Inside of a JSON document, for what makes one. It is one allocation: the nodes in the order of the text,
 * from the top value on; the indexes of the objects that have one; the strings. */
#ifndef FB_FILE_JSON_TREE_H
#define FB_FILE_JSON_TREE_H

#include "file/json.h"

#define FB_JSON_KEY (FB_JSON_OBJECT + 1) /* the kind of a key, which lies before its value */

#define FB_JSON_SMALL     8          /* an object of so many members has no index: a scan is as fast */
#define FB_JSON_MAX_NODES (1u << 30) /* so that every distance below fits */

struct fb_json {
    uint8_t kind;  /* fb_json_kind or FB_JSON_KEY */
    bool keyed;    /* a key lies before it */
    bool last;     /* of the array or object that it is in */
    uint32_t size; /* see fb_json_size; a key has its bytes */
    union {
        bool truth;
        int64_t integer;
        double real;
        const char *text;
        struct {
            uint32_t nodes; /* of an array or object: itself and all in it. While it is open: its parent */
            uint32_t index; /* of an object above FB_JSON_SMALL: where its fb_json_entry[size] are, in entries
                               from this node */
        };
    };
};

/* Indexes are in order of hash, then of the key's size, then of its bytes. A hash that hits often costs time
 * for comparing bytes, and no more than that: no seed is needed against chosen keys. */
typedef struct fb_json_entry {
    uint32_t hash;
    uint32_t key; /* nodes from the object to the key */
} fb_json_entry;

_Static_assert(sizeof(fb_json) == 16 && sizeof(fb_json_entry) == 8, "the limit of twelve times the text");

/* How many entries an object of so many members has. */
static inline uint32_t fb_json_entries(uint32_t members) { return members > FB_JSON_SMALL ? members : 0; }

/* The node behind a value and all in it. */
static inline const fb_json *fb_json_behind(const fb_json *value) {
    return value + (value->kind == FB_JSON_ARRAY || value->kind == FB_JSON_OBJECT ? value->nodes : 1);
}

/* Makes a complete object's index in `entries`, which lie behind the nodes and have room for it. Returns the
 * first key in the text that is there before, or NULL. Takes n log n comparisons and no memory. */
const fb_json *fb_json_index(fb_json *object, fb_json_entry *entries);

/* Refuses a text that is longer than its limit, or than any document may be. */
fb_status fb_json_check_size(const char *what, size_t size, size_t limit, fb_error *err);

#endif
