#include "verify/golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HIDDEN "hidden."

const char *fb_golden_kv(const char *kv) { return kv && strcmp(kv, "auto") != 0 ? kv : "act"; }

double fb_golden_half_ulp(fb_dtype t) { return t == FB_F16 ? 0x1p-11 : t == FB_BF16 ? 0x1p-8 : 0; }

int64_t fb_golden_int(const fb_tensor_entry *entry, int64_t index) {
    const uint8_t *at = entry->data + fb_stored_bytes(entry->type, index);
    int32_t narrow;
    int64_t wide;
    if (entry->type == FB_STORED_I32) {
        memcpy(&narrow, at, sizeof narrow);
        return narrow;
    }
    memcpy(&wide, at, sizeof wide);
    return wide;
}

double fb_golden_real(const fb_tensor_entry *entry, int64_t index) {
    const uint8_t *at = entry->data + fb_stored_bytes(entry->type, index);
    float narrow;
    double wide;
    if (entry->type == FB_STORED_F32) {
        memcpy(&narrow, at, sizeof narrow);
        return (double)narrow;
    }
    memcpy(&wide, at, sizeof wide);
    return wide;
}

static fb_status need(const char *what, const fb_tensor_table *table, const char *name,
                      const fb_tensor_entry **out, fb_error *err) {
    *out = fb_tensors_find(table, name);
    return *out ? FB_OK : fb_fail(err, FB_ERROR_FILE, "%s: tensor %s: missing", what, name);
}

static fb_status check_type(const char *what, const fb_tensor_entry *entry, fb_stored_type type,
                            fb_stored_type other, fb_error *err) {
    if (entry->type == type || entry->type == other) return FB_OK;
    return fb_fail(err, FB_ERROR_FILE, "%s: tensor %s: dtype: %s (expected %s%s%s)", what, entry->name,
                   fb_stored_name(entry->type), fb_stored_name(type), type == other ? "" : " or ",
                   type == other ? "" : fb_stored_name(other));
}

/* Checks an integer vector of ids within the vocabulary. */
fb_status fb_golden_check_ids(const char *what, const fb_tensor_entry *entry, int64_t vocab, fb_error *err) {
    for (int64_t i = 0; i < entry->count; i++) {
        int64_t id = fb_golden_int(entry, i);
        if (id < 0 || id >= vocab)
            return fb_fail(err, FB_ERROR_FILE, "%s: tensor %s: id %lld: %lld (0 to %lld)", what, entry->name,
                           (long long)i, (long long)id, (long long)(vocab - 1));
    }
    return FB_OK;
}

fb_status fb_golden_check_vector(const char *what, const fb_tensor_entry *entry, fb_error *err) {
    char text[128];
    FB_TRY(check_type(what, entry, FB_STORED_I32, FB_STORED_I64, err));
    if (entry->dims == 1 && entry->count > 0) return FB_OK;
    return fb_fail(err, FB_ERROR_FILE, "%s: tensor %s: shape: %s (expected one dimension, at least 1 long)",
                   what, entry->name, fb_tensor_shape_text(entry, text, sizeof text));
}

fb_status fb_golden_check_finite(const char *what, const fb_tensor_entry *entry, fb_error *err) {
    for (int64_t i = 0; i < entry->count; i++) {
        double value = fb_golden_real(entry, i);
        if (!isfinite(value))
            return fb_fail(err, FB_ERROR_FILE, "%s: tensor %s: element %lld: %g (finite)", what, entry->name,
                           (long long)i, value);
    }
    return FB_OK;
}

/* Checks a matrix of finite numbers [rows, cols]. The first call sets *cols; later ones must agree. NaN would
 * pass no comparison, and an infinity every relative one, so neither can be a reference. */
