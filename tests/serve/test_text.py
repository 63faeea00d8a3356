#!/usr/bin/env python3
"""/v1/completions and /v1/chat/completions: what they answer, whole and as a stream."""
import math

from server import *

PROMPT = "Once upon a time"
GREEDY = {"temperature": 0}


def same_answers(name, got, wanted):
    for g, w in zip(got, wanted):
        if g != w: return same(name, g, w)
    return check(name, len(got) == len(wanted) > 0, f"{len(got)} and {len(wanted)} answers")


def one(server, prompt=PROMPT, **more):
    reply = server.complete(prompt, **more)
    if reply.status != 200: raise RuntimeError(reply)
    return reply.json()["choices"][0]


def whole_replies(s):
    props = s.get("/props").json()
    reply = s.complete(max_tokens=8, seed=1).json()
    same("a reply's members", list(reply), ["id", "object", "created", "model", "system_fingerprint", "seed", "choices", "usage"])
    same("its kind, model and fingerprint", [reply[k] for k in ("object", "model", "system_fingerprint", "seed")],
         ["text_completion", "storyteller", props["fingerprint"], 1])
    check("its time", abs(reply["created"] - time.time()) < 60, reply["created"])
    same("its use", reply["usage"], {"prompt_tokens": 6, "completion_tokens": 8, "total_tokens": 14,
                                     "prompt_tokens_details": {"cached_tokens": 0}})
    same("a choice", [*reply["choices"][0]], ["index", "text", "logprobs", "finish_reason"])
    same("why it ended", reply["choices"][0]["finish_reason"], "length")
    same("without max_tokens there are 16", s.complete().json()["usage"]["completion_tokens"], 16)
    ids = {s.complete(max_tokens=1).json()["id"] for _ in range(8)}
    check("every reply has an id of its own", len(ids) == 8, ids)
    same("max_tokens 0: nothing", (one(s, max_tokens=0)["text"], one(s, max_tokens=0)["finish_reason"]), ("", "length"))
    same("max_tokens 0 with echo: the prompt", one(s, max_tokens=0, echo=True)["text"], PROMPT)
    long = s.complete([5] * 500, max_tokens=100, ignore_eos=True).json()
    same("the context is a limit, too", (long["usage"]["completion_tokens"], long["choices"][0]["finish_reason"]), (12, "length"))
    long = [5] * 400
    s.complete(long, max_tokens=1)
    cached = s.complete(long, max_tokens=1).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    check("a prompt's beginning is found again", 300 < cached < 400, cached)


STREAMED = [
    {"max_tokens": 24}, {"max_tokens": 24, "logprobs": 3}, {"max_tokens": 24, "logprobs": 0}, {"n": 3, "max_tokens": 12, "logprobs": 1},
    {"max_tokens": 5, "echo": True}, {"max_tokens": 5, "echo": True, "logprobs": 2, "n": 2}, {"max_tokens": 0, "echo": True, "logprobs": 1},
    {"prompt": ["The fox", "A bear", [5, 6, 7]], "n": 2, "max_tokens": 9}, {"max_tokens": 40, "stop": ["e w", " the"], "logprobs": 1},
    {"temperature": 2, "top_k": 0, "top_p": 1, "min_p": 0, "max_tokens": 60, "logprobs": 2, "ignore_eos": True},
]


def streams(s):
    for i, body in enumerate(STREAMED):
        body = {"prompt": PROMPT, "seed": 10 + i, **body}
        answer = s.stream("/v1/completions", body)
        same_answers(f"a stream has what the whole reply has: {json.dumps(STREAMED[i])[:90]}", answer.choices(),
                     whole(s.post("/v1/completions", body)))
        check("it ends", answer.done and not answer.error, answer.chunks[-1:])
    body = {"prompt": PROMPT, "max_tokens": 6, "seed": 1}
    answer = s.stream("/v1/completions", {**body, "stream_options": {"include_usage": True}})
    same("include_usage: an event more", answer.chunks[-1]["choices"], [])
    usage = s.post("/v1/completions", body).json()["usage"]
    same("its counts", answer.usage, usage)
    check("the others have none", all(c["usage"] is None for c in answer.chunks[:-1]), answer.chunks[0])
    check("one id for all", len({c["id"] for c in answer.chunks}) == 1)
    check("no usage unless it is asked for", "usage" not in s.stream("/v1/completions", body).chunks[0])
    with contextlib.closing(s.connection()) as c:
        c.request("POST", "/v1/completions", json.dumps({**body, "stream": True}))
        r = c.getresponse()
        same("its type", r.headers["Content-Type"], "text/event-stream")
        r.read()
        same("the connection goes on", s.get("/health", connection=c).status, 200)


