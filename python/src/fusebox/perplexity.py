"""How well a model foresees a text: in windows, or as one stream."""

from __future__ import annotations

import ctypes
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterator, Sequence

from . import _c_text as c
from ._c import CacheKind, cache_kind, cache_name, call, integer, lib, text, to_bytes
from ._execution import Execution, fill
from ._handle import Handle
from ._report import doubles, make, options, with_progress
from ._text import paragraph, plural, table
from .errors import UsageError
from .session import Ids, ids_of

if TYPE_CHECKING:
    from .model import Model


@dataclass(frozen=True)
class Score:
    """The score of some tokens. Errors are standard errors, as of independent tokens; NaN for a single token."""

    tokens: int
    """Tokens that were scored."""
    nll: float
    """Mean of -ln p, in nats per token."""
    nll_error: float
    perplexity: float
    """exp(nll)."""
    perplexity_error: float
    seconds: float


def _score(s: Any) -> Score:
    return Score(s.tokens, s.nll, s.nll_error, s.perplexity, s.perplexity_error, s.seconds)


def _ids(model: Model, source: str | bytes | Ids) -> Any:
    """The ids of a text without special tokens around it: the library puts a begin token in front itself."""
    if isinstance(source, (str, bytes)):
        source = model.tokenize(source, special=False)
    return ids_of(source)


# ---- windows -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PerplexityReport:
    """The perplexity of a text in windows that do not overlap. It prints as ``fusebox ppl``."""

    all: Score
    window: int
    """Tokens of a window, including those that the tokenizer puts in front."""
    windows: tuple[Score, ...]
    threads: int
    isa: str
    second_half: bool = False
    """Only the second half of each window was scored, as llama-perplexity does."""

    @property
    def perplexity(self) -> float:
        return self.all.perplexity

    def _notes(self) -> Iterator[tuple[str, str]]:
        yield "perplexity", f"{self.all.perplexity:.4f} ± {self.all.perplexity_error:.4f}"
        yield "tokens", f"{self.all.tokens} scored, {plural(len(self.windows), 'window')} of {self.window}"
        half = "the second half of each window, as llama-perplexity does"
        yield "scored", half if self.second_half else "every token that has a predecessor in its window"
        yield "speed", f"{self.all.tokens / self.all.seconds:.1f} tokens/s"

    def __str__(self) -> str:
        return "\n".join(f"{name:<15}  {value}" for name, value in self._notes())

    def _repr_html_(self) -> str:
        rows = [(f"{i}", f"{w.tokens}", f"{w.perplexity:.4f}") for i, w in enumerate(self.windows, 1)]
        notes = "".join(paragraph(f"{name}: {value}") for name, value in self._notes())
        return table(("window", "tokens", "perplexity"), rows) + notes


def measure(
    model: Model, source: str | bytes | Ids, ctx: int | None, compat: str | None, chunks: int | None, execution: Execution
) -> PerplexityReport:
    settings = options(c.fb_perplexity_options, lib.fb_perplexity_options_init)
    fill(settings, execution, "ppl")
    if ctx is not None:
        # The library's 0 is the default; here that is None.
        settings.window = integer("ctx", ctx, 2, 10**9)
    if compat not in (None, "llama.cpp"):
        raise UsageError(f'compat: {compat!r} (must be "llama.cpp")')
    settings.scoring = int(compat is not None)
    if chunks is not None:
        settings.max_windows = integer("chunks", chunks, 1, 10**9)
    ids = _ids(model, source)

    def read(r: Any) -> PerplexityReport:
        windows = tuple(_score(r.windows[i]) for i in range(r.window_count))
        return PerplexityReport(_score(r.all), r.window, windows, r.threads, text(r.isa), compat is not None)

    arguments = model._handle.pointer, ctypes.byref(settings), ids, len(ids)
    return with_progress(
        settings,
        lambda: make(lib.fb_perplexity_run, lib.fb_perplexity_free, c.fb_perplexity_report, read, *arguments),
        c.fb_score_fn,
    )


# ---- one stream ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """One cache of a stream."""

    cache: str
    sinks: int
    window: int
    """Tokens that it keeps beside the sinks; 0 if dense."""
    bytes: int
    """Of the cache."""
    nll: float
    """Of all tokens."""
    seconds: float
    """Time that it took, without the other caches."""

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll)

    @property
    def _sees(self) -> str:
        if self.cache == "dense":
            return "all"
        return f"{self.window}" if self.cache == "window" else f"{self.sinks} + {self.window}"


