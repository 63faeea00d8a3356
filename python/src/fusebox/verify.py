"""Proofs: fuses against the plain program, and a model against a reference answer."""

from __future__ import annotations

import ctypes
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterator

from . import _c_batch as b
from . import _c_tools as c
from . import _report
from ._c import cache_name, call, integer, lib, text, to_bytes
from ._execution import Execution, fill
from ._report import make, options, set_cache
from ._text import paragraph, plural, shown, table

if TYPE_CHECKING:
    from .model import Model


def _verdict(ok: bool) -> str:
    return "ok" if ok else "FAILED"


@dataclass(frozen=True)
class Difference:
    """One hidden state, or the logits, compared with a reference."""

    layer: int
    max_abs: float
    """Largest absolute error of an element."""
    limit: float
    rel: float
    """Norm of the error over the norm of the reference."""
    rel_limit: float
    ok: bool


def _difference(row: Any) -> Difference:
    return Difference(row.layer, row.max_abs, row.limit, row.rel, row.rel_limit, row.ok)


# ---- fuses against the plain program -------------------------------------------------------------------------


@dataclass(frozen=True)
class FusionRow:
    """One fuse, or several together, against the plain program."""

    name: str
    bit: bool
    """Its class: bit-identical; if False, within a bound."""
    bit_identical: bool
    """The result: every hidden state and logit was, in prefill and in decode."""
    greedy_match: bool
    unshown_ok: bool
    ok: bool
    why: str
    """What failed; empty if ok."""
    max_abs: float
    bound: float
    vs_f64_plain: float
    vs_f64_fused: float
    calls: int
    calls_expected: int
    perplexity: float
    layers: tuple[Difference, ...]
    """After 0, 1, … layers, then the logits."""

    @property
    def differs(self) -> bool:
        """It failed, and the hidden states or the logits show it."""
        return self.calls > 0 and not (self.unshown_ok and all(layer.ok for layer in self.layers))

    def _cells(self) -> tuple[str, ...]:
        return (
            self.name,
            "bit" if self.bit else "tol",
            "identical" if self.bit_identical else "differ",
            f"{abs(self.max_abs):.2e}",
            f"{self.bound:.2e}",
            f"{self.vs_f64_plain:.3e}",
            f"{abs(self.vs_f64_fused):.3e}",
            f"{self.calls} / {self.calls_expected}",
            "ok" if self.ok else f"FAILED: {self.why}",
        )

    def _layers(self) -> Iterator[str]:
        yield f"\n{self.name}, layer by layer"
        yield f"{'layer':<8}  {'max abs':>12}  {'bound':>9}  {'relative':>12}  verdict"
        for index, at in enumerate(self.layers):
            name = "logits" if index == len(self.layers) - 1 else f"{index}"
            yield f"{name:<8}  {abs(at.max_abs):12.3e}  {at.limit:9.2e}  {abs(at.rel):12.3e}  {_verdict(at.ok)}"
        if not self.unshown_ok:
            yield "the logits differ, too, where no hidden states are shown"


@dataclass(frozen=True)
class FusionReport:
    """Fuses against the plain program. It prints as ``fusebox verify``."""

    ok: bool
    greedy_match: bool
    prompt: int
    decoded: int
    greedy_tokens: int
    truth_tokens: int
    states: int
    """Hidden states compared: the embedding and each layer."""
    rows: tuple[FusionRow, ...]
    perplexity_plain: float
    perplexity_fused: float
    sensitive: bool
    """A fuse exceeded the usual bound, so bounds were measured."""

    _HEADER = ("fuse", "class", "bits", "max abs", "bound", "plain-f64", "fused-f64", "calls/expected", "verdict")

    def _notes(self) -> Iterator[str]:
        yield f"greedy      {self.greedy_tokens} tokens {'equal' if self.greedy_match else 'not equal: FAILED'}"
        yield f"perplexity  {self.perplexity_plain:.9f} plain, {self.perplexity_fused:.9f} fused"
        yield f"float64     distances over {self.truth_tokens} tokens"
        if self.sensitive:
            yield "bounds      measured: twice what the plain ops move by when their inputs are off by a rounding"
        if not self.ok:
            yield f"FAILED: {sum(not row.ok for row in self.rows)} of {len(self.rows)} rows"
        else:
            yield (
                f"verified: {len(self.rows)} rows: {self.states} hidden states and the logits of {self.prompt} + "
                f"{self.decoded} tokens, {self.greedy_tokens} greedy tokens, perplexity and call counts hold"
            )

    def __str__(self) -> str:
        width = max([4, *(len(row.name.encode()) for row in self.rows)])
        layout = f"{{:<{width}}}  {{:<5}}  {{:<9}}  {{:>9}}  {{:>9}}  {{:>10}}  {{:>10}}  {{:>15}}  {{}}"
        lines = [layout.format(*cells) for cells in (self._HEADER, *(row._cells() for row in self.rows))]
        for row in self.rows:
            if row.differs:
                lines.extend(row._layers())
        return "\n".join([*lines, "", *self._notes()])

    def _repr_html_(self) -> str:
        return table(self._HEADER, (row._cells() for row in self.rows)) + "".join(map(paragraph, self._notes()))


