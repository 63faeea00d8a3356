"""Chromium without a window, driven over a pipe in the DevTools protocol, with Python's standard library alone.

Why not WebDriver: the tests look at the console, at every request and at emulated media. The protocol reports these as
events; chromedriver only hands on some of them, and must have the version of the browser. Why a pipe: there is no port
to choose or to wait for, nobody else can connect, and the browser ends with this process."""
import base64, json, os, select, shutil, subprocess, tempfile, time

NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
FLAGS = ["--headless=new", "--remote-debugging-pipe", "--no-first-run", "--no-default-browser-check", "--disable-gpu",
         "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
         "--force-color-profile=srgb", "--hide-scrollbars", "--disable-dev-shm-usage"]
# What a key is in Input.dispatchKeyEvent: its code, and the text that it writes.
KEYS = {"Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, ""), " ": (32, " "), "ArrowLeft": (37, ""), "ArrowUp": (38, ""),
        "ArrowRight": (39, ""), "ArrowDown": (40, ""), "End": (35, ""), "Home": (36, ""), "Backspace": (8, "")}
CTRL, SHIFT = 2, 8


class Browser:
    """One browser and one page. `console` has errors and warnings, `requests` the address of everything asked for."""

    def __init__(self):
        program = next(filter(None, map(shutil.which, NAMES)), None)
        if not program:
            raise FileNotFoundError("no Chromium: none of " + ", ".join(NAMES))
        self.folder = tempfile.TemporaryDirectory(prefix="fusebox-page-", ignore_cleanup_errors=True)
        self.console, self.requests, self.answers = [], [], {}
        self.last, self.rest, self.session = 0, b"", None
        down, self.out = os.pipe()  # the browser reads descriptor 3 and writes 4
        self.into, up = os.pipe()
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        os.set_inheritable(down, True)
        os.set_inheritable(up, True)
        self.process = subprocess.Popen(
            ["sh", "-c", f'exec 3<&{down} 4>&{up} "$@"', "sh", program, *FLAGS, *root,
             f"--user-data-dir={self.folder.name}", "about:blank"],
            pass_fds=(down, up), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(down)
        os.close(up)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def close(self):
        """Ends the browser: it does so when it is asked, and is ended if it does not."""
        try:
            self.session = None
            self.call("Browser.close")
        except (OSError, RuntimeError):
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.out)
        os.close(self.into)
        self.folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def receive(self, seconds):
        """Takes what the browser has sent within this time, at least one message."""
        if not select.select([self.into], [], [], max(0, seconds))[0]:
            raise TimeoutError(f"the browser was silent for {seconds:.0f} s")
        got = os.read(self.into, 1 << 16)
        if not got:
            raise RuntimeError("the browser has ended")
        *messages, self.rest = (self.rest + got).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self.answers[message["id"]] = message
            else:
                self.event(message["method"], message["params"])

    def event(self, method, params):
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.console.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.console.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.console.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def call(self, method, timeout=30, **params):
        self.last += 1
        message = {"id": self.last, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + timeout
        while self.last not in self.answers:
            self.receive(end - time.monotonic())
        answer = self.answers.pop(self.last)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    # ---- What a user and a test do

    def js(self, expression, timeout=30):
        """The value of an expression in the page; a promise is waited for."""
        got = self.call("Runtime.evaluate", timeout, expression=expression, awaitPromise=True, returnByValue=True,
                        userGesture=True)
        if "exceptionDetails" in got:
            details = got["exceptionDetails"]
            raise RuntimeError(f"{expression}: {details.get('exception', {}).get('description') or details['text']}")
        return got["result"].get("value")

    def until(self, expression, seconds=15, what=None):
        """Waits until an expression is true, and gives its value."""
        end = time.monotonic() + seconds
        while True:
            value = self.js(expression)
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"after {seconds} s: {what or expression}")
            time.sleep(0.02)

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def size(self, width, height, phone=False, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def media(self, **features):
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=features)

    def key(self, name, modifiers=0):
        code, text = KEYS[name]
        common = {"key": name, "code": "Space" if name == " " else name, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text and not modifiers & CTRL else "rawKeyDown",
                  **common, **({"text": text} if text and not modifiers & CTRL else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def write(self, text):
        self.call("Input.insertText", text=text)

    def place(self, selector):
        """The middle of an element, in the window."""
        box = self.js(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); if (!e) return null; "
                      "e.scrollIntoView({block: 'nearest'}); const b = e.getClientRects()[0]; "
                      "return b && [b.x + b.width / 2, b.y + b.height / 2]; })()")
        if not box:
            raise AssertionError(f"not to be seen: {selector}")
        return box

    def click(self, selector):
        x, y = self.place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def point(self, selector):
        x, y = self.place(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, file):
        with open(file, "wb") as out:
            out.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
