/* Positions of rows, which rope and attention share. */
#ifndef FB_OPS_ROPE_H
#define FB_OPS_ROPE_H

#include "ops/ops.h"

/* Bytes of a job's temporary memory for `rows` rows; a multiple of 256. */
int64_t fb_rows_bytes(int64_t rows);

/* A position in memory that the host can read. */
int64_t fb_position_at(const fb_ops_positions *p, int64_t row);

/* Fills rows [count] in the job's memory. Without positions: from `first` on. A GPU, where nobody has checked
 * them, treats larger ones than `last` as that. */
fb_status fb_job_rows(fb_job *job, const fb_ops_positions *p, int64_t first, int64_t last, int64_t count,
                      fb_row *to, fb_error *err);

#endif
