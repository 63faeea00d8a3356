"""What the tests of fusebox.torch.ops share: one case for each row of the table of ops, with a float64 reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

from fusebox.torch import ops  # noqa: E402
from fusebox.torch.ops import _register  # noqa: E402

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
F = torch.nn.functional
Tensor = torch.Tensor

EPS = 1e-5
STORE = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}  # half a step of rounding


def random(*shape: int, dtype: Any = torch.float32, device: str = "cpu", seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(hash((shape, seed)) % 2**31)
    return torch.randn(*shape, generator=generator).to(device, dtype)


@dataclass
class Case:
    """An op with its public call, its arguments for the dispatcher, and the same in torch."""

    name: str
    public: Callable[..., Any]  # (*tensors, out)
    tensors: list[Any]
    dispatched: list[Any]  # arguments of torch.ops.fusebox.NAME
    reference: Callable[..., Any]  # (*tensors) in whichever dtype they are


def causal(q: Any, k: Any, v: Any) -> Any:
    rows, context = q.shape[-2], k.shape[-2]
    mask = torch.ones(rows, context, device=q.device).tril(context - rows).bool()
    k, v = (t.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for t in (k, v))
    scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~mask, float("-inf"))
    return scores.softmax(-1) @ v


def rotated(x: Any, positions: Any) -> Any:
    half = x.shape[-1] // 2
    angles = positions.double()[:, None] * 10000.0 ** (-torch.arange(half, device=x.device).double() / half)
    cos, sin = (f(angles)[:, None].to(x.dtype) for f in (torch.cos, torch.sin))
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def layer_norm(x: Any, w: Any, b: Any) -> Any:
    return F.layer_norm(x, x.shape[-1:], w, b, EPS)


def rms_norm(x: Any, w: Any) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * w


def decoded(x: Any) -> Any:
    """x after quantize_q8, in its dtype."""
    whole = x.float().unflatten(-1, (-1, 32))
    scale = whole.abs().amax(-1, keepdim=True) / 127
    return ((whole / scale).round() * scale).flatten(-2).to(x.dtype)


def cases(dtype: Any = torch.float32, device: str = "cpu") -> list[Case]:
    """At least one case for each op of the table."""
    like = {"dtype": dtype, "device": device}
    x, r, c = (random(2, 3, 64, seed=seed, **like) for seed in range(3))
    w, b, w2, b2 = (random(64, seed=seed, **like) for seed in range(4))
    m1, m3 = (random(40, 64, seed=seed, **like) / 8 for seed in range(2))
    mb = random(40, **like)
    q, k, v = random(2, 4, 3, 32, **like), random(2, 2, 7, 32, **like), random(2, 2, 7, 32, seed=1, **like)
    h = random(5, 4, 32, **like)
    positions = torch.arange(3, 8, device=device)
    found = [
        Case(
            "layer_norm",
            lambda x, w, b, out: ops.layer_norm(x, w, b, out=out),
            [x, w, b],
            [x, w, b, EPS],
            layer_norm,
        ),
        Case("rms_norm", lambda x, w, out: ops.rms_norm(x, w, EPS, out=out), [x, w], [x, w, EPS], rms_norm),
        Case(
            "layer_norm_residual",
            lambda x, r, w, b, out: ops.layer_norm_residual(x, r, w, b, out=out),
            [x, r, w, b],
            [x, r, w, b, EPS],
            lambda x, r, w, b: layer_norm(x, w, b) + r,
        ),
        Case(
            "add_norm",
            lambda x, r, w, b, out: ops.add_norm((x, r), w, b, out=out),
            [x, r, w, b],
            [x, r, None, w, b, EPS, "layer_norm"],
            lambda x, r, w, b: (x + r, layer_norm(x + r, w, b)),
        ),
        Case(
            "add_norm",
            lambda x, r, c, w, out: ops.add_norm((x, r, c), w, eps=EPS, norm="rms_norm", out=out),
            [x, r, c, w],
            [x, r, c, w, None, EPS, "rms_norm"],
            lambda x, r, c, w: (x + r + c, rms_norm(x + r + c, w)),
        ),
        Case(
            "add_norm2",
            lambda x, r, c, w, w2, b2, out: ops.add_norm((x, r, c), w, second=(w2, b2), out=out),
            [x, r, c, w, w2, b2],
            [x, r, c, w, None, w2, b2, EPS, "layer_norm"],
            lambda x, r, c, w, w2, b2: (x + r + c, layer_norm(x + r + c, w, None), layer_norm(x + r + c, w2, b2)),
        ),
        Case("add3", lambda x, r, c, out: ops.add3(x, r, c, out=out), [x, r, c], [x, r, c], lambda x, r, c: x + r + c),
        Case("silu_mul", lambda x, r, out: ops.silu_mul(x, r, out=out), [x, r], [x, r], lambda x, r: F.silu(x) * r),
        Case(
            "norm_linear",
            lambda x, w, b, m, mb, out: ops.norm_linear(x, w, b, m, mb, activation="gelu_tanh", out=out),
            [x, w, b, m1, mb],
            [x, w, b, m1, mb, EPS, "layer_norm", "gelu_tanh"],
            lambda x, w, b, m, mb: F.gelu(F.linear(layer_norm(x, w, b), m, mb), approximate="tanh"),
        ),
        Case(
            "norm_linear",
            lambda x, w, m, out: ops.norm_linear(x, w, None, m, norm="rms_norm", out=out),
            [x, w, m1],
            [x, w, None, m1, None, EPS, "rms_norm", "none"],
            lambda x, w, m: F.linear(rms_norm(x, w), m),
        ),
        Case(
            "rope",
            lambda h, p, out: ops.rope(h, p, out=out),
            [h, positions],
            [h, positions, None, 1e4, None],
            rotated,
        ),
    ]
    for name, function in (("none", lambda t: t), ("gelu", F.gelu), ("silu", F.silu)):
        found.append(
            Case(
                "linear_bias_act",
                lambda x, m, mb, out, name=name: ops.linear_bias_act(x, m, mb, name, out=out),
                [x, m1, mb],
                [x, m1, mb, name],
                lambda x, m, mb, function=function: function(F.linear(x, m, mb)),
            )
        )
    for strategy in ("vector", "accumulator", "dual"):
        found.append(
            Case(
                "swiglu",
                lambda x, m1, m3, out, strategy=strategy: ops.swiglu(x, m1, m3, strategy=strategy, out=out),
                [x, m1, m3],
                [x, m1, m3, strategy],
                lambda x, m1, m3: F.silu(F.linear(x, m1)) * F.linear(x, m3),
            )
        )
    for exact in (False, True):
        found.append(
            Case(
                "attention",
                lambda q, k, v, out, exact=exact: ops.attention(q, k, v, exact=exact, out=out),
                [q, k, v],
                [q, k, v, None, None, exact],
                causal,
            )
        )
    return found


def as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def out_of(results: tuple[Any, ...]) -> Any:
    """Memory like the results of an op, full of NaN, as its `out`."""
    outs = tuple(torch.full_like(t, float("nan") if t.is_floating_point() else 255) for t in results)
    return outs if len(outs) > 1 else outs[0]


def op_named(name: str) -> Any:
    return next(op for op in _register.TABLE if op.name == name)
