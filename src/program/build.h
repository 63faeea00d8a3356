/* Builds a program. Each call appends an op to the current section and returns the value that it computes. If
 * a table is full, fb_build_end reports it, so that an architecture reads as a plain list of ops. */
#ifndef FB_PROGRAM_BUILD_H
#define FB_PROGRAM_BUILD_H

#include "program/program.h"

typedef struct fb_build {
    fb_program *program;
    fb_section section;
    bool full;
} fb_build;

/* Weights. A matrix is [rows, cols] = [outputs, inputs]. A name with "{}" stands for one tensor per layer. */
int32_t fb_build_vector(fb_build *b, const char *name, int64_t cols);
/* The weight of a norm that a checkpoint stores less 1. */
int32_t fb_build_vector_plus_one(fb_build *b, const char *name, int64_t cols);
int32_t fb_build_matrix(fb_build *b, const char *name, int64_t rows, int64_t cols);
int32_t fb_build_matrix_transposed(fb_build *b, const char *name, int64_t rows, int64_t cols);
/* Rows `first` to first + rows - 1 of a matrix [of, cols], or elements of a vector [of]. */
int32_t fb_build_matrix_part(fb_build *b, const char *name, int64_t first, int64_t rows, int64_t of,
                             int64_t cols);
int32_t fb_build_vector_part(fb_build *b, const char *name, int64_t first, int64_t cols, int64_t of);

/* A view of `heads` heads of `width` elements, `stride` apart, starting at element `offset` of each row of
 * `of`. */
int32_t fb_build_view(fb_build *b, const char *name, int32_t of, int64_t heads, int64_t width, int64_t offset,
                      int64_t stride);

/* `scale`: of every element; 1: none. */
int32_t fb_build_embed(fb_build *b, const char *name, int32_t table, double scale);
int32_t fb_build_embed_position(fb_build *b, const char *name, int32_t table);
/* The angles of frequency table `table`; cosines and sines are multiplied by `scale`. */
int32_t fb_build_rope_angles(fb_build *b, const char *name, int32_t rotary, int32_t table, double scale);
int32_t fb_build_layernorm(fb_build *b, const char *name, int32_t x, int32_t weight, int32_t bias,
                           double eps);
/* Of each head, if x has several and the weight has as many elements as one of them. */
int32_t fb_build_rmsnorm(fb_build *b, const char *name, int32_t x, int32_t weight, double eps);
int32_t fb_build_linear(fb_build *b, const char *name, int32_t x, int32_t weight, int32_t bias);
int32_t fb_build_rope(fb_build *b, const char *name, int32_t x, int32_t angles);
void fb_build_kv_append(fb_build *b, int32_t k, int32_t v);
/* attn_scores, softmax and attn_values. `cap`: of the scores; 0: none. */
int32_t fb_build_attention(fb_build *b, const char *name, int32_t q, double scale, double cap);
int32_t fb_build_unary(fb_build *b, fb_op_kind kind, const char *name, int32_t x);
int32_t fb_build_binary(fb_build *b, fb_op_kind kind, const char *name, int32_t x, int32_t y);
int32_t fb_build_scale(fb_build *b, const char *name, int32_t x, double scale);
int32_t fb_build_softcap(fb_build *b, const char *name, int32_t x, double cap);

/* The matrices [rows, cols] of all experts; "[]" in the name stands for the expert. */
int32_t fb_build_expert_matrix(fb_build *b, const char *name, int64_t experts, int64_t rows, int64_t cols);
/* The `used` largest of softmax(scores), as pairs (expert, share). `one`: shares are divided by their sum. */
int32_t fb_build_top_k(fb_build *b, const char *name, int32_t scores, int32_t used, bool one);
/* `each`: x has a part for each of a row's experts. */
int32_t fb_build_expert_linear(fb_build *b, const char *name, int32_t x, int32_t routes, int32_t weight,
                               bool each);
int32_t fb_build_expert_sum(fb_build *b, const char *name, int32_t x, int32_t routes);

void fb_build_carry(fb_build *b, int32_t next, int32_t from);

fb_status fb_build_end(fb_build *b, fb_error *err);

#endif
