#!/usr/bin/env python3
"""Clients that break the rules: whatever they send, or leave out, the server refuses it, forgets it, and goes on."""
import random, resource

from server import *

LONG = {"prompt": [5, 6, 7], "max_tokens": 120 if SLOW else 500, "ignore_eos": True, "seed": 1}
MAX_GROWTH = 24 << 20


def raw(server, data, seconds=10, half=False):
    """What comes back for these bytes until the connection is closed, or nothing has come for a while."""
    got = b""
    with server.socket(seconds) as c:
        try:
            c.sendall(data)
            if half: c.shutdown(socket.SHUT_WR)
            while part := c.recv(1 << 16):
                got += part
                c.settimeout(1)
        except OSError:
            pass
    return got


def post(path, body, *headers, length=None):
    """A request as bytes."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body) if length is None else length}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def lives(server, name):
    """It answers, and says the same as ever."""
    try:
        reply = server.complete(max_tokens=5, temperature=0)
        text = whole(reply)[0]["text"] if reply.status == 200 else reply
    except OSError as error:
        text = error
    if not hasattr(server, "text"): server.text = text
    return same(name, text, server.text)


# ---- HTTP that is none

def malformed_http(s):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    bad = {
        "NULs": b"\0" * 100, "a TLS hello": bytes.fromhex("16030100c8010000c40303") + b"x" * 190, "no version": b"GET /\r\n\r\n",
        "another version": b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "a length below 0": head + b"Content-Length: -1\r\n\r\n{}", "a length of letters": head + b"Content-Length: ten\r\n\r\n{}",
        "an endless length": head + b"Content-Length: 99999999999999999999999\r\n\r\n{}",
        "two lengths": head + b"Content-Length: 2\r\nContent-Length: 40\r\n\r\n{}",
        "a chunk of letters": chunked + b"zz\r\n{}\r\n0\r\n\r\n", "a chunk below 0": chunked + b"-2\r\n{}\r\n0\r\n\r\n",
        "an endless chunk": chunked + b"ffffffffffffffffff\r\n{}\r\n0\r\n\r\n", "a chunk without an end": chunked + b"2\r\n{}xx0\r\n\r\n",
        "a long method": b"A" * 5000 + b" / HTTP/1.1\r\nHost: localhost\r\n\r\n", "no path": b"GET  HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "dots": b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "a header without a name": b"GET /props HTTP/1.1\r\nHost: localhost\r\n: x\r\n\r\n" + b"\0", "another host": b"GET /props HTTP/1.1\r\nHost: example.org\r\n\r\n",
        "10,000 headers": b"GET /props HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"H%d: x\r\n" % i for i in range(10000)) + b"\r\n",
        "a header of 1 MB": b"GET /props HTTP/1.1\r\nHost: localhost\r\nA: " + b"x" * (1 << 20) + b"\r\n\r\n",
        "a path of 1 MB": b"GET /" + b"x" * (1 << 20) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "100,000 parameters": b"GET /props?" + b"&".join(b"a%d=b" % i for i in range(100000)) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    }
    for (name, data), got in zip(bad.items(), many(lambda data: raw(s, data, 2), bad.values(), 16)):
        status = got.split(b" ", 2)[1:2]
        refused = not got or status and (400 <= int(status[0]) < 600)
        if name == "a header without a name": refused = True  # it may be passed over
        check(f"HTTP: {name}", refused, got[:200])
    lives(s, "HTTP: it goes on")


def strict_http(s):
    """What two programs may read in two ways is refused, and the connection closed: what follows is no request."""
    body = b'{"prompt":"a","max_tokens":1,"seed":1}'
    line, host, length = b"POST /v1/completions HTTP/1.1\r\n", b"Host: localhost\r\n", b"Content-Length: %d\r\n" % len(body)
    then, chunk = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    encoded = b"Transfer-Encoding: chunked\r\n"
    bad = {
        "no Host": (400, line + length + b"\r\n" + body), "two Hosts": (400, line + host * 2 + length + b"\r\n" + body),
        "two Hosts that differ": (400, line + host + b"Host: evil.example\r\n" + length + b"\r\n" + body),
        "two Hosts in HTTP/1.0": (400, line.replace(b"1.1", b"1.0") + host * 2 + length + b"\r\n" + body),
        "both lengths": (400, line + host + length + encoded + b"\r\n" + chunk), "the other order": (400, line + host + encoded + length + b"\r\n" + chunk),
        "a length twice": (400, line + host + length * 2 + b"\r\n" + body), "an encoding twice": (400, line + host + encoded * 2 + b"\r\n" + chunk),
        "an unknown encoding": (501, line + host + b"Transfer-Encoding: xchunked\r\n\r\n" + chunk), "two encodings": (501, line + host + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + chunk),
        "identity": (501, line + host + b"Transfer-Encoding: identity\r\n\r\n" + body), "an encoding in HTTP/1.0": (400, line.replace(b"1.1", b"1.0") + host + encoded + b"\r\n" + chunk),
        "a space before the colon": (400, line + host + b"Content-Length : %d\r\n\r\n" % len(body) + body), "a tab before the colon": (400, line + host + length + b"A\t: x\r\n\r\n" + body),
        "a space in a name": (400, line + host + length + b"Bad Header: x\r\n\r\n" + body), "a quote in a name": (400, line + host + length + b'A": x\r\n\r\n' + body),
        "a control character in a value": (400, line + host + length + b"A: x\1y\r\n\r\n" + body), "a CR in a value": (400, line + host + length + b"A: x\ry\r\n\r\n" + body),
        "31,000 bytes of a header": (431, line + host + length + b"A: " + b"x" * 31000 + b"\r\n\r\n" + body),
        "400 headers": (431, line + host + length + b"".join(b"A%d: x\r\n" % i for i in range(400)) + b"\r\n" + body),
        "270 parameters": (431, line.replace(b" HTTP", b"?" + b"&".join(b"a%d=%s" % (i, b"b" * 40) for i in range(270)) + b" HTTP") + host + length + b"\r\n" + body),
    }
    for (name, (status, data)), got in zip(bad.items(), many(lambda pair: raw(s, pair[1] + then, 3), bad.values(), 8)):
        head, _, rest = got.partition(b"\r\n\r\n")
        statuses = re.findall(rb"HTTP/1\.1 (\d+)", got)
        try:
            error = json.loads(rest)["error"]
        except (ValueError, KeyError) as problem:
            error = {"code": problem}
        check(f"strict HTTP: {name}", statuses == [b"%d" % status] and b"Connection: close" in head and error["code"] == "bad_request", (statuses, got[:300]))
    good = {"no Host in HTTP/1.0": b"GET /health HTTP/1.0\r\n\r\n", "chunks": line + host + b"transfer-encoding: Chunked\r\nConnection: close\r\n\r\n" + chunk,
            "20,000 bytes of a header": line + host + length + b"Connection: close\r\nA: " + b"x" * 20000 + b"\r\n\r\n" + body,
            "any other byte in a value": line + host + length + b"Connection: close\r\nA: \tx\xe9\xff\t\r\n\r\n" + body}
    for name, data in good.items():
        got = raw(s, data)
        check(f"strict HTTP: but {name}", got.startswith(b"HTTP/1.1 200 "), got[:200])
    lives(s, "strict HTTP: it goes on")


BAD_JSON = {
    "nothing": b"", "a bracket": b"{", "a list": b"[]", "null": b"null", "a text": b'"a"', "no value": b'{"prompt":}', "a byte order mark": b'\xef\xbb\xbf{"prompt":"a"}',
    "a lone surrogate": b'{"prompt":"\\ud800"}', "surrogates in the wrong order": b'{"prompt":"\\udc00\\ud800"}', "invalid UTF-8": b'{"prompt":"\xff"}',
    "a surrogate in UTF-8": b'{"prompt":"\xed\xa0\x80"}', "a long form": b'{"prompt":"\xc0\xaf"}', "a NUL": b'{"prompt":"a\0b"}', "NaN": b'{"prompt":"a","top_p":NaN}',
    "Infinity": b'{"prompt":"a","temperature":1e999}', "a trailing comma": b'{"prompt":"a",}', "more behind it": b'{"prompt":"a"}{}', "a comment": b'{"prompt":"a"/**/}',
    "a key twice": b'{"prompt":"a","prompt":"b"}', "deep lists": b'{"prompt":' + b"[" * 100000, "deep and closed": b'{"prompt":' + b"[" * 100000 + b"]" * 100000 + b"}",
    "deep objects": b'{"a":' * 100000, "a newline in a text": b'{"prompt":"a\nb"}', "a number of 4 MB": b'{"seed":' + b"1" * 4000000 + b"}", "zeros": b'{"seed":00,"prompt":"a"}',
    "prompts in prompts": b'{"prompt":[[[1]]]}', "no prompts": b'{"prompt":[]}', "an empty prompt": b'{"prompt":[[]]}', "ids below 0": b'{"prompt":[-1]}', "ids too high": b'{"prompt":[4096]}',
    "ids that are none": b'{"prompt":[1.5]}', "mixed": b'{"prompt":["a",[1],2]}', "257 prompts": json.dumps({"prompt": ["a"] * 257}).encode(),
    "a million ids": json.dumps({"prompt": [1] * 1000000}).encode(), "a key with a NUL": b'{"prompt":"a","a\\u0000b":1}',
}


def malformed_json(s):
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize", "/detokenize", "/apply-template", "/fuses"):
        bad = []
        for name, body in BAD_JSON.items():
            reply = s.post(path, body)
            if reply.status != 400 or not reply.error()["message"] or "\n" in reply.error()["message"]: bad.append((name, reply))
        check(f"JSON: {len(BAD_JSON)} bodies that are none: {path}", not bad, bad)
    got = s.complete("a\0b", max_tokens=3, echo=True)
    check("a NUL in a text is a character", got.status == 200 and whole(got)[0]["text"][:3] == "a\0b", got)
    lives(s, "JSON: it goes on")


# ---- Bodies

def large_bodies(s):
    before, size = s.rss(), 100 << 20
    got = b""
    with s.socket() as c:
        try:
            c.sendall(post("/v1/completions", b"", length=size))
            got = c.recv(1000)
            for _ in range(100): c.sendall(b" " * (1 << 20))
        except OSError:
            pass
    check("100 MB announced: refused at once", got.startswith(b"HTTP/1.1 413 "), got[:100])
    got = raw(s, post("/v1/completions", b"", "Expect: 100-continue", length=size))
    check("and with Expect", got.startswith(b"HTTP/1.1 413 "), got[:100])
    got = b""
    with s.socket() as c:
        try:
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            piece = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
            for _ in range(100): c.sendall(piece)
            c.sendall(b"0\r\n\r\n")
            got = c.recv(1000)
        except OSError:
            pass
    check("100 MB in chunks: refused", got.startswith(b"HTTP/1.1 413 "), got[:100])
    limit, text = 4 << 20, b'{"prompt":"a","max_tokens":2,"seed":1}'
    same("a body of the limit", s.post("/v1/completions", text + b" " * (limit - len(text))).status, 200)
    reply = s.post("/v1/completions", text + b" " * (limit - len(text) + 1))
    same("one byte more", (reply.status, reply.error()["code"]), (413, "body_too_large"))
    chunks = raw(s, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
                 + b"".join(b"1\r\n%c\r\n" % byte for byte in text) + b"0\r\n\r\n")
    check("a body in chunks of a byte", chunks.startswith(b"HTTP/1.1 200 "), chunks[:100])
    reply = s.complete("word " * 100000)
    same("a prompt that is too long", (reply.status, reply.error()["code"]), (400, "context_length_exceeded"))
    if not SLOW: check("large bodies leave nothing behind", s.rss() - before < MAX_GROWTH, f"{s.rss() - before} bytes more")
    lives(s, "bodies: it goes on")


def many_bodies():
    """All bodies together have a limit. Short requests come in all the same."""
    with Server("--max-bodies", 8) as s:
        lives(s, "many bodies: a server")
        before, size, half = s.rss(), 4 << 20, b'{"prompt":"' + b"a" * (2 << 20)
        held = [s.socket() for _ in range(40)]
        def send(c):
            c.sendall(post("/v1/completions", b"", length=size) + half)
        many(send, held, 8)
        check("40 halves of a large body: their memory has a limit", until(lambda: metrics(s)["fusebox_body_bytes"] > 6 << 20, 5) and metrics(s)["fusebox_body_bytes"] <= 8 << 20, metrics(s)["fusebox_body_bytes"])
        if not SLOW: check("and so has the process", s.rss() - before < 32 << 20, f"{s.rss() - before} bytes more")
        refused = s.post("/v1/completions", b'{"prompt":"a","max_tokens":1}' + b" " * (3 << 20))
        check("another large one is refused", refused.status == 503 and refused.error()["code"] == "busy" and "max-bodies" in refused.error()["message"] and refused.headers["Retry-After"], refused)
        chunks = raw(s, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + (b"80000\r\n" + b" " * (1 << 19) + b"\r\n") * 6 + b"0\r\n\r\n")
        check("in chunks, too", chunks.startswith(b"HTTP/1.1 503 "), chunks[:100])
        same("a short one is not", s.complete("word " * 80, max_tokens=1).status, 200)
        for c in held: c.close()
        check("when they have left there is room again", until(lambda: metrics(s)["fusebox_body_bytes"] == 0, 10), metrics(s)["fusebox_body_bytes"])
        large = json.dumps({"prompt": "a", "max_tokens": 1, "user": "x" * (2 << 20)})  # two at a time, and two whose replies have just been read
        same("for a large one", s.post("/v1/completions", large).status, 200)
        same("and again and again", {r.status for r in many(lambda i: s.post("/v1/completions", large), range(6), 2)}, {200})
        check("nothing is counted twice", until(lambda: metrics(s)["fusebox_body_bytes"] == 0, 5), metrics(s)["fusebox_body_bytes"])
        s.stop("many bodies")


def cut_requests(s):
    data = post("/v1/completions", {"prompt": "Once upon", "max_tokens": 3, "seed": 1, "stream": True}, "X-Header: something")
    wanted = raw(s, data).split(b"\r\n\r\n", 1)[1]
    check("a request in one piece", b"[DONE]" in wanted, wanted[:200])

    def cut(at):
        with s.socket() as c: c.sendall(data[:at])
    many(cut, range(1, len(data)), 8)
    many(lambda at: raw(s, data[:at], half=True), range(1, len(data), 7), 8)
    with s.socket() as c:
        c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in data: c.send(bytes([byte]))
        got = b""
        while b"[DONE]" not in got and (part := c.recv(1 << 16)): got += part
    check("a request byte by byte", got.count(b"data: {") == wanted.count(b"data: {") > 1, got[-200:])
    s.becomes_idle("cut requests leave nothing behind", 3)
    check("nor open connections", until(lambda: metrics(s)["fusebox_connections"] <= 1, 5, 0.1), metrics(s)["fusebox_connections"])
    lives(s, "cut requests: it goes on")


def pipelined(s):
    one = post("/v1/completions", {"prompt": "Once", "max_tokens": 2, "temperature": 0})
    stream = post("/v1/completions", {"prompt": "Once", "max_tokens": 2, "temperature": 0, "stream": True})
    get, wrong = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", post("/v1/completions", b"{")
    last = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    got = raw(s, get + one + wrong + stream + get + one + last)
    statuses = re.findall(rb"HTTP/1\.1 (\d+)", got)
    same("seven requests at once: their replies, in order", statuses, [b"200", b"200", b"400", b"200", b"200", b"200", b"200"])
    check("and the last one is whole", b'"max_model_len":512' in got and got.count(b'{"status":"ok"}') == 2, got[-200:])
    same("a hundred requests at once", raw(s, get * 99 + last).count(b"HTTP/1.1 200"), 100)


# ---- Clients that are slow

def slow_senders():
    with Server("--timeout", 1) as s:
        lives(s, "slow senders: a server")
        data = post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 3})
        closed, stop = [], time.monotonic() + 12

        def drip(start):
            with s.socket() as c:
                began = time.monotonic()
                try:
                    c.sendall(data[:start])
                    for byte in data[start:] * 9:
                        if time.monotonic() > stop: return
                        c.send(bytes([byte]))
                        time.sleep(0.25)
                except OSError:
                    closed.append(time.monotonic() - began)
        threads = [threading.Thread(target=drip, args=(at,)) for at in (1, 10, 40, 60, len(data) - 30, len(data) - 20) * 3]
        for t in threads: t.start()
        times = []
        while any(t.is_alive() for t in threads):
            began = time.monotonic()
            if s.complete(max_tokens=1).status != 200: break
            times.append(time.monotonic() - began)
        for t in threads: t.join()
        check("slow senders are closed in time", len(closed) == len(threads) and max(closed) < 6, closed)
        check("and hold nobody up", len(times) > 20 and sorted(times)[len(times) // 2] < (1 if SLOW else 0.1), sorted(times)[-3:])
        with s.socket() as c:
            check("a silent connection is closed", c.recv(10) == b"")
        s.stop("slow senders")


def slow_readers():
    with Server("--timeout", 1, "--sequences", 64) as s:
        lives(s, "slow readers: a server")
        readers = []
        for i in range(6):
            c = socket.socket()
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            c.connect((s.host, s.port))
            c.sendall(post("/v1/completions", {**LONG, "n": 8, "logprobs": 20, "stream": True}))
            readers.append(c)
        until(lambda: s.fuses()["running"] > 0, 5)
        began = time.monotonic()
        check("slow readers do not hold others up", s.complete(max_tokens=2).status == 200 and time.monotonic() - began < (30 if SLOW else 5))
        gone = until(lambda: metrics(s)["fusebox_connections"] <= 1, 60 if SLOW else 20, 0.2)
        check("slow readers are dropped", gone, metrics(s)["fusebox_connections"])
        s.becomes_idle("and leave nothing behind")
        for c in readers: c.close()
        s.stop("slow readers")


def idle_connections(s):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(2000, hard - 200)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted + 200), hard))
    idle = [s.socket() for _ in range(wanted)]
    check(f"{wanted} idle connections", until(lambda: metrics(s)["fusebox_connections"] >= wanted, 5), metrics(s)["fusebox_connections"])
    began = time.monotonic()
    replies = many(lambda i: s.complete(seed=i, max_tokens=20).status, range(64))
    check("others are served meanwhile", set(replies) == {200} and time.monotonic() - began < (60 if SLOW else 5), time.monotonic() - began)
    for c in idle: c.close()
    check("they are forgotten", until(lambda: metrics(s)["fusebox_connections"] <= 2, 5), metrics(s)["fusebox_connections"])


def too_many_connections():
    with Server("--max-connections", 20) as s:
        held = [s.socket() for _ in range(30)]
        time.sleep(0.3)
        for c in held: c.close()
        check("after too many connections there is room again", until(lambda: s.get("/health").status == 200, 3))
        s.stop("too many connections")


# ---- Clients that leave

def leaving():
    with Server("--sequences", 2) as s:
        lives(s, "leaving: a server")
        many_prompts = [[5, 6, i] for i in range(100)]
        alone = [c["text"] for c in whole(s.post("/v1/completions", {**LONG, "prompt": many_prompts[:6], "logprobs": 0}))]

        def leaves(name, body, seconds=0.3):
            with s.socket() as c:
                c.sendall(post("/v1/completions", body))
                time.sleep(seconds)
                busy = s.fuses()
                c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0" if "reset" in name else b"\0" * 8)
            check(f"leaving {name}: it was running", busy["running"] + busy["waiting"] > 0, busy["running"])
            s.becomes_idle(f"leaving {name}: within a second nothing is left")
        leaves("in the middle", {**LONG, "prompt": many_prompts})
        leaves("in the middle, with a reset", {**LONG, "prompt": many_prompts})
        leaves("a stream", {**LONG, "prompt": many_prompts, "stream": True})
        leaves("in the prompts", {"prompt": [[i] * 500 for i in range(100)], "max_tokens": 1}, 0.02)
        with s.socket() as c:
            c.sendall(post("/v1/completions", {**LONG, "prompt": many_prompts}))
            c.shutdown(socket.SHUT_WR)
            s.becomes_idle("closing one's half is leaving", 2)
        answers, others = [], []
        runner = threading.Thread(target=lambda: answers.append(s.post("/v1/completions", {**LONG, "prompt": many_prompts[:6], "logprobs": 0})))
        runner.start()
        until(lambda: s.fuses()["running"] > 0, 5)
        for i in range(12):
            c = s.socket()
            c.sendall(post("/v1/completions", {**LONG, "prompt": many_prompts, "seed": i, "stream": i % 2 == 0}))
            others.append(c)
        check("they wait", until(lambda: s.fuses()["waiting"] > 100, 5), s.fuses()["waiting"])
        for c in others: c.close()
        runner.join()
        same("who leaves in the queue touches no other's answer", [c["text"] for c in whole(answers[0])], alone)
        s.becomes_idle("the queue is empty")
        same("the metrics know", metrics(s)['fusebox_answers_total{model="storyteller",finish="failed"}'], 0)
        lives(s, "leaving: it goes on")
        s.stop("leaving")


def random_bytes(s, seconds):
    good = post("/v1/completions", {"prompt": "Once", "max_tokens": 3, "seed": 1, "stop": ["a"], "logprobs": 2})
    end = time.monotonic() + seconds

    def attack(seed):
        r = random.Random(seed)
        while time.monotonic() < end:
            if r.random() < 0.3:
                data = r.randbytes(r.randrange(1, 3000))
            else:
                data = bytearray(good)
                for _ in range(r.randrange(1, 6)):
                    data[r.randrange(len(data))] = r.choice([0, 10, 13, 32, 34, 92, 125, 255, r.randrange(256)])
            try:
                with s.socket(5) as c:
                    c.sendall(data)
                    c.settimeout(0.05)
                    c.recv(100)
            except OSError:
                pass
    many(attack, range(8), 8)
    s.becomes_idle("random bytes leave nothing behind", 3)
    lives(s, "random bytes: it goes on")


# ---- The end

def ends():
    prompts = [[5, 6, i] for i in range(40)]
    with Server("--sequences", 4) as s:
        body = {**LONG, "prompt": prompts[:6]}
        alone = [c["text"] for c in whole(s.post("/v1/completions", body))]
        kept = s.connection()
        s.get("/health", connection=kept)
        streams, replies = [], []
        threads = [threading.Thread(target=lambda: streams.append(s.stream("/v1/completions", body))),
                   threading.Thread(target=lambda: replies.append(s.post("/v1/completions", body)))]
        for t in threads: t.start()
        until(lambda: (state := s.fuses())["running"] + state["waiting"] > 6, 5)  # both have arrived
        s.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        try:
            refused = s.post("/v1/completions", body, connection=kept)
            same("SIGTERM: new requests are refused", (refused.status, refused.error()["code"]), (503, "stopping"))
            same("SIGTERM: it does not say that it is well", s.get("/health", connection=kept).status, 503)
        except OSError as error:
            not_ok("SIGTERM: new requests are refused", error)
        try:
            s.socket().close()
            not_ok("SIGTERM: no new connections", "one")
        except OSError:
            ok("SIGTERM: no new connections")
        for t in threads: t.join()
        kept.close()
        same("SIGTERM: running answers end", [c["text"] for c in whole(replies[0])] if replies else None, alone)
        same("SIGTERM: streams too", [c["text"] for c in streams[0].choices()] if streams and streams[0].done else None, alone)
        same("SIGTERM: exit status", s.wait(20), 0)
    for arguments, name in (((), "SIGINT with nothing to do"), (("--grace", 0), "--grace 0"), (("--grace", 1), "--grace 1")):
        with Server("--sequences", 1, *arguments) as s:
            found = []
            thread = threading.Thread(target=lambda: found.append(s.stream("/v1/completions", {**LONG, "prompt": prompts * 6})))
            if arguments:
                thread.start()
                until(lambda: s.fuses()["running"] > 0, 5)
            began = time.monotonic()
            s.process.send_signal(signal.SIGTERM if arguments else signal.SIGINT)
            same(f"{name}: exit status", s.wait(20), 0)
            check(f"{name}: in time", time.monotonic() - began < (20 if SLOW else 4), time.monotonic() - began)
            if arguments:
                thread.join()
                check(f"{name}: the answer is cut off", found and {c["finish_reason"] for c in found[0].choices()} >= {"abort"}, found and found[0].chunks[-1:])
            same(f"{name}: nothing is said", len(s.log), 1)
    with Server("--grace", 0) as s:
        replies = []
        thread = threading.Thread(target=lambda: replies.append(s.post("/v1/embeddings", {"input": [[i] * 511 for i in range(256)]})))
        thread.start()
        time.sleep(0.3)
        s.process.send_signal(signal.SIGTERM)
        same("--grace 0 with embeddings: exit status", s.wait(20), 0)
        thread.join()
        check("--grace 0 with embeddings: they are cut off", replies and replies[0].status == 503 and replies[0].error()["code"] == "stopping", replies)
    with Server("--sequences", 1, "--grace", 100) as s:
        c = s.socket()
        c.sendall(post("/v1/completions", {**LONG, "prompt": prompts * 6}))
        until(lambda: s.fuses()["running"] > 0, 5)
        s.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        check("it waits for answers", s.process.poll() is None)
        s.process.send_signal(signal.SIGTERM)
        same("a second signal ends it at once", s.wait(2), 128 + signal.SIGTERM)
        c.close()


def main():
    with section("slow_senders"): slow_senders()
    with section("slow_readers"): slow_readers()
    with section("too_many_connections"): too_many_connections()
    with section("many_bodies"): many_bodies()
    with section("leaving"): leaving()
    with section("ends"): ends()
    with Server("--cache-tokens", 4096) as s:
        lives(s, "a server")
        many(lambda i: s.complete(seed=i, n=8, max_tokens=100, ignore_eos=True), range(32))
        many(lambda i: s.complete([1] * 1000000), range(8), 4)
        before = s.rss()
        for part in (malformed_http, strict_http, malformed_json, large_bodies, cut_requests, pipelined, idle_connections):
            with section(part.__name__): part(s)
        with section("random_bytes"): random_bytes(s, 2)
        if not SLOW: check("after all of it, the memory is what it was", s.rss() - before < MAX_GROWTH, f"{before} bytes before, {s.rss()} now")
        s.stop("after all of it")
    finish()


if __name__ == "__main__":
    main()
