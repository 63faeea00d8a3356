"""Prove and price a kernel of your own: LN(x) + residual.

    python bring_your_own_kernel.py                     on the GPU if there is one, otherwise on the CPU
    python bring_your_own_kernel.py --rows 128 --svg roofline.svg

On a GPU the kernel is written in Triton. On a CPU it is one function of torch operators in float32. First a
kernel with the mistake that everybody makes once is shown to be WRONG.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from fusebox.torch import price, prove

try:
    import triton
    import triton.language as tl
except ImportError:  # PyTorch for CPUs has no Triton
    triton = None

EPS = 1e-5


def plain(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x, residual [rows, width]; weight, bias [width]. What the model runs today."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias, EPS) + residual


def wrong_order(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The residual is added before the norm. Shapes and sizes look right, the model's text does not."""
    return F.layer_norm(x + residual, (x.shape[-1],), weight, bias, EPS)


def in_float32(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The fused arithmetic: float32 inside, rounded where plain rounds."""
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    scaled = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPS)
    return torch.addcmul(bias.float(), scaled, weight.float()).to(x.dtype) + residual


if triton is not None:

    @triton.jit
    def _kernel(x, residual, weight, bias, out, x_stride, residual_stride, width, eps, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        column = tl.arange(0, BLOCK)
        inside = column < width
        v = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        mean = tl.sum(v, 0) / width
        centred = tl.where(inside, v - mean, 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / width + eps)
        w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
        normed = (centred * scale * w + b).to(out.dtype.element_ty)  # plain rounds here
        r = tl.load(residual + row * residual_stride + column, mask=inside, other=0.0)
        total = normed.to(tl.float32) + r.to(tl.float32)
        tl.store(out + row * width + column, total.to(out.dtype.element_ty), mask=inside)


def in_triton(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """One pass over memory. Rows may have a stride; elements of a row must touch."""
    for name, t in (("x", x), ("residual", residual), ("weight", weight), ("bias", bias)):
        if t.dim() > 2 or (t.dim() and t.shape[-1] > 1 and t.stride(-1) != 1):
            raise ValueError(f"{name} has strides {t.stride()}; the last must be 1")
    rows, width = x.shape
    out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    if rows:
        strides = x.stride(0), residual.stride(0)
        _kernel[(rows,)](x, residual, weight, bias, out, *strides, width, EPS, BLOCK=triton.next_power_of_2(width))
    return out


def main() -> None:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=128 if gpu else 16)
    parser.add_argument("--width", type=int, default=2560 if gpu else 256)
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float16" if gpu else "float32")
    parser.add_argument("--step", type=float, help="seconds of the model's step; otherwise a stand-in is timed")
    parser.add_argument("--calls", type=int, default=32, help="calls in a step, one a layer")
    parser.add_argument("--svg", type=Path, help="where the roofline goes")
    options = parser.parse_args()

    torch.manual_seed(0)
    make = {"dtype": getattr(torch, options.dtype), "device": "cuda" if gpu else "cpu"}
    x, residual = (torch.randn(options.rows, options.width, **make) for _ in range(2))
    weight, bias = (torch.randn(options.width, **make) for _ in range(2))
    kernel = in_triton if gpu and triton is not None else in_float32

    print("A kernel with the residual in the wrong place\n")
    broken = prove(wrong_order, plain, x, residual, weight, bias, trials=1)
    print(broken.summary())
    print(f"first {broken['given'].difference.first}")

    print(f"\n{kernel.__name__}\n")
    proof = prove(kernel, plain, x, residual, weight, bias)
    print(proof)
    proof.raise_if_wrong()

    print("\nIts price\n")
    up, down = (
        torch.randn(4 * options.width, options.width, **make),
        torch.randn(options.width, 4 * options.width, **make),
    )

    def step() -> None:
        """A stand-in for a model: in each layer the plain kernel and an MLP."""
        for _ in range(options.calls):
            F.linear(F.gelu(F.linear(plain(x, residual, weight, bias), up)), down)

    cost = price(kernel, plain, x, residual, weight, bias, proof=proof, model=options.step or step, calls=options.calls)
    print(cost)
    if options.svg:
        options.svg.write_text(cost.svg, encoding="utf-8")
        print(f"wrote {options.svg}")


if __name__ == "__main__":
    main()
