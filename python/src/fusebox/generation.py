"""Text generation: prefill the prompt, then sample, convert and decode token by token."""

from __future__ import annotations

import ctypes
import json
import math
import resource
import secrets
import statistics
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Iterator, Mapping, TypedDict

from . import _c
from ._c import call, lib
from ._handle import Handle
from ._interrupt import Interruptible
from ._text import scaled, table
from .draft import DraftStats
from .errors import StoppedError, UsageError
from .session import CacheInfo, Ids, Session, ids_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .model import Model

LAST_KEPT = 65536  # tokens and times that are kept of a text without a limit
DEFAULT_TOKENS = 256


class Sampling(TypedDict, total=False):
    """Options of sampling. Each is optional; the defaults are those of the library.

    temperature: 0 takes the best token; of the other options only logit_bias, presence_penalty and
        frequency_penalty then matter; 0.7 by default, at most 100.
    top_k: draw from the k best; 0: from all; 40 by default.
    top_p: draw from the best whose probabilities add up to p; 0.95 by default.
    min_p: drop what is less probable than p times the best; 0.1 by default.
    repeat_penalty: divide the positive scores of recent tokens by this, multiply the negative; 1.1 by default.
    repeat_window: how many tokens count as recent, for all three penalties; 64 by default. The prompt's count, too.
    presence_penalty: subtracted from the scores of recent tokens; -2 to 2, 0 by default.
    frequency_penalty: the same, once for each time that a token is recent; -2 to 2, 0 by default.
    logit_bias: by token id, what is added to its score before everything else; -100 to 100, or -math.inf: the token
        never comes.
    seed: the same seed gives the same text; None (the default): random.
    sequence: one seed gives each sequence another text; 0 by default.
    schema: the text is a JSON document that fits this JSON schema, a mapping or its text, and ends with it.
    past_end: an end token does not end the text: it is a new paragraph.
    """

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repeat_penalty: float | None
    repeat_window: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    seed: int | None
    sequence: int | None
    schema: Mapping[str, object] | str | None
    past_end: bool


@dataclass(frozen=True)
class Stats:
    """Times, speed and memory of a generation; NaN where nothing was measured. It prints as
    ``fusebox run --stats``."""

    load_ms: float
    prompt_tokens: int
    prefill_ms: float
    prefill_tokens_per_s: float
    tokens: int
    stop: str
    ttft_ms: float
    """From the start of the prefill to the first token."""
    tpot_ms: float
    """The median time of the tokens after it."""
    tpot_mean_ms: float
    tokens_per_s: float
    peak_memory_bytes: int
    backend: str
    threads: int
    isa: str
    act: str
    kv: str
    cache: CacheInfo
    fuses: dict[str, int]
    """The fuses that ran, with their calls."""
    barriers_per_step: int
    seed: int
    draft_source: str | None
    """Where guesses came from; None: there were none."""
    draft: DraftStats | None
    """What became of them."""

    def _lines(self) -> Iterator[tuple[str, str]]:
        yield "load", f"{self.load_ms:.1f} ms"
        yield (
            "prompt",
            f"{self.prompt_tokens} tokens in {self.prefill_ms:.1f} ms, {self.prefill_tokens_per_s:.1f} tokens/s",
        )
        yield "generated", f"{self.tokens} tokens, stopped by {self.stop}"
        if self.tokens > 0:
            yield "first token", f"{self.ttft_ms:.2f} ms"
        if self.tokens > 1:
            yield "per token", f"{self.tpot_ms:.3f} ms (median), {self.tpot_mean_ms:.3f} ms (mean)"
            yield "speed", f"{self.tokens_per_s:.1f} tokens/s"
        yield "peak memory", f"{scaled(self.peak_memory_bytes)}B"
        yield "backend", self.backend
        if self.threads:
            yield "threads", f"{self.threads}"
        yield "isa", self.isa
        yield "act", self.act
        yield "kv", self.kv
        c = self.cache
        if c.kind != "dense":
            yield "cache", f"{c.kind}: {c.sinks} first and {c.window} last tokens, {scaled(c.bytes)}B"
        yield "fuses", ", ".join(f"{name} {calls}" for name, calls in self.fuses.items()) or "none"
        if self.barriers_per_step > 0:
            yield "barriers", f"{self.barriers_per_step} a step"
        yield "seed", f"{self.seed}"
        if self.draft is not None and self.draft.steps:
            yield "draft", f"{self.draft_source}: {self.draft}"

    def __str__(self) -> str:
        return "\n".join(f"{name:<17}{value}" for name, value in self._lines())

    def _repr_html_(self) -> str:
        return table(["", ""], self._lines())


