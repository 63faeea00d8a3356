"""Norms, alone and with additions."""

from __future__ import annotations

from typing import Any, Sequence

from torch import Tensor

from ..._c_ops import errors, failure, lib, number
from ...errors import UsageError
from ._call import Op, direct, dispatched
from ._context import enter
from ._tensors import Foreign, first, output, result, rows, vector

NORMS = {"layer_norm": 0, "rms_norm": 1}

_layer_norm = lib.fb_ops_layer_norm
_rms_norm = lib.fb_ops_rms_norm
_residual = lib.fb_ops_layer_norm_residual
_add_norm = lib.fb_ops_add_norm
_NO_BIAS = bytes(40)  # an fb_ops_tensor without data


def choice(name: str, value: Any, choices: dict[str, int]) -> int:
    """The number of an enumeration's name."""
    try:
        return choices[value]
    except (KeyError, TypeError):
        raise UsageError(f"{name}: {value!r} (must be one of {', '.join(choices)})") from None


def like_first(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


# ---- layer_norm ----------------------------------------------------------------------------------------------


def _run_layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor | None) -> Tensor:
    device, px, x, shape = first("x", x)
    handle, stream = enter(device)
    pw, pb = vector("weight", weight, device), vector("bias", bias, device)
    po, made = result(out, x, px, device, shape)
    status = _layer_norm(handle, stream, px, pw, pb, number("eps", eps), po, errors.address)
    if status:
        raise failure(status)
    return made


LAYER_NORM = Op("layer_norm", "Tensor x, Tensor weight, Tensor? bias, float eps", _run_layer_norm, like_first)


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-5, *, out: Tensor | None = None
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias, over the last dimension.

    x [..., cols]; weight, bias [cols] of any float dtype; the result has x's shape and dtype. `out` may be x.
    """
    if direct():
        try:
            return _run_layer_norm(x, weight, bias, eps, out)
        except Foreign:
            pass
    return dispatched(LAYER_NORM, out, x, weight, bias, eps)


# ---- rms_norm ------------------------------------------------------------------------------------------------


def _run_rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None) -> Tensor:
    device, px, x, shape = first("x", x)
    handle, stream = enter(device)
    pw = vector("weight", weight, device)
    po, made = result(out, x, px, device, shape)
    status = _rms_norm(handle, stream, px, pw, number("eps", eps), po, errors.address)
    if status:
        raise failure(status)
    return made


RMS_NORM = Op("rms_norm", "Tensor x, Tensor weight, float eps", _run_rms_norm, like_first)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6, *, out: Tensor | None = None) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension.

    x [..., cols]; weight [cols] of any float dtype; the result has x's shape and dtype. `out` may be x.
    """
    if direct():
        try:
            return _run_rms_norm(x, weight, eps, out)
        except Foreign:
            pass
    return dispatched(RMS_NORM, out, x, weight, eps)


# ---- layer_norm_residual -------------------------------------------------------------------------------------


def _run_residual(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor | None
) -> Tensor:
    device, px, x, shape = first("x", x)
    handle, stream = enter(device)
    pr, residual = rows("residual", residual, device, shape)
    pw, pb = vector("weight", weight, device), vector("bias", bias, device)
    po, made = result(out, x, px, device, shape)
    status = _residual(handle, stream, px, pr, pw, pb, number("eps", eps), po, errors.address)
    if status:
        raise failure(status)
    return made


LAYER_NORM_RESIDUAL = Op(
    "layer_norm_residual",
    "Tensor x, Tensor residual, Tensor weight, Tensor? bias, float eps",
    _run_residual,
    like_first,
)


