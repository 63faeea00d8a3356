/* The CUDA kernels as an instruction set of the CPU's tests. A call in host memory is copied to the device,
 * in the layouts of backend/cuda/kernel.h, launched, and copied back. All buffers lie in one image between
 * bands of NaN. A launch that writes anything but its outputs fails the test, and so does one that leaves
 * counters in scratch that are not zero. Some launches (on a GPU all) run twice, the second time like those
 * of a recorded step, and must give the same bits.
 *
 * The tests use the library that FUSEBOX_CUDA_LIBRARY names, otherwise the emulated one of this build. With
 * FUSEBOX_KERNELS_APART set, every buffer is an allocation of its own, of exactly its size: for
 * compute-sanitizer. FUSEBOX_KERNELS_EVERY=N checks every Nth case. */
#ifndef FB_TESTS_CUDA_HARNESS_H
#define FB_TESTS_CUDA_HARNESS_H

#include "backend/cpu/kernel_harness.h"
#include "backend/cuda/gpu.h"
#include "backend/cuda/kernel.h"

/* "cuda", then "ref"; a row without a name ends it. */
extern const fb_isa cuda_isas[];

/* fb_cuda_context.invariant of the launches. */
extern bool cuda_invariant;
/* Q8_0 and Q4_0 are records, too, as where layers mix types. */
extern bool cuda_records;

/* How the next calls are launched. Zeros: with a cache of one block, and without runs. */
typedef struct cuda_step {
    const fb_cuda_rows *runs;
    int32_t run_count;
    /* For calls with kv.tables, whose blocks have keys in the CPU's layout. NULL in a table: there is no such
     * block, and reading or writing it crashes. */
    int64_t sequences, entries;  /* tables, and entries of each */
    uint8_t *pool;               /* all blocks, one behind another */
    int64_t blocks, block_bytes; /* their number, and the size of each */
} cuda_step;
extern cuda_step cuda_next_step;

/* Launches so far, by op. */
extern int64_t cuda_launched[FB_OP_COUNT];

/* Whether there is a library with a device; if not, a message says why. */
bool cuda_is_there(void);
/* Tests run every how manyth case: all (1) on a GPU, otherwise one in `emulated`. */
int cuda_every(int emulated);
bool cuda_is_emulated(void);

/* The device with its context, and a function of the library, for kernels that are no ops. */
fb_gpu *cuda_gpu(fb_cuda_context *cx);
void *cuda_function(const char *name);

/* The emulated library of this build; "" if it was not built. */
const char *cuda_emulated_path(void);

/* As kernel_run_family; without a GPU, every `emulated`th rig. Without a library it skips all tests. */
int cuda_run_family(const char *family, const struct CMUnitTest *tests, size_t count, int emulated);
/* Runs the tests; without a library it skips them. */
int cuda_run_group(const char *name, const struct CMUnitTest *tests, size_t count, CMFixtureFunction setup);

#endif
