/* What our pictures have in common: colours, text, lines, and a file that is there whole or not at all. No
 * scripts, styles or fonts from elsewhere. */
#ifndef FB_BASE_SVG_H
#define FB_BASE_SVG_H

#include <stdio.h>

#include "base/status.h"

#define FB_SVG_INK   "#1f2933"
#define FB_SVG_GREY  "#6b7785"
#define FB_SVG_LINE  "#d8dee6"
#define FB_SVG_WHITE "#ffffff"
#define FB_SVG_BLUE  "#1864ab"
#define FB_SVG_GREEN "#2f9e44"
#define FB_SVG_RED   "#d9480f"

/* A white page, so that it can be read wherever it is shown; </svg> is the caller's. */
void fb_svg_begin(FILE *f, int width, int height);

/* `anchor` is "start", "middle" or "end". Dark text has a white edge, so that a line behind it does not cut
 * it. */
void fb_svg_text(FILE *f, double x, double y, int size, const char *anchor, const char *colour,
                 const char *text);

/* `dash` is as in stroke-dasharray; NULL: none. */
void fb_svg_line(FILE *f, double x1, double y1, double x2, double y2, const char *colour, double width,
                 const char *dash);

/* Calls `draw`, which writes to a temporary name, then renames; but a device or a link that the caller names
 * is written to, not replaced. */
fb_status fb_svg_save(const char *path, void (*draw)(FILE *f, const void *user), const void *user,
                      fb_error *err);

#endif
