/* What this library was built from. The one object that depends on the commit. */
#include "base/status.h"

#ifndef FB_COMMIT
#define FB_COMMIT "unknown"
#endif

const char *fb_commit(void) { return FB_COMMIT; }
