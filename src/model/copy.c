#include "model/copy.h"

#include <stdlib.h>

static fb_status copy_spec(const fb_spec *from, fb_spec **out, fb_error *err) {
    int64_t tables = from->program.frequency_tables,
            bytes = tables * (from->hyper.rotary / 2) * (int64_t)sizeof(double);
    fb_spec *spec = malloc(sizeof *spec);
    *out = spec;
    if (!spec) return fb_fail_memory(err, "model", sizeof *spec);
    *spec = *from;
    if (!from->program.frequencies) return FB_OK;
    spec->program.frequencies = malloc((size_t)bytes);
    if (!spec->program.frequencies) return fb_fail_memory(err, "rotary frequencies", bytes);
    memcpy(spec->program.frequencies, from->program.frequencies, (size_t)bytes);
    return FB_OK;
}

static fb_status copy_model(const fb_model *from, fb_model *m, fb_error *err) {
    int64_t count = from->spec->program.slot_count * from->spec->program.layers;
    struct fb_attached *attached = m->attached;
    *m = *from;
    m->attached = attached;
    m->borrows = true;
    m->spec = NULL;
    m->weights = malloc((size_t)count * sizeof *m->weights);
    if (!m->weights) return fb_fail_memory(err, "weights", count * (int64_t)sizeof *m->weights);
    memcpy(m->weights, from->weights, (size_t)count * sizeof *m->weights);
    return copy_spec(from->spec, &m->spec, err);
}

fb_status fb_model_copy(const fb_model *model, fb_model **out, fb_error *err) {
    fb_model *m;
    *out = NULL;
    FB_TRY(fb_model_new(&m, err));
    fb_status status = copy_model(model, m, err);
    if (status != FB_OK) {
        fb_model_free(m);
        return status;
    }
    *out = m;
    return FB_OK;
}
