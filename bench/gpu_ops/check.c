/* What the results should be, computed in float64 on the host. */
#include <math.h>
#include <stdlib.h>

#include "gpu_ops.h"

#define TOLERANCE      4e-3 /* of float16 results that are rounded up to four times on the way */
#define TOLERANCE_HEAD 1e-3 /* of one score, which is rounded once */

/* Of the numbers compared so far: the largest difference, and what it is relative to. */
typedef struct comparison {
    double *got, *want;
    int64_t count, room;
} comparison;

static void compare(comparison *c, double got, double want) {
    if (c->count == c->room) {
        c->room = c->room ? 2 * c->room : 4096;
        c->got = realloc(c->got, (size_t)c->room * sizeof *c->got);
        c->want = realloc(c->want, (size_t)c->room * sizeof *c->want);
        if (!c->got || !c->want) die("no memory to compare in");
    }
    c->got[c->count] = got;
    c->want[c->count++] = want;
}

/* The largest |got - want| / (|want| + rms of all wanted); NaN where anything is none. Forgets them. */
static double compared(comparison *c) {
    double squares = 0, most = 0;
    for (int64_t i = 0; i < c->count; i++) squares += c->want[i] * c->want[i];
    double rms = sqrt(squares / (double)c->count);
    for (int64_t i = 0; i < c->count; i++) {
        double error = fabs(c->got[i] - c->want[i]) / (fabs(c->want[i]) + rms);
        if (!(error <= most)) most = error;
        if (most != most) break;
    }
    free(c->got);
    free(c->want);
    *c = (comparison){0};
    return most;
}

/* Rows that are looked at: the first, the last, and one between. */
static int sample_rows(int64_t m, int64_t rows[3]) {
    int count = 0;
    rows[count++] = 0;
    if (m > 2) rows[count++] = m / 2;
    if (m > 1) rows[count++] = m - 1;
    return count;
}

static double rounded(double value) { return (double)fb_f16_to_f32(fb_f32_to_f16((float)value)); }

static void normalise(fb_op_kind norm, const tensor *w, const tensor *b, double *x, int64_t n) {
    double mean = 0, squares = 0;
    if (norm == FB_OP_LAYERNORM)
        for (int64_t i = 0; i < n; i++) mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++) squares += (x[i] - mean) * (x[i] - mean) / (double)n;
    double scale = 1 / sqrt(squares + (double)1e-5f);
    for (int64_t i = 0; i < n; i++)
        x[i] = (x[i] - mean) * scale * half_at(w, i) + (norm == FB_OP_LAYERNORM ? half_at(b, i) : 0);
}

static double check_map(const spec *c, const set *s) {
    comparison all = {0};
    int64_t rows[3], n = c->n[0];
    int count = sample_rows(c->m, rows);
    double *got = doubles(n), *x = doubles(n), *y = doubles(n), most = 0;
    int outs = s->out[2].at ? 3 : s->out[1].at ? 2 : 1, sums = c->op == FB_OP_ADD_NORM || !c->norms;
    for (int o = 0; o < outs; o++) {
        for (int r = 0; r < count; r++) {
            read_row(&s->x[0], rows[r], x);
            for (int t = 1; t < c->terms; t++) {
                read_row(&s->x[t], rows[r], y);
                for (int64_t i = 0; i < n; i++) x[i] = rounded(x[i] + y[i]);
            }
            if (o >= sums) normalise(norm_of(c), &s->norm_w[o - sums], &s->norm_b[o - sums], x, n);
            fetch_row(&s->out[o], rows[r], got);
            for (int64_t i = 0; i < n; i++) compare(&all, got[i], x[i]);
        }
        double error = compared(&all);
        if (!(error <= most)) most = error;
    }
    free(got);
    free(x);
    free(y);
    return most;
}

/* As quantize does it, and back. */
static void through_blocks(double *x, int64_t n) {
    for (int64_t b = 0; b < n; b += 32) {
        double most = 0;
        for (int64_t i = b; i < b + 32; i++) most = fmax(most, fabs(x[i]));
        float scale = (float)(most / 127), back = (float)(127 / most);
        for (int64_t i = b; i < b + 32; i++)
            x[i] = most > 0 ? (double)scale * nearbyint((double)((float)x[i] * back)) : 0;
    }
}

/* Row `row` of segment i's input as its linear multiplies it. */
static double *input_row(const spec *c, const set *s, int i, int64_t row) {
    double *x = doubles(c->k[i]);
    read_row(&s->x[i], row, x);
    if (c->norm != FB_OP_COUNT) {
        normalise(c->norm, &s->norm_w[i], &s->norm_b[i], x, c->k[i]);
        for (int64_t j = 0; j < c->k[i]; j++)
            x[j] = rounded(x[j]); /* as stored: what is quantised depends on it */
    }
    if (dot_of(c) == FB_DOT_QUANTIZE) through_blocks(x, c->k[i]);
    return x;
}

static double activated(fb_op_kind act, double x) {
    if (act == FB_OP_GELU) return x / 2 * erfc(-x / sqrt(2));
    if (act == FB_OP_SILU) return x / (1 + exp(-x));
    return x;
}

