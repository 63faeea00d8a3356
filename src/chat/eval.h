/* Running a template: scopes, expressions, statements, calls. */
#ifndef FB_CHAT_EVAL_H
#define FB_CHAT_EVAL_H

#include "chat/node.h"

struct fb_jinja_scope {
    fb_jinja_scope *parent;
    fb_jinja_dict names;
};

enum { FB_JINJA_STAY, FB_JINJA_LEAVE_BREAK, FB_JINJA_LEAVE_CONTINUE }; /* fb_jinja_run.leave */

fb_status fb_jinja_scope_push(fb_jinja_run *run, fb_jinja_scope *parent);
fb_status fb_jinja_assign(fb_jinja_run *run, fb_jinja_text name, fb_jinja_value value);

fb_status fb_jinja_eval(fb_jinja_run *run, const fb_jinja_node *node, fb_jinja_value *out);
fb_status fb_jinja_exec(fb_jinja_run *run, const fb_jinja_node *list);
/* The text that statements write. */
fb_status fb_jinja_capture(fb_jinja_run *run, const fb_jinja_node *list, fb_jinja_text *out);
/* The filters in `node` on the text of a block. */
fb_status fb_jinja_eval_filters(fb_jinja_run *run, const fb_jinja_node *node, fb_jinja_text text,
                                fb_jinja_value *out);

/* Calls with arguments that are values already. */
fb_status fb_jinja_eval_arguments(fb_jinja_run *run, const fb_jinja_node *list, fb_jinja_arguments *out);
fb_status fb_jinja_call(fb_jinja_run *run, const fb_jinja_value *callee, const fb_jinja_arguments *args,
                        fb_jinja_value *out);
fb_status fb_jinja_call_macro(fb_jinja_run *run, const fb_jinja_macro *macro, const fb_jinja_arguments *args,
                              fb_jinja_value *out);
/* Binds the arguments to the names of the callable's parameters, and calls it. `what` is "filter", … */
fb_status fb_jinja_invoke(fb_jinja_run *run, const char *what, const fb_jinja_callable *callable,
                          const fb_jinja_value *self, const fb_jinja_arguments *args, fb_jinja_value *out);
fb_status fb_jinja_apply_filter(fb_jinja_run *run, fb_jinja_text name, const fb_jinja_value *input,
                                const fb_jinja_arguments *args, fb_jinja_value *out);
fb_status fb_jinja_apply_test(fb_jinja_run *run, fb_jinja_text name, const fb_jinja_value *input,
                              const fb_jinja_arguments *args, bool *out);

/* a + b, a % b, … */
fb_status fb_jinja_binary(fb_jinja_run *run, fb_jinja_op op, const fb_jinja_value *a, const fb_jinja_value *b,
                          fb_jinja_value *out);
fb_status fb_jinja_attribute(fb_jinja_run *run, const fb_jinja_value *object, fb_jinja_text name,
                             fb_jinja_value *out);
fb_status fb_jinja_item(fb_jinja_run *run, const fb_jinja_value *object, const fb_jinja_value *key,
                        fb_jinja_value *out);
/* object[start:stop:step]; NONE where one is not given. */
fb_status fb_jinja_slice(fb_jinja_run *run, const fb_jinja_value *object, const fb_jinja_value bounds[3],
                         fb_jinja_value *out);
/* "a.b.0". What is undefined on the way becomes the fallback, which may be NULL. */
fb_status fb_jinja_path(fb_jinja_run *run, const fb_jinja_value *object, const fb_jinja_value *path,
                        const fb_jinja_value *fallback, fb_jinja_value *out);
/* format % values. */
fb_status fb_jinja_percent(fb_jinja_run *run, fb_jinja_text format, const fb_jinja_value *values,
                           fb_jinja_value *out);
/* format.format(args). */
fb_status fb_jinja_format(fb_jinja_run *run, fb_jinja_text format, const fb_jinja_arguments *args,
                          fb_jinja_value *out);

/* The tables; rows end with a NULL name. */
extern const fb_jinja_callable fb_jinja_text_filters[], fb_jinja_list_filters[], fb_jinja_tests[],
    fb_jinja_functions[], fb_jinja_string_methods[], fb_jinja_list_methods[], fb_jinja_dict_methods[],
    fb_jinja_loop_methods[];
const fb_jinja_callable *fb_jinja_find_callable(const fb_jinja_callable *table, fb_jinja_text name);

static inline bool fb_jinja_given(const fb_jinja_arguments *args, int64_t index) {
    return index < args->count && args->values[index].kind != FB_JINJA_ABSENT;
}

#endif
