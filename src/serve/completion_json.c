#include "serve/completion_json.h"

#include <stdlib.h>
#include <string.h>

#include "serve/engine.h"

void serve_write_head(const serve_reply_state *r, cli_json *json, const char *kind) {
    const serve_job *j = r->job;
    char fingerprint[SERVE_FINGERPRINT_BYTES];
    cli_json_open(json, NULL, '{');
    cli_json_string(json, "id", j->id);
    cli_json_string(json, "object", kind);
    cli_json_int(json, "created", j->created);
    cli_json_string(json, "model", j->engine->name);
    serve_engine_fingerprint(j->engine, j->plan, fingerprint);
    cli_json_string(json, "system_fingerprint", fingerprint);
}

const char *serve_finish_reason(fb_finish finish) {
    switch (finish) {
    case FB_FINISH_NONE:
        return NULL;
    case FB_FINISH_LENGTH:
        return "length";
    case FB_FINISH_CANCELLED:
        return "abort";
    default:
        return "stop";
    }
}

/* Guesses by the names that OpenAI's predicted outputs have. */
static void write_guesses(const serve_job *j, cli_json *json) {
    int64_t drafted = 0, kept = 0;
    for (int32_t i = 0; i < j->choice_count; i++) {
        drafted += j->choices[i].drafted;
        kept += j->choices[i].kept;
    }
    cli_json_open(json, "completion_tokens_details", '{');
    cli_json_int(json, "accepted_prediction_tokens", kept);
    cli_json_int(json, "rejected_prediction_tokens", drafted - kept);
    cli_json_close(json, '}');
}

void serve_write_usage(const serve_reply_state *r, cli_json *json) {
    const serve_job *j = r->job;
    int64_t prompt = 0, answer = 0, cached = 0;
    for (int32_t i = 0; i < j->part_count; i++) {
        prompt += j->parts[i].prompt_count;
        cached += j->choices[j->parts[i].first].cached;
    }
    for (int32_t i = 0; i < j->choice_count; i++) answer += j->choices[i].count;
    cli_json_open(json, "usage", '{');
    cli_json_int(json, "prompt_tokens", prompt);
    cli_json_int(json, "completion_tokens", answer);
    cli_json_int(json, "total_tokens", prompt + answer);
    cli_json_open(json, "prompt_tokens_details", '{');
    cli_json_int(json, "cached_tokens", cached);
    cli_json_close(json, '}');
    if (j->engine->draft) write_guesses(j, json);
    cli_json_close(json, '}');
}

/* ---- a whole reply ----------------------------------------------------------------------------- */

/* The prompt, if it is echoed, and the answer. */
static void write_text(serve_reply_state *r, const char *key) {
    const serve_job *j = r->job;
    const serve_part *part = &j->parts[r->choice / j->samples];
    const serve_pieces *p = &j->choices[r->choice].pieces;
    size_t before = r->params.echo && part->prompt_text ? part->prompt_bytes : 0;
    char *both = before ? malloc(before + p->text_size + 1) : NULL;
    if (both) memcpy(both, part->prompt_text, before);
    if (both && p->text_size) memcpy(both + before, p->text, p->text_size);
    cli_json_bytes(&r->json, key,
                   both           ? both
                   : p->text_size ? p->text
                                  : "",
                   (both ? before : 0) + p->text_size);
    free(both);
}

static void open_choice(serve_reply_state *r) {
    cli_json *json = &r->json;
    cli_json_open(json, NULL, '{');
    cli_json_int(json, "index", r->choice);
    if (serve_is_chat(r)) {
        cli_json_open(json, "message", '{');
        cli_json_string(json, "role", "assistant");
        write_text(r, "content");
        cli_json_string(json, "refusal", NULL);
        cli_json_close(json, '}');
    } else {
        write_text(r, "text");
    }
    if (r->params.logprobs < 0)
        cli_json_string(json, "logprobs", NULL);
    else
        cli_json_open(json, "logprobs", '{');
}

/* What was written is not needed any more; the prompt's pieces are, by the part's other choices. */
static void free_choice(serve_reply_state *r) {
    serve_job *j = r->job;
    int32_t first = r->choice - r->choice % j->samples;
    bool last = r->choice == first + j->samples - 1;
    int64_t bytes = 0;
    for (int32_t i = last ? first : r->choice; i <= r->choice; i++) {
        serve_pieces *p = &j->choices[i].pieces;
        if (i == first && !last) continue;
        for (int64_t k = 0; k < p->count; k++) bytes += serve_piece_bytes(&p->pieces[k], j->tops);
        serve_pieces_free(p);
    }
    if (bytes) serve_job_seen(j, bytes);
}

static void close_choice(serve_reply_state *r) {
    cli_json *json = &r->json;
    if (r->params.logprobs >= 0 && serve_is_chat(r)) cli_json_string(json, "refusal", NULL);
    if (r->params.logprobs >= 0) cli_json_close(json, '}');
    cli_json_string(json, "finish_reason", serve_finish_reason(r->job->choices[r->choice].finish));
    cli_json_close(json, '}');
    free_choice(r);
}

/* Piece `at` of a choice: those of the prompt, which its part's first choice has, and its own. False: there
 * are no more. */
static bool find_piece(const serve_reply_state *r, int64_t at, serve_scored *out) {
    const serve_job *j = r->job;
    const serve_choice *own = &j->choices[r->choice], *first = own - r->choice % j->samples;
    const serve_pieces *p = at < first->prompts ? &first->pieces : &own->pieces;
    if (at >= first->prompts) at += own->prompts - first->prompts;
    if (at >= p->count) return false;
    *out = (serve_scored){.piece = &p->pieces[at],
                          .scores = p->scores ? p->scores + at * (1 + j->tops) : NULL,
                          .text = p->text + p->pieces[at].text_at,
                          .choice = r->choice};
    return true;
}

/* What comes next: the head, then for each choice its text, its lists piece by piece and its end, the tail.
 */
enum { HEAD, OPEN, LIST, PIECE, CLOSE, TAIL, END };

static int write_stage(serve_reply_state *r) {
    cli_json *json = &r->json;
    serve_scored token;
    switch (r->stage) {
    case HEAD:
        serve_write_head(r, json, serve_is_chat(r) ? "chat.completion" : "text_completion");
        cli_json_int(json, "seed", (int64_t)r->job->sampler.seed); /* as a request can send it */
        cli_json_open(json, "choices", '[');
        return OPEN;
    case OPEN:
        open_choice(r);
        r->list = 0;
        return r->params.logprobs < 0 ? CLOSE : LIST;
    case LIST:
        if (!serve_scores_name(r, r->list)) return CLOSE;
        cli_json_open(json, serve_scores_name(r, r->list), '[');
        r->piece = 0;
        return PIECE;
    case PIECE:
        if (find_piece(r, r->piece++, &token)) {
            serve_scores_write(r, r->list, json, &token);
            return PIECE;
        }
        cli_json_close(json, ']');
        r->list++;
        return LIST;
    case CLOSE:
        close_choice(r);
        return ++r->choice < r->job->choice_count ? OPEN : TAIL;
    default:
        cli_json_close(json, ']');
        serve_write_usage(r, json);
        cli_json_close(json, '}');
        return END;
    }
}

bool serve_completion_write(serve_reply_state *r, FILE *out) {
    const off_t end = ftello(out) + SERVE_PART_BYTES;
    r->json.out = out;
    while (r->stage != END && ftello(out) < end) r->stage = write_stage(r);
    return r->stage != END;
}
