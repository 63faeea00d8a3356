/* For the files with tables of callables. */
#ifndef FB_CHAT_CALL_H
#define FB_CHAT_CALL_H

#include "chat/eval.h"

#define FB_JINJA_CALL(name)                                                                                  \
    static fb_status name(fb_jinja_run *run, const fb_jinja_value *self, const fb_jinja_arguments *args,     \
                          fb_jinja_value *out)

/* Changes of case, by character; Python's special cases of several characters are not done. */
typedef enum fb_jinja_case {
    FB_JINJA_UPPER,
    FB_JINJA_LOWER,
    FB_JINJA_SWAP,
    FB_JINJA_CAPITALIZE, /* the first character upper, the rest lower */
    FB_JINJA_TITLE_WORDS /* str.title: so for each run of letters */
} fb_jinja_case;
fb_status fb_jinja_change_case(fb_jinja_run *run, fb_jinja_text text, fb_jinja_case to, fb_jinja_value *out);

/* With &amp; and the like for &<>'", unless it is markup already; the result is markup. */
fb_status fb_jinja_escape(fb_jinja_run *run, const fb_jinja_value *value, fb_jinja_value *out);
/* str.replace; at most `count` times unless it is negative. */
fb_status fb_jinja_replace(fb_jinja_run *run, fb_jinja_text text, fb_jinja_text from, fb_jinja_text to,
                           int64_t count, fb_jinja_value *out);
/* The lines of a text, with their ends if `keep`. */
fb_status fb_jinja_split_lines(fb_jinja_run *run, fb_jinja_text text, bool keep, fb_jinja_list *out);
/* Text in a field of `width` characters; `align` is one of < > ^. */
fb_status fb_jinja_pad(fb_jinja_run *run, fb_jinja_text text, fb_jinja_text fill, char align, int64_t width,
                       fb_jinja_value *out);
/* The entries of a dict as a list of pairs. */
fb_status fb_jinja_pairs(fb_jinja_run *run, const fb_jinja_dict *dict, fb_jinja_value *out);

#endif
