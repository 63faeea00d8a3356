/* The picture of a plan: the machine's roofline with the ops on it, and the time of one layer before and
 * after fusion. One file without scripts, styles or fonts from outside. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/svg.h"
#include "base/whole_file.h"
#include "fusebox_tools.h"

#define WIDTH    1000
#define HEIGHT   830
#define MAX_DOTS 64

#define BEFORE "#8a94a6"
#define AFTER  "#d9480f"
#define ROOF   "#1864ab"

/* Colours of the timeline, by the kind of an op. */
typedef struct family {
    const char *word, *colour, *label;
} family;

static const family families[] = {
    {"attn", "#2f9e44", "attention"},     {"softmax", "#2f9e44", NULL},
    {"rope", "#94d82d", "rope, cache"},   {"kv_append", "#94d82d", NULL},
    {"linear", "#4c6ef5", "projections"}, {"qkv", "#4c6ef5", NULL},
    {"down_add", "#4c6ef5", NULL},        {"swiglu_", "#4c6ef5", NULL},
    {"bias_act", "#4c6ef5", NULL},        {"norm", "#f59f00", "norms"},
    {"", "#e64980", "elementwise"},
};
enum { FAMILIES = sizeof families / sizeof *families };

static const family *family_of(const char *name) {
    int i = 0;
    if (strcmp(name, "swiglu_vec") == 0) return &families[FAMILIES - 1];
    while (!strstr(name, families[i].word)) i++;
    return &families[i];
}

/* ---- roofline ---- */

typedef struct plot {
    FILE *f;
    double left, top, right, bottom;
    double x_min, x_max, y_min, y_max; /* decades: powers of ten */
} plot;

static double plot_x(const plot *p, double intensity) {
    return p->left + (log10(intensity) - p->x_min) / (p->x_max - p->x_min) * (p->right - p->left);
}

static double plot_y(const plot *p, double rate) {
    return p->bottom - (log10(rate) - p->y_min) / (p->y_max - p->y_min) * (p->bottom - p->top);
}

typedef struct dot {
    double x, y, label_x, label_y;
    const char *anchor;
    const char *name;
    bool after;
    int64_t count; /* ops with the same name are one dot at their mean */
    double flops, bytes, seconds;
} dot;

static int add_dots(const fb_profile *profile, bool after, dot *dots, int count) {
    int first = count;
    for (int64_t i = 0; i < profile->op_count; i++) {
        const fb_profile_op *op = profile->ops[i];
        if (op->flops <= 0 || op->bytes <= 0 || op->seconds <= 0 || op->section == 0) continue;
        int at = first;
        while (at < count && strcmp(dots[at].name, op->name) != 0) at++;
        if (at == MAX_DOTS) continue;
        if (at == count) dots[count++] = (dot){.name = op->name, .after = after};
        dots[at].flops += op->flops;
        dots[at].bytes += op->bytes;
        dots[at].seconds += op->seconds;
        dots[at].count++;
    }
    return count;
}

static void find_range(plot *p, const fb_machine_figures *m, const dot *dots, int count) {
    p->x_min = -1;
    p->x_max = 1.5;
    p->y_max = ceil(log10(m->flops * 1e-9) + 0.1);
    p->y_min = 0;
    for (int i = 0; i < count; i++) {
        double x = log10(dots[i].flops / dots[i].bytes), y = log10(1e-9 * dots[i].flops / dots[i].seconds);
        p->x_min = fmin(p->x_min, floor(x * 2 - 0.2) / 2);
        p->x_max = fmax(p->x_max, ceil(x * 2 + 0.5) / 2);
        p->y_min = fmin(p->y_min, floor(y - 0.1));
    }
}

