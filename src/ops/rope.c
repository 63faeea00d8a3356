/* rope, and the positions of rows. */
#include "ops/rope.h"

#include <math.h>

#define MAX_ROTARY (2 * FB_CUDA_NUMBERS)

static int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

int64_t fb_rows_bytes(int64_t rows) { return aligned(rows * (int64_t)sizeof(fb_row)); }

int64_t fb_position_at(const fb_ops_positions *p, int64_t row) {
    int64_t wide;
    int32_t narrow;
    if (p->bits == 64) {
        memcpy(&wide, (const uint8_t *)p->data + row * 8, sizeof wide);
        return wide;
    }
    memcpy(&narrow, (const uint8_t *)p->data + row * 4, sizeof narrow);
    return narrow;
}

fb_status fb_job_rows(fb_job *job, const fb_ops_positions *p, int64_t first, int64_t last, int64_t count,
                      fb_row *to, fb_error *err) {
    fb_ops *ops = job->ops;
    if (ops->cuda) return ops->cuda->rows(ops->gpu, p->data, p->bits == 64, first, last, count, to, err);
    for (int64_t row = 0; row < count; row++)
        to[row] = (fb_row){.position = p->data ? fb_position_at(p, row) : first + row};
    return FB_OK;
}

static fb_status check_rope(const fb_check *c, const fb_ops_heads *x, const fb_ops_positions *positions,
                            int32_t rotary, double theta, const double *frequencies,
                            const fb_ops_heads *out) {
    FB_TRY(fb_check_ops(c));
    FB_TRY(fb_check_heads(c, "x", x, &(fb_expect){FB_OPS_ANY_DTYPE, -1, -1, false}, -1));
    FB_TRY(fb_check_positions(c, positions, x->rows > 0));
    int64_t most = x->width < MAX_ROTARY ? x->width : MAX_ROTARY;
    if (rotary < 2 || rotary > most || rotary % 2)
        return fb_fail(c->err, FB_ERROR_USAGE, "rope: rotary: %d (even, from 2 to %lld)", rotary,
                       (long long)most);
    if (!frequencies && !(theta > 0 && isfinite(theta)))
        return fb_fail(c->err, FB_ERROR_USAGE, "rope: theta: %g (must be finite, more than 0)", theta);
    FB_TRY(fb_check_heads(c, "out", out, &(fb_expect){x->dtype, x->rows, x->width, true}, x->heads));
    for (int64_t row = 0; !c->ops->cuda && row < x->rows; row++)
        if (fb_position_at(positions, row) < 0)
            return fb_fail(c->err, FB_ERROR_USAGE, "rope: positions[%lld]: %lld (at least 0)", (long long)row,
                           (long long)fb_position_at(positions, row));
    return FB_OK;
}

/* The temporary memory: rows, frequencies, angles. */
static fb_status run_rope(fb_job *job, const fb_ops_heads *x, const fb_ops_positions *positions,
                          const double *frequencies, int32_t rotary, const fb_ops_heads *out, fb_error *err) {
    fb_ops *ops = job->ops;
    fb_row *rows = (fb_row *)(void *)job->temp;
    double *given = (double *)(void *)(job->temp + fb_rows_bytes(x->rows));
    fb_view angles = {given + FB_CUDA_NUMBERS, FB_F32, 1, rotary, rotary, rotary};
    FB_TRY(fb_job_rows(job, positions, 0, INT64_MAX, x->rows, rows, err));
    if (ops->cuda)
        FB_TRY(ops->cuda->numbers(ops->gpu, frequencies, rotary / 2, given, err));
    else
        memcpy(given, frequencies, (size_t)(rotary / 2) * sizeof *given);
    fb_call turn = {.out = {angles},
                    .attr = {.rotary = rotary, .frequencies = given},
                    .rows = x->rows,
                    .row = rows,
                    .act = x->dtype};
    /* A cosine and a sine in double take as long as some hundred bytes. */
    FB_TRY(fb_job_run(job, FB_OP_ROPE_ANGLES, &turn, x->rows * rotary * 100, err));
    fb_call call = {.in = {fb_heads_view(x), angles},
                    .out = {fb_heads_view(out)},
                    .attr.rotary = rotary,
                    .rows = x->rows,
                    .row = rows,
                    .act = x->dtype};
    return fb_job_run(job, FB_OP_ROPE, &call, 2 * x->rows * x->heads * x->width * fb_dtype_size(x->dtype),
                      err);
}

fb_status fb_ops_rope(fb_ops *ops, void *stream, const fb_ops_heads *x, fb_ops_positions positions,
                      int32_t rotary, double theta, const double *frequencies, const fb_ops_heads *out,
                      fb_error *err) {
    double by_theta[FB_CUDA_NUMBERS];
    fb_job job;
    FB_TRY(check_rope(&(fb_check){ops, "rope", err}, x, &positions, rotary, theta, frequencies, out));
    if (x->rows == 0) return FB_OK;
    if (!frequencies)
        for (int32_t i = 0; i < rotary / 2; i++) by_theta[i] = pow(theta, -2.0 * i / rotary);
    int64_t bytes = fb_rows_bytes(x->rows) + FB_CUDA_NUMBERS * (int64_t)sizeof(double) +
                    x->rows * rotary * (int64_t)sizeof(float);
    FB_TRY(fb_job_begin(ops, stream, bytes, &job, err));
    fb_status status = run_rope(&job, x, &positions, frequencies ? frequencies : by_theta, rotary, out, err);
    fb_job_end(&job);
    return status;
}
