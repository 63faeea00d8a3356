/* The library's version and commit. This is the only object that depends on the commit. */
#include "base/status.h"

#ifndef FB_COMMIT
#define FB_COMMIT "unknown"
#endif

const char *fb_version(void) { return FB_VERSION; }
int32_t fb_version_number(void) { return FB_VERSION_NUMBER; }
const char *fb_commit(void) { return FB_COMMIT; }