static void draw_axes(const plot *p) {
    char label[32];
    for (int d = (int)ceil(p->x_min); d <= (int)floor(p->x_max); d++) {
        double x = plot_x(p, pow(10, d));
        fb_svg_line(p->f, x, p->top, x, p->bottom, FB_SVG_LINE, 1, NULL);
        snprintf(label, sizeof label, "%g", pow(10, d));
        fb_svg_text(p->f, x, p->bottom + 18, 12, "middle", FB_SVG_GREY, label);
    }
    for (int d = (int)p->y_min; d <= (int)p->y_max; d++) {
        double y = plot_y(p, pow(10, d));
        fb_svg_line(p->f, p->left, y, p->right, y, FB_SVG_LINE, 1, NULL);
        snprintf(label, sizeof label, "%g", pow(10, d));
        fb_svg_text(p->f, p->left - 8, y + 4, 12, "end", FB_SVG_GREY, label);
    }
    fb_svg_text(p->f, (p->left + p->right) / 2, p->bottom + 38, 13, "middle", FB_SVG_INK,
                "FLOP per byte moved");
    fb_svg_text(p->f, p->left - 44, p->top - 12, 13, "start", FB_SVG_INK, "GFLOP/s");
}

/* Draws a bandwidth's slope from the left edge to the ceiling, with its name along it. */
static void draw_slope(const plot *p, double bandwidth, double flops, const char *label, const char *dash,
                       double at) {
    double knee = flops / bandwidth, from = pow(10, p->x_min);
    double lowest = pow(10, p->y_min) * 1e9 / bandwidth;
    if (from < lowest) from = lowest;
    double x1 = plot_x(p, from), y1 = plot_y(p, 1e-9 * from * bandwidth);
    double to = fmin(knee, pow(10, p->x_max)), x2 = plot_x(p, to), y2 = plot_y(p, 1e-9 * to * bandwidth);
    fb_svg_line(p->f, x1, y1, x2, y2, ROOF, 2, dash);
    double x = x1 + at * (x2 - x1), y = y1 + at * (y2 - y1);
    double angle = atan2(y2 - y1, x2 - x1) * 180 / 3.14159265358979;
    fprintf(p->f, "<g transform=\"translate(%.1f %.1f) rotate(%.1f)\">", x, y, angle);
    fb_svg_text(p->f, 0, dash ? 16 : -7, 12, "start", ROOF, label);
    fputs("</g>\n", p->f);
}

static void draw_roofs(const plot *p, const fb_machine_figures *m) {
    char label[96];
    int far = m->gpu ? m->points / 2 : m->points - 1;
    double dram = m->bandwidth[far], near = m->footprint_bandwidth;
    double y = plot_y(p, 1e-9 * m->flops);
    fb_svg_line(p->f, plot_x(p, m->flops / fmax(near, dram)), y, p->right, y, ROOF, 2, NULL);
    snprintf(label, sizeof label, "multiply-add: %.0f GFLOP/s", 1e-9 * m->flops);
    fb_svg_text(p->f, p->right, y - 7, 12, "end", ROOF, label);
    snprintf(label, sizeof label, "this step's %.1f MB: %.1f GB/s", 1e-6 * m->footprint, 1e-9 * near);
    draw_slope(p, near, m->flops, label, NULL, 0.1);
    if (m->gpu)
        snprintf(label, sizeof label, "a launch of %.1f MB: %.1f GB/s", 1e-6 * m->bytes[far], 1e-9 * dram);
    else
        snprintf(label, sizeof label, "512 MB, memory: %.1f GB/s", 1e-9 * dram);
    draw_slope(p, dram, m->flops, label, "6 4", 0.72);
}

#define CHARACTER 7.1 /* width at 12 px */

static bool overlaps(double ax, double ay, double aw, double bx, double by, double bw) {
    return ax < bx + bw && bx < ax + aw && fabs(ay - by) < 14;
}

static bool label_free(const dot *dots, int placed, const dot *d, double x, double y, double w, const plot *p,
                       const dot *all, int count) {
    if (x < p->left + 2 || x + w > p->right || y < p->top + 10 || y > p->bottom - 4) return false;
    for (int i = 0; i < placed; i++)
        if (overlaps(x, y, w, dots[i].label_x, dots[i].label_y, CHARACTER * (double)strlen(dots[i].name)))
            return false;
    for (int i = 0; i < count; i++)
        if (&all[i] != d && overlaps(x, y, w, all[i].x - 6, all[i].y + 4, 12)) return false;
    return true;
}

