/* Rotary position embedding as a config describes it. */
#ifndef FB_ARCH_ROPE_H
#define FB_ARCH_ROPE_H

#include "arch/config.h"

struct fb_rope_type;

/* The frequencies of one table, and how they are scaled. */
typedef struct fb_rope {
    const struct fb_rope_type *type; /* NULL: nothing rotates; all frequencies are 0 */
    int32_t rotary;                  /* elements of a head that rotate; even */
    double base, fraction;
    double factor, low, high;      /* low, high: bands of llama3, betas of yarn */
    int64_t original_context;      /* that the model was trained on before it was scaled */
    double magnitude;              /* cosines and sines are multiplied by this */
    bool truncate;                 /* yarn: the bands begin and end at whole frequencies */
    const fb_json *shorts, *longs; /* longrope: a divisor for each frequency */
} fb_rope;

/* Reads a dictionary `rope` (rope_parameters, rope_scaling; NULL: the defaults), or older spellings of the
 * config itself. `what` names the dictionary in errors. `context`: max_position_embeddings. */
fb_status fb_rope_read(const fb_config *config, const char *what, const fb_json *rope, int64_t head_dim,
                       int64_t context, double default_base, double default_fraction, fb_rope *out,
                       fb_error *err);

/* Whether there are two tables: one for short contexts, one for long ones. */
bool fb_rope_has_long(const fb_rope *rope);

/* The frequencies [rotary / 2]; `is_long`: of the second table. */
void fb_rope_fill(const fb_rope *rope, bool is_long, double *to);

/* All frequencies of a program: a table for each rope, and behind it the long one if it has one. All rotate
 * as many elements. */
fb_status fb_rope_tables(const fb_rope *ropes, int32_t count, fb_spec *spec, fb_error *err);

/* Whether it is yarn with the settings that are usual, or with others. */
bool fb_rope_is_usual_yarn(const fb_rope *rope);
/* Whether frequencies are not scaled at all. */
bool fb_rope_is_default(const fb_rope *rope);
bool fb_rope_is_other(const fb_rope *rope);

/* Whether frequencies are only divided by the factor: what other formats call linear. */
bool fb_rope_is_linear(const fb_rope *rope);

/* The dictionary of a config: rope_parameters or rope_scaling, or NULL; and its name into `what`. */
fb_status fb_rope_dictionary(const fb_config *config, const fb_json **rope, char *what, size_t size,
                             fb_error *err);

/* Adds the lines of `fusebox info`. */
void fb_rope_facts(const fb_rope *rope, fb_spec *spec, int64_t head_dim);

#endif
