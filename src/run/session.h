/* Functions of a session that only the library's own tools use. */
#ifndef FB_RUN_SESSION_H
#define FB_RUN_SESSION_H

#include "run/execution.h"

/* fb_session_create with a machine model for fuse "auto". Only forks of such a session share its executor. */
fb_status fb_session_create_planned(const fb_model *model, const fb_session_options *options,
                                    const fb_planning *planning, fb_session **out, fb_error *err);

/* `fn` is called with the input of each linear of the plain program, on the CPU; NULL: no longer. */
typedef void (*fb_linear_fn)(void *user, int32_t slot, int64_t layer, const fb_linear_rows *in,
                             int32_t worker, int32_t workers);
void fb_session_watch(fb_session *session, fb_linear_fn fn, void *user);

/* A session's plan with its inputs; and what ran since the session was created. */
const fb_execution *fb_session_execution(const fb_session *session);
const fb_trace *fb_session_trace(const fb_session *session);

#endif
