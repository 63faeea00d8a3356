"""LN(x) + residual, and the add with the next norm: eager PyTorch, torch.compile, fusebox.

    python layer_norm_residual.py                   on the GPU if there is one, otherwise small on the CPU
    python layer_norm_residual.py --rows 1,64 --width 4096 --dtype bfloat16 --out results

A pre-norm model computes x + f(LN(x)): there the add and the *next* norm can be one kernel (add_norm). LN(x) + residual
is what a post-norm model has. Both are proven against eager PyTorch first; a wrong kernel is not timed, and the exit
status is 1. Columns of the table:

    bytes       what a call moves: eager's operators one by one; the others read each input and write each output once
    floor us    these bytes at the measured bandwidth of this device
    graph us    a call in a replayed CUDA graph: the kernels alone; with a star: timed by events, without a graph
    called us   a call from Python, launches included; on a CPU the only time
    of floor    the floor over the first time; more than 100% where a cache holds the data
    x eager     how many times as fast as eager
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import report as shared
import torch
import torch.nn.functional as F
from report import Candidate, Measured, Report
from torch import Tensor

from fusebox.torch import ops, prove

EPS = 1e-5


def norm_then_add(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x, residual [rows, width]; weight, bias [width]."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias, EPS) + residual


def add_then_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The sum, which the next layer adds to, and its norm."""
    total = x + residual
    return total, F.layer_norm(total, (total.shape[-1],), weight, bias, EPS)


def fused_norm_then_add(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return ops.layer_norm_residual(x, residual, weight, bias, EPS)


def fused_add_then_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Any:
    return ops.add_norm((x, residual), weight, bias, EPS)


OPS: tuple[tuple[str, Callable[..., Any], Callable[..., Any]], ...] = (
    ("layer_norm_residual", norm_then_add, fused_norm_then_add),
    ("add_norm", add_then_norm, fused_add_then_norm),
)


def measure(report: Report, options: argparse.Namespace, name: str, rows: int) -> list[tuple[str, Measured]]:
    """Prove and price one op at one shape: its rows of the table."""
    eager, fused = next((e, f) for op, e, f in OPS if op == name)
    make: dict[str, Any] = {
        "dtype": getattr(torch, options.dtype),
        "device": "cuda" if torch.cuda.is_available() else "cpu",
    }
    x, residual = (torch.randn(rows, options.width, **make) for _ in range(2))
    weight, bias = (torch.randn(options.width, **make) for _ in range(2))
    inputs = (x, residual, weight, bias)
    proof = prove(fused, eager, *inputs).raise_if_wrong()
    report.say(f"{name} [{rows}, {options.width}]: {proof.summary()}")
    candidates = [Candidate("eager", eager)]
    candidates += shared.compiled_candidate(report, eager, options.compile, inputs)
    candidates.append(Candidate("fusebox", fused))
    return [(f"{name} [{rows}, {options.width}]", row) for row in shared.prices(candidates, inputs, options.budget)]


def main(arguments: Sequence[str] | None = None) -> int:
    gpu = torch.cuda.is_available()
    parser = shared.parser(__doc__, (1, 128, 16384) if gpu else (1, 16))
    width = 2560 if gpu else 256
    parser.add_argument("--width", type=shared.size, default=width, help=f"elements of a row (default {width})")
    options = parser.parse_args(arguments)

    def body() -> None:
        report = Report("layer_norm_residual", f"Norm and residual in {options.dtype}", options)
        groups = [measure(report, options, name, rows) for name, _, _ in OPS for rows in options.rows]
        table = [
            (shape, row.name, *shared.cells(row), shared.to_other(row, [r for _, r in group], "torch.compile"))
            for group in groups
            for shape, row in group
        ]
        report.table(("op", "by", *shared.times(), "x compiled"), table)
        for group in groups:
            report.bars(group[0][0], [row for _, row in group])
        report.write()

    return shared.checked(body)


if __name__ == "__main__":
    sys.exit(main())
