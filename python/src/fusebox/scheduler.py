"""Many requests at once: a scheduler that computes the answers of one model together."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Sequence

from . import _c
from . import _c_batch as c
from ._c import call, integer, lib, text, to_bytes
from ._handle import Handle
from ._interrupt import Interruptible
from ._report import options
from ._text import scaled, table
from .errors import UsageError, error_of
from .generation import Sampling, prompt_ids, sampler_options, schema_of, takes_best, token_limit
from .plan import SECTIONS
from .request import Active, AnswerFn, Request
from .session import Ids, SessionOptions, fill_session

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .draft import Draft
    from .model import Model

NOT_USED = ("greedy", "all_logits", "on_hidden", "on_progress")


@dataclass(frozen=True)
class SchedulerStats:
    """What happened since a scheduler was created, and how it stands."""

    waiting: int
    """Answers now."""
    running: int
    blocks: int
    """Of the pool."""
    blocks_free: int
    """Those that only the prefix cache holds count, too."""
    block_tokens: int
    block_bytes: int
    steps: int
    rows: int
    """Tokens that were computed."""
    prompt_tokens: int
    """Read, and of these …"""
    cached_tokens: int
    """… found in the prefix cache."""
    tokens: int
    """Of answers."""
    preempted: int
    """Answers that were put back, and computed again later."""
    step_seconds: float
    """All steps."""
    barriers: int
    """How often all threads waited for each other; on a GPU, launches."""
    plan_changes: int
    plan_pending: bool
    """A plan waits until answers have ended (``Scheduler.fuse``)."""
    last_rows: int
    """Of the last step."""
    last_decode: bool
    """Whether all of them were tokens of answers."""
    last_timed: bool
    """Whether it ran with the clocks of ``Scheduler.profile``."""
    last_seconds: float
    layer_barriers: int
    """Of the last step in which all rows were tokens of answers, in layers."""
    held_steps: int
    """That took rows of a prompt through some layers only."""
    drafted: int
    """Guesses that were checked."""
    kept: int
    """Guesses that became tokens of answers."""

    def _rows(self) -> list[tuple[str, str]]:
        mean = self.rows / self.steps if self.steps else 0.0
        return [
            ("answers", f"{self.running} running, {self.waiting} waiting, {self.preempted} put back so far"),
            ("steps", f"{self.steps}, with {mean:.1f} rows on average, in {self.step_seconds:.3f} s"),
            ("prompts", f"{self.prompt_tokens} tokens, {self.cached_tokens} of them from the prefix cache"),
            ("tokens", f"{self.tokens}"),
            ("guesses", f"{self.kept} of {self.drafted} kept"),
            ("cache", f"{self.blocks - self.blocks_free} of {self.blocks} blocks in use, {self.block_tokens} tokens "
                      f"and {scaled(self.block_bytes)}B each"),
            ("plan", f"{self.plan_changes} changes{', one is pending' if self.plan_pending else ''}"),
        ]

    def __str__(self) -> str:
        return "\n".join(f"{name:<9}{value}" for name, value in self._rows())

    def _repr_html_(self) -> str:
        return table(["", ""], self._rows())


@dataclass(frozen=True)
class FuseState:
    """A fuse in a scheduler's plan."""

    name: str
    bit: bool
    """A change of it takes effect in the next step; if False, it is pending first."""
    on: bool
    """It is in the plan that runs."""
    next: bool
    """It is in the plan that will run."""
    calls: int
    """Since the scheduler was created."""
    calls_per_step: int
    """What a step must make with the plan that runs."""
    calls_per_head: int
    saving: float
    """Predicted seconds that a step with it takes less; 0 where it does not apply."""


@dataclass(frozen=True)
class TimelineOp:
    """An op of a timed step."""

    op: str
    section: str
    """"prologue", "layer" or "epilogue"."""
    fuses: tuple[str, ...]
    """What made it; empty: it is a plain op."""
    seconds: float
    """All layers added up."""


