/* Checks of arguments, and their form as views and weights. */
#include <math.h>

#include "ops/ops.h"

#define REFUSE(c, ...) fb_fail((c)->err, FB_ERROR_USAGE, __VA_ARGS__)

typedef long long ll;

fb_status fb_check_ops(const fb_check *c) {
    return c->ops ? FB_OK : REFUSE(c, "%s: ops: NULL (must be of fb_ops_create)", c->op);
}

static fb_status check_range(const fb_check *c, const char *name, const char *what, int64_t value,
                             int64_t least, int64_t most) {
    if (value < least || value > most)
        return REFUSE(c, "%s: %s: %s %lld (from %lld to %lld)", c->op, name, what, (ll)value, (ll)least,
                      (ll)most);
    return FB_OK;
}

static fb_status check_equal(const fb_check *c, const char *name, const char *what, int64_t value,
                             int64_t wanted) {
    if (wanted >= 0 && value != wanted)
        return REFUSE(c, "%s: %s: %s %lld (must be %lld)", c->op, name, what, (ll)value, (ll)wanted);
    return FB_OK;
}

static const char *name_of(fb_dtype dtype) {
    return dtype >= FB_F32 && dtype < FB_DTYPE_COUNT ? fb_dtype_name(dtype) : "unknown";
}

static fb_status check_dtype(const fb_check *c, const char *name, fb_dtype dtype, fb_dtype wanted) {
    if (dtype != FB_F32 && dtype != FB_F16 && dtype != FB_BF16)
        return REFUSE(c, "%s: %s: dtype %s (%d) (must be f32, f16 or bf16)", c->op, name, name_of(dtype),
                      (int)dtype);
    if (wanted != FB_OPS_ANY_DTYPE && dtype != wanted)
        return REFUSE(c, "%s: %s: dtype %s (must be %s, as the first argument)", c->op, name, name_of(dtype),
                      name_of(wanted));
    return FB_OK;
}

static fb_status check_data(const fb_check *c, const char *name, const void *data, int64_t size, bool empty) {
    if (!data && !empty) return REFUSE(c, "%s: %s: no data (must not be NULL)", c->op, name);
    if ((uintptr_t)data % (uintptr_t)size)
        return REFUSE(c, "%s: %s: address %p (must be a multiple of %lld)", c->op, name, data, (ll)size);
    return FB_OK;
}

fb_status fb_check_tensor(const fb_check *c, const char *name, const fb_ops_tensor *t,
                          const fb_expect *expect) {
    if (!t) return REFUSE(c, "%s: %s: NULL (must be a tensor)", c->op, name);
    FB_TRY(check_dtype(c, name, t->dtype, expect->act));
    FB_TRY(check_range(c, name, "rows", t->rows, 0, FB_OPS_MAX_ROWS - 1));
    FB_TRY(check_range(c, name, "columns", t->cols, 1, FB_OPS_MAX_COLS));
    FB_TRY(check_equal(c, name, "rows", t->rows, expect->rows));
    FB_TRY(check_equal(c, name, "columns", t->cols, expect->cols));
    if (t->rows > 1)
        FB_TRY(check_range(c, name, "stride", t->stride, expect->output ? t->cols : 0, FB_OPS_MAX_STRIDE));
    return check_data(c, name, t->data, fb_dtype_size(t->dtype), t->rows == 0);
}

fb_status fb_check_vector(const fb_check *c, const char *name, const fb_ops_tensor *t, int64_t cols,
                          bool optional, fb_weight *out) {
    *out = (fb_weight){0};
    if (optional && (!t || !t->data)) return FB_OK;
    FB_TRY(fb_check_tensor(c, name, t, &(fb_expect){FB_OPS_ANY_DTYPE, 1, cols, false}));
    *out = (fb_weight){.data = t->data, .dtype = t->dtype, .rows = 1, .cols = cols};
    return FB_OK;
}

