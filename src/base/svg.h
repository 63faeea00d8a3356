/* Shared parts of the SVG pictures: colours, text and lines. The pictures use no scripts, styles or fonts
 * from outside. */
#ifndef FB_BASE_SVG_H
#define FB_BASE_SVG_H

#include <stdio.h>

#define FB_SVG_INK   "#1f2933"
#define FB_SVG_GREY  "#6b7785"
#define FB_SVG_LINE  "#d8dee6"
#define FB_SVG_WHITE "#ffffff"
#define FB_SVG_BLUE  "#1864ab"
#define FB_SVG_GREEN "#2f9e44"
#define FB_SVG_RED   "#d9480f"

/* Begins a page with a white background, so that it is readable on any background. The caller writes </svg>.
 */
void fb_svg_begin(FILE *f, int width, int height);

/* `anchor` is "start", "middle" or "end". Dark text has a white outline, so that it stays readable on top of
 * a line. */
void fb_svg_text(FILE *f, double x, double y, int size, const char *anchor, const char *colour,
                 const char *text);

/* `dash` is a value of stroke-dasharray; NULL: a solid line. */
void fb_svg_line(FILE *f, double x1, double y1, double x2, double y2, const char *colour, double width,
                 const char *dash);

/* The smallest number that is at least `least` and is 1, 2 or 5 times a power of ten: the step of an axis. */
double fb_svg_round_above(double least);

/* Formats a number as "12,345", or as short as possible. Returns `text`. */
const char *fb_svg_number(double value, char text[32]);

#endif