def layer_norm_residual(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """layer_norm(x) + residual. The norm is rounded to x's dtype before the addition.

    x, residual [..., cols] of one dtype; weight, bias [cols] of any float dtype; the result has x's shape and dtype.
    `out` may be x or residual.
    """
    if direct():
        try:
            return _run_residual(x, residual, weight, bias, eps, out)
        except Foreign:
            pass
    return dispatched(LAYER_NORM_RESIDUAL, out, x, residual, weight, bias, eps)


# ---- add_norm ------------------------------------------------------------------------------------------------


def _run_add_norm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    weight2: Tensor | None,
    bias2: Tensor | None,
    eps: float,
    norm: str,
    out: Sequence[Tensor] | None,
) -> tuple[Tensor, ...]:
    device, pa, a, shape = first("terms[0]", a)
    handle, stream = enter(device)
    pb, b = rows("terms[1]", b, device, shape)
    terms = pa + pb
    if c is not None:
        pc, c = rows("terms[2]", c, device, shape)
        terms += pc
    weights, biases = vector("weight", weight, device), vector("bias", bias, device)
    if weight2 is not None:
        weights = (weights or b"") + (vector("second[0]", weight2, device) or b"")
        if bias is not None or bias2 is not None:
            biases = (biases or _NO_BIAS) + (vector("second[1]", bias2, device) or _NO_BIAS)
    if out is None:
        ps, total = result(None, a, pa, device, shape)
        po, normed = result(None, a, pa, device, shape)
        made: tuple[Tensor, ...] = (total, normed)
        if weight2 is not None:
            po2, normed2 = result(None, a, pa, device, shape)
            po, made = po + po2, (total, normed, normed2)
    else:
        made = tuple(out)
        ps = output("out[0]", made[0], device, shape)
        po = b"".join(output(f"out[{k}]", made[k], device, shape) for k in range(1, len(made)))
    status = _add_norm(
        handle,
        stream,
        terms,
        2 if c is None else 3,
        choice("norm", norm, NORMS),
        weights,
        biases,
        1 if weight2 is None else 2,
        number("eps", eps),
        ps,
        po,
        errors.address,
    )
    if status:
        raise failure(status)
    return made


def _run_add_norm1(*arguments: Any) -> tuple[Tensor, ...]:
    a, b, c, weight, bias, eps, norm, out = arguments
    return _run_add_norm(a, b, c, weight, bias, None, None, eps, norm, out)


ADD_NORM = Op(
    "add_norm",
    "Tensor a, Tensor b, Tensor? c, Tensor weight, Tensor? bias, float eps, str norm",
    _run_add_norm1,
    lambda a, *_: (a.new_empty(a.shape), a.new_empty(a.shape)),
    ("sum", "normed"),
)
ADD_NORM2 = Op(
    "add_norm2",
    "Tensor a, Tensor b, Tensor? c, Tensor weight, Tensor? bias, Tensor weight2, Tensor? bias2, float eps, str norm",
    _run_add_norm,
    lambda a, *_: (a.new_empty(a.shape), a.new_empty(a.shape), a.new_empty(a.shape)),
    ("sum", "normed", "normed2"),
)


def _one_norm(*arguments: Any) -> tuple[Tensor, ...]:
    if direct():
        try:
            return _run_add_norm1(*arguments)
        except Foreign:
            pass
    return tuple(dispatched(ADD_NORM, arguments[-1], *arguments[:-1]))


def _two_norms(*arguments: Any) -> tuple[Tensor, ...]:
    if direct():
        try:
            return _run_add_norm(*arguments)
        except Foreign:
            pass
    return tuple(dispatched(ADD_NORM2, arguments[-1], *arguments[:-1]))


def add_norm(
    terms: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    norm: str = "layer_norm",
    second: tuple[Tensor, Tensor | None] | None = None,
    out: Sequence[Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """(sum, normed): the sum of two or three terms, added from left to right and rounded after each addition, and a
    norm of it. With `second` (weight2, bias2): (sum, normed, normed2), the same sum normalised with other weights.

    terms [..., cols] of one dtype; weights and biases [cols] of any float dtype; results have the terms' shape and
    dtype. norm: "layer_norm" or "rms_norm", which has no bias. `out`: a tuple of as many tensors as results; each may
    be one of the terms, but no two the same one.
    """
    count = len(terms)
    if count != 2 and count != 3:
        raise UsageError(f"terms: {count} tensors (must be 2 or 3)")
    c = terms[2] if count == 3 else None
    results = 2 if second is None else 3
    if out is not None and len(out) != results:
        raise UsageError(f"out: {len(out)} tensors (must be {results})")
    if second is None:
        return _one_norm(terms[0], terms[1], c, weight, bias, eps, norm, out)
    return _two_norms(terms[0], terms[1], c, weight, bias, second[0], second[1], eps, norm, out)