fb_status fb_check_matrix(const fb_check *c, const char *name, const fb_ops_tensor *t, int64_t cols,
                          fb_weight *out) {
    FB_TRY(fb_check_tensor(c, name, t, &(fb_expect){FB_OPS_ANY_DTYPE, -1, cols, false}));
    FB_TRY(check_range(c, name, "rows", t->rows, 1, FB_OPS_MAX_COLS));
    if (t->rows > 1 && t->stride != t->cols)
        return REFUSE(c, "%s: %s: stride %lld (must be %lld, its columns: copy it without gaps)", c->op, name,
                      (ll)t->stride, (ll)t->cols);
    *out = (fb_weight){.data = t->data, .dtype = t->dtype, .rows = t->rows, .cols = t->cols};
    return FB_OK;
}

fb_status fb_check_heads(const fb_check *c, const char *name, const fb_ops_heads *t, const fb_expect *expect,
                         int64_t heads) {
    if (!t) return REFUSE(c, "%s: %s: NULL (must be heads)", c->op, name);
    FB_TRY(check_dtype(c, name, t->dtype, expect->act));
    FB_TRY(check_range(c, name, "rows", t->rows, 0, FB_OPS_MAX_LINEAR_ROWS));
    FB_TRY(check_range(c, name, "heads", t->heads, 1, 1 << 16));
    FB_TRY(check_range(c, name, "width", t->width, 1, 1 << 16));
    FB_TRY(check_equal(c, name, "rows", t->rows, expect->rows));
    FB_TRY(check_equal(c, name, "heads", t->heads, heads));
    FB_TRY(check_equal(c, name, "width", t->width, expect->cols));
    if (t->rows > 1)
        FB_TRY(check_range(c, name, "row stride", t->row_stride, expect->output ? t->width : 0,
                           FB_OPS_MAX_STRIDE));
    if (t->heads > 1)
        FB_TRY(check_range(c, name, "head stride", t->head_stride, expect->output ? t->width : 0,
                           FB_OPS_MAX_STRIDE));
    return check_data(c, name, t->data, fb_dtype_size(t->dtype), t->rows == 0);
}

fb_status fb_check_positions(const fb_check *c, const fb_ops_positions *p, bool required) {
    if (!p->data && !required) return FB_OK;
    if (p->bits != 32 && p->bits != 64)
        return REFUSE(c, "%s: positions: %d bits (must be 32 or 64)", c->op, p->bits);
    return check_data(c, "positions", p->data, p->bits / 8, !required);
}

fb_status fb_check_eps(const fb_check *c, float eps) {
    if (!(eps >= 0) || isinf(eps))
        return REFUSE(c, "%s: eps: %g (must be finite, at least 0)", c->op, (double)eps);
    return FB_OK;
}

fb_status fb_check_choice(const fb_check *c, const char *name, int64_t value, int64_t count) {
    if (value < 0 || value >= count)
        return REFUSE(c, "%s: %s: %lld (from 0 to %lld)", c->op, name, (ll)value, (ll)(count - 1));
    return FB_OK;
}

fb_status fb_check_norm(const fb_check *c, fb_ops_norm norm, fb_op_kind *out) {
    *out = norm == FB_OPS_LAYER_NORM ? FB_OP_LAYERNORM : FB_OP_RMSNORM;
    return fb_check_choice(c, "norm", (int64_t)norm, 2);
}

fb_view fb_tensor_view(const fb_ops_tensor *t) {
    return (fb_view){t->data, t->dtype, 1, t->cols, t->rows > 1 ? t->stride : t->cols, t->cols};
}

fb_view fb_heads_view(const fb_ops_heads *t) {
    int64_t head = t->heads > 1 ? t->head_stride : t->width;
    return (fb_view){t->data, t->dtype, t->heads, t->width, t->rows > 1 ? t->row_stride : t->heads * head,
                     head};
}
