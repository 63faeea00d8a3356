/* Small tokenizer files that would cost much memory or time. Each is opened, and a text encoded, in a child
 * with limits: 500 MB, and some seconds for what takes a tenth of one. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/gguf_writer.h"
#include "support/support.h"
#include "text/tokenizer.h"

#define MEGABYTES 500 /* of a child */
#define SECONDS   60  /* until it is ended */

/* ---- the child ------------------------------------------------------------------------------------------
 */

typedef struct outcome {
    fb_status status; /* of opening, else of encoding, else of decoding */
    fb_error err;
    double open, encode, encode_twice, decode; /* seconds of CPU time */
    long megabytes;                            /* at most in use */
} outcome;

typedef struct hostile {
    char *json; /* or a GGUF file: */
    fbt_bytes gguf;
    const char *unit; /* `bytes` of the text are this again and again; then twice as many */
    int64_t bytes;
    bool once; /* not twice */
    bool decode;
} hostile;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static fb_status open_file(const hostile *file, fb_tokenizer **tokenizer, fb_error *err) {
    if (file->json) return fb_tokenizer_parse("t.json", file->json, strlen(file->json), tokenizer, err);
    fb_gguf *gguf;
    fb_status status = fb_gguf_parse("t.gguf", file->gguf.data, file->gguf.size, &gguf, err);
    if (status == FB_OK) status = fb_tokenizer_from_gguf("t.gguf", gguf, tokenizer, err);
    return status;
}

static void encode_text(const fb_tokenizer *tokenizer, const hostile *file, int64_t bytes, outcome *out,
                        double *taken) {
    int64_t length = (int64_t)strlen(file->unit);
    char *text = malloc((size_t)(bytes + length)), *back = NULL;
    int32_t *ids = NULL;
    int64_t count = 0, size = 0;
    size_t back_size;
    if (!text) _exit(2);
    for (; size < bytes; size += length) memcpy(text + size, file->unit, (size_t)length);
    double start = seconds();
    out->status = fb_tokenizer_encode(tokenizer, text, (size_t)size, true, &ids, &count, &out->err);
    *taken = seconds() - start;
    start = seconds();
    if (out->status == FB_OK && file->decode)
        out->status = fb_tokenizer_decode(tokenizer, ids, count, true, &back, &back_size, &out->err);
    out->decode = seconds() - start;
    free(back);
    free(ids);
    free(text);
}

static void run_child(const hostile *file, outcome *out) {
    if (!FBT_SANITIZED) { /* a sanitizer's shadow is larger than any limit */
        rlim_t limit = (rlim_t)2 * MEGABYTES
                       << 20; /* of address space, which a program and its libraries also take */
        setrlimit(RLIMIT_AS, &(struct rlimit){limit, limit});
    }
    alarm(SECONDS);
    fb_tokenizer *tokenizer;
    double start = seconds();
    out->status = open_file(file, &tokenizer, &out->err);
    out->open = seconds() - start;
    if (out->status == FB_OK && file->unit) encode_text(tokenizer, file, file->bytes, out, &out->encode);
    if (out->status == FB_OK && file->unit && !file->once)
        encode_text(tokenizer, file, 2 * file->bytes, out, &out->encode_twice);
    _exit(0);
}

static outcome run(const hostile *file) {
    outcome *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) run_child(file, shared);
    int status;
    struct rusage usage;
    assert_int_equal(wait4(child, &status, 0, &usage), child);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) fail_msg("not done after %d s", SECONDS);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail_msg("the child ended with status %d", status);
    outcome out = *shared;
    munmap(shared, sizeof *shared);
    out.megabytes = usage.ru_maxrss / 1024;
    if (!FBT_SANITIZED && out.megabytes > MEGABYTES)
        fail_msg("%ld MB (at most %d)", out.megabytes, MEGABYTES);
    return out;
}

static void free_file(hostile *file) {
    free(file->json);
    free(file->gguf.data);
}

