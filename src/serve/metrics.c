#include "serve/metrics.h"

#include <inttypes.h>

#include "serve/engine.h"

#define FIRST_BUCKET 1e-3

void serve_histogram_add(serve_histogram *h, double seconds) {
    int bucket = 0;
    for (double limit = FIRST_BUCKET; bucket < SERVE_BUCKETS && seconds > limit; limit *= 2) bucket++;
    atomic_fetch_add(&h->buckets[bucket], 1);
    atomic_fetch_add(&h->nanoseconds, (int64_t)(seconds * 1e9));
}

static void describe(FILE *out, const char *name, const char *type, const char *help) {
    fprintf(out, "# HELP fusebox_%s %s\n# TYPE fusebox_%s %s\n", name, help, name, type);
}

static void write_histogram(FILE *out, const char *name, const char *model, serve_histogram *h) {
    int64_t total = 0;
    double limit = FIRST_BUCKET;
    for (int i = 0; i < SERVE_BUCKETS; i++, limit *= 2) {
        total += atomic_load(&h->buckets[i]);
        fprintf(out, "fusebox_%s_bucket{model=\"%s\",le=\"%g\"} %" PRId64 "\n", name, model, limit, total);
    }
    total += atomic_load(&h->buckets[SERVE_BUCKETS]);
    fprintf(out, "fusebox_%s_bucket{model=\"%s\",le=\"+Inf\"} %" PRId64 "\n", name, model, total);
    fprintf(out, "fusebox_%s_sum{model=\"%s\"} %.9f\n", name, model,
            (double)atomic_load(&h->nanoseconds) * 1e-9);
    fprintf(out, "fusebox_%s_count{model=\"%s\"} %" PRId64 "\n", name, model, total);
}

/* A value of the scheduler's statistics. */
static const struct {
    const char *name, *type, *help;
    size_t at;
} stats_rows[] = {
    {"requests_running", "gauge", "Answers that are computed now.", offsetof(fb_scheduler_stats, running)},
    {"requests_waiting", "gauge", "Answers that wait for a place or for memory.",
     offsetof(fb_scheduler_stats, waiting)},
    {"cache_blocks", "gauge", "Blocks of the KV cache.", offsetof(fb_scheduler_stats, blocks)},
    {"cache_blocks_free", "gauge", "Blocks that no answer uses.", offsetof(fb_scheduler_stats, blocks_free)},
    {"steps_total", "counter", "Steps computed.", offsetof(fb_scheduler_stats, steps)},
    {"rows_total", "counter", "Tokens computed, of prompts and answers.", offsetof(fb_scheduler_stats, rows)},
    {"prompt_tokens_total", "counter", "Tokens of prompts.", offsetof(fb_scheduler_stats, prompt_tokens)},
    {"prefix_hits_total", "counter", "Tokens of prompts that were found in the prefix cache.",
     offsetof(fb_scheduler_stats, cached_tokens)},
    {"tokens_total", "counter", "Tokens of answers.", offsetof(fb_scheduler_stats, tokens)},
    {"draft_tokens_total", "counter", "Guesses of a draft that were checked.",
     offsetof(fb_scheduler_stats, drafted)},
    {"draft_tokens_kept_total", "counter", "Guesses of a draft that became tokens of answers.",
     offsetof(fb_scheduler_stats, kept)},
    {"preemptions_total", "counter", "Answers that were put back because the cache was full.",
     offsetof(fb_scheduler_stats, preempted)},
};

static void write_stats(serve_engine *const *engines, int count, FILE *out) {
    fb_scheduler_stats stats;
    for (size_t i = 0; i < sizeof stats_rows / sizeof *stats_rows; i++) {
        describe(out, stats_rows[i].name, stats_rows[i].type, stats_rows[i].help);
        for (int e = 0; e < count; e++) {
            fb_scheduler_get_stats(engines[e]->scheduler, &stats);
            fprintf(out, "fusebox_%s{model=\"%s\"} %" PRId64 "\n", stats_rows[i].name, engines[e]->name,
                    *(const int64_t *)((const char *)&stats + stats_rows[i].at));
        }
    }
    describe(out, "step_seconds_total", "counter", "Time of all steps.");
    for (int e = 0; e < count; e++) {
        fb_scheduler_get_stats(engines[e]->scheduler, &stats);
        fprintf(out, "fusebox_step_seconds_total{model=\"%s\"} %.9f\n", engines[e]->name, stats.step_seconds);
    }
}

