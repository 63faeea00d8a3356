/* How long the masks of a schema take. Usage: schema_masks MODEL [TOKENS]
 *
 * Walks documents token by token, as the model's tokenizer cuts them, and times the mask at each: the median
 * of seven, of masks that were asked for before. With TOKENS, the vocabulary grows to so many: those that are
 * added are two of the model's one after the other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fusebox.h"
#include "schema/schema.h"
#include "text/decode.h"

#define REPETITIONS 7

static const struct {
    const char *name, *schema, *text;
} documents[] = {
    {"any object", NULL,
     "{\"name\": \"Ada Lovelace\", \"born\": 1815, \"fields\": [\"mathematics\", \"computing\"], \"notes\": "
     "{\"first "
     "program\": true, \"quote\": \"The Analytical Engine weaves algebraic patterns, just as the Jacquard "
     "loom "
     "weaves flowers and leaves.\", \"scores\": [1, 2.5, -3e4, null, {\"a\": [[1], [2]]}]}}"},
    {"any object, indented", NULL,
     "{\n  \"name\": \"Ada Lovelace\",\n  \"born\": 1815,\n  \"fields\": [\n    \"mathematics\",\n    "
     "\"computing\"\n  "
     "],\n  \"notes\": {\n    \"first program\": true,\n    \"scores\": [\n      1,\n      2.5\n    ]\n  "
     "}\n}"},
    {"strict object",
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\","
     "\"minimum\":0,"
     "\"maximum\":150},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"red\",\"green\",\"blue\"]},"
     "\"maxItems\":5},"
     "\"email\":{\"type\":[\"string\",\"null\"],\"format\":\"email\"},\"summary\":{\"type\":\"string\","
     "\"maxLength\":"
     "60},\"id\":{\"type\":\"string\",\"pattern\":\"^[A-Z]{2}-[0-9]{4}$\"}},\"required\":[\"name\",\"age\","
     "\"tags\","
     "\"email\",\"summary\",\"id\"],\"additionalProperties\":false}",
     "{\"name\": \"Grace Hopper\", \"age\": 85, \"tags\": [\"red\", \"blue\"], \"email\": "
     "\"grace.hopper@example.com\", "
     "\"summary\": \"She wrote the first compiler for a programming language.\", \"id\": \"GH-1906\"}"},
    {"alternatives, recursive",
     "{\"$defs\":{\"expr\":{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"number\"},"
     "\"value\":"
     "{\"type\":\"number\"}},\"required\":[\"kind\",\"value\"]},{\"type\":\"object\",\"properties\":{"
     "\"kind\":{\"enum\":"
     "[\"add\",\"multiply\"]},\"left\":{\"$ref\":\"#/$defs/expr\"},\"right\":{\"$ref\":\"#/$defs/"
     "expr\"}},\"required\":"
     "[\"kind\",\"left\",\"right\"]}]}},\"type\":\"object\",\"properties\":{\"steps\":{\"type\":\"array\","
     "\"items\":"
     "{\"type\":\"string\"}},\"result\":{\"$ref\":\"#/$defs/expr\"}},\"required\":[\"steps\",\"result\"]}",
     "{\"steps\": [\"Take the numbers.\", \"Add them.\"], \"result\": {\"kind\": \"add\", \"left\": "
     "{\"kind\": "
     "\"number\", \"value\": 12.5}, \"right\": {\"kind\": \"multiply\", \"left\": {\"kind\": \"number\", "
     "\"value\": "
     "3}, \"right\": {\"kind\": \"number\", \"value\": 4}}}}"},
    {"other keys",
     "{\"type\":\"object\",\"properties\":{\"title\":{\"type\":\"string\"}},\"required\":[\"title\"],"
     "\"additionalProperties\":{\"type\":[\"string\",\"integer\"]}}",
     "{\"title\": \"Population\", \"Berlin\": 3769000, \"Hamburg\": 1841000, \"München\": \"1.5 million\"}"},
};

/* ---- a vocabulary ---- */

typedef struct grown {
    const fb_model *model;
    int64_t vocab;
} grown;

