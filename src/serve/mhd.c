#include "serve/mhd.h"

#include <dlfcn.h>
#include <stdio.h>

#define LIBRARY "libmicrohttpd.so.12"

serve_mhd_functions serve_mhd;

/* The library stays open: its functions are used until the process ends. */
bool serve_mhd_open(char *why, size_t why_size) {
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL), *function;
    if (!library) {
        snprintf(why, why_size,
                 LIBRARY " is not here (Debian, Ubuntu: apt-get install libmicrohttpd12; Fedora: dnf install "
                         "libmicrohttpd)");
        return false;
    }
#define TAKE(name)                                                                                           \
    function = dlsym(library, "MHD_" #name);                                                                 \
    if (!function) {                                                                                         \
        snprintf(why, why_size, LIBRARY " has no MHD_" #name);                                               \
        return false;                                                                                        \
    }                                                                                                        \
    *(void **)(void *)&serve_mhd.name = function;
    SERVE_MHD_FUNCTIONS(TAKE)
#undef TAKE
    return true;
}
