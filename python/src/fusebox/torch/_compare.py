"""How far a fused result is from the plain one, and whether that is right.

The rule, for each output tensor. ``u`` is the *unit* of an element: one ulp of the output dtype at the exact value,
plus how far the exact result moves when every varied input moves by about one ulp of its dtype (the largest of some
random draws). The unit knows the conditioning: an element that cancels has a large one. Errors to the float64 run are
counted in units, ``f`` for fused and ``p`` for plain. Fused is *as accurate as plain* if

    rms(f) <= 2 rms(p) + slack        and        max(f) <= 2 max(p) + 4 slack.

Twice, because plain's own error is one draw of a random quantity. ``slack`` is 1 for 16-bit outputs, whose sums are
formed in float32. For float32 and float64 it is ``max(1, sqrt(n) / 4)``, ``n`` the longest row of an input: sums are
formed in the dtype they are stored in, and another order of n additions moves the result by about that much.
The rms sees a small error everywhere, the maximum one wrong element.

Without a float64 run, distances to plain take the place of errors: ``p`` is 0 and ``slack`` is doubled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ._tree import Path, is_float, leaves, path_name

IDENTICAL = "identical"
WITHIN = "within the bound"
ACCURATE = "as accurate"
REFUSED = "refused"
SKIPPED = "skipped"
WRONG = "WRONG"

_SEVERITY = {SKIPPED: 0, IDENTICAL: 1, REFUSED: 2, WITHIN: 3, ACCURATE: 4, WRONG: 5}


@dataclass(frozen=True)
class First:
    """The first element that differs: which output, where in it, and the values there."""

    output: str
    index: tuple[int, ...]
    fused: float
    plain: float
    double: float | None = None

    def __str__(self) -> str:
        place = f"{self.output}[{', '.join(map(str, self.index))}]"
        exact = "" if self.double is None else f", float64 {self.double!r}"
        return f"{place}: fused {self.fused!r}, plain {self.plain!r}{exact}"


@dataclass(frozen=True)
class Difference:
    """Fused against plain, and both against float64. Norms are relative, the rest is absolute."""

    verdict: str
    max_abs: float = 0.0
    max_ulp: float = 0.0
    plain_norm: float | None = None
    fused_norm: float | None = None
    plain_max: float | None = None
    fused_max: float | None = None
    nonfinite: int = 0
    differing: int = 0
    first: First | None = None
    reason: str = ""

    @property
    def identical(self) -> bool:
        return self.verdict == IDENTICAL


def worst(a: Difference, b: Difference) -> Difference:
    """The largest of all numbers, the graver verdict and its reason."""
    graver, other = (b, a) if _SEVERITY[b.verdict] > _SEVERITY[a.verdict] else (a, b)
    return replace(
        graver,
        max_abs=_larger(a.max_abs, b.max_abs) or 0.0,
        max_ulp=_larger(a.max_ulp, b.max_ulp) or 0.0,
        plain_norm=_larger(a.plain_norm, b.plain_norm),
        fused_norm=_larger(a.fused_norm, b.fused_norm),
        plain_max=_larger(a.plain_max, b.plain_max),
        fused_max=_larger(a.fused_max, b.fused_max),
        nonfinite=a.nonfinite + b.nonfinite,
        differing=a.differing + b.differing,
        first=graver.first or other.first,
        reason=graver.reason or other.reason,
    )


def _larger(a: float | None, b: float | None) -> float | None:
    if a is None or b is None:
        return b if a is None else a
    return max(a, b)


def ulp(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance to the next number of ``dtype`` at each of ``values`` (float64, any shape)."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(values.abs().clamp(info.smallest_normal, info.max))
    return torch.ldexp(torch.full_like(values, info.eps), exponent.to(torch.float64) - 1.0)


def same_bits(a: Tensor, b: Tensor) -> Tensor:
    """Elementwise: the same bits, or both NaN. Zeros of different sign differ."""
    if not a.is_floating_point():
        return a == b
    return ((a == b) & (torch.signbit(a) == torch.signbit(b))) | (torch.isnan(a) & torch.isnan(b))


def same(a: Any, b: Any) -> bool:
    """Whether two results have the same structure, dtypes, shapes and bits."""
    if _structure(a, b):
        return False
    for (_, x), (_, y) in zip(leaves(a), leaves(b)):
        if isinstance(x, Tensor):
            if not bool(same_bits(_real(x), _real(y)).all()):
                return False
        elif not _equal(x, y):
            return False
    return True


def _equal(a: Any, b: Any) -> bool:
    """Whether two leaves that are no tensors agree. Objects of one class without an ``==`` (caches) do."""
    return a is b or (type(a) is type(b) and getattr(type(a), "__eq__", None) is object.__eq__) or bool(a == b)


def _real(x: Tensor) -> Tensor:
    """A tensor that arithmetic works on: complex numbers as pairs, 8-bit floats widened."""
    x = x.detach()
    if x.is_complex():
        return torch.view_as_real(x)
    return x.float() if x.is_floating_point() and x.element_size() == 1 else x


def _structure(fused: Any, plain: Any) -> str:
    """What is wrong with the form of ``fused``; empty if it is that of ``plain``."""
    f, p = list(leaves(fused)), list(leaves(plain))
    if [path for path, _ in f] != [path for path, _ in p]:
        return f"fused returns {len(f)} value(s), plain {len(p)}, or in another order"
    for (path, a), (_, b) in zip(f, p):
        name = f"output{path_name(path)}"
        if isinstance(a, Tensor) != isinstance(b, Tensor):
            return f"{name} is {type(a).__name__}, plain's is {type(b).__name__}"
        if isinstance(a, Tensor) and a.shape != b.shape:
            return f"{name} has shape {list(a.shape)}, plain's {list(b.shape)}"
        if isinstance(a, Tensor) and (a.dtype, a.device) != (b.dtype, b.device):
            return f"{name} is {a.dtype} on {a.device}, plain's {b.dtype} on {b.device}"
    return ""


@dataclass(frozen=True)
class Measure:
    """What a comparison needs besides the two results.

    ``double``: the float64 result, or None. ``moved``: results on inputs moved by an ulp, in float64, or in plain's
    dtype where there is no float64. ``flushed``: the float64 result with denormal inputs set to zero, or None.
    ``row``: elements of the longest row of an input. ``tolerance``: the caller's bound.
    """

    double: Any = None
    moved: Sequence[Any] = ()
    flushed: Any = None
    row: int = 1
    tolerance: float | None = None


def compare(fused: Any, plain: Any, measure: Measure) -> Difference:
    """Judge one result. Tensors of any shape in nested tuples, lists and dicts."""
    wrong = _structure(fused, plain)
    if wrong:
        return Difference(WRONG, reason=wrong)
    total = Difference(IDENTICAL)
    double = list(leaves(measure.double)) if measure.double is not None else None
    moved = [list(leaves(tree)) for tree in measure.moved]
    flushed = list(leaves(measure.flushed)) if measure.flushed is not None else None
    for i, ((path, f), (_, p)) in enumerate(zip(leaves(fused), leaves(plain))):
        if not isinstance(f, Tensor):
            if not _equal(f, p):
                total = worst(total, Difference(WRONG, reason=f"output{path_name(path)} is {f!r}, plain's {p!r}"))
            continue
        leaf = replace(
            measure,
            double=_real(double[i][1]) if double is not None else None,
            moved=[_real(tree[i][1]) for tree in moved],
            flushed=_real(flushed[i][1]) if flushed is not None else None,
        )
        total = worst(total, _compare_leaf(path, _real(f), _real(p), leaf))
    return total


def _compare_leaf(path: Path, f: Tensor, p: Tensor, measure: Measure) -> Difference:
    if f.numel() == 0:
        return Difference(IDENTICAL)
    differ = ~same_bits(f, p)
    count = int(differ.sum())
    first = _first(path, f, p, differ, measure.double) if count else None
    if not is_float(f):
        if not count:
            return Difference(IDENTICAL)
        gap = float((f.to(torch.float64) - p.to(torch.float64)).abs().max())
        return Difference(WRONG, max_abs=gap, differing=count, first=first, reason=f"{count} {f.dtype} values differ")
    return _compare_float(path, f, p, Difference(IDENTICAL, differing=count, first=first), measure)


def _compare_float(path: Path, f: Tensor, p: Tensor, base: Difference, measure: Measure) -> Difference:
    f64, p64 = f.to(torch.float64), p.to(torch.float64)
    finite = torch.isfinite(f64) & torch.isfinite(p64)
    gap = _where(finite, (f64 - p64).abs())
    ulps = gap / ulp(p64.nan_to_num(), p.dtype)
    base = replace(base, max_abs=float(gap.max()), max_ulp=float(ulps.max()))

    r64 = measure.double
    stray = _stray(f64, p64, r64, f.dtype)
    if r64 is not None:
        exact = finite & torch.isfinite(r64)
        ef, ep = _where(exact, (f64 - r64).abs()), _where(exact, (p64 - r64).abs())
        size = _norm(_where(exact, r64))
        base = replace(
            base,
            fused_norm=_ratio(_norm(ef), size),
            plain_norm=_ratio(_norm(ep), size),
            fused_max=float(ef.max()),
            plain_max=float(ep.max()),
        )
    if bool(stray.any()):
        reason = f"{int(stray.sum())} NaN or infinity not as in plain"
        first = _first(path, f, p, stray, r64)
        return replace(base, verdict=WRONG, nonfinite=int(stray.sum()), reason=reason, first=first)
    if base.differing == 0:
        return base
    if measure.tolerance is not None:
        return _by_tolerance(base, p64, measure.tolerance)
    if base.max_ulp <= 1.0 and bool((finite | ~torch.isfinite(p64)).all()):
        return replace(base, verdict=WITHIN, reason="at most 1 ulp from plain")
    return _by_accuracy(base, f64, p64, p.dtype, measure)


def _stray(f: Tensor, p: Tensor, r: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Where NaN and infinities do not follow plain.

    Where plain is not finite and float64 disagrees with it, plain has no say. Fused may then be what float64 is, and
    where that is finite, its error is judged.
    """
    wrong = (~torch.isfinite(f) | ~torch.isfinite(p)) & ~_same_kind(f, p)
    if r is not None:
        limit = torch.finfo(dtype).max
        rounded = torch.where(r.abs() > limit, torch.copysign(torch.full_like(r, math.inf), r), r)
        wrong &= torch.isfinite(p) | ~(torch.isfinite(rounded) | _same_kind(f, rounded))
    return wrong


