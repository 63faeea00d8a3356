#!/usr/bin/env python3
"""Many requests at once: each answer is the one that it is alone, to the bit, and `fusebox replay` says so too."""
import random

from server import *

REQUESTS = 12 if SLOW else 32
ROUNDS = 1 if SLOW else 3
WORDS = "Once upon a time there was a fox who lived in the deep wood by a river with her seven young ones".split()


def mixture(seed, vocab=4096, longest=120, text=True):
    """A request of any kind."""
    r = random.Random(seed)
    body = {"seed": r.randrange(2**40), "max_tokens": r.randrange(1, longest), "temperature": r.choice([0, 0.7, 1, 2]), "top_k": r.choice([0, 5, 40]),
            "top_p": r.choice([1, 0.9]), "min_p": r.choice([0, 0.1]), "n": r.choice([1, 1, 1, 2, 3]), "logprobs": r.choice([0, 2]),
            "repeat_penalty": r.choice([1, 1.3]), "ignore_eos": r.random() < 0.5, "priority": r.randrange(-2, 3)}
    if text and r.random() < 0.6:
        body["prompt"] = " ".join(r.choice(WORDS) for _ in range(r.randrange(1, 60)))
        if r.random() < 0.4: body["stop"] = r.sample([" the", "e w", ".", " of", "ing"], 2)
        if r.random() < 0.2: body["echo"] = True
    else:
        shared = [t % vocab for t in range(7, 7 + 40 * r.randrange(2))]
        body["prompt"] = shared + [r.randrange(vocab) for _ in range(r.randrange(1, 30))]
    if r.random() < 0.3: body["logit_bias"] = {str(r.randrange(vocab)): r.choice([-100, 3])}
    if r.random() < 0.1: body["prompt"] = [body["prompt"], body["prompt"]]
    return body


def ask(server, seed, body):
    """The answers: whole, as a stream, or as a stream that is left in the middle (no answers)."""
    kind = seed % 4
    if kind == 0:
        server.stream("/v1/completions", body, stop_after=seed % 7 + 1)
        return None
    if kind == 1: return server.stream("/v1/completions", body).choices()
    reply = server.post("/v1/completions", body)
    if reply.status != 200: raise RuntimeError(reply)
    return whole(reply)


def compare(name, server, bodies, got):
    bad = [(i, g, whole(alone)) for i, (body, g) in enumerate(zip(bodies, got)) if g is not None
           for alone in [server.post("/v1/completions", body)] if alone.status != 200 or g != whole(alone)]
    count = sum(g is not None for g in got)
    return check(f"{name}: {count} answers are what they are alone", not bad and count, bad)


def replays(name, record, *arguments, status=0, says="to the bit"):
    run = fusebox("replay", "--threads", 1, record, *arguments, seconds=200)
    out = run.stdout.decode() + run.stderr.decode()
    return check(name, run.returncode == status and re.search(says, out), f"exit status {run.returncode}: {out}")


def together():
    record = scratch("record.jsonl")
    for run in range(ROUNDS):  # all threads, then one: the same bits
        with Server("--record", record, threads=min(run, 1)) as s:
            seeds = range(1000 * run, 1000 * run + REQUESTS)
            bodies = [mixture(seed) for seed in seeds]
            got = many(lambda pair: ask(s, *pair), zip(seeds, bodies))
            compare(f"{REQUESTS} requests, round {run + 1}", s, bodies, got)
            s.becomes_idle("the load leaves nothing behind")
            s.stop("load")
    replays("replay says the same", record)
    return record


