/* fusebox info: what a model is, and its plain program. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/json_out.h"
#include "cli/model.h"
#include "cli/output.h"

static void print_weights(const fb_model *model, const fb_model_info *info) {
    fb_dtype dtype;
    int64_t weights, bytes;
    char scaled[CLI_NUMBER_BYTES], digits[CLI_NUMBER_BYTES];
    printf("%-24s%s", "parameters", cli_format_scaled((double)info->parameters, scaled));
    printf(" (%s)\n", cli_format_digits(info->parameters, digits));
    for (int i = 0; fb_model_weights(model, i, &dtype, &weights, &bytes); i++) {
        printf("%-12s%-12s%sB", "weights", fb_dtype_name(dtype), cli_format_scaled((double)bytes, scaled));
        printf(" (%s bytes", cli_format_digits(bytes, digits));
        printf(", %s parameters)\n", cli_format_digits(weights, digits));
    }
}

static void print_line(const char *name, const char *value) {
    printf("%-24s", name);
    cli_put(value);
    putchar('\n');
}

static void print_size(const char *name, int64_t value) { printf("%-24s%" PRId64 "\n", name, value); }

/* The first one's source; the names, if there are several. */
static void print_templates(const fb_model *model) {
    const char *name, *text, *source = fb_model_chat_source(model, 0);
    printf("%-24s%s", "chat template", source ? source : "none");
    for (int i = 0; fb_model_chat_source(model, 1) && fb_model_chat_template(model, i, &name, &text); i++) {
        fputs(i ? ", " : ": ", stdout);
        cli_put(name);
    }
    putchar('\n');
}

static void print_text(const char *path, const fb_model *model, const fb_model_info *info,
                       const char *program) {
    const char *name, *value;
    print_line("model", path);
    for (int i = 0; fb_model_fact(model, i, &name, &value); i++) print_line(name, value);
    print_size("layers", info->layers);
    print_size("hidden", info->hidden);
    print_size("vocabulary", info->vocab);
    print_size("context", info->context);
    print_weights(model, info);
    print_line("tokenizer", info->has_tokenizer ? "yes" : "none");
    print_templates(model);
    putchar('\n');
    cli_put_lines(stdout, program, strlen(program));
    size_t length = strlen(program);
    if (length > 0 && program[length - 1] != '\n') putchar('\n');
}

static void print_json(const char *path, const fb_model *model, const fb_model_info *info,
                       const char *program) {
    const char *name, *value;
    fb_dtype dtype;
    int64_t weights, bytes;
    cli_json json = {.out = stdout};
    cli_json_open(&json, NULL, '{');
    cli_json_string(&json, "model", path);
    cli_json_string(&json, "architecture", info->architecture);
    cli_json_int(&json, "layers", info->layers);
    cli_json_int(&json, "hidden", info->hidden);
    cli_json_int(&json, "vocab", info->vocab);
    cli_json_int(&json, "context", info->context);
    cli_json_int(&json, "parameters", info->parameters);
    cli_json_bool(&json, "has_tokenizer", info->has_tokenizer);
    cli_json_open(&json, "chat_templates", '{');
    for (int i = 0; fb_model_chat_template(model, i, &name, &value); i++)
        cli_json_string(&json, name, fb_model_chat_source(model, i));
    cli_json_close(&json, '}');
    cli_json_open(&json, "weights", '{');
    for (int i = 0; fb_model_weights(model, i, &dtype, &weights, &bytes); i++) {
        cli_json_open(&json, fb_dtype_name(dtype), '{');
        cli_json_int(&json, "parameters", weights);
        cli_json_int(&json, "bytes", bytes);
        cli_json_close(&json, '}');
    }
    cli_json_close(&json, '}');
    cli_json_open(&json, "facts", '{');
    for (int i = 0; fb_model_fact(model, i, &name, &value); i++) cli_json_string(&json, name, value);
    cli_json_close(&json, '}');
    cli_json_string(&json, "program", program);
    cli_json_close(&json, '}');
    putchar('\n');
}

