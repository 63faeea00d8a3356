"""The same ops in Triton, in fusebox and in eager PyTorch: layer_norm_residual, silu_mul, add3.

    python triton_comparison.py                     on the GPU if there is one, otherwise small on the CPU
    python triton_comparison.py --rows 1,128 --width 4096 --dtype bfloat16 --out results

Every kernel is proven against eager PyTorch before it is timed; a wrong one ends the script with exit status 1. Triton
needs a GPU: without one its rows are left out, and the others run on the CPU. Columns as in layer_norm_residual.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import bring_your_own_kernel as own
import report as shared
import torch
import torch.nn.functional as F
from report import Candidate, Measured, Report
from torch import Tensor

from fusebox.torch import ops, prove

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch for CPUs has no Triton
    triton = None

BLOCK = 1024  # elements of a program: 8 for each of 128 threads, 16 bytes of a 16-bit dtype


if triton is not None:

    @triton.jit
    def _silu_mul(gate, up, out, gate_stride, up_stride, width, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = column < width
        g = tl.load(gate + row * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
        u = tl.load(up + row * up_stride + column, mask=inside, other=0.0).to(tl.float32)
        # div_rn: the short division gives 0 where the divisor is above 2^126, which bfloat16 can tell from the result.
        silu = tl.div_rn(g, 1.0 + tl.exp(-g)).to(out.dtype.element_ty)  # eager rounds here
        product = silu.to(tl.float32) * u
        tl.store(out + row * width + column, product.to(out.dtype.element_ty), mask=inside)

    @triton.jit
    def _add3(a, b, c, out, a_stride, b_stride, c_stride, width, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = column < width
        x = tl.load(a + row * a_stride + column, mask=inside, other=0.0).to(tl.float32)
        y = tl.load(b + row * b_stride + column, mask=inside, other=0.0).to(tl.float32)
        z = tl.load(c + row * c_stride + column, mask=inside, other=0.0).to(tl.float32)
        first = (x + y).to(out.dtype.element_ty)  # eager rounds here
        total = first.to(tl.float32) + z
        tl.store(out + row * width + column, total.to(out.dtype.element_ty), mask=inside)


def launch(kernel: Any, *inputs: Tensor) -> Tensor:
    """Run an elementwise kernel on inputs [rows, width]. Rows may have a stride; elements of a row must touch."""
    rows, width = inputs[0].shape
    for i, t in enumerate(inputs):
        if t.shape != inputs[0].shape or (width > 1 and t.stride(-1) != 1):
            raise ValueError(f"input {i} has shape {tuple(t.shape)} and strides {t.stride()}; the last must be 1")
    out = torch.empty((rows, width), dtype=inputs[0].dtype, device=inputs[0].device)
    if rows and width:
        grid = rows, triton.cdiv(width, BLOCK)
        kernel[grid](*inputs, out, *(t.stride(0) for t in inputs), width, BLOCK=BLOCK)
    return out


@dataclass(frozen=True)
class Op:
    """One op three times. ``matrices``, ``vectors``: how many inputs are [rows, width] and [width]."""

    name: str
    matrices: int
    vectors: int
    eager: Callable[..., Tensor]
    fusebox: Callable[..., Tensor]
    triton: Callable[..., Tensor]


OPS = (
    Op(
        "layer_norm_residual",
        2,
        2,
        own.plain,
        lambda x, residual, weight, bias: ops.layer_norm_residual(x, residual, weight, bias, own.EPS),
        own.in_triton,
    ),
    Op(
        "silu_mul",
        2,
        0,
        lambda gate, up: F.silu(gate) * up,
        lambda gate, up: ops.silu_mul(gate, up),
        lambda gate, up: launch(_silu_mul, gate, up),
    ),
    Op(
        "add3",
        3,
        0,
        lambda a, b, c: (a + b) + c,
        lambda a, b, c: ops.add3(a, b, c),
        lambda a, b, c: launch(_add3, a, b, c),
    ),
)


def why_no_triton() -> str:
    """Empty if Triton can run."""
    if not torch.cuda.is_available():
        return "there is no GPU"
    return "" if triton is not None else "it is not installed"


def measure(report: Report, options: argparse.Namespace, op: Op, rows: int) -> list[tuple[str, Measured]]:
    """Prove and price one op at one shape: its rows of the table."""
    make: dict[str, Any] = {
        "dtype": getattr(torch, options.dtype),
        "device": "cuda" if torch.cuda.is_available() else "cpu",
    }
    inputs = [torch.randn(rows, options.width, **make) for _ in range(op.matrices)]
    inputs += [torch.randn(options.width, **make) for _ in range(op.vectors)]
    candidates = [Candidate("fusebox", op.fusebox)]
    if not why_no_triton():
        candidates.append(Candidate("Triton", op.triton))
    label = f"{op.name} [{rows}, {options.width}]"
    for candidate in candidates:
        proof = prove(candidate.run, op.eager, *inputs).raise_if_wrong()
        report.say(f"{label}, {candidate.name}: {proof.summary()}")
    found = shared.prices([Candidate("eager", op.eager), *candidates], inputs, options.budget)
    return [(label, row) for row in found]


def main(arguments: Sequence[str] | None = None) -> int:
    gpu = torch.cuda.is_available()
    rows = (1, 128, 16384) if gpu else (16,)
    parser = shared.parser(__doc__, rows, compiles=False)
    width = 2560 if gpu else 256
    parser.add_argument("--width", type=shared.size, default=width, help=f"elements of a row (default {width})")
    options = parser.parse_args(arguments)

    def body() -> None:
        report = Report("triton_comparison", f"Triton and fusebox in {options.dtype}", options)
        if why_no_triton():
            report.say(f"Triton: left out, {why_no_triton()}")
        groups = [measure(report, options, op, count) for op in OPS for count in options.rows]
        table = [
            (shape, row.name, *shared.cells(row), shared.to_other(row, [r for _, r in group], "Triton"))
            for group in groups
            for shape, row in group
        ]
        report.table(("op", "by", *shared.times(), "x Triton"), table)
        for group in groups:
            report.bars(group[0][0], [row for _, row in group])
        report.write()

    return shared.checked(body)


if __name__ == "__main__":
    sys.exit(main())
