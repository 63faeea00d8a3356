"""The table of ops, and their registration with torch.library as fusebox::NAME and fusebox::NAME_out."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import UsageError
from . import elementwise, heads, norms, projections, quantised
from ._call import Op
from ._tensors import Foreign

TABLE: tuple[Op, ...] = (
    norms.LAYER_NORM,
    norms.RMS_NORM,
    norms.LAYER_NORM_RESIDUAL,
    norms.ADD_NORM,
    norms.ADD_NORM2,
    elementwise.ADD3,
    elementwise.SILU_MUL,
    projections.LINEAR_BIAS_ACT,
    projections.NORM_LINEAR,
    projections.SWIGLU,
    heads.ROPE,
    heads.ATTENTION,
    quantised.QUANTIZE_Q8,
    quantised.LINEAR_QUANTISED,
    quantised.LINEAR_BLOCKS,
)


def _plain(value: Any) -> Any:
    """A tensor of a subclass as the tensor that it is: here, below the dispatcher, its class has had its say."""
    if isinstance(value, tuple):
        return tuple(_plain(one) for one in value)
    return value.as_subclass(torch.Tensor) if isinstance(value, torch.Tensor) else value


def _run(op: Op, arguments: tuple[Any, ...], out: Any) -> Any:
    try:
        return op.run(*arguments, out)
    except Foreign:
        pass
    try:
        return op.run(*_plain(arguments), _plain(out))
    except Foreign as name:
        raise UsageError(f"{name}: not a dense tensor on the CPU or a CUDA device (copy it to one)") from None


def _refuse_grad(arguments: Any) -> None:
    for t in arguments:
        if isinstance(t, torch.Tensor) and t.requires_grad and torch.is_grad_enabled():
            raise UsageError("a tensor requires grad (fusebox ops have no gradient; use torch.no_grad())")


def _register(library: Any, op: Op) -> None:
    single = len(op.results) == 1
    returned = "Tensor" if single else "(" + ", ".join(["Tensor"] * len(op.results)) + ")"
    written = ", ".join(f"Tensor({chr(ord('a') + k)}!) {name}" for k, name in enumerate(op.results))

    def functional(*arguments: Any) -> Any:
        return _run(op, arguments, None)

    def into(*given: Any) -> None:
        results = given[-len(op.results) :]
        _run(op, given[: -len(op.results)], results[0] if single else results)

    def shaped(*arguments: Any) -> Any:
        _refuse_grad(arguments)
        return op.shape(*arguments)

    def shaped_into(*given: Any) -> None:
        _refuse_grad(given)

    for name, schema, kernel, fake in (
        (op.name, f"({op.arguments}) -> {returned}", functional, shaped),
        (op.name + "_out", f"({op.arguments}, {written}) -> ()", into, shaped_into),
    ):
        library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(name, kernel, "CPU")
        library.impl(name, kernel, "CUDA")
        torch.library.register_fake("fusebox::" + name, fake, lib=library)


_Library: Any = torch.library.Library  # its methods have no types
LIBRARY = _Library("fusebox", "DEF")
for _op in TABLE:
    _register(LIBRARY, _op)
