/* Which documents a schema lets through, byte by byte; and which schemas are refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "file/json.h"
#include "schema/schema.h"
#include "support/support.h"

/* ---- a vocabulary of all bytes ---- */

static fb_status byte_of(const void *from, int32_t id, fb_bytes *out, fb_error *err) {
    (void)from;
    return id < 256 ? fb_bytes_append(out, &(char){(char)id}, 1, err) : FB_OK;
}

static bool is_end(const void *from, int32_t id) {
    (void)from;
    return id == 256;
}

static fb_token_set *bytes_only(void) {
    static fb_token_set *set;
    const fb_token_source source = {.vocab = 257, .bytes_of = byte_of, .is_end = is_end};
    fb_error err;
    if (!set) assert_ok(fb_token_set_create(&source, &set, &err), &err);
    return set;
}

static fb_schema *compile(const char *schema) {
    fb_schema *compiled = NULL;
    fb_error err;
    fb_status status = fb_schema_compile(bytes_only(), schema, schema ? strlen(schema) : 0, &compiled, &err);
    if (status != FB_OK) print_error("%s\n", schema);
    assert_ok(status, &err);
    return compiled;
}

/* How many bytes fit; complete: they are a document. The mask agrees at each byte, for all 256 values. */
static size_t fits(const fb_schema *schema, const char *text, size_t size, bool *complete) {
    fb_cursor *cursor;
    fb_error err;
    uint64_t words[5];
    size_t at = 0;
    assert_ok(fb_cursor_create(schema, &cursor, &err), &err);
    for (bool taken = true; taken && at <= size;) {
        assert_ok(fb_cursor_mask(cursor, words, &err), &err);
        assert_int_equal(words[4] & 1, fb_cursor_complete(cursor));
        assert_true(words[0] | words[1] | words[2] | words[3] | words[4]); /* there is always a way on */
        if (at == size) break;
        const uint8_t byte = (uint8_t)text[at];
        taken = fb_cursor_take_bytes(cursor, text + at, 1);
        assert_int_equal(words[byte >> 6] >> (byte & 63) & 1, taken);
        at += taken;
    }
    *complete = fb_cursor_complete(cursor);
    fb_cursor_free(cursor);
    return at;
}

static void check_good(const char *schema, const char *text, size_t size) {
    fb_schema *compiled = compile(schema);
    bool complete;
    size_t fit = fits(compiled, text, size, &complete);
    if (fit < size || !complete)
        fail_msg("%s: %s: refused at byte %zu, complete: %d", schema, text, fit, complete);
    fb_schema_free(compiled);
}

/* Refused, or not complete. */
static void check_bad(const char *schema, const char *text, size_t size) {
    fb_schema *compiled = compile(schema);
    bool complete;
    size_t fit = fits(compiled, text, size, &complete);
    if (fit == size && complete) fail_msg("%s: %s: let through", schema, text);
    fb_schema_free(compiled);
}

/* ---- a table ---- */

typedef struct row {
    const char *schema;
    const char *good[10], *bad[16];
} row;

#define STRING(more) "{\"type\":\"string\"," more "}"
#define OBJECT(more) "{\"type\":\"object\"," more "}"
#define PATTERN(p)   STRING("\"pattern\":\"" p "\"")

