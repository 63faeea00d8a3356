"""Sessions: a KV cache for one stream of tokens."""

from __future__ import annotations

import array
import ctypes
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Sequence, TypedDict, Union

from . import _c
from ._c import call, lib, text
from ._c_draft import MAX_DRAFT
from ._execution import Execution, fill, kv_name
from ._handle import Handle
from ._interrupt import Interruptible
from .draft import Draft, DraftStats, Source, draft_of, read_stats
from .errors import StoppedError, UsageError, error_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from .generation import Generation, Sampling, TextStream
    from .model import Model

Ids = Union[Sequence[int], Iterable[int], "NDArray[np.integer[Any]]"]


def ids_of(ids: Ids) -> Any:
    """Token ids as a ctypes array of int32."""
    try:
        values = array.array("i", ids)
    except OverflowError:
        raise UsageError("ids: a token id does not fit into 32 bits") from None
    return (ctypes.c_int32 * len(values)).from_buffer(values) if values else (ctypes.c_int32 * 0)()


@dataclass(frozen=True)
class CacheInfo:
    """What a session remembers."""

    kind: str
    """"dense", "window" or "sinks"."""
    sinks: int
    window: int
    slots: int
    bytes: int
    held: int
    """Tokens that the next token will see."""
    trimmable: int
    """Tokens that ``Session.trim`` can drop now."""


@dataclass(frozen=True)
class FuseCalls:
    """How often a fuse ran."""

    calls: int
    calls_per_step: int
    """The calls that a step must make; 0 if the fuse is not in the plan."""
    calls_per_head: int
    """Of these, those of the final norm and the head, which run only where logits are wanted."""


HiddenFn = Callable[[int, int, "NDArray[np.float32]"], object]
ProgressFn = Callable[[int, int], object]


class SessionOptions(Execution, total=False):
    """Options of a session, beside those of execution.

    greedy: compute only the best token of a step (``best``), not the logits.
    all_logits: keep the logits of every token of the last prefill, not only of the last one.
    beyond_context: dense cache: allow more tokens than the model's context; the answers there are poor.
    cache: "dense" (the default), "window" or "sinks": which tokens are remembered.
    capacity: dense cache: tokens that it can hold; 0 (the default): the model's context.
    sinks: cache "sinks": how many of the first tokens are kept; 4 by default.
    window: cache "window" or "sinks": how many tokens before it a token sees.
    chunk: tokens of a prefill that are computed at once; 0: a good value.
    draft: guesses of the next tokens, which change the speed only: "ngram", "q4", the path of a smaller model, a
        Draft (``Model.draft``), or a function as ``draft(tokens, most)`` that returns up to `most` ids.
    on_hidden: called as ``on_hidden(layer, position, hidden)`` in the middle of a step, with the hidden state
        after `layer` layers: float32 [rows, hidden], a copy. Return False to stop.
    on_progress: called as ``on_progress(done, total)`` between the chunks of a prefill. Return False to stop.
    """

    greedy: bool
    all_logits: bool
    beyond_context: bool
    cache: str
    capacity: int
    sinks: int
    window: int
    chunk: int
    draft: Draft | Source | None
    on_hidden: HiddenFn | None
    on_progress: ProgressFn | None


class _Callbacks:
    """The C callbacks of a session and its forks. An exception in one stops the step and is raised again by the
    call that made the step."""

    def __init__(self, on_hidden: HiddenFn | None, on_progress: ProgressFn | None) -> None:
        self._raised = threading.local()
        self.hidden = self._hidden(on_hidden) if on_hidden else _c.fb_hidden_fn()
        self.progress = self._progress(on_progress) if on_progress else _c.fb_progress_fn()

    def _run(self, function: Callable[..., object], *arguments: object) -> bool:
        try:
            return function(*arguments) is not False
        except BaseException as error:
            self._raised.error = error
            return False

    def _hidden(self, function: HiddenFn) -> Any:
        import numpy

        def on_hidden(user: int, layer: int, position: int, hidden: Any, rows: int, cols: int) -> bool:
            return self._run(
                lambda: function(layer, position, numpy.ctypeslib.as_array(hidden, (rows, cols)).copy())
            )

        return _c.fb_hidden_fn(on_hidden)

    def _progress(self, function: ProgressFn) -> Any:
        return _c.fb_progress_fn(lambda user, done, total: self._run(function, done, total))

    def raise_again(self) -> None:
        error = getattr(self._raised, "error", None)
        if error is not None:
            self._raised.error = None
            raise error