def _same_kind(a: Tensor, b: Tensor) -> Tensor:
    return (torch.isnan(a) & torch.isnan(b)) | (a == b)


def _by_tolerance(base: Difference, p: Tensor, tolerance: float) -> Difference:
    scale = float(_where(torch.isfinite(p), p.abs()).max())
    if tolerance == 0.0:
        return replace(base, verdict=WRONG, reason=f"{base.differing} elements differ and the bound is 0")
    if base.max_abs <= tolerance * scale:
        return replace(base, verdict=WITHIN)
    reason = f"differs by {base.max_abs:.3g}, the bound is {tolerance:g} of {scale:.3g}"
    return replace(base, verdict=WRONG, reason=reason)


def _by_accuracy(base: Difference, f: Tensor, p: Tensor, dtype: torch.dtype, measure: Measure) -> Difference:
    slack = 1.0 if torch.finfo(dtype).bits <= 16 else max(1.0, math.sqrt(measure.row) / 4.0)
    if measure.double is None:
        slack *= 2.0  # the distance to plain holds plain's own error too
    centre = p if measure.double is None else measure.double
    unit = ulp(centre.nan_to_num(), dtype)
    moves = [_finite((tree.to(torch.float64) - centre).abs()) for tree in measure.moved]
    if moves:
        unit = unit + torch.stack(moves).amax(0)
    fused, plain = _finite((f - centre).abs()), _finite((p - centre).abs())
    why = _verdict(fused / unit, plain / unit, slack, measure.double is None)
    if not why:
        if measure.double is None:
            return replace(base, verdict=WITHIN, reason="no float64: within the bound that moved inputs give")
        return replace(base, verdict=ACCURATE)
    if measure.flushed is not None and measure.double is not None:
        unit = unit + _finite((measure.flushed - centre).abs()) + torch.finfo(torch.float32).smallest_normal
        if not _verdict(fused / unit, plain / unit, slack, False):
            return replace(base, verdict=ACCURATE, reason="fused takes denormals for zero")
    return replace(base, verdict=WRONG, reason=why)