static const row rows[] = {
    {NULL,
     {"{}", " {}", "\n{\"a\":1}", "{\"a\": [1, 2.5e-3, null, true, false, \"x\", {}, []]}",
      "{\n  \"a\": {\n\t\"b\": 0\n  }\n}", "{ \"a\": 1 }"},
     {"[]", "1", "{", "{}}", "{} ", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{a:1}", "{\"a\":01}", "{\"a\":1.}",
      "{\"a\":+1}", "{\"a\":1e}", "{\"a\":nul}", "  {}", "{\"a\":  1}"}},
    {"{}",
     {"1", "-0", "[]", "\"\"", "null", "true", "{\"a\":{}}", "0.5", "1E+9"},
     {"", "tru", "-", "00", "1e100", "'a'"}},
    {"{\"type\":\"boolean\"}", {"true", "false"}, {"null", "truefalse", "1"}},
    {"{\"type\":[\"null\",\"integer\"]}",
     {"null", "12", "-7"},
     {"1.5", "\"a\"", "1e2", "1234567890123456789"}},
    {"{\"type\":\"integer\",\"minimum\":-12,\"maximum\":305}",
     {"-12", "-9", "0", "9", "10", "99", "100", "299", "300", "305"},
     {"-13", "-20", "-100", "306", "310", "400", "1000", "-0", "00"}},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":0,\"maximum\":1e3}",
     {"1", "999", "1000"},
     {"0", "-1", "1001"}},
    {"{\"type\":\"integer\",\"minimum\":2.5,\"exclusiveMaximum\":4.5}", {"3", "4"}, {"2", "5"}},
    {"{\"type\":\"integer\",\"minimum\":95,\"maximum\":12345}",
     {"95", "96", "100", "999", "1000", "9999", "10000", "12299", "12345"},
     {"94", "9", "12346", "13000", "20000", "100000"}},
    {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}",
     {"0", "0.0", "0.5", "0.999", "1", "1.0", "1.000"},
     {"-0.1", "1.1", "1.01", "2", "1e-1", "-0"}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":1}",
     {"0.1", "0.001", "0.90"},
     {"0", "0.0", "1", "1.0"}},
    {"{\"type\":\"number\",\"minimum\":-3,\"exclusiveMaximum\":12}",
     {"-3", "-3.0", "-2.5", "-0.5", "0", "9.5", "11.999"},
     {"-3.1", "-4", "12", "12.0", "13", "100"}},
    {"{\"type\":\"number\",\"maximum\":-2}", {"-2", "-2.0", "-2.5", "-100"}, {"-1.9", "0", "2"}},
    {STRING("\"minLength\":2,\"maxLength\":3"),
     {"\"ab\"", "\"abc\"", "\"\\n\\u00e9\"", "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"",
      "\"\\ud83d\\ude00x\"", "\"\\\"\\\\\""},
     {"\"a\"", "\"abcd\"", "\"\"", "\"\\ud83d\\ude00\"", "\"\xf0\x9f\x98\x80\""}},
    {STRING("\"minLength\":5,\"maxLength\":9"),
     {"\"abcde\"", "\"abcdefghi\""},
     {"\"abcd\"", "\"abcdefghij\""}},
    {STRING("\"minLength\":20"), {"\"aaaaabbbbbcccccddddd\""}, {"\"aaaaabbbbbcccccdddd\""}},
    {STRING("\"maxLength\":0"), {"\"\""}, {"\"a\"", "\"\\n\""}},
    {PATTERN("^[a-c]+x?$"), {"\"a\"", "\"abcx\""}, {"\"\"", "\"x\"", "\"axx\"", "\"ad\"", "\"\\u0061\""}},
    {PATTERN("b"),
     {"\"b\"", "\"abc\"",
      "\"\\n\xc3\xa9"
      "b\\\\\""},
     {"\"\"", "\"ac\""}},
    {PATTERN("^a|b$"), {"\"a\"", "\"axx\"", "\"xxb\""}, {"\"xa\"", "\"bx\""}},
    {PATTERN("^(ab|c){2,3}$"), {"\"abab\"", "\"cc\"", "\"cabc\""}, {"\"ab\"", "\"cccc\"", "\"aab\""}},
    {PATTERN("^\\\\d{3}-[^\\\\s\\\\d]*?$"),
     {"\"123-\"", "\"123-ab\xc3\xa9\""},
     {"\"12-\"", "\"123-a1\"", "\"123- \""}},
    {PATTERN("^.$"),
     {"\"a\"", "\"\xf0\x9f\x98\x80\"", "\"\\\"\"", "\"\\t\""},
     {"\"\"", "\"\\n\"", "\"ab\"", "\"\\r\""}},
    {PATTERN("^[\\\\u00e0-\\\\u20ac\\\\]-]$"),
     {"\"\xc3\xa9\"", "\"\xe2\x82\xac\"", "\"\xdf\xbf\"", "\"\xe0\xa0\x80\"", "\"]\"", "\"-\""},
     {"\"\xc3\x9f\"", "\"\xe2\x82\xad\"", "\"a\""}},
    {PATTERN("^(?:a*)*$"), {"\"\"", "\"aaa\""}, {"\"b\""}},
    {STRING("\"format\":\"date\""),
     {"\"2024-02-28\"", "\"1999-12-31\""},
     {"\"2024-02-30\"", "\"2024-13-01\"", "\"2024-4-1\"", "\"2023-04-31\""}},
    {STRING("\"format\":\"date-time\""),
     {"\"2024-02-28T23:59:59Z\"", "\"2024-01-01T00:00:00.5+01:30\""},
     {"\"2024-01-01\"", "\"2024-01-01T24:00:00Z\""}},
    {STRING("\"format\":\"uuid\""),
     {"\"123e4567-e89b-12d3-a456-426614174000\""},
     {"\"123e4567\"", "\"123e4567-e89b-12d3-a456-42661417400g\""}},
    {STRING("\"format\":\"email\""),
     {"\"a.b@example.org\""},
     {"\"a\"", "\"a@b\"", "\"@example.org\"", "\"a..b@c.de\""}},
    {STRING("\"format\":\"ipv4\""),
     {"\"127.0.0.1\"", "\"255.255.255.255\""},
     {"\"256.0.0.1\"", "\"1.2.3\"", "\"01.2.3.4\""}},
    {STRING("\"format\":\"of a kind\""), {"\"anything\""}, {"1"}},
    {"{\"enum\":[\"a\\\"b\\n\",1,1.5,null,[1,{\"x\":[]}],\"\\u001f\xc3\xa9\"]}",
     {"\"a\\\"b\\n\"", "1", "1.5", "null", "[1,{\"x\":[]}]", "\"\\u001f\xc3\xa9\""},
     {"\"a\"", "2", "1.0", "[1]", "true"}},
    {"{\"type\":\"string\",\"enum\":[\"a\",1,\"ab\"]}", {"\"a\"", "\"ab\""}, {"1", "\"b\""}},
    {"{\"const\":{\"b\":[true]}}", {"{\"b\":[true]}"}, {"{}", "{\"b\":[false]}"}},
    {"{\"type\":\"array\"}", {"[]", "[1,\"a\", [null]]", "[\n  1,\n  2\n]"}, {"[1,]", "[,1]", "[1 2]", "{}"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}",
     {"[1,2]", "[1, 2, 3]", "[\n1,\n2\n]"},
     {"[]", "[1]", "[1,2,3,4]", "[1,\"a\"]"}},
    {"{\"type\":\"array\",\"items\":false}", {"[]"}, {"[1]"}},
    {"{\"type\":\"array\",\"maxItems\":1}", {"[]", "[1]", "[[1,2,3]]"}, {"[1,2]"}},
    {"{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"null\"}}", {"[null]", "[null,null]"}, {"[]"}},
    {"{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}",
     {"[]", "[1]", "[1,\"a\"]"},
     {"[\"a\"]", "[1,2]", "[1,\"a\",1]"}},
    {"{\"prefixItems\":[{\"type\":\"integer\"}],\"items\":{\"type\":\"boolean\"},\"minItems\":2,\"maxItems\":"
     "4}",
     {"[1,true]", "[1,true,false,true]"},
     {"[1]", "[1,1]", "[1,true,true,true,true]"}},
    {"{\"prefixItems\":[true],\"minItems\":3}", {"[1,2,3]", "[1,2,3,4]"}, {"[1,2]"}},
    {"{\"type\":[\"array\",\"object\"],\"maxItems\":2,\"items\":{\"type\":\"array\",\"maxItems\":1,\"items\":"
     "{\"type\":\"integer\"}}}",
     {"[]", "[[1],[]]", "{}", "{\"a\":1}"},
     {"[[1,2]]", "[[],[],[]]"}},
    {OBJECT("\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"},\"ab\":{\"type\":"
            "\"null\"}},\"required\":[\"b\"]"),
     {"{\"b\":\"\"}", "{\"a\":1,\"b\":\"x\"}", "{\"a\": 1, \"b\": \"x\", \"ab\": null}",
      "{\"b\":\"\",\"ab\":null}", "{\n\"b\": \"\"\n}"},
     {"{}", "{\"a\":1}", "{\"b\":\"\",\"a\":1}", "{\"b\":1}", "{\"b\":\"\",\"c\":1}",
      "{\"b\":\"\",\"b\":\"\"}", "{\"\\u0062\":\"\"}", "{\"a\":1,\"a\":1,\"b\":\"\"}", "{\"b\":\"\",}"}},
    {OBJECT("\"properties\":{\"a\":{\"type\":\"integer\"}},\"additionalProperties\":{\"type\":\"boolean\"}"),
     {"{}", "{\"a\":1}", "{\"a\":1,\"b\":true}", "{\"b\":true,\"aa\":false}", "{\"\":true}",
      "{\"a\\\"\":true}", "{\"\\n\":true}", "{\"\xc3\xa9\":true}"},
     {"{\"a\":true}", "{\"b\":1}", "{\"b\":true,\"a\":1}", "{\"\\u0061\":true}", "{\"b\":true,\"a\":true}",
      "{\"a\":1,\"a\":true}"}},
    {OBJECT("\"properties\":{\"a\":true,\"\xc3\xa9\\n\":{\"type\":\"null\"}},\"additionalProperties\":true,"
            "\"required\":[\"z\",\"\xc3\xa9\\n\"]"),
     {"{\"\xc3\xa9\\n\":null,\"z\":1}", "{\"a\":1,\"\xc3\xa9\\n\":null,\"z\":1,\"q\":[]}",
      "{\"\xc3\xa9\\n\": null, \"z\": 1, \"\xc3\xa8\": 1}"},
     {"{\"\xc3\xa9\\n\":null}", "{\"z\":1}", "{\"\xc3\xa9\\n\":null,\"z\":1,\"z\":2}"}},
    {OBJECT("\"additionalProperties\":false"), {"{}"}, {"{\"a\":1}"}},
    {OBJECT("\"properties\":{\"a\":false,\"b\":{}}"), {"{}", "{\"b\":1}"}, {"{\"a\":1}", "{\"b\":1,}"}},
    {OBJECT("\"required\":[\"k\"]"), {"{\"k\":1}", "{\"k\":[],\"x\":1}"}, {"{}", "{\"x\":1}"}},
    {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"maxLength\":1},{\"type\":\"null\"}]}",
     {"1", "\"a\"", "null"},
     {"\"ab\"", "true"}},
    {"{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"t\":{\"const\":\"a\"},\"x\":{\"type\":\"integer\"}},"
     "\"required\":[\"t\",\"x\"]},"
     "{\"type\":\"object\",\"properties\":{\"t\":{\"const\":\"ab\"},\"y\":{\"type\":\"integer\"}},"
     "\"required\":[\"t\",\"y\"]}]}",
     {"{\"t\":\"a\",\"x\":1}", "{\"t\": \"ab\", \"y\": 1}"},
     {"{\"t\":\"a\",\"y\":1}", "{\"t\":\"ab\",\"x\":1}", "{\"t\":\"b\",\"x\":1}"}},
    {"{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"maxItems\":2}]"
     "}",
     {"\"a\"", "[\"a\",\"b\"]"},
     {"[1]", "[\"\",\"\",\"\"]"}},
    {"{\"anyOf\":[{\"type\":\"array\",\"maxItems\":2},{\"type\":\"array\",\"minItems\":4,\"maxItems\":5}]}",
     {"[]", "[1]", "[1,2]", "[1,2,3,4]", "[1,2,3,4,5]"},
     {"[1,2,3]", "[1,2,3,4,5,6]"}},
    {OBJECT("\"properties\":{\"a\":{},\"b\":{}},\"anyOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]"),
     {"{\"a\":1}", "{\"b\":1}", "{\"a\":1,\"b\":1}"},
     {"{}"}},
    {"{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]},{"
     "\"properties\":{\"b\":{\"type\":\"null\"},\"a\":{\"minimum\":5}}}]}",
     {"{\"a\":5}", "{\"a\":7,\"b\":null}"},
     {"{\"b\":null}", "{\"a\":4}", "{\"a\":\"x\"}"}},
    {"{\"type\":\"string\",\"nullable\":true}", {"null", "\"a\""}, {"1"}},
    {"{\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{"
     "\"anyOf\":[{\"$ref\":\"#/$defs/node\"},{\"type\":\"null\"}]}},"
     "\"required\":[\"v\",\"next\"]}},\"$ref\":\"#/$defs/node\"}",
     {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":{\"v\":3,\"next\":null}}}"},
     {"{\"v\":1}", "{\"v\":1,\"next\":{}}"}},
    {OBJECT("\"properties\":{\"c\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}}"),
     {"{}", "{\"c\":[{},{\"c\":[]}]}"},
     {"{\"c\":[1]}"}},
    {"{\"definitions\":{\"a/b~\":{\"type\":\"null\"}},\"$ref\":\"#/definitions/"
     "a~1b~0\",\"description\":\"kept\"}",
     {"null"},
     {"1"}},
    {"{\"type\":\"object\",\"title\":\"T\",\"description\":\"d\",\"default\":{},\"examples\":[1],\"$schema\":"
     "\"x\",\"$id\":\"y\",\"$comment\":\"\","
     "\"deprecated\":true,\"readOnly\":true,\"uniqueItems\":false,\"x-own\":1}",
     {"{}"},
     {"1"}},
};