def _fusion_row(row: Any, states: int) -> FusionRow:
    return FusionRow(
        name=text(row.name),
        bit=row.bit,
        bit_identical=row.bit_identical,
        greedy_match=row.greedy_match,
        unshown_ok=row.unshown_ok,
        ok=row.ok,
        why=text(row.why),
        max_abs=row.max_abs,
        bound=row.bound,
        vs_f64_plain=row.vs_f64_plain,
        vs_f64_fused=row.vs_f64_fused,
        calls=row.calls,
        calls_expected=row.calls_expected,
        perplexity=row.perplexity,
        layers=tuple(_difference(row.layers[i]) for i in range(states + 1)),
    )


def _fusion_report(r: Any) -> FusionReport:
    return FusionReport(
        ok=r.ok,
        greedy_match=r.greedy_match,
        prompt=r.prompt,
        decoded=r.decoded,
        greedy_tokens=r.greedy_tokens,
        truth_tokens=r.truth_tokens,
        states=r.states,
        rows=tuple(_fusion_row(r.rows[i].contents, r.states) for i in range(r.count)),
        perplexity_plain=r.perplexity_plain,
        perplexity_fused=r.perplexity_fused,
        sensitive=r.sensitive,
    )


def prove(model: Model, cache: str, sinks: int | None, window: int | None, execution: Execution) -> FusionReport:
    settings = options(c.fb_fusion_options, lib.fb_fusion_options_init)
    fill(settings, execution, "verify")
    set_cache(settings, cache, sinks, window)
    return make(
        lib.fb_verify_fusion,
        lib.fb_fusion_free,
        c.fb_fusion_report,
        _fusion_report,
        model._handle.pointer,
        ctypes.byref(settings),
    )


# ---- against a golden ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GoldenReport:
    """A model against a reference answer. It prints as ``fusebox verify --golden``."""

    golden: str
    ok: bool
    tokens: int
    rows: tuple[Difference, ...]
    """The embedding and each layer."""
    logits: Difference
    logits_f64_max_abs: float
    """Largest difference of the logits to the golden's float64 logits; NaN if it has none."""
    greedy_tokens: int
    greedy_equal: int
    greedy_near: int
    greedy_match: bool

    _HEADER = ("layer", "max abs", "limit", "relative", "limit", "verdict")

    def _cells(self) -> Iterator[tuple[str, ...]]:
        names = [f"{row.layer}" for row in self.rows]
        for name, row in zip([*names, "logits"], [*self.rows, self.logits]):
            numbers = f"{abs(row.max_abs):.3e}", f"{row.limit:.1e}", f"{abs(row.rel):.3e}", f"{row.rel_limit:.1e}"
            yield (name, *numbers, _verdict(row.ok))

    def _notes(self) -> Iterator[str]:
        near = f", {self.greedy_near} within the error bound" if self.greedy_near else ""
        equal = f"{self.greedy_equal} of {self.greedy_tokens} tokens equal{near}"
        yield f"{'greedy':<8}  {equal}  {_verdict(self.greedy_match)}"
        if self.ok:
            yield (
                f"verified: {shown(self.golden)}, {self.tokens} tokens: {len(self.rows)} hidden states, the logits "
                f"and {self.greedy_tokens} greedy tokens hold"
            )
            return
        yield (
            f"FAILED: {shown(self.golden)}: {sum(not row.ok for row in self.rows)} of {len(self.rows)} hidden states "
            f"out of bounds, logits {'hold' if self.logits.ok else 'out of bounds'}, "
            f"greedy {'holds' if self.greedy_match else 'differs'}"
        )

    def __str__(self) -> str:
        layout = "{:<8}  {:>12}  {:>9}  {:>12}  {:>9}  {}"
        return "\n".join([*(layout.format(*cells) for cells in (self._HEADER, *self._cells())), *self._notes()])

    def _repr_html_(self) -> str:
        return table(self._HEADER, self._cells()) + "".join(map(paragraph, self._notes()))


@dataclass(frozen=True)
class StreamRow:
    """One cache of a stream compared with a golden."""

    cache: str
    sinks: int
    window: int
    nll_max_abs: float
    nll_limit: float
    logits_max_abs: float
    logits_limit: float
    perplexity: float
    perplexity_wanted: float
    ok: bool

    def _cells(self) -> tuple[str, ...]:
        return (
            "dense" if self.cache == "dense" else f"{self.sinks} sinks, window {self.window}",
            f"{self.perplexity:.4f}",
            f"{self.perplexity_wanted:.4f}",
            "-" if math.isnan(self.logits_max_abs) and self.ok else f"{abs(self.logits_max_abs):.3e}",
            f"{abs(self.nll_max_abs):.3e}",
            f"{self.nll_limit:.1e}",
            _verdict(self.ok),
        )


