/* How fast prompts are read beside answers that are written: with the times of made-up machines. */
#include "run/pace.h"

#include <math.h>
#include <stdlib.h>

#include "support/support.h"

/* Seconds of a step of one answer and `rows` rows of a prompt, of which `position` were read. */
typedef double (*machine_fn)(int64_t rows, int64_t position);

typedef struct result {
    int64_t steps, rows_at_end;
    double seconds, longest, at_end; /* at_end: of a step, in the last quarter; all over the time without */
} result;

static fb_pace pace_by_layer(double stretch, int64_t layers) {
    fb_pace p;
    fb_error err;
    assert_ok(fb_pace_open(4, 512, stretch, layers, &p, &err), &err);
    return p;
}

static fb_pace pace_of(double stretch) { return pace_by_layer(stretch, 1); }

/* Reads a prompt. Of `noise` steps one takes 50 times as long; 0: none. */
static result read_prompt(fb_pace *p, machine_fn machine, int64_t count, int64_t noise) {
    result r = {.steps = 0};
    int64_t last_steps = 0;
    for (int64_t read = 0; read < count;) {
        int64_t rows = fb_pace_rows(p, 1);
        if (rows > count - read) rows = count - read;
        double seconds = machine(rows, read), over = seconds / machine(0, read);
        r.steps++;
        r.seconds += seconds;
        if (over > r.longest) r.longest = over;
        if (rows && read > count / 4 * 3 && count - read > rows) {
            r.at_end += over;
            r.rows_at_end = rows;
            last_steps++;
        }
        fb_pace_learn(p, 1, rows, noise && r.steps % noise == noise - 1 ? 50 * seconds : seconds);
        read += rows;
        assert_true(r.steps < 2 * count);
    }
    if (last_steps) r.at_end /= (double)last_steps;
    return r;
}

static double even(int64_t rows, int64_t position) {
    (void)position;
    return 8 + 0.2 * (double)rows;
}

/* The limit is reached soon and hardly ever exceeded. */
static void the_limit_is_kept(void **state) {
    (void)state;
    fb_pace p = pace_of(1.8);
    assert_int_equal(fb_pace_rows(&p, 0), 512); /* nobody waits for the next token */
    assert_int_equal(fb_pace_rows(&p, 1), 0);   /* first see how long it takes without */
    result r = read_prompt(&p, even, 4000, 0);
    assert_in_range(r.rows_at_end, 31, 32);
    assert_true(fabs(r.at_end - 1.8) < 0.03);
    assert_true(r.longest < 1.85);
    assert_true(r.steps < 4000 / 32 + 20);
    fb_pace_close(&p);
}

/* A process that sometimes takes the CPU does not make others wait. */
static void a_slow_step_is_not_believed(void **state) {
    (void)state;
    for (int64_t noise = 8; noise < 20; noise += 3) {
        fb_pace p = pace_of(1.8);
        result r = read_prompt(&p, even, 8000, noise);
        assert_true(r.longest < 2.6);
        assert_true(r.at_end > 1.5 && r.at_end < 2.2);
        fb_pace_close(&p);
    }
}

/* Few rows have a fast kernel of their own. */
static double uneven(int64_t rows, int64_t position) {
    (void)position;
    return 8 + (rows > 8 ? 0.3 : 0.01) * (double)rows;
}

/* What few rows cost says little about many. */
static void rows_are_added_step_by_step(void **state) {
    (void)state;
    fb_pace p = pace_of(1.8);
    result r = read_prompt(&p, uneven, 4000, 0);
    assert_true(r.longest < 2.3);
    fb_pace_close(&p);
}

/* As attention at many positions: four rows take as long as one, and soon longer than the limit. */
static double attention(int64_t rows, int64_t position) {
    double four = (double)((rows + 3) / 4);
    return rows ? 8 + 0.5 * (double)rows + four * 1.7e-3 * (double)position : 8;
}