static void documents_of_a_table(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int k = 0; k < 10 && rows[i].good[k]; k++)
            check_good(rows[i].schema, rows[i].good[k], strlen(rows[i].good[k]));
        for (int k = 0; k < 16 && rows[i].bad[k]; k++)
            check_bad(rows[i].schema, rows[i].bad[k], strlen(rows[i].bad[k]));
    }
}

/* ---- strings ---- */

static bool parses(const char *text, size_t size) {
    char *array = fbt_format("[%.*s]", (int)size, text);
    fb_json *json = NULL;
    bool parsed = fb_json_parse("test", array, size + 2, 1 << 20, &json, NULL) == FB_OK;
    fb_json_free(json);
    free(array);
    return parsed;
}

static void escapes_of_every_number(void **state) {
    (void)state;
    fb_schema *schema = compile(STRING("\"maxLength\":1"));
    for (unsigned code = 0; code < 0x10000; code += fbt_passes_over(7) ? 7 : 1) {
        char text[32];
        bool complete;
        size_t size = (size_t)snprintf(text, sizeof text, code & 1 ? "\"\\u%04x\"" : "\"\\u%04X\"", code);
        size_t fit = fits(schema, text, size, &complete);
        const bool good = code < 0xd800 || code > 0xdfff;
        if (good != (fit == size && complete)) fail_msg("%s", text);
        if (code < 0xd800 || code >= 0xdc00) continue;
        size = (size_t)snprintf(text, sizeof text, "\"\\u%04x\\u%04x\"", code, 0xdc00 + code % 0x400);
        fit = fits(schema, text, size, &complete);
        if (fit < size || !complete) fail_msg("%s", text);
        const unsigned other = code * 64 % 0x10000;
        if (other >= 0xdc00 && other < 0xe000) continue;
        size = (size_t)snprintf(text, sizeof text, "\"\\u%04x\\u%04x\"", code, other);
        if (fits(schema, text, size, &complete) == size) fail_msg("%s", text);
    }
    fb_schema_free(schema);
}

