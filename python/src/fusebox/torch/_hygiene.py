"""Checks of how a kernel treats memory, repetition, batches and streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ._compare import IDENTICAL, REFUSED, SKIPPED, WRONG, Difference, same, worst
from ._double import is_compiled, short
from ._inputs import placed, random_like, replaced, valued
from ._pair import NAN_BYTES, NUMBER_BYTES, Pair, PlainFailed, check_device
from ._tree import Path, copy_inputs, devices, freeze, leaves, map_leaves

_EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted")


class _PoisonEmpty(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Fills what ``torch.empty`` and its kin return with NaN, or with the largest integer."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in _EMPTY and isinstance(out, Tensor) and out.device.type != "meta":
            if out.is_floating_point() or out.is_complex():
                out.fill_(float("nan"))
            elif out.dtype is not torch.bool:
                out.fill_(torch.iinfo(out.dtype).max)
        return out


def unwritten(pair: Pair, inputs: Any) -> Difference:
    """Run fused with NaN in all memory that it takes from ``torch.empty``."""
    if is_compiled(pair.fused):
        return Difference(SKIPPED, reason="torch.compile allocates by itself")
    plain = pair.run_plain(inputs)
    own = copy_inputs(inputs)
    try:
        with torch.no_grad(), _PoisonEmpty():  # type: ignore[no-untyped-call, unused-ignore]
            result = pair.fused(*own)
        fused = freeze((result, own) if pair.changes else result)
    except Exception as error:
        check_device("fused", error)
        return Difference(SKIPPED, reason=f"fused does not run under a dispatch mode: {short(error)}")
    return pair.compare(inputs, fused, plain)


def stale(pair: Pair, inputs: Any, reuses_output: bool) -> Difference:
    """Call fused twice with different inputs. The second result must be new, the first one must stay."""
    other = valued(inputs, pair.paths, random_like, pair.generator)
    own_first, own_second = copy_inputs(inputs), copy_inputs(other)
    with torch.no_grad():
        first = pair.fused(*own_first)
        kept = freeze(first)
        second = pair.fused(*own_second)
        if pair.changes:
            second = (second, own_second)
    difference = pair.compare(other, freeze(second), pair.run_plain(other))
    try:
        overwritten = not same(freeze(first), kept)
    except RuntimeError as error:  # a CUDA graph of torch.compile forbids to look at an old result
        overwritten = True
        if reuses_output:
            return difference
        return Difference(WRONG, reason=f"the first result is gone after the second call: {short(error)}")
    if overwritten and not reuses_output:
        reason = "the second call overwrites the first result (reuses_output=True allows it)"
        return worst(difference, Difference(WRONG, reason=reason))
    return difference


def repeated(pair: Pair, inputs: Any, repeats: int, deterministic: bool) -> Difference:
    """Run fused several times, with other poison each time. All bits must be the same."""
    plain = pair.run_plain(inputs)
    runs = [pair.call(pair.fused, inputs, plain, (NAN_BYTES, NUMBER_BYTES)[i % 2]) for i in range(repeats)]
    total = Difference(IDENTICAL)
    distinct = [run for i, run in enumerate(runs) if i == 0 or not same(run, runs[0])]
    for run in distinct[:3]:
        total = worst(total, pair.compare(inputs, run, plain))
    if len(distinct) == 1:
        return total
    reason = f"{len(distinct) - 1} of {repeats} runs differ from the first"
    if not deterministic or not same(pair.run_plain(inputs), plain):
        return replace(total, reason=reason)
    return replace(total, verdict=WRONG, reason=f"{reason}: a race, or memory that is not written")


def side_stream(pair: Pair, inputs: Any) -> Difference | None:
    """Run fused on a stream of its own, right behind a late write of its inputs. None without CUDA inputs."""
    cuda = [device for device in devices(inputs) if device.type == "cuda"]
    if not cuda:
        return None
    plain = pair.run_plain(inputs)
    late = valued(copy_inputs(inputs), pair.paths, placed(float("nan")), pair.generator)
    source = dict(leaves(inputs))
    stream = torch.cuda.Stream(cuda[0])  # type: ignore[no-untyped-call, unused-ignore]
    torch.cuda.synchronize(cuda[0])
    with torch.no_grad(), torch.cuda.stream(stream):
        # Some 10 ms: a kernel on another stream reads the inputs before they are written.
        torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call, unused-ignore]
        for path, leaf in leaves(late):
            if path in pair.paths:
                leaf.copy_(source[path])
        result = pair.fused(*late)
        fused = freeze((result, late) if pair.changes else result)
    stream.synchronize()
    torch.cuda.synchronize(cuda[0])
    return pair.compare(inputs, fused, plain)


def batch_size(inputs: Any, paths: Sequence[Path], batch_dim: int) -> int:
    """The size of the first varied input along ``batch_dim``; 0 where it has no such dimension."""
    for path, leaf in leaves(inputs):
        if path in paths:
            return int(leaf.shape[batch_dim]) if -leaf.dim() <= batch_dim < leaf.dim() and leaf.dim() > 1 else 0
    return 0


def sliced(inputs: Any, paths: Sequence[Path], batch_dim: int, start: int, length: int) -> Any:
    """Rows ``start`` to ``start + length`` of the tensors at ``paths``, contiguous."""
    return replaced(inputs, paths, lambda x: x.detach().narrow(batch_dim, start, length).contiguous().clone())


def find_batched(pair: Pair, inputs: Any, batch_dim: int, rows: int) -> list[Path] | None:
    """Which inputs have the batch dimension, or None where plain does not work by rows.

    All varied inputs of the first one's rank and batch size; or the first alone. The choice is right if plain on
    a slice gives the slice of plain.
    """
    head = next((leaf for path, leaf in leaves(inputs) if path in pair.paths), None)
    if head is None:
        return None
    tensors = [(path, leaf) for path, leaf in leaves(inputs) if isinstance(leaf, Tensor)]
    alike = [path for path, x in tensors if x.dim() == head.dim() and x.shape[batch_dim] == rows]
    alike = [path for path in alike if path in pair.paths or not isinstance(dict(tensors)[path], torch.nn.Parameter)]
    anything = [path for path, x in tensors if -x.dim() <= batch_dim < x.dim() and x.shape[batch_dim] == rows]
    cut = slice_of(pair.run_plain(inputs), batch_dim, rows, 0, 1)
    if cut is None:
        return None
    # An index that points behind a slice ends a CUDA process for good: integers must be sliced too.
    cuda = any(device.type == "cuda" for device in devices(inputs))
    whole = [path for path, x in tensors if not x.is_floating_point() and x.dtype != torch.bool]
    for candidate in (alike, anything, [pair.paths[0]]):
        if cuda and not set(whole) <= set(candidate):
            continue
        try:
            part = pair.run_plain(sliced(inputs, candidate, batch_dim, 0, 1))
        except PlainFailed:
            continue
        if _close(part, cut):
            return list(candidate)
    return None


def slice_of(result: Any, batch_dim: int, rows: int, start: int, length: int) -> Any:
    """The rows of a result, or None where a tensor of it has no batch dimension of that size."""
    for _, leaf in leaves(result):
        if not isinstance(leaf, Tensor) or not -leaf.dim() <= batch_dim < leaf.dim() or leaf.shape[batch_dim] != rows:
            return None
    return map_leaves(lambda _, leaf: leaf.narrow(batch_dim, start, length), result)


def _close(a: Any, b: Any) -> bool:
    if len(list(leaves(a))) != len(list(leaves(b))):
        return False
    for (path, x), (other, y) in zip(leaves(a), leaves(b)):
        if path != other or x.shape != y.shape or x.dtype != y.dtype:
            return False
        if x.numel() == 0:
            continue
        x, y = x.to(torch.float64), y.to(torch.float64)
        if float((x - y).abs().nan_to_num().max()) > 0.05 * float(y.abs().nan_to_num().max()) + 1e-6:
            return False
    return True


def batches(pair: Pair, inputs: Any, batch_dim: int) -> Iterator[tuple[str, Difference]]:
    """Fused under other batch sizes, and each of three rows alone. Empty where plain does not work by rows."""
    rows = batch_size(inputs, pair.paths, batch_dim)
    if rows < 2:
        return
    batched = find_batched(pair, inputs, batch_dim, rows)
    if batched is None:
        yield "row alone", Difference(SKIPPED, reason=f"plain does not work by rows of dimension {batch_dim}")
        return
    for size in sorted({1, 2, 3, rows // 2, rows - 1} & set(range(1, rows))):
        total = Difference(IDENTICAL)
        for start in sorted({0, rows - size}):
            part = sliced(inputs, batched, batch_dim, start, size)
            total = worst(total, pair.judge(part, may_refuse=True))
        yield f"batch {size}", total
    yield "row alone", _alone(pair, inputs, batched, batch_dim, rows)


def _alone(pair: Pair, inputs: Any, batched: Sequence[Path], batch_dim: int, rows: int) -> Difference:
    """Is row i the same alone? A kernel may choose another order of additions for one row: that is said, not wrong."""
    whole_fused, whole_plain = pair.call(pair.fused, inputs), pair.run_plain(inputs)
    changed, plain_changed = 0, 0
    picks = sorted({0, 1, rows // 2, rows - 1})
    total = Difference(IDENTICAL)
    for i in picks:
        one = sliced(inputs, batched, batch_dim, i, 1)
        try:
            plain = pair.run_plain(one)
        except PlainFailed as error:
            return Difference(SKIPPED, reason=f"plain raises {error}")
        try:
            fused = pair.call(pair.fused, one, plain)
        except Exception as error:
            check_device("fused", error)
            return Difference(REFUSED, reason=f"fused raises {short(error)}")
        cut = slice_of(whole_fused, batch_dim, rows, i, 1)
        changed += not same(fused, freeze(cut)) if cut is not None else 0
        plain_changed += not same(plain, freeze(slice_of(whole_plain, batch_dim, rows, i, 1)))
        total = worst(total, pair.compare(one, fused, plain))
    if changed:
        note = f"{changed} of {len(picks)} rows have other bits alone than in the batch (plain: {plain_changed})"
        total = replace(total, reason=total.reason if total.verdict == WRONG else note)
    return total


def empty_batch(pair: Pair, inputs: Any, batch_dim: int) -> Difference | None:
    """No rows at all, where plain accepts that."""
    rows = batch_size(inputs, pair.paths, batch_dim)
    batched = find_batched(pair, inputs, batch_dim, rows) if rows else None
    if batched is None:
        return None
    return pair.judge(sliced(inputs, batched, batch_dim, 0, 0), may_refuse=True)
