#!/usr/bin/env python3
"""Mixed load for $SOAK_SECONDS (120): the memory stays what it was, blocks come back, and a sample of the answers is what
each is alone, asked again and by `fusebox replay`. A client rests for about $SOAK_REST seconds (0.5) between two requests:
here it runs beside other tests. `make soak-serve` runs it for an hour, without a rest."""
import random

from server import *
from test_load import mixture

SECONDS = float(os.environ.get("SOAK_SECONDS", 10 if SLOW else 120))
REST = float(os.environ.get("SOAK_REST", 0 if SLOW else 0.5))
WARM = min(10, SECONDS / 5)
CLIENTS, SAMPLE = 10, 30 if SLOW else 60
# From the first half to the second, however long they are: what fragments the heap now and then. So a longer run finds
# smaller leaks. In less than two minutes the heap has not settled.
MAX_GROWTH = (4 if SECONDS >= 120 else 8) << 20
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {
    "type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}, "kind": {"enum": ["fox", "bear"]}},
    "required": ["name", "kind"], "additionalProperties": False}}}
BAD = [("/v1/completions", {"prompt": "a", "temperature": "hot"}), ("/v1/completions", {"prompt": "word " * 3000}),
       ("/v1/chat/completions", {"messages": [{"role": "user"}] * 3}), ("/v1/embeddings", {"input": [[9999]]}), ("/fuses", {"fuse": "warp"}),
       ("/v1/completions", "{" * 5000), ("/tokenize", {"content": 1})]


class Load:
    """What the clients share: counts, and answers to compare later."""

    def __init__(self, server):
        self.server, self.lock = server, threading.Lock()
        self.counts, self.wrong, self.sample, self.answers = {}, [], [], 0

    def count(self, kind):
        with self.lock: self.counts[kind] = self.counts.get(kind, 0) + 1

    def fail(self, *what):
        with self.lock: self.wrong.append(what)

    def keep(self, r, path, body, choices):
        """Each answer has the same chance to be in the sample."""
        with self.lock:
            self.answers += 1
            if len(self.sample) < SAMPLE: self.sample.append((path, body, choices))
            elif (at := r.randrange(self.answers)) < SAMPLE: self.sample[at] = (path, body, choices)


def complete(load, r, path, body):
    """An answer: whole, as a stream, or left in the middle."""
    how = r.random()
    if how < 0.2: return load.server.stream(path, body, stop_after=r.randrange(1, 20)) and None
    if how < 0.6:
        answer = load.server.stream(path, body)
        if not answer.done or answer.error: return load.fail(body, answer.error)
        choices = answer.choices()
    else:
        reply = load.server.post(path, body)
        if reply.status != 200: return load.fail(body, reply)
        choices = whole(reply)
    load.keep(r, path, body, choices)


def text(load, r): complete(load, r, "/v1/completions", mixture(r.randrange(10**6)))


def chat(load, r):
    body = {"messages": [{"role": "user", "content": r.choice(["Hi", "Tell me of a fox. ", "é"]) * r.randrange(1, 9)}],
            "max_tokens": r.randrange(1, 60), "seed": r.randrange(10**6), "logprobs": r.random() < 0.3}
    complete(load, r, "/v1/chat/completions", body)


def schema(load, r):
    body = {"prompt": "The fox is", "max_tokens": 80, "seed": r.randrange(10**6), "response_format": SCHEMA}
    complete(load, r, "/v1/completions", body)


def embed(load, r):
    if load.server.post("/v1/embeddings", {"input": ["a fox " * r.randrange(1, 40)] * r.randrange(1, 3)}).status != 200: load.fail("embeddings")


def bad(load, r):
    path, body = r.choice(BAD)
    if (status := load.server.post(path, body).status) != 400: load.fail(path, body, status)


def look(load, r):
    path = r.choice(["/metrics", "/fuses", "/props", "/v1/models", "/health", "/openapi.json", "/", "/fuses?timeline=1"])
    if load.server.get(path).status != 200: load.fail(path)


def flip(load, r):
    body = {"switch": {r.choice(["norm_linear", "qkv_up", "rope_kv", "bias_act", "down_add"]): r.random() < 0.7}}
    if load.server.post("/fuses", body).status != 200: load.fail(body)


KINDS = [(text, 50), (chat, 15), (schema, 8), (embed, 5), (bad, 10), (look, 10), (flip, 2)]


def client(load, seed, end):
    r = random.Random(seed)
    while time.monotonic() < end and not load.wrong:
        kind = r.choices([k for k, _ in KINDS], [w for _, w in KINDS])[0]
        try:
            kind(load, r)
        except Exception as error:
            load.fail(kind.__name__, repr(error))
        load.count(kind.__name__)
        time.sleep(r.random() * 2 * REST)


def watch(server, began, end):
    """Resident bytes over time."""
    sizes = []
    while time.monotonic() < end:
        time.sleep(min(5, SECONDS / 40))
        sizes.append((time.monotonic() - began, server.rss()))
    return sizes


def soak(s):
    # What the first requests of each kind allocate is no growth. The largest mixture comes first.
    warm = Load(s)
    many(lambda seed: client(warm, seed, time.monotonic() + WARM), range(CLIENTS), CLIENTS)
    load, began = Load(s), time.monotonic()
    clients = [threading.Thread(target=client, args=(load, 100 + i, began + SECONDS)) for i in range(CLIENTS)]
    for c in clients: c.start()
    sizes = watch(s, began, began + SECONDS)
    for c in clients: c.join()
    s.becomes_idle("the soak leaves nothing behind", 2)
    check(f"{sum(load.counts.values())} requests without an error: {load.counts}", not load.wrong and not warm.wrong, (warm.wrong + load.wrong)[:3])
    if not SLOW: check("of every kind", len(load.counts) == len(KINDS), load.counts)
    first = max(size for at, size in sizes if at <= SECONDS / 2)
    last = max(size for at, size in sizes if at > SECONDS / 2)
    print(f"# resident MB: {first / 2**20:.1f} at most in the first half, {last / 2**20:.1f} in the second, {s.rss() / 2**20:.1f} at the end")
    if not SLOW: check("the memory is flat", last - first < MAX_GROWTH, f"{first} bytes, then {last}")
    s.post("/fuses", {"fuse": "auto"})
    differ = [(path, body, got, alone) for path, body, got in load.sample for alone in [whole(s.post(path, body))] if got != alone]
    check(f"{len(load.sample)} of {load.answers} answers are what they are alone", load.sample and not differ, differ[:1])
    values = metrics(s)
    same("no answer failed", values['fusebox_answers_total{model="storyteller",finish="failed"}'], 0)
    s.becomes_idle("every block came back")


def replays(record):
    """So many lines of the record, each computed alone."""
    with open(record) as file: count = sum(1 for _ in file)
    r = random.Random(1)
    chosen = {0, *r.sample(range(1, count), min(SAMPLE, count - 1))}
    short = copy_lines(record, scratch("sample.jsonl"), lambda number, value: value if number in chosen else None)
    run = fusebox("replay", "--threads", 1, short, seconds=200)
    check(f"{len(chosen) - 1} of {count - 1} requests of the record replay", run.returncode == 0 and b"to the bit" in run.stdout, run.stdout + run.stderr)


def main():
    record = scratch("soak.jsonl")
    with Server("--cache-tokens", 4096, "--sequences", 16, "--record", record) as s:
        with section("soak"): soak(s)
        s.stop("soak")
    with section("replays"): replays(record)
    finish()


if __name__ == "__main__":
    main()