/* Bytes that are likely to mean something. */
static size_t random_bytes(fbt_random *random, char *out, size_t most) {
    static const char likely[] =
        "\"\\\\u0dD8cCafA9/bnrt {}[],:-+.eE\n\t\x80\xbf\xc1\xc2\xdf\xe0\xa0\x9f\xed\xee\xf0\x90\x8f\xf4\xf5";
    size_t size = (size_t)fbt_random_below(random, (int64_t)most + 1);
    for (size_t i = 0; i < size; i++)
        out[i] = fbt_random_below(random, 4) ? likely[fbt_random_below(random, sizeof likely - 1)]
                                             : (char)fbt_random_below(random, 256);
    return size;
}

static void strings_are_those_of_the_parser(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(5);
    fb_schema *schema = compile("{\"type\":\"string\"}");
    int good = 0;
    for (int i = 0; i < 40000; i++) {
        char text[16] = "\"";
        bool complete;
        size_t size = 1 + random_bytes(&random, text + 1, 7);
        text[size++] = '"';
        if (memchr(text, 0, size)) continue; /* it would end the formatted text */
        size_t fit = fits(schema, text, size, &complete);
        const bool parsed = parses(text, size);
        const bool whole = fit == size && complete;
        /* The parser also takes several strings with commas, and spaces around one. */
        if (whole && !parsed) fail_msg("let through: %.*s", (int)size, text);
        bool one = parsed;
        for (size_t k = 1; k + 1 < size && one; k++) {
            if (text[k] == '\\')
                k++;
            else
                one = text[k] != '"';
        }
        if (one && !whole) fail_msg("refused: %.*s", (int)size, text);
        good += whole;
    }
    assert_true(good > 1000);
    fb_schema_free(schema);
}

