/* The picture of a stream: perplexity against position, one curve per cache, with its name at its end. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/svg.h"
#include "base/whole_file.h"
#include "fusebox_tools.h"
#include "run/cache.h"

#define WIDTH  1000
#define HEIGHT 470
/* With more points the curve would be unreadable, so rows are merged. */
#define MAX_POINTS 100
/* If the highest perplexity is at least this many times the lowest, the axis is logarithmic. On a linear axis
 * the lowest curve, which is the best one, would be a flat line at the bottom. */
#define LOG_RATIO    4
#define LABEL_HEIGHT 36

static const char *const colours[] = {
    [FB_CACHE_DENSE] = FB_SVG_BLUE, [FB_CACHE_WINDOW] = FB_SVG_GREEN, [FB_CACHE_SINKS] = FB_SVG_RED};

typedef struct plot {
    FILE *f;
    const fb_curve_report *report;
    double left, top, right, bottom;
    int64_t points, together; /* together: rows per point; the last point may have more */
    double x_max;
    double y_min, y_max; /* their logarithms, if so */
    bool logarithmic;
} plot;

typedef struct label {
    double y, end; /* y of the label, and of the curve's end */
    int32_t curve;
} label;

static double plot_x(const plot *p, double position) {
    return p->left + position / p->x_max * (p->right - p->left);
}

static double plot_y(const plot *p, double perplexity) {
    double y = p->logarithmic ? log10(perplexity) : perplexity;
    return p->bottom - (y - p->y_min) / (p->y_max - p->y_min) * (p->bottom - p->top);
}

/* A few tokens left at the end would make a meaningless jump. They are added to the point before. */
static void find_points(plot *p) {
    const fb_curve_report *r = p->report;
    int64_t tokens = 0;
    p->together = (r->row_count - 1) / MAX_POINTS + 1;
    p->points = (r->row_count - 1) / p->together + 1;
    for (int64_t i = (p->points - 1) * p->together; i < r->row_count; i++) tokens += r->rows[i].tokens;
    if (p->points > 1 && tokens < p->together * r->every / 2) p->points--;
}

/* The perplexity of the rows that form point `at`, and their middle position. */
static double point(const plot *p, int32_t curve, int64_t at, double *middle) {
    const fb_curve_report *r = p->report;
    double sum = 0, tokens = 0;
    int64_t end = at + 1 < p->points ? (at + 1) * p->together : r->row_count;
    for (int64_t i = at * p->together; i < end; i++) {
        sum += r->rows[i].nll[curve] * (double)r->rows[i].tokens;
        tokens += (double)r->rows[i].tokens;
    }
    *middle = (double)r->rows[end - 1].position - tokens / 2;
    return exp(sum / tokens);
}

/* ---- axes ---- */

/* The largest number that is at most `most` and is 1, 2 or 5 times a power of ten. */
static double round_below(double most) {
    double power = pow(10, floor(log10(most)));
    return (most >= 5 * power ? 5 : most >= 2 * power ? 2 : 1) * power;
}

static void find_range(plot *p) {
    const fb_curve_report *r = p->report;
    double low = INFINITY, high = 0, middle;
    for (int32_t c = 0; c < r->curve_count; c++)
        for (int64_t at = 0; at < p->points; at++) {
            double y = point(p, c, at, &middle);
            if (!isfinite(y)) continue;
            low = fmin(low, y);
            high = fmax(high, y);
        }
    if (!(low <= high)) low = high = 1;
    p->x_max = (double)r->rows[r->row_count - 1].position;
    p->logarithmic = high / low > LOG_RATIO;
    if (p->logarithmic) {
        p->y_min = log10(round_below(low));
        p->y_max = log10(high) + 0.05;
    } else {
        double step = fb_svg_round_above((high - low < 0.1 * high ? 0.1 * high : high - low) / 5);
        p->y_min = floor(low / step) * step;
        p->y_max = ceil(high / step) * step;
        if (p->y_max - p->y_min < step) p->y_max = p->y_min + step;
    }
}

static void draw_y_tick(const plot *p, double value) {
    char text[32];
    double y = plot_y(p, value);
    if (y > p->bottom + 0.5 || y < p->top - 0.5) return;
    fb_svg_line(p->f, p->left, y, p->right, y, FB_SVG_LINE, 1, NULL);
    fb_svg_text(p->f, p->left - 8, y + 4, 12, "end", FB_SVG_GREY, fb_svg_number(value, text));
}

/* Over three decades, ticks at 1, 2 and 5 would be too dense; over many, even powers of ten would be. */
static void draw_y_axis(const plot *p) {
    if (!p->logarithmic) {
        double step = fb_svg_round_above((p->y_max - p->y_min) / 6);
        for (double i = ceil(p->y_min / step - 1e-9); i * step <= p->y_max * (1 + 1e-9); i++)
            draw_y_tick(p, i * step);
        return;
    }
    int decades = (int)ceil(p->y_max - p->y_min), skip = decades / 8 + 1;
    for (int d = (int)floor(p->y_min); d <= (int)p->y_max; d += skip) {
        draw_y_tick(p, pow(10, d));
        if (decades > 3) continue;
        draw_y_tick(p, 2 * pow(10, d));
        draw_y_tick(p, 5 * pow(10, d));
    }
}

