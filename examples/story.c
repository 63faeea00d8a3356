/* Continues a text with a model: the whole way through fusebox.h in one function.
 *
 *     cc story.c -o story $(pkg-config --cflags --libs fusebox)
 *     ./story MODEL_DIR "Once upon a time"        the most probable continuation
 *     ./story MODEL_DIR "Once upon a time" 42     drawn at random with seed 42
 */
#include <fusebox.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS 100

/* Everything that has to be freed, so that one place frees it, however far we came. */
typedef struct story {
    fb_model *model;
    int32_t *ids; /* [count], the prompt */
    int64_t count;
    fb_session *session;
    fb_sampler *sampler;
    fb_text_stream *stream;
} story;

/* Every call fills `err` when it fails; the first failure ends the story. */
#define TRY(call)                                                                                            \
    do {                                                                                                     \
        if ((call) != FB_OK) return false;                                                                   \
    } while (0)

static bool tell(story *s, const char *directory, const char *prompt, const char *seed, fb_error *err) {
    /* The model: config, weights (mapped, not copied) and tokenizer. `true`: with the begin token the model
     * expects. */
    TRY(fb_model_open(directory, &s->model, err));
    TRY(fb_tokenize(s->model, prompt, strlen(prompt), true, &s->ids, &s->count, err));

    /* A session holds the KV cache. Ask for the room that the run needs; the default is the model's whole
     * context. */
    fb_session_options session_options;
    fb_session_options_default(&session_options);
    session_options.capacity = s->count + TOKENS;
    TRY(fb_session_create(s->model, &session_options, &s->session, err));

    /* A sampler makes a token of scores. Temperature 0 always takes the best one. */
    fb_sampler_options sampler_options;
    fb_sampler_options_default(&sampler_options);
    if (seed)
        sampler_options.seed = strtoull(seed, NULL, 10);
    else
        sampler_options.temperature = 0;
    fb_model_info info;
    fb_model_get_info(s->model, &info);
    TRY(fb_sampler_create(&sampler_options, info.vocab, &s->sampler, err));
    TRY(fb_text_create(s->model, &s->stream, err));

    /* The prompt at once, then token by token. */
    fputs(prompt, stdout);
    TRY(fb_session_prefill(s->session, s->ids, s->count, err));
    for (int i = 0; i < TOKENS; i++) {
        const float *logits; /* [vocab]: one row, of the last token */
        int64_t rows, vocab;
        int32_t id;
        TRY(fb_session_logits(s->session, &logits, &rows, &vocab, err));
        TRY(fb_sampler_next(s->sampler, logits, &id, err));
        if (fb_model_is_end(s->model, id)) break;

        const char *text; /* whole characters only, so it may be empty */
        size_t bytes;
        TRY(fb_text_push(s->stream, id, &text, &bytes, err));
        fwrite(text, 1, bytes, stdout);
        fflush(stdout);
        TRY(fb_session_decode(s->session, id, err));
    }
    putchar('\n');
    return true;
}

int main(int argc, char **argv) {
    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: story MODEL_DIR PROMPT [SEED]\n");
        return 2;
    }
    story s = {0};
    fb_error err;
    bool ok = tell(&s, argv[1], argv[2], argc == 4 ? argv[3] : NULL, &err);
    if (!ok) fprintf(stderr, "story: %s\n", err.message);
    fb_text_free(s.stream);
    fb_sampler_free(s.sampler);
    fb_session_free(s.session);
    fb_free(s.ids);
    fb_model_free(s.model);
    return ok ? 0 : 1;
}