/* Places a label beside its dot, on the first side that is free. If none is free, it goes further away with a
 * line to the dot. */
static void place_label(const plot *p, dot *dots, int at, int count) {
    dot *d = &dots[at];
    double w = CHARACTER * (double)strlen(d->name);
    for (double away = 0; away < 160; away += 14) {
        const double offers[][2] = {{d->x + 9, d->y + 4 + away},      {d->x + 9, d->y + 4 - away},
                                    {d->x - 9 - w, d->y + 4 + away},  {d->x - 9 - w, d->y + 4 - away},
                                    {d->x - w / 2, d->y + 20 + away}, {d->x - w / 2, d->y - 11 - away}};
        for (int k = 0; k < 6; k++)
            if (label_free(dots, at, d, offers[k][0], offers[k][1], w, p, dots, count)) {
                d->label_x = offers[k][0];
                d->label_y = offers[k][1];
                return;
            }
    }
    d->label_x = d->x + 9;
    d->label_y = d->y + 4;
}

static void draw_dots(const plot *p, dot *dots, int count) {
    for (int i = 0; i < count; i++) {
        dots[i].x = plot_x(p, dots[i].flops / dots[i].bytes);
        dots[i].y = plot_y(p, 1e-9 * dots[i].flops / dots[i].seconds);
    }
    for (int i = 0; i < count; i++) place_label(p, dots, i, count);
    for (int i = 0; i < count; i++) {
        const dot *d = &dots[i];
        const char *colour = d->after ? AFTER : BEFORE;
        double w = CHARACTER * (double)strlen(d->name), lx = d->label_x + w / 2, ly = d->label_y - 4;
        double edge = d->label_x > d->x ? d->label_x : d->label_x + w < d->x ? d->label_x + w : lx;
        if (hypot(edge - d->x, ly - d->y) > 18) fb_svg_line(p->f, d->x, d->y, edge, ly, colour, 0.7, NULL);
        fprintf(p->f,
                "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"%s\" stroke=\"%s\" stroke-width=\"1.8\"/>\n",
                d->x, d->y, d->after ? AFTER : "#ffffff", colour);
        fb_svg_text(p->f, d->label_x, d->label_y, 12, "start", d->after ? "#a83808" : "#566072", d->name);
    }
}

static void draw_roofline(FILE *f, const fb_plan_report *r) {
    plot p = {.f = f, .left = 70, .top = 100, .right = 970, .bottom = 470};
    dot dots[MAX_DOTS];
    int count = add_dots(r->plain, false, dots, 0);
    count = add_dots(r->fused, true, dots, count);
    find_range(&p, r->machine, dots, count);
    draw_axes(&p);
    draw_roofs(&p, r->machine);
    draw_dots(&p, dots, count);
    double x = p.right - 232, y = p.bottom - 34;
    fprintf(f,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"228\" height=\"28\" fill=\"#ffffff\" stroke=\"" FB_SVG_LINE
            "\"/>\n",
            x, y);
    fprintf(f,
            "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"#ffffff\" stroke=\"" BEFORE
            "\" stroke-width=\"1.8\"/>\n",
            x + 16, y + 14);
    fb_svg_text(f, x + 28, y + 18, 12, "start", FB_SVG_INK, "before (plain)");
    fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"" AFTER "\"/>\n", x + 132, y + 14);
    fb_svg_text(f, x + 144, y + 18, 12, "start", FB_SVG_INK, "after (plan)");
}

/* ---- timelines ---- */

static double layer_seconds(const fb_profile *p) {
    double sum = 0;
    for (int64_t i = 0; i < p->op_count; i++)
        if (p->ops[i]->section == 1) sum += p->ops[i]->seconds / (double)p->layers;
    return sum;
}