static int show(const char *path, const fb_model *model, bool as_json) {
    fb_error err;
    fb_model_info info;
    char *program = NULL;
    fb_model_get_info(model, &info);
    if (fb_model_program_text(model, &program, &err) != FB_OK) return cli_fail_error(&err);
    (as_json ? print_json : print_text)(path, model, &info, program);
    fb_free(program);
    return CLI_OK;
}

/* ---- the GPUs ---- */

static void print_device(int32_t index, const fb_device_info *d) {
    char memory[CLI_NUMBER_BYTES], unused[CLI_NUMBER_BYTES], l2[CLI_NUMBER_BYTES];
    printf("cuda:%-18d ", index);
    cli_put(d->name);
    printf(", %s, %d multiprocessors, %sB", d->isa, d->multiprocessors,
           cli_format_scaled((double)d->memory, memory));
    printf(" (%sB free), L2 %sB, ", cli_format_scaled((double)d->memory_free, unused),
           cli_format_scaled((double)d->l2_bytes, l2));
    printf("%d KB of shared memory a block, driver for CUDA %d.%d\n", d->shared_bytes / 1024,
           d->driver / 1000, d->driver % 1000 / 10);
    if (*d->why_not) printf("%24s not usable: %s\n", "", d->why_not);
}

static void write_device(cli_json *json, const fb_device_info *d) {
    cli_json_open(json, NULL, '{');
    cli_json_string(json, "name", d->name);
    cli_json_string(json, "isa", d->isa);
    cli_json_int(json, "multiprocessors", d->multiprocessors);
    cli_json_int(json, "memory", d->memory);
    cli_json_int(json, "memory_free", d->memory_free);
    cli_json_int(json, "l2_bytes", d->l2_bytes);
    cli_json_int(json, "shared_bytes", d->shared_bytes);
    cli_json_int(json, "driver", d->driver);
    cli_json_int(json, "runtime", d->runtime);
    cli_json_bool(json, "usable", !*d->why_not);
    cli_json_string(json, "why_not", d->why_not);
    cli_json_close(json, '}');
}

/* Why there is none is an answer, too. */
static int show_devices(bool as_json) {
    cli_json json = {.out = stdout};
    fb_device_info device;
    fb_error err = {0};
    bool found = true;
    int32_t count = 0;
    fb_status status = FB_OK;
    if (as_json) {
        cli_json_open(&json, NULL, '{');
        cli_json_open(&json, "devices", '[');
    }
    for (; found && status == FB_OK; count += found) {
        status = fb_device_get(count, &found, &device, &err);
        if (status != FB_OK || !found) break;
        if (as_json)
            write_device(&json, &device);
        else
            print_device(count, &device);
    }
    if (as_json) {
        cli_json_close(&json, ']');
        cli_json_string(&json, "why_not", err.message);
        cli_json_close(&json, '}');
        putchar('\n');
    } else if (status != FB_OK) {
        printf("no device: %s\n", err.message);
    }
    return CLI_OK;
}

int cli_info(const cli_command *command, int argc, char **argv) {
    bool as_json = false, devices = false;
    const cli_option options[] = {
        {CLI_ROW(0, "devices", CLI_FLAG, &devices, NULL, "the GPUs that were found, or why there is none")},
        {CLI_ROW(0, "json", CLI_FLAG, &as_json, NULL, "one JSON object")},
    };
    const cli_group groups[] = {{"output", options, 2}};
    cli_args args = {.command = command,
                     .notes = CLI_MODEL_NOTES,
                     .groups = groups,
                     .group_count = 1,
                     .max_positionals = 1,
                     .takes_model = true};
    int status;
    if (!cli_args_parse(&args, argc, argv, &status)) return status;
    if (devices && args.positional_count)
        return cli_fail(CLI_USAGE, "MODEL: %s (not with --devices)", args.positionals[0]);
    if (devices) return show_devices(as_json);
    char *path;
    fb_model *model;
    status = cli_model_open(args.positional_count ? args.positionals[0] : NULL, &path, &model);
    if (status == CLI_OK) status = show(path, model, as_json);
    fb_model_free(model);
    free(path);
    return status;
}
