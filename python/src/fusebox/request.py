"""Requests to a scheduler, and what comes out of them."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Iterator

from . import _c_batch as c
from ._c import text_or_none
from .errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .scheduler import Scheduler

FINISHES = (None, "end", "stop", "length", "cancelled", "failed")  # by fb_finish


@dataclass(frozen=True, eq=False)
class Piece:
    """What came out of a step for one answer: a token, some text, or the end."""

    request: int
    """The request's number."""
    sample: int
    """Which of its answers, from 0."""
    token: int | None
    """None: text that had been held back, or the end."""
    text: str
    """Characters that are certain by now; often empty."""
    finish: str | None
    """Why the answer ended, in its last piece: "end" (the model ended it), "stop" (a stop text came), "length"
    (max_tokens), "cancelled" or "failed". None: it goes on."""
    message: str | None
    """Why it failed."""
    position: int
    """Of the token in prompt and answer, from 0; below `prompt`: it is one of the prompt (prompt_logits)."""
    count: int
    """Tokens of the answer so far, this one included."""
    prompt: int
    """Tokens of the prompt …"""
    cached: int
    """… and how many of them came from the prefix cache."""
    logits: NDArray[np.float32] | None
    """What the token was chosen from, a copy, float32 [vocab]; None unless the request wants them."""
    drafted: int
    """Guesses that were checked for the answer so far …"""
    kept: int
    """… and how many of them became tokens of it."""


class Answer(str):
    """A whole answer: a str with what is known about it. It does not contain the prompt."""

    tokens: list[int]
    """Token ids, without the end token that ended it."""
    finish: str
    """As ``Piece.finish``."""
    message: str | None
    cached: int
    drafted: int
    """Guesses that were checked, and those that became tokens: ``kept``."""
    kept: int

    @property
    def text(self) -> str:
        """The text as a plain str."""
        return str.__str__(self)


AnswerFn = Callable[[Piece], object]


def _piece(a: Any, vocab: int) -> Piece:
    logits = None
    if a.logits:
        import numpy

        logits = numpy.ctypeslib.as_array(a.logits, (vocab,)).copy()
    shown = ctypes.string_at(a.text, a.bytes).decode("utf-8", "replace") if a.bytes else ""
    token = None if a.token < 0 else a.token
    finish, message = FINISHES[a.finish], text_or_none(a.message)
    return Piece(
        a.request, a.sample, token, shown, finish, message, a.position, a.count, a.prompt, a.cached, logits,
        a.drafted, a.kept,
    )


class Request:
    """A request, made by ``Scheduler.submit``. Without ``on_answer`` it is an iterator of pieces. Any thread may
    use it, and wait for it: who waits computes steps, or waits for the thread that does."""

    number: int
    """From 1, in the order in which requests were submitted."""
    prompt_tokens: list[int]
    seed: int

    def __init__(
        self, scheduler: Scheduler, prompt_tokens: list[int], seed: int, samples: int, on_answer: AnswerFn | None
    ) -> None:
        self.scheduler = scheduler
        self.prompt_tokens = prompt_tokens
        self.seed = seed
        self.number = 0
        self._on_answer = on_answer
        self._left = samples
        self._pieces: deque[Piece] = deque()
        self._kept = [_Kept() for _ in range(samples if on_answer is None else 0)]

    def _take(self, piece: Piece) -> bool:
        """In the middle of a step."""
        if piece.finish is not None:
            self._left -= 1
        if self._on_answer is not None:
            return self._on_answer(piece) is not False
        self._kept[piece.sample].add(piece)
        self._pieces.append(piece)
        return True

    @property
    def done(self) -> bool:
        """Whether all its answers have ended."""
        return self._left == 0

    def cancel(self) -> None:
        """Ends all its answers in the next step. Nothing happens if they have ended."""
        self.scheduler._cancel(self.number)

    def wait(self) -> None:
        """Until all its answers have ended."""
        self.scheduler._run_until(lambda: self._left == 0)

    def _keeps(self) -> None:
        if self._on_answer is not None:
            raise UsageError(f"request {self.number}: with on_answer, which has got its pieces")

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        self._keeps()
        while True:
            self.scheduler._run_until(lambda: bool(self._pieces) or self._left == 0)
            try:
                return self._pieces.popleft()
            except IndexError:  # another thread has taken it
                if self._left == 0:
                    raise StopIteration from None

    def answers(self) -> list[Answer]:
        """Waits for the end and returns all its answers, whole. No pieces are left afterwards."""
        self._keeps()
        self.wait()
        self._pieces.clear()
        return [kept.answer() for kept in self._kept]

    def answer(self) -> Answer:
        """The first of its answers; most requests have one."""
        return self.answers()[0]

    def __repr__(self) -> str:
        return f"<fusebox.Request {self.number}: {'ended' if self.done else 'goes on'}>"


class _Kept:
    """What a request without ``on_answer`` keeps of one answer."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._last: Piece | None = None

    def add(self, piece: Piece) -> None:
        if piece.text:
            self._text.append(piece.text)
        if piece.token is not None and piece.position >= piece.prompt:
            self._tokens.append(piece.token)
        if piece.finish is not None:
            self._last = piece

    def answer(self) -> Answer:
        answer = Answer("".join(self._text))
        answer.tokens = list(self._tokens)
        last = self._last
        answer.finish = (last.finish if last else None) or ""
        answer.message = last.message if last else None
        answer.cached = last.cached if last else 0
        answer.drafted, answer.kept = (last.drafted, last.kept) if last else (0, 0)
        return answer


class Active:
    """The requests of a scheduler that have not ended, by the key that their callback gets, and the first
    exception that a callback of the current step has raised."""

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self._keys = itertools.count(1)
        self._lock = threading.Lock()
        self._requests: dict[int, Request] = {}
        self._raised: BaseException | None = None
        self.callback = c.fb_answer_fn(self._answered)

    def add(self, request: Request) -> int:
        with self._lock:
            key = next(self._keys)
            self._requests[key] = request
        return key

    def drop(self, key: int) -> None:
        with self._lock:
            self._requests.pop(key, None)

    def _answered(self, key: int, answer: Any) -> bool:
        try:
            with self._lock:
                request = self._requests[key]
            request.number = answer.contents.request  # submit may not have returned yet
            try:
                return request._take(_piece(answer.contents, self._vocab))
            finally:
                if request.done:
                    self.drop(key)
        except BaseException as error:
            if self._raised is None:
                self._raised = error
            return False

    def raise_again(self) -> None:
        error, self._raised = self._raised, None
        if error is not None:
            raise error


__all__ = ["Answer", "AnswerFn", "Piece", "Request"]
