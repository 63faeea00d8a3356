/* What the scheduler's callbacks brought of answers, in order. */
#ifndef FB_SERVE_PIECES_H
#define FB_SERVE_PIECES_H

#include "fusebox_batch.h"

/* What one callback brought, of an answer that goes on. */
typedef struct serve_piece {
    int32_t choice;
    int32_t token;              /* -1: text only, that was held back */
    bool prompt;                /* a token of the prompt, for all choices of its part: it has only a score */
    size_t text_at, text_bytes; /* of serve_pieces.text */
} serve_piece;

/* Begins as all zero. */
typedef struct serve_pieces {
    serve_piece *pieces; /* [count] */
    int64_t count, room;
    /* [count, 1 + tops]: the token, then the best; NULL: there are no scores. That of a prompt's first token
     * is NaN. */
    fb_logprob *scores;
    char *text;
    size_t text_size, text_room;
} serve_pieces;

/* Makes room for one more with so many bytes of text; tops -1: without scores. False: no memory. */
bool serve_pieces_grow(serve_pieces *pieces, int64_t tops, size_t bytes);
/* Appends it where there is room; its scores are to be filled in. */
serve_piece *serve_pieces_add(serve_pieces *pieces, int32_t choice, int32_t token, const char *text,
                              size_t bytes);
/* Memory of one piece. */
static inline int64_t serve_piece_bytes(const serve_piece *piece, int64_t tops) {
    return (int64_t)(sizeof *piece + piece->text_bytes) + (1 + tops) * (int64_t)sizeof(fb_logprob);
}
void serve_pieces_free(serve_pieces *pieces);
/* Forgets what is there; the room stays, unless it is much. */
void serve_pieces_clear(serve_pieces *pieces);

#endif
