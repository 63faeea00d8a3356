#include "serve/pieces.h"

#include <stdlib.h>
#include <string.h>

/* Room that is kept for the next pieces. */
#define KEPT_PIECES 64
#define KEPT_TEXT   4096

static bool grow_pieces(serve_pieces *p, int64_t tops) {
    int64_t room = p->room ? 2 * p->room : 8;
    serve_piece *pieces = realloc(p->pieces, (size_t)room * sizeof *pieces);
    if (!pieces) return false;
    p->pieces = pieces;
    if (tops >= 0) {
        fb_logprob *scores = realloc(p->scores, (size_t)(room * (1 + tops)) * sizeof *scores);
        if (!scores) return false;
        p->scores = scores;
    }
    p->room = room;
    return true;
}

bool serve_pieces_grow(serve_pieces *p, int64_t tops, size_t bytes) {
    if (p->count == p->room && !grow_pieces(p, tops)) return false;
    if (p->text && p->text_size + bytes <= p->text_room) return true;
    size_t room = 2 * p->text_room + bytes + 64;
    char *text = realloc(p->text, room);
    if (!text) return false;
    p->text = text;
    p->text_room = room;
    return true;
}

serve_piece *serve_pieces_add(serve_pieces *p, int32_t choice, int32_t token, const char *text,
                              size_t bytes) {
    serve_piece *piece = &p->pieces[p->count++];
    *piece = (serve_piece){.choice = choice, .token = token, .text_at = p->text_size, .text_bytes = bytes};
    if (bytes) memcpy(p->text + p->text_size, text, bytes);
    p->text_size += bytes;
    return piece;
}

void serve_pieces_free(serve_pieces *p) {
    free(p->pieces);
    free(p->scores);
    free(p->text);
    *p = (serve_pieces){0};
}

void serve_pieces_clear(serve_pieces *p) {
    if (p->room > KEPT_PIECES || p->text_room > KEPT_TEXT) serve_pieces_free(p);
    p->count = 0;
    p->text_size = 0;
}
