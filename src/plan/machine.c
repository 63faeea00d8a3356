#include "plan/machine.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/cpu/host/isa.h"
#include "base/pool.h"
#include "base/whole_file.h"
#include "file/json.h"

#define FILE_VERSION     7
#define GPU_FILE_VERSION 1
#define FILE_LIMIT       (64 << 10)

/* ---- the name of this machine ---- */

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

void fb_machine_assume(fb_machine *m, int32_t workers, fb_dtype act) {
    /* Seconds per call and per unit, for a core of about 3 GHz with vectors of 8 floats. */
    static const fb_work usual[FB_TERM_COUNT] = {
        [FB_TERM_ONE_F32] = {3e-9, 6e-11},   [FB_TERM_ONE_F16] = {3e-9, 6e-11},
        [FB_TERM_ONE_BF16] = {3e-9, 8e-11},  [FB_TERM_MANY_F32] = {3e-9, 3e-11},
        [FB_TERM_MANY_F16] = {3e-9, 3e-11},  [FB_TERM_MANY_BF16] = {3e-9, 4e-11},
        [FB_TERM_ONE_Q8_0] = {3e-9, 3e-11},  [FB_TERM_ONE_Q4_0] = {3e-9, 2e-11},
        [FB_TERM_MANY_Q8_0] = {3e-9, 2e-11}, [FB_TERM_MANY_Q4_0] = {3e-9, 1e-11},
        [FB_TERM_ONE_Q4_K] = {3e-9, 2e-11},  [FB_TERM_ONE_Q6_K] = {3e-9, 3e-11},
        [FB_TERM_MANY_Q4_K] = {3e-9, 1e-11}, [FB_TERM_MANY_Q6_K] = {3e-9, 2e-11},
        [FB_TERM_DECODED] = {3e-9, 5e-10},   [FB_TERM_QUANTIZE] = {1e-8, 3e-10},
        [FB_TERM_BEST] = {2e-9, 0},          [FB_TERM_LAYERNORM] = {3e-8, 4e-10},
        [FB_TERM_RMSNORM] = {2e-8, 3e-10},   [FB_TERM_ADD] = {5e-9, 1e-10},
        [FB_TERM_GELU] = {1e-8, 1e-9},       [FB_TERM_GELU_TANH] = {1e-8, 8e-10},
        [FB_TERM_SILU] = {1e-8, 6e-10},      [FB_TERM_SOFTMAX] = {3e-8, 1e-9},
        [FB_TERM_SCORES] = {2e-9, 6e-11},    [FB_TERM_SCORES_MANY] = {0, 3e-11},
        [FB_TERM_VALUES] = {1e-9, 6e-11},    [FB_TERM_VALUES_MANY] = {0, 3e-11},
        [FB_TERM_FLASH] = {2e-9, 12e-11},    [FB_TERM_FLASH_MANY] = {1e-9, 6e-11},
        [FB_TERM_ROPE] = {1e-8, 3e-10},      [FB_TERM_ROPE_RAGGED] = {6e-8, 0},
        [FB_TERM_APPEND] = {1e-8, 5e-10},    [FB_TERM_ANGLES] = {1e-8, 3e-8},
        [FB_TERM_LOGITS] = {0, 3e-9},
    };
    memset(m, 0, sizeof *m);
    cpu_name(m->cpu, sizeof m->cpu);
    m->workers = workers;
    m->act = act;
    for (int i = 0; i < FB_CURVE_POINTS; i++) {
        m->bytes[i] = (double)((int64_t)(512 << 10) << i);
        m->bandwidth[i] = (m->bytes[i] <= 4 << 20 ? 40e9 : 10e9) * (workers < 4 ? workers : 4);
    }
    m->barrier = workers > 1 ? 0.3e-6 : 0;
    m->dispatch = 0.1e-6;
    m->foreign = workers > 1 ? 0.2e-9 : 0;
    m->latency = 100e-9;
    m->overlap = 0.5;
    m->step = 1e-6;
    m->clock = 30e-9;
    m->flops = 30e9 * workers;
    memcpy(m->term, usual, sizeof usual);
}

void fb_machine_assume_gpu(fb_machine *m, int32_t device, fb_dtype act) {
    bool found = false;
    fb_device_info info;
    fb_status status = fb_device_get(device, &found, &info, NULL);
    memset(m, 0, sizeof *m);
    m->gpu = true;
    snprintf(m->cpu, sizeof m->cpu, "%s", status == FB_OK && found ? info.name : "unknown");
    snprintf(m->isa, sizeof m->isa, "%s", status == FB_OK && found ? info.isa : "unknown");
    m->workers = 1;
    m->act = act;
    for (int i = 0; i < FB_CURVE_POINTS; i++) {
        m->bytes[i] = (double)(8 << 10) * pow(4, i);
        m->bandwidth[i] = 3e12;
    }
    m->flops = act == FB_F32 ? 30e12 : 300e12;
    m->step = m->graph = 15e-6;
    m->launch = 4e-6;
    m->node = 1e-6;
    m->small = 2.5e-6;
    m->norm.calls = m->quantise.calls = 0.5e-6;
    m->term[FB_TERM_LOGITS].units = 1e-9;
}

