#!/usr/bin/env python3
"""Clients that ask for much, or take little: large bodies, heavy schemas, long replies, readers that stop. What others ask
for is answered meanwhile."""
from server import *

LONG = {"prompt": "Once upon a time", "max_tokens": 100 if SLOW else 480, "ignore_eos": True, "seed": 1}
WIDE = {**LONG, "n": 6 if SLOW else 20, "max_tokens": 250, "logprobs": 20}
# Of less than 1 MB: with a list of names that is searched for each of them, one took seconds.
HEAVY = {"type": "object", "properties": {f"p{i}": True for i in range(4990)}, "required": ["p4989"] * 90000}


def schema_body(schema):
    return json.dumps({"prompt": "a", "max_tokens": 5, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}).encode()


class Probe:
    """Small requests, one after the other, while something else goes on."""

    def __init__(self, server, ask):
        self.server, self.ask, self.times, self.failed, self.stop = server, ask, [], [], threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stop.is_set():
            began = time.monotonic()
            try:
                reply = self.ask(self.server)
                if reply.status != 200: self.failed.append(reply)
            except Exception as error:
                self.failed.append(error)
            self.times.append(time.monotonic() - began)
            time.sleep(0.005)

    def __enter__(self):
        self.began = time.monotonic()
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.stop.set()
        self.thread.join()
        self.seconds = time.monotonic() - self.began

    def check(self, name):
        """On average within 0.1 s, all of them within two."""
        limit = (1, 10) if SLOW else (0.1, 2)
        good = not self.failed and len(self.times) * limit[0] >= self.seconds and max(self.times) < limit[1]
        check(name, good, f"{len(self.times)} in {self.seconds:.1f} s, at most {max(self.times):.2f} s, {self.failed[:2]}")


def health(s): return s.get("/health")
def short(s): return s.complete("a", max_tokens=1)


# ---- Much to do before the first step

def bodies(s):
    """So many at once that each thread of HTTP would have one."""
    text = "word another thing " * (50000 if SLOW else 210000)
    heavy = [("schemas", "/v1/completions", schema_body(HEAVY), 400),
             ("long alternatives", "/v1/completions", schema_body({"enum": [f"value number {i} of many" for i in range(30000)]}), 400),
             ("patterns", "/v1/completions", schema_body({"prefixItems": [{"pattern": "^.{0,%d}x.{0,300}$" % (i + 1)} for i in range(40)]}), 400),
             ("texts", "/tokenize", json.dumps({"content": text}).encode(), 200),
             ("conversations", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "x"}] * 30000}).encode(), 400),
             ("prompts", "/v1/completions", json.dumps({"prompt": text}).encode(), 400),
             ("inputs", "/v1/embeddings", json.dumps({"input": [text]}).encode(), 400)]
    for name, path, body, status in heavy:
        events = []

        def stream():
            for _ in s.stream("/v1/completions", LONG).chunks: events.append(1)
        with Probe(s, health) as a, Probe(s, short) as b:
            running = threading.Thread(target=stream)
            running.start()
            got = many(lambda i: s.post(path, body).status, range(3 if SLOW else 8), 4)
            running.join()
        same(f"large {name}: replies", set(got), {status})
        a.check(f"large {name}: /health meanwhile")
        b.check(f"large {name}: short answers meanwhile")
        check(f"large {name}: a stream meanwhile", len(events) > LONG["max_tokens"] / 2, len(events))


def leaving(s):
    """Clients that are gone before their request was looked at."""
    body = schema_body(HEAVY)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    good = json.dumps({**LONG, "n": 4, "user": "x" * 20000}).encode()
    for _ in range(4):
        with s.socket() as c: c.sendall(head + body)
        with s.socket() as c: c.sendall(head.replace(str(len(body)).encode(), str(len(good)).encode()) + good)
    check("leaving early: nothing is left", until(lambda: s.idle() and metrics(s)["fusebox_connections"] <= 1, 60 if SLOW else 30), s.fuses()["running"])
    same("leaving early: it goes on", short(s).status, 200)


# ---- Long replies

