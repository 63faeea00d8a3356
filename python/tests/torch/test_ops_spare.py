"""When a context makes a spare workspace for captures, without a GPU: the library and torch's streams are replaced."""

from __future__ import annotations

from ctypes import c_void_p
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusebox.torch.ops import _context  # noqa: E402


class Library:
    """Counts the spares that were made; refuses them if told to."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.full = False

    def fb_ops_spare(self, handle: c_void_p, size: int, error: c_void_p) -> int:
        if not self.full:
            self.made.append(size)
        return int(self.full)


@pytest.fixture
def capturing() -> list[bool]:
    return [False]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, capturing: list[bool]) -> Library:
    made = Library()
    monkeypatch.setattr(_context, "lib", made)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    return made


def new_context() -> Any:
    found = _context.Context.__new__(_context.Context)
    found.prepare(0, c_void_p(1))
    return found


def call(context: Any, stream: int) -> None:
    if stream not in context.streams:
        context.look_after_spare(stream)


def test_spares(library: Library, capturing: list[bool]) -> None:
    context = new_context()
    least = _context.LEAST_SPARE
    for stream in (1, 1, 2):
        call(context, stream)
    assert library.made == [least]  # one for all
    capturing[0] = True
    for _ in range(3):
        call(context, 3)  # takes it
    capturing[0] = False
    call(context, 1)
    assert library.made == [least] * 2
    capturing[0] = True
    call(context, 3)  # has a workspace now
    call(context, 1)
    capturing[0] = False
    for stream in (1, 2, 3):
        call(context, stream)
    assert library.made == [least] * 2
    context.grow(3 * least)
    call(context, 1)
    assert library.made == [least, least, 4 * least]


def test_no_memory_for_a_spare_is_no_failure(library: Library) -> None:
    context = new_context()
    library.full = True
    call(context, 1)
    assert context.spare == 0 and 1 in context.streams