fb_status fb_golden_check_matrix(const char *what, const fb_tensor_entry *entry, fb_stored_type type,
                                 int64_t rows, int64_t *cols, fb_error *err) {
    char text[128];
    FB_TRY(check_type(what, entry, type, type, err));
    if (*cols == 0 && entry->dims == 2) *cols = entry->shape[1];
    if (entry->dims != 2 || entry->shape[0] != rows || entry->shape[1] != *cols || *cols < 1)
        return fb_fail(err, FB_ERROR_FILE, "%s: tensor %s: shape: %s (expected [%lld, %s%lld])", what,
                       entry->name, fb_tensor_shape_text(entry, text, sizeof text), (long long)rows,
                       *cols < 1 ? "at least " : "", (long long)(*cols < 1 ? 1 : *cols));
    return fb_golden_check_finite(what, entry, err);
}

/* Finds hidden.0, hidden.1, … without a gap. */
static fb_status find_hidden(const char *what, fb_golden *golden, fb_error *err) {
    int64_t named = 0, count = fb_tensors_count(golden->table);
    for (int64_t i = 0; i < count; i++)
        named += !strncmp(fb_tensors_at(golden->table, i)->name, HIDDEN, strlen(HIDDEN));
    if (named == 0) return fb_fail(err, FB_ERROR_FILE, "%s: tensor " HIDDEN "0: missing", what);
    golden->hidden = calloc((size_t)named, sizeof *golden->hidden);
    if (!golden->hidden) return fb_fail_memory(err, what, named * (int64_t)sizeof *golden->hidden);
    for (; golden->layers < named; golden->layers++) {
        char name[32];
        snprintf(name, sizeof name, HIDDEN "%lld", (long long)golden->layers);
        golden->hidden[golden->layers] = fb_tensors_find(golden->table, name);
        if (!golden->hidden[golden->layers])
            return fb_fail(err, FB_ERROR_FILE, "%s: tensor %s: missing (%lld tensors are named " HIDDEN "N)",
                           what, name, (long long)named);
    }
    return FB_OK;
}

static fb_status read_table(const char *what, fb_golden *golden, fb_error *err) {
    const fb_tensor_table *table = golden->table;
    FB_TRY(need(what, table, "input_ids", &golden->ids, err));
    FB_TRY(need(what, table, "logits", &golden->logits, err));
    golden->logits_f64 = fb_tensors_find(table, "logits_f64");
    golden->greedy = fb_tensors_find(table, "greedy");
    FB_TRY(find_hidden(what, golden, err));

    FB_TRY(fb_golden_check_vector(what, golden->ids, err));
    golden->tokens = golden->ids->count;
    FB_TRY(fb_golden_check_matrix(what, golden->logits, FB_STORED_F32, golden->tokens, &golden->vocab, err));
    if (golden->logits_f64)
        FB_TRY(fb_golden_check_matrix(what, golden->logits_f64, FB_STORED_F64, golden->tokens, &golden->vocab,
                                      err));
    for (int64_t layer = 0; layer < golden->layers; layer++)
        FB_TRY(fb_golden_check_matrix(what, golden->hidden[layer], FB_STORED_F32, golden->tokens,
                                      &golden->width, err));
    FB_TRY(fb_golden_check_ids(what, golden->ids, golden->vocab, err));
    if (!golden->greedy) return FB_OK;
    FB_TRY(fb_golden_check_vector(what, golden->greedy, err));
    return fb_golden_check_ids(what, golden->greedy, golden->vocab, err);
}

fb_status fb_golden_from_table(const char *what, fb_tensor_table *table, fb_golden *out, fb_error *err) {
    *out = (fb_golden){.table = table};
    fb_status status = read_table(what, out, err);
    if (status != FB_OK) fb_golden_close(out);
    return status;
}

fb_status fb_golden_open(const char *path, fb_golden *out, fb_error *err) {
    *out = (fb_golden){0};
    fb_tensor_table *table;
    FB_TRY(fb_tensors_open(path, &table, err));
    return fb_golden_from_table(path, table, out, err);
}

void fb_golden_close(fb_golden *golden) {
    free(golden->hidden);
    fb_tensors_free(golden->table);
    *golden = (fb_golden){0};
}
