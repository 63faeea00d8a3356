"""Benchmarks: fuses against each other, single ops, and a stream as it goes on."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterator, Sequence

from . import _c_tools as c
from ._c import cache_name, integer, lib, text, to_bytes
from ._execution import Execution, fill, kv_name
from ._report import doubles, make, options, set_cache, with_progress
from ._text import paragraph, plural, scaled, shown, table

if TYPE_CHECKING:
    from .info import FasterType
    from .model import Model

_NOISE = "note: the {} differ by more than half: something else was using this machine"


@dataclass(frozen=True)
class Spread:
    """Repeated measurements: the median, the 10th and 90th percentile, and the shortest interval that contains the
    true median with this confidence."""

    median: float
    p10: float
    p90: float
    low: float
    high: float
    confidence: float

    @property
    def quiet(self) -> bool:
        """Repetitions of the same work that differ by more than half were disturbed."""
        return self.p90 <= 1.5 * self.p10

    def _times(self, scale: float = 1e3) -> str:
        return f"{self.median * scale:.3f} ({self.p10 * scale:.3f} to {self.p90 * scale:.3f})"

    def _ratio(self) -> str:
        return f"{self.median:7.3f}x [{self.low:.3f}, {self.high:.3f}]"


def _spread(s: Any) -> Spread:
    return Spread(s.median, s.p10, s.p90, s.low, s.high, s.confidence)


@dataclass(frozen=True)
class Setting:
    """What was timed, and how."""

    path: str
    threads: int
    isa: str
    act: str
    kv: str
    exact: bool

    def _run(self) -> str:
        where = plural(self.threads, "thread") if self.threads else "cuda"
        return f"{where}, {self.isa}, act {self.act}, kv {self.kv}{', exact' if self.exact else ''}"

    def _line(self, prompt: int, gen: int, reps: int) -> str:
        return f"{shown(self.path)}: prompt {prompt}, gen {gen}, {plural(reps, 'repetition')}, {self._run()}"


def _setting(model: Model, r: Any, execution: Execution) -> Setting:
    act, exact = execution.get("act", "f32"), bool(execution.get("exact", False))
    return Setting(model.path, r.threads, text(r.isa), act, kv_name(execution), exact)


# ---- fuses against each other --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """One choice of fuses. Times are in seconds, one for each repetition."""

    spec: str
    barriers_a_step: int
    agrees: bool
    bit_identical: bool
    tokens_equal: int
    max_abs: float
    prefill: tuple[float, ...]
    ttft: tuple[float, ...]
    tpot: tuple[float, ...]
    prefill_spread: Spread
    ttft_spread: Spread
    tpot_spread: Spread
    prefill_ratio: Spread
    """The first variant's time divided by this one's: above 1 is faster."""
    ttft_ratio: Spread
    tpot_ratio: Spread

    @property
    def name(self) -> str:
        return self.spec.replace(",", "+")


@dataclass(frozen=True)
class BenchReport:
    """Fuses against each other. It prints as ``fusebox bench``."""

    setting: Setting
    agree: bool
    """All variants agree; if not, nothing was timed."""
    prompt: int
    gen: int
    reps: int
    variants: tuple[Variant, ...]
    faster_type: FasterType | None = None
    """Weights that a step would read faster."""

    @property
    def quiet(self) -> bool:
        return all(variant.tpot_spread.quiet for variant in self.variants)

    def _checks(self) -> Iterator[str]:
        for v in self.variants[1:]:
            logits = "bit-identical" if v.bit_identical else f"within {abs(v.max_abs):.1e}"
            yield (
                f"check: {v.name} against {self.variants[0].name}: {v.tokens_equal} of {self.gen + 1} greedy tokens "
                f"equal, logits {logits}{'' if v.agrees else '  FAILED'}"
            )

    _PREFILL = ("prefill", "first token, ms", "tokens/s", "faster than the first")
    _DECODE = ("decode", "per token, ms", "tokens/s", "barriers", "faster than the first")

    def _prefill(self) -> Iterator[tuple[str, ...]]:
        for i, v in enumerate(self.variants):
            rate = f"{self.prompt / v.prefill_spread.median:.1f}"
            yield v.name, v.ttft_spread._times(), rate, v.prefill_ratio._ratio() if i else ""

    def _decode(self) -> Iterator[tuple[str, ...]]:
        for i, v in enumerate(self.variants):
            rate, barriers = f"{1 / v.tpot_spread.median:.1f}", f"{v.barriers_a_step}"
            yield v.name, v.tpot_spread._times(), rate, barriers, v.tpot_ratio._ratio() if i else ""

    def _notes(self) -> Iterator[str]:
        confidence = 100 * self.variants[0].tpot_spread.confidence
        yield (
            "times: median (10th to 90th percentile); "
            f"ratios: median of the repetitions' [{confidence:.0f}% confidence]"
        )
        if not self.quiet:
            yield _NOISE.format("repetitions")
        if self.faster_type is not None:
            yield str(self.faster_type)

    def __str__(self) -> str:
        lines = [self.setting._line(self.prompt, self.gen, self.reps), *self._checks()]
        if not self.agree:
            return "\n".join([*lines, "FAILED: the variants disagree: nothing was timed"])
        width = max(7, *(len(v.name.encode()) for v in self.variants))
        prefill, decode = f"{{:<{width}}}  {{:<27}}  {{:>10}}", f"{{:<{width}}}  {{:<27}}  {{:>10}}  {{:>8}}"
        for layout, rows in (
            (prefill, (self._PREFILL, *self._prefill())),
            (decode, (self._DECODE, *self._decode())),
        ):
            lines.append("")
            for row in rows:
                lines.append((layout + ("  {}" if row[-1] else "")).format(*row))
        return "\n".join([*lines, "", *self._notes()])

    def _repr_html_(self) -> str:
        head = "".join(map(paragraph, [self.setting._line(self.prompt, self.gen, self.reps), *self._checks()]))
        if not self.agree:
            return head + paragraph("FAILED: the variants disagree: nothing was timed")
        tables = table(self._PREFILL, self._prefill()) + table(self._DECODE, self._decode())
        return head + tables + "".join(map(paragraph, self._notes()))


def _variant(v: Any, reps: int, agree: bool) -> Variant:
    count = reps if agree else 0
    return Variant(
        spec=text(v.spec),
        barriers_a_step=v.barriers_a_step,
        agrees=v.agrees,
        bit_identical=v.bit_identical,
        tokens_equal=v.tokens_equal,
        max_abs=v.max_abs,
        prefill=doubles(v.prefill, count),
        ttft=doubles(v.ttft, count),
        tpot=doubles(v.tpot, count),
        prefill_spread=_spread(v.prefill_spread),
        ttft_spread=_spread(v.ttft_spread),
        tpot_spread=_spread(v.tpot_spread),
        prefill_ratio=_spread(v.prefill_ratio),
        ttft_ratio=_spread(v.ttft_ratio),
        tpot_ratio=_spread(v.tpot_ratio),
    )


def _set_lengths(settings: Any, model: Model, prompt: int | None, gen: int | None, reps: int | None) -> None:
    """The defaults give way to a small context; what was asked for must fit."""
    context = model.info.context
    if prompt is None and gen is None and settings.prompt + settings.gen > context:
        settings.prompt = settings.gen = max(context // 2, 1)
    for name, value in (("prompt", prompt), ("gen", gen), ("reps", reps)):
        if value is not None:
            setattr(settings, name, integer(name, value))


def run(
    model: Model,
    compare: Sequence[str],
    prompt: int | None,
    gen: int | None,
    reps: int | None,
    execution: Execution,
) -> BenchReport:
    settings = options(c.fb_bench_options, lib.fb_bench_options_init)
    fill(settings, execution, "bench")
    _set_lengths(settings, model, prompt, gen, reps)
    if isinstance(compare, str):
        compare = (compare,)
    specs = (ctypes.c_char_p * len(compare))(*(to_bytes("compare", spec) for spec in compare))
    settings.specs, settings.spec_count = specs, len(compare)

    def read(r: Any) -> BenchReport:
        variants = tuple(_variant(r.variants[i].contents, r.reps, r.agree) for i in range(r.variant_count))
        setting = _setting(model, r, execution)
        return BenchReport(setting, r.agree, r.prompt, r.gen, r.reps, variants, model.faster_type(setting.isa))

    arguments = model._handle.pointer, ctypes.byref(settings)
    return with_progress(
        settings, lambda: make(lib.fb_bench_run, lib.fb_bench_free, c.fb_bench_report, read, *arguments)
    )


# ---- single ops ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpBench:
    """One fuse alone against the plain ops that it replaces. Seconds per step, all layers added up."""

    fuse: str
    rows: int
    """Tokens in a step: 1, or the prompt's length."""
    agrees: bool
    bit_identical: bool
    max_abs: float
    plain: tuple[float, ...]
    fused: tuple[float, ...]
    plain_spread: Spread
    fused_spread: Spread
    ratio: Spread

    def _cells(self) -> tuple[str, ...]:
        step = "decode" if self.rows == 1 else "prefill"
        if not self.agrees:
            why = f"FAILED: disagrees with the plain operators, logits within {abs(self.max_abs):.1e}"
            return self.fuse, step, why
        times = f"{self.plain_spread.median * 1e6:.1f}", f"{self.fused_spread.median * 1e6:.1f}"
        return (self.fuse, step, *times, self.ratio._ratio())


