"""The planner's report and the profile: where the time of a step goes, and what each fuse saves."""

from __future__ import annotations

import ctypes
import math
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterator

from . import _c_tools as c
from ._c import call, integer, lib, text, text_or_none, to_bytes
from ._execution import Execution, fill
from ._handle import Handle
from ._report import doubles, options
from ._text import plural, preformatted, scaled, table

if TYPE_CHECKING:
    from .info import FasterType
    from .model import Model

SECTIONS = ("prologue", "layer", "epilogue")


@dataclass(frozen=True)
class Machine:
    """What was measured of the machine. Times are in seconds."""

    gpu: bool
    name: str
    isa: str
    threads: int
    bytes: tuple[float, ...]
    bandwidth: tuple[float, ...]
    """Bytes a second, by `bytes` that are read repeatedly (on a GPU, by one launch)."""
    barrier: float
    dispatch: float
    launch: float
    node: float
    small: float
    flops: float
    footprint: float
    """Bytes of weights and cache that a step reads."""
    footprint_bandwidth: float

    def _lines(self) -> Iterator[str]:
        if self.gpu:
            yield (
                f"{self.name}, {self.isa}: {1e-12 * self.flops:.1f} TFLOP/s, a launch {1e6 * self.launch:.2f} us, "
                f"in a graph {1e6 * self.node:.2f} us, a small kernel {1e6 * self.small:.2f} us"
            )
        else:
            yield (
                f"{self.name}, {plural(self.threads, 'thread')}, {self.isa}: {1e-9 * self.flops:.1f} GFLOP/s, "
                f"a barrier {1e6 * self.barrier:.2f} us, an op {1e6 * self.dispatch:.2f} us"
            )
        yield (
            f"a step reads {scaled(self.footprint)}B of weights and cache, "
            f"at {1e-9 * self.footprint_bandwidth:.1f} GB/s at best"
        )


@dataclass(frozen=True)
class ProfileOp:
    """One op of a program. Times are in seconds, all calls of a step added up."""

    name: str
    section: str
    """"prologue", "layer" or "epilogue"."""
    barrier: bool
    calls: int
    seconds: float
    predicted: float
    bytes: float
    weight_bytes: float
    kv_bytes: float
    flops: float
    bandwidth: float

    def percent(self, machine: Machine) -> float:
        """Percent of the machine's bandwidth."""
        streamed = self.bytes if machine.gpu else self.weight_bytes + self.kv_bytes
        most = self.bandwidth if machine.gpu else machine.footprint_bandwidth
        return 100 * streamed / self.seconds / most if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Step:
    """Where the time of a step goes, in seconds."""

    program: str
    ops: tuple[ProfileOp, ...]
    layers: int
    steps: int
    wall: float
    between: float
    tpot: float
    predicted: float
    barriers: int
    layer_bytes: float

    def doubt(self, machine: Machine) -> Iterator[str]:
        """A note if the step read much faster than the machine was measured to."""
        size = seconds = 0.0
        for op in self.ops:
            streamed = op.weight_bytes + op.kv_bytes
            if machine.gpu or streamed <= 0.5 * op.bytes:
                continue
            size += streamed
            seconds += op.seconds
        if seconds > 0 and size / seconds > 1.5 * machine.footprint_bandwidth:
            yield (
                f"\nnote: this step read at {1e-9 * size / seconds:.1f} GB/s: the machine was measured while "
                "something else was using it (fusebox plan --calibrate measures it again)"
            )


@dataclass(frozen=True)
class PlanFuse:
    """What a fuse saves."""

    name: str
    why_not: str | None
    kept: bool
    bytes_saved: float
    barriers_saved: int
    saving: float
    """Predicted seconds per step, alone."""
    ceiling: float
    """Limit of the speed-up, if all that it removes were free (Amdahl)."""
    reason: str

    def _cells(self, step: float) -> tuple[str, ...]:
        if self.why_not is not None:
            return self.name, "-", "", "", "", f"does not apply: {self.why_not}"
        return (
            self.name,
            "keep" if self.kept else "leave",
            f"{1e6 * self.saving:.1f}",
            f"{100 * self.saving / step:.1f}%",
            f"{self.ceiling:.3f}x",
            self.reason,
        )