static double dot(const double *x, const double *w, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * w[i];
    return sum;
}

/* The best column is that score, and none of those looked at has a better one. */
static double check_head(const spec *c, const set *s) {
    comparison all = {0};
    double *x = input_row(c, s, 0, 0), *w = doubles(c->k[0]), best[512];
    fetch_row(&s->out[0], 0, best);
    bool valid = best[1] >= 0 && best[1] < (double)c->n[0];
    if (valid) {
        read_row(&s->w[0], (int64_t)best[1], w);
        double score = dot(x, w, c->k[0]);
        compare(&all, best[0], score);
        for (int64_t i = 0; i < 4096; i++) {
            read_row(&s->w[0], i * c->n[0] / 4096, w);
            double other = dot(x, w, c->k[0]);
            compare(&all, fmax(other, best[0]), best[0]);
        }
    } else
        compare(&all, NAN, 0);
    free(x);
    free(w);
    return compared(&all);
}

static double check_linears(const spec *c, const set *s) {
    enum { COLUMNS = 96 };
    comparison all = {0};
    int64_t rows[3];
    int count = sample_rows(c->m, rows), outs = c->combine == FB_COMBINE_NONE ? c->segments : 1;
    double *x[FB_MAX_SEGMENTS][3], *got[3], most = 0;
    if (c->way == HEAD) return check_head(c, s);
    for (int i = 0; i < c->segments; i++)
        for (int r = 0; r < count; r++) x[i][r] = input_row(c, s, i, rows[r]);
    for (int o = 0; o < outs; o++) {
        for (int r = 0; r < count; r++) {
            got[r] = doubles(c->n[o]);
            fetch_row(&s->out[o], rows[r], got[r]);
        }
        for (int j = 0; j < COLUMNS; j++) {
            int64_t column = j == COLUMNS - 1 ? c->n[o] - 1 : j * c->n[o] / COLUMNS;
            double value[FB_MAX_SEGMENTS][3] = {{0}};
            for (int i = outs > 1 ? o : 0; i < (outs > 1 ? o + 1 : c->segments); i++) {
                double *w = doubles(c->k[i]), bias = c->bias ? half_at(&s->bias[i], column) : 0;
                read_row(&s->w[i], column, w);
                for (int r = 0; r < count; r++)
                    value[i][r] = activated(c->act[i], dot(x[i][r], w, c->k[i]) + bias);
                free(w);
            }
            for (int r = 0; r < count; r++) {
                double want = value[o][r];
                if (c->combine == FB_COMBINE_MUL) want *= value[1][r];
                if (c->combine == FB_COMBINE_ADD)
                    want += (c->segments == 2 ? value[1][r] : 0) +
                            half_at(&s->x[FB_RESIDUAL], rows[r] * c->n[0] + column);
                compare(&all, got[r][column], want);
            }
        }
        for (int r = 0; r < count; r++) free(got[r]);
        double error = compared(&all);
        if (!(error <= most)) most = error;
    }
    for (int i = 0; i < c->segments; i++)
        for (int r = 0; r < count; r++) free(x[i][r]);
    return most;
}

static double check_attention(const spec *c, const set *s) {
    comparison all = {0};
    int64_t rows[3], heads[2] = {0, c->heads - 1};
    int count = sample_rows(c->m, rows);
    double *q = doubles(c->heads * c->width), *got = doubles(c->heads * c->width), *one = doubles(c->width);
    double *score = doubles(c->position + c->m), *out = doubles(c->width);
    for (int r = 0; r < count; r++) {
        read_row(&s->x[0], rows[r], q);
        fetch_row(&s->out[0], rows[r], got);
        for (int h = 0; h < 2; h++) {
            int64_t first = heads[h] / (c->heads / c->kv_heads) * c->capacity, n = c->position + rows[r] + 1;
            double top = -INFINITY, total = 0;
            for (int64_t j = 0; j < n; j++) {
                read_row(&s->keys, first + j, one);
                score[j] = scale_of(c) * dot(q + heads[h] * c->width, one, c->width);
                top = fmax(top, score[j]);
            }
            for (int64_t i = 0; i < c->width; i++) out[i] = 0;
            for (int64_t j = 0; j < n; j++) {
                double weight = exp(score[j] - top);
                total += weight;
                read_row(&s->values, first + j, one);
                for (int64_t i = 0; i < c->width; i++) out[i] += weight * one[i];
            }
            for (int64_t i = 0; i < c->width; i++)
                compare(&all, got[heads[h] * c->width + i], out[i] / total);
        }
    }
    free(q);
    free(got);
    free(one);
    free(score);
    free(out);
    return compared(&all);
}

double check(const spec *c, const set *s) {
    return c->family == MAPS      ? check_map(c, s)
           : c->family == LINEARS ? check_linears(c, s)
                                  : check_attention(c, s);
}

double tolerance_of(const spec *c) { return c->way == HEAD ? TOLERANCE_HEAD : TOLERANCE; }