/* Names of narrow bars go into rows below the bars, each where it first fits. */
static void draw_timeline(FILE *f, const fb_profile *p, bool gpu, const char *title, double y, double scale) {
    double x = 70, row_end[5] = {0};
    char label[160];
    snprintf(label, sizeof label, "%s: %.1f us a layer, %lld %s; %.0f us a token", title,
             1e6 * layer_seconds(p), (long long)p->barriers, gpu ? "launches" : "barriers",
             1e6 * (p->tpot > 0 ? p->tpot : p->wall));
    fb_svg_text(f, 70, y - 10, 14, "start", FB_SVG_INK, label);
    for (int64_t i = 0; i < p->op_count; i++) {
        const fb_profile_op *op = p->ops[i];
        if (op->section != 1) continue;
        double w = scale * op->seconds / (double)p->layers, name = CHARACTER * (double)strlen(op->name);
        fprintf(f,
                "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"30\" fill=\"%s\"><title>%s: %.2f "
                "us</title></rect>\n",
                x, y, fmax(w - 0.6, 0.4), family_of(op->name)->colour, op->name,
                1e6 * op->seconds / (double)p->layers);
        if (name + 8 < w) {
            fb_svg_text(f, x + w / 2, y + 19, 12, "middle", FB_SVG_WHITE, op->name);
        } else {
            int row = 0;
            double at = fmin(x, 970 - name);
            while (row < 4 && row_end[row] > at) row++;
            fb_svg_line(f, x + w / 2, y + 30, x + w / 2, y + 42 + 14 * row - 8, FB_SVG_LINE, 1, NULL);
            fb_svg_text(f, at, y + 46 + 14 * row, 11, "start", FB_SVG_GREY, op->name);
            row_end[row] = at + name + 6;
        }
        x += w;
        if (op->barrier) fb_svg_line(f, x - 0.3, y - 4, x - 0.3, y + 34, FB_SVG_INK, 1.2, NULL);
    }
}

static void draw_legend(FILE *f, bool gpu, double y) {
    double x = 70;
    for (int i = 0; i < FAMILIES; i++) {
        if (!families[i].label) continue;
        fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x, y,
                families[i].colour);
        fb_svg_text(f, x + 18, y + 11, 12, "start", FB_SVG_INK, families[i].label);
        x += 36 + 7 * (double)strlen(families[i].label);
    }
    fb_svg_line(f, x + 4, y - 3, x + 4, y + 15, FB_SVG_INK, 1.2, NULL);
    fb_svg_text(f, x + 12, y + 11, 12, "start", FB_SVG_INK,
                gpu ? "a launch ends" : "barrier: all threads wait");
}

static void draw(FILE *f, const void *report) {
    const fb_plan_report *r = report;
    char label[256];
    const fb_machine_figures *m = r->machine;
    fb_svg_begin(f, WIDTH, HEIGHT);
    snprintf(label, sizeof label, "One decode step: %.0f us before, %.0f us after (%.2fx)",
             1e6 * r->plain->tpot, 1e6 * r->fused->tpot, r->plain->tpot / r->fused->tpot);
    fb_svg_text(f, 30, 36, 20, "start", FB_SVG_INK, label);
    char threads[32] = "";
    if (!m->gpu) snprintf(threads, sizeof threads, ", %d threads", m->threads);
    snprintf(label, sizeof label, "%s%s, %s; positions %lld to %lld; predicted %.0f and %.0f us", m->cpu,
             threads, m->isa, (long long)r->prompt, (long long)(r->prompt + r->gen - 1),
             1e6 * r->plain->predicted, 1e6 * r->fused->predicted);
    fb_svg_text(f, 30, 58, 13, "start", FB_SVG_GREY, label);
    draw_roofline(f, r);
    double scale = 900 / fmax(layer_seconds(r->plain), layer_seconds(r->fused));
    draw_timeline(f, r->plain, m->gpu, "before", 555, scale);
    draw_timeline(f, r->fused, m->gpu, "after", 690, scale);
    draw_legend(f, m->gpu, 804);
    fputs("</svg>\n", f);
}

fb_status fb_plan_report_svg(const fb_plan_report *report, const char *path, fb_error *err) {
    if (!report->plain)
        return fb_fail(err, FB_ERROR_USAGE,
                       "plan: no plain program (a report of fb_plan_report_make has one)");
    return fb_whole_file_write(path, FB_WHOLE_WRITE, draw, report, err);
}
