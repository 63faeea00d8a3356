/* The CUDA kernels as an instruction set of the CPU's tests: a call in host memory is copied to the device,
 * in the layouts of backend/cuda/kernel.h, launched, and copied back. All lie in one image between bands of
 * NaN: what is written besides the outputs, inputs included, fails the test, and so does scratch whose
 * counters are not zero afterwards. Some launches (on a GPU all) run twice, the second time as a recorded
 * step is launched, and must give the same bits.
 *
 * Under test is the library that FUSEBOX_CUDA_LIBRARY names, else the emulated one of this build. With
 * FUSEBOX_KERNELS_APART set, every buffer is an allocation of its own, of exactly its size: for
 * compute-sanitizer. FUSEBOX_KERNELS_EVERY=N checks every Nth case. */
#ifndef FB_TESTS_CUDA_HARNESS_H
#define FB_TESTS_CUDA_HARNESS_H

#include "backend/cpu/kernel_harness.h"

/* "cuda", then "ref"; a row without a name ends it. */
extern const fb_isa cuda_isas[];

/* Launches so far, by op. */
extern int64_t cuda_launched[FB_OP_COUNT];

/* Whether there is a library with a device; if not, a message says why. */
bool cuda_is_there(void);
/* How many cases to pass over: 1 on a GPU, `emulated` without. */
int cuda_every(int emulated);
bool cuda_is_emulated(void);

/* The emulated library of this build; "" if it was not built. */
const char *cuda_emulated_path(void);

/* As kernel_run_family, with every `emulated`th rig where there is no GPU. Without a library all tests are
 * skipped. */
int cuda_run_family(const char *family, const struct CMUnitTest *tests, size_t count, int emulated);
/* The tests, or as many that are skipped. */
int cuda_run_group(const char *name, const struct CMUnitTest *tests, size_t count, CMFixtureFunction setup);

#endif
