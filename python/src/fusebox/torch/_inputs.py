"""Inputs that a kernel meets sooner or later, made from the given ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ._tree import Path, fill_layout, is_float, leaves, map_leaves

Made = Callable[[Tensor, torch.Generator], Tensor]


def varied_paths(inputs: tuple[Any, ...], vary: Sequence[int] | None) -> list[Path]:
    """Which tensors are replaced: those of the positions in ``vary``, else all floating ones that are not weights.

    ``nn.Parameter`` counts as a weight unless there is nothing else. A tensor with an infinity or a NaN in it is a
    mask, and stays.
    """
    found = [(path, leaf) for path, leaf in leaves(inputs) if is_float(leaf)]
    if vary is not None:
        for position in vary:
            if not -len(inputs) <= position < len(inputs):
                raise ValueError(f"vary has {position}, but there are {len(inputs)} inputs")
        chosen = {position % len(inputs) for position in vary}
        return [path for path, _ in found if path[0] in chosen]
    found = [(path, leaf) for path, leaf in found if leaf.numel() == 0 or bool(torch.isfinite(leaf).all())]
    free = [path for path, leaf in found if not isinstance(leaf, torch.nn.Parameter)]
    return free or [path for path, _ in found]


def replaced(inputs: Any, paths: Sequence[Path], make: Callable[[Tensor], Tensor]) -> Any:
    """``inputs`` with the tensors at ``paths`` replaced; ``make`` decides the layout too."""
    return map_leaves(lambda path, leaf: make(leaf) if path in paths else leaf, inputs)


def valued(inputs: Any, paths: Sequence[Path], make: Made, generator: torch.Generator) -> Any:
    """``inputs`` with new values at ``paths`` (float64, same shape), layouts kept.

    A tensor without a negative value gets none: it may be a variance or a probability.
    """

    def one(x: Tensor) -> Tensor:
        values = make(x, generator)
        if x.numel() and bool((x >= 0).all()):
            values = values.abs()
        return fill_layout(x, values.to(x.device))

    return replaced(inputs, paths, one)


def _normal(x: Tensor, g: torch.Generator) -> Tensor:
    return torch.randn(x.shape, generator=g, dtype=torch.float64, device=g.device)


def _uniform(shape: Sequence[int], g: torch.Generator) -> Tensor:
    return torch.rand(tuple(shape), generator=g, dtype=torch.float64, device=g.device)


def _scale(x: Tensor) -> float:
    rms = float(x.detach().to(torch.float64).square().mean().sqrt()) if x.numel() else 1.0
    return rms if 0.0 < rms < float("inf") else 1.0


def random_like(x: Tensor, g: torch.Generator) -> Tensor:
    """Normal numbers with the mean and the spread of ``x``."""
    wide = x.detach().to(torch.float64)
    spread = float(wide.std()) if x.numel() > 1 else 0.0
    mean = float(wide.mean()) if x.numel() else 0.0
    return _normal(x, g) * (spread or _scale(x)) + mean


def small(x: Tensor, g: torch.Generator) -> Tensor:
    """Of size 1/1000: the variance is below an epsilon of 1e-5, which then decides the result."""
    return _normal(x, g) * 1e-3


def denormal(x: Tensor, g: torch.Generator) -> Tensor:
    """Below the smallest normal number of the dtype."""
    info = torch.finfo(x.dtype)
    return (_uniform(x.shape, g) * 2.0 - 1.0) * info.smallest_normal


def constant(x: Tensor, g: torch.Generator) -> Tensor:
    """One value everywhere, not a power of two."""
    return torch.full(x.shape, 1.1 * _scale(x), dtype=torch.float64)


def shifted(x: Tensor, g: torch.Generator) -> Tensor:
    """A mean of 30 times the spread: one-pass variances cancel."""
    return _normal(x, g) * _scale(x) + 30.0 * _scale(x)


def zeros(x: Tensor, g: torch.Generator) -> Tensor:
    """Zeros of both signs."""
    return _normal(x, g) * 0.0


def outliers(x: Tensor, g: torch.Generator) -> Tensor:
    """One element of 64 is 200 times as large: what a transformer's residual stream looks like."""
    chance = _uniform(x.shape, g)
    values = _normal(x, g) * _scale(x)
    limit = torch.finfo(x.dtype).max / 8.0
    return torch.where(chance < 1.0 / 64.0, values * 200.0, values).clamp(-limit, limit)


