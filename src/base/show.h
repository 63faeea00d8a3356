/* Text from files, shown to people: what would steer a terminal is written as an escape. */
#ifndef FB_BASE_SHOW_H
#define FB_BASE_SHOW_H

#include "fusebox_tools.h"

/* Control characters, and those that change the direction of the text around them. */
bool fb_character_steers(uint32_t character);

/* All of `text` into out[room], as one line; what does not fit is cut off between two characters. */
void fb_show(const char *text, char *out, size_t room);

#endif
