/* rope. */
#include "ops/ops_harness.h"

/* Positions in memory of the case, of either width. */
static fb_ops_positions positions_of(const int64_t *from, int64_t rows, bool wide) {
    void *data = take(rows * (wide ? 8 : 4), 0);
    for (int64_t r = 0; r < rows; r++) {
        int32_t narrow = (int32_t)from[r];
        memcpy((uint8_t *)data + r * (wide ? 8 : 4), wide ? (const void *)&from[r] : (const void *)&narrow,
               wide ? 8 : 4);
    }
    return (fb_ops_positions){data, wide ? 64 : 32};
}

#define MAX_ROWS 40

static void rotations(void **state) {
    (void)state;
    NEEDS_DEVICE();
    static const int64_t shapes[][4] = {{0, 2, 8, 8},  {1, 4, 64, 64},  {3, 2, 80, 20},
                                        {7, 3, 10, 6}, {40, 4, 96, 96}, {5, 1, 2, 2}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) FOR_ACTS(t) {
            int64_t rows = shapes[s][0], heads = shapes[s][1], width = shapes[s][2], at[MAX_ROWS];
            int32_t rotary = (int32_t)shapes[s][3];
            double frequencies[64];
            bool own = below(2), wide = below(2);
            fb_row row[MAX_ROWS] = {{0}};
            for (int64_t r = 0; r < rows; r++) row[r].position = at[r] = below(100000);
            for (int i = 0; i < rotary / 2; i++)
                frequencies[i] =
                    own ? fbt_random_uniform(&random_numbers, 0, 1) : pow(10000, -2.0 * i / rotary);
            fb_ops_heads x = heads_of((fb_dtype)t, rows, heads, width, true),
                         out = heads_of((fb_dtype)t, rows, heads, width, false);
            fb_ops_positions positions = positions_of(at, rows, wide);
            fb_call call = {.attr = {.rotary = rotary, .frequencies = frequencies}, .rows = rows, .row = row};
            fb_view angles = call.out[0] = truth_view(rows, 1, rotary);
            run_truth(FB_OP_ROPE_ANGLES, &call);
            call.in[0] = heads_view(x);
            call.in[1] = angles;
            fb_view truth = call.out[0] = truth_view(rows, heads, width);
            run_truth(FB_OP_ROPE, &call);
            positions.data = there(positions.data);
            RUN(fb_ops_rope(dev.ops, dev.stream, DEVH(x), positions, rotary, 10000, own ? frequencies : NULL,
                            DEVH(out), &run_err));
            check_view("rope", heads_view(out), &truth, rows, 1, 8);
            RUN(fb_ops_rope(dev.ops, dev.stream, DEVH(x), positions, rotary, 10000, own ? frequencies : NULL,
                            DEVH(x), &run_err));
            for (int64_t r = 0; r < rows; r++)
                for (int64_t h = 0; h < heads; h++) {
                    fb_view a = heads_view(x), b = heads_view(out);
                    assert_memory_equal(fb_view_at(&a, r, h), fb_view_at(&b, r, h),
                                        (size_t)(width * fb_dtype_size((fb_dtype)t)));
                }
            give_back();
        }
}

static void refusals(void **state) {
    (void)state;
    fb_error err;
    int64_t below_zero[] = {3, -1};
    open_cpu(1);
    random_numbers = fbt_random_start(21);
    fb_ops_heads x = heads_of(FB_F16, 2, 2, 8, true), out = heads_of(FB_F16, 2, 2, 8, false), other = out;
    fb_ops_positions p = positions_of((const int64_t[]){3, 4}, 2, true), bits = {p.data, 16},
                     none = {NULL, 64};
    assert_refused(fb_ops_rope(dev.ops, NULL, &x, p, 7, 10000, NULL, &out, &err), FB_ERROR_USAGE, &err,
                   "rope|rotary|7|even");
    assert_refused(fb_ops_rope(dev.ops, NULL, &x, p, 10, 10000, NULL, &out, &err), FB_ERROR_USAGE, &err,
                   "rope|rotary|10|8");
    assert_refused(fb_ops_rope(dev.ops, NULL, &x, p, 8, 0, NULL, &out, &err), FB_ERROR_USAGE, &err,
                   "rope|theta|0");
    assert_refused(fb_ops_rope(dev.ops, NULL, &x, bits, 8, 10000, NULL, &out, &err), FB_ERROR_USAGE, &err,
                   "rope|positions|16|32 or 64");
    assert_refused(fb_ops_rope(dev.ops, NULL, &x, none, 8, 10000, NULL, &out, &err), FB_ERROR_USAGE, &err,
                   "rope|positions|NULL");
    assert_refused(
        fb_ops_rope(dev.ops, NULL, &x, positions_of(below_zero, 2, true), 8, 10000, NULL, &out, &err),
        FB_ERROR_USAGE, &err, "rope|positions[1]|-1");
    other.heads = 1;
    assert_refused(fb_ops_rope(dev.ops, NULL, &x, p, 8, 10000, NULL, &other, &err), FB_ERROR_USAGE, &err,
                   "rope|out|heads 1|2");
    give_back();
    close_device();
}

int main(void) {
    const struct CMUnitTest tests[] = {EVERYWHERE(rotations), cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