def other_record(record):
    """Damage of every kind is found."""
    short = scratch("short.jsonl")
    with open(record) as file: lines = file.readlines()
    entries = [json.loads(line) for line in lines]  # the first one is a model
    found = [i for i, e in enumerate(entries) if "answers" in e and all(len(a["tokens"]) > 3 and a["finish"] == "length" for a in e["answers"])][:2]
    with open(short, "w") as file: file.writelines([lines[0], *(lines[i] for i in found)])
    replays("a part of a record", short)

    def damaged(name, says, change):
        def edit(number, line):
            if number == 1: change(line["answers"][-1], line)
            return line
        replays(f"a record with {name}", copy_lines(short, scratch("damaged.jsonl"), edit), status=1, says=says)
    damaged("another token", "another token", lambda a, line: a["tokens"].__setitem__(2, a["tokens"][2] ^ 1))
    damaged("another bit of a log-probability", "another log-probability",
            lambda a, line: a["logprobs"].__setitem__(1, math_next(a["logprobs"][1])))
    damaged("another text", "another text", lambda a, line: a["text"].__setitem__(1, a["text"][1] + "x"))
    damaged("more text", "the text ends earlier", lambda a, line: a["text"].append("x"))
    damaged("another end", "another end", lambda a, line: a.__setitem__("finish", "end"))
    damaged("a token more", "ends earlier", lambda a, line: (a["tokens"].append(1), a["logprobs"].append(-1.0)))
    damaged("a token less", "another token", lambda a, line: (a["tokens"].pop(), a["logprobs"].pop()))
    damaged("another seed", "differ", lambda a, line: line["sampler"].update(seed=str(int(line["sampler"]["seed"]) + 1), temperature=3, top_k=0))
    damaged("another prompt", "differ", lambda a, line: line["prompts"][0].__setitem__(-1, line["prompts"][0][-1] ^ 1))
    for name, says, text in (("a line that is cut short", r"line 3: cut short", "".join(lines[i] for i in (0, *found))[:-40]),
                             ("no model", "neither a model", lines[found[0]]), ("no JSON", "line 1: cut short", "hello\n"),
                             ("an answer less", "neither a model", lines[0] + json.dumps({**json.loads(lines[found[0]]), "answers": []}) + "\n"),
                             ("ids that are none", "token", lines[0] + json.dumps({**(first := json.loads(lines[found[0]])), "prompts": [[99999999]] * len(first["prompts"])}) + "\n")):
        with open(scratch("damaged.jsonl"), "w") as file: file.write(text)
        run = fusebox("replay", "--threads", 1, scratch("damaged.jsonl"))
        check(f"a record with {name}", run.returncode not in (0, -11, -6) and re.search(says, run.stderr.decode()) and run.stderr.count(b"\n") == 1,
              (run.returncode, run.stdout, run.stderr))
    check("no record", fusebox("replay", scratch("none.jsonl")).returncode not in (0, -11, -6))


def math_next(value):
    import math
    return math.nextafter(value, 0)


def streams():
    with Server("--sequences", 48) as s:
        count, length = (16, 30) if SLOW else (64, 100)
        bodies = [{"prompt": [5, i], "max_tokens": length, "seed": i, "ignore_eos": True} for i in range(count)]
        before = metrics(s)
        got = many(lambda body: s.stream("/v1/completions", body), bodies, count)
        check(f"{count} streams end", all(a.done and not a.error for a in got))
        same(f"{count} streams: each is what it is alone", [a.choices() for a in got], [whole(s.post("/v1/completions", b)) for b in bodies])
        s.becomes_idle("streams leave nothing behind")  # and the last step is counted
        values = metrics(s)
        same("the tokens are counted", values['fusebox_tokens_total{model="storyteller"}'] - before['fusebox_tokens_total{model="storyteller"}'], 2 * length * count)
        same("and the answers", values['fusebox_answers_total{model="storyteller",finish="length"}'], 2 * count)
        s.stop("streams")
    record = scratch("many.jsonl")
    with Server("--sequences", 100, "--record", record) as s:
        same("a hundred answers to one prompt", len(s.complete(n=100, max_tokens=3, seed=1).json()["choices"]), 100)
        s.stop("a hundred answers")
    replays("and their replay", record)