/* Refused in these words, within `limit` seconds. */
static void refused(hostile file, fb_status status, const char *words, double limit) {
    outcome out = run(&file);
    assert_refused(out.status, status, &out.err, words);
    double taken = out.open + out.encode + out.encode_twice + out.decode;
    if (taken > (FBT_SANITIZED ? 20 : 1) * limit) fail_msg("%s: %.2f s (at most %.2f)", words, taken, limit);
    free_file(&file);
}

/* Opened and encoded within so many seconds; twice as much text takes at most three times as long (and a
 * little noise). */
static void accepted(hostile file, double open, double encode) {
    outcome out = run(&file);
    double factor = FBT_SANITIZED ? 20 : 1;
    assert_ok(out.status, &out.err);
    if (out.open > factor * open) fail_msg("opened in %.2f s (at most %.2f)", out.open, open);
    if (out.encode > factor * encode || out.encode_twice > 3 * out.encode + factor * encode / 2)
        fail_msg("%.3f s, twice as much: %.3f s (at most %.2f)", out.encode, out.encode_twice, encode);
    free_file(&file);
}

/* ---- files ----------------------------------------------------------------------------------------------
 */

/* A growing text. */
typedef struct writer {
    char *data;
    size_t size;
    FILE *file;
} writer;

static writer *start_text(void) {
    writer *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->file = open_memstream(&w->data, &w->size);
    assert_non_null(w->file);
    return w;
}

static char *end_text(writer *w) {
    assert_int_equal(fclose(w->file), 0);
    char *data = w->data;
    free(w);
    return data;
}

static void put_run(writer *w, const char *unit, int64_t count) {
    for (int64_t i = 0; i < count; i++) fputs(unit, w->file);
}

#define MODEL "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\" \":3},\"merges\":[[\"a\",\"b\"]]"
#define START "{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\"," MODEL "},"

/* The smallest tokenizer, with one more member: `count` times `unit` between two texts. */
static char *with(const char *before, const char *unit, int64_t count, const char *after) {
    writer *w = start_text();
    fputs(START, w->file);
    fputs(before, w->file);
    put_run(w, unit, count);
    fputs(after, w->file);
    fputs("}", w->file);
    return end_text(w);
}

/* ---- what a file may say many times ---------------------------------------------------------------------
 */

#define PIECE "{\"SpecialToken\":{\"id\":\"S\"}},"

static char *write_template(int64_t pieces, int64_t ids) {
    writer *w = start_text();
    fputs(START "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[", w->file);
    put_run(w, PIECE, pieces);
    fputs("{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"S\":{\"ids\":[0", w->file);
    put_run(w, ",0", ids - 1);
    fputs("]}}}}", w->file);
    return end_text(w);
}

static void test_template(void **state) {
    (void)state;
    refused((hostile){.json = write_template(16000, 200000)}, FB_ERROR_FILE,
            "t.json: post_processor: single|16001 pieces|at most 256", 2);
    refused((hostile){.json = write_template(10, 200000)}, FB_ERROR_FILE,
            "special_tokens|\"S\"|200000 ids|at most 256", 2);
    refused((hostile){.json = write_template(255, 256)}, FB_ERROR_FILE,
            "single|1280 ids around a text|at most 1024", 2);
    accepted((hostile){.json = write_template(4, 256), .unit = "ab", .bytes = 1000}, 1, 1);
}