static void a_long_prompt_does_not_starve(void **state) {
    (void)state;
    fb_pace p = pace_of(1.8);
    result r = read_prompt(&p, attention, 8000, 0);
    assert_int_equal(r.rows_at_end, 4);
    assert_true(r.steps < 8000 / 4 + 50);
    assert_true(r.longest < 5); /* eight rows, to see */
    assert_true(r.at_end < 2.8);
    /* The next prompt begins faster again. */
    r = read_prompt(&p, attention, 200, 0);
    assert_true(r.steps < 200 / 7);
    fb_pace_close(&p);
}

/* Eight rows take 8 + 13 at position 7000. A step takes them through some of twelve layers. */
static void a_long_prompt_is_read_layer_by_layer(void **state) {
    (void)state;
    enum { LAYERS = 12, COUNT = 8000 };
    fb_pace p = pace_by_layer(1.8, LAYERS);
    int64_t steps = 0, late = 0;
    double longest = 0, sum = 0;
    for (int64_t read = 0, layer = 0, rows = 0; read < COUNT; steps++) {
        int64_t most = fb_pace_rows(&p, 1), through = 0;
        if (!layer) rows = most;
        if (most) through = fb_pace_layers(&p, 1, rows);
        assert_true(!most || through == LAYERS || rows == FB_PACE_HELD);
        if (through > LAYERS - layer) through = LAYERS - layer;
        double part = (double)through / LAYERS, over = (attention(rows, read) / 8 - 1) * part + 1;
        if (over > longest) longest = over;
        if (read > COUNT / 2 && most) sum += over, late++;
        fb_pace_learn(&p, 1, part * (double)rows, 8 * over);
        layer = (layer + through) % LAYERS;
        if (through && !layer) read += rows;
    }
    assert_true(longest < 2);
    assert_true(sum / (double)late > 1.5);
    assert_true(steps < COUNT / FB_PACE_HELD * 4);
    /* Without a limit, and with nobody who waits, all at once. */
    assert_int_equal(fb_pace_layers(&p, 0, 512), LAYERS);
    fb_pace_close(&p);
    p = pace_by_layer(1, LAYERS);
    fb_pace_learn(&p, 1, 0, 8);
    fb_pace_learn(&p, 1, 8, 16);
    assert_int_equal(fb_pace_layers(&p, 1, 8), 1);
    fb_pace_close(&p);
}

/* A GPU, where a prompt's rows read all weights once more. */
static double products(int64_t rows, int64_t position) {
    (void)position;
    return rows ? 0.8 + 1.2 + (rows > 128 ? 0.004 * (double)(rows - 128) : 0) : 0.8;
}

/* The same with weights that take longer to decode than to read: few rows are better. */
static double decoding(int64_t rows, int64_t position) {
    (void)position;
    return rows ? 0.5 + 0.5 + 0.03 * (double)rows : 0.5;
}

static void rows_that_cost_nothing_are_taken(void **state) {
    (void)state;
    fb_pace p = pace_of(1.8);
    result r = read_prompt(&p, products, 8000, 0);
    assert_in_range(r.rows_at_end, 128, 256);
    assert_true(r.steps < 8000 / 128 + 30);
    assert_true(r.longest < 4);
    fb_pace few = pace_of(1.8);
    r = read_prompt(&few, decoding, 8000, 0);
    assert_in_range(r.rows_at_end, 8, 16);
    assert_true(r.at_end < 3);
    /* From too many rows it comes there, too. */
    for (int i = 0; i < 4; i++) r = read_prompt(&p, decoding, 8000, 0);
    assert_in_range(r.rows_at_end, 8, 32);
    fb_pace_close(&few);
    fb_pace_close(&p);
}

static void no_limit(void **state) {
    (void)state;
    fb_pace p = pace_of(0);
    assert_int_equal(fb_pace_rows(&p, 1), 511);
    assert_int_equal(fb_pace_rows(&p, 4), 508);
    fb_pace_close(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_limit_is_kept),
        cmocka_unit_test(a_slow_step_is_not_believed),
        cmocka_unit_test(rows_are_added_step_by_step),
        cmocka_unit_test(a_long_prompt_does_not_starve),
        cmocka_unit_test(a_long_prompt_is_read_layer_by_layer),
        cmocka_unit_test(rows_that_cost_nothing_are_taken),
        cmocka_unit_test(no_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
