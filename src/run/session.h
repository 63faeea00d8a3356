/* What the library's own tools need of a session besides the public functions. */
#ifndef FB_RUN_SESSION_H
#define FB_RUN_SESSION_H

#include "run/execution.h"

/* fb_session_create, with the machine by which "auto" chooses; such a session shares its executor with forks
 * only. */
fb_status fb_session_create_planned(const fb_model *model, const fb_session_options *options,
                                    const fb_planning *planning, fb_session **out, fb_error *err);

/* Its plan and what the plan was made of; and what ran since it was created. */
const fb_execution *fb_session_execution(const fb_session *session);
const fb_trace *fb_session_trace(const fb_session *session);

#endif
