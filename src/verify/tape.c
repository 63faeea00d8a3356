#include "verify/tape.h"

#include <stdlib.h>

#define PROMPT 48
#define DECODE 24
/* Of a model with room for it. Attention works in blocks of 128 positions on the CPU: a shorter text would
 * have one, and never show whether the parts of several are put together rightly. */
#define LONG_PROMPT 144
/* Not a divisor of the prompt, so that a prefill has a full and a partial chunk. */
#define CHUNK 29

static const char text[] =
    "In the harbour town the lamps were lit before the rain came. An old captain sat by the window and told "
    "the children how, forty years ago, his ship had followed a white gull through the fog, past the rocks "
    "and the sleeping seals, until the morning opened like a door and they saw the island with its three "
    "hills, where nobody had ever counted the days. He laughed, filled his cup again, and said that the gull "
    "was still waiting for him.";

/* ---- the script ---- */

static void fill_random(int32_t *ids, int64_t count, int64_t vocab) {
    uint64_t state = 0x9e3779b97f4a7c15u;
    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (int32_t)((int64_t)(state >> 33) % vocab);
    }
}

fb_status fb_script_make(const fb_model *model, int64_t chunk, fb_script *out, fb_error *err) {
    fb_model_info info;
    fb_model_get_info(model, &info);
    int64_t prompt = info.context < LONG_PROMPT + DECODE ? PROMPT : LONG_PROMPT, whole = prompt + DECODE;
    *out = (fb_script){.tokens = info.context < whole ? info.context : whole};
    out->prompt = out->tokens * prompt / whole;
    if (out->prompt < 1) out->prompt = 1;
    out->greedy = out->tokens - out->prompt + 1; /* the last token is not fed back */
    out->chunk = chunk ? chunk : CHUNK;
    if (out->chunk > out->prompt) out->chunk = out->prompt;
    out->ids = malloc((size_t)out->tokens * sizeof *out->ids);
    if (!out->ids) return fb_fail_memory(err, "ids", out->tokens * (int64_t)sizeof *out->ids);
    fill_random(out->ids, out->tokens, info.vocab);
    if (!info.has_tokenizer) return FB_OK;
    int32_t *ids;
    int64_t count;
    fb_status status = fb_tokenize(model, text, sizeof text - 1, true, &ids, &count, err);
    if (status != FB_OK) {
        fb_script_free(out);
        return status;
    }
    for (int64_t i = 0; count > 0 && i < out->tokens; i++) out->ids[i] = ids[i % count];
    fb_free(ids);
    return FB_OK;
}

void fb_script_free(fb_script *script) {
    free(script->ids);
    *script = (fb_script){0};
}

/* ---- recording ---- */

static bool keep_hidden(void *user, int64_t layer, int64_t position, const float *hidden, int64_t rows,
                        int64_t cols) {
    fb_tape *t = user;
    memcpy(t->hidden + (layer * t->tokens + position) * cols, hidden, (size_t)(rows * cols) * sizeof *hidden);
    return true;
}

/* Copies the logits of the last step, `count` rows, to `out`. */
static fb_status keep_logits(fb_session *session, int64_t count, float *out, fb_error *err) {
    const float *logits;
    int64_t rows, vocab;
    FB_TRY(fb_session_logits(session, &logits, &rows, &vocab, err));
    memcpy(out, logits + (rows - count) * vocab, (size_t)(count * vocab) * sizeof *out);
    return FB_OK;
}

static fb_status run_shown(fb_session *session, const fb_script *s, fb_tape *t, fb_error *err) {
    FB_TRY(fb_session_prefill(session, s->ids, s->prompt, err));
    FB_TRY(keep_logits(session, s->prompt, t->logits, err));
    for (int64_t i = s->prompt; i < s->tokens; i++) {
        FB_TRY(fb_session_decode(session, s->ids[i], err));
        FB_TRY(keep_logits(session, 1, t->logits + i * t->vocab, err));
    }
    return FB_OK;
}

static fb_status run_alone(fb_session *session, const fb_script *s, fb_tape *t, fb_error *err) {
    FB_TRY(fb_session_prefill(session, s->ids, s->prompt, err));
    FB_TRY(keep_logits(session, 1, t->alone, err));
    for (int64_t i = s->prompt; i < s->tokens; i++) {
        FB_TRY(fb_session_decode(session, s->ids[i], err));
        FB_TRY(keep_logits(session, 1, t->alone + (i - s->prompt + 1) * t->vocab, err));
    }
    return FB_OK;
}

static fb_status run_greedy(fb_session *session, const fb_script *s, const int32_t *continuation, fb_tape *t,
                            fb_error *err) {
    FB_TRY(fb_session_prefill(session, s->ids, s->prompt, err));
    for (int64_t i = 0; i < s->greedy; i++) {
        /* NaN logits have no best token. The comparison of hidden states reports the NaN. */
        if (fb_session_best(session, &t->greedy[i], err) != FB_OK) t->greedy[i] = 0;
        if (t->greedy_logits) FB_TRY(keep_logits(session, 1, t->greedy_logits + i * t->vocab, err));
        if (i + 1 < s->greedy)
            FB_TRY(fb_session_decode(session, continuation ? continuation[i] : t->greedy[i], err));
    }
    return FB_OK;
}

/* Compares the fuses' calls with what they must be after `steps` steps, of which `heads` computed logits and
 * `graphs` could be recorded. */
