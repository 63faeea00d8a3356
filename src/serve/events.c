/* Answers as server-sent events. What has come is taken from the job at once, and written without its lock.
 */
#include <string.h>

#include "serve/completion_json.h"

static void open_event(const serve_reply_state *r, cli_json *json, FILE *out) {
    *json = (cli_json){.out = out};
    fputs("data: ", out);
    serve_write_head(r, json, serve_is_chat(r) ? "chat.completion.chunk" : "text_completion");
    cli_json_open(json, "choices", '[');
}

static void close_event(const serve_reply_state *r, cli_json *json, bool usage) {
    cli_json_close(json, ']');
    if (usage)
        serve_write_usage(r, json);
    else if (r->params.include_usage)
        cli_json_string(json, "usage", NULL);
    cli_json_close(json, '}');
    fputs("\n\n", json->out);
}

/* One choice with some text; `role`: the beginning of a chat's answer. It stays open. */
static void open_delta(const serve_reply_state *r, cli_json *json, int32_t choice, const char *text,
                       size_t bytes, bool role) {
    cli_json_open(json, NULL, '{');
    cli_json_int(json, "index", choice);
    if (serve_is_chat(r)) {
        cli_json_open(json, "delta", '{');
        if (role) cli_json_string(json, "role", "assistant");
        if (text) cli_json_bytes(json, "content", text, bytes);
        cli_json_close(json, '}');
    } else {
        cli_json_bytes(json, "text", text ? text : "", bytes);
    }
}

static void close_delta(cli_json *json, fb_finish finish) {
    cli_json_string(json, "finish_reason", serve_finish_reason(finish));
    cli_json_close(json, '}');
}

static void write_begin(const serve_reply_state *r, FILE *out, int32_t choice) {
    const serve_part *part = &r->job->parts[choice / r->job->samples];
    const bool chat = serve_is_chat(r);
    cli_json json;
    open_event(r, &json, out);
    open_delta(r, &json, choice, chat ? "" : part->prompt_text, chat ? 0 : part->prompt_bytes, true);
    cli_json_string(&json, "logprobs", NULL);
    close_delta(&json, FB_FINISH_NONE);
    close_event(r, &json, false);
}

static void write_scores(serve_reply_state *r, cli_json *json, const serve_scored *token) {
    cli_json_open(json, "logprobs", '{');
    for (int list = 0; serve_scores_name(r, list); list++) {
        cli_json_open(json, serve_scores_name(r, list), '[');
        serve_scores_write(r, list, json, token);
        cli_json_close(json, ']');
    }
    if (serve_is_chat(r)) cli_json_string(json, "refusal", NULL);
    cli_json_close(json, '}');
}

/* A piece for one of the choices that it is for. */
static void write_piece(serve_reply_state *r, FILE *out, const serve_piece *piece, int32_t choice) {
    const serve_job *j = r->job;
    const serve_pieces *all = &r->pieces;
    const serve_scored token = {.piece = piece,
                                .scores = all->scores ? all->scores + r->at * (1 + j->tops) : NULL,
                                .text = all->text + piece->text_at,
                                .choice = choice};
    cli_json json;
    open_event(r, &json, out);
    open_delta(r, &json, choice, token.text, piece->text_bytes, false);
    if (r->params.logprobs < 0)
        cli_json_string(&json, "logprobs", NULL);
    else
        write_scores(r, &json, &token);
    close_delta(&json, FB_FINISH_NONE);
    close_event(r, &json, false);
}

static void write_end(const serve_reply_state *r, FILE *out, int32_t choice) {
    const serve_choice *c = &r->job->choices[choice];
    cli_json json;
    if (c->finish == FB_FINISH_FAILED) {
        fputs("data: ", out);
        serve_error_object(out, 500, NULL, "failed", c->message);
        fputs("\n\n", out);
        return;
    }
    open_event(r, &json, out);
    open_delta(r, &json, choice, NULL, 0, false);
    cli_json_string(&json, "logprobs", NULL);
    close_delta(&json, c->finish);
    close_event(r, &json, false);
}

static void write_last(const serve_reply_state *r, FILE *out) {
    cli_json json;
    if (r->params.include_usage) {
        open_event(r, &json, out);
        close_event(r, &json, true);
    }
    fputs("data: [DONE]\n\n", out);
}

/* ---- in order ---------------------------------------------------------------------------------- */

/* The next piece, for one choice. Returns its bytes once it was written for all. */
static int64_t next_piece(serve_reply_state *r, FILE *out) {
    const serve_job *j = r->job;
    const serve_piece *piece = &r->pieces.pieces[r->at];
    if (piece->text_bytes || r->params.logprobs >= 0) write_piece(r, out, piece, piece->choice + r->sample);
    if (piece->prompt && ++r->sample < j->samples) return 0;
    r->sample = 0;
    r->at++;
    return serve_piece_bytes(piece, j->tops);
}

/* Writes one event, or takes what has come. False: there is nothing more by now. */
static bool next(serve_reply_state *r, FILE *out, int64_t *seen) {
    serve_job *j = r->job;
    const bool introduces = r->begun && (serve_is_chat(r) || r->params.echo);
    if (introduces && r->introduced < j->choice_count) {
        write_begin(r, out, r->introduced++);
    } else if (r->at < r->pieces.count) {
        *seen += next_piece(r, out);
    } else if (r->told < r->ended) {
        write_end(r, out, j->order[r->told++]);
    } else if (r->told == j->choice_count) {
        if (!r->done) write_last(r, out);
        r->done = true;
        return false;
    } else {
        /* Not before the first token is it certain which plan computes it: `begun`. */
        r->at = 0;
        r->ended = serve_job_take(j, &r->pieces, &r->begun);
        return r->pieces.count > 0 || r->ended > r->told;
    }
    return true;
}

bool serve_completion_stream(serve_reply_state *r, FILE *out) {
    int64_t seen = 0;
    while (ftello(out) < SERVE_PART_BYTES && next(r, out, &seen)) continue;
    if (seen) serve_job_seen(r->job, seen);
    return !r->done;
}
