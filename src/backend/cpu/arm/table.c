/* Those of NEON, with packed weights multiplied by SDOT (dotprod), or by SDOT for one row and SMMLA for more
 * (i8mm): packed_tile.h. */
#define FB_VECTORS   neon
#define FB_MANY_ROWS 1
#include "backend/cpu/matrix_table.h"
