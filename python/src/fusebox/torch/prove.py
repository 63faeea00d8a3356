"""A proof for anybody's kernel: two callables, the same inputs, and every way in which they may differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from . import _hygiene as hygiene
from ._compare import ACCURATE, IDENTICAL, REFUSED, SKIPPED, WITHIN, WRONG, Difference, worst
from ._double import DoubleRun
from ._inputs import (
    LAYOUT_CASES,
    VALUE_CASES,
    huge,
    huge_limits,
    placed,
    random_like,
    replaced,
    valued,
    varied_paths,
)
from ._pair import DeviceLost, Pair, PlainFailed, changed_inputs, check_device
from ._report import html_lines, html_table, number, text_table
from ._tree import copy_inputs, is_float, leaves

__all__ = ["Difference", "Proof", "Row", "WrongKernel", "prove"]

_HEADER = (
    "case",
    "bits",
    "max abs",
    "ulps",
    "nan/inf",
    "plain-f64",
    "fused-f64",
    "plain-f64 max",
    "fused-f64 max",
    "verdict",
)


class WrongKernel(AssertionError):
    """A proof failed. ``proof`` has the rows."""

    def __init__(self, proof: Proof) -> None:
        super().__init__(str(proof))
        self.proof = proof


@dataclass(frozen=True)
class Row:
    """One case. ``difference`` has the numbers, of the worst of several trials."""

    case: str
    difference: Difference

    @property
    def verdict(self) -> str:
        return self.difference.verdict

    @property
    def ok(self) -> bool:
        return self.verdict != WRONG

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        d = self.difference
        if d.verdict in (SKIPPED, REFUSED):
            return (self.case, *("-",) * 8, d.verdict)
        bits = "identical" if d.differing == 0 and d.verdict != WRONG else "differ"
        exact = (d.plain_norm, d.fused_norm, d.plain_max, d.fused_max)
        verdict = "ok" if d.verdict == IDENTICAL else d.verdict
        return (
            self.case,
            bits,
            number(d.max_abs),
            number(d.max_ulp, ".3g"),
            str(d.nonfinite),
            *map(number, exact),
            verdict,
        )


@dataclass(frozen=True)
class Proof:
    """What ``prove`` found. Prints as a table; ``ok`` is false if one row is WRONG.

    ``float64``: why there is no float64 run of plain; empty if there is one.
    """

    rows: tuple[Row, ...]
    float64: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)

    @property
    def identical(self) -> bool:
        """Whether fused gave plain's bits in every case that ran."""
        return all(row.verdict in (IDENTICAL, SKIPPED) for row in self.rows)

    @property
    def verdict(self) -> str:
        """The gravest verdict: identical, within the bound, as accurate, or WRONG."""
        for verdict in (WRONG, ACCURATE, WITHIN):
            if any(row.verdict == verdict for row in self.rows):
                return verdict
        return IDENTICAL

    @property
    def wrong(self) -> tuple[Row, ...]:
        """The rows that failed."""
        return tuple(row for row in self.rows if not row.ok)

    def __getitem__(self, case: str) -> Row:
        for row in self.rows:
            if row.case == case:
                return row
        raise KeyError(f"no case {case!r}; there are {', '.join(row.case for row in self.rows)}")

    def raise_if_wrong(self) -> Proof:
        """Raise ``WrongKernel`` with the table if a row is WRONG; otherwise return the proof."""
        if not self.ok:
            raise WrongKernel(self)
        return self

    def lines(self) -> list[str]:
        """What stands below the table."""
        out: list[str] = []
        for row in self.rows:
            d = row.difference
            if d.reason:
                out.append(f"{row.case}: {d.reason}")
            if d.first is not None and row.verdict == WRONG:
                out.append(f"{row.case}: first {d.first}")
        differing = next((row for row in self.rows if row.difference.first is not None), None)
        if differing is not None and differing.ok:
            out.append(f"{differing.case}: first difference {differing.difference.first}")
        out += self.notes
        if self.float64:
            out.append(f"no float64 run: {self.float64}")
        out.append(self.summary())
        return out

    def summary(self) -> str:
        """One sentence."""
        ran = [row for row in self.rows if row.verdict not in (SKIPPED, REFUSED)]
        same = sum(row.verdict == IDENTICAL for row in ran)
        if not self.ok:
            return f"WRONG: {len(self.wrong)} of {len(ran)} cases fail: {', '.join(row.case for row in self.wrong)}"
        if same == len(ran):
            return f"proven: identical to plain in {len(ran)} cases"
        return f"proven: {len(ran)} cases hold, {same} identical to plain, the others {self.verdict} or better"

    def __str__(self) -> str:
        return "\n".join([text_table(_HEADER, [row.cells() for row in self.rows], (0, 1, -1)), "", *self.lines()])

    def _repr_html_(self) -> str:
        return html_table(_HEADER, [row.cells() for row in self.rows], (0, 1, -1)) + html_lines(self.lines())


