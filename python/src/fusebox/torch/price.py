"""A price for anybody's kernel: bytes, FLOPs, times, and what they are worth in a model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ._count import counted, least_bytes
from ._report import html_lines, html_table, quantity, seconds, text_table
from ._roofline import Ceiling, measured
from ._svg import Point, roofline
from ._timer import Clock, Run, Timing, cuda_device, median_interval, quantile
from ._tree import devices, is_float, leaves
from .prove import Proof, prove

__all__ = ["Price", "Side", "Timing", "price"]

_HEADER = ("", "bytes", "FLOPs", "warm", "10% to 90%", "cold", "10% to 90%", "called", "roofline")
_NOTICEABLE = 0.005  # a saving of less than half a percent of a step is hard to measure


@dataclass(frozen=True)
class Side:
    """One of the two callables. ``roofline``: the roofline's time for the least traffic, over the cold time."""

    name: str
    bytes: int
    flops: int
    warm: Timing
    cold: Timing
    called: Timing | None
    roofline: float

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        return (
            self.name,
            quantity(self.bytes, "B"),
            quantity(self.flops, ""),
            seconds(self.warm.median),
            f"{seconds(self.warm.low)} to {seconds(self.warm.high)}",
            seconds(self.cold.median),
            f"{seconds(self.cold.low)} to {seconds(self.cold.high)}",
            "-" if self.called is None else seconds(self.called.median),
            f"{100.0 * self.roofline:.2g}%",
        )


@dataclass(frozen=True)
class Price:
    """What ``price`` measured. Times are seconds of a call.

    ``step``: seconds of the model's step, or None. ``calls``: calls of plain in a step. ``proof``: None if the caller
    said that none is needed.
    """

    fused: Side
    plain: Side
    ceiling: Ceiling
    step: float | None
    calls: int
    proof: Proof | None
    basis: str = "warm"

    def _timing(self, side: Side) -> Timing:
        if self.basis == "called":
            return side.called or side.warm
        return side.cold if self.basis == "cold" else side.warm

    @property
    def saved(self) -> float:
        """Seconds that a call saves; negative if fused is slower. The median of the paired differences."""
        return quantile(self._differences(), 0.5)

    @property
    def speedup(self) -> float:
        """Plain's median over fused's."""
        return self._timing(self.plain).median / self._timing(self.fused).median

    @property
    def clear(self) -> bool:
        """Whether the difference is larger than chance: the 95% interval of its median excludes 0."""
        low, high = median_interval(self._differences())
        return low > 0.0 or high < 0.0

    @property
    def share(self) -> float | None:
        """Plain's part of a step; more than 1 if ``calls`` or ``step`` cannot be right."""
        return None if self.step is None else self.calls * self._timing(self.plain).median / self.step

    @property
    def saved_share(self) -> float | None:
        """The part of a step that fused saves."""
        return None if self.step is None else self.calls * self.saved / self.step

    @property
    def amdahl(self) -> float | None:
        """How much faster a step would be if the kernel took no time."""
        share = self.share
        return None if share is None else float("inf") if share >= 1.0 else 1.0 / (1.0 - share)

    def _differences(self) -> list[float]:
        return [p - f for f, p in zip(self._timing(self.fused).samples, self._timing(self.plain).samples)]

    @property
    def verdict(self) -> str:
        """One sentence."""
        before = self._timing(self.plain).median
        if not self.clear:
            return f"no difference beyond the spread at {seconds(before)} a call: not worth it"
        if self.saved < 0.0:
            return f"costs {seconds(-self.saved)} more than plain's {seconds(before)} a call: not worth it"
        saves = f"saves {seconds(self.saved)} of {seconds(before)} a call, {self.speedup:.2f}x as fast"
        if self.share is None or self.saved_share is None or self.amdahl is None:
            return f"{saves}; give model= to see what that is worth"
        if self.share >= 1.0:
            taken, step = seconds(self.calls * before), seconds(self.step or 0.0)
            return f"{saves}; but calls={self.calls} take {taken} and a step takes {step}: check both"
        worth = "worth it" if self.saved_share >= _NOTICEABLE else "hardly worth it"
        calls = "1 call is" if self.calls == 1 else f"{self.calls} calls are"
        return (
            f"{saves}; {calls} {100.0 * self.share:.1f}% of a step, {100.0 * self.saved_share:.1f}% saved "
            f"(at most {self.amdahl:.3f}x if it were free): {worth}"
        )

    @property
    def svg(self) -> str:
        """The measured roofline with both kernels on it, by cold times. Plain SVG."""
        sides = (self.fused, self.plain)
        points = [Point(s.name, s.flops / max(1, s.bytes), s.flops / s.cold.median) for s in sides]
        return roofline(self.ceiling, points, f"{self.fused.name} and {self.plain.name} on {self.ceiling.device}")

    def lines(self) -> list[str]:
        """What stands below the table."""
        c = self.ceiling
        methods = f"warm by {self.fused.warm.method} and {self.plain.warm.method}, {len(self.fused.warm.samples)} pairs"
        out = [
            f"{methods}; cold after a flush of the cache, {len(self.fused.cold.samples)} pairs",
            f"measured roof of {c.device}: {quantity(c.bandwidth, 'B/s')}, {quantity(c.flops, 'FLOP/s')} {c.dtype}",
        ]
        if self.step is not None:
            out.append(f"a step takes {seconds(self.step)}")
        if self.proof is not None:
            out.append(self.proof.summary())
        return [*out, self.verdict]

    def __str__(self) -> str:
        table = text_table(_HEADER, [self.fused.cells(), self.plain.cells()])
        return "\n".join([table, "", *self.lines()])

    def _repr_html_(self) -> str:
        table = html_table(_HEADER, [self.fused.cells(), self.plain.cells()])
        return table + html_lines(self.lines()) + self.svg


