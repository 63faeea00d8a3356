"""Drafts: guesses of the next tokens, which one step of the model checks together."""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Iterator, Sequence, Union

from . import _c_draft as c
from ._c import call, integer, lib, to_bytes
from ._execution import Execution, fill
from ._handle import Handle
from ._report import compare, options
from ._text import paragraph, table
from .errors import UsageError

if TYPE_CHECKING:
    from .model import Model

ProposeFn = Callable[[Sequence[int], int], Sequence[int]]
Source = Union[str, "os.PathLike[str]", ProposeFn]


class _Proposal:
    """A Python function that guesses. What it raises ends the guesses of that step, and is raised again by the call
    that made the step."""

    def __init__(self, function: ProposeFn) -> None:
        self._function = function
        self._raised = threading.local()
        self.callback = c.fb_draft_fn(self._propose)

    def _propose(self, user: int, tokens: Any, count: int, most: int, ids: Any) -> int:
        try:
            guesses = list(self._function(tokens[:count], most))[:most]
            for i, id in enumerate(guesses):
                ids[i] = integer("draft: id", id, -(2**31), 2**31 - 1)
            return len(guesses)
        except BaseException as error:
            self._raised.error = error
            return 0

    def raise_again(self) -> None:
        error = getattr(self._raised, "error", None)
        if error is not None:
            self._raised.error = None
            raise error


class Draft:
    """Where guesses of the next tokens of a model come from. Made by ``Model.draft``; any number of sessions and
    schedulers of this model, in any threads, may share one.

    A guess is kept if it is the token that would have been chosen there. So texts, logits and samples are those
    without a draft, to the bit.
    """

    source: str
    """"ngram", "q4", a path, or the name of a function."""
    tokens: int | None
    """So many are always guessed; None: as many as are worth it."""

    def __init__(self, model: Model, source: Source, *, tokens: int | None = None) -> None:
        settings: Any = options(c.fb_draft_options, lib.fb_draft_options_init)
        self.tokens = tokens
        if tokens is not None:
            settings.most, settings.fixed = integer("tokens", tokens), 1
        self._proposal = None
        if callable(source):
            self._proposal = _Proposal(source)
            settings.propose = self._proposal.callback
            self.source = getattr(source, "__name__", type(source).__name__)
        else:
            settings.source = to_bytes("draft", source)
            self.source = os.fspath(source)
        pointer = ctypes.c_void_p()
        call(lib.fb_draft_create, model._handle.pointer, ctypes.byref(settings), ctypes.byref(pointer))
        self.model_path = model.path
        self._handle = Handle(pointer, lib.fb_draft_free, model._handle, self._proposal)

    def _raise_again(self) -> None:
        if self._proposal is not None:
            self._proposal.raise_again()

    def __repr__(self) -> str:
        return f"<fusebox.Draft: {self.source}>"


def draft_of(model: Model, draft: Draft | Source | None) -> Draft | None:
    """That of an option. One of a name or path is made once for all that use it at the same time."""
    if draft is None or isinstance(draft, Draft):
        return draft
    if callable(draft):
        return Draft(model, draft)
    return model.draft(draft)


@dataclass(frozen=True)
class DraftStats:
    """What became of guesses."""

    steps: int
    """That chose tokens, and of these …"""
    plain_steps: int
    """… those that checked no guess."""
    tokens: int
    """Chosen."""
    drafted: int
    """Guesses."""
    kept: int
    """Guesses that became tokens."""
    tried: tuple[int, ...]
    """By depth: guesses that were compared, because all before them were right …"""
    right: tuple[int, ...]
    """… and those that were right."""
    step_seconds: float
    draft_seconds: float
    """Of guessing."""

    @property
    def acceptance(self) -> float:
        """Of the guesses that were compared, the part that was right; NaN without any."""
        return sum(self.right) / sum(self.tried) if sum(self.tried) else float("nan")

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps if self.steps else float("nan")

    def __sub__(self, before: DraftStats) -> DraftStats:
        """What happened since."""
        values: dict[str, Any] = {}
        for name in DraftStats.__annotations__:
            now, then = getattr(self, name), getattr(before, name)
            values[name] = tuple(a - b for a, b in zip(now, then)) if isinstance(now, tuple) else now - then
        return DraftStats(**values)

    def __str__(self) -> str:
        right = 100 * self.kept / self.drafted if self.drafted else 0.0
        return f"{self.tokens_per_step:.2f} tokens a step, {self.kept} of {self.drafted} guesses kept ({right:.0f}%)"


def read_stats(session: Any) -> DraftStats:
    s = c.fb_draft_stats(size=ctypes.sizeof(c.fb_draft_stats))
    lib.fb_session_fill_draft(session, ctypes.byref(s))
    values = {name: getattr(s, name) for name in DraftStats.__annotations__}
    values["tried"], values["right"] = tuple(s.tried), tuple(s.right)
    return DraftStats(**values)


# ---- the proof -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DraftReport:
    """Texts with guesses against the same texts decoded one by one. It prints as ``fusebox verify --draft``."""

    ok: bool
    """All are the same, and guesses were checked."""
    texts: int
    tokens: int
    """Compared."""
    steps: int
    drafted: int
    kept: int
    different: int
    """Texts that differ."""
    first: str
    """The first difference; empty: none."""

    def _rows(self) -> Iterator[tuple[str, str]]:
        yield "guesses", f"{self.kept} of {self.drafted} kept"
        yield "steps", f"{self.steps}"
        compared = f"{self.texts} texts, {self.tokens} tokens; {self.different} texts differ"
        yield "compared with one by one", compared

    def _verdict(self) -> str:
        if self.ok:
            return "verified: tokens and logits are those of decoding one by one, to the bit"
        return f"FAILED: {self.first}"

    def __str__(self) -> str:
        return "\n".join([*(f"{name:<28}  {value}" for name, value in self._rows()), self._verdict()])

    def _repr_html_(self) -> str:
        return table(["", ""], self._rows()) + paragraph(self._verdict())


def prove(
    model: Model,
    source: str | os.PathLike[str],
    golden: str | os.PathLike[str] | None,
    gen: int | None,
    seed: int,
    execution: Execution,
) -> DraftReport:
    if callable(source):
        raise UsageError("draft: a function (its name: ngram, q4, scripted, or a path)")
    settings = options(c.fb_draft_verify_options, lib.fb_draft_verify_options_init)
    fill(settings, execution, "verify_draft")
    settings.source = to_bytes("draft", source)
    settings.golden = None if golden is None else to_bytes("golden", golden)
    if gen is not None:
        settings.gen = integer("gen", gen)
    settings.seed = integer("seed", seed, 0, 2**64 - 1)
    return compare(DraftReport, c.fb_draft_report, lib.fb_verify_draft, model, settings)


__all__ = ["Draft", "DraftReport", "DraftStats", "ProposeFn"]
