"""What the tests of `fusebox serve` share: a server on a free port, requests to it, and checks.

The program is $FUSEBOX. A check prints `ok - name` or `not ok - name: detail`; `finish` ends the script with 1 if one
failed. Python's standard library is all that is needed."""
import contextlib, http.client, json, os, re, shutil, signal, socket, subprocess, sys, tempfile, threading, time, traceback
from concurrent.futures import ThreadPoolExecutor

FUSEBOX = os.environ["FUSEBOX"]
SLOW = "FUSEBOX_TESTS_SLOW" in os.environ  # the program is instrumented: less work, more time
GOLDENS = "tests/data/golden"
failures = 0


# ---- Checks

def ok(name):
    print(f"ok - {name}", flush=True)
    return True


def not_ok(name, detail):
    global failures
    failures += 1
    detail = str(detail).replace("\n", "\\n")
    print(f"not ok - {name}: {detail[:600]}", flush=True)
    return False


def check(name, condition, detail=""):
    return ok(name) if condition else not_ok(name, detail)


def same(name, got, wanted):
    return check(name, got == wanted, f"got {str(got)[:250]!r}, wanted {str(wanted)[:250]!r}")


@contextlib.contextmanager
def section(name):
    """What goes wrong in between is one failed check."""
    began = time.monotonic()
    try:
        yield
        print(f"# {name}: {time.monotonic() - began:.1f} s", flush=True)
    except Exception as error:
        traceback.print_exc(file=sys.stdout)
        not_ok(name, f"{type(error).__name__}: {error}")


def finish():
    sys.exit(failures > 0)


def until(condition, seconds, step=0.01):
    """Whether the condition holds within so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return bool(condition())
        time.sleep(step)
    return True


def many(function, items, threads=32):
    """The results of all, computed at the same time."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))


def scratch(name=""):
    """A folder that goes away with the script."""
    if not hasattr(scratch, "folder"):
        scratch.folder = tempfile.TemporaryDirectory(prefix="fusebox-serve-")
    return os.path.join(scratch.folder.name, name)


# ---- Replies

def members(pairs):
    """An object, whose keys all differ."""
    found = dict(pairs)
    if len(found) != len(pairs): raise ValueError(f"a key twice: {pairs}"[:300])
    return found


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body, object_pairs_hook=members)

    def error(self):
        return self.json()["error"]

    def __repr__(self):
        return f"{self.status} {self.body[:300]!r}"


def events(lines):
    """The events of a stream, as texts."""
    for line in lines:
        if line.startswith(b"data: "):
            yield line[6:].rstrip(b"\r\n").decode()


class Answer:
    """A stream, put together: as one whole reply has it, by choice."""

    def __init__(self):
        self.chunks, self.done, self.error, self.usage = [], False, None, None

    def add(self, event):
        if event == "[DONE]":
            self.done = True
            return
        chunk = json.loads(event, object_pairs_hook=members)
        if "error" in chunk:
            self.error = chunk["error"]
            return
        self.chunks.append(chunk)
        if chunk.get("usage"):
            self.usage = chunk["usage"]

    def choices(self):
        found = {}
        for chunk in self.chunks:
            for choice in chunk["choices"]:
                text = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
                c = found.setdefault(choice["index"], {"text": "", "logprobs": None, "finish_reason": None})
                c["text"] += text
                c["finish_reason"] = choice["finish_reason"] or c["finish_reason"]
                if choice["logprobs"] and c["logprobs"] is None:
                    c["logprobs"] = {key: [] for key in choice["logprobs"]}
                for key, values in (choice["logprobs"] or {}).items():
                    if values is None: c["logprobs"][key] = None
                    else: c["logprobs"][key] += values
        return [found[index] for index in sorted(found)]


def whole(reply):
    """The choices of a whole reply, in the form of Answer.choices."""
    return [{"text": c["message"]["content"] if "message" in c else c["text"], "logprobs": c["logprobs"],
             "finish_reason": c["finish_reason"]} for c in reply.json()["choices"]]


# ---- Servers

