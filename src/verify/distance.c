#include "verify/distance.h"

#include <math.h>
#include <string.h>

bool fb_compare(const float *have, const float *want, int64_t count, double limit, fb_verify_row *row) {
    double error2 = 0, norm2 = 0, largest = 0;
    bool same = true;
    for (int64_t i = 0; i < count; i++) {
        double error = fabs((double)have[i] - (double)want[i]);
        same = same && memcmp(&have[i], &want[i], sizeof *have) == 0 && have[i] == have[i];
        if (!(error <= row->max_abs)) row->max_abs = isnan(row->max_abs) ? row->max_abs : error;
        largest = fmax(largest, fabs((double)want[i]));
        error2 += error * error;
        norm2 += (double)want[i] * (double)want[i];
    }
    row->limit = limit * largest;
    row->rel = norm2 > 0 ? sqrt(error2 / norm2) : sqrt(error2);
    row->rel_limit = limit;
    row->ok = row->max_abs <= row->limit && row->rel <= row->rel_limit;
    return same;
}

bool fb_compare_state(const fb_tape *have, const fb_tape *want, int64_t s, double limit, fb_verify_row *row) {
    int64_t each = want->tokens * want->width;
    row->layer = s;
    if (s == want->states)
        return fb_compare(have->logits, want->logits, want->tokens * want->vocab, limit, row);
    return fb_compare(have->hidden + s * each, want->hidden + s * each, each, limit, row);
}

double fb_tape_distance(const fb_tape *tape, const fb_tape *truth) {
    fb_verify_row row = {0};
    fb_compare(tape->logits, truth->logits, truth->tokens * truth->vocab, 0, &row);
    return row.rel;
}
