/* Counters and histograms, as Prometheus reads them. */
#ifndef FB_SERVE_METRICS_H
#define FB_SERVE_METRICS_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#define SERVE_BUCKETS 20

/* Bucket i counts what is at most 1 ms times 2^i. */
typedef struct serve_histogram {
    _Atomic int64_t buckets[SERVE_BUCKETS + 1];
    _Atomic int64_t nanoseconds;
} serve_histogram;

void serve_histogram_add(serve_histogram *histogram, double seconds);

#define SERVE_FINISHES 6

typedef struct serve_metrics {
    serve_histogram first_token, between_tokens, answer;
    _Atomic int64_t requests, refused;
    _Atomic int64_t embeddings, embedding_tokens; /* that were answered */
    _Atomic int64_t finished[SERVE_FINISHES];     /* answers, by fb_finish */
} serve_metrics;

struct serve_engine;

/* The text of /metrics. `bodies`: bytes of requests' bodies that are kept. */
void serve_metrics_write(struct serve_engine *const *engines, int count, int64_t connections, int64_t bodies,
                         FILE *out);

#endif
