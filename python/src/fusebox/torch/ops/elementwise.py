"""Sums and products of elements."""

from __future__ import annotations

from torch import Tensor

from ..._c_ops import bare, errors, failure
from ._call import Op, direct, dispatched
from ._context import enter
from ._tensors import Foreign, first, result, rows
from .norms import like_first

_add3 = bare("fb_ops_add3")
_silu_mul = bare("fb_ops_silu_mul")


def _run_add3(a: Tensor, b: Tensor, c: Tensor, out: Tensor | None) -> Tensor:
    device, pa, a, shape = first("a", a)
    handle, stream = enter(device)
    pb, b = rows("b", b, device, shape)
    pc, c = rows("c", c, device, shape)
    po, made = result(out, a, pa, device, shape)
    status = _add3(handle, stream, pa, pb, pc, po, errors.address)
    if status:
        raise failure(status)
    return made


ADD3 = Op("add3", "Tensor a, Tensor b, Tensor c", _run_add3, like_first)


def add3(a: Tensor, b: Tensor, c: Tensor, *, out: Tensor | None = None) -> Tensor:
    """(a + b) + c, rounded after each addition. All are [..., cols], of one shape and dtype. `out` may be any of them.
    """
    if direct():
        try:
            return _run_add3(a, b, c, out)
        except Foreign:
            pass
    return dispatched(ADD3, out, a, b, c)


def _run_silu_mul(gate: Tensor, up: Tensor, out: Tensor | None) -> Tensor:
    device, pg, gate, shape = first("gate", gate)
    handle, stream = enter(device)
    pu, up = rows("up", up, device, shape)
    po, made = result(out, gate, pg, device, shape)
    status = _silu_mul(handle, stream, pg, pu, po, errors.address)
    if status:
        raise failure(status)
    return made


SILU_MUL = Op("silu_mul", "Tensor gate, Tensor up", _run_silu_mul, like_first)


def silu_mul(gate: Tensor, up: Tensor, *, out: Tensor | None = None) -> Tensor:
    """silu(gate) * up, with silu(x) = x / (1 + exp(-x)) rounded before the product. Both are [..., cols], of one shape
    and dtype. `out` may be either of them."""
    if direct():
        try:
            return _run_silu_mul(gate, up, out)
        except Foreign:
            pass
    return dispatched(SILU_MUL, out, gate, up)
