/* Whether other programs used the CPUs while something was measured. */
#ifndef FB_CLI_BUSY_H
#define FB_CLI_BUSY_H

#include <stdio.h>

#include "cli/json_out.h"

/* Two moments' sums of time, in seconds. */
typedef struct cli_cpu_times {
    double used; /* by all programs, on the CPUs that this one may use */
    double lost; /* taken from them by the machine's owner, where it is virtual ("steal") */
    double all;  /* the same and idle time */
    double own;  /* by this program */
    int cpus;    /* how many it may use; 0: not known */
} cli_cpu_times;

typedef struct cli_busy {
    cli_cpu_times before;
    double others; /* share of the CPUs' time that others had; NaN: not known */
    int cpus;
} cli_busy;

/* Time before and after a measurement. */
void cli_busy_begin(cli_busy *busy);
void cli_busy_end(cli_busy *busy);

/* What others had of the time between two readings, 0 to 1; NaN where that is not known, or where it was too
 * short to say. */
double cli_busy_share(const cli_cpu_times *before, const cli_cpu_times *after);

/* The text of /proc/stat as times of the CPUs for which `allowed` has a true, of `count`. `hertz`: ticks a
 * second. `own` is left alone. False if the text has none of them. */
bool cli_busy_parse(const char *text, const bool *allowed, int count, double hertz, cli_cpu_times *out);

bool cli_busy_is(const cli_busy *busy);
/* A line, if the machine was busy. */
void cli_busy_print(const cli_busy *busy, FILE *out);
/* "machine_busy": {"other_percent", "cpus", "busy"}. */
void cli_busy_json(const cli_busy *busy, cli_json *json);

#endif