def several(s):
    five = [c["text"] for c in whole(s.complete(n=5, seed=3, max_tokens=12))]
    three = [c["text"] for c in whole(s.complete(n=3, seed=3, max_tokens=12))]
    same("n: the first answers are the same", five[:3], three)
    same("n 1 is the first of them", one(s, seed=3, max_tokens=12)["text"], five[0])
    same("n: they differ", len(set(five)), 5)
    texts = ["The fox", "A bear was", PROMPT]
    reply = s.complete(texts, n=2, seed=5, max_tokens=8)
    same("several prompts: indexes", [c["index"] for c in reply.json()["choices"]], list(range(6)))
    same("several prompts: greedy, each as alone", [c["text"] for c in whole(s.complete(texts, max_tokens=8, **GREEDY))],
         [one(s, t, max_tokens=8, **GREEDY)["text"] for t in texts])
    same("several prompts: echo", [c["text"][:len(t)] for c, t in zip(whole(s.complete(texts, max_tokens=1, echo=True)), texts)], texts)
    same("several prompts: use", reply.json()["usage"]["prompt_tokens"],
         sum(s.post("/tokenize", {"content": t, "add_special": True}).json()["count"] for t in texts))
    ids = s.post("/tokenize", {"content": PROMPT, "add_special": True}).json()["tokens"]
    same("token ids are a prompt", one(s, ids, seed=2), one(s, seed=2))
    same("several of token ids", whole(s.complete([ids, ids[:2]], max_tokens=8, **GREEDY)),
         [{k: one(s, p, max_tokens=8, **GREEDY)[k] for k in ("text", "logprobs", "finish_reason")} for p in (ids, ids[:2])])


def stops(s):
    text = one(s, max_tokens=60, **GREEDY)["text"]
    for at, size in ((3, 4), (17, 9), (30, 1), (0, 2), (40, 12)):
        stop = text[at:at + size]
        wanted = text[:text.index(stop)]
        got = one(s, max_tokens=60, stop=stop, **GREEDY)
        same(f"stop {stop!r}", (got["text"], got["finish_reason"]), (wanted, "stop"))
        streamed = s.stream("/v1/completions", {"prompt": PROMPT, "max_tokens": 60, "stop": ["zzzz", stop], **GREEDY})
        same("and as a stream", streamed.choices()[0]["text"], wanted)
    got = one(s, max_tokens=60, stop=["zz", text[50:] + "zz"], **GREEDY)
    same("a stop that does not come holds nothing back", (got["text"], got["finish_reason"]), (text, "length"))