double fb_machine_bandwidth(const fb_machine *m, double bytes) {
    int i = 0;
    while (i + 1 < FB_CURVE_POINTS && m->bytes[i + 1] <= bytes) i++;
    if (bytes <= m->bytes[0] || i + 1 == FB_CURVE_POINTS) return m->bandwidth[i];
    double at = log2(bytes / m->bytes[i]) / log2(m->bytes[i + 1] / m->bytes[i]);
    return m->bandwidth[i] + at * (m->bandwidth[i + 1] - m->bandwidth[i]);
}

/* ---- the file ---- */

/* The single figures of a machine, and their offsets in the struct. */
typedef struct member {
    const char *name;
    size_t offset;
} member;

static const member cpu_members[] = {
    {"barrier_s", offsetof(fb_machine, barrier)},
    {"dispatch_s", offsetof(fb_machine, dispatch)},
    {"foreign_s_per_byte", offsetof(fb_machine, foreign)},
    {"step_s", offsetof(fb_machine, step)},
    {"latency_s", offsetof(fb_machine, latency)},
    {"overlap", offsetof(fb_machine, overlap)},
    {"clock_s", offsetof(fb_machine, clock)},
    {"flops_per_s", offsetof(fb_machine, flops)},
    {NULL, 0},
};
static const member gpu_members[] = {
    {"launch_s", offsetof(fb_machine, launch)},
    {"node_s", offsetof(fb_machine, node)},
    {"small_s", offsetof(fb_machine, small)},
    {"step_s", offsetof(fb_machine, step)},
    {"graph_s", offsetof(fb_machine, graph)},
    {"flops_per_s", offsetof(fb_machine, flops)},
    {"logit_s", offsetof(fb_machine, term[FB_TERM_LOGITS].units)},
    {"norm_s", offsetof(fb_machine, norm.calls)},
    {"norm_s_per_product", offsetof(fb_machine, norm.units)},
    {"quantise_s", offsetof(fb_machine, quantise.calls)},
    {"quantise_s_per_product", offsetof(fb_machine, quantise.units)},
    {NULL, 0},
};

static const member *members_of(const fb_machine *m) { return m->gpu ? gpu_members : cpu_members; }
static double *at_member(fb_machine *m, const member *which) {
    return (double *)(void *)((char *)m + which->offset);
}
static int version_of(const fb_machine *m) { return m->gpu ? GPU_FILE_VERSION : FILE_VERSION; }