def _verdict(f: Tensor, p: Tensor, slack: float, double_missing: bool) -> str:
    """Empty if the errors ``f`` and ``p`` (in units) fulfil the rule, else which part they break."""
    n = max(1, f.numel()) ** 0.5
    f_rms, p_rms = _norm(f) / n, _norm(p) / n
    f_max, p_max = float(f.max()), float(p.max())
    of = "the distance to plain" if double_missing else "the error to float64"
    if f_rms > 2.0 * p_rms + slack:
        return f"{of} is {f_rms:.3g} units rms, plain's {p_rms:.3g}, allowed {2.0 * p_rms + slack:.3g}"
    if f_max > 2.0 * p_max + 4.0 * slack:
        return f"{of} is {f_max:.3g} units at one element, plain's {p_max:.3g}, allowed {2.0 * p_max + 4.0 * slack:.3g}"
    return ""


def _where(mask: Tensor, values: Tensor) -> Tensor:
    return torch.where(mask, values, torch.zeros_like(values))


def _finite(values: Tensor) -> Tensor:
    return _where(torch.isfinite(values), values)


def _norm(values: Tensor) -> float:
    """The 2-norm, without overflow for values near the largest float64."""
    top = float(values.abs().max())
    return top * float((values / top).norm()) if 0.0 < top < math.inf else top


def _ratio(error: float, size: float) -> float:
    return error / size if size > 0.0 else error


def _first_index(mask: Tensor) -> tuple[int, ...]:
    flat = int(mask.reshape(-1).to(torch.uint8).argmax())
    index: list[int] = []
    for size in reversed(mask.shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))


def _first(path: Path, f: Tensor, p: Tensor, differ: Tensor, double: Tensor | None) -> First:
    at = _first_index(differ)
    exact = None if double is None else float(double[at])
    return First(f"output{path_name(path)}", at, float(f[at]), float(p[at]), exact)
