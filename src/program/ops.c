#include "program/ops.h"

const fb_op_row fb_op_table[FB_OP_COUNT] = {
#define X(KIND, name, in, out, w, parts, text) [FB_OP_##KIND] = {#name, in, out, w, FB_PARTS_##parts, text},
    FB_OPS(X)
#undef X
};
