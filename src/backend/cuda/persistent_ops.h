/* Which programs the persistent kernel may run, by their ops alone. The weights and the device decide, too
 * (fb_cuda_persistent_why_not). Plain C, for callers that have no device. */
#ifndef FB_BACKEND_CUDA_PERSISTENT_OPS_H
#define FB_BACKEND_CUDA_PERSISTENT_OPS_H

#include "program/program.h"

static inline bool fb_cuda_persistent_has_ops(const fb_program *p) {
    for (int32_t i = 0; i < p->op_count[FB_BODY]; i++) switch (p->ops[FB_BODY][i].kind) {
        case FB_OP_LINEAR:
        case FB_OP_LINEAR_GROUP:
        case FB_OP_ROPE_KV:
        case FB_OP_KV_APPEND:
        case FB_OP_ATTN_FLASH:
            break;
        default:
            return false;
        }
    return p->head_dim <= 128 && p->head_dim % 8 == 0;
}

#endif
