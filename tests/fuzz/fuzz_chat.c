#include "chat/jinja.h"
#include "fuzz/fuzz.h"

static const char messages[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \" S \"}, {\"role\": \"user\", \"content\": "
    "\"a \\u00e9\\n<|im_end|>\"}, {\"role\": \"assistant\", \"content\": \"b\", \"tool_calls\": "
    "[{\"function\": "
    "{\"name\": \"f\", \"arguments\": {\"x\": 1.5, \"y\": [null, true]}}}]}], \"tools\": null, \"n\": 3}";

/* Small limits: an input that uses them up must not take long. */
#define STEPS  20000
#define MEMORY (1 << 22)

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    fb_jinja_template *parsed;
    fb_jinja_output out;
    fb_json *root;
    fb_error err;
    fb_status status = fb_jinja_parse("fuzz", (const char *)bytes, size, &parsed, &err);
    if (status != FB_OK) {
        require_refusal(status, &err, parsed);
        return 0;
    }
    REQUIRE(fb_json_parse("messages", messages, sizeof messages - 1, sizeof messages, &root, &err) == FB_OK);
    fb_jinja_variable variables[8];
    int64_t count = 0;
    for (const fb_json *v = fb_json_first(root); v; v = fb_json_next(v))
        variables[count++] = (fb_jinja_variable){.name = fb_json_key(v), .json = v};
    variables[count++] = (fb_jinja_variable){.name = "bos_token", .text = "<s>"};
    fb_jinja_options options = {.variables = variables, .count = count, .steps = STEPS, .memory = MEMORY};
    status = fb_jinja_render(parsed, &options, &out, &err);
    if (status != FB_OK) require_refusal(status, &err, out.text);
    if (status == FB_OK) REQUIRE(out.text[out.size] == 0 && fb_json_is_utf8(out.text, out.size));
    fb_jinja_output_free(&out);
    fb_jinja_free(parsed);
    fb_json_free(root);
    return 0;
}