def scores(s):
    """The same numbers as the library's, and what makes them log-probabilities."""
    cli = json.loads(fusebox("run", "-p", PROMPT, "-n", 40, "--seed", 9, "--json", "--logprobs", 5).stdout)
    got = one(s, max_tokens=40, seed=9, logprobs=5)
    same("the text of fusebox run", got["text"], cli["text"])
    lp = got["logprobs"]
    check("its log-probabilities", [float(f"{v:.9g}") for v in lp["token_logprobs"]] == [t["logprob"] for t in cli["logprobs"]], lp["token_logprobs"][:3])
    best = [[float(f"{v:.9g}") for v in top.values()] for top in lp["top_logprobs"]]
    check("and the best ones", best == [[b["logprob"] for b in t["top"]] for t in cli["logprobs"]], best[:2])
    check("they are sorted", all(list(t.values()) == sorted(t.values(), reverse=True) for t in lp["top_logprobs"]))
    check("a chosen one has the same number there", all(top.get(t, v) == v for t, v, top in zip(lp["tokens"], lp["token_logprobs"], lp["top_logprobs"])))
    same("tokens make the text", "".join(lp["tokens"]), got["text"])
    check("text_offset", all(got["text"].startswith(t, at) for t, at in zip(lp["tokens"], lp["text_offset"])), lp["text_offset"])
    without = one(s, max_tokens=40, seed=9, logprobs=0)["logprobs"]
    same("logprobs 0: the token's alone", (without["token_logprobs"], set(map(len, without["top_logprobs"]))), (lp["token_logprobs"], {0}))

    ids = cli["tokens"]
    first = s.post("/tokenize", {"content": PROMPT, "add_special": True}).json()["tokens"]
    echo = one(s, first + ids, max_tokens=0, echo=True, logprobs=5)
    same("echo: the text, with the special token that was given", echo["text"], "<|endoftext|>" + PROMPT + got["text"])
    e = echo["logprobs"]
    same("echo: no number for the first token", (e["token_logprobs"][0], e["top_logprobs"][0]), (None, None))
    same("echo: the bits that writing it gave", e["token_logprobs"][len(first):], lp["token_logprobs"])
    same("echo: and the best ones", e["top_logprobs"][len(first):], lp["top_logprobs"])
    check("echo: text_offset", all(echo["text"].startswith(t, at) for t, at in zip(e["tokens"], e["text_offset"])), e["text_offset"])
    more = one(s, PROMPT, max_tokens=40, seed=9, echo=True, logprobs=5)
    same("echo of a text: that text", more["text"], PROMPT + got["text"])
    same("echo of a text: the same numbers", [more["logprobs"][k] for k in ("tokens", "token_logprobs", "top_logprobs")],
         [e[k] for k in ("tokens", "token_logprobs", "top_logprobs")])
    check("echo of a text: text_offset", all(more["text"].startswith(t, at) for t, at in
                                             zip(more["logprobs"]["tokens"][1:], more["logprobs"]["text_offset"][1:])), more["logprobs"]["text_offset"])


def vocabulary(s):
    """Of a small model: the probabilities of all tokens after a text."""
    ids = [[1, 2, t] for t in range(320)]
    replies = [s.complete(part, max_tokens=0, echo=True, logprobs=0, model="small") for part in (ids[:256], ids[256:])]
    same("echo of a model without a tokenizer", [c["text"] for c in whole(replies[1])], [""] * 64)
    all_scores = [c["logprobs"]["token_logprobs"][2] for r in replies for c in whole(r)]
    total = math.fsum(map(math.exp, all_scores))
    check("the probabilities of all tokens are 1 together", len(all_scores) == 320 and abs(total - 1) < 1e-9, total)
    top = one(s, [1, 2], max_tokens=1, logprobs=20, model="small", **GREEDY)["logprobs"]
    same("the best of them is the one that is taken", top["token_logprobs"][0], max(all_scores))


SAMPLED = [
    {}, {"temperature": 0}, {"temperature": 1.3, "top_k": 7}, {"top_p": 0.5, "min_p": 0, "top_k": 0}, {"min_p": 0.3},
    {"repeat_penalty": 1.5}, {"presence_penalty": 1.5, "frequency_penalty": 0.7}, {"frequency_penalty": -1, "temperature": 1},
    {"temperature": 5, "top_k": 0, "top_p": 1, "min_p": 0, "repeat_penalty": 1},
]


