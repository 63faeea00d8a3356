"""A float64 run of a callable that was written for another dtype."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ._tree import is_float, leaves, map_leaves

_LOW = (torch.float32, torch.float16, torch.bfloat16)


class _Widen(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Runs every operator in float64.

    Floating tensors that enter an operator are converted, and a dtype argument below float64 becomes float64.
    So ``x.to(torch.float32)`` and weights in a closure do not round.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def widen(_: Any, leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                return leaf.to(torch.float64) if leaf.dtype in _LOW else leaf
            return torch.float64 if isinstance(leaf, torch.dtype) and leaf in _LOW else leaf

        return func(*map_leaves(widen, tuple(args)), **map_leaves(widen, dict(kwargs or {})))


def original(fn: Callable[..., Any]) -> Callable[..., Any]:
    """What ``torch.compile`` was given, if ``fn`` is its result; otherwise ``fn``."""
    for name in ("_orig_mod", "_torchdynamo_orig_callable"):
        inner = getattr(fn, name, None)
        if callable(inner):
            return original(inner)
    return fn


def is_compiled(fn: Callable[..., Any]) -> bool:
    """Whether ``fn`` is a result of ``torch.compile``."""
    return original(fn) is not fn


class DoubleRun:
    """Calls ``plain`` in float64. ``why_not`` is empty as long as that works and says more than ``plain`` does."""

    def __init__(self, plain: Callable[..., Any], inputs: Any) -> None:
        floats = [leaf.dtype for _, leaf in leaves(inputs) if is_float(leaf)]
        double = bool(floats) and all(dtype is torch.float64 for dtype in floats)
        self.why_not = "plain is in float64 itself" if double else ""
        self.with_inputs = False  # return (result, inputs): for a plain that writes to its inputs
        self._fn = original(plain)
        if isinstance(self._fn, torch.nn.Module):
            try:
                self._fn = copy.deepcopy(self._fn).double()
            except Exception as error:  # a module may refuse to be copied
                self.why_not = f"plain cannot be copied: {_short(error)}"

    def __call__(self, inputs: Any) -> Any:
        """The result on ``inputs`` (floating tensors are converted), or None where it cannot run."""
        if self.why_not:
            return None

        def widen(_: Any, leaf: Any) -> Any:
            return leaf.detach().to(torch.float64, copy=True) if is_float(leaf) else leaf

        wide = map_leaves(widen, inputs)
        try:
            with torch.no_grad(), _Widen():  # type: ignore[no-untyped-call, unused-ignore]
                result = self._fn(*wide)
        except Exception as error:  # any kernel may be without a float64 version
            self.why_not = f"plain does not run in float64: {_short(error)}"
            return None
        for _, leaf in leaves(result):
            if is_float(leaf) and leaf.dtype is not torch.float64:
                self.why_not = f"plain returns {leaf.dtype} for float64 inputs"
                return None
        return (result, wide) if self.with_inputs else result


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."


def short(error: BaseException) -> str:
    """The type and the first line of an error, at most 160 characters."""
    return _short(error)
