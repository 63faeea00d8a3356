#include "cli/json_out.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Length of the well-formed UTF-8 character at `text`, or 0. Overlong forms, surrogates and what is beyond
 * U+10FFFF are not well formed; all of them show in the first two bytes. */
static size_t character_length(const unsigned char *text, size_t bytes) {
    unsigned char first = text[0];
    if (first < 0x80) return 1;
    size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || length > bytes) return 0;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xc0) != 0x80) return 0;
    if ((first == 0xe0 && text[1] < 0xa0) || (first == 0xed && text[1] > 0x9f)) return 0;
    if ((first == 0xf0 && text[1] < 0x90) || (first == 0xf4 && text[1] > 0x8f)) return 0;
    return length;
}

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

static void write_string(FILE *out, const char *text, size_t bytes) {
    const unsigned char *at = (const unsigned char *)text, *end = at + bytes;
    putc('"', out);
    while (at < end) {
        size_t length = character_length(at, (size_t)(end - at));
        if (length == 1)
            write_ascii(out, *at);
        else if (length > 1)
            fwrite(at, 1, length, out);
        else
            fputs("\\ufffd", out);
        at += length ? length : 1;
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

void cli_json_bool(cli_json *json, const char *key, bool value) {
    begin(json, key);
    fputs(value ? "true" : "false", json->out);
}
