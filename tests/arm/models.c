/* What tests/arm/run.sh asks of whole models; the command line would need libraries that nothing else here
 * needs. Usage: models quantize MODEL TYPE OUT.gguf models golden FOLDER ISA    against the reference answer
 * in FOLDER models fuses MODEL ISA      each fuse, and all of them, against the plain program models batch
 * MODEL ISA      answers in random batches against the same answers alone */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fusebox.h"
#include "fusebox_tools.h"

static int failed(const char *what) {
    fprintf(stderr, "FAILED: %s\n", what);
    return 1;
}

static int quantize(const fb_model *model, const char *type, const char *path, fb_error *err) {
    fb_quantize_options o;
    fb_quantize_options_default(&o);
    if (fb_quantize_options_parse(type, &o, err) != FB_OK) return failed(err->message);
    o.name = "tiny";
    return fb_model_quantize(model, path, &o, NULL, err) == FB_OK ? 0 : failed(err->message);
}

static int golden(const fb_model *model, const char *folder, const char *isa, fb_error *err) {
    char path[256];
    fb_verify_options o;
    fb_verify_report *r;
    fb_verify_options_default(&o);
    o.isa = isa;
    snprintf(path, sizeof path, "%s/golden.safetensors", folder);
    if (fb_verify_golden(model, path, &o, &r, err) != FB_OK) return failed(err->message);
    bool ok = r->ok;
    printf("logits off by %g (at most %g), %lld of %lld tokens\n", r->logits.max_abs, r->logits.limit,
           (long long)r->greedy_equal, (long long)r->greedy_tokens);
    fb_verify_free(r);
    return ok ? 0 : failed("not the reference answer");
}

static int fuses(const fb_model *model, const char *isa, fb_error *err) {
    fb_fusion_options o;
    fb_fusion_report *r;
    fb_fusion_options_default(&o);
    o.isa = isa;
    if (fb_verify_fusion(model, &o, &r, err) != FB_OK) return failed(err->message);
    bool ok = r->ok;
    for (int64_t i = 0; i < r->count; i++)
        printf("%s: %s\n", r->rows[i]->name, r->rows[i]->ok ? "ok" : r->rows[i]->why);
    fb_fusion_free(r);
    return ok ? 0 : failed("a fuse changes the answer");
}

static int batch(const fb_model *model, const char *isa, fb_error *err) {
    fb_batch_verify_options o;
    fb_batch_report r = {.size = sizeof r};
    fb_batch_verify_options_default(&o);
    o.isa = isa;
    o.rounds = 2;
    if (fb_verify_batch(model, &o, &r, err) != FB_OK) return failed(err->message);
    printf("%lld answers, %lld tokens\n", (long long)r.answers, (long long)r.tokens);
    return r.ok ? 0 : failed(r.first);
}

int main(int argc, char **argv) {
    fb_error err;
    fb_model *model;
    if (argc < 4) return failed("usage");
    const char *what = argv[1];
    if (fb_model_open(argv[2], &model, &err) != FB_OK) return failed(err.message);
    int status = strcmp(what, "quantize") == 0 && argc == 5 ? quantize(model, argv[3], argv[4], &err)
                 : strcmp(what, "golden") == 0              ? golden(model, argv[2], argv[3], &err)
                 : strcmp(what, "fuses") == 0               ? fuses(model, argv[3], &err)
                 : strcmp(what, "batch") == 0               ? batch(model, argv[3], &err)
                                                            : failed("usage");
    fb_model_free(model);
    return status;
}
