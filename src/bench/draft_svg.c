/* The picture of a bench of drafts: the speed-up against the chance that a guess is right. */
#include <math.h>
#include <string.h>

#include "base/svg.h"
#include "base/whole_file.h"
#include "bench/bench.h"
#include "plan/draft.h"

#define WIDTH  760
#define HEIGHT 460
#define LEFT   70
#define TOP    50
#define RIGHT  720
#define BOTTOM 400
#define POINTS 101
/* From this part of a step on, a guess's time has a curve of its own. */
#define COSTS 0.05

typedef struct plot {
    FILE *f;
    const fb_bench_draft_report *report;
    double most; /* of the y axis */
} plot;

static double plot_x(double acceptance) { return LEFT + acceptance * (RIGHT - LEFT); }
static double plot_y(const plot *p, double speedup) {
    return BOTTOM - fmin(speedup, p->most) / p->most * (BOTTOM - TOP);
}

static double guess_seconds(const fb_bench_draft_line *line) {
    return line->stats.drafted ? line->stats.draft_seconds / (double)line->stats.drafted : 0;
}

static void draw_axes(const plot *p) {
    char text[32];
    for (double y = 0; y <= p->most; y += 0.5) {
        fb_svg_line(p->f, LEFT, plot_y(p, y), RIGHT, plot_y(p, y), y == 1 ? FB_SVG_GREY : FB_SVG_LINE, 1,
                    NULL);
        fb_svg_text(p->f, LEFT - 8, plot_y(p, y) + 4, 12, "end", FB_SVG_GREY, fb_svg_number(y, text));
    }
    for (int i = 0; i <= 10; i += 2) {
        fb_svg_line(p->f, plot_x(0.1 * i), BOTTOM, plot_x(0.1 * i), BOTTOM + 4, FB_SVG_GREY, 1, NULL);
        fb_svg_text(p->f, plot_x(0.1 * i), BOTTOM + 19, 12, "middle", FB_SVG_GREY,
                    fb_svg_number(0.1 * i, text));
    }
    fb_svg_text(p->f, (LEFT + RIGHT) / 2.0, BOTTOM + 42, 13, "middle", FB_SVG_INK,
                "chance that a guess is right");
    fb_svg_text(p->f, LEFT, TOP - 18, 14, "start", FB_SVG_INK,
                "tokens a second, over decoding one by one; curves are predicted, points measured");
    fb_svg_text(p->f, LEFT + 10, TOP + 16, 12, "start", FB_SVG_BLUE,
                "guesses that cost nothing; numbers: scripted, right with this chance");
    fb_svg_text(p->f, LEFT + 10, TOP + 34, 12, "start", FB_SVG_RED, "dashed: guesses that take their time");
}

/* With the best number of guesses at each chance. */
static void draw_curve(const plot *p, double guess, const char *colour, const char *dash) {
    fputs("<path d=\"", p->f);
    for (int i = 0; i < POINTS; i++) {
        int64_t best;
        double a = (double)i / (POINTS - 1);
        fprintf(p->f, "%c%.1f %.1f", i ? 'L' : 'M', plot_x(a),
                plot_y(p, fb_draft_speedup(p->report->step_seconds, guess, a, -1, &best)));
    }
    fprintf(p->f, "\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"", colour);
    if (dash) fprintf(p->f, " stroke-dasharray=\"%s\"", dash);
    fputs("/>\n", p->f);
}

static bool costs(const plot *p, const fb_bench_draft_line *line) {
    return guess_seconds(line) > COSTS * p->report->step_seconds[0];
}

/* Below the curve, within the picture. A script is named by its chance. */
static void draw_name(const plot *p, const fb_bench_draft_line *line) {
    bool left = line->acceptance > 0.85, script = strncmp(line->source, "scripted:", 9) == 0;
    fb_svg_text(p->f, plot_x(line->acceptance) + (left ? -8 : 8), plot_y(p, line->ratio.median) + 15, 12,
                left ? "end" : "start", FB_SVG_INK, line->source + (script ? 9 : 0));
}

static void draw_point(const plot *p, const fb_bench_draft_line *line) {
    fprintf(p->f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\" fill=\"%s\"/>\n", plot_x(line->acceptance),
            plot_y(p, line->ratio.median), costs(p, line) ? FB_SVG_RED : FB_SVG_BLUE);
}

/* Names first: nothing is hidden by them. */
static void draw_lines(const plot *p) {
    const fb_bench_draft_report *r = p->report;
    for (int64_t i = 0; i < r->line_count; i++)
        if (r->lines[i]->same) draw_name(p, r->lines[i]);
    draw_curve(p, 0, FB_SVG_BLUE, NULL);
    for (int64_t i = 0; i < r->line_count; i++)
        if (r->lines[i]->same && costs(p, r->lines[i]))
            draw_curve(p, guess_seconds(r->lines[i]), FB_SVG_RED, "6 4");
    for (int64_t i = 0; i < r->line_count; i++)
        if (r->lines[i]->same) draw_point(p, r->lines[i]);
}

static void draw(FILE *f, const void *user) {
    const fb_bench_draft_report *r = user;
    int64_t best;
    plot p = {.f = f, .report = r};
    p.most = ceil(2 * fb_draft_speedup(r->step_seconds, 0, 1, -1, &best)) / 2;
    for (int64_t i = 0; i < r->line_count; i++)
        p.most = fmax(p.most, ceil(2 * r->lines[i]->ratio.median) / 2);
    fb_svg_begin(p.f, WIDTH, HEIGHT);
    draw_axes(&p);
    draw_lines(&p);
    fputs("</svg>\n", p.f);
}

fb_status fb_bench_draft_svg(const fb_bench_draft_report *report, const char *path, fb_error *err) {
    return fb_whole_file_write(path, FB_WHOLE_WRITE, draw, report, err);
}