def no_room():
    """More requests than places, and a cache for few of them."""
    with Server("--max-requests", 6, "--sequences", 4, "--cache-tokens", 512) as s:
        bodies = [{"prompt": [5, 6, i], "max_tokens": 200, "seed": i, "ignore_eos": True, "logprobs": 0} for i in range(12 if SLOW else 24)]
        replies = many(lambda body: s.post("/v1/completions", body), bodies, 24)
        statuses = {r.status for r in replies}
        same("more requests than places", statuses, {200, 429})
        busy = [r for r in replies if r.status == 429]
        check("a 429 says when to come again", all(r.headers["Retry-After"] == "1" and r.error()["code"] == "busy" and r.error()["type"] == "rate_limit_error" for r in busy), busy[:1])
        s.becomes_idle("a full server becomes idle")
        values = metrics(s)
        same("and is counted", values['fusebox_requests_refused_total{model="storyteller"}'], len(busy))
        check("answers were put back", values['fusebox_preemptions_total{model="storyteller"}'] > 0, values)
        compare("a small cache", s, bodies, [whole(r) if r.status == 200 else None for r in replies])
        never = s.complete(n=4, prompt=["a", "b"])
        check("more answers than there will ever be places", never.status == 400 and never.error()["param"] == "n" and " 8 " in never.error()["message"] and "at most 6" in never.error()["message"], never)
        same("the same without n", s.complete(prompt=["a"] * 7).error()["param"], "prompt")
        same("as many as there are places", len(s.complete(prompt=["a"] * 6, max_tokens=1).json()["choices"]), 6)
        s.becomes_idle("a small cache leaves nothing behind")
        s.stop("no room")