static void test_sparse_ids(void **state) {
    (void)state;
    static const char vocab[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":16000000},\"merges\":[]}}";
    refused((hostile){.json = strdup(vocab)}, FB_ERROR_FILE,
            "model: vocab: id 16000000|at most 262151 with 2 tokens", 1);
    refused((hostile){.json = with("\"added_tokens\":[{\"id\":16777215,\"content\":\"x\"}]", "", 0, "")},
            FB_ERROR_FILE, "vocab: id 16777215|at most 262159 with 4 tokens", 1);
}

/* ---- added tokens ---------------------------------------------------------------------------------------
 */

static void test_added_tokens(void **state) {
    (void)state;
    accepted((hostile){.json = with("\"added_tokens\":[{\"id\":4,\"content\":\"", "a", 20000, "b\"}]"),
                       .unit = "a",
                       .bytes = 400000},
             1, 1);
    accepted(
        (hostile){.json = with("\"added_tokens\":[{\"id\":3,\"content\":\" \",\"rstrip\":true}]", "", 0, ""),
                  .unit = " ",
                  .bytes = 400000},
        1, 1);
    writer *w = start_text();
    fputs(START "\"added_tokens\":[", w->file);
    for (int i = 0; i < 400; i++) {
        fprintf(w->file, "%s{\"id\":%d,\"content\":\"", i ? "," : "", i + 4);
        put_run(w, "a", 20000);
        fprintf(w->file, "%d\"}", i);
    }
    fputs("]}", w->file);
    refused((hostile){.json = end_text(w)}, FB_ERROR_FILE, "added tokens|bytes of text|at most 4194304", 5);
}

/* ---- steps that make a text longer ----------------------------------------------------------------------
 */

#define REPLACE "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aa\"},"
#define BYTES   "{\"type\":\"ByteLevel\",\"use_regex\":false},"

static void test_normalizer(void **state) {
    (void)state;
    hostile file = {.unit = "a", .bytes = 100000};
    file.json = with("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"",
                     "x", 1000000, "\"}");
    refused(file, FB_ERROR_UNSUPPORTED, "normalizer: a text grows to 2000000 bytes|at most 1204096", 1);
    file.json =
        with("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[", REPLACE, 15, "{\"type\":\"NFC\"}]}");
    refused(file, FB_ERROR_UNSUPPORTED, "normalizer: a text grows to|at most 1204096", 2);
    /* 30 KB before each of 50,000 parts. */
    file.unit = "ab";
    file.json = with("\"added_tokens\":[{\"id\":1,\"content\":\"b\",\"normalized\":false}],"
                     "\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"",
                     "x", 30000, "\"}");
    refused(file, FB_ERROR_UNSUPPORTED, "normalizer: a text grows to|at most 1204096", 1);
}

/* Of 100,000 added tokens each grows, and shrinks again. */
static void test_normalized_tokens(void **state) {
    (void)state;
    writer *w = start_text();
    fputs(START "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":["
                "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"",
          w->file);
    put_run(w, "x", 60000);
    fputs("\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\"", w->file);
    put_run(w, "x", 60000);
    fputs("\"},\"content\":\"y\"}]},\"added_tokens\":[", w->file);
    for (int i = 0; i < 100000; i++)
        fprintf(w->file, "%s{\"id\":%d,\"content\":\"a%d\"}", i ? "," : "", i + 4, i);
    fputs("]}", w->file);
    refused((hostile){.json = end_text(w)}, FB_ERROR_UNSUPPORTED,
            "added_tokens: a text grows to|at most 4194304", 3);
}

static void test_pre_tokenizer(void **state) {
    (void)state;
    hostile file = {.unit = "\u00e9", .bytes = 100000};
    file.json = with("\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[", BYTES, 15,
                     "{\"type\":\"Metaspace\"}]}");
    refused(file, FB_ERROR_UNSUPPORTED, "pre_tokenizer: a text grows to 3200062 bytes|at most 2404096", 1);
}

static void test_decoder(void **state) {
    (void)state;
    hostile file = {.unit = "a", .bytes = 20000, .decode = true};
    file.json =
        with("\"decoder\":{\"type\":\"Sequence\",\"decoders\":[", REPLACE, 15, "{\"type\":\"Fuse\"}]}");
    refused(file, FB_ERROR_UNSUPPORTED, "decoder: a text grows to 266 bytes|at most 264", 1);
}

/* ---- patterns -------------------------------------------------------------------------------------------
 */

static char *with_split(const char *pattern) {
    char *member = fbt_format(
        "\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{%s}}", pattern);
    char *json = with(member, "", 0, "");
    free(member);
    return json;
}

static void test_patterns(void **state) {
    (void)state;
    hostile file = {.unit = "a", .bytes = 1000000};
    file.json = with_split("\"Regex\":\"a*b|.\"");
    refused(file, FB_ERROR_UNSUPPORTED, "split pattern \"a*b|.\": too expensive|at most 242000000", 4);
    file.json = with_split("\"Regex\":\"a*[bc]\"");
    refused(file, FB_ERROR_UNSUPPORTED, "split pattern \"a*[bc]\": too expensive|at most 242000000", 4);
    char *needle = malloc(50002);
    assert_non_null(needle);
    memset(needle, 'a', 50000);
    strcpy(needle + 50000, "b");
    char *literal = fbt_format("\"String\":\"%s\"", needle);
    file.json = with_split(literal);
    file.bytes = 400000;
    accepted(file, 1, 1);
    free(literal);
    free(needle);
}

/* ---- merges ---------------------------------------------------------------------------------------------
 */

/* One word. Tokens of 1, 2, 4, … letters: each merge of two halves. */
static void test_long_word(void **state) {
    (void)state;
    writer *vocab = start_text(), *merges = start_text();
    char *run = malloc(2), *shorter = NULL;
    assert_non_null(run);
    strcpy(run, "a");
    for (int i = 0; i < 12; i++) {
        fprintf(vocab->file, "%s\"%s\":%d", i ? "," : "", run, i);
        if (i > 0) fprintf(merges->file, "%s[\"%s\",\"%s\"]", i > 1 ? "," : "", shorter, shorter);
        free(shorter);
        shorter = run;
        run = fbt_format("%s%s", shorter, shorter);
    }
    free(run);
    free(shorter);
    char *vocab_text = end_text(vocab), *merges_text = end_text(merges);
    hostile file = {.unit = "a", .bytes = 300000};
    file.json =
        fbt_format("{\"model\":{\"type\":\"BPE\",\"vocab\":{%s},\"merges\":[%s]}}", vocab_text, merges_text);
    accepted(file, 1, 2);
    free(vocab_text);
    free(merges_text);
}

/* SentencePiece's way: what two neighbours become is looked up by its text, of up to 3,000 letters here. The
 * longest has the highest score. */
static void test_long_scored_tokens(void **state) {
    (void)state;
    enum { TOKENS = 3000 };
    float scores[TOKENS];
    writer *tokens = start_text(); /* each behind its size */
    for (uint64_t size = 1; size <= TOKENS; size++) {
        assert_int_equal(fwrite(&size, sizeof size, 1, tokens->file), 1);
        put_run(tokens, "a", (int64_t)size);
        scores[size - 1] = (float)size;
    }
    char *bytes = end_text(tokens);
    fbt_bytes file = {0};
    fbt_gguf_start(&file, 3, 0, 3);
    fbt_gguf_text(&file, "tokenizer.ggml.model", "llama");
    fbt_gguf_array(&file, "tokenizer.ggml.tokens", FB_GGUF_STRING, TOKENS);
    fbt_put(&file, bytes, TOKENS * sizeof(uint64_t) + (size_t)TOKENS * (TOKENS + 1) / 2);
    fbt_gguf_array(&file, "tokenizer.ggml.scores", FB_GGUF_F32, TOKENS);
    fbt_put(&file, scores, sizeof scores);
    free(bytes);
    /* AddressSanitizer compares texts byte by byte. */
    accepted((hostile){.gguf = file, .unit = "a", .bytes = FBT_SANITIZED ? 10000 : 200000}, 1, 0.3);
}

/* A table of merges whose hash has no key: with these ids all pairs of a left and a right have one slot.
 * Lefts are multiples of the table's 4096 slots; a golden-ratio multiplication takes all rights to the same
 * 12 bits. Half of the pairs merge. */
enum { SIDE = 64, SLOTS = 4096, IDS = 1 << 18 };

static uint32_t slot_of(uint32_t right) {
    return (uint32_t)(right * UINT64_C(0x9E3779B97F4A7C15) >> 32) & (SLOTS - 1);
}

static void choose_rights(int rights[SIDE]) {
    int counts[SLOTS] = {0}, best = 0, found = 0;
    for (uint32_t id = 0; id < IDS; id++)
        if (id % SLOTS != 0) counts[slot_of(id)]++;
    for (int i = 0; i < SLOTS; i++)
        if (counts[i] > counts[best]) best = i;
    for (uint32_t id = 0; id < IDS && found < SIDE; id++)
        if (id % SLOTS != 0 && slot_of(id) == (uint32_t)best) rights[found++] = (int)id;
    assert_int_equal(found, SIDE);
}

/* U+4E00 and so on are the lefts, U+5000 and so on the rights. */
static const char *side_char(int side, int i) {
    static char text[4][4];
    static int next;
    char *out = text[next++ % 4];
    int code = (side ? 0x5000 : 0x4E00) + i;
    out[0] = (char)(0xE0 | code >> 12);
    out[1] = (char)(0x80 | (code >> 6 & 0x3F));
    out[2] = (char)(0x80 | (code & 0x3F));
    out[3] = '\0';
    return out;
}

static char *write_merges(bool collide) {
    int rights[SIDE], next = 1;
    bool *taken = calloc(IDS + 2 * SIDE, 1);
    assert_non_null(taken);
    choose_rights(rights);
    writer *vocab = start_text(), *merges = start_text();
    for (int i = 0; i < SIDE; i++) {
        int left = collide ? SLOTS * i : i, right = collide ? rights[i] : SIDE + i;
        taken[left] = taken[right] = true;
        fprintf(vocab->file, "\"%s\":%d,\"%s\":%d,", side_char(0, i), left, side_char(1, i), right);
    }
    for (int i = 0; i < SIDE; i++)
        for (int k = i % 2; k < SIDE; k += 2) {
            while (taken[next]) next++;
            fprintf(vocab->file, "\"%s%s\":%d,", side_char(0, i), side_char(1, k), next);
            taken[next] = true;
            fprintf(merges->file, "[\"%s\",\"%s\"],", side_char(0, i), side_char(1, k));
        }
    char *vocab_text = end_text(vocab), *merges_text = end_text(merges);
    vocab_text[strlen(vocab_text) - 1] = merges_text[strlen(merges_text) - 1] = '\0'; /* the last commas */
    char *json =
        fbt_format("{\"model\":{\"type\":\"BPE\",\"vocab\":{%s},\"merges\":[%s]}}", vocab_text, merges_text);
    free(vocab_text);
    free(merges_text);
    free(taken);
    return json;
}

static void test_colliding_merges(void **state) {
    (void)state;
    writer *w = start_text(); /* the pairs that do not merge: each looks through its whole run of slots */
    for (int i = 0; i < SIDE; i++)
        for (int k = 1 - i % 2; k < SIDE; k += 2) fprintf(w->file, "%s%s", side_char(0, i), side_char(1, k));
    char *unit = end_text(w);
    double taken[2];
    for (int collide = 0; collide < 2; collide++) {
        hostile file = {.json = write_merges(collide), .unit = unit, .bytes = 600000, .once = true};
        outcome out = run(&file);
        assert_ok(out.status, &out.err);
        taken[collide] = out.encode;
        free_file(&file);
    }
    if (taken[1] > 3 * taken[0] + (FBT_SANITIZED ? 0.5 : 0.02))
        fail_msg("%.3f s, without collisions %.3f s", taken[1], taken[0]);
    free(unit);
}

/* Tokens of one a, two a's and so on: a step for each of them at every a of a text. */
static void test_unigram(void **state) {
    (void)state;
    writer *w = start_text();
    fputs("{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",-9]", w->file);
    for (int size = 1; size <= 2000; size++) {
        fputs(",[\"", w->file);
        put_run(w, "a", size);
        fprintf(w->file, "\",%d]", -size);
    }
    fputs("]}}", w->file);
    refused((hostile){.json = end_text(w), .unit = "a", .bytes = 400000}, FB_ERROR_UNSUPPORTED,
            "Unigram: too expensive for this text|steps (at most 152400000)", 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_template),          cmocka_unit_test(test_sparse_ids),
        cmocka_unit_test(test_added_tokens),      cmocka_unit_test(test_normalizer),
        cmocka_unit_test(test_normalized_tokens), cmocka_unit_test(test_pre_tokenizer),
        cmocka_unit_test(test_decoder),           cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_long_word),         cmocka_unit_test(test_long_scored_tokens),
        cmocka_unit_test(test_colliding_merges),  cmocka_unit_test(test_unigram),
    };
    return cmocka_run_group_tests_name("hostile", tests, NULL, NULL);
}
