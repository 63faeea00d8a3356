#!/usr/bin/env python3
"""`fusebox serve --draft`: the same answers as without guesses, to the bit, and what the server says of them."""
from server import *

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = "Once upon a time"
AGAIN = "The fox ran and the dog ran. The fox ran and the dog ran. The fox"  # n-grams find what follows
SCHEMA = {"type": "object", "required": ["name", "age"], "additionalProperties": False,
          "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "maximum": 999}}}
BODIES = [
    (TEXT, {"prompt": PROMPT, "max_tokens": 60, "temperature": 0}),
    (TEXT, {"prompt": AGAIN, "max_tokens": 60, "temperature": 0, "repeat_penalty": 1, "logprobs": 3}),
    (TEXT, {"prompt": PROMPT, "max_tokens": 50, "temperature": 0.9, "seed": 1}),
    (TEXT, {"prompt": PROMPT, "max_tokens": 40, "seed": 2, "n": 3, "logprobs": 2}),
    (TEXT, {"prompt": [PROMPT, AGAIN, "A bear"], "max_tokens": 30, "seed": 3, "n": 2}),
    (TEXT, {"prompt": AGAIN, "max_tokens": 40, "seed": 4, "echo": True, "logprobs": 1}),
    (TEXT, {"prompt": PROMPT, "max_tokens": 60, "temperature": 0, "stop": ["e w", " the"], "logprobs": 0}),
    (TEXT, {"prompt": AGAIN, "max_tokens": 60, "temperature": 0, "stop": ["og ran"], "repeat_penalty": 1}),
    (TEXT, {"prompt": PROMPT, "max_tokens": 1, "temperature": 0}),
    (TEXT, {"prompt": PROMPT, "max_tokens": 0, "echo": True, "logprobs": 1}),
    (TEXT, {"prompt": PROMPT, "max_tokens": 50, "seed": 5, "ignore_eos": True, "presence_penalty": 1, "frequency_penalty": 0.5}),
    (TEXT, {"prompt": PROMPT, "max_tokens": 90, "seed": 6, "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}),
    (TEXT, {"prompt": AGAIN, "max_tokens": 50, "temperature": 0, "response_format": {"type": "json_object"}, "logprobs": 0}),
    (CHAT, {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 40, "seed": 7, "logprobs": True, "top_logprobs": 2}),
]
LONG = {"prompt": AGAIN, "max_tokens": 400, "temperature": 0, "ignore_eos": True}


def guesses(reply):
    details = reply.json()["usage"]["completion_tokens_details"]
    return details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]


def asked(s, more=None):
    """What the server answers to all bodies at once."""
    def ask(pair):
        reply = s.post(pair[0], {**pair[1], **(more or {})})
        if reply.status != 200: raise RuntimeError(reply)
        return reply
    return many(ask, BODIES)


def compare(name, got, wanted):
    for (_, body), g, w in zip(BODIES, got, wanted):
        if g != w: return same(f"{name}: {json.dumps(body)[:150]}", g, w)
    return ok(name)


def answers(s, name, wanted):
    """Whole, one by one, as a stream, and without the guesses."""
    replies = asked(s)
    compare(f"{name}: the answers without guesses", [whole(r) for r in replies], wanted)
    kept, wrong = map(sum, zip(*map(guesses, replies)))
    check(f"{name}: guesses were kept, and others were not", kept > 20 and wrong > 5, (kept, wrong))
    alone = [whole(s.post(path, body)) for path, body in BODIES]
    compare(f"{name}: one by one", alone, wanted)
    compare(f"{name}: as streams", [s.stream(path, body).choices() for path, body in BODIES], wanted)
    declined = asked(s, {"draft": False})
    compare(f"{name}: with draft false", [whole(r) for r in declined], wanted)
    same(f"{name}: then nothing is guessed", {guesses(r) for r in declined}, {(0, 0)})
    body = {**BODIES[0][1], "stream_options": {"include_usage": True}}
    check(f"{name}: a stream's use has the guesses", "completion_tokens_details" in s.stream(TEXT, body).usage)


def counted(s):
    """What /metrics counts, once the step of the last answer is over."""
    until(s.idle, 5)
    values = metrics(s)
    return [values[f'fusebox_draft_{name}_total{{model="storyteller"}}'] for name in ("tokens", "tokens_kept")]


def told(s, name, draft, tokens):
    props = s.get("/props").json()
    same(f"{name}: /props", (props["draft"], props["draft_tokens"]), (draft, tokens))
    before = counted(s)
    reply = s.post(TEXT, BODIES[1][1])
    now = counted(s)
    kept, wrong = guesses(reply)
    same(f"{name}: /metrics counts what the reply has", tuple(n - b for n, b in zip(now, before)), (kept + wrong, kept))
    for value, status in ((True, 200), (False, 200), (None, 200), (draft, 200), ("warp", 400), (1, 400), ([], 400)):
        reply = s.complete(max_tokens=2, draft=value)
        check(f"{name}: draft {json.dumps(value)}", reply.status == status, reply)
        if status == 400: check(f"{name}: and why", reply.error()["param"] == "draft" and reply.error()["message"].startswith("draft: "), reply)
    check(f"{name}: another draft is refused with this one's name", f"is served with {draft})" in s.complete(draft="warp").error()["message"],
          s.complete(draft="warp"))


def leaves(s):
    """Clients that go away in the middle of a run of guesses."""
    s.stream(TEXT, LONG, stop_after=3)
    many(lambda n: s.stream(TEXT, {**LONG, "n": 2, "seed": n}, stop_after=n), range(8), 8)
    s.becomes_idle("after clients have left, nothing is in use", 5)


def switches(s, wanted):
    """Fuses go off and on while guesses are checked."""
    fuses = [f["name"] for f in s.fuses()["fuses"] if f["applies"] and f["class"] == "bit"]
    stop, flips = threading.Event(), []

    def flip():
        while not stop.is_set():
            body = {"switch": {fuses[len(flips) // 2 % len(fuses)]: bool(len(flips) % 2)}}
            flips.append(s.post("/fuses", body).status)
            time.sleep(0.02)

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        for _ in range(1 if SLOW else 3):
            replies = asked(s)
            compare("while fuses are switched, the same answers", [whole(r) for r in replies], wanted)
    finally:
        stop.set()
        thread.join()
    check("fuses were switched", set(flips) == {200} and len(flips) > 5 and s.fuses()["changes"] > 2, flips[-3:])
    kept = sum(guesses(r)[0] for r in replies)
    check("and guesses were kept", kept > 10, kept)
    s.post("/fuses", {"fuse": "none"})
    compare("with no fuse, too", [whole(r) for r in asked(s)], [whole(r) for r in asked(s, {"draft": False})])
    check("which runs", until(lambda: not any(f["on"] for f in s.fuses()["fuses"]), 5), s.fuses()["fuses"])
    s.post("/fuses", {"fuse": "auto"})


def without(s):
    for value in (True, "q4"):
        reply = s.complete(draft=value)
        check(f"a server without a draft: draft {json.dumps(value)}", reply.status == 400 and "without one: --draft" in reply.error()["message"], reply)
    same("draft false is what it does", s.complete(draft=False, max_tokens=1).status, 200)
    same("its use has no guesses", [*s.complete(max_tokens=1).json()["usage"]],
         ["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"])
    same("its /props", (s.get("/props").json()["draft"], s.get("/props").json()["draft_tokens"]), (None, None))


def drafted(source, tokens, wanted):
    record = scratch(f"{source}.jsonl")
    arguments = ["--draft", source, "--record", record, *(["--draft-tokens", tokens] if tokens else [])]
    with Server(*arguments) as s:
        with section(source):
            answers(s, source, wanted)
            told(s, source, source, tokens)
            if source == "q4":
                leaves(s)
                switches(s, wanted)
        s.stop(source)
    if SLOW: return
    run = fusebox("replay", "--threads", 1, record, seconds=200)
    check(f"{source}: replay says the same", run.returncode == 0 and b"to the bit" in run.stdout, (run.returncode, run.stdout, run.stderr))


def models(wanted):
    """Several models: a draft for all, and one for a model by its name."""
    with Server("models/storyteller", f"second={chat_model('second')}", f"small={GOLDENS}/llama-gqa-tied", "--draft", "ngram", "--draft",
                f"second={os.path.abspath('models/storyteller')}", "--draft-tokens", 4) as s:
        with section("models"):
            props = [s.get(f"/props?model={m}").json() for m in ("storyteller", "second", "small")]
            same("each has its own", [p["draft"] for p in props], ["ngram", os.path.abspath("models/storyteller"), "ngram"])
            for path, body in BODIES[:4]:
                replies = [s.post(path, {**body, "model": m}) for m in ("storyteller", "second")]
                same("a model whose guesses are its own: the same", whole(replies[1]), whole(replies[0]))
            same("and they are all right", guesses(replies[1])[1], 0)
            same("the first one, too", whole(s.post(*BODIES[0])), wanted[0])
            check("one without a tokenizer", s.complete([1, 2, 3, 1, 2, 3, 1, 2], model="small", max_tokens=9).status == 200)
        s.stop("models")


def refused():
    wrong = {
        "no such source": (["--draft", "no/such/model"], "no/such/model"),
        "a model with other tokens": (["--draft", f"{GOLDENS}/gpt2"], "tokenizer"),
        "a name that none has": (["--draft", "nobody=q4"], "--draft: nobody=q4: no model is called nobody"),
        "tokens without a draft": (["--draft-tokens", 3], "only with --draft"),
        "too many tokens": (["--draft", "q4", "--draft-tokens", 8], "1 to 7"),
    }
    for name, (arguments, says) in wrong.items():
        run = fusebox("serve", "--port", 0, *arguments)
        check(f"{name} is refused", run.returncode not in (0, -6, -11) and says in run.stderr.decode() and run.stderr.count(b"\n") == 1,
              (run.returncode, run.stderr))


def main():
    with Server() as s:
        with section("without"):
            without(s)
            wanted = [whole(r) for r in asked(s)]
        s.stop()
    drafted("q4", 4, wanted)
    drafted("ngram", 7, wanted)
    with section("chosen"):
        with Server("--draft", "q4") as s:
            compare("as many guesses as are worth it", [whole(r) for r in asked(s)], wanted)
            s.stop("chosen")
    models(wanted)
    with section("refused"): refused()
    finish()


if __name__ == "__main__":
    main()
