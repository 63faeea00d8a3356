"""llama.cpp as cpu.py sees it: a process that answers, fails or is not there."""
import json
import os
import signal
import subprocess
import sys
import time

# Between turns: threads of the other engine spin for some milliseconds before they sleep.
SETTLE = 0.1


def say(text):
    print(text, file=sys.stderr, flush=True)


class LlamaError(Exception):
    pass


class Llama:
    """The process of llama_engine.py, or of another program like it. One that has died is started again by the next
    question."""

    def __init__(self, program="llama_engine.py"):
        self.process, self.program = None, program
        self.version = self.start()

    def start(self):
        engine = os.path.join(os.path.dirname(os.path.abspath(__file__)), self.program)
        self.process = subprocess.Popen([sys.executable, engine], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            status = self.process.wait()
            self.process = None
            raise LlamaError(signal.strsignal(-status) if status < 0 else f"exit status {status}")
        reply = json.loads(line)
        if "error" in reply:
            raise LlamaError(reply["error"])
        return reply["value"]

    def ask(self, *question):
        if not self.process:
            self.start()
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self.answer()


class Rival:
    """llama.cpp on one work, or nobody: no llama.cpp here, or it has failed."""

    def __init__(self, llama, *work):
        self.llama, self.samples, self.setting, self.error = llama, [], None, None
        self.setting = self.ask("prepare", *work)

    def ask(self, *question):
        if not self.llama or self.error:
            return None
        try:
            return self.llama.ask(*question)
        except LlamaError as error:
            self.samples, self.error = [], str(error)
            say(f"llama.cpp: {error}")
            return None

    def take(self):
        time.sleep(SETTLE)
        milliseconds = self.ask("sample")
        if milliseconds:
            self.samples.append(milliseconds)
        time.sleep(SETTLE)