@dataclass(frozen=True)
class Timeline:
    """Where the time of a scheduler's decode step goes."""

    rows: int
    """Of a step."""
    layers: int
    steps: int
    """Averaged: the faster half of those that had so many rows."""
    seconds: float
    """Of a step, with clocks around its ops …"""
    op_seconds: float
    """… and of its ops."""
    ops: tuple[TimelineOp, ...]

    _HEADER = ("op", "us a step", "share", "made by")

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (o.op, f"{1e6 * o.seconds:.1f}", f"{100 * o.seconds / self.seconds:.1f}%", " ".join(o.fuses) or "-")
            for o in self.ops
        ]

    def _caption(self) -> str:
        return f"{self.rows} rows, {1e3 * self.seconds:.3f} ms a step, mean of the faster {self.steps}"

    def __str__(self) -> str:
        rows = [self._HEADER, *self._rows()]
        width = max(len(row[0].encode()) for row in rows)
        return "\n".join([self._caption(), *(f"{r[0]:<{width}}  {r[1]:>9}  {r[2]:>6}  {r[3]}" for r in rows)])

    def _repr_html_(self) -> str:
        return table(self._HEADER, self._rows(), self._caption())


class Scheduler:
    """Computes the requests of one model together. Made by ``Model.scheduler``.

    What a request answers does not depend on the others, to the bit. One step is computed at a time; all methods
    may be called from any thread at any time, and from callbacks all but those that compute steps. Nothing
    happens between steps: ``run``, ``step`` or waiting for a request computes them.
    """

    def __init__(
        self,
        model: Model,
        *,
        sequences: int | None = None,
        cache_tokens: int | None = None,
        block: int | None = None,
        rows: int | None = None,
        stretch: float | None = None,
        prefix_cache: bool | None = None,
        **session: Unpack[SessionOptions],
    ) -> None:
        settings: Any = options(c.fb_scheduler_options, lib.fb_scheduler_options_init)
        numbers = {"sequences": sequences, "cache_tokens": cache_tokens, "block": block, "rows": rows}
        for name, value in numbers.items():
            if value is not None:
                setattr(settings, name, integer(name, value))
        if stretch is not None:
            settings.stretch = float(stretch)
        if prefix_cache is not None:
            settings.prefix_cache = bool(prefix_cache)
        for name in NOT_USED:
            if session.get(name):
                raise UsageError(f"{name}: not for a scheduler (submit has wants_logits and prompt_logits)")
        each, execution, self._draft = fill_session(model, session)
        pointer = ctypes.c_void_p()
        call(
            lib.fb_scheduler_create, model._handle.pointer, ctypes.byref(each), ctypes.byref(settings),
            ctypes.byref(pointer),
        )
        self.model = model
        dense = _c.cache_name(each.cache) == "dense"
        self._capacity = (each.capacity or model.info.context) if dense else None
        self._active = Active(model.info.vocab)
        draft = self._draft._handle if self._draft else None
        self._handle: Handle | None = Handle(
            pointer, lib.fb_scheduler_free, model._handle, self._active.callback, draft
        )
        self._stepping = threading.Lock()
        self._stepper: int | None = None
        self._changed = threading.Condition()

    def _open(self) -> Handle:
        if self._handle is None:
            raise UsageError("scheduler: closed")
        return self._handle

    # Another thread may close the scheduler meanwhile, so each call holds the handle.

    def _call(self, function: Any, *arguments: Any) -> None:
        handle = self._open()
        call(function, handle.pointer, *arguments)

    def _text(self, function: Any) -> str:
        handle = self._open()
        return _c.take_text(function, handle.pointer)

    @property
    def draft(self) -> Draft | None:
        """What guesses tokens for its requests."""
        return self._draft

    # ---- requests ----

    def submit(
        self,
        prompt: str | bytes | Ids,
        *,
        max_tokens: int | None = None,
        samples: int = 1,
        stops: Sequence[str] = (),
        priority: int = 0,
        wants_logits: bool = False,
        prompt_logits: bool = False,
        draft: bool = True,
        on_answer: AnswerFn | None = None,
        **sampling: Unpack[Sampling],
    ) -> Request:
        """Asks for the continuation of a prompt, a text or token ids.

        max_tokens: of an answer; by default 256, or what the capacity leaves. 0: the prompt is only read.
        samples: answers to this prompt. Answer i draws the random numbers of sequence i of the seed.
        stops: texts that end an answer; it ends before them.
        priority: requests with a higher one start first; one that waits long overtakes them.
        wants_logits: pieces have the logits that their token was chosen from.
        prompt_logits: there is a piece for each token of the prompt, too, with the logits of the tokens before it.
        draft: by the scheduler's draft, if it has one; False: no tokens are guessed for this request.
        on_answer: called in the middle of a step with each Piece, and not from another thread than the one that
            steps. Return False to cancel the request. An exception cancels it, and is raised again by the call
            that computed the step. Without on_answer the request is an iterator of pieces.
        sampling: as for ``Model.generate``.
        """
        handle = self._open()
        past_end = bool(sampling.pop("past_end", False))
        ids, _ = prompt_ids(self.model, prompt, True)
        limit, _ = token_limit(len(ids), max_tokens, self._capacity, past_end)
        o: Any = options(c.fb_request_options, lib.fb_request_options_init)
        o.prompt, o.prompt_count = (ctypes.c_int32 * len(ids))(*ids), len(ids)
        o.max_tokens = 0 if limit is None else limit or -1  # 0: no limit; -1: no answer
        o.samples = integer("samples", samples, -(2**31), 2**31 - 1)
        o.priority = integer("priority", priority, -(2**31), 2**31 - 1)
        texts = [to_bytes("stops", stop) for stop in ([stops] if isinstance(stops, str) else stops)]
        o.stops, o.stop_count = (ctypes.c_char_p * len(texts))(*texts), len(texts)
        o.past_end = past_end
        o.wants_logits, o.prompt_logits, o.draft = bool(wants_logits), bool(prompt_logits), bool(draft)
        sampler = sampler_options(sampling)
        schema = schema_of(self.model, sampling.get("schema"))
        sampler.schema = None if schema is None else schema.pointer
        if not takes_best(sampling):
            o.sampler = ctypes.pointer(sampler)
        request = Request(self, ids, int(sampler.seed), max(samples, 0), on_answer)
        o.on_answer, o.user = self._active.callback, self._active.add(request)
        number = ctypes.c_uint64()
        try:
            call(lib.fb_scheduler_submit, handle.pointer, ctypes.byref(o), ctypes.byref(number))
        except BaseException:
            self._active.drop(o.user)
            raise
        request.number = number.value
        return request

    def _cancel(self, number: int) -> None:
        handle = self._handle
        if handle is not None:
            lib.fb_scheduler_cancel(handle.pointer, number)

    def cancel(self) -> None:
        """Ends all requests in the next step; ``Request.cancel`` ends one."""
        self._cancel(0)

    # ---- steps ----

    def _step(self) -> bool:
        """By the thread that holds `_stepping`."""
        handle, busy, error = self._open(), ctypes.c_bool(), _c.fb_error()
        self._stepper = threading.get_ident()
        try:
            # Ctrl-C waits for the end of the step: otherwise it would be raised in a callback.
            with Interruptible():
                status = lib.fb_scheduler_step(handle.pointer, ctypes.byref(busy), ctypes.byref(error))
        finally:
            self._stepper = None
        self._active.raise_again()
        if self._draft is not None:
            self._draft._raise_again()
        if status:
            raise error_of(status, text(error.message))
        return bool(busy.value)

    def _not_in_callback(self) -> None:
        if self._stepper == threading.get_ident():
            raise UsageError("scheduler: a step from a callback (it runs in the middle of one)")

    def _done(self) -> None:
        self._stepping.release()
        with self._changed:
            self._changed.notify_all()

    def step(self) -> bool:
        """Computes one step for all requests. False: there was nothing to do."""
        self._not_in_callback()
        self._stepping.acquire()
        try:
            return self._step()
        finally:
            self._done()

    def run(self) -> None:
        """Computes steps until nothing is left to do. Ctrl-C ends it after the step; it may be called again."""
        while self.step():
            pass

    def _run_until(self, ready: Callable[[], bool]) -> None:
        """Computes steps, or waits while another thread does."""
        self._not_in_callback()
        while not ready():
            if self._stepping.acquire(blocking=False):
                try:
                    if not ready():
                        self._step()
                finally:
                    self._done()
            else:
                with self._changed:
                    self._changed.wait_for(lambda: ready() or not self._stepping.locked())

    # ---- how it stands ----

    @property
    def stats(self) -> SchedulerStats:
        """What happened so far."""
        handle, s = self._open(), c.fb_scheduler_stats(size=ctypes.sizeof(c.fb_scheduler_stats))
        lib.fb_scheduler_fill_stats(handle.pointer, ctypes.byref(s))
        values = {name: getattr(s, name) for name in SchedulerStats.__annotations__}
        for name in ("plan_pending", "last_decode", "last_timed"):
            values[name] = bool(values[name])
        return SchedulerStats(**values)

    # ---- the plan, while it runs ----

    def fuse(self, fuse: str) -> None:
        """Asks for the plan of another list of fuses, as the option `fuse`. The next step runs it. If it would
        change bits, it is pending until the answers that have begun have ended. A bad list changes nothing."""
        self._call(lib.fb_scheduler_fuse, to_bytes("fuse", fuse))

    def fuses(self) -> dict[str, FuseState]:
        """Every fuse by its name: whether it is on, and how often it ran."""
        handle, states = self._open(), dict[str, FuseState]()
        s = c.fb_fuse_state(size=ctypes.sizeof(c.fb_fuse_state))
        while lib.fb_scheduler_fill_fuse(handle.pointer, len(states), ctypes.byref(s)):
            name = text(s.name)
            states[name] = FuseState(
                name, s.bit, s.on, s.next, s.calls, s.calls_per_step, s.calls_per_head, s.saving
            )
        return states

    def plan_text(self) -> str:
        """The plan that runs: one op a line, with shapes."""
        return self._text(lib.fb_scheduler_plan_text)

    def fuse_text(self) -> str:
        """The list of fuses that it was made from."""
        return self._text(lib.fb_scheduler_fuse_text)

    # ---- where the time goes ----

    def profile(self, steps: int = 16) -> None:
        """Times every op of the next `steps` steps (1 to 256) in which all rows are tokens of answers."""
        self._call(lib.fb_scheduler_profile, integer("steps", steps))

    def timeline(self) -> Timeline | None:
        """The last timing of the plan that runs; None if none has been completed."""
        pointer = ctypes.POINTER(c.fb_timeline)()
        self._call(lib.fb_scheduler_timeline, ctypes.byref(pointer))
        if not pointer:
            return None
        try:
            t = pointer.contents
            ops = tuple(_timeline_op(t.ops[i].contents) for i in range(t.op_count))
            return Timeline(t.rows, t.layers, t.steps, t.seconds, t.op_seconds, ops)
        finally:
            lib.fb_timeline_free(pointer)

    # ---- end ----

    def close(self) -> None:
        """Frees the scheduler, or lets it be freed when the step that runs has ended. Requests that have not
        ended get nothing more."""
        self._handle = None

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._handle is None:
            return "<fusebox.Scheduler, closed>"
        s = self.stats
        return f"<fusebox.Scheduler: {s.running} answers running, {s.waiting} waiting>"


def _timeline_op(o: Any) -> TimelineOp:
    return TimelineOp(text(o.op), SECTIONS[o.section], tuple(text(o.fuses[i]) for i in range(o.fuse_count)), o.seconds)


__all__ = ["FuseState", "Scheduler", "SchedulerStats", "Timeline", "TimelineOp"]
