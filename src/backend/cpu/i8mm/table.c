/* Those of NEON's dot products with SMMLA, which multiplies two rows at a time (packed_tile.h). */
#define FB_VECTORS   dotprod
#define FB_MANY_ROWS 2
#include "backend/cpu/matrix_table.h"
