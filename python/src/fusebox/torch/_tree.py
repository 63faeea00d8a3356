"""Nested arguments and results, and copies of tensors that keep their layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

Path = tuple[Any, ...]


def leaves(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every leaf of nested tuples, lists and dicts with its path, in order."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, (*path, key))
    elif isinstance(tree, (tuple, list)):
        for index, value in enumerate(tree):
            yield from leaves(value, (*path, index))
    else:
        yield path, tree


def map_leaves(fn: Callable[[Path, Any], Any], tree: Any, path: Path = ()) -> Any:
    """The same tree with every leaf replaced by ``fn(path, leaf)``."""
    if isinstance(tree, dict):
        # Results of Hugging Face models are dicts with constructors of their own: a plain dict is enough here.
        return {key: map_leaves(fn, value, (*path, key)) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map_leaves(fn, value, (*path, index)) for index, value in enumerate(tree))
    if isinstance(tree, list):
        return [map_leaves(fn, value, (*path, index)) for index, value in enumerate(tree)]
    return fn(path, tree)


def path_name(path: Path) -> str:
    """``(0, 'k')`` as ``[0]['k']``; nothing for a tree that is one leaf."""
    return "".join(f"[{key!r}]" for key in path)


def is_float(leaf: Any) -> bool:
    """Whether the leaf is a tensor of a real floating-point dtype of 16 bits or more: with 8 it is a code."""
    return isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.element_size() > 1


def copy_layout(x: Tensor) -> Tensor:
    """A copy of ``x`` with the same strides and the same offset into its storage."""
    x = x.detach()
    if x.layout is not torch.strided:
        return x.clone()
    item = x.element_size()
    span = x.untyped_storage().nbytes() // item
    if x.numel() == 0 or span > 4 * x.numel() + (1 << 20):
        return x.clone()  # a small window into a large storage: its surroundings are not worth a copy
    whole = torch.as_strided(x, (span,), (1,), 0).clone()
    return torch.as_strided(whole, x.size(), x.stride(), x.storage_offset())


def copy_inputs(tree: Any) -> Any:
    """Copies of all tensors of ``tree``, layouts kept. Other leaves stay what they are."""
    return map_leaves(lambda _, leaf: copy_layout(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def fill_layout(like: Tensor, values: Tensor) -> Tensor:
    """``values`` (same shape) in a tensor of ``like``'s dtype, strides and offset."""
    out = copy_layout(like)
    if _overlaps(out):
        return values.to(like.dtype).clone()
    out.copy_(values)
    return out


def _overlaps(x: Tensor) -> bool:
    return any(stride == 0 and size > 1 for size, stride in zip(x.size(), x.stride()))


def freeze(tree: Any) -> Any:
    """A result as it is now: tensors cloned, so that a later call cannot change them."""
    return map_leaves(lambda _, leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, tree)


def devices(tree: Any) -> list[torch.device]:
    """The devices of all tensors of ``tree``, each once."""
    found: list[torch.device] = []
    for _, leaf in leaves(tree):
        if isinstance(leaf, Tensor) and leaf.device not in found:
            found.append(leaf.device)
    return found


def synchronize(tree: Any) -> None:
    """Wait for all CUDA devices that hold a tensor of ``tree``."""
    for device in devices(tree):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
