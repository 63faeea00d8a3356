/* Writes one JSON value to a stream. Commas come by themselves; strings come out as valid UTF-8 whatever goes
 * in. */
#ifndef FB_CLI_JSON_OUT_H
#define FB_CLI_JSON_OUT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct cli_json {
    FILE *out;
    bool comma; /* the next value follows another one */
} cli_json;

/* `key` is NULL for elements of an array and for the outermost value. */
void cli_json_open(cli_json *json, const char *key, char bracket); /* '{' or '[' */
void cli_json_close(cli_json *json, char bracket);                 /* '}' or ']' */
void cli_json_bytes(cli_json *json, const char *key, const char *text, size_t bytes);
void cli_json_string(cli_json *json, const char *key, const char *text); /* NULL gives null */
void cli_json_int(cli_json *json, const char *key, int64_t value);
void cli_json_uint(cli_json *json, const char *key, uint64_t value);
void cli_json_real(cli_json *json, const char *key, double value);   /* null if it is not finite */
void cli_json_float(cli_json *json, const char *key, float value);   /* the same in 7 digits: 0.1 stays 0.1 */
void cli_json_double(cli_json *json, const char *key, double value); /* the same in 17 digits: all its bits */
void cli_json_bool(cli_json *json, const char *key, bool value);

#endif