static void count_fuses(const fb_session *session, int64_t steps, int64_t heads, int64_t graphs, fb_tape *t) {
    const char *name;
    int64_t calls, a_step, a_head;
    for (int f = 0; fb_session_fuse_calls(session, f, &name, &calls, &a_step, &a_head); f++) {
        t->calls[f] = calls;
        t->expected[f] = f == FB_FUSE_GRAPH || f == FB_FUSE_STEP ? a_step * graphs
                                                                 : (a_step - a_head) * steps + a_head * heads;
        t->miscounted = t->miscounted || calls != t->expected[f];
    }
}

typedef enum manner { SHOWN, ALONE, GREEDY } manner;

static fb_status record(const fb_model *model, const fb_session_options *options, const fb_script *s,
                        manner how, const int32_t *continuation, fb_tape *t, fb_error *err) {
    /* The greedy run reads the prompt in one chunk. The head runs only in the last chunk of a prefill, so its
     * calls then equal the number of steps. */
    int64_t chunk = how == GREEDY ? s->prompt : s->chunk;
    fb_session_options o = {.size = sizeof o,
                            .threads = options->threads,
                            .act = options->act,
                            .kv = options->kv,
                            .fuse = options->fuse,
                            .exact = options->exact,
                            .float_dot = options->float_dot,
                            .machine = options->machine,
                            .isa = options->isa,
                            .backend = options->backend,
                            .cache = options->cache,
                            .sinks = options->sinks,
                            .window = options->window,
                            .capacity = options->cache == FB_CACHE_DENSE ? s->tokens : 0,
                            .chunk = chunk,
                            .all_logits = how == SHOWN,
                            .greedy = how == GREEDY,
                            .on_hidden = how == SHOWN ? keep_hidden : NULL,
                            .user = t};
    fb_session *session;
    FB_TRY(fb_session_create(model, &o, &session, err));
    fb_status status = how == SHOWN   ? run_shown(session, s, t, err)
                       : how == ALONE ? run_alone(session, s, t, err)
                                      : run_greedy(session, s, continuation, t, err);
    int64_t single = how == GREEDY ? s->greedy - 1 : s->tokens - s->prompt;
    int64_t chunks = (s->prompt + chunk - 1) / chunk;
    int64_t heads = (how == SHOWN ? chunks : 1) + single;
    if (status == FB_OK) count_fuses(session, chunks + single, heads, how == SHOWN ? 0 : single, t);
    fb_session_free(session);
    return status;
}

/* Allocates a tape. It is filled with NaN, so that values that a run does not write are noticed. */
static fb_status make_tape(const fb_model *model, const fb_script *s, bool with_greedy_logits, fb_tape *t,
                           fb_error *err) {
    fb_model_info info;
    fb_model_get_info(model, &info);
    *t = (fb_tape){.states = info.layers + 1, .tokens = s->tokens, .width = info.hidden, .vocab = info.vocab};
    struct {
        float **at;
        int64_t count;
    } parts[] = {{&t->hidden, t->states * t->tokens * t->width},
                 {&t->logits, t->tokens * t->vocab},
                 {&t->alone, (s->tokens - s->prompt + 1) * t->vocab},
                 {&t->greedy_logits, with_greedy_logits ? s->greedy * t->vocab : 0}};
    int64_t bytes = 0;
    bool ok = true;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t size = (size_t)parts[i].count * sizeof(float);
        bytes += (int64_t)size;
        if (!size) continue;
        *parts[i].at = malloc(size);
        ok = ok && *parts[i].at;
        if (*parts[i].at) memset(*parts[i].at, 0xff, size);
    }
    t->greedy = calloc((size_t)s->greedy, sizeof *t->greedy);
    if (ok && t->greedy) return FB_OK;
    fb_tape_free(t);
    return fb_fail_memory(err, "hidden states and logits", bytes);
}

fb_status fb_tape_record(const fb_model *model, const fb_session_options *options, const fb_script *script,
                         const int32_t *continuation, fb_tape *t, fb_error *err) {
    FB_TRY(make_tape(model, script, continuation == NULL, t, err));
    fb_status status = FB_OK;
    for (int how = SHOWN; how <= GREEDY && status == FB_OK; how++)
        status = record(model, options, script, (manner)how, continuation, t, err);
    if (status != FB_OK) fb_tape_free(t);
    return status;
}

fb_status fb_tape_record_states(const fb_model *model, const fb_session_options *options,
                                const fb_script *script, fb_tape *t, fb_error *err) {
    FB_TRY(make_tape(model, script, false, t, err));
    fb_status status = record(model, options, script, SHOWN, NULL, t, err);
    if (status != FB_OK) fb_tape_free(t);
    return status;
}

fb_status fb_tape_record_truth(const fb_model *model, const fb_session_options *options,
                               const fb_script *script, int64_t tokens, fb_tape *t, fb_error *err) {
    fb_script first = {.ids = script->ids, .prompt = tokens, .tokens = tokens, .greedy = 1, .chunk = tokens};
    fb_session_options o = {.size = sizeof o,
                            .threads = 1,
                            .act = FB_F64,
                            .isa = "ref",
                            .fuse = "none",
                            .backend = "cpu",
                            .cache = options->cache,
                            .sinks = options->sinks,
                            .window = options->window};
    return fb_tape_record_states(model, &o, &first, t, err);
}

void fb_tape_free(fb_tape *t) {
    free(t->hidden);
    free(t->logits);
    free(t->alone);
    free(t->greedy_logits);
    free(t->greedy);
    *t = (fb_tape){0};
}