def price(
    fused: Callable[..., Any],
    plain: Callable[..., Any],
    *inputs: Any,
    model: float | Callable[[], Any] | None = None,
    calls: int = 1,
    bytes: int | tuple[int, int] | None = None,
    flops: int | tuple[int, int] | None = None,
    names: tuple[str, str] = ("fused", "plain"),
    basis: str = "warm",
    budget: float = 0.5,
    proof: Proof | None = None,
    force: bool = False,
    **options: Any,
) -> Price:
    """Time ``fused(*inputs)`` and ``plain(*inputs)`` in turns, and say what the difference is worth.

    ``inputs``: as for ``prove``; every timed call runs on copies of them. The first CUDA tensor decides the clock: CUDA
    graph replay, or events where a call cannot be captured. On a CPU it is ``perf_counter``.

    ``model``: seconds of a model's step, or a callable that runs one, which is timed like a kernel.
    ``calls``: how often a step calls plain.

    ``bytes``, ``flops``: what a call moves and computes, one number or (fused, plain). By default plain's operators
    are counted one by one, and fused reads each input and writes each output once and computes what plain computes.

    ``basis``: the times that the verdict uses: ``"warm"``, ``"cold"`` or ``"called"`` (from Python, launches included).
    ``budget``: seconds for each kind of time.

    Before anything is timed, ``prove(fused, plain, *inputs, **options)`` must hold; ``WrongKernel`` is raised
    otherwise. ``proof``: a proof that is there already. ``force``: time without a proof.
    """
    if basis not in ("warm", "cold", "called"):
        raise ValueError(f"basis is {basis!r}; it is 'warm', 'cold' or 'called'")
    if calls < 1 or not budget > 0.0:
        raise ValueError(f"calls is {calls} and budget is {budget}; at least 1 and more than 0 are needed")
    if not force:
        proof = (proof or prove(fused, plain, *inputs, **options)).raise_if_wrong()

    least = least_bytes(fused, inputs)
    seen = counted(plain, inputs) or (least, 0)
    fused_bytes, plain_bytes = _two(bytes, (least, seen[0]))
    fused_flops, plain_flops = _two(flops, (seen[1], seen[1]))

    clock = Clock(cuda_device(inputs), budget)
    with torch.cuda.device(clock.device) if clock.device is not None else nullcontext():
        runs = [clock.bind(fused, inputs), clock.bind(plain, inputs)]
        warm, cold, called = clock.warm(runs), clock.cold(runs), clock.called(runs)
        ceiling = measured(_device_name(inputs), _dtype(inputs))
        step = _step(model, clock)
    least_seconds = ceiling.seconds(min(fused_bytes, plain_bytes), min(fused_flops, plain_flops))

    def side(i: int, moved: int, computed: int) -> Side:
        ratio = least_seconds / cold[i].median
        return Side(names[i], moved, computed, warm[i], cold[i], None if called is None else called[i], ratio)

    sides = side(0, fused_bytes, fused_flops), side(1, plain_bytes, plain_flops)
    return Price(*sides, ceiling, step, calls, proof, basis)


def _two(given: int | tuple[int, int] | None, counts: tuple[int, int]) -> tuple[int, int]:
    if given is None:
        return counts
    return given if isinstance(given, tuple) else (given, given)


def _device_name(inputs: Any) -> str:
    device = cuda_device(inputs) or next(iter(devices(inputs)), torch.device("cpu"))
    return str(device)


def _dtype(inputs: Any) -> torch.dtype:
    """The dtype of the first floating tensor; float32 without one."""
    return next((leaf.dtype for _, leaf in leaves(inputs) if is_float(leaf)), torch.float32)


def _step(model: float | Callable[[], Any] | None, clock: Clock) -> float | None:
    if model is None:
        return None
    if not callable(model):
        if not model > 0.0:
            raise ValueError(f"model is {model} seconds; more than 0 are needed")
        return float(model)
    run: Run = model
    with torch.no_grad():
        run()
        clock.wait()
        run = clock.captured(run, 1) or run
        return quantile([clock.once(run, 1) for _ in range(7)], 0.5)