@dataclass(frozen=True)
class OpsReport:
    """Each fuse alone. It prints as ``fusebox bench --ops``."""

    setting: Setting
    agree: bool
    prompt: int
    gen: int
    reps: int
    ops: tuple[OpBench, ...]

    _HEADER = ("fuse", "step", "plain, us", "fused, us", "  faster")

    def _notes(self) -> Iterator[str]:
        yield "time a step of the operators that a fuse replaces, and of what it puts in their place; all layers"
        if not self.agree:
            yield "FAILED: a fuse disagrees with the plain operators"

    def __str__(self) -> str:
        lines = [self.setting._line(self.prompt, self.gen, self.reps), ""]
        for row in (self._HEADER, *(op._cells() for op in self.ops)):
            layout = "{:<12}  {:<7}  {:>10}  {:>10}  {}" if len(row) == 5 else "{:<12}  {:<7}  {}"
            lines.append(layout.format(*row))
        return "\n".join([*lines, "", *self._notes()])

    def _repr_html_(self) -> str:
        head = paragraph(self.setting._line(self.prompt, self.gen, self.reps))
        return head + table(self._HEADER, (op._cells() for op in self.ops)) + "".join(map(paragraph, self._notes()))


def _op(op: Any, reps: int) -> OpBench:
    count = reps if op.agrees else 0
    return OpBench(
        fuse=text(op.fuse),
        rows=op.rows,
        agrees=op.agrees,
        bit_identical=op.bit_identical,
        max_abs=op.max_abs,
        plain=doubles(op.plain, count),
        fused=doubles(op.fused, count),
        plain_spread=_spread(op.plain_spread),
        fused_spread=_spread(op.fused_spread),
        ratio=_spread(op.ratio),
    )


