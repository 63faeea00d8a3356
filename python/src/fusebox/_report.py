"""How reports of the C library are made, read and freed."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, TypeVar

from . import _c
from ._c import call, lib
from ._interrupt import Interruptible

T = TypeVar("T")


def options(kind: Any, init: Any) -> Any:
    """A struct of options with the library's defaults."""
    settings = kind()
    init(ctypes.byref(settings), ctypes.sizeof(settings))
    return settings


def make(function: Any, free: Any, report: Any, read: Callable[[Any], T], *arguments: Any) -> T:
    """Makes a report, reads it and frees it."""
    out = ctypes.POINTER(report)()
    call(function, *arguments, ctypes.byref(out))
    try:
        return read(out.contents)
    finally:
        free(out)


def compare(kind: type[T], report: Any, function: Any, model: Any, settings: Any) -> T:
    """A report of a comparison, `kind`, of the C struct's fields by their names; `first` is the first difference."""
    r = report(size=ctypes.sizeof(report))
    handle = model._handle
    call(function, handle.pointer, ctypes.byref(settings), ctypes.byref(r))
    values = {name: getattr(r, name) for name in kind.__annotations__}
    values["ok"], values["first"] = bool(r.ok), _c.text(r.first)
    return kind(**values)


def with_progress(settings: Any, run: Callable[[], T], kind: Any = _c.fb_progress_fn) -> T:
    """Runs a function whose options have on_progress, of this kind: Ctrl-C stops it at the next report."""
    with Interruptible() as guard:
        progress = kind(lambda user, so_far, total: not guard.stop)
        settings.on_progress = progress
        return run()


def set_cache(settings: Any, cache: str, sinks: int | None, window: int | None) -> None:
    """The cache of a report, as the command line takes it."""
    from .errors import UsageError

    settings.cache = _c.cache_kind(cache)
    if sinks is not None:
        if cache != "sinks":
            raise UsageError(f'sinks: {sinks} (only with cache="sinks")')
        settings.sinks = _c.integer("sinks", sinks)
    if window is not None:
        if cache == "dense":
            raise UsageError(f'window: {window} (only with cache="window" or "sinks")')
        settings.window = _c.integer("window", window)


def doubles(pointer: Any, count: int) -> tuple[float, ...]:
    return tuple(pointer[:count]) if pointer else ()


__all__ = ["compare", "doubles", "lib", "make", "options", "set_cache", "with_progress"]
