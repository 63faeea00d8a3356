"""Rotary positions and attention."""

from __future__ import annotations

import ctypes
import math
from typing import Any, Sequence

import torch
from torch import Tensor

from ..._c import integer
from ..._c_ops import errors, failure, fb_ops_positions, lib, number
from ...errors import UsageError
from ._call import Op, direct, dispatched
from ._context import LEAST_SPARE, enter
from ._tensors import Foreign, Heads, check_dims, device_of, new, refuse

_rope = lib.fb_ops_rope
_attention = lib.fb_ops_attention
_BITS = {torch.int32: 32, torch.int64: 64}
_NO_POSITIONS = fb_ops_positions(None, 64)


def _positions(t: Tensor, device: int, shape: tuple[int, ...]) -> tuple[fb_ops_positions, Tensor]:
    """Positions of this shape, and the tensor that must live until the call. They may lack leading dimensions."""
    if not isinstance(t, Tensor):
        refuse("positions", t, device)
    if t.get_device() != device or t.is_meta:
        wanted = "cpu" if device < 0 else f"cuda:{device}"
        raise UsageError(f"positions: device {t.device} (must be {wanted}, as the first argument)")
    bits = _BITS.get(t.dtype)
    if bits is None:
        raise UsageError(f"positions: dtype {t.dtype} (must be int32 or int64)")
    if t.shape != shape:
        if t.shape != shape[-1:]:
            raise UsageError(f"positions: shape {list(t.shape)} (must be {list(shape[-1:])} or {list(shape)})")
        t = t.expand(shape)
    t = t.contiguous()
    return fb_ops_positions(t.data_ptr() or None, bits), t


# ---- rope ----------------------------------------------------------------------------------------------------


def _run_rope(
    x: Tensor,
    positions: Tensor,
    rotary: int | None,
    theta: float,
    frequencies: Sequence[float] | None,
    out: Tensor | None,
) -> Tensor:
    device = device_of("x", x)
    check_dims("x", x, 3, "[..., rows, heads, width]")
    turned = x.shape[-1] if rotary is None else integer("rotary", rotary, -(2**31), 2**31 - 1)
    given: Any = None
    if frequencies is not None:
        if len(frequencies) != turned // 2:
            raise UsageError(f"frequencies: {len(frequencies)} numbers (must be {turned // 2}, half of rotary)")
        given = (ctypes.c_double * len(frequencies))(*(number("frequencies", f) for f in frequencies))
    where, held = _positions(positions, device, x.shape[:-2])
    made = new(x, tuple(x.shape)) if out is None else out
    given_x, given_out = Heads("x", x, device), Heads("out", made, device, True)
    if made.shape != x.shape:
        raise UsageError(f"out: shape {list(made.shape)} (must be {list(x.shape)})")
    given_x.flatten(2)
    given_out.flatten(2)
    (px,), (po,) = given_x.pack(-3, -2), given_out.pack(-3, -2)
    need = 0 if device < 0 else LEAST_SPARE + given_x.tensor.shape[0] * (16 + 4 * max(turned, 0))
    handle, stream = enter(device, need)
    status = _rope(handle, stream, px, where, turned, number("theta", theta), given, po, errors.address)
    if status:
        raise failure(status)
    return made


ROPE = Op(
    "rope",
    "Tensor x, Tensor positions, int? rotary, float theta, float[]? frequencies",
    _run_rope,
    lambda x, *_: x.new_empty(x.shape),
)