class Generation(str):
    """A generated text: a str with what is known about it. It does not contain the prompt."""

    prompt: str
    tokens: list[int]
    """Token ids of the text, without the end token that ended it. Of a text without a limit, the last 65,536."""
    stop: str
    """"end" (an end token), "length" (max_tokens), "context" (the context is full) or "interrupt"."""
    seed: int
    stats: Stats

    @property
    def text(self) -> str:
        """The text as a plain str."""
        return str.__str__(self)


class TextStream:
    """An iterator of pieces of text, never half a UTF-8 character. Made by ``Model.stream`` and
    ``Session.stream``. When it has ended, ``stop`` says why, and ``tokens`` and ``stats`` are complete.

    Ctrl-C raises KeyboardInterrupt, and ``stop`` is then "interrupt".
    """

    def __init__(
        self,
        session: Session,
        prompt: str | bytes | Ids,
        *,
        max_tokens: int | None = None,
        keep: bool = False,
        context_is_limit: bool = False,
        load_seconds: float = 0.0,
        **sampling: Unpack[Sampling],
    ) -> None:
        model = session.model
        self.session = session
        self.prompt_tokens, self.prompt = prompt_ids(model, prompt, session.length == 0)
        self.stop: str | None = None
        self._past_end = sampling.pop("past_end", False)
        self._limit, self._limit_name = max_tokens, "context" if context_is_limit else "length"
        self._keep = keep  # the session must hold the last token as well
        if keep:
            room = None if session._capacity is None else session._capacity - session.length
            self._limit, full = token_limit(len(self.prompt_tokens), max_tokens, room, self._past_end)
            self._limit_name = "context" if full else "length"
        options = sampler_options(sampling)
        schema = schema_of(model, sampling.get("schema"))
        options.schema = None if schema is None else schema.pointer
        self._takes_best = takes_best(sampling)
        self.seed = int(options.seed)
        self._sampler = _sampler(options, model.info.vocab)
        self._text = _text_stream(model)
        self._load = load_seconds
        kept = LAST_KEPT if self._limit is None else self._limit
        self._tokens: deque[int] = deque(maxlen=kept)
        self._seconds: deque[float] = deque(maxlen=kept)
        self._count = 0
        self._first = math.nan
        self._prefill = math.nan
        self._step_barriers = 0
        self._share = math.nan  # of the time of a run of guesses, for each of its tokens
        self._guessed = session.draft_stats() if session.draft else None  # before
        self._pieces = self._run()

    # ---- the loop ----

    def _run(self) -> Iterator[str]:
        session, last = self.session, time.monotonic()
        session.prefill(self.prompt_tokens)
        self._prefill = time.monotonic() - last
        for id in self.prompt_tokens:
            lib.fb_sampler_accept(self._sampler.pointer, id)
        id, whole = -1, False
        while True:
            if self._count == self._limit:
                self.stop = self._limit_name
                break
            # The last token is returned but not decoded: nobody asked for its successor.
            id = self._next(id) if self._count else self._sample()
            end = session.model.is_end(id)
            if end and not self._past_end:
                self.stop = "end"
                break
            # The sampler is at the end of a run of guesses; the document ends with the run's last token.
            whole = not session._ahead and lib.fb_sampler_ended(self._sampler.pointer)
            now = time.monotonic()
            if not self._count:
                self._first = now - last
            else:
                self._seconds.append(now - last if session.draft is None else self._share)
            last = now
            self._tokens.append(id)
            self._count += 1
            piece = self._take(lib.fb_text_push, id)
            if end:
                piece = "\n\n"
            if piece:
                yield piece
            if whole:  # a document that nothing can follow
                self.stop = "end"
                break
        if self._keep and self._count and (whole or self.stop != "end") and self._has_room():
            self._decode(id)
        piece = self._take(lib.fb_text_flush)
        if piece:
            yield piece

    def _has_room(self) -> bool:
        return self.session._capacity is None or self.session.length < self.session._capacity

    def _decode(self, id: int) -> None:
        before = self.session.barriers
        self.session.decode(id)
        self._step_barriers = self.session.barriers - before

    def _next(self, id: int) -> int:
        """Decodes a token and chooses the one after it, on the device where that can."""
        if self.session.draft is not None:
            return self._next_of_run(id)
        if self._takes_best:
            self._decode(id)
            return self.session.best()
        before, chosen = self.session.barriers, ctypes.c_int32()
        self.session._step(lib.fb_session_next, id, self._sampler.pointer, ctypes.byref(chosen))
        self._step_barriers = self.session.barriers - before
        return chosen.value

    def _next_of_run(self, id: int) -> int:
        """The same where a step may choose several tokens: the next of them, or the first of another step."""
        session, ahead = self.session, self.session._ahead
        if not ahead:
            before, began = session.barriers, time.monotonic()
            left = None if self._limit is None else self._limit - self._count
            ahead.extend(session._speculate(id, None if self._takes_best else self._sampler.pointer, left))
            self._step_barriers = session.barriers - before
            self._share = (time.monotonic() - began) / len(ahead)
        return ahead.popleft()

    def _sample(self) -> int:
        if self._takes_best:
            return self.session.best()
        pointer, rows, vocab, id = ctypes.c_void_p(), ctypes.c_int64(), ctypes.c_int64(), ctypes.c_int32()
        with self.session._use() as handle:
            call(lib.fb_session_logits, handle.pointer, *map(ctypes.byref, (pointer, rows, vocab)))
            last = (pointer.value or 0) + 4 * (rows.value - 1) * vocab.value
            call(lib.fb_sampler_next, self._sampler.pointer, last, ctypes.byref(id))
        return id.value

    def _take(self, function: object, *id: int) -> str:
        out, size = ctypes.c_void_p(), ctypes.c_size_t()
        call(function, self._text.pointer, *id, ctypes.byref(out), ctypes.byref(size))
        return ctypes.string_at(out.value or 0, size.value).decode("utf-8", "replace") if size.value else ""

    # ---- the iterator ----

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> str:
        try:
            return next(self._pieces)
        except (KeyboardInterrupt, StoppedError):
            self.stop = "interrupt"
            raise

    def read(self) -> Generation:
        """Runs to the end and returns the text that was not yet taken."""
        with Interruptible():
            pieces = list(self)
        return self._result("".join(pieces))

    def _result(self, pieces: str) -> Generation:
        result = Generation(pieces)
        result.prompt = self.prompt
        result.tokens = self.tokens
        result.stop = self.stop or ""
        result.seed = self.seed
        result.stats = self.stats
        return result

    @property
    def tokens(self) -> list[int]:
        """Token ids so far; of a text without a limit, the last 65,536."""
        return list(self._tokens)

    @property
    def stats(self) -> Stats:
        """Times, speed and memory so far."""
        session, seconds, nan = self.session, list(self._seconds), math.nan
        mean = statistics.fmean(seconds) if seconds else nan
        return Stats(
            load_ms=1e3 * self._load,
            prompt_tokens=len(self.prompt_tokens),
            prefill_ms=1e3 * self._prefill,
            prefill_tokens_per_s=len(self.prompt_tokens) / self._prefill if self._prefill > 0 else nan,
            tokens=self._count,
            stop=self.stop or "none",
            ttft_ms=1e3 * self._first,
            tpot_ms=1e3 * statistics.median(seconds) if seconds else nan,
            tpot_mean_ms=1e3 * mean,
            tokens_per_s=1 / mean if mean > 0 else nan,
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            backend=session.backend,
            threads=session.threads,
            isa=session.isa,
            act=session.act,
            kv=session.kv,
            cache=session.cache,
            fuses={name: fuse.calls for name, fuse in session.fuse_calls().items() if fuse.calls},
            barriers_per_step=self._step_barriers,
            seed=self.seed,
            draft_source=session.draft.source if session.draft else None,
            draft=session.draft_stats() - self._guessed if self._guessed else None,
        )