@dataclass(frozen=True)
class StreamReport:
    """The caches of a stream against a golden. It prints as ``fusebox verify --golden``."""

    golden: str
    ok: bool
    tokens: int
    rows: tuple[StreamRow, ...]

    _HEADER = ("cache", "perplexity", "golden", "logits", "nll", "limit", "verdict")

    def _note(self) -> str:
        outcome = "verified" if self.ok else "FAILED"
        caches = plural(len(self.rows), "cache")
        return f"{outcome}: {shown(self.golden)}, {self.tokens} tokens in chunks and one by one, {caches}"

    def __str__(self) -> str:
        layout = "{:<22}  {:>10}  {:>10}  {:>12}  {:>12}  {:>9}  {}"
        rows = (self._HEADER, *(row._cells() for row in self.rows))
        return "\n".join([*(layout.format(*cells) for cells in rows), self._note()])

    def _repr_html_(self) -> str:
        return table(self._HEADER, (row._cells() for row in self.rows)) + paragraph(self._note())


def compare(
    model: Model, golden: str | os.PathLike[str], execution: Execution
) -> GoldenReport | StreamReport:
    path, name, streams = to_bytes("golden", golden), os.fspath(golden), ctypes.c_bool()
    settings = options(c.fb_verify_options, lib.fb_verify_options_init)
    fill(settings, execution, "verify")
    call(lib.fb_golden_streams, path, ctypes.byref(streams))
    arguments = model._handle.pointer, path, ctypes.byref(settings)

    def read(r: Any) -> GoldenReport:
        return GoldenReport(
            golden=name,
            ok=r.ok,
            tokens=r.tokens,
            rows=tuple(_difference(r.rows[i]) for i in range(r.layers)),
            logits=_difference(r.logits),
            logits_f64_max_abs=r.logits_f64_max_abs,
            greedy_tokens=r.greedy_tokens,
            greedy_equal=r.greedy_equal,
            greedy_near=r.greedy_near,
            greedy_match=r.greedy_match,
        )

    def read_stream(r: Any) -> StreamReport:
        return StreamReport(name, r.ok, r.tokens, tuple(_stream_row(r.rows[i].contents) for i in range(r.count)))

    if streams.value:
        return make(lib.fb_verify_stream, lib.fb_stream_free, c.fb_stream_report, read_stream, *arguments)
    return make(lib.fb_verify_golden, lib.fb_verify_free, c.fb_verify_report, read, *arguments)


def _stream_row(row: Any) -> StreamRow:
    return StreamRow(
        cache=cache_name(row.cache),
        sinks=row.sinks,
        window=row.window,
        nll_max_abs=row.nll_max_abs,
        nll_limit=row.nll_limit,
        logits_max_abs=row.logits_max_abs,
        logits_limit=row.logits_limit,
        perplexity=row.perplexity,
        perplexity_wanted=row.perplexity_wanted,
        ok=row.ok,
    )


# ---- a batch against its requests alone ------------------------------------------------------------------------


@dataclass(frozen=True)
class BatchReport:
    """Answers in a batch against the same answers alone. It prints as ``fusebox verify --batch``."""

    ok: bool
    """All are the same, and no memory is left in use."""
    rounds: int
    """Mixtures."""
    requests: int
    answers: int
    tokens: int
    """Whose logits were compared."""
    scores: int
    """Tokens of prompts whose logits were compared."""
    steps: int
    rows: int
    most_rows: int
    """In one step."""
    preempted: int
    cached_tokens: int
    cancelled: int
    different: int
    """Answers that differ."""
    first: str
    """The first difference; empty: none."""
    plan_changes: int
    held_steps: int
    """Steps that took rows of a prompt through some layers only."""

    def _rows(self) -> Iterator[tuple[str, str]]:
        mean = self.rows / self.steps if self.steps else 0.0
        yield "requests", f"{self.requests}, with {self.answers} answers, {self.cancelled} of them cancelled"
        yield "steps", f"{self.steps}, with {mean:.1f} rows on average, {self.most_rows} at most"
        yield "a prompt by some layers only", f"{self.held_steps} of them"
        yield "answers put back", f"{self.preempted}"
        yield "tokens from the prefix cache", f"{self.cached_tokens}"
        yield "fuses switched meanwhile", f"{self.plan_changes}"
        compared = f"{self.tokens} tokens, and {self.scores} of prompts; {self.different} answers differ"
        yield "compared with them alone", compared

    def _verdict(self) -> str:
        if self.ok:
            return f"verified: {self.rounds} mixtures: all logits have the bits that they have alone"
        return f"FAILED: {self.first}"

    def __str__(self) -> str:
        return "\n".join([*(f"{name:<28}  {value}" for name, value in self._rows()), self._verdict()])

    def _repr_html_(self) -> str:
        return table(["", ""], self._rows()) + paragraph(self._verdict())


def prove_batch(model: Model, rounds: int | None, seed: int, execution: Execution) -> BatchReport:
    settings = options(b.fb_batch_verify_options, lib.fb_batch_verify_options_init)
    fill(settings, execution, "verify_batch")
    if rounds is not None:
        settings.rounds = integer("rounds", rounds)
    settings.seed = integer("seed", seed, 0, 2**64 - 1)
    return _report.compare(BatchReport, b.fb_batch_report, lib.fb_verify_batch, model, settings)