static void draw_axes(const plot *p) {
    char text[64];
    draw_y_axis(p);
    double step = fb_svg_round_above(fmax(p->x_max / 8, 1));
    for (double x = 0; x <= p->x_max; x += step) {
        fb_svg_line(p->f, plot_x(p, x), p->bottom, plot_x(p, x), p->bottom + 4, FB_SVG_GREY, 1, NULL);
        fb_svg_text(p->f, plot_x(p, x), p->bottom + 19, 12, "middle", FB_SVG_GREY, fb_svg_number(x, text));
    }
    fb_svg_line(p->f, p->left, p->bottom, p->right, p->bottom, FB_SVG_GREY, 1, NULL);
    fb_svg_text(p->f, (p->left + p->right) / 2, p->bottom + 40, 13, "middle", FB_SVG_INK,
                "position in the text, tokens");
    fb_svg_text(p->f, p->left - 8, p->top - 16, 13, "end", FB_SVG_INK, "perplexity");
    double context = (double)p->report->context;
    if (context > p->x_max) return;
    char digits[32];
    double x = plot_x(p, context), middle = (p->left + p->right) / 2;
    snprintf(text, sizeof text, "trained on %s tokens", fb_svg_number(context, digits));
    fb_svg_line(p->f, x, p->top - 8, x, p->bottom, FB_SVG_INK, 1, "4 4");
    fb_svg_text(p->f, x, p->top - 12, 12, x < middle ? "start" : "end", FB_SVG_INK, text);
}

/* ---- curves ---- */

/* A point without neighbours is drawn as a dot: a line of length zero with round ends. */
static void draw_curve(const plot *p, int32_t curve) {
    bool pen = false;
    double middle;
    fputs("<path d=\"", p->f);
    for (int64_t at = 0; at < p->points; at++) {
        double y = point(p, curve, at, &middle);
        if (isfinite(y))
            fprintf(p->f, "%c%.1f %.1f%s", pen ? 'L' : 'M', plot_x(p, middle), plot_y(p, y), pen ? "" : "h0");
        pen = isfinite(y);
    }
    fprintf(p->f,
            "\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\" stroke-linejoin=\"round\" "
            "stroke-linecap=\"round\"/>\n",
            colours[p->report->curves[curve]->cache]);
}

static int by_height(const void *a, const void *b) {
    double x = ((const label *)a)->end, y = ((const label *)b)->end;
    return (x > y) - (x < y);
}

/* Places each label beside the end of its curve, without overlaps and inside the picture. */
static void place_labels(const plot *p, label *labels, int32_t count) {
    double lowest = p->bottom - 20; /* each label has a second line below */
    qsort(labels, (size_t)count, sizeof *labels, by_height);
    for (int32_t i = 0; i < count; i++) {
        labels[i].y = fmax(labels[i].end, p->top);
        if (i) labels[i].y = fmax(labels[i].y, labels[i - 1].y + LABEL_HEIGHT);
    }
    for (int32_t i = count; i-- > 0; lowest = labels[i].y - LABEL_HEIGHT)
        labels[i].y = fmin(labels[i].y, lowest);
}

static void draw_label(const plot *p, const label *l) {
    char text[96], digits[32];
    const fb_curve *c = p->report->curves[l->curve];
    double x = p->right + 22;
    fb_svg_line(p->f, p->right + 3, l->end, x - 4, l->y, colours[c->cache], 1, NULL);
    if (c->cache == FB_CACHE_DENSE)
        snprintf(text, sizeof text, "dense");
    else if (c->cache == FB_CACHE_WINDOW)
        snprintf(text, sizeof text, "window of %" PRId64, c->window);
    else
        snprintf(text, sizeof text, "%" PRId64 " sink%s + window of %" PRId64, c->sinks,
                 c->sinks == 1 ? "" : "s", c->window);
    fb_svg_text(p->f, x, l->y + 4, 13, "start", colours[c->cache], text);
    double all = exp(c->nll);
    if (all < 1000)
        snprintf(text, sizeof text, "all of the text: %.2f", all);
    else
        snprintf(text, sizeof text, "all of the text: %s",
                 isfinite(all) ? fb_svg_number(round(all), digits) : "∞");
    fb_svg_text(p->f, x, l->y + 19, 11, "start", FB_SVG_GREY, text);
}

static void draw_curves(const plot *p) {
    const fb_curve_report *r = p->report;
    label labels[FB_CACHE_KINDS];
    double middle;
    for (int32_t c = 0; c < r->curve_count; c++) {
        draw_curve(p, c);
        labels[c] = (label){.curve = c, .end = p->top};
        double y = point(p, c, p->points - 1, &middle);
        if (isfinite(y)) labels[c].end = plot_y(p, y);
    }
    place_labels(p, labels, r->curve_count);
    for (int32_t c = 0; c < r->curve_count; c++) draw_label(p, &labels[c]);
}

static void draw(FILE *f, const void *report) {
    const fb_curve_report *r = report;
    char text[128], digits[32];
    plot p = {.f = f, .report = r, .left = 92, .top = 104, .right = 770, .bottom = 412};
    find_points(&p);
    find_range(&p);
    fb_svg_begin(f, WIDTH, HEIGHT);
    snprintf(text, sizeof text, "One text of %s tokens, read from beginning to end",
             fb_svg_number((double)r->tokens, digits));
    fb_svg_text(f, 30, 36, 20, "start", FB_SVG_INK, text);
    snprintf(text, sizeof text, "how well each token was foreseen, %s tokens a point; lower is better",
             fb_svg_number(fmin((double)(r->every * p.together), (double)r->tokens), digits));
    fb_svg_text(f, 30, 58, 13, "start", FB_SVG_GREY, text);
    draw_axes(&p);
    draw_curves(&p);
    fputs("</svg>\n", f);
}

fb_status fb_curve_svg(const fb_curve_report *report, const char *path, fb_error *err) {
    if (report->row_count < 1)
        return fb_fail(err, FB_ERROR_USAGE, "curve: %lld rows (at least 1)", (long long)report->row_count);
    return fb_whole_file_write(path, FB_WHOLE_WRITE, draw, report, err);
}
