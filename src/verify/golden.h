/* A golden: the reference answer of Hugging Face transformers for some ids, in one safetensors file. */
#ifndef FB_VERIFY_GOLDEN_H
#define FB_VERIFY_GOLDEN_H

#include "file/safetensors.h"

typedef struct fb_golden {
    fb_tensor_table *table;
    const fb_tensor_entry *ids;        /* `input_ids`, I32 or I64 [tokens] */
    const fb_tensor_entry **hidden;    /* [layers]: `hidden.0` … `hidden.L`, F32 [tokens, width] */
    const fb_tensor_entry *logits;     /* F32 [tokens, vocab] */
    const fb_tensor_entry *logits_f64; /* F64, the same shape, or NULL */
    const fb_tensor_entry *greedy;     /* I32 or I64 [greedy tokens], or NULL */
    int64_t tokens, layers, width, vocab;
} fb_golden;

/* Checks that all tensors are present, with the right types and matching shapes. Ids must lie within `vocab`.
 */
fb_status fb_golden_open(const char *path, fb_golden *out, fb_error *err);
/* Takes ownership of the table, also on failure. Entry point of the fuzz target. */
fb_status fb_golden_from_table(const char *what, fb_tensor_table *table, fb_golden *out, fb_error *err);
void fb_golden_close(fb_golden *golden);

/* Checks of a file's tensors, shared by all readers of goldens. */
fb_status fb_golden_check_vector(const char *what, const fb_tensor_entry *entry, fb_error *err);
fb_status fb_golden_check_ids(const char *what, const fb_tensor_entry *entry, int64_t vocab, fb_error *err);
fb_status fb_golden_check_finite(const char *what, const fb_tensor_entry *entry, fb_error *err);
fb_status fb_golden_check_matrix(const char *what, const fb_tensor_entry *entry, fb_stored_type type,
                                 int64_t rows, int64_t *cols, fb_error *err);

/* The default `kv` for goldens: their cache was not rounded, so ours is not either, unless `kv` asks for it.
 */
const char *fb_golden_kv(const char *kv);
/* The largest relative rounding error of a dtype; 0 for float32, the dtype of goldens. */
double fb_golden_half_ulp(fb_dtype dtype);

int64_t fb_golden_int(const fb_tensor_entry *entry, int64_t index); /* of an I32 or I64 entry */
double fb_golden_real(const fb_tensor_entry *entry, int64_t index); /* of an F32 or F64 entry */

#endif
