/* The body of a request, behind a byte that says for which path: what is not refused is in its range, and so
 * are the prompt's tokens. No socket and no step. */
#include <stdlib.h>

#include "cli/json_out.h"
#include "file/json.h"
#include "fuzz/fuzz.h"
#include "serve/engine.h"
#include "serve/prompt.h"
#include "serve/record.h"
#include "serve/schema.h"

/* What a job that is never submitted does not call. */
void fb_scheduler_cancel(fb_scheduler *scheduler, uint64_t request) { REQUIRE(!scheduler && !request); }
void fb_scheduler_pause(fb_scheduler *scheduler, uint64_t request, bool paused) {
    REQUIRE(!scheduler && !request && !paused);
}
void serve_engine_count(serve_engine *engine, fb_finish finish) { REQUIRE(!engine && finish < 0); }
void serve_engine_wake(serve_engine *engine) { REQUIRE(!engine); }
void serve_histogram_add(serve_histogram *histogram, double seconds) { REQUIRE(!histogram && seconds < 0); }
void serve_record_write(serve_record *record, serve_job *job) { REQUIRE(!record && !job); }
void serve_wake(serve_exchange *exchange) { REQUIRE(!exchange); }
uint32_t serve_fuses_on(serve_engine *engine) {
    REQUIRE(!engine);
    return 0;
}

static serve_engine *builtin(void) {
    static serve_engine engine;
    fb_model_info info;
    if (engine.model) return &engine;
    REQUIRE(fb_model_open("models/storyteller", &engine.model, NULL) == FB_OK);
    fb_model_get_info(engine.model, &info);
    engine.name = (char *)"storyteller";
    engine.vocab = info.vocab;
    engine.capacity = info.context;
    return &engine;
}

/* A status of the API, and a reply that is JSON whatever the request has put into it. */
static void check_fault(const serve_fault *f) {
    char *text = NULL;
    size_t bytes;
    fb_json *json;
    REQUIRE(f->status == 400 && f->message[0] && f->code[0]);
    FILE *out = open_memstream(&text, &bytes);
    REQUIRE(out);
    cli_json w = {.out = out};
    cli_json_open(&w, NULL, '{');
    cli_json_string(&w, "message", f->message);
    cli_json_string(&w, "param", f->param);
    cli_json_close(&w, '}');
    REQUIRE(fclose(out) == 0);
    REQUIRE(fb_json_parse("reply", text, bytes, bytes, &json, NULL) == FB_OK);
    fb_json_free(json);
    free(text);
}

static void check_params(const serve_params *p) {
    REQUIRE(p->temperature >= 0 && p->temperature <= 100 && p->top_p >= 0 && p->top_p <= 1);
    REQUIRE(p->min_p >= 0 && p->min_p <= 1 && p->repeat_penalty > 0 && p->repeat_penalty <= 100);
    REQUIRE(p->n >= 1 && p->n <= 1024 && p->max_tokens >= -1 && p->top_k >= 0);
    REQUIRE(p->logprobs >= -1 && p->logprobs <= FB_MAX_LOGPROBS && p->priority >= -1000 &&
            p->priority <= 1000);
    REQUIRE(p->stop_count <= SERVE_MAX_STOPS && p->bias_count <= SERVE_MAX_BIAS);
    for (int32_t i = 0; i < p->stop_count; i++) REQUIRE(p->stops[i][0]);
    for (int64_t i = 0; i < p->bias_count; i++) REQUIRE(p->biases[i].id >= 0 && p->biases[i].bias <= 100);
}

static bool take(serve_engine *e, const serve_params *p, serve_fault *f) {
    int32_t prompts = p->messages ? 1 : serve_prompt_count(p, f);
    if (!prompts) return false;
    REQUIRE(prompts > 0 && prompts <= SERVE_MAX_PROMPTS);
    serve_job *j = serve_job_create(e, prompts, 1, -1);
    REQUIRE(j);
    bool good = serve_prompt_take(e, p, j, f) && (!p->json || serve_schema_take(p, j, f));
    for (int32_t i = 0; good && i < prompts; i++) {
        REQUIRE(j->parts[i].prompt_count > 0 &&
                j->parts[i].prompt_count + (p->max_tokens != 0) <= e->capacity);
        for (int64_t k = 0; k < j->parts[i].prompt_count; k++)
            REQUIRE(j->parts[i].prompt[k] >= 0 && j->parts[i].prompt[k] < e->vocab);
    }
    serve_job_give(j);
    return good;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    serve_engine *e = builtin();
    serve_fault fault = {0};
    serve_params p;
    fb_sampler_options sampling;
    if (!size) return 0;
    fb_sampler_options_default(&sampling);
    int endpoint = bytes[0] & 1 ? SERVE_COMPLETION : SERVE_CHAT;
    if (!serve_params_parse(endpoint, (const char *)bytes + 1, size - 1, &sampling, &p, &fault)) {
        check_fault(&fault);
        return 0;
    }
    check_params(&p);
    if (!take(e, &p, &fault)) check_fault(&fault);
    serve_params_free(&p);
    return 0;
}
