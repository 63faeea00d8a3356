#include "base/screen.h"

#include <math.h>

#include "base/pack.h"
#include "base/quant.h"

/* Bounds are sums of 32 squares in float, and of those in double: this much more than they are, so that they
 * are never less. */
#define ROUNDING (1 + 0x1p-16)
/* The relative error is that of the worst row, within these: the norm of a row that is worse is set so high
 * that the bound holds for it, too. Rows of normally distributed weights have 0.0055. */
#define LEAST_ERROR   0x1p-12
#define LARGEST_ERROR 0x1p-6
/* Norms from which on a bound could overflow; and what is added to each, because squares of less underflow.
 */
#define TOO_LARGE 1e18
#define TINY      1e-12

bool fb_screen_fits(const fb_weight *w) {
    return fb_dtype_is_float(w->dtype) && w->cols > 0 && w->cols % 32 == 0;
}

static int64_t copy_bytes(int64_t rows, int64_t cols) {
    return (fb_pack_bytes(FB_Q8_0, rows, cols) + 63) / 64 * 64;
}

int64_t fb_screen_bytes(int64_t rows, int64_t cols) {
    return copy_bytes(rows, cols) + 2 * rows * (int64_t)sizeof(float);
}

/* The sum of the squares of 32 elements; with `b`, of their differences. */
static double squares_of(const float *a, const float *b) {
    float sum[8] = {0};
    for (int k = 0; k < 32; k += 8)
        for (int i = 0; i < 8; i++) {
            float d = b ? a[k + i] - b[k + i] : a[k + i];
            sum[i] += d * d;
        }
    return (double)((sum[0] + sum[4]) + (sum[1] + sum[5])) + (double)((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

/* Copies row `index` and tells |copy| and |row - copy|. */
static void put_row(const float *row, int64_t index, int64_t cols, uint8_t *packed, double *norm,
                    double *error) {
    double squares = 0, differences = 0;
    packed += index / FB_PACK_ROWS * (cols / 32) * fb_pack_block(FB_Q8_0);
    for (int64_t k = 0; k < cols; k += 32, packed += fb_pack_block(FB_Q8_0)) {
        uint8_t block[34];
        float copy[32];
        fb_quant_encode(FB_Q8_0, row + k, 32, block);
        fb_quant_decode(FB_Q8_0, block, 32, copy);
        fb_pack_row(FB_Q8_0, block, 32, index % FB_PACK_ROWS, packed);
        squares += squares_of(copy, NULL);
        differences += squares_of(row + k, copy);
    }
    *norm = sqrt(squares);
    *error = sqrt(differences);
}

bool fb_screen_fill(const fb_weight *w, void *memory, float *row, fb_screen *s) {
    uint8_t *data = memory;
    float *norms = (float *)(void *)(data + copy_bytes(w->rows, w->cols)), *errors = norms + w->rows;
    double worst = LEAST_ERROR;
    memset(data, 0, (size_t)copy_bytes(w->rows, w->cols));
    for (int64_t i = 0; i < w->rows; i++) {
        double norm, error;
        fb_weight_row(w, i, 0, w->cols, row);
        put_row(row, i, w->cols, data, &norm, &error);
        if (!(norm < TOO_LARGE) || !(error < TOO_LARGE)) return false;
        norms[i] = (float)norm;
        errors[i] = (float)error;
        if (error <= LARGEST_ERROR * norm) worst = fmax(worst, error / norm);
    }
    for (int64_t i = 0; i < w->rows; i++)
        norms[i] = (float)(ROUNDING * fmax((double)norms[i], (double)errors[i] / worst) + TINY);
    s->copy = (fb_weight){.data = data, .dtype = FB_Q8_0, .rows = w->rows, .cols = w->cols, .packed = true};
    s->norm = norms;
    s->error = (float)(ROUNDING * worst);
    return true;
}
