#include "cli/nearest.h"

#include <limits.h>
#include <stdbool.h>
#include <string.h>

#define MAX_BYTES  32
#define MIN_PREFIX 3 /* a shorter beginning says too little */

static int least(int a, int b) { return a < b ? a : b; }

/* Row by row: how far each beginning of `a` is from each beginning of `b`. */
int cli_distance(const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
    int rows[3][MAX_BYTES + 1];
    if (a_bytes > MAX_BYTES || b_bytes > MAX_BYTES) return INT_MAX;
    for (size_t j = 0; j <= b_bytes; j++) rows[0][j] = (int)j;
    for (size_t i = 1; i <= a_bytes; i++) {
        int *row = rows[i % 3];
        const int *above = rows[(i - 1) % 3], *second = rows[(i + 1) % 3]; /* (i - 2) % 3 */
        row[0] = (int)i;
        for (size_t j = 1; j <= b_bytes; j++) {
            row[j] = least(above[j], row[j - 1]) + 1;
            row[j] = least(row[j], above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = least(row[j], second[j - 2] + 1);
        }
    }
    return rows[a_bytes % 3][b_bytes];
}

/* One letter in four may be wrong, rounded up from a half: one of three, two of six. */
static int limit(size_t bytes) { return (int)(bytes + 2) / 4; }

void cli_nearest_offer(cli_nearest *n, const char *word, const char *meaning) {
    size_t bytes = strlen(word);
    bool begins = n->bytes >= MIN_PREFIX && bytes > n->bytes && memcmp(word, n->word, n->bytes) == 0;
    int distance = begins ? 1 : cli_distance(n->word, n->bytes, word, bytes);
    if (distance > limit(n->bytes) || (n->meaning && distance >= n->distance)) return;
    n->distance = distance;
    n->meaning = meaning;
}
