"""One context of the library for each device. It lives until the process ends, because captured graphs hold addresses of
its workspaces."""

from __future__ import annotations

import ctypes
import threading
from ctypes import c_void_p

import torch

from ... import _c
from ..._c_ops import CPU, errors, failure, lib

_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_handles: dict[int, c_void_p] = {}
_lock = threading.Lock()


def context(device: int) -> c_void_p:
    """The fb_ops of a CUDA device, or of the CPU (-1)."""
    with _lock:
        found = _handles.get(device)
        if found is None:
            found = c_void_p()
            _c.call(lib.fb_ops_create, device, 0, ctypes.byref(found))
            _handles[device] = found
    return found


_cpu: tuple[c_void_p, None] | None = None


def enter(device: int) -> tuple[c_void_p, c_void_p | None]:
    """The context's handle and the current stream, for one call."""
    global _cpu
    if device < 0:
        if _cpu is None:
            _cpu = context(CPU), None
        return _cpu
    assert _raw_stream is not None
    return _handles.get(device) or context(device), c_void_p(_raw_stream(device))


def reserve(bytes: int, device: torch.device | str | int | None = None) -> None:
    """Makes the workspace of the current stream of a CUDA device at least `bytes` long, so that later ops need not
    allocate. On the CPU it does nothing. `device`: the current CUDA device, if there is one.
    """
    size = _c.integer("bytes", bytes, 0, 1 << 40)
    if device is None and not torch.cuda.is_available():
        return
    where = torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cuda")
    if where.type != "cuda":
        return
    handle, stream = enter(torch.cuda.current_device() if where.index is None else where.index)
    status = lib.fb_ops_reserve(handle, stream, size, errors.address)
    if status:
        raise failure(status)