static void write_answers(serve_engine *const *engines, int count, FILE *out) {
    static const struct {
        const char *name, *help;
        size_t at;
    } counters[] = {
        {"requests_total", "Requests for text that were taken.", offsetof(serve_metrics, requests)},
        {"requests_refused_total", "Requests for text that were refused for want of room.",
         offsetof(serve_metrics, refused)},
        {"embeddings_total", "Embeddings that were computed.", offsetof(serve_metrics, embeddings)},
        {"embedding_tokens_total", "Tokens of their texts.", offsetof(serve_metrics, embedding_tokens)},
    };
    static const char *const finishes[SERVE_FINISHES] = {NULL,     "end",       "stop",
                                                         "length", "cancelled", "failed"};
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++) {
        describe(out, counters[i].name, "counter", counters[i].help);
        for (int e = 0; e < count; e++) {
            char *metrics = (char *)&engines[e]->metrics;
            fprintf(out, "fusebox_%s{model=\"%s\"} %" PRId64 "\n", counters[i].name, engines[e]->name,
                    atomic_load((_Atomic int64_t *)(void *)(metrics + counters[i].at)));
        }
    }
    describe(out, "answers_total", "counter", "Answers that have ended, by why.");
    for (int e = 0; e < count; e++)
        for (int i = 1; i < SERVE_FINISHES; i++)
            fprintf(out, "fusebox_answers_total{model=\"%s\",finish=\"%s\"} %" PRId64 "\n", engines[e]->name,
                    finishes[i], atomic_load(&engines[e]->metrics.finished[i]));
}

static void write_fuses(serve_engine *const *engines, int count, FILE *out) {
    fb_fuse_state state;
    describe(out, "fuse_calls_total", "counter", "Calls of ops that a fuse made.");
    for (int e = 0; e < count; e++)
        for (int i = 0; fb_scheduler_fuse_state(engines[e]->scheduler, i, &state); i++)
            fprintf(out, "fusebox_fuse_calls_total{model=\"%s\",fuse=\"%s\"} %" PRId64 "\n", engines[e]->name,
                    state.name, state.calls);
}

void serve_metrics_write(serve_engine *const *engines, int count, int64_t connections, int64_t bodies,
                         FILE *out) {
    static const struct {
        const char *name, *help;
        size_t at;
    } histograms[] = {
        {"time_to_first_token_seconds", "From a request to its first token.",
         offsetof(serve_metrics, first_token)},
        {"time_between_tokens_seconds", "Between two tokens of an answer.",
         offsetof(serve_metrics, between_tokens)},
        {"answer_seconds", "From a request to the end of an answer.", offsetof(serve_metrics, answer)},
    };
    describe(out, "connections", "gauge", "Open connections.");
    fprintf(out, "fusebox_connections %" PRId64 "\n", connections);
    describe(out, "body_bytes", "gauge", "Bytes of requests that count for --max-bodies.");
    fprintf(out, "fusebox_body_bytes %" PRId64 "\n", bodies);
    write_stats(engines, count, out);
    write_answers(engines, count, out);
    write_fuses(engines, count, out);
    for (size_t i = 0; i < sizeof histograms / sizeof *histograms; i++) {
        describe(out, histograms[i].name, "histogram", histograms[i].help);
        for (int e = 0; e < count; e++)
            write_histogram(out, histograms[i].name, engines[e]->name,
                            (serve_histogram *)(void *)((char *)&engines[e]->metrics + histograms[i].at));
    }
}