def rope(
    x: Tensor,
    positions: Tensor,
    *,
    rotary: int | None = None,
    theta: float = 10000.0,
    frequencies: Sequence[float] | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Rotates pairs (i, i + rotary/2) of the first `rotary` elements of each head by position * frequency[i], as
    GPT-NeoX and Llama of Hugging Face do, and copies the others.

    x [..., rows, heads, width]; positions int32 or int64, [rows] or [..., rows]. rotary: even, up to 512; None: width.
    frequencies [rotary / 2]; None: theta^(-2 i / rotary). Angles are computed in double. The result has x's shape and
    dtype. `out` may be x. The CPU refuses negative positions; a GPU cannot look.
    """
    listed = None if frequencies is None else [float(f) for f in frequencies]
    if direct():
        try:
            return _run_rope(x, positions, rotary, theta, listed, out)
        except Foreign:
            pass
    return dispatched(ROPE, out, x, positions, rotary, theta, listed)


# ---- attention -----------------------------------------------------------------------------------------------


def _new_result(q: Tensor) -> Tensor:
    """[..., heads, rows, width] in memory laid out [..., rows, heads, width]."""
    *lead, count, length, width = q.shape
    if not lead:
        return q.new_empty_strided((count, length, width), (width, count * width, 1))
    return q.new_empty((*lead, length, count, width)).transpose(-3, -2)


def _match_batch(one: Heads, lead: torch.Size) -> None:
    shape = one.tensor.shape
    if shape[:-3] != lead:
        raise UsageError(f"{one.name}: shape {list(shape)} (its leading dimensions must be {list(lead)}, as q's)")
    one.flatten(3)


def _need(q: Tensor, k: Tensor, exact: bool) -> int:
    """At least the bytes of workspace on a GPU: copies of one k and v, partial results, a row for each position; with
    `exact` also the scores of 264 blocks."""
    batch = max(math.prod(q.shape[:-3]), 1)
    context = k.shape[-2]
    scores = 264 * 4 * context if exact else 0
    return LEAST_SPARE + scores + 8 * (k.numel() + 16 * q.numel()) // batch + 32 * (context + q.shape[-2])


def _run_attention(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor | None, scale: float | None, exact: bool, out: Tensor | None
) -> Tensor:
    device = device_of("q", q)
    for name, t in (("q", q), ("k", k), ("v", v)):
        check_dims(name, t, 3, "[..., heads, rows, width]")
    shape = q.shape
    where, held = _NO_POSITIONS, None
    if positions is not None and shape[-2]:
        where, held = _positions(positions, device, shape[-2:-1])
    factor = 1 / math.sqrt(max(shape[-1], 1)) if scale is None else number("scale", scale)
    made = _new_result(q) if out is None else out
    given = [Heads("q", q, device), Heads("k", k, device), Heads("v", v, device), Heads("out", made, device, True)]
    if made.shape != shape:
        raise UsageError(f"out: shape {list(made.shape)} (must be {list(shape)})")
    for one in given:
        if len(shape) > 3 or one.tensor.dim() > 3:
            _match_batch(one, shape[:-3])
    handle, stream = enter(device, 0 if device < 0 else _need(q, k, exact))
    for pq, pk, pv, po in zip(*(one.pack(-2, -3) for one in given)):
        status = _attention(handle, stream, pq, pk, pv, where, factor, bool(exact), po, errors.address)
        if status:
            raise failure(status)
    return made


ATTENTION = Op(
    "attention",
    "Tensor q, Tensor k, Tensor v, Tensor? positions, float? scale, bool exact",
    _run_attention,
    lambda q, *_: _new_result(q),
)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    positions: Tensor | None = None,
    scale: float | None = None,
    exact: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """softmax(scale * q k^T) v, causal: a row sees the keys up to its position.

    q [..., heads, rows, width]; k, v [..., kv_heads, context, width] of q's dtype; neighbouring query heads share a KV
    head. width is at most 256. Leading dimensions are a batch, which runs one by one. positions int32 or int64 [rows],
    ascending, below context; None: the rows are the last ones of the context. scale None: 1 / sqrt(width). `exact`:
    scores and probabilities are rounded as if separate ops had stored them; otherwise one pass, which is faster.

    The result is [..., heads, rows, width], a transposed view of memory laid out [..., rows, heads, width]. The CPU
    refuses positions outside the context; a GPU treats them as the nearest one inside. A GPU reads k and v in place
    where [context, width] of a head has no gaps; otherwise, and on the CPU, they are copied first.
    """
    if direct():
        try:
            return _run_attention(q, k, v, positions, scale, exact, out)
        except Foreign:
            pass
    return dispatched(ATTENTION, out, q, k, v, positions, scale, exact)
