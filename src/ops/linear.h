/* What the ops with projections share. */
#ifndef FB_OPS_LINEAR_H
#define FB_OPS_LINEAR_H

#include "ops/ops.h"

fb_status fb_check_linear_rows(const fb_check *c, int64_t rows);

/* The work of a linear_group, for fb_job_run. */
int64_t fb_linear_bytes(const fb_call *call);

#endif
