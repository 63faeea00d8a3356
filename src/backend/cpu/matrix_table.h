/* The kernels of FB_VECTORS, an instruction set for vectors, whose workers multiply packed weights with
 * FB_MANY_ROWS rows or more by other instructions: the packed_sums of FB_ISA. Included once, by a table.c. */
#include "backend/cpu/packed.h"

static const fb_packed_sums many[FB_DTYPE_COUNT] = {
#define X(TYPE, name) [TYPE] = FB_KERNEL(packed_##name),
    PACKED_TYPES(X)
#undef X
};

#define VECTOR_KERNEL(name) FB_GLUE(fb_cpu_##name##_, FB_VECTORS)
#define X(KIND, name, in, out, w, parts, text)                                                               \
    void VECTOR_KERNEL(name)(const fb_call *call, const fb_worker *worker);                                  \
    void FB_KERNEL(name)(const fb_call *call, const fb_worker *worker) {                                     \
        fb_worker with_unit = *worker;                                                                       \
        with_unit.many = many;                                                                               \
        with_unit.many_rows = FB_MANY_ROWS;                                                                  \
        VECTOR_KERNEL(name)(call, &with_unit);                                                               \
    }
FB_OPS(X)
#undef X

const fb_cpu_kernel FB_KERNEL(kernels)[FB_OP_COUNT] = {
#define X(KIND, name, in, out, w, parts, text) [FB_OP_##KIND] = FB_KERNEL(name),
    FB_OPS(X)
#undef X
};
