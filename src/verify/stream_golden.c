#include "verify/stream_golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NLL   "nll"
#define CASES "nll."
/* The largest number of sinks or window that a file may name: no sum of them overflows. */
#define MOST (1ll << 40)

bool fb_stream_golden_is(const fb_tensor_table *table) {
    if (fb_tensors_find(table, NLL)) return true;
    for (int64_t i = 0; i < fb_tensors_count(table); i++)
        if (strncmp(fb_tensors_at(table, i)->name, CASES, strlen(CASES)) == 0) return true;
    return false;
}

/* Parses a number from 0 to MOST; *end is the character after it. */
static bool take_number(const char *text, const char **end, int64_t *out) {
    *out = 0;
    if (*text < '0' || *text > '9') return false;
    for (; *text >= '0' && *text <= '9'; text++)
        if ((*out = *out * 10 + (*text - '0')) > MOST) return false;
    *end = text;
    return true;
}

static fb_status from_metadata(const char *what, const fb_tensor_table *table, const char *key, int64_t *out,
                               fb_error *err) {
    const char *text = fb_tensors_metadata(table, key), *end;
    if (!text) return fb_fail(err, FB_ERROR_FILE, "%s: metadata: %s: missing", what, key);
    if (take_number(text, &end, out) && !*end) return FB_OK;
    return fb_fail(err, FB_ERROR_FILE, "%s: metadata: %s: \"%.32s\" (a number)", what, key, text);
}

/* Parses "dense" or a name such as "sinks4_window252". */
static fb_status from_name(const char *what, const char *name, fb_stream_case *c, fb_error *err) {
    const char *at = name + strlen(CASES);
    if (strcmp(at, "dense") == 0) return FB_OK;
    if (strncmp(at, "sinks", 5) == 0 && take_number(at + 5, &at, &c->sinks) &&
        strncmp(at, "_window", 7) == 0 && take_number(at + 7, &at, &c->window) && !*at && c->window)
        return FB_OK;
    return fb_fail(err, FB_ERROR_FILE, "%s: tensor %.64s: name (" CASES "dense or " CASES "sinksN_windowN)",
                   what, name);
}

static fb_status add_case(const char *what, fb_stream_golden *g, const fb_tensor_entry *nll, int64_t vocab,
                          fb_error *err) {
    char text[128];
    if (g->count == FB_MAX_STREAM_CASES)
        return fb_fail(err, FB_ERROR_FILE, "%s: tensors named " CASES "…: more than %d", what,
                       FB_MAX_STREAM_CASES);
    fb_stream_case *c = &g->cases[g->count++];
    *c = (fb_stream_case){.nll = nll};
    if (nll->type != FB_STORED_F32 && nll->type != FB_STORED_F64)
        return fb_fail(err, FB_ERROR_FILE, "%s: tensor %s: dtype: %s (expected F32 or F64)", what, nll->name,
                       fb_stored_name(nll->type));
    if (nll->dims != 1 || nll->count != g->tokens - 1)
        return fb_fail(err, FB_ERROR_FILE, "%s: tensor %s: shape: %s (expected [%lld])", what, nll->name,
                       fb_tensor_shape_text(nll, text, sizeof text), (long long)g->tokens - 1);
    FB_TRY(fb_golden_check_finite(what, nll, err));
    if (strcmp(nll->name, NLL) == 0) {
        FB_TRY(from_metadata(what, g->table, "sinks", &c->sinks, err));
        FB_TRY(from_metadata(what, g->table, "window", &c->window, err));
        c->logits = fb_tensors_find(g->table, "logits");
        if (c->logits)
            FB_TRY(fb_golden_check_matrix(what, c->logits, FB_STORED_F32, g->tokens - 1, &vocab, err));
    } else {
        FB_TRY(from_name(what, nll->name, c, err));
    }
    c->cache = !c->window ? FB_CACHE_DENSE : c->sinks ? FB_CACHE_SINKS : FB_CACHE_WINDOW;
    return FB_OK;
}

static fb_status read_table(const char *what, fb_stream_golden *g, int64_t vocab, fb_error *err) {
    g->ids = fb_tensors_find(g->table, "input_ids");
    if (!g->ids) return fb_fail(err, FB_ERROR_FILE, "%s: tensor input_ids: missing", what);
    FB_TRY(fb_golden_check_vector(what, g->ids, err));
    FB_TRY(fb_golden_check_ids(what, g->ids, vocab, err));
    g->tokens = g->ids->count;
    if (g->tokens < 2) return fb_fail(err, FB_ERROR_FILE, "%s: tensor input_ids: 1 token (at least 2)", what);
    for (int64_t i = 0; i < fb_tensors_count(g->table); i++) {
        const fb_tensor_entry *entry = fb_tensors_at(g->table, i);
        if (strcmp(entry->name, NLL) == 0 || strncmp(entry->name, CASES, strlen(CASES)) == 0)
            FB_TRY(add_case(what, g, entry, vocab, err));
    }
    return g->count ? FB_OK : fb_fail(err, FB_ERROR_FILE, "%s: tensor " NLL ": missing", what);
}

fb_status fb_stream_golden_from_table(const char *what, fb_tensor_table *table, int64_t vocab,
                                      fb_stream_golden *out, fb_error *err) {
    *out = (fb_stream_golden){.table = table};
    fb_status status = read_table(what, out, vocab, err);
    if (status != FB_OK) fb_stream_golden_close(out);
    return status;
}

fb_status fb_stream_golden_open(const char *path, int64_t vocab, fb_stream_golden *out, fb_error *err) {
    *out = (fb_stream_golden){0};
    fb_tensor_table *table;
    FB_TRY(fb_tensors_open(path, &table, err));
    return fb_stream_golden_from_table(path, table, vocab, out, err);
}

void fb_stream_golden_close(fb_stream_golden *golden) {
    fb_tensors_free(golden->table);
    *golden = (fb_stream_golden){0};
}
