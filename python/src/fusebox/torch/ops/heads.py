"""Rotary positions and attention."""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any, Sequence

import torch
from torch import Tensor

from ..._c import integer
from ..._c_ops import bare, errors, failure, fb_ops_positions, number, pack_heads
from ...errors import UsageError
from ._call import Op, direct, dispatched
from ._context import enter
from ._tensors import CODES, Foreign, Heads, check_dims, device_of, new, plain_heads, refuse

_rope = bare("fb_ops_rope")
_attention = bare("fb_ops_attention")
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
    if not t.is_contiguous():
        t = t.contiguous()
    return fb_ops_positions(t.data_ptr() or None, bits), t


# ---- rope ----------------------------------------------------------------------------------------------------


def _frequencies(given: Sequence[float], rotary: int) -> Any:
    if len(given) != rotary // 2:
        raise UsageError(f"frequencies: {len(given)} numbers (must be {rotary // 2}, half of rotary)")
    return (ctypes.c_double * len(given))(*(number("frequencies", f, float) for f in given))


def _rope_tensors(x: Tensor, out: Tensor | None, device: int, shape: torch.Size) -> tuple[bytes, bytes, Tensor, Any]:
    """x and the result as fb_ops_heads, the result, and what else must live until the call."""
    made = new(x, shape) if out is None else out
    if out is None and len(shape) == 3:
        packed = plain_heads(x, device, 3, False)
        if packed is not None:
            rows, heads, width = shape
            po = pack_heads(made.data_ptr(), CODES[x.dtype], rows, heads, width, heads * width, width)
            return packed, po, made, None
    given_x, given_out = Heads("x", x, device), Heads("out", made, device, True)
    if made.shape != shape:
        raise UsageError(f"out: shape {list(made.shape)} (must be {list(shape)})")
    given_x.flatten(2)
    given_out.flatten(2)
    (px,), (po,) = given_x.pack(-3, -2), given_out.pack(-3, -2)
    return px, po, made, given_x.tensor


def _run_rope(
    x: Tensor,
    positions: Tensor,
    rotary: int | None,
    theta: float,
    frequencies: Sequence[float] | None,
    out: Tensor | None,
) -> Tensor:
    device = device_of("x", x)
    shape = x.shape
    if len(shape) < 3:
        check_dims("x", x, 3, "[..., rows, heads, width]")
    turned = shape[-1] if rotary is None else integer("rotary", rotary, -(2**31), 2**31 - 1)
    given = None if frequencies is None else _frequencies(frequencies, turned)
    where, held = _positions(positions, device, (shape[0],) if len(shape) == 3 else shape[:-2])
    px, po, made, kept = _rope_tensors(x, out, device, shape)
    handle, stream = enter(device)
    status = _rope(handle, stream, px, where, turned, number("theta", theta, ctypes.c_double), given, po, errors.address)
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


def _new_result(q: Tensor, shape: torch.Size) -> Tensor:
    """[..., heads, rows, width] in memory laid out [..., rows, heads, width]."""
    if len(shape) == 3:
        count, length, width = shape
        return q.new_empty_strided(shape, (width, count * width, 1))
    *lead, count, length, width = shape
    return q.new_empty((*lead, length, count, width)).transpose(-3, -2)


def _match_batch(one: Heads, lead: torch.Size) -> None:
    shape = one.tensor.shape
    if shape[:-3] != lead:
        raise UsageError(f"{one.name}: shape {list(shape)} (its leading dimensions must be {list(lead)}, as q's)")
    one.flatten(3)


@functools.lru_cache(maxsize=256)
def _usual_scale(width: int) -> ctypes.c_float:
    return ctypes.c_float(1 / math.sqrt(max(width, 1)))


def _plain_attention(
    q: Tensor, k: Tensor, v: Tensor, device: int, shape: torch.Size
) -> tuple[bytes, bytes, bytes, bytes, Tensor] | None:
    """q, k, v and the result as fb_ops_heads, and the result, where none of them needs a copy and there is no batch.
    None: otherwise, or where something must be refused."""
    dims = len(shape)
    pq, pk, pv = plain_heads(q, device, dims, True), plain_heads(k, device, dims, True), plain_heads(v, device, dims, True)
    if pq is None or pk is None or pv is None:
        return None
    made = _new_result(q, shape)
    heads, rows, width = shape if dims == 3 else shape[1:]
    po = pack_heads(made.data_ptr(), CODES[q.dtype], rows, heads, width, heads * width, width)
    return pq, pk, pv, po, made


def _any_attention(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, device: int, shape: torch.Size
) -> tuple[list[list[bytes]], Tensor, list[Heads]]:
    """q, k, v and the result as lists of fb_ops_heads, one for each index of the batch; the result, and what must live
    until the calls."""
    for name, t in (("q", q), ("k", k), ("v", v)):
        check_dims(name, t, 3, "[..., heads, rows, width]")
    made = _new_result(q, shape) if out is None else out
    given = [Heads("q", q, device), Heads("k", k, device), Heads("v", v, device), Heads("out", made, device, True)]
    if made.shape != shape:
        raise UsageError(f"out: shape {list(made.shape)} (must be {list(shape)})")
    for one in given:
        if len(shape) > 3 or one.tensor.dim() > 3:
            _match_batch(one, shape[:-3])
    return [one.pack(-2, -3) for one in given], made, given


def _run_attention(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor | None, scale: float | None, exact: bool, out: Tensor | None
) -> Tensor:
    device = device_of("q", q)
    shape = q.shape
    if len(shape) < 3:
        check_dims("q", q, 3, "[..., heads, rows, width]")
    where, held = _NO_POSITIONS, None
    if positions is not None and shape[-2]:
        where, held = _positions(positions, device, shape[-2:-1])
    factor = _usual_scale(shape[-1]) if scale is None else number("scale", scale)
    plain = _plain_attention(q, k, v, device, shape) if out is None and len(shape) <= 4 else None
    if plain is not None:
        pq, pk, pv, po, made = plain
        handle, stream = enter(device)
        status = _attention(handle, stream, pq, pk, pv, where, factor, bool(exact), po, errors.address)
        if status:
            raise failure(status)
        return made
    lists, made, kept = _any_attention(q, k, v, out, device, shape)
    handle, stream = enter(device)
    for pq, pk, pv, po in zip(*lists):
        status = _attention(handle, stream, pq, pk, pv, where, factor, bool(exact), po, errors.address)
        if status:
            raise failure(status)
    return made


ATTENTION = Op(
    "attention",
    "Tensor q, Tensor k, Tensor v, Tensor? positions, float? scale, bool exact",
    _run_attention,
    lambda q, *_: _new_result(q, q.shape),
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
