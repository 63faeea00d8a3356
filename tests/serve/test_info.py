#!/usr/bin/env python3
"""Everything around the texts: parameters that are refused, who may ask, embeddings, tokens, metrics, fuses."""
import base64, math, struct

from server import *

POSTS = {"/v1/completions": {"prompt": "a", "max_tokens": 1}, "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}}
# response_format has a test of its own.
LEFT_OUT = {"response_format"}


# ---- Parameters, by the table that /openapi.json shows

def wrong_values(schema):
    """Values that the schema refuses."""
    types = schema.get("type")
    types = types if isinstance(types, list) else [types] if types else []
    if "anyOf" in schema: types = [t for part in schema["anyOf"] for t in [part.get("type")]]
    samples = {"string": "x", "boolean": True, "integer": 1, "number": 1.5, "array": [1.5], "object": {"a": 1}}
    for kind, value in samples.items():
        if "enum" in schema: fits = value in schema["enum"]
        else: fits = kind in types or kind == "integer" and "number" in types
        if not fits: yield value
    if "maximum" in schema:
        step = 1 if "integer" in types else 1e-3
        yield from (schema["minimum"] - step, schema["maximum"] + step, 1e300, -1e300)
    if "integer" in types: yield from (1.5, 1.0, "1", 2**63)


def right_values(name, schema):
    if "maximum" in schema:
        low, high = schema["minimum"], schema["maximum"]
        yield low
        yield high if name not in ("n", "max_tokens", "max_completion_tokens") else 3
        if "number" in schema["type"]: yield int((low + high) / 2)
        if low == 0 and "number" in schema["type"]: yield 1e-30


def parameters(s):
    document = s.get("/openapi.json").json()
    for path, body in POSTS.items():
        known = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
        check(f"{path}: its parameters are described", len(known) > 20 and all(p.get("description") for p in known.values()), known)
        bad, tried = [], 0
        for name, schema in known.items():
            if name in LEFT_OUT: continue
            body = {k: v for k, v in POSTS[path].items() if k != "max_tokens" or name != "max_completion_tokens"}  # which are one thing
            ignored = schema["description"].startswith(("not used", "not needed", "nothing is stored"))
            for value in [] if ignored else wrong_values(schema):
                if name in ("prompt", "messages") and isinstance(value, list): continue  # what is inside has other tests
                more = {"logprobs": True} if name == "top_logprobs" else {}
                reply = s.post(path, {**body, **more, name: value})
                tried += 1
                if reply.status == 400 and value in (2**63,): continue  # a number that JSON has no room for
                if reply.status != 400 or reply.error()["param"] != name or name not in reply.error()["message"]: bad.append((name, value, reply))
            for value in right_values(name, schema):
                more = {"logprobs": True} if name == "top_logprobs" else {}
                reply = s.post(path, {**body, **more, name: value})
                tried += 1
                if reply.status != 200: bad.append((name, value, reply))
            if name not in ("prompt", "messages"):
                reply = s.post(path, {**body, name: None})
                tried += 1
                if reply.status != 200: bad.append((name, None, reply))
        check(f"{path}: {tried} wrong and right values", not bad and tried > 150, bad)
    for path, name in (("/v1/completions", "best_of"), ("/v1/completions", "suffix"), ("/v1/chat/completions", "functions"), ("/v1/chat/completions", "function_call")):
        error = s.post(path, {**POSTS[path], name: 1}).error()
        same(f"refused: {name}", (error["param"], error["code"]), (name, "unsupported_parameter"))
        same(f"but null is nothing: {name}", s.post(path, {**POSTS[path], name: None}).status, 200)
    for path, names in (("/v1/completions", ["messages", "temprature", "top_logprobs", "", "a" * 1000, "é"]), ("/v1/chat/completions", ["prompt", "echo"])):
        for name in names:
            error = s.post(path, {**POSTS[path], name: 1}).error()
            check(f"unknown: {name[:20]!r}", error["code"] == "unknown_parameter" and error["param"] == name[:63] or name == "", error)
    for path in POSTS:
        error = s.post(path, {}).error()
        same(f"{path}: nothing", error["code"], "missing_parameter")
        same(f"{path}: null", s.post(path, {k: None for k in POSTS[path]}).error()["code"], "missing_parameter")
    for stop in ("", [""], ["a", 1], ["a"] * 65, {"a": 1}, 1, [["a"]], "a\0b"):
        same(f"stop {str(stop)[:20]!r}", s.complete(stop=stop).error()["param"], "stop")
    for bias in ({"a": 1}, {"1": "x"}, {"-1": 1}, {"1": 101}, {"1": -100.5}, {"": 1}, {"1.5": 1}, {"99999999999": 1}, {"+5": 1}, {" 5": 1}, {"05": 1}, {"00": 1}, {str(i): 1 for i in range(1025)}, [1]):
        same(f"logit_bias {str(bias)[:20]}", s.complete(logit_bias=bias).error()["param"], "logit_bias")
    same("n above the sequences", s.complete(n=65).error()["param"], "n")
    same("n of them all", len(s.complete(n=64, max_tokens=1).json()["choices"]), 64)
    for options in ({"include_usage": 1}, {"include_obfuscation": 1}, {"other": True}, []):
        same(f"stream_options {options}", s.complete(stream=True, stream_options=options).error()["param"], "stream_options")
    same("obfuscation changes no answer", s.complete(stream=True, stream_options={"include_obfuscation": True}).status, 200)
    for path, first, second in (("/v1/chat/completions", "max_tokens", "max_completion_tokens"), ("/v1/completions", "repeat_penalty", "repetition_penalty")):
        refused = s.post(path, {**POSTS[path], first: 1, second: 2})
        check(f"{first} and {second} differ", refused.status == 400 and refused.error()["param"] == second and first in refused.error()["message"], refused)
        same(f"{first} and {second} are the same", s.post(path, {**POSTS[path], first: 2, second: 2}).status, 200)
        same(f"{first} and no {second}", s.post(path, {**POSTS[path], first: 2, second: None}).status, 200)
    whole = [5] * 512  # the context
    same("a text of the whole context, and no answer", [s.complete(whole, max_tokens=0, **more).status for more in ({}, {"echo": True}, {"echo": True, "logprobs": 1})], [200] * 3)
    got = s.complete(whole, max_tokens=0, echo=True, logprobs=0).json()["choices"][0]["logprobs"]["token_logprobs"]
    check("it has all scores", len(got) == 512 and got[0] is None and all(v < 0 for v in got[1:]), got[-3:])
    for prompt, more in (([5] * 513, {"max_tokens": 0}), (whole, {}), (whole, {"max_tokens": 1})):
        error = s.complete(prompt, **more).error()
        check(f"{len(prompt)} tokens {more}", error["code"] == "context_length_exceeded" and "512" in error["message"] and ("at least one" in error["message"]) == (len(prompt) == 512), error)


LIMITED = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"], "additionalProperties": False}


def formats(s):
    def ask(form, path="/v1/completions"):
        return s.post(path, {**POSTS[path], "prompt": "a", "max_tokens": 200, "seed": 1, "response_format": form} if path == "/v1/completions"
                      else {**POSTS[path], "max_tokens": 200, "seed": 1, "response_format": form})
    named = {"type": "json_schema", "json_schema": {"name": "a", "description": "b", "strict": True, "schema": LIMITED}}
    for path in POSTS:
        for name, form in (("OpenAI's form", named), ("llama.cpp's form", {"type": "json_object", "schema": LIMITED})):
            choice = whole(ask(form, path))[0]
            value = json.loads(choice["text"])
            check(f"{path}: a schema in {name}", choice["finish_reason"] == "stop" and [*value] == ["a"] and 0 <= value["a"] <= 9, choice)
    same("both forms are one", whole(ask(named)), whole(ask({"type": "json_object", "schema": LIMITED})))
    same("no schema is none", whole(ask({"type": "json_object", "schema": None})), whole(ask({"type": "json_object"})))
    same("text is nothing", whole(ask({"type": "text"})), whole(ask(None)))
    inner = named["json_schema"]
    for form, says in (({"type": "text", "schema": LIMITED}, "schema"), ({"type": "text", "foo": 1}, "foo"), ({"type": "json_object", "json_schema": inner}, "json_schema"),
                       ({"type": "json_object", "schemas": LIMITED}, "schemas"), ({"type": "json_object", "schema": True}, "an object"), ({"type": "json_object", "schema": "{}"}, "an object"),
                       ({"type": "json_schema", "schema": LIMITED}, "schema: unknown"), ({"type": "json_schema", "json_schema": {**inner, "bogus": 1}}, "bogus"),
                       ({**named, "bogus": 1}, "bogus"), ({"type": "json_schema", "json_schema": {"name": "a"}}, "an object"), ({"type": "json_schema", "json_schema": LIMITED}, "unknown"),
                       ({"type": "json_schema", "json_schema": {**inner, "strict": 1}}, "strict"), ({"type": "json_schema", "json_schema": {**inner, "name": 1}}, "name"),
                       ({"type": "json_schema"}, "an object"), ({"type": "grammar"}, "text, json_object"), ({}, "text, json_object"), ([], "text, json_object"), ("json_object", "text, json_object")):
        refused = ask(form)
        check(f"response_format {json.dumps(form)[:70]}", refused.status == 400 and refused.error()["param"] == "response_format" and says in refused.error()["message"], refused)
    forms = s.get("/openapi.json").json()["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]["response_format"]["anyOf"]
    check("the description forbids what is refused", len(forms) == 4 and all(f["additionalProperties"] is False for f in forms[1:])
          and forms[3]["properties"]["json_schema"]["additionalProperties"] is False, forms)


# ---- Paths, methods, keys, hosts

def paths(s):
    document = s.get("/openapi.json").json()
    same("the document's paths", sorted(document["paths"]), sorted(
        ["/", "/health", "/openapi.json", "/metrics", "/props", "/v1/models", "/v1/models/{model}", "/v1/completions", "/v1/chat/completions", "/v1/embeddings",
         "/tokenize", "/detokenize", "/apply-template", "/fuses"]))
    for path, methods in document["paths"].items():
        get, path = "get" in methods, path.replace("{model}", "second")
        reply, head = s.get(path), s.request("HEAD", path)
        same(f"GET {path}", reply.status, 200 if get else 405)
        same(f"HEAD {path}", (head.status, head.body), (reply.status, b""))
        if get and path not in ("/metrics", "/fuses"):
            same(f"HEAD {path}: the length", head.headers["Content-Length"], str(len(reply.body)))
        same(f"OPTIONS {path}", s.request("OPTIONS", path).status, 204)
        for method in ("PUT", "DELETE", "PATCH", *(() if "post" in methods else ("POST",))):
            refused = s.request(method, path, b"{}")
            check(f"{method} {path}", refused.status == 405 and refused.error()["code"] == "method_not_allowed", refused)
    for path in ("/nothing", "/v1", "/v1/models/", "//", "/Health", "/v1/completions/x"):
        refused = s.get(path)
        check(f"GET {path}: not found", refused.status == 404 and refused.error()["code"] == "not_found", refused)
    same("health", s.get("/health").json(), {"status": "ok"})
    page = s.get("/")
    check("the page", page.headers["Content-Type"].startswith("text/html") and b"<title>" in page.body and "default-src 'none'" in page.headers["Content-Security-Policy"])
    check("nothing is to be kept or guessed", all(s.get(p).headers["Cache-Control"] == "no-store" and s.get(p).headers["X-Content-Type-Options"] == "nosniff" for p in ("/props", "/nothing")))


def models(s):
    listed = s.get("/v1/models").json()
    same("the models", [(m["id"], m["object"], m["owned_by"]) for m in listed["data"]],
         [("storyteller", "model", "fusebox"), ("second", "model", "fusebox"), ("small", "model", "fusebox")])
    same("their contexts", [m["max_model_len"] for m in listed["data"]], [512, 512, 128])
    same("each alone", [s.get("/v1/models/" + m["id"]).json() for m in listed["data"]], listed["data"])
    for name in ("nothing", "second/", "%ff"):
        refused = s.get("/v1/models/" + name)
        check(f"/v1/models/{name}", (refused.status, refused.error()["code"]) == (404, "model_not_found"), refused)
    same("the first is the default", s.complete().json()["model"], "storyteller")
    same("another by name", s.complete(model="second").json()["model"], "second")
    same("the same weights, the same text", whole(s.complete(seed=1)), whole(s.complete(seed=1, model="second")))
    same("properties by name", [s.get("/props?model=" + m).json()["model"] for m in ("storyteller", "second", "small")], ["storyteller", "second", "small"])
    same("fuses by name", s.get("/fuses?model=small").json()["model"], "small")
    for path, body in {**POSTS, "/v1/embeddings": {"input": "a"}, "/tokenize": {"content": "a"}, "/detokenize": {"tokens": [1]},
                       "/apply-template": POSTS["/v1/chat/completions"], "/fuses": {"fuse": "auto"}}.items():
        error = s.post(path, {**body, "model": "none"})
        check(f"no such model: {path}", error.status == 404 and error.error()["code"] == "model_not_found" and "storyteller, second, small" in error.error()["message"], error)
        check(f"a model that is no text: {path}", s.post(path, {**body, "model": 1}).status in (400, 404))
    for path in ("/props?model=none", "/fuses?model=", "/props?model=%22%0a"):
        same(f"no such model: {path}", s.get(path).status, 404)
    props = s.get("/props").json()
    same("properties", {k: props[k] for k in ("model", "chat", "chat_template", "context", "vocab", "architecture", "backend", "admin", "sequences")},
         {"model": "storyteller", "chat": False, "chat_template": "default", "context": 512, "vocab": 4096, "architecture": "gpt_neox",
          "backend": "cpu", "admin": True, "sequences": 64})
    same("the version", fusebox("--version").stdout.decode().split()[1], props["version"])
    same("a model without a tokenizer has no texts", s.complete(model="small").error()["param"], "prompt")


def key_file(text):
    path = scratch(f"keys-{abs(hash(text))}")
    with open(path, "w") as file: file.write(text)
    return path


def bare(s, path, *headers, version="HTTP/1.1", method="GET", body=b""):
    """The reply to exactly these lines: http.client would add a Host."""
    with s.socket() as c:
        lines = [f"{method} {path} {version}", *headers, *([f"Content-Length: {len(body)}"] if body else []), "Connection: close"]
        c.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        got = b""
        while part := c.recv(1 << 16): got += part
    head, _, rest = got.partition(b"\r\n\r\n")
    return Reply(int(head.split()[1]), head, rest)


def admins():
    """Who may switch fuses: on this machine, if the server is for nobody else."""
    def is_admin(s, **headers): return s.get("/props", headers=headers).json()["admin"]
    with Server() as s:
        same("a server for this machine: who asks from here", is_admin(s), True)
        same("and without a Host, as HTTP/1.0 may", bare(s, "/props", version="HTTP/1.0").json()["admin"], True)
        for name in ("X-Forwarded-For", "x-forwarded-for", "X-Forwarded-Proto", "X-Forwarded-Host", "Forwarded", "Via", "X-Real-IP", "True-Client-IP", "CF-Connecting-IP"):
            same(f"with {name} nobody", is_admin(s, **{name: "127.0.0.1"}), False)
            if name == "Forwarded": same("and nobody can switch", s.post("/fuses", {"fuse": "auto"}, headers={name: "for=127.0.0.1"}).status, 403)
        s.stop("a private server")
    for arguments, key in ((("--allow-host", "llm.example.org"), None), (("--api-key", "k"), "k"), (("--allow-origin", "https://app.example"), None), (("--host", "0.0.0.0", "--api-key", "k"), "k"),
                           (("--allow-host", "llm.example.org", "--admin-key", "k"), None)):
        with Server(*arguments) as s:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            name = " ".join(arguments)
            same(f"{name}: nobody is an admin without a key of one", is_admin(s, **headers), False)
            # As nginx asks if it is told nothing.
            line = [f"{k}: {v}" for k, v in headers.items()]
            same(f"{name}: nor through nginx", bare(s, "/fuses", f"Host: 127.0.0.1:{s.port}", *line, version="HTTP/1.0", method="POST", body=b'{"fuse": "auto"}').status, 403)


def access():
    with open(scratch("keys"), "w", encoding="utf-8-sig") as file: file.write("marked\n# a comment\nfrom-file\r\nsecond line\n\n  \n \tspaces\t \n")
    with open(scratch("admins"), "w") as file: file.write("boss")
    with Server("--api-key", "secret", "--api-key-file", scratch("keys"), "--admin-key", "root", "--admin-key-file", scratch("admins")) as s:
        def status(path, key=None, **headers):
            if key is not None: headers["Authorization"] = key
            return s.get(path, headers=headers).status
        same("without a key: what is open", [status(p) for p in ("/", "/health", "/openapi.json")], [200] * 3)
        same("without a key: what is not", [status(p) for p in ("/props", "/v1/models", "/metrics", "/fuses")], [401] * 4)
        same("without a key: POST", s.complete().status, 401)
        same("it says how", s.get("/props").headers["WWW-Authenticate"], "Bearer")
        same("its error", s.get("/props").error()["type"], "authentication_error")
        for key in ("Bearer secret", "bearer secret", "Bearer  from-file", "Bearer second line", "Bearer root", "Bearer boss", "Bearer marked", "Bearer spaces"):
            same(f"a key: {key}", status("/props", key), 200)
        for key in ("", "secret", "Basic secret", "Bearer", "Bearer ", "Bearer secre", "Bearer secrets", "Bearer secretsecret", "Bearer SECRET", "Bearer # a comment", "Bearer secret\tx"):
            same(f"no key: {key!r}", status("/props", key), 401)
        switch = {"switch": {"norm_linear": False}}
        same("fuses need the admin's key", s.post("/fuses", switch, headers={"Authorization": "Bearer secret"}).status, 403)
        same("and are switched with it", s.post("/fuses", switch, headers={"Authorization": "Bearer root"}).status, 200)
        same("who is told", [s.get("/props", headers={"Authorization": f"Bearer {k}"}).json()["admin"] for k in ("secret", "root", "boss")], [False, True, True])
        same("with keys any host", status("/props", "Bearer secret", Host="example.org"), 200)
        s.stop("keys")
    with Server("--allow-host", "Box.lan", "--allow-origin", "https://app.example") as s:
        def status(path="/props", **headers): return s.get(path, headers=headers).status
        for host in ("localhost", "localhost:99", "127.0.0.1", f"127.0.0.1:{s.port}", "[::1]:80", "LOCALHOST", "box.lan:8080"):
            same(f"Host: {host}", status(Host=host), 200)
        for host in ("example.org", "localhost.example.org", "127.0.0.1.nip.io", "", "[::1", "[", ":", "box.lan.x", "127.0.0.2", "localhost:80@evil", "localhost:x", "localhost:80:80", "localhost ", "[::1]x"):
            same(f"Host: {host!r}", status(Host=host), 403)
        same("Host: also for what is open", [status(p, Host="example.org") for p in ("/", "/health")], [403, 403])
        own = f"http://127.0.0.1:{s.port}"
        same("the page's own origin", status(Origin=own), 200)
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "", "https://app.example.evil", "file://"):
            same(f"Origin: {origin!r}", status(Origin=origin), 403)
        shared = s.get("/props", headers={"Origin": "https://app.example"})
        same("an origin that is allowed", (shared.status, shared.headers["Access-Control-Allow-Origin"], shared.headers["Vary"]), (200, "https://app.example", "Origin"))
        before = s.request("OPTIONS", "/v1/completions", headers={"Origin": "https://app.example", "Access-Control-Request-Method": "POST"})
        check("its preflight", before.status == 204 and "Authorization" in before.headers["Access-Control-Allow-Headers"] and "POST" in before.headers["Access-Control-Allow-Methods"], before.headers)
        same("others' preflight", s.request("OPTIONS", "/v1/completions", headers={"Origin": "https://evil.example"}).headers["Access-Control-Allow-Origin"], None)
        same("no sharing unless it is asked for", s.get("/props").headers["Access-Control-Allow-Origin"], None)
        asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
        for names, allowed in (("authorization,content-type,x-stainless-os, X-Stainless-Retry-Count", True), ("x\"y", False), ("a" * 2000, False), ("", False)):
            before = s.request("OPTIONS", "/v1/completions", headers={**asked, "Access-Control-Request-Headers": names})
            same(f"a preflight with {names[:30]!r}", before.headers["Access-Control-Allow-Headers"], names if allowed else "Authorization, Content-Type")
        check("a page may read when to come again", "Retry-After" in shared.headers["Access-Control-Expose-Headers"], shared.headers)
        s.stop("hosts")
    for name, arguments, says in (("an empty key", ("--api-key", ""), "--api-key"), ("no file of keys", ("--api-key-file", scratch("nothing")), "nothing"),
                                  *((f"a key {key!r}", ("--api-key", key), "--api-key") for key in ("a ", " a", "a\nb", "k" * 600)), ("an empty admin's key", ("--admin-key", ""), "--admin-key"),
                                  ("a key with a control character in a file", ("--api-key-file", key_file("good\nb\1d\n")), "line 2"), ("a long key in a file", ("--admin-key-file", key_file("# x\n\n" + "k" * 600)), "line 3"),
                                  ("a NUL in a file of keys", ("--api-key-file", key_file("a\0b\n")), "NUL"), ("a file of keys without one", ("--api-key-file", key_file("\n# none\n  \n")), "no keys"),
                                  ("bodies below a body", ("--max-body", 8, "--max-bodies", 4), "--max-bodies: 4"),
                                  ("a model twice", ("models/storyteller", "models/storyteller"), "two are called storyteller"), ("no model", ("nowhere",), "nowhere"),
                                  ("a name without letters", ("=models/storyteller",), "a name is"), ("a name with a quote", ('a"b=models/storyteller',), "a name is"),
                                  ("no such host", ("--host", "192.0.2.1", "--api-key", "k"), "192.0.2.1"), ("a bad fuse", ("--fuse", "warp"), "warp"), ("a record nowhere", ("--record", "/nowhere/x"), "/nowhere/x")):
        run = fusebox("serve", "--port", 0, *arguments, seconds=20)
        check(f"refused: {name}", run.returncode in (1, 2) and not run.stdout and run.stderr.count(b"\n") == 1 and says.encode() in run.stderr, (run.returncode, run.stderr))
    with Server() as s:
        run = fusebox("serve", "--port", s.port, seconds=20)
        check("a port in use", run.returncode in (1, 2) and b"in use" in run.stderr, (run.returncode, run.stderr))
    folder = scratch("a=b")
    os.makedirs(folder)
    os.symlink(os.path.abspath("models/storyteller"), f"{folder}/told")
    with Server(f"{folder}/told") as s: same("a path with a =", s.get("/v1/models").json()["data"][0]["id"], "told")
    with Server("--ctx", 8) as s:
        same("a context below the sequences", [c["finish_reason"] for c in s.complete("a", n=20, max_tokens=99, ignore_eos=True).json()["choices"]], ["length"] * 20)
        same("and its limit", s.complete([5] * 8).error()["code"], "context_length_exceeded")
    with Server("--host", "::1") as s:
        same("IPv6", (s.host, s.get("/health").status), ("::1", 200))


# ---- Embeddings, tokens

def read_tensor(path, name):
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        entry = json.loads(file.read(size))[name]
        begin, end = entry["data_offsets"]
        file.seek(8 + size + begin)
        return entry["shape"], struct.unpack(f"<{(end - begin) // 4}{'f' if entry['dtype'] == 'F32' else 'i'}", file.read(end - begin))


def embeddings(s):
    def embed(texts, **more): return [e["embedding"] for e in s.post("/v1/embeddings", {"input": texts, **more}).json()["data"]]
    for model, golden, last in (("storyteller", "storyteller", 8), ("small", "llama-gqa-tied", 3)):
        path = f"{GOLDENS}/{golden}/golden.safetensors"
        ids = list(read_tensor(path, "input_ids")[1])
        (rows, width), hidden = read_tensor(path, f"hidden.{last}")
        mean = [math.fsum(hidden[i::width]) / rows for i in range(width)]
        length = math.sqrt(math.fsum(v * v for v in mean))
        got = embed(ids, model=model)[0]
        worst = max(abs(g - m / length) for g, m in zip(got, mean))
        check(f"{model}: the mean of the golden hidden states", len(got) == width and worst < 2e-3, worst)
    texts = ["Once upon a time", "A fox", "x" * 300, [5, 6, 7]]
    together = embed(texts)
    same("together as alone", together, [embed(t if isinstance(t, str) else t)[0] for t in texts])
    check("of length 1", all(abs(math.sqrt(math.fsum(v * v for v in e)) - 1) < 1e-6 for e in together))
    check("they differ", len({tuple(e) for e in together}) == 4)
    packed = embed(texts, encoding_format="base64")
    same("base64: the same numbers", [list(struct.unpack("<256f", base64.b64decode(e))) for e in packed],
         [[struct.unpack("f", struct.pack("f", v))[0] for v in e] for e in together])
    reply = s.post("/v1/embeddings", {"input": ["a", "b c"], "user": "u"}).json()
    same("their reply", (reply["object"], reply["model"], [e["index"] for e in reply["data"]]), ("list", "storyteller", [0, 1]))
    check("their use", reply["usage"]["prompt_tokens"] == reply["usage"]["total_tokens"] > 2, reply["usage"])
    same("a text of the whole context", len(embed([5] * 512)), 1)
    running = [s.post("/v1/embeddings", {"input": "Once"}) for _ in range(3)]
    same("again and again", len({r.body for r in running}), 1)
    same("many at the same time", set(map(tuple, many(lambda i: embed("A fox")[0], range(16)))), {tuple(together[1])})
    for body in ({}, {"input": None}, {"input": []}, {"input": ""} if False else {"input": 1}, {"input": [[]]}, {"input": [4096]}, {"input": ["a", 1]}, {"input": {"a": 1}},
                 {"input": "a", "encoding_format": "hex"}, {"input": "a", "dimensions": 8}, {"input": ["a"] * 257}, {"input": [5] * 513}):
        refused = s.post("/v1/embeddings", body)
        check(f"embeddings of {str(body)[:40]}", refused.status == 400 and refused.error()["param"] in ("input", "encoding_format", "dimensions"), refused)


def tokens(s):
    for text in ("Once upon a time", "", " ", "\n\n", "déjà vu 日本 🦊", "a\0b", "<|endoftext|>", "x" * 5000):
        reply = s.post("/tokenize", {"content": text})
        ids = reply.json()["tokens"]
        same(f"{text[:12]!r}: to tokens and back", s.post("/detokenize", {"tokens": ids}).json()["content"], text)
        same("their count", reply.json()["count"], len(ids))
    same("what fusebox tokenize says", s.post("/tokenize", {"content": "Once upon", "add_special": True}).json()["tokens"],
         list(map(int, fusebox("tokenize", "-p", "Once upon").stdout.split())))
    for path, body, name in (("/tokenize", {}, "content"), ("/tokenize", {"content": 1}, "content"), ("/tokenize", {"content": "a", "add_special": 1}, "add_special"),
                             ("/tokenize", {"content": "a", "other": 1}, "other"), ("/detokenize", {}, "tokens"), ("/detokenize", {"tokens": "a"}, "tokens"),
                             ("/detokenize", {"tokens": [1, "a"]}, "tokens"), ("/detokenize", {"tokens": [-1]}, "tokens"), ("/detokenize", {"tokens": [1.0]}, "tokens"),
                             ("/detokenize", {"tokens": [2**40]}, "tokens"), ("/detokenize", {"tokens": [1], "a": 1}, "a")):
        refused = s.post(path, body)
        check(f"{path} {json.dumps(body)[:40]}", refused.status == 400 and refused.error()["param"] == name, refused)


# ---- Metrics, fuses

def prometheus(s):
    text = s.get("/metrics").body.decode()
    kinds, bad, seen = {}, [], set()
    for line in text.splitlines():
        if found := re.fullmatch(r"# TYPE ([a-z_]+) (counter|gauge|histogram)", line):
            kinds[found[1]] = found[2]
        elif not re.fullmatch(r"# HELP [a-z_]+ \S.*", line):
            found = re.fullmatch(r'([a-z_]+)(\{[a-z_]+="[^"\\\n]*"(,[a-z_]+="[^"\\\n]*")*\})? (-?[0-9.e+-]+|\+Inf|NaN)', line)
            base = found and re.sub(r"_(bucket|sum|count)$", "", found[1])
            if not found or (base not in kinds and found[1] not in kinds) or line.split(" ")[0] in seen: bad.append(line)
            seen.add(line.split(" ")[0])
    check("metrics are well-formed", not bad and text.endswith("\n") and len(kinds) > 15, bad[:3])
    check("counters are called so", all(name.endswith("_total") == (kind == "counter") for name, kind in kinds.items()), kinds)
    def value(name, **labels): return metrics(s)[f"fusebox_{name}{{" + ",".join(f'{k}="{v}"' for k, v in {"model": "second", **labels}.items()) + "}"]
    before = {name: value(name) for name in ("requests_total", "tokens_total", "prompt_tokens_total", "time_to_first_token_seconds_count", "time_between_tokens_seconds_count", "answer_seconds_count")}
    for _ in range(4): s.complete([9, 8, 7], n=2, max_tokens=10, ignore_eos=True, model="second")
    until(lambda: value("tokens_total") - before["tokens_total"] >= 80, 2)  # a step is counted at its end, after its tokens
    got = {name: value(name) - count for name, count in before.items()}
    same("metrics count", got, {"requests_total": 4, "tokens_total": 80, "prompt_tokens_total": 12, "time_to_first_token_seconds_count": 8,
                                "time_between_tokens_seconds_count": 72, "answer_seconds_count": 8})
    check("lengths", value("answers_total", finish="length") >= 8)
    ends = value("answers_total", finish="end")
    s.complete(logit_bias={"0": 100}, model="second")
    same("ends", value("answers_total", finish="end"), ends + 1)
    before = {name: value(name) for name in ("embeddings_total", "embedding_tokens_total", "requests_total")}
    s.post("/v1/embeddings", {"input": [[5, 6, 7], [8]], "model": "second"})
    same("embeddings are counted", {name: value(name) - count for name, count in before.items()}, {"embeddings_total": 2, "embedding_tokens_total": 4, "requests_total": 0})
    check("nothing runs", until(lambda: (value("requests_running"), value("requests_waiting")) == (0, 0), 2))
    buckets = [v for k, v in metrics(s).items() if k.startswith('fusebox_answer_seconds_bucket{model="second"')]
    check("buckets grow", buckets == sorted(buckets) and buckets[-1] == value("answer_seconds_count"), buckets)


def fuses(s):
    state = s.get("/fuses").json()
    same("the box", [*state], ["model", "backend", "fuse", "pending", "changes", "fuses", "steps", "per_layer", "timeline", "running", "waiting", "blocks", "blocks_free"])
    named = {f["name"]: f for f in state["fuses"]}
    check("every fuse says what it does", all(f["text"] and f["class"] in ("bit", "tol") and f["applies"] == (f["why_not"] is None) for f in named.values()), named)
    check("a fuse within a bound says which", all((f["class"] == "tol") == bool(f["bound"]) for f in named.values()))
    text = whole(s.complete(max_tokens=30, seed=3, logprobs=2))
    for name, fuse in named.items():
        if not (fuse["applies"] and fuse["on"] and fuse["class"] == "bit"): continue
        after = s.post("/fuses", {"switch": {name: False}}).json()
        same(f"without {name}: the same bits", whole(s.complete(max_tokens=30, seed=3, logprobs=2)), text)
        now = {f["name"]: f for f in s.get("/fuses").json()["fuses"]}[name]
        check(f"without {name}: it is off", not now["on"] and "fuses" in after, now)
        s.post("/fuses", {"switch": {name: True}})
    s.complete(max_tokens=2)
    now = s.get("/fuses").json()
    same("all are on again", [f["name"] for f in now["fuses"] if f["on"]], [f["name"] for f in state["fuses"] if f["on"]])
    s.post("/fuses", {"fuse": "none"})
    s.complete(max_tokens=2)
    same("none", [f["name"] for f in s.get("/fuses").json()["fuses"] if f["on"]], [])
    plain = s.complete(max_tokens=1).json()["system_fingerprint"]
    check("plain ops have a fingerprint of their own", plain != s.get("/props").json()["fingerprint"], plain)
    s.post("/fuses", {"fuse": "auto"})
    same("auto: the old one", s.complete(max_tokens=1).json()["system_fingerprint"], s.get("/props").json()["fingerprint"])
    same("the list", s.get("/fuses").json()["fuse"], "auto")
    s.get("/fuses?timeline=1")
    s.complete(max_tokens=100, ignore_eos=True)
    timeline = s.get("/fuses").json()["timeline"]
    check("a timeline", timeline and timeline["rows"] == 1 and timeline["layers"] == 8 and all(op["us"] >= 0 and op["section"] in ("prologue", "layer", "epilogue") for op in timeline["ops"]), timeline)
    same("the other model's are its own", [s.get(f"/fuses?model={m}").json()["changes"] > 0 for m in ("storyteller", "second")], [True, False])
    for body in ({}, {"fuse": "warp"}, {"fuse": 1}, {"fuse": "all", "switch": {"qkv_up": True}}, {"switch": {}}, {"switch": {"warp": True}}, {"switch": {"qkv_up": 1}},
                 {"switch": []}, {"fuse": "all", "other": 1}, {"fuse": "all," + "-qkv_up," * 200 + "-qkv_up"}, {"fuse": "all\0x"}):
        refused = s.post("/fuses", body)
        check(f"fuses {json.dumps(body)[:40]}", refused.status == 400 and refused.error()["message"], refused)
    same("and nothing changed", s.get("/fuses").json()["fuse"], "auto")


def main():
    with Server("models/storyteller", "second=models/storyteller", f"small={GOLDENS}/llama-gqa-tied") as s:
        for part in (parameters, formats, paths, models, embeddings, tokens, prometheus, fuses):
            with section(part.__name__): part(s)
        s.becomes_idle("nothing is left")
        s.stop()
    with section("access"): access()
    with section("admins"): admins()
    finish()


if __name__ == "__main__":
    main()