def long_replies(s):
    """Written in parts, they are what short ones are: each answer alone is one of these."""
    prompts = [[5, 6, i] for i in range(4 if SLOW else 24)]
    body = {"max_tokens": 60 if SLOW else 100, "ignore_eos": True, "seed": 3, "logprobs": 20, "temperature": 0, "echo": True}
    with Probe(s, health) as probe: reply = s.post("/v1/completions", {**body, "prompt": prompts, "n": 2})
    probe.check("a long reply: /health meanwhile")
    check("a long reply is sent in parts", reply.headers.get("Transfer-Encoding") == "chunked" and not reply.headers.get("Content-Length"), reply.headers)
    got, usage = whole(reply), reply.json()["usage"]["completion_tokens"]
    same("a long reply: its answers", [len(got), usage], [2 * len(prompts), 2 * len(prompts) * body["max_tokens"]])
    alone = [s.post("/v1/completions", {**body, "prompt": prompt}) for prompt in prompts[:3]]
    check("a short reply has a length", all(r.headers.get("Content-Length") for r in alone))
    for i, one in enumerate(alone):
        same(f"a long reply: answers to prompt {i} are the short one's", got[2 * i:2 * i + 2], whole(one) * 2)
    streamed = s.stream("/v1/completions", {**body, "prompt": prompts[:3], "n": 2}).choices()
    same("a long reply: and the stream's", streamed, got[:6])
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 60, "n": 12, "seed": 3, "logprobs": True, "top_logprobs": 20}
    reply = s.post("/v1/chat/completions", chat)
    streamed = s.stream("/v1/chat/completions", chat).choices()
    same("a long chat: is the stream's", [[c["text"], c["logprobs"]["content"]] for c in whole(reply)], [[c["text"], c["logprobs"]["content"]] for c in streamed])


# ---- Readers that stop

def open_stream(s, body):
    """A connection that has asked, and does not read."""
    data = json.dumps({**body, "stream": True}).encode()
    c = socket.socket()
    c.settimeout(240 if SLOW else 60)
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    c.connect((s.host, s.port))
    c.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    return c


def read_stream(c):
    answer, got = Answer(), b""
    with c:
        while part := c.recv(1 << 20): got += part
    for event in events(b"".join(unchunk(got.split(b"\r\n\r\n", 1)[1])).split(b"\n")): answer.add(event)
    return answer


def unchunk(data):
    while data:
        size, data = data.split(b"\r\n", 1)
        yield data[:int(size, 16)]
        data = data[int(size, 16) + 2:]


def pauses():
    with Server("--sequences", 64) as s:
        alone = s.stream("/v1/completions", WIDE).choices()
        before = s.rss()
        readers = [open_stream(s, WIDE) for _ in range(2 if SLOW else 3)]
        tokens = lambda: metrics(s)['fusebox_tokens_total{model="storyteller"}']
        left = lambda: (state := s.fuses())["running"] + state["waiting"]
        check("readers that stop: their answers are paused", until(lambda: (now := tokens()) > 100 and time.sleep(0.5) is None and tokens() == now, 120 if SLOW else 40, 0.1)
              and left() == len(readers) * WIDE["n"], left())
        check("readers that stop: their memory is bounded", SLOW or s.rss() - before < 24 << 20, f"{before} bytes before, {s.rss()} now")
        began = time.monotonic()
        same("readers that stop: others are served", s.complete(max_tokens=20).status, 200)
        check("readers that stop: at once", time.monotonic() - began < (20 if SLOW else 3), time.monotonic() - began)
        readers.pop().close()
        check("a paused reader that leaves is forgotten", until(lambda: left() == len(readers) * WIDE["n"], 5), left())
        answers = many(read_stream, readers)
        same("readers that go on get all of it", [a.done and a.choices() == alone for a in answers], [True] * len(answers))
        s.becomes_idle("and leave nothing", 3)
        s.stop("readers that stop")


def trickles():
    """A byte now and then is not reading."""
    with Server("--timeout", 2, "--sequences", 64) as s:
        readers = [open_stream(s, WIDE) for _ in range(3)]
        stop = time.monotonic() + (60 if SLOW else 30)
        gone = lambda: metrics(s)["fusebox_connections"] <= 1
        while not gone() and time.monotonic() < stop:
            for c in readers: c.recv(150)
            time.sleep(0.1)
        check("readers of a few bytes now and then are dropped", gone(), metrics(s)["fusebox_connections"])
        s.becomes_idle("and leave nothing behind", 2)
        for c in readers: c.close()
        s.stop("trickles")


# ---- A disk that stops

def slow_record():
    """The record is a pipe that nobody empties: answers go on, and nothing of the record is lost."""
    path, lines = scratch("pipe"), []
    os.mkfifo(path)
    end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with Server("--record", path) as s:
        body = {"prompt": [5] * 400, "max_tokens": 80, "n": 4, "ignore_eos": True}
        count = 8 if SLOW else 40
        replies = [s.post("/v1/completions", {**body, "seed": i}, timeout=20).status for i in range(count)]
        same("a disk that stops: answers go on", replies, [200] * count)
        os.set_blocking(end, True)
        reader = threading.Thread(target=lambda: lines.extend(open(end, "rb").read().splitlines()))
        reader.start()
        s.stop("a disk that stops")
        reader.join()
    whole_lines = [json.loads(line) for line in lines]
    same("a disk that stops: nothing is lost", [int(line["sampler"]["seed"]) for line in whole_lines[1:]], list(range(count)))


def main():
    with Server("--sequences", 64) as s:
        for part in (bodies, leaving, long_replies):
            with section(part.__name__): part(s)
        s.stop("heavy")
    for part in (pauses, trickles, slow_record):
        with section(part.__name__): part()
    finish()


if __name__ == "__main__":
    main()
