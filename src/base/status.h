/* How functions fail: they fill the caller's fb_error and return its status. */
#ifndef FB_BASE_STATUS_H
#define FB_BASE_STATUS_H

#include "fusebox.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets the message ("what: value (limit)", one line) and returns `status`. `err` may be NULL. Control
 * characters in the message are escaped, so that a hostile file cannot send them to a terminal. */
fb_status fb_fail(fb_error *err, fb_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* fb_fail for an allocation of `bytes` for `what` that failed. */
fb_status fb_fail_memory(fb_error *err, const char *what, int64_t bytes);

/* Returns from the calling function if the expression is not FB_OK. */
#define FB_TRY(expression)                                                                                   \
    do {                                                                                                     \
        fb_status fb_try_status_ = (expression);                                                             \
        if (fb_try_status_ != FB_OK) return fb_try_status_;                                                  \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