def poisoned_model(token):
    """The storyteller with NaN for one token's embedding."""
    folder, model = scratch("poisoned"), "models/storyteller"
    os.makedirs(folder)
    for file in os.listdir(model): shutil.copy(f"{model}/{file}", folder)
    with open(f"{folder}/model.safetensors", "r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(size))["gpt_neox.embed_in.weight"]
        width = 2 * entry["shape"][1]
        file.seek(8 + size + entry["data_offsets"][0] + token * width)
        file.write(b"\xff\x7e" * (width // 2))
    return folder


def faults():
    """Requests that fail beside others that do not: NaN goes through a model, and then through its cache's blocks."""
    poison = 777
    with Server(poisoned_model(poison), "--cache-tokens", 1024, "--sequences", 16) as s:
        good = [{"prompt": [5, 6, i], "max_tokens": 15 if SLOW else 60, "seed": i, "logprobs": 2, "n": 1 + i % 2, "ignore_eos": True, "logit_bias": {str(poison): -100}} for i in range(12)]
        alone = [whole(s.post("/v1/completions", body)) for body in good]
        bad = [{"prompt": [5, 6] + [poison] * (1 + 9 * i), "max_tokens": 30, "stream": i % 2 == 0} for i in range(12)]
        mixed = [body for pair in zip(good, bad) for body in pair]
        for run in range(1 if SLOW else 3):
            replies = many(lambda body: s.post("/v1/completions", body), mixed, 24)
            same(f"faults, round {run + 1}: the others are what they are alone", [whole(r) if r.status == 200 else r for r in replies[::2]], alone)
            failed = [r for r in replies[1::2] if r.status == 500 and "nan" in r.error()["message"].lower()]
            streamed = [r for r in replies[1::2] if r.status == 200 and b'"error"' in r.body and b"nan" in r.body.lower()]
            same(f"faults, round {run + 1}: each says what it is", (len(failed), len(streamed)), (6, 6))
        s.becomes_idle("faults leave nothing behind")
        same("they are counted", metrics(s)['fusebox_answers_total{model="poisoned",finish="failed"}'], 12 if SLOW else 36)
        s.stop("faults")


def switches(s, name, bodies, stop_when):
    """Flips fuses until told to stop; how often, and what went wrong."""
    flips, wrong = 0, []
    fuses = [f for f in s.fuses()["fuses"] if f["applies"] and f["class"] == "bit"]
    r = random.Random(1)
    while not stop_when.is_set():
        body = {"switch": {r.choice(fuses)["name"]: r.random() < 0.5}} if r.random() < 0.8 else {"fuse": r.choice(["auto", "none,attn_flash", "all"])}
        if body.get("fuse") == "all": body = {"fuse": "auto"}
        reply = s.post("/fuses", body)
        if reply.status != 200: wrong.append((body, reply))
        flips += 1
        time.sleep(0.005)
    check(f"{name}: {len(fuses)} bit fuses were flipped {flips} times", not wrong and flips > 3 and fuses, wrong)


def flipped():
    record = scratch("flipped.jsonl")
    with Server("--record", record) as s:
        before = s.get("/props").json()["fingerprint"]
        seeds = list(range(5000, 5006 if SLOW else 5016))
        bodies = [mixture(seed, longest=60 if SLOW else 200) for seed in seeds]
        end = threading.Event()
        flipper = threading.Thread(target=switches, args=(s, "load", bodies, end))
        flipper.start()
        got = many(lambda pair: ask(s, *pair), zip(seeds, bodies))
        end.set()
        flipper.join()
        compare("bit fuses are flipped", s, bodies, got)
        check("plans changed", s.fuses()["changes"] > 2, s.fuses()["changes"])
        s.post("/fuses", {"fuse": "auto"})
        same("a bit fuse does not change the fingerprint", s.complete(max_tokens=1).json()["system_fingerprint"], before)

        long = {"prompt": [[5, i] for i in range(6 if SLOW else 24)], "max_tokens": 120 if SLOW else 300, "ignore_eos": True, "temperature": 0, "logprobs": 0}
        alone = whole(s.post("/v1/completions", long))
        found = []
        thread = threading.Thread(target=lambda: found.append(s.post("/v1/completions", long)))
        thread.start()
        until(lambda: s.fuses()["running"] > 0, 5)
        state = s.post("/fuses", {"switch": {"attn_flash": False}}).json()
        fuse = next(f for f in state["fuses"] if f["name"] == "attn_flash")
        same("a tol fuse waits", (state["pending"], fuse["on"], fuse["next"]), (True, True, False))
        late = s.complete(max_tokens=2)
        thread.join()
        check("answers that run keep theirs", whole(found[0]) == alone and found[0].json()["system_fingerprint"] == before, found[0])
        check("one that begins later has another fingerprint", late.json()["system_fingerprint"] != before, late)
        state = s.fuses()
        same("then it is off", (state["pending"], next(f for f in state["fuses"] if f["name"] == "attn_flash")["on"]), (False, False))
        s.post("/fuses", {"switch": {"attn_flash": True}})
        same("and on again, with the old fingerprint", s.complete(max_tokens=2).json()["system_fingerprint"], before)
        s.stop("flipped")
    if not SLOW: replays("their replay, with all of the plans", record)


def emulated():
    """On the emulated device."""
    library = os.path.join(os.path.dirname(FUSEBOX), "tests/libfusebox_cuda_emulated.so")
    if SLOW or not os.path.exists(library):
        return print("# the emulated device: not run: " + ("the sanitizers do not follow it" if SLOW else "it is not built here"))
    environment = {"FUSEBOX_CUDA_LIBRARY": library}
    record = scratch("cuda.jsonl")
    with Server(f"{GOLDENS}/llama-gqa-tied", "--backend", "cuda", "--act", "f16", "--cache-tokens", 512, "--sequences", 8, "--record", record,
                environment=environment) as s:
        same("it runs there", s.get("/props").json()["backend"], "cuda")
        end = threading.Event()
        flipper = threading.Thread(target=switches, args=(s, "the device", [], end))
        flipper.start()
        for run in range(ROUNDS):
            seeds = range(2000 + 100 * run, 2000 + 100 * run + REQUESTS)
            bodies = [mixture(seed, vocab=320, longest=4, text=False) for seed in seeds]
            got = many(lambda pair: ask(s, *pair), zip(seeds, bodies))
            if run == 0: end.set()
            compare(f"the device, {REQUESTS} requests, round {run + 1}", s, bodies, got)
        flipper.join()
        s.becomes_idle("the device: nothing is left")
        s.stop("the device")
    lines = open(record).readlines()[:5]
    with open(record, "w") as file: file.writelines(lines)
    run = fusebox("replay", record, env={**os.environ, **environment}, seconds=200)
    check("the device: its replay", run.returncode == 0 and b"to the bit" in run.stdout, (run.returncode, run.stdout, run.stderr))


def main():
    with section("together"): record = together()
    with section("other_record"): other_record(record)
    for part in (streams, no_room, faults, flipped, emulated):
        with section(part.__name__): part()
    finish()


if __name__ == "__main__":
    main()