/* ---- refusals ---- */

static void refuse(const char *schema, size_t size, const char *words) {
    fb_schema *compiled = NULL;
    fb_error err;
    fb_status status = fb_schema_compile(bytes_only(), schema, size, &compiled, &err);
    if (status == FB_OK) fail_msg("let through: %.200s", schema);
    assert_refused(status, FB_ERROR_USAGE, &err, words);
    assert_null(compiled);
}

static void schemas_that_are_refused(void **state) {
    (void)state;
    static const char *const rows_[][2] = {
        {"", "schema: "},
        {"{", "schema: "},
        {"[]", "schema: not an object"},
        {"{\"a\":1,\"a\":2}", "schema: |duplicate"},
        {"{\"type\":\"float\"}", "schema: type: \"float\" (null, "},
        {"{\"type\":[]}", "no document fits"},
        {"{\"type\":\"string\",\"items\":3}", NULL},
        {"{\"items\":3}", "schema: a schema: 3 (an object, true or false)"},
        {"{\"patternProperties\":{}}", "schema: patternProperties: not supported"},
        {"{\"properties\":{\"a\":{\"not\":{}}}}", "schema: not: not supported"},
        {"{\"if\":{}}", "schema: if: not supported"},
        {"{\"uniqueItems\":true}", "schema: uniqueItems: not supported"},
        {"{\"multipleOf\":2}", "schema: multipleOf: not supported"},
        {"{\"minProperties\":2}", "schema: minProperties: not supported"},
        {"{\"items\":[{}]}", "schema: items: an array"},
        {"{\"properties\":[]}", "schema: properties: not an object"},
        {"{\"required\":[1]}", "schema: required: not an array"},
        {"{\"required\":[\"a\"],\"properties\":{}}", "schema: required: \"a\" is no property"},
        {"{\"required\":[\"a\"],\"additionalProperties\":false}", "schema: required: \"a\" is no property"},
        {"{\"properties\":{\"a\":false},\"required\":[\"a\"]}", "no document fits"},
        {"{\"enum\":[]}", "no document fits"},
        {"{\"enum\":1}", "schema: enum: not an array"},
        {"{\"enum\":[\"a\"],\"minLength\":1}", "schema: enum with minLength"},
        {"{\"minLength\":-1}", "schema: minLength: -1 (an integer, 0 to"},
        {"{\"minLength\":3,\"maxLength\":2}", "no document fits"},
        {"{\"minimum\":3,\"maximum\":2}", "no document fits"},
        {"{\"minimum\":\"3\"}", "schema: minimum: \"3\" (a number)"},
        {"{\"type\":\"number\",\"minimum\":0.5}",
         "schema: minimum: 0.5 (an integer, unless the type is integer)"},
        {"{\"minItems\":3,\"maxItems\":2}", "no document fits"},
        {"{\"items\":false,\"minItems\":1}", "no document fits"},
        {"{\"pattern\":\"a\",\"maxLength\":2}", "schema: minLength or maxLength with a pattern"},
        {"{\"pattern\":\"(?=a)\"}", "schema: pattern: \"(?=a)\": at byte 1: this kind of group"},
        {"{\"pattern\":\"(a)\\\\1\"}", "pattern: |at byte 4: this escape is not supported"},
        {"{\"pattern\":\"\\\\bword\"}", "pattern: |this escape is not supported"},
        {"{\"pattern\":\"\\\\p{L}\"}", "pattern: |this escape is not supported"},
        {"{\"pattern\":\"a(^b)\"}", "pattern: |^ or $ in a group"},
        {"{\"pattern\":\"a^\"}", "pattern: |^ not at the beginning"},
        {"{\"pattern\":\"$a\"}", "pattern: |something behind $"},
        {"{\"pattern\":\"[a\"}", "pattern: |[ without ]"},
        {"{\"pattern\":\"(a\"}", "pattern: |( without )"},
        {"{\"pattern\":\"a)\"}", "pattern: |) without ("},
        {"{\"pattern\":\"*\"}", "pattern: |nothing to repeat"},
        {"{\"pattern\":\"a{2,1}\"}", "pattern: |from more to less"},
        {"{\"pattern\":\"a{1001}\"}", "pattern: |at most 1000"},
        {"{\"pattern\":\"[b-a]\"}", "pattern: |not a range"},
        {"{\"pattern\":\"a\\\\\"}", "pattern: |nothing behind \\"},
        {"{\"pattern\":\"((((a{1000}){1000}){1000}){1000})\"}", "schema: too large"},
        {"{\"pattern\":\"(x|[a-z])*x[a-z]{30}\"}", "schema: too large"},
        {"{\"$ref\":\"other.json\"}", "schema: $ref: \"other.json\" (# or #/..."},
        {"{\"$ref\":\"#/$defs/a\"}", "schema: $ref: \"#/$defs/a\" (nothing is there)"},
        {"{\"$ref\":1}", "schema: $ref: 1 (a string)"},
        {"{\"$ref\":\"#\"}", "schema: more than 16 schemas apply"},
        {"{\"allOf\":[{\"$ref\":\"#\"}]}", "schema: more than 16 schemas apply"},
        {"{\"anyOf\":[{\"$ref\":\"#\"}]}", "more than 16"},
        {"{\"anyOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#\"},{\"type\":\"null\"}]}", "more than 16"},
        {"{\"anyOf\":1}", "schema: anyOf: not an array"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
         "no document fits"},
        {"{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"minItems\":1}", "no document fits"},
        {"{\"allOf\":[{\"minLength\":1},{\"minLength\":2}]}", "schema: minLength: 2 (another one applies"},
        {"{\"allOf\":[{\"properties\":{\"a\":{}},\"additionalProperties\":false},{\"properties\":{\"b\":{}}}]"
         "}",
         "schema: additionalProperties beside a property \"b\""},
    };
    for (size_t i = 0; i < sizeof rows_ / sizeof *rows_; i++)
        if (rows_[i][1]) refuse(rows_[i][0], strlen(rows_[i][0]), rows_[i][1]);
    check_good(rows_[6][0], "\"items are for arrays\"", 22);
}