def like_run(s):
    def compare(pair):
        seed, body = pair
        options = [x for k, v in body.items() for x in ("--" + {"temperature": "temp"}.get(k, k).replace("_", "-"), v)]
        run = json.loads(fusebox("run", "-p", PROMPT, "-n", 50, "--seed", seed, "--json", *options).stdout)
        got = one(s, max_tokens=50, seed=seed, **body)
        return body, {"text": got["text"], "why": {"length": "length"}.get(got["finish_reason"], "end")}, \
            {"text": run["text"], "why": {"length": "length"}.get(run["stop"], "end")}
    for body, got, wanted in many(compare, enumerate(SAMPLED), 2):
        same(f"the text of fusebox run: {body}", got, wanted)
    text = one(s, seed=77, max_tokens=30)["text"]
    same("a seed gives one text", {one(s, seed=77, max_tokens=30)["text"] for _ in range(3)}, {text})
    differ = {one(s, seed=n, max_tokens=30)["text"] for n in range(8)}
    check("others give others", len(differ) == 8, differ)
    reply = s.complete(max_tokens=30).json()
    same("a random seed is told", one(s, max_tokens=30, seed=reply["seed"])["text"], reply["choices"][0]["text"])
    for seed in (0, -1, 2**63 - 1, -2**63):
        reply = s.complete(max_tokens=4, seed=seed)
        check(f"seed {seed}", reply.status == 200 and reply.json()["seed"] == seed, reply)
    check("seed 2^63 is too much", s.complete(seed=2**63).status == 400)


def biases(s):
    def tokens(**more):
        return one(s, max_tokens=6, logprobs=0, ignore_eos=True, repeat_penalty=1, **more)["logprobs"]["tokens"]
    word = tokens(**GREEDY)[0]
    token = s.post("/tokenize", {"content": word}).json()["tokens"]
    same("a token alone", len(token), 1)
    same("logit_bias 100: it is taken", tokens(logit_bias={str(token[0]): 100}), [word] * 6)
    check("logit_bias -100: never", word not in tokens(logit_bias={str(token[0]): -100}, **GREEDY))
    check("an id that is none", s.complete(logit_bias={"4096": 1}).error()["param"] == "logit_bias")
    ends = one(s, logit_bias={"0": 100}, max_tokens=9)
    same("the end token ends", (ends["text"], ends["finish_reason"]), ("", "stop"))
    goes = s.complete(logit_bias={"0": 100}, max_tokens=9, ignore_eos=True).json()
    same("ignore_eos: it goes on", (goes["usage"]["completion_tokens"], goes["choices"][0]["finish_reason"]), (9, "length"))


def bytes_without_characters(s):
    """Tokens that are no whole characters: the text has no halves, chats have the bytes."""
    found = [t for t in range(300) if "\ufffd" in s.post("/detokenize", {"tokens": [t]}).json()["content"]][:3]
    check("the vocabulary has such tokens", len(found) == 3, found)
    for token in found[:1]:
        body = {"max_tokens": 4, "logit_bias": {str(token): 100}, "ignore_eos": True, "repeat_penalty": 1, "seed": 1}
        got = s.chat("Hi", logprobs=True, **body)
        sizes = [len(c["bytes"]) for c in got.json()["choices"][0]["logprobs"]["content"]]
        check("their bytes", sizes == [1] * 4 and got.json()["choices"][0]["logprobs"]["content"][0]["bytes"][0] >= 0x80, sizes)
        text = whole(got)[0]["text"]
        same("no more than that in the text", set(text), {"\ufffd"})
        path, streamed = "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], **body}
        same("and as a stream", s.stream(path, streamed).choices()[0]["text"], text)


def spaces_model():
    """A small model with a SentencePiece vocabulary: Llama 2's special pieces and bytes, and some of its others."""
    folder, golden, ids = scratch("spaces"), f"{GOLDENS}/llama-gqa-tied", 320
    os.makedirs(folder)
    for file in ("config.json", "model.safetensors"):
        os.symlink(os.path.abspath(f"{golden}/{file}"), f"{folder}/{file}")
    with open("tests/data/tokenizer/llama2.json") as file:
        t = json.load(file)
    model = t["model"]
    pieces = [p for p in ("▁", *"thenais", "▁t", "he", "▁the", "in", "▁in", "▁a", "en", "th") if p in model["vocab"]]
    model["vocab"] = {piece: id for piece, id in model["vocab"].items() if id < 259} | {p: 259 + i for i, p in enumerate(pieces)}
    pairs = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
    model["merges"] = [pair for pair in pairs if {*pair, "".join(pair)} <= set(model["vocab"])]
    t["added_tokens"] = [a for a in t["added_tokens"] if a["id"] < ids]
    with open(f"{folder}/tokenizer.json", "w") as file:
        json.dump(t, file)
    return folder


