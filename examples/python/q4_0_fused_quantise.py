"""Q4_0 weights times 16-bit activations: quantise x inside the product, or once before it?

    python q4_0_fused_quantise.py                   on the GPU if there is one, otherwise small on the CPU
    python q4_0_fused_quantise.py --rows 1,32 --outputs 11008 --inputs 4096 --out results

The product of integers needs x in 8 bits, in blocks of 32. Inside: linear_q4_0(x, weight) quantises what it loads.
Separate: quantize_q8(x) stores the blocks, and every projection that reads x uses them: one projection, or three as
for q, k and v. Both give the same bits, which is proven first; a difference ends the script with exit status 1. The
same products with 16-bit weights stand beside them. The last lines say which way wins, and where neither does.
Columns as in layer_norm_residual.py; "x inside" is how many times as fast as inside, taken in turns with it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import report as shared
import torch
import torch.nn.functional as F
from report import Candidate, CheckFailed, Measured, Report
from torch import Tensor

from fusebox.torch import ops

BLOCK = 32  # elements with a common scale
Q4_0_BYTES = 18  # a float16 scale, 32 numbers of 4 bits
Q8_BYTES = 40  # quantize_q8: a float32 scale, an int32 sum, 32 int8


def q4_0_blocks(weight: Tensor) -> Tensor:
    """weight [outputs, inputs] as Q4_0 blocks: uint8 [outputs, inputs / 32, 18].

    A block is w = d * (q - 8) with q from 0 to 15. d maps the element of the largest size to q = 0. Byte i of the
    numbers holds elements i (low half) and i + 16.
    """
    block = weight.float().reshape(weight.shape[0], -1, BLOCK)
    largest = block.gather(-1, block.abs().argmax(-1, keepdim=True))
    scale = (largest / -8.0).half()
    wide = scale.float()
    q = torch.where(wide != 0.0, block / wide, torch.zeros_like(block))
    q = (q + 8.5).floor().clamp(0.0, 15.0).to(torch.uint8)
    return torch.cat([scale.view(torch.uint8), q[..., :16] | (q[..., 16:] << 4)], -1)


def q4_0_values(blocks: Tensor) -> Tensor:
    """The weights that blocks stand for: float64 [outputs, inputs]."""
    scale = blocks[..., :2].contiguous().view(torch.float16).double()
    q = torch.cat([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], -1).double()
    return ((q - 8.0) * scale).flatten(1)


@dataclass(frozen=True)
class Projections:
    """Weights [outputs, inputs] of one or three projections of the same x: packed, 16-bit, and exact in float64."""

    packed: list[Any]
    half: list[Tensor]
    exact: list[Tensor]

    def inside(self, x: Tensor) -> Any:
        """Quantise within each product."""
        return tuple(ops.linear_q4_0(x, w) for w in self.packed)

    def separate(self, x: Tensor) -> Any:
        """Quantise once, then use the blocks in each product."""
        blocks = ops.quantize_q8(x)
        return tuple(ops.linear_q4_0(blocks, w) for w in self.packed)

    def linear(self, x: Tensor) -> Any:
        return tuple(F.linear(x, w) for w in self.half)


def projections(count: int, outputs: int, inputs: int, dtype: torch.dtype, device: str) -> Projections:
    made = Projections([], [], [])
    for _ in range(count):
        blocks = q4_0_blocks(torch.randn(outputs, inputs, device=device) / inputs**0.5)
        made.packed.append(ops.pack_weight(blocks, "q4_0", outputs, inputs))
        made.exact.append(q4_0_values(blocks))
        made.half.append(made.exact[-1].to(dtype))
    return made


def named(rows: int, count: int) -> str:
    return f"{shared.plural(rows, 'row')}, {shared.plural(count, 'projection')}"


def check(report: Report, made: Projections, x: Tensor) -> None:
    """Same bits both ways, in every case of a proof; and near the product of what x and the blocks stand for."""
    what = named(x.shape[0], len(made.packed))
    sentence = shared.prove_bits(made.separate, made.inside, x, vary=None)
    report.say(f"{what}, separate against inside: {sentence.replace('plain', 'inside')}")
    with torch.no_grad():
        wanted = [x.double() @ w.T for w in made.exact]
        q4_0, linear = shared.error(made.inside(x), wanted), shared.error(made.linear(x), wanted)
    # The scale of a block is at most largest / 127, an element is off by half of it: at most 1/254 of the largest. For
    # normal numbers the largest of 32 is about 2.1 rms, so the error is about 0.5% of the result's rms.
    if not q4_0[1] < 0.02:
        raise CheckFailed(f"linear_q4_0: rms error {q4_0[1]:.2e} of the result's rms (less than 0.02 is right)")
    report.say(f"{what}: rms error to float64 {q4_0[1]:.2e}, of the 16-bit linear {linear[1]:.2e}")


def moved(way: str, count: int, x: Tensor, outputs: int) -> int:
    """Bytes of one call, by kernels: weights, x or its blocks, results."""
    rows, inputs = x.shape
    item, blocks = x.element_size(), rows * inputs // BLOCK * Q8_BYTES
    results = count * rows * outputs * item
    if way == "linear":
        return count * (outputs + rows) * inputs * item + results
    weights = count * outputs * inputs // BLOCK * Q4_0_BYTES
    if way == "inside":
        return weights + count * x.numel() * item + results
    return weights + x.numel() * item + (1 + count) * blocks + results


def measure(report: Report, options: argparse.Namespace, made: Projections, rows: int) -> list[Measured]:
    """The three ways at one row count."""
    like, count = made.half[0], len(made.packed)
    x = torch.randn(rows, options.inputs, dtype=like.dtype, device=like.device)
    check(report, made, x)
    ways: tuple[tuple[str, str, Callable[..., Any]], ...] = (
        ("fusebox inside", "inside", made.inside),
        ("fusebox separate", "separate", made.separate),
        (f"{options.dtype} linear", "linear", made.linear),
    )
    candidates = [Candidate(name, run, moved(way, count, x, options.outputs)) for name, way, run in ways]
    return shared.prices(candidates, (x,), options.budget)


def winner(rows: int, count: int, inside: Measured, separate: Measured) -> str:
    """One sentence: which way is faster, if the difference is not chance."""
    what = named(rows, count)
    times = f"{shared.us(inside.side.warm.median)} us inside, {separate.speedup:.2f}x as fast separately"
    if not separate.clear:
        return f"{what}: no difference beyond the spread ({times})"
    return f"{what}: {'separate' if separate.speedup > 1.0 else 'inside'} wins ({times})"


def main(arguments: Sequence[str] | None = None) -> int:
    gpu = torch.cuda.is_available()
    parser = shared.parser(__doc__, (1, 8, 512) if gpu else (1, 8), compiles=False)
    for name, default in (("outputs", 4096 if gpu else 256), ("inputs", 4096 if gpu else 256)):
        parser.add_argument(f"--{name}", type=shared.size, default=default, help=f"of a product (default {default})")
    options = parser.parse_args(arguments)
    if options.inputs % BLOCK:
        parser.error(f"--inputs: {options.inputs} (must be a multiple of {BLOCK}, the elements of a block)")

    def body() -> None:
        title = f"Q4_0 {options.outputs}x{options.inputs}, activations in {options.dtype}"
        report = Report("q4_0_fused_quantise", title, options)
        table, sentences, pictures = [], [], {}
        device = "cuda" if gpu else "cpu"
        for count in (1, 3):
            made = projections(count, options.outputs, options.inputs, getattr(torch, options.dtype), device)
            for rows in options.rows:
                found = measure(report, options, made, rows)
                table += [(f"{rows}", f"{count}", row.name, *shared.cells(row)) for row in found]
                sentences.append(f"- {winner(rows, count, found[0], found[1])}")
                pictures[f"{title}, {named(rows, count)}"] = found
        report.table(("rows", "projections", "by", *shared.times()[:-1], "x inside"), table)
        report.say("\n".join(sentences))
        for name, found in pictures.items():
            report.bars(name, found)
        report.write()

    return shared.checked(body)


if __name__ == "__main__":
    sys.exit(main())
