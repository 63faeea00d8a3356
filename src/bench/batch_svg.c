/* The picture of a bench of batches: tokens per second, and the time of a step, against the number of
 * sequences. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/svg.h"
#include "base/whole_file.h"
#include "bench/bench.h"

#define WIDTH  1000
#define HEIGHT 450
/* Ticks of the x axis closer than this would overlap. */
#define TICK_WIDTH 30
#define MAX_LINES  64

typedef struct panel {
    FILE *f;
    const fb_bench_batch_line *const *lines; /* by number of sequences */
    int64_t count;
    double left, top, right, bottom;
    double x_min, x_max; /* powers of two */
    double y_max;
} panel;

/* What a curve shows of a line. */
typedef double (*value_fn)(const fb_bench_batch_line *line);

static double all_tokens(const fb_bench_batch_line *line) {
    return (double)line->sequences / line->step.median;
}
static double step_ms(const fb_bench_batch_line *line) { return line->step.median * 1e3; }
static double floor_ms(const fb_bench_batch_line *line) { return line->floor * 1e3; }
static double any_order_ms(const fb_bench_batch_line *line) { return line->any_order.median * 1e3; }

static double plot_x(const panel *p, int64_t sequences) {
    return p->left + (log2((double)sequences) - p->x_min) / (p->x_max - p->x_min) * (p->right - p->left);
}

static double plot_y(const panel *p, double value) {
    return fmax(p->bottom - value / p->y_max * (p->bottom - p->top), p->top);
}

/* ---- axes ---- */

static void include(panel *p, value_fn value) {
    for (int64_t i = 0; i < p->count; i++) p->y_max = fmax(p->y_max, value(p->lines[i]));
}

static void draw_axes(panel *p, const char *title) {
    char text[32];
    double step = fb_svg_round_above(p->y_max / 6), last = -TICK_WIDTH;
    p->y_max = ceil(p->y_max / step - 1e-9) * step;
    for (double i = 0; i * step <= p->y_max * (1 + 1e-9); i++) {
        double y = plot_y(p, i * step);
        fb_svg_line(p->f, p->left, y, p->right, y, FB_SVG_LINE, 1, NULL);
        fb_svg_text(p->f, p->left - 8, y + 4, 12, "end", FB_SVG_GREY, fb_svg_number(i * step, text));
    }
    for (int64_t i = 0; i < p->count; i++) {
        double x = plot_x(p, p->lines[i]->sequences);
        if (x - last < TICK_WIDTH) continue;
        last = x;
        fb_svg_line(p->f, x, p->bottom, x, p->bottom + 4, FB_SVG_GREY, 1, NULL);
        fb_svg_text(p->f, x, p->bottom + 19, 12, "middle", FB_SVG_GREY,
                    fb_svg_number((double)p->lines[i]->sequences, text));
    }
    fb_svg_line(p->f, p->left, p->bottom, p->right, p->bottom, FB_SVG_GREY, 1, NULL);
    fb_svg_text(p->f, (p->left + p->right) / 2, p->bottom + 42, 13, "middle", FB_SVG_INK,
                "sequences that decode at once");
    fb_svg_text(p->f, p->left, p->top - 16, 14, "start", FB_SVG_INK, title);
}

/* ---- curves ---- */

