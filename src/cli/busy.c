#include "cli/busy.h"

#include <ctype.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The kernel counts ticks of 10 ms, each for whoever runs when it comes. Below this many seconds of all CPUs
 * together a few ticks would be a share that looks like something. */
#define SHORTEST 0.5
/* Others have a few percent on any machine. From a tenth on, times of the same work differ by as much. */
#define BUSY_SHARE 0.10

#define STAT_BYTES (1 << 20) /* a line is about 100 bytes, and there is one for each CPU */

/* ---- readings -------------------------------------------------------------------------------- */

/* "cpu3 user nice system idle iowait irq softirq steal …": adds it up. Time of guests is in `user`. "cpu"
 * without a number is the sum of all. */
static void add_line(const char *line, const bool *allowed, int count, double tick, cli_cpu_times *out) {
    enum { USER, NICE, SYSTEM, IDLE, IOWAIT, IRQ, SOFTIRQ, STEAL, FIELDS };
    double fields[FIELDS] = {0};
    char *end;
    if (!isdigit((unsigned char)line[3])) return;
    long cpu = strtol(line + 3, &end, 10);
    if (cpu < 0 || cpu >= count || !allowed[cpu]) return;
    for (int i = 0; i < FIELDS; i++) {
        const char *at = end;
        fields[i] = tick * (double)strtoull(at, &end, 10);
        if (end == at) return;
    }
    out->lost += fields[STEAL];
    out->used += fields[USER] + fields[NICE] + fields[SYSTEM] + fields[IRQ] + fields[SOFTIRQ];
    for (int i = 0; i < FIELDS; i++) out->all += fields[i];
    out->cpus++;
}

bool cli_busy_parse(const char *text, const bool *allowed, int count, double hertz, cli_cpu_times *out) {
    out->used = out->lost = out->all = 0;
    out->cpus = 0;
    for (const char *line = text; line && *line;) {
        if (strncmp(line, "cpu", 3) == 0) add_line(line, allowed, count, 1 / hertz, out);
        line = strchr(line, '\n');
        if (line) line++;
    }
    return out->cpus > 0;
}

static void read_stat(cli_cpu_times *out) {
    char *text = malloc(STAT_BYTES);
    bool *allowed = calloc(CPU_SETSIZE, sizeof *allowed);
    FILE *in = fopen("/proc/stat", "r");
    cpu_set_t set;
    if (text && allowed && in && sched_getaffinity(0, sizeof set, &set) == 0) {
        for (int i = 0; i < CPU_SETSIZE; i++) allowed[i] = CPU_ISSET(i, &set);
        text[fread(text, 1, STAT_BYTES - 1, in)] = '\0';
        cli_busy_parse(text, allowed, CPU_SETSIZE, (double)sysconf(_SC_CLK_TCK), out);
    }
    if (in) fclose(in);
    free(allowed);
    free(text);
}

static void read_times(cli_cpu_times *out) {
    struct timespec own;
    *out = (cli_cpu_times){0};
    read_stat(out);
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own) != 0)
        out->cpus = 0;
    else
        out->own = (double)own.tv_sec + 1e-9 * (double)own.tv_nsec;
}

/* ---- the share of others --------------------------------------------------------------------- */

double cli_busy_share(const cli_cpu_times *before, const cli_cpu_times *after) {
    double all = after->all - before->all;
    if (before->cpus == 0 || before->cpus != after->cpus || !(all >= SHORTEST)) return NAN;
    double others = after->used - before->used + after->lost - before->lost - (after->own - before->own);
    return others < 0 ? 0 : others > all ? 1 : others / all;
}

void cli_busy_begin(cli_busy *busy) { read_times(&busy->before); }

void cli_busy_end(cli_busy *busy) {
    cli_cpu_times after;
    read_times(&after);
    busy->others = cli_busy_share(&busy->before, &after);
    busy->cpus = after.cpus;
}

bool cli_busy_is(const cli_busy *busy) { return busy->others >= BUSY_SHARE; }

void cli_busy_print(const cli_busy *busy, FILE *out) {
    if (!cli_busy_is(busy)) return;
    fprintf(out, "note: the machine was busy: other programs had %.0f%% of the time of its %d CPU%s\n",
            100 * busy->others, busy->cpus, busy->cpus == 1 ? "" : "s");
}

void cli_busy_json(const cli_busy *busy, cli_json *json) {
    cli_json_open(json, "machine_busy", '{');
    cli_json_bool(json, "busy", cli_busy_is(busy));
    cli_json_real(json, "other_percent", 100 * busy->others);
    cli_json_int(json, "cpus", busy->cpus);
    cli_json_close(json, '}');
}
