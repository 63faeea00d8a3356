#include "cli/json_out.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "fusebox_tools.h"

static void write_ascii(FILE *out, unsigned char c) {
    static const char escaped[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    const char *at = c ? strchr(escaped, c) : NULL;
    if (at)
        fprintf(out, "\\%c", letters[at - escaped]);
    else if (c < 0x20 || c == 0x7f)
        fprintf(out, "\\u%04x", c);
    else
        putc(c, out);
}

/* What would steer a terminal, which may be where this goes, is escaped; bytes that are no UTF-8 are U+FFFD.
 */
static void write_string(FILE *out, const char *text, size_t bytes) {
    char shown[FB_SHOWN_BYTES];
    putc('"', out);
    for (size_t at = 0, length; at < bytes; at += length) {
        length = fb_show_character(text + at, bytes - at, false, shown);
        unsigned char first = (unsigned char)text[at];
        if (first < 0x80)
            write_ascii(out, first);
        else
            fputs(length == 1 ? "\\ufffd" : shown, out);
    }
    putc('"', out);
}

/* Writes what stands before a value. */
static void begin(cli_json *json, const char *key) {
    if (json->comma) putc(',', json->out);
    json->comma = true;
    if (!key) return;
    write_string(json->out, key, strlen(key));
    putc(':', json->out);
}

void cli_json_open(cli_json *json, const char *key, char bracket) {
    begin(json, key);
    putc(bracket, json->out);
    json->comma = false;
}

void cli_json_close(cli_json *json, char bracket) {
    putc(bracket, json->out);
    json->comma = true;
}

void cli_json_bytes(cli_json *json, const char *key, const char *text, size_t bytes) {
    begin(json, key);
    write_string(json->out, text, bytes);
}

void cli_json_string(cli_json *json, const char *key, const char *text) {
    begin(json, key);
    if (text)
        write_string(json->out, text, strlen(text));
    else
        fputs("null", json->out);
}

void cli_json_int(cli_json *json, const char *key, int64_t value) {
    begin(json, key);
    fprintf(json->out, "%" PRId64, value);
}

void cli_json_uint(cli_json *json, const char *key, uint64_t value) {
    begin(json, key);
    fprintf(json->out, "%" PRIu64, value);
}

void cli_json_real(cli_json *json, const char *key, double value) {
    begin(json, key);
    if (isfinite(value))
        fprintf(json->out, "%.9g", value);
    else
        fputs("null", json->out);
}

void cli_json_double(cli_json *json, const char *key, double value) {
    begin(json, key);
    if (isfinite(value))
        fprintf(json->out, "%.17g", value);
    else
        fputs("null", json->out);
}

void cli_json_float(cli_json *json, const char *key, float value) {
    begin(json, key);
    if (isfinite(value))
        fprintf(json->out, "%.7g", (double)value);
    else
        fputs("null", json->out);
}

void cli_json_bool(cli_json *json, const char *key, bool value) {
    begin(json, key);
    fputs(value ? "true" : "false", json->out);
}
