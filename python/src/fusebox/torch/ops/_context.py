"""One context of the library for each device, and the workspaces that CUDA graphs need.

A context lives until the process ends, because captured graphs hold addresses of its workspaces.

A capture cannot allocate. PyTorch captures on a stream of its own, on which nothing has run before. So every context
keeps a spare workspace, which the first op that is captured on a new stream takes. Ordinary calls make it: the first
one, the first one after a capture has taken it, and one that needs more than the spare has.
"""

from __future__ import annotations

import ctypes
import threading
from ctypes import c_void_p

import torch

from ... import _c
from ..._c_ops import CPU, errors, failure, lib

# Bytes that every spare has, in both of its parts: enough for norms, elementwise ops and linears of up to 8 rows.
LEAST_SPARE = 4 << 20

_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class Context:
    """A device's fb_ops."""

    def __init__(self, device: int) -> None:
        handle = c_void_p()
        _c.call(lib.fb_ops_create, device, 0, ctypes.byref(handle))
        self.prepare(device, handle)

    def prepare(self, device: int, handle: c_void_p) -> None:
        self.device, self.handle = device, handle
        self.streams: set[int] = set()  # those whose next call need not look after the spare
        self.owners: set[int] = set()  # those that have a workspace
        self.need = LEAST_SPARE  # bytes of the largest op so far, as far as they can be foreseen
        self.spare = 0  # bytes of the spare that no capture has taken; 0: there is none
        self.spares = 0  # made so far
        self.lock = threading.Lock()

    def look_after_spare(self, stream: int) -> None:
        """In a capture: notes that a stream without a workspace takes the spare. Otherwise makes a spare of `need`
        bytes if there is none."""
        with self.lock:
            if torch.cuda.is_current_stream_capturing():
                if stream not in self.owners:
                    self.owners.add(stream)
                    self.streams.clear()
                    self.spare = 0
                return
            if self.spare < self.need:
                size = 1 << (self.need - 1).bit_length()
                if lib.fb_ops_spare(self.handle, size, errors.address) == 0:
                    self.spare = size
                    self.spares += 1
                # No memory for a spare is no failure of this op: a capture will say what it lacks.
            self.owners.add(stream)
            self.streams.add(stream)

    def grow(self, need: int) -> None:
        with self.lock:
            if need > self.need:
                self.need = need
                self.streams.clear()


_contexts: dict[int, Context] = {}
_lock = threading.Lock()


def context(device: int) -> Context:
    """The context of a CUDA device, or of the CPU (-1)."""
    found = _contexts.get(device)
    if found is None:
        with _lock:
            found = _contexts.get(device)
            if found is None:
                found = _contexts[device] = Context(device)
    return found


_cpu: tuple[c_void_p, None] | None = None


def enter(device: int, need: int = 0) -> tuple[c_void_p, c_void_p | None]:
    """The context's handle and the current stream, for one call. `need`: bytes of workspace that the op may use."""
    global _cpu
    if device < 0:
        if _cpu is None:
            _cpu = context(CPU).handle, None
        return _cpu
    assert _raw_stream is not None
    found = _contexts.get(device) or context(device)
    stream: int = _raw_stream(device)
    if need > found.need:
        found.grow(need)
    if stream not in found.streams:
        with torch.cuda.device(device):
            found.look_after_spare(stream)
    return found.handle, c_void_p(stream)


def reserve(bytes: int, device: torch.device | str | int | None = None) -> None:
    """Prepares the current stream of a CUDA device, and the next stream that is captured, for ops that need up to
    `bytes` of workspace.

    Call it before a capture whose ops are larger than all that have run before. An op that is refused during a capture
    names the bytes that it needs. On the CPU it does nothing. `device`: the current CUDA device, if there is one.
    """
    size = _c.integer("bytes", bytes, 0, 1 << 40)
    if device is None and not torch.cuda.is_available():
        return
    where = torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cuda")
    if where.type != "cuda":
        return
    index = torch.cuda.current_device() if where.index is None else where.index
    found = context(index)
    found.grow(size)
    with torch.cuda.device(index):
        handle, stream = enter(index)
        status = lib.fb_ops_reserve(handle, stream, size, errors.address)
    if status:
        raise failure(status)