def run_ops(model: Model, prompt: int | None, gen: int | None, reps: int | None, execution: Execution) -> OpsReport:
    settings = options(c.fb_bench_ops_options, lib.fb_bench_ops_options_init)
    fill(settings, execution, "bench_ops")
    _set_lengths(settings, model, prompt, gen, reps)

    def read(r: Any) -> OpsReport:
        ops = tuple(_op(r.ops[i].contents, r.reps) for i in range(r.count))
        return OpsReport(_setting(model, r, execution), r.agree, r.prompt, r.gen, r.reps, ops)

    arguments = model._handle.pointer, ctypes.byref(settings)
    return with_progress(
        settings, lambda: make(lib.fb_bench_ops, lib.fb_bench_ops_free, c.fb_bench_ops_report, read, *arguments)
    )


# ---- a stream ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StreamLine:
    """A stream at one position. Times are in seconds."""

    position: int
    tpot: Spread
    ttft: float
    """Of a prompt of `position` tokens; NaN: over the limit."""
    cache_bytes: int
    resident_bytes: int
    """Of the process; 0: unknown."""

    def _cells(self) -> tuple[str, ...]:
        return (
            f"{self.position}",
            self.tpot._times(),
            f"{1 / self.tpot.median:.1f}",
            f"{scaled(self.cache_bytes)}B",
            f"{scaled(self.resident_bytes) if self.resident_bytes else '-'}B",
            "-" if math.isnan(self.ttft) else f"{self.ttft * 1e3:.3f}",
        )


