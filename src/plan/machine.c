#include "plan/machine.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/cpu/host/isa.h"
#include "base/pool.h"
#include "file/json.h"

#define FILE_VERSION 3
#define FILE_LIMIT   (64 << 10)

/* ---- who this machine is ------------------------------------------------------------------------------ */

static void cpu_name(char *name, size_t size) {
    snprintf(name, size, "unknown");
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (!colon || strncmp(line, "model name", 10) != 0) continue;
        colon += strspn(colon + 1, " ") + 1;
        snprintf(name, size, "%.*s", (int)strcspn(colon, "\n"), colon);
        break;
    }
    if (f) fclose(f);
}

void fb_machine_assume(fb_machine *m, int32_t lanes, fb_dtype act) {
    /* Seconds a call and a unit: a core of about 3 GHz with vectors of 8 floats. */
    static const fb_work usual[FB_TERM_COUNT] = {
        [FB_TERM_ONE_F32] = {3e-9, 6e-11},   [FB_TERM_ONE_F16] = {3e-9, 6e-11},
        [FB_TERM_ONE_BF16] = {3e-9, 8e-11},  [FB_TERM_MANY_F32] = {3e-9, 3e-11},
        [FB_TERM_MANY_F16] = {3e-9, 3e-11},  [FB_TERM_MANY_BF16] = {3e-9, 4e-11},
        [FB_TERM_ONE_Q8_0] = {3e-9, 3e-11},  [FB_TERM_ONE_Q4_0] = {3e-9, 2e-11},
        [FB_TERM_MANY_Q8_0] = {3e-9, 2e-11}, [FB_TERM_MANY_Q4_0] = {3e-9, 1e-11},
        [FB_TERM_DECODED] = {3e-9, 5e-10},   [FB_TERM_QUANTIZE] = {1e-8, 3e-10},
        [FB_TERM_BEST] = {2e-9, 0},          [FB_TERM_LAYERNORM] = {3e-8, 4e-10},
        [FB_TERM_RMSNORM] = {2e-8, 3e-10},   [FB_TERM_ADD] = {5e-9, 1e-10},
        [FB_TERM_GELU] = {1e-8, 1e-9},       [FB_TERM_GELU_TANH] = {1e-8, 8e-10},
        [FB_TERM_SILU] = {1e-8, 6e-10},      [FB_TERM_SCORES] = {2e-9, 6e-11},
        [FB_TERM_SOFTMAX] = {3e-8, 1e-9},    [FB_TERM_VALUES] = {1e-9, 1e-10},
        [FB_TERM_FLASH] = {4e-9, 2e-10},     [FB_TERM_ROPE] = {1e-8, 3e-10},
        [FB_TERM_ROPE_RAGGED] = {6e-8, 0},   [FB_TERM_APPEND] = {1e-8, 1e-10},
        [FB_TERM_ANGLES] = {1e-8, 3e-8},     [FB_TERM_LOGITS] = {0, 3e-9},
    };
    memset(m, 0, sizeof *m);
    cpu_name(m->cpu, sizeof m->cpu);
    m->lanes = lanes;
    m->act = act;
    for (int i = 0; i < FB_CURVE_POINTS; i++) {
        m->bytes[i] = (double)((int64_t)(512 << 10) << i);
        m->bandwidth[i] = (m->bytes[i] <= 4 << 20 ? 40e9 : 10e9) * (lanes < 4 ? lanes : 4);
    }
    m->barrier = lanes > 1 ? 0.3e-6 : 0;
    m->dispatch = 0.1e-6;
    m->foreign = lanes > 1 ? 0.2e-9 : 0;
    m->latency = 100e-9;
    m->overlap = 0.5;
    m->step = 1e-6;
    m->clock = 30e-9;
    m->flops = 30e9 * lanes;
    memcpy(m->term, usual, sizeof usual);
}

double fb_machine_bandwidth(const fb_machine *m, double bytes) {
    int i = 0;
    while (i + 1 < FB_CURVE_POINTS && m->bytes[i + 1] <= bytes) i++;
    if (bytes <= m->bytes[0] || i + 1 == FB_CURVE_POINTS) return m->bandwidth[i];
    double at = log2(bytes / m->bytes[i]) / log2(m->bytes[i + 1] / m->bytes[i]);
    return m->bandwidth[i] + at * (m->bandwidth[i + 1] - m->bandwidth[i]);
}

/* ---- the file ----------------------------------------------------------------------------------------- */

/* The single numbers of a machine and where they are. */
typedef struct member {
    const char *name;
    size_t offset;
} member;

static const member members[] = {
    {"barrier_s", offsetof(fb_machine, barrier)},
    {"dispatch_s", offsetof(fb_machine, dispatch)},
    {"foreign_s_per_byte", offsetof(fb_machine, foreign)},
    {"step_s", offsetof(fb_machine, step)},
    {"latency_s", offsetof(fb_machine, latency)},
    {"overlap", offsetof(fb_machine, overlap)},
    {"clock_s", offsetof(fb_machine, clock)},
    {"flops_per_s", offsetof(fb_machine, flops)},
};
enum { MEMBERS = sizeof members / sizeof *members };

static double *member_of(fb_machine *m, int i) { return (double *)(void *)((char *)m + members[i].offset); }