@dataclass(frozen=True)
class CurveRow:
    """Some tokens of a stream."""

    position: int
    """Tokens read before its last one."""
    tokens: int
    """Tokens that were scored."""
    nll: tuple[float, ...]
    """Mean of -ln p by cache, in nats per token."""


@dataclass(frozen=True)
class CurveReport:
    """Perplexity along a stream, by cache. It prints as ``fusebox ppl --cache``."""

    context: int
    """Length that the model was trained on."""
    every: int
    """Tokens of a row; the last one may have fewer."""
    tokens: int
    curves: tuple[Curve, ...]
    rows: tuple[CurveRow, ...]
    backend: str
    isa: str
    threads: int
    _report: Handle

    def _lines(self) -> Iterator[tuple[str, ...]]:
        yield "position", *(curve.cache for curve in self.curves)
        yield "sees", *(curve._sees for curve in self.curves)
        for row in self.rows:
            yield f"{row.position}", *(f"{math.exp(nll):.4f}" for nll in row.nll)
        yield "all", *(f"{curve.perplexity:.4f}" for curve in self.curves)
        yield "tokens/s", *(f"{self.tokens / curve.seconds:.1f}" for curve in self.curves)

    def __str__(self) -> str:
        layout = "{:<10}" + "  {:>12}" * len(self.curves)
        return "\n".join(layout.format(*line) for line in self._lines())

    def svg(self) -> str:
        """Perplexity against position, one curve per cache, as one self-contained SVG image."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ppl.svg"
            call(lib.fb_curve_svg, self._report.pointer, to_bytes("path", path))
            return path.read_text(encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.svg()

    def _repr_html_(self) -> str:
        header, *rows = self._lines()
        return self.svg() + table(header, rows)


def _read_curve(curve: Any) -> Curve:
    return Curve(cache_name(curve.cache), curve.sinks, curve.window, curve.bytes, curve.nll, curve.seconds)


def _set_caches(settings: Any, caches: Sequence[str], sinks: int | None, window: int | None) -> None:
    for name in caches:
        if caches.count(name) > 1:
            raise UsageError(f"cache: {name} (twice)")
    settings.kinds = (CacheKind * len(caches))(*(cache_kind(name) for name in caches))
    settings.kind_count = len(caches)
    if sinks is not None:
        if "sinks" not in caches:
            raise UsageError(f'sinks: {sinks} (only with "sinks" in cache)')
        settings.sinks = integer("sinks", sinks)
    if window is not None:
        if set(caches) <= {"dense"}:
            raise UsageError(f'window: {window} (only with "window" or "sinks" in cache)')
        settings.window = integer("window", window, 1, 10**9)


def measure_stream(
    model: Model,
    source: str | bytes | Ids,
    cache: str | Sequence[str],
    sinks: int | None,
    window: int | None,
    every: int | None,
    execution: Execution,
) -> CurveReport:
    settings = options(c.fb_curve_options, lib.fb_curve_options_init)
    fill(settings, execution, "ppl")
    _set_caches(settings, cache.split(",") if isinstance(cache, str) else list(cache), sinks, window)
    if every is not None:
        settings.every = integer("every", every, 1, 10**9)
    ids = _ids(model, source)
    out = ctypes.POINTER(c.fb_curve_report)()
    arguments = model._handle.pointer, ctypes.byref(settings), ids, len(ids), ctypes.byref(out)
    with_progress(settings, lambda: call(lib.fb_curve_run, *arguments), c.fb_curve_fn)
    r, handle = out.contents, Handle(out, lib.fb_curve_free)
    rows = (r.rows[i] for i in range(r.row_count))
    return CurveReport(
        context=r.context,
        every=r.every,
        tokens=r.tokens,
        curves=tuple(_read_curve(r.curves[i].contents) for i in range(r.curve_count)),
        rows=tuple(CurveRow(row.position, row.tokens, doubles(row.nll, r.curve_count)) for row in rows),
        backend=text(r.backend),
        isa=text(r.isa),
        threads=r.threads,
        _report=handle,
    )