def fill_session(model: Model, options: SessionOptions) -> tuple[Any, Execution, Draft | None]:
    """The options of a session as a C struct, but for the callbacks; those of execution among them; and the draft,
    which must live as long as what the struct is for."""
    settings = _c.fb_session_options()
    lib.fb_session_options_init(ctypes.byref(settings), ctypes.sizeof(settings))
    execution = Execution()
    for name, value in options.items():
        if name in SessionOptions.__annotations__ and name not in Execution.__annotations__:
            _set_option(settings, name, value)
        else:
            execution[name] = value  # type: ignore[literal-required]
    fill(settings, execution, "session")
    draft = draft_of(model, options.get("draft"))
    settings.draft = None if draft is None else draft._handle.pointer
    return settings, execution, draft


class Session:
    """A KV cache for one stream of tokens, and the logits of its last step. Made by ``Model.session``.

    One thread at a time may use a session; a second one gets a UsageError. Different sessions may be used by
    different threads at once, even if they are forks of each other. ``cancel`` may be called by any thread.
    """

    def __init__(self, model: Model, **options: Unpack[SessionOptions]) -> None:
        settings, execution, self._draft = fill_session(model, options)
        callbacks = _Callbacks(options.get("on_hidden"), options.get("on_progress"))
        settings.on_hidden = callbacks.hidden
        settings.on_progress = callbacks.progress
        pointer = ctypes.c_void_p()
        call(lib.fb_session_create, model._handle.pointer, ctypes.byref(settings), ctypes.byref(pointer))
        # Logits of a prefill may need more memory than those before.
        self._moves = bool(settings.all_logits) or options.get("on_hidden") is not None
        self._capacity: int | None = None  # tokens that it can hold; None: any number
        if _c.cache_name(settings.cache) == "dense":
            self._capacity = settings.capacity or model.info.context
        self.act = _c.dtype_name(settings.act)
        """The dtype in which every op stores its result."""
        self.kv = kv_name(execution)
        """The dtype of the KV cache."""
        self._begin(model, pointer, callbacks)

    def _begin(self, model: Model, pointer: ctypes.c_void_p, callbacks: _Callbacks) -> None:
        self.model = model
        self._callbacks = callbacks
        draft = self._draft._handle if self._draft else None
        self._handle: Handle | None = Handle(pointer, lib.fb_session_free, model._handle, callbacks, draft)
        self._ahead: deque[int] = deque()  # tokens that a stream has chosen together and not taken yet
        self._busy = threading.Lock()
        self._view: weakref.ref[Any] | None = None
        self._cancelled = False  # by Ctrl-C, and no step has been stopped by it yet

    @property
    def draft(self) -> Draft | None:
        """What guesses tokens for ``generate`` and ``stream``."""
        return self._draft

    # ---- use by one thread at a time ----

    def _open(self) -> Handle:
        if self._handle is None:
            raise UsageError("session: closed")
        return self._handle

    def _use(self) -> _Use:
        return _Use(self._open(), self._busy)

    def _refuse_view(self, what: str) -> None:
        """Before a step whose logits may need more memory than there is: the library then moves them."""
        if self._view is not None and self._view() is not None:
            raise UsageError(f"logits: an array of the last step is in use (drop it before the next {what})")

    def _settle(self, handle: Handle) -> None:
        """Gives back what a stream has not taken, before something else uses the tokens."""
        if self._ahead:
            held = lib.fb_session_position(handle.pointer) - len(self._ahead)
            self._ahead.clear()
            call(lib.fb_session_trim, handle.pointer, held)

    def _cancel(self) -> None:
        if self._handle is not None:
            self._cancelled = True
            lib.fb_session_cancel(self._handle.pointer)

    def _step(self, function: Any, *arguments: Any) -> None:
        """A prefill or a decode. Ctrl-C stops it."""
        with self._use() as handle, Interruptible(self._cancel) as guard:
            if guard.stop:
                raise StoppedError("session: interrupted")
            self._settle(handle)
            error = _c.fb_error()
            late = self._cancelled
            position = lib.fb_session_position(handle.pointer)
            status = function(handle.pointer, *arguments, ctypes.byref(error))
            # A Ctrl-C that came too late for the step before stops this one, which nobody asked for.
            if status == StoppedError.status and late and not guard.stop:
                if lib.fb_session_position(handle.pointer) == position:
                    status = function(handle.pointer, *arguments, ctypes.byref(error))
            if status == StoppedError.status or late:
                self._cancelled = False
            if status:
                self._callbacks.raise_again()
                raise error_of(status, text(error.message))
            if self._draft is not None:
                self._draft._raise_again()

    def _speculate(self, id: int, sampler: Any, most: int | None) -> list[int]:
        """Appends a token, and the guesses after it that are right. Returns the tokens that were chosen, no more
        than `most`."""
        self._refuse_view("text")
        ids, count = (ctypes.c_int32 * (MAX_DRAFT + 1))(), ctypes.c_int64()
        most = MAX_DRAFT + 1 if most is None else most
        self._step(lib.fb_session_speculate, id, sampler, most, ids, ctypes.byref(count))
        return ids[: count.value]

    # ---- tokens ----

    def prefill(self, ids: Ids) -> None:
        """Appends tokens, int32 [count]. Fails without a change if an id is not in the vocabulary or the cache is
        too small."""
        if self._moves:
            self._refuse_view("prefill")
        values = ids_of(ids)
        self._step(lib.fb_session_prefill, values, len(values))

    def decode(self, id: int) -> None:
        """Appends one token."""
        self._step(lib.fb_session_decode, _c.integer("id", id, -(2**31), 2**31 - 1))

    def logits(self) -> NDArray[np.float32]:
        """Logits of the last prefill or decode, float32 [rows, vocab]: one row, or one for each token of the last
        prefill with ``all_logits``.

        The array is a read-only view of the session's memory, which it keeps alive. The next prefill or decode
        overwrites it: copy what must stay. With ``all_logits`` a prefill is refused while such an array exists.
        """
        import numpy

        pointer, rows, vocab = ctypes.c_void_p(), ctypes.c_int64(), ctypes.c_int64()
        with self._use() as handle:
            call(lib.fb_session_logits, handle.pointer, *map(ctypes.byref, (pointer, rows, vocab)))
        buffer: Any = (ctypes.c_float * (rows.value * vocab.value)).from_address(pointer.value or 0)
        buffer._fusebox_session = handle  # the array keeps the buffer, and the buffer the session
        self._view = weakref.ref(buffer)
        view: NDArray[np.float32] = numpy.frombuffer(buffer, dtype=numpy.float32)
        view.flags.writeable = False
        return view.reshape(rows.value, vocab.value)

    def best(self) -> int:
        """The token with the highest logit of the last step; the lowest id among equals."""
        id = ctypes.c_int32()
        with self._use() as handle:
            call(lib.fb_session_best, handle.pointer, ctypes.byref(id))
        return id.value

    def cancel(self) -> None:
        """Makes the current prefill or decode raise StoppedError; if none runs, the next one. Any thread may call
        it. The session can go on from the tokens that it then has (``length``)."""
        lib.fb_session_cancel(self._open().pointer)

    @property
    def length(self) -> int:
        """Tokens so far."""
        return int(lib.fb_session_position(self._open().pointer)) - len(self._ahead)

    def __len__(self) -> int:
        return self.length

    def trim(self, count: int) -> None:
        """Keeps the first `count` tokens and drops the rest. There are no logits until the next token."""
        with self._use() as handle:
            self._settle(handle)
            call(lib.fb_session_trim, handle.pointer, _c.integer("count", count))

    def reset(self) -> None:
        """Back to no tokens."""
        with self._use() as handle:
            self._ahead.clear()
            lib.fb_session_reset(handle.pointer)
            self._cancelled = False

    def fork(self) -> Session:
        """A second session with the same tokens and options. Both share their cache until one of them writes."""
        pointer = ctypes.c_void_p()
        with self._use() as handle:
            self._settle(handle)
            call(lib.fb_session_fork, handle.pointer, ctypes.byref(pointer))
        fork = Session.__new__(Session)
        fork._moves, fork._capacity, fork.act, fork.kv = self._moves, self._capacity, self.act, self.kv
        fork._draft = self._draft
        fork._begin(self.model, pointer, self._callbacks)
        return fork

    # ---- text ----

    def stream(
        self, prompt: str | bytes | Ids, *, max_tokens: int | None = None, **sampling: Unpack[Sampling]
    ) -> TextStream:
        """Appends a prompt and continues it: an iterator of pieces of text, as ``Model.stream``. At its end the
        session holds the prompt and the tokens of the text."""
        from .generation import TextStream

        return TextStream(self, prompt, max_tokens=max_tokens, keep=True, **sampling)

    def generate(
        self, prompt: str | bytes | Ids, *, max_tokens: int | None = None, **sampling: Unpack[Sampling]
    ) -> Generation:
        """Appends a prompt and continues it, as ``Model.generate``. The session then holds both."""
        return self.stream(prompt, max_tokens=max_tokens, **sampling).read()

    # ---- facts ----

    @property
    def backend(self) -> str:
        """"cpu" or "cuda"."""
        return text(lib.fb_session_backend(self._open().pointer))

    @property
    def threads(self) -> int:
        """Threads of the CPU; 0 on a GPU."""
        return int(lib.fb_session_threads(self._open().pointer))

    @property
    def isa(self) -> str:
        """"avx2"; on a GPU "sm_90"."""
        return text(lib.fb_session_isa(self._open().pointer))

    @property
    def barriers(self) -> int:
        """How often all threads waited for each other."""
        return int(lib.fb_session_barriers(self._open().pointer))

    @property
    def cache(self) -> CacheInfo:
        """What the session remembers."""
        info = _c.fb_cache_info(size=ctypes.sizeof(_c.fb_cache_info))
        with self._use() as handle:
            lib.fb_session_fill_cache(handle.pointer, ctypes.byref(info))
        return CacheInfo(
            _c.cache_name(info.kind), info.sinks, info.window, info.slots, info.bytes, info.held, info.trimmable
        )

    def plan_text(self) -> str:
        """The program after its fuses: one op a line, with shapes."""
        with self._use() as handle:
            return _c.take_text(lib.fb_session_plan_text, handle.pointer)

    def op_calls(self) -> dict[str, int]:
        """How often each op ran since the session was created."""
        return {name: counts[0] for name, counts in self._counts(lib.fb_session_op_calls, 1)}

    def fuse_calls(self) -> dict[str, FuseCalls]:
        """How often each fuse ran, and the calls that a step must make."""
        return {name: FuseCalls(*counts) for name, counts in self._counts(lib.fb_session_fuse_calls, 3)}

    def draft_stats(self) -> DraftStats:
        """What became of guesses since the session was created; zeros without a draft."""
        with self._use() as handle:
            return read_stats(handle.pointer)

    def _counts(self, function: Any, width: int) -> Iterator[tuple[str, list[int]]]:
        name = ctypes.c_char_p()
        counts = [ctypes.c_int64() for _ in range(width)]
        with self._use() as handle:
            index = 0
            while function(handle.pointer, index, ctypes.byref(name), *map(ctypes.byref, counts)):
                yield text(name.value), [count.value for count in counts]
                index += 1

    # ---- end ----

    def close(self) -> None:
        """Frees the session, or lets it be freed when the call that runs and the arrays that view it are gone."""
        self._handle = None

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._handle is None:
            return "<fusebox.Session, closed>"
        return f"<fusebox.Session: {self.length} tokens, {self.backend}, {self.isa}>"


class _Use:
    """Holds a session's handle and its lock for one call."""

    __slots__ = ("_busy", "_handle")

    def __init__(self, handle: Handle, busy: threading.Lock) -> None:
        self._handle = handle
        self._busy = busy

    def __enter__(self) -> Handle:
        if not self._busy.acquire(blocking=False):
            raise UsageError("session: in use (one call at a time; fork it for a second thread)")
        return self._handle

    def __exit__(self, *ignored: object) -> None:
        self._busy.release()


def _set_option(settings: Any, name: str, value: Any) -> None:
    if name in ("on_hidden", "on_progress", "draft"):
        return
    if name == "cache":
        settings.cache = _c.cache_kind(value)
    elif name in ("capacity", "sinks", "window", "chunk"):
        setattr(settings, name, _c.integer(name, value))
    else:
        setattr(settings, name, bool(value))
