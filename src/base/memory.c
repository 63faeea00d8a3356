#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/sysinfo.h>

#define ALIGN 64

int64_t fb_memory_available(void) {
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    long long kilobytes = -1;
    while (f && kilobytes < 0 && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld kB", &kilobytes) != 1) kilobytes = -1;
    if (f) fclose(f);
    return kilobytes < 0 ? INT64_MAX : kilobytes * 1024;
}

/* Whether `bytes` are free by the quick test. The full test, of what else could be freed, takes 50 us. */
static bool surely_free(int64_t bytes) {
    struct sysinfo info;
    return sysinfo(&info) == 0 && (uint64_t)bytes / info.mem_unit < info.freeram;
}

fb_status fb_memory_take(const char *what, int64_t bytes, void **out, fb_error *err) {
    *out = NULL;
    int64_t available = surely_free(bytes) ? bytes : fb_memory_available();
    if (bytes > available)
        return fb_fail(err, FB_ERROR_MEMORY, "%s: %lld bytes (this machine has %lld free)", what,
                       (long long)bytes, (long long)available);
    int64_t rounded = bytes < ALIGN ? ALIGN : (bytes + ALIGN - 1) / ALIGN * ALIGN;
    *out = aligned_alloc(ALIGN, (size_t)rounded);
    return *out ? FB_OK : fb_fail_memory(err, what, bytes);
}

/* The structs follow the pointers, at multiples of 16 bytes. */
void *fb_memory_structs(int64_t count, size_t size) {
    size_t number = (size_t)count, stride = (size + 15) / 16 * 16;
    size_t front = (number * sizeof(void *) + 15) / 16 * 16;
    char *memory = calloc(1, front + number * stride);
    for (size_t i = 0; memory && i < number; i++) ((void **)memory)[i] = memory + front + i * stride;
    return memory;
}
