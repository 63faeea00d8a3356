"""Norms, alone and with additions."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import Tensor

from ..._c_ops import bare, errors, failure, number, pack_pointer
from ...errors import UsageError
from ._call import Op, direct, dispatched
from ._context import enter
from ._tensors import Foreign, first, output, plain_terms, result, rows, vector

NORMS = {"layer_norm": 0, "rms_norm": 1}

_layer_norm = bare("fb_ops_layer_norm")
_rms_norm = bare("fb_ops_rms_norm")
_residual = bare("fb_ops_layer_norm_residual")
_add_norm = bare("fb_ops_add_norm")
_empty_like = torch.empty_like
_NO_DATA = bytes(40)  # an fb_ops_tensor without data


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


def _any_add_norm(
    terms: list[Tensor], weights: list[Tensor], biases: list[Tensor | None], out: Sequence[Tensor] | None
) -> tuple[int, bytes, bytes | None, bytes | None, bytes, bytes, tuple[Tensor, ...], list[Tensor]]:
    """The device; terms, weights, biases, sum and norms packed; the results; and what must live until the call."""
    device, packed, kept, shape = first("terms[0]", terms[0])
    held, joined = [kept], packed
    for k in range(1, len(terms)):
        more, kept = rows(f"terms[{k}]", terms[k], device, shape)
        joined += more
        held.append(kept)
    pw, pb = vector("weight", weights[0], device), vector("bias", biases[0], device)
    if len(weights) == 2:
        pw = (pw or _NO_DATA) + (vector("second[0]", weights[1], device) or _NO_DATA)
        if biases[0] is not None or biases[1] is not None:
            pb = (pb or _NO_DATA) + (vector("second[1]", biases[1], device) or _NO_DATA)
    if out is None:
        made = [result(None, held[0], packed, device, shape) for _ in range(1 + len(weights))]
    else:
        made = [(output(f"out[{k}]", t, device, shape), t) for k, t in enumerate(out)]
    normed = b"".join(one for one, _ in made[1:])
    return device, joined, pw, pb, made[0][0], normed, tuple(t for _, t in made), held


def _run_add_norm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    norm: str,
    out: Sequence[Tensor] | None,
    weight2: Tensor | None = None,
    bias2: Tensor | None = None,
) -> tuple[Tensor, ...]:
    term_count, norm_count = 2 if c is None else 3, 1 if weight2 is None else 2
    plain = plain_terms(a, b, weight, bias) if out is None and term_count + norm_count == 3 else None
    if plain is not None:
        device, terms, weights, biases, tail = plain
        total, normed = _empty_like(a), _empty_like(a)
        made: tuple[Tensor, ...] = (total, normed)
        sums, norms = pack_pointer(total.data_ptr()) + tail, pack_pointer(normed.data_ptr()) + tail
    else:
        device, terms, weights, biases, sums, norms, made, held = _any_add_norm(
            [a, b] if c is None else [a, b, c],
            [weight] if weight2 is None else [weight, weight2],
            [bias, bias2],
            out,
        )
    kind, small = choice("norm", norm, NORMS), number("eps", eps)
    handle, stream = enter(device)
    status = _add_norm(
        handle, stream, terms, term_count, kind, weights, biases, norm_count, small, sums, norms, errors.address
    )
    if status:
        raise failure(status)
    return made


def _run_two_norms(*arguments: Any) -> tuple[Tensor, ...]:
    a, b, c, weight, bias, weight2, bias2, eps, norm, out = arguments
    return _run_add_norm(a, b, c, weight, bias, eps, norm, out, weight2, bias2)


ADD_NORM = Op(
    "add_norm",
    "Tensor a, Tensor b, Tensor? c, Tensor weight, Tensor? bias, float eps, str norm",
    _run_add_norm,
    lambda a, *_: (a.new_empty(a.shape), a.new_empty(a.shape)),
    ("sum", "normed"),
)
ADD_NORM2 = Op(
    "add_norm2",
    "Tensor a, Tensor b, Tensor? c, Tensor weight, Tensor? bias, Tensor weight2, Tensor? bias2, float eps, str norm",
    _run_two_norms,
    lambda a, *_: (a.new_empty(a.shape), a.new_empty(a.shape), a.new_empty(a.shape)),
    ("sum", "normed", "normed2"),
)


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
    weight2, bias2 = (None, None) if second is None else second
    results = 2 if second is None else 3
    if out is not None and len(out) != results:
        raise UsageError(f"out: {len(out)} tensors (must be {results})")
    if direct():
        try:
            return _run_add_norm(terms[0], terms[1], c, weight, bias, eps, norm, out, weight2, bias2)
        except Foreign:
            pass
    if second is None:
        return tuple(dispatched(ADD_NORM, out, terms[0], terms[1], c, weight, bias, eps, norm))
    return tuple(dispatched(ADD_NORM2, out, terms[0], terms[1], c, weight, bias, weight2, bias2, eps, norm))
