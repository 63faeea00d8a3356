#!/usr/bin/env python3
"""The proxies of docs/serve.md, with the configurations that it shows. Without nginx and caddy there is nothing to test."""
from server import *

NAME = "llm.example.org"
LONG = {"prompt": [5, 6, 7], "max_tokens": 400, "ignore_eos": True, "seed": 1, "stream": True}


def shown(beginning):
    """The code of the document that begins so."""
    with open("docs/serve.md") as file: blocks = re.findall(r"^```\w*\n(.*?)^```$", file.read(), re.M | re.S)
    return next(block for block in blocks if block.startswith(beginning))


def free_port():
    with socket.socket() as c:
        c.bind(("127.0.0.1", 0))
        return c.getsockname()[1]


def nginx(program, upstream, port):
    """As shown, without TLS, and with its files in our folder."""
    server = re.sub(r"\n +ssl_.*", "", shown("server {\n")).replace("443 ssl", f"127.0.0.1:{port}").replace("127.0.0.1:8080", f"127.0.0.1:{upstream}")
    folder = scratch("nginx")
    os.makedirs(folder, exist_ok=True)
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    with open(f"{folder}/conf", "w") as file:
        file.write(f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {folder}/errors;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}{server}}}\n")
    return [program, "-p", folder, "-e", f"{folder}/errors", "-c", f"{folder}/conf"]


def caddy(program, upstream, port):
    old = re.match(r"v?2\.[0-6]\b", subprocess.run([program, "version"], capture_output=True, text=True).stdout)
    config = shown(NAME).replace(NAME, f"http://{NAME}:{port}").replace("127.0.0.1:8080", f"127.0.0.1:{upstream}")
    if old: config = re.sub(r"request_buffers \w+", "buffer_requests", config)
    with open(scratch("Caddyfile"), "w") as file:
        file.write("{\n admin off\n auto_https off\n}\n" + config)
    return [program, "run", "--adapter", "caddyfile", "--config", scratch("Caddyfile")]


class Proxy(Server):
    """A proxy as a server: its requests go through it."""

    def __init__(self, command, port):
        self.log, self.status, self.host, self.port = [], None, "127.0.0.1", port
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "HOME": scratch()})
        self.reader = threading.Thread(target=lambda: self.log.extend(line.decode() for line in self.process.stdout), daemon=True)
        self.reader.start()
        if not until(self.answers, 10, 0.05): raise RuntimeError(f"no proxy: {self.stderr()}")

    def answers(self):
        try:
            return self.request("GET", "/health").status == 200
        except OSError:
            return False

    def request(self, method, path, body=None, headers=None, **more):
        return super().request(method, path, body, {"Host": NAME, **(headers or {})}, **more)


def through(name, s, proxy, key=None):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    same(f"{name}: a reply", whole(proxy.post("/v1/completions", {"prompt": "Once", "max_tokens": 5, "seed": 1}, headers=headers)),
         whole(s.post("/v1/completions", {"prompt": "Once", "max_tokens": 5, "seed": 1}, headers=headers)))
    same(f"{name}: the page's own requests", proxy.post("/tokenize", {"content": "a"}, headers={**headers, "Origin": f"https://{NAME}"}).status, 200)
    same(f"{name}: those of other pages", proxy.post("/tokenize", {"content": "a"}, headers={**headers, "Origin": "https://evil.example"}).status, 403)
    same(f"{name}: nobody is an admin", proxy.get("/props", headers=headers).json()["admin"], False)
    same(f"{name}: and nobody switches", proxy.post("/fuses", {"fuse": "auto"}, headers=headers).status, 403)
    for leaves in (False, True):
        c = proxy.connection()
        c.request("POST", "/v1/completions", json.dumps(LONG), {"Host": NAME, **headers})
        r, times = c.getresponse(), []
        if r.status != 200: raise RuntimeError(f"{r.status}: {r.read()}")
        for event in events(r):
            times.append(time.monotonic())
            if leaves: break
        c.close()
        if not leaves: check(f"{name}: a stream comes as it is written", len(times) > 300 and times[-1] - times[0] > 0.1, times)
    streams = many(lambda i: proxy.post("/v1/completions", {**LONG, "max_tokens": 5, "seed": i}, headers=headers).body, range(40), 4)
    same(f"{name}: streams end", sum(b"[DONE]" in body for body in streams), 40)
    check(f"{name}: a client that leaves cancels its answer", until(lambda: metrics_of(s, headers)['fusebox_answers_total{model="storyteller",finish="cancelled"}'] == 1, 5))


def metrics_of(s, headers):
    text = s.get("/metrics", headers=headers).body.decode()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if not line.startswith("#")}


def main():
    path = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
    for name, command in (("nginx", nginx), ("caddy", caddy)):
        same(f"{name}: the document shows one", bool(shown({"nginx": "server {\n", "caddy": NAME}[name])), True)
        program = shutil.which(name, path=path)
        if not program:
            print(f"# {name}: not run: it is not here")
            continue
        for options, key in ((("--allow-host", NAME), None), (("--api-key", "k"), "k")):
            with section(f"{name} {options[0]}"), Server(*options) as s:
                port = free_port()
                with Proxy(command(program, s.port, port), port) as proxy: through(f"{name}, {options[0]}", s, proxy, key)
                s.stop(f"{name}, {options[0]}")
    finish()


if __name__ == "__main__":
    main()