/* `open` times `count`, then `middle`, then `close` times `count`. */
static char *nested(const char *open, int count, const char *middle, const char *close) {
    const size_t a = strlen(open), b = strlen(middle), c = strlen(close);
    char *text = malloc((a + c) * (size_t)count + b + 1), *at = text;
    for (int i = 0; i < count; i++, at += a) memcpy(at, open, a);
    memcpy(at, middle, b), at += b;
    for (int i = 0; i < count; i++, at += c) memcpy(at, close, c);
    *at = 0;
    return text;
}

static void large_schemas(void **state) {
    (void)state;
    char *deep = nested("{\"items\":", 1000, "{}", "}");
    fb_schema_free(compile(deep)); /* an empty array fits */
    free(deep);
    deep = nested("{\"minItems\":1,\"items\":", 300, "{}", "}");
    refuse(deep, strlen(deep), "none that ends within 256 levels");
    free(deep);
    deep = nested("{\"items\":", 3000, "{}", "}");
    refuse(deep, strlen(deep), "schema: ");
    free(deep);
    deep = nested("{\"anyOf\":[", 40, "{}", "]}");
    refuse(deep, strlen(deep), "more than 16");
    free(deep);
    char *many = malloc(1 << 21), *at = many;
    at += sprintf(at, "{\"type\":\"object\",\"properties\":{");
    for (int i = 0; i < 4000; i++) at += sprintf(at, "%s\"key_%d\":{\"type\":\"integer\"}", i ? "," : "", i);
    strcpy(at, "}}");
    refuse(many, strlen(many), "schema: too large"); /* each may be left out */
    at = strchr(many, 0) - 1;
    at += sprintf(at, ",\"required\":[");
    for (int i = 0; i < 4000; i++) at += sprintf(at, "%s\"key_%d\"", i ? "," : "", i);
    strcpy(at, "]}");
    fb_schema_free(compile(many));
    at = many + sprintf(many, "{\"enum\":[");
    for (int i = 0; i < 5000; i++) at += sprintf(at, "%s\"value number %d\"", i ? "," : "", i);
    strcpy(at, "]}");
    check_good(many, "\"value number 4711\"", 19);
    check_bad(many, "\"value number 5000\"", 19);
    memset(many, ' ', 1 << 21);
    refuse(many, (1 << 20) + 1, "schema: ");
    free(many);
}

/* Less than 1 MB each, where each of many alternatives looks at a long list: some took 20 s once. All that is
 * done for a schema counts in one budget. */
static void schemas_that_take_long(void **state) {
    (void)state;
    static const struct {
        const char *head, *first;
        int firsts;
        const char *middle, *second;
        int seconds;
        const char *tail;
    } heavy[] = {
        {"{\"enum\":[1", ",1", 150000, "],\"anyOf\":[{}", ",{\"type\":\"string\"}", 30000, "]}"},
        {"{\"const\":\"bbbbbbbb\",\"enum\":[1", ",\"bbbbbbba\"", 20000, "],\"anyOf\":[{}",
         ",{\"type\":\"string\"}", 30000, "]}"},
        {"{\"$defs\":{\"x\":[true", ",true", 60000, ",{\"type\":\"null\"}]},\"anyOf\":[{}",
         ",{\"$ref\":\"#/$defs/x/60001\"}", 20000, "]}"},
        {"{\"$defs\":{\"x\":{\"allOf\":[true", ",true", 100000, "]}},\"anyOf\":[{}",
         ",{\"$ref\":\"#/$defs/x\"}", 20000, "]}"},
    };
    char *text = malloc(1 << 21);
    for (size_t i = 0; i < sizeof heavy / sizeof *heavy; i++) {
        char *at = text + sprintf(text, "%s", heavy[i].head);
        for (int k = 0; k < heavy[i].firsts; k++) at = stpcpy(at, heavy[i].first);
        at = stpcpy(at, heavy[i].middle);
        for (int k = 0; k < heavy[i].seconds; k++) at = stpcpy(at, heavy[i].second);
        strcpy(at, heavy[i].tail);
        refuse(text, strlen(text), "schema: too large: it takes more than");
    }
    free(text);
}

