"""Tensors of torch as the library's structs, with the checks that only torch can make. The library checks the rest.

`device` is an index as the library has it: -1 for the CPU, else the CUDA device.
"""

from __future__ import annotations

import math
from typing import NoReturn

import torch
from torch import Tensor

from ... import _c
from ..._c_ops import pack_heads, pack_pointer, pack_tail, pack_tensor
from ...errors import UsageError

CODES = {
    torch.float32: _c.dtype("f32"),
    torch.float16: _c.dtype("f16"),
    torch.bfloat16: _c.dtype("bf16"),
}
_PLAIN = frozenset((Tensor, torch.nn.Parameter))
_code = CODES.get
_grad = torch.is_grad_enabled


class Foreign(Exception):
    """A tensor of a class, device or layout that the dispatcher must deal with."""


def mark_written(t: Tensor) -> None:
    """Tells autograd, as the dispatcher would, so that it refuses a backward pass over what is overwritten."""
    if not t.is_inference():
        torch.autograd.graph.increment_version(t)


# ---- refusals ------------------------------------------------------------------------------------------------


def _place(device: int) -> str:
    return "cpu" if device < 0 else f"cuda:{device}"


def refuse(name: str, t: object, device: int) -> NoReturn:
    """Why this tensor cannot be used; it is one of those below."""
    if not isinstance(t, Tensor):
        raise UsageError(f"{name}: {type(t).__name__} (must be a tensor)")
    if type(t) not in _PLAIN or t.layout is not torch.strided:
        raise Foreign(name)
    if t.get_device() != device or t.is_meta:
        raise UsageError(f"{name}: device {t.device} (must be {_place(device)}, as the first argument)")
    if t.requires_grad and _grad():
        raise UsageError(f"{name}: requires grad (fusebox ops have no gradient; use torch.no_grad())")
    if t.dtype not in CODES:
        raise UsageError(f"{name}: dtype {t.dtype} (must be float32, float16 or bfloat16)")
    _bad_shape(name, t, "[..., columns]")


def _bad_shape(name: str, t: Tensor, wanted: str) -> NoReturn:
    raise UsageError(f"{name}: shape {list(t.shape)} (must be {wanted})")


# ---- devices -------------------------------------------------------------------------------------------------


def device_of(name: str, t: Tensor) -> int:
    """The device of a call: that of its first argument."""
    if type(t) in _PLAIN:
        if t.is_cpu:
            return -1
        if t.is_cuda:
            return t.get_device()
        raise Foreign(name)
    return refuse(name, t, -1)


# ---- rows ----------------------------------------------------------------------------------------------------


def row_stride(t: Tensor) -> int | None:
    """Elements between the rows of t [..., cols]; None: they are not equally far apart, or a row has gaps."""
    sizes, strides = t.shape, t.stride()
    if sizes[-1] > 1 and strides[-1] != 1:
        return None
    stride = covered = 0
    found = False
    for size, step in zip(reversed(sizes[:-1]), reversed(strides[:-1])):
        if size == 1:
            continue
        if not found:
            stride, found = step, True
        elif step != covered:
            return None
        covered = step * size
    return stride if found else sizes[-1]


def first(name: str, t: Tensor) -> tuple[int, bytes, Tensor, torch.Size]:
    """The first argument of a call, an input [..., cols]: its device, what `rows` returns, and its shape."""
    if type(t) not in _PLAIN:
        refuse(name, t, -1)
    device = -1 if t.is_cpu else device_of(name, t)
    shape = t.shape
    code = _code(t.dtype)
    if not shape or (t.requires_grad and _grad()) or code is None:
        refuse(name, t, device)
    cols = shape[-1]
    if cols > 1 and t.is_contiguous():
        count = shape[0] if len(shape) == 2 else t.numel() // cols
        return device, pack_tensor(t.data_ptr(), code, count, cols, cols), t, shape
    packed, t = _uneven(name, t, cols)
    return device, packed, t, shape


def rows(name: str, t: Tensor, device: int, like: torch.Size) -> tuple[bytes, Tensor]:
    """An input of this shape [..., cols] as an fb_ops_tensor, and the tensor that must live until the call: t, or a
    copy of it where its rows do not lie at one distance."""
    if type(t) not in _PLAIN or t.get_device() != device or (t.requires_grad and _grad()):
        refuse(name, t, device)
    code = _code(t.dtype)
    if code is None:
        refuse(name, t, device)
    if t.shape != like:
        _bad_shape(name, t, f"{list(like)}, as the first argument")
    cols = like[-1]
    if cols > 1 and t.is_contiguous():
        count = like[0] if len(like) == 2 else t.numel() // cols
        return pack_tensor(t.data_ptr(), code, count, cols, cols), t
    return _uneven(name, t, cols)


