"""silu(x W1^T) * (x W3^T), the first half of a Llama MLP: what each way to fuse it moves, takes and rounds.

    python mlp_strategies.py                        on the GPU if there is one, otherwise small on the CPU
    python mlp_strategies.py --rows 1,4,64 --outputs 14336 --inputs 4096 --out results

    eager          two products, silu, mul: four passes
    torch.compile  what the compiler makes of them
    vector         two products; silu and mul in one pass
    accumulator    silu on the sums of the first product before they are stored; then mul
    dual           both products and silu and mul in one kernel: stores the result alone

First the strategies are proven: dual against eager, vector and accumulator to the bit against dual. A failed proof ends
the script with exit status 1. Bytes are counted by kernels, the weights included: each kernel reads each operand and
writes each result once. For torch.compile that is the least, as for dual. The floor is the time of these bytes at the
measured bandwidth; on a GPU that of the products at the measured FLOP rate, if it is longer. Errors are those to
float64, over the result's rms. The other columns are those of layer_norm_residual.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import report as shared
import torch
import torch.nn.functional as F
from report import Candidate, CheckFailed, Measured, Report
from torch import Tensor

from fusebox.torch import ops, prove

STRATEGIES = ("vector", "accumulator", "dual")
# How often the kernels of each way read or write a matrix [rows, inputs] (x) and one [rows, outputs].
PASSES = {"eager": (2, 7), "torch.compile": (1, 1), "vector": (2, 5), "accumulator": (2, 5), "dual": (1, 1)}


def eager(x: Tensor, w1: Tensor, w3: Tensor) -> Tensor:
    """x [rows, inputs]; w1, w3 [outputs, inputs]; result [rows, outputs]."""
    return F.silu(F.linear(x, w1)) * F.linear(x, w3)


def fused(strategy: str, x: Tensor, w1: Tensor, w3: Tensor) -> Tensor:
    return ops.swiglu(x, w1, w3, strategy=strategy)


def moved(way: str, x: Tensor, w1: Tensor) -> int:
    """Bytes of one call: both weights, and the passes over activations."""
    of_x, of_out = PASSES[way]
    rows, outputs = x.shape[0], w1.shape[0]
    return x.element_size() * (2 * w1.numel() + of_x * x.numel() + of_out * rows * outputs)


def weight_share(way: str, x: Tensor, w1: Tensor) -> float:
    return 2 * w1.numel() * w1.element_size() / moved(way, x, w1)


def check_strategies(report: Report, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    """Prove dual against eager, and the others to the bit against dual. Only x varies."""
    dual, shape = partial(fused, "dual"), shared.plural(inputs[0].shape[0], "row")
    proof = prove(dual, eager, *inputs, vary=[0]).raise_if_wrong()
    report.say(f"{shape}, dual against eager: {proof.summary()}")
    for strategy in STRATEGIES[:2]:
        sentence = shared.prove_bits(partial(fused, strategy), dual, *inputs, vary=[0])
        report.say(f"{shape}, {strategy} against dual: {sentence.replace('plain', 'dual')}")


def check_count(counted: int, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    """The operators of eager that PyTorch's dispatcher saw must move what the formula says."""
    expected = moved("eager", inputs[0], inputs[1])
    if counted != expected:
        raise CheckFailed(f"eager moves {counted} bytes by its operators, {expected} by the formula")


Row = tuple[str, Measured, tuple[float, float], float]


def measure(report: Report, options: argparse.Namespace, rows: int) -> list[Row]:
    """All ways at one row count: label, times, errors, the weights' share of the bytes."""
    make: dict[str, Any] = {
        "dtype": getattr(torch, options.dtype),
        "device": "cuda" if torch.cuda.is_available() else "cpu",
    }
    x = torch.randn(rows, options.inputs, **make)
    w1, w3 = (torch.randn(options.outputs, options.inputs, **make) / options.inputs**0.5 for _ in range(2))
    inputs = (x, w1, w3)
    check_strategies(report, inputs)
    ways = [Candidate("eager", eager)]
    ways += shared.compiled_candidate(report, eager, options.compile, inputs, moved("torch.compile", x, w1))
    ways += [Candidate(f"fusebox {s}", partial(fused, s), moved(s, x, w1)) for s in STRATEGIES]
    wanted = shared.exact(eager, inputs)
    errors = {}
    with torch.no_grad():
        for way in ways:
            errors[way.name] = shared.error(way.run(*inputs), wanted)
            shared.check_error(way.name, errors[way.name], errors["eager"], x.dtype)
    # Many rows are limited by arithmetic. PyTorch's 16-bit product is a measure of that on a GPU, not on a CPU.
    found = shared.prices(ways, inputs, options.budget, flops=None if x.is_cuda else 0)
    check_count(found[0].side.bytes, inputs)
    return [
        (f"{rows}", row, errors[row.name], weight_share(row.name.removeprefix("fusebox "), x, w1)) for row in found
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    gpu = torch.cuda.is_available()
    parser = shared.parser(__doc__, (1, 8, 512) if gpu else (1, 8))
    for name, default in (("outputs", 11008 if gpu else 352), ("inputs", 4096 if gpu else 128)):
        parser.add_argument(f"--{name}", type=shared.size, default=default, help=f"of a product (default {default})")
    options = parser.parse_args(arguments)

    def body() -> None:
        title = f"SwiGLU {options.outputs}x{options.inputs} in {options.dtype}"
        report = Report("mlp_strategies", title, options)
        groups = [measure(report, options, rows) for rows in options.rows]
        header = ("rows", "by", "bytes", "weights", *shared.times()[1:], "max error", "rms error")
        table = []
        for rows, row, (top, rms), share in (line for group in groups for line in group):
            size, *times = shared.cells(row)
            table.append((rows, row.name, size, f"{100.0 * share:.1f}%", *times, f"{top:.2e}", f"{rms:.2e}"))
        report.table(header, table)
        for rows, group in zip(options.rows, groups):
            report.bars(f"{title}, {shared.plural(rows, 'row')}", [row for _, row, _, _ in group])
        report.write()

    return shared.checked(body)


if __name__ == "__main__":
    sys.exit(main())