def row_scales(x: Tensor, g: torch.Generator) -> Tensor:
    """Rows of very different size (1/64 to 64): an error in a small row must not hide behind a large one."""
    rows = _uniform((*x.shape[:-1], 1) if x.dim() else (), g)
    return _normal(x, g) * _scale(x) * torch.exp2(12.0 * rows - 6.0)


def huge(limit: float) -> Made:
    """Up to ``limit`` in size."""

    def make(x: Tensor, g: torch.Generator) -> Tensor:
        return (_uniform(x.shape, g) * 2.0 - 1.0) * limit

    return make


def placed(value: float) -> Made:
    """The random numbers with ``value`` at one or a few places, at most one a row."""

    def make(x: Tensor, g: torch.Generator) -> Tensor:
        values = random_like(x, g)
        if x.numel() == 0:
            return values
        rows = values.reshape(-1, x.shape[-1] if x.dim() else 1)
        step = max(2, rows.shape[0] // 3)
        for row in range(0, rows.shape[0], step):
            column = int(torch.randint(rows.shape[1], (1,), generator=g, device=g.device))
            rows[row, column] = value
        return rows.reshape(x.shape)

    return make


VALUE_CASES: tuple[tuple[str, Made], ...] = (
    ("small", small),
    ("denormal", denormal),
    ("constant", constant),
    ("shifted", shifted),
    ("outliers", outliers),
    ("row scales", row_scales),
    ("zeros", zeros),
)


def huge_limits(dtype: torch.dtype) -> Iterator[float]:
    """Sizes to try, the largest first."""
    info = torch.finfo(dtype)
    limit, step = info.max / 2.0, 4.0 if info.max < 1e6 else 256.0
    while limit > 64.0:
        yield limit
        limit /= step


def unaligned(x: Tensor) -> Tensor:
    """The values of ``x`` one element behind an aligned address, contiguous."""
    store = torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)
    return store[1:].view(x.shape).copy_(x.detach())


def row_gaps(x: Tensor) -> Tensor:
    """Rows that do not touch: three elements of NaN between them."""
    if x.dim() < 2:
        return x
    store = torch.full((*x.shape[:-1], x.shape[-1] + 3), float("nan"), dtype=x.dtype, device=x.device)
    return store[..., : x.shape[-1]].copy_(x.detach())


def element_gaps(x: Tensor) -> Tensor:
    """Every second element of a row; NaN between."""
    if x.dim() < 1:
        return x
    store = torch.full((*x.shape[:-1], 2 * x.shape[-1]), float("nan"), dtype=x.dtype, device=x.device)
    return store[..., ::2].copy_(x.detach())


def transposed(x: Tensor) -> Tensor:
    """The first two of several dimensions (or rows and columns of a matrix) swapped in memory."""
    if x.dim() < 2:
        return x
    return x.detach().transpose(0, 1).contiguous().transpose(0, 1)


LAYOUT_CASES: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("unaligned", unaligned),
    ("row gaps", row_gaps),
    ("strided", element_gaps),
    ("transposed", transposed),
)


def moved_by_ulp(inputs: Any, paths: Sequence[Path], g: torch.Generator, wide: bool) -> Any:
    """Every element at ``paths`` moved by 0.5 to 1.5 ulp, up or down. ``wide``: in float64, else in its own dtype.

    Not one ulp exactly: two factors that move by the same amount in opposite directions would leave a product as it is.
    """

    def one(x: Tensor) -> Tensor:
        move = (_uniform(x.shape, g) * 2.0 - 1.0).to(x.device)
        move = move + torch.copysign(torch.full_like(move, 0.5), move)
        info = torch.finfo(x.dtype)
        base = x.detach().to(torch.float64)
        step = torch.where(torch.isfinite(base), base.abs() * info.eps, torch.zeros_like(base))
        step = step.clamp(min=info.smallest_normal * info.eps)
        moved = base + move * step
        return moved if wide else fill_layout(x, moved.clamp(-info.max, info.max).where(torch.isfinite(base), base))

    return replaced(inputs, paths, one)


def flushed(inputs: Any, paths: Sequence[Path]) -> Any:
    """Denormals of float32 set to zero."""
    tiny = torch.finfo(torch.float32).smallest_normal
    return replaced(inputs, paths, lambda x: torch.where(x.detach().abs() < tiny, torch.zeros_like(x), x.detach()))