static char *file_path(const char *folder, const fb_machine *m) {
    char cpu[sizeof m->cpu];
    char *path = NULL;
    for (size_t i = 0; i < sizeof cpu; i++) {
        char c = m->cpu[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        cpu[i] = plain || !c ? c : '-';
    }
    if (asprintf(&path, "%s/machine-%s-%d-%s-%s.json", folder, cpu, m->lanes, m->isa, fb_dtype_name(m->act)) <
        0)
        return NULL;
    return path;
}

static bool good(double value) { return isfinite(value) && value >= 0 && value < 1e18; }

static bool read_pairs(const json_t *array, double *first, double *second, size_t count, size_t stride) {
    if (!json_is_array(array) || json_array_size(array) != count) return false;
    for (size_t i = 0; i < count; i++) {
        const json_t *pair = json_array_get(array, i);
        double a = json_number_value(json_array_get(pair, 0)), b = json_number_value(json_array_get(pair, 1));
        if (!json_is_array(pair) || json_array_size(pair) != 2 || !good(a) || !good(b)) return false;
        if (!json_is_number(json_array_get(pair, 0)) || !json_is_number(json_array_get(pair, 1)))
            return false;
        first[i * stride] = a;
        second[i * stride] = b;
    }
    return true;
}

static bool read_machine(const json_t *root, fb_machine *m) {
    fb_machine got = *m;
    const char *cpu = json_string_value(json_object_get(root, "cpu"));
    if (json_integer_value(json_object_get(root, "version")) != FILE_VERSION) return false;
    if (!cpu || strcmp(cpu, m->cpu) != 0) return false;
    for (int i = 0; i < MEMBERS; i++) {
        const json_t *value = json_object_get(root, members[i].name);
        if (!json_is_number(value) || !good(json_number_value(value))) return false;
        *member_of(&got, i) = json_number_value(value);
    }
    if (!read_pairs(json_object_get(root, "bandwidth"), got.bytes, got.bandwidth, FB_CURVE_POINTS, 1))
        return false;
    if (!read_pairs(json_object_get(root, "terms"), &got.term[0].calls, &got.term[0].units, FB_TERM_COUNT, 2))
        return false;
    for (int i = 0; i < FB_CURVE_POINTS; i++)
        if (!(got.bandwidth[i] > 0) || got.bytes[i] <= (i ? got.bytes[i - 1] : 0)) return false;
    if (!(got.flops > 0) || got.overlap > 1) return false;
    *m = got;
    return true;
}

bool fb_machine_load(const char *folder, int32_t lanes, const char *isa_name, fb_dtype act, fb_machine *m) {
    const fb_isa *isa;
    json_t *root = NULL;
    if (fb_isa_find(isa_name, &isa, NULL) != FB_OK) return false;
    fb_machine_assume(m, lanes ? lanes : fb_pool_cores(), act);
    snprintf(m->isa, sizeof m->isa, "%s", isa->name);
    char *path = file_path(folder, m);
    bool ok = path && fb_json_load(path, FILE_LIMIT, &root, NULL) == FB_OK && read_machine(root, m);
    json_decref(root);
    free(path);
    return ok;
}

static void write_machine(FILE *f, const fb_machine *machine) {
    fb_machine m = *machine;
    json_t *cpu = json_string(m.cpu); /* for its escapes */
    char *quoted = cpu ? json_dumps(cpu, JSON_ENCODE_ANY) : NULL;
    fprintf(f, "{\"version\": %d,\n \"cpu\": %s,\n", FILE_VERSION, quoted ? quoted : "\"\"");
    fprintf(f, " \"isa\": \"%s\", \"threads\": %d, \"act\": \"%s\",\n", m.isa, m.lanes, fb_dtype_name(m.act));
    free(quoted);
    json_decref(cpu);
    for (int i = 0; i < MEMBERS; i++) fprintf(f, " \"%s\": %.9g,\n", members[i].name, *member_of(&m, i));
    fputs(" \"bandwidth\": [", f);
    for (int i = 0; i < FB_CURVE_POINTS; i++)
        fprintf(f, "%s[%.0f, %.9g]", i ? ", " : "", m.bytes[i], m.bandwidth[i]);
    fputs("],\n \"terms\": [", f);
    for (int i = 0; i < FB_TERM_COUNT; i++)
        fprintf(f, "%s[%.9g, %.9g]", i ? ", " : "", m.term[i].calls, m.term[i].units);
    fputs("]}\n", f);
}

fb_status fb_machine_save(const char *folder, const fb_machine *m, fb_error *err) {
    char *path = file_path(folder, m), *temporary = NULL;
    if (!path || asprintf(&temporary, "%s.%ld", path, (long)getpid()) < 0) {
        free(path);
        return fb_fail_memory(err, "machine file", 0);
    }
    FILE *f = mkdir(folder, 0777) == 0 || errno == EEXIST ? fopen(temporary, "w") : NULL;
    bool ok = f != NULL;
    if (f) write_machine(f, m);
    if (f) ok = !ferror(f);
    if (f && fclose(f)) ok = false;
    if (ok) ok = rename(temporary, path) == 0;
    fb_status status = ok ? FB_OK : fb_fail(err, FB_ERROR_FILE, "%s: %s", path, strerror(errno));
    if (!ok && f) unlink(temporary);
    free(path);
    free(temporary);
    return status;
}

fb_status fb_machine_get(const char *folder, bool anew, int32_t lanes, const char *isa, fb_dtype act,
                         fb_machine *m, fb_error *err) {
    if (folder && !anew && fb_machine_load(folder, lanes, isa, act, m)) return FB_OK;
    FB_TRY(fb_machine_measure(lanes, isa, act, m, err));
    if (folder) fb_machine_save(folder, m, NULL); /* a cache that cannot be written is none */
    return FB_OK;
}
