"""Linears: with a bias and an activation, with a norm before them, and two of them as a SwiGLU."""

from __future__ import annotations

from torch import Tensor

from ..._c_ops import bare, errors, failure, number
from ._call import Op, direct, dispatched
from ._context import enter
from ._tensors import Foreign, first, matrix, projected, vector
from .norms import NORMS, choice

ACTIVATIONS = {"none": 0, "gelu": 1, "gelu_tanh": 2, "silu": 3}
STRATEGIES = {"vector": 0, "accumulator": 1, "dual": 2}

_linear = bare("fb_ops_linear_bias_act")
_norm_linear = bare("fb_ops_norm_linear")
_swiglu = bare("fb_ops_swiglu")



def _outputs(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


# ---- linear_bias_act -----------------------------------------------------------------------------------------


def _run_linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, out: Tensor | None) -> Tensor:
    device, px, x, shape = first("x", x)
    pw, n = matrix("weight", weight, device)
    pb = vector("bias", bias, device)
    po, made = projected(out, x, device, shape, n)
    handle, stream = enter(device)
    status = _linear(handle, stream, px, pw, pb, choice("activation", activation, ACTIVATIONS), po, errors.address)
    if status:
        raise failure(status)
    return made


LINEAR_BIAS_ACT = Op(
    "linear_bias_act",
    "Tensor x, Tensor weight, Tensor? bias, str activation",
    _run_linear,
    lambda x, weight, *_: _outputs(x, weight),
)


def linear_bias_act(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none", *, out: Tensor | None = None
) -> Tensor:
    """activation(x weight^T + bias).

    x [..., inputs]; weight [outputs, inputs] without gaps, and bias [outputs], of any float dtype; the result is
    [..., outputs] in x's dtype. activation: "none", "gelu", "gelu_tanh" or "silu".
    """
    if direct():
        try:
            return _run_linear(x, weight, bias, activation, out)
        except Foreign:
            pass
    return dispatched(LINEAR_BIAS_ACT, out, x, weight, bias, activation)


# ---- norm_linear ---------------------------------------------------------------------------------------------


def _run_norm_linear(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    norm: str,
    activation: str,
    out: Tensor | None,
) -> Tensor:
    device, px, x, shape = first("x", x)
    pnw, pnb = vector("norm_weight", norm_weight, device), vector("norm_bias", norm_bias, device)
    pw, n = matrix("weight", weight, device)
    pb = vector("bias", bias, device)
    kind, act = choice("norm", norm, NORMS), choice("activation", activation, ACTIVATIONS)
    po, made = projected(out, x, device, shape, n)
    handle, stream = enter(device)
    status = _norm_linear(
        handle, stream, px, kind, pnw, pnb, number("eps", eps), pw, pb, act, po, errors.address
    )
    if status:
        raise failure(status)
    return made


NORM_LINEAR = Op(
    "norm_linear",
    "Tensor x, Tensor norm_weight, Tensor? norm_bias, Tensor weight, Tensor? bias, float eps, str norm, str activation",
    _run_norm_linear,
    lambda x, norm_weight, norm_bias, weight, *_: _outputs(x, weight),
)


def norm_linear(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    norm: str = "layer_norm",
    activation: str = "none",
    out: Tensor | None = None,
) -> Tensor:
    """activation(norm(x) weight^T + bias). The normalised x is rounded to x's dtype, but not stored: on the CPU for any
    number of rows, on a GPU for up to 8.

    x [..., inputs]; norm_weight, norm_bias [inputs], weight [outputs, inputs] without gaps, and bias [outputs], of any
    float dtype; the result is [..., outputs] in x's dtype. norm: "layer_norm" or "rms_norm", which has no bias;
    activation as in linear_bias_act.
    """
    if direct():
        try:
            return _run_norm_linear(x, norm_weight, norm_bias, weight, bias, eps, norm, activation, out)
        except Foreign:
            pass
    return dispatched(NORM_LINEAR, out, x, norm_weight, norm_bias, weight, bias, eps, norm, activation)


# ---- swiglu --------------------------------------------------------------------------------------------------


def _run_swiglu(x: Tensor, w1: Tensor, w3: Tensor, strategy: str, out: Tensor | None) -> Tensor:
    device, px, x, shape = first("x", x)
    (p1, n), (p3, _) = matrix("w1", w1, device), matrix("w3", w3, device)
    po, made = projected(out, x, device, shape, n)
    handle, stream = enter(device)
    status = _swiglu(handle, stream, px, p1, p3, choice("strategy", strategy, STRATEGIES), po, errors.address)
    if status:
        raise failure(status)
    return made


SWIGLU = Op(
    "swiglu", "Tensor x, Tensor w1, Tensor w3, str strategy", _run_swiglu, lambda x, w1, *_: _outputs(x, w1)
)


def swiglu(x: Tensor, w1: Tensor, w3: Tensor, *, strategy: str = "dual", out: Tensor | None = None) -> Tensor:
    """silu(x w1^T) * (x w3^T).

    x [..., inputs]; w1, w3 [outputs, inputs] without gaps, of any float dtype; the result is [..., outputs] in x's
    dtype. All strategies give the same bits. They differ in what is stored in between: "vector" stores both projections
    and computes silu(gate) * up as one elementwise op; "accumulator" applies silu to the sums of the first projection
    before they are stored; "dual" computes both together and stores only the product.
    """
    if direct():
        try:
            return _run_swiglu(x, w1, w3, strategy, out)
        except Foreign:
            pass
    return dispatched(SWIGLU, out, x, w1, w3, strategy)