def spaces(s):
    """Where a piece begins with its space, and bytes are pieces of their own."""
    text = "the then a é the in"
    body = {"prompt": text, "max_tokens": 40, "echo": True, "logprobs": 5, "seed": 3, "temperature": 3, "top_k": 0, "top_p": 1, "min_p": 0,
            "ignore_eos": True, "model": "spaces"}
    got = s.post("/v1/completions", body).json()["choices"][0]
    lp, start = got["logprobs"], len(s.post("/tokenize", {"content": text, "add_special": True, "model": "spaces"}).json()["tokens"])
    same("a prompt's tokens keep their spaces", "".join(lp["tokens"][1:start]).replace("\ufffd\ufffd", "é"), " " + text)
    offsets = [(at, token) for at, token in zip(lp["text_offset"][2:start], lp["tokens"][2:start]) if "\ufffd" not in token]
    check("text_offset", offsets and all(text.startswith(token, at) for at, token in offsets), offsets)
    check("no two of the best are one", any(len(t) == 5 for t in lp["top_logprobs"][1:]), lp["top_logprobs"][:3])
    chat = s.chat("é", model="spaces", logprobs=True, max_tokens=40, temperature=3, top_k=0, top_p=1, min_p=0, seed=1, ignore_eos=True)
    choice = chat.json()["choices"][0]
    check("bytes that are no characters", any(len(c["bytes"]) == 1 and c["bytes"][0] > 127 for c in choice["logprobs"]["content"]), choice)


