/* Those of AVX512-BF16 (every processor with AMX has it; emulated, those of AVX-512 VNNI) with AMX. Fewer
 * than half a tile of 16 rows wait longer for the matrix unit than the vectors take. */
#ifdef FB_AMX_EMULATED
#define FB_VECTORS avx512vnni
#else
#define FB_VECTORS avx512bf16
#endif
#define FB_MANY_ROWS 8
#include "backend/cpu/matrix_table.h"
