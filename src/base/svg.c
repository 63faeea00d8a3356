#include "base/svg.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

void fb_svg_begin(FILE *f, int width, int height) {
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
            "font-family=\"DejaVu Sans, Verdana, Helvetica, Arial, sans-serif\">\n"
            "<rect width=\"%d\" height=\"%d\" fill=\"" FB_SVG_WHITE "\"/>\n",
            width, height, width, height, width, height);
}

void fb_svg_text(FILE *f, double x, double y, int size, const char *anchor, const char *colour,
                 const char *s) {
    const char *edge = strcmp(colour, FB_SVG_WHITE) != 0
                           ? " stroke=\"" FB_SVG_WHITE
                             "\" stroke-width=\"3\" stroke-linejoin=\"round\" paint-order=\"stroke\""
                           : "";
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%d\" text-anchor=\"%s\" fill=\"%s\"%s>", x, y, size,
            anchor, colour, edge);
    for (; *s; s++) {
        if (*s == '<' || *s == '&')
            fputs(*s == '<' ? "&lt;" : "&amp;", f);
        else if ((unsigned char)*s >= 0x20)
            fputc(*s, f);
    }
    fputs("</text>\n", f);
}

void fb_svg_line(FILE *f, double x1, double y1, double x2, double y2, const char *colour, double width,
                 const char *dash) {
    fprintf(
        f,
        "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"%g\"%s%s%s/>\n",
        x1, y1, x2, y2, colour, width, dash ? " stroke-dasharray=\"" : "", dash ? dash : "",
        dash ? "\"" : "");
}

double fb_svg_round_above(double least) {
    double power = pow(10, floor(log10(least)));
    const double steps[] = {1, 2, 5};
    for (int i = 0; i < 3; i++)
        if (least <= steps[i] * power * (1 + 1e-9)) return steps[i] * power;
    return 10 * power;
}

const char *fb_svg_number(double value, char text[32]) {
    if (value < 1000 || value >= 1e15) {
        snprintf(text, 32, "%g", value);
    } else {
        int64_t whole = (int64_t)value, unit = 1000;
        while (whole / unit >= 1000) unit *= 1000;
        int used = snprintf(text, 32, "%" PRId64, whole / unit);
        for (; unit > 1; unit /= 1000)
            used += snprintf(text + used, 32 - (size_t)used, ",%03" PRId64, whole % unit / (unit / 1000));
    }
    return text;
}