def chats(s):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me a story."}]
    prompt = s.post("/apply-template", {"messages": messages}).json()["prompt"]
    same("the default template", prompt, "System: Be brief.\n\nUser: Tell me a story.\n\nAssistant:")
    body = {"messages": messages, "seed": 4, "max_tokens": 20}
    reply = s.post("/v1/chat/completions", body)
    same("a chat continues it", whole(reply)[0]["text"], one(s, prompt, seed=4, max_tokens=20)["text"])
    same("a chat's kind", (reply.json()["object"], reply.json()["choices"][0]["message"]["role"]), ("chat.completion", "assistant"))
    same("max_completion_tokens", s.chat("Hi", max_completion_tokens=3).json()["usage"]["completion_tokens"], 3)
    rest = s.chat("Hi", ignore_eos=True).json()["usage"]
    same("without a limit it is the context", rest["total_tokens"], 512)
    for more in ({}, {"logprobs": True, "top_logprobs": 4}, {"logprobs": True}, {"n": 3, "stop": " the"}):
        answer = s.stream("/v1/chat/completions", {**body, **more})
        same_answers(f"a chat as a stream: {more}", answer.choices(), whole(s.post("/v1/chat/completions", {**body, **more})))
        same("it begins with a role", answer.chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        check("and its chunks say what they are", {c["object"] for c in answer.chunks} == {"chat.completion.chunk"} and answer.done)
    scored = s.post("/v1/chat/completions", {**body, "logprobs": True, "top_logprobs": 4}).json()["choices"][0]["logprobs"]["content"]
    plain = one(s, prompt, seed=4, max_tokens=20, logprobs=4)["logprobs"]
    same("a chat's log-probabilities", [c["logprob"] for c in scored], plain["token_logprobs"])
    same("and its best ones", [{t["token"]: t["logprob"] for t in c["top_logprobs"]} for c in scored], plain["top_logprobs"])
    check("bytes are the token's", all(bytes(t["bytes"]).decode() == t["token"] for c in scored for t in [c, *c["top_logprobs"]]))
    check("top_logprobs alone", s.chat("Hi", top_logprobs=2).error()["param"] == "top_logprobs")


def templates(s):
    def rendered(messages, **more):
        reply = s.post("/apply-template", {"messages": messages, "model": "chatty", **more})
        return reply.json()["prompt"] if reply.status == 200 else reply.error()["message"]
    user = {"role": "user", "content": "Hi"}
    same("the model's template", rendered([user]), "user: Hi<|endoftext|>answer:")
    same("its variables", rendered([user], chat_template_kwargs={"extra": "!"}), "user: Hi<|endoftext|>answer!:")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"x": 1.5}}}]
    same("tools", rendered([user], tools=tools), f"TOOLS {json.dumps(tools)}\nuser: Hi<|endoftext|>answer:")
    same("tool_choice none: no tools", rendered([user], tools=tools, tool_choice="none"), "user: Hi<|endoftext|>answer:")
    same("tool_choice auto", rendered([user], tools=tools, tool_choice="auto")[:5], "TOOLS")
    for bad in ([{}], [{"type": "function"}], [{"function": {"name": "f"}}], [{"type": "function", "function": {}}], [{"type": "function", "function": {"name": ""}}],
                [{"type": "web_search", "function": {"name": "f"}}], [*tools, {}], [1], {}, "f"):
        refused = s.post("/v1/chat/completions", {"messages": [user], "tools": bad, "model": "chatty"})
        check(f"tools {json.dumps(bad)[:60]}", refused.status == 400 and refused.error()["param"] == "tools", refused)
    for path in ("/v1/chat/completions", "/apply-template"):
        refused = s.post(path, {"messages": [user], "tools": tools, "model": "storyteller", **({"max_tokens": 2} if "chat" in path else {})})
        check(f"{path}: tools that the template does not show", refused.status == 400 and refused.error()["param"] == "tools" and "storyteller" in refused.error()["message"], refused)
        for none in ({"tools": tools, "tool_choice": "none"}, {"tools": []}, {"tools": None}):
            same(f"{path}: but {json.dumps(none)[-24:]} is none", s.post(path, {"messages": [user], "model": "storyteller", "max_tokens": 2, **none}).status, 200)
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        check(f"tool_choice {choice}", "tool_choice" in rendered([user], tools=tools, tool_choice=choice))
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function",
            "function": {"name": "f", "arguments": '{"x": 42}'}}]}
    check("a call's arguments are an object", " CALL f 42<|" in rendered([user, call]), rendered([user, call]))
    parts = {"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}
    same("parts of a text", rendered([parts]), rendered([user]))
    for part in ({"type": "image_url", "image_url": {"url": "http://x/"}}, {"type": "text"}, "Hi", 1, None, {"type": "text", "text": 1}):
        reply = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}], "model": "chatty"})
        check(f"a part {json.dumps(part)[:40]}", reply.status == 400 and reply.error()["param"] == "messages", reply)
    for message in ({}, {"role": 1, "content": "a"}, {"content": "a"}, 1, None, "Hi", [], {"role": "user"}, *({"role": "user", "content": content} for content in (1, 1.5, True, {"a": 1}, {}, {"type": "text", "text": "a"}))):
        reply = s.post("/v1/chat/completions", {"messages": [message], "model": "chatty"})
        check(f"a message {json.dumps(message)[:40]}", reply.status == 400 and reply.error()["param"] == "messages", reply)
    with open(scratch("messages.json"), "w") as file: json.dump([user], file)
    same("what fusebox chat renders", fusebox("chat", scratch("chatty"), "--render", scratch("messages.json")).stdout.decode(), rendered([user]))
    ids = list(map(int, fusebox("chat", scratch("chatty"), "--render", scratch("messages.json"), "--ids").stdout.split()))
    reply = s.chat("Hi", model="chatty", seed=1, max_tokens=8)
    same("a chat has its tokens", reply.json()["usage"]["prompt_tokens"], len(ids))
    same("and its text", whole(reply)[0]["text"], one(s, ids, model="chatty", seed=1, max_tokens=8)["text"])


def main():
    chatty = chat_model()
    with Server("models/storyteller", chatty, f"small={GOLDENS}/llama-gqa-tied", spaces_model(), threads=0) as s:
        for part in (whole_replies, streams, several, stops, scores, vocabulary, like_run, biases, bytes_without_characters, spaces,
                     chats, templates):
            with section(part.__name__): part(s)
        s.becomes_idle("nothing is left")
        s.stop()
    finish()


if __name__ == "__main__":
    main()