/* Heights are found in passes over all states: a property of each level, the lowest first, needs one a level.
 */
static void levels_in_the_wrong_order(void **state) {
    (void)state;
    char *text = malloc(1 << 21), *at = text + sprintf(text, "{\"$defs\":{\"d0\":{\"type\":\"string\"}");
    for (int i = 1; i < 250; i++)
        at += sprintf(at, ",\"d%d\":{\"type\":\"array\",\"minItems\":1,\"items\":{\"$ref\":\"#/$defs/d%d\"}}",
                      i, i - 1);
    at += sprintf(at, "},\"properties\":{\"p0\":{\"$ref\":\"#/$defs/d0\"}");
    for (int i = 1; i < 250; i++) at += sprintf(at, ",\"p%d\":{\"$ref\":\"#/$defs/d%d\"}", i, i);
    strcpy(at, "},\"required\":[\"p249\"]}");
    fb_schema_free(compile(text));
    at = strstr(text, "},\"required\"");
    for (int i = 0; i < 150; i++) at += sprintf(at, ",\"q%d\":{\"pattern\":\"^[a-z]{%d}$\"}", i, 1000 - i);
    strcpy(at, "},\"required\":[\"p249\"]}");
    refuse(text, strlen(text), "schema: too large: it takes more than");
    free(text);
}

/* A name that is asked for again and again is found at once. */
static void many_required_names(void **state) {
    (void)state;
    char *text = malloc(1 << 21), *at = text + sprintf(text, "{\"properties\":{\"n0\":true");
    for (int i = 1; i < 4000; i++) at += sprintf(at, ",\"n%d\":true", i);
    at += sprintf(at, "},\"required\":[\"n0\"");
    for (int i = 1; i < 4000; i++) at += sprintf(at, ",\"n%d\"", i);
    for (int i = 0; i < 90000; i++) at = stpcpy(at, ",\"n3999\"");
    strcpy(at, "]}");
    struct timespec began, ended;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &began);
    fb_schema_free(compile(text));
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ended);
    const double seconds =
        (double)(ended.tv_sec - began.tv_sec) + 1e-9 * (double)(ended.tv_nsec - began.tv_nsec);
    const double most = getenv("FUSEBOX_TESTS_SLOW") ? 4 : 0.3; /* 0.02; with a search of all names 0.7 */
    if (seconds > most) fail_msg("%g s", seconds);
    free(text);
}

/* A number may go on, until a token ends the answer. */
static void a_token_that_ends_the_answer(void **state) {
    (void)state;
    fb_schema *schema = compile("{\"type\":\"integer\"}");
    fb_cursor *cursor;
    fb_error err;
    uint64_t words[5];
    assert_ok(fb_cursor_create(schema, &cursor, &err), &err);
    assert_refused(fb_cursor_take(cursor, 256, &err), FB_ERROR_USAGE, &err,
                   "schema: token 256 does not continue");
    assert_refused(fb_cursor_take(cursor, 'a', &err), FB_ERROR_USAGE, &err,
                   "schema: token 97 does not continue");
    assert_refused(fb_cursor_take(cursor, -1, &err), FB_ERROR_USAGE, &err,
                   "schema: token -1 does not continue");
    assert_ok(fb_cursor_take(cursor, '1', &err), &err);
    assert_true(fb_cursor_complete(cursor) && !fb_cursor_ended(cursor));
    assert_ok(fb_cursor_take(cursor, '2', &err), &err);
    assert_ok(fb_cursor_take(cursor, 256, &err), &err);
    assert_true(fb_cursor_ended(cursor));
    assert_ok(fb_cursor_mask(cursor, words, &err), &err);
    assert_true(!(words[0] | words[1] | words[2] | words[3]) && words[4] == 1);
    assert_refused(fb_cursor_take(cursor, '3', &err), FB_ERROR_USAGE, &err,
                   "schema: token 51 does not continue");
    fb_cursor_free(cursor);
    fb_schema_free(schema);
}

/* At the limit of depth a document is led back. */
static void a_document_without_end(void **state) {
    (void)state;
    fb_schema *schema = compile(NULL);
    fb_cursor *cursor;
    fb_error err;
    uint64_t words[5];
    int depth = 0;
    assert_ok(fb_cursor_create(schema, &cursor, &err), &err);
    assert_true(fb_cursor_take_bytes(cursor, "{\"a\":", 5));
    while (fb_cursor_take_bytes(cursor, "[", 1)) {
        assert_ok(fb_cursor_mask(cursor, words, &err), &err);
        depth++;
        assert_true(depth < 1000);
    }
    assert_true(depth > 200);
    assert_true(!(words['[' >> 6] >> ('[' & 63) & 1));
    assert_true(words[']' >> 6] >> (']' & 63) & 1);
    while (depth-- > 0) assert_true(fb_cursor_take_bytes(cursor, "]", 1));
    assert_true(fb_cursor_take_bytes(cursor, "}", 1) && fb_cursor_ended(cursor));
    for (int i = 0; i < 200000; i++) { /* memory does not grow with the document */
        if (i == 0) {
            fb_cursor_free(cursor);
            assert_ok(fb_cursor_create(schema, &cursor, &err), &err);
            assert_true(fb_cursor_take_bytes(cursor, "{\"a\":[", 6));
        }
        assert_true(fb_cursor_take_bytes(cursor, "[{\"b\":12}],", 11));
    }
    assert_true(cursor->frame_room < 10000 && cursor->spot_room < 10000);
    fb_cursor_free(cursor);
    fb_schema_free(schema);
}

