/* What other programs had of the CPUs' time, from given readings. */
#include "cli/busy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"

/* ---- /proc/stat ---------------------------------------------------------------------------------------- */

/* Ticks of 1/100 s: user nice system idle iowait irq softirq steal guest guest_nice. */
static const char stat_text[] = "cpu  1000 200 300 4000 50 6 7 8 0 0\n"
                                "cpu0 100 20 30 400 5 1 2 3 50 0\n"
                                "cpu1 10000 0 0 0 0 0 0 0 0 0\n"
                                "cpu2 200 0 0 800 0 0 0 0 0 0\n"
                                "intr 1 2 3\nctxt 99\n";

static void allowed_cpus_are_added_up(void **state) {
    (void)state;
    const bool allowed[] = {true, false, true};
    cli_cpu_times t = {.own = 7};
    assert_true(cli_busy_parse(stat_text, allowed, 3, 100, &t));
    assert_int_equal(t.cpus, 2);
    assert_true(fabs(t.used - 3.53) < 1e-9); /* 100 + 20 + 30 + 1 + 2 and 200; guests are in the first */
    assert_true(fabs(t.lost - 0.03) < 1e-9);
    assert_true(fabs(t.all - 15.61) < 1e-9);
    assert_true(t.own == 7);
}

static void other_texts_say_nothing(void **state) {
    (void)state;
    const bool all[] = {true, true, true}, none[] = {false, false, false};
    static const char *const texts[] = {"",
                                        "\n",
                                        "cpu",
                                        "cpu0",
                                        "cpu0 1 2 3",
                                        "cpu9999999999999999999 1 2 3 4 5 6 7 8",
                                        "cpu-1 1 2 3 4 5 6 7 8",
                                        "cpu  1 2 3 4 5 6 7 8",
                                        "intr 1"};
    cli_cpu_times t;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_false(cli_busy_parse(texts[i], all, 3, 100, &t));
    assert_false(cli_busy_parse(stat_text, none, 3, 100, &t));
    assert_false(cli_busy_parse(stat_text, all, 0, 100, &t));
}

/* ---- shares -------------------------------------------------------------------------------------------- */

static double share(double used, double lost, double all, double own) {
    const cli_cpu_times before = {.used = 100, .lost = 5, .all = 1000, .own = 3, .cpus = 2};
    const cli_cpu_times after = {
        .used = 100 + used, .lost = 5 + lost, .all = 1000 + all, .own = 3 + own, .cpus = 2};
    return cli_busy_share(&before, &after);
}

static void shares(void **state) {
    (void)state;
    assert_true(fabs(share(10, 0, 10, 10)) < 1e-12);      /* all of it was ours */
    assert_true(fabs(share(10, 0, 10, 6) - 0.4) < 1e-12); /* 4 of 10 seconds were not */
    assert_true(fabs(share(6, 2, 10, 6) - 0.2) < 1e-12);  /* another machine had them */
    assert_true(share(5.9, 0, 10, 6) == 0);               /* ticks are coarse: never less than nothing */
    assert_true(share(30, 0, 10, 0) == 1);                /* and never more than all */
    assert_true(isnan(share(0.2, 0, 0.4, 0)));            /* too short */
    assert_true(isnan(share(0, 0, 0, 0)));                /* a system that counts nothing */
    const cli_cpu_times unknown = {0}, known = {.all = 100, .cpus = 2};
    assert_true(isnan(cli_busy_share(&unknown, &known)));
    assert_true(isnan(cli_busy_share(&known, &unknown)));
}

/* ---- what is said -------------------------------------------------------------------------------------- */

static char *line_of(double others, int cpus) {
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    cli_busy_print(&(cli_busy){.others = others, .cpus = cpus}, out);
    fclose(out);
    return text;
}

static void lines(void **state) {
    (void)state;
    static const struct {
        double others;
        int cpus;
        const char *line;
    } cases[] = {{0.234, 2, "note: the machine was busy: other programs had 23% of the time of its 2 CPUs\n"},
                 {1, 1, "note: the machine was busy: other programs had 100% of the time of its 1 CPU\n"},
                 {0.05, 2, ""},
                 {NAN, 0, ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *line = line_of(cases[i].others, cases[i].cpus);
        assert_string_equal(line, cases[i].line);
        free(line);
    }
}

static void two_readings_of_this_machine(void **state) {
    (void)state;
    cli_busy busy;
    cli_busy_begin(&busy);
    cli_busy_end(&busy);
    assert_true(isnan(busy.others) || (busy.others >= 0 && busy.others <= 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allowed_cpus_are_added_up),
        cmocka_unit_test(other_texts_say_nothing),
        cmocka_unit_test(shares),
        cmocka_unit_test(lines),
        cmocka_unit_test(two_readings_of_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
