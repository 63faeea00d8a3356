"""Models: a checkpoint with its weights and tokenizer."""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Sequence, overload

from . import _c
from ._c import call, lib
from ._handle import Handle
from .draft import Draft, Source
from .errors import UsageError
from .generation import Generation, Sampling, TextStream, prompt_ids, takes_best, token_limit
from .info import FasterType, Fuses, ModelInfo, read_faster_type, read_fuses, read_info
from .scheduler import Scheduler
from .session import Ids, Session, SessionOptions, ids_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from ._execution import Execution
    from .draft import DraftReport
    from .bench import BenchReport, OpsReport, StreamBenchReport
    from .perplexity import CurveReport, PerplexityReport
    from .plan import Plan, Profile
    from .quantize import QuantizedMix, QuantizedType, QuantizeReport
    from .verify import BatchReport, FusionReport, GoldenReport, StreamReport

    class _Options(SessionOptions, Sampling, total=False):
        pass


class Model:
    """A model: a Hugging Face directory (config.json, model.safetensors or its index, tokenizer.json) or a .gguf
    file. Without a path, the built-in storyteller.

    Any number of threads may use a model at once. Its weights stay in the file, which is mapped; the first session
    on a device loads them there. They are freed when the model and all its sessions are gone.
    """

    path: str
    """The directory or file that was opened."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        if path is None:
            path = builtin_model()
        self.path = os.fspath(path)
        if not self.path:
            raise UsageError('path: "" (a directory or a .gguf file)')
        start, pointer = time.monotonic(), ctypes.c_void_p()
        call(lib.fb_model_open, _c.to_bytes("path", path), ctypes.byref(pointer))
        self._owned: Handle | None = Handle(pointer, lib.fb_model_free)
        self._load_seconds = time.monotonic() - start
        self._drafts: weakref.WeakValueDictionary[str, Draft] = weakref.WeakValueDictionary()
        self._drafting = threading.Lock()  # guards _drafts

    @property
    def _handle(self) -> Handle:
        if self._owned is None:
            raise UsageError("model: closed")
        return self._owned

    def close(self) -> None:
        """Frees the model, or lets it be freed when its sessions and the arrays that view them are gone."""
        self._owned = None

    def __repr__(self) -> str:
        return f"fusebox.Model({self.path!r})"

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- facts ----

    @cached_property
    def info(self) -> ModelInfo:
        """What the model is: architecture, sizes, config, plain program. It prints as ``fusebox info``."""
        return read_info(self)

    def fuses(self) -> Fuses:
        """Every fuse, and what it does to this model. It prints as ``fusebox fuses``."""
        return read_fuses(self)

    def faster_type(self, isa: str) -> FasterType | None:
        """The smaller type with which a step would read much less, on kernels of this name (``Session.isa``); None:
        there is none. It prints as the note of ``fusebox bench``."""
        return read_faster_type(self, isa)

    # ---- text ----

    def tokenize(self, text: str | bytes, *, special: bool = True) -> list[int]:
        """The token ids of a text; bytes need not be UTF-8. `special` adds what the tokenizer puts around a text,
        such as a begin-of-text token."""
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else bytes(memoryview(text))
        pointer, count = ctypes.c_void_p(), ctypes.c_int64()
        call(
            lib.fb_tokenize, self._handle.pointer, data, len(data), special, ctypes.byref(pointer), ctypes.byref(count)
        )
        try:
            return list((ctypes.c_int32 * count.value).from_address(pointer.value)) if pointer.value else []
        finally:
            lib.fb_free(pointer)

    def detokenize(self, ids: Ids, *, special: bool = False) -> str:
        """The text of token ids. `special` keeps special tokens in the text. Bytes that are not UTF-8, such as half
        a character at the end, become U+FFFD."""
        values = ids_of(ids)
        pointer, size = ctypes.c_void_p(), ctypes.c_size_t()
        call(
            lib.fb_detokenize,
            self._handle.pointer,
            values,
            len(values),
            special,
            ctypes.byref(pointer),
            ctypes.byref(size),
        )
        try:
            return ctypes.string_at(pointer.value or 0, size.value).decode("utf-8", "replace")
        finally:
            lib.fb_free(pointer)

    def is_end(self, id: int) -> bool:
        """Whether a token ends a text."""
        return bool(lib.fb_model_is_end(self._handle.pointer, _c.integer("id", id, -(2**31), 2**31 - 1)))

    # ---- generation ----

    def session(self, **options: Unpack[SessionOptions]) -> Session:
        """A KV cache for one stream of tokens; SessionOptions describes the options."""
        return Session(self, **options)

    def draft(self, source: Source, *, tokens: int | None = None) -> Draft:
        """Guesses of the next tokens, for the option `draft` of sessions and schedulers: texts stay the same, to the
        bit, and come faster where guesses are often right (docs/speculation.md).

        source: "ngram": what followed the last tokens where they were before; "q4": this model with weights of Q4_0,
            which are made now, in memory; the path of a smaller model with the same tokenizer; or a function as
            ``source(tokens, most)`` that returns up to `most` ids.
        tokens: always guess so many, 1 to 7; None: as many as are worth it.

        One of a name or path, without `tokens`, is shared by all that ask for it at the same time.
        """
        if callable(source) or tokens is not None:
            return Draft(self, source, tokens=tokens)
        with self._drafting:
            draft = self._drafts.get(os.fspath(source))
            if draft is None:
                draft = self._drafts[os.fspath(source)] = Draft(self, source)
            return draft

    def scheduler(
        self,
        *,
        sequences: int | None = None,
        cache_tokens: int | None = None,
        block: int | None = None,
        rows: int | None = None,
        stretch: float | None = None,
        prefix_cache: bool | None = None,
        **session: Unpack[SessionOptions],
    ) -> Scheduler:
        """Many requests at once, each with the bits that it has alone.

        sequences: answers that are computed at the same time, at most; 16 by default.
        cache_tokens: tokens that all caches together hold; 0: as many as `sequences` sessions, at most 65536.
        block: tokens of a block of the cache: 16, 32, 64 or 128.
        rows: tokens that a step computes, at most; 0: a good value.
        stretch: while answers are being written, prompts may make a step this many times as long; 0: any.
        prefix_cache: look for beginnings of prompts that are still there; True by default.
        session: options of a session but greedy, all_logits, on_hidden and on_progress; `capacity` is the most
            tokens of one request, prompt and answer.
        """
        return Scheduler(
            self, sequences=sequences, cache_tokens=cache_tokens, block=block, rows=rows, stretch=stretch,
            prefix_cache=prefix_cache, **session,
        )

    def stream(
        self,
        prompt: str | bytes | Ids = "",
        *,
        max_tokens: int | None = None,
        endless: bool = False,
        **options: Unpack[_Options],
    ) -> TextStream:
        """Continues a prompt: an iterator of pieces of text, never half a UTF-8 character.

        prompt: a text, or token ids.
        max_tokens: tokens at most; by default 256, or what the context has left.
        endless: go on beyond the model's context and its end tokens, until max_tokens, if given. The cache is then
            "sinks" (StreamingLLM), or "window" if asked for.
        options: those of Sampling (temperature, top_k, top_p, min_p, repeat_penalty, presence_penalty,
            frequency_penalty, logit_bias, seed, …), of SessionOptions (cache, sinks, window, …) and of Execution
            (threads, act, kv, isa, backend, fuse, exact, …).
        """
        sampling = Sampling()
        settings = SessionOptions()
        for name, value in options.items():
            target = sampling if name in Sampling.__annotations__ else settings
            target[name] = value  # type: ignore[literal-required]
        if endless:
            settings.setdefault("cache", "sinks")
            if settings["cache"] == "dense":
                raise UsageError('endless: with cache="dense" ("window" or "sinks": a dense cache is full some day)')
            sampling["past_end"] = True
        cache = settings.get("cache", "dense")
        if "sinks" in settings and cache != "sinks":
            raise UsageError(f'sinks: {settings["sinks"]} (only with cache="sinks")')
        if "window" in settings and cache == "dense":
            raise UsageError(f'window: {settings["window"]} (only with cache="window" or "sinks")')
        ids, shown = prompt_ids(self, prompt, True)
        room = self.info.context if cache == "dense" else None
        limit, context_is_limit = token_limit(len(ids), max_tokens, room, endless)
        if limit is not None and cache == "dense":
            settings.setdefault("capacity", len(ids) + limit)
        settings.setdefault("greedy", takes_best(sampling))
        start = time.monotonic()
        session = Session(self, **settings)
        load = self._load_seconds + time.monotonic() - start
        stream = TextStream(
            session, ids, max_tokens=limit, context_is_limit=context_is_limit, load_seconds=load, **sampling
        )
        stream.prompt = shown
        return stream

    def generate(
        self,
        prompt: str | bytes | Ids = "",
        *,
        max_tokens: int | None = None,
        endless: bool = False,
        **options: Unpack[_Options],
    ) -> Generation:
        """Continues a prompt and returns the text, a str with ``tokens``, ``stop``, ``seed`` and ``stats``. The
        arguments are those of ``stream``. With a seed, the text is that of ``fusebox run``, to the byte."""
        if endless and max_tokens is None:
            raise UsageError("max_tokens: None with endless (give a number, or use stream)")
        return self.stream(prompt, max_tokens=max_tokens, endless=endless, **options).read()

    def logits(self, ids: Ids, **options: Unpack[SessionOptions]) -> NDArray[np.float32]:
        """The logits after each token of `ids`, int32 [n]: float32 [n, vocab]. The array is a read-only view of the
        memory of a session made for this call, which it keeps alive: nothing is copied, and nothing changes it."""
        values = ids_of(ids)
        options.setdefault("capacity", max(len(values), 1) if options.get("cache", "dense") == "dense" else 0)
        options["all_logits"] = True
        session = Session(self, **options)
        session.prefill(values)
        return session.logits()

    # ---- reports ----

    @overload
    def verify(
        self,
        golden: None = None,
        *,
        cache: str = "dense",
        sinks: int | None = None,
        window: int | None = None,
        **execution: Unpack[Execution],
    ) -> FusionReport: ...

    @overload
    def verify(
        self,
        golden: str | os.PathLike[str],
        *,
        cache: str = "dense",
        sinks: int | None = None,
        window: int | None = None,
        **execution: Unpack[Execution],
    ) -> GoldenReport | StreamReport: ...

    def verify(
        self,
        golden: str | os.PathLike[str] | None = None,
        *,
        cache: str = "dense",
        sinks: int | None = None,
        window: int | None = None,
        **execution: Unpack[Execution],
    ) -> FusionReport | GoldenReport | StreamReport:
        """Without a golden, proves the fuses: the same tokens through the plain program and through each fuse. With
        one (a .safetensors file with the answers of Hugging Face transformers), compares every hidden state, the
        logits and the greedy continuation. ``report.ok`` is the outcome; it prints as ``fusebox verify``."""
        from . import verify

        if golden is None:
            return verify.prove(self, cache, sinks, window, execution)
        if cache != "dense" or sinks is not None or window is not None:
            raise UsageError("cache, sinks, window: with golden (a golden says which cache it is for)")
        return verify.compare(self, golden, execution)

    def verify_draft(
        self,
        source: str | os.PathLike[str] = "scripted",
        golden: str | os.PathLike[str] | None = None,
        *,
        gen: int | None = None,
        seed: int = 0,
        **execution: Unpack[Execution],
    ) -> DraftReport:
        """Proves that texts with guesses are those without, tokens and logits to the bit: greedy and sampled, with
        every cache, in sessions and in batches; from the ids of a golden, or random ones. `source` as for ``draft``;
        "scripted": guesses that are right, wrong, and no tokens. `gen`: tokens of a text. ``report.ok`` is the
        outcome; it prints as ``fusebox verify --draft``."""
        from . import draft

        return draft.prove(self, source, golden, gen, seed, execution)

    def verify_batch(self, *, rounds: int | None = None, seed: int = 0, **execution: Unpack[Execution]) -> BatchReport:
        """Proves that answers in a batch have the bits that they have alone: `rounds` random mixtures of requests.
        ``report.ok`` is the outcome; it prints as ``fusebox verify --batch``."""
        from . import verify

        return verify.prove_batch(self, rounds, seed, execution)

    @overload
    def ppl(
        self,
        text: str | bytes | Ids,
        *,
        ctx: int | None = None,
        compat: str | None = None,
        chunks: int | None = None,
        cache: None = None,
        **execution: Unpack[Execution],
    ) -> PerplexityReport: ...

    @overload
    def ppl(
        self,
        text: str | bytes | Ids,
        *,
        cache: str | Sequence[str],
        sinks: int | None = None,
        window: int | None = None,
        every: int | None = None,
        **execution: Unpack[Execution],
    ) -> CurveReport: ...

    def ppl(
        self,
        text: str | bytes | Ids,
        *,
        ctx: int | None = None,
        compat: str | None = None,
        chunks: int | None = None,
        cache: str | Sequence[str] | None = None,
        sinks: int | None = None,
        window: int | None = None,
        every: int | None = None,
        **execution: Unpack[Execution],
    ) -> PerplexityReport | CurveReport:
        """The perplexity of a text, or of token ids without special tokens around them. It is cut into windows of
        `ctx` tokens that do not overlap; by default of the model's context, at most 512. ``report.perplexity`` is the
        outcome; it prints as ``fusebox ppl``. With `compat` "llama.cpp" only the second half of each window is scored, as
        llama-perplexity does. `chunks`: no more windows than this.

        With `cache` ("dense", "window", "sinks" or several of them) the text is one stream, which each cache reads to
        its end: a row every `every` (256) tokens. It prints as ``fusebox ppl --cache``; ``svg()`` draws the curves."""
        from . import perplexity

        if cache is None:
            for name, value in (("sinks", sinks), ("window", window), ("every", every)):
                if value is not None:
                    raise UsageError(f"{name}: {value} (only with cache)")
            return perplexity.measure(self, text, ctx, compat, chunks, execution)
        for name, given in (("ctx", ctx), ("compat", compat), ("chunks", chunks)):
            if given is not None:
                raise UsageError(f"{name}: {given} (not with cache: a stream is not cut into windows)")
        return perplexity.measure_stream(self, text, cache, sinks, window, every, execution)

    def plan(
        self,
        *,
        prompt: int | None = None,
        gen: int | None = None,
        calibrate: bool = False,
        **execution: Unpack[Execution],
    ) -> Plan:
        """What each fuse saves, predicted and measured, for decode steps after a prompt of `prompt` tokens (64). It
        prints as ``fusebox plan``; ``svg()`` draws the roofline and the timelines."""
        from . import plan

        return plan.make_plan(self, prompt, gen, calibrate, execution)

    def profile(
        self,
        *,
        prompt: int | None = None,
        gen: int | None = None,
        prefill: bool = False,
        **execution: Unpack[Execution],
    ) -> Profile:
        """Where the time of a step goes: of decode steps, or of a whole prefill. It prints as ``fusebox profile``."""
        from . import plan

        return plan.make_profile(self, prompt, gen, prefill, execution)

    def bench(
        self,
        compare: Sequence[str] = ("none", "auto"),
        *,
        prompt: int | None = None,
        gen: int | None = None,
        reps: int | None = None,
        **execution: Unpack[Execution],
    ) -> BenchReport:
        """Times fuses against each other: each item of `compare` is what ``fuse`` takes. They are checked against
        each other first; if they disagree, nothing is timed and ``report.agree`` is False. It prints as
        ``fusebox bench``. Defaults: a prompt of 64 tokens, 64 decode steps, 9 repetitions."""
        from . import bench

        return bench.run(self, compare, prompt, gen, reps, execution)

    def bench_ops(
        self,
        *,
        prompt: int | None = None,
        gen: int | None = None,
        reps: int | None = None,
        **execution: Unpack[Execution],
    ) -> OpsReport:
        """Times each fuse alone against the plain ops that it replaces. It prints as ``fusebox bench --ops``."""
        from . import bench

        return bench.run_ops(self, prompt, gen, reps, execution)

    def bench_stream(
        self,
        cache: Literal["dense", "window", "sinks"] = "sinks",
        *,
        gen: int | None = None,
        sinks: int | None = None,
        window: int | None = None,
        **execution: Unpack[Execution],
    ) -> StreamBenchReport:
        """Times one greedy stream as it goes on, up to `gen` tokens. It prints as ``fusebox bench --cache``."""
        from . import bench

        return bench.run_stream(self, cache, gen, sinks, window, execution)

    # ---- files ----

    def quantize(
        self,
        path: str | os.PathLike[str],
        type: QuantizedType | QuantizedMix = "q8_0",
        *,
        head: QuantizedType | None = None,
        calibrate: str | bytes | Ids | None = None,
        replace: bool = False,
    ) -> QuantizeReport:
        """Writes the whole model, tokenizer included, as a GGUF file: matrices in this type or mix, vectors in f32.
        `head`: the type of the output head, by default that of the matrices; q6_k of a mix and with a text.
        `calibrate`: a text, or its ids, by which the weights of a row make up for each other's errors.
        An existing file is refused, unless `replace`.
        `path` never holds a partial file. The report prints as ``fusebox quantize``."""
        from . import quantize

        return quantize.quantize(self, path, type, head, calibrate, replace)


def builtin_model() -> str:
    """The directory of the built-in storyteller."""
    path = _c.FILES / "share" / "fusebox" / "models" / "storyteller"
    if not (path / "config.json").is_file():
        raise UsageError(f"built-in model: not found (looked for {path}; give a path)")
    return str(path)