def prove(
    fused: Callable[..., Any],
    plain: Callable[..., Any],
    *inputs: Any,
    batch_dim: int = 0,
    trials: int = 3,
    tolerance: float | None = None,
    seed: int = 0,
    vary: Sequence[int] | None = None,
    repeats: int = 8,
    deterministic: bool = True,
    reuses_output: bool = False,
) -> Proof:
    """Compare ``fused(*inputs)`` with ``plain(*inputs)``, and again on inputs made from the given ones.

    ``fused``, ``plain``: any callables that take ``inputs`` and return tensors of any shape, or nested tuples, lists
    and dicts of them: eager functions, modules, results of ``torch.compile``, launchers of Triton kernels.

    ``inputs``: tensors of any shape, dtype and device, and anything else. Nothing is written to them: every call gets
    copies. ``vary``: positions of the inputs that get new values and layouts. By default all floating tensors do,
    except ``nn.Parameter`` and tensors with an infinity (masks).

    ``batch_dim``: the dimension of rows, for the questions about other batch sizes. ``trials``: random draws.

    ``tolerance``: None: fused must be as accurate as plain, measured by a float64 run of plain (the rule is at the top
    of ``_compare.py``), or at most 1 ulp from plain. 0: every bit must be plain's. Otherwise the largest difference to
    plain that is allowed, relative to the largest value of that output.

    ``repeats``: runs that must give the same bits, unless ``deterministic`` is false or plain's own bits change.
    ``reuses_output``: the second call may overwrite the first one's result.

    Verdicts: identical; within the bound; as accurate (as plain); refused: fused raises for an unusual layout or
    batch; skipped: plain raises; WRONG.
    """
    if trials < 1 or repeats < 2:
        raise ValueError(f"trials is {trials} and repeats is {repeats}; at least 1 and 2 are needed")
    if tolerance is not None and not tolerance >= 0.0:
        raise ValueError(f"tolerance is {tolerance}, the least is 0")
    paths = varied_paths(inputs, vary)
    tensors = dict(leaves(inputs))
    longest = max((tensors[path].shape[-1] for path in paths if tensors[path].dim()), default=1)
    device = tensors[paths[0]].device if paths else torch.device("cpu")
    generator = torch.Generator(device).manual_seed(seed)
    pair = Pair(fused, plain, paths, tolerance, generator, int(longest), DoubleRun(plain, inputs))
    _find_changes(pair, inputs)

    rows: list[Row] = []
    try:
        for case, difference in _all_cases(pair, inputs, batch_dim, trials, repeats, deterministic, reuses_output):
            rows.append(Row(case, difference))
            if case == "given" and not pair.calls:
                break  # fused raised: nothing else will run
    except DeviceLost as lost:
        rows.append(Row(f"after {rows[-1].case}" if rows else "given", Difference(WRONG, reason=str(lost))))
    notes = ["plain writes to its inputs: they are compared as results"] if pair.changes else []
    return Proof(tuple(rows), pair.double.why_not, tuple(notes))


def _find_changes(pair: Pair, inputs: Any) -> None:
    """Does plain write to its inputs? Its errors on the given inputs are the caller's."""
    own = copy_inputs(inputs)
    with torch.no_grad():
        pair.plain(*own)
    pair.changes = bool(changed_inputs(inputs, own))
    pair.double.with_inputs = pair.changes