class Server:
    """A running server; the address is read from what it says on stderr. With one thread, unless `threads` says otherwise:
    other tests run at the same time, and two threads that wait for each other on a busy core take far longer than one."""

    def __init__(self, *arguments, threads=1, environment=None, start=30):
        self.log, self.status = [], None
        self.process = subprocess.Popen([FUSEBOX, "serve", "--port", "0", "--threads", str(threads), *map(str, arguments)],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env={**os.environ, **(environment or {})})
        self.listening = threading.Event()
        self.port = None
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        self.listening.wait(start * (4 if SLOW else 1))
        if not self.port:
            self.process.kill()
            raise RuntimeError(f"no server: {self.stderr()}")

    def read(self):
        for line in self.process.stderr:
            self.log.append(line.decode(errors="replace"))
            found = re.search(r" at http://(.*):(\d+)/ ", self.log[-1])
            if found:
                self.host, self.port = found[1].strip("[]"), int(found[2])
                self.listening.set()
        self.listening.set()

    def stderr(self):
        return "".join(self.log)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.status is None:
            self.process.kill()
            self.wait(10)

    def wait(self, seconds):
        self.status = self.process.wait(seconds * (4 if SLOW else 1))
        self.reader.join(5)
        return self.status

    def stop(self, name="the server", seconds=40):
        """SIGTERM: the exit status is 0, and only the first line was said."""
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.wait(seconds)
        except subprocess.TimeoutExpired:
            return not_ok(f"{name}: SIGTERM ends it", "it still runs")
        good = check(f"{name}: SIGTERM ends it with 0", status == 0, f"exit status {status}: {self.stderr()[-1500:]}")
        return check(f"{name}: it says no more than that it serves", len(self.log) == 1, self.stderr()[-1500:]) and good

    def rss(self):
        """Resident bytes."""
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def connection(self, timeout=60):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout * (4 if SLOW else 1))

    def socket(self, timeout=20):
        return socket.create_connection((self.host, self.port), timeout=timeout * (4 if SLOW else 1))

    def request(self, method, path, body=None, headers=None, connection=None, timeout=60):
        """A reply; a body that is no text or bytes is sent as JSON."""
        c = connection or self.connection(timeout)
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode()
        try:
            c.request(method, path, body, headers or {})
            r = c.getresponse()
            return Reply(r.status, r.headers, r.read())
        finally:
            if not connection: c.close()

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def complete(self, prompt="Once upon a time", **more):
        return self.post("/v1/completions", {"prompt": prompt, **more})

    def chat(self, *texts, **more):
        messages = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)]
        return self.post("/v1/chat/completions", {"messages": messages, **more})

    def stream(self, path, body, stop_after=None, timeout=60):
        """The stream of an answer. `stop_after`: so many events, and then the client leaves."""
        c, answer = self.connection(timeout), Answer()
        try:
            c.request("POST", path, json.dumps({**body, "stream": True}))
            r = c.getresponse()
            if r.status != 200:
                raise RuntimeError(f"{r.status}: {r.read()}")
            for i, event in enumerate(events(r)):
                if i == stop_after: break
                answer.add(event)
        finally:
            c.close()
        return answer

    def fuses(self, **more):
        return self.get("/fuses", **more).json()

    def used(self):
        """Blocks of the cache that answers use."""
        state = self.fuses()
        return state["blocks"] - state["blocks_free"]

    def idle(self):
        state = self.fuses()
        return state["running"] == 0 and state["waiting"] == 0 and state["blocks"] == state["blocks_free"]

    def becomes_idle(self, name, seconds=1):
        """No answer runs, and no block is in use, within so many seconds."""
        seconds *= 4 if SLOW else 1
        state = {} if until(self.idle, seconds) else self.fuses()
        return check(name, not state, {key: state.get(key) for key in ("running", "waiting", "blocks", "blocks_free")})


def fusebox(*arguments, seconds=120, **more):
    """The program with other commands."""
    return subprocess.run([FUSEBOX, *map(str, arguments)], capture_output=True, stdin=subprocess.DEVNULL,
                          timeout=seconds * (4 if SLOW else 1), **more)


TEMPLATE = ("{% if tools %}TOOLS {{ tools | tojson }}\n{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
            "{% for call in m.tool_calls or [] %} CALL {{ call.function.name }} {{ call.function.arguments.x }}{% endfor %}"
            "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}answer{{ extra }}:{% endif %}")


def chat_model(name="chatty"):
    """The storyteller with a chat template, in a folder of this name."""
    folder, model = scratch(name), "models/storyteller"
    os.makedirs(folder)
    for file in os.listdir(model):
        os.symlink(os.path.abspath(f"{model}/{file}"), f"{folder}/{file}")
    with open(f"{model}/tokenizer_config.json") as file:
        config = json.load(file)
    os.unlink(f"{folder}/tokenizer_config.json")
    with open(f"{folder}/tokenizer_config.json", "w") as file:
        json.dump({**config, "chat_template": TEMPLATE, "eos_token": "<|endoftext|>"}, file)
    return folder


def copy_lines(path, to, change):
    """A copy of a record whose lines `change` has gone over: number, object -> object."""
    with open(path) as source, open(to, "w") as out:
        for number, line in enumerate(source):
            value = change(number, json.loads(line))
            if value is not None: out.write(json.dumps(value) + "\n")
    return to


def metrics(server):
    """The values of /metrics by name and labels."""
    values = {}
    for line in server.get("/metrics").body.decode().splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            values[name] = float(value)
    return values
