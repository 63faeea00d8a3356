"""Linears of Q4_0 and Q8_0 weights, with activations quantised to 8 bits.

A quantised weight lies in the library's memory, in the layout of the device's kernels. The dispatcher knows only
tensors and numbers, so ops get the weight's number. Numbers are never used twice.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from ctypes import c_void_p
from typing import Any

import torch
from torch import Tensor

from ... import _c
from ..._c_ops import BLOCK_BYTES, errors, failure, lib
from ...errors import UsageError
from ._call import Op, direct, dispatched
from ._context import context, enter
from ._tensors import Foreign, check, device_of, first, mark_written, output, projected, refuse, vector
from .norms import choice

TYPES = {name: _c.dtype(name) for name in ("q4_0", "q8_0")}
_FUNCTIONS = {"q4_0": lib.fb_ops_linear_q4_0, "q8_0": lib.fb_ops_linear_q8_0}
_BLOCK = {"q4_0": 18, "q8_0": 34}  # bytes of 32 weights, as GGUF files have them

# ---- weights -------------------------------------------------------------------------------------------------

_numbers = itertools.count(1)
_weights: dict[int, weakref.ref[QuantizedWeight]] = {}
_lock = threading.Lock()


class QuantizedWeight:
    """A matrix [rows, cols] of Q4_0 or Q8_0 on one device. It must outlive the CUDA graphs that were captured with
    it."""

    number: int
    type: str
    rows: int
    cols: int
    device: torch.device

    def __init__(self, blocks: Tensor, type: str, rows: int, cols: int, device: torch.device) -> None:
        index = -1 if device.type == "cpu" else device.index
        handle = c_void_p()
        pointer = blocks.data_ptr()
        _c.call(lib.fb_ops_pack, context(index), TYPES[type], pointer, rows, cols, ctypes.byref(handle))
        self.type, self.rows, self.cols, self.device = type, rows, cols, device
        self.index = index
        self.handle: int = handle.value or 0
        self._free = weakref.finalize(self, lib.fb_ops_weight_free, self.handle)
        self._free.atexit = False  # contexts live until the process ends
        with _lock:
            self.number = next(_numbers)
            number = self.number
            _weights[number] = weakref.ref(self, lambda _: _weights.pop(number, None))

    def __repr__(self) -> str:
        return f"QuantizedWeight({self.type}, [{self.rows}, {self.cols}], {self.device})"


def _find(number: int) -> QuantizedWeight:
    reference = _weights.get(number)
    weight = reference() if reference is not None else None
    if weight is None:
        raise UsageError(f"weight: number {number} (must be of a QuantizedWeight that still exists)")
    return weight


def _place(device: torch.device | str) -> torch.device:
    where = torch.device(device)
    if where.type not in ("cpu", "cuda"):
        raise UsageError(f"device: {where} (must be cpu or cuda)")
    if where.type == "cuda" and where.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return where


def pack_weight(
    blocks: Tensor, type: str, rows: int, cols: int, device: torch.device | str | None = None
) -> QuantizedWeight:
    """A weight [rows, cols] of blocks as GGUF files have them.

    blocks: uint8, rows * cols / 32 blocks of 18 bytes ("q4_0") or 34 bytes ("q8_0"), in any shape. The weight is
    made on `device`; None: where the blocks are.
    """
    choice("type", type, TYPES)
    if not isinstance(blocks, Tensor) or blocks.dtype != torch.uint8:
        raise UsageError(f"blocks: {getattr(blocks, 'dtype', blocks.__class__.__name__)} (must be a uint8 tensor)")
    rows, cols = _c.integer("rows", rows, 1, 1 << 24), _c.integer("cols", cols, 1, 1 << 24)
    wanted = rows * (cols // 32) * _BLOCK[type]
    if cols % 32 or blocks.numel() != wanted:
        raise UsageError(
            f"blocks: {blocks.numel()} bytes for [{rows}, {cols}] (must be {wanted}; cols a multiple of 32)"
        )
    where = _place(blocks.device if device is None else device)
    return QuantizedWeight(blocks.detach().cpu().contiguous(), type, rows, cols, where)


def quantize_weight(w: Tensor, type: str) -> QuantizedWeight:
    """Quantises a weight [outputs, inputs] of any float dtype, on its device. inputs is a multiple of 32. The blocks
    are those of `fusebox quantize` without a search."""
    code = choice("type", type, TYPES)
    if not isinstance(w, Tensor) or w.dim() != 2 or not w.dtype.is_floating_point:
        raise UsageError(f"w: {_what(w)} (must be a float tensor [outputs, inputs])")
    values = w.detach().to("cpu", torch.float32).contiguous()
    count, cols = values.shape
    blocks = torch.empty(count * (cols // 32) * _BLOCK[type], dtype=torch.uint8)
    _c.call(lib.fb_ops_quantize_weight, code, values.data_ptr() or None, count, cols, blocks.data_ptr() or None)
    return QuantizedWeight(blocks, type, count, cols, _place(w.device))


def _what(value: object) -> str:
    return f"{list(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else value.__class__.__name__


# ---- activations ---------------------------------------------------------------------------------------------


class QuantizedActivations:
    """Activations in blocks of 32 with a scale each. `blocks`: uint8 [..., cols / 32, 40]; `dtype` is that of the
    activations."""

    def __init__(self, blocks: Tensor, dtype: torch.dtype) -> None:
        self.blocks, self.dtype = blocks, dtype

    def __repr__(self) -> str:
        return f"QuantizedActivations({list(self.blocks.shape)}, {self.dtype})"


def _blocks_like(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 32, BLOCK_BYTES), dtype=torch.uint8)


def _blocks_row(name: str, t: Tensor, device: int) -> None:
    """Blocks lie without gaps, at a multiple of 8 bytes."""
    if not isinstance(t, Tensor) or t.is_meta or t.get_device() != device:
        refuse(name, t, device)
    if t.dtype != torch.uint8 or t.dim() < 2 or t.shape[-1] != BLOCK_BYTES:
        raise UsageError(f"{name}: {_what(t)} (must be uint8 [..., blocks, {BLOCK_BYTES}])")
    if not t.is_contiguous():
        raise UsageError(f"{name}: strides {list(t.stride())} (must have no gaps: copy it with .contiguous())")


def _run_quantize(x: Tensor, out: Tensor | None) -> Tensor:
    device, px, x, shape = first("x", x)
    wanted = (*shape[:-1], shape[-1] // 32, BLOCK_BYTES)
    made = _blocks_like(x) if out is None else out
    _blocks_row("out", made, device)
    mark_written(made)
    if made.shape != wanted:
        raise UsageError(f"out: shape {list(made.shape)} (must be {list(wanted)})")
    handle, stream = enter(device)
    status = lib.fb_ops_quantize_q8(handle, stream, px, made.data_ptr() or None, shape[-1] // 32, errors.address)
    if status:
        raise failure(status)
    return made


QUANTIZE_Q8 = Op("quantize_q8", "Tensor x", _run_quantize, _blocks_like)


def _quantize(x: Tensor) -> Tensor:
    if direct():
        try:
            return _run_quantize(x, None)
        except Foreign:
            pass
    return dispatched(QUANTIZE_Q8, None, x)


def quantize_q8(x: Tensor) -> QuantizedActivations:
    """Quantises each 32 elements of x [..., cols] to 8 bits, for several linears of quantised weights. cols is a
    multiple of 32. A block with a value that is not finite has the scale NaN."""
    return QuantizedActivations(_quantize(x), x.dtype)


# ---- linears -------------------------------------------------------------------------------------------------


def _on_device(weight: QuantizedWeight, device: int) -> None:
    if weight.index != device:
        wanted = "cpu" if device < 0 else f"cuda:{device}"
        raise UsageError(f"weight: device {weight.device} (must be {wanted}, as the first argument)")


def _run_linear(x: Tensor, number: int, bias: Tensor | None, out: Tensor | None) -> Tensor:
    weight = _find(number)
    device, px, x, shape = first("x", x)
    _on_device(weight, device)
    pb = vector("bias", bias, device)
    po, made = projected(out, x, device, shape, weight.rows)
    handle, stream = enter(device)
    status = _FUNCTIONS[weight.type](handle, stream, px, weight.handle, pb, po, errors.address)
    if status:
        raise failure(status)
    return made


def _run_blocks(x: Tensor, number: int, bias: Tensor | None, dtype: torch.dtype, out: Tensor | None) -> Tensor:
    weight = _find(number)
    device = device_of("x", x)
    _on_device(weight, device)
    _blocks_row("x", x, device)
    *lead, count, _ = x.shape
    if count * 32 != weight.cols:
        raise UsageError(f"x: {count} blocks (must be {weight.cols // 32}, for {weight.cols} columns)")
    pb = vector("bias", bias, device)
    made = x.new_empty((*lead, weight.rows), dtype=dtype) if out is None else out
    if made.dtype != dtype:
        raise UsageError(f"out: dtype {made.dtype} (must be {dtype}, as dtype says)")
    check("out", made, device)
    po = output("out", made, device, (*lead, weight.rows))
    handle, stream = enter(device)
    status = lib.fb_ops_linear_blocks(
        handle, stream, x.data_ptr() or None, count, weight.handle, pb, po, errors.address
    )
    if status:
        raise failure(status)
    return made


LINEAR_QUANTISED = Op(
    "linear_quantised",
    "Tensor x, int weight, Tensor? bias",
    _run_linear,
    lambda x, number, *_: x.new_empty((*x.shape[:-1], _find(number).rows)),
)
LINEAR_BLOCKS = Op(
    "linear_blocks",
    "Tensor x, int weight, Tensor? bias, ScalarType dtype",
    _run_blocks,
    lambda x, number, bias, dtype: x.new_empty((*x.shape[:-2], _find(number).rows), dtype=dtype),
)


def _linear(
    type: str,
    x: Tensor | QuantizedActivations,
    weight: QuantizedWeight,
    bias: Tensor | None,
    dtype: torch.dtype | None,
    out: Tensor | None,
) -> Tensor:
    if not isinstance(weight, QuantizedWeight):
        raise UsageError(f"weight: {weight.__class__.__name__} (must be a QuantizedWeight)")
    if weight.type != type:
        raise UsageError(f"weight: {weight.type} (must be {type})")
    if isinstance(x, QuantizedActivations):
        return _product(LINEAR_BLOCKS, out, x.blocks, weight.number, bias, x.dtype if dtype is None else dtype)
    if dtype is not None and isinstance(x, Tensor) and dtype != x.dtype:
        raise UsageError(f"dtype: {dtype} (must be {x.dtype}, as x)")
    return _product(LINEAR_QUANTISED, out, x, weight.number, bias)


def _product(op: Op, out: Tensor | None, *arguments: Any) -> Tensor:
    if direct():
        try:
            made: Tensor = op.run(*arguments, out)
            return made
        except Foreign:
            pass
    return dispatched(op, out, *arguments)


def linear_q4_0(
    x: Tensor | QuantizedActivations,
    weight: QuantizedWeight,
    bias: Tensor | None = None,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """x weight^T + bias, with a product of integers for each block of 32.

    x [..., inputs], which is quantised inside, or the result of quantize_q8: the bits are the same. weight
    [outputs, inputs] of quantize_weight or pack_weight; bias [outputs] of any float dtype. The result is
    [..., outputs] in x's dtype, or in `dtype` where x is quantised already.
    """
    return _linear("q4_0", x, weight, bias, dtype, out)


def linear_q8_0(
    x: Tensor | QuantizedActivations,
    weight: QuantizedWeight,
    bias: Tensor | None = None,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """As linear_q4_0, with a weight of Q8_0."""
    return _linear("q8_0", x, weight, bias, dtype, out)
