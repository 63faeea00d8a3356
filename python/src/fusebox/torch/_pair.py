"""Two callables, run on the same inputs and judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ._compare import IDENTICAL, REFUSED, SKIPPED, WITHIN, WRONG, Difference, Measure, compare, same_bits
from ._double import DoubleRun, short
from ._inputs import flushed, moved_by_ulp
from ._tree import Path, copy_inputs, freeze, leaves, path_name, synchronize

NAN_BYTES = 0xFF  # NaN in every floating dtype
NUMBER_BYTES = 0x43  # a finite number in every floating dtype


class DeviceLost(Exception):
    """A kernel crashed its GPU: nothing can run in this process any more."""


def check_device(side: str, error: Exception) -> None:
    """Raises ``DeviceLost`` if the error is one after which CUDA answers nothing else."""
    text = str(error)
    if "CUDA error: " in text and "out of memory" not in text:
        what = text.split("CUDA error: ", 1)[1].splitlines()[0]
        raise DeviceLost(f"{side} crashed the GPU: {what} (this process cannot use it any more)") from error


class PlainFailed(Exception):
    """Plain does not accept these inputs, so there is nothing to compare with."""


def poison(result: Any, byte: int) -> None:
    """Fill freed blocks of the sizes of ``result``, so that memory which a kernel does not write is not zero."""
    blocks = [
        torch.full((max(1, leaf.numel() * leaf.element_size()),), byte, dtype=torch.uint8, device=leaf.device)
        for _, leaf in leaves(result)
        if isinstance(leaf, Tensor)
        for _ in range(3)
    ]
    del blocks


def changed_inputs(before: Any, after: Any) -> list[str]:
    """Names of the inputs whose storage differs, gaps between rows included."""
    names: list[str] = []
    for (path, a), (_, b) in zip(leaves(before), leaves(after)):
        if isinstance(a, Tensor) and not bool(same_bits(_whole(a, b), _whole(b, a)).all()):
            names.append(f"input {path_name(path)}")
    return names


def _whole(x: Tensor, other: Tensor) -> Tensor:
    x = torch.view_as_real(x.detach()) if x.is_complex() else x.detach()
    if x.is_floating_point() and x.element_size() == 1:
        return x.float()
    size, span = x.element_size(), x.untyped_storage().nbytes()
    if x.is_complex() or span != other.untyped_storage().nbytes() or x.stride() != other.stride():
        return x
    return torch.as_strided(x, (span // size,), (1,), 0)


@dataclass
class Pair:
    """``fused`` and ``plain`` with what judging them needs.

    ``paths``: the inputs that vary. ``row``: elements of their longest row. ``changes``: plain writes to its inputs,
    so they count as results.
    """

    fused: Callable[..., Any]
    plain: Callable[..., Any]
    paths: Sequence[Path]
    tolerance: float | None
    generator: torch.Generator
    row: int
    double: DoubleRun
    changes: bool = False
    calls: int = 0
    written: list[str] = field(default_factory=list)

    def call(self, fn: Callable[..., Any], inputs: Any, shape: Any = None, byte: int = NAN_BYTES) -> Any:
        """The frozen result of one call on copies. ``shape``: a result whose sizes are poisoned first."""
        own = copy_inputs(inputs)
        if shape is not None:
            poison(shape, byte)
        with torch.no_grad():
            result = fn(*own)
        synchronize(own)
        self.calls += fn is self.fused
        if self.changes:
            return freeze((result, own))
        if fn is self.fused:
            self.written += [name for name in changed_inputs(inputs, own) if name not in self.written]
        return freeze(result)

    def run_plain(self, inputs: Any) -> Any:
        """Plain's result; ``PlainFailed`` where it raises."""
        try:
            return self.call(self.plain, inputs)
        except Exception as error:
            check_device("plain", error)
            raise PlainFailed(short(error)) from error

    def run_double(self, inputs: Any) -> Any:
        """The float64 result, or None."""
        return self.double(inputs)

    def moved(self, inputs: Any, wide: bool) -> list[Any]:
        """Results on inputs that are moved by an ulp. ``wide``: in float64."""
        moved = []
        for _ in range(6 if wide else 8):  # plain's own rounding swallows some of the moves
            shifted = moved_by_ulp(inputs, self.paths, self.generator, wide)
            try:
                result = self.run_double(shifted) if wide else self.run_plain(shifted)
            except PlainFailed:
                continue
            if result is not None:
                moved.append(result)
        return moved

    def judge(self, inputs: Any, *, may_refuse: bool = False, flush: bool = False, byte: int = NAN_BYTES) -> Difference:
        """Run both and compare. ``may_refuse``: an exception of fused is no fault, since the layout is unusual."""
        try:
            plain = self.run_plain(inputs)
        except PlainFailed as error:
            return Difference(SKIPPED, reason=f"plain raises {error}")
        try:
            fused = self.call(self.fused, inputs, plain, byte)
        except Exception as error:
            check_device("fused", error)
            return Difference(REFUSED if may_refuse else WRONG, reason=f"fused raises {short(error)}")
        return self.compare(inputs, fused, plain, flush)

    def compare(self, inputs: Any, fused: Any, plain: Any, flush: bool = False) -> Difference:
        """Judge a result that is already there. The float64 runs are made only where they are needed."""
        measure = Measure(self.run_double(inputs), (), None, self.row, self.tolerance)
        quick = compare(fused, plain, measure)
        if quick.verdict in (IDENTICAL, WITHIN) or self.tolerance is not None or quick.nonfinite:
            return quick
        measure = replace(measure, moved=self.moved(inputs, measure.double is not None))
        if flush:
            measure = replace(measure, flushed=self.run_double(flushed(inputs, self.paths)))
        return compare(fused, plain, measure)
