/* How the columns of a matrix make up for each other's errors, from the products of its inputs. */
#ifndef FB_MODEL_COMPENSATE_H
#define FB_MODEL_COMPENSATE_H

#include "base/pool.h"
#include "base/quant.h"

/* Sums of products of a matrix's inputs. Row i has those of column i with the columns of its panel up to
 * itself. A panel is `width` columns, a multiple of FB_MAX_BLOCK or all of them. */
typedef struct fb_products {
    const float *sums; /* [cols, width]; NULL: nothing is known */
    int64_t cols, width;
    int64_t few; /* an expert's sums are of so many inputs, which may be less than a panel has columns; 0: of
                    a whole text */
} fb_products;

/* Without sums: zeros. The workers of `pool` share the panels. Released with fb_compensation_free, also after
 * an error. */
fb_status fb_compensation_of(const fb_products *products, fb_pool *pool, fb_feedback *out, fb_error *err);
void fb_compensation_free(fb_feedback *feedback);

#endif
