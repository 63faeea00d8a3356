#include "program/ops.h"

const fb_op_row fb_op_table[FB_OP_COUNT] = {
#define X(KIND, name, in, out, w, elementwise, text) [FB_OP_##KIND] = {#name, in, out, w, elementwise, text},
    FB_OPS(X)
#undef X
};
