/* Sessions of one model in several threads of the host, on one device: each gets the bits that it gets alone.
 * Emulated kernels are a thousand times slower than the CPU's: few threads, few tokens. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_harness.h"
#include "fusebox.h"
#include "support/script.h"

enum { THREADS = 3 };

static const struct {
    fb_dtype act;
    const char *fuse;
    bool greedy;
    fb_cache_kind cache;
} ways[THREADS] = {
    {FB_F16, "all", false, FB_CACHE_DENSE},
    {FB_F32, "none", true, FB_CACHE_DENSE},
    {FB_F32, "all", true, FB_CACHE_SINKS},
};

static void make_jobs(const fb_model *model, fbt_job *jobs) {
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (fbt_job){.run = fbt_job_script, .model = model, .steps = cuda_is_emulated() ? 1 : 20};
        fb_session_options *o = &jobs[i].options;
        fb_session_options_default(o);
        o->backend = "cuda";
        o->act = ways[i].act;
        o->fuse = ways[i].fuse;
        o->greedy = ways[i].greedy;
        o->cache = ways[i].cache;
        o->chunk = 4;
        if (o->cache != FB_CACHE_DENSE) o->window = 8;
    }
}

static void one_device(void **state) {
    (void)state;
    fb_model *model = fbt_golden_open("llama-gqa-tied");
    fbt_job alone[THREADS], together[THREADS];
    make_jobs(model, alone);
    make_jobs(model, together);
    fbt_jobs_in_turn(alone, THREADS);
    for (int round = 0; round < (cuda_is_emulated() ? 1 : 50); round++) {
        fbt_jobs_at_once(together, THREADS);
        for (int i = 0; i < THREADS; i++) fbt_jobs_same(&together[i], &alone[i], "a session on the device");
    }
    fbt_jobs_free(alone, THREADS);
    fbt_jobs_free(together, THREADS);
    fb_model_free(model);
}

int main(void) {
    const char *given = getenv("FUSEBOX_CUDA_LIBRARY");
    if (!given || !*given || strcmp(given, "none") == 0) fb_cuda_library(cuda_emulated_path(), NULL);
    setenv("FUSEBOX_EMULATE_SMS", "4", 0); /* few, because a cooperative launch runs all its blocks at once */
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_device)};
    return cuda_run_group("threads", tests, 1, NULL);
}
