/* How the columns of a matrix make up for each other's errors, from the products of its inputs. */
#ifndef FB_MODEL_COMPENSATE_H
#define FB_MODEL_COMPENSATE_H

#include "base/pool.h"
#include "base/quant.h"

/* From products [cols, width] as fb_importance_products has them; NULL: zeros, because nothing is known. The
 * workers of `pool` share the panels. Released with fb_compensation_free, also after an error. */
fb_status fb_compensation_of(const float *products, int64_t cols, int64_t width, fb_pool *pool,
                             fb_feedback *out, fb_error *err);
void fb_compensation_free(fb_feedback *feedback);

#endif
