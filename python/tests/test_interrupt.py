"""Ctrl-C, in processes of their own."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import Callable

import pytest

Start = Callable[..., "subprocess.Popen[str]"]

# Long calls: kernels in double, and a prompt of which one op takes long.
PREFILL = """
import fusebox, sys, time
model = fusebox.Model()
session = model.session(isa="ref", act="f64", kv="f64")
print("ready", flush=True)
try:
    session.prefill([5] * 512)
except KeyboardInterrupt:
    print("interrupted", flush=True)
session.reset()
session.decode(1)
import signal
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
assert signal.set_wakeup_fd(-1) == -1
print("goes on", session.length, flush=True)
"""

GENERATE = """
import fusebox
model = fusebox.Model()
print("ready", flush=True)
try:
    model.generate("Once upon a time", endless=True, max_tokens=10**9, window=64)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print("goes on", model.generate("a", max_tokens=1, seed=1).stop, flush=True)
"""

STREAM = """
import fusebox
stream = fusebox.Model().stream("Once upon a time", endless=True)
print("ready", flush=True)
try:
    for piece in stream:
        pass
except KeyboardInterrupt:
    print("interrupted", flush=True)
print("goes on", stream.stop, flush=True)
"""

BENCH = """
import fusebox
print("ready", flush=True)
try:
    fusebox.Model().bench(prompt=16, gen=16, reps=100000)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print("goes on", flush=True)
"""

OWN_HANDLER = """
import fusebox, signal
signal.signal(signal.SIGINT, lambda number, frame: print("handled", flush=True))
print("ready", flush=True)
try:
    fusebox.Model().generate("Once upon a time", endless=True, max_tokens=10**9)
except fusebox.StoppedError:
    print("interrupted", flush=True)
print("goes on", flush=True)
"""

EVENT_LOOP = """
import asyncio, fusebox, signal
session = fusebox.Model().session(isa="ref", act="f64", kv="f64")
async def main():
    handled = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, handled.set)
    print("ready", flush=True)
    try:
        session.prefill([5] * 512)
    except fusebox.StoppedError:
        print("interrupted", flush=True)
    await asyncio.wait_for(handled.wait(), 5)
    print("goes on", flush=True)
asyncio.run(main())
"""


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    """The rest of both outputs. communicate() would lose what readline() has read ahead."""
    assert process.stdout and process.stderr
    rest = process.stdout.read(), process.stderr.read()
    process.wait(timeout=60)
    return rest


@pytest.mark.parametrize("source", [PREFILL, GENERATE, STREAM, BENCH, OWN_HANDLER, EVENT_LOOP])
def test_ctrl_c(script: Start, source: str) -> None:
    process = script(source)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.4)
    assert process.poll() is None
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    line = process.stdout.readline()
    if line == "handled\n":
        line = process.stdout.readline()
    seconds = time.monotonic() - start
    rest, errors = finish(process)
    assert line == "interrupted\n", errors
    assert "goes on" in rest and process.returncode == 0, errors
    assert errors == ""
    assert seconds < 2


def test_uncaught(script: Start) -> None:
    process = script(GENERATE.replace("except KeyboardInterrupt", "except ZeroDivisionError"))
    assert process.stdout and process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, errors = finish(process)
    assert errors.rstrip().endswith("KeyboardInterrupt") and process.returncode == -signal.SIGINT


def test_another_thread_is_left_alone(script: Start) -> None:
    """A generation in another thread goes on: only the main thread gets KeyboardInterrupt."""
    process = script(
        """
import fusebox, threading, time
model = fusebox.Model()
result = []
options = {"max_tokens": 500, "cache": "sinks", "past_end": True, "isa": "portable"}
thread = threading.Thread(target=lambda: result.append(model.generate("a", **options)))
thread.start()
print("ready", flush=True)
try:
    time.sleep(30)
except KeyboardInterrupt:
    print("interrupted", flush=True)
thread.join()
print("goes on", len(result[0].tokens), flush=True)
"""
    )
    assert process.stdout and process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    rest, errors = finish(process)
    assert rest == "interrupted\ngoes on 500\n", errors


def test_exit_while_a_thread_runs(script: Start) -> None:
    """Nothing is freed under a thread that is in a call when the interpreter ends."""
    process = script(
        """
import fusebox, threading, time
model = fusebox.Model()
session = model.session(isa="ref", act="f64", kv="f64")
view = model.logits([1, 2, 3])
threading.Thread(target=lambda: session.prefill([5] * 512), daemon=True).start()
time.sleep(0.2)
"""
    )
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