static void draw_curve(const panel *p, value_fn value, const char *colour, const char *dash) {
    fputs("<path d=\"", p->f);
    for (int64_t i = 0; i < p->count; i++)
        fprintf(p->f, "%c%.1f %.1f", i ? 'L' : 'M', plot_x(p, p->lines[i]->sequences),
                plot_y(p, value(p->lines[i])));
    fprintf(p->f, "\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"", colour);
    if (dash) fprintf(p->f, " stroke-dasharray=\"%s\"", dash);
    fputs(" stroke-linejoin=\"round\"/>\n", p->f);
    for (int64_t i = 0; !dash && i < p->count; i++)
        fprintf(p->f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n",
                plot_x(p, p->lines[i]->sequences), plot_y(p, value(p->lines[i])), colour);
}

/* The 10th to the 90th percentile of a step. */
static void draw_spreads(const panel *p) {
    for (int64_t i = 0; i < p->count; i++) {
        const fb_bench_batch_line *line = p->lines[i];
        double x = plot_x(p, line->sequences);
        fb_svg_line(p->f, x, plot_y(p, line->step.p10 * 1e3), x, plot_y(p, line->step.p90 * 1e3), FB_SVG_BLUE,
                    1, NULL);
    }
}

static void draw_key(const panel *p, int row, const char *colour, const char *dash, const char *name) {
    double y = p->top + 14 + 20 * row;
    fb_svg_line(p->f, p->left + 14, y, p->left + 42, y, colour, 2, dash);
    fb_svg_text(p->f, p->left + 50, y + 4, 12, "start", FB_SVG_INK, name);
}

static void draw_rate(panel p) {
    include(&p, all_tokens);
    draw_axes(&p, "tokens a second, all together");
    draw_curve(&p, all_tokens, FB_SVG_BLUE, NULL);
}

static void draw_time(panel p, const fb_bench_batch_report *r) {
    include(&p, step_ms);
    include(&p, floor_ms);
    if (r->any_order) include(&p, any_order_ms);
    draw_axes(&p, "a step, ms");
    draw_curve(&p, floor_ms, FB_SVG_GREY, "6 4");
    if (r->any_order) draw_curve(&p, any_order_ms, FB_SVG_GREEN, NULL);
    draw_spreads(&p);
    draw_curve(&p, step_ms, FB_SVG_BLUE, NULL);
    draw_key(&p, 0, FB_SVG_BLUE, NULL, "median, 10th to 90th percentile");
    draw_key(&p, 1, FB_SVG_GREY, "6 4", "reading the weights once and all caches");
    if (r->any_order) draw_key(&p, 2, FB_SVG_GREEN, NULL, "with --invariant off");
}

/* ---- the page ---- */

static void draw_titles(FILE *f, const fb_bench_batch_report *r) {
    char text[256], threads[32] = "", digits[32];
    fb_svg_text(f, 30, 36, 20, "start", FB_SVG_INK, "Several sequences in one step");
    if (r->threads)
        snprintf(threads, sizeof threads, ", %d thread%s", r->threads, r->threads == 1 ? "" : "s");
    snprintf(text, sizeof text,
             "%s, %s parameters; %s%s, %s; prompts of %" PRId64 " tokens, %" PRId64 " more", r->architecture,
             fb_svg_number((double)r->parameters, digits), r->cpu, threads, r->isa, r->prompt, r->gen);
    fb_svg_text(f, 30, 58, 13, "start", FB_SVG_GREY, text);
}

static int by_sequences(const void *a, const void *b) {
    const fb_bench_batch_line *x = *(const fb_bench_batch_line *const *)a,
                              *y = *(const fb_bench_batch_line *const *)b;
    return (x->sequences > y->sequences) - (x->sequences < y->sequences);
}

static void draw(FILE *f, const void *report) {
    const fb_bench_batch_report *r = report;
    const fb_bench_batch_line *lines[MAX_LINES] = {NULL};
    for (int64_t i = 0; i < r->line_count; i++) lines[i] = r->lines[i];
    qsort(lines, (size_t)r->line_count, sizeof *lines, by_sequences);
    panel p = {.f = f, .lines = lines, .count = r->line_count, .top = 120, .bottom = 385};
    p.x_min = log2((double)lines[0]->sequences);
    p.x_max = log2((double)lines[r->line_count - 1]->sequences);
    if (p.x_max <= p.x_min) { /* one number: in the middle */
        p.x_min -= 1;
        p.x_max += 1;
    }
    fb_svg_begin(f, WIDTH, HEIGHT);
    draw_titles(f, r);
    p.left = 84;
    p.right = 474;
    draw_rate(p);
    p.left = 584;
    p.right = 970;
    draw_time(p, r);
    fputs("</svg>\n", f);
}

fb_status fb_bench_batch_svg(const fb_bench_batch_report *report, const char *path, fb_error *err) {
    if (report->line_count < 1 || report->line_count > MAX_LINES)
        return fb_fail(err, FB_ERROR_USAGE, "batches: %lld lines (1 to %d)", (long long)report->line_count,
                       MAX_LINES);
    return fb_whole_file_write(path, FB_WHOLE_WRITE, draw, report, err);
}
