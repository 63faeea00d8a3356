"""Layers of the C library (``fb_ops_layer``) on tensors, and the two ops that torch sees of them.

``fusebox::places`` computes once a step where its rows stand: positions and rotary angles. ``fusebox::layer`` runs one
layer. Both name a layer by a number, because the schema of an op knows no objects.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from ctypes import byref, c_bool, c_double, c_int32, c_void_p
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from ... import _c
from ..._c import call, lib, take_text, text, text_or_none, to_bytes
from ..._c_ops import (
    errors,
    failure,
    fb_ops_layer_fuse,
    fb_ops_named,
    fb_ops_positions,
    fb_ops_tensor,
    pack_cache,
    pack_tensor,
)
from ...errors import UsageError
from ..ops._context import enter

DTYPES = {torch.float32: _c.dtype("f32"), torch.float16: _c.dtype("f16"), torch.bfloat16: _c.dtype("bf16")}


_run = lib.fb_ops_layer_run

# ---- layers ----------------------------------------------------------------------------------------------------

_numbers = itertools.count(1)
_layers: WeakValueDictionary[int, NativeLayer] = WeakValueDictionary()


def _matrix(name: str, t: Tensor) -> fb_ops_tensor:
    rows, cols = (1, t.shape[0]) if t.dim() == 1 else t.shape
    if t.dtype not in DTYPES:
        raise UsageError(f"layer: {name}: {t.dtype} (must be float32, float16 or bfloat16)")
    return fb_ops_tensor(t.data_ptr(), DTYPES[t.dtype], rows, cols, t.stride(0) if rows > 1 else cols)


class NativeLayer:
    """A layer of the C library over ``weights``: tensors by the names that they have in a checkpoint, after the
    number of the layer. Their memory is used in place; the layer keeps the tensors alive.

    ``config``: the text of a config.json. ``frequencies``: of rotary positions; empty: the config's. ``fuse``: "none",
    "all" or a list; ``exact``: bit-identical variants."""

    def __init__(
        self, config: str, weights: dict[str, Tensor], frequencies: Sequence[float], fuse: str, exact: bool
    ) -> None:
        first = next(iter(weights.values()))
        self.device, self.dtype = first.device, first.dtype
        self.weights = weights
        self.pointers = tuple(t.data_ptr() for t in weights.values())
        self._index = -1 if self.device.type == "cpu" else self.device.index
        self._handle: int | None = None
        named = (fb_ops_named * len(weights))(
            *(fb_ops_named(to_bytes("name", name), _matrix(name, t)) for name, t in weights.items())
        )
        out = c_void_p()
        if self.dtype not in DTYPES:
            raise UsageError(f"layer: {self.dtype} (must be float32, float16 or bfloat16)")
        given = (c_double * len(frequencies))(*frequencies) if frequencies else None
        arguments = named, len(weights), given, len(frequencies), DTYPES[self.dtype], to_bytes("fuse", fuse), exact
        call(lib.fb_ops_layer_create, enter(self._index)[0], to_bytes("config", config), *arguments, byref(out))
        self._handle = out.value
        self.number = next(_numbers)
        self._dtype_number = DTYPES[self.dtype]
        rotary = c_int32()
        # A part of `places` is a multiple of 256 bytes long. That of 256 rows has no padding.
        self.row_bytes = int(lib.fb_ops_places_angles(self._handle, 256, byref(rotary))) // 256
        self.rotary = rotary.value
        _layers[self.number] = self

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            lib.fb_ops_layer_free(self._handle)

    def fuses(self) -> list[dict[str, Any]]:
        """Each fuse: name, why_not (None: it is on), bit, each (ops of a run), calls (so far)."""
        out, more = fb_ops_layer_fuse(), c_bool()
        rows: list[dict[str, Any]] = []
        for index in itertools.count():
            call(lib.fb_ops_layer_fuse_at, self._handle, index, byref(out), byref(more))
            if not more.value:
                return rows
            row = dict(name=text(out.name), why_not=text_or_none(out.why_not), bit=out.bit)
            rows.append({**row, "each": out.each, "calls": out.calls})
        raise AssertionError

    def plan(self) -> str:
        """The layer's ops after its fuses, as text."""
        return take_text(lib.fb_ops_layer_print, self._handle)

    def places_bytes(self, rows: int) -> int:
        return int(lib.fb_ops_places_bytes(self._handle, rows))

    def places(self, positions: Tensor | None, first: int, sequences: int, rows: int, capacity: int) -> Tensor:
        """Where the rows of a step stand: uint8. ``positions``: int64 [sequences, rows] on the layer's device, or
        None: from ``first`` on."""
        return self.fill_places(
            torch.empty(self.places_bytes(sequences * rows), dtype=torch.uint8, device=self.device),
            *(positions, first, sequences, rows, capacity),
        )

    def fill_places(
        self, out: Tensor, positions: Tensor | None, first: int, sequences: int, rows: int, capacity: int
    ) -> Tensor:
        given = fb_ops_positions(None if positions is None else positions.data_ptr(), 64)
        stream = enter(self._index)[1]
        call(lib.fb_ops_places, self._handle, stream, given, first, sequences, rows, capacity, out.data_ptr())
        return out

    def angles(self, places: Tensor, rows: int) -> Tensor:
        """The rotary angles in ``places``: float32 [rows, 2, rotary / 2], cosines and sines."""
        at = int(lib.fb_ops_places_angles(self._handle, rows, byref(c_int32())))
        return places[at : at + rows * self.rotary * 4].view(torch.float32).view(rows, 2, self.rotary // 2)

    def run(self, x: Tensor, places: Tensor, k: Tensor, v: Tensor, capacity: int) -> Tensor:
        """x [sequences, rows, hidden] → the new hidden state. k, v [sequences, kv_heads, slots, width]: the rows'
        keys and values are written to their slots, which are below ``capacity``."""
        if not x.is_contiguous():
            x = x.contiguous()
        shape, stride = k.shape, k.stride()
        if (
            x.dim() != 3
            or len(shape) != 4
            or shape != v.shape
            or stride != v.stride()
            or stride[3] != 1
            or stride[2] != shape[3]
            or shape[0] != x.shape[0]
            or not 0 <= capacity <= shape[2]
            or not (x.dtype == k.dtype == v.dtype == self.dtype)
            or not (x.device == k.device == v.device == places.device == self.device)
        ):
            _refuse(self, x, places, k, v, capacity)
        out = torch.empty_like(x)
        sequences, rows, cols = x.shape
        rows *= sequences
        if places.dtype != torch.uint8 or not places.is_contiguous() or places.numel() < self.places_size(rows):
            _refuse(self, x, places, k, v, capacity)
        dtype = self._dtype_number
        cache = pack_cache(k.data_ptr(), v.data_ptr(), sequences, shape[1], capacity, shape[3], stride[0], stride[1])
        into = pack_tensor(out.data_ptr(), dtype, rows, cols, cols)
        given = pack_tensor(x.data_ptr(), dtype, rows, cols, cols)
        stream = enter(self._index)[1]
        status = _run(self._handle, stream, given, places.data_ptr(), cache, into, errors.address)
        if status:
            raise failure(status)
        return out

    def places_size(self, rows: int) -> int:
        """``places_bytes``, also for symbolic numbers, which C cannot take."""
        return (rows * self.row_bytes + 255) // 256 * 256 + (rows * self.rotary * 4 + 255) // 256 * 256


def _refuse(layer: NativeLayer, x: Tensor, places: Tensor, k: Tensor, v: Tensor, capacity: int) -> None:
    """Says which argument of a run is wrong."""
    if x.dim() != 3:
        raise UsageError(f"layer: x: {tuple(x.shape)} (must be [sequences, rows, hidden])")
    for name, t in (("x", x), ("places", places), ("k", k), ("v", v)):
        if t.device != layer.device:
            raise UsageError(f"layer: {name}: on {t.device} (must be on {layer.device}, as the weights)")
        if t is not places and t.dtype != layer.dtype:
            raise UsageError(f"layer: {name}: {t.dtype} (must be {layer.dtype}, as the weights)")
    for name, t in (("k", k), ("v", v)):
        if t.dim() != 4 or t.shape[0] != x.shape[0] or t.shape != k.shape:
            raise UsageError(f"layer: {name}: {tuple(t.shape)} (must be [{x.shape[0]}, heads, slots, width], k as v)")
    if not 0 <= capacity <= k.shape[2]:
        raise UsageError(f"layer: capacity: {capacity} (from 0 to {k.shape[2]}, the slots of k)")
    if k.stride(3) != 1 or k.stride(2) != k.shape[3]:
        raise UsageError(f"layer: k: strides {k.stride()} (must have no gaps within a head)")
    if k.stride() != v.stride():
        raise UsageError(f"layer: v: strides {v.stride()} (must be k's, {k.stride()})")
    need = layer.places_size(x.shape[0] * x.shape[1])
    raise UsageError(f"layer: places: {places.dtype} {tuple(places.shape)} (must be uint8, at least {need} bytes)")


def layer_of(number: int) -> NativeLayer:
    """The layer of a number that an op was given."""
    layer = _layers.get(number)
    if layer is None:
        raise UsageError(f"layer: {number} (there is no such layer: it was freed, or the model is not fused any more)")
    return layer


# ---- ops -------------------------------------------------------------------------------------------------------

_Library: Any = torch.library.Library  # its methods have no types
_library = _Library("fusebox", "FRAGMENT")
_library.define(
    "places(Tensor x, Tensor? positions, SymInt first, SymInt sequences, SymInt rows, SymInt capacity, int layer)"
    " -> Tensor"
)
_library.define(
    "layer(Tensor x, Tensor places, Tensor(a!) k, Tensor(b!) v, SymInt capacity, int layer) -> Tensor",
)


def _check_places(x: Tensor, positions: Tensor | None, native: NativeLayer) -> None:
    for name, t in (("x", x), ("positions", positions)):
        if t is not None and t.device != native.device:
            raise UsageError(f"places: {name}: on {t.device} (must be on {native.device}, as the weights)")
    if positions is not None and positions.dtype not in (torch.int32, torch.int64):
        raise UsageError(f"places: positions: {positions.dtype} (must be int32 or int64)")


def _places(
    x: Tensor, positions: Tensor | None, first: int, sequences: int, rows: int, capacity: int, layer: int
) -> Tensor:
    native = layer_of(layer)
    _check_places(x, positions, native)
    if positions is not None:
        positions = positions.to(torch.int64).expand(sequences, rows).contiguous()
    # Zeros: the padding of an op's result must be the same every time.
    out = x.new_zeros(native.places_bytes(sequences * rows), dtype=torch.uint8)
    return native.fill_places(out, positions, first, sequences, rows, capacity)


def _layer(x: Tensor, places: Tensor, k: Tensor, v: Tensor, capacity: int, layer: int) -> Tensor:
    return layer_of(layer).run(x, places, k, v, capacity)


for _key in ("CPU", "CUDA"):
    _library.impl("places", _places, _key)
    _library.impl("layer", _layer, _key)


def _places_fake(
    x: Tensor, positions: Tensor | None, first: int, sequences: int, rows: int, capacity: int, layer: int
) -> Tensor:
    return x.new_empty(layer_of(layer).places_size(sequences * rows), dtype=torch.uint8)


def _layer_fake(x: Tensor, places: Tensor, k: Tensor, v: Tensor, capacity: int, layer: int) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


torch.library.register_fake("fusebox::places", _places_fake, lib=_library)
torch.library.register_fake("fusebox::layer", _layer_fake, lib=_library)


places, layer = torch.ops.fusebox.places, torch.ops.fusebox.layer