def _uneven(name: str, t: Tensor, cols: int) -> tuple[bytes, Tensor]:
    if t.layout is not torch.strided:
        raise Foreign(name)
    stride = None if t.is_neg() else row_stride(t)
    if stride is None:
        t, stride = t.contiguous().resolve_neg(), cols
    return pack_tensor(t.data_ptr(), CODES[t.dtype], t.numel() // cols if cols else 0, cols, stride), t


def output(name: str, t: Tensor, device: int, shape: tuple[int, ...]) -> bytes:
    """An output of this shape [..., cols], which the caller gave."""
    if type(t) not in _PLAIN or t.get_device() != device or (t.requires_grad and _grad()):
        refuse(name, t, device)
    code = _code(t.dtype)
    if code is None:
        refuse(name, t, device)
    if t.shape != shape:
        _bad_shape(name, t, f"{list(shape)}")
    mark_written(t)
    cols = shape[-1]
    if cols > 1 and t.is_contiguous():
        return pack_tensor(t.data_ptr(), code, t.numel() // cols, cols, cols)
    count = t.numel() // cols if cols else 0
    if t.layout is not torch.strided or t.is_neg():
        raise Foreign(name)
    stride = row_stride(t)
    if stride is None:
        raise UsageError(
            f"{name}: strides {list(t.stride())} for shape {list(shape)} "
            "(rows must have no gaps, and lie at one distance)"
        )
    return pack_tensor(t.data_ptr(), code, count, cols, stride)


def new(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Memory for an output without gaps, on x's device and with its dtype. new_empty would take 0.6 us longer."""
    if len(shape) == 2:
        return x.new_empty_strided(shape, (shape[1], 1))
    if len(shape) == 3:
        _, rows, cols = shape
        if rows and cols:
            return x.new_empty_strided(shape, (rows * cols, cols, 1))
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    return x.new_empty_strided(shape, strides[::-1])


def result(out: Tensor | None, x: Tensor, packed: bytes, device: int, shape: torch.Size) -> tuple[bytes, Tensor]:
    """An output with the shape and dtype of x [..., cols], which is `packed`: the caller's `out`, or new memory."""
    if out is not None:
        return output("out", out, device, shape), out
    if x.is_contiguous():
        made = torch.empty_like(x)
        return pack_pointer(made.data_ptr()) + packed[8:], made
    made = new(x, tuple(shape))
    cols = shape[-1]
    return pack_tensor(made.data_ptr(), CODES[x.dtype], made.numel() // cols if cols else 0, cols, cols), made


def projected(out: Tensor | None, x: Tensor, device: int, shape: torch.Size, n: int) -> tuple[bytes, Tensor]:
    """An output of shape [..., n]: the caller's `out`, or new memory."""
    if out is None and len(shape) == 2:  # slices of a torch.Size take 0.2 us each
        count = shape[0]
        made = x.new_empty_strided((count, n), (n, 1))
        return pack_tensor(made.data_ptr(), CODES[x.dtype], count, n, n), made
    wanted = (*shape[:-1], n)
    if out is not None:
        return output("out", out, device, wanted), out
    made = new(x, wanted)
    return pack_tensor(made.data_ptr(), CODES[x.dtype], made.numel() // n if n else 0, n, n), made


# ---- weights -------------------------------------------------------------------------------------------------


def vector(name: str, t: Tensor | None, device: int) -> bytes | None:
    """A weight or bias [n]; None: there is none."""
    if t is None:
        return None
    if type(t) not in _PLAIN or t.get_device() != device or (t.requires_grad and _grad()):
        refuse(name, t, device)
    code = _code(t.dtype)
    if code is None:
        refuse(name, t, device)
    if t.stride() != (1,):
        _look_closer(name, t)
    n = t.numel()
    return pack_tensor(t.data_ptr(), code, 1, n, n)


def _look_closer(name: str, t: Tensor) -> None:
    """Refuses what is no vector without gaps. The stride of a single element says nothing."""
    if t.layout is not torch.strided:
        raise Foreign(name)
    if t.dim() != 1:
        _bad_shape(name, t, "[columns]")
    if not t.is_contiguous():
        raise UsageError(f"{name}: stride {t.stride(0)} (must be 1: copy it with .contiguous())")


def plain_terms(
    a: Tensor, b: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[int, bytes, bytes | None, bytes | None, bytes] | None:
    """The common case of `first`, `rows` and `vector`, in three quarters of their time: plain tensors without gaps on
    one device, the terms of one shape and dtype. Returns the device; terms, weight and bias packed; and what follows
    the pointer in a packed term. None: those functions must look at each tensor, and refuse it or not."""
    if type(a) not in _PLAIN or type(b) not in _PLAIN or type(weight) not in _PLAIN:
        return None
    device, shape, dtype = a.get_device(), a.shape, a.dtype
    if b.get_device() != device or weight.get_device() != device or not (a.is_cpu or a.is_cuda):
        return None
    if (a.requires_grad or b.requires_grad or weight.requires_grad) and _grad():
        return None
    code, weight_code = _code(dtype), _code(weight.dtype)
    if code is None or weight_code is None or len(shape) < 2 or b.dtype is not dtype or b.shape != shape:
        return None
    cols = shape[-1]
    if cols < 2 or not a.is_contiguous() or not b.is_contiguous() or weight.stride() != (1,):
        return None
    tail = pack_tail(code, shape[0] if len(shape) == 2 else a.numel() // cols, cols, cols)
    terms = pack_pointer(a.data_ptr()) + tail + pack_pointer(b.data_ptr()) + tail
    n = weight.numel()
    packed = pack_tensor(weight.data_ptr(), weight_code, 1, n, n)
    return device, terms, packed, None if bias is None else vector("bias", bias, device), tail


def matrix(name: str, t: Tensor, device: int) -> tuple[bytes, int]:
    """A weight [outputs, inputs], and its outputs."""
    if type(t) not in _PLAIN or t.get_device() != device or (t.requires_grad and _grad()):
        refuse(name, t, device)
    code = _code(t.dtype)
    if code is None:
        refuse(name, t, device)
    shape = t.shape
    if len(shape) != 2:
        _bad_shape(name, t, "[outputs, inputs]")
    n, cols = shape
    if not t.is_contiguous():
        if t.layout is not torch.strided:
            raise Foreign(name)
        raise UsageError(f"{name}: strides {list(t.stride())} (must be {[cols, 1]}: copy it with .contiguous())")
    return pack_tensor(t.data_ptr(), code, n, cols, cols), n


# ---- heads ---------------------------------------------------------------------------------------------------


def check(name: str, t: Tensor, device: int) -> None:
    """What holds for every float tensor of a call."""
    if type(t) not in _PLAIN or t.get_device() != device or t.dtype not in CODES or (t.requires_grad and _grad()):
        refuse(name, t, device)
    if t.layout is not torch.strided or t.is_meta:
        raise Foreign(name)


def check_dims(name: str, t: Tensor, least: int, wanted: str) -> None:
    if not isinstance(t, Tensor):
        refuse(name, t, -1)
    if t.dim() < least:
        _bad_shape(name, t, wanted)


def plain_heads(t: Tensor, device: int, dims: int, heads_first: bool) -> bytes | None:
    """The common case of Heads, in a third of its time: an input of three dimensions, or of four of which the first
    is 1, that needs no copy. None: Heads must look at it, and refuse it or not."""
    if type(t) not in _PLAIN or t.get_device() != device or (t.requires_grad and _grad()) or t.is_neg():
        return None
    code, sizes = _code(t.dtype), t.shape
    if code is None or len(sizes) != dims:
        return None
    try:
        if dims == 3:
            (first, second, width), (first_step, second_step, step) = sizes, t.stride()
        else:
            (one, first, second, width), (_, first_step, second_step, step) = sizes, t.stride()
            if one != 1:
                return None
        if step != 1:
            return None
        data = t.data_ptr()
    except RuntimeError:  # a sparse tensor has no strides or no data
        return None
    if heads_first:
        return pack_heads(data, code, second, first, width, second_step, first_step)
    return pack_heads(data, code, first, second, width, first_step, second_step)


class Heads:
    """A tensor of three or more dimensions, of which the last three are rows, heads and width in whichever order. An
    input is copied where a width has gaps, or where leading dimensions that must become one do not lie at one
    distance."""

    __slots__ = ("tensor", "name", "output", "code", "sizes", "strides")

    def __init__(self, name: str, t: Tensor, device: int, output: bool = False) -> None:
        if type(t) not in _PLAIN or t.get_device() != device or (t.requires_grad and _grad()):
            refuse(name, t, device)
        code = _code(t.dtype)
        if code is None:
            refuse(name, t, device)
        if t.layout is not torch.strided:
            raise Foreign(name)
        self.tensor, self.name, self.output, self.code = t, name, output, code
        self.sizes, self.strides = t.shape, t.stride()
        if t.is_neg() or (self.sizes[-1] > 1 and self.strides[-1] != 1):
            if output:
                raise UsageError(f"{name}: strides {list(t.stride())} (the last must be 1)")
            self._replace(t.contiguous().resolve_neg())
        if output:
            mark_written(t)

    def _replace(self, t: Tensor) -> None:
        self.tensor, self.sizes, self.strides = t, t.shape, t.stride()

    def flatten(self, kept: int) -> None:
        """Makes one dimension of all but the last `kept`."""
        t, shape = self.tensor, self.sizes
        if len(shape) == kept + 1:
            return
        wanted = (math.prod(shape[:-kept]), *shape[-kept:])
        if not self.output:
            self._replace(t.reshape(wanted))
            return
        try:
            self._replace(t.view(wanted))
        except RuntimeError:
            raise UsageError(
                f"{self.name}: strides {list(t.stride())} (its leading dimensions must lie at one distance)"
            ) from None

    def pack(self, row_dim: int, head_dim: int) -> list[bytes]:
        """An fb_ops_heads for each index of the first of four dimensions, or the only one. Others are counted from the
        end."""
        t, sizes, strides = self.tensor, self.sizes, self.strides
        data, code, width = t.data_ptr(), self.code, sizes[-1]
        rows, heads, row_step, head_step = sizes[row_dim], sizes[head_dim], strides[row_dim], strides[head_dim]
        if len(sizes) == 3:
            return [pack_heads(data, code, rows, heads, width, row_step, head_step)]
        apart = strides[0] * t.itemsize
        return [
            pack_heads(data + k * apart, code, rows, heads, width, row_step, head_step) for k in range(sizes[0])
        ]
