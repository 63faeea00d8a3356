"""Ctrl-C during a call of the library.

Python runs signal handlers between bytecodes, so none runs while a call is in C. A thread waits for the byte that
Python's C handler writes to the wakeup descriptor at once, and cancels the session. The call returns, and the
handler that was there before raises KeyboardInterrupt. Only calls in the main thread are guarded: only that one
gets KeyboardInterrupt.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Callable

# The functions of the module signal convert handlers to enums, which takes 5 us a call. Those below it do not.
_signal: Any = sys.modules.get("_signal", signal)

_SIGINT = int(signal.SIGINT)
_lock = threading.Lock()
_cancel: Callable[[], None] | None = None  # what the watcher calls; guarded by _lock
_forward = -1  # the descriptor that was there before ours: an event loop's
_installed: Interruptible | None = None  # the outermost guard, of the main thread
_pipe: tuple[int, int] | None = None


def _watch(read: int) -> None:
    while True:
        try:
            numbers = os.read(read, 64)
        except OSError:
            return
        with _lock:
            if _forward >= 0:
                try:
                    os.write(_forward, numbers)
                except OSError:
                    pass  # full: the event loop has enough to wake up
            if _SIGINT in numbers and _cancel:
                _cancel()


def _descriptor() -> int:
    """The end that signals are written to. The first call starts the thread that reads the other one."""
    global _pipe
    if _pipe is None:
        _pipe = os.pipe()
        os.set_blocking(_pipe[1], False)
        threading.Thread(target=_watch, args=(_pipe[0],), name="fusebox-ctrl-c", daemon=True).start()
    return _pipe[1]


def _forget() -> None:
    """A forked child has no watcher."""
    global _pipe, _lock, _cancel, _installed
    _pipe, _lock, _cancel, _installed = None, threading.Lock(), None, None


os.register_at_fork(after_in_child=_forget)


class Interruptible:
    """``with Interruptible(cancel):`` calls ``cancel`` from another thread when SIGINT arrives, and raises what
    the handler of SIGINT raises when the block ends. Guards may nest: the inner one has its own ``cancel``."""

    __slots__ = ("_before", "_fd", "_handler", "_new", "_outer", "interrupted")

    def __init__(self, cancel: Callable[[], None] | None = None) -> None:
        self._new = cancel
        self._outer: Interruptible | None = None
        self._handler: Callable[[int, FrameType | None], object] | None = None
        self.interrupted = False

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = True

    @property
    def stop(self) -> bool:
        """Whether SIGINT arrived since the outermost guard began."""
        return (self._outer or self).interrupted

    def __enter__(self) -> Interruptible:
        global _cancel, _installed, _forward
        if threading.get_ident() != threading.main_thread().ident:
            return self
        if _installed:
            self._outer = _installed
        else:
            handler = _signal.getsignal(_SIGINT)
            if not callable(handler):  # ignored, or it ends the process
                return self
            descriptor = _descriptor()
            self._handler = handler
            _signal.signal(_SIGINT, self._record)
            # From here on no KeyboardInterrupt can leave half of this undone.
            _installed = self
            self._fd = signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
            _forward = self._fd
        with _lock:
            self._before, _cancel = _cancel, self._new
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _cancel, _installed, _forward
        if self._outer is None and self._handler is None:
            return
        with _lock:
            _cancel = self._before
        if self._handler is None:
            return
        signal.set_wakeup_fd(self._fd)
        _installed = None
        with _lock:
            _forward = -1
        _signal.signal(_SIGINT, self._handler)
        if self.interrupted:
            self._handler(_SIGINT, sys._getframe())