# ---- prompt, sampler, text stream ----------------------------------------------------------------------------


def prompt_ids(model: Model, prompt: str | bytes | Ids, special: bool) -> tuple[list[int], str]:
    """The ids of a prompt, at least one, and its text."""
    if isinstance(prompt, (str, bytes)):
        ids = model.tokenize(prompt, special=special)
        shown = prompt if isinstance(prompt, str) else prompt.decode("utf-8", "replace")
    else:
        ids = list(ids_of(prompt))
        shown = model.detokenize(ids) if model.info.has_tokenizer else ""
    if not ids:
        raise UsageError("prompt: 0 tokens (at least 1)")
    return ids, shown


def takes_best(sampling: Sampling) -> bool:
    """Whether the token with the highest logit is chosen, so that a session needs no other."""
    changes = ("logit_bias", "presence_penalty", "frequency_penalty")
    changed = any(sampling.get(name) for name in changes) or sampling.get("schema") is not None
    return sampling.get("temperature") == 0 and not changed


def _logit_bias(biases: Mapping[int, float]) -> ctypes.Array[_c.fb_logit_bias]:
    low, high = -(2**31), 2**31 - 1
    rows = [_c.fb_logit_bias(_c.integer("logit_bias: token", id, low, high), float(bias)) for id, bias in biases.items()]
    return (_c.fb_logit_bias * len(rows))(*rows)