/* ---- masks ---- */

static char pieces[3000][8];
static int64_t piece_sizes[3000];
enum { PIECES = 3000 };

static fb_status piece_of(const void *from, int32_t id, fb_bytes *out, fb_error *err) {
    (void)from;
    return fb_bytes_append(out, pieces[id], piece_sizes[id], err);
}

static bool last_piece(const void *from, int32_t id) {
    (void)from;
    return id == PIECES - 1;
}

static bool fits_alone(fb_cursor *c, const char *bytes, int64_t size) {
    int32_t begin = 0, end = c->count;
    const int32_t frames = c->frame_count;
    c->spot_count = c->count;
    for (int64_t i = 0; i < size && begin < end; i++) {
        fb_cursor_step(c, begin, end, (uint8_t)bytes[i]);
        begin = end;
        end = c->spot_count;
    }
    c->spot_count = c->count;
    c->frame_count = frames;
    return size > 0 && begin < end;
}

/* Walks at random, every mask against every token alone, to the end of a document. */
static void walk(fbt_random *random, fb_token_set *set, const char *schema) {
    fb_schema *compiled;
    fb_cursor *cursor;
    fb_error err;
    uint64_t *words = malloc((size_t)set->words * sizeof *words);
    assert_ok(fb_schema_compile(set, schema, schema ? strlen(schema) : 0, &compiled, &err), &err);
    assert_ok(fb_cursor_create(compiled, &cursor, &err), &err);
    for (int steps = 0; steps < 60 && !fb_cursor_ended(cursor); steps++) {
        int32_t chosen = -1;
        int64_t allowed = 0;
        assert_ok(fb_cursor_mask(cursor, words, &err), &err);
        for (int32_t id = 0; id < set->vocab; id++) {
            const bool bit = words[id >> 6] >> (id & 63) & 1;
            const bool end = id == set->ends[0];
            const bool fit = end ? fb_cursor_complete(cursor)
                                 : fits_alone(cursor, set->bytes.data + set->offsets[id],
                                              set->offsets[id + 1] - set->offsets[id]);
            if (bit != fit)
                fail_msg("%s: token %d \"%.*s\" after %d tokens: mask %d", schema, (int)id,
                         (int)(set->offsets[id + 1] - set->offsets[id]), set->bytes.data + set->offsets[id],
                         steps, bit);
            if (bit && !end && fbt_random_below(random, ++allowed) == 0) chosen = id;
        }
        if (chosen < 0) break;
        assert_ok(fb_cursor_take(cursor, chosen, &err), &err);
    }
    free(words);
    fb_cursor_free(cursor);
    fb_schema_free(compiled);
}

static fb_token_set *random_pieces(fbt_random *random) {
    const fb_token_source source = {.vocab = PIECES, .bytes_of = piece_of, .is_end = last_piece};
    fb_token_set *set;
    fb_error err;
    for (int i = 0; i < PIECES; i++) {
        pieces[i][0] = (char)i;
        piece_sizes[i] = i < 256 ? 1 : (int64_t)random_bytes(random, pieces[i], 8);
        for (int k = 0; i >= 1500 && k < 8; k++) { /* words and structure */
            static const char letters[] = "aabckv12 \"\"\":,{}[]";
            pieces[i][k] = letters[fbt_random_below(random, sizeof letters - 1)];
            piece_sizes[i] = 1 + i % 5;
        }
    }
    assert_ok(fb_token_set_create(&source, &set, &err), &err);
    return set;
}

static void masks_are_those_of_each_token_alone(void **state) {
    (void)state;
    fbt_random random = fbt_random_start(11);
    fb_token_set *set = random_pieces(&random);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int k = 0; k < 3; k++)
            if (!fbt_passes_over(5)) walk(&random, set, rows[i].schema);
    for (int i = 0; i < 10; i++) walk(&random, set, NULL);
    fb_token_set_free(set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_of_a_table),
        cmocka_unit_test(escapes_of_every_number),
        cmocka_unit_test(strings_are_those_of_the_parser),
        cmocka_unit_test(schemas_that_are_refused),
        cmocka_unit_test(large_schemas),
        cmocka_unit_test(schemas_that_take_long),
        cmocka_unit_test(levels_in_the_wrong_order),
        cmocka_unit_test(many_required_names),
        cmocka_unit_test(a_token_that_ends_the_answer),
        cmocka_unit_test(a_document_without_end),
        cmocka_unit_test(masks_are_those_of_each_token_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
