"""Bytes and floating-point operations of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ._double import is_compiled
from ._tree import copy_inputs, leaves


def tensor_bytes(tree: Any) -> int:
    """Bytes of all distinct tensors. An expanded tensor counts what it stores."""
    seen: dict[tuple[int, int], int] = {}
    for _, leaf in leaves(tree):
        if isinstance(leaf, Tensor):
            size = min(leaf.numel() * leaf.element_size(), leaf.untyped_storage().nbytes())
            seen[(leaf.data_ptr(), size)] = size
    return sum(seen.values())


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Adds up what each operator reads and writes. Views cost nothing.

    Products count by PyTorch's formulas, 2 FLOPs a multiplication and addition. Every other operator counts one FLOP
    for each element of its largest tensor.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.bytes = 0
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name.startswith(("empty", "new_empty")) or _is_view(func, args, out):
            return out
        self.bytes += tensor_bytes((args, kwargs, out))
        if func.overloadpacket in flop_registry:
            self.flops += int(flop_registry[func.overloadpacket](*args, **kwargs, out_val=out))
        else:
            sizes = [leaf.numel() for _, leaf in leaves((args, kwargs, out)) if isinstance(leaf, Tensor)]
            self.flops += max(sizes, default=0)
        return out


def _is_view(func: Any, args: Any, out: Any) -> bool:
    if not isinstance(out, Tensor) or func._schema.is_mutable:
        return False
    storage = out.untyped_storage().data_ptr()
    inputs = (leaf for _, leaf in leaves(args) if isinstance(leaf, Tensor))
    return storage != 0 and any(leaf.untyped_storage().data_ptr() == storage for leaf in inputs)


def counted(fn: Callable[..., Any], inputs: Any) -> tuple[int, int] | None:
    """Bytes and FLOPs of the operators that ``fn`` runs. None where they cannot be seen."""
    if is_compiled(fn):
        return None
    counter, own = Counter(), copy_inputs(inputs)
    try:
        with torch.no_grad(), counter:
            fn(*own)
    except Exception:  # a custom kernel may not accept a dispatch mode
        return None
    return counter.bytes, counter.flops


def least_bytes(fn: Callable[..., Any], inputs: Any) -> int:
    """Each input read once, each output written once."""
    own = copy_inputs(inputs)
    with torch.no_grad():
        result = fn(*own)
    return tensor_bytes((own, result))