static fb_status bytes_of(const void *from, int32_t id, fb_bytes *out, fb_error *err) {
    const grown *g = from;
    const fb_tokenizer *tokenizer = fb_model_tokenizer(g->model);
    if (id < g->vocab) return fb_decoder_token_bytes(tokenizer, id, out, err);
    for (int i = 0; i < 2; i++) {
        const uint64_t random = ((uint64_t)id * 2 + (uint64_t)i + 1) * 0x9e3779b97f4a7c15u;
        FB_TRY(fb_decoder_token_bytes(tokenizer, (int32_t)((random >> 32) % (uint64_t)g->vocab), out, err));
    }
    return FB_OK;
}

static bool is_end(const void *from, int32_t id) { return fb_model_is_end(((const grown *)from)->model, id); }

/* ---- times ---- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int compare(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static fb_status time_document(fb_token_set *set, const grown *g, size_t number, fb_error *err) {
    const char *text = documents[number].text, *schema = documents[number].schema;
    fb_schema *compiled;
    fb_cursor *cursor;
    int32_t *ids;
    int64_t count;
    double start = now(), first = 0, times[512];
    FB_TRY(fb_schema_compile(set, schema, schema ? strlen(schema) : 0, &compiled, err));
    const double create = now() - start;
    FB_TRY(fb_cursor_create(compiled, &cursor, err));
    FB_TRY(fb_tokenize(g->model, text, strlen(text), false, &ids, &count, err));
    uint64_t *words = malloc((size_t)set->words * sizeof *words);
    for (int64_t i = 0; i < count && i < 512; i++) {
        double samples[REPETITIONS];
        for (int r = -1; r < REPETITIONS; r++) {
            start = now();
            FB_TRY(fb_cursor_mask(cursor, words, err));
            if (r >= 0) samples[r] = now() - start;
            if (r < 0 && now() - start > first) first = now() - start;
        }
        qsort(samples, REPETITIONS, sizeof *samples, compare);
        times[i] = samples[REPETITIONS / 2];
        if (!(words[ids[i] >> 6] >> (ids[i] & 63) & 1))
            return fb_fail(err, FB_ERROR_USAGE, "%s: token %lld is not allowed", documents[number].name,
                           (long long)i);
        FB_TRY(fb_cursor_take(cursor, ids[i], err));
    }
    if (!fb_cursor_complete(cursor))
        return fb_fail(err, FB_ERROR_USAGE, "%s: not complete", documents[number].name);
    qsort(times, (size_t)count, sizeof *times, compare);
    printf("| %s | %d | %.1f | %lld | %.1f | %.1f | %.1f | %.1f |\n", documents[number].name,
           compiled->machine.state_count, create * 1e-3, (long long)count, times[count / 2],
           times[count * 95 / 100], times[count - 1], first);
    free(words);
    fb_free(ids);
    fb_cursor_free(cursor);
    fb_schema_free(compiled);
    return FB_OK;
}

int main(int argc, char **argv) {
    fb_model *model = NULL;
    fb_token_set *set = NULL;
    fb_error err;
    fb_model_info info;
    if (argc < 2 || argc > 3) return fputs("usage: schema_masks MODEL [TOKENS]\n", stderr), 2;
    fb_status status = fb_model_open(argv[1], &model, &err);
    if (status == FB_OK) {
        fb_model_get_info(model, &info);
        const grown g = {model, info.vocab};
        const int64_t wanted = argc == 3 ? strtoll(argv[2], NULL, 10) : 0;
        const fb_token_source source = {wanted > info.vocab ? wanted : info.vocab, bytes_of, is_end, &g,
                                        false};
        const double start = now();
        status = fb_token_set_create(&source, &set, &err);
        if (status == FB_OK)
            printf("%lld tokens, a tree of %d nodes, made in %.0f ms\n\n| document | states | create, ms | "
                   "tokens | median, us | "
                   "95%%, us | worst, us | worst at first, us |\n| --- | --- | --- | --- | --- | --- | --- | "
                   "--- |\n",
                   (long long)set->vocab, set->node_count, (now() - start) * 1e-3);
        for (size_t i = 0; i < sizeof documents / sizeof *documents && status == FB_OK; i++)
            status = time_document(set, &g, i, &err);
    }
    if (status != FB_OK) fprintf(stderr, "schema_masks: %s\n", err.message);
    fb_token_set_free(set);
    fb_model_free(model);
    return status != FB_OK;
}
