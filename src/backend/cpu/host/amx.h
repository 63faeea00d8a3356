#ifndef FB_BACKEND_CPU_HOST_AMX_H
#define FB_BACKEND_CPU_HOST_AMX_H

#include <stdbool.h>

/* Whether this process may use AMX's tiles of bytes, and they work. It asks the system once. */
bool fb_amx_usable(void);

#endif