@dataclass(frozen=True)
class StreamBenchReport:
    """One stream as it goes on. It prints as ``fusebox bench --cache``."""

    setting: Setting
    fuse: str
    cache: str
    sinks: int
    window: int
    gen: int
    context: int
    steps: int
    checked: int
    lines: tuple[StreamLine, ...]
    recompute_steps: int
    recompute: Spread
    """Seconds per token if all that a token sees is read again; not set if the cache is dense."""
    ratio: float
    ttft_limit: float

    _HEADER = ("position", "per token, ms", "tokens/s", "cache", "resident", "first token, ms")

    @property
    def quiet(self) -> bool:
        return all(line.tpot.quiet for line in self.lines)

    def _head(self) -> Iterator[str]:
        cache = f"cache {self.cache}"
        if self.cache == "sinks":
            cache += f" {self.sinks} + window {self.window}"
        elif self.cache == "window":
            cache += f", window {self.window}"
        yield f"{shown(self.setting.path)}: {cache}, gen {self.gen}, fuse {self.fuse}, {self.setting._run()}"
        if self.cache != "dense":
            yield (
                f"check: {self.checked} of {self.checked} greedy tokens as with a dense cache, "
                "before any is forgotten"
            )

    def _notes(self) -> Iterator[str]:
        if self.cache != "dense":
            faster = self.ratio >= 1
            yield (
                f"recomputing the window at each step costs {self.recompute.median * 1e3:.3f} ms a token: the stream "
                f"is {self.ratio if faster else 1 / self.ratio:.1f}x {'faster' if faster else 'slower'}\n"
            )
        yield (
            f"per token: median (10th to 90th percentile) of {self.steps} steps from that position on; first token: "
            "of a prompt of that length"
        )
        if any(math.isnan(line.ttft) for line in self.lines):
            yield f"-: not waited for: a prompt of that length takes more than {self.ttft_limit:g} s"
        if self.cache == "dense" and self.gen > self.lines[-1].position:
            yield f"a dense cache ends at the model's context, {self.context} tokens"
        if not self.quiet:
            yield _NOISE.format("steps at one position")

    def __str__(self) -> str:
        layout = "{:<10}  {:<27}  {:>10}  {:>8}  {:>8}  {:>15}"
        rows = [layout.format(*row) for row in (self._HEADER, *(line._cells() for line in self.lines))]
        return "\n".join([*self._head(), "", *rows, "", *self._notes()])

    def _repr_html_(self) -> str:
        head, notes = "".join(map(paragraph, self._head())), "".join(map(paragraph, self._notes()))
        return head + table(self._HEADER, (line._cells() for line in self.lines)) + notes


def run_stream(
    model: Model, cache: str, gen: int | None, sinks: int | None, window: int | None, execution: Execution
) -> StreamBenchReport:
    settings = options(c.fb_bench_stream_options, lib.fb_bench_stream_options_init)
    fill(settings, execution, "bench_stream")
    set_cache(settings, cache, sinks, window)
    if gen is not None:
        settings.gen = integer("gen", gen)

    def read(r: Any) -> StreamBenchReport:
        def line(at: Any) -> StreamLine:
            return StreamLine(at.position, _spread(at.tpot), at.ttft, at.cache_bytes, at.resident_bytes)

        return StreamBenchReport(
            setting=_setting(model, r, execution),
            fuse=execution.get("fuse", "auto"),
            cache=cache_name(r.cache),
            sinks=r.sinks,
            window=r.window,
            gen=r.gen,
            context=r.context,
            steps=r.steps,
            checked=r.checked,
            lines=tuple(line(r.lines[i].contents) for i in range(r.line_count)),
            recompute_steps=r.recompute_steps,
            recompute=_spread(r.recompute),
            ratio=r.ratio,
            ttft_limit=settings.ttft_limit,
        )

    arguments = model._handle.pointer, ctypes.byref(settings)
    return with_progress(
        settings,
        lambda: make(
            lib.fb_bench_stream_run, lib.fb_bench_stream_free, c.fb_bench_stream_report, read, *arguments
        ),
    )
