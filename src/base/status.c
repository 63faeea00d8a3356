#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/show.h"

static const char *const status_names[] = {
    [FB_OK] = "ok",
    [FB_ERROR_USAGE] = "usage",
    [FB_ERROR_FILE] = "file",
    [FB_ERROR_UNSUPPORTED] = "unsupported",
    [FB_ERROR_MEMORY] = "memory",
    [FB_ERROR_SYSTEM] = "system",
    [FB_ERROR_STOPPED] = "stopped",
};

const char *fb_status_name(fb_status status) {
    size_t index = (size_t)status;
    return index < sizeof status_names / sizeof *status_names ? status_names[index] : "unknown";
}

void fb_free(void *memory) { free(memory); }

fb_status fb_fail(fb_error *err, fb_status status, const char *format, ...) {
    if (!err) return status;
    err->status = status;
    va_list args;
    char message[sizeof err->message];
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    fb_show(message, err->message, sizeof err->message);
    return status;
}

fb_status fb_fail_memory(fb_error *err, const char *what, int64_t bytes) {
    return fb_fail(err, FB_ERROR_MEMORY, "%s: no memory for %lld bytes", what, (long long)bytes);
}