def _all_cases(
    pair: Pair, inputs: Any, batch_dim: int, trials: int, repeats: int, deterministic: bool, reuses_output: bool
) -> Iterator[tuple[str, Difference]]:
    yield "given", pair.judge(inputs)
    yield from _value_cases(pair, inputs, trials)
    yield from _layout_cases(pair, inputs)
    empty = hygiene.empty_batch(pair, inputs, batch_dim)
    if empty is not None:
        yield "empty", empty
    yield from hygiene.batches(pair, inputs, batch_dim)
    checks: list[tuple[str, Callable[[], Difference | None]]] = [
        ("run to run", lambda: hygiene.repeated(pair, inputs, repeats, deterministic)),
        ("called twice", lambda: hygiene.stale(pair, inputs, reuses_output)),
        ("unwritten", lambda: hygiene.unwritten(pair, inputs)),
        ("side stream", lambda: hygiene.side_stream(pair, inputs)),
    ]
    for case, check in checks:
        try:
            difference = check()
        except PlainFailed as error:
            difference = Difference(SKIPPED, reason=f"plain raises {error}")
        except Exception as error:
            check_device("fused", error)
            difference = Difference(WRONG, reason=f"fused raises {type(error).__name__}: {error}")
        if difference is not None:
            yield case, difference
    if not pair.changes:
        written = Difference(WRONG, reason=f"fused writes to {', '.join(pair.written)}") if pair.written else None
        yield "inputs kept", written or Difference(IDENTICAL)


def _value_cases(pair: Pair, inputs: Any, trials: int) -> Iterator[tuple[str, Difference]]:
    if not pair.paths:
        return
    total = Difference(SKIPPED)
    for _ in range(trials):
        total = worst(total, pair.judge(valued(inputs, pair.paths, random_like, pair.generator)))
    yield "random", total
    for case, make in VALUE_CASES:
        # All inputs at once, and the first alone: a residual of the same kind may hide what becomes of the first.
        total = pair.judge(valued(inputs, pair.paths, make, pair.generator), flush=case == "denormal")
        if len(pair.paths) > 1:
            made = valued(inputs, pair.paths[:1], make, pair.generator)
            total = worst(total, pair.judge(made, flush=case == "denormal"))
        yield case, total
    yield "huge", _huge(pair, inputs, 1)
    if len(pair.paths) > 1:
        yield "all huge", _huge(pair, inputs, len(pair.paths))
    for case, value in (("nan", float("nan")), ("inf", float("inf")), ("-inf", float("-inf"))):
        total = Difference(SKIPPED)
        for path in pair.paths:  # in one input at a time: two infinities would hide each other
            base = valued(inputs, pair.paths, random_like, pair.generator)
            total = worst(total, pair.judge(valued(base, [path], placed(value), pair.generator)))
        yield case, total


def _huge(pair: Pair, inputs: Any, count: int) -> Difference:
    """The largest inputs for which plain stays finite, and a margin: other orders of additions overflow earlier."""
    paths = list(pair.paths)[:count]
    tensors = dict(leaves(inputs))
    top = max((tensors[path].dtype for path in paths), key=lambda dtype: -torch.finfo(dtype).max)
    margin = 2.0 if torch.finfo(top).max < 1e6 else 16.0
    for limit in huge_limits(top):
        made = valued(inputs, paths, huge(limit), pair.generator)
        try:
            plain = pair.run_plain(made)
        except PlainFailed as error:
            return Difference(SKIPPED, reason=f"plain raises {error}")
        if all(bool(torch.isfinite(leaf).all()) for _, leaf in leaves(plain) if is_float(leaf)):
            made = valued(inputs, paths, huge(limit / margin), pair.generator)
            return pair.judge(made)
    return Difference(SKIPPED, reason="plain overflows for every size tried")


def _layout_cases(pair: Pair, inputs: Any) -> Iterator[tuple[str, Difference]]:
    for case, change in LAYOUT_CASES:
        if any(change(leaf) is not leaf for path, leaf in leaves(inputs) if path in pair.paths):
            made = replaced(inputs, pair.paths, change)
            yield case, pair.judge(made, may_refuse=True)