static char *file_path(const char *folder, const fb_machine *m) {
    char cpu[sizeof m->cpu];
    char *path = NULL;
    for (size_t i = 0; i < sizeof cpu; i++) {
        char c = m->cpu[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        cpu[i] = plain || !c ? c : '-';
    }
    const char *act = fb_dtype_name(m->act);
    int length = m->gpu
                     ? asprintf(&path, "%s/gpu-%s-%s-%s.json", folder, cpu, m->isa, act)
                     : asprintf(&path, "%s/machine-%s-%d-%s-%s.json", folder, cpu, m->workers, m->isa, act);
    return length < 0 ? NULL : path;
}

static bool good(double value) { return isfinite(value) && value >= 0 && value < 1e18; }

static bool read_pairs(const fb_json *array, double *first, double *second, size_t count, size_t stride) {
    if (!fb_json_is(array, FB_JSON_ARRAY) || fb_json_size(array) != count) return false;
    for (size_t i = 0; i < count; i++) {
        const fb_json *pair = fb_json_at(array, i);
        double a = fb_json_real_of(fb_json_at(pair, 0)), b = fb_json_real_of(fb_json_at(pair, 1));
        if (!fb_json_is(pair, FB_JSON_ARRAY) || fb_json_size(pair) != 2 || !good(a) || !good(b)) return false;
        if (!fb_json_is_number(fb_json_at(pair, 0)) || !fb_json_is_number(fb_json_at(pair, 1))) return false;
        first[i * stride] = a;
        second[i * stride] = b;
    }
    return true;
}

static bool read_machine(const fb_json *root, fb_machine *m) {
    fb_machine got = *m;
    const char *cpu = fb_json_text_of(fb_json_get(root, m->gpu ? "gpu" : "cpu"));
    if (fb_json_int_of(fb_json_get(root, "version")) != version_of(m)) return false;
    if (!cpu || strcmp(cpu, m->cpu) != 0) return false;
    for (const member *which = members_of(m); which->name; which++) {
        const fb_json *value = fb_json_get(root, which->name);
        if (!fb_json_is_number(value) || !good(fb_json_real_of(value))) return false;
        *at_member(&got, which) = fb_json_real_of(value);
    }
    if (!read_pairs(fb_json_get(root, "bandwidth"), got.bytes, got.bandwidth, FB_CURVE_POINTS, 1))
        return false;
    if (!m->gpu &&
        !read_pairs(fb_json_get(root, "terms"), &got.term[0].calls, &got.term[0].units, FB_TERM_COUNT, 2))
        return false;
    for (int i = 0; i < FB_CURVE_POINTS; i++)
        if (!(got.bandwidth[i] > 0) || got.bytes[i] <= (i ? got.bytes[i - 1] : 0)) return false;
    if (!(got.flops > 0) || got.overlap > 1) return false;
    *m = got;
    return true;
}

/* Loads the file of the machine that `m` names. */
static bool load(const char *folder, fb_machine *m) {
    fb_json *root = NULL;
    char *path = file_path(folder, m);
    bool ok = path && fb_json_load(path, FILE_LIMIT, &root, NULL) == FB_OK && read_machine(root, m);
    fb_json_free(root);
    free(path);
    return ok;
}

bool fb_machine_load(const char *folder, int32_t workers, const char *isa_name, fb_dtype act, fb_machine *m) {
    const fb_isa *isa;
    if (fb_isa_find(isa_name, &isa, NULL) != FB_OK) return false;
    fb_machine_assume(m, workers ? workers : fb_pool_cores(), act);
    snprintf(m->isa, sizeof m->isa, "%s", isa->name);
    return load(folder, m);
}

bool fb_machine_load_gpu(const char *folder, int32_t device, fb_dtype act, fb_machine *m) {
    fb_machine_assume_gpu(m, device, act);
    return load(folder, m);
}

static void write_machine(FILE *f, const void *machine) {
    fb_machine m = *(const fb_machine *)machine;
    char quoted[8 * sizeof m.cpu];
    bool shown = fb_json_is_utf8(m.cpu, strlen(m.cpu));
    fb_json_quote(m.cpu, shown ? strlen(m.cpu) : 0, quoted, sizeof quoted);
    fprintf(f, "{\"version\": %d,\n \"%s\": %s,\n", version_of(&m), m.gpu ? "gpu" : "cpu", quoted);
    fprintf(f, " \"isa\": \"%s\", ", m.isa);
    if (!m.gpu) fprintf(f, "\"threads\": %d, ", m.workers);
    fprintf(f, "\"act\": \"%s\",\n", fb_dtype_name(m.act));
    for (const member *which = members_of(&m); which->name; which++)
        fprintf(f, " \"%s\": %.9g,\n", which->name, *at_member(&m, which));
    fputs(" \"bandwidth\": [", f);
    for (int i = 0; i < FB_CURVE_POINTS; i++)
        fprintf(f, "%s[%.0f, %.9g]", i ? ", " : "", m.bytes[i], m.bandwidth[i]);
    fputs(m.gpu ? "]}\n" : "],\n \"terms\": [", f);
    for (int i = 0; i < FB_TERM_COUNT && !m.gpu; i++)
        fprintf(f, "%s[%.9g, %.9g]", i ? ", " : "", m.term[i].calls, m.term[i].units);
    if (!m.gpu) fputs("]}\n", f);
}

fb_status fb_machine_save(const char *folder, const fb_machine *m, fb_error *err) {
    char *path = file_path(folder, m);
    if (!path) return fb_fail_memory(err, "machine file", 0);
    fb_status status = mkdir(folder, 0777) == 0 || errno == EEXIST
                           ? fb_whole_file_write(path, FB_WHOLE_REPLACE, write_machine, m, err)
                           : fb_whole_file_fail(path, errno, err);
    free(path);
    return status;
}

fb_status fb_machine_get(const char *folder, bool anew, int32_t workers, const char *isa, fb_dtype act,
                         fb_machine *m, fb_error *err) {
    if (folder && !anew && fb_machine_load(folder, workers, isa, act, m)) return FB_OK;
    FB_TRY(fb_machine_measure(workers, isa, act, m, err));
    if (folder) fb_machine_save(folder, m, NULL); /* if it cannot be written, nothing is saved */
    return FB_OK;
}

fb_status fb_machine_get_gpu(const char *folder, bool anew, const fb_backend *backend, int32_t device,
                             fb_dtype act, fb_machine *m, fb_error *err) {
    if (folder && !anew && fb_machine_load_gpu(folder, device, act, m)) return FB_OK;
    FB_TRY(fb_machine_measure_gpu(backend, device, act, m, err));
    if (folder) fb_machine_save(folder, m, NULL);
    return FB_OK;
}