@dataclass(frozen=True)
class PlanDraft:
    """What guesses of a draft should save one stream, from predicted times alone."""

    source: str
    """"ngram" or "q4"."""
    why_not: str | None
    """Why there is none for this model."""
    guess: float
    """Seconds of a guess; 0: none to speak of."""
    break_even: float
    """The chance that a guess is right from which on guessing pays; NaN: never."""
    points: tuple[tuple[float, int, float], ...]
    """Chances that a guess is right, the best number of guesses at once, and the speed-up."""

    def _cells(self) -> tuple[str, ...]:
        if self.why_not is not None:
            return self.source, f"none: {self.why_not}"
        pays = "never" if math.isnan(self.break_even) else f"{100 * self.break_even:.0f}%"
        best = (f"{speedup:.2f}x, {guesses}" if guesses else "-" for _, guesses, speedup in self.points)
        return self.source, f"{1e6 * self.guess:.1f}", pays, *best


@dataclass(frozen=True)
class Plan:
    """What each fuse saves, and whether that was true. It prints as ``fusebox plan``."""

    machine: Machine
    prompt: int
    gen: int
    plain: Step
    fused: Step
    fuses: tuple[PlanFuse, ...]
    layer_bytes: float
    drafts: tuple[PlanDraft, ...]
    step_rows: tuple[tuple[float, float], ...]
    """Predicted and measured seconds of a decode step of 1, 2, … tokens of one stream."""
    _report: Handle = field(repr=False, compare=False)

    _HEADER = ("fuse", "plan", "us saved", "of time", "ceiling", "why")

    def _layer(self, title: str, step: Step) -> str:
        unit = "launches" if self.machine.gpu else "barriers"
        return f"\n{title}: {step.barriers} {unit} and {scaled(step.layer_bytes)}B a layer\n{step.program}".rstrip("\n")

    def _times(self) -> Iterator[str]:
        yield "\none layer, us a call     predicted   measured"
        if self.machine.gpu:
            yield "(measured launch by launch with marks between, never in a graph)"
        for title, step in (("before", self.plain), ("after", self.fused)):
            yield title
            for op in step.ops:
                if op.section == "layer":
                    yield f"  {op.name:<40} {1e6 * op.predicted / op.calls:6.2f} {1e6 * op.seconds / op.calls:10.2f}"

    def _drafts(self) -> Iterator[str]:
        count = len(self.step_rows)
        yield f"\n{'a step, us, of':<20}" + "".join(f"  {rows:7}" for rows in range(1, count + 1)) + " tokens"
        for name, column in (("predicted", 0), ("measured", 1)):
            times = (1e6 * row[column] for row in self.step_rows)
            yield f"{name:<20}" + "".join(f"  {time:7.1f}" if time > 0 else f"  {'-':>7}" for time in times)
        yield f"\n{'':30}  speed-up and the best number of guesses, if so many are right"
        layout = "{:<6}  {:>11}  {:>9}" + "  {:>9}" * len(self._chances())
        yield layout.format("draft", "a guess, us", "pays from", *self._chances())
        for draft in self.drafts:
            cells = draft._cells()
            yield layout.format(*cells) if len(cells) > 2 else f"{cells[0]:<6}  {cells[1]}"

    def _chances(self) -> list[str]:
        return [f"{100 * chance:.0f}%" for chance, _, _ in self.drafts[0].points]

    def _check(self) -> Iterator[tuple[str, ...]]:
        for name, step in (("none", self.plain), ("plan", self.fused)):
            error = 100 * (step.predicted / step.tpot - 1)
            yield name, f"{1e6 * step.predicted:.1f}", f"{1e6 * step.tpot:.1f}", f"{error:+.1f}%"
        plain, fused = self.plain, self.fused
        yield "speed-up", f"{plain.predicted / fused.predicted:.2f}x", f"{plain.tpot / fused.tpot:.2f}x"

    def _rows(self) -> Iterator[tuple[str, ...]]:
        return (fuse._cells(self.plain.predicted) for fuse in self.fuses)

    def __str__(self) -> str:
        layout = "{:<12}  {:<5}  {:>9}  {:>8}  {:>7}  {}"
        lines = [*self.machine._lines(), self._layer("before", self.plain), self._layer("after", self.fused)]
        lines += [*self._times(), "", *(layout.format(*row) for row in (self._HEADER, *self._rows()))]
        lines += [*self._drafts(), ""]
        for row in (("a token", "predicted, us", "measured, us", "error"), *self._check()):
            layout = "{:<8}  {:>14}  {:>13}  {:>7}" if len(row) == 4 else "{:<8}  {:>14}  {:>13}"
            lines.append(layout.format(*row))
        return "\n".join([*lines, *self.fused.doubt(self.machine)])

    def svg(self) -> str:
        """The roofline and the timelines as one self-contained SVG image."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plan.svg"
            call(lib.fb_plan_report_svg, self._report.pointer, to_bytes("path", path))
            return path.read_text(encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.svg()

    def _repr_html_(self) -> str:
        check = table(("a token", "predicted, us", "measured, us", "error"), self._check())
        machine = preformatted("\n".join(self.machine._lines()))
        header = ("draft", "a guess, us", "pays from", *self._chances())
        drafts = table(header, (draft._cells() for draft in self.drafts))
        return machine + self.svg() + table(self._HEADER, self._rows()) + drafts + check


@dataclass(frozen=True)
class Profile:
    """Where the time of a step goes. It prints as ``fusebox profile``."""

    machine: Machine
    prompt: int
    gen: int
    prefill: bool
    step: Step
    faster_type: FasterType | None = None
    """Weights that a step would read faster."""

    _HEADER = ("op", "calls", "us a step", "share", "bytes", "GB/s", "of max", "if free")

    def _cells(self, op: ProfileOp) -> tuple[str, ...]:
        share = op.seconds / self.step.wall
        weights = self.machine.gpu or op.weight_bytes + op.kv_bytes > 0.5 * op.bytes
        return (
            op.name,
            f"{op.calls}",
            f"{1e6 * op.seconds:.1f}",
            f"{100 * share:.1f}%",
            f"{scaled(op.bytes)}B",
            f"{1e-9 * op.bytes / op.seconds:.2f}",
            f"{op.percent(self.machine):.0f}%" if weights else "-",
            f"{1 / (1 - share):.3f}x",
        )

    def _head(self) -> Iterator[str]:
        m = self.machine
        what = f"decode steps at positions {self.prompt} to {self.prompt + self.gen - 1}"
        what = f"prefill of {self.prompt} tokens" if self.prefill else what
        where = f"{m.name}, {m.isa}" if m.gpu else f"{m.threads} threads, {m.isa}"
        yield f"{what}, {where}, mean of the faster {self.step.steps}"
        if m.gpu:
            yield "launch by launch with marks between, never in a graph; of max: of a launch of so many bytes"
        yield (
            f"a step reads {scaled(m.footprint)}B of weights and cache; "
            f"this machine reads that much at {1e-9 * m.footprint_bandwidth:.1f} GB/s"
        )

    def _tail(self) -> tuple[tuple[str, ...], ...]:
        between, wall = self.step.between, self.step.wall
        return (
            ("between ops", "", f"{1e6 * between:.1f}", f"{100 * between / wall:.1f}%"),
            ("wall", "", f"{1e6 * wall:.1f}", "100.0%"),
        )

    def __str__(self) -> str:
        width = max(len(name.encode()) for name in ("between ops", *(op.name for op in self.step.ops)))
        layout = f"{{:<{width}}}  {{:>6}}  {{:>9}}  {{:>6}}"
        whole = layout + "  {:>8}  {:>7}  {:>6}  {:>7}"
        titles = {"prologue": "before the layers", "layer": "layer, all of them added up"}
        lines, section = [*self._head(), "", whole.format(*self._HEADER)], ""
        for op in self.step.ops:
            if op.section != section:
                section = op.section
                lines.append(titles.get(section, "after the layers"))
            lines.append(whole.format(*self._cells(op)))
        lines += [layout.format(*row) for row in self._tail()]
        note = [] if self.faster_type is None else [str(self.faster_type)]
        return "\n".join([*lines, *self.step.doubt(self.machine), *note])

    def _repr_html_(self) -> str:
        rows = [*(self._cells(op) for op in self.step.ops), *self._tail()]
        return preformatted("\n".join(self._head())) + table(self._HEADER, rows)


# ---- reading the C reports -----------------------------------------------------------------------------------


def _machine(m: Any) -> Machine:
    return Machine(
        gpu=m.gpu,
        name=text(m.cpu),
        isa=text(m.isa),
        threads=m.threads,
        bytes=doubles(m.bytes, m.points),
        bandwidth=doubles(m.bandwidth, m.points),
        barrier=m.barrier,
        dispatch=m.dispatch,
        launch=m.launch,
        node=m.node,
        small=m.small,
        flops=m.flops,
        footprint=m.footprint,
        footprint_bandwidth=m.footprint_bandwidth,
    )


def _op(op: Any) -> ProfileOp:
    return ProfileOp(
        name=text(op.name),
        section=SECTIONS[op.section],
        barrier=op.barrier,
        calls=op.calls,
        seconds=op.seconds,
        predicted=op.predicted,
        bytes=op.bytes,
        weight_bytes=op.weight_bytes,
        kv_bytes=op.kv_bytes,
        flops=op.flops,
        bandwidth=op.bandwidth,
    )


def _step(p: Any) -> Step:
    return Step(
        program=text(p.text),
        ops=tuple(_op(p.ops[i].contents) for i in range(p.op_count)),
        layers=p.layers,
        steps=p.steps,
        wall=p.wall,
        between=p.between,
        tpot=p.tpot,
        predicted=p.predicted,
        barriers=p.barriers,
        layer_bytes=p.layer_bytes,
    )


def _fuse(f: Any) -> PlanFuse:
    return PlanFuse(
        name=text(f.name),
        why_not=text_or_none(f.why_not),
        kept=f.kept,
        bytes_saved=f.bytes_saved,
        barriers_saved=f.barriers_saved,
        saving=f.saving,
        ceiling=f.ceiling,
        reason=text(f.reason),
    )


def _draft(d: Any) -> PlanDraft:
    why_not = text(d.why_not) or None
    points = () if why_not else tuple(zip(d.chance, d.guesses, d.speedup))
    return PlanDraft(text(d.source), why_not, d.guess, d.break_even, points)


def _set_lengths(settings: Any, model: Model, prompt: int | None, gen: int | None) -> None:
    """The defaults give way to a small context; what was asked for must fit."""
    if prompt is None and gen is None and model.info.context < settings.prompt + settings.gen:
        settings.prompt = settings.gen = max(model.info.context // 2, 1)
    if prompt is not None:
        settings.prompt = integer("prompt", prompt)
    if gen is not None:
        settings.gen = integer("gen", gen)


def _make(function: Any, model: Model, settings: Any) -> tuple[Any, Handle]:
    pointer = ctypes.POINTER(c.fb_plan_report)()
    call(function, model._handle.pointer, ctypes.byref(settings), ctypes.byref(pointer))
    # The report names fuses, whose names are the library's own: it does not need the model.
    return pointer.contents, Handle(pointer, lib.fb_plan_report_free)


def make_plan(model: Model, prompt: int | None, gen: int | None, calibrate: bool, execution: Execution) -> Plan:
    settings = options(c.fb_plan_report_options, lib.fb_plan_report_options_init)
    fill(settings, execution, "plan")
    settings.calibrate = bool(calibrate)
    _set_lengths(settings, model, prompt, gen)
    r, handle = _make(lib.fb_plan_report_make, model, settings)
    return Plan(
        machine=_machine(r.machine.contents),
        prompt=r.prompt,
        gen=r.gen,
        plain=_step(r.plain.contents),
        fused=_step(r.fused.contents),
        fuses=tuple(_fuse(r.fuses[i].contents) for i in range(r.fuse_count)),
        layer_bytes=r.layer_bytes,
        drafts=tuple(_draft(r.drafts[i].contents) for i in range(r.draft_count)),
        step_rows=tuple(zip(r.rows_predicted, r.rows_measured)),
        _report=handle,
    )


def make_profile(model: Model, prompt: int | None, gen: int | None, prefill: bool, execution: Execution) -> Profile:
    settings = options(c.fb_profile_options, lib.fb_profile_options_init)
    fill(settings, execution, "profile")
    settings.prefill = bool(prefill)
    _set_lengths(settings, model, prompt, gen)
    r, _ = _make(lib.fb_profile_make, model, settings)
    machine, step = _machine(r.machine.contents), _step(r.fused.contents)
    faster = model.faster_type(machine.isa)
    return Profile(machine, settings.prompt, settings.gen, settings.prefill, step, faster)
