/* The word that somebody meant who mistyped one. */
#ifndef FB_CLI_NEAREST_H
#define FB_CLI_NEAREST_H

#include <stddef.h>

/* Letters to insert, leave out, replace, or swap with their neighbour, to get from one word to the other.
 * Words of more than 32 bytes are never near. */
int cli_distance(const char *a, size_t a_bytes, const char *b, size_t b_bytes);

typedef struct cli_nearest {
    const char *word; /* not terminated */
    size_t bytes;
    int distance;        /* of `meaning`, once there is one */
    const char *meaning; /* of the nearest that was offered; NULL: none is near */
} cli_nearest;

/* Compares with one more word, which stands for `meaning`. Of two that are equally near, the first stays. A
 * word that goes on where the mistyped one ends is near. */
void cli_nearest_offer(cli_nearest *nearest, const char *word, const char *meaning);

#endif