def sampler_options(sampling: Sampling) -> _c.fb_sampler_options:
    options = _c.fb_sampler_options()
    lib.fb_sampler_options_init(ctypes.byref(options), ctypes.sizeof(options))
    for name, value in sampling.items():
        if name not in Sampling.__annotations__:
            raise TypeError(f"generate() got an unexpected keyword argument {name!r}")
        if value is None or name in ("seed", "schema"):
            continue
        if name == "logit_bias":
            options.logit_bias = _logit_bias(value)  # type: ignore[arg-type]
            options.logit_bias_count = len(value)  # type: ignore[arg-type]
        elif name == "sequence":
            options.sequence = _c.integer(name, value, 0, 2**64 - 1)  # type: ignore[arg-type]
        elif name in ("top_k", "repeat_window"):
            setattr(options, name, _c.integer(name, value))  # type: ignore[arg-type]
        else:
            setattr(options, name, float(value))  # type: ignore[arg-type]
    seed = sampling.get("seed")
    # 32 bits: short to type again, as the command line does it.
    options.seed = secrets.randbits(32) if seed is None else _c.integer("seed", seed, 0, 2**64 - 1)
    return options


def schema_of(model: Model, schema: Mapping[str, object] | str | None) -> Handle | None:
    """Compiled; the sampler keeps it as long as it needs it."""
    if schema is None:
        return None
    text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
    data, pointer = text.encode("utf-8", "surrogatepass"), ctypes.c_void_p()
    call(lib.fb_schema_create, model._handle.pointer, data, len(data), ctypes.byref(pointer))
    return Handle(pointer, lib.fb_schema_free)


def _sampler(options: _c.fb_sampler_options, vocab: int) -> Handle:
    pointer = ctypes.c_void_p()
    call(lib.fb_sampler_create, ctypes.byref(options), vocab, ctypes.byref(pointer))
    return Handle(pointer, lib.fb_sampler_free)


def _text_stream(model: Model) -> Handle:
    pointer = ctypes.c_void_p()
    call(lib.fb_text_create, model._handle.pointer, ctypes.byref(pointer))
    return Handle(pointer, lib.fb_text_free, model._handle)


def token_limit(count: int, max_tokens: int | None, room: int | None, past_end: bool) -> tuple[int | None, bool]:
    """How many tokens to generate after a prompt of `count` (None: no limit), and whether that is all that there is
    room for. A dense cache has `room` for so many tokens: an explicit number must fit, the default takes what is
    left. Another cache (None) has no end."""
    if max_tokens is not None:
        _c.integer("max_tokens", max_tokens, 0, 10**9)
    if room is None:
        return (None if past_end else DEFAULT_TOKENS) if max_tokens is None else max_tokens, False
    left = room - count
    if left < 0:
        raise UsageError(f'prompt: {count} tokens (there is room for {room}; with cache="sinks" it may be longer)')
    if max_tokens is not None and max_tokens > left:
        raise UsageError(f"max_tokens: {max_tokens} after a prompt of {count} tokens (there is room for {room})")
    wanted = DEFAULT_TOKENS if max_tokens is None else max_tokens
    return min(wanted, left), wanted > left


__all__ = ["Generation", "Sampling", "Stats", "TextStream"]
