/* The library reads no environment: what FUSEBOX_CUDA_LIBRARY says is handed over before main, as the command
 * line does it. */
#include <stdio.h>
#include <stdlib.h>

#include "fusebox.h"

__attribute__((constructor)) static void hand_over(void) {
    fb_error err;
    if (fb_cuda_library(getenv("FUSEBOX_CUDA_LIBRARY"), &err) == FB_OK) return;
    fprintf(stderr, "FUSEBOX_CUDA_LIBRARY: %s\n", err.message);
    exit(2);
}
